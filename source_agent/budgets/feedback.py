"""Decide how long a read is held back because the database answers more slowly, without I/O.

pt-table-checksum makes its chunks smaller when a chunk takes longer. Here a scan is one statement,
so the agent stops taking rows: the server fills a socket and then waits. Nobody knows beforehand
what is slow, so a read is compared with its own recent past. The measure is the seconds of database
and agent for each second of the agent's own CPU (`scan.database_time`), in windows of WINDOW_S:
wide rows cost both sides more, and a slow line neither. A window above SLOWER times the median of
the past is slow. A second one in a row begins to hold the read back, and each further one doubles
that; any other window halves it.

Invariants: a read is never held back for longer than it has read (HELD_SHARE), so it takes at most
twice as long, nor beyond the seconds that the DBA's other limits leave (`held_s_max`). A database
that stays slow is no longer slower than its recent past: the median follows. A quiet database is
not held back, and costs a division for each window.

Rejected: a statement that asks the server how busy it is. It is one more for the DBA to review,
differs between engines, and says nothing of disks. A fixed share of the time: it slows down every
scan, and most disturb nobody.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import median

from source_agent.engines.interface import DatabaseTime

WINDOW_S = 0.25  # of waiting and working: some 80 batches; single ones vary by much
SLOWER = 1.5  # times the median; windows of a database at rest vary by less
SLOW_WINDOWS = 2  # in a row: a checkpoint, or the first row of a sort, is one
WINDOWS_MIN = 8  # of past, before anything is slow
WINDOWS_REMEMBERED = 512  # two minutes of reading: the median follows after one
HOLD_S_MIN, HOLD_S_MAX = 0.0625, 1.0  # the greatest keeps a session from being idle for long
HELD_SHARE = 1.0  # of the time that was spent on reading
HELD_LIMIT_SHARE = 0.125  # of a limit of the DBA on the whole read
PASTS_MAX = 64  # reads that are remembered


class RecentPast:
    """The costs of the last WINDOWS_REMEMBERED windows of one kind of read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._costs: deque[float] = deque(maxlen=WINDOWS_REMEMBERED)

    def compare(self, cost: float) -> bool:
        """Return True if a window was slow; remember it."""
        with self._lock:
            is_known = len(self._costs) >= WINDOWS_MIN
            is_slow = is_known and cost > SLOWER * median(self._costs)
            self._costs.append(cost)
            return is_slow


class RecentPasts:
    """The recent past of every kind of read, kept between scans. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, RecentPast] = OrderedDict()

    def of(self, read: Hashable) -> RecentPast:
        """Return the past of a read: reads that cost alike have equal names."""
        with self._lock:
            past = self._found.setdefault(read, RecentPast())
            self._found.move_to_end(read)
            if len(self._found) > PASTS_MAX:
                self._found.popitem(last=False)
            return past


class Feedback:
    """Decides for one read, by one or more processes. Not thread-safe."""

    def __init__(
        self, past: RecentPast, held_s_max: float = float("inf"), *, processes: int = 1
    ) -> None:
        self._past, self._held_s_max, self._processes = past, held_s_max, processes
        self._waited_s = self._worked_s = 0.0  # of the window
        self._read_s = self._held_s = 0.0  # of the read
        self._slow = 0  # windows in a row
        self._hold_s = 0.0

    def note(self, spent: DatabaseTime) -> float:
        """Return the seconds to hold the read back now, after more of it; mostly 0."""
        self._waited_s += spent.waited_s
        self._worked_s += spent.worked_s
        window_s = self._waited_s + self._worked_s
        if window_s < WINDOW_S:
            return 0.0
        self._read_s += window_s / self._processes  # they read side by side
        # A driver that needs no CPU at all would divide by zero.
        is_slow = self._past.compare(window_s / max(self._worked_s, WINDOW_S / 1000))
        self._waited_s = self._worked_s = 0.0
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow >= SLOW_WINDOWS:
            self._hold_s = min(max(self._hold_s * 2, HOLD_S_MIN), HOLD_S_MAX)
        elif not is_slow:
            self._hold_s = self._hold_s / 2 if self._hold_s > HOLD_S_MIN else 0.0
        most_s = min(self._read_s * HELD_SHARE, self._held_s_max) - self._held_s
        hold_s = min(self._hold_s, max(most_s, 0.0))
        self._held_s += hold_s
        return hold_s


@dataclass(slots=True)
class HoldLimit:
    """Seconds for which the reads of an exchange may still be held back."""

    left_s: float

    def take(self, seconds: float) -> float:
        """Return as many of the seconds as are left, and count them."""
        taken = min(seconds, self.left_s)
        self.left_s -= taken
        return taken


def held_s_max(*limits_s: float | None) -> float:
    """Return the most seconds that a read may be held back under limits on the whole of it."""
    set_s = [limit_s for limit_s in limits_s if limit_s is not None]
    return min(set_s) * HELD_LIMIT_SHARE if set_s else float("inf")
