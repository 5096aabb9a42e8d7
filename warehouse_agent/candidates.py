"""The ways a refresh may go, priced from what is known without reading a row.

`Known` is everything a prediction depends on. Candidates are costed by the same `plan.choose` and
`group.grouping` that decide in a refresh, so they are wrong only where their inputs are. Pure.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from driftline.digests import Digest
from driftline.limits import GROUP_KEYS_MAX
from driftline.ranges import Partition
from driftline.sketches import HASHES, sampled

from warehouse_agent import group, plan, sizing
from warehouse_agent.expect import Expected
from warehouse_agent.line import Line, Objective
from warehouse_agent.plan import Method
from warehouse_agent.prices import Prices
from warehouse_agent.remember import Run
from warehouse_agent.sizing import Sample, Sketch, Stall
from warehouse_agent.tiles import Tiled

ROWS_PER_S = 500_000.0  # of a source that was never read


@dataclass(frozen=True, slots=True)
class Known:
    """What a prediction is made from.

    `rows` and `version` are published, None before the first load; `rows_expected` is the source's
    estimate, None where it gave none; `bounds` the least and the greatest integer key; `now` when
    it is asked; `files` are rows and bytes of the data files; `rows_per_s` is how fast rows were
    read in earlier exchanges; `limits` are the most rows and bytes a second that the source's DBA
    allows, infinite where she sets none.
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
    rows_per_s: float = ROWS_PER_S
    limits: tuple[float, float] = (math.inf, math.inf)
    staged_bytes: int = 0
    source_error: str | None = None
    schema_changes: tuple[str, ...] = ()
    tiled: Tiled | None = None  # None where the refresh is one exchange


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way a refresh may go.

    `bytes` are both directions, None where no row count is known; `source_rows` are read at the
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
    if rows is not None:
        ranges = known.partition.ranges
        size = plan.opening_bytes(known.partition, ranges) + int(known.prices.copy(rows))
    took = None if rows is None or size is None else _exchange_s(known, rows, size, 2)
    return Candidate("full copy", size, 2, 1, rows, took, 0, None)


