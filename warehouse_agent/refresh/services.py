"""What all refreshes of one command use, of fragments and of views: settings and services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.events import Listener
from warehouse_agent.history.refresh_history import Histories
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report, new_run, release, utc_now
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
        run: names the command in its reports.
    """

    steps: Steps
    store: Store
    options: Options
    emit: Listener
    sleep: Callable[[float], None]
    flips: Flips
    histories: Histories = field(default_factory=Histories)
    run: str = field(default_factory=new_run)

    def begun(self, name: str, source: str | None = None) -> Report:
        """Return the report of a fragment of this source, or of a view, that begins now."""
        return Report(name, run=self.run, started_at=utc_now(), release=release(), source=source)

    @property
    def config(self) -> WarehouseConfig:
        """Return the configuration of the warehouse."""
        return self.flips.config
