"""Stochastic processes of change: the formulas of Gal and Eckstein for piecewise constant rates.

(A. Gal, J. Eckstein: Managing periodically updated data in relational databases: a stochastic
modeling approach, J. ACM 48(6), 2001.) A rate is an array of 168 numbers, one for each hour of the
week, per hour; it repeats every week. Times are hours since some Monday at midnight, s <= f.
Insertions are a compound Poisson process, deletions and modifications processes of each tuple.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.change_models.week import HOURS

NET_MIN = 1e-4  # changes of a row, below which digits would be lost
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)  # exact where rates and weights are constant


def integral(rates: Floats, s: float, f: float) -> float:
    """Return the integral of a rate over (s, f], such as Λ(s, f) (Section 2.1).

    Args:
        rates: [168], per hour.
    """
    return _upto(rates, f) - _upto(rates, s)


def _upto(rates: Floats, t: float) -> float:
    weeks, rest = divmod(t, HOURS)
    hour = min(int(rest), HOURS - 1)
    part = float(rates[:hour].sum()) + float(rates[hour]) * (rest - hour)
    return weeks * float(rates.sum()) + part


def inverse(rates: Floats, s: float, amount: float) -> float:
    """Return the time x with Λ(s, s + x) = `amount`, in hours; infinite if the rate is 0.

    Args:
        rates: [168], per hour.
    """
    weekly = float(rates.sum())
    if weekly <= 0:
        return math.inf
    weeks, left = divmod(amount, weekly)
    at = s
    while left > 0:
        hour = int(at % HOURS)
        ahead, rate = math.floor(at) + 1 - at, float(rates[hour])
        if rate * ahead >= left:
            return weeks * HOURS + at + left / rate - s
        left -= rate * ahead
        at = math.floor(at) + 1.0
    return weeks * HOURS + at - s


def first_event_density(rates: Floats, s: float, x: float) -> float:
    """Return the density at x of the time from s to the next event, per hour (Lemma 1).

    Args:
        rates: [168], events per hour.
    """
    return float(rates[int((s + x) % HOURS)]) * math.exp(-integral(rates, s, s + x))


def alteration(exposure: float) -> float:
    """Return the probability of any event where Ξ = `exposure` are expected (Prop. 4)."""
    return -math.expm1(-exposure)


def survival(multiplicities: Floats, deaths: Floats) -> float:
    """Return the probability that a tuple survives, a mean over tuples (Lemmas 3 and 4).

    Args:
        multiplicities: w_S(r), [tuples, relations] or [relations]: how many tuples of each relation
            S a tuple depends on.
        deaths: M_S(s, f), the integrated deletion rate of each relation, [relations].
    """
    return float(np.mean(np.exp(-np.atleast_2d(multiplicities) @ deaths)))


def life_span_survival(life: Callable[[float], float], born: float, s: float, f: float) -> float:
    """Return the probability that a tuple born at `born` and alive at s is alive at f (Prop. 3).

    Args:
        life: G, the distribution function of life spans in hours.
    """
    return (1 - life(f - born)) / (1 - life(s - born))


def inserted(rates: Floats, deaths: Floats, s: float, f: float, batch: float = 1.0) -> float:
    """Return the expected number of tuples inserted in (s, f] that live at f (Prop. 1).

    Args:
        rates: insertion events per hour, [168].
        deaths: deletions per tuple and hour, [168].
        batch: E[Δ], the mean number of tuples of an event.
    """
    return batch * _integrate(s, f, lambda t: _at(rates, t) * math.exp(-integral(deaths, t, f)))


def cardinality(rows: float, rates: Floats, deaths: Floats, s: float, f: float) -> float:
    """Return the expected number of tuples at f, of which there are `rows` at s (Prop. 2).

    Args:
        rates: tuples inserted per hour, [168].
        deaths: deletions per tuple and hour, [168].
    """
    return rows * math.exp(-integral(deaths, s, f)) + inserted(rates, deaths, s, f)


def transition(generator: Floats, exposure: float) -> Floats:
    """Return P = exp(Γ·Q), the probabilities of values of an attribute after Γ = `exposure`
    expected modifications (Prop. 5), [values, values], by uniformization.

    Args:
        generator: Q, [values, values]; each row sums to 0.
    """
    pace = float(-generator.diagonal().min())
    matrix: Floats = np.eye(len(generator))
    if pace * exposure <= 0:
        return matrix
    halvings = max(0, math.ceil(math.log2(pace * exposure)))  # so that e^-pace does not vanish
    part = pace * exposure / 2**halvings
    step = matrix + generator / pace
    term, matrix = matrix * math.exp(-part), matrix * math.exp(-part)
    for n in range(1, 40):
        term = term @ step * (part / n)
        matrix = matrix + term
    return np.linalg.matrix_power(matrix, 2**halvings)


def random_walk(exposure: float, mean: float, variance: float) -> tuple[float, float]:
    """Return the mean and the mean square of the change of a number after Γ = `exposure` expected
    modifications, each a step of this mean and variance (Section 3.2.2, Prop. 7)."""
    drift = exposure * mean
    return drift, exposure * (variance + mean**2) + drift**2


def obsolescence(
    rates: Floats, weights: Floats, s: float, f: float, deaths: Floats | None = None
) -> float:
    """Return the expected obsolescence in (s, f], in weighted row-hours (Eq. 10 to 13).

    Each change counts from the time t at which it happens: ∫ λ(t) p(t, f) ∫_t^f c(u) du dt.

    Args:
        rates: changed rows per hour, [168].
        weights: c, the weight of each hour, [168].
        deaths: deletions per tuple and hour, [168]; None: what changed stays.
    """
    if deaths is not None:

        def cost(t: float) -> float:
            lives = math.exp(-integral(deaths, t, f))
            return _at(rates, t) * lives * integral(weights, t, f)

        return _integrate(s, f, cost)
    hours, lengths = _pieces(s, f)
    weight, rows = weights[hours] * lengths, rates[hours] * lengths
    after = weight.sum() - np.cumsum(weight)
    return float((rows * (after + weight / 2)).sum())


def stale(events: Floats, s: float, f: float) -> float:
    """Return the expected hours of (s, f] that lie after the first event in it: the integral of
    1 − exp(−Λ(s, t)).

    Args:
        events: per hour, [168].
    """
    hours, lengths = _pieces(s, f)
    exposure = events[hours] * lengths
    before = np.cumsum(exposure) - exposure
    # The mean of e^-x over a piece, x from 0 to its exposure.
    safe = np.maximum(exposure, 1e-9)
    none = np.exp(-before) * np.where(exposure > 1e-9, -np.expm1(-safe) / safe, 1.0)
    return float((lengths * (1 - none)).sum())


def net(changes: float, rows: float) -> tuple[float, float]:
    """Return the shares of changes, and of their row-hours, that are left if a row that changes
    again counts once: of `changes` that fall evenly on `rows` rows, and on the time.

    With x changes of each row they are (1 − e^−x)/x, and 2 (x − 1 + e^−x)/x².
    """
    if rows <= 0 or (x := changes / rows) < NET_MIN:
        return 1.0, 1.0
    once = -math.expm1(-x)
    return once / x, 2 * (x - once) / x**2


def _pieces(s: float, f: float) -> tuple[Integers, Floats]:
    """Return the hour of the week and the length of each part of an hour in (s, f], [n] each."""
    edges = np.unique(np.clip(np.arange(math.floor(s), math.ceil(f) + 1), s, f))
    return np.floor(edges[:-1]).astype(np.int64) % HOURS, np.diff(edges)


def _at(rates: Floats, t: float) -> float:
    return float(rates[int(t % HOURS)])


def _integrate(s: float, f: float, integrand: Callable[[float], float]) -> float:
    """Return the integral over (s, f], by Gauss's formula within each hour."""
    total, at = 0.0, s
    while at < f:
        end = min(math.floor(at) + 1.0, f)
        half = (end - at) / 2
        at_nodes = (integrand(at + half * (1 + node)) for node in _NODES)
        total += half * sum(w * y for w, y in zip(_WEIGHTS, at_nodes, strict=True))
        at = end
    return total
