"""Hours of the day: when nothing is read (`quiet_hours`), and when a scan may begin (`scan`).

Decisions without I/O and without a clock: the caller passes the local time of the agent. Hours are
those of the local clock, so a night in which it is put forward or back has one less or one more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import pairwise

_SPAN = re.compile(r"(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)", re.ASCII)
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
class Window:
    """One time, from `begins` on and before `ends`, in which scans may begin; local time."""

    begins: datetime
    ends: datetime

    def is_open(self, now: datetime) -> bool:
        """Return True if a scan may begin now."""
        return self.begins <= now < self.ends


@dataclass(frozen=True, slots=True)
class ScanHours:
    """The hours in which scans of a relation may begin, if not always.

    `spans` do not overlap, and do not cover the whole day; none: never.
    """

    spans: tuple[Hours, ...]

    def window(self, now: datetime) -> Window | None:
        """Return the window that is open now, else the next one; None if there is none.

        Spans that follow each other without a gap are one window. now: local time, without a zone.
        """
        midnight = datetime.combine(now.date(), time())
        # A window begins at most a day before or after `now`, and ends within a day.
        times = sorted(
            (
                midnight + timedelta(days=day, minutes=span.start),
                midnight + timedelta(days=day, minutes=span.end),
            )
            for day in (-1, 0, 1, 2)
            for span in self.spans
        )
        left = [(begins, ends) for begins, ends in times if ends > now]
        if not left:
            return None
        begins, ends = left[0]
        for start, end in left[1:]:
            if start == ends:
                ends = end
        return Window(begins, ends)

    def __str__(self) -> str:
        return ", ".join(map(str, self.spans)) or "never"
