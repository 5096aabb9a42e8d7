"""All methods of comparison: choose the opening of a refresh, go on after a stall, price each.

To add a method, add it to `OPENINGS`, and to `CONTINUATIONS` if other openings may go on with it.
The first opening that supports a refresh is taken, so one that is only used on request stands
behind those that always can; the one behind those by a marker is what a refresh by it is weighed
with.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import replace

from driftline.errors import WarehouseUnavailable

from warehouse_agent.columns.layout import Layout
from warehouse_agent.methods.claimed import ClaimOpening
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.full_copy import CopyAtOnce, CopySide, FullCopyOpening, WholeCopy
from warehouse_agent.methods.groups import assignment
from warehouse_agent.methods.groups.opening import GroupOpening
from warehouse_agent.methods.interface import (
    Continuation,
    Opening,
    OurSide,
    Priced,
    StalledExchange,
)
from warehouse_agent.methods.ranges import RangeDigests, RangeOpening
from warehouse_agent.methods.resumed_load import ListedSide, ResumedLoad
from warehouse_agent.methods.since import SinceOpening
from warehouse_agent.methods.sketch import LaterSide, MoreCells, SketchOpening
from warehouse_agent.planning.candidates import (
    Candidate,
    come_in_groups,
    in_part,
    rest_of_copy,
    with_likelihoods,
)
from warehouse_agent.planning.change_forecast import ChangeForecast, is_after_pause
from warehouse_agent.planning.choice import (
    CHANGE_SHARE,
    HASHED_ROW_S,
    NAMES,
    Disagreement,
    Method,
    PricedChoice,
    choose,
    seconds_of_rows,
)
from warehouse_agent.planning.group_selection import Histogram
from warehouse_agent.planning.network import Objective
from warehouse_agent.planning.plan_inputs import ChangeKinds, CopyReason, Part, PlanInputs, Unstaged
from warehouse_agent.planning.update_probability import ChangeOutlook
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.difference import Outcome
from warehouse_agent.tasks.steps import Steps, work_of_digests
from warehouse_agent.transport.waiting import Requests, Waiting

GROUPS = GroupOpening()
OPENINGS: tuple[Opening, ...] = (
    ResumedLoad(),
    FullCopyOpening(),
    ClaimOpening(),
    SinceOpening(),
    SketchOpening(),
    RangeOpening(),
    GROUPS,
)
COPY_AT_ONCE = CopyAtOnce()  # beside these: no refresh takes it by what is known of it alone
# The first of equally cheap continuations is taken.
CONTINUATIONS: tuple[Continuation, ...] = (MoreCells(), RangeDigests(), WholeCopy())

# A copy at once saves a scan and a round trip: of fewer rows, or if fewer than this share of them
# may have changed, that is not worth the arithmetic, a few ms for each of FORETOLD likely changes.
COPIED_ROWS_MIN, CHANGED_SHARE_MIN, FORETOLD = 10_000, 0.1, 10
GROUPED_COST = 0.95  # of another way's: groups that save less are not worth the statistics read


def opening_for(known: PlanInputs, expected: ChangeForecast | None) -> Opening:
    """Return the opening of a refresh: the configured method's, else the first possible one.

    A refresh by a marker is none if one that compares all rows is as cheap: that is an audit. One
    that would compare all rows compares none if a copy is expected to take less. Where no scan may
    begin, and all rows may be read by key, groups are the only way; else they are taken if they are
    asked for, or expected to cost less (`weigh_groups`).
    """
    if known.in_groups or (known.by_key and known.in_shards):
        return GROUPS
    usable = [opening for opening in OPENINGS if opening.supports(known)]
    first = next((o for o in usable if o.method is known.forced), usable[0])
    if COPY_AT_ONCE.supports(known) and _takes_more_than_a_copy(known, expected, first):
        return COPY_AT_ONCE
    if first.method is not Method.SINCE or known.forced is Method.SINCE:
        return first
    whole = usable[usable.index(first) + 1]
    return whole if _is_as_cheap(known, expected, whole, first) else first


def weigh_groups(
    known: PlanInputs, expected: ChangeForecast | None, likely: Histogram | None
) -> PlanInputs:
    """Return the inputs with the likelihoods of our rows, and whether groups are expected to cost
    less than the opening that would be taken, in the mean over the changes that may be found.

    likely: our rows by their likelihood of an update; None: this is not known.
    """
    if likely is None or expected is None:
        return known
    other, known = opening_for(known, expected), with_likelihoods(known, expected, likely)
    most = GROUPED_COST * _mean_cost(known, expected, other)
    return replace(known, in_groups=_mean_cost(known, expected, GROUPS) < most)


def likelihoods(
    steps: Steps, files: Sequence[DataFile], layout: Layout, outlook: ChangeOutlook | None
) -> Histogram | None:
    """Return the rows of files by their likelihood of an update; None: the files cannot be read,
    or not without Spark."""
    if not steps.runs_here(work_of_digests(files)):
        return None
    with contextlib.suppress(WarehouseUnavailable):
        return assignment.histogram(steps, files, layout, outlook)
    return None


def _is_as_cheap(
    known: PlanInputs, expected: ChangeForecast | None, one: Opening, other: Opening
) -> bool:
    """Return True if an opening is expected to cost no more than another one."""
    changed = max(expected.median if expected else round(known.ours * CHANGE_SHARE), 1)
    costs = []
    for opening in (one, other):
        candidates, chosen = opening.price(known, expected, min(changed, known.ours), offers)
        way = next(candidate for candidate in candidates if candidate.what == chosen)
        costs.append(way.exchange_seconds if way.exchange_seconds is not None else 0.0)
    return costs[0] <= costs[1] and costs[1] > 0.0


def goes_on(known: PlanInputs, expected: ChangeForecast | None, unstaged: Unstaged) -> bool:
    """Return True if a copy that was cut goes on; False: what is staged of it is compared.

    What the source said of the changes then is more than a forecast knows. A copy that only the
    forecast asked for goes on unless a comparison is expected to take less now: the line may have
    turned out to be slow, the table to be metered, and rows may have changed since that are in most
    chunks. It then compares the staged rows with all others: of the rest as many rows differ as of
    all, of the staged ones those that changed since. Either way no more than a copy comes.
    """
    if unstaged.reason is CopyReason.VERDICT or known.forced is Method.FULL:
        return True
    if known.forced is not None:
        return False
    if expected is None or known.prices.guessed:
        return True
    left = max(1 - unstaged.rows / max(known.theirs, 1), 0.0)
    compared = replace(known, is_resumed=True)
    first = opening_for(compared, expected)
    spent = _mean_cost(compared, expected, first, share=left, more=unstaged.changed)
    _, copy = rest_of_copy(known, unstaged)
    return _cost(known, copy, unstaged.rows_to_come(known.theirs)) <= spent


def is_copied_at_once(ours: OurSide) -> bool:
    """Return True if all rows are asked for, and none is compared before."""
    return isinstance(ours, CopySide) or (isinstance(ours, ListedSide) and ours.rows > 0)


def is_added_up_later(ours: OurSide) -> bool:
    """Return True if our rows are added up while the source scans."""
    return isinstance(ours, LaterSide)


def _takes_more_than_a_copy(
    known: PlanInputs, expected: ChangeForecast | None, first: Opening
) -> bool:
    """Return True if an opening is expected to take more seconds than a copy at once: in the mean
    over the changes that it may find. Without a forecast nothing is known of them, and after a
    pause no refresh has found so many rows: the same ones may have changed again and again."""
    is_metered = known.line.objective is Objective.BYTES
    if expected is None or known.prices.guessed or is_metered or known.ours < COPIED_ROWS_MIN:
        return False
    rows = known.ours
    if expected.quantile(1 - 1 / FORETOLD) < rows * CHANGED_SHARE_MIN:
        return False  # most refreshes: the sums below would cost more than they save
    if is_after_pause(list(known.earlier), known.now):
        return False
    (_, copy), _ = COPY_AT_ONCE.price(known, expected, rows, offers)
    return _mean_cost(known, expected, first) > _cost(known, copy, known.theirs)


def _mean_cost(
    known: PlanInputs,
    expected: ChangeForecast,
    first: Opening,
    *,
    share: float = 1.0,
    more: float = 0.0,
) -> float:
    """Return the cost of an opening in the mean over the changes that it may find: a share of those
    expected, and some more."""
    rows, spent = known.ours, []
    for at in range(FORETOLD):
        found = share * expected.quantile((at + 0.5) / FORETOLD) + more
        d = min(round(found), rows)
        candidates, chosen = first.price(known, expected, max(d, 1), offers)
        way = next(c for c in candidates if c.what == chosen) if d else candidates[0]
        come = float(rows if way.what == NAMES[Method.FULL] else d)
        if first is GROUPS:
            come = come_in_groups(known, expected, d)
        spent.append(_cost(known, way, come))
    return statistics.fmean(spent)


def _cost(known: PlanInputs, way: Candidate, come: float) -> float:
    """Return what the objective minimizes, of a way in which `come` rows come."""
    if known.line.objective is Objective.BYTES:
        return float(way.bytes or 0)
    return seconds(known, way, come)


def seconds(known: PlanInputs, way: Candidate, come: float) -> float:
    """Return the seconds of an exchange, and of the `come` rows that come in it."""
    spent = (way.exchange_seconds or 0.0) + seconds_of_rows(known.line, come, way.bytes or 0)
    if way.what == NAMES[Method.RANGE]:
        again = min((way.source_rows or 0) - known.theirs, known.theirs)
        spent += 2 * again * HASHED_ROW_S
    return spent


def offers(at: Disagreement) -> list[PricedChoice]:
    """Return the offers of all continuations."""
    offered = (continuation.offer(at) for continuation in CONTINUATIONS)
    return [offer for offer in offered if offer is not None]


def compare(ours: OurSide, terms: ExchangeTerms, over: Waiting) -> Outcome:
    """Compare both sides over a wire, until the source has finished.

    Raises:
        DriftlineError: whatever the source refused with, or a broken line or message.
    """
    return replace(
        over.run(comparison(ours, terms)),
        came=over.came,
        round_trips=over.round_trips,
        frame_bytes=over.frame_bytes,
        answered_s=over.answered_s,
    )


def comparison(ours: OurSide, terms: ExchangeTerms) -> Requests[Outcome]:
    """Compare both sides, with what the source replies. Raises MalformedMessage."""
    step = yield from ours.open(terms)
    while isinstance(step, StalledExchange):
        choice = choose(step.at, offers(step.at))
        continuation = next(c for c in CONTINUATIONS if c.method is choice.method)
        step = yield from continuation.go_on(step, choice, terms)
    return step


def refreshes(
    known: PlanInputs, expected: ChangeForecast | None, changed: int, *, with_rivals: bool = True
) -> Priced:
    """Return the candidates for a refresh, and the name of the one that it would take.

    Args:
        expected: changes forecast from earlier refreshes.
        changed: changed rows to price, at least 1.
        with_rivals: also of the openings that the refresh would not take.

    Raises:
        ConfigurationError: groups are asked for, and cannot name so many rows.
    """
    if isinstance(known.scope, Part):  # and the ways to compare all rows, groups excepted
        whole = replace(known, read_at_most=None)
        candidates, _ = refreshes(whole, expected, changed, with_rivals=with_rivals)
        part, chosen = opening_for(known, expected).price(known, expected, changed, offers)
        return (*(c for c in candidates if c.what != NAMES[Method.GROUP]), *part), chosen
    opening = opening_for(known, expected)
    candidates, chosen = opening.price(known, expected, changed, offers)
    ways, has_continuations = list(candidates[1:]), opening.stalls
    for rival in OPENINGS if with_rivals else ():
        # An opening that stalls prices all continuations.
        if rival is opening or not rival.supports(known) or (rival.stalls and has_continuations):
            continue
        has_continuations |= rival.stalls
        named = {way.what for way in ways}
        priced = rival.price(known, expected, changed, offers)[0][1:]
        ways += [way for way in priced if way.what not in named]
    ranks = {name: rank for rank, name in enumerate(NAMES.values())}
    ways.sort(key=lambda way: ranks.get(way.what, len(ranks)))
    return (candidates[0], *ways), chosen


def predicted(known: PlanInputs, expected: ChangeForecast | None) -> Candidate:
    """Return the candidate that a refresh is expected to take."""
    rows = known.rows or 0
    changed = min(expected.median, rows) if expected else round(rows * CHANGE_SHARE)
    candidates, chosen = refreshes(known, expected, max(changed, 1), with_rivals=False)
    return next(c for c in candidates if c.what == chosen) if changed else candidates[0]


def modelled(
    known: PlanInputs,
    expected: ChangeForecast | None,
    changed: int,
    method: Method,
    theirs: int,
    *,
    kinds: ChangeKinds | None = None,
) -> Candidate | None:
    """Return the modelled cost of a refresh after it is done; None: the model has no such way.

    The difference to the prediction is an error of the forecast; the difference to the measured
    cost is an error of the model.

    Args:
        changed: rows that were found changed.
        method: the method that was used.
        theirs: rows at the source.
        kinds: of the changes that were found; None: as in earlier refreshes.
    """
    known = replace(known, rows_expected=theirs, kinds=kinds)
    if isinstance(known.scope, Part):
        return in_part(known, known.scope, expected, changed)
    candidates, chosen = refreshes(known, expected, max(changed, 1), with_rivals=False)
    if not changed or known.rows is None:
        return candidates[0]
    what = chosen if known.tiled else NAMES[method]
    return next((c for c in candidates if c.what == what), None)
