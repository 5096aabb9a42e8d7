"""The DBA's budget, kept: how fast, how many at once, when not at all.

One `Governor` for the whole agent, so that two warehouses together stay within what the file says.
It wraps a session (`GovernedSession`): after every batch that the database delivered it looks for
the pause file and the quiet hours, waits where rows come too fast, and notices that the client is
gone. So the kill switch works in the middle of a scan, not only before it.

Time is injected; a wait ends early when the exchange is stopped. No thread of its own.

Rejected: a limit inside SQL (LIMIT, pg_sleep): it would be another statement for the DBA to vet and
holds the snapshot just as long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from datetime import time as time_of_day

import numpy as np
import numpy.typing as npt
from driftline.errors import NotNow

from source_agent.budgets.places import Places
from source_agent.budgets.watch import Watch
from source_agent.config import Budget
from source_agent.engines.interface import (
    Consistency,
    Limits,
    Pulse,
    Relation,
    Rows,
    Session,
    Shape,
    Split,
    TimeLimit,
)
from source_agent.printable import counted
from source_agent.scan.workers import WorkerPool

SLOT_WAIT_S = 10.0  # for a scan of somebody else to end; longer waits belong to the warehouse
PART_S = 0.25  # of a limited rate: what another process reads before it is counted
RATE_LOOK_S = 1.0  # at most this late does another rate count for who waits already
SWITCH_LOOK_S = 1.0  # at most this late is the pause file seen during a scan


class Stopped(Exception):
    """The exchange is over (its client left); whoever works for it unwinds. Not a user's error."""


class Bucket:
    """A token bucket: `rate` per second on average, one second's worth at once.

    Pure arithmetic over an injected monotonic clock, in seconds; thread-safe.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._lock = threading.Lock()
        self._tokens, self._at = rate, clock()

    def take(self, amount: float) -> float:
        """Takes `amount` now; returns the seconds to wait before taking more."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= amount
            return max(-self._tokens / self._rate, 0.0)


def local_time() -> time_of_day:
    return datetime.now().astimezone().time()


class Governor:
    """The budget of one agent, shared by all its exchanges."""

    def __init__(
        self,
        budget: Budget,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], time_of_day] = local_time,
        slot_wait_s: float = SLOT_WAIT_S,
    ) -> None:
        self.budget = budget
        self.clock = clock
        self._wall = wall
        self._slot_wait_s = slot_wait_s
        self.slots = Places(lambda: self.budget.scans_at_once, self._all_taken)
        # A stream keeps its session between relations. More of one client than can be read at a
        # time would take connections from the others, of which the login has few.
        self._sessions = Places(
            lambda: sys.maxsize, self._all_taken, of_one=lambda: self.budget.scans_at_once
        )
        self._rows = _bucket(budget.rows_per_second, clock)
        self._bytes = _bucket(budget.bytes_per_second, clock)
        self.pool = WorkerPool(budget.readers - 1)

    def adopt(self, budget: Budget) -> None:
        """This budget counts from now on, for exchanges that are running, too. A scan that is
        running keeps its readers."""
        before, self.budget = self.budget, budget
        if budget.rows_per_second != before.rows_per_second:
            self._rows = _bucket(budget.rows_per_second, self.clock)
        if budget.bytes_per_second != before.bytes_per_second:
            self._bytes = _bucket(budget.bytes_per_second, self.clock)
        self.pool.resize(budget.readers - 1)

    def check(self) -> None:
        """Whether anything may be read now.

        Raises:
            NotNow: the agent is paused, or it is a quiet hour.
        """
        pause = self.budget.pause_file
        if pause is not None and pause.exists():
            raise NotNow(
                "The source's DBA has paused this agent (limits.pause_file exists).",
                remedy="Run the refresh again when she has removed the file.",
            )
        now = self._wall()
        for hours in self.budget.quiet_hours:
            if hours.covers(now):
                raise NotNow(
                    f"The source's DBA allows no reading from {hours} (limits.quiet_hours, the "
                    "source's local time).",
                    remedy="Run the refresh again outside those hours.",
                )

    def slot(self, stop: threading.Event, client: str = "") -> AbstractContextManager[None]:
        """One of `scans_at_once`.

        Raises:
            NotNow: none became free in time. Stopped.
        """
        return self.slots.taken(client, wait_s=self._slot_wait_s, check=_stopped_by(stop))

    def session(self, stop: threading.Event, client: str) -> AbstractContextManager[None]:
        """A place for a session of this client, which is taken before a slot.

        Raises:
            NotNow: none became free in time. Stopped.
        """
        return self._sessions.taken(client, wait_s=self._slot_wait_s, check=_stopped_by(stop))

    def _all_taken(self) -> NotNow:
        return NotNow(
            f"The source already reads {counted(self.budget.scans_at_once, 'relation')} at the "
            "same time, its maximum (limits.scans_at_once).",
            remedy="Run the refresh again when they are done.",
        )

    def wait_rows(self, rows: int, stop: threading.Event) -> None:
        """Waits as rows/s asks. Raises Stopped."""
        _wait(lambda: self._rows, rows, stop)

    def wait_bytes(self, count: int, stop: threading.Event) -> None:
        """Waits as bytes/s asks. Raises Stopped."""
        _wait(lambda: self._bytes, count, stop)


