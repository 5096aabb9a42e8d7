"""Who is told after a refresh command, by the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.config.settings import NotifySettings
from warehouse_agent.monitoring import freshness, metrics
from warehouse_agent.monitoring.after_command import Teller


def of(config: WarehouseConfig) -> Sequence[Teller]:
    """Return who is to be told of the commands of a warehouse."""
    made: list[Teller | None] = [make(config) for make in _ALL]
    return [*(teller for teller in made if teller is not None), *_notified(config)]


def _notified(config: WarehouseConfig) -> Sequence[Teller]:
    """Return the receivers of [notify]; who has none imports nothing for them."""
    if config.notify == NotifySettings():
        return ()
    from warehouse_agent.monitoring import notifications

    return notifications.of(config)


_ALL: Final[Sequence[Callable[[WarehouseConfig], Teller | None]]] = (  # None: it is not set
    freshness.of,
    metrics.teller,
)
