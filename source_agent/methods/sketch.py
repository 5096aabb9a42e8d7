"""Sketches at the source: fill one in the scan, decode it against the warehouse's cells, answer.

One round trip if the cells suffice: they come with the opening, and the source answers with its
rows below every decoded k, and with the k that have no rows. Rows outside the embedding are new to
the warehouse and always sent. If cells do not decode, the warehouse sends more, or continues with
another method. The table of the scan is kept, so only changed rows are read twice: by an index of
their key, where they lie, or by another scan.

The warehouse may add up its rows while the source scans (`Open.later`). Then its sums and its cells
are awaited behind the scan, as any of its answers: for as long as the client may be silent, and in
time that counts against the place of the scan.

Memory is bounded by THIRD_CELLS_MAX, and by the DBA's limit for where rows lie (`scan.locators`),
not by the number of rows. The cells, up to 35 MB, are local to `decode`, so that they are freed
before a row is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import zstandard
from driftline import wire_pb2 as pb
from driftline.arrays import U32, U64, Bools, Bytes, Positions
from driftline.errors import MalformedMessage
from driftline.limits import CELLS_TAKEN_MAX, SKETCH_KEYS_MAX
from driftline.reconciliation.decoders import Decoder
from driftline.reconciliation.ranges import Partition
from driftline.reconciliation.sketches import HASHES, Cells, Grid, pack, sampled
from driftline.rows.digests import Digest, Salt

from source_agent.failpoints import SourceFailpoint
from source_agent.methods import request_validation
from source_agent.methods.interface import ExchangeEnd, Handover, Replies, Scan
from source_agent.methods.ranges import SlotDifference, difference, verdict
from source_agent.methods.request_validation import (
    CellCount,
    ParsedOpening,
    Received,
    SketchedRows,
)
from source_agent.scan.accumulators import RangeTotals, SketchCells
from source_agent.scan.batches import Batch, join_neighbours
from source_agent.scan.locators import KeptLocators, Labelling, among
from source_agent.scan.reader import Reader

_OUTSIDE = np.uint32(0xFFFFFFFF)  # the label of a row outside of the embedding; a k is less
assert SKETCH_KEYS_MAX <= _OUTSIDE


@dataclass(frozen=True, slots=True)
class DecodedSketch:
    """Every k that changed, uint64 [n] ascending, and the difference of its r, uint64 [n]; the
    number of rows outside; the total."""

    ks: U64
    rs: U64
    outside: int
    total: Digest

    @property
    def rows(self) -> int:
        """Number of rows that may have to be sent."""
        return len(self.ks) + self.outside


@dataclass(slots=True)
class SketchDecoded:
    """The answer to an opening with a sketch. strata: the warehouse's, of its cells, None: left
    out; is_brief: an empty list of deleted keys is left out; later: the opening, if the sums of the
    warehouse follow it."""

    sketch: request_validation.SketchParameters
    partition: Partition
    strata: Bytes | None
    is_brief: bool = False
    later: pb.Open | None = None
    _times: int = field(default=0, init=False)  # that cells came

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self | None:
        """Return the answer if the opening has a sketch. Raises MalformedMessage."""
        sketch = request_validation.sketch_of(opening.message, opening.shape)
        if sketch is None:
            return None
        said, is_brief = opening.message, request_validation.is_brief(opening.message)
        if said.later:
            return cls(sketch, opening.partition, None, is_brief, said)
        strata = request_validation.strata_in(said, HASHES * sketch.third)
        return cls(sketch, opening.partition, strata, is_brief)

    def replies(self, scan: Scan) -> Replies[ExchangeEnd | Handover]:
        # Before the scan, so that a malformed message costs the database nothing.
        received = (yield from self.first_cells()) if self.later is None else None
        kept = scan.keeping(self._labelling(scan.reader.salt))
        decoded = yield from self.decode(scan, received, kept)
        if not isinstance(decoded, DecodedSketch):
            if kept is not None:
                kept.drop()
            return decoded
        yield from self._send(scan, decoded, kept)
        return ExchangeEnd(decoded.total)

    def first_cells(self) -> Received[tuple[Grid, Cells] | None]:
        """Return the cells that follow the opening, and their grid; None: none do."""
        return (yield from self._cells((yield None), len)) if self.sketch.fold else None

    def decode(
        self, scan: Scan, received: tuple[Grid, Cells] | None, kept: KeptLocators | None = None
    ) -> Replies[DecodedSketch | ExchangeEnd | Handover]:
        """Scan, and decode cells until they explain every difference inside the embedding.

        received: from `first_cells`; not used if the sums of the warehouse come later.
        kept: from `Scan.keeping`, filled by the scan.
        """
        salt = scan.reader.salt
        totals = RangeTotals(self.partition)
        filled = SketchCells(self.sketch.embedding, self.sketch.third, salt)
        scan.fill(totals, filled, kept=kept)
        total, cells = totals.sums.total, filled.cells
        if self.later is not None:
            cells.shrink()  # it may be held for a while
            theirs = request_validation.sums_of((yield None).sums, self.later)
            received = yield from self.first_cells()
        else:
            theirs = SketchedRows(scan.ours, self.strata, self.sketch.check)
        if total == theirs.ours:
            return ExchangeEnd(total, equal=True)
        cells.shrink()
        decoder = Decoder(cells, self.sketch.embedding.span, salt, check=theirs.check)
        is_first = True
        while True:
            if received is not None:
                decoder.take(*received)
            if decoder.solved:
                return DecodedSketch(decoder.ks, decoder.rs, filled.outside, total)
            found, sample = SlotDifference(decoder.differing or 0), b""
            if decoder.differing is None:
                found = difference(theirs.strata, cells.r, salt)
                if is_first and theirs.strata is not None:
                    sample = cells.sample(sampled(found.differing, len(cells)))
            yield verdict(total, found, stuck=_stuck(decoder), sample=sample)
            SourceFailpoint.VERDICT_SENT.reach()
            is_first = False
            request = yield None
            if request.WhichOneof("message") != "cells":
                return Handover(totals.sums, self.partition, request)
            received = yield from self._cells(request, decoder.cells_expected)

    def _cells(self, first: pb.Request, expected: CellCount) -> Received[tuple[Grid, Cells]]:
        """Return the warehouse's grid and cells; refuse them after CELLS_TAKEN_MAX times."""
        self._times += 1
        if self._times > CELLS_TAKEN_MAX:
            raise MalformedMessage(f"Cells came more than {CELLS_TAKEN_MAX} times.")
        return (yield from request_validation.cells(first, self.sketch.third, expected))

    def _labelling(self, salt: Salt) -> Labelling:
        """Return the function from positions, int64 [n], to k, or _OUTSIDE, uint32 [n]."""

        def label(positions: Positions) -> U32:
            ks, inside = self.sketch.embedding.embed(positions, salt)
            return np.where(inside, ks.astype(np.uint32), _OUTSIDE)

        return label

    def _is_decoded(self, decoded: DecodedSketch, salt: Salt) -> Callable[[Positions], Bools]:
        """Return the test of positions, int64 [n], for a decoded k, or for none."""
        label, is_wanted = self._labelling(salt), _wanted(decoded)
        return lambda positions: is_wanted(label(positions))

    def _send(
        self, scan: Scan, decoded: DecodedSketch, kept: KeptLocators | None
    ) -> Iterator[pb.Reply]:
        """Send the rows below every decoded k and outside; then name the k without rows."""
        ks, reader = decoded.ks, scan.reader
        has_rows = np.zeros(len(ks), np.bool_)
        if len(ks) or decoded.outside:
            reader.tally.phase = "ship"
            outside = rows = chosen = 0
            found = self._find(scan, decoded, kept)
            for batch in found.batches:
                rows += len(batch.positions)
                k, inside = self.sketch.embedding.embed(batch.positions, reader.salt)
                at = np.minimum(np.searchsorted(ks, k), max(len(ks) - 1, 0))
                named = inside & (ks[at] == k) if len(ks) else np.zeros(len(k), np.bool_)
                has_rows[at[named]] = True
                outside += len(inside) - int(np.count_nonzero(inside))
                chosen += int(np.count_nonzero(named | ~inside))
                yield from scan.frames.pick(batch, named | ~inside)
            yield from scan.frames.flush()
            is_whole = found.rows in {None, rows} and (not found.is_exact or chosen == rows)
            reader.check_snapshot(outside == decoded.outside and is_whole)
        if not (self.is_brief and has_rows.all()):
            yield pb.Reply(deleted=pb.Deleted(ks=pack(ks[~has_rows])))

    def _find(self, scan: Scan, decoded: DecodedSketch, kept: KeptLocators | None) -> _FoundRows:
        """Read the rows below every decoded k and outside, and others too if a scan is cheaper."""
        reader, total = scan.reader, decoded.total.count
        if kept is not None:
            found = _located(reader, decoded, kept)
            kept.drop()
            if found is not None:
                return found
        rows, is_decoded = decoded.rows, self._is_decoded(decoded, reader.salt)
        if (by_key := scan.keys_first(is_decoded, rows=rows, total=total)) is not None:
            return _FoundRows(*by_key, is_exact=True)
        is_hashed = self.sketch.embedding.base is None
        if is_hashed or not reader.by_index(decoded.rows, total):
            return _FoundRows(reader.scan(), total)
        first, last = join_neighbours(self.sketch.embedding.positions(decoded.ks))
        if decoded.outside:
            zones = self.sketch.embedding.outside()
            first, last = np.append(first, zones[0]), np.append(last, zones[1])
        return _FoundRows(reader.find(first, last, rows=decoded.rows, total=total))


