"""Simulated histories: refreshes at given times of a table whose rates are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warehouse_agent.change_models.memory import Interval, Memory
from warehouse_agent.change_models.week import HOUR_S, HOURS, Week

MONDAY = 1_767_571_200.0  # 2026-01-05, midnight in UTC
HOUR = np.arange(HOURS)
OFFICE = (HOUR // 24 < 5) & (HOUR % 24 >= 9) & (HOUR % 24 < 18)
THREE = np.where(OFFICE, 8.0, np.where(HOUR // 24 < 5, 1.6, 0.4))  # 20:4:1


def remembered(
    rates: np.ndarray,
    hours: Sequence[float],
    rng: np.random.Generator,
    dispersion: float = 1.0,
) -> Memory:
    """The memory of refreshes at `hours` after MONDAY; counts of mean Λ and variance φΛ."""
    starts = [MONDAY + h * HOUR_S for h in hours[:-1]]
    ends = [MONDAY + h * HOUR_S for h in hours[1:]]
    expected = Week().exposures(starts, ends) @ rates
    if dispersion > 1:
        shape = np.maximum(expected, 1e-9) / (dispersion - 1)
        counts = rng.negative_binomial(shape, 1 / dispersion)
    else:
        counts = rng.poisson(expected)
    found = [
        Interval(a, b, float(n), 0.0, 0.0, 1000.0)
        for a, b, n in zip(starts, ends, counts, strict=True)
    ]
    return Memory(tuple(found), until=ends[-1])


def every(hours: float, weeks: float = 12, at: float = 0.0) -> list[float]:
    """Hours of refreshes at a fixed interval."""
    return np.arange(at, weeks * HOURS + 1e-9, hours).tolist()


def jittered(low: float, high: float, rng: np.random.Generator, weeks: float = 12) -> list[float]:
    """Hours of refreshes at intervals drawn from low..high."""
    found = np.concatenate([[0.0], rng.uniform(low, high, int(weeks * HOURS / low)).cumsum()])
    return found[found <= weeks * HOURS].tolist()