class GovernedSession:
    """A `Session` within the budget, for one exchange.

    `stop` ends a scan between two batches; so does what `check` raises.
    """

    def __init__(
        self,
        session: Session,
        governor: Governor,
        stop: threading.Event,
        check: Callable[[], None] = lambda: None,
        limits: Limits | None = None,
    ) -> None:
        self._session, self._governor, self._stop, self._check = session, governor, stop, check
        self.watch = Watch(session, limits or Limits())
        self._looked = governor.clock()

    @property
    def consistency(self) -> Consistency:
        return self._session.consistency

    @property
    def as_of(self) -> str:
        return self._session.as_of

    @property
    def generation(self) -> int:
        return self._session.generation

    @property
    def time_limits(self) -> Sequence[TimeLimit]:
        return self._session.time_limits

    @property
    def pulse(self) -> Pulse:
        return self._session.pulse

    def answers(self, within_s: float) -> bool:
        return self._session.answers(within_s)

    def describe(self, relation: Relation) -> Shape:
        with self.watch.waiting():
            return self._session.describe(relation)

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        return self.governed(self._session.scan(shape, ordered=ordered))

    def split(self, shape: Shape, *, rows_max: int | None = None) -> Split | None:
        rate = self._governor.budget.rows_per_second
        if rate is not None:  # what was read elsewhere is waited for part by part
            rows_max = min(rows_max or sys.maxsize, max(int(rate * PART_S), 1))
        with self.watch.waiting():
            split = self._session.split(shape, rows_max=rows_max)
        return None if split is None else GovernedSplit(split, self)

    def read_ranges(
        self,
        shape: Shape,
        first: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
        *,
        rows_max: int | None = None,
    ) -> Iterator[Rows]:
        return self.governed(self._session.read_ranges(shape, first, last, rows_max=rows_max))

    def pause(self) -> None:
        with self.watch.waiting():
            self._session.pause()

    def close(self) -> None:
        self._session.close()

    def interrupt(self) -> None:
        """Ends a statement that is running, from any thread."""
        self._session.interrupt()

    def note(self, rows: int) -> None:
        """So many more rows were read: whether to go on, and when.

        Raises:
            Stopped, NotNow, SnapshotLost.
        """
        if self._stop.is_set():
            raise Stopped
        now = self._governor.clock()
        if now - self._looked >= SWITCH_LOOK_S:
            self._looked = now
            self._governor.check()
            self._check()
        self._governor.wait_rows(rows, self._stop)

    def governed(self, batches: Iterator[Rows]) -> Iterator[Rows]:
        """The same batches, each when the budget allows it."""
        try:
            while True:
                with self.watch.waiting():
                    rows = next(batches, None)
                if rows is None:
                    return
                self.note(len(rows))
                yield rows
        finally:
            # A generator closes its cursor only when it is closed itself.
            if isinstance(batches, Generator):
                batches.close()


class GovernedSplit:
    """A `Split` within the budget: what is read of it here, and what others say they have read."""

    def __init__(self, split: Split, session: GovernedSession) -> None:
        self._split, self.session = split, session

    @property
    def parts(self) -> int:
        return self._split.parts

    @property
    def join(self) -> Callable[[], Split]:
        return self._split.join

    def read(self, part: int) -> Iterator[Rows]:
        return self.session.governed(self._split.read(part))

    def note(self, rows: int) -> None:
        self._split.note(rows)
        self.session.note(rows)

    def wait(self) -> None:
        with self.session.watch.waiting():
            self._split.wait()
        self.session.note(0)


def _bucket(rate: float | None, clock: Callable[[], float]) -> Bucket | None:
    return None if rate is None else Bucket(rate, clock)


def _stopped_by(stop: threading.Event) -> Callable[[], None]:
    def check() -> None:
        if stop.is_set():
            raise Stopped

    return check


def _wait(current: Callable[[], Bucket | None], amount: float, stop: threading.Event) -> None:
    bucket = current()
    if bucket is None:
        return
    delay = bucket.take(amount)
    # In slices: the DBA may have replaced a rate at which this would wait for an hour.
    while delay > 0 and current() is bucket:
        if stop.wait(min(delay, RATE_LOOK_S)):
            raise Stopped
        delay -= RATE_LOOK_S
