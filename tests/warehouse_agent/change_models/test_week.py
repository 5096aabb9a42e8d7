"""Hours of the week: local, with real lengths, through changes of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.change_models.week import HOURS, Week

ZONES = ("UTC", "Europe/Vienna", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe")
moments = st.datetimes(datetime(2000, 1, 1), datetime(2035, 1, 1)).map(  # noqa: DTZ001 - in UTC
    lambda at: at.replace(tzinfo=UTC)
)


@given(st.sampled_from(ZONES), moments)
def test_the_hour_is_that_of_the_wall_clock(zone: str, at: datetime) -> None:
    local = at.astimezone(ZoneInfo(zone))
    assert Week(zone).hour_of(at.timestamp()) == local.weekday() * 24 + local.hour


@given(st.sampled_from(ZONES), moments, st.lists(st.floats(0, 400), min_size=1, max_size=4))
def test_exposures_are_the_hours_of_the_interval(
    zone: str, at: datetime, hours: list[float]
) -> None:
    ends = at.timestamp() + np.cumsum([0, *hours]) * 3600
    found = Week(zone).exposures(ends[:-1].tolist(), ends[1:].tolist())
    assert found.shape == (len(hours), HOURS)
    assert found.sum(axis=1) == pytest.approx(hours, abs=1e-6)
    whole = Week(zone).exposures([ends[0]], [ends[-1]])[0]
    assert found.sum(axis=0) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(("month", "hours"), [(3, 167), (10, 169), (6, 168)])
def test_a_week_with_a_change_of_the_clock(month: int, hours: int) -> None:
    """The last Sunday of March and of October in Vienna."""
    zone = ZoneInfo("Europe/Vienna")
    last = max(d for d in range(25, 31) if datetime(2026, month, d, tzinfo=zone).weekday() == 6)
    monday = datetime(2026, month, last, tzinfo=zone) - timedelta(days=6)
    start, end = monday.timestamp(), (monday + timedelta(days=7)).timestamp()
    found = Week("Europe/Vienna").exposures([start], [end])[0]
    assert found.sum() == pytest.approx(hours)
    changed = np.flatnonzero(np.abs(found - 1) > 1e-9)
    assert changed.tolist() == ([] if hours == 168 else [6 * 24 + 2])
