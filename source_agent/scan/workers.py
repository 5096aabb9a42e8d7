"""Share one scan with worker processes, if the DBA allows it (`limits.readers`).

A scan spends most of its time on hashing, and Python hashes on one core. So worker processes
(`worker_process`) read parts of the same snapshot and hash their rows; this process reads parts
too, and adds up all hashes. A part goes to the process that is free.

Invariants: a part is added once, after a process has read it to its end. The unfinished parts of a
lost process are read again here. An error in the rows ends the exchange. However a scan ends, no
process keeps a statement. The governor counts every batch; while it waits, no process goes on for
longer than the parts that it has. Memory: only this process has tables;
one unfinished part of each process is held, 2 MB of the narrowest rows.

Rejected: threads (the interpreter's lock); `multiprocessing` (it forks, or runs the DBA's main
module again); shared memory (it may be left behind, and a pipe carries only 16 bytes a row); tables
in every process (35 MB each, to save a tenth of the work; a lost process would lose its parts).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Final

from driftline.errors import LimitExceeded, NullKey, ValueDoesNotFit
from driftline.limits import DATABASE_SILENCE_S_MAX

from source_agent.engines.interface import Split
from source_agent.scan.accumulators import Accumulator, HashedRows
from source_agent.scan.reader import ReadAgain, Reader
from source_agent.scan.worker_process import END_S_MAX, PartFailed, PartRead, ScanDone, ScanJob

AHEAD: Final = 2  # parts assigned to a process, so that it does not wait for this one
# Not `-m`: what is pickled is named after the module, which must not be `__main__` there.
_PROGRAM: Final = "from source_agent.scan.worker_process import main; main()"
TURN: Final = 4  # messages taken from one process before this process reads on
LOOK_S: Final = 0.25  # the longest time until a cancellation is noticed while others read
# Longer than a session waits: a process reports a silent statement first.
SILENT_S_MAX: Final = DATABASE_SILENCE_S_MAX + 60
_ROW_ERRORS: Final = (NullKey, ValueDoesNotFit, LimitExceeded)  # reading again does not help
_SECRETS: Final = "DRIFTLINE_"  # prefix of environment variables that a worker does not need

_log = logging.getLogger("driftline.source")


class WorkerProcess:
    """A worker process, and the parts that are assigned to it."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_SECRETS)}
        # The modules of this very agent, wherever they were found.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self.pipe: Connection = ours
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment,
            )
        finally:
            theirs.close()
        self.begin()

    def begin(self) -> None:
        """Begin a scan: no part is assigned, and no rows of the first part have come."""
        self.received_at = time.monotonic()
        self.parts: list[int] = []
        self.found: list[HashedRows] = []
        self.knows_all = False

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int:
        """Exit code, once the process has ended; minus the signal if a signal ended it."""
        return self._process.wait()

    def give(self, part: int | None) -> None:
        """Assign one more part; None if there are no more."""
        if part is None:
            self.knows_all = True
        else:
            self.parts.append(part)
        self.pipe.send(part)

    def end(self) -> None:
        """End the process, which cancels its statement; return when it has exited."""
        self.pipe.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WorkerPool:
    """At most `size` worker processes, started when first needed and kept for later scans."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._places = size
        self._idle: list[WorkerProcess] = []

    @contextmanager
    def lent(self, most: int) -> Iterator[list[WorkerProcess]]:
        """Give at most `most` processes to one scan.

        Those that are in the list at the end are kept for the next scan. Whoever removes a process
        from the list must end it.
        """
        with self._lock:
            places = max(min(self._places, most), 0)
            self._places -= places
            taken, self._idle = self._idle[:places], self._idle[places:]
        lent: list[WorkerProcess] = []
        try:
            lent += taken
            try:
                lent += (WorkerProcess() for _ in range(places - len(taken)))
            except OSError as error:
                _log.warning("no further reader process can be started: %s", error)
            yield lent
        except BaseException:
            for process in lent:
                process.pipe.close()  # tell all of them before waiting for the first
            while lent:
                lent.pop().end()
            raise
        finally:
            with self._lock:
                self._places += places
                self._idle += lent
            self._end_surplus()

    def resize(self, size: int) -> None:
        """Allow at most `size` processes; end surplus ones, lent ones when they come back."""
        with self._lock:
            self._places += size - self.size
            self.size = size
        self._end_surplus()

    def close(self) -> None:
        """End the processes that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _end_surplus(self) -> None:
        with self._lock:
            most = max(self._places, 0)
            surplus, self._idle = self._idle[most:], self._idle[:most]
        for process in surplus:
            process.end()


