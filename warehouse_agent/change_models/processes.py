"""Stochastic processes of change: the formulas of Gal and Eckstein for piecewise constant rates.

(A. Gal, J. Eckstein: Managing periodically updated data in relational databases: a stochastic
modeling approach, J. ACM 48(6), 2001.) A rate is an array of 168 numbers, one for each hour of the
week, per hour; it repeats every week. Times are hours since some Monday at midnight, s <= f.
Insertions are a compound Poisson process, deletions and modifications processes of each tuple.
All rates are constant within an hour, so every integral here is exact.

Rejected: what refreshes cannot tell, as they count rows and see no value and no single life: the
chain of an attribute's values (Prop. 5), life spans with a memory (Prop. 3), and survival by the
parents of each tuple (Lemma 3), which `dependencies` has for counts of rows. The density of the
next event (Lemma 1) is the derivative of `alteration`.
"""

from __future__ import annotations

import math

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.change_models.week import HOURS

NET_MIN = 1e-4  # changes of a row, below which digits would be lost


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


def alteration(exposure: float) -> float:
    """Return the probability of any event where Ξ = `exposure` are expected (Prop. 4)."""
    return -math.expm1(-exposure)


def inserted(rates: Floats, deaths: Floats, s: float, f: float, batch: float = 1.0) -> float:
    """Return the expected number of tuples inserted in (s, f] that live at f (Prop. 1).

    Args:
        rates: insertion events per hour, [168].
        deaths: deletions per tuple and hour, [168].
        batch: E[Δ], the mean number of tuples of an event.
    """
    hours, lengths = _pieces(s, f)
    dying = deaths[hours] * lengths
    alive = np.exp(np.cumsum(dying) - dying.sum()) * mean_survival(dying)
    return batch * float((rates[hours] * lengths * alive).sum())


def cardinality(rows: float, rates: Floats, deaths: Floats, s: float, f: float) -> float:
    """Return the expected number of tuples at f, of which there are `rows` at s (Prop. 2).

    Args:
        rates: tuples inserted per hour, [168].
        deaths: deletions per tuple and hour, [168].
    """
    return rows * math.exp(-integral(deaths, s, f)) + inserted(rates, deaths, s, f)


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
    hours, lengths = _pieces(s, f)
    weight, rows = weights[hours] * lengths, rates[hours] * lengths
    after = weight.sum() - np.cumsum(weight)
    if deaths is None:
        return float((rows * (after + weight / 2)).sum())
    dying = deaths[hours] * lengths
    alive = np.exp(np.cumsum(dying) - dying.sum())
    waits = after * mean_survival(dying) + weight * mean_wait(dying)
    return float((rows * alive * waits).sum())


def mean_survival(dying: Floats) -> Floats:
    """Return the share of tuples, inserted evenly over some time, that live at its end, of the
    shape of `dying`: (1 − e^−x)/x.

    Args:
        dying: x, the deaths of each tuple that are expected in all of the time, of any shape.
    """
    safe = np.maximum(dying, NET_MIN)
    exact: Floats = np.where(dying > NET_MIN, -np.expm1(-safe) / safe, 1 - dying / 2)
    return exact


def mean_wait(dying: Floats) -> Floats:
    """Return the mean time from insertion to the end of those tuples, over all of the time, of the
    shape of `dying`; 0 counts for one that has died: (1 − (1 + x)·e^−x)/x².

    Args:
        dying: x, as in `mean_survival`, of any shape.
    """
    safe = np.maximum(dying, NET_MIN)
    exact = (-np.expm1(-safe) / safe - np.exp(-safe)) / safe
    wait: Floats = np.where(dying > NET_MIN, exact, 0.5 - dying / 3)
    return wait


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
