"""Who is told after a refresh command, by the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.monitoring import freshness, metrics, notifications
from warehouse_agent.monitoring.after_command import Teller


def of(config: WarehouseConfig) -> Sequence[Teller]:
    """Return who is to be told of the commands of a warehouse."""
    made: list[Teller | None] = [make(config) for make in _ALL]
    return [teller for teller in made if teller is not None]


# None: it is not set.
_ALL: Final[Sequence[Callable[[WarehouseConfig], Teller | None]]] = (
    freshness.of,
    metrics.teller,
    notifications.program,
    notifications.webhook,
    notifications.heartbeat,
)
