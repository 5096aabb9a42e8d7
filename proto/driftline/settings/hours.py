"""Hours of the day and of the week, as both agents' files name them. No I/O and no clock.

Hours are those of a local clock, so a night in which it is put forward or back has one less or one
more. Moments are local times; the caller knows the zone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import pairwise

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SPAN = re.compile(r"(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)", re.ASCII)
_WEEK_SPAN = re.compile(r"([A-Za-z][A-Za-z, -]*)?(\d.*)?", re.ASCII)
DAY = 24 * 60  # minutes


@dataclass(frozen=True, slots=True)
class Hours:
    """A span of every day: [start, end) in minutes since midnight, less than a day long.

    0 <= start < DAY; a span over midnight has an end of more than DAY.
    """

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Hours | None:
        """Return the span that `HH:MM-HH:MM` means; None if it means none, or the whole day."""
        match = _SPAN.fullmatch(text)
        if match is None:
            return None
        hour, minute, end_hour, end_minute = (int(part) for part in match.groups())
        start, end = hour * 60 + minute, end_hour * 60 + end_minute
        if max(minute, end_minute) > 59 or start >= DAY or end > DAY or (end - start) % DAY == 0:
            return None
        return cls(start, end if start < end else end + DAY)

    def covers(self, now: time) -> bool:
        """Return True if this time of day is in the span."""
        minute = now.hour * 60 + now.minute
        return self.start <= minute < self.end or minute + DAY < self.end

    def __str__(self) -> str:
        end = self.end if self.end == DAY else self.end % DAY
        return f"{self.start // 60:02}:{self.start % 60:02}-{end // 60:02}:{end % 60:02}"


def overlapping(spans: Sequence[Hours]) -> tuple[Hours, Hours] | None:
    """Return two spans that have a minute of the day in common, or None."""
    ordered = sorted(spans, key=lambda span: span.start)
    for one, other in pairwise(ordered):
        if one.end > other.start:
            return one, other
    if ordered and ordered[-1].end - DAY > ordered[0].start:
        return ordered[-1], ordered[0]
    return None


@dataclass(frozen=True, slots=True)
class WeekSpan:
    """Hours of some days of the week, such as `Mon-Fri 09:00-18:00`.

    `days`: 0 for Monday to 6, at least one. `hours`: None: the whole day; those over midnight
    belong to the day on which they begin.
    """

    days: tuple[int, ...]
    hours: Hours | None = None

    @classmethod
    def parse(cls, text: str) -> WeekSpan | None:
        """Return the span that `[DAYS] [HH:MM-HH:MM]` means, where DAYS are `Sat`, `Mon-Fri` or
        `Tue,Thu`, by default all; None if it means none."""
        match = _WEEK_SPAN.fullmatch(text.strip())
        if match is None or not text.strip():
            return None
        days = _days(match[1].strip()) if match[1] else tuple(range(7))
        hours = Hours.parse(match[2]) if match[2] else None
        return None if days is None or (match[2] and hours is None) else cls(days, hours)

    def minutes(self) -> set[int]:
        """Return the minutes of the week, from Monday at midnight, that are in the span."""
        start, end = (self.hours.start, self.hours.end) if self.hours else (0, DAY)
        return {(day * DAY + m) % (7 * DAY) for day in self.days for m in range(start, end)}

    def __str__(self) -> str:
        names = ",".join(DAYS[day] for day in self.days)
        return f"{names} {self.hours}" if self.hours else names


def next_open(spans: Sequence[WeekSpan], local: datetime) -> datetime:
    """Return the first moment from `local` on that is in a span; `local` itself if there is none.

    Args:
        local: a time of the wall clock; a zone that it has is kept.
    """
    opened = _opened(tuple(spans))
    minute = local.weekday() * DAY + local.hour * 60 + local.minute
    if not opened or minute in opened:
        return local
    wait = next(m for m in range(1, 7 * DAY) if (minute + m) % (7 * DAY) in opened)
    return local.replace(second=0, microsecond=0) + timedelta(minutes=wait)


@functools.lru_cache(maxsize=256)
def _opened(spans: tuple[WeekSpan, ...]) -> frozenset[int]:
    """Return the minutes of the week that are in any of the spans."""
    return frozenset().union(*(span.minutes() for span in spans))


def _days(text: str) -> tuple[int, ...] | None:
    """Return the days of the week that a text names, each once, in order; None if it is wrong."""
    days: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            return None
        start = DAYS.index(first)
        length = (DAYS.index(last) - start) % 7 if dash else 0
        days += [(start + n) % 7 for n in range(length + 1)]
    return tuple(sorted(days)) if len(set(days)) == len(days) else None
