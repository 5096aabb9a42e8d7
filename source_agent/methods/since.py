"""Rows behind a mark, and the keys of all rows, in one exchange and one snapshot.

Updated rows are what the relation's marker claims them to be. Inserted and deleted rows are proven:
the keys of all rows are compared with those of the warehouse, whatever the marker does.

 1. The rows behind the mark are read.
 2. If the database hashes keys, it is asked for one sum over all of them. If that is the
    warehouse's, together with rows behind the mark that it certainly lacks (their keys lie outside
    of its own), no key vanished and none is read.
 3. Else the keys are read and sketched. Keys that only one side has are decoded from the difference
    as in a sketch of rows; those that did not come by the marker are sent, or have no row.
 4. Where the marker is a checksum of each row, it is read and sketched with the key, so that keys
    whose checksums differ are decoded too; behind the mark are only rows without a checksum.

Nothing is sent before the keys are decoded, so a comparison that cannot be finished in this way can
still go on as one of all rows; so does one whose mark does not fit (`scan.marked`).

Source: Carnes and Hanson, section 3 (TS, TDI, ATDI), with keys compared by a sketch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bools, Bytes, Positions
from driftline.reconciliation.ranges import POSITION_MIN, Partition
from driftline.reconciliation.sketches import PRIME, Embedding, elements, pack
from driftline.rows.digests import MASK64, Digest
from driftline.rows.key_digests import hash_seed, hashed, mixed_keys

from source_agent.methods import request_validation
from source_agent.methods.interface import ExchangeEnd, Handover, Replies, Scan
from source_agent.methods.ranges import compare_unmarked
from source_agent.methods.request_validation import ParsedOpening, SinceParameters
from source_agent.methods.sketch import DecodedSketch, SketchDecoded
from source_agent.scan.accumulators import RangeTotals
from source_agent.scan.batches import Batch, join_neighbours
from source_agent.scan.marked import ExchangeMarker, RowsBehindMark

_HALF: Final = np.uint64(32)
_ONE_RANGE: Final = Partition((POSITION_MIN,), (63,))


@dataclass(frozen=True, slots=True)
class _Keys:
    """The difference of the keys: `total` of the source's; every k that only one side has and no
    row behind the mark, uint64 [n] ascending; and the number of rows outside the embedding that are
    not behind the mark."""

    total: Digest
    ks: U64
    outside: int


@dataclass(frozen=True, slots=True)
class SinceRead:
    """The answer to an opening with a mark. strata: the warehouse's, of its ranges of rows; None:
    left out; is_brief: an empty list of deleted keys is left out."""

    parameters: SinceParameters
    partition: Partition
    strata: Bytes | None
    is_brief: bool

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self | None:
        """Return the answer if the opening has a mark. Raises MalformedMessage."""
        parameters = request_validation.since_of(opening.message, opening.shape)
        if parameters is None:
            return None
        partition, said = opening.partition, opening.message
        strata = request_validation.strata_in(said, partition.ranges)
        return cls(parameters, partition, strata, request_validation.is_brief(said))

    def replies(self, scan: Scan) -> Replies[ExchangeEnd | Handover]:
        marked, given = scan.marked, self.parameters
        assert marked is not None, "an opening with a mark has a marker"
        sketch = SketchDecoded(given.keys, _ONE_RANGE, given.strata)
        received = yield from sketch.first_cells()
        if marked.theirs is None:
            return (yield from compare_unmarked(scan, self.partition, self.strata))
        scan.reader.tally.phase = "read changes"
        behind = marked.behind()
        if behind is None:
            scan.reader.tally.phase = "scan"
            return (yield from compare_unmarked(scan, self.partition, self.strata))
        if len(behind):
            marked.count_future()
        total = None if given.hashes is None else self._counted(scan, marked, behind)
        if total is not None:
            differing = _Keys(total, np.zeros(0, np.uint64), 0)
        else:
            scan.reader.tally.phase = "scan keys"
            keys = replace(scan, reader=marked.keys, ours=given.ours, pool=None)
            decoded = yield from sketch.decode(keys, received)
            if isinstance(decoded, Handover):
                marked.audit(behind.positions)
                return self._handed_over(scan, decoded.request)
            differing = self._unexplained(decoded, behind, scan)
        yield from self._send(scan, marked, behind, differing)
        return ExchangeEnd(differing.total, by_marker=True)

    def _handed_over(self, scan: Scan, request: pb.Request) -> Handover:
        """Add up all rows, for a comparison that goes on without the mark."""
        totals = RangeTotals(self.partition)
        scan.fill(totals)
        return Handover(totals.sums, self.partition, request)

    def _counted(self, scan: Scan, marked: ExchangeMarker, behind: RowsBehindMark) -> Digest | None:
        """Ask the database for the number and the hashes of all keys.

        Returns the digest of the source's keys if they are the warehouse's and those of rows behind
        the mark that lie outside of its keys; None: keys vanished or came, or it cannot be told.
        """
        given, salt = self.parameters, scan.reader.salt
        ours, embedding = given.ours, given.keys.embedding
        assert given.hashes is not None
        count_and_sum = marked.hash_keys(hash_seed(salt))
        if count_and_sum is None:
            return None
        count, hashes = count_and_sum
        new, new_hashes = Digest(), 0
        for batch in behind.batches() if embedding.base is not None else ():
            outside = _outside(embedding, batch.positions)
            if outside.any():
                part = batch.take(outside)
                new += mixed_keys(part.positions, salt).digest()
                block, columns = part.block, scan.reader.recipe.key_columns
                new_hashes += hashed(block.buffer, block.starts[:-1] + 2, columns, salt)
        is_explained = count == ours.count + new.count
        is_explained &= (hashes - given.hashes - new_hashes) & MASK64 == 0
        marked.counted = is_explained
        return ours + new if is_explained else None

    def _unexplained(
        self, decoded: DecodedSketch | ExchangeEnd, behind: RowsBehindMark, scan: Scan
    ) -> _Keys:
        """Return the difference of the keys without those of rows behind the mark."""
        if isinstance(decoded, ExchangeEnd):
            return _Keys(decoded.total, np.zeros(0, np.uint64), 0)
        salt = scan.reader.salt
        ks, inside = self.parameters.keys.embedding.embed(behind.positions, salt)
        outside = int(np.count_nonzero(~inside))
        came = elements(mixed_keys(behind.positions[inside], salt).m0)
        left = decoded.ks[~_explained(decoded, ks[inside], came)]
        return _Keys(decoded.total, left, max(decoded.outside - outside, 0))

    def _send(
        self, scan: Scan, marked: ExchangeMarker, behind: RowsBehindMark, keys: _Keys
    ) -> Iterator[pb.Reply]:
        """Send the rows behind the mark, and those of new keys; name the keys that differ."""
        scan.reader.tally.phase = "ship"
        for batch in behind.batches():
            yield from scan.frames.add(batch)
        if len(keys.ks) or keys.outside:
            for batch in self._find(scan, marked, behind, keys):
                chosen = self._is_new(scan, batch.positions, behind, keys.ks)
                yield from scan.frames.pick(batch, chosen)
        yield from scan.frames.flush()
        scan.reader.check_snapshot()
        if len(keys.ks) or not self.is_brief:
            yield pb.Reply(deleted=pb.Deleted(ks=pack(keys.ks)))

    def _is_new(self, scan: Scan, where: Positions, behind: RowsBehindMark, ks: U64) -> Bools:
        """Return which rows, int64 [n], came without the marker: bool [n]."""
        embedded, inside = self.parameters.keys.embedding.embed(where, scan.reader.salt)
        chosen: Bools = (inside & np.isin(embedded, ks)) | ~inside
        return chosen & ~behind.holds(where)

    def _find(
        self, scan: Scan, marked: ExchangeMarker, behind: RowsBehindMark, keys: _Keys
    ) -> Iterator[Batch]:
        """Yield the rows of the keys that differ, and others too where all are read."""
        embedding, total = self.parameters.keys.embedding, keys.total.count
        rows = len(keys.ks) + keys.outside
        if embedding.base is None:
            is_any = self._any(scan, marked, behind, keys)
            return scan.reader.scan() if is_any else iter(())
        first, last = join_neighbours(embedding.positions(keys.ks))
        if keys.outside:
            zones = embedding.outside()
            first, last = np.append(first, zones[0]), np.append(last, zones[1])
        return scan.reader.find(first, last, rows=rows, total=total)

    def _any(self, scan: Scan, marked: ExchangeMarker, behind: RowsBehindMark, keys: _Keys) -> bool:
        """Return True if a row that is not sent yet has one of these hashed keys."""
        return any(
            self._is_new(scan, batch.positions, behind, keys.ks).any()
            for batch in marked.keys.scan()
        )


def _explained(decoded: DecodedSketch, ks: U64, rs: U64) -> Bools:
    """Return which decoded k are new keys of rows behind the mark and nothing else: bool [n].

    Where several rows share a hashed k, one of them may be new and another one only updated, or a
    key vanished below an updated row: the difference of r is that of a new row, or of all rows, or
    it is not explained.

    Args:
        ks, rs: of the rows behind the mark, uint64 [m] each.
    """
    if not len(ks):
        return np.zeros(len(decoded.ks), np.bool_)
    is_new: Bools = np.isin(decoded.ks << _HALF | decoded.rs, ks << _HALF | rs)
    order = np.argsort(ks, kind="stable")
    distinct, first = np.unique(ks[order], return_index=True)
    sums = np.add.reduceat(rs[order], first) % np.uint64(PRIME)
    at = np.minimum(np.searchsorted(distinct, decoded.ks), len(distinct) - 1)
    is_new |= (distinct[at] == decoded.ks) & (sums[at] == decoded.rs)
    return is_new


def _outside(embedding: Embedding, where: Positions) -> Bools:
    """Return which positions, int64 [n], no row of the warehouse has: bool [n]."""
    first, last = embedding.outside()
    is_outside = np.zeros(len(where), np.bool_)
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        is_outside |= (a <= where) & (where <= b)
    return is_outside
