"""`run`: in virtual time, and as a process that SIGTERM ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from driftline.errors import Locked, NotNow
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.forks import WAREHOUSE, Fork
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment
from warehouse_agent.scheduler.loop import LOOK_S, Looked, ScheduleLoop
from warehouse_agent.timetable.retry import RETRY_S, RETRY_S_MAX

END = 6 * 3600.0
START_S_MAX = 60


class Simulated:
    """Fragments with fixed intervals; those in `broken` fail. A refresh takes a second."""

    def __init__(self, intervals: dict[str, float], broken: Sequence[str] = ()) -> None:
        self.now, self.broken, self.intervals = 0.0, broken, intervals
        self.last = dict.fromkeys(intervals, -1e9)
        self.refreshed: list[tuple[float, str]] = []

    def look(self, now: float) -> Looked:
        at = {name: self.last[name] + self.intervals[name] for name in self.intervals}
        return [n for n in at if at[n] <= now], [(n, t) for n, t in at.items() if t > now]

    def refresh(self, names: Sequence[str]) -> list[int]:
        self.refreshed += [(self.now, name) for name in names]
        self.now += 1
        self.last |= {name: self.now for name in names if name not in self.broken}
        return [4 if name in self.broken else 0 for name in names]

    def wait(self, seconds: float) -> bool:
        assert 0 < seconds <= LOOK_S
        self.now += seconds
        return self.now >= END

    def run(self) -> None:
        ScheduleLoop(self.look, self.refresh, lambda: self.now, self.wait).run()

    def times(self, name: str) -> list[float]:
        return [at for at, one in self.refreshed if one == name]


@given(st.lists(st.floats(10, 2 * END), min_size=1, max_size=3))
def test_each_fragment_is_refreshed_when_it_is_due(hours: list[float]) -> None:
    world = Simulated({f"t{n}": interval for n, interval in enumerate(hours)})
    world.run()
    for name, interval in world.intervals.items():
        times = world.times(name)
        assert times[0] == 0
        for before, after in pairwise(times):
            assert interval <= after - before <= interval + 4 + len(hours)
        assert END - times[-1] <= interval + 10


def test_a_fragment_that_fails_waits_longer_each_time() -> None:
    world = Simulated({"down": 60.0, "sound": 60.0}, broken=["down"])
    world.run()
    waits = [b - a for a, b in pairwise(world.times("down"))]
    assert waits[0] == pytest.approx(RETRY_S, abs=3)
    assert waits[1] == pytest.approx(2 * RETRY_S, abs=3)
    assert max(waits) == pytest.approx(RETRY_S_MAX, abs=3)
    assert len(world.times("sound")) > END / 70


def test_a_fragment_that_recovers_waits_no_longer() -> None:
    world = Simulated({"down": 60.0}, broken=["down"])
    loop = ScheduleLoop(world.look, world.refresh, lambda: world.now, world.wait)
    loop.turn()
    assert loop.failed["down"] == (1, 1 + RETRY_S)
    assert loop.turn() == RETRY_S
    world.now, world.broken = 100.0, ()
    loop.turn()
    assert loop.failed == {}


def test_two_loops_on_one_warehouse() -> None:
    """The second meets the lock of the first, and finds nothing due when it looks again."""
    world = Simulated({"orders": 3600.0})
    locked: list[str] = []

    def second_refresh(names: Sequence[str]) -> list[int]:
        assert locked == list(names)
        return [Locked.exit_code for _ in names]

    second = ScheduleLoop(world.look, second_refresh, lambda: world.now, world.wait)

    def first_refresh(names: Sequence[str]) -> list[int]:
        locked[:] = names
        second.turn()
        locked.clear()
        return world.refresh(names)

    first = ScheduleLoop(world.look, first_refresh, lambda: world.now, world.wait)
    first.turn()
    assert second.failed == {"orders": (1, RETRY_S)}
    world.now += RETRY_S
    assert second.turn() == LOOK_S  # its `second_refresh` would assert
    assert len(world.refreshed) == 1


def test_a_quiet_hour_at_the_source_ends() -> None:
    """NotNow is retried later each time, and within RETRY_S_MAX of its end at the latest."""
    world, quiet_until = Simulated({"orders": 600.0}), 3 * 3600.0

    def refresh(names: Sequence[str]) -> list[int]:
        if world.now < quiet_until:
            return [NotNow.exit_code for _ in names]
        return world.refresh(names)

    ScheduleLoop(world.look, refresh, lambda: world.now, world.wait).run()
    times = world.times("orders")
    assert quiet_until <= times[0] <= quiet_until + RETRY_S_MAX
    assert all(600 <= b - a <= 610 for a, b in pairwise(times))


def test_what_is_asked_to_end_starts_nothing() -> None:
    """SIGTERM may come while sources are asked: what they say is due is not begun."""
    world, is_asked = Simulated({"orders": 600.0}), False

    def look(now: float) -> Looked:
        nonlocal is_asked
        is_asked = True
        return world.look(now)

    loop = ScheduleLoop(
        look, world.refresh, lambda: world.now, lambda _: is_asked, lambda: is_asked
    )
    loop.run()
    assert world.refreshed == []


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    legacy.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        made.small_bytes = 32 << 20
        made.fragment_lines = {"orders": 'interval_max = "1d"'}
        yield made
    legacy.close()


@pytest.mark.slow
def test_sigterm_ends_it(pair: Pair) -> None:
    """After its first refresh, which is kept; it waits for no interval. What is never due is named
    once."""
    pair.legacy.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    pair.publish("items", 'table = "items"')
    words = [*WAREHOUSE, "--config", str(pair.warehouse_toml()), "run", "--json"]
    process = Fork(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert '"version": 0' in process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=START_S_MAX)
        assert process.returncode == 0
        assert said.count("Never due: items. ") == 1
    finally:
        process.kill()
        process.wait()
    assert pair.version("orders") == 0
    assert pair.refresh("orders").version == 0
