"""Decide how long a read rests because the machine's processors are taken, without I/O.

A scan costs little of any one transaction, and yet two processes that never rest, the agent and its
backend, make every other wait for its turn. Lower priority is not enough: the backend has that of
the database. So the agent rests after each batch while others need the processors.

The measure is the agent's own wait: the part of the time in which its thread was ready to run and
had no processor, in windows of WINDOW_S of reading. On a machine that has a processor to spare it
is next to nothing, whatever else runs there, and it asks the database nothing. Up to QUEUED_MIN the
read does not rest, from QUEUED_MAX on for TIMES_MAX times as long as it reads. Two scans that
compete with each other alone rest a little, and then no longer meet. Nobody rests for us: the times
are weighed by what others use of the machine (`others`), where it tells.

A read that rests holds its snapshot and its locks for longer. So an exchange rests for REST_S_MAX
at most, which are spread over what is still to be read, if that is known.

Rejected as the only measure: how busy all processors are. Half of 64 busy ones disturb nobody, in a
container they are those of strangers, and a sandbox does not show them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from source_agent.budgets.feedback import HOLD_S_MAX, Feedback, HoldLimit
from source_agent.budgets.others import OtherProcesses
from source_agent.engines.interface import DatabaseTime

WINDOW_S = 0.25  # of reading
QUEUED_MIN, QUEUED_MAX = 0.1, 0.3
TIMES_MAX = 15.0
REST_S_MAX = 300.0
FRESH_S = 60.0  # after which nothing is known


class Crowding:
    """Judge how crowded one machine is, for all reads of an agent. Thread-safe."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, others: OtherProcesses | None = None
    ) -> None:
        """others: what they use of the machine; None: whoever needs a processor is another."""
        self._lock = threading.Lock()
        self._clock, self._others = clock, others
        self._waited_s = 0.0  # since others were asked for
        self._known_at = clock()
        self._times = 0.0
        self._ready_s = self._queued_s = self._read_s = 0.0  # of the window

    def note(self, spent: DatabaseTime) -> float:
        """Return for how many times what was read a read should rest now; mostly 0."""
        with self._lock:
            now = self._clock()
            if now - self._known_at > FRESH_S:
                self._known_at, self._times = now, 0.0
                self._ready_s = self._queued_s = self._read_s = 0.0
            self._ready_s += spent.worked_s + spent.queued_s
            self._queued_s += spent.queued_s
            self._read_s += spent.read_s
            self._waited_s += spent.waited_s
            if self._read_s >= WINDOW_S:
                queued = self._queued_s / max(self._ready_s, WINDOW_S / 1000)
                share = (queued - QUEUED_MIN) / (QUEUED_MAX - QUEUED_MIN)
                self._known_at, self._times = now, TIMES_MAX * min(max(share, 0.0), 1.0)
                if self._times and self._others is not None:
                    self._times *= self._others.weight(self._waited_s)
                    self._waited_s = 0.0
                self._ready_s = self._queued_s = self._read_s = 0.0
            return self._times


class CrowdingRests:
    """Decides for one read. `rows`: how many it is expected to read; 0: unknown.

    Invariants: it rests for at most TIMES_MAX times as long as it reads, and for no longer than
    `limit` has left, which all reads of an exchange share.
    """

    def __init__(self, crowding: Crowding, limit: HoldLimit, rows: int = 0) -> None:
        self._crowding, self._limit, self._expected = crowding, limit, rows
        self._rows, self._read_s = 0, 0.0

    def note(self, spent: DatabaseTime, rows: int) -> float:
        """Return for how many seconds to rest after a batch of so many rows; mostly 0."""
        self._rows += rows
        self._read_s += spent.read_s
        times = self._crowding.note(spent)
        if 0 < self._rows < self._expected:
            to_read_s = self._read_s * (self._expected / self._rows - 1) + spent.read_s
            if times * to_read_s > self._limit.left_s:
                times = self._limit.left_s / to_read_s
        return min(times * spent.read_s, self._limit.left_s)

    def count(self, seconds: float) -> None:
        """Count a rest that was taken."""
        self._limit.take(seconds)


@dataclass(slots=True)
class Brakes:
    """Decide for one read. `rests`: None where the database has a machine of its own.

    `limit`: of the whole exchange.

    The database answers more slowly than it did (`feedback`), or others need the processors of its
    machine (`crowding`); of both the longer time counts.
    """

    feedback: Feedback
    rests: CrowdingRests | None
    limit: HoldLimit

    def note(self, spent: DatabaseTime, rows: int = 0) -> float:
        """Return the seconds to hold the read back now, after so many rows; mostly 0."""
        rest_s = 0.0 if self.rests is None else self.rests.note(spent, rows)
        # Rows wait for a reader that rests for long, so its database looks fast.
        slow_s = self.feedback.note(spent) if rest_s < spent.read_s or not rest_s else 0.0
        held_s = self.limit.take(min(max(rest_s, slow_s), HOLD_S_MAX))
        if self.rests is not None and rest_s:
            self.rests.count(held_s)
        return held_s
