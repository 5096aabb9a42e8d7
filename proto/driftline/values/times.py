"""Dates, times and intervals: integers of PostgreSQL's formats to text and back (section 2).

`datetime` knows the years 1 to 9999 only, an int32 of days reaches from -5877611 to 5881580. The
calendar is the proleptic Gregorian one; year 0 is 1 BC. Years begin on 1 March here, so the leap
day is the last of its year (Hinnant, "chrono-compatible low-level date algorithms").

Invariants: *_from_text(*_text(v)) == v for every integer of the format. Other text gives None;
`values` packs the integers and checks the bounds of the types and the infinities.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

DAY_US: Final = 86_400_000_000
_ERA_DAYS: Final = 146_097  # 400 years
_EPOCH_DAYS: Final = 730_425  # from 0000-03-01 to 2000-01-01
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_DATE = re.compile(r"(-?(?:[1-9][0-9]{4,6}|[0-9]{4}))-([0-9]{2})-([0-9]{2})")
_CLOCK = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?")
_ZONE = re.compile(r"([+-])([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?")
_INTERVAL = re.compile(r"P(-?[0-9]{1,10})M(-?[0-9]{1,10})DT(-?)([0-9]{1,13})(?:\.([0-9]{1,6}))?S")


@lru_cache(maxsize=1 << 16)  # a column has few different dates
def days_from_text(text: str) -> int | None:
    """Return the days from 2000-01-01 to `YYYY-MM-DD`."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if not (1 <= month <= 12 and 1 <= day <= _MONTH_DAYS[month - 1]):
        return None
    if month == 2 and day == 29 and (year % 4 or (year % 100 == 0 and year % 400)):
        return None
    march_year = year - (month <= 2)
    era, year_of_era = divmod(march_year, 400)
    day_of_year = (153 * ((month - 3) % 12) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * _ERA_DAYS + day_of_era - _EPOCH_DAYS


def date_text(days: int) -> str:
    """Return `YYYY-MM-DD` of days since 2000-01-01; with more digits after 9999, `-` before 0."""
    era, day_of_era = divmod(days + _EPOCH_DAYS, _ERA_DAYS)
    # Leap days so far: one in 1,460 days, none in 36,524, one in 146,096.
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    march_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * march_month + 2) // 5 + 1
    month = (march_month + 2) % 12 + 1
    year = era * 400 + year_of_era + (month <= 2)
    return f"{'-' if year < 0 else ''}{abs(year):04d}-{month:02d}-{day:02d}"


def clock_from_text(text: str) -> int | None:
    """Return the microseconds since midnight of `HH:MM:SS[.ffffff]`, 24:00:00 included."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3])
    if minute > 59 or second > 59:
        return None
    us = ((hour * 60 + minute) * 60 + second) * 1_000_000 + _fraction_us(match[4])
    return us if us <= DAY_US else None


def clock_text(us: int) -> str:
    """Return `HH:MM:SS[.ffffff]` of microseconds since midnight; the fraction ends in no zero."""
    minutes, us = divmod(us, 60_000_000)
    hour, minute = divmod(minutes, 60)
    second, us = divmod(us, 1_000_000)
    return f"{hour:02d}:{minute:02d}:{second:02d}{_fraction_text(us)}"


def timestamp_from_text(text: str) -> int | None:
    """Return the microseconds from 2000-01-01 00:00 to `YYYY-MM-DD HH:MM:SS[.ffffff]`."""
    date, _, clock = text.partition(" ")
    days, us = days_from_text(date), clock_from_text(clock)
    if days is None or us is None or us == DAY_US:
        return None
    return days * DAY_US + us


def timestamp_text(us: int) -> str:
    """Return `YYYY-MM-DD HH:MM:SS[.ffffff]` of microseconds since 2000-01-01 00:00."""
    days, us_of_day = divmod(us, DAY_US)
    return f"{date_text(days)} {clock_text(us_of_day)}"


def zone_from_text(text: str) -> int | None:
    """Return the seconds *west* of UTC of `±HH:MM[:SS]`, whose sign is positive in the east."""
    match = _ZONE.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds = int(match[2]), int(match[3]), int(match[4] or 0)
    if minutes > 59 or seconds > 59:
        return None
    east_s = (hours * 60 + minutes) * 60 + seconds
    return east_s if match[1] == "-" else -east_s


def zone_text(west_s: int) -> str:
    """Return `±HH:MM[:SS]`, positive in the east, of seconds *west* of UTC."""
    minutes, second = divmod(abs(west_s), 60)
    hour, minute = divmod(minutes, 60)
    seconds = f":{second:02d}" if second else ""
    return f"{'-' if west_s > 0 else '+'}{hour:02d}:{minute:02d}{seconds}"


def interval_from_text(text: str) -> tuple[int, int, int] | None:
    """Return (microseconds, days, months) of `P{months}M{days}DT{seconds}[.ffffff]S`."""
    match = _INTERVAL.fullmatch(text)
    if match is None:
        return None
    us = int(match[4]) * 1_000_000 + _fraction_us(match[5])
    return -us if match[3] else us, int(match[2]), int(match[1])


def interval_text(us: int, days: int, months: int) -> str:
    """Return the text of an interval; each part has its own sign, for a month has no fixed days."""
    seconds, fraction_us = divmod(abs(us), 1_000_000)
    sign = "-" if us < 0 else ""
    return f"P{months}M{days}DT{sign}{seconds}{_fraction_text(fraction_us)}S"


def _fraction_us(digits: str | None) -> int:
    return int(digits.ljust(6, "0")) if digits else 0


def _fraction_text(us: int) -> str:
    return f".{us:06d}".rstrip("0") if us else ""
