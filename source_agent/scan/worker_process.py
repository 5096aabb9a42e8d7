"""A process beside the agent that reads parts of a scan.

`workers` starts it with a pipe as its standard input. The agent sends a job, then the numbers of
the parts to read; the process returns the hashes of their rows (`HashedRows`). The fragment key and
the password of the database are on the pipe and in memory only, not in the arguments, the
environment or a log.

Invariants: the process reads through a read-only session in the agent's snapshot. When the pipe
ends, it cancels its statement, closes its connection and exits. It ignores the signals of a
terminal or a service manager, because the agent decides when it ends. A thread listens to the pipe,
so that a cancellation is received during a statement.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from driftline.errors import OPEN, DatabaseUnavailable, DriftlineError, InternalError
from driftline.rows.digests import Salt

from source_agent.engines.interface import DatabaseTime, Session, Split
from source_agent.engines.relations.shapes import Shape
from source_agent.scan.accumulators import HashedRows
from source_agent.scan.database_time import DatabaseTimer
from source_agent.scan.heap import keep_heap_small
from source_agent.scan.reader import ReadCounts, Reader

END_S_MAX = 10.0  # from the end of the pipe to the end of the process


@dataclass(frozen=True, slots=True)
class ScanJob:
    """A scan to take part in. join: opens a session in the agent's snapshot."""

    join: Callable[[], Split] = field(repr=False)
    shape: Shape
    fragment_key: bytes = field(repr=False)
    salt: Salt


@dataclass(frozen=True, slots=True)
class PartRead:
    """A part was read to its end; the `HashedRows` of its rows were sent before."""

    part: int
    rows: int
    spent: DatabaseTime = field(default_factory=DatabaseTime)


@dataclass(frozen=True, slots=True)
class ScanDone:
    """All parts were read, and the connection is closed."""


@dataclass(frozen=True, slots=True)
class PartFailed:
    """The process stopped in the middle of a part."""

    error: DriftlineError


class Worker:
    """The two threads of the process: one listens to the pipe, one reads rows."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._received: queue.SimpleQueue[ScanJob | int | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._is_over = False

    def run(self) -> None:
        """Execute one job after the other until the pipe ends."""
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        while True:
            job = self._received.get()
            if self._is_over or not isinstance(job, ScanJob):
                return
            with suppress(OSError):  # the agent is gone
                if self._work(job):
                    continue
            return

    def _listen(self) -> None:
        try:
            while True:
                self._received.put(self._pipe.recv())
        except Exception:  # it ended, or the agent is of another release
            self._is_over = True
            self._received.put(None)
        with self._lock:
            if self._session is None:
                os._exit(0)  # connecting cannot be interrupted
            self._session.interrupt()
        time.sleep(END_S_MAX / 2)  # as a daemon, it is not waited for
        os._exit(1)

    def _work(self, job: ScanJob) -> bool:
        """Do a job; return False if it failed, after which the process is not used again."""
        try:
            self._join(job)
        except Exception as error:
            unknown = InternalError(f"A reader met {type(error).__name__}.")
            self._pipe.send(PartFailed(error if isinstance(error, DriftlineError) else unknown))
            return False
        self._pipe.send(ScanDone())
        return True

    def _join(self, job: ScanJob) -> None:
        split = job.join()
        with closing(split.session):
            with self._lock:
                self._session = split.session
                if self._is_over:
                    raise DatabaseUnavailable(
                        "The read was interrupted.",
                        abroad=OPEN,
                    )
            try:
                self._read(job, split)
            finally:
                with self._lock:
                    self._session = None

    def _read(self, job: ScanJob, split: Split) -> None:
        tally = ReadCounts()
        reader = Reader(
            split.session, job.shape, fragment_key=job.fragment_key, salt=job.salt, tally=tally
        )
        while isinstance(part := self._received.get(), int):
            before = tally.rows_read
            timer = DatabaseTimer()
            for batch in reader.batches(timer.timed(split.read(part))):
                self._pipe.send(HashedRows.of(batch))
            self._pipe.send(PartRead(part, tally.rows_read - before, timer.taken()))


def main() -> None:
    """Run the process until its standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep_heap_small()
    Worker(Connection(os.dup(0))).run()
