"""Enforce the DBA's brakes: rates, simultaneous reads, the pause file, quiet hours, feedback.

One `Governor` serves the whole agent, so all warehouses together stay within the budget. A
`GovernedSession` checks after every batch whether the agent is paused, the hour is quiet or the
client has left, and waits if rows come too fast or the database slows down (`feedback`); so a
pause file also stops a scan that runs.
It has no thread; the clock is injected; a wait ends early when the exchange is stopped.

Rejected: limits inside SQL (LIMIT, pg_sleep). They are further statements for the DBA to review,
and hold the snapshot just as long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Concatenate, ParamSpec, TypeVar

from driftline.arrays import U64, Positions
from driftline.errors import QUIET_UNTIL, NotNow
from driftline.relations.derivations import Derivation
from driftline.settings.hours import Hours

from source_agent.budgets.allowance import instant
from source_agent.budgets.crowding import REST_S_MAX, Brakes, Crowding, CrowdingRests
from source_agent.budgets.feedback import Feedback, HoldLimit, RecentPasts, held_s_max
from source_agent.budgets.others import OtherProcesses
from source_agent.budgets.places import ClientTurns, Place, Places
from source_agent.budgets.watch import SessionWatch
from source_agent.config.file import Budget
from source_agent.config.scan_hours import ScanHours
from source_agent.engines.interface import (
    Capabilities,
    DatabaseTime,
    Limits,
    LocatorReads,
    MarkerReads,
    Pulse,
    Rows,
    ServerFacts,
    Session,
    SnapshotState,
    Split,
    SplitScan,
    TimeLimit,
    Unlocated,
)
from source_agent.engines.relations.predicates import JoinedRelation
from source_agent.engines.relations.shapes import Consistency, Relation, Shape
from source_agent.printable import counted
from source_agent.scan.database_time import DatabaseTimer
from source_agent.scan.locators import LocatorMemory
from source_agent.scan.processors import ProcessorUsage, usage
from source_agent.scan.workers import WorkerPool

SLOT_WAIT_S = 10.0  # for another scan to end; the warehouse retries after that
PART_S = 0.25  # of a limited rate: what a worker process reads before it is counted
RATE_LOOK_S = 1.0  # the longest time until a wait notices a changed rate
DAY = timedelta(days=1)
# Time limits of a session, by the database's name, that also count while the agent takes no rows.
_READS_END = frozenset(
    ["statement_timeout", "transaction_timeout", "max_statement_time", "max_execution_time"]
)
SWITCH_LOOK_S = 1.0  # the longest time until a scan notices the pause file

Held = AbstractContextManager[Place]  # until it is left
P = ParamSpec("P")
T = TypeVar("T")


class ExchangeStopped(Exception):
    """The exchange is over, for example because its client left. Not a user's error."""


class TokenBucket:
    """A token bucket: `rate` per second on average, one second's worth at once; None: no limit.

    The clock is monotonic, in seconds. Thread-safe.
    """

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._lock = threading.Lock()
        self._tokens, self._at = rate or 0.0, clock()

    def adopt(self, rate: float | None) -> None:
        """Use another rate from now on, also for waits in progress."""
        with self._lock:
            if rate != self._rate:
                self._rate, self._tokens, self._at = rate, rate or 0.0, self._clock()

    def take(self, amount: float) -> float:
        """Take `amount` now; return the seconds to wait before taking more."""
        with self._lock:
            if self._rate is None:
                return 0.0
            now = self._clock()
            self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate) - amount
            self._at = now
            return max(-self._tokens / self._rate, 0.0)

    def wait(self, amount: float, stop: threading.Event) -> None:
        """Take `amount` and wait. Raise ExchangeStopped if `stop` is set meanwhile."""
        rate, delay = self._rate, self.take(amount)
        # In slices, so that a changed rate ends a wait that could take an hour.
        while delay > 0 and self._rate == rate:
            if stop.wait(min(delay, RATE_LOOK_S)):
                raise ExchangeStopped
            delay -= RATE_LOOK_S


def local_now() -> datetime:
    """Return the local time of the agent, without a zone."""
    return datetime.now()  # noqa: DTZ005 - the DBA writes hours of this machine's clock


