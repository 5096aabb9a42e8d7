"""The ways that a refresh may go, priced from what is known without reading a row.

Candidates are priced by the functions that decide in a refresh (`choice.choose` and
`group_selection.grouping`), so a price is wrong only if its inputs are. Each opening returns its
own candidates through this module (`methods.registry.refreshes`). A way that the source's DBA does
not allow now is known before anything is compared (`plan_inputs`). Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from driftline.limits import GROUPED_KEYS_MAX
from driftline.reconciliation.groups import ROW_HASH_BYTES, refines
from driftline.reconciliation.sketches import CELL_BYTES, HASHES, sampled
from driftline.rows.digests import Digest

from warehouse_agent.planning import choice as plan
from warehouse_agent.planning import group_selection, sketch_size
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import NAMES, Choice, Disagreement, Method, PricedChoice
from warehouse_agent.planning.group_selection import ClassedGroups, Histogram
from warehouse_agent.planning.plan_inputs import ChangeKinds, Part, PlanInputs, Unstaged, Whole
from warehouse_agent.planning.prices import LEVELS
from warehouse_agent.planning.sketch_size import CellSample, Sketch, Stall
from warehouse_agent.planning.tiling import Tiled, pass_cost
from warehouse_agent.report import counted

_P_DELETE_MAX = 0.99
GROUPED_ROWS_MIN = 10_000  # below, groups save less than it takes to read the rows' statistics
GROUPED_AFTER = 6  # refreshes: by fewer, rows that changed by chance seem to change always
_GROUPS_BYTES = plan.OPEN_BYTES + plan.REPLY_BYTES  # of the messages around groups


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way that a refresh may go, named `what`.

    `bytes` move in both directions; None if no row was ever shipped, because types do not say how
    long values are or how well they compress. The source reads `source_rows`, in `source_scans`
    full scans or by index. `exchange_seconds` are for scan and line; `seconds` is the median time
    of earlier refreshes that went this way; `bytes_rewritten` are of our data files, for scattered
    changes.
    """

    what: str
    bytes: int | None
    round_trips: int
    source_scans: int
    source_rows: int | None
    exchange_seconds: float | None
    bytes_rewritten: int
    seconds: float | None


def load(known: PlanInputs) -> Candidate:
    """Return the first load: Describe, then every row."""
    rows, size = known.rows_expected, None
    if rows is not None and not known.prices.guessed:
        slots = known.strata_sent(known.partition.ranges)
        size = plan.opening_bytes(known.partition, slots) + int(known.prices.copy(rows))
    took = None if rows is None or size is None else round(known.line.seconds(size, 2, rows), 2)
    return Candidate("full copy", size, 2, 1, rows, took, 0, None)


def copy_bytes(known: PlanInputs, rows: int) -> int | None:
    """Return the bytes that a copy of so many rows is expected to take; None: no row was ever
    sent."""
    return load(replace(known, rows_expected=rows)).bytes


def rest_of_load(known: PlanInputs, unstaged: Unstaged) -> Candidate:
    """Return the rest of a load that was cut: as many rows as are not staged, if none changed."""
    rest = None if known.rows_expected is None else unstaged.rows_to_come(known.rows_expected)
    return _rest(known, load(known), load(replace(known, rows_expected=rest)))


def rest_of_copy(known: PlanInputs, unstaged: Unstaged) -> tuple[Candidate, Candidate]:
    """Return the rest of a copy that was cut, if nothing changed and if something did."""
    left = at_once(replace(known, rows_expected=unstaged.rows_to_come(known.theirs)))
    unchanged, copy = (_rest(known, *both) for both in zip(at_once(known), left, strict=True))
    return unchanged, copy


def _rest(known: PlanInputs, whole: Candidate, rest: Candidate) -> Candidate:
    """Return a copy, or a load, of which only the rest comes: the source reads all rows."""
    spent = rest.exchange_seconds
    if spent is not None and whole.source_rows is not None and rest.source_rows is not None:
        spent += (whole.source_rows - rest.source_rows) / known.line.rows_per_s
    return replace(whole, bytes=rest.bytes, exchange_seconds=spent)


