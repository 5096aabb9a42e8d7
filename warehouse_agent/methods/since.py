"""The method since: the source sends the rows behind our mark, and compares the keys of all rows.

The opening has the mark, a sketch of our keys, and strata of our ranges in case the mark does not
fit. The source answers with rows, and with the keys that differ although no row behind the mark
has them. If it cannot use the mark, it says so and the comparison goes on as one of all rows.

Rows of ours are replaced where a row with their key came, or below a key that differs. What is
proven: the keys of the result are the source's, added up here from positions before anything is
written; its rows are ours without those replaced, and the rows that came (`finish`). Where the
marker is a checksum of each row, it is compared and proven with the key.

Rejected: to keep rows that came and had not changed out of the result. They are few, those of the
last minutes, and written again with the others; if nothing else came, nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from driftline import wire_pb2 as pb
from driftline.arrays import Bools
from driftline.errors import MalformedMessage, ProofFailed
from driftline.limits import SKETCH_KEYS_MAX
from driftline.reconciliation.ranges import Partition
from driftline.reconciliation.sketches import Grid, unpack
from driftline.rows.digests import Digest
from driftline.rows.key_digests import HASH_BYTES
from driftline.wire.negotiation import CHECKSUM

from warehouse_agent.change_models.operational_time import changes_expected
from warehouse_agent.methods import key_sums
from warehouse_agent.methods.conversation import ExchangeTerms, ShippedPositions
from warehouse_agent.methods.interface import Offers, Priced, Step, WorkingCopy
from warehouse_agent.methods.key_sums import KeySums
from warehouse_agent.methods.ranges import RangeSide
from warehouse_agent.methods.sketch import NO_CELLS, NO_KEYS, CellSide, sized
from warehouse_agent.planning.candidates import Candidate, ExchangeWork, priced
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import (
    NAMES,
    REPLY_BYTES,
    SKETCH_BYTES,
    Costs,
    Method,
    opening_bytes,
)
from warehouse_agent.planning.marker_state import MarkerState
from warehouse_agent.planning.plan_inputs import PlanInputs, Whole
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.tasks.difference import ListedRows, NoDifference, Outcome
from warehouse_agent.transport.waiting import Requests

# Seconds of the source for a key, over those for a row: measured on PostgreSQL, where keys are read
# and sketched, and where the database adds up their hashes (docs/results/refreshes.md). Keys lie
# on no more pages than rows, and fewer bytes of each are read and hashed: where a measurement
# says that they take longer than KEY_SHARE, something else kept the source busy.
KEY_SHARE: Final = 0.6
HASHED_SHARE: Final = 0.15


class SinceOpening:
    """Open with a mark, where the fragment accepts a proof of keys and the mark may be used."""

    method, stalls = Method.SINCE, False

    def supports(self, known: PlanInputs) -> bool:
        marker = known.marker
        is_wanted = known.forced in {None, Method.SINCE} and isinstance(known.scope, Whole)
        is_sound = bool(known.rows) and not known.rows_lost and known.version is not None
        is_usable = marker is not None and not marker.claims and not marker.refused(known.now)
        return is_sound and is_wanted and is_usable

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        del offers  # it stalls only where it is not a refresh by the marker any more
        marker, sketch = _marker(known), _sized(known, expected)
        ranges, cells = known.partition.ranges, sketch.cells
        fixed = REPLY_BYTES + opening_bytes(known.partition, known.strata_sent(ranges))
        cells = cells if sketch.stalls else known.strata_sent(cells)
        fixed += opening_bytes(known.partition, cells) + sketch.bytes_sent
        fixed += SKETCH_BYTES + len(marker.mark) * 2
        share = HASHED_SHARE if marker.hashes else KEY_SHARE
        if marker.keys_per_s is not None:
            share = min(known.line.rows_per_s / marker.keys_per_s, KEY_SHARE)
        scanned = round(known.theirs * share)
        return priced_changes(known, marker, fixed, changed, scanned=scanned), NAMES[self.method]

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> SincePlan:
        sketch = _sized(known, expected)
        return SincePlan(known.partition, known.costs, sketch, _marker(known))


def _sized(known: PlanInputs, expected: ChangeForecast | None) -> Sketch:
    """Return the sketch of our keys, for the rows that are expected to come or to go; where they
    have checksums, for all rows that are expected to change."""
    if expected is not None and not _marker(known).checksum:
        moved = [replace(one, updated=0) for one in known.earlier]
        expected = changes_expected(moved, known.ours, known.now, zone=known.zone)
    return sized(known, expected)


def _marker(known: PlanInputs) -> MarkerState:
    assert known.marker is not None, "without a marker there is no refresh by it"
    return known.marker


def priced_changes(
    known: PlanInputs, marker: MarkerState, fixed: int, changed: int, *, scanned: int
) -> tuple[Candidate, ...]:
    """Return a refresh by the marker that finds nothing, and one that finds `changed` rows.

    Args:
        fixed: bytes of the opening and of the answer.
        scanned: rows that take as long as what the source reads besides the rows that come.
    """
    candidates = []
    for method, d in ((None, 0), (Method.SINCE, changed)):
        came = d + marker.again
        size = fixed + int(known.prices.changes(came))
        what = NAMES[method] if method is not None else "nothing changed"
        work = ExchangeWork(size, 1, 1, (known.theirs if scanned else 0) + came)
        spent = priced(known, what, method, work, d)
        took = round(known.line.seconds(size, 1, scanned + came), 2)
        candidates.append(replace(spent, exchange_seconds=took))
    return tuple(candidates)


@dataclass(frozen=True, slots=True)
class SincePlan:
    """A sketch of keys, and a partition of rows in case the mark does not fit."""

    partition: Partition
    costs: Costs
    sketch: Sketch
    marker: MarkerState

    def reduce(self, copy: WorkingCopy) -> SinceSide:
        """Add up keys and rows of the working copy; one step."""
        hashes, checksum = self.marker.hashes, self.marker.checksum
        partition, sketch = self.partition, self.sketch
        sums = key_sums.reduced(copy, partition, sketch, hashes=hashes, checksum=checksum)
        ranges = RangeSide(self.partition, sums.ranges, copy, self.costs)
        return SinceSide(ranges, self.sketch, sums.cells, sums, self.marker, copy)


@dataclass(frozen=True, slots=True)
class SinceSide(CellSide):
    """Our side: a mark, our keys in cells, and our rows in ranges."""

    sums: KeySums
    marker: MarkerState
    copy: WorkingCopy

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Send the mark and the sketch of our keys; stall if all rows have to be compared."""
        hashes = b""
        if self.marker.hashes:
            hashes = self.sums.hashes.to_bytes(HASH_BYTES, "little")
        since = pb.Since(
            mark=self.marker.mark,
            keys=self.described(),
            sum=self.sums.keys.sum_bytes(),
            strata=self.strata(terms),
            hashes=hashes,
            checksums=bool(self.marker.checksum),
        )
        slots = self.ranges.strata(terms)
        features = (CHECKSUM,) if since.checksums else ()
        said = pb.Open(features=features, strata=slots, since=since)
        yield terms.opening(self.compared, self.ranges.partition, said)
        shipped = ShippedPositions(terms, self.marker.checksum)
        return (yield from self._go_on(terms, self.sketch.sent, shipped))

    def _go_on(
        self,
        terms: ExchangeTerms,
        grid: Grid | None,
        shipped: ShippedPositions,
        before: Grid | None = None,
        stuck: Bools = NO_CELLS,
    ) -> Requests[Step]:
        """Send the cells of a grid that the source lacks; receive its answer."""
        yield from self.send(grid, before, stuck)
        reply = yield shipped.take
        match reply.WhichOneof("message"):
            case "verdict" if reply.verdict.unmarked:
                return self.ranges.stalled(reply.verdict, terms)
            case "verdict":
                go_on = partial(self._go_on, shipped=shipped)
                found = self.stalled(reply.verdict, grid, go_on, terms)
                return replace(found, at=replace(found.at, of_keys=True))
            case "deleted":
                done = yield shipped.take
                return self._replaced(terms, reply.deleted, done.finished, shipped)
            case "finished" if terms.is_brief and reply.finished.since.by_marker:
                return self._replaced(terms, pb.Deleted(), reply.finished, shipped)
        return terms.finished(reply, self.compared, None, Method.RANGE)

    def _replaced(
        self,
        terms: ExchangeTerms,
        deleted: pb.Deleted,
        done: pb.Finished,
        shipped: ShippedPositions,
    ) -> Outcome:
        """Return which of our rows are replaced or deleted.

        Raises:
            ProofFailed: the keys of the result would not be the source's.
        """
        span = self.sketch.embedding.span
        most = min(self.sketch.cells, SKETCH_KEYS_MAX)
        ks = unpack(deleted.ks, span=span, count_max=most) if deleted.ks else NO_KEYS
        where, came = shipped.ascending(), shipped.rows
        gone = key_sums.replaced(
            self.copy, where, self.sketch.embedding, ks, checksum=self.marker.checksum
        )
        self._prove_keys(done, self.sums.keys - gone.keys + shipped.digest)
        difference = NoDifference() if came == gone.digest else ListedRows(gone.rows)
        outcome = terms.outcome(done, difference, Method.SINCE, self.compared - gone.digest + came)
        if not outcome.by_marker:  # a version made so must never be called total
            raise MalformedMessage("The source does not say that it read rows by the marker.")
        return outcome

    def _prove_keys(self, done: pb.Finished, ours: Digest) -> None:
        """Raise ProofFailed if the keys of the result, `ours`, are not the source's."""
        theirs = Digest(done.count, int.from_bytes(done.sum, "little"))
        if ours != theirs:
            raise ProofFailed(
                f"The result would have {ours.count:,} keys and the source has {theirs.count:,}, or"
                " they differ; nothing was published.",
                where=self.copy.name,
                remedy="Run the refresh again; report it if it happens twice.",
            )
