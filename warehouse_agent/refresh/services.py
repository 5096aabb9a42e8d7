"""What all refreshes of one command use, of fragments and of views: settings and services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.events import Listener
from warehouse_agent.history.refresh_history import Histories
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.visible_versions.flips import Flips


@dataclass(frozen=True, slots=True)
class CommandServices:
    """Settings and services of one command; safe for threads.

    Attributes:
        emit: passes an event to the listeners.
        sleep: waits for seconds.
        flips: moves fragments in the table of versions.
        histories: of the fragments that are being refreshed.
    """

    steps: Steps
    store: Store
    options: Options
    emit: Listener
    sleep: Callable[[float], None]
    flips: Flips
    histories: Histories = field(default_factory=Histories)

    @property
    def config(self) -> WarehouseConfig:
        """Return the configuration of the warehouse."""
        return self.flips.config
