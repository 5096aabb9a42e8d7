"""All methods of comparison: which one a refresh opens with, how it goes on, and what each costs.

A further method is a line in `OPENINGS`, and one in `CONTINUATIONS` if others may go on with it.
"""

from __future__ import annotations

from dataclasses import replace

from warehouse_agent.methods.conversation import Talk
from warehouse_agent.methods.full_copy import FullCopyOpening, WholeCopy
from warehouse_agent.methods.interface import Continuation, Opening, OurSide, Stalled
from warehouse_agent.methods.ranges import RangeDigests, RangeOpening
from warehouse_agent.methods.sketch import MoreCells, SketchOpening
from warehouse_agent.methods.units import GroupOpening
from warehouse_agent.planning.candidates import Candidate, Known, Part, in_part
from warehouse_agent.planning.change_forecast import Expected
from warehouse_agent.planning.choice import (
    CHANGE_SHARE,
    NAMES,
    Disagreement,
    Method,
    PricedChoice,
    choose,
)
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
    """Compare both sides, until the source has finished.

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


def refreshes(
    known: Known, expected: Expected | None, changed: int
) -> tuple[tuple[Candidate, ...], str]:
    """Return each way that a refresh may go, and the name of the one that it would go.

    Args:
        expected: changes, as far as earlier refreshes tell.
        changed: rows to price, at least 1.

    Raises:
        ConfigurationError: groups are asked for, and cannot name so many rows.
    """
    if isinstance(known.scope, Part):  # beside a part, the ways to compare everything but groups
        found, _ = refreshes(replace(known, read_at_most=None), expected, changed)
        part, chosen = opening_for(known).price(known, expected, changed, offers)
        return (*(c for c in found if c.what != NAMES[Method.GROUP]), *part), chosen
    opening = opening_for(known)
    found, chosen = opening.price(known, expected, changed, offers)
    ways, has_continuations = list(found[1:]), opening.stalls
    for rival in OPENINGS:
        # One opening that stalls prices all continuations.
        if rival is opening or not rival.supports(known) or (rival.stalls and has_continuations):
            continue
        has_continuations |= rival.stalls
        ways += rival.price(known, expected, changed, offers)[0][1:]
    ranks = {name: rank for rank, name in enumerate(NAMES.values())}
    ways.sort(key=lambda way: ranks.get(way.what, len(ranks)))
    return (found[0], *ways), chosen


def predicted(known: Known, expected: Expected | None) -> Candidate:
    """Return what a refresh will take, by what is known before it."""
    rows = known.rows or 0
    changed = min(expected.median, rows) if expected else round(rows * CHANGE_SHARE)
    found, chosen = refreshes(known, expected, max(changed, 1))
    return next(c for c in found if c.what == chosen) if changed else found[0]


def modelled(
    known: Known, expected: Expected | None, changed: int, method: Method, theirs: int
) -> Candidate | None:
    """Return what a refresh takes that went this way and found so many changes, and so many rows
    at the source; None: these costs say that it cannot have gone so.

    What was predicted less this is the fault of what was predicted; this less what it took, that of
    the model.
    """
    known = replace(known, rows_expected=theirs)
    if isinstance(known.scope, Part):
        return in_part(known, known.scope, expected, changed)
    found, chosen = refreshes(known, expected, max(changed, 1))
    if not changed or known.rows is None:
        return found[0]
    what = chosen if known.tiled else NAMES[method]
    return next((c for c in found if c.what == what), None)
