"""Models of claimed times: the synthetic stream of the paper's section 4, and what is left out."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warehouse_agent.change_models.test_week import ZONES, moments
from tests.warehouse_agent.change_models.weeks import HOUR, MONDAY, THREE
from warehouse_agent.change_models import fitness
from warehouse_agent.change_models.event_times import EventModel, fitted, gathered
from warehouse_agent.change_models.structure import HOMOGENEOUS
from warehouse_agent.change_models.week import HOUR_S, HOURS, Week

WEEKS = 20


def stream(rates: np.ndarray, seed: int, weeks: int = WEEKS, pair: float = 0.1) -> np.ndarray:
    """Times of rows: events of a recurrent Poisson process, of which a share has two rows."""
    rng = np.random.default_rng(seed)
    hours = np.arange(weeks * HOURS)
    count = rng.poisson(rates[hours % HOURS])
    at = MONDAY + (np.repeat(hours, count) + rng.random(int(count.sum()))) * HOUR_S
    twice = at[rng.random(len(at)) < pair]
    found = np.concatenate([at, twice + rng.uniform(1, 5, len(twice))])
    return rng.permutation(found)


def model_of(times: np.ndarray, zone: str = "UTC", weeks: int = WEEKS) -> EventModel:
    found = fitted(gathered(times, MONDAY + weeks * HOURS * HOUR_S), zone)
    assert found is not None
    return found


def test_a_recurrent_compound_stream_is_found_and_not_contradicted() -> None:
    rates = THREE / 4
    found = model_of(stream(rates, 1))
    assert np.corrcoef(found.model.events, rates)[0, 1] > 0.9
    assert found.model.batch == pytest.approx(1.1, abs=0.06)
    assert found.times.p_value > 0.05
    assert found.gaps is not None
    assert found.gaps.p_value > 0.05
    low, high = found.model.bounds()
    inside = (low[found.model.segments] <= rates * 1.1) & (
        rates * 1.1 <= high[found.model.segments]
    )
    assert inside.mean() > 0.75  # of hours; segments of few events are wide, and cut at 0


def test_a_constant_stream_has_one_rate() -> None:
    found = model_of(stream(np.full(HOURS, 1.0), 2, pair=0.0))
    assert found.model.structure == HOMOGENEOUS
    assert found.model.mean == pytest.approx(1.0, rel=0.1)
    assert found.times.p_value > 0.05


def test_a_stream_of_bursts_is_contradicted() -> None:
    """Five events, a few minutes apart, each night at a random hour: no Poisson process."""
    rng = np.random.default_rng(3)
    begins = MONDAY + (np.arange(WEEKS * 7) * 24 + rng.uniform(0, 24, WEEKS * 7)) * HOUR_S
    times = (begins[:, None] + np.arange(5) * 300).reshape(-1)
    assert model_of(times[times < MONDAY + WEEKS * HOURS * HOUR_S]).times.p_value <= 0.05


def test_sizes_that_follow_each_other_are_contradicted() -> None:
    """Larger events in a row, then none for long: their runs are not geometric."""
    rng = np.random.default_rng(4)
    independent = np.where(rng.random(3000) < 0.05, 2, 1)
    clustered = np.ones(3000, np.int64)
    clustered[::100] = 2
    assert fitness.of_gaps(independent) is not None
    assert getattr(fitness.of_gaps(independent), "p_value", 0) > 0.05
    assert getattr(fitness.of_gaps(clustered), "p_value", 1) <= 0.05
    assert fitness.of_gaps(np.ones(100, np.int64)) is None


def test_what_is_not_counted() -> None:
    end = MONDAY + 100 * HOUR_S
    times = np.array([MONDAY - 400 * 86_400, MONDAY, MONDAY + 30, MONDAY + 60, end + 1])
    found = gathered(times, end)
    assert found.at.tolist() == [MONDAY]  # each is within a minute of the one before
    assert found.rows.tolist() == [3]
    assert (found.start, found.future) == (MONDAY, 1)
    assert fitted(found, "UTC") is None
    assert fitted(gathered(np.zeros(0), end), "UTC") is None


NIGHTS = MONDAY + np.arange(WEEKS * 7) * 86_400.0
DENSE = {
    "nightly": (NIGHTS[:, None] + 22 * HOUR_S + np.arange(0, 7200, 5)).reshape(-1),
    "each minute": MONDAY + np.arange(0, WEEKS * HOURS * HOUR_S, 60.0),
    "each 61 s": MONDAY + np.arange(0, WEEKS * HOURS * HOUR_S, 61.0),
    "30 an hour": stream(np.full(HOURS, 30.0), 6, pair=0.0),
}


@pytest.mark.parametrize("name", DENSE)
def test_rates_are_those_of_real_hours(name: str) -> None:
    """Also where events fill most of the hours, so that other ones cannot be told from them."""
    times = DENSE[name]
    found = model_of(times).model
    assert found.mean == pytest.approx(len(times) / (WEEKS * HOURS), rel=0.03)


def test_many_events_of_a_week_with_hours_are_not_contradicted() -> None:
    """40 an hour in office hours: a third of these is within an event, and told by no other."""
    rates = np.where((HOUR % 24 >= 9) & (HOUR % 24 < 17), 40.0, 2.0)
    values = [model_of(stream(rates, seed, 8, 0.0), weeks=8).times.p_value for seed in range(5)]
    assert np.median(values) > 0.1


def test_hours_that_were_never_seen_have_the_mean_rate() -> None:
    """A table that is three days old."""
    rates = np.where(HOUR < 24, 10.0, np.where(HOUR < 48, 2.0, 6.0))
    times = stream(rates, 7, weeks=1, pair=0.0)
    end = MONDAY + 72 * HOUR_S
    found = fitted(gathered(times[times <= end], end), "UTC")
    assert found is not None
    assert found.model.hourly[72:] == pytest.approx(6.0, rel=0.15)
    assert found.model.untold[0].startswith("96 of the 168 hours of the week lie outside")
    assert found.model.bounds()[1].max() < 60
    assert model_of(times, weeks=1).model.untold == ()


def test_hours_are_those_of_the_source() -> None:
    """Events at eight in Tokyo."""
    rates = np.where(HOUR % 24 == 23, 3.0, 0.0)  # 23:00 UTC is 08:00 there
    model = model_of(stream(rates, 5), zone="Asia/Tokyo").model
    assert set(np.flatnonzero(model.events > 0.5) % 24) == {8}


@given(st.sampled_from(ZONES), moments)
def test_wall_clock_times_become_moments(zone: str, at: datetime) -> None:
    local = at.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC)
    (found,) = Week(zone).moments(np.array([local.timestamp()]))
    shown = datetime.fromtimestamp(found, ZoneInfo(zone)).replace(tzinfo=UTC)
    assert shown == local  # the same wall clock, also in the hour that comes twice
    assert Week(zone).hours_of(np.array([at.timestamp()])).tolist() == [
        Week(zone).hour_of(at.timestamp())
    ]
