"""The ways a refresh may go, priced from what is known without reading a row.

`Known` is everything a prediction depends on. Candidates are costed by the same `choice.choose` and
`group_selection.grouping` that decide in a refresh, so they are wrong only where their inputs are.
Each opening asks here for its own candidates (`methods.registry.refreshes`). Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

import numpy as np
from driftline.digests import Digest
from driftline.limits import GROUP_KEYS_MAX
from driftline.ranges import Partition
from driftline.sketches import HASHES, sampled
from driftline.units import ROW_HASH_BYTES

from warehouse_agent.planning import choice as plan
from warehouse_agent.planning import group_selection, sketch_size
from warehouse_agent.planning.change_forecast import Expected, Run
from warehouse_agent.planning.choice import (
    NAMES,
    Choice,
    Costs,
    Disagreement,
    Method,
    PricedChoice,
)
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.prices import Prices
from warehouse_agent.planning.sketch_size import Sample, Sketch, Stall
from warehouse_agent.planning.tiling import Tiled
from warehouse_agent.report import counted


@dataclass(frozen=True, slots=True)
class Whole:
    """Every row is compared, in one exchange."""

    tiles: ClassVar[None] = None
    tiles_done: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows are compared: at most so many are read at the source."""

    rows_max: int
    tiles: ClassVar[None] = None
    tiles_done: ClassVar[None] = None


Scope = Whole | Tiled | Part


