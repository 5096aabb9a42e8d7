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
from driftline.errors import MalformedMessage
from driftline.limits import CELLS_TAKEN_MAX
from driftline.sketches import U64, Cells, Grid, pack

from source_agent.methods import request_validation
from source_agent.scan.accumulators import SketchCells
from source_agent.scan.frames_out import Shipper
from source_agent.scan.held_rows import Batch, joined
from source_agent.scan.reader import Reader


class Sketching:
    """One sketch of one exchange: `hear`, the scan, then `solved` and `answer` or `stuck`."""

    def __init__(self, reader: Reader, shipper: Shipper, sketch: request_validation.Sketch) -> None:
        self._reader, self._shipper = reader, shipper
        self._salt = salt = reader.salt
        self._embedding = sketch.embedding
        self.filled = SketchCells(sketch.embedding, sketch.third, salt)
        self.cells = self.filled.cells
        self._decoder = Decoder(self.cells, sketch.embedding.span, salt, check=sketch.check)
        self._heard: tuple[Grid, Cells] | None = None
        self._times = 0

    def hear(self, first: pb.Request, more: request_validation.Hear) -> None:
        """Take in cells, which are decoded when they are asked about.

        Raises:
            MalformedMessage: these are none, or more often than CELLS_TAKEN_MAX.
        """
        self._times += 1
        if self._times > CELLS_TAKEN_MAX:
            raise MalformedMessage(f"Cells came more than {CELLS_TAKEN_MAX} times.")
        third, expected = self.cells.third, self._decoder.cells_expected
        self._heard = request_validation.cells(first, more, third, expected)

    def solved(self) -> bool:
        """Whether what was heard tells every difference inside the embedding; after the scan."""
        self.cells.shrink()
        if self._heard is not None:
            self._decoder.take(*self._heard)
            self._heard = None
        return self._decoder.solved

    @property
    def differing(self) -> int | None:
        """How many cells of the finest table differ, as those that were heard tell it."""
        return self._decoder.differing

    def stuck(self) -> bytes:
        """Bitmap of the cells that did not come to zero, compressed; empty before any cells."""
        if self._decoder.grid is None:
            return b""
        bitmap = np.packbits(self._decoder.stuck, bitorder="little").tobytes()
        return zstandard.ZstdCompressor(level=3).compress(bitmap)

    def answer(self, total: int) -> Iterator[pb.Reply]:
        """The rows below every decoded k and outside, of `total`; then the k without rows."""
        ks = self._decoder.ks
        self.release()
        found = np.zeros(len(ks), np.bool_)
        if len(ks) or self._outside:
            self._reader.tally.phase = "ship"
            outside = rows = 0
            for batch in self._find(ks, total):
                rows += len(batch.positions)
                k, inside = self._embedding.embed(batch.positions, self._salt)
                at = np.minimum(np.searchsorted(ks, k), max(len(ks) - 1, 0))
                named = inside & (ks[at] == k) if len(ks) else np.zeros(len(k), np.bool_)
                found[at[named]] = True
                outside += len(inside) - int(np.count_nonzero(inside))
                yield from self._shipper.pick(batch, named | ~inside)
            yield from self._shipper.flush()
            agrees = outside == self._outside
            self._reader.same_snapshot(agrees and (rows == total or not self._scans(ks, total)))
        yield pb.Reply(deleted=pb.Deleted(ks=pack(ks[~found])))

    def release(self) -> None:
        """Let the tables go, which have told all they know: rows that are shipped need the room."""
        self._outside = self.filled.outside
        del self.cells, self._decoder, self.filled

    def _scans(self, ks: U64, total: int) -> bool:
        """Whether all rows are read to find those below these k."""
        rows = len(ks) + self._outside
        return self._embedding.base is None or not self._reader.by_index(rows, total)

    def _find(self, ks: U64, total: int) -> Iterator[Batch]:
        """The batches in which these rows are, and perhaps others."""
        if self._scans(ks, total):
            return self._reader.scan()
        first, last = joined(self._embedding.positions(ks))
        if self._outside:
            zones = self._embedding.outside()
            first, last = np.append(first, zones[0]), np.append(last, zones[1])
        rows = len(ks) + self._outside
        return self._reader.find(first, last, rows=rows, total=total)