def fill(
    reader: Reader,
    accumulators: Sequence[Accumulator],
    pool: WorkerPool | None,
    again: ReadAgain | None = None,
) -> None:
    """Read every row of a relation once, and add it to every accumulator.

    pool: processes that may read parts of the scan, or None; again: from `Reader.again`, if an
    accumulator needs locators. Raises the errors of `Reader.scan`.
    """
    split = reader.split(again) if pool is not None and pool.size else None
    if pool is not None and split is not None:
        with pool.lent(max(split.parts // (AHEAD + 1), 1)) as processes:
            if processes:
                SharedScan(reader, split, accumulators, processes).run()
                return
    for batch in reader.scan_hashes(again):
        _add(accumulators, HashedRows.of(batch))


def _add(accumulators: Sequence[Accumulator], rows: HashedRows) -> None:
    for accumulator in accumulators:
        accumulator.add(rows)


class SharedScan:
    """One scan that this process shares with worker processes."""

    def __init__(
        self,
        reader: Reader,
        split: Split,
        accumulators: Sequence[Accumulator],
        processes: list[WorkerProcess],
    ) -> None:
        self._reader, self._split, self._accumulators = reader, split, accumulators
        self._kept, self._working = processes, list(processes)
        self._fresh, self._again = iter(range(split.parts)), list[int]()

    def run(self) -> None:
        """Read all parts, and add them to the accumulators."""
        reader = self._reader
        reader.tally.scans += 1
        job = ScanJob(self._split.join, reader.shape, reader.fragment_key, reader.salt)
        for process in self._working[:]:
            self._begin(process, job)
        # A process may be lost at any time; its parts are then read again.
        while (part := self._next()) is not None or self._working:
            if part is not None:
                self._read(part)
            else:
                self._receive(LOOK_S)
                self._split.wait()
        self._split.finish()

    def _next(self) -> int | None:
        return self._again.pop() if self._again else next(self._fresh, None)

    def _read(self, part: int) -> None:
        # Closed, so that the statement ends if `_receive` raises between two batches.
        with closing(self._reader.batches(self._split.read(part))) as batches:
            for batch in batches:
                _add(self._accumulators, HashedRows.of(batch))
                self._receive(0)

    def _begin(self, process: WorkerProcess, job: ScanJob) -> None:
        process.begin()
        try:
            process.pipe.send(job)
            for _ in range(AHEAD):
                self._give(process)
        except OSError as error:
            self._lost(process, error)

    def _give(self, process: WorkerProcess) -> None:
        """Assign the next part, or tell the process that there are no more."""
        if (part := self._next()) is not None:
            process.give(part)
        elif not process.parts and not process.knows_all:
            process.give(None)

    def _receive(self, timeout_s: float) -> None:
        """Process the messages of the workers; wait at most `timeout_s` for the first."""
        for process in self._working[:]:
            if time.monotonic() - process.received_at > SILENT_S_MAX:
                self._lost(process, TimeoutError(f"silent for {SILENT_S_MAX:g} s"))
        pipes = {p.pipe: p for p in self._working}
        for pipe in wait(list(pipes), timeout_s):
            process = pipes[pipe]  # type: ignore[index]
            process.received_at = time.monotonic()
            for said in self._messages(process):
                self._take(process, said)

    def _messages(self, process: WorkerProcess) -> Iterator[object]:
        """Yield at least one message of a process, and at most TURN."""
        for _ in range(TURN):
            try:
                said = process.pipe.recv()
            except Exception as error:  # it ended, or it is of another release than this agent
                self._lost(process, error)
                return
            yield said
            if process not in self._working or not process.pipe.poll():
                return

    def _take(self, process: WorkerProcess, said: object) -> None:
        if isinstance(said, HashedRows):
            process.found.append(said)
            self._reader.tally.rows_read += said.digest.count
            self._split.note(said.digest.count)
        elif isinstance(said, PartRead):
            process.parts.remove(said.part)
            batches, process.found = process.found, []
            assert said.rows == sum(rows.digest.count for rows in batches), "a part is not whole"
            for rows in batches:
                _add(self._accumulators, rows)
            try:
                self._give(process)
            except OSError as error:
                self._lost(process, error)
            self._split.spent(said.spent)
        elif isinstance(said, ScanDone):
            self._working.remove(process)
        elif isinstance(said, PartFailed):
            if isinstance(said.error, _ROW_ERRORS):
                raise said.error
            self._lost(process, said.error)
        else:
            raise AssertionError(f"a reader said {type(said).__name__}")

    def _lost(self, process: WorkerProcess, why: Exception) -> None:
        """Drop a process, and put its unfinished parts back."""
        self._working.remove(process)
        self._kept.remove(process)
        self._again += process.parts
        process.end()
        _log.warning(
            "a reader process was lost (%s, exit code %d); its part is read again",
            str(why) or type(why).__name__,
            process.exit_code,
        )
