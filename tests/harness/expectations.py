"""Distributions of the number of changes, as histories of a day each make them."""

from __future__ import annotations

from warehouse_agent.planning.change_forecast import ChangeForecast, RefreshOutcome, expect

ROWS = 750_000
DAY_S = 86_400.0


def alike(*changed: int) -> ChangeForecast:
    """After so many changes day by day, the last of them ten times."""
    found = [*changed, *[changed[-1]] * 9]
    history = [RefreshOutcome(DAY_S, ROWS, 0, number, 0) for number in found]
    return expect(history, rows=ROWS, elapsed_s=DAY_S)


def nothing() -> ChangeForecast:
    """After ten days without a change."""
    return alike(0)
