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
    DRIVER_SHARE,
    EXECUTORS_WAIT_S,
    SOURCES_AT_ONCE,
    Fragment,
    Maintain,
    MetricsSettings,
    OnFailure,
    Proof,
    Require,
    Source,
    StorageSettings,
    View,
    WarehouseConfig,
)

__all__ = [
    "AHEAD",
    "DRIVER_SHARE",
    "EXECUTORS_WAIT_S",
    "NAME_CHARACTERS_MAX",
    "RESERVED",
    "SOURCES_AT_ONCE",
    "Fragment",
    "Maintain",
    "MetricsSettings",
    "OnFailure",
    "Proof",
    "Require",
    "Source",
    "StorageSettings",
    "View",
    "WarehouseConfig",
    "is_fragment_name",
    "load",
    "named",
    "select",
]
