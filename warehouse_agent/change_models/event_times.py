"""Fit a model to claimed times of events: those that a column of the rows has.

Intervals between refreshes say how many rows changed, a time of each row says when. Successive
times within TOGETHER_S are one event, whose rows are its batch (the compound process of Gal and
Eckstein, section 4.1), and the rate of a segment is its events over its hours, which is the maximum
of the likelihood, with PRIOR_HOURS of the mean: what was not seen has the mean rate. No other event
can be told from one that lasts, so the tests of the times leave these hours out.

A time is a claim of the source. Two biases are part of every such column, and are told:

 - a *creation* time shows insertions of rows that survive alone. Where rows are deleted, the rates
   are too low, the more the longer ago;
 - an *update* time shows the last change of each row alone: an earlier one is hidden by a later.

So the newest RECENT_MAX_H hours are fitted, and no more than EVENTS_MAX times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.change_models import fitness
from warehouse_agent.change_models.fit import Model
from warehouse_agent.change_models.fitness import Fitness
from warehouse_agent.change_models.memory import PRIOR_HOURS
from warehouse_agent.change_models.structure import HOMOGENEOUS, STRUCTURES, matrix
from warehouse_agent.change_models.week import HOUR_S, HOURS, Week

TOGETHER_S = 60.0  # as in the paper
EVENTS_MIN = 20
EVENTS_MAX = 200_000  # times
RECENT_MAX_H = 26 * HOURS
JUDGED_MAX = 2_000  # events, the newest, whose times are tested
UNSEEN_H = 0.5  # less of an hour of the week was not seen
FREE_MIN = 1e-3  # of hours, in which no event lasts
PRIOR_EVENTS = 0.5  # of a segment without events, so that it has a rate and an error


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events in the order of their time.

    Attributes:
        at: moments, [n], increasing.
        over: the moment from which the next event could be told from each, [n].
        rows: of each event, [n].
        start, end: moments between which they were looked for.
        future: times after `end` that were left out: no clock of a source may be ahead of itself.
    """

    at: Floats
    over: Floats
    rows: Integers
    start: float
    end: float
    future: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class EventModel:
    """A model of claimed times, and what tests say of it.

    Attributes:
        uniform: 1 − exp(−Λ) between successive events, [n], of the newest: uniform if it is right.
        gaps: None: there are too few larger events.
    """

    model: Model
    events: Events
    uniform: Floats
    times: Fitness
    gaps: Fitness | None


def gathered(times: Floats, end: float, recent_h: float = RECENT_MAX_H) -> Events:
    """Gather the times of rows to events.

    Args:
        times: moments of rows in any order, [n].
        end: the moment of the snapshot that has these rows.
        recent_h: hours before `end` from which events are taken.
    """
    future = int((times > end).sum())
    start = end - recent_h * HOUR_S
    known = np.sort(times[(times > start) & (times <= end)])[-EVENTS_MAX:]
    if not len(known):
        return Events(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), start, end, future)
    begins = np.concatenate([[True], np.diff(known) >= TOGETHER_S])
    first = np.flatnonzero(begins)
    ends = np.append(first[1:], len(known))
    # What was before the first row is not known to have been quiet.
    start = float(known[0])
    return Events(known[first], known[ends - 1] + TOGETHER_S, ends - first, start, end, future)


def fitted(events: Events, zone: str) -> EventModel | None:
    """Fit the structure with the least −2ℓ + K·ln n; None: fewer than EVENTS_MIN events.

    Args:
        zone: the time zone of the source.
    """
    count = len(events.at)
    if count < EVENTS_MIN or events.end <= events.at[0]:
        return None
    week = Week(zone)
    hours = week.exposures([events.start], [events.end])[0]
    of_week = week.hours_of(events.at[1:])  # the first begins the exposure
    by_hour = np.bincount(of_week, minlength=HOURS).astype(np.float64)
    best, least = HOMOGENEOUS, math.inf
    for name, segments in STRUCTURES.items():
        some, rates = _rates(by_hour, hours, segments)
        likelihood = float((some * np.log(np.maximum(rates, 1e-12))).sum()) - float(some.sum())
        criterion = -2 * likelihood + len(rates) * math.log(count)
        if criterion < least:
            best, least = name, criterion
    return _tested(events, zone, best, by_hour, hours)


def _rates(by_hour: Floats, hours: Floats, segments: Integers) -> tuple[Floats, Floats]:
    """Return events of each segment, and their rate per hour, [K] each."""
    joined = matrix(segments)
    some, exposed = by_hour @ joined, hours @ joined
    mean = float(some.sum() / exposed.sum())
    return some, (some + PRIOR_HOURS * mean) / (exposed + PRIOR_HOURS)


def _busy(events: Events, week: Week) -> Floats:
    """Return the hours in which an event lasted, by hour of the week, [168]."""
    over = np.minimum(events.over, events.end)
    lengths, begins = (over - events.at) / HOUR_S, week.hours_of(events.at)
    is_short = (begins == week.hours_of(over)) & (lengths < 1)
    short = np.bincount(begins[is_short], lengths[is_short], HOURS).astype(np.float64)
    # An end of an hour lies within one event at most, so the others are few.
    others = week.exposures(events.at[~is_short].tolist(), over[~is_short].tolist())
    busy: Floats = short + others.sum(axis=0)
    return busy


def _unseen(hours: Floats) -> tuple[str, ...]:
    """Return that some hours of the week, of which [168] hours were seen, are not known."""
    count = int((hours < UNSEEN_H).sum())
    if not count:
        return ()
    return (f"{count} of the {HOURS} hours of the week lie outside of the times: no rates there",)


def _tested(
    events: Events, zone: str, structure: str, by_hour: Floats, hours: Floats
) -> EventModel:
    """Return the model of a structure, in rows per hour, and what the tests say of it."""
    segments = STRUCTURES[structure]
    some, rates = _rates(by_hour, hours, segments)
    exposed = hours @ matrix(segments)
    batch = float(events.rows.mean())
    dispersion = float((events.rows.astype(np.float64) ** 2).mean()) / batch
    model = Model(
        zone=zone,
        structure=structure,
        segments=segments,
        rates=rates * batch,
        errors=np.sqrt(np.maximum(some, PRIOR_EVENTS) * dispersion * batch)
        / (exposed + PRIOR_HOURS),
        dispersion=dispersion,
        batch=batch,
        shares=(0.0, 0.0, 0.0),
        updated_per_row=0.0,
        deleted_per_row=0.0,
        intervals=len(events.at),
        shortest_h=0.0,
        untold=_unseen(hours),
        is_claimed=True,
        seen_h=float(hours.sum()),
    )
    judged, over = events.at[-JUDGED_MAX:], events.over[-JUDGED_MAX:]
    week = Week(zone)
    between = week.exposures(over[:-1].tolist(), judged[1:].tolist())
    free = np.maximum(exposed - _busy(events, week) @ matrix(segments), exposed * FREE_MIN)
    amounts = between @ (some / np.maximum(free, 1e-9))[segments]
    return EventModel(
        model,
        events,
        -np.expm1(-amounts / max(float(amounts.mean()), 1e-9)),
        fitness.of_amounts(amounts),
        fitness.of_gaps(events.rows),
    )