class Governor:
    """The budget of one agent, shared by all its exchanges."""

    def __init__(
        self,
        budget: Budget,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = local_now,
        slot_wait_s: float = SLOT_WAIT_S,
        is_beside: bool = False,
        look: Callable[[], ProcessorUsage | None] = usage,
    ) -> None:
        """is_beside: the database shares the machine, and its writers do not wait for readers."""
        self.budget = budget
        self.clock, self.wall = clock, wall
        self._slot_wait_s = slot_wait_s
        self.slots = Places(lambda: self.budget.scans_at_once, self._all_taken)
        # A stream keeps its session between relations. More sessions of one client than can be
        # read at a time would take connections from other clients; the login has few.
        self._sessions = Places(
            lambda: sys.maxsize, self._all_taken, of_one=lambda: self.budget.scans_at_once
        )
        self._rows = TokenBucket(budget.rows_per_second, clock)
        self._bytes = TokenBucket(budget.bytes_per_second, clock)
        self.activity_turns = ClientTurns(lambda: self.budget.activity_s, clock)
        self.pool = WorkerPool(budget.readers - 1)
        self.memory = LocatorMemory(lambda: self.budget.memory_at_most)
        self.pasts = RecentPasts()
        self.others = OtherProcesses(clock, look)
        self.crowding = Crowding(clock, self.others) if is_beside else None

    def adopt(self, budget: Budget) -> None:
        """Use this budget from now on. A scan that runs keeps its readers."""
        self.budget = budget
        self._rows.adopt(budget.rows_per_second)
        self._bytes.adopt(budget.bytes_per_second)
        self.pool.resize(budget.readers - 1)

    @property
    def is_paused(self) -> bool:
        """Return True if nothing is read now: the agent is paused, or the hour is quiet."""
        try:
            self.check()
        except NotNow:
            return True
        return False

    def check(self) -> None:
        """Raise NotNow if the agent is paused or the hour is quiet."""
        pause = self.budget.pause_file
        if pause is not None and pause.exists():
            raise NotNow(
                "The source's DBA has paused this agent (limits.pause_file exists).",
                remedy="Run the refresh again when she has removed the file.",
            )
        now, quiet = self.wall(), self.budget.quiet_hours
        for hours in quiet:
            if hours.covers(now.time()):
                raise NotNow(
                    f"The source's DBA allows no reading from {hours} (limits.quiet_hours, the "
                    "source's local time).",
                    remedy="Run the refresh again outside those hours.",
                    details=_quiet_until(quiet, now),
                )

    def until_quiet_s(self) -> float | None:
        """Return the seconds until the next quiet hours begin; None: there are none."""
        now = self.wall()
        window = ScanHours(tuple(self.budget.quiet_hours)).window(now)
        return None if window is None else max((window.begins - now).total_seconds(), 0.0)

    def slot(self, stop: threading.Event, client: str = "") -> Held:
        """Hold one of `scans_at_once` places. Raises NotNow if none becomes free, and
        ExchangeStopped."""
        return self._hold(self.slots, stop, client)

    def session(self, stop: threading.Event, client: str) -> Held:
        """Hold a place for a session of this client; take it before a slot. Raises as `slot`."""
        return self._hold(self._sessions, stop, client)

    def _hold(self, places: Places, stop: threading.Event, client: str) -> Held:
        check = partial(_raise_if_stopped, stop)
        return places.taken(client, wait_s=self._slot_wait_s, check=check)

    def _all_taken(self) -> NotNow:
        return NotNow(
            f"The source already reads {counted(self.budget.scans_at_once, 'relation')} at the "
            "same time, its maximum (limits.scans_at_once).",
            remedy="Run the refresh again when they are done.",
        )

    def wait_rows(self, rows: int, stop: threading.Event) -> None:
        """Wait as `rows_per_second` demands. Raises ExchangeStopped."""
        self._rows.wait(rows, stop)

    def wait_bytes(self, count: int, stop: threading.Event) -> None:
        """Wait as `bytes_per_second` demands. Raises ExchangeStopped."""
        self._bytes.wait(count, stop)


