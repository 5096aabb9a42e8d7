"""Read the rows of a large step in processes beside the driver's (`reading_process`).

A step that reads rows makes their row bytes and hashes them, mostly in Python. Two threads prove
a table 1.15 times as fast as one, since they share an interpreter; two processes 1.7 times. So such
a step, from `step_places.PROCESS_BYTES` on, has its shares read in processes, and its threads wait
for these. Steps that write stay in this process: nothing writes once its command was killed.

Processes start when a step is expected, beside other work, and end by themselves when they have
been idle for a while, or when this process has ended.

Invariants: a share is read once. An error of a share is raised here, as it is. After an error, or
an interruption, the processes of the step are killed, and none of their results is used.

Rejected: `multiprocessing` (it forks beside threads of gRPC, or runs the caller's main module
again); a local session of Spark (its start takes as long as a step of a gigabyte).
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
from driftline.errors import WarehouseUnavailable

from warehouse_agent.spark.machine import machine
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.backends.request_counts import REQUESTS
from warehouse_agent.tasks.reading_process import Failed, Read, Share, ToRead

LOOK_S = 0.25  # until a step that is stopped is noticed by what waits for a place
# Not `-m`: what is pickled is named after the module, which must not be `__main__` there.
_PROGRAM = "from warehouse_agent.tasks.reading_process import main; main()"


class ReadingProcess:
    """A process that reads shares, one after the other."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        self._pipe: Connection = ours
        # The modules of this very agent, wherever they were found.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment,
            )
        finally:
            theirs.close()

    @property
    def is_there(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def begin(self, step: bytes) -> None:
        """Begin a step, a pickled `ToRead`.

        Raises:
            EOFError, OSError: the process has ended.
        """
        self._pipe.send_bytes(step)
        self._pipe.recv()

    def read(self, items: Sequence[Any]) -> list[pa.RecordBatch]:
        """Return the rows of one share of the step.

        Raises:
            WarehouseUnavailable: the process was killed, as when memory runs out.
            Exception: whatever the step's function raised.
        """
        try:
            self._pipe.send(Share(items))
            said = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise _lost() from error
        assert isinstance(said, Read | Failed)
        REQUESTS.add(said.requests)
        if isinstance(said, Failed):
            raise said.error
        return said.batches

    def kill(self) -> None:
        """Let the process end at once, and `read` raise in the thread that waits for it."""
        self._process.kill()

    def end(self) -> None:
        """End the process; return when it has exited."""
        self._process.kill()
        self._pipe.close()
        self._process.wait()


class ReadingProcesses:
    """At most `most` processes of this one, for all its steps; those that are idle are kept."""

    def __init__(self, most: int) -> None:
        self._most, self._places = most, threading.Semaphore(most)
        self._lock = threading.Lock()
        self._idle: list[ReadingProcess] = []
        os.register_at_fork(after_in_child=self._forget)

    def start(self, count: int) -> None:
        """Begin to start processes, if fewer than `count` are idle; do not wait for them. Those
        that cannot be started are left to `read`."""
        with self._lock, suppress(OSError):
            self._idle = [process for process in self._idle if process.is_there]
            while len(self._idle) < min(count, self._most):
                self._idle.append(ReadingProcess())

    def read(
        self,
        function: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]],
        shares: Sequence[Sequence[Any]],
        count: int,
    ) -> list[list[pa.RecordBatch]]:
        """Return the rows that `function` makes of each share, in at most `count` processes.

        Raises:
            WarehouseUnavailable: as of `ReadingProcess.read`.
            OSError: no process can be started.
            Exception: whatever `function` raises.
        """
        from pyspark import cloudpickle

        # By value: functions of steps are made when they are needed.
        step = cloudpickle.dumps(  # type: ignore[no-untyped-call]
            ToRead(function, known.learnt())
        )
        count = min(count, len(shares))
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(shares)):
            todo.put(number)
        rows: list[list[pa.RecordBatch]] = [[] for _ in shares]
        lent: list[ReadingProcess] = []
        stopped = threading.Event()

        def run() -> None:
            with self._place(stopped):
                if stopped.is_set() or todo.empty():
                    return
                with self._in(lent, step, stopped) as process, suppress(queue.Empty):
                    while not stopped.is_set():
                        number = todo.get_nowait()
                        rows[number] = process.read(shares[number])

        with ThreadPoolExecutor(max(count, 1)) as pool:
            try:
                for done in as_completed([pool.submit(run) for _ in range(count)]):
                    done.result()
            except BaseException:
                with self._lock:
                    stopped.set()
                    for process in lent:
                        process.kill()  # so that the threads end
                raise
        return rows

    def close(self) -> None:
        """End the processes that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    @contextmanager
    def _place(self, stopped: threading.Event) -> Iterator[None]:
        """Wait for a place for one process; not longer than until the step is stopped."""
        while not (is_free := self._places.acquire(timeout=LOOK_S)) and not stopped.is_set():
            pass
        try:
            yield
        finally:
            if is_free:
                self._places.release()

    def _forget(self) -> None:
        """Leave the processes to the process that this one was forked from."""
        self._lock, self._places = threading.Lock(), threading.Semaphore(self._most)
        self._idle = []

    @contextmanager
    def _in(
        self, lent: list[ReadingProcess], step: bytes, stopped: threading.Event
    ) -> Iterator[ReadingProcess]:
        """Give a process that has begun a step, and is in `lent` meanwhile; keep it afterwards,
        unless the step was stopped."""
        process = self._begun(step)
        with self._lock:
            lent.append(process)
        try:
            yield process
        finally:
            with self._lock:
                lent.remove(process)
                is_kept = process.is_there and not stopped.is_set()
                if is_kept:
                    self._idle.append(process)
            if not is_kept:
                process.end()

    def _begun(self, step: bytes) -> ReadingProcess:
        """Return a process that has begun a step; an idle one may have ended meanwhile."""
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            process = ReadingProcess() if kept is None else kept
            try:
                process.begin(step)
            except (EOFError, OSError) as error:
                process.end()
                if kept is None:
                    raise _lost() from error
            else:
                return process


def _lost() -> WarehouseUnavailable:
    return WarehouseUnavailable(
        "A process that read data files was killed, perhaps because memory ran out.",
        remedy="Run the command again. If it repeats, set a smaller `driver_share`, so that "
        "Spark does more.",
    )


PROCESSES = ReadingProcesses(machine().cores)
