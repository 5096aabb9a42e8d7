"""Chunks: rows cut where their content says so, so that both sides cut them alike (section 7).

A load that was cut has some of its rows staged. The warehouse lists the digests of their chunks,
and the source, which reads the same rows in much the same order, leaves out the chunks that are
listed. Where a chunk ends depends on one row alone, so rows that were inserted, updated or deleted
meanwhile change the chunk that they are in and no other. Nothing about chunks is known, or kept,
before a load is cut: both sides cut by mixed fingerprints, under the salt of the exchange that
lists them.

Rejected: places of rows in the database, which not every engine has, and which do not tell whether
a row has changed; sketches of so many rows, which cost 1.1 to 1.3 times their bytes and 2 to 5
scans.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from driftline.arrays import U64, Bools, Integers
from driftline.rows.digests import MASK64, MixedFingerprints

# One in ten million chunks is longer, or all where the same rows come again and again.
LONGEST = 16


def longest(shift: int) -> int:
    """Return the bytes of a chunk, in the mean 2^`shift`, of which a side need not hold more."""
    return LONGEST << shift


@dataclass(slots=True)
class ChunkSums:
    """The ends and digests of chunks of 2^`shift` row bytes in the mean, of rows that come batch by
    batch."""

    shift: int
    _open: int = field(default=0, init=False)  # the sum of the chunk that has not ended

    def add(self, sizes: Integers, mixed: MixedFingerprints) -> tuple[Integers, U64]:
        """Return where chunks end in these rows, exclusive, int64 [n], and their digests, uint64
        [n].

        Args:
            sizes: bytes of each row, int64 [rows].
            mixed: fingerprints of the rows.
        """
        ends = np.flatnonzero(_is_last(sizes, mixed.m1, self.shift)) + 1
        sums = np.cumsum(mixed.m0, dtype=np.uint64)
        upto = sums[ends - 1]
        digests = np.diff(upto, prepend=np.zeros(1, np.uint64))
        digests[:1] += np.uint64(self._open)
        rest = (int(sums[-1]) if len(sums) else 0) - (int(upto[-1]) if len(upto) else 0)
        self._open = (rest + (0 if len(ends) else self._open)) & MASK64
        return ends, digests

    def begin(self) -> None:
        """Let a chunk begin with the next row: the rows before it are not known."""
        self._open = 0


def _is_last(sizes: Integers, m1: U64, shift: int) -> Bools:
    """Return which rows end a chunk, bool [rows]: a row of b bytes with probability b / 2^shift."""
    share = np.minimum(sizes, 1 << shift).astype(np.uint64) << np.uint64(32 - shift)
    is_last: Bools = (m1 >> np.uint64(32)) < share
    return is_last
