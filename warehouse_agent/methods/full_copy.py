"""A full copy: every row of the source comes and replaces ours."""

from __future__ import annotations

from driftline import wire_pb2 as pb

from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.interface import Offers, Priced, StalledExchange, Step
from warehouse_agent.methods.ranges import RangeOpening
from warehouse_agent.planning.candidates import PlanInputs, Whole, load
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import (
    NAMES,
    Choice,
    Disagreement,
    Method,
    PricedChoice,
    offer_copy,
)
from warehouse_agent.tasks.difference import AllRows
from warehouse_agent.transport.waiting import Requests


class FullCopyOpening(RangeOpening):
    """Open with range sums, so that equal tables end it, and go on with every row."""

    method = Method.FULL

    def supports(self, known: PlanInputs) -> bool:
        is_asked = known.forced is Method.FULL and isinstance(known.scope, Whole)
        return not known.rows or is_asked

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        if known.rows is None:
            return (load(known),), NAMES[self.method]
        return super().price(known, expected, changed, offers)


class WholeCopy:
    """Continue with every row of the source."""

    method = Method.FULL

    def offer(self, at: Disagreement) -> PricedChoice:
        return offer_copy(at)

    def go_on(self, at: StalledExchange, choice: Choice, terms: ExchangeTerms) -> Requests[Step]:
        yield pb.Request(whole=pb.Whole())
        return terms.finished((yield None), at.ours.compared, AllRows(), self.method)
