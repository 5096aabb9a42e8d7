"""Why the drift of a random walk (Gal and Eckstein, Prop. 7) needs no term of its own.

After a time t in which a row has Γ = λt updates, with steps of mean μ and variance σ², it is at
E[(ΔA)²] = Γ(σ² + μ²) + (Γμ)² from where it was. A memory takes what an interval found to grow
evenly, a·t. But it measures at the intervals at which it refreshes, so a holds the second term as
it is at their end. Where the interval that costs least is chosen by a again and again, it settles
where T²(a + bT) = 2C for a refresh that costs C, and the optimum has 4/3 b there: a tenth shorter,
and cheaper by less than a hundredth, if all of the distance is drift.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from warehouse_agent.change_models.memory import Distance, Interval, MeanSquare, Memory

ROWS, REFRESH_COST, REFRESHES = 4000, 1.0, 30
HOUR_S = 3600.0


def found(
    rng: np.random.Generator, hours: float, updates: float, mean: float, deviation: float
) -> Interval:
    """Return what a refresh finds after rows had so many updates in the mean; the number of updated
    rows is their share of the table."""
    steps = rng.poisson(updates, ROWS)
    net = (steps * mean + np.sqrt(steps) * deviation * rng.standard_normal(ROWS))[steps > 0]
    moves = MeanSquare("price", float(np.mean(net**2)), measured=1.0)
    return Interval(0.0, hours * HOUR_S, 0.0, len(net) / ROWS, 0.0, 1.0, moves)


@pytest.mark.parametrize("updates_per_hour", [0.05, 1.0, 5.0])
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (1.0, 0.01)])
def test_intervals_cost_little_more_than_those_that_know_the_drift(
    updates_per_hour: float, mean: float, deviation: float
) -> None:
    rng = np.random.default_rng(7)
    a, b = updates_per_hour * (deviation**2 + mean**2), (updates_per_hour * mean) ** 2

    def cost(hours: float) -> float:
        """Return the cost an hour: of a refresh, and of the mean distance until it."""
        return REFRESH_COST / hours + a * hours / 2 + b * hours**2 / 3

    hours, chosen = 1.0, list[float]()
    for _ in range(REFRESHES):
        one = found(rng, hours, updates_per_hour * hours, mean, deviation)
        (weighed,) = Memory(recent=(one,)).weighed((1, 1, 1), Distance("price", 1.0)).recent
        hours = math.sqrt(hours * math.sqrt(2 * REFRESH_COST * hours / weighed.updated))  # halfway
        chosen.append(hours)
    best = min(np.geomspace(0.01, 100, 20_000), key=cost)
    taken = np.mean([cost(one) for one in chosen[REFRESHES // 2 :]])
    assert taken / cost(best) <= 1.02