@dataclass(frozen=True, slots=True)
class _FoundRows:
    """Rows that are read again. rows: their number, None: not known; is_exact: all are wanted."""

    batches: Iterator[Batch]
    rows: int | None = None
    is_exact: bool = False


def _located(reader: Reader, decoded: DecodedSketch, kept: KeptLocators) -> _FoundRows | None:
    """Return the rows below every decoded k and outside, read where they lie; None: they are not
    kept, or are too many."""
    if (again := kept.again) is None:
        return None
    locators = kept.chosen(_wanted(decoded), reader.again_most(again, decoded.total.count))
    if locators is None:
        return None
    return _FoundRows(reader.at(again, locators), len(locators), is_exact=True)


def _wanted(decoded: DecodedSketch) -> Callable[[U32], Bools]:
    """Return the test of labels, uint32 [n], for a decoded k, or for none."""
    is_decoded = among(decoded.ks.astype(np.uint32))

    def is_wanted(labels: U32) -> Bools:
        chosen: Bools = is_decoded(labels) | (labels == _OUTSIDE)
        return chosen

    return is_wanted


def _stuck(decoder: Decoder) -> bytes:
    """Return the compressed bitmap of the cells that are not zero; empty before any came."""
    if decoder.grid is None:
        return b""
    bitmap = np.packbits(decoder.stuck, bitorder="little").tobytes()
    return zstandard.ZstdCompressor(level=3).compress(bitmap)
