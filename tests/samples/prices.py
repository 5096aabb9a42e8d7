"""Prices of rows for tests of plans."""

from __future__ import annotations

from warehouse_agent.planning.prices import Prices


def flat(row: float) -> Prices:
    """Return one price for every row, in bytes."""
    return Prices(row, row, row)
