"""Fits of simulated weeks: rates, their intervals, what cannot be told, goodness of fit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from driftline.arrays import Floats, Integers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.warehouse_agent.change_models.weeks import (
    HOUR,
    MONDAY,
    OFFICE,
    THREE,
    every,
    jittered,
    remembered,
)
from warehouse_agent.change_models import fitness, processes
from warehouse_agent.change_models.fit import Model, fit, rate_per_row
from warehouse_agent.change_models.memory import RECENT_MAX, Interval, Memory
from warehouse_agent.change_models.processes import inverse
from warehouse_agent.change_models.structure import STRUCTURES, merged
from warehouse_agent.change_models.week import HOUR_S, HOURS, Week

TRUE: dict[str, Integers] = {"three": np.where(OFFICE, 1, np.where(HOUR // 24 < 5, 0, 2))}
RATES = np.array([1.6, 8.0, 0.4])


def fitted(memory: Memory, structures: Mapping[str, Integers] = STRUCTURES) -> Model:
    found = fit(memory, "UTC", structures)
    assert found is not None
    return found


def test_nothing_is_fitted_to_nothing() -> None:
    assert fit(Memory(), "UTC") is None


def test_a_table_that_never_changes() -> None:
    model = fitted(remembered(np.zeros(HOURS), every(24), np.random.default_rng(1)))
    assert model.mean == 0
    assert model.bounds()[0].tolist() == [0] * len(model.rates)


@pytest.mark.parametrize("hours", [every(6), every(1, weeks=4)], ids=["6 h", "1 h"])
def test_rates_are_found(hours: list[float]) -> None:
    model = fitted(remembered(THREE, hours, np.random.default_rng(2)))
    assert model.untold == ()
    assert np.corrcoef(model.hourly, THREE)[0, 1] > 0.85
    assert model.mean == pytest.approx(THREE.mean(), rel=0.1)


def coverage(dispersion: float, fits: int, with_dispersion: bool = True) -> float:
    held = []
    for seed in range(fits):
        rng = np.random.default_rng(seed)
        model = fitted(remembered(THREE, every(6), rng, dispersion), TRUE)
        assert len(model.rates) == 3
        error = model.errors if with_dispersion else model.errors / model.dispersion**0.5
        held.append(np.abs(model.rates - RATES) <= 1.96 * error)
    return float(np.mean(held))


@pytest.mark.parametrize("dispersion", [1.0, 5.0])
def test_intervals_hold_the_rate(dispersion: float) -> None:
    """95 % of 90 intervals: at least 0.88 with a probability of 0.99. `soak` has 6,000."""
    assert coverage(dispersion, 30) >= 0.88


def test_intervals_without_dispersion_do_not() -> None:
    assert coverage(5.0, 30, with_dispersion=False) < 0.8


@pytest.mark.soak
@pytest.mark.parametrize("dispersion", [1.0, 5.0])
def test_intervals_hold_the_rate_in_many_fits(dispersion: float) -> None:
    assert 0.92 <= coverage(dispersion, 2000) <= 0.97


@pytest.mark.parametrize("hours", [pytest.param(1, marks=pytest.mark.slow), 6, 24])
def test_hours_in_which_nothing_was_found_have_a_bound(hours: float) -> None:
    """About that of the rule of three: 3 over the hours that were seen."""
    idle = remembered(np.where(OFFICE, 8.0, 0.0), every(hours), np.random.default_rng(5))
    model = fitted(replace(idle, recent=idle.recent[-RECENT_MAX:]))
    assert model.bounds()[1].max() < 20
    quiet = remembered(np.zeros(HOURS), every(hours), np.random.default_rng(6))
    high = fitted(quiet).bounds()[1].max()
    assert high == pytest.approx(3 / (12 * HOURS), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_folded_intervals_do_not_disperse_what_is_recent(rate: float) -> None:
    """After weeks of an hour without a change the first change in it is no burst."""
    rng, memory = np.random.default_rng(7), Memory()
    for n, count in enumerate(rng.poisson(rate, 365 * 24).tolist()):
        at = MONDAY + n * HOUR_S
        memory = memory.plus(Interval(at, at + HOUR_S, float(count), 0.0, 0.0, 1000.0))
    assert memory.folded.intervals == 365 * 24 - RECENT_MAX
    assert fitted(memory).dispersion < 1.5


@pytest.mark.parametrize(
    ("hours", "untold", "segments"),
    [
        (every(24), {"hours"}, 7),
        (every(24, at=12), {"hours"}, 7),
        (every(168), {"hours", "days"}, 1),
        (every(6), set(), 168),
    ],
    ids=["midnight", "noon", "weekly", "every 6 h"],
)
def test_what_cannot_be_told(hours: list[float], untold: set[str], segments: int) -> None:
    model = fitted(remembered(THREE, hours, np.random.default_rng(3)))
    assert {text.split()[0] for text in model.untold} == untold
    assert all("at about the same hour" in text for text in model.untold)
    assert len(model.rates) <= segments


def test_jitter_tells_hours_of_the_day() -> None:
    rng = np.random.default_rng(4)
    model = fitted(remembered(THREE, jittered(12, 36, rng), rng), TRUE)
    assert model.untold == ()
    assert model.rates == pytest.approx(RATES, rel=0.4)


@settings(max_examples=20)
@given(st.sampled_from(list(STRUCTURES)), st.integers(2, 60), st.integers(0, 2**32))
def test_merged_segments_are_told_apart(name: str, refreshes: int, seed: int) -> None:
    """Whatever is left has full rank, and each segment is a union of given ones."""
    rng = np.random.default_rng(seed)
    ends = MONDAY + rng.choice([1, 6, 24, 24, 168, 30], refreshes).cumsum() * HOUR_S
    exposures = Week().exposures(ends[:-1].tolist(), ends[1:].tolist())
    information = np.full(refreshes - 1, 0.5)
    found = merged(STRUCTURES[name], exposures, information)
    assert sorted(set(found.tolist())) == list(range(int(found.max()) + 1))
    for segment in range(int(STRUCTURES[name].max()) + 1):
        assert len(set(found[STRUCTURES[name] == segment].tolist())) == 1
    if found.max():
        seen = exposures @ np.eye(int(found.max()) + 1)[found]
        assert np.linalg.eigvalsh(seen.T @ seen * 0.5)[0] >= 1 - 1e-9


def test_a_burst_decides_nothing() -> None:
    """One bulk change of 14,870 rows leaves the level where it is, and gets no weekday its own."""
    rng, flat = np.random.default_rng(5), np.full(HOURS, 1.0)
    memory = remembered(flat, every(24, weeks=26), rng)
    recent = list(memory.recent)
    recent[40] = Interval(recent[40].start, recent[40].end, 0, 14_870, 0, 40_000)
    model = fitted(Memory(tuple(recent)))
    assert model.structure == "homogeneous"
    assert model.mean == pytest.approx(1.0, rel=0.2)


def test_a_quiet_table_is_not_cut_at_one() -> None:
    """The quantile is that of positive counts."""
    start, recent = MONDAY, []
    for day in range(140):
        rows = 100.0 + day if day % 13 == 0 else 0.0
        recent.append(Interval(start + day * 86_400, start + (day + 1) * 86_400, rows, 0, 0, 1e4))
    model = fitted(Memory(tuple(recent)))
    assert model.mean == pytest.approx(sum(one.changed for one in recent) / 140 / 24, rel=0.1)
    assert model.batch > 20


def test_events_of_a_compound_process() -> None:
    """A mean batch of four: as many empty intervals as there are, of whatever length."""
    rng = np.random.default_rng(6)
    memory = remembered(np.full(HOURS, 0.15), every(3, weeks=26), rng)
    batches = tuple(
        Interval(one.start, one.end, float(rng.geometric(0.25, int(one.inserted)).sum()), 0, 0, 1e4)
        for one in memory.recent[-400:]
    )
    model = fitted(Memory(batches))
    assert model.batch == pytest.approx(4.0, rel=0.25)
    assert model.dispersion == pytest.approx(7.0, rel=0.35)  # (2 − p) / p


@settings(max_examples=20)
@given(st.floats(1e-4, 0.1), st.integers(0, 2**32))
def test_the_rate_of_a_row_counts_what_is_net(rate: float, seed: int) -> None:
    """Rows that change more than once are seen once: the mean count alone would say too little."""
    rng, rows = np.random.default_rng(seed), 20_000.0
    hours = rng.choice([1.0, 12.0, 48.0], 60)
    counts = rng.binomial(int(rows), -np.expm1(-rate * hours)).astype(float)
    by_chance = 6 / np.sqrt(counts.sum())  # six standard errors
    found = rate_per_row(counts, np.full(60, rows), hours)
    assert found == pytest.approx(rate, rel=max(0.05, by_chance))


def test_sums_outlive_the_intervals() -> None:
    """A history of 600 intervals, of which 200 are folded, is fitted like the whole of it."""
    rng = np.random.default_rng(7)
    whole = remembered(THREE, every(6, weeks=22), rng)
    folded = Memory()
    for one in whole.recent:
        folded = folded.plus(one)
    assert len(folded.recent) == 400
    assert folded.folded.intervals == len(whole.recent) - 400
    model, expected = fitted(folded, TRUE), fitted(Memory(whole.recent), TRUE)
    assert model.rates == pytest.approx(expected.rates, rel=0.25)
    assert model.intervals == expected.intervals
    assert model.mean == pytest.approx(expected.mean, rel=0.05)


@pytest.mark.slow
def test_goodness_of_fit() -> None:
    """The right model is accepted, a homogeneous one of the same counts is not."""
    rng = np.random.default_rng(8)
    memory = remembered(THREE, every(6), rng, dispersion=3.0)
    right = fitness.of_counts(fitted(memory, TRUE), memory)
    flat = {"homogeneous": STRUCTURES["homogeneous"]}
    wrong = fitness.of_counts(fitted(memory, flat), memory)
    assert right.p_value > 0.05
    assert wrong.p_value <= 0.05
    assert wrong.statistic > right.statistic


@pytest.mark.soak
def test_p_values_are_uniform() -> None:
    found = []
    for seed in range(200):
        memory = remembered(THREE, every(6, weeks=6), np.random.default_rng(seed), 3.0)
        found.append(fitness.of_counts(fitted(memory, TRUE), memory, seed).p_value)
    assert 0.01 <= np.mean(np.array(found) <= 0.05) <= 0.11


def test_events_are_judged_by_their_times() -> None:
    """Lemma 6."""
    rng, at, times = np.random.default_rng(9), 0.0, []
    while at < 6 * HOURS:
        at += inverse(THREE, at, rng.exponential())
        times.append(at)

    def judged(rates: Floats) -> fitness.Fitness:
        amounts = [processes.integral(rates, a, b) for a, b in itertools.pairwise(times)]
        return fitness.of_amounts(np.array(amounts))

    assert judged(THREE).p_value > 0.05
    assert judged(np.full(HOURS, 1.0)).p_value <= 0.02
