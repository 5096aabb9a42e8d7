"""One scan shared with further processes, where the DBA allows it (`limits.readers`).

Hashing is what a scan waits for, and Python hashes on one core: so further processes (`assist`)
read parts of the same snapshot and hash their rows, and we add the hashes up with our own. The
parts are given out one by one to whoever is free, this process among them; the fetch of changed
rows, and everything else of an exchange, stays here.

Invariants: a part counts once, from whoever read it to its end: what has come of it is added up
only then. If a process dies, or cannot connect, or loses its connection, its open parts are read
again here. What is wrong with the rows themselves ends the exchange with that error. On the way
out, whatever the reason, no process is left with a statement. The governor is asked about every
batch that another process has read, as it is about every batch read here. Memory: tables are here
alone, and of each process one part waits for its end, 2 MB of the narrowest rows.

Rejected: threads (the interpreter's lock), `multiprocessing` (it forks or runs the main module
again; an agent has threads, and its main module is the DBA's program), shared memory (something
can be left behind; a pipe carries 16 bytes a row), tables in every process (35 MB each, for the
tenth of a scan's work that adding up is; and a process that dies takes all it has read along).
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

from driftline.errors import (
    LimitExceeded,
    NullKey,
    ValueDoesNotFit,
)
from driftline.limits import DATABASE_SILENCE_S_MAX

from source_agent.engines.interface import Split
from source_agent.scan.accumulators import Accumulator, Hashed
from source_agent.scan.reader import Reader
from source_agent.scan.worker_process import END_S_MAX, Done, Failed, Read, ScanJob

AHEAD: Final = 2  # parts a process has at hand, so that it does not wait for this one
# Not `-m`: what is pickled is named after the module, which must not be `__main__` there.
_PROGRAM: Final = "from source_agent.scan.worker_process import main; main()"
TURN: Final = 4  # messages taken from one process before our own statement goes on
LOOK_S: Final = 0.25  # at most this late is a cancellation seen while others read
# Longer than a session waits: a process whose statement delivers nothing says so first.
SILENT_S_MAX: Final = DATABASE_SILENCE_S_MAX + 60
_OF_THE_ROWS: Final = (NullKey, ValueDoesNotFit, LimitExceeded)  # reading them again is no help
_SECRETS: Final = "DRIFTLINE_"  # of environment variables that a reader has no use for

_log = logging.getLogger("driftline.source")


class WorkerProcess:
    """A reader process, and what it has been given."""

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
        """For the scan that begins: which parts it has at hand, what has come of the first of them,
        whether it knows that there are no more."""
        self.heard_at = time.monotonic()
        self.parts: list[int] = []
        self.found: list[Hashed] = []
        self.knows_all = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int:
        """Once it has ended; below 0 it is the signal that ended it."""
        return self._process.wait()

    def give(self, part: int | None) -> None:
        """One more part; None: there are no more."""
        if part is None:
            self.knows_all = True
        else:
            self.parts.append(part)
        self.pipe.send(part)

    def end(self) -> None:
        """Has it cancel what it does and go; returns when it is gone."""
        self.pipe.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WorkerPool:
    """At most `size` processes beside this one, started when first needed and kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._places = size
        self._idle: list[WorkerProcess] = []

    @contextmanager
    def lent(self, most: int) -> Iterator[list[WorkerProcess]]:
        """At most so many that nobody else has. Those still in the list at the end are kept for the
        next scan; who takes one out ends it."""
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
                process.pipe.close()  # all of them know before the first is waited for
            while lent:
                lent.pop().end()
            raise
        finally:
            with self._lock:
                self._places += places
                self._idle += lent
            self._end_surplus()

    def resize(self, size: int) -> None:
        """At most so many from now on; those that are lent are ended when they come back."""
        with self._lock:
            self._places += size - self.size
            self.size = size
        self._end_surplus()

    def close(self) -> None:
        """Ends those that are idle."""
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


