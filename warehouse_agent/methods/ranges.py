"""The range method (Carnes and Hanson, refined by row hashes).

The opening sends strata of our range sums. If both sides differ, we send digests of ranges, the
source answers with row hashes of the ranges that differ, and we name the wanted rows bit by bit.
Row hashes are compared as multisets, range by range: rows that only the source has are wanted, rows
that only the warehouse has are removed. Our rows in the ranges that differ are listed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import zstandard
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bools
from driftline.errors import MalformedMessage
from driftline.limits import (
    DIGESTS_PER_MESSAGE,
    MESSAGE_BYTES_MAX,
    RANGES_MAX,
    ROW_HASHES_MAX,
    STRATUM_CELLS,
)
from driftline.reconciliation.ranges import Partition, RangeSums, estimate_differing, strata
from driftline.rows.digests import Digest, Salt

from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.interface import (
    Offers,
    Priced,
    RangedRows,
    StalledExchange,
    Step,
    WorkingCopy,
)
from warehouse_agent.planning.candidates import in_tiles, stalled_ways
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import (
    Choice,
    Costs,
    Disagreement,
    Method,
    PricedChoice,
    offer_ranges,
)
from warehouse_agent.planning.network import REFRESH_LEVEL
from warehouse_agent.planning.plan_inputs import PlanInputs, Whole
from warehouse_agent.planning.sketch_size import Stall
from warehouse_agent.planning.tiling import Tiled
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import AllRows, ListedRows
from warehouse_agent.tasks.digests import Listing
from warehouse_agent.transport.waiting import Requests

Hashes = npt.NDArray[np.uint64]

COUNT_BYTES = 4  # size of the number of rows in one differing range


@dataclass(frozen=True, slots=True)
class RangeSide(RangedRows):
    """Our side in ranges."""

    rest: ClassVar[Digest] = Digest()
    updates_left: ClassVar[float] = 0.0
    turn: ClassVar[NextPartNote] = NextPartNote()

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        said = pb.Open(strata=self.strata(terms))
        yield terms.opening(self.compared, self.partition, said)
        reply = yield None
        if not reply.HasField("verdict"):
            return terms.finished(reply, self.compared, None, Method.RANGE)
        if reply.verdict.sample:
            raise MalformedMessage("A sample of cells came where there are none.")
        return self.stalled(reply.verdict, terms)

    def strata(self, terms: ExchangeTerms) -> bytes:
        """Return the strata of our ranges; empty if they may be left out."""
        if terms.is_brief:
            return b""
        return strata(self.sums.short_digests(), terms.salt).tobytes()

    def stalled(self, verdict: pb.Verdict, terms: ExchangeTerms) -> StalledExchange:
        """Return the state after a verdict about ranges. Raises MalformedMessage."""
        differing = slots_that_differ(verdict, self.sums.short_digests(), terms.salt)
        return StalledExchange(self.disagreement(verdict, differing), self)

    def disagreement(
        self, verdict: pb.Verdict, differing: int, stall: Stall | None = None
    ) -> Disagreement:
        """Return what is known after a verdict about so many differing slots; `stall` is the sketch
        that the source holds."""
        return Disagreement(
            self.costs,
            ours=Digest(self.compared.count + self.costs.rows_lost),
            theirs=Digest(verdict.count, int.from_bytes(verdict.sum, "little")),
            ranges=self.partition.ranges,
            differing=differing,
            stall=stall,
        )


@dataclass(frozen=True, slots=True)
class BesideRanges:
    """Our side of a method that compares otherwise, with our rows in ranges in case it stalls."""

    ranges: RangeSide
    rest: ClassVar[Digest] = Digest()
    updates_left: ClassVar[float] = 0.0
    turn: ClassVar[NextPartNote] = NextPartNote()

    @property
    def rows(self) -> int:
        """Return the number of our rows that are compared."""
        return self.ranges.rows

    @property
    def compared(self) -> Digest:
        """Return the digest of all our rows."""
        return self.ranges.compared


class RangeOpening:
    """Open with strata of range sums."""

    method, stalls = Method.RANGE, True

    def supports(self, known: PlanInputs) -> bool:
        return bool(known.rows) and isinstance(known.scope, Whole | Tiled)

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        if isinstance(known.scope, Tiled):
            return in_tiles(known, known.scope, changed)
        return stalled_ways(known, None, changed, offers)

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> RangePlan:
        return RangePlan(known.partition, known.costs)


@dataclass(frozen=True, slots=True)
class RangePlan:
    """Sums over the ranges of a partition."""

    partition: Partition
    costs: Costs

    def reduce(self, copy: WorkingCopy) -> RangeSide:
        """Add up the working copy; one step, none where it is empty."""
        sums = RangeSums(self.partition.ranges)
        if copy.files:
            place = (copy.steps, copy.files, copy.layout, self.partition, copy.salt)
            sums = digests.reduced(*place).ranges
        return RangeSide(self.partition, sums, copy, self.costs)


class RangeDigests:
    """Continue with digests of ranges, coarsened as was chosen."""

    method = Method.RANGE

    def offer(self, at: Disagreement) -> PricedChoice | None:
        return offer_ranges(at)

    def go_on(self, at: StalledExchange, choice: Choice, terms: ExchangeTerms) -> Requests[Step]:
        removed = yield from refine(at.ours, choice.coarsen)
        difference = AllRows() if removed is None else ListedRows(removed)
        return terms.finished((yield None), at.ours.compared, difference, self.method)


def refine(ours: RangedRows, by: int) -> Requests[Listing | None]:
    """Compare ranges coarsened by `by` until all wanted rows are on their way.

    Returns:
        Rows of ours that the source does not have; None: everything follows.

    Raises:
        MalformedMessage: the replies do not fit each other.
    """
    sent = ours.sums.coarsened(by).short_digests()
    for piece, last in _pieces(sent):
        yield pb.Request(digests=pb.Digests(coarsen=by, digests=piece, last=last))
    differs, counts = yield from mismatch((yield None), len(sent))
    hashes = yield from row_hashes()
    if hashes is None:
        return None
    # Hashes come range by range, of the ranges in which both sides have rows.
    hashed = (sent[differs] != 0) & (counts > 0)
    if int(counts[hashed].sum()) != len(hashes):
        raise MalformedMessage("The source sent another number of row hashes than it said.")
    ranges = np.repeat(np.flatnonzero(differs)[hashed], counts[hashed])
    listed = ours.lister.list_rows(ours.partition, by, differs & (sent != 0))
    removed, wanted = multiset_difference(listed.ranges, listed.hashes, ranges, hashes)
    if len(hashes):
        yield from want(wanted)
    return some(listed, removed)


def mismatch(reply: pb.Reply, ranges: int) -> Requests[tuple[Bools, npt.NDArray[np.int64]]]:
    """Return which ranges differ, bool [ranges], and the source's rows in each that does, int64
    [differing ranges]. Raises MalformedMessage.

    reply: the first piece.
    """
    bits, numbers = bytearray(), bytearray()
    while True:
        bits += reply.mismatch.bitmap
        numbers += reply.mismatch.counts
        is_last = reply.mismatch.last
        if not (is_last or reply.mismatch.bitmap or reply.mismatch.counts):
            raise MalformedMessage("A piece of the differing ranges holds nothing.")
        if len(bits) + len(numbers) > 2 * COUNT_BYTES * RANGES_MAX:
            raise MalformedMessage("The differing ranges came with too many bytes.")
        if is_last:
            break
        reply = yield None
    differs = bitmap(bytes(bits), ranges)
    raw = _inflate(bytes(numbers), int(differs.sum()) * COUNT_BYTES)
    if len(raw) != int(differs.sum()) * COUNT_BYTES:
        raise MalformedMessage("The differing ranges came with another number of counts.")
    return differs, np.frombuffer(raw, "<u4").astype(np.int64)


def row_hashes() -> Requests[Hashes | None]:
    """Return all row hashes, uint64 [n], in the order they came; None: too many, everything
    follows. Raises MalformedMessage."""
    held = bytearray()  # one, for a piece may hold a single hash
    while True:
        reply = yield None
        if reply.HasField("hashes_end"):
            if reply.hashes_end.too_many:
                if held:
                    raise MalformedMessage("Row hashes came, and were too many to be sent.")
                return None
            return np.frombuffer(held, "<u8").astype(np.uint64)
        if len(reply.row_hashes.hashes) % 8 or not reply.row_hashes.hashes:
            raise MalformedMessage("Row hashes were expected.")
        held += reply.row_hashes.hashes
        if len(held) > 8 * ROW_HASHES_MAX:
            raise MalformedMessage(f"More than {ROW_HASHES_MAX} row hashes came.")


def want(wanted: Bools) -> Iterator[pb.Request]:
    """Name the wanted rows, bool [row hashes], in the order of the hashes."""
    bits = np.packbits(wanted, bitorder="little").tobytes()
    data = zstandard.ZstdCompressor(level=REFRESH_LEVEL).compress(bits)
    step = MESSAGE_BYTES_MAX // 2
    for at in range(0, len(data), step):
        piece = pb.Wanted(bitmap=data[at : at + step], last=at + step >= len(data))
        yield pb.Request(wanted=piece)


def bitmap(data: bytes, count: int) -> Bools:
    """Return bool [count] from its bits under zstd. Raises MalformedMessage."""
    raw = _inflate(data, (count + 7) // 8)
    if len(raw) != (count + 7) // 8:
        raise MalformedMessage("A bitmap has another length than what it is about.")
    bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[:count]
    return bits.astype(np.bool_)


def no_strata(terms: ExchangeTerms) -> bytes:
    """Return the strata of one who has no rows; empty if they may be left out."""
    if terms.is_brief:
        return b""
    return strata(RangeSums(1).short_digests(), terms.salt).tobytes()


def slots_that_differ(verdict: pb.Verdict, ours: U64, salt: Salt) -> int:
    """Return how many slots differ, as a verdict says or as its strata tell.

    ours: digests of our ranges or cells, uint64 [slots]. Raises MalformedMessage: the strata are of
    another number of slots.
    """
    if not verdict.strata:
        return verdict.differing
    mine = strata(ours, salt)
    if len(verdict.strata) != mine.size:
        raise MalformedMessage("A verdict has another number of strata than the slots.")
    theirs = np.frombuffer(verdict.strata, np.uint8).reshape(-1, STRATUM_CELLS)
    return estimate_differing(mine, theirs, len(ours))


def multiset_difference(
    our_ranges: npt.NDArray[np.int64],
    our_hashes: Hashes,
    their_ranges: npt.NDArray[np.int64],
    their_hashes: Hashes,
) -> tuple[Bools, Bools]:
    """Return our rows that the source lacks, bool [ours], and its rows that we lack, bool [theirs].

    Equal pairs of range and hash cancel one for one, so duplicates count.

    Args:
        our_ranges, our_hashes: of each of our rows, int64 [ours] and uint64 [ours].
        their_ranges, their_hashes: the same of the source, [theirs].
    """
    ranges = np.concatenate([our_ranges, their_ranges])
    hashes = np.concatenate([our_hashes, their_hashes])
    theirs = np.repeat([False, True], [len(our_ranges), len(their_ranges)])
    order = np.lexsort((theirs, hashes, ranges))
    r, h, t = ranges[order], hashes[order], theirs[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (r[1:] != r[:-1]) | (h[1:] != h[:-1])
    group = np.cumsum(fresh) - 1
    groups = int(group[-1]) + 1 if len(group) else 0
    n_theirs = np.bincount(group, weights=t, minlength=groups).astype(np.int64)
    n_ours = np.bincount(group, minlength=groups) - n_theirs
    pairs = np.minimum(n_ours, n_theirs)[group]
    first = np.flatnonzero(fresh)[group]
    rank = np.arange(len(order)) - first - np.where(t, n_ours[group], 0)
    alone = np.zeros(len(order), np.bool_)
    alone[order] = rank >= pairs
    return alone[: len(our_ranges)], alone[len(our_ranges) :]


def some(listed: Listing, chosen: Bools) -> Listing:
    """Return the chosen rows of a listing, bool [rows]."""
    return Listing(
        listed.ranges[chosen],
        listed.positions[chosen],
        listed.hashes[chosen],
        listed.file[chosen],
    )


def _pieces(digests: Hashes) -> Iterator[tuple[bytes, bool]]:
    for at in range(0, len(digests), DIGESTS_PER_MESSAGE):
        end = at + DIGESTS_PER_MESSAGE
        yield digests[at:end].astype("<u8").tobytes(), end >= len(digests)


def _inflate(data: bytes, limit: int) -> bytes:
    """Return at most `limit` bytes. The declared size is allocated, so it is checked first."""
    try:
        if zstandard.frame_content_size(data) > limit:
            raise MalformedMessage("A bitmap is longer than what it is about.")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=max(limit, 1))
    except zstandard.ZstdError as error:
        raise MalformedMessage(f"A bitmap is damaged: {error}.") from None
