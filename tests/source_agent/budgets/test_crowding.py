"""Crowding: when processors count as taken, how long a read rests then, and when that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pytest
from driftline.relations.derivations import Comparable
from driftline.settings.hours import Hours
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import given
from hypothesis import strategies as st

from source_agent.budgets import crowding, feedback
from source_agent.budgets.budget import GovernedSession, Governor
from source_agent.budgets.crowding import Brakes, Crowding, CrowdingRests
from source_agent.budgets.feedback import Feedback, HoldLimit, RecentPast
from source_agent.config.file import Budget
from source_agent.engines.interface import (
    DatabaseTime,
    Limits,
    Rows,
    ServerFacts,
    Session,
    TimeLimit,
)
from source_agent.engines.registry import is_beside
from source_agent.engines.relations.shapes import Consistency, Plan, Relation, Shape
from source_agent.scan.database_time import DatabaseTimer
from source_agent.scan.processors import queued_s

BATCH_S = 0.01
PLAN = Plan("items")
UNKNOWN = Shape(
    Relation("items", "items"),
    Recipe((Column("id", parse_type("int8"), nullable=False, ordinal=0),), 1),
    vouched=True,
    ordered=False,
    rows_expected=0,
    indexed=True,
    comparable=(Comparable.NOTHING,),
    plan=PLAN,
)
NO_LIMIT = float("inf")


def batch(queued: float) -> DatabaseTime:
    """A batch whose thread had no processor for a part of the time that it was ready to run."""
    return DatabaseTime(BATCH_S * 0.3, BATCH_S * 0.7 * (1 - queued), BATCH_S * 0.7 * queued)


def brakes(crowd: Crowding, *, rest_s: float = NO_LIMIT, rows: int = 0) -> Brakes:
    return Brakes(
        Feedback(RecentPast()), CrowdingRests(crowd, HoldLimit(rest_s), rows), HoldLimit(NO_LIMIT)
    )


def times(read: Brakes, batches: int, queued: float, *, rows: int = 1) -> float:
    """Read batches; return the seconds of rest for each second of reading."""
    return sum(read.note(batch(queued), rows) for _ in range(batches)) / (batches * BATCH_S)


def test_a_machine_with_a_processor_to_spare_is_left_alone() -> None:
    assert times(brakes(Crowding()), 10_000, 0.05) == 0


def test_rest_grows_with_the_agent_s_own_wait_and_ends_with_it() -> None:
    read = brakes(Crowding())
    times(read, 100, 0.5)
    assert times(read, 100, 0.5) == pytest.approx(crowding.TIMES_MAX)
    times(read, 100, 0.2)
    assert times(read, 100, 0.2) == pytest.approx(crowding.TIMES_MAX / 2)
    times(read, 100, 0.0)
    assert times(read, 1000, 0.0) == 0


def test_all_reads_of_an_agent_share_what_is_known_for_a_minute() -> None:
    now = [0.0]
    crowd = Crowding(lambda: now[0])
    times(brakes(crowd), 100, 0.5)
    assert times(brakes(crowd), 1, 0.5) == pytest.approx(crowding.TIMES_MAX)
    now[0] += crowding.FRESH_S + 1
    assert times(brakes(crowd), 1, 0.5) == 0


def test_the_rests_of_an_exchange_are_spread_over_all_its_rows() -> None:
    rows, batches = 10_000, 4_000
    read = brakes(Crowding(), rest_s=100.0, rows=rows * batches)  # and 40 s of reading
    assert times(read, batches // 10, 0.5, rows=rows) * BATCH_S * batches / 10 < 15
    rested_s = sum(read.note(batch(0.5), rows) for _ in range(batches // 10, batches))
    assert 80 < rested_s <= 100.0


def test_reads_of_unknown_length_rest_until_nothing_is_left() -> None:
    limit = HoldLimit(2.0)
    crowd = Crowding()
    times(brakes(crowd), 100, 0.5)
    first = Brakes(Feedback(RecentPast()), CrowdingRests(crowd, limit), HoldLimit(NO_LIMIT))
    second = Brakes(Feedback(RecentPast()), CrowdingRests(crowd, limit), HoldLimit(NO_LIMIT))
    assert sum(one.note(batch(0.5), 1) for _ in range(50) for one in (first, second)) == (
        pytest.approx(2.0)
    )


def test_a_read_that_rests_for_long_is_not_compared_with_its_past() -> None:
    """Rows wait for a reader that rests, so the database looks fast then, and slow afterwards."""
    read = brakes(Crowding())
    times(read, 100, 0.0)
    fast = replace(batch(0.5), waited_s=0.0)
    for _ in range(500):
        read.note(fast, 1)
    times(read, 100, 0.0)  # until it no longer rests
    assert times(read, 1000, 0.0) == 0


def test_a_database_that_is_slow_beside_a_light_crowd_is_held_back_as_without() -> None:
    slow = DatabaseTime(0.9, 0.1 * 0.89, 0.1 * 0.11)  # rests for 0.05 of the time alone
    held_s = {}
    for is_crowded in (True, False):
        read = brakes(Crowding())
        if not is_crowded:
            read.rests = None
        for _ in range(100):
            read.note(DatabaseTime(0.2, 0.1), 1)
        held_s[is_crowded] = sum(read.note(slow, 1) for _ in range(15))
    assert held_s[True] >= held_s[False] > 5


@given(
    st.lists(
        st.tuples(st.floats(0, 0.05), st.floats(0, 0.05), st.floats(0, 0.05), st.integers(0, 50)),
        max_size=200,
    ),
    st.floats(0, 20),
    st.integers(0, 4000),
)
def test_rests_are_bounded(
    batches: list[tuple[float, float, float, int]], rest_s: float, expected: int
) -> None:
    read, read_s, held_s = brakes(Crowding(), rest_s=rest_s, rows=expected), 0.0, 0.0
    for waited_s, worked_s, ready_s, rows in batches:
        hold_s = read.note(DatabaseTime(waited_s, worked_s, ready_s), rows)
        read_s, held_s = read_s + waited_s + worked_s + ready_s, held_s + hold_s
        assert 0 <= hold_s <= feedback.HOLD_S_MAX
        assert held_s <= read_s * crowding.TIMES_MAX + 1e-6
        assert held_s <= rest_s + read_s * feedback.HELD_SHARE + 1e-6


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("postgresql:///erp", True),  # the socket where libpq looks
        ("postgresql+psycopg://u@localhost/erp", True),
        ("postgresql://u@LOCALHOST/erp", True),
        ("postgresql://u@127.0.0.1:5433/erp", True),
        ("postgresql://u@/erp?host=/run/postgresql", True),
        ("postgresql://u@/erp?host=/run/postgresql&host=db2.example", False),
        ("postgresql://u@/erp?host=/run/postgresql,db2.example", False),
        ("postgresql://u@localhost/erp?hostaddr=10.0.0.7", False),
        ("postgresql:///erp?service=prod", False),
        ("postgresql://u@127.evil.example/erp", False),
        ("postgresql://u@[::1]/erp", True),
        ("postgresql://u@db.example/erp", False),
        ("mysql+pymysql://u@/erp?unix_socket=/run/mysqld.sock", True),
        ("mariadb://u@10.0.0.7/erp", False),
        ("sqlite:////srv/erp.db", False),  # its writers may wait for its readers
        ("firebird:////srv/erp.fdb", False),
        ("dump:////srv/dumps", False),
    ],
)
def test_only_a_server_on_this_machine_shares_its_processors(
    url: str, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    assert is_beside(url) == is_here


def test_libpq_s_environment_may_name_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    assert not is_beside("postgresql:///erp")


class Stop(threading.Event):
    """Waits for nothing, and remembers for how long it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s += timeout or 0.0
        return self.is_set()


