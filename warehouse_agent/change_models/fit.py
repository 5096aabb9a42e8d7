"""Fit a model of change to the counts of intervals: rates of the hours of the week, by EM.

Λ_j = Σ_k λ_k E_jk rows are expected of interval j, which has E_jk hours in segment k:

    λ_k ← (λ_k Σ_j E_jk D_j/Λ_j + C_k + a λ̄) / (Σ_j E_jk + H_k + a)            the log-likelihood is
    I_kl = Σ_j E_jk E_jl/Λ_j,        φ = Σ_j (D_j − Λ_j)²/Λ_j ÷ (J − K)         concave; var = φ I⁻¹

(L. A. Shepp, Y. Vardi, IEEE Trans. Medical Imaging 1(2), 1982; φ: P. McCullagh, J. A. Nelder,
Generalized Linear Models, 1989, section 4.5). C and H are the sums of folded intervals, I is the
expected information, H_k/λ_k of them. φ is that of the recent intervals.

 1. Real counts come in bursts: their variance is up to thousands of times their mean. Where the
    greatest count is BURST times the 90 % quantile of the positive ones, the shape is fitted to
    counts cut there, and scaled to the level of those cut at the 99 % quantile.
 2. An interval without φ is too narrow: at a fivefold dispersion it holds the rate in 60 % of
    samples, not in 95 %. Where next to nothing was found it reaches to 3 φ over the hours (the rule
    of three: J. A. Hanley, A. Lippman-Hand, JAMA 249(13), 1983).
 3. The structure has the least −2ℓ/φ + K·ln J, after segments are merged that cannot be told apart.
 4. An event changes `batch` rows: with it, the model expects as many empty intervals as there are.
    It is at most φ, that of a compound Poisson process whose events all have this size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.change_models import processes
from warehouse_agent.change_models.memory import (
    PRIOR_HOURS,
    TAIL,
    Interval,
    Memory,
    OlderIntervals,
    cut_at,
)
from warehouse_agent.change_models.structure import (
    DAY,
    HOMOGENEOUS,
    HOUR_OF_DAY,
    STRUCTURES,
    matrix,
)
from warehouse_agent.change_models.structure import merged as told_apart
from warehouse_agent.change_models.week import HOURS, Week

STEPS = 60  # of EM
BISECTIONS = 60  # of a range of 21 decades, on a scale of logarithms: to 15 digits
SHAPE = 0.90  # quantile of positive counts
BURST = 4.0
Z = 1.959964  # of a 95 % interval
KNOWN_MIN = 3  # intervals: fewer tell next to nothing of a rate
NONE_FOUND = 3.0  # events that are expected at most, in 95 % of cases, where none was found
FINER = 4.0  # a model says nothing of less than this share of the shortest interval
_TINY = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Rates of change by hours of the week.

    Attributes:
        zone: whose hours they are.
        structure: which hours share a rate.
        segments: the segment of each hour of the week, [168], 0..K−1.
        rates: changed rows per hour of each segment, [K].
        errors: their standard errors, [K].
        dispersion: φ, the variance of a count over its mean.
        batch: rows that one event changes, a mean.
        shares: of inserted, updated and deleted rows; they sum to 1, or are 0.
        updated_per_row, deleted_per_row: γ and μ, for each row and hour.
        born: inserted rows over those that refreshes find: others were deleted before (Prop. 1).
        intervals: J, folded ones among them.
        shortest_h: hours of the shortest interval seen.
        untold: what these intervals cannot tell, and why.
        is_claimed: the hours are those of claimed times.
        seen_h: hours that the intervals, or the claimed times, lie in.
    """

    zone: str
    structure: str
    segments: Integers
    rates: Floats
    errors: Floats
    dispersion: float
    batch: float
    shares: tuple[float, float, float]
    updated_per_row: float
    deleted_per_row: float
    intervals: int
    shortest_h: float
    untold: tuple[str, ...] = ()
    born: float = 1.0
    is_claimed: bool = False
    seen_h: float = math.inf

    def knows(self, hours: float) -> bool:
        """Return True if what happens in so many hours may be said: as much was seen.

        Minutes say nothing of a day.
        """
        return self.intervals >= KNOWN_MIN and hours <= self.seen_h * (1 + _TINY)

    @property
    def hourly(self) -> Floats:
        """Changed rows in each hour of the week, [168]."""
        rates: Floats = self.rates[self.segments]
        return rates

    @property
    def inserted(self) -> Floats:
        """Rows inserted in each hour of the week, [168], also those that refreshes never see."""
        inserted: Floats = self.hourly * self.shares[0] * self.born
        return inserted

    @property
    def mean(self) -> float:
        """Changed rows per hour, a mean over the week."""
        return float(self.hourly.mean())

    @property
    def events(self) -> Floats:
        """Events in each hour of the week, [168]."""
        events: Floats = self.hourly / self.batch
        return events

    def bounds(self) -> tuple[Floats, Floats]:
        """Return the ends of 95 % intervals of the rates, [K] each, not below 0."""
        return np.maximum(self.rates - Z * self.errors, 0), self.rates + Z * self.errors


