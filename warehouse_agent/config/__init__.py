"""The data engineer's file, warehouse.toml: where sources are, and which copies to keep of them."""

from warehouse_agent.config.file import load
from warehouse_agent.config.names import (
    NAME_CHARACTERS_MAX,
    RESERVED,
    is_fragment_name,
    named,
    select,
)
from warehouse_agent.config.settings import (
    AHEAD,
    EXECUTORS_WAIT_S,
    SMALL_BYTES,
    SOURCES_AT_ONCE,
    Fragment,
    Maintain,
    OnFailure,
    Proof,
    Require,
    Source,
    View,
    WarehouseConfig,
)

__all__ = [
    "AHEAD",
    "EXECUTORS_WAIT_S",
    "NAME_CHARACTERS_MAX",
    "RESERVED",
    "SMALL_BYTES",
    "SOURCES_AT_ONCE",
    "Fragment",
    "Maintain",
    "OnFailure",
    "Proof",
    "Require",
    "Source",
    "View",
    "WarehouseConfig",
    "is_fragment_name",
    "load",
    "named",
    "select",
]
