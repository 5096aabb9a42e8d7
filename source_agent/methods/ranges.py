"""Ranges at the source: compare sums over ranges, and refine those that differ by row hashes.

The answer estimates how much differs (a verdict). If the warehouse then sends the digests of its
ranges, whatever it opened with, `refine` reads the rows of differing ranges again, by index where
they are few. Rows of ranges that are empty at the warehouse are sent; for the others the row hashes
are sent (`row_hashes`).

Memory is bounded by RANGES_MAX, ROW_HASHES_MAX and ROWS_HELD_BYTES, never by the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import U32, U64, Bools, Bytes, Integers, Positions
from driftline.limits import ROW_HASHES_MAX
from driftline.reconciliation.ranges import Partition, RangeSums, estimate_differing, strata
from driftline.rows.digests import MASK64, Digest, Salt

from source_agent.failpoints import SourceFailpoint
from source_agent.methods import request_validation
from source_agent.methods.full_copy import send_again
from source_agent.methods.interface import ExchangeEnd, Handover, Replies, Scan
from source_agent.methods.request_validation import ParsedOpening
from source_agent.methods.row_hashes import mismatch, send_hashes, send_wanted
from source_agent.scan.accumulators import RangeTotals
from source_agent.scan.batches import Batch, IdentifiedRows
from source_agent.scan.locators import KeptLocators
from source_agent.scan.reader import Reader


@dataclass(frozen=True, slots=True)
class RangesCompared:
    """The answer to an opening by ranges. strata: the warehouse's, of its ranges; None: it left
    them out."""

    partition: Partition
    strata: Bytes | None

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self:
        """Return the answer to any opening. Raises MalformedMessage."""
        partition = opening.partition
        return cls(partition, request_validation.strata_in(opening.message, partition.ranges))

    def replies(self, scan: Scan) -> Replies[ExchangeEnd | Handover]:
        totals, kept = RangeTotals(self.partition), scan.keeping(self._label)
        scan.fill(totals, kept=kept)
        sums = totals.sums
        if sums.total == scan.ours:
            return ExchangeEnd(sums.total, equal=True)
        slots = sums.short_digests()
        yield verdict(sums.total, difference(self.strata, slots, scan.reader.salt))
        SourceFailpoint.VERDICT_SENT.reach()
        return Handover(sums, self.partition, (yield None), kept)

    def _label(self, positions: Positions) -> U32:
        """Return the ranges of positions, int64 [n], as labels: uint32 [n]."""
        return self.partition.indices(positions).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class SlotDifference:
    """The number of slots that differ, ranges or cells of the finest table; or the source's strata
    over them, by which the warehouse estimates it."""

    differing: int = 0
    strata: bytes = b""


def difference(theirs: Bytes | None, slots: U64, salt: Salt) -> SlotDifference:
    """Estimate how many slots, digests of ranges or cells [n], differ from the warehouse's.

    theirs: the warehouse's strata, uint8 [strata, STRATUM_CELLS]; None: it left them out.
    """
    ours = strata(slots, salt)
    if theirs is None:
        return SlotDifference(strata=ours.tobytes())
    return SlotDifference(estimate_differing(theirs, ours, len(slots)))


def verdict(
    total: Digest, found: SlotDifference, *, stuck: bytes = b"", sample: bytes = b""
) -> pb.Reply:
    """Return the reply to a difference: the source's total, and how much differs.

    stuck: compressed bitmap of the cells that did not decode; sample: of the source's cells
    (`Cells.sample`).
    """
    made = pb.Verdict(count=total.count, sum=total.sum_bytes(), differing=found.differing)
    made.stuck, made.sample, made.strata = stuck, sample, found.strata
    return pb.Reply(verdict=made)


def compare_unmarked(
    scan: Scan, partition: Partition, theirs: Bytes | None
) -> Replies[ExchangeEnd | Handover]:
    """Compare all rows by their ranges: a mark cannot be used. theirs: the warehouse's strata,
    None: left out."""
    totals = RangeTotals(partition)
    scan.fill(totals)
    sums = totals.sums
    if sums.total == scan.ours:
        return ExchangeEnd(sums.total, equal=True)
    said = verdict(sums.total, difference(theirs, sums.short_digests(), scan.reader.salt))
    said.verdict.unmarked = True
    yield said
    return Handover(sums, partition, (yield None))


def refine(scan: Scan, at: Handover) -> Replies[ExchangeEnd]:
    """Continue with the warehouse's digests of ranges; send everything if too many rows differ.

    Raises MalformedMessage, and SnapshotLost if rows changed since the comparison.
    """
    by, ours = yield from request_validation.digests(at.request, at.partition.ranges)
    coarse = at.sums.coarsened(by)
    differs = coarse.short_digests() != ours
    yield mismatch(differs, coarse.counts[differs])
    reading = differs & (coarse.counts > 0)
    hashed = reading & (ours != 0)
    if int(coarse.counts[hashed].sum()) > ROW_HASHES_MAX:
        if at.kept is not None:
            at.kept.drop()
        yield pb.Reply(hashes_end=pb.HashesEnd(too_many=True))
        return (yield from send_again(scan, at))
    identified = yield from _identify(scan, at, coarse, by, reading=reading, hashed=hashed)
    total = at.sums.total
    if not identified.hashes:
        yield pb.Reply(hashes_end=pb.HashesEnd())
        return ExchangeEnd(total)
    order, hashes = identified.in_order()
    yield from send_hashes(hashes)
    wanted = order[(yield from request_validation.wanted(len(hashes)))]
    yield from send_wanted(scan, identified, wanted, total=total.count)
    return ExchangeEnd(total)


def _identify(
    scan: Scan, handed: Handover, coarse: RangeSums, by: int, *, reading: Bools, hashed: Bools
) -> Replies[IdentifiedRows]:
    """Read the coarse ranges in `reading`; send those that are not in `hashed`, keep the others.

    by: the coarsening, as a power of two; reading, hashed: bool [coarse ranges].
    """
    identified, reader, partition = IdentifiedRows(), scan.reader, handed.partition
    if not reading.any():
        return identified
    slot_of = np.cumsum(hashed) - 1
    expected = int(coarse.counts[reading].sum())
    rows = total = 0
    reader.tally.phase = "identify"
    batches = _located(reader, handed.kept, reading, by, coarse.total.count)
    if batches is None:
        found = scan.keys_first(
            lambda where: reading[partition.indices(where) >> by],
            rows=expected,
            total=coarse.total.count,
        )
        batches = None if found is None else found[0]
    if batches is None:
        first, last = _coarse_bounds(partition, np.flatnonzero(reading), by)
        batches = reader.find(first, last, rows=expected, total=coarse.total.count)
    for batch in batches:
        at = partition.indices(batch.positions) >> by
        part, at = batch.take(reading[at]), at[reading[at]]
        rows += len(at)
        total += int(part.mixed.m0.sum(dtype=np.uint64))
        yield from scan.frames.pick(part, ~hashed[at])
        identified.add(part.take(hashed[at]), slot_of[at[hashed[at]]])
    yield from scan.frames.flush()
    agrees = total & MASK64 == int(coarse.sums[reading].sum(dtype=np.uint64))
    reader.check_snapshot(rows == expected and agrees)
    return identified


def _located(
    reader: Reader, kept: KeptLocators | None, reading: Bools, by: int, total: int
) -> Iterator[Batch] | None:
    """Return the rows of the coarse ranges in `reading`, read where they lie; None: they are not
    kept, or are too many."""
    if kept is None or (again := kept.again) is None:
        return None
    most = reader.again_most(again, total)
    locators = kept.chosen(lambda ranges: reading[ranges >> np.uint32(by)], most)
    kept.drop()
    return None if locators is None else reader.at(again, locators)


def _coarse_bounds(partition: Partition, coarse: Integers, by: int) -> tuple[Positions, Positions]:
    """Return first and last position of coarse ranges, int64 [n] each, neighbours joined."""
    joined = np.flatnonzero(np.diff(coarse, prepend=-2) > 1)
    begin = coarse[joined] << by
    ends = coarse[np.append(joined[1:] - 1, len(coarse) - 1)] if len(coarse) else coarse
    last = np.minimum(((ends + 1) << by) - 1, partition.ranges - 1)
    return partition.bounds(begin)[0], partition.bounds(last)[1]
