"""What all runs of one command share, and the end of each fragment.

A fragment ends in this module: published, failed, refused or not started. If views depend on it,
the turn of its component is told.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from driftline.errors import DriftlineError
from driftline.settings.hours import next_open

from warehouse_agent.config import Fragment, Source
from warehouse_agent.events import RefreshNotStarted, refresh_ended
from warehouse_agent.history.refresh_history import read, refreshes
from warehouse_agent.refresh.services import CommandServices
from warehouse_agent.report import Report, utc_at
from warehouse_agent.runs import order
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage import formats
from warehouse_agent.transport.channel import SourceChannel

if TYPE_CHECKING:
    from warehouse_agent.components.turn import ComponentTurn


@dataclass(frozen=True, slots=True)
class PrecedingRun:
    """The run before another one of its source: when it is expected to be done, and if it is.

    Attributes:
        expected_at: by a monotonic clock, in seconds.
    """

    expected_at: float = 0.0
    is_done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class RefreshCommand:
    """One command, as the runs of all its sources share it; safe for threads.

    Attributes:
        turns: of the components, by the names of their chosen fragments.
        attempts: of a refresh, if its errors are retryable, that do not advance.
        wait_s_max: the longest pause between two attempts, before some jitter.
        link: makes a channel to a source.
        ends_at: the deadline by a monotonic clock, in seconds; None: there is none.
        clock: seconds since 1970.
    """

    services: CommandServices
    turns: Mapping[str, ComponentTurn]
    attempts: int
    wait_s_max: float
    link: Callable[[Source], SourceChannel] = SourceChannel
    ends_at: float | None = None
    clock: Callable[[], float] = time.time

    @property
    def is_deferred(self) -> bool:
        """Return True if mistakes are to be found before Spark may start."""
        return isinstance(self.services.steps.session, DeferredSession)

    def finished(self, report: Report) -> None:
        """Emit the last event of a fragment."""
        self.services.emit(refresh_ended(report))
        self.leave(report.name)

    def leave(self, name: str) -> None:
        """Tell the turn of a fragment's component that the fragment is done, or stays."""
        if (turn := self.turns.get(name)) is not None:
            turn.leave(name)

    def settle(self, names: Iterable[str]) -> None:
        """Do the turns of these fragments' components that wait for nothing else."""
        for turn in {id(t): t for n in names if (t := self.turns.get(n)) is not None}.values():
            turn.settle()

    def refused(self, report: Report, error: DriftlineError, *, is_ours: bool) -> None:
        """Emit the report of a fragment on which no work began; `is_ours`: we hold its lock."""
        self.published(report, is_ours=is_ours)
        report.fail(error)
        self.finished(report)

    def startable(
        self, fragments: Sequence[Fragment], reports: Mapping[str, Report], before: PrecedingRun
    ) -> tuple[list[Fragment], float]:
        """Return the fragments of a run to start now; report those that would end too late, or all
        if the command is to end, or is scheduled and the `refresh_hours` of its source have ended.

        Where the run before may need the time that they need, wait until it is done, then decide.

        Returns:
            The fragments, and the seconds that they are expected to take; 0 without a deadline.
        """
        if self.services.options.is_ending():
            for fragment in fragments:
                self._not_started(reports[fragment.name], "The command was asked to end.")
            return [], 0.0
        if (opens := self._opens(fragments)) is not None:
            why = f"The `refresh_hours` of its source have ended; the next begin {opens:%a %H:%M}."
            for report in (reports[fragment.name] for fragment in fragments):
                report.put_off_until = utc_at(opens.timestamp())
                self._not_started(report, why)
            return [], 0.0
        if self.ends_at is None:
            return list(fragments), 0.0
        takes_s = dict[str, float]()
        for fragment in fragments:
            takes_s[fragment.name] = 0.0
            with contextlib.suppress(DriftlineError):  # its own refresh says what is wrong
                last = read(self.services.store, fragment.name, refreshes(order.DURATIONS))
                durations_s = last.durations_s(order.DURATIONS)
                takes_s[fragment.name] = order.expected_s(durations_s)
        left_s = self.ends_at - time.monotonic()
        chosen = order.in_time(fragments, takes_s, left_s)
        behind_s = left_s if before.is_done.is_set() else self.ends_at - before.expected_at
        if chosen != order.in_time(fragments, takes_s, min(left_s, behind_s)):
            before.is_done.wait()
            left_s = self.ends_at - time.monotonic()
            chosen = order.in_time(fragments, takes_s, left_s)
        for name in (f.name for f in fragments if f not in chosen):
            why = (
                f"By its history it takes {takes_s[name]:,.0f} s, and until the deadline "
                f"{max(left_s, 0):,.0f} s are left for its run."
            )
            self._not_started(reports[name], why)
        return chosen, sum(takes_s[fragment.name] for fragment in chosen)

    def is_closed(self, fragments: Sequence[Fragment]) -> bool:
        """Return True if nothing more of a source is to be started: the command is to end, its
        deadline is over, or the `refresh_hours` have ended."""
        is_late = self.ends_at is not None and time.monotonic() > self.ends_at
        is_ending = self.services.options.is_ending()
        return is_ending or is_late or self._opens(fragments) is not None

    def _opens(self, fragments: Sequence[Fragment]) -> datetime | None:
        """Return when fragments of one source may begin, by its clock; None: now."""
        if not (self.services.options.is_scheduled and fragments):
            return None
        source = fragments[0].source
        now = datetime.fromtimestamp(self.clock(), ZoneInfo(source.time_zone))
        opens = next_open(source.refresh_hours, now)
        return None if opens == now else opens

    def _not_started(self, report: Report, why: str) -> None:
        """Report that a fragment was not started."""
        report.not_started = why
        self.published(report, is_ours=False)
        self.services.emit(RefreshNotStarted(report))
        self.leave(report.name)

    def published(self, report: Report, *, is_ours: bool = True) -> None:
        """Note the published version of a fragment that is not worked on.

        If we hold its lock, also complete its history.
        """
        with contextlib.suppress(Exception):  # the report has the error of the table
            if (snapshot := formats.head(self.services.store, report.name)) is not None:
                report.version = report.previous_version = snapshot.version
                report.rows_total = snapshot.rows
            if is_ours:
                self.services.histories.completed(self.services.store, report.name, snapshot)
