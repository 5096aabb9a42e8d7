"""Budgets: the arithmetic of the bucket under an injected clock."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from driftline.errors import NotNow
from driftline.settings.hours import Hours
from hypothesis import given
from hypothesis import strategies as st

from source_agent.budgets.budget import ExchangeStopped, GovernedSession, Governor, TokenBucket
from source_agent.config.file import Budget
from source_agent.engines.interface import LocatedRows
from source_agent.engines.relations.shapes import Shape
from tests.harness.agents import Recorded, configuration, make_orders


def test_a_bucket_lets_through_its_rate_and_no_more() -> None:
    now = [0.0]
    bucket = TokenBucket(100, clock=lambda: now[0])
    assert bucket.take(100) == 0, "a second's worth at once"
    assert bucket.take(50) == 0.5
    now[0] = 0.5
    assert bucket.take(0) == 0
    now[0] = 1000.0
    assert bucket.take(100) == 0
    assert bucket.take(300) == 3.0, "idle time is not saved up"


def test_a_long_run_takes_what_the_rate_says() -> None:
    now = [0.0]
    bucket = TokenBucket(1000, clock=lambda: now[0])
    for _ in range(50):
        now[0] += bucket.take(16_384)
    assert now[0] == pytest.approx(50 * 16.384 - 1)


def test_a_wait_ends_when_the_exchange_does() -> None:
    governor = Governor(Budget(rows_per_second=1, bytes_per_second=1))
    stop = threading.Event()
    stop.set()
    for wait in (governor.wait_rows, governor.wait_bytes):
        with pytest.raises(ExchangeStopped):
            wait(10_000, stop)
    Governor(Budget()).wait_rows(10_000, stop)


def test_an_adopted_budget_counts_at_once() -> None:
    """For exchanges that are running, too: raised, lowered and removed rates."""
    stop = threading.Event()
    stop.set()  # whoever would have to wait is stopped
    governor = Governor(Budget(rows_per_second=1, bytes_per_second=1))
    governor.adopt(Budget(rows_per_second=1, readers=4))
    governor.wait_bytes(10_000, stop)
    with pytest.raises(ExchangeStopped):
        governor.wait_rows(10_000, stop)
    assert governor.pool.size == 3, "the process that serves reads, too"
    governor.adopt(Budget(bytes_per_second=1))
    governor.wait_rows(10_000, stop)
    with pytest.raises(ExchangeStopped):
        governor.wait_bytes(10_000, stop)
    assert governor.pool.size == 0
    governor.adopt(Budget(bytes_per_second=1e6))
    governor.wait_bytes(10_000, stop)


def test_the_same_rate_is_not_granted_again() -> None:
    stop = threading.Event()
    governor = Governor(Budget(rows_per_second=100, bytes_per_second=100), clock=lambda: 0.0)
    governor.wait_rows(100, stop)  # a second's worth at once
    governor.wait_bytes(100, stop)
    governor.adopt(Budget(rows_per_second=100, bytes_per_second=100, readers=2))
    stop.set()
    for wait in (governor.wait_rows, governor.wait_bytes):
        with pytest.raises(ExchangeStopped):
            wait(1, stop)


def test_the_pause_file_works_in_the_middle_of_a_scan(tmp_path: Path) -> None:
    make_orders(tmp_path / "erp.db", [(n, "x" * 100) for n in range(60_000)])
    limits = '[limits]\npause_file = "pause"\n'
    config = configuration(tmp_path, tmp_path / "erp.db", certs=None, more=limits)
    seconds = itertools.count(step=2)
    governor = Governor(config.budget, clock=lambda: next(seconds))
    engine = Recorded(config)
    session = GovernedSession(engine.open(), governor, threading.Event())
    try:
        shape = session.describe(config.relations["orders"].relation)
        batches = session.scan(shape)
        assert next(batches)
        (tmp_path / "pause").touch()
        with pytest.raises(NotNow, match="pause_file"):
            next(batches)
        (tmp_path / "pause").unlink()
        assert sum(map(len, session.scan(shape))) == 60_000
    finally:
        session.close()


def test_rows_that_are_read_where_they_lie_count(tmp_path: Path) -> None:
    """As those of a scan: they take from the rate, and the pause file ends them."""
    with closing(sqlite3.connect(tmp_path / "erp.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (code TEXT NOT NULL PRIMARY KEY)")
        connection.executemany("INSERT INTO orders VALUES (?)", [(f"k{n}",) for n in range(9000)])
    limits = '[limits]\npause_file = "pause"\nrows_per_second = 20_000\n'
    config = configuration(tmp_path, tmp_path / "erp.db", certs=None, more=limits)
    now = itertools.count(step=1e-6)
    governor = Governor(config.budget, clock=lambda: next(now))
    stop = threading.Event()
    session = GovernedSession(Recorded(config).open(), governor, stop)
    able = session.capabilities.locators
    assert able is not None
    try:
        located = able.locate(session.describe(config.relations["orders"].relation))
        assert isinstance(located, Shape)
        batches = list(session.scan(located))
        assert all(isinstance(batch, LocatedRows) for batch in batches)
        at = np.arange(1, 9001, dtype=np.uint64)
        assert sum(map(len, able.read_located(located, at))) == 9000
        stop.set()  # whoever would have to wait is stopped: 2,000 rows are left of a second's worth
        with pytest.raises(ExchangeStopped):
            list(able.read_located(located, at))
        stop.clear()
        (tmp_path / "pause").touch()
        now = itertools.count(start=100, step=2)
        with pytest.raises(NotNow, match="pause_file"):
            list(able.read_located(located, at))
    finally:
        session.close()


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 1439), st.integers(1, 1439)).map(lambda s: Hours(s[0], sum(s))),
        min_size=1,
        max_size=3,
    ),
    minute=st.integers(0, 1439),
)
def test_quiet_hours_say_when_they_end(spans: list[Hours], minute: int) -> None:
    """The first minute from now on that no span covers, whether they overlap, touch or not."""
    midnight = datetime(2026, 3, 4)  # noqa: DTZ001 - of the agent's clock
    now = midnight + timedelta(minutes=minute, seconds=17)
    governor = Governor(Budget(quiet_hours=tuple(spans)), wall=lambda: now)

    def is_quiet(at: datetime) -> bool:
        return any(span.covers(at.time()) for span in spans)

    if not is_quiet(now):
        governor.check()
        return
    with pytest.raises(NotNow) as caught:
        governor.check()
    later = (now.replace(second=0) + timedelta(minutes=n) for n in range(1, 1441))
    end = next((at for at in later if not is_quiet(at)), None)
    until = caught.value.until()
    assert until == (None if end is None else end.astimezone(UTC))
