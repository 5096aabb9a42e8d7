"""Policies: how long to wait after a refresh, by the hour of the week in which it was made.

A plan has a number of hours for each hour of the week, [168]. Its cost is that of Eq. 10 of Gal and
Eckstein, per row: m for each refresh, in weighted row-hours, and the expected obsolescence. Their
factor α is m in other units. What a changed row costs to ship is the same for all plans.

The threshold policy refreshes when the expected obsolescence exceeds m: for a constant rate that is
the optimum, g = √(2m/λ). It does not see *where* the next changes lie; the optimal one refreshes
just after them.
"""

from __future__ import annotations

import math

import numpy as np
from driftline.arrays import Bools, Floats, Integers

from warehouse_agent.change_models.processes import mean_survival, mean_wait
from warehouse_agent.change_models.week import HOURS

HORIZON = 8 * HOURS  # of the dynamic programming; the plan is that of its first week
ALWAYS: Bools = np.ones(HOURS, np.bool_)


def fixed_interval(price: float, rate: float) -> float:
    """Return the optimal fixed interval √(2m/λ) in hours; infinite if nothing changes.

    Args:
        price: m, in weighted row-hours.
        rate: λ·c, weighted rows per hour.
    """
    return math.sqrt(2 * price / rate) if rate > 0 else math.inf


def obsolescence_table(
    rates: Floats, weights: Floats, most: int, inserted: Floats | None = None, deaths: float = 0.0
) -> Floats:
    """Return the expected obsolescence of an interval that begins at each hour of the week and
    lasts 0 to `most` hours, in weighted row-hours, [168, most + 1].

    Args:
        rates: changed rows per hour that stay changed, [168].
        weights: of each hour, [168].
        inserted: rows per hour that may be deleted before they are seen, [168]; None: none.
        deaths: deletions of such a row per hour.
    """
    if inserted is not None and not deaths:
        rates, inserted = rates + inserted, None
    hours = np.arange(HOURS + most)
    rate, weight = rates[hours % HOURS], weights[hours % HOURS]
    # Changes of an hour lie in its middle on average: exact where weights are constant.
    upto = np.concatenate([[0.0], np.cumsum(weight)])
    rows = np.concatenate([[0.0], np.cumsum(rate)])
    moments = np.concatenate([[0.0], np.cumsum(rate * (upto[:-1] + weight / 2))])
    start = np.arange(HOURS)[:, None]
    end = start + np.arange(most + 1)
    obsolescence: Floats = upto[end] * (rows[end] - rows[start]) - (moments[end] - moments[start])
    if inserted is None:
        return obsolescence
    dying = np.array(deaths)
    lives, survive, waits = np.exp(-dying), mean_survival(dying), mean_wait(dying)
    living, waited = np.zeros(HOURS), np.zeros(HOURS)  # rows, and their weighted row-hours
    for after in range(most):
        hour = (np.arange(HOURS) + after) % HOURS
        waited = lives * (waited + living * weights[hour]) + inserted[hour] * weights[hour] * waits
        living = lives * living + inserted[hour] * survive
        obsolescence[:, after + 1] += waited
    return obsolescence


def threshold(table: Floats, price: float) -> Integers:
    """Return the plan that refreshes when the expected obsolescence exceeds the price, [168].

    Args:
        table: as of `obsolescence_table`, [168, hours + 1].
    """
    return _first(table >= price)


def first_alteration(events: Floats, probability: float, most: int) -> Integers:
    """Return the plan that refreshes when an event is this probable, [168] (Section 5).

    Args:
        events: per hour, [168].
    """
    expected = np.concatenate([[0.0], np.cumsum(np.tile(events, most // HOURS + 2))])
    start = np.arange(HOURS)[:, None]
    exposure = expected[start + np.arange(most + 1)] - expected[start]
    return _first(-np.expm1(-exposure) >= probability)


def _first(reached: Bools) -> Integers:
    """Return the first hour, at least 1, at which a condition holds, else the last, [168].

    Args:
        reached: [168, hours].
    """
    rest = reached[:, 1:]
    first: Integers = np.where(rest.any(axis=1), rest.argmax(axis=1), rest.shape[1] - 1) + 1
    return first


def optimal(table: Floats, price: float, *, least: int, allowed: Bools = ALWAYS) -> Integers:
    """Return the plan of least expected cost, by dynamic programming over eight weeks, [168].

    Args:
        table: as of `obsolescence_table`, up to the most hours of an interval, [168, most + 1].
        price: m of a refresh, in weighted row-hours.
        least: hours of an interval.
        allowed: hours of the week in which a refresh may begin, [168].
    """
    most = table.shape[1] - 1
    steps = np.arange(least, most + 1)
    table = table + price
    longest, costs = table[:, -1].copy(), table[:, least:]
    costs[~allowed[(np.arange(HOURS)[:, None] + steps) % HOURS]] = np.inf
    least_cost = np.zeros(HORIZON + most + 1)
    plan = np.empty(HOURS, np.int64)
    for at in range(HORIZON - 1, -1, -1):
        hour = at % HOURS
        total = costs[hour] + least_cost[at + least : at + most + 1]
        best = int(total.argmin())
        is_possible = total[best] < np.inf
        # Where no hour is allowed, the longest interval is made, and the caller waits.
        least_cost[at] = total[best] if is_possible else longest[hour]
        if at < HOURS:
            plan[hour] = steps[best] if is_possible else most
    return plan