@dataclass(frozen=True, slots=True)
class Known:
    """What a prediction is made from.

    `rows` and `version` are published, None before the first load; `rows_expected` is the source's
    estimate, None where it gave none; `bounds` the least and the greatest integer key; `now` when
    it is asked; `files` are rows and bytes of the data files.
    """

    name: str
    version: int | None
    rows: int | None
    rows_expected: int | None
    prices: Prices
    partition: Partition
    integer_key: bool
    bounds: tuple[int, int] | None
    line: Line
    now: datetime
    forced: Method | None
    read_at_most: int | None
    runs: tuple[Run, ...]
    files: tuple[tuple[int, int], ...] = ()
    staged_bytes: int = 0
    source_error: str | None = None
    schema_changes: tuple[str, ...] = ()
    tiled: Tiled | None = None  # None where the refresh is one exchange
    rows_lost: int = 0  # of ours: they differ, and are no new ones

    @property
    def scope(self) -> Scope:
        """Which rows are compared, and in how many exchanges."""
        if self.tiled is not None:
            return self.tiled
        return Part(self.read_at_most) if self.read_at_most and self.rows else Whole()

    @property
    def costs(self) -> Costs:
        """What decides how to go on where an opening stalled."""
        return Costs(self.prices, self.line, self.integer_key, self.forced, self.rows_lost)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way a refresh may go.

    `bytes` are both directions, None where the number of rows or what a row takes is not known
    (where no row was ever shipped: types say neither how long values are nor how well they
    compress); `source_rows` are read at the
    source, in `source_scans` full scans or by index; `exchange_seconds` is what scan and line take,
    `seconds` the median of all of earlier refreshes that went this way; `bytes_rewritten` are of
    data files of ours, where the changes are scattered.
    """

    what: str
    bytes: int | None
    round_trips: int
    source_scans: int
    source_rows: int | None
    exchange_seconds: float | None
    bytes_rewritten: int
    seconds: float | None


def load(known: Known) -> Candidate:
    """The first: Describe, then everything."""
    rows, size = known.rows_expected, None
    if rows is not None and not known.prices.guessed:
        ranges = known.partition.ranges
        size = plan.opening_bytes(known.partition, ranges) + int(known.prices.copy(rows))
    took = None if rows is None or size is None else round(known.line.seconds(size, 2, rows), 2)
    return Candidate("full copy", size, 2, 1, rows, took, 0, None)


def stalled_ways(
    known: Known,
    sketch: Sketch | None,
    changed: int,
    offers: Callable[[Disagreement], list[PricedChoice]],
) -> tuple[tuple[Candidate, ...], str]:
    """Return "nothing changed" and every continuation of an opening that may stall.

    Args:
        sketch: of the opening; None: it has strata of ranges.
        changed: rows, at least 1.
        offers: what each continuation offers.

    Returns:
        The candidates, and the name of the one that a refresh would go.
    """
    ours = known.rows or 0
    theirs = ours if known.rows_expected is None else known.rows_expected
    fixed = _fixed(known, sketch)
    found = [_candidate(known, None, fixed, 1, 0, 0)]
    by_index = sketch_size.embedding_for(max(ours, 1), known.bounds).base is not None
    new = max(theirs - ours, 0)
    # Of integer keys, new ones may lie outside of what cells tell: `choose` adds them, and those
    # that are among the changes are not to count twice.
    told = changed if by_index or sketch is None else max(changed, new)
    counted = min(changed, new, ours) if by_index and sketch is not None else 0
    differing = _differing(known, sketch, told)
    stall = None if sketch is None else _stall(sketch, differing, told)
    at = Disagreement(
        known.costs,
        Digest(ours),
        Digest(theirs - counted),
        ranges=known.partition.ranges,
        differing=differing,
        stall=stall,
    )
    offered = offers(at)
    options = {offer.choice.method: offer.choice for offer in offered}
    chosen = plan.choose(at, offered).method
    options[Method.FULL] = Choice(Method.FULL, int(known.prices.copy(theirs)), rows_read=theirs)
    if sketch is not None and sketch.tells(told):  # there is no verdict
        came, chosen = max(changed, new), Method.SKETCH
        size = int(known.prices.changes(came))
        again = plan.rows_again(came, theirs, by_index=by_index)
        options[chosen] = Choice(chosen, size, rows_read=again, round_trips=0)
    fixed += plan.FOUND_BYTES + (stall.sample.cells if stall and stall.sample else 0)
    for method, choice in options.items():
        d = ours if method is Method.FULL else changed
        size, trips = fixed + choice.bytes_expected, 1 + choice.round_trips
        found.append(_candidate(known, method, size, trips, choice.rows_read, d))
    return tuple(found), NAMES[chosen]


def in_groups(known: Known, expected: Expected | None, changed: int) -> tuple[Candidate, ...]:
    """Return "nothing changed" and a comparison of all rows by groups; without the second where
    groups cannot name so many rows."""
    ours = known.rows or 0
    planned = _planned(known, expected)
    idle = _GROUPS_BYTES + _by_groups(known, ours, planned, 0).bytes_expected
    found = _candidate(known, None, idle, 1, 0, 0)
    if ours > GROUP_KEYS_MAX:
        return (found,)
    theirs = ours if known.rows_expected is None else known.rows_expected
    by_index = sketch_size.embedding_for(max(ours, 1), known.bounds).base is not None
    choice = _by_groups(known, ours, planned, changed)
    again = plan.rows_again(choice.rows_read, theirs, by_index=by_index)
    size, trips = _GROUPS_BYTES + choice.bytes_expected, choice.round_trips
    return found, _candidate(known, Method.GROUP, size, trips, again, changed)


def in_part(known: Known, part: Part, expected: Expected | None, changed: int) -> Candidate:
    """Return the comparison of a part, all of it by index, in which so many rows changed."""
    compared = min(part.rows_max, known.rows or 0)
    planned = _planned(known, expected) * compared // max(known.rows or 0, 1)
    found = _by_groups(known, compared, planned, changed)
    size, rows = _GROUPS_BYTES + found.bytes_expected, compared + found.rows_read
    took = round(known.line.seconds(size, found.round_trips, rows), 2)
    again, spent = _rewritten(known, changed), _seconds(known, Method.GROUP)
    what = f"{counted(compared, 'row')} of it, by groups"
    return Candidate(what, size, found.round_trips, 0, rows, took, again, spent)


def in_tiles(known: Known, tiled: Tiled, changed: int) -> tuple[tuple[Candidate, ...], str]:
    """Return a pass that finds nothing, one that finds so many changes, and its name."""
    chosen, found, ours = f"in {counted(tiled.tiles, 'tile')}", [], known.rows or 0
    for what, d, method in (("nothing changed", 0, None), (chosen, changed, Method.RANGE)):
        size, trips = tiled.cost(ours, d, known.prices.row)
        pauses = (tiled.tiles - 1) * tiled.wanted.pause_s
        took = round(known.line.seconds(size, trips, ours) + pauses, 2)
        again, spent = _rewritten(known, d), _seconds(known, method)
        found.append(Candidate(what, size, trips, 0, ours, took, again, spent))
    return tuple(found), chosen


def _planned(known: Known, expected: Expected | None) -> int:
    """Return how many changes groups are sized for."""
    return expected.median if expected else round((known.rows or 0) * plan.CHANGE_SHARE)


def _by_groups(known: Known, rows: int, planned: int, changed: int) -> Choice:
    """So many rows, all as likely to have changed as any other, in groups of a size for the changes
    that were planned with. `rows_read` are those of groups that differ."""
    span = sketch_size.embedding_for(max(known.rows or 0, 1), known.bounds).span
    share = np.full(1, min(planned / max(rows, 1), 1.0))
    alike = group_selection.Histogram.of(share, group_selection.CLASS_EDGES)
    counted = group_selection.Histogram(alike.edges, alike.counts * rows, alike.updates * rows)
    row, key = known.prices.row, group_selection.key_bytes(rows, span)
    sizes = group_selection.grouping(
        counted, row_bytes=row, key_bytes=key, wait_bytes=known.line.round_trip_bytes
    )
    n = int(sizes.rows.max())
    if not n:  # not worth comparing
        return Choice(Method.GROUP, int(rows * row), rows_read=0)
    differing = rows * (1 - (1 - min(changed / max(rows, 1), 1)) ** n)
    size = rows * (key + ROW_HASH_BYTES / n)
    size += ROW_HASH_BYTES * differing + changed * row if sizes.is_refined else differing * row
    trips = 1 + (sizes.is_refined and changed > 0)
    return Choice(Method.GROUP, int(size), rows_read=math.ceil(differing), round_trips=trips)


def _candidate(
    known: Known, method: Method | None, size: int, trips: int, reread: int, changed: int
) -> Candidate:
    """`reread`: rows that the source reads after its scan."""
    theirs = known.rows_expected if known.rows_expected is not None else known.rows or 0
    what = "nothing changed" if method is None else NAMES[method]
    rows, scans = theirs + reread, 1 + (reread >= theirs > 0)
    again, spent = _rewritten(known, changed), _seconds(known, method)
    if method is not None and known.prices.guessed:
        return Candidate(what, None, trips, scans, rows, None, again, spent)
    took = round(known.line.seconds(size, trips, rows), 2)
    return Candidate(what, size, trips, scans, rows, took, again, spent)


def _rewritten(known: Known, changed: int) -> int:
    """Bytes of the files that so many scattered changes touch: a file of r of n rows is touched
    with probability 1 − exp(−changed·r/n)."""
    n = max(sum(rows for rows, _ in known.files), 1)
    return round(sum(-math.expm1(-changed * rows / n) * size for rows, size in known.files))


def _fixed(known: Known, sketch: Sketch | None) -> int:
    """What a refresh takes that finds nothing: the opening and an end."""
    slots = sketch.cells if sketch else known.partition.ranges
    fixed = plan.REPLY_BYTES + plan.opening_bytes(known.partition, slots)
    return fixed + (sketch.bytes_sent + plan.SKETCH_BYTES if sketch else 0)


def _differing(known: Known, sketch: Sketch | None, changed: int) -> int:
    """What a verdict would say: ranges, or cells where there is a sketch."""
    if sketch is None:
        return round(expected_slots(known.partition.ranges, changed))
    return round(expected_slots(sketch.cells, HASHES * changed))


def _stall(sketch: Sketch, differing: int, changed: int) -> Stall:
    """What the source would hold at its verdict, with a sample where the cells do not tell."""
    if sketch.tells(changed):
        return Stall(sketch)
    stall = Stall(sketch, sketch.sent, len(sketch.sent or ()))  # all of what was sent
    count = sampled(differing, sketch.cells)
    if not count or sketch_size.underestimated(changed, sketch.sent) < sketch_size.ESTIMATE_ERROR:
        return stall
    return replace(stall, sample=Sample(count, round(count * differing / sketch.cells)))


_GROUPS_BYTES = plan.OPEN_BYTES + plan.REPLY_BYTES  # of the messages around groups


def expected_slots(slots: int, entries: int) -> float:
    """How many of these slots so many entries fall into, scattered evenly (the occupancy problem:
    n(1 - (1 - 1/n)^k))."""
    if slots == 1:
        return float(min(entries, 1))
    return slots * -math.expm1(entries * math.log1p(-1 / slots))


def _seconds(known: Known, method: Method | None) -> float | None:
    """The median of refreshes that went this way; None for those that found nothing."""
    spent = [
        r.seconds
        for r in known.runs
        if not r.is_load
        and r.tells
        and (r.changed == 0 if method is None else r.changed > 0 and r.method == method.value)
    ]
    return round(statistics.median(spent), 1) if spent else None
