"""The probability that each row is updated before the next refresh, from its statistics ω±.

Every published row has four columns (`layout.STATISTICS`): `first`, the version it came with;
`updates`, how often it was updated since (uno of Lu, Liu and Hyland); `changed`, the version of the
last update, or `first`; and `rate`, its updates, forgotten by a factor of e in TAU, at `changed`.
They are written only when the row is. How often a row was seen (tno) and its age follow from the
times of the versions, a `VersionClock`. So

    share   s    expected updates per row, over the whole table
    counted c    rate · e^(−age/τ)                      age = time since `changed`
    seen    e    τ · (1 − e^(−life/τ))                  life = time since `first`
    λ·Δt         s · (α + c) / (α + e·s/Δt)             Δt = time since the last refresh
    P            1 − e^(−λ·Δt)

This is a Gamma prior whose mean is the table's own rate s/Δt, worth α updates, and the row's own
updates in the time it was seen, both forgotten alike (empirical Bayes; Gelman et al., Bayesian Data
Analysis, 2.6). Ages are those in the middle of Δt.

 1. s is the forecast mean of the number of updated rows (`change_forecast`), Σ_{k<cap} P(more than
    k) / rows, without the tenth of changed refreshes that change most, because one bulk change
    would determine it. So an update counts min(1, cap / rows updated with it).
 2. Young rows change more: a row begins with `rate` BIRTH, but with 0 at the load.
 3. Null (in files without statistics) means: there since the first version of the clock, and not
    updated since.
 4. Pure: no I/O, no clock.

Measured by `benchmarks/decisions/expect_rows.py`. Rejected: a rate for each class of age and
updates, learned from refreshes (no better, and a table to keep); forgetting by 1/(1 + age) (as
good).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from driftline.arrays import Floats

from warehouse_agent.planning.change_forecast import ChangeForecast, RefreshOutcome, expect

DAY_S: Final = 86_400.0
TAU_S: Final = 64 * DAY_S  # 32 and 128 days are as good
PRIOR: Final = 0.1  # α, in updates; the likelihood is flat from 0.05 to 0.2
BIRTH: Final = 0.25  # the rate of an inserted row, in updates
BULK: Final = 0.1  # of the refreshes that change anything count as bulk changes
SHARE_MIN: Final = 1e-12  # so that no row is certain to stay
ELAPSED_MIN_S: Final = 1.0  # a clock may be set back
KNOTS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class VersionClock:
    """The times at which versions were published, interpolated linearly between some of them.

    Attributes:
        versions: at most KNOTS_MAX, ascending; the older, the fewer.
        seconds: since 1970, of each.
    """

    versions: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()

    def after(self, version: int, at_s: float) -> Self:
        """Return the clock with one more version, the newest; its time is never before the last.

        If there are too many, the version is dropped whose neighbours are closest for their age.
        """
        assert not self.versions or version > self.versions[-1], version
        at_s = max(at_s, *self.seconds[-1:], 0.0)
        versions, seconds = [*self.versions, version], [*self.seconds, at_s]
        while len(versions) > KNOTS_MAX:
            times = np.array(seconds)
            gaps = (times[2:] - times[:-2]) / (at_s - times[1:-1] + ELAPSED_MIN_S)
            drop = int(np.argmin(gaps)) + 1
            del versions[drop], seconds[drop]
        return type(self)(tuple(versions), tuple(seconds))

    def times(self, versions: Floats) -> Floats:
        """Return seconds since 1970 of versions, any shape; NaN and older ones as the first."""
        known = np.nan_to_num(versions, nan=-1.0)
        return np.asarray(np.interp(known, self.versions, self.seconds), np.float64)

    def to_json(self) -> list[list[float]]:
        """Return [version, seconds] of each, for the metadata of a version."""
        return [list(pair) for pair in zip(self.versions, self.seconds, strict=True)]

    @classmethod
    def from_json(cls, pairs: Sequence[Sequence[float]]) -> Self:
        """Read what `to_json` wrote."""
        return cls(tuple(int(p[0]) for p in pairs), tuple(float(p[1]) for p in pairs))


@dataclass(frozen=True, slots=True)
class ChangeOutlook:
    """The forecast for a table from its last refresh to the next.

    Attributes:
        share: s, expected updates ÷ rows, > 0.
        now_s, elapsed_s: the time of the next refresh, in seconds since 1970 and since the last.
    """

    clock: VersionClock
    share: float
    now_s: float
    elapsed_s: float


def updates_expected(
    history: Sequence[RefreshOutcome], *, rows: int, elapsed_s: float
) -> ChangeForecast:
    """Forecast the updated rows of the next refresh; arguments as of `change_forecast.expect`."""
    updates = [replace(past, inserted=0, deleted=0) for past in history]
    return expect(updates, rows=rows, elapsed_s=elapsed_s)


def usual_share(expected: ChangeForecast, rows: int) -> float:
    """Return s, above 0: the bounded mean of the updates ÷ `rows`."""
    return max(usual_mean(expected, usual_most(expected)) / max(rows, 1), SHARE_MIN)


def usual_most(expected: ChangeForecast) -> int:
    """Return cap: of the refreshes that change anything, all but a share of BULK change at most
    this many rows."""
    changed = -float(np.expm1(expected.log_unchanged))
    return max(expected.quantile(1 - BULK * changed), 1)


def usual_mean(expected: ChangeForecast, most: int) -> float:
    """Return the mean of min(d, most): Σ_{k < most} P(more than k), by trapezia if k is large."""
    k = np.unique(np.r_[np.arange(min(most, 64)), np.geomspace(1, most, 200).round(), most])
    more = expected.survivals(k)
    return float(np.sum((more[:-1] + more[1:]) / 2 * np.diff(k)) + more[0] / 2 - more[-1] / 2)


def update_weight(most: int, updated: int) -> float:
    """Return what one of `updated` updates counts; `most` is that of `usual_most`."""
    return min(1.0, most / max(updated, 1))


def probability(view: ChangeOutlook, first: Floats, changed: Floats, rate: Floats) -> Floats:
    """Return P({±t}) of published rows, float64 [n] in (0, 1].

    Args:
        first, changed: versions, float64 [n]; NaN for null.
        rate: float64 [n]; NaN for null.
    """
    middle_s = view.now_s - view.elapsed_s / 2
    age = np.maximum(middle_s - view.clock.times(changed), 0)
    life = np.maximum(middle_s - view.clock.times(first), 0)
    counted = np.nan_to_num(rate) * np.exp(-age / TAU_S)
    seen = -np.expm1(-life / TAU_S) * TAU_S
    hazard = view.share * (PRIOR + counted) / (PRIOR + seen * (view.share / view.elapsed_s))
    p: Floats = -np.expm1(-hazard)
    return p