def fit(memory: Memory, zone: str, structures: Mapping[str, Integers] = STRUCTURES) -> Model | None:
    """Fit the structure that explains the intervals best; None without an interval.

    Args:
        zone: the time zone of the source.
        structures: those to choose from, by name: the segment of each hour of the week, [168].
    """
    memory = memory.in_zone(zone)
    fitted = _fitted(memory, zone, structures)
    if fitted is None:
        return None
    best, apart = fitted
    return _with_kinds(best, memory.recent, _untold(apart, memory))


def fit_rates(memory: Memory, zone: str) -> Model | None:
    """Fit as `fit` does, without kinds of change and reasons, which take as long again."""
    fitted = _fitted(memory.in_zone(zone), zone, STRUCTURES)
    return None if fitted is None else fitted[0]


def _fitted(
    memory: Memory, zone: str, structures: Mapping[str, Integers]
) -> tuple[Model, dict[str, Integers]] | None:
    """Return the best model, and the segments of each structure that are told apart; None without
    an interval."""
    if not memory.recent:
        return None
    exposures = Week(zone).exposures(
        [one.start for one in memory.recent], [one.end for one in memory.recent]
    )
    data = _Data(exposures, np.array([one.changed for one in memory.recent]), memory.folded)
    flat = data.fitted(HOMOGENEOUS, STRUCTURES[HOMOGENEOUS])
    information = flat.mean / (exposures.sum(axis=1) * flat.dispersion)
    asked = {name: STRUCTURES[name] for name in (HOUR_OF_DAY, DAY)} | dict(structures)
    apart = {n: told_apart(segments, exposures, information) for n, segments in asked.items()}
    best = _best([data.fitted(name, apart[name]) for name in structures], data)
    return replace(best, batch=data.batch(best)), apart


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    """Hours of intervals by hour of the week, [J, 168], their counts, [J], and folded sums."""

    exposures: Floats
    counts: Floats
    folded: OlderIntervals

    @property
    def level(self) -> Floats:
        """The counts, cut where single bursts would decide on the level, [J]."""
        return self._cut(TAIL)

    def _cut(self, quantile: float) -> Floats:
        if self.counts.max() <= BURST * cut_at(self.counts, SHAPE):
            return self.counts
        return np.minimum(self.counts, cut_at(self.counts, quantile))

    def fitted(self, name: str, segments: Integers) -> Model:
        """Fit the rates of given segments, [168]."""
        by_segment = matrix(segments)
        seen, shape, level = self.exposures @ by_segment, self._cut(SHAPE), self.level
        hours, rows = self.folded.hours @ by_segment, self.folded.rows @ by_segment
        up = level.sum() / shape.sum() if shape.sum() > 0 else 1.0
        rates = up * em(seen, shape, hours, rows / up)
        expected = np.maximum(seen @ rates, _TINY)
        intervals = len(level) + self.folded.intervals
        pearson = float(((level - expected) ** 2 / expected)[level + expected > 2 * _TINY].sum())
        dispersion = max(pearson / max(len(level) - len(rates), 1), 1.0)
        information = seen.T @ (seen / expected[:, None]) + np.diag(
            hours / np.maximum(rates, _TINY)
        )
        variance = dispersion * np.linalg.pinv(information, hermitian=True).diagonal()
        least = NONE_FOUND * dispersion / Z / (seen.sum(axis=0) + hours + PRIOR_HOURS)
        return Model(
            zone=self.folded.zone,
            structure=HOMOGENEOUS if len(rates) == 1 else name,
            segments=segments,
            rates=rates,
            errors=np.maximum(np.sqrt(np.maximum(variance, 0)), least),
            dispersion=dispersion,
            batch=1.0,
            shares=(0.0, 0.0, 0.0),
            updated_per_row=0.0,
            deleted_per_row=0.0,
            intervals=intervals,
            shortest_h=float(self.exposures.sum(axis=1).min()),
            seen_h=float(seen.sum() + hours.sum()),
        )

    def batch(self, model: Model) -> float:
        """Return the mean number of rows of an event, rule 4."""
        expected = np.maximum(self.exposures @ model.hourly, _TINY)
        return min(_batch(expected, self.counts > 0), model.dispersion)

    def log_likelihood(self, model: Model) -> float:
        """Return Poisson's log-likelihood of the counts, without its constant."""
        expected = np.maximum(self.exposures @ model.hourly, _TINY)
        return float((self.level * np.log(expected) - expected).sum())


