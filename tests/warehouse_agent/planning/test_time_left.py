"""How long a refresh will still take: never negative, never more than was said before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.planning.time_left import STEPS, RowsSoFar, TimeLeft, usual, words

USUAL = {"reduce": 10.0, "exchange": 60.0, "apply": 20.0, "prove": 5.0, "publish": 1.0}


def test_the_usual_seconds_are_medians() -> None:
    earlier = [{"exchange": 1.0, "apply": 4.0, "list": 9.0}, {"exchange": 3.0}, {"exchange": 90.0}]
    assert usual(earlier) == {
        "reduce": 0.0, "exchange": 3.0, "apply": 0.0, "prove": 0.0, "publish": 0.0,
    }  # fmt: skip
    assert usual([]) == {}


def test_later_steps_are_added() -> None:
    left = TimeLeft(USUAL)
    assert left.at("reduce", 0.0) == 96.0
    assert left.at("exchange", 10.0) == 76.0
    assert left.at("apply", 0.0) == 26.0
    assert left.at("publish", 0.5) == 0.5


def test_a_step_that_takes_longer_holds_the_number() -> None:
    left = TimeLeft(USUAL)
    assert [left.at("exchange", spent) for spent in (50.0, 60.0, 600.0)] == [36.0, 26.0, 26.0]


def test_rows_of_the_source_say_more_than_the_history() -> None:
    left = TimeLeft(USUAL)
    assert left.at("exchange", 5.0, RowsSoFar(10, 1_000, 5.0)) == 81.0, "too few rows"
    assert left.at("exchange", 5.0, RowsSoFar(500, 1_000, 5.0)) == 31.0
    without = TimeLeft()
    assert without.at("exchange", 5.0) is None
    assert without.at("exchange", 5.0, RowsSoFar(500, 1_000, 5.0)) == 5.0
    assert without.at("exchange", 5.0, RowsSoFar(1_200, 1_000, 5.0)) == 0.0


def test_a_phase_that_is_no_step_is_not_known() -> None:
    assert TimeLeft(USUAL).at("list", 0.0) is None


@given(
    st.dictionaries(st.sampled_from(STEPS), st.floats(0, 1e6), min_size=1),
    st.lists(
        st.tuples(
            st.integers(0, 4), st.floats(0, 1e6), st.integers(0, 10**9), st.integers(0, 10**9)
        ),
        max_size=20,
    ),
)
def test_it_never_rises_and_is_never_negative(
    seconds: dict[str, float], seen: list[tuple[int, float, int, int]]
) -> None:
    left, before = TimeLeft(usual([seconds])), None
    for step, spent, rows, expected in sorted(seen):
        now = left.at(STEPS[step], spent, RowsSoFar(rows, expected, spent) if expected else None)
        assert now is None or (now >= 0 and (before is None or now <= before))
        before = before if now is None else now


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, ""),
        (0.0, "less than 10 s left"),
        (9.9, "less than 10 s left"),
        (10.0, "about 10 s left"),
        (33.0, "about 40 s left"),
        (94.0, "about 100 s left"),
        (95.0, "about 2 min left"),
        (3_540.0, "about 59 min left"),
        (3_600.0, "about 1 h left"),
        (4_800.0, "about 1 h 20 min left"),
        (86_400.0, "about 24 h left"),
    ],
)
def test_words(seconds: float | None, said: str) -> None:
    assert words(seconds) == said
