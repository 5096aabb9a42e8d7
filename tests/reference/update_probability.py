"""The probability that a row is updated before the next refresh, in numpy.

`planning.update_probability` has the formula and evaluates it in Spark.
"""

from __future__ import annotations

import numpy as np
from driftline.arrays import Floats

from warehouse_agent.planning.update_probability import PRIOR, TAU_S, Outlook


def probability(view: Outlook, first: Floats, changed: Floats, rate: Floats) -> Floats:
    """Return P({±t}) of rows, float64 [n] in (0, 1].

    Args:
        first, changed: versions, float64 [n]; NaN for null.
        rate: float64 [n]; NaN for null.
    """
    clock, middle_s = view.clock, view.now_s - view.elapsed_s / 2
    age = np.maximum(middle_s - clock.times(changed), 0)
    life = np.maximum(middle_s - clock.times(first), 0)
    counted = np.nan_to_num(rate) * np.exp(-age / TAU_S)
    seen = -np.expm1(-life / TAU_S) * TAU_S
    hazard = view.share * (PRIOR + counted) / (PRIOR + seen * (view.share / view.elapsed_s))
    return -np.expm1(-hazard)