def at_once(known: PlanInputs) -> tuple[Candidate, Candidate]:
    """Return the copy that nothing precedes, if nothing changed and if something did."""
    rows, level = known.theirs, known.level
    coarser = LEVELS[level(known.ours, at_once=True)] / LEVELS[level(known.ours)]
    size = plan.opening_bytes(plan.everything(), known.strata_sent(1))
    size += int(known.prices.copy(rows) * coarser)
    unchanged, copy = (
        _candidate(known, Method.FULL, size, 1, 0, changed) for changed in (0, known.ours)
    )
    return replace(unchanged, what="nothing changed"), copy


def stalled_ways(
    known: PlanInputs,
    sketch: Sketch | None,
    changed: int,
    offers: Callable[[Disagreement], list[PricedChoice]],
) -> tuple[tuple[Candidate, ...], str]:
    """Return "nothing changed" and every continuation of an opening that may stall, by what each
    `offers` for `changed` rows, at least 1; and the name of the one that a refresh would choose.

    `sketch` is None if the opening has strata of ranges.
    """
    ours, theirs, by_index = known.ours, known.theirs, known.by_index
    fixed = _fixed_bytes(known, sketch)
    candidates = [_candidate(known, None, fixed, 1, 0, 0)]
    new = max(theirs - ours, 0)
    # New integer keys may lie outside the cells. `choose` adds them to the changes, so those that
    # are among the changes must not count twice.
    in_cells = changed if by_index or sketch is None else max(changed, new)
    counted = min(changed, new, ours) if by_index and sketch is not None else 0
    differing = _differing(known, sketch, in_cells)
    has_strata = bool(_slots_sent(known, sketch))
    stall = None if sketch is None else _stall(sketch, differing, in_cells, sampled_too=has_strata)
    ranges, compared = known.partition.ranges, Digest(theirs - counted)
    at = Disagreement(known.costs, Digest(ours), compared, ranges, differing, stall)
    offered = offers(at)
    options = {offer.choice.method: offer.choice for offer in offered}
    chosen = plan.choose(at, offered).method
    options[Method.FULL] = Choice(Method.FULL, int(known.prices.copy(theirs)), rows_read=theirs)
    if sketch is not None and sketch.decodes(in_cells):  # the opening does not stall
        shipped, chosen = max(changed, new), Method.SKETCH
        size = int(known.prices.changes(shipped))
        finds = known.finds_rows
        again = plan.rows_again(shipped, theirs, by_index=by_index, finds_rows=finds)
        options[chosen] = Choice(chosen, size, rows_read=again, round_trips=0)
    slots = sketch.cells if sketch else ranges
    late = 0 if has_strata else plan.strata_bytes(slots)  # they come with the verdict
    fixed += plan.FOUND_BYTES + (stall.sample.cells if stall and stall.sample else 0)
    for method, choice in options.items():
        d = ours if method is Method.FULL else changed
        size, trips = fixed + choice.bytes_expected, 1 + choice.round_trips
        size += late if choice.round_trips else 0
        candidates.append(_candidate(known, method, size, trips, choice.rows_read, d))
    return tuple(candidates), NAMES[chosen]


