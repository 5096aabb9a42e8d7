"""What one scan adds up about a relation: total, range sums and, where one is asked for, a sketch.

Everything here adds, so rows may come in any order and from several processes: what comes out is
what one process would have, byte for byte (`tests/source_agent/scan/test_workers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from driftline.digests import Digest, Salt
from driftline.ranges import Partition, RangeSums
from driftline.sketches import Cells, Embedding

from source_agent.scan.held_rows import Batch, Positions


@dataclass(frozen=True, slots=True)
class Hashed:
    """Rows as far as they are added up, 16 bytes each.

    positions: int64 [rows]; row_hashes: uint64 [rows]; digest: of all of them.
    """

    positions: Positions
    row_hashes: npt.NDArray[np.uint64]
    digest: Digest

    @classmethod
    def of(cls, batch: Batch) -> Hashed:
        return cls(batch.positions, batch.mixed.m0, batch.mixed.digest())

    @classmethod
    def from_bytes(cls, positions: bytes, row_hashes: bytes, digest: Digest) -> Hashed:
        return cls(np.frombuffer(positions, np.int64), np.frombuffer(row_hashes, np.uint64), digest)

    def __reduce__(self) -> tuple[object, ...]:
        """As bytes: a pickled array has a dtype object of its own, with which `np.add.at` takes
        five times as long and more."""
        return Hashed.from_bytes, (
            self.positions.tobytes(),
            self.row_hashes.tobytes(),
            self.digest,
        )


class Filling:
    """The accumulators of a scan.

    sums: by the ranges of the partition, with the total; cells: of the sketch, None without one;
    outside: rows that the sketch does not embed.
    """

    def __init__(
        self, partition: Partition, salt: Salt, embedding: Embedding | None = None, third: int = 0
    ) -> None:
        self.salt = salt
        self._partition, self._embedding = partition, embedding
        self.sums = RangeSums(partition.ranges)
        self.cells = None if embedding is None else Cells(third)
        self.outside = 0

    def add(self, rows: Hashed) -> None:
        """Add rows, each once."""
        positions, row_hashes = rows.positions, rows.row_hashes
        self.sums.add_hashes(self._partition.indices(positions), row_hashes, rows.digest)
        if self.cells is None or self._embedding is None:
            return
        ks, inside = self._embedding.embed(positions, self.salt)
        if not inside.all():
            self.outside += len(inside) - int(np.count_nonzero(inside))
            ks, row_hashes = ks[inside], row_hashes[inside]
        self.cells.add(ks, row_hashes, self.salt)