class GovernedSession:
    """A `Session` within the budget, for one exchange.

    `stop` ends a scan between two batches; so does an error of `check`.
    """

    def __init__(
        self,
        session: Session,
        governor: Governor,
        stop: threading.Event,
        check: Callable[[], None] = lambda: None,
        limits: Limits | None = None,
        on_held: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._session, self._governor, self._stop, self._check = session, governor, stop, check
        self._limits, self._on_held = limits or Limits(), on_held
        self.watch = SessionWatch(session, self._limits)
        self._looked = governor.clock()
        self._backend = 0 if governor.crowding is None else session.server.backend
        governor.others.add_backend(self._backend)

    @property
    def server(self) -> ServerFacts:
        return self._session.server

    @property
    def snapshot(self) -> SnapshotState:
        return self._session.snapshot

    @property
    def pulse(self) -> Pulse:
        return self._session.pulse

    @property
    def time_limits(self) -> Sequence[TimeLimit]:
        return self._session.time_limits

    @property
    def capabilities(self) -> Capabilities:
        """Return those of the session, within the budget."""
        own = self._session.capabilities
        # The database would read all keys at once.
        hash_keys = None if self.counts_rows else own.hash_keys
        return replace(
            own,
            markers=own.markers and GovernedMarkers(own.markers, self),
            running=own.running and self.waited(own.running),
            read_between=own.read_between and self._read("between", own.read_between),
            read_keys=own.read_keys and self._read("keys", own.read_keys),
            hash_keys=hash_keys and self._noted(hash_keys),
            split=own.split and partial(self._split, own.split),
            references=own.references and self.waited(own.references),
            locators=own.locators and GovernedLocators(own.locators, self),
        )

    @property
    def counts_rows(self) -> bool:
        """True if the rows that the database reads are limited (`rows_per_second`)."""
        return self._governor.budget.rows_per_second is not None

    def answers(self, within_s: float) -> bool:
        return self._session.answers(within_s)

    def describe(self, relation: Relation) -> Shape:
        with self.watch.waiting():
            return self._session.describe(relation)

    def derive(
        self, shape: Shape, derivation: Derivation, joins: Sequence[JoinedRelation] = ()
    ) -> Shape:
        with self.watch.waiting():
            return self._session.derive(shape, derivation, joins)

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        brakes = self._brakes("scan", shape, rows=shape.rows_expected)
        return self.governed(self._session.scan(shape, ordered=ordered), brakes)

    def _split(
        self, divide: SplitScan, shape: Shape, *, rows_max: int | None = None
    ) -> Split | None:
        rate = self._governor.budget.rows_per_second
        if rate is not None:  # rows of other processes are counted part by part
            rows_max = min(rows_max or sys.maxsize, max(int(rate * PART_S), 1))
        with self.watch.waiting():
            split = divide(shape, rows_max=rows_max)
        if split is None:
            return None
        return GovernedSplit(
            split, self, self._brakes("split", shape, processes=self._governor.budget.readers)
        )

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        brakes = self._brakes("ranges", shape)
        found = self._session.read_ranges(shape, first, last, rows_max=rows_max)
        return self.governed(found, brakes)

    def _read(
        self, kind: str, read: Callable[Concatenate[Shape, P], Iterator[Rows]]
    ) -> Callable[Concatenate[Shape, P], Iterator[Rows]]:
        """Return a read of the engine, within the budget."""

        def governed(shape: Shape, /, *given: P.args, **options: P.kwargs) -> Iterator[Rows]:
            brakes = self._brakes(kind, shape)
            return self.governed(read(shape, *given, **options), brakes)

        return governed

    def waited(self, ask: Callable[P, T]) -> Callable[P, T]:
        """Return a question to the database, during which `watch` looks at its silence."""

        def waited(*given: P.args, **options: P.kwargs) -> T:
            with self.watch.waiting():
                return ask(*given, **options)

        return waited

    def _noted(self, ask: Callable[P, T]) -> Callable[P, T]:
        """Return a long question to the database, after which the budget is looked at."""

        def noted(*given: P.args, **options: P.kwargs) -> T:
            found = self.waited(ask)(*given, **options)
            self.note(0)
            return found

        return noted

    def pause(self) -> None:
        with self.watch.waiting():
            self._session.pause()

    def close(self) -> None:
        """Close the session."""
        self._governor.others.drop_backend(self._backend)
        self._session.close()

    def interrupt(self) -> None:
        self._session.interrupt()

    def note(self, rows: int) -> None:
        """Count rows that were read; wait, or raise ExchangeStopped, NotNow or an error of
        `check`."""
        _raise_if_stopped(self._stop)
        now = self._governor.clock()
        if now - self._looked >= SWITCH_LOOK_S:
            self._looked = now
            self._governor.check()
            self._check()
        self._governor.wait_rows(rows, self._stop)

    def hold_back(self, brakes: Brakes, spent: DatabaseTime, rows: int = 0) -> None:
        """Wait if the database is slower than it was or needs the processors; raise
        ExchangeStopped."""
        hold_s = brakes.note(spent, rows) if self._governor.budget.feedback else 0.0
        if hold_s <= 0:
            return
        if self._stop.wait(hold_s):
            raise ExchangeStopped
        self._on_held(hold_s)

    def governed(self, batches: Iterator[Rows], brakes: Brakes) -> Iterator[Rows]:
        """Yield the batches, each when the budget allows it."""
        timer = DatabaseTimer()
        # The engine's generator closes its cursor only when it is closed itself.
        with closing(timer.timed(batches)) as timed:
            while True:
                with self.watch.waiting():
                    rows = next(timed, None)
                if rows is None:
                    return
                self.note(len(rows))
                self.hold_back(brakes, timer.taken(), len(rows))
                yield rows

    def _brakes(self, kind: str, shape: Shape, *, processes: int = 1, rows: int = 0) -> Brakes:
        """Return the brakes of one read; reads of a kind of the same columns and rows are alike.

        Another kind costs the database more or less for the same rows. rows: expected; 0: unknown.
        """
        plan = shape.plan
        what = (plan.where, plan.reads, plan.row_hash) if plan else shape.recipe.id
        past = self._governor.pasts.of((kind, shape.relation.name, what))
        holds, rest = self._hold_limits
        feedback = Feedback(past, holds.left_s, processes=processes)
        crowding, rests = self._governor.crowding, None
        # A read without a snapshot may block writers, and several readers are the DBA's wish.
        is_fuzzy = plan is not None and plan.consistency is Consistency.FUZZY
        if crowding is not None and not is_fuzzy and self._governor.budget.readers == 1:
            rests = CrowdingRests(crowding, rest, rows)
        return Brakes(feedback, rests, holds)

    @cached_property
    def _hold_limits(self) -> tuple[HoldLimit, HoldLimit]:
        """Return for how long this exchange may be held back at all, and may rest: a part of what
        the DBA's limits leave, from its first read on."""
        ends_s = [self._governor.budget.snapshot_s, self._limits.statement_s]
        if self._governor.crowding is not None:
            with self.watch.waiting():
                known = self._session.time_limits
            ends_s += [limit.seconds for limit in known if limit.name in _READS_END]
            ends_s.append(self._governor.until_quiet_s())
        most_s = held_s_max(*ends_s)
        return HoldLimit(most_s), HoldLimit(min(most_s, REST_S_MAX))


class GovernedMarkers:
    """Reads by markers within the budget."""

    def __init__(self, markers: MarkerReads, session: GovernedSession) -> None:
        self.identity = session.waited(markers.identity)
        self.mark = session.waited(markers.mark)
        self.marked_read = session.waited(markers.marked_read)
        self.keys_read = session.waited(markers.keys_read)
        self.read_marked = session._read("marked", markers.read_marked)
        # With a rate there is a warning less: the database would read all rows at once.
        count = (lambda _: 0) if session.counts_rows else session._noted(markers.count_future)
        self.count_future: Callable[[Shape], int] = count


class GovernedLocators:
    """Reads of rows where they lie, within the budget."""

    def __init__(self, locators: LocatorReads, session: GovernedSession) -> None:
        self.locate: Callable[[Shape], Shape | Unlocated] = session.waited(locators.locate)
        read = session._read("located", locators.read_located)
        self.read_located: Callable[[Shape, U64], Iterator[Rows]] = read


class GovernedSplit:
    """A `Split` within the budget, for rows that are read here and by other processes."""

    def __init__(self, split: Split, session: GovernedSession, brakes: Brakes) -> None:
        self._split, self.session, self._brakes = split, session, brakes

    @property
    def parts(self) -> int:
        """Number of parts."""
        return self._split.parts

    @property
    def join(self) -> Callable[[], Split]:
        return self._split.join

    def read(self, part: int) -> Iterator[Rows]:
        return self.session.governed(self._split.read(part), self._brakes)

    def note(self, rows: int) -> None:
        self._split.note(rows)
        self.session.note(rows)

    def spent(self, time: DatabaseTime) -> None:
        self.session.hold_back(self._brakes, time)

    def wait(self) -> None:
        with self.session.watch.waiting():
            self._split.wait()
        self.session.note(0)

    def finish(self) -> None:
        with self.session.watch.waiting():
            self._split.finish()


def _quiet_until(quiet: Sequence[Hours], now: datetime) -> dict[str, str]:
    """Return when the quiet hours of now end, as a detail; none if they never do.

    now: local time, without a zone.
    """
    window = ScanHours(tuple(quiet)).window(now)
    if window is None or window.ends - now > DAY:
        return {}
    return {QUIET_UNTIL: instant(window.ends)}


def _raise_if_stopped(stop: threading.Event) -> None:
    if stop.is_set():
        raise ExchangeStopped
