"""Validated reading of the notes of earlier refreshes.

Notes are small JSON files that may be lost or damaged at any time; the next refresh then costs
more, and its result is the same. So a value that is not possible counts as missing, and no error is
raised. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN

LEAST, GREATEST = 1e-9, 1e15  # of any price, rate or number of rows: products of two are finite


def number(notes: Mapping[str, object], name: str) -> float | None:
    """Return a positive number; None if there is none."""
    value = notes.get(name)
    if not isinstance(value, int | float) or not LEAST <= value <= GREATEST:
        return None
    return float(value)


def knots(notes: Mapping[str, object], name: str) -> list[int]:
    """Return ascending positions; an empty list if they are not ascending or not positions."""
    positions = notes.get(name)
    if not isinstance(positions, list) or not all(type(one) is int for one in positions):
        return []
    ends = [POSITION_MIN, *positions, POSITION_MAX]
    return positions if all(a <= b for a, b in pairwise(ends)) else []
