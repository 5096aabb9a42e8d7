"""The reference for protocol section 7: units, row by row.

A run is (size, ks), a row (k, m0). Units are numbered through all runs in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.reference.digests import P3

Run = tuple[int, Sequence[int]]
Row = tuple[int, int]


def units(runs: Iterable[Run]) -> list[list[int]]:
    """The keys of every unit."""
    return [list(ks[at : at + size]) for size, ks in runs for at in range(0, len(ks), size)]


def digests(runs: Iterable[Run], rows: Sequence[Row]) -> list[int]:
    """The short digest of every unit, of the rows below its keys."""
    found = []
    for keys in units(runs):
        hashes = [m0 for k, m0 in rows if k in keys]
        digest = (sum(hashes) + len(hashes) * P3) % 2**64
        found.append(0 if not hashes else digest or 1)
    return found


def gone(runs: Iterable[Run], rows: Sequence[Row]) -> list[int]:
    """The keys below which there is no row, ascending."""
    present = {k for k, _ in rows}
    return sorted(k for keys in units(runs) for k in keys if k not in present)
