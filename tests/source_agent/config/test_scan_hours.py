"""Hours of the day, against a slow reference that looks at one minute after the other."""

from __future__ import annotations

from datetime import datetime, time, timedelta

import pytest
from driftline.settings.hours import DAY, Hours, overlapping
from hypothesis import given
from hypothesis import strategies as st

from source_agent.config.scan_hours import ScanHours

MIDNIGHT = datetime(2026, 3, 1)  # noqa: DTZ001 - local time
TIMES = st.tuples(st.integers(0, 23), st.sampled_from([0, 1, 30, 59]))
MINUTES = st.sampled_from([0, 1, 299, 300, 301, 719, 720, 1319, 1320, 1321, 1438, 1439])


@st.composite
def spans(draw: st.DrawFn, most: int = 4) -> list[Hours]:
    """Spans that may overlap, or cover the whole day."""
    ends = st.tuples(MINUTES, MINUTES).filter(lambda pair: pair[0] != pair[1])
    drawn = draw(st.lists(ends, min_size=1, max_size=most))
    return [Hours(start, end if start < end else end + DAY) for start, end in drawn]


def minutes(span: Hours) -> set[int]:
    """The minutes of the day in a span."""
    return {minute % DAY for minute in range(span.start, span.end)}


@pytest.mark.parametrize(
    ("text", "start", "end", "shown"),
    [
        ("08:00-18:00", 480, 1080, "08:00-18:00"),
        ("22:30-06:00", 1350, 1800, "22:30-06:00"),
        ("18:00 - 24:00", 1080, 1440, "18:00-24:00"),
        ("18:00-00:00", 1080, 1440, "18:00-24:00"),
        ("00:00-00:01", 0, 1, "00:00-00:01"),
        ("23:59-23:58", 1439, 2878, "23:59-23:58"),
    ],
)
def test_what_is_a_span(text: str, start: int, end: int, shown: str) -> None:
    found = Hours.parse(text)
    assert found == Hours(start, end)
    assert str(found) == shown


@pytest.mark.parametrize(
    "text",
    ["", "8-18", "08:00-08:00", "00:00-24:00", "24:00-05:00", "08:00-24:01", "08:00-25:00",
     "08:60-09:00", "08:00-09:60", "08:00", "٠٨:00-09:00", "08:00-09:00 "],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    assert Hours.parse(text) is None


@given(TIMES, TIMES)
def test_a_span_covers_its_minutes(start: tuple[int, int], end: tuple[int, int]) -> None:
    first, last = start[0] * 60 + start[1], end[0] * 60 + end[1]
    found = Hours.parse(f"{start[0]:02}:{start[1]:02}-{end[0]:02}:{end[1]:02}")
    if first == last:
        assert found is None
        return
    assert found is not None
    inside = {
        m for m in range(DAY) if (first <= m < last if first < last else not last <= m < first)
    }
    assert minutes(found) == inside
    assert {m for m in range(DAY) if found.covers(time(m // 60, m % 60, 59))} == inside


@given(spans())
def test_spans_overlap_if_they_share_a_minute(drawn: list[Hours]) -> None:
    found = overlapping(drawn)
    total = sum(span.end - span.start for span in drawn)
    assert (found is None) == (len(set().union(*map(minutes, drawn))) == total)
    if found is not None:
        assert minutes(found[0]) & minutes(found[1])
        assert drawn.count(found[0]) + drawn.count(found[1]) >= 2


@given(spans(), st.integers(0, 59), MINUTES)
def test_the_window_that_is_open_or_next(drawn: list[Hours], second: int, minute: int) -> None:
    allowed = set().union(*map(minutes, drawn))
    if overlapping(drawn) or len(allowed) == DAY:
        return
    now = MIDNIGHT + timedelta(minutes=minute, seconds=second)
    found = ScanHours(tuple(drawn)).window(now)
    assert found is not None
    assert found.is_open(now) == (minute in allowed)

    def first_minute(at: int, *, is_allowed: bool) -> int:
        while (at % DAY in allowed) != is_allowed:
            at += 1
        return at

    begins = first_minute(minute, is_allowed=True)
    ends = MIDNIGHT + timedelta(minutes=first_minute(begins, is_allowed=False))
    assert found.ends == ends
    assert found.ends > now
    if not found.is_open(now):
        assert found.begins == MIDNIGHT + timedelta(minutes=begins)


def test_no_hours_mean_never() -> None:
    assert ScanHours(()).window(MIDNIGHT) is None
    assert str(ScanHours(())) == "never"
    assert str(ScanHours((Hours(1320, 1740), Hours(720, 780)))) == "22:00-05:00, 12:00-13:00"


@pytest.mark.parametrize(
    ("now", "begins", "ends", "is_open"),
    [
        ((1, 21, 59), (1, 22, 0), (2, 5, 0), False),
        ((1, 22, 0), (1, 22, 0), (2, 5, 0), True),
        ((2, 4, 59), (1, 22, 0), (2, 5, 0), True),
        ((2, 5, 0), (2, 22, 0), (3, 5, 0), False),
    ],
)
def test_a_window_over_midnight(
    now: tuple[int, int, int],
    begins: tuple[int, int, int],
    ends: tuple[int, int, int],
    is_open: bool,
) -> None:
    def at(when: tuple[int, int, int]) -> datetime:
        return datetime(2026, 3, *when)  # noqa: DTZ001 - local time

    found = ScanHours((Hours(1320, 1740),)).window(at(now))
    assert found is not None
    assert (found.begins, found.ends) == (at(begins), at(ends))
    assert found.is_open(at(now)) is is_open


def test_windows_without_a_gap_are_one() -> None:
    evening, night = Hours(1320, 1440), Hours(0, 300)
    found = ScanHours((night, evening)).window(MIDNIGHT + timedelta(minutes=1330))
    assert found is not None
    assert found.ends == MIDNIGHT + timedelta(days=1, minutes=300)
