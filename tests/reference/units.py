"""The reference for protocol section 7: groups, row by row.

Groups of one size are (size, ks), a row (k, m0). Groups are numbered through all, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.reference.digests import P3

Sized = tuple[int, Sequence[int]]
Row = tuple[int, int]


def groups(sized: Iterable[Sized]) -> list[list[int]]:
    """The keys of every group."""
    return [list(ks[at : at + size]) for size, ks in sized for at in range(0, len(ks), size)]


def digests(sized: Iterable[Sized], rows: Sequence[Row]) -> list[int]:
    """The short digest of every group, of the rows below its keys."""
    found = []
    for keys in groups(sized):
        hashes = [m0 for k, m0 in rows if k in keys]
        digest = (sum(hashes) + len(hashes) * P3) % 2**64
        found.append(0 if not hashes else digest or 1)
    return found


def gone(sized: Iterable[Sized], rows: Sequence[Row]) -> list[int]:
    """The keys below which there is no row, ascending."""
    present = {k for k, _ in rows}
    return sorted(k for keys in groups(sized) for k in keys if k not in present)
