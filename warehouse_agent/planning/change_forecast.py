"""The forecast of changes: the distribution of d, the rows that the next refresh finds changed.

d = inserted + updated + deleted. Sketches are sized and methods compared by the whole distribution,
because too small a sketch costs a round trip and real tables sometimes change in bulk. This is a
forecast by analogues: every earlier refresh predicts its own d, weighted by its resemblance.

    resemblance = 1 / (1 + age / 10)         age in refreshes, each counted by the next factor
                · 1 / (1 + (gap / ½)²)       gap = ln of the ratio of the elapsed times
                · 1 / (1 + (step / ½)²)      step = difference of the levels before, at least 1/50

(a conditional density by kernels: Hyndman, Bashtannyk and Grunwald, J. Comput. Graph. Stat. 5(4),
1996). The level, a moving average of ln(1 + d) − γ·ln elapsed, lets a forecast follow a busy season
and return. Elapsed times are what the caller says: by the clock, or in operational time
(`change_models.operational_time`), in which a quiet weekend is short.

 1. P(d = 0) is the weighted share of the refreshes that found nothing. The others are smoothed by
    log-logistic kernels on d ≥ 1, so that every d is possible and the tail is a power.
 2. Both scale with elapsed^γ: d itself, and −ln P(0). γ in 0..1 is the slope of ln d over ln
    elapsed in this history, drawn towards ½: some tables change by the clock, others per refresh.
 3. The prior is one more analogue, rows^0.4 and broad, with the weight of a third of a refresh.
 4. d has no upper limit, because inserts may exceed the rows before them; so there is no mean.
 5. The scale of a kernel is a share of the median deviation of ln d, which a bulk change cannot
    widen, and chance: n refreshes of one Poisson rate d differ by the variance (1 − 1/n)/d, the
    next one from their mean by (1 + 1/n)/d, so the kernels supply 2/(n·d), with
    n = (Σ weight)² / Σ weight² (Kish's effective size).
 6. The lower and the upper 10 % each hold a tenth of what comes, by the randomised probability
    integral transform (`benchmarks/decisions/sizes.py`); counts of misses say less if d is often 0.
 7. After a pause (`is_pause`) none of them is like the next one. If they cover less than a month,
    the analogues are the totals of days (`history.totals`), added up to times as long as the pause.
    A row that changed twice counts twice in them.
 8. Pure: no I/O, no clock, no randomness. Only the newest HISTORY_MAX refreshes count.

Measured by `benchmarks/decisions/expect.py`, by log-loss one step ahead; every constant is a round
number near a flat optimum. Rejected, with the mean loss in nats per refresh: a rate per refresh
(γ = 0; 0.09) or per time (γ = 1; 0.09), no forgetting (0.02), no level (0.02, and 0.3 if it
shifts), one log-normal of the same weights (0.02) or around the level (0.10), almost no smoothing
(0.15), and negative binomials of size 8, which lose 1.2 if all refreshes change alike. After a
pause the totals gain 0.1 to 1.7 (`benchmarks/decisions/pauses.py`); beside the refreshes they gain
less, as days that are not added up they lose after a month, and where refreshes six hours apart
cover seven weeks they gain on one table what they lose on the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise

import numpy as np
from driftline.arrays import Bools, Floats

HISTORY_MAX = 200  # refreshes looked at; 400 gain 0.002 nats
AGE = 10.0  # refreshes after elapsed times alike, at which one counts half
GAP = 0.5  # of ln elapsed, where the resemblance is half
STEP, STEP_FLOOR = 0.5, 0.02  # of the level; the floor is for changes without a precedent
LEVEL_GAIN = 0.3  # of the moving average
PRIOR_WEIGHT = 0.3  # in refreshes
PRIOR_UNCHANGED = 0.2  # P(d = 0)
PRIOR_LOCATION, PRIOR_SCALE = 0.4, 0.12  # of ln d, times ln rows
EXPONENT, EXPONENT_WEIGHT = 0.5, 0.1  # γ before it is fitted, and the sum of squares it stands for
BANDWIDTH = 0.3  # a kernel's scale over the median deviation of ln d from its median
POISSON = 3 / math.pi**2  # a logistic of this squared scale over d has the variance 1/d
# Probabilities: of the interval `low` to `high`, of each tail if they are equal, of a tail at most.
INTERVAL, TAIL, TAIL_MAX = 0.8, 0.1, 0.18
TIME_MIN_S = 1.0  # a clock may be set back
DAY_S = 86_400.0
PAUSE_S = DAY_S  # the totals have no shorter time
REACH = 20.0  # times the longest interval; at 24 the totals gain
COVERED_S = 30 * DAY_S  # from which on refreshes know the table well enough
DAYS_MIN = 10  # that totals have to cover: a week has days of rest
LOST_SCALE = 0.02  # of ln d for lost rows, whose number is known
LOST_UNCHANGED = -30.0  # ln P(d = 0) if rows were lost

REDUCES_READ = 3  # refreshes whose reduce, the slowest by row, forecasts that of the next
LATER_S_MIN = 1.0  # of a reduce: a shorter one is no gain for which a source should ever wait
LATER_SHARE_MAX = 0.7  # of the source's scan, in which a reduce beside it has to end


@dataclass(frozen=True, slots=True)
class EarlierRefresh:
    """An earlier refresh that succeeded, at the time `at`; `rows` are those after it.

    `counts_changes` is False if it changed the columns, so that its counts are not d. `on_spark` is
    True if a step of it ran there. `reduce_s`: seconds in which it was prepared and our rows were
    added up; None: it is not known.
    """

    at: datetime
    inserted: int
    updated: int
    deleted: int
    rows: int
    is_load: bool
    method: str | None
    scans: int
    seconds: float
    counts_changes: bool = True
    on_spark: bool = False
    reduce_s: float | None = None

    @property
    def changed(self) -> int:
        """d, the number of changed rows."""
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True, slots=True)
class DayOfChanges:
    """Tuples that the refreshes of a day found changed, in all; `day` is in UTC."""

    day: date
    inserted: int
    updated: int
    deleted: int


@dataclass(frozen=True, slots=True)
class RefreshOutcome:
    """One earlier refresh: a row of ω− (Lu, Liu and Hyland, who keep rows and deleted: tno, dno).

    Attributes:
        elapsed_s: seconds since the snapshot of the refresh before.
        rows: tuples before it.
        inserted, updated, deleted: tuples that it changed.
    """

    elapsed_s: float
    rows: int
    inserted: int
    updated: int
    deleted: int

    @property
    def changed(self) -> int:
        """d, the number of changed rows."""
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True, slots=True, eq=False)
class ChangeForecast:
    """The distribution of d = 0, 1, 2 … of the next refresh.

    Attributes:
        log_unchanged: ln P(d = 0), below 0.
        locations, scales, weights: of the log-logistic components of d ≥ 1, where d stands for the
            interval d ± ½; weights sum to 1.
    """

    log_unchanged: float
    locations: Floats
    scales: Floats
    weights: Floats

    @property
    def unchanged(self) -> float:
        """P(d = 0)."""
        return math.exp(self.log_unchanged)

    @property
    def median(self) -> int:
        """The median of d."""
        return self.quantile(0.5)

    @property
    def low(self) -> int:
        """The first d of the 80 % interval: of the shortest intervals from some d that hold 80 %,
        the one with the most nearly equal tails. If d is often 0 no interval has equal tails; then
        all of the rest is above, because an upper tail below 2 % would end it far away."""
        low = self.quantile(TAIL)  # less than TAIL is below it
        if self.survival(low) < 1 - TAIL_MAX:
            return low
        return min(low, low + 1, key=lambda low: abs(self._lean(low)))

    @property
    def high(self) -> int:
        """The last d of the 80 % interval."""
        return self._end(self.low)

    def _end(self, low: int) -> int:
        """Return the last d of the interval that begins at `low`."""
        return self.quantile(1 - self.survival(low - 1) + INTERVAL)

    def _lean(self, low: int) -> float:
        """Return the probability below this interval less the one above it."""
        return 1 - self.survival(low - 1) - self.survival(self._end(low))

    def quantile(self, q: float) -> int:
        """Return the smallest d with P(d or fewer) ≥ q, for 0 ≤ q < 1."""
        assert 0 <= q < 1, q
        if self.survival(0) <= 1 - q:
            return 0
        below, upto = 0, 1
        while self.survival(upto) > 1 - q:
            below, upto = upto, 2 * upto
        while upto - below > 1:
            middle = (below + upto) // 2
            if self.survival(middle) > 1 - q:
                below = middle
            else:
                upto = middle
        return upto

    def survival(self, d: int) -> float:
        """Return P(more than d)."""
        return 1.0 if d < 0 else float(self.survivals(np.array([float(d)]))[0])

    def survivals(self, d: Floats) -> Floats:
        """Return P(more than d) for each d ≥ 0, float64 [n]."""
        logits = (np.log(d + 0.5)[:, None] - self.locations) / self.scales
        more = np.exp(_log_sigmoid(-logits) - _log_sigmoid(-self._logits(0)))
        probabilities: Floats = -math.expm1(self.log_unchanged) * (more @ self.weights)
        return probabilities

    def log_probability(self, d: int) -> float:
        """Return ln P(d) in nats, finite for every d ≥ 0; the probabilities sum to 1."""
        assert d >= 0, d
        if d == 0:
            return self.log_unchanged
        # σ(x) − σ(y) = σ(x)·σ(−y)·(1 − e^(y−x)), which keeps its digits far out in a tail.
        width = math.log1p(1 / (d - 0.5)) / self.scales
        parts = np.log(self.weights) + np.log(-np.expm1(-width))
        parts += _log_sigmoid(self._logits(d)) + _log_sigmoid(-self._logits(d - 1))
        parts -= _log_sigmoid(-self._logits(0))
        log_changed = math.log(-math.expm1(self.log_unchanged))
        return log_changed + float(np.logaddexp.reduce(parts))

    def _logits(self, d: int) -> Floats:
        return (math.log(d + 0.5) - self.locations) / self.scales


def expect(history: Sequence[RefreshOutcome], *, rows: int, elapsed_s: float) -> ChangeForecast:
    """Forecast the changes that the next refresh finds.

    Args:
        history: earlier refreshes without the load, oldest first; may be empty.
        rows: tuples now, before the refresh.
        elapsed_s: seconds since the snapshot of the last refresh.
    """
    recent = history[-HISTORY_MAX:]
    d = np.array([past.changed for past in recent], np.float64)
    gaps = math.log(max(elapsed_s, TIME_MIN_S)) - np.log(
        np.array([max(past.elapsed_s, TIME_MIN_S) for past in recent], np.float64)
    )
    changed = d > 0
    weights = _resemblance(d, gaps, changed)
    log_d, w = np.log(d[changed]), weights[changed]
    exponent = _exponent(log_d, gaps[changed], w)

    total = PRIOR_WEIGHT + weights.sum()
    none = (PRIOR_WEIGHT * PRIOR_UNCHANGED + weights[~changed].sum()) / total
    log_unchanged = math.log(none) * math.exp(exponent * (weights @ gaps) / total)

    log_rows = math.log(rows + 10)
    locations = log_d + exponent * gaps[changed]
    alike = w.sum() ** 2 / (w @ w) if len(w) else 1.0  # effective number
    noise = POISSON * np.exp(-np.maximum(locations, 0)) * 2 / alike
    scales = np.sqrt((BANDWIDTH * _deviation(locations, w)) ** 2 + noise)
    w = np.append(w, PRIOR_WEIGHT * (1 - PRIOR_UNCHANGED))
    return ChangeForecast(
        log_unchanged,
        np.append(locations, PRIOR_LOCATION * log_rows),
        np.append(scales, PRIOR_SCALE * log_rows),
        w / w.sum(),
    )


def share_since(
    began: datetime,
    earlier: Sequence[EarlierRefresh],
    expected: ChangeForecast | None,
    rows: int,
    now: datetime,
) -> float:
    """Return the share of `rows` rows that is expected to have changed since an instant: of those
    expected since the last refresh, as evenly as time goes by. 0 if nothing is known."""
    if expected is None or not earlier or not rows:
        return 0.0
    elapsed_s = max((now - earlier[-1].at).total_seconds(), TIME_MIN_S)
    part = min(max((now - began).total_seconds(), 0.0) / elapsed_s, 1.0)
    return min(expected.median / rows, 1.0) * part


def reduces_first(earlier: Sequence[EarlierRefresh], rows: int, scan_s: float) -> bool:
    """Return True if `rows` rows of ours are forecast to be added up well before a source has
    scanned its own for `scan_s` seconds, and it takes long enough to matter."""
    told = [one for one in earlier[-REDUCES_READ:] if one.reduce_s is not None and not one.is_load]
    per_row = max((one.reduce_s / one.rows for one in told if one.reduce_s and one.rows), default=0)
    return LATER_S_MIN <= per_row * rows <= scan_s * LATER_SHARE_MAX


def after_pause(
    earlier: list[EarlierRefresh], rows: int, now: datetime, days: Sequence[DayOfChanges]
) -> list[RefreshOutcome]:
    """Return totals of days as long as the pause since the last refresh; none: there is no pause,
    or too few days are known. Arguments as of
    `change_models.operational_time.changes_expected`."""
    if not is_after_pause(earlier, now):
        return []
    return spans(days, rows, (now - earlier[-1].at).total_seconds())


def is_after_pause(earlier: list[EarlierRefresh], now: datetime) -> bool:
    """Return True if the time since the last refresh is a pause: what is forecast is no refresh
    that was seen, and may count a row as often as it changed."""
    recent = outcomes(earlier)[-HISTORY_MAX:]
    if not recent:
        return False
    elapsed_s = (now - earlier[-1].at).total_seconds()
    return is_pause((past.elapsed_s for past in recent), elapsed_s)


def is_pause(intervals_s: Iterable[float], elapsed_s: float) -> bool:
    """Return True if no interval between refreshes is like the time since the last one, and all of
    them together are short."""
    known_s = [*intervals_s] or [math.inf]
    is_long = elapsed_s >= max(PAUSE_S, REACH * max(known_s))
    return is_long and sum(known_s) < COVERED_S


def spans(days: Sequence[DayOfChanges], rows: int, elapsed_s: float) -> list[RefreshOutcome]:
    """Return the totals of days, added up to about the elapsed time, oldest first; none if they
    cover less than DAYS_MIN days.

    A day without refreshes belongs to the next one that has some. The newest day is left out: it
    was not over at its last refresh.

    Args:
        days: oldest first.
        rows: of ours.
    """
    ended = days[:-1]
    if not ended or (ended[-1].day - ended[0].day).days < DAYS_MIN:
        return []
    found, counts, after = list[RefreshOutcome](), (0, 0, 0), ended[-1].day
    for one, before in zip(ended[::-1], ended[-2::-1], strict=False):
        counts = (counts[0] + one.inserted, counts[1] + one.updated, counts[2] + one.deleted)
        span_s = (after - before.day).days * DAY_S
        is_all = before is ended[0] and not found  # no whole one fits
        if span_s > elapsed_s - DAY_S / 2 or is_all:
            found.append(RefreshOutcome(span_s, rows, *counts))
            counts, after = (0, 0, 0), before.day
    return found[::-1]


def needed_spark(earlier: list[EarlierRefresh], changes: ChangeForecast | None) -> bool:
    """Return True if the refresh whose changes are most like the forecast ran a step on Spark."""
    d = changes.median if changes is not None else 0
    changed = [one for one in reversed(earlier[1:]) if one.changed]
    if not d or not changed:
        return False
    return min(changed, key=lambda one: abs(math.log(one.changed / d))).on_spark


def outcomes(earlier: list[EarlierRefresh]) -> list[RefreshOutcome]:
    """Return what refreshes found, in the order of `earlier`, without the load that comes first."""
    return [
        RefreshOutcome(
            (one.at - before.at).total_seconds(),
            max(one.rows - one.inserted + one.deleted, 0),
            one.inserted,
            one.updated,
            one.deleted,
        )
        for before, one in pairwise(earlier)
        if one.counts_changes
    ]


def with_lost(expected: ChangeForecast | None, lost: int, rows: int) -> ChangeForecast | None:
    """Return the forecast of the rows that differ, changed and lost, among `rows` of ours."""
    if not lost:
        return expected
    prior = expect((), rows=rows, elapsed_s=1.0) if expected is None else expected
    more = np.log(np.exp(np.minimum(prior.locations, 40.0)) + lost)
    scales = prior.scales * np.exp(prior.locations - more)  # the scales of d stay as they were
    p = prior.unchanged
    return ChangeForecast(
        LOST_UNCHANGED,
        np.append(more, np.log(lost)),
        np.append(np.maximum(scales, LOST_SCALE), LOST_SCALE),
        np.append(prior.weights * (1 - p), p),
    )


def _resemblance(d: Floats, gaps: Floats, changed: Bools) -> Floats:
    """Return the resemblance of each earlier refresh to the present, in 0..1, float64 [n]."""
    if not len(d):
        return d
    alike_time = 1 / (1 + (gaps / GAP) ** 2)
    recent = 1 / (1 + np.cumsum(alike_time[::-1])[::-1] / AGE)
    exponent = _exponent(np.log(d[changed]), gaps[changed], recent[changed])
    found = np.log1p(d) + exponent * gaps
    levels = [found[0]]
    for one in found:
        levels.append(levels[-1] + LEVEL_GAIN * (one - levels[-1]))
    steps = levels[-1] - np.array(levels[:-1])
    alike = STEP_FLOOR + (1 - STEP_FLOOR) / (1 + (steps / STEP) ** 2)
    weights: Floats = recent * alike * alike_time
    return weights


def _exponent(log_d: Floats, gaps: Floats, weights: Floats) -> float:
    """Return γ, the slope of ln d over ln elapsed, by weighted least squares with a ridge."""
    if not len(log_d):
        return EXPONENT
    times = np.average(gaps, weights=weights) - gaps
    fitted = EXPONENT * EXPONENT_WEIGHT + weights @ (times * log_d)
    return float(np.clip(fitted / (EXPONENT_WEIGHT + weights @ times**2), 0, 1))


def _deviation(values: Floats, weights: Floats) -> float:
    """Return the median absolute deviation from the median, drawn towards 1 by the prior. A mean
    would let a bulk change widen all other kernels (Hampel, J. Amer. Statist. Assoc. 69, 1974: the
    influence of one value on the median deviation is bounded)."""
    if not len(values):
        return 1.0
    deviation = _median(np.abs(values - _median(values, weights)), weights)
    total = weights.sum()
    return float((PRIOR_WEIGHT + total * deviation) / (PRIOR_WEIGHT + total))


def _median(values: Floats, weights: Floats) -> float:
    """Return the weighted median of at least one value."""
    order = np.argsort(values)
    heavier = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(heavier, heavier[-1] / 2)]])


def _log_sigmoid(x: Floats) -> Floats:
    """Return ln 1/(1 + e^(−x))."""
    minus: Floats = np.logaddexp(0, -x)
    return -minus
