"""A full copy: every row of the source comes and replaces ours.

It continues a comparison that would cost more, or takes its place (`CopyAtOnce`) where the forecast
says that most rows differ: a comparison reads all rows first, only to say so. Then we open as for a
first load, which every source answers with all its rows, in one scan. Our total stays here: if it
is theirs, nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from driftline import wire_pb2 as pb
from driftline.rows.digests import Digest

from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.interface import Offers, Priced, StalledExchange, Step, WorkingCopy
from warehouse_agent.methods.ranges import RangeOpening, no_strata
from warehouse_agent.planning.candidates import at_once, load
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import (
    NAMES,
    Choice,
    Disagreement,
    Method,
    PricedChoice,
    everything,
    offer_copy,
)
from warehouse_agent.planning.plan_inputs import PlanInputs, Whole
from warehouse_agent.tasks import digests
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


class CopyAtOnce:
    """Open with nothing, and take every row of the source, where history says that comparing takes
    more seconds in the mean."""

    method, stalls = Method.FULL, False

    def supports(self, known: PlanInputs) -> bool:
        # Staged rows would come again, and lost ones are few; a marker compares keys.
        is_plain = not (known.is_resumed or known.rows_lost) and known.marker is None
        is_free = known.forced is None and isinstance(known.scope, Whole)
        return bool(known.rows) and is_plain and is_free

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        return at_once(known), NAMES[self.method]

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> CopyPlan:
        return CopyPlan()


class CopyPlan:
    """The plan to take every row."""

    __slots__ = ()

    def reduce(self, copy: WorkingCopy) -> CopySide:
        """Add up the working copy; one step."""
        return CopySide(digests.total(copy.steps, copy.files, copy.layout, copy.salt))


@dataclass(frozen=True, slots=True)
class CopySide:
    """Our total, which is compared with that of the rows that came."""

    compared: Digest
    rest: ClassVar[Digest] = Digest()
    updates_left: ClassVar[float] = 0.0
    turn: ClassVar[NextPartNote] = NextPartNote()

    @property
    def rows(self) -> int:
        """Return the number of our rows."""
        return self.compared.count

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Ask for every row as one who has none."""
        yield terms.opening(Digest(), everything(), pb.Open(strata=no_strata(terms)))
        return terms.finished((yield None), self.compared, AllRows(), Method.FULL)


class WholeCopy:
    """Continue with every row of the source."""

    method = Method.FULL

    def offer(self, at: Disagreement) -> PricedChoice:
        return offer_copy(at)

    def go_on(self, at: StalledExchange, choice: Choice, terms: ExchangeTerms) -> Requests[Step]:
        yield pb.Request(whole=pb.Whole())
        return terms.finished((yield None), at.ours.compared, AllRows(), self.method)
