"""What one scan adds up about a relation: total, range sums and, where one is asked for, a sketch.

Everything here adds, so rows may come in any order and from several processes: each has a `Filling`
of its own, and one takes in the pieces of the others. What comes out is what one process would
have, byte for byte (`tests/test_share.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from driftline.digests import Digest, Salt
from driftline.ranges import Partition, RangeSums
from driftline.sketches import PRIME, Cells, Embedding

from source_agent.hold import Batch

_PIECE: Final = 1 << 17  # elements, 1 MiB: what is on the way between processes stays small
_HEAD: Final = struct.Struct("<q16sQq")  # rows, their sum, the sketch's check, rows outside it
_P: Final = np.uint64(PRIME)


class Filling:
    """The accumulators of a scan.

    sums: by the ranges of the partition, with the total; cells: of the sketch, None without one;
    outside: rows that the sketch does not embed.
    """

    def __init__(
        self, partition: Partition, salt: Salt, embedding: Embedding | None = None, third: int = 0
    ) -> None:
        self.partition, self.salt = partition, salt
        self.embedding, self.third = embedding, third
        self.sums = RangeSums(partition.ranges)
        self.cells = None if embedding is None else Cells(third)
        self.outside = 0

    def add(self, batch: Batch) -> None:
        """Add the rows of a batch."""
        self.sums.add(self.partition.indices(batch.positions), batch.mixed)
        if self.cells is None or self.embedding is None:
            return
        ks, inside = self.embedding.embed(batch.positions, self.salt)
        row_hashes = batch.mixed.m0
        if not inside.all():
            self.outside += len(inside) - int(np.count_nonzero(inside))
            ks, row_hashes = ks[inside], row_hashes[inside]
        self.cells.add(ks, row_hashes, self.salt)

    def pieces(self) -> Iterator[bytes]:
        """What `take` takes in: a head and the arrays, at most 1 MiB each. The cells are reduced
        on the way."""
        total = self.sums.total
        check = self.cells.check if self.cells else 0
        yield _HEAD.pack(total.count, total.sum_bytes(), check, self.outside)
        for array, is_of_field in self._arrays():
            for start in range(0, len(array), _PIECE):
                piece = array[start : start + _PIECE]
                if is_of_field:
                    piece %= _P
                yield piece.tobytes()

    def take(self, pieces: Iterator[bytes]) -> None:
        """Add what another filling of the same parameters holds, from its `pieces`. What is added
        is spoilt if they end before their end."""
        count, total, check, outside = _HEAD.unpack(next(pieces))
        self.sums.total += Digest(count, int.from_bytes(total, "little"))
        self.outside += outside
        if self.cells is not None:
            self.cells.check = (self.cells.check + check) % PRIME
        for array, is_of_field in self._arrays():
            for start in range(0, len(array), _PIECE):
                mine = array[start : start + _PIECE]
                if is_of_field:
                    mine %= _P
                mine += np.frombuffer(next(pieces), np.uint64)

    def _arrays(self) -> list[tuple[npt.NDArray[np.uint64], bool]]:
        """Every array, and whether its elements are of the sketch's field."""
        found = [(self.sums.counts.view(np.uint64), False), (self.sums.sums, False)]
        if self.cells is not None:
            found += [(self.cells.r, True), (self.cells.kr, True)]
        return found
