"""Which attempts count: a load over a line that breaks again and again ends, also if it fails."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.planning.attempts import (
    ADVANCES_MAX,
    SLACK,
    UNKNOWN_SHARE,
    AttemptCount,
    Reached,
    Stuck,
    scan_s,
)

LIMIT = 4
COUNTS = st.integers(0, 10**9)


def attempts(staged: Iterable[int], expected: int, *, limit: int = LIMIT) -> int:
    """Return how many attempts are made, if they leave so many rows staged, one after the other."""
    count, before, made = AttemptCount(limit), 0, 0
    for done in staged:
        made += 1
        count.add({"t": Reached(before, done, expected)})
        before = done
        if count.is_over:
            break
    return made


@given(st.integers(1, 10**7), st.integers(2, 500))
def test_attempts_that_each_stage_their_share_do_not_count(each: int, cuts: int) -> None:
    rows = each * cuts
    staged = [each * n for n in range(1, cuts + 1)]
    assert attempts([*staged, *[rows] * LIMIT], rows) == cuts + LIMIT, "those at the end count"


@given(st.lists(COUNTS, min_size=1), COUNTS)
def test_attempts_end(staged: list[int], expected: int) -> None:
    """However many are free, all is over soon after the last that staged more than ever before."""
    free = attempts([*staged, *[0] * LIMIT], expected)
    assert free <= len(staged) + LIMIT
    grown = max(math.log(max(staged) + 1, 1 + 1 / UNKNOWN_SHARE), 0) + UNKNOWN_SHARE
    assert free <= ADVANCES_MAX * (1 + SLACK) + grown + 2 * LIMIT
    assert attempts([max(staged)] * 99, expected) <= LIMIT + 1


def test_a_source_that_sends_the_same_rows_again_is_left_in_the_end() -> None:
    """It cannot be told from one that sends new rows, until more are staged than there are."""
    every = [400 * n for n in range(1, 10_000)]
    assert attempts(every, 1000) == 7
    assert attempts(every, 0) < 20
    one_by_one = range(1, 10**6)
    assert attempts(one_by_one, 10**6) == LIMIT, "a thousandth is the least"
    assert attempts(one_by_one, 0) < 30


@pytest.mark.parametrize("reached", [{}, {"t": Reached(5, 5, 9)}, {"t": Reached(5, 2, 9)}])
def test_an_attempt_that_did_not_advance_counts(reached: dict[str, Reached]) -> None:
    count = AttemptCount(2)
    count.add(reached)
    assert (count.counted, count.is_over) == (1, False)
    count.add(reached)
    assert count.is_over


def test_one_fragment_that_advances_suffices() -> None:
    count = AttemptCount(2)
    for done in range(1, 9):
        count.add({"still": Reached(3, 3, 9), "moves": Reached(done - 1, done, 9)})
    assert count.counted == 0
    assert count.stuck("still") == Stuck(8, 0.0, None)
    assert count.stuck("moves") is None


def test_what_was_staged_before_the_command_is_no_advance() -> None:
    """Nor is the same again, after it was dropped."""
    count = AttemptCount(9)
    for before, done, counted in ((70, 80, 0), (0, 80, 1), (80, 80, 2), (80, 90, 2)):
        count.add({"t": Reached(before, done, 100)})
        assert count.counted == counted


def test_the_last_attempt_counts_however_far_it_came() -> None:
    """With a limit of one there is no second; nor where nothing more may be started."""
    assert attempts(range(1, 99), 100, limit=1) == 1
    count = AttemptCount(2)
    count.add({"t": Reached(0, 5, 9)}, is_last=True)
    assert count.counted == 1


def test_a_scan_that_outlasts_the_line() -> None:
    count = AttemptCount(LIMIT)
    count.add({"t": Reached(0, 5, 9, held_s=30.0, scan_s=200.0)})
    assert count.stuck("t") is None
    count.add({"t": Reached(5, 5, 9, held_s=31.0, scan_s=73.0)})
    stuck = count.stuck("t")
    assert stuck is not None
    assert not stuck.is_outlasted, "once may be chance"
    count.add({"t": Reached(5, 5, 9, held_s=29.0)})
    stuck = count.stuck("t")
    assert stuck == Stuck(2, 31.0, 73.0)
    assert stuck.is_outlasted
    assert not Stuck(4, 80.0, 73.0).is_outlasted, "the line held for longer than a scan"
    assert not Stuck(4, 80.0, None).is_outlasted


@pytest.mark.parametrize(
    ("read", "rows", "rate", "seconds"),
    [
        (4_000_000, 10_000_000, 1e6, 75.0),
        (0, 10_000_000, 1e5, 100.0),
        (0, 10_000_000, None, None),
        (12, 10, None, 30.0),
        (12, 0, 1e5, None),
    ],
)
def test_how_long_a_scan_takes(
    read: int, rows: int, rate: float | None, seconds: float | None
) -> None:
    assert scan_s(read, rows, 30.0, rate) == seconds
