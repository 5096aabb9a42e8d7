"""Refresh many fragments in one command; the failure of one does not stop the others.

`schedule` decides the order. Sources are served side by side, each by one thread, so that one that
does not answer delays no other (`threads`); a second thread helps while a source has several runs,
which overlap (`source_run`). A command of one run has no threads of its own.

When the command is interrupted, or nobody reads its answers any more, the exchanges are ended and
every thread stops at its next event. A fragment that was just committed is still reported. A thread
that does not stop in time, such as one that waits for Spark, ends with the process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from driftline.errors import DriftlineError

from warehouse_agent.components.phase_forecast import fuzzy_sources
from warehouse_agent.config import Fragment, Source, WarehouseConfig
from warehouse_agent.events import Event, Listener, RefreshCommitted
from warehouse_agent.history.change_memory import IntervalHistory
from warehouse_agent.history.command_records import CommandJournal
from warehouse_agent.history.refresh_history import Histories, HistoryListener, read, refreshes
from warehouse_agent.refresh.job import Options
from warehouse_agent.refresh.services import CommandServices
from warehouse_agent.report import Report, new_run
from warehouse_agent.runs.command import RefreshCommand
from warehouse_agent.runs.order import SourceSchedule, schedule
from warehouse_agent.runs.source_run import SourceRuns
from warehouse_agent.runs.threads import CommandStopped, SourceSlot, SourceSlots, Threads
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.transport.channel import SourceChannel
from warehouse_agent.views.selection import TableSelection, of_fragments
from warehouse_agent.visible_versions.flips import Flips

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from warehouse_agent.components.turn import ComponentTurn

ATTEMPTS = 4  # of a refresh, if its errors are retryable
WAIT_S_MAX = 30.0
STOP_S_MAX = 5.0  # for the threads of a command that is interrupted

_log = logging.getLogger("driftline")


@dataclass
class Runner:
    """Refresh fragments of one configuration with one Spark session.

    With a deferred session, Spark is started only when the source was reached and the lock of a
    fragment is held.

    Each event goes to the history of refreshes, to the memory of change, then to `listeners` in
    order, one event after the other, in a thread of its source. An exception of a listener is
    logged at debug level and dropped: a refresh does not depend on its listeners. Only
    BrokenPipeError ends the command, because its answers are not read any more.
    """

    spark: SparkSession | DeferredSession
    config: WarehouseConfig
    listeners: Sequence[Listener] = ()
    sleep: Callable[[float], None] | None = None  # None: a wait that an interruption ends
    attempts: int = ATTEMPTS
    link: Callable[[Source], SourceChannel] = SourceChannel
    clock: Callable[[], float] = time.time

    @property
    def store(self) -> Store:
        """Return the store of the configured warehouse."""
        return Store.of(self.config)

    def refresh(
        self, chosen: TableSelection | Sequence[Fragment], options: Options
    ) -> list[Report]:
        """Refresh fragments and the views that are chosen with them; report each when it is done.

        Returns:
            A report for every fragment, then for every view, in the order of `chosen`, then for
            other views that moved with them; failures are in the reports.

        Raises:
            BrokenPipeError: nobody reads the answers any more.
            ConfigurationError: the queries of the views were not read (`views.inputs.load`).
        """
        selection = (
            chosen if isinstance(chosen, TableSelection) else of_fragments(self.config, chosen)
        )
        fragments = selection.fragments
        histories, zones = Histories(), {f.name: f.time_zone for f in fragments}
        remembering = IntervalHistory(self.store, zones, histories)
        run = new_run()
        journal = CommandJournal(self.store, run, [f.name for f in fragments])
        announcer = _Announcer(
            HistoryListener(self.store, histories), (remembering, journal, *self.listeners)
        )
        deadline_s = options.deadline_s
        services = CommandServices(
            steps=Steps.of(self.config, self.spark, store=self.store),
            store=self.store,
            options=options,
            emit=announcer,
            sleep=self.sleep or announcer.wait,
            flips=Flips(self.store, self.config),
            histories=histories,
            run=run,
        )
        components = _turns_of(services, selection)
        command = RefreshCommand(
            services,
            turns={fragment.name: turn for turn in components for fragment in turn.fragments},
            attempts=self.attempts,
            wait_s_max=WAIT_S_MAX,
            link=self.link,
            ends_at=None if deadline_s is None else time.monotonic() + deadline_s,
            clock=self.clock,
        )
        refreshed_at = _refreshed_at(self.store, fragments)
        places = SourceSlots(self.config.sources_at_once)
        turns = [
            _Turns(command, planned, SourceSlot(places))
            for planned in schedule(
                fragments,
                refreshed_at,
                ahead=self.config.ahead,
                together=_together(components),
                gains=options.gains,
            )
        ]
        with journal, contextlib.ExitStack() as links:
            for component in components:
                links.callback(component.abandon)
            for one in turns:
                links.callback(one.runs.close)
            try:
                if len(turns) == 1 and turns[0].is_single:
                    turns[0].serve(announcer)
                else:
                    _serve_all(turns, places, announcer)
            finally:
                announcer.check()
        reports = {report.name: report for one in turns for report in one.runs.reports}
        of_views = {report.name: report for one in components for report in one.reports}
        reports |= of_views
        names = [*(f.name for f in fragments), *(view.name for view in selection.views), *of_views]
        return [reports[name] for name in dict.fromkeys(names)]


def _turns_of(services: CommandServices, selection: TableSelection) -> list[ComponentTurn]:
    """Return the turns of the components that are selected; none where there are no views."""
    if not selection.components:
        return []
    from warehouse_agent.components.turn import ComponentTurn  # and sqlglot

    return [ComponentTurn(services, one, selection) for one in selection.components]


def _together(turns: Sequence[ComponentTurn]) -> dict[str, int]:
    """Return the number of the component of each fragment that shares a snapshot with others.

    Those of a source that needs no snapshot are in runs of usual size, between which views move.
    """
    return {
        fragment.name: number
        for number, turn in enumerate(turns)
        for fragment in turn.fragments
        if fragment.source.name not in fuzzy_sources(turn.fragments)
    }


class _Announcer:
    """Pass the events of all threads to the listeners, one after the other.

    The history comes first, so that a report is on disk before it is printed, and outside the lock,
    so that no report waits for a reader of the answers.
    """

    def __init__(self, history: Listener, listeners: Sequence[Listener]) -> None:
        self._history, self._listeners = history, listeners
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._unread: BrokenPipeError | None = None

    def __call__(self, event: Event) -> None:
        """Pass an event to every listener.

        Raises:
            CommandStopped: nobody reads the answers any more; or the command was interrupted, and
                the event publishes nothing.
        """
        if self._stopped.is_set() and not isinstance(event, RefreshCommitted):
            raise CommandStopped
        try:
            _tell(self._history, event)
            with self._lock:
                for listener in self._listeners:
                    _tell(listener, event)
        except BrokenPipeError as unread:
            self._unread = unread
            self.stop()
            raise CommandStopped from None  # no failure of the fragment whose event this is

    def check(self) -> None:
        """Raise BrokenPipeError if nobody reads the answers, whatever was raised after it."""
        if self._unread is not None:
            raise self._unread from None

    def stop(self) -> None:
        """End every thread at its next event, and waits at once."""
        self._stopped.set()

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`. Raise CommandStopped if the command is interrupted meanwhile."""
        if self._stopped.wait(seconds):
            raise CommandStopped


