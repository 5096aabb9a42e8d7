"""The sketch at the source: filled in the scan, decoded against the warehouse's cells, answered.

One round trip: the cells came with the opening, so what decodes is answered with the rows that the
source has below every decoded k, and with the k of which it has none. Rows outside the embedding
are new to the warehouse and are shipped unasked. What does not decode is reported cell by cell and
refined by what the warehouse sends next, from the table that the scan filled: nothing is read
twice but the changed rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import zstandard
from driftline import wire_pb2 as pb
from driftline.decoders import Decoder
from driftline.digests import Salt
from driftline.sketches import Cells, pack

from source_agent import hear
from source_agent.hold import Batch, joined
from source_agent.read import Reader
from source_agent.ship import Shipper


class Sketching:
    """One sketch of one exchange: `hear` and `add`, then `solved` and `answer` or `stuck`."""

    def __init__(self, reader: Reader, shipper: Shipper, sketch: hear.Sketch, salt: Salt) -> None:
        self._reader, self._shipper, self._salt = reader, shipper, salt
        self._embedding = sketch.embedding
        self.cells = Cells(sketch.third)
        self._decoder = Decoder(self.cells, sketch.embedding.span, salt, check=sketch.check)
        self._heard: tuple[int, Cells] | None = None
        self._outside = 0  # rows that are not embedded

    def hear(self, first: pb.Request, more: hear.Hear) -> None:
        """Take in cells, which are decoded when they are asked about. Raises MalformedMessage."""
        self._heard = hear.cells(first, more, self._decoder.cells_expected)

    def add(self, batch: Batch) -> None:
        """Note the rows of a batch."""
        ks, inside = self._embedding.embed(batch.positions, self._salt)
        row_hashes = batch.mixed.m0
        if not inside.all():
            self._outside += len(inside) - int(np.count_nonzero(inside))
            ks, row_hashes = ks[inside], row_hashes[inside]
        self.cells.add(ks, row_hashes, self._salt)

    def solved(self) -> bool:
        """Whether what was heard tells every difference inside the embedding."""
        if self._heard is not None:
            self._decoder.take(*self._heard)
            self._heard = None
        return self._decoder.solved

    def stuck(self) -> bytes:
        """Bitmap of the cells that did not come to zero, compressed; empty before any cells."""
        if not self._decoder.fold:
            return b""
        bitmap = np.packbits(self._decoder.stuck, bitorder="little").tobytes()
        return zstandard.ZstdCompressor(level=3).compress(bitmap)

    def answer(self, total: int) -> Iterator[pb.Reply]:
        """The rows below every decoded k and outside, of `total`; then the k without rows."""
        ks = self._decoder.ks
        found = np.zeros(len(ks), np.bool_)
        if len(ks) or self._outside:
            self._reader.tally.phase = "ship"
            outside = 0
            for batch in self._find(total):
                k, inside = self._embedding.embed(batch.positions, self._salt)
                at = np.minimum(np.searchsorted(ks, k), max(len(ks) - 1, 0))
                named = inside & (ks[at] == k) if len(ks) else np.zeros(len(k), np.bool_)
                found[at[named]] = True
                outside += len(inside) - int(np.count_nonzero(inside))
                yield from self._shipper.pick(batch, named | ~inside)
            yield from self._shipper.flush()
            self._reader.same_snapshot(outside == self._outside)
        yield pb.Reply(deleted=pb.Deleted(ks=pack(ks[~found])))

    def _find(self, total: int) -> Iterator[Batch]:
        """The batches in which these rows are, and perhaps others."""
        if self._embedding.base is None:
            return self._reader.scan()
        first, last = joined(self._embedding.positions(self._decoder.ks))
        if self._outside:
            zones = self._embedding.outside()
            first, last = np.append(first, zones[0]), np.append(last, zones[1])
        rows = len(self._decoder.ks) + self._outside
        return self._reader.find(first, last, rows=rows, total=total)
