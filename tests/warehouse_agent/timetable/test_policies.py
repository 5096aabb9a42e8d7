"""Plans against brute force, replays against sums by hand, the bound below every policy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from driftline.arrays import Floats, Integers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.warehouse_agent.change_models.weeks import HOUR, MONDAY, OFFICE, THREE, every, remembered
from warehouse_agent.change_models import processes
from warehouse_agent.change_models.week import HOUR_S, HOURS, Week
from warehouse_agent.timetable import policies, replay

ONES = np.ones(HOURS)
WEIGHTS = np.where(OFFICE, 4.0, 1.0)


@given(st.integers(0, HOURS - 1), st.integers(0, 300))
def test_the_table_is_the_obsolescence(hour: int, length: int) -> None:
    table = policies.obsolescence_table(THREE, WEIGHTS, 300)
    expected = processes.obsolescence(THREE, WEIGHTS, hour, hour + length)
    assert table[hour, length] == pytest.approx(expected)


@given(st.integers(0, HOURS - 1), st.integers(0, 300), st.sampled_from([0.0, 1e-9, 1e-3, 0.2, 5.0]))
def test_the_table_has_rows_that_are_deleted_again(hour: int, length: int, deaths: float) -> None:
    table = policies.obsolescence_table(THREE, WEIGHTS, 300, THREE[::-1], deaths)
    dying = np.full(HOURS, deaths)
    expected = processes.obsolescence(THREE, WEIGHTS, hour, hour + length)
    expected += processes.obsolescence(THREE[::-1], WEIGHTS, hour, hour + length, dying)
    assert table[hour, length] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("price", [50.0, 500.0, 5000.0])
def test_a_constant_rate_has_one_optimum(price: float) -> None:
    """All policies are the fixed interval √(2m/λ), here to the hour."""
    rates = np.full(HOURS, 3.0)
    interval = policies.fixed_interval(price, 3.0)
    most = 10 * HOURS
    found = [
        policies.threshold(policies.obsolescence_table(rates, ONES, most), price),
        policies.optimal(policies.obsolescence_table(rates, ONES, most), price, least=1),
        policies.first_alteration(rates / 1e4, -math.expm1(-interval * 3e-4), most),
    ]
    for plan in found:
        assert np.ptp(plan) <= 4  # the end of the horizon is free
        assert abs(plan.mean() - interval) <= 1.5


def expected_cost(plan: Integers, rates: Floats, weights: Floats) -> tuple[float, float]:
    """Return refreshes and weighted row-hours per hour of a plan, in the long run.

    Args:
        plan: hours after each hour of the week, [168].
        rates: changed rows per hour, [168].
        weights: of each hour, [168].
    """
    table = policies.obsolescence_table(rates, weights, int(plan.max()))
    seen: dict[int, tuple[int, int, float]] = {}
    at, refreshes, cost = 0, 0, 0.0
    while (hour := at % HOURS) not in seen:
        seen[hour] = at, refreshes, cost
        cost += float(table[hour, plan[hour]])
        at, refreshes = at + int(plan[hour]), refreshes + 1
    began, before, spent = seen[hour]
    return (refreshes - before) / (at - began), (cost - spent) / (at - began)


def test_the_optimum_is_below_all_others() -> None:
    """No weekly cycle of one to three refreshes, and neither policy, costs less."""
    price, paid = 3000.0, []
    best = policies.optimal(policies.obsolescence_table(THREE, WEIGHTS, HOURS), price, least=1)
    refreshes, unseen = expected_cost(best, THREE, WEIGHTS)
    table = policies.obsolescence_table(THREE, WEIGHTS, HOURS)
    for n in (1, 2, 3):
        for times in itertools.combinations(range(0, HOURS, 8), n):
            gaps = [(b - a) % HOURS or HOURS for a, b in itertools.pairwise([*times, times[0]])]
            paid.append(n * price + sum(table[t, g] for t, g in zip(times, gaps, strict=True)))
    assert (refreshes * price + unseen) * HOURS <= min(paid) * 1.001
    longer = policies.obsolescence_table(THREE, WEIGHTS, 600)
    for plan in (policies.threshold(longer, price), np.full(HOURS, 24)):
        other, cost = expected_cost(plan, THREE, WEIGHTS)
        assert refreshes * price + unseen <= (other * price + cost) * 1.001


def test_only_allowed_hours() -> None:
    allowed = HOUR % 24 >= 20
    table = policies.obsolescence_table(THREE, ONES, 48)
    plan = policies.optimal(table, 200.0, least=1, allowed=allowed)
    assert allowed[(HOUR + plan) % HOURS].all()
    never = policies.optimal(table[:, :6], 200.0, least=1, allowed=HOUR < 0)
    assert (never == 5).all()


def test_the_cost_of_refreshes() -> None:
    """By hand: 5 rows wait 2 h, 1 row 1 h, and 3 rows 4 h until the end."""
    hours = replay.hours_of(Week(), ONES)
    at, rows = np.array([1.0, 2.0, 6.0]) * HOUR_S, np.array([5.0, 1.0, 3.0])
    found = replay.cost([3 * HOUR_S], at, rows, end=10 * HOUR_S, weighted=hours)
    assert found == replay.ReplayCost(1, 5 * 2 + 1 + 3 * 4, 2 + 4)
    assert found.total(100.0) == 123
    weighted = replay.hours_of(Week(), np.where(HOUR >= 0, WEIGHTS, 0))
    monday = MONDAY + np.array([8.0]) * HOUR_S
    assert weighted(monday, monday + 2 * HOUR_S).tolist() == [5.0]


@settings(max_examples=10)
@given(st.floats(1.0, 60.0), st.integers(0, 2**32))
def test_a_fixed_interval_costs_what_eq_10_says(hours: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    end = 60 * 24 * HOUR_S
    at = np.sort(rng.uniform(0, end, 4000))
    found = replay.fixed(hours, at, np.ones(4000), 0.0, end, replay.hours_of(Week(), ONES))
    assert found.row_hours == pytest.approx(4000 * hours / 2, rel=0.1)
    assert found.refreshes == pytest.approx(60 * 24 / hours, abs=1)


def test_a_replay_believes_no_model_whose_gain_depends_on_where_changes_lay() -> None:
    """Hours that daily refreshes cannot tell earn nothing; those that they can tell do."""
    rng = np.random.default_rng(1)
    hourly = remembered(np.where(OFFICE, 4.0, 0.0), every(3, weeks=16), rng)

    def planned(model: object) -> tuple[np.ndarray, float]:
        rates = model.hourly  # type: ignore[attr-defined]
        price = float(rates.mean()) * 24**2 / 2
        return policies.optimal(policies.obsolescence_table(rates, ONES, 96), price, least=1), price

    found = replay.gain(hourly, "UTC", ONES, planned, 24.0)
    assert found is not None
    assert found < 0.95
    daily = remembered(np.where(HOUR % 24 < 9, 4.0, 0.0), every(24, weeks=16), rng)
    lost = replay.gain(daily, "UTC", ONES, planned, 24.0)
    assert lost is not None
    assert lost > 0.95
    assert replay.gain(remembered(THREE, every(24, weeks=2), rng), "UTC", ONES, planned, 24) is None