def em(seen: Floats, counts: Floats, hours: Floats, rows: Floats) -> Floats:
    """Return the rates of segments, rows per hour, [K].

    Args:
        seen: hours of each interval in each segment, [J, K].
        counts: changed rows of each interval, [J].
        hours, rows: of folded intervals, [K].
    """
    mean = (counts.sum() + rows.sum()) / (seen.sum() + hours.sum())
    exposure = seen.sum(axis=0) + hours + PRIOR_HOURS
    rates: Floats = np.full(seen.shape[1], mean)
    for _ in range(STEPS):
        ratio = counts / np.maximum(seen @ rates, _TINY)
        rates = (rates * (seen.T @ ratio) + rows + PRIOR_HOURS * mean) / exposure
    return rates


def _best(models: Sequence[Model], data: _Data) -> Model:
    """Return the model with the least −2ℓ/φ + K·ln J; φ is that of the richest one that leaves at
    least half of the degrees of freedom."""
    intervals = len(data.counts)
    free = [model for model in models if 2 * len(model.rates) <= intervals] or [models[0]]
    dispersion = max(free, key=lambda model: len(model.rates)).dispersion

    def criterion(model: Model) -> float:
        penalty = len(model.rates) * math.log(max(intervals, 2))
        return -2 * data.log_likelihood(model) / dispersion + penalty

    return min(models, key=criterion)


def _batch(expected: Floats, changed: np.ndarray) -> float:
    """Return the mean number b >= 1 of rows of an event, with which Σ (1 − exp(−Λ_j/b)), [J], is
    the number of intervals that changed; half of an interval counts as empty if none is."""
    target = min(float(changed.sum()), len(changed) - 0.5)
    if target <= 0:
        return 1.0
    return max(1.0, _root(lambda b: target + float(np.expm1(-expected / b).sum()), 1.0, 1e9))


def _with_kinds(model: Model, recent: Sequence[Interval], untold: tuple[str, ...]) -> Model:
    """Return the model with the shares of kinds of change, and the rates of a row."""
    kinds = np.array([(one.inserted, one.updated, one.deleted) for one in recent])
    updated_per_row, deleted_per_row = rates_per_row(recent)
    died = deleted_per_row * float(np.mean([one.hours for one in recent]))
    inserted, updated, deleted = (kinds.sum(axis=0) / max(kinds.sum(), 1.0)).tolist()
    return replace(
        model,
        shares=(inserted, updated, deleted),
        updated_per_row=updated_per_row,
        deleted_per_row=deleted_per_row,
        born=1 / float(processes.mean_survival(np.array(died))),
        untold=untold,
    )


def rates_per_row(recent: Sequence[Interval]) -> tuple[float, float]:
    """Return γ and μ, the rates per row and hour at which rows are updated and deleted.

    Args:
        recent: intervals, at least one.
    """
    kinds = np.array([(one.updated, one.deleted) for one in recent])
    rows = np.array([one.rows for one in recent])
    hours = np.array([one.hours for one in recent])
    return rate_per_row(kinds[:, 0], rows, hours), rate_per_row(kinds[:, 1], rows, hours)


def rate_per_row(counts: Floats, rows: Floats, hours: Floats) -> float:
    """Return the rate γ per row and hour at which rows change, where a row that changed more than
    once is counted once: of maximum likelihood under P(changed) = 1 − exp(−γ·hours).

    Args:
        counts: rows that changed, [J].
        rows: all rows, [J].
        hours: [J].
    """
    rows = np.maximum(rows, counts)
    if counts.sum() <= 0:
        return 0.0

    def score(rate: float) -> float:
        x = rate * hours
        gain = counts * hours * np.exp(-x) / np.maximum(-np.expm1(-x), _TINY)
        return float(((rows - counts) * hours - gain).sum())

    return _root(score, 1e-12, 1e3)


def _root(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function is 0, on a scale of logarithms; else the nearer end."""
    if increasing(low) >= 0:
        return low
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return high


def _untold(apart: Mapping[str, Integers], memory: Memory) -> tuple[str, ...]:
    """Return what the intervals cannot tell, by the segments that they tell apart, [168] each."""
    reasons = []
    for structure, what in ((HOUR_OF_DAY, "hours of the day"), (DAY, "days of the week")):
        if not apart[structure].max():
            reasons.append(f"{what} are not known: {_reason(memory.recent, structure)}")
    return tuple(reasons)


def _reason(recent: Sequence[Interval], structure: str) -> str:
    period_h = 24 if structure == HOUR_OF_DAY else HOURS
    ends = np.array([one.end for one in recent]) / 3600 * (2 * math.pi / period_h)
    spread = abs(np.exp(1j * ends).mean())
    if len(recent) > 2 and spread > math.cos(2 * math.pi / period_h / 2):
        when = "hour of the day" if structure == HOUR_OF_DAY else "hour of the week"
        return f"all {len(recent)} refreshes were at about the same {when}"
    return f"{len(recent)} intervals, as unequal as these, do not tell them apart"