class Scanned:
    """A session whose scans read `seconds`, half of them without a processor."""

    def __init__(self, clock: list[float], seconds: float, limits: Sequence[TimeLimit]) -> None:
        self._clock, self._seconds, self.time_limits = clock, seconds, limits
        self.server = ServerFacts()

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        for _ in range(round(self._seconds / BATCH_S)):
            self._clock[0] += BATCH_S
            yield [b"row"]

    def answers(self, within_s: float) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


Held = Callable[..., float]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Scan through a governor; return for how long the reads were held back."""

    def run(
        budget: Budget | None = None,
        *,
        shape: Shape = UNKNOWN,
        limits: Sequence[TimeLimit] = (),
        is_beside: bool = True,
        scans: int = 1,
    ) -> float:
        now, stop = [0.0], Stop()
        monkeypatch.setattr(
            "source_agent.budgets.budget.DatabaseTimer",
            lambda: DatabaseTimer(lambda: now[0], lambda: now[0] * 0.4, lambda: now[0] * 0.4),
        )
        governor = Governor(
            budget or Budget(),
            clock=lambda: now[0],
            wall=lambda: datetime(2026, 1, 1, 12),  # noqa: DTZ001 - local time
            is_beside=is_beside,
            look=lambda: None,  # the real machine is no part of this
        )
        session = cast("Session", Scanned(now, 4.0, limits))
        told = list[float]()
        governed = GovernedSession(session, governor, stop, limits=Limits(), on_held=told.append)
        for _ in range(scans):
            assert sum(map(len, governed.scan(shape))) == round(4.0 / BATCH_S)
        assert sum(told) == pytest.approx(stop.waited_s)
        return stop.waited_s

    return run


def test_a_scan_rests_on_the_database_s_machine_alone(held: Held) -> None:
    assert held() > 40
    assert held(is_beside=False) == 0
    assert held(Budget(feedback=False)) == 0
    assert held(Budget(readers=2)) == 0
    fuzzy = replace(UNKNOWN, plan=replace(PLAN, consistency=Consistency.FUZZY))
    assert held(shape=fuzzy) == 0


def test_an_exchange_rests_for_a_part_of_what_its_limits_leave(held: Held) -> None:
    share = feedback.HELD_LIMIT_SHARE
    assert held(Budget(snapshot_s=80.0), scans=5) == pytest.approx(80 * share)
    role = [TimeLimit("statement_timeout", 40.0, is_idle=False)]
    assert held(limits=role, scans=5) == pytest.approx(40 * share)
    idle = [TimeLimit("idle_session_timeout", 40.0, is_idle=True)]
    assert held(limits=idle) > 40
    quiet = Budget(quiet_hours=(Hours(12 * 60 + 2, 13 * 60),))
    assert held(quiet, scans=5) == pytest.approx(120 * share)
    assert held(scans=10) == pytest.approx(crowding.REST_S_MAX)


def test_a_long_scan_spreads_its_rests(held: Held) -> None:
    assert held(shape=replace(UNKNOWN, rows_expected=40_000)) < 10


@pytest.fixture
def hogs() -> Iterator[None]:
    """Twice as many processes as processors that never rest."""
    count = 2 * (os.cpu_count() or 1)
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.starts
@pytest.mark.skipif(sys.platform != "linux", reason="the file is Linux's")
@pytest.mark.usefixtures("hogs")
def test_linux_says_what_was_waited_for() -> None:
    queued, began, worked = queued_s(), time.perf_counter(), time.thread_time()
    while time.perf_counter() < began + 1.0:
        pass
    passed_s, worked_s = time.perf_counter() - began, time.thread_time() - worked
    waited_s = queued_s() - queued
    assert waited_s > crowding.QUEUED_MIN * passed_s
    assert waited_s + worked_s == pytest.approx(passed_s, abs=0.1)
