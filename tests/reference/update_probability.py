"""The formula of `update_probability` for one row, by the book: the answer to compare with."""

from __future__ import annotations

import math

from warehouse_agent.planning.update_probability import PRIOR, TAU_S, ChangeOutlook, VersionClock


def probability(
    view: ChangeOutlook, first: int | None, changed: int | None, rate: float | None
) -> float:
    """Return P({±t}) of a row, in (0, 1], from its statistics."""
    middle_s = view.now_s - view.elapsed_s / 2
    age = max(middle_s - _time(view.clock, changed), 0.0)
    life = max(middle_s - _time(view.clock, first), 0.0)
    counted = (rate or 0.0) * math.exp(-age / TAU_S)
    seen = TAU_S * (1 - math.exp(-life / TAU_S))
    per_day = view.share / view.elapsed_s
    updates = view.elapsed_s * per_day * (PRIOR + counted) / (PRIOR + seen * per_day)
    return -math.expm1(-updates)


def _time(clock: VersionClock, version: int | None) -> float:
    """Return seconds since 1970 of a version, on the line between its neighbours."""
    if version is None or version <= clock.versions[0]:
        return clock.seconds[0]
    for (a, start), (b, end) in zip(
        zip(clock.versions, clock.seconds, strict=True),
        zip(clock.versions[1:], clock.seconds[1:], strict=True),
        strict=False,
    ):
        if version <= b:
            return start + (end - start) * (version - a) / (b - a)
    return clock.seconds[-1]
