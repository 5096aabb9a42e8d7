"""Tests of how fast a source is said to read, from what one exchange took."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driftline.rows.digests import Digest

from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.network import Line
from warehouse_agent.refresh.whole import ROWS_TIMED, rows_per_s
from warehouse_agent.tasks.difference import NoDifference, Outcome

LINE = Line(rtt_s=0.1, bytes_per_s=1_000_000)


def outcome(rows_read: int) -> Outcome:
    """Return what an exchange found that read so many rows in ten round trips."""
    return Outcome(
        NoDifference(),
        Method.SKETCH,
        theirs=Digest(),
        as_of="",
        checked_at="",
        consistency="exact",
        changed=False,
        vouched=True,
        rows_read=rows_read,
        round_trips=10,
    )


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(0, 100_000, id="round-trips-alone"),
        pytest.param(1_000_000, 150_000, id="and-as-long-for-the-bytes"),
        pytest.param(9_000_000, 150_000, id="half-of-the-time-at-least-is-reading"),
    ],
)
def test_time_on_the_line_is_not_time_of_reading(size: int, expected: float) -> None:
    assert rows_per_s(LINE, outcome(300_000), 4.0, size) == pytest.approx(expected)


def test_a_source_that_may_have_waited_for_our_sums_tells_nothing() -> None:
    rates = [rows_per_s(LINE, outcome(300_000), 4.0, 0, beside) for beside in (0.0, 2.5, 2.6, 9.0)]
    assert rates == [rates[0], rates[0], None, None]
    assert rates[0]


def test_a_copy_that_the_line_held_up_tells_nothing() -> None:
    """Rows go out as they are read, so that the source may have been faster by any factor."""
    copy = replace(outcome(300_000), method=Method.FULL, scans=1)
    assert rows_per_s(LINE, copy, 4.0, 2_900_000) is None
    assert rows_per_s(LINE, copy, 4.0, 500_000) == pytest.approx(300_000 / 2.5)
    after_a_comparison = replace(copy, scans=2)
    assert rows_per_s(LINE, after_a_comparison, 4.0, 2_900_000) == pytest.approx(150_000)


def test_time_of_packing_is_not_time_of_reading() -> None:
    """Of what the line did not hide: 300,000 rows take 0.69 s, their 390 kB 0.39."""
    packed = replace(outcome(300_000), came=Digest(300_000, 1), frame_bytes=390_000)
    assert rows_per_s(LINE, packed, 4.0, 390_000) == pytest.approx(300_000 / (4 - 1.39 - 0.3))


def test_few_rows_tell_nothing() -> None:
    assert rows_per_s(LINE, outcome(ROWS_TIMED), 4.0, 0) is None
    assert rows_per_s(LINE, outcome(ROWS_TIMED + 1), 0.0, 0) is None