def refreshes(
    known: Known, expected: Expected | None, changed: int
) -> tuple[tuple[Candidate, ...], str]:
    """Each way, and the name of the one that a refresh would go.

    Raises:
        ConfigurationError: groups are asked for, and cannot name so many rows.
    """
    ours = known.rows or 0
    if known.tiled is not None:
        return _in_tiles(known, known.tiled, ours, changed)
    if known.forced is Method.GROUP:
        group.refuse_too_many(known.name, ours, "method")
    theirs = ours if known.rows_expected is None else known.rows_expected
    sketch = _sketch(known, expected)
    slots = sketch.cells if sketch else known.partition.ranges
    opening = plan.opening_bytes(known.partition, slots)
    sent = sketch.bytes_sent + plan.SKETCH_BYTES if sketch else 0
    is_enough = sketch is not None and sketch.tells(changed)
    differing = _differing(known, sketch, changed)
    stall = None if sketch is None else _stall(sketch, differing, changed)
    options = {
        forced: plan.choose(
            ours=Digest(ours),
            theirs=Digest(theirs),
            ranges=known.partition.ranges,
            differing=differing,
            prices=known.prices,
            forced=forced,
            line=known.line,
            stall=stall,
        )
        for forced in (*Method, known.forced)
    }
    fixed = opening + plan.REPLY_BYTES
    found = [_candidate(known, None, fixed + sent, 1, 1, theirs, 0)]
    fixed += plan.FOUND_BYTES + (stall.sample.cells if stall and stall.sample else 0)
    is_based = sizing.embedding_for(max(ours, 1), known.bounds).base is not None
    once, twice = (1, theirs + changed), (2, 2 * theirs)  # scans, rows: to ship what changed
    if sketch is not None and options[Method.SKETCH].method is Method.SKETCH:
        size = sent + int(known.prices.changes(changed))
        if not is_enough:
            size = sent + options[Method.SKETCH].bytes_expected
        scans, rows = once if is_based else twice
        trips = 2 - is_enough
        found.append(_candidate(known, Method.SKETCH, fixed + size, trips, scans, rows, changed))
    if options[Method.RANGE].method is Method.RANGE:  # else too many rows would have to be hashed
        size = fixed + options[Method.RANGE].bytes_expected
        scans, rows = once if known.integer_key else twice
        found.append(_candidate(known, Method.RANGE, size, 3, scans, rows, changed))
    if 0 < ours <= GROUP_KEYS_MAX and not known.read_at_most:
        size = _by_groups(known, ours, changed)
        scans, rows = once if is_based else twice
        found.append(_candidate(known, Method.GROUP, size, 1, scans, rows, changed))
    size = fixed + sent + options[Method.FULL].bytes_expected
    found.append(_candidate(known, Method.FULL, size, 2, 2, 2 * theirs, ours))
    is_grouped = known.forced is Method.GROUP and ours
    chosen = _NAMES[Method.GROUP if is_grouped else options[known.forced].method]
    if known.read_at_most:
        compared = min(known.read_at_most, ours)
        chosen = f"{compared:,} rows of it, by groups"
        changed = max(changed * compared // max(ours, 1), 1)
        size = _by_groups(known, compared, changed)
        part = _candidate(known, Method.GROUP, size, 1, 0, compared, changed)
        found.append(replace(part, what=chosen))
    return tuple(found), chosen


def _in_tiles(
    known: Known, tiled: Tiled, ours: int, changed: int
) -> tuple[tuple[Candidate, ...], str]:
    chosen, found = f"in {plural(tiled.count, 'tile')}", []
    for what, d, method in (("nothing changed", 0, None), (chosen, changed, Method.RANGE)):
        size, trips = tiled.cost(ours, d, known.prices.row)
        one = _candidate(known, method, size, trips, 0, ours, d)
        pauses = (tiled.count - 1) * tiled.wanted.pause_s
        took = round((one.exchange_seconds or 0.0) + pauses, 2)
        found.append(replace(one, what=what, exchange_seconds=took))
    return tuple(found), chosen


def _by_groups(known: Known, rows: int, changed: int) -> int:
    """Bytes for so many rows in groups, all as likely to have changed as any other."""
    span = sizing.embedding_for(max(known.rows or 0, 1), known.bounds).span
    share = np.full(1, min(changed / max(rows, 1), 1.0))
    alike = group.Histogram.of(share, group.CLASS_EDGES)
    counted = group.Histogram(alike.edges, alike.counts * rows, alike.updates * rows)
    sizes = group.grouping(
        counted,
        row_bytes=known.prices.row,
        key_bytes=group.key_bytes(rows, span),
        wait_bytes=known.line.round_trip_bytes,
    )
    return plan.OPEN_BYTES + plan.REPLY_BYTES + int(sizes.bytes_expected)


def _candidate(
    known: Known,
    method: Method | None,
    size: int,
    trips: int,
    scans: int,
    rows: int,
    changed: int,
) -> Candidate:
    what = "nothing changed" if method is None else _NAMES[method]
    took, again = _exchange_s(known, rows, size, trips), _rewritten(known, changed)
    return Candidate(what, size, trips, scans, rows, took, again, _seconds(known, method))


def _exchange_s(known: Known, rows: int, size: int, trips: int) -> float:
    """Seconds of an exchange: scan, round trips and bytes, one after the other."""
    rows_per_s = min(known.rows_per_s, known.limits[0])
    bytes_per_s = min(known.line.bytes_per_s, known.limits[1])
    return round(rows / rows_per_s + trips * known.line.rtt_s + size / bytes_per_s, 2)


def _rewritten(known: Known, changed: int) -> int:
    """Bytes of the files that so many scattered changes touch: a file of r of n rows is touched
    with probability 1 − exp(−changed·r/n)."""
    n = max(sum(rows for rows, _ in known.files), 1)
    return round(sum(-math.expm1(-changed * rows / n) * size for rows, size in known.files))


def _sketch(known: Known, expected: Expected | None) -> Sketch | None:
    if not known.rows or known.forced in (Method.RANGE, Method.GROUP, Method.FULL):
        return None
    return sizing.open_sketch(
        rows=known.rows,
        bounds=known.bounds,
        expected=expected,
        prices=known.prices,
        line=known.line,
    )


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
    if not count or sizing.underestimated(changed, sketch.sent) < sizing.ESTIMATE_ERROR:
        return stall
    return replace(stall, sample=Sample(count, round(count * differing / sketch.cells)))


_NAMES = {
    Method.SKETCH: "by sketch",
    Method.RANGE: "by ranges",
    Method.GROUP: "by groups",
    Method.FULL: "full copy",
}


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
        and (r.changed == 0 if method is None else r.changed > 0 and r.method == method.value)
    ]
    return round(statistics.median(spent), 1) if spent else None


def why(known: Known, candidates: tuple[Candidate, ...], chosen: str) -> str:
    """Why the chosen candidate is, in words."""
    if known.rows is None:
        return "there is nothing to compare yet"
    if known.read_at_most:
        return f"read_at_most = {known.read_at_most}"
    if known.tiled is not None:
        return "incremental"
    if known.forced is not None:
        return f'method = "{known.forced.value}"'
    sized = {c.what: c for c in candidates[1:] if c.bytes is not None}
    no_rivals = {chosen, _NAMES[Method.GROUP]}  # groups are taken only where they are asked for
    others = [c for what, c in sized.items() if what not in no_rivals]
    line = known.line
    if chosen not in sized or not others:
        return ""
    if line.objective is Objective.BYTES:
        best = min(others, key=lambda c: c.bytes or 0)
        less = (best.bytes or 0) - (sized[chosen].bytes or 0)
        if less < 0:
            return f"{best.what} may take much more than a copy, should more have changed"
        return f'{less:,} bytes fewer than {best.what} (objective = "bytes")'
    best = min(others, key=lambda c: c.exchange_seconds or 0.0)
    less_s = (best.exchange_seconds or 0.0) - (sized[chosen].exchange_seconds or 0.0)
    speed = f"{line.rtt_s * 1000:,.0f} ms and {line.bytes_per_s * 8e-6:,.1f} Mbit/s"
    if less_s < 0:
        return f"{best.what} may take much more than a copy, should more have changed"
    return f"{less_s:,.1f} s less than {best.what} over {speed}"


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
