"""Feedback: what is slow, for how long a read is held back, and what never holds it back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from source_agent.budgets import feedback
from source_agent.budgets.budget import ExchangeStopped, GovernedSession, Governor
from source_agent.budgets.crowding import Brakes
from source_agent.budgets.feedback import Feedback, HoldLimit, RecentPast, RecentPasts, held_s_max
from source_agent.config.file import Budget
from source_agent.engines.interface import DatabaseTime, Rows
from source_agent.scan.database_time import DatabaseTimer

WORK_S = 0.1  # of the agent, in each window
QUIET = DatabaseTime(0.2, WORK_S)
SLOW = DatabaseTime(0.9, WORK_S)


def notes(decides: Feedback, window: DatabaseTime, windows: int) -> list[float]:
    return [decides.note(window) for _ in range(windows)]


def slow_only(past: RecentPast) -> Brakes:
    return Brakes(Feedback(past), None, HoldLimit(float("inf")))


def test_a_quiet_database_is_never_held_back() -> None:
    assert not any(notes(Feedback(RecentPast()), QUIET, 1000))


def test_a_database_that_slows_down_is_held_back_until_it_is_as_before() -> None:
    decides = Feedback(RecentPast())
    assert not any(notes(decides, QUIET, 100))
    held = notes(decides, SLOW, 8)
    assert held == [0, 0.0625, 0.125, 0.25, 0.5, 1.0, 1.0, 1.0]
    assert notes(decides, QUIET, 6) == [0.5, 0.25, 0.125, 0.0625, 0, 0]


def test_one_slow_window_is_noise() -> None:
    decides = Feedback(RecentPast())
    for _ in range(50):
        assert not any(notes(decides, QUIET, 9))
        assert decides.note(SLOW) == 0


def test_a_database_that_stays_slow_is_no_longer_slower_than_its_past() -> None:
    decides = Feedback(RecentPast())
    notes(decides, QUIET, 100)
    assert notes(decides, SLOW, 200)[-1] == 0


def test_short_batches_make_one_window() -> None:
    decides = Feedback(RecentPast())
    notes(decides, QUIET, 20)
    batch = DatabaseTime(SLOW.waited_s / 10, SLOW.worked_s / 10)
    assert sum(notes(decides, batch, 100)) > 0
    assert not any(notes(Feedback(RecentPast()), DatabaseTime(0.0, 1e-9), 1000))


def test_wide_rows_cost_both_sides_more_and_are_not_slow() -> None:
    decides = Feedback(RecentPast())
    notes(decides, QUIET, 50)
    wide = DatabaseTime(QUIET.waited_s * 20, QUIET.worked_s * 20)
    assert not any(notes(decides, wide, 50))


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=200),
    st.none() | st.floats(0.1, 100),
)
def test_a_read_is_held_back_no_longer_than_it_reads(
    windows: list[tuple[float, float]], limit_s: float | None
) -> None:
    decides, read_s, held_s = Feedback(RecentPast(), held_s_max(limit_s)), 0.0, 0.0
    for waited_s, worked_s in windows:
        hold_s = decides.note(DatabaseTime(waited_s, worked_s))
        read_s, held_s = read_s + waited_s + worked_s, held_s + hold_s
        assert 0 <= hold_s <= feedback.HOLD_S_MAX
        assert held_s <= read_s * feedback.HELD_SHARE + 1e-6
        if limit_s is not None:
            assert held_s <= limit_s * feedback.HELD_LIMIT_SHARE + 1e-6


def test_processes_that_read_side_by_side_are_not_held_back_for_the_sum_of_their_times() -> None:
    held = {}
    for processes in (1, 4):
        decides = Feedback(RecentPast(), processes=processes)
        notes(decides, QUIET, 20)
        held[processes] = sum(notes(decides, SLOW, 15))
        read_s = 20 * 0.3 + 15 * 1.0
        assert held[processes] <= read_s / processes
    assert held[4] < held[1]


def test_the_past_is_kept_between_scans_of_one_kind() -> None:
    pasts = RecentPasts()
    notes(Feedback(pasts.of("orders")), QUIET, 50)
    assert sum(notes(Feedback(pasts.of("orders")), SLOW, 5)) > 0, "from its beginning on"
    assert not any(notes(Feedback(pasts.of("items")), SLOW, 5))
    for other in range(feedback.PASTS_MAX):
        pasts.of(other)
    assert not any(notes(Feedback(pasts.of("orders")), SLOW, 5)), "that was forgotten"


def test_the_strictest_limit_counts() -> None:
    assert held_s_max(None, None) == float("inf")
    assert held_s_max(80.0, None, 40.0) == 5.0


class Clocks:
    """A wall clock and the CPU of one thread, both moved by hand."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def spend(self, *, wall_s: float, cpu_s: float = 0.0) -> None:
        self.wall_s += wall_s
        self.cpu_s += cpu_s


def test_only_waits_for_the_database_count() -> None:
    clocks = Clocks()

    def batches() -> Iterator[Rows]:
        for _ in range(3):
            clocks.spend(wall_s=5.0, cpu_s=2.0)
            yield [b"row"]

    timer = DatabaseTimer(lambda: clocks.wall_s, lambda: clocks.cpu_s, lambda: 0.0)
    for _ in timer.timed(batches()):
        clocks.spend(wall_s=1.0, cpu_s=1.0)  # hashes
        clocks.spend(wall_s=100.0)  # a warehouse that takes nothing
    assert timer.taken() == DatabaseTime(9.0, 9.0)
    assert timer.taken() == DatabaseTime()


class SlowingDown:
    """The batches of a scan, of a database that becomes slow in the middle."""

    def __init__(self, clocks: Clocks, windows: int) -> None:
        self._clocks, self._windows = clocks, windows

    def __call__(self) -> Iterator[Rows]:
        for window in range(2 * self._windows):
            is_slow = window >= self._windows
            self._clocks.spend(wall_s=1.0 if is_slow else 0.3, cpu_s=WORK_S)
            yield [b"row"]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_governed_read_waits_and_says_for_how_long(
    is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, held, waits = Clocks(), list[float](), list[float]()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            return self.is_set()

    timer = DatabaseTimer
    monkeypatch.setattr(
        "source_agent.budgets.budget.DatabaseTimer",
        lambda: timer(lambda: clocks.wall_s, lambda: clocks.cpu_s, lambda: 0.0),
    )
    stop = Stop()
    governed = GovernedSession(
        None,  # type: ignore[arg-type]  # nothing is asked of it
        Governor(Budget(feedback=is_on)),
        stop,
        on_held=held.append,
    )
    monkeypatch.setattr(governed, "watch", _NoWatch())
    past = RecentPast()
    rows = governed.governed(SlowingDown(clocks, 20)(), slow_only(past))
    assert sum(map(len, rows)) == 40
    assert held == waits
    assert (sum(held) > 1) == is_on
    if is_on:
        notes(Feedback(past), QUIET, 100)
        with pytest.raises(ExchangeStopped):
            _stop_in_the_middle(governed, clocks, stop, past)


def _stop_in_the_middle(
    governed: GovernedSession, clocks: Clocks, stop: threading.Event, past: RecentPast
) -> None:
    rows = governed.governed(SlowingDown(clocks, 20)(), slow_only(past))
    for number, _ in enumerate(rows):
        if number == 20:
            stop.set()


class _NoWatch:
    def waiting(self) -> _NoWatch:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
