"""A full copy: every row of the source comes and replaces ours."""

from __future__ import annotations

from driftline import wire_pb2 as pb

from warehouse_agent.methods.conversation import Talk
from warehouse_agent.methods.interface import Offers, Stalled, Step
from warehouse_agent.methods.ranges import RangePlan
from warehouse_agent.planning.candidates import Candidate, Known, Whole, load, stalled_ways
from warehouse_agent.planning.change_forecast import Expected
from warehouse_agent.planning.choice import (
    NAMES,
    Choice,
    Disagreement,
    Method,
    PricedChoice,
    offer_copy,
)
from warehouse_agent.tasks.difference import Everything


class FullCopyOpening:
    """Open with range sums, so that equal tables end it, and go on with every row."""

    method, stalls = Method.FULL, True

    def supports(self, known: Known) -> bool:
        """Return True if there are no rows, or a copy is asked for."""
        is_asked = known.forced is Method.FULL and isinstance(known.scope, Whole)
        return not known.rows or is_asked

    def price(
        self,
        known: Known,
        expected: Expected | None,  # noqa: ARG002
        changed: int,
        offers: Offers,
    ) -> tuple[tuple[Candidate, ...], str]:
        """Return a first load, or the ways from strata of ranges."""
        if known.rows is None:
            return (load(known),), NAMES[self.method]
        return stalled_ways(known, None, changed, offers)

    def plan(self, known: Known, expected: Expected | None) -> RangePlan:  # noqa: ARG002
        """Return the plan of sums over the partition."""
        return RangePlan(known.partition, known.costs)


class WholeCopy:
    """Continue with every row of the source."""

    method = Method.FULL

    def offer(self, at: Disagreement) -> PricedChoice:
        """Return the offer of all rows."""
        return offer_copy(at)

    def go_on(self, at: Stalled, choice: Choice, talk: Talk) -> Step:  # noqa: ARG002
        """Ask for all rows, and hear them."""
        talk.stop_collecting()
        talk.send(pb.Request(whole=pb.Whole()))
        return talk.finished(talk.receive(), Everything(), self.method)
