"""What a plan would have cost in the past: in row-hours and in stale hours.

Two measures. *Row-hours*: each changed row counts from its change until a refresh, each hour by its
weight. *Stale hours*: the hours in which any change was unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.change_models.fit import Model, fit
from warehouse_agent.change_models.memory import Interval, Memory
from warehouse_agent.change_models.week import HOUR_S, Week

REPLAYED_MIN = 10  # intervals in a third of a history
PHASES = 8  # of a fixed interval, over which its cost is averaged
_MOMENT_S = 1.0


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """Cost of refreshes over some time; `row_hours` are weighted."""

    refreshes: float
    row_hours: float
    stale_hours: float

    def total(self, price: float) -> float:
        """Return the cost in row-hours, with m = `price` for each refresh."""
        return price * self.refreshes + self.row_hours


def cost(
    refreshes: Sequence[float],
    at: Floats,
    rows: Floats,
    *,
    end: float,
    weighted: Callable[[Floats, Floats], Floats],
) -> ReplayCost:
    """Return the cost of refreshes at given moments; at `end` everything is seen, for nothing.

    Args:
        refreshes: moments in seconds, increasing.
        at: moments of changes, increasing, [n].
        rows: that each change touched, [n].
        weighted: the weighted hours from moments to moments, as `hours_of` returns it.
    """
    moments = np.append(np.asarray(refreshes, np.float64), end)
    turn = np.minimum(np.searchsorted(moments, at), len(moments) - 1)
    seen = moments[turn]
    first = np.concatenate([[True], turn[1:] != turn[:-1]]) if len(at) else np.zeros(0, np.bool_)
    unseen = float((rows * weighted(at, seen)).sum())
    return ReplayCost(len(refreshes), unseen, float((seen - at)[first].sum()) / HOUR_S)


def hours_of(week: Week, weights: Floats) -> Callable[[Floats, Floats], Floats]:
    """Return a function of starts and ends, [n] each, that returns weighted hours, [n].

    Args:
        weights: of each hour of the week, [168].
    """
    if np.ptp(weights) == 0:
        return lambda starts, ends: (ends - starts) / HOUR_S * float(weights[0])
    return lambda starts, ends: week.exposures(starts.tolist(), ends.tolist()) @ weights


def by_plan(plan: Integers, week: Week, start: float, end: float) -> list[float]:
    """Return the moments of refreshes by a plan, [168], after one at `start`."""
    moments, at = [], start
    while (at := at + float(plan[week.hour_of(at)]) * HOUR_S) <= end:
        moments.append(at)
    return moments


def fixed(
    hours: float,
    at: Floats,
    rows: Floats,
    start: float,
    end: float,
    weighted: Callable[[Floats, Floats], Floats],
) -> ReplayCost:
    """Return the cost of a fixed interval, the mean over PHASES times of its first refresh.

    Args:
        hours: of the interval.
        at: moments of changes, increasing, [n].
        rows: that each change touched, [n].
        weighted: as in `cost`.
    """
    step = hours * HOUR_S
    costs = [
        cost(
            np.arange(start + step * (phase + 0.5) / PHASES, end, step).tolist(),
            at,
            rows,
            end=end,
            weighted=weighted,
        )
        for phase in range(PHASES)
    ]
    return ReplayCost(
        float(np.mean([one.refreshes for one in costs])),
        float(np.mean([one.row_hours for one in costs])),
        float(np.mean([one.stale_hours for one in costs])),
    )


def gain(
    memory: Memory,
    zone: str,
    weights: Floats,
    planned: Callable[[Model], tuple[Integers, float]],
    hours: float,
) -> float | None:
    """Return what a plan costs over what a fixed interval of `hours` costs, in the second and in
    the last third of the history, if the model learns from what was before; None: it is too short.

    The greatest of four ratios counts: of each third, with all changes at the start of their
    interval, and all at its end. Where they lay is not known, and placing them by the model would
    flatter it; one third may be luck.

    Args:
        weights: of each hour of the week, [168].
        planned: the plan of a model, and the price of a refresh in row-hours.
    """
    third = len(memory.recent) // 3
    ratios: list[float] = []
    for known in (third, 2 * third):
        rest = memory.recent[known : known + third]
        changed = [one for one in rest if one.changed]
        model = fit(replace(memory, recent=memory.recent[:known]), zone) if known else None
        if third < REPLAYED_MIN or not changed or model is None or model.mean <= 0:
            return None
        plan, price = planned(model)
        week, start, end = Week(zone), rest[0].start, rest[-1].end
        rows, weighted = np.array([one.changed for one in changed]), hours_of(week, weights)
        for place in (_at_start, _at_end):
            at = np.array([place(one) for one in changed])
            by_model = cost(by_plan(plan, week, start, end), at, rows, end=end, weighted=weighted)
            by_clock = fixed(hours, at, rows, start, end, weighted)
            ratios.append(by_model.total(price) / by_clock.total(price))
    return max(ratios)


def _at_start(one: Interval) -> float:
    return one.start + _MOMENT_S


def _at_end(one: Interval) -> float:
    return one.end - _MOMENT_S
