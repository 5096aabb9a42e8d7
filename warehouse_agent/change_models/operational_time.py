"""Operational time: elapsed time counted by the rates of the week, for the forecast of a refresh.

A weekend is short for an office and long for a shop. The model of change that a schedule is planned
by (`fit`) says how many rows it expects of any interval, Λ(start, end); the forecast of a refresh
compares intervals by that number instead of their seconds. Λ is given in seconds of the mean rate
of the week, so that a model without a rhythm, and a history too short to tell one, leave the
elapsed time as it is (Gal and Eckstein, section 3.2.2: processes in operational time).

The model is fitted to the same refreshes that the forecast looks at, no longer ones: a season is
followed by the level of `change_forecast`, not foreseen here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
from driftline.arrays import Floats

from warehouse_agent.change_models.fit import Model, fit_rates
from warehouse_agent.change_models.memory import INTERVAL_DAYS_MAX, Interval, Memory
from warehouse_agent.change_models.structure import matrix
from warehouse_agent.change_models.week import HOUR_S, Week
from warehouse_agent.planning import change_forecast
from warehouse_agent.planning.change_forecast import (
    DAY_S,
    HISTORY_MAX,
    ChangeForecast,
    DayOfChanges,
    EarlierRefresh,
    RefreshOutcome,
)

DRAWN = 1.0  # events
KEPT = 64  # forecasts, of a process that makes the same one several times


def changes_expected(
    earlier: Sequence[EarlierRefresh],
    rows: int,
    now: datetime,
    days: Sequence[DayOfChanges] = (),
    *,
    zone: str = "UTC",
) -> ChangeForecast | None:
    """Return the forecast of changes at the time `now`, from the refreshes since a load, for `rows`
    rows of ours; None before the first refresh after the load.

    Args:
        days: since the load, oldest first; used after a pause.
        zone: the time zone of the source, by whose hours it is changed.
    """
    return _expected(tuple(earlier), rows, now, tuple(days), zone)


@functools.lru_cache(maxsize=KEPT)
def _expected(
    earlier: tuple[EarlierRefresh, ...],
    rows: int,
    now: datetime,
    days: tuple[DayOfChanges, ...],
    zone: str,
) -> ChangeForecast | None:
    if after := change_forecast.after_pause(list(earlier), rows, now, days):
        return change_forecast.expect(after, rows=rows, elapsed_s=_elapsed_s(earlier, now))
    found = change_forecast.outcomes(list(earlier))[-HISTORY_MAX:]
    if not found:
        return None
    ends = [one.at for one in earlier[1:] if one.counts_changes][-HISTORY_MAX:]
    return expect(found, ends, rows=rows, last=earlier[-1].at, now=now, zone=zone)


def expect(
    found: Sequence[RefreshOutcome],
    ends: Sequence[datetime],
    *,
    rows: int,
    last: datetime,
    now: datetime,
    zone: str,
) -> ChangeForecast:
    """Forecast the changes that a refresh finds at `now`, as `change_forecast.expect`.

    Args:
        found: by at least one refresh, HISTORY_MAX at most, oldest first.
        ends: when each of them was, [n].
        last: when the last refresh was, whether it counted changes or not.
    """
    *past_s, next_s = in_operational_time(found, ends, last, now, zone)
    history = [replace(one, elapsed_s=s) for one, s in zip(found, past_s, strict=True)]
    return change_forecast.expect(history, rows=rows, elapsed_s=next_s)


def in_operational_time(
    found: Sequence[RefreshOutcome],
    ends: Sequence[datetime],
    last: datetime,
    now: datetime,
    zone: str,
) -> list[float]:
    """Return the operational seconds of each interval of `found`, and of the one from `last` to
    `now`, [n + 1]: their elapsed seconds where no rhythm is known.

    Args:
        ends: of the intervals, [n].
    """
    elapsed_s = np.array([*(one.elapsed_s for one in found), (now - last).total_seconds()])
    upto = np.array([*(at.timestamp() for at in ends), now.timestamp()])
    known = (elapsed_s > 0) & (elapsed_s <= INTERVAL_DAYS_MAX * DAY_S)  # by a sound clock
    intervals = tuple(
        Interval(end - s, end, one.inserted, one.updated, one.deleted, one.rows)
        for one, end, s, is_known in zip(found, upto, elapsed_s, known, strict=False)
        if is_known
    )
    model = fit_rates(Memory(recent=intervals), zone)
    if model is None or model.mean <= 0 or len(model.rates) == 1:
        return [float(s) for s in elapsed_s]
    starts = upto - elapsed_s
    exposures = Week(zone).exposures(starts[known].tolist(), upto[known].tolist())
    rates = _drawn(model, exposures.sum(axis=0))
    elapsed_s[known] = exposures @ rates * (HOUR_S / rates.mean())
    return [float(s) for s in elapsed_s]


def _drawn(model: Model, hours: Floats) -> Floats:
    """Return rates of the hours of the week, drawn towards their mean by DRAWN events, [168]: a day
    on which nothing has been found yet is not one on which nothing happens.

    Args:
        hours: of the intervals, by hour of the week, [168].
    """
    seen = hours @ matrix(model.segments)
    events = DRAWN * model.dispersion  # in rows
    rates: Floats = (model.rates * seen + events) / (seen + events / model.mean)
    return rates[model.segments]


def _elapsed_s(earlier: Sequence[EarlierRefresh], now: datetime) -> float:
    return (now - earlier[-1].at).total_seconds()
