"""The ways a refresh may go, priced from what is known without reading a row.

`Known` is everything a prediction depends on. Candidates are costed by the same `plan.choose` and
`group.grouping` that decide in a refresh, so they are wrong only where their inputs are. Pure.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from driftline.digests import Digest
from driftline.ranges import Partition
from driftline.sketches import CELL_BYTES, HASHES

from warehouse_agent import group, plan
from warehouse_agent.expect import Expected
from warehouse_agent.plan import Line, Method, Sketch, Stall
from warehouse_agent.remember import Run


@dataclass(frozen=True, slots=True)
class Known:
    """What a prediction is made from.

    `rows` and `version` are published, None before the first load; `rows_expected` is the source's
    estimate, None where it gave none; `row_bytes` is a compressed row on the line; `bounds` the
    least and the greatest integer key; `now` when it is asked.
    """

    name: str
    version: int | None
    rows: int | None
    rows_expected: int | None
    row_bytes: float
    partition: Partition
    integer_key: bool
    bounds: tuple[int, int] | None
    line: Line
    now: datetime
    forced: Method | None
    read_at_most: int | None
    runs: tuple[Run, ...]
    staged_bytes: int = 0
    source_error: str | None = None
    schema_changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way a refresh may go. Bytes are both directions, None where no row count is known;
    `round_trips` and `source_scans` are counts, `seconds` the median of earlier refreshes."""

    what: str
    bytes: int | None
    round_trips: int
    source_scans: int
    seconds: float | None


def load(known: Known) -> Candidate:
    size = None
    if known.rows_expected is not None:
        size = plan.opening_bytes(known.partition) + int(known.rows_expected * known.row_bytes)
    # Describe, then the exchange.
    return Candidate("full copy", size, 2, 1, None)


def refreshes(
    known: Known, expected: Expected | None, changed: int
) -> tuple[tuple[Candidate, ...], str]:
    ours = known.rows or 0
    theirs = ours if known.rows_expected is None else known.rows_expected
    sketch = _sketch(known, expected)
    opening = plan.opening_bytes(known.partition)
    sent = sketch.bytes_sent + plan.SKETCH_BYTES if sketch else 0
    options = {
        forced: plan.choose(
            ours=Digest(ours),
            theirs=Digest(theirs),
            ranges=known.partition.ranges,
            differing=_differing(known, sketch, changed),
            row_bytes=known.row_bytes,
            forced=forced,
            line=known.line,
            stall=None if sketch is None else Stall(sketch),
        )
        for forced in (*Method, known.forced)
    }
    found = [
        Candidate(
            "nothing changed", opening + sent + plan.REPLY_BYTES, 1, 1, _seconds(known, None)
        ),
    ]
    if sketch is not None and options[Method.SKETCH].method is Method.SKETCH:
        cells = plan.cells_for(changed)
        is_enough = CELL_BYTES * cells <= sketch.bytes_sent
        size = sent + int(changed * known.row_bytes)
        if not is_enough:
            size = sent + options[Method.SKETCH].bytes_expected
        scans = 1 if sketch.embedding.base is not None else 2
        found.append(_candidate(known, Method.SKETCH, opening + size, 2 - is_enough, scans))
    if options[Method.RANGE].method is Method.RANGE:  # else too many rows would have to be hashed
        size = opening + options[Method.RANGE].bytes_expected
        scans = 1 if known.integer_key else 2
        found.append(_candidate(known, Method.RANGE, size, 3, scans))
    if ours and not known.read_at_most:
        size = _by_groups(known, ours, changed)
        found.append(_candidate(known, Method.GROUP, size, 1, 1 if known.integer_key else 2))
    size = opening + sent + options[Method.FULL].bytes_expected
    found.append(_candidate(known, Method.FULL, size, 2, 2))
    chosen = _NAMES[Method.GROUP if known.forced is Method.GROUP else options[known.forced].method]
    if known.read_at_most:
        compared = min(known.read_at_most, ours)
        chosen = f"{compared:,} rows of it, by groups"
        size = _by_groups(known, compared, max(changed * compared // max(ours, 1), 1))
        found.append(Candidate(chosen, size, 1, 0, _seconds(known, Method.GROUP)))
    return tuple(found), chosen


def _by_groups(known: Known, rows: int, changed: int) -> int:
    """Bytes for so many rows in groups, all as likely to have changed as any other."""
    span = plan.embedding_for(max(known.rows or 0, 1), known.bounds).span
    share = np.full(1, min(changed / rows, 1.0))
    alike = group.Histogram.of(share, group.CLASS_EDGES)
    counted = group.Histogram(alike.edges, alike.counts * rows, alike.updates * rows)
    sizes = group.grouping(
        counted,
        row_bytes=known.row_bytes,
        key_bytes=group.key_bytes(rows, span),
        wait_bytes=known.line.round_trip_bytes,
    )
    return plan.OPEN_BYTES + plan.REPLY_BYTES + int(sizes.bytes_expected)


def _candidate(known: Known, method: Method, size: int, trips: int, scans: int) -> Candidate:
    return Candidate(_NAMES[method], size, trips, scans, _seconds(known, method))


def _sketch(known: Known, expected: Expected | None) -> Sketch | None:
    if not known.rows or known.forced in (Method.RANGE, Method.GROUP, Method.FULL):
        return None
    return plan.open_sketch(
        rows=known.rows,
        bounds=known.bounds,
        expected=expected,
        row_bytes=known.row_bytes,
        line=known.line,
    )


def _differing(known: Known, sketch: Sketch | None, changed: int) -> int:
    """What a verdict would say: ranges, or cells where there is a sketch."""
    if sketch is None:
        return round(expected_slots(known.partition.ranges, changed))
    return round(expected_slots(sketch.cells, HASHES * changed))


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
