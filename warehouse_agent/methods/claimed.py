"""The method since without a comparison of keys: the source sends what its marker claims.

The opening has the mark, and strata of our ranges in case the mark does not fit. The source answers
with the rows behind the mark, and with the positions of those that are gone. Rows of ours are
replaced where a row with their key came, and deleted where it is gone.

Nothing is proven of the other rows, nor that none was inserted or deleted besides: a version made
so is `claimed`. Proven is that what was sent has arrived (its digest), and that the files have the
rows of this result (`finish`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import Positions
from driftline.errors import MalformedMessage, ProofFailed
from driftline.limits import GONE_ROWS_MAX
from driftline.reconciliation.ranges import Partition
from driftline.rows.digests import Digest

from warehouse_agent.methods import key_sums
from warehouse_agent.methods.conversation import ExchangeTerms, ShippedPositions
from warehouse_agent.methods.interface import Offers, Priced, Step, WorkingCopy
from warehouse_agent.methods.ranges import BesideRanges, RangePlan
from warehouse_agent.methods.since import priced_changes
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import NAMES, REPLY_BYTES, Costs, Method, opening_bytes
from warehouse_agent.planning.marker_state import MarkerState
from warehouse_agent.planning.plan_inputs import PlanInputs, Whole
from warehouse_agent.tasks.difference import ListedRows, NoDifference, Outcome
from warehouse_agent.transport.waiting import Requests


class ClaimOpening:
    """Open with a mark, where the fragment accepts claims and the mark may be used."""

    method, stalls = Method.SINCE, False

    def supports(self, known: PlanInputs) -> bool:
        marker = known.marker
        is_wanted = known.forced in {None, Method.SINCE} and isinstance(known.scope, Whole)
        is_sound = bool(known.rows) and not known.rows_lost and known.version is not None
        is_usable = marker is not None and marker.claims and not marker.refused(known.now)
        return is_sound and is_wanted and is_usable

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        del expected, offers  # it stalls only where it is not a refresh by the marker any more
        marker = _marker(known)
        slots = known.strata_sent(known.partition.ranges)
        fixed = REPLY_BYTES + opening_bytes(known.partition, slots)
        fixed += len(marker.mark) * 2
        return priced_changes(known, marker, fixed, changed, scanned=0), NAMES[self.method]

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> ClaimPlan:
        del expected
        return ClaimPlan(known.partition, known.costs, _marker(known))


def _marker(known: PlanInputs) -> MarkerState:
    assert known.marker is not None, "without a marker there is no refresh by it"
    return known.marker


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """A partition of rows in case the mark does not fit."""

    partition: Partition
    costs: Costs
    marker: MarkerState

    def reduce(self, copy: WorkingCopy) -> ClaimSide:
        """Add up the working copy; one step."""
        return ClaimSide(RangePlan(self.partition, self.costs).reduce(copy), self.marker, copy)


@dataclass(frozen=True, slots=True)
class ClaimSide(BesideRanges):
    """Our side: a mark, and our rows in ranges."""

    marker: MarkerState
    copy: WorkingCopy

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Send the mark; stall if all rows have to be compared.

        Raises:
            MalformedMessage, ProofFailed: the answer is none of claims, or does not fit our rows.
        """
        slots = self.ranges.strata(terms)
        said = pb.Open(strata=slots, since=pb.Since(mark=self.marker.mark, claimed=True))
        yield terms.opening(self.compared, self.ranges.partition, said)
        shipped = ShippedPositions(terms, "")
        reply = yield shipped.take
        match reply.WhichOneof("message"):
            case "verdict" if reply.verdict.unmarked:
                return self.ranges.stalled(reply.verdict, terms)
            case "deleted":
                done = yield shipped.take
                return self._replaced(terms, reply.deleted, done.finished, shipped)
            case "finished" if terms.is_brief and reply.finished.since.claimed:
                return self._replaced(terms, pb.Deleted(), reply.finished, shipped)
            case "finished":
                return terms.finished(reply, self.compared, None, Method.RANGE)
        raise MalformedMessage("The source compares cells where there are none.")

    def _replaced(
        self,
        terms: ExchangeTerms,
        deleted: pb.Deleted,
        done: pb.Finished,
        shipped: ShippedPositions,
    ) -> Outcome:
        """Return which of our rows are replaced or deleted.

        Raises:
            ProofFailed: rows did not arrive, or two rows of ours have one position.
        """
        came = shipped.rows
        if Digest(done.count, int.from_bytes(done.sum, "little")) != came or deleted.ks:
            raise MalformedMessage("The rows that came are not those that the source sent.")
        where = np.union1d(shipped.ascending(), _positions(deleted))
        gone = key_sums.replaced(self.copy, where, None, np.zeros(0, np.uint64))
        if len(np.unique(gone.rows.positions)) < len(gone.rows.positions):
            raise ProofFailed(
                "Two keys have one position, so that the marker's claims cannot be told apart.",
                where=self.copy.name,
                remedy="Run the refresh again: it compares all rows.",
            )
        difference = NoDifference() if came == gone.digest else ListedRows(gone.rows)
        outcome = terms.outcome(done, difference, Method.SINCE, self.compared - gone.digest + came)
        if not outcome.is_claimed:  # a version made so must never be called more
            raise MalformedMessage("The source does not say that it compared no keys.")
        return outcome


def _positions(deleted: pb.Deleted) -> Positions:
    """Return the positions of deleted rows, int64 [n]. Raises MalformedMessage."""
    if len(deleted.positions) % 8 or len(deleted.positions) > 8 * GONE_ROWS_MAX:
        raise MalformedMessage("The deleted rows are malformed.")
    return np.frombuffer(deleted.positions, "<i8").astype(np.int64)