def in_groups(
    known: PlanInputs, expected: ChangeForecast | None, changed: int
) -> tuple[Candidate, ...]:
    """Return "nothing changed" and, unless there are more rows than groups can name, a comparison
    of all rows by groups that finds `changed` rows."""
    ours, planned = known.ours, _planned_changes(known, expected)
    sizes = _group_sizes(known, ours, planned, is_named=known.in_shards)
    idle = _GROUPS_BYTES + _by_groups(known, sizes, 0).bytes_expected
    choice = _by_groups(known, sizes, changed)
    size, trips = _GROUPS_BYTES + choice.bytes_expected, choice.round_trips
    if known.in_shards:
        shards = -(-ours // GROUPED_KEYS_MAX)
        quiet = ExchangeWork(idle, shards, 0, ours)
        work = ExchangeWork(size, trips * shards, 0, ours + choice.rows_read)
        unchanged = priced(known, "nothing changed", None, quiet, 0)
        return unchanged, priced(known, NAMES[Method.GROUP], Method.GROUP, work, changed)
    unchanged = _candidate(known, None, idle, 1, 0, 0)
    if ours > GROUPED_KEYS_MAX:
        return (unchanged,)
    again = plan.rows_again(choice.rows_read, known.theirs, by_index=known.by_index)
    return unchanged, _candidate(known, Method.GROUP, size, trips, again, changed)


def groups_may_pay(known: PlanInputs, expected: ChangeForecast | None) -> bool:
    """Return True if the cells of a sketch for the expected changes take more bytes than the keys
    of all rows, which any groups take at least. Only then are the statistics of rows read, which
    tell if groups are cheaper: they are where it is mostly the same rows that change.
    """
    if expected is None or known.prices.guessed or known.forced is not None or known.is_resumed:
        return False
    if known.by_key or known.is_load or known.rows_lost or known.marker is not None:
        return False
    if not isinstance(known.scope, Whole) or not GROUPED_ROWS_MIN <= known.ours <= GROUPED_KEYS_MAX:
        return False
    if len(known.earlier) <= GROUPED_AFTER:
        return False
    span = sketch_size.embedding_for(known.ours, known.bounds).span
    keys = known.ours * group_selection.key_bytes(known.ours, span)
    return CELL_BYTES * sketch_size.cells_for(expected.median) > keys


def with_likelihoods(known: PlanInputs, expected: ChangeForecast, likely: Histogram) -> PlanInputs:
    """Return the inputs with our rows by their likelihood of an update, as many as are expected."""
    kinds = ChangeKinds.of(known.earlier)
    updated = _planned_changes(known, expected) * (1 - kinds.inserted - kinds.deleted)
    return replace(known, likely=likely.calibrated(updated))


def come_in_groups(known: PlanInputs, expected: ChangeForecast | None, changed: int) -> float:
    """Return how many rows come in a comparison of all by groups that finds `changed` rows."""
    planned = _planned_changes(known, expected)
    sizes = _group_sizes(known, known.ours, planned, is_named=known.in_shards)
    return _by_groups(known, sizes, changed).rows_come


def in_part(
    known: PlanInputs, part: Part, expected: ChangeForecast | None, changed: int
) -> Candidate:
    """Return the comparison of a part, read by index, that finds `changed` rows."""
    compared = min(part.rows_max, known.ours)
    planned = _planned_changes(known, expected) * compared // max(known.ours, 1)
    is_named = not known.by_index or compared > GROUPED_KEYS_MAX
    choice = _by_groups(known, _group_sizes(known, compared, planned, is_named=is_named), changed)
    size, rows = _GROUPS_BYTES + choice.bytes_expected, compared + choice.rows_read
    what = f"{counted(compared, 'row')} of it, by groups"
    work = ExchangeWork(size, choice.round_trips, 0, rows)
    return priced(known, what, Method.GROUP, work, changed)


def p_delete(known: PlanInputs, expected: ChangeForecast | None) -> float:
    """Return P({−t}), the probability that a row is deleted before this refresh."""
    return _p_delete(known, _planned_changes(known, expected), known.ours)


def in_tiles(known: PlanInputs, tiled: Tiled, changed: int) -> tuple[tuple[Candidate, ...], str]:
    """Return a pass that finds nothing, a pass that finds `changed` rows, and the latter's name."""
    chosen, candidates, ours = f"in {counted(tiled.tiles, 'tile')}", [], known.ours
    pauses_s = (tiled.tiles - 1) * tiled.wanted.pause_s
    for what, d, method in (("nothing changed", 0, None), (chosen, changed, Method.RANGE)):
        size, trips = pass_cost(
            ours, d, known.prices.row, tiled.wanted, has_strata=not known.line.is_brief
        )
        work = ExchangeWork(size, trips, 0, ours, pauses_s)
        candidates.append(priced(known, what, method, work, d))
    return tuple(candidates), chosen


def _planned_changes(known: PlanInputs, expected: ChangeForecast | None) -> int:
    """Return the number of changes for which groups are sized."""
    return expected.median if expected else round(known.ours * plan.CHANGE_SHARE)


def _group_sizes(known: PlanInputs, rows: int, planned: int, *, is_named: bool) -> ClassedGroups:
    """Return the groups of `rows` rows: by their statistics, if these were read; else those of the
    last comparison of as many. Before there was one, all rows are taken to be equally likely, and
    groups to be sized for `planned` changes."""
    learnt = None if known.groups is None else known.groups.for_rows(rows, is_named=is_named)
    likely = known.likely if rows == known.ours else None
    if learnt is not None and likely is None:
        return learnt.classed()
    span = sketch_size.embedding_for(max(known.ours, 1), known.bounds).span
    key = group_selection.key_bytes(rows, span)
    if is_named and known.named_key_bytes is not None:
        key = known.named_key_bytes
    if learnt is not None:
        key = learnt.key_bytes
    histogram = likely or Histogram.even(rows, planned / max(rows, 1))
    sizes = group_selection.grouping(
        histogram,
        row_bytes=known.prices.row,
        key_bytes=key,
        wait_bytes=known.line.round_trip_bytes,
        p_delete=_p_delete(known, planned, rows),
    )
    return ClassedGroups(histogram, sizes.rows.astype(np.float64), key, rows)


def _by_groups(known: PlanInputs, sizes: ClassedGroups, changed: int) -> Choice:
    """Return a comparison by groups that finds `changed` rows; it reads the rows of groups that
    differ."""
    kinds = known.kinds or ChangeKinds.of(known.earlier)
    new, gone = round(changed * kinds.inserted), round(changed * kinds.deleted)
    gone = min(gone, sizes.compared)
    touched, groups = sizes.touched(max(changed - new - gone, 0), gone), sizes.groups
    left = max(touched.rows - gone, 0.0)
    hashes = touched.rows_updated + touched.groups_lost  # one for a group that lost rows
    is_refined = touched.rows > 0 and refines(
        rows=round(left),
        hashes=round(hashes),
        differing=round(touched.groups_updated),
        lost=round(touched.groups_lost),
        groups=round(groups),
        row_bytes=round(known.prices.row),
        wait_bytes=round(known.line.round_trip_bytes),
    )
    size = (sizes.compared + gone) * sizes.key_bytes + ROW_HASH_BYTES * groups
    if is_refined:
        size += ROW_HASH_BYTES * hashes
    come = new + sizes.alone + (touched.updated if is_refined else left)
    size += known.prices.changes(come)
    again, trips = math.ceil(touched.rows), 1 + is_refined
    return Choice(Method.GROUP, int(size), rows_read=again, round_trips=trips, rows_come=come)


def _p_delete(known: PlanInputs, planned: int, rows: int) -> float:
    """Return P({−t}) of one of `rows` rows, of which `planned` are expected to change."""
    deleted = ChangeKinds.of(known.earlier).deleted
    return min(planned * deleted / max(rows, 1), _P_DELETE_MAX)


def _candidate(
    known: PlanInputs, method: Method | None, size: int, trips: int, reread: int, changed: int
) -> Candidate:
    """Return a candidate with one scan, after which the source reads `reread` rows again."""
    theirs = known.theirs
    what = "nothing changed" if method is None else NAMES[method]
    rows, scans = theirs + reread, 1 + (reread >= theirs > 0)
    candidate = priced(known, what, method, ExchangeWork(size, trips, scans, rows), changed)
    if method is not None and known.prices.guessed:
        return replace(candidate, bytes=None, exchange_seconds=None)
    return candidate


@dataclass(frozen=True, slots=True)
class ExchangeWork:
    """The amounts by which a way to refresh is priced.

    Attributes:
        size: bytes in both directions.
        trips: round trips.
        scans: full scans of the source, which reads `rows`.
        pauses_s: seconds between tiles.
    """

    size: int
    trips: int
    scans: int
    rows: int
    pauses_s: float = 0.0


def priced(
    known: PlanInputs,
    what: str,
    method: Method | None,
    work: ExchangeWork,
    changed: int,
) -> Candidate:
    """Return a candidate with its times and the bytes that it rewrites."""
    size, trips, rows = work.size, work.trips, work.rows
    took = round(known.line.seconds(size, trips, rows) + work.pauses_s, 2)
    again, spent = bytes_rewritten(known, changed), _seconds(known, method)
    return Candidate(what, size, trips, work.scans, rows, took, again, spent)


def bytes_rewritten(known: PlanInputs, changed: int) -> int:
    """Return the bytes of the files that scattered changes touch: a file of r of n rows is touched
    with probability 1 − exp(−changed·r/n)."""
    n = max(sum(rows for rows, _ in known.files), 1)
    return round(sum(-math.expm1(-changed * rows / n) * size for rows, size in known.files))


def _fixed_bytes(known: PlanInputs, sketch: Sketch | None) -> int:
    """Return the bytes of a refresh that finds nothing: the opening and an end."""
    first = _slots_sent(known, sketch)
    fixed = plan.REPLY_BYTES + plan.opening_bytes(known.partition, first)
    return fixed + (sketch.bytes_sent + plan.SKETCH_BYTES if sketch else 0)


def _slots_sent(known: PlanInputs, sketch: Sketch | None) -> int:
    """Return the slots whose strata go with the opening; 0 if they come with a verdict."""
    if sketch is None:
        return known.strata_sent(known.partition.ranges)
    return sketch.cells if sketch.stalls else known.strata_sent(sketch.cells)


def _differing(known: PlanInputs, sketch: Sketch | None, changed: int) -> int:
    """Return how many ranges, or cells if there is a sketch, a verdict would say differ."""
    if sketch is None:
        return round(expected_slots(known.partition.ranges, changed))
    return round(expected_slots(sketch.cells, HASHES * changed))


def _stall(sketch: Sketch, differing: int, changed: int, *, sampled_too: bool) -> Stall:
    """Return what the source would hold at its verdict, with a sample if its cells are too full and
    it knows by our strata how many are worth sending (`sampled_too`)."""
    if sketch.decodes(changed):
        return Stall(sketch)
    stall = Stall(sketch, sketch.sent, len(sketch.sent or ()))  # every cell is stuck
    count = sampled(differing, sketch.cells) if sampled_too else 0
    if not count or sketch_size.underestimated(changed, sketch.sent) < sketch_size.ESTIMATE_ERROR:
        return stall
    return replace(stall, sample=CellSample(count, round(count * differing / sketch.cells)))


def expected_slots(slots: int, entries: int) -> float:
    """Return the expected number of slots that are hit by entries scattered evenly (the occupancy
    problem: n(1 - (1 - 1/n)^k))."""
    if slots == 1:
        return float(min(entries, 1))
    return slots * -math.expm1(entries * math.log1p(-1 / slots))


def _seconds(known: PlanInputs, method: Method | None) -> float | None:
    """Return the median seconds of earlier refreshes by this method; of those that found nothing
    if it is None."""
    spent = [
        r.seconds
        for r in known.earlier
        if (r.counts_changes and not r.is_load)
        and (r.changed == 0 if method is None else r.changed > 0 and r.method == method.value)
    ]
    return round(statistics.median(spent), 1) if spent else None