def _tell(listener: Listener, event: Event) -> None:
    """Pass an event to a listener. Raise BrokenPipeError: nobody reads the answers any more."""
    try:
        listener(event)
    except BrokenPipeError:
        raise
    except Exception as problem:
        _log.debug("a listener failed on %s", type(event).__name__, exc_info=problem)


class _Turns:
    """The turns of a source. All shared runs are one, and each refresh in tiles is another.

    Between two turns other sources get the place.
    """

    def __init__(self, command: RefreshCommand, planned: SourceSchedule, place: SourceSlot) -> None:
        self.runs = SourceRuns(
            command, planned.source, partial(place.pause, command.services.sleep)
        )
        self._place = place
        alone = (((fragment,),) for fragment in planned.tiled)
        self._left = deque(deque(turn) for turn in (planned.shared, *alone) if turn)

    @property
    def is_single(self) -> bool:
        """Return True if nothing overlaps: each turn has one run."""
        return all(len(turn) == 1 for turn in self._left)

    def serve(self, announcer: _Announcer, threads: Threads | None = None) -> None:
        """Do all turns; `threads` has another thread for turns of several runs."""
        while self._left:
            turn = self._left.popleft()
            refresh = partial(self.runs.refresh, turn)
            with self._place.held():
                announcer.wait(0)
                beside = threads.start(refresh) if threads and len(turn) > 1 else None
                refresh()
                if beside is not None:
                    beside.join()
            if self._left:
                self._place.ask()


def _serve_all(turns: Sequence[_Turns], places: SourceSlots, announcer: _Announcer) -> None:
    """Serve all sources side by side, as far as there are places.

    Raises:
        BaseException: what ended the command: an interruption, or the first error of a thread.
    """
    threads = Threads()
    try:
        for one in turns:
            threads.start(partial(one.serve, announcer, threads))
        threads.wait()
    except BaseException:
        announcer.stop()
        places.lift()
        for one in turns:
            one.runs.close()
        threads.join(STOP_S_MAX)
        raise


def _refreshed_at(store: Store, fragments: Sequence[Fragment]) -> dict[str, datetime]:
    """Return when fragments were last equal to their sources, if that is known; nothing of one
    fragment, which needs no order."""
    by_name = dict[str, datetime]()
    for name in (f.name for f in fragments if len(fragments) > 1):
        with contextlib.suppress(DriftlineError):  # the fragment's own refresh says what is wrong
            if (at := read(store, name, refreshes(1)).refreshed_at) is not None:
                by_name[name] = at
    return by_name
