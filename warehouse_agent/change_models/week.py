"""The week of a time zone: its 168 hours, and how long an interval of time lies in each of them.

Jobs of a source run by its wall clock, so hours are local, and their lengths are real: a week in
which the clock is changed has 167 or 169 hours. Moments are seconds since 1970 in UTC.

Hour 0 begins on Monday at midnight. Offsets of a zone are multiples of a quarter of an hour.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
from driftline.arrays import Floats, Integers

HOURS = 168
HOUR_S = 3600.0
_QUARTER_S = 900
_QUARTERS_MAX = 1 << 18  # that are counted at once, which takes about 10 MB
_DAY = 96  # quarters
_THURSDAY = 3 * 24  # the hour of the week in which the year 1970 began


@dataclass(frozen=True, slots=True)
class Week:
    """The week of the time zone `zone`, a name such as `Europe/Vienna`."""

    zone: str = "UTC"

    def hour_of(self, at: float) -> int:
        """Return the local hour of the week, 0..167, of a moment."""
        return int(self._hours(math.floor(at / _QUARTER_S), 1)[0])

    def moments(self, local: Floats) -> Floats:
        """Return the moments of wall-clock times, seconds as if the zone were UTC, [n].

        A time that the clock shows twice is one of the two moments.
        """
        moments = local
        for _ in range(2):  # the second time with the offset of the moment itself
            moments = local - self._offsets_of(moments) * float(_QUARTER_S)
        return moments

    def hours_of(self, moments: Floats) -> Integers:
        """Return the local hour of the week, 0..167, of each moment, [n]."""
        quarters = np.floor(moments / _QUARTER_S).astype(np.int64)
        hours: Integers = ((quarters + self._offsets_of(moments)) // 4 + _THURSDAY) % HOURS
        return hours

    def _offsets_of(self, moments: Floats) -> Integers:
        """Return the offset of local time at each moment, in quarters, [n]."""
        quarters = np.floor(moments / _QUARTER_S).astype(np.int64)
        days, places = np.unique(quarters // _DAY, return_inverse=True)
        by_day = np.zeros((len(days), _DAY), np.int64)
        for n, day in enumerate(days.tolist()):
            by_day[n] = _offsets(self.zone, day)
        return by_day[places.reshape(-1), quarters % _DAY]

    def exposures(self, starts: Sequence[float], ends: Sequence[float]) -> Floats:
        """Return how many hours of each interval lie in each hour of the week, [n, 168].

        Args:
            starts, ends: moments; no interval ends before it starts.
        """
        begins, finishes = np.asarray(starts, np.float64), np.asarray(ends, np.float64)
        first = np.floor(begins / _QUARTER_S).astype(np.int64)
        counts = np.maximum(np.ceil(finishes / _QUARTER_S).astype(np.int64) - first, 0)
        hours = np.zeros((len(begins), HOURS))
        upto = np.concatenate([[0], np.cumsum(counts)])
        for a, b in _portions(upto):
            part = slice(a, b)
            hours[part] = self._exposures(begins[part], finishes[part], first[part], counts[part])
        return hours

    def _exposures(self, starts: Floats, ends: Floats, first: Integers, counts: Integers) -> Floats:
        """Return `exposures`, given the first quarter and the number of quarters of each, [n]."""
        total = int(counts.sum())
        if not total:
            return np.zeros((len(starts), HOURS))
        low, high = int(first.min()), int((first + counts).max())
        of_week = self._hours(low, high - low)
        owner = np.repeat(np.arange(len(starts)), counts)
        quarter = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]
        begin = quarter * float(_QUARTER_S)
        lengths = np.minimum(begin + _QUARTER_S, ends[owner]) - np.maximum(begin, starts[owner])
        places = owner * HOURS + of_week[quarter - low]
        sums = np.bincount(places, lengths / HOUR_S, len(starts) * HOURS)
        hours: Floats = sums.astype(np.float64).reshape(len(starts), HOURS)
        return hours

    def _hours(self, first: int, count: int) -> Integers:
        """Return the local hour of the week of `count` quarters of an hour from `first` on, [n]."""
        quarters = np.arange(first, first + count)
        offsets = np.empty(count, np.int64)
        for day in range(first // _DAY, (first + count - 1) // _DAY + 1):
            a, b = max(day * _DAY, first) - first, min((day + 1) * _DAY, first + count) - first
            offsets[a:b] = _offsets(self.zone, day)[a + first - day * _DAY : b + first - day * _DAY]
        hours: Integers = ((quarters + offsets) // 4 + _THURSDAY) % HOURS
        return hours


def _portions(upto: Integers) -> Iterator[tuple[int, int]]:
    """Yield ranges of intervals with about QUARTERS_MAX quarters in all, at least one interval.

    Args:
        upto: quarters before each interval, and in all, [n + 1].
    """
    a, n = 0, len(upto) - 1
    while a < n:
        b = max(int(np.searchsorted(upto, upto[a] + _QUARTERS_MAX, side="right")) - 1, a + 1)
        yield a, b
        a = b


@functools.lru_cache(maxsize=20_000)
def _offsets(zone: str, day: int) -> Integers:
    """Return the offset of local time in each quarter of a day of UTC, in quarters, [96]."""
    rules, quarters = ZoneInfo(zone), range(day * _DAY, (day + 1) * _DAY + 1)
    ends = [_offset(rules, quarters[0]), _offset(rules, quarters[-1])]
    if ends[0] == ends[1]:
        return np.full(_DAY, ends[0], np.int64)
    return np.array([_offset(rules, quarter) for quarter in quarters[:-1]], np.int64)


def _offset(rules: ZoneInfo, quarter: int) -> int:
    offset = datetime.fromtimestamp(quarter * _QUARTER_S, rules).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) // _QUARTER_S
