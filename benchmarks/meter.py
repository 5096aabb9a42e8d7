"""What one run of a tool cost: bytes and packets of the link, seconds, processor time, memory.

Bytes and packets are the link's own counters, both directions, headers and connection set-up
included, read when the link has been quiet. Wall seconds end when the tool does.

Source CPU is user and system time of the source's process trees: the database server and whatever
else a tool needs there. A process's dead children count with their parent, who has waited for them,
so that a server's backends count though they are gone. The kernel ticks in 10 ms.

Memory is the largest sum, over samples, of what the processes of one side hold resident, without
shared memory (a server's buffers, which are configured, the same for all, and mapped into every
backend). What is shorter than a sample may be missed.

A command's processes are those that it started, also one that ends after it, such as a JVM: orphans
are adopted and waited for.

The cost of measuring is a look at /proc per sample, some 1 % of a core. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.wan.link import Counters, Link

SAMPLE_S_MIN, SAMPLE_S_MAX, SAMPLE_GROWTH = 0.02, 0.2, 1.2  # short runs are looked at more often
QUIET_S = 0.25  # beyond a round trip: the link rests when nothing has moved for so long
QUIET_S_MAX = 10.0  # something else talks: measure nevertheless
_TICKS_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Measured:
    to_source_bytes: int
    to_source_packets: int
    to_warehouse_bytes: int
    to_warehouse_packets: int
    dropped_packets: int
    wall_s: float
    source_cpu_s: float
    source_rss_bytes_max: int
    warehouse_rss_bytes_max: int

    @property
    def link_bytes(self) -> int:
        return self.to_source_bytes + self.to_warehouse_bytes

    @property
    def link_packets(self) -> int:
        return self.to_source_packets + self.to_warehouse_packets


class Meter:
    """A context manager around one run. Processes that are started within are `watch`ed."""

    def __init__(
        self, link: Link, rtt_ms: float, source_pids: Sequence[int], warehouse_pids: Sequence[int]
    ) -> None:
        self._link, self._quiet_s = link, QUIET_S + rtt_ms / 1000
        self._source, self._warehouse = list(source_pids), list(warehouse_pids)
        self._source_rss = self._warehouse_rss = 0
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self.measured: Measured | None = None

    def watch(self, warehouse_pid: int) -> None:
        """Its memory counts as the warehouse's, and that of its children."""
        self._warehouse.append(warehouse_pid)

    def __enter__(self) -> Self:
        self._rest()
        self._moved = self._link.counters()
        self._cpu_s = cpu_s(self._source)
        self._sampler.start()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        wall_s = time.perf_counter() - self._start
        self._done.set()
        self._sampler.join()
        self._look()
        source_cpu_s = cpu_s(self._source) - self._cpu_s
        self._rest()
        moved: Counters = self._link.counters() - self._moved
        self.measured = Measured(
            moved.to_source_bytes,
            moved.to_source_packets,
            moved.to_warehouse_bytes,
            moved.to_warehouse_packets,
            moved.dropped_packets,
            wall_s,
            source_cpu_s,
            self._source_rss,
            self._warehouse_rss,
        )

    def _sample(self) -> None:
        wait_s = SAMPLE_S_MIN
        while not self._done.wait(wait_s):
            self._look()
            wait_s = min(wait_s * SAMPLE_GROWTH, SAMPLE_S_MAX)

    def _look(self) -> None:
        below = children()
        self._source_rss = max(self._source_rss, resident_bytes(self._source, below))
        self._warehouse_rss = max(self._warehouse_rss, resident_bytes(self._warehouse, below))

    def _rest(self) -> None:
        """Until nothing has moved for a while: last acknowledgements, ends of connections."""
        deadline = time.monotonic() + QUIET_S_MAX
        seen, since = self._link.counters(), time.monotonic()
        while (now := time.monotonic()) < min(since + self._quiet_s, deadline):
            time.sleep(0.02)
            if (counters := self._link.counters()) != seen:
                seen, since = counters, now


def cpu_s(roots: Iterable[int]) -> float:
    """User and system seconds of these processes, all below them, and the dead among those."""
    below = children()
    return sum(_ticks(pid) for pid in _tree(roots, below)) / _TICKS_S


def adopt_orphans() -> None:
    """Become the parent of processes whose parents end before them, such as a command's JVM."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def own_children() -> list[int]:
    """Return the children of this process, adopted ones included."""
    return children().get(os.getpid(), [])


def reap(*, but: Collection[int]) -> None:
    """Wait for all children but these."""
    while left := [pid for pid in own_children() if pid not in but]:
        os.waitpid(left[0], 0)


def ended_children_cpu_s() -> float:
    """Return the seconds of all children that were waited for, and of those below them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tree(roots: Iterable[int], children: dict[int, list[int]]) -> set[int]:
    pids: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in pids:
            pids.add(pid)
            waiting += children.get(pid, [])
    return pids


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name, the state first; none if it is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def children() -> dict[int, list[int]]:
    """Return the children of every process."""
    by_parent: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC):
        if entry.isdigit() and (fields := _stat(int(entry))):
            by_parent.setdefault(int(fields[1]), []).append(int(entry))
    return by_parent


def _ticks(pid: int) -> int:
    return sum(int(field) for field in _stat(pid)[11:15])  # utime, stime, cutime, cstime


def resident_bytes(roots: Iterable[int], children: dict[int, list[int]]) -> int:
    return sum(_own_kb(pid) for pid in _tree(roots, children)) * 1024


def _own_kb(pid: int) -> int:
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile") if name in fields)
