"""All methods of comparison, and an exchange by them. A further method is a line here."""

from __future__ import annotations

from warehouse_agent.methods.conversation import Talk
from warehouse_agent.methods.full_copy import FullCopyOpening, WholeCopy
from warehouse_agent.methods.interface import Continuation, Opening, OurSide, Stalled
from warehouse_agent.methods.ranges import RangeDigests, RangeOpening
from warehouse_agent.methods.sketch import MoreCells, SketchOpening
from warehouse_agent.methods.units import GroupOpening
from warehouse_agent.planning.candidates import Known
from warehouse_agent.planning.choice import Disagreement, PricedChoice, choose
from warehouse_agent.tasks.difference import Outcome

OPENINGS: tuple[Opening, ...] = (
    FullCopyOpening(),
    SketchOpening(),
    RangeOpening(),
    GroupOpening(),
)
# Of equally cheap continuations the first is taken.
CONTINUATIONS: tuple[Continuation, ...] = (MoreCells(), RangeDigests(), WholeCopy())


def opening_for(known: Known) -> Opening:
    """Return the opening of a refresh: that of the method asked for, else the first that can."""
    usable = [opening for opening in OPENINGS if opening.supports(known)]
    return next((o for o in usable if o.method is known.forced), usable[0])


def offers(at: Disagreement) -> list[PricedChoice]:
    """Return what each continuation offers."""
    found = (continuation.offer(at) for continuation in CONTINUATIONS)
    return [offer for offer in found if offer is not None]


def compare(ours: OurSide, talk: Talk) -> Outcome:
    """Converse until the source has finished.

    Raises:
        DriftlineError: whatever the source refused with, or a broken line or message.
    """
    step = ours.open(talk)
    while isinstance(step, Stalled):
        choice = choose(step.at, offers(step.at))
        talk.round_trips += 1
        continuation = next(c for c in CONTINUATIONS if c.method is choice.method)
        step = continuation.go_on(step, choice, talk)
    return step
