"""Goodness of fit: does a model explain the counts of intervals, or the times of events?

The parameters are estimated from the same data, so the tabulated quantiles of the statistic of
Kolmogorov and Smirnov would be far too lenient: p-values come from simulations of the model, each
of which is fitted again (H. W. Lilliefors, J. Amer. Statist. Assoc. 62, 1967).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.change_models.fit import Model, em
from warehouse_agent.change_models.memory import Memory, cut_at
from warehouse_agent.change_models.structure import matrix
from warehouse_agent.change_models.week import Week

REPLICATES = 99
GAPS_MIN = 5  # events of more than one row
_DRAWS = 99
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Fitness:
    """The statistic of Kolmogorov and Smirnov, 0..1, and the probability of a greater one."""

    statistic: float
    p_value: float


def of_counts(model: Model, memory: Memory, seed: int = 0) -> Fitness:
    """Test a model by the counts of recent intervals.

    The randomised probability integral transform of a count, under a negative binomial distribution
    with mean Λ_j and variance φΛ_j, is uniform; it is its rank among draws of that distribution
    (A. Brockwell, Statist. Probab. Lett. 77, 2007). Counts beyond their 99 % quantile count as it.
    """
    rng = np.random.default_rng(seed)
    recent = memory.recent
    exposures = Week(model.zone).exposures([i.start for i in recent], [i.end for i in recent])
    seen = exposures @ matrix(model.segments)
    counts = np.array([one.changed for one in recent])
    counts = np.minimum(counts, cut_at(counts, 0.99)).round()
    rates, dispersion = _fitted(seen, counts)
    observed = _statistic(seen @ rates, dispersion, counts, rng)
    worse = 0
    for _ in range(REPLICATES):
        again = _draw(seen @ rates, dispersion, rng, 1)[0]
        others, spread = _fitted(seen, again)
        worse += _statistic(seen @ others, spread, again, rng) >= observed
    return Fitness(observed, (1 + worse) / (1 + REPLICATES))


def of_model(model: Model, memory: Memory, seed: int = 0) -> Floats:
    """Return the randomised probability integral transforms of the counts, [J], in 0..1: uniform if
    the model is right (`of_counts`)."""
    rng = np.random.default_rng(seed)
    recent = memory.recent
    exposures = Week(model.zone).exposures([i.start for i in recent], [i.end for i in recent])
    counts = np.array([one.changed for one in recent])
    counts = np.minimum(counts, cut_at(counts, 0.99)).round()
    return _ranks(exposures @ model.hourly, model.dispersion, counts, rng)


def of_amounts(amounts: Floats, seed: int = 0) -> Fitness:
    """Test rates by the times of events, [n + 1]: the expected numbers of events between successive
    ones, Λ(X_i, X_(i+1)), have an exponential distribution of mean 1 (Lemma 6).

    Only the shape is judged: the mean rate is taken from the events.

    Args:
        amounts: the expected numbers, [n].
    """
    rng = np.random.default_rng(seed)
    observed = _exponential(amounts)
    drawn = rng.exponential(size=(REPLICATES, len(amounts)))
    worse = sum(_exponential(one) >= observed for one in drawn)
    return Fitness(observed, (1 + worse) / (1 + REPLICATES))


def of_gaps(batches: Integers, seed: int = 0) -> Fitness | None:
    """Test whether the sizes of successive events are independent (section 4.2).

    Nearly all events have one row, so the numbers of such events between larger ones are
    judged: their distribution is geometric. None: fewer than GAPS_MIN larger events.

    Args:
        batches: rows of each event, [n].
    """
    larger = np.flatnonzero(batches > 1)
    if len(larger) < GAPS_MIN:
        return None
    rng = np.random.default_rng(seed)
    gaps = np.diff(larger) - 1
    observed = _geometric(gaps)
    share = 1 / (1 + gaps.mean())
    drawn = rng.geometric(share, (REPLICATES, len(gaps))) - 1
    worse = sum(_geometric(one) >= observed for one in drawn)
    return Fitness(observed, (1 + worse) / (1 + REPLICATES))


def _geometric(gaps: Integers) -> float:
    """Return the distance of gaps, [n], from a geometric distribution of their mean."""
    share = 1 / (1 + float(gaps.mean()))
    lengths = np.arange(int(gaps.max()) + 1)
    theory = -np.expm1((lengths + 1) * math.log1p(-min(share, 1 - _TINY)))
    observed = np.searchsorted(np.sort(gaps), lengths, side="right") / len(gaps)
    return float(np.abs(observed - theory).max())


def _fitted(seen: Floats, counts: Floats) -> tuple[Floats, float]:
    none = np.zeros(seen.shape[1])
    rates = em(seen, counts, none, none)
    expected = np.maximum(seen @ rates, _TINY)
    free = max(len(counts) - len(rates), 1)
    return rates, max(float(((counts - expected) ** 2 / expected).sum()) / free, 1.0)


def _statistic(
    expected: Floats, dispersion: float, counts: Floats, rng: np.random.Generator
) -> float:
    return _distance(_ranks(expected, dispersion, counts, rng))


def _ranks(expected: Floats, dispersion: float, counts: Floats, rng: np.random.Generator) -> Floats:
    drawn = _draw(expected, dispersion, rng, _DRAWS)
    below, equal = (drawn < counts).sum(axis=0), (drawn == counts).sum(axis=0)
    ranks: Floats = (below + rng.random(len(counts)) * (equal + 1)) / (_DRAWS + 1)
    return ranks


def _draw(expected: Floats, dispersion: float, rng: np.random.Generator, n: int) -> Floats:
    """Return counts of each interval, [n, J]."""
    expected, size = np.maximum(expected, _TINY), (n, len(expected))
    if dispersion < 1 + _TINY:
        return rng.poisson(expected, size).astype(np.float64)
    drawn = rng.negative_binomial(expected / (dispersion - 1), 1 / dispersion, size)
    return drawn.astype(np.float64)


def _exponential(amounts: Floats) -> float:
    mean = max(float(amounts.mean()), _TINY)
    return _distance(-np.expm1(-amounts / mean))


def _distance(values: Floats) -> float:
    """Return the greatest distance of a sample, [n], from the uniform distribution on 0..1."""
    n = len(values)
    ordered, steps = np.sort(values), np.arange(n + 1) / n
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
