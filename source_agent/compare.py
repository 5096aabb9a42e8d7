"""The source's half of an exchange about one relation (protocol, section 9).

A generator of replies over an iterator of requests: one scan fingerprints every row and fills the
total and the range sums; what differs is then read again, by index where that touches few rows,
and answered with row hashes; what is wanted is shipped. Memory is bounded by RANGES_MAX,
ROW_HASHES_MAX and ROWS_HELD_BYTES, never by the table.

How identified rows are fetched was tried on all three engines (`benchmarks/RESULTS.md`): by index
where the key is an indexed integer and less than INDEX_SHARE of the rows is touched, else by a
second scan of the same snapshot; from memory when the rows fit the budget.

This module knows no gRPC server and no engine: it takes a `Session` and yields messages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zstandard
from driftline import wire_pb2 as pb
from driftline.columns import Block, gather
from driftline.digests import MASK64, Digest, Mixed, mix
from driftline.errors import LimitExceeded, MalformedMessage, NullKey, SnapshotLost
from driftline.fingerprints import hasher, position_seed, row_key
from driftline.keys import null_keys, positions
from driftline.limits import DIGESTS_PER_MESSAGE, ROW_HASHES_MAX, SAMPLES_MAX
from driftline.ranges import Partition, RangeSums, estimate_differing, strata

from source_agent import hear
from source_agent.engine import Consistency, Rows, Session, Shape
from source_agent.hold import Batch, Identified, Positions, up_to
from source_agent.printable import printable_row
from source_agent.ship import Shipper

INDEX_SHARE = 0.25  # the index won to 75 % and more, but in a cache and with rows in key order


@dataclass
class Tally:
    """What an exchange read, for the report and the audit."""

    scans: int = 0
    rows_read: int = 0
    rows_expected: int = 0
    phase: str = "scan"


class Comparison:
    """One relation of one exchange. `answer` is the whole conversation."""

    def __init__(self, session: Session, shape: Shape, opening: pb.Open, tally: Tally) -> None:
        self._session, self._shape, self.tally = session, shape, tally
        self._recipe = shape.recipe
        self._generation = session.generation
        hear.check_opening(opening, shape)
        self._salt, self._ours = hear.salt_of(opening), hear.digest_of(opening)
        self._partition, self._strata = hear.partition_of(opening), hear.strata_of(opening)
        self._fingerprints = hasher(row_key(opening.fragment_key, self._recipe))
        self._seed = position_seed(opening.fragment_key)
        self._shipper = Shipper(self._recipe, self._salt, level=min(max(opening.level, 1), 19))
        self.tally.rows_expected = shape.rows_expected

    def answer(self, requests: Iterator[pb.Request]) -> Generator[pb.Reply, None, None]:
        """Every reply to the opening and to what follows it.

        Raises:
            NullKey, ValueDoesNotFit, SnapshotLost, MalformedMessage, LimitExceeded.
        """
        if self._ours.count == 0:
            total = yield from self._ship_everything()
            yield self._finished(total, equal=total == self._ours)
            return
        sums = RangeSums(self._partition.ranges)
        for batch in self._scan():
            sums.add(self._partition.indices(batch.positions), batch.mixed)
        if sums.total == self._ours:
            yield self._finished(sums.total, equal=True)
            return
        theirs = strata(sums.short_digests(), self._salt)
        differing = estimate_differing(self._strata, theirs, self._partition.ranges)
        yield pb.Reply(
            verdict=pb.Verdict(
                count=sums.total.count, sum=sums.total.sum_bytes(), ranges_differing=differing
            )
        )
        yield from self._refine(sums, requests)

    def _refine(self, sums: RangeSums, requests: Iterator[pb.Request]) -> Iterator[pb.Reply]:
        """From the verdict to the end."""
        request = self._next(requests)
        if request.WhichOneof("message") == "whole":
            yield from self._everything_again(sums.total)
            return
        by, ours = hear.digests(request, lambda: self._next(requests), self._partition.ranges)
        coarse = sums.coarsened(by)
        differs = coarse.short_digests() != ours
        yield from _mismatch(differs, coarse.counts[differs])
        reading = differs & (coarse.counts > 0)
        hashed = reading & (ours != 0)
        if int(coarse.counts[hashed].sum()) > ROW_HASHES_MAX:
            yield pb.Reply(hashes_end=pb.HashesEnd(too_many=True))
            yield from self._everything_again(sums.total)
            return
        found = yield from self._identify(coarse, by, reading, hashed)
        if not found.hashes:
            yield pb.Reply(hashes_end=pb.HashesEnd())
            yield self._finished(sums.total)
            return
        order, hashes = found.in_order()
        for start in range(0, len(hashes), DIGESTS_PER_MESSAGE):
            piece = hashes[start : start + DIGESTS_PER_MESSAGE]
            yield pb.Reply(row_hashes=pb.RowHashes(hashes=piece.astype("<u8").tobytes()))
        yield pb.Reply(hashes_end=pb.HashesEnd())
        wanted = order[hear.wanted(lambda: self._next(requests), len(hashes))]
        yield from self._ship_wanted(found, wanted, sums.total.count)
        yield self._finished(sums.total)

    def _identify(
        self,
        coarse: RangeSums,
        by: int,
        reading: npt.NDArray[np.bool_],
        hashed: npt.NDArray[np.bool_],
    ) -> Generator[pb.Reply, None, Identified]:
        """Reads the coarse ranges in `reading`; ships those of them that are not in `hashed`."""
        found = Identified()
        if not reading.any():
            return found
        slot_of = np.cumsum(hashed) - 1
        expected = int(coarse.counts[reading].sum())
        rows = total = 0
        for batch in self._read(reading, by, expected, coarse.total.count):
            at = self._partition.indices(batch.positions) >> by
            chosen = reading[at]
            rows += int(np.count_nonzero(chosen))
            total += int(batch.mixed.m0[chosen].sum(dtype=np.uint64))
            yield from self._ship(batch, chosen & ~hashed[at])
            found.add(batch, hashed[at], slot_of[at])
        yield from self._shipper.flush()
        agrees = total & MASK64 == int(coarse.sums[reading].sum(dtype=np.uint64))
        self._same_snapshot(rows == expected and agrees)
        return found

    # Reading

    def _batches(self, source: Iterator[Rows]) -> Iterator[Batch]:
        for rows in source:
            block = gather(rows)
            if not self._shape.vouched:
                self._refuse_nulls(block)
            hi, lo = self._fingerprints(rows)
            where = positions(block, self._recipe, self._seed)
            self.tally.rows_read += len(rows)
            yield Batch(block, where, mix(self._salt, hi, lo))

    def _scan(self, *, ordered: bool = False) -> Iterator[Batch]:
        self.tally.scans += 1
        return self._batches(self._session.scan(self._shape, ordered=ordered))

    def _read(
        self, reading: npt.NDArray[np.bool_], by: int, rows: int, total: int
    ) -> Iterator[Batch]:
        """The rows of the coarse ranges marked in `reading`, and perhaps others."""
        self.tally.phase = "identify"
        if not self._by_index(rows, total):
            return self._scan()
        first, last = _coarse_bounds(self._partition, np.flatnonzero(reading), by)
        return self._batches(self._session.read_ranges(self._shape, first, last))

    def _by_index(self, rows: int, total: int) -> bool:
        usable = self._shape.indexed and self._recipe.integer_key
        return usable and rows <= INDEX_SHARE * total

    def _refuse_nulls(self, block: Block) -> None:
        null = null_keys(block, self._recipe)
        if not null.any():
            return
        rows = block.take(np.flatnonzero(null)[:SAMPLES_MAX]).rows()
        samples = [printable_row(row, self._recipe) for row in rows]
        keys = ", ".join(c.name for c in self._recipe.key)
        raise NullKey(
            f"The key ({keys}) is NULL in {len(samples)} or more rows, such as {samples[0]}.",
            where=self._shape.relation.name,
            remedy="Publish the relation with a key that is never NULL, or with a filter "
            '(`where = "… IS NOT NULL"`).',
            details={f"sample {i + 1}": text for i, text in enumerate(samples)},
        )

    # Shipping

    def _ship(self, batch: Batch, chosen: npt.NDArray[np.bool_]) -> Iterator[pb.Reply]:
        if chosen.all():
            yield from self._shipper.add(batch.block, batch.mixed)
        elif chosen.any():
            mixed = Mixed(batch.mixed.m0[chosen], batch.mixed.m1[chosen])
            yield from self._shipper.add(batch.block.take(chosen), mixed)

    def _ship_everything(self) -> Generator[pb.Reply, None, Digest]:
        """All rows in one scan, in key order where that is free; returns their digest."""
        self.tally.phase = "ship"
        total = Digest()
        for batch in self._scan(ordered=self._shape.ordered):
            total += batch.mixed.digest()
            yield from self._shipper.add(batch.block, batch.mixed)
        yield from self._shipper.flush()
        return total

    def _everything_again(self, before: Digest) -> Iterator[pb.Reply]:
        total = yield from self._ship_everything()
        self._same_snapshot(before == total)
        yield self._finished(total)

    def _ship_wanted(
        self, found: Identified, wanted: npt.NDArray[np.int64], total: int
    ) -> Iterator[pb.Reply]:
        """The wanted rows, by their arrival numbers: from memory, or read again."""
        if not len(wanted):
            return
        self.tally.phase = "ship"
        if found.blocks is not None:
            yield from self._ship_held(found.blocks, wanted)
            yield from self._shipper.flush()
            return
        hashes, left = np.unique(np.concatenate(found.hashes)[wanted], return_counts=True)
        where = np.unique(np.concatenate(found.positions)[wanted])
        if self._by_index(len(where), total):
            batches = self._batches(self._session.read_ranges(self._shape, where, where))
        else:
            batches = self._scan()
        for batch in batches:
            at = np.minimum(np.searchsorted(hashes, batch.mixed.m0), len(hashes) - 1)
            named = (hashes[at] == batch.mixed.m0) & np.isin(batch.positions, where)
            yield from self._ship(batch, up_to(left, at, named))
        yield from self._shipper.flush()
        self._same_snapshot(not left.any())

    def _ship_held(self, blocks: list[Block], wanted: npt.NDArray[np.int64]) -> Iterator[pb.Reply]:
        ends = np.cumsum([len(b) for b in blocks])
        for number, block in enumerate(blocks):
            start = int(ends[number]) - len(block)
            mine = np.sort(wanted[(wanted >= start) & (wanted < ends[number])]) - start
            if len(mine):
                part = block.take(mine)
                hi, lo = self._fingerprints(part.rows())
                yield from self._shipper.add(part, mix(self._salt, hi, lo))

    # The conversation

    def _next(self, requests: Iterator[pb.Request]) -> pb.Request:
        self._session.pause()
        request = next(requests, None)
        if request is None:
            raise MalformedMessage("The stream ended in the middle of a relation.")
        return request

    def _same_snapshot(self, agrees: bool = True) -> None:
        if self._session.generation != self._generation or not agrees:
            raise SnapshotLost(
                "The data changed between two reads of this exchange.",
                where=self._shape.relation.name,
            )

    @property
    def _consistency(self) -> Consistency:
        """Of this relation alone: others of the stream may have been read otherwise."""
        plan = self._shape.plan
        fuzzy = plan is not None and plan.consistency is Consistency.FUZZY
        if fuzzy or self._session.generation != self._generation:
            return Consistency.FUZZY
        return Consistency.EXACT

    def _finished(self, total: Digest, *, equal: bool = False) -> pb.Reply:
        return pb.Reply(
            finished=pb.Finished(
                equal=equal,
                count=total.count,
                sum=total.sum_bytes(),
                as_of=self._session.as_of,
                consistency=self._consistency.value,
                changed=self._session.generation != self._generation,
                vouched=self._shape.vouched,
                scans=self.tally.scans,
                rows_read=self.tally.rows_read,
            )
        )


def _coarse_bounds(
    partition: Partition, coarse: npt.NDArray[np.int64], by: int
) -> tuple[Positions, Positions]:
    """First and last position of coarse ranges, neighbours joined into one."""
    joined = np.flatnonzero(np.diff(coarse, prepend=-2) > 1)
    begin = coarse[joined] << by
    ends = coarse[np.append(joined[1:] - 1, len(coarse) - 1)] if len(coarse) else coarse
    last = np.minimum(((ends + 1) << by) - 1, partition.ranges - 1)
    return partition.bounds(begin)[0], partition.bounds(last)[1]


def _mismatch(differs: npt.NDArray[np.bool_], counts: npt.NDArray[np.int64]) -> Iterator[pb.Reply]:
    """Which ranges differ and how many rows the source has in each."""
    if len(counts) and int(counts.max()) >= 1 << 32:
        raise LimitExceeded("A range holds more than 2^32 rows.")
    compressor = zstandard.ZstdCompressor(level=3)
    bitmap = compressor.compress(np.packbits(differs, bitorder="little").tobytes())
    numbers = compressor.compress(counts.astype("<u4").tobytes())
    yield pb.Reply(mismatch=pb.Mismatch(bitmap=bitmap, counts=numbers, last=True))
