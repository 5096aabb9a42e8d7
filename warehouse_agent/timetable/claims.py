"""Claimed times of events, as decisions use them: counted by hour, to say when changes happen.

Refreshes count changes and do not tell when they were. Times in the rows tell when, and show only a
part: a creation time rows that survive, an update time the last change of each row. So a model of
claims takes the hours from the times, and the level from the counts of refreshes, as soon as there
are LEVEL_MIN. Where most of the changes that refreshes found are of a kind of which the times say
nothing (SPOKEN_MIN), the counts alone are fitted.

The hours are kept beside the memory of refreshes, because a table must not be read for each
decision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.change_models.event_times import (
    EVENTS_MIN,
    TOGETHER_S,
    Events,
    fitted,
)
from warehouse_agent.change_models.fit import Model, fit
from warehouse_agent.change_models.memory import DAMAGED, Memory
from warehouse_agent.change_models.week import HOUR_S, Week
from warehouse_agent.timetable import replay
from warehouse_agent.timetable.replay import hours_of

SPOKEN_MIN = 0.5  # of the changes that refreshes found are of a kind that the times show
LEVEL_MIN = 10  # intervals, from which the counts of refreshes tell the level,
LEVEL_H = 24.0  # if they lie in so many hours: ten minutes tell nothing of a night
HOURS_MAX = 5_000  # that are kept: more than `event_times.RECENT_MAX_H`
MODELS = 1024  # of fragments, that a process keeps


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """Claimed events by hour.

    Attributes:
        is_creation: of rows; False: of their last change.
        start: the moment at which the first hour begins, a whole hour of UTC.
        end: the moment of the snapshot that had these times.
        events, rows: in each hour, int64 [n]; an event has one row at least.
    """

    is_creation: bool
    start: float
    end: float
    events: Integers
    rows: Integers

    @classmethod
    def of(cls, gathered: Events, *, is_creation: bool) -> Self:
        """Count events by hour."""
        first = float(gathered.start // HOUR_S * HOUR_S)
        at = ((gathered.at - first) // HOUR_S).astype(np.int64)
        hours = int(at[-1]) + 1 if len(at) else 0
        events = np.bincount(at, minlength=hours).astype(np.int64)
        rows = np.bincount(at, gathered.rows, hours).astype(np.int64)
        return cls(is_creation, first, gathered.end, events, rows)

    def gathered(self, until: float | None = None) -> Events:
        """Return the events before `until`, evenly in their hours.

        Args:
            until: a moment; None: all.
        """
        hours = np.repeat(np.arange(len(self.events)), self.events)
        first = np.repeat(np.cumsum(self.events) - self.events, self.events)
        number = np.arange(len(hours)) - first  # within the hour
        each = self.events[hours]
        begins = self.start + hours * HOUR_S
        at = begins + (number + 0.5) / each * np.minimum(HOUR_S, self.end - begins)
        # The rows of an hour, as evenly as whole numbers allow.
        rows = (self.rows[hours] * (number + 1)) // each - (self.rows[hours] * number) // each
        end = self.end if until is None else until
        known = at <= end
        return Events(at[known], at[known] + TOGETHER_S, rows[known], self.start, end)

    def spoken(self, shares: tuple[float, float, float]) -> float:
        """Return the share of changes of which the times say something, of 0..1.

        Args:
            shares: of inserted, updated and deleted rows, as refreshes found them.
        """
        inserted, updated, _ = shares
        return inserted if self.is_creation else inserted + updated

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` reads."""
        return {
            "is_creation": self.is_creation,
            "start": self.start,
            "end": self.end,
            "events": self.events.tolist(),
            "rows": self.rows.tolist(),
        }


def from_json(body: Mapping[str, Any]) -> Claims | None:
    """Return the claims that `to_json` wrote; None if they are damaged."""
    try:
        events, rows = (np.array(body[name], np.int64) for name in ("events", "rows"))
        start, end = float(body["start"]), float(body["end"])
        is_sound = events.shape == rows.shape and events.ndim == 1 and len(events) <= HOURS_MAX
        if not is_sound or (rows < events).any() or (events < 0).any() or not start <= end:
            return None
        return Claims(body["is_creation"] is True, start, end, events, rows)
    except (*DAMAGED, OverflowError):
        return None


@functools.lru_cache(maxsize=MODELS)
def model(memory: Memory, zone: str, claims: Claims | None) -> Model | None:
    """Return the model that decisions use: of claimed times where they say when, else of counts.

    A memory, or claims, are the same only if they are this object.

    Args:
        zone: the time zone of the hours.
        claims: None: no column of the rows has times.
    """
    by_counts = fit(memory, zone)
    if claims is None:
        return by_counts
    return _leveled(fitted_before(claims, claims.end, zone), by_counts, claims) or by_counts


@functools.lru_cache(maxsize=MODELS)
def fitted_before(claims: Claims, until: float, zone: str) -> Model | None:
    """Return the model of the claimed times before a moment; None: they are too few."""
    events = claims.gathered(until)
    if len(events.at) < EVENTS_MIN or (event_model := fitted(events, zone)) is None:
        return None
    return event_model.model


def _leveled(by_times: Model | None, by_counts: Model | None, claims: Claims) -> Model | None:
    """Return a model of times at the level of the counts; None: the times do not say when."""
    if by_times is None or by_times.mean <= 0:
        return None
    if by_counts is None or by_counts.intervals < LEVEL_MIN or not by_counts.knows(LEVEL_H):
        return by_times
    if by_counts.mean <= 0 or claims.spoken(by_counts.shares) < SPOKEN_MIN:
        return None
    level = by_counts.mean / by_times.mean
    return replace(
        by_times,
        rates=by_times.rates * level,
        errors=by_times.errors * level,
        shares=by_counts.shares,
        updated_per_row=by_counts.updated_per_row,
        deleted_per_row=by_counts.deleted_per_row,
        born=by_counts.born,
    )


def gain(
    claims: Claims,
    zone: str,
    weights: Floats,
    planned: Callable[[Model], tuple[Integers, float]],
    hours: float,
    mean: float,
) -> float | None:
    """Return what a plan costs over what a fixed interval of `hours` costs, as `replay.gain`, with
    the changes at their claimed times; None: there are too few.

    Rows count as many times as refreshes find more changes than the times show, because the price
    of a refresh is one in rows. The greater of two ratios counts: of the second and the last third
    of the time, each with what was claimed before it.

    Args:
        weights: of each hour of the week, [168].
        planned: the plan of a model, and the price of a refresh in row-hours.
        mean: changed rows per hour of the model that decides.
    """
    by_times = fitted_before(claims, claims.end, zone)
    if by_times is None or by_times.mean <= 0:
        return None
    level = mean / by_times.mean
    week, all_ = Week(zone), claims.gathered()
    weighted, third = hours_of(week, weights), (claims.end - claims.start) / 3
    ratios = []
    for known in (1, 2):
        start = claims.start + known * third
        end = start + third
        paid = (all_.at > start) & (all_.at <= end)
        before = fitted_before(claims, start, zone)
        if before is None or before.mean <= 0 or paid.sum() < EVENTS_MIN:
            return None
        plan, price = planned(replace(before, rates=before.rates * level))
        at, rows = all_.at[paid], all_.rows[paid].astype(np.float64) * level
        moments = replay.by_plan(plan, week, start, end)
        by_model = replay.cost(moments, at, rows, end=end, weighted=weighted)
        by_clock = replay.fixed(hours, at, rows, start, end, weighted)
        ratios.append(by_model.total(price) / by_clock.total(price))
    return max(ratios)
