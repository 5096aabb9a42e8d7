"""Measure how long a reading thread waits for the database, apart from what it does itself.

The wait is the wall time of fetching a batch without the thread's own CPU in it: the database, its
disk and the way to it. The work is all CPU of the thread since the batch before: decoding, hashing,
adding up. Since then it was also ready to run and had no processor for a while (`processors`). What
the thread spends waiting for a warehouse, a budget or another process belongs to none of them, so a
slow line cannot look like a slow database. Three clocks are read for a batch of thousands of rows:
some 20 microseconds.

Rejected: the seconds between two batches. They include a client that takes nothing, and a busy
machine of the agent's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from source_agent.engines.interface import DatabaseTime, Rows
from source_agent.scan.processors import queued_s

Clock = Callable[[], float]


@dataclass(slots=True)
class DatabaseTimer:
    """Measures the batches of one read, in the thread that reads them. Clocks are injected."""

    clock: Clock = field(default=time.perf_counter)
    cpu: Clock = field(default=time.thread_time)
    queue: Clock = field(default=queued_s)
    _waited_s: float = field(default=0.0, init=False)
    _worked_s: float = field(default=0.0, init=False)
    _queued_s: float = field(default=0.0, init=False)

    def timed(self, batches: Iterator[Rows]) -> Generator[Rows, None, None]:
        """Yield the batches. The iterator is closed with this one."""
        try:
            worked_from, queued_from = self.cpu(), self.queue()
            while True:
                began, cpu, queued = self.clock(), self.cpu(), self.queue()
                rows = next(batches, None)
                ended, worked_to, queued_to = self.clock(), self.cpu(), self.queue()
                self._waited_s += max(ended - began - (worked_to - cpu) - (queued_to - queued), 0.0)
                self._worked_s += worked_to - worked_from
                self._queued_s += queued_to - queued_from
                worked_from, queued_from = worked_to, queued_to
                if rows is None:
                    return
                yield rows
        finally:
            if isinstance(batches, Generator):
                batches.close()

    def taken(self) -> DatabaseTime:
        """Return what was measured since the last call."""
        measured = DatabaseTime(self._waited_s, self._worked_s, self._queued_s)
        self._waited_s = self._worked_s = self._queued_s = 0.0
        return measured
