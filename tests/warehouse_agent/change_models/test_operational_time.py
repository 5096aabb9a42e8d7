"""Operational time, and the forecasts that are made in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from warehouse_agent.change_models.operational_time import changes_expected, in_operational_time
from warehouse_agent.planning.change_forecast import EarlierRefresh, outcomes

MONDAY = datetime(2026, 1, 5, 4, tzinfo=UTC)
OFFICE = (100, 100, 100, 100, 100, 10, 4)  # rows from Monday to Sunday
DAY = timedelta(days=1)


def refreshes(found: list[int], start: datetime = MONDAY) -> list[EarlierRefresh]:
    """Return a load at `start`, and a refresh a day."""
    return [
        EarlierRefresh(start + n * DAY, 0, d, 0, 50_000, n == 0, "sketch", 1, 1.0)
        for n, d in enumerate([50_000, *found])
    ]


def office(weeks: int, seed: int = 1) -> list[int]:
    """Return the rows of each day."""
    drawn = np.random.default_rng(seed).poisson(np.tile(OFFICE, weeks))
    return [int(d) for d in drawn]


def seconds(found: list[int], start: datetime = MONDAY, zone: str = "UTC") -> list[float]:
    """Return the operational seconds of each day, and of the next one."""
    earlier = refreshes(found, start)
    ends, last = [one.at for one in earlier[1:]], earlier[-1].at
    return in_operational_time(outcomes(earlier), ends, last, last + DAY, zone)


def test_without_a_rhythm_time_is_elapsed_time() -> None:
    found = [int(d) for d in np.random.default_rng(2).poisson(50, 60)]
    assert seconds(found) == [86_400.0] * 61


def test_a_short_history_tells_no_rhythm() -> None:
    assert seconds(office(1)[:5]) == [86_400.0] * 6


def test_a_weekend_is_short_for_an_office() -> None:
    last = np.array(seconds(office(10))[-8:-1]) / 86_400
    assert last[:5] == pytest.approx(np.full(5, 700 / 514 * 1.0), rel=0.15)
    assert last[5] < 0.4
    assert last[6] < 0.3


@pytest.mark.parametrize(("weekday", "rows"), [(0, 100), (4, 100), (5, 10), (6, 4)])
def test_each_day_of_a_week_is_forecast_as_it_is(weekday: int, rows: int) -> None:
    earlier = refreshes(office(12)[: 11 * 7 + weekday])
    told = changes_expected(earlier, 50_000, earlier[-1].at + DAY)
    assert told is not None
    assert told.median == pytest.approx(rows, rel=0.25, abs=4)
    assert told.high <= 2 * rows + 12


def test_a_season_is_followed() -> None:
    quiet = [max(d // 10, 0) for d in office(8)]
    earlier = refreshes([*office(8), *quiet])
    told = changes_expected(earlier, 50_000, earlier[-1].at + DAY)  # a Monday
    assert told is not None
    assert told.low <= 10 <= told.high
    assert told.high < 40


def test_the_days_are_those_of_the_source() -> None:
    zone, start = "Pacific/Auckland", MONDAY.replace(tzinfo=ZoneInfo("Pacific/Auckland"))
    at_home, in_utc = (
        np.array(seconds(office(10), start.replace(hour=0).astimezone(UTC), each))
        for each in (zone, "UTC")
    )
    assert at_home[-2] < in_utc[-2]  # of a Sunday, which by UTC is half a Saturday


def test_a_clock_that_was_set_back_counts_as_it_is() -> None:
    earlier = refreshes(office(6))
    ends, last = [one.at for one in earlier[1:]], earlier[-1].at
    found = in_operational_time(outcomes(earlier), ends, last, last - DAY, "UTC")
    assert found[-1] == -86_400
    told = changes_expected(earlier, 50_000, last - DAY)
    assert told is not None
    assert 0 < told.unchanged < 1
