"""Accumulators that one scan of a relation fills: sums over ranges, and the cells of a sketch.

An accumulator takes the hashes of rows in any order and from any process: sums commute, so a shared
scan gives the bytes that one process gives. Only one process adds to an accumulator. This module
reads no rows and knows no method: an answer of `methods/` chooses its accumulators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from driftline.arrays import U64, Positions
from driftline.reconciliation.ranges import Partition, RangeSums
from driftline.reconciliation.sketches import Cells, Embedding
from driftline.rows.columns import Block
from driftline.rows.digests import Digest, Salt

from source_agent.scan.batches import Batch, Locators


@dataclass(frozen=True, slots=True)
class HashedRows:
    """The part of rows that is added up, 16 bytes a row, or 24.

    positions: int64 [rows]; row_hashes: uint64 [rows]; digest: of all these rows together;
    locators: where they lie, None if the scan does not tell.
    """

    positions: Positions
    row_hashes: U64
    digest: Digest
    locators: Locators | None = None

    @classmethod
    def of(cls, batch: Batch) -> HashedRows:
        """Return the positions, row hashes, digest and locators of a batch."""
        return cls(batch.positions, batch.mixed.m0, batch.mixed.digest(), batch.locators)

    @classmethod
    def from_bytes(
        cls, positions: bytes, row_hashes: bytes, digest: Digest, locators: bytes | None
    ) -> HashedRows:
        """Return the rows that `__reduce__` pickled, in the machine's byte order."""
        return cls(
            np.frombuffer(positions, np.int64),
            np.frombuffer(row_hashes, np.uint64),
            digest,
            None if locators is None else np.frombuffer(locators, np.uint64),
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arrays as bytes: with a pickled dtype `np.add.at` is five times as slow."""
        assert not isinstance(self.locators, Block), "a scan with keys is not shared"
        return HashedRows.from_bytes, (
            self.positions.tobytes(),
            self.row_hashes.tobytes(),
            self.digest,
            None if self.locators is None else self.locators.tobytes(),
        )


class Accumulator(Protocol):
    """Something that a scan fills."""

    def add(self, rows: HashedRows) -> None:
        """Add rows, each once; the order does not matter."""


class RangeTotals:
    """Sums over the ranges of a partition, and the total of all rows: `sums`."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.sums = RangeSums(partition.ranges)

    def add(self, rows: HashedRows) -> None:
        indices = self._partition.indices(rows.positions)
        self.sums.add_hashes(indices, rows.row_hashes, rows.digest)


class SketchCells:
    """The cells of a sketch, `cells`, and the number of rows that it does not embed, `outside`."""

    def __init__(self, embedding: Embedding, third: int, salt: Salt) -> None:
        self._embedding, self._salt = embedding, salt
        self.cells = Cells(third)
        self.outside = 0

    def add(self, rows: HashedRows) -> None:
        row_hashes = rows.row_hashes
        ks, inside = self._embedding.embed(rows.positions, self._salt)
        if not inside.all():
            self.outside += len(inside) - int(np.count_nonzero(inside))
            ks, row_hashes = ks[inside], row_hashes[inside]
        self.cells.add(ks, row_hashes, self._salt)
