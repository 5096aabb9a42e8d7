"""The probability per row: bounds, what moves it, and its formula row by row."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.decisions.expect import HISTORIES, Schedule
from benchmarks.decisions.expect_rows import Score, score
from tests.harness.histories import DATA, available
from tests.reference import update_probability as reference
from warehouse_agent.planning.change_forecast import RefreshOutcome
from warehouse_agent.planning.update_probability import (
    DAY_S,
    KNOTS_MAX,
    TAU_S,
    ChangeOutlook,
    VersionClock,
    probability,
    update_weight,
    updates_expected,
    usual_mean,
    usual_most,
    usual_share,
)

START_S = 1_700_000_000.0
ROWS = 40_000
gaps = st.lists(st.floats(0, 40 * DAY_S), min_size=1, max_size=120)


def clock_of(gaps_s: list[float]) -> VersionClock:
    clock, at_s = VersionClock(), START_S
    for version, gap in enumerate(gaps_s):
        clock, at_s = clock.after(version, at_s + gap), at_s + gap
    return clock


def view_of(clock: VersionClock, share: float = 1e-4, elapsed_s: float = DAY_S) -> ChangeOutlook:
    return ChangeOutlook(clock, share, clock.seconds[-1] + elapsed_s, elapsed_s)


def at(view: ChangeOutlook, first: float, changed: float, rate: float) -> float:
    return float(probability(view, *(np.array([x]) for x in (first, changed, rate)))[0])


@given(gaps)
def test_a_clock_is_bounded_monotone_and_near(gaps_s):
    clock = clock_of(gaps_s)
    assert len(clock.versions) <= KNOTS_MAX
    assert clock.versions[0] == 0
    assert clock.versions[-1] == len(gaps_s) - 1
    exact = START_S + np.cumsum(gaps_s)
    found = clock.times(np.arange(len(gaps_s), dtype=np.float64))
    assert (np.diff(found) >= 0).all()
    if len(gaps_s) <= KNOTS_MAX:
        assert found == pytest.approx(exact)
    assert VersionClock.from_json(json.loads(json.dumps(clock.to_json()))) == clock


def test_a_thinned_clock_is_near_in_proportion_to_the_age():
    days = np.random.default_rng(4).exponential(1.0, 2_000) * DAY_S
    clock, exact = clock_of(days.tolist()), START_S + np.cumsum(days)
    found = clock.times(np.arange(len(days), dtype=np.float64))
    ages = exact[-1] - exact
    assert (np.abs(found - exact) <= 0.25 * ages + 1).all()


def test_a_clock_that_is_set_back_stands_still():
    clock = VersionClock().after(0, START_S).after(1, START_S - 10).after(2, START_S + 5)
    assert clock.seconds == (START_S, START_S, START_S + 5)


@given(
    gaps,
    st.floats(1e-12, 2),
    st.floats(1, 400 * DAY_S),
    st.lists(st.tuples(st.integers(0, 130), st.integers(0, 130), st.floats(0, 1e4))),
)
def test_a_probability_is_one_and_no_row_is_certain_to_stay(gaps_s, share, elapsed_s, rows):
    view = view_of(clock_of(gaps_s), share, elapsed_s)
    table = np.array(rows, np.float64).reshape(-1, 3)
    found = probability(view, *table.T)
    assert ((found > 0) & (found <= 1)).all()


def test_what_moves_it():
    daily = clock_of([DAY_S] * 100)
    view = view_of(daily)
    quiet = at(view, 0, 0, 0)
    assert quiet < view.share < at(view, 0, 99, 1)  # the last version updated it
    assert at(view, 0, 50, 1) < at(view, 0, 99, 1) < at(view, 0, 99, 3)
    assert quiet < at(view, 99, 99, 0.25) < at(view, 0, 99, 1)  # young, updated
    assert at(view, 0, 0, 0) < at(view, 90, 90, 0)  # seen for longer without an update
    assert at(view_of(daily, 2e-4), 0, 99, 1) > at(view, 0, 99, 1)


def test_unknown_is_there_since_the_clock_and_not_updated():
    view = view_of(clock_of([DAY_S] * 30))
    nan = float("nan")
    assert at(view, nan, nan, nan) == at(view, 0, 0, 0)


def test_a_row_that_is_updated_every_day_is_expected_every_day():
    daily, decay = clock_of([DAY_S] * 400), np.exp(-DAY_S / TAU_S)
    view = view_of(daily, share=0.01)
    assert at(view, 0, 399, 1 / (1 - decay)) > 0.5
    assert at(view, 0, 0, 0) < 0.002


@pytest.mark.slow
@given(st.lists(st.integers(0, 5_000), max_size=40), st.floats(60, 100 * DAY_S))
def test_the_mean_is_that_of_the_bounded_forecast(updated, elapsed_s):
    history = [RefreshOutcome(DAY_S, ROWS, 3, d, 1) for d in updated]
    found = updates_expected(history, rows=ROWS, elapsed_s=elapsed_s)
    most = usual_most(found)
    slow = sum(found.survival(k) for k in range(most)) if most < 20_000 else None
    mean = usual_mean(found, most)
    assert 0 < mean <= most
    if slow is not None:
        assert mean == pytest.approx(slow, rel=0.02, abs=1e-3)


def test_a_bulk_change_says_next_to_nothing():
    usual = [RefreshOutcome(DAY_S, ROWS, 0, d, 0) for d in [3, 5, 4, 6, 2, 5] * 5]
    bulk = [*usual[:20], RefreshOutcome(DAY_S, ROWS, 0, 15_000, 0), *usual[20:]]
    shares = [
        usual_share(updates_expected(past, rows=ROWS, elapsed_s=DAY_S), ROWS) * ROWS
        for past in (usual, bulk)
    ]
    assert 2 < shares[0] < 7
    assert shares[1] < 2 * shares[0]
    most = usual_most(updates_expected(usual, rows=ROWS, elapsed_s=DAY_S))
    assert update_weight(most, 5) == 1
    assert update_weight(most, 15_000) < 0.01


def test_it_is_the_formula_row_by_row() -> None:
    rng = np.random.default_rng(7)
    clock = clock_of((rng.exponential(1.0, 300) * DAY_S).tolist())
    first = rng.integers(-2, 305, 500).astype(np.float64)
    changed = first + rng.integers(0, 40, 500)
    rate = rng.exponential(1.0, 500).astype(np.float32).astype(np.float64)
    for column in (first, changed, rate):
        column[rng.random(500) < 0.1] = np.nan
    rows = [
        tuple(
            None if np.isnan(x) else kind(x) for x, kind in zip(row, (int, int, float), strict=True)
        )
        for row in zip(first, changed, rate, strict=True)
    ]
    for view in (
        view_of(clock),
        ChangeOutlook(VersionClock().after(3, START_S), 1e-12, START_S, 1.0),
    ):
        slow = [reference.probability(view, *row) for row in rows]
        assert probability(view, first, changed, rate) == pytest.approx(slow, rel=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(available, HISTORIES)),
    reason=f"NO REAL TABLES, NOT TESTED: {DATA} is not there",
)
@pytest.mark.parametrize(
    "schedule", [Schedule.WEEKLY, pytest.param(Schedule.IRREGULAR, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("name", HISTORIES)
def test_real_rows_are_predicted_best(name: str, schedule: Schedule) -> None:
    found = score(name, schedule)

    def loss(title: str) -> float:
        of: Score = found.scores[title]
        return of.usual_nats + of.bulk_nats

    ours = found.scores["**ours**"]
    for title in ("paper, clipped", "paper, from 0", "mean rate", "level"):
        assert loss("**ours**") < loss(title), title
    assert ours.usual_nats < found.scores["level"].usual_nats
    assert 0.5 < ours.expected.sum() / found.usual_updates < 2.5
    assert np.isinf(found.scores["paper"].usual_nats)
