"""The timing that the user asks for: how fresh a table is to be, or what a refresh may cost."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum

import numpy as np
from driftline.arrays import Bools, Floats
from driftline.settings.hours import DAY, WeekSpan

from warehouse_agent.change_models.fit import Model
from warehouse_agent.change_models.memory import Distance
from warehouse_agent.change_models.week import HOUR_S, HOURS
from warehouse_agent.timetable.policies import fixed_interval

INTERVAL_MAX_S = 86_400


class TimingPolicy(Enum):
    """Ways to choose the moment of a refresh where no probe tells it."""

    AUTO = "auto"  # the optimal plan where a replay says that it gains, else the fixed interval
    FIXED = "fixed"
    THRESHOLD = "threshold"
    FIRST_ALTERATION = "first-alteration"
    OPTIMAL = "optimal"


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of a fragment, or of a view that reads it. At most one of `freshness_s`,
    `refreshes_per_day` and `refresh_worth` is set; none means every `interval_max_s`, or, if that
    was not written either (`is_asked`), never.

    Attributes:
        by: the fragment or view.
        freshness_s: seconds after which a change is published, at most.
        refreshes_per_day: about so many.
        refresh_worth: m, the weighted row-hours that a refresh has to save.
        interval_min_s, interval_max_s: seconds from one refresh to the next.
        weights: of hours of the week; all others weigh 1.
        by_change: weights of an inserted, an updated and a deleted row.
        distance: by which an updated row weighs besides; None: each counts as one.
        zone: the time zone of these hours, and of the model's.
        is_asked: a goal or the longest interval was written, so it makes something due.
    """

    by: str = ""
    freshness_s: int | None = None
    refreshes_per_day: float | None = None
    refresh_worth: float | None = None
    interval_min_s: int = 0
    interval_max_s: int = INTERVAL_MAX_S
    policy: TimingPolicy = TimingPolicy.AUTO
    weights: tuple[tuple[WeekSpan, float], ...] = ()
    by_change: tuple[float, float, float] = (1.0, 1.0, 1.0)
    distance: Distance | None = None
    zone: str = "UTC"
    is_asked: bool = True

    @property
    def listens(self) -> bool:
        """Return True if a probe may choose the moment: there is a goal, and no policy is named.

        Without a goal the longest interval is what was asked for.
        """
        goals = (self.freshness_s, self.refreshes_per_day, self.refresh_worth)
        return self.policy is TimingPolicy.AUTO and any(goal is not None for goal in goals)

    def hourly_weights(self) -> Floats:
        """Return the mean weight of each hour of the week, [168]."""
        return _hourly(self.weights)

    def change_weights(self, model: Model, moved: float = 1.0) -> tuple[float, float]:
        """Return the weight of an inserted row, and the mean one of the other changes; `moved`: the
        mean distance of an updated row."""
        inserted, updated, deleted = self.by_change
        updated *= moved
        others = model.shares[1] + model.shares[2]
        if not others:
            return inserted, (updated + deleted) / 2
        return inserted, (updated * model.shares[1] + deleted * model.shares[2]) / others

    def interval_h(self, model: Model | None, duration_s: float = 0.0) -> float:
        """Return the fixed interval of this timing in hours.

        Args:
            model: of changes counted by their weight.
            duration_s: seconds from a snapshot until its version is published.
        """
        most = self.interval_max_s / HOUR_S
        if self.freshness_s is not None:
            wanted = (self.freshness_s - duration_s) / HOUR_S
        elif self.refreshes_per_day is not None:
            wanted = 24 / self.refreshes_per_day
        elif self.refresh_worth is not None and model is not None:
            wanted = fixed_interval(self.refresh_worth, self._flow(model))
        else:
            wanted = most
        return max(min(wanted, most), self.interval_min_s / HOUR_S)

    def attainable_s(self, spans: tuple[WeekSpan, ...], duration_s: float) -> float:
        """Return the least freshness that can be kept, in seconds: a row that changes right after a
        snapshot waits for the next one, and that one until it is published.

        Args:
            spans: hours in which refreshes may begin; none: always.
            duration_s: as in `interval_h`.
        """
        return max(self.interval_min_s, closed_s(spans), duration_s) + duration_s

    def price(self, model: Model) -> float:
        """Return m, the price of a refresh in weighted row-hours, with which the interval of this
        timing is the optimum of a constant rate: λ·c·g²/2."""
        if self.refresh_worth is not None:
            return self.refresh_worth
        return self._flow(model) * self.interval_h(model) ** 2 / 2

    def _flow(self, model: Model) -> float:
        return model.mean * float(self.hourly_weights().mean())


@functools.lru_cache(maxsize=256)
def _hourly(weights: tuple[tuple[WeekSpan, float], ...]) -> Floats:
    minutes = np.ones(7 * DAY)
    for span, weight in weights:
        minutes[list(span.minutes())] = weight
    hourly: Floats = minutes.reshape(HOURS, 60).mean(axis=1)
    hourly.flags.writeable = False  # all callers share it
    return hourly


@functools.lru_cache(maxsize=256)
def closed_s(spans: tuple[WeekSpan, ...]) -> int:
    """Return the longest time of a week in which no span is open, in seconds; 0 without a span."""
    opened = sorted(set().union(*(span.minutes() for span in spans)))
    if not opened:
        return 0
    gaps = [b - a - 1 for a, b in zip(opened, [*opened[1:], opened[0] + 7 * DAY], strict=True)]
    return 60 * max(gaps)


@functools.lru_cache(maxsize=256)
def hours_allowed(spans: tuple[WeekSpan, ...]) -> Bools:
    """Return True for each hour of the week that begins in a span, [168]; all without a span."""
    if not spans:
        return np.ones(HOURS, np.bool_)
    opened = set().union(*(span.minutes() for span in spans))
    allowed = np.array([hour * 60 in opened for hour in range(HOURS)])
    allowed.flags.writeable = False
    return allowed
