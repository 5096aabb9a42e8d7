"""Measure how much of a machine's processors others use: all but us.

Ours are the agent with its workers, the backends of its sessions, and a warehouse on the same
machine with what it started. A read rests for others, not for these: a refresh on one machine would
wait for its own warehouse most of the time.

The machine's use is compared with that of a second before; of shorter times the ticks of Linux tell
too little. A backend that is not seen, as of MariaDB, whose backends are threads, is taken to work
while a read waits for it. Where the machine does not show its processes, nothing is known.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from source_agent.scan.processors import ProcessorUsage, usage, used_since

LOOK_S: Final = 1.0  # between two looks at the machine; a look takes some milliseconds
STALE_S: Final = 60.0  # a look that is older is no begin of a measurement
# The share of all processors that others use: up to the first a read does not rest for them, from
# the second on as long as it would for anybody. Writing out files and the database's own
# housekeeping, which a refresh itself causes, stay below the first, and so do the ticks: on two
# busy processors, others differ by up to 0.04 from a second to the next where there are none.
SHARE_MIN, SHARE_MAX = 0.10, 0.25
_BACKEND: Final = "postgres"  # in the name of a process that is one


class OtherProcesses:
    """Measures for one machine. Thread-safe."""

    def __init__(
        self, clock: Callable[[], float], look: Callable[[], ProcessorUsage | None] = usage
    ):
        self._lock, self._clock, self._look = threading.Lock(), clock, look
        self._backends, self._warehouses = Counter[int](), Counter[int]()
        self._begun: tuple[float, ProcessorUsage] | None = None
        self._hidden_s = 0.0
        self._weight, self._weighed_at = 0.0, 0.0

    @contextmanager
    def with_warehouse(self, process: int | None) -> Iterator[None]:
        """Count a process and what it starts as ours; None: no warehouse is on this machine."""
        if process is None:
            yield
            return
        self._add(self._warehouses, process, 1)
        try:
            yield
        finally:
            self._add(self._warehouses, process, -1)

    def add_backend(self, process: int) -> None:
        """Count the backend of a session as ours; 0: it is not known."""
        if process:
            self._add(self._backends, process, 1)

    def drop_backend(self, process: int) -> None:
        """Count it no more."""
        if process:
            self._add(self._backends, process, -1)

    def _add(self, to: Counter[int], process: int, count: int) -> None:
        with self._lock:
            to[process] += count
            if to[process] <= 0:
                del to[process]

    def weight(self, waited_s: float) -> float:
        """Return how far a read is to rest for those who need the processors: 0, they are ours, to
        1, they are others. 1 where the machine does not tell, 0 before the first second.

        Args:
            waited_s: for which reads have waited for the database since the last call.
        """
        with self._lock:
            now = self._clock()
            self._hidden_s += waited_s
            if self._begun is not None and now - self._begun[0] < LOOK_S:
                return self._known(now)
            if (seen := self._look()) is None:
                self._begun = None
                return 1.0
            if self._begun is not None and now - self._begun[0] <= STALE_S:
                self._weigh(now - self._begun[0], self._begun[1], seen)
                self._weighed_at = now
            self._begun, self._hidden_s = (now, seen), 0.0
            return self._known(now)

    def _known(self, now: float) -> float:
        return self._weight if now - self._weighed_at <= STALE_S else 0.0

    def _weigh(self, seconds: float, before: ProcessorUsage, now: ProcessorUsage) -> None:
        backends = {
            one
            for one in self._backends
            if one in now.processes and _BACKEND in now.processes[one].name
        }
        roots = [one for one in (os.getpid(), *self._warehouses, *backends) if one in now.processes]
        ours_s = used_since(before, now, roots) + (0.0 if backends else self._hidden_s)
        others_s = now.worked_s - before.worked_s - ours_s
        share = others_s / (seconds * now.processors)
        self._weight = min(max((share - SHARE_MIN) / (SHARE_MAX - SHARE_MIN), 0.0), 1.0)
