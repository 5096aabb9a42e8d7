"""Refresh many fragments in one command; the failure of one does not stop the others.

`schedule` decides the order. Sources are served side by side, each by one thread, so that one that
does not answer delays no other; the runs of a source follow each other (`source_run`). A command
with one source at a time has no threads of its own.

When the command is interrupted, or nobody reads its answers any more, the exchanges are ended and
every thread stops at its next event. A fragment that was just committed is still reported. A thread
that does not stop in time, such as one that waits for Spark, ends with the process.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from driftline.errors import DriftlineError

from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.events import Event, Listener, RefreshCommitted
from warehouse_agent.history import record
from warehouse_agent.history.record import RunHistory
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.schedule import SourceSchedule, schedule
from warehouse_agent.runs.source_run import Command, SourceRuns
from warehouse_agent.spark.session import Deferred
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 4  # of a refresh, if its errors are retryable
WAIT_S_MAX = 30.0
STOP_S_MAX = 5.0  # for the threads of a command that is interrupted

_log = logging.getLogger("driftline")


@dataclass
class Runner:
    """Refresh fragments of one configuration with one Spark session.

    With a deferred session, Spark is started only when the source was reached and the lock of a
    fragment is held.

    Each event goes to the history of runs, then to `listeners` in their order, one event after the
    other, in the thread of its source. An exception of a listener is logged at debug level and
    dropped: a refresh does not depend on its listeners. Only BrokenPipeError ends the command,
    because its answers are not read any more.
    """

    spark: SparkSession | Deferred
    config: WarehouseConfig
    listeners: Sequence[Listener] = ()
    sleep: Callable[[float], None] | None = None  # None: a wait that an interruption ends
    attempts: int = ATTEMPTS

    @property
    def store(self) -> Store:
        """Return the store of the configured warehouse."""
        return Store(self.config.path)

    def refresh(self, fragments: Sequence[Fragment], options: Options) -> list[Report]:
        """Refresh fragments; emit the report of each as soon as the fragment is done.

        Returns:
            A report for every fragment, in the order of `fragments`; failures are in the reports.
        """
        announcer = _Announcer(RunHistory(self.store), self.listeners)
        deadline_s = options.deadline_s
        command = Command(
            steps=Steps(self.spark, self.config.small_bytes),
            store=self.store,
            options=options,
            emit=announcer,
            sleep=self.sleep or announcer.wait,
            attempts=self.attempts,
            wait_s_max=WAIT_S_MAX,
            ends_at=None if deadline_s is None else time.monotonic() + deadline_s,
        )
        refreshed_at = {f.name: _refreshed_at(self.store, f.name) for f in fragments}
        turns = [
            _Turns(SourceRuns(command, planned.source), planned)
            for planned in schedule(fragments, refreshed_at, ahead=self.config.ahead)
        ]
        with contextlib.ExitStack() as links:
            for one in turns:
                links.callback(one.runs.close)
            _serve_all(turns, self.config.sources_at_once, announcer)
        reports = {report.name: report for one in turns for report in one.reports}
        return [reports[fragment.name] for fragment in fragments]


class _Stopped(BaseException):
    """The command was interrupted; raised in the threads that serve its sources."""


class _Announcer:
    """Pass the events of all threads to the listeners, one after the other.

    The history comes first, so that a report is on disk before it is printed, and outside the lock,
    so that no report waits for a reader of the answers.
    """

    def __init__(self, history: Listener, listeners: Sequence[Listener]) -> None:
        self._history, self._listeners = history, listeners
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def __call__(self, event: Event) -> None:
        """Pass an event to every listener.

        Raises:
            BrokenPipeError: nobody reads the answers any more.
            _Stopped: the command was interrupted, and the event publishes nothing.
        """
        if self._stopped.is_set() and not isinstance(event, RefreshCommitted):
            raise _Stopped
        _tell(self._history, event)
        with self._lock:
            for listener in self._listeners:
                _tell(listener, event)

    def stop(self) -> None:
        """End every thread at its next event, and waits at once."""
        self._stopped.set()

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`. Raise _Stopped if the command is interrupted meanwhile."""
        if self._stopped.wait(seconds):
            raise _Stopped


def _tell(listener: Listener, event: Event) -> None:
    """Pass an event to a listener. Raise BrokenPipeError: nobody reads the answers any more."""
    try:
        listener(event)
    except BrokenPipeError:
        raise
    except Exception as problem:
        _log.debug("a listener failed on %s", type(event).__name__, exc_info=problem)


class _Turns:
    """The runs of a source that are left, and the reports of those that are done.

    All shared runs are one turn, and each refresh in tiles is another, between which other sources
    get a thread.
    """

    def __init__(self, runs: SourceRuns, planned: SourceSchedule) -> None:
        self.runs = runs
        self.reports: list[Report] = []
        self._left = deque(turn for turn in (planned.shared, *_alone(planned)) if turn)

    def take(self) -> bool:
        """Do the next turn; return True if another one is left."""
        for run in self._left.popleft():
            self.reports += self.runs.refresh(run)
        return bool(self._left)


def _alone(planned: SourceSchedule) -> list[tuple[tuple[Fragment, ...], ...]]:
    return [((fragment,),) for fragment in planned.tiled]


def _serve_all(turns: Sequence[_Turns], at_once: int, announcer: _Announcer) -> None:
    """Do all turns of all sources, with at most `at_once` sources side by side.

    Raises:
        BaseException: what ended the command: an interruption, or the first error of a thread.
    """
    waiting: queue.SimpleQueue[_Turns] = queue.SimpleQueue()
    for one in turns:
        waiting.put(one)

    def serve() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                one = waiting.get_nowait()
                if one.take():
                    waiting.put(one)

    if min(at_once, len(turns)) <= 1:
        serve()
        return
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def serve_and_tell() -> None:
        try:
            serve()
        except BaseException as problem:
            ended.put(problem)
        else:
            ended.put(None)

    threads = [
        threading.Thread(target=serve_and_tell, name=f"driftline-source-{number}", daemon=True)
        for number in range(min(at_once, len(turns)))
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            if (problem := ended.get()) is not None:
                raise problem
    except BaseException:
        announcer.stop()
        for one in turns:
            one.runs.close()
        until = time.monotonic() + STOP_S_MAX
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(until - time.monotonic(), 0))
        raise


def _refreshed_at(store: Store, name: str) -> datetime | None:
    """Return when a fragment was last equal to its source; None if never, or if it is not known."""
    with contextlib.suppress(DriftlineError):  # the fragment's own refresh says what is wrong
        return record.refreshed_at(store, name)
    return None
