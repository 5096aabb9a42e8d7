"""Hours of the week as both files name them."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from driftline.settings.hours import DAY, WeekSpan, next_open
from hypothesis import given
from hypothesis import strategies as st

MONDAY = datetime(2026, 1, 5)  # noqa: DTZ001 - local times have no zone here


@pytest.mark.parametrize(
    ("text", "days", "minutes"),
    [
        ("Mon-Fri 09:00-18:00", range(5), 5 * 540),
        ("20:00-06:00", range(7), 7 * 600),
        ("Sat,Sun", (5, 6), 2 * DAY),
        ("Sat-Mon 00:00-01:00", (0, 5, 6), 180),
        ("Tue, Thu 09:00 - 18:00", (1, 3), 1080),
        ("Sun 23:00-02:00", (6,), 180),
    ],
)
def test_spans(text: str, days: range, minutes: int) -> None:
    span = WeekSpan.parse(text)
    assert span is not None
    assert span.days == tuple(days)
    assert len(span.minutes()) == minutes
    assert WeekSpan.parse(str(span)) == span


@pytest.mark.parametrize(
    "text", ["", " ", "Mon-", "Monday", "mon", "9:00-18:00", "Mon 25:00-26:00", "Mon,Mon", "Mon x"]
)
def test_texts_that_are_none(text: str) -> None:
    assert WeekSpan.parse(text) is None


def test_a_span_over_midnight_ends_on_monday() -> None:
    span = WeekSpan.parse("Sun 23:00-02:00")
    assert span is not None
    assert {0, 119, 7 * DAY - 1} <= span.minutes()
    assert 120 not in span.minutes()


spans = st.sampled_from(["Mon-Fri 09:00-18:00", "20:00-06:00", "Sat,Sun", "Wed 12:00-12:01"])


@given(st.lists(spans, max_size=2), st.integers(0, 7 * DAY * 60))
def test_the_next_moment_in_a_span(texts: list[str], seconds: int) -> None:
    found = [span for text in texts if (span := WeekSpan.parse(text)) is not None]
    now = MONDAY + timedelta(seconds=seconds)
    at = next_open(found, now)
    opened = set().union(*(span.minutes() for span in found))
    if not opened:
        assert at == now
        return
    assert int((at - MONDAY).total_seconds() // 60) % (7 * DAY) in opened
    between = range(seconds // 60, int((at - MONDAY).total_seconds() // 60))
    assert not any(minute % (7 * DAY) in opened for minute in between)


def test_the_wall_clock_counts_also_where_it_is_changed() -> None:
    span = WeekSpan.parse("20:00-22:00")
    assert span is not None
    at = next_open([span], datetime(2026, 3, 28, 23, 0, tzinfo=ZoneInfo("Europe/Vienna")))
    assert at.isoformat() == "2026-03-29T20:00:00+02:00"
