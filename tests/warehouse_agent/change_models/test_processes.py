"""Each formula against a simulation of the process that it describes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.change_models import processes
from warehouse_agent.change_models.week import HOURS

RNG = np.random.default_rng
RATES = 0.2 + np.arange(HOURS) % 24 / 10
DEATHS = np.where(np.arange(HOURS) % 24 < 12, 0.03, 0.01)
WEIGHTS = np.where((np.arange(HOURS) % 24 >= 9) & (np.arange(HOURS) % 24 < 18), 4.0, 1.0)
S, F = 5.3, 41.8
RUNS = 20_000
times = st.floats(0, 1000)


def arrivals(rng: np.random.Generator) -> list[np.ndarray]:
    """Event times in (S, F] of each run: uniform candidates, thinned."""
    most = RATES.max()
    found = []
    for n in rng.poisson(most * (F - S), RUNS):
        at = rng.uniform(S, F, n)
        found.append(at[rng.random(n) < RATES[at.astype(int) % HOURS] / most])
    return found


@pytest.fixture(scope="module")
def events() -> list[np.ndarray]:
    return arrivals(RNG(1))


def near(values: list[float] | np.ndarray, expected: float) -> bool:
    """The mean of a simulation is within four standard errors of the formula."""
    found = np.asarray(values, float)
    return abs(found.mean() - expected) <= 4 * found.std() / math.sqrt(len(found))


def lives(at: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Times of death of tuples born at `at`: by exponential amounts of the integrated rate."""
    return np.array([t + processes.inverse(DEATHS, t, rng.exponential()) for t in at])


@given(times, times, times)
def test_integrals_add_up(a: float, b: float, c: float) -> None:
    s, m, f = sorted((a, b, c))
    parts = processes.integral(RATES, s, m) + processes.integral(RATES, m, f)
    assert parts == pytest.approx(processes.integral(RATES, s, f), rel=1e-9, abs=1e-6)


@given(times, st.floats(0, 1000))
def test_the_inverse_is_one(s: float, amount: float) -> None:
    x = processes.inverse(RATES, s, amount)
    assert processes.integral(RATES, s, s + x) == pytest.approx(amount, abs=1e-6)


def test_nothing_ever_happens_without_a_rate() -> None:
    assert processes.inverse(np.zeros(HOURS), 3.0, 1.0) == math.inf


def test_insertions(events: list[np.ndarray]) -> None:
    assert near([len(at) for at in events], processes.integral(RATES, S, F))


def test_the_next_event(events: list[np.ndarray]) -> None:
    """Definition 1 and Prop. 4: the probability of the first alteration."""
    x = 1.1
    seen = [at.min() <= S + x if len(at) else False for at in events]
    assert near(np.array(seen), processes.alteration(processes.integral(RATES, S, S + x)))


@pytest.mark.slow
def test_inserted_and_surviving(events: list[np.ndarray]) -> None:
    """Props. 1 and 2, and Example 5."""
    rng, few = RNG(4), events[:500]
    living = [float((lives(at, rng) > F).sum()) for at in few]
    assert near(living, processes.inserted(RATES, DEATHS, S, F))
    batches = [float(rng.geometric(0.25, int(n)).sum()) for n in living]
    assert near(batches, processes.inserted(RATES, DEATHS, S, F, batch=4.0))
    old = rng.binomial(100, math.exp(-processes.integral(DEATHS, S, F)), len(few))
    assert near(old + np.array(living), processes.cardinality(100, RATES, DEATHS, S, F))
    flat, dying = np.full(HOURS, 2.0), np.full(HOURS, 0.1)
    expected = 2.0 / 0.1 * (1 - math.exp(-0.1 * (F - S)))
    assert processes.inserted(flat, dying, S, F) == pytest.approx(expected)


@pytest.mark.slow
def test_obsolescence(events: list[np.ndarray]) -> None:
    """Eq. 10 to 13, with weights of hours and with deletions."""
    steps = np.linspace(0, F, 40_001)
    upto = np.concatenate([[0], np.cumsum(np.diff(steps) * WEIGHTS[steps[:-1].astype(int)])])

    def cost(at: np.ndarray) -> float:
        return float((upto[-1] - np.interp(at, steps, upto)).sum())

    assert near([cost(at) for at in events], processes.obsolescence(RATES, WEIGHTS, S, F))
    rng = RNG(5)
    kept = [cost(at[lives(at, rng) > F]) for at in events[:500]]
    assert near(kept, processes.obsolescence(RATES, WEIGHTS, S, F, DEATHS))
    flat, one = np.full(HOURS, 2.0), np.ones(HOURS)
    assert processes.obsolescence(flat, one, S, F) == pytest.approx(2.0 * (F - S) ** 2 / 2)


@given(times, st.floats(0, 60), st.sampled_from([1e-12, 1e-6, 1e-3, 1.0, 30.0]))
def test_deaths_are_integrated_exactly(s: float, length: float, pace: float) -> None:
    """Prop. 1 and Eq. 11 against sums over a fine grid."""
    deaths, f = DEATHS * pace, s + length
    edges = np.union1d(np.linspace(s, f, 20_001), np.clip(np.arange(int(s), int(f) + 2), s, f))
    at, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    hours = np.floor(at).astype(int) % HOURS
    dying, waiting = deaths[hours] * width, WEIGHTS[hours] * width
    alive = np.exp(np.cumsum(dying) - dying.sum() - dying / 2)
    found = RATES[hours] * width * alive
    waits = waiting.sum() - np.cumsum(waiting) + waiting / 2
    assert processes.inserted(RATES, deaths, s, f) == pytest.approx(found.sum(), rel=1e-4, abs=1e-6)
    expected = processes.obsolescence(RATES, WEIGHTS, s, f, deaths)
    assert expected == pytest.approx((found * waits).sum(), rel=1e-3, abs=1e-6)


def test_stale_hours(events: list[np.ndarray]) -> None:
    """The time after the first event."""
    rates = np.full(HOURS, 0.05)
    first = S + RNG(10).exponential(1 / 0.05, RUNS)
    assert near(np.maximum(F - first, 0), processes.stale(rates, S, F))
    seen = np.array([F - at.min() if len(at) else 0.0 for at in events])
    assert near(seen, processes.stale(RATES, S, F))
    assert processes.stale(np.zeros(HOURS), S, F) == 0


@pytest.mark.parametrize("changes", [1.0, 400.0, 1_000.0])
def test_a_row_that_changes_again_counts_once(changes: float) -> None:
    rows, rng = 200, RNG(5)
    counts, hours = [], []
    for n in rng.poisson(changes, 2_000):
        first = np.full(rows, 1.0)
        np.minimum.at(first, rng.integers(0, rows, n), rng.random(n))
        counts.append(float((first < 1).sum()))
        hours.append(float((1 - first).sum()))
    of_rows, of_row_hours = processes.net(changes, rows)
    assert near(counts, changes * of_rows)
    assert near(hours, changes / 2 * of_row_hours)