def fill(reader: Reader, accumulators: Sequence[Accumulator], pool: WorkerPool | None) -> None:
    """Read every row of a relation once, and add it to every accumulator.

    Args:
        pool: processes that may read parts of the scan; None: this process reads alone.

    Raises:
        The errors of `Reader.scan`.
    """
    split = reader.split() if pool is not None and pool.size else None
    if pool is not None and split is not None:
        with pool.lent(max(split.parts // (AHEAD + 1), 1)) as processes:
            if processes:
                SharedScan(reader, split, accumulators, processes).run()
                return
    for batch in reader.survey():
        _add(accumulators, Hashed.of(batch))


def _add(accumulators: Sequence[Accumulator], rows: Hashed) -> None:
    for accumulator in accumulators:
        accumulator.add(rows)


class SharedScan:
    """One scan in the making."""

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
        self._reader.tally.scans += 1
        job = ScanJob(
            join=self._split.join,
            shape=self._reader.shape,
            fragment_key=self._reader.fragment_key,
            salt=self._reader.salt,
        )
        for process in self._working[:]:
            self._begin(process, job)
        # A process that is lost puts its parts back, at whatever time.
        while (part := self._next()) is not None or self._working:
            if part is not None:
                self._read(part)
            else:
                self._hear(LOOK_S)
                self._split.wait()

    def _next(self) -> int | None:
        """A part that nobody has; None: there is none."""
        return self._again.pop() if self._again else next(self._fresh, None)

    def _read(self, part: int) -> None:
        # Closed, or the statement outlives what others raise between two batches.
        with closing(self._reader.batches(self._split.read(part))) as batches:
            for batch in batches:
                _add(self._accumulators, Hashed.of(batch))
                self._hear(0)

    def _begin(self, process: WorkerProcess, job: ScanJob) -> None:
        process.begin()
        try:
            process.pipe.send(job)
            for _ in range(AHEAD):
                self._give(process)
        except OSError as error:
            self._lost(process, error)

    def _give(self, process: WorkerProcess) -> None:
        """The next part, or word that there are no more."""
        if (part := self._next()) is not None:
            process.give(part)
        elif not process.parts and not process.knows_all:
            process.give(None)

    def _hear(self, timeout_s: float) -> None:
        """Take what the processes have to say, waiting for the first of it."""
        for process in self._working[:]:
            if time.monotonic() - process.heard_at > SILENT_S_MAX:
                self._lost(process, TimeoutError(f"silent for {SILENT_S_MAX:g} s"))
        pipes = {p.pipe: p for p in self._working}
        for pipe in wait(list(pipes), timeout_s):
            process = pipes[pipe]  # type: ignore[index]
            process.heard_at = time.monotonic()
            for said in self._said(process):
                self._take(process, said)

    def _said(self, process: WorkerProcess) -> Iterator[object]:
        """What one of them has said, at least one message."""
        for _ in range(TURN):
            try:
                said = process.pipe.recv()
            except Exception as error:  # it ended; or it is of another release than this agent
                self._lost(process, error)
                return
            yield said
            if process not in self._working or not process.pipe.poll():
                return

    def _take(self, process: WorkerProcess, said: object) -> None:
        if isinstance(said, Hashed):
            process.found.append(said)
            self._reader.tally.rows_read += said.digest.count
            self._split.note(said.digest.count)
        elif isinstance(said, Read):
            process.parts.remove(said.part)
            found, process.found = process.found, []
            assert said.rows == sum(rows.digest.count for rows in found), "a part is not whole"
            for rows in found:
                _add(self._accumulators, rows)
            try:
                self._give(process)
            except OSError as error:
                self._lost(process, error)
        elif isinstance(said, Done):
            self._working.remove(process)
        elif isinstance(said, Failed):
            if isinstance(said.error, _OF_THE_ROWS):
                raise said.error
            self._lost(process, said.error)
        else:
            raise AssertionError(f"a reader said {type(said).__name__}")

    def _lost(self, process: WorkerProcess, why: Exception) -> None:
        """Its open parts are read again, and it is not used any more."""
        self._working.remove(process)
        self._kept.remove(process)
        self._again += process.parts
        process.end()
        _log.warning(
            "a reader process was lost (%s, exit code %d); its part is read again",
            str(why) or type(why).__name__,
            process.exit_code,
        )
