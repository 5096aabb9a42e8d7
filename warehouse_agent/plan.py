"""Decisions of a refresh, without I/O: partitions, methods, and the cheapest way to go on.

What follows a verdict is decided from how much seems to differ (`choose`); what goes up before
there is one, from what earlier refreshes found (`sizing`). Nothing here knows Spark or gRPC.

The cost of a sketch is 8 bytes a cell, some 10 bytes a changed row. That of the range method
(Carnes and Hanson's RCS refined by row hashes): with D of R finest ranges differing, coarsening by
2^c sends 8·R/2^c bytes of digests up and 8 bytes for every row of a differing range down; the best
c balances the two. A full copy sends every row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from driftline.digests import Digest
from driftline.limits import (
    RANGES_MAX,
    ROW_HASHES_MAX,
    STRATUM_CELLS,
)
from driftline.ranges import (
    POSITION_MIN,
    Partition,
    coarse_ranges,
    from_quantiles,
    strata_of,
    uniform,
)
from driftline.sketches import CELL_BYTES, HASHES, Grid
from driftline.units import ROW_HASH_BYTES

from warehouse_agent.line import Line
from warehouse_agent.sizing import (
    ESTIMATE_ERROR,
    SPARSE,
    Sketch,
    Stall,
    cells_for,
    fitting,
    refined,
    underestimated,
)

OPEN_BYTES = 96  # of `Open` without its variable parts; a reply to it that says "equal" is smaller
SKETCH_BYTES = 24  # of a sketch's parameters
REPLY_BYTES = 80  # of an end
FEW = 64  # rows: each of them costs more, there being little to compress it against
FOUND_BYTES = 160  # of a list of deleted keys, a frame's header and the messages around them
DIGEST_BYTES = 8
ROWS_PER_RANGE = 4  # of the finest partition: below it a digest costs as much as its row hashes
SATURATED = 0.95  # of the ranges: 3 changes a range
QUANTILES = 64  # knots of a partition of integer keys: 5 bytes each in every opening

CHANGE_SHARE = 0.01  # of the rows, assumed where there is no earlier refresh


class Method(Enum):
    """How the difference is found."""

    RANGE = "range"
    GROUP = "group"
    SKETCH = "sketch"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the warehouse answers to a verdict, with the bytes it expects to move: `coarsen` of
    ranges, `grid` of cells."""

    method: Method
    bytes_expected: int
    coarsen: int = 0
    grid: Grid | None = None


def partition_for(quantiles: list[int], rows: int, *, integer_key: bool) -> Partition:
    """The finest partition for a working copy of `rows` rows with these key quantiles."""
    ranges = min(max(rows // ROWS_PER_RANGE, 2), RANGES_MAX)
    if not integer_key:
        return uniform(ranges)
    return from_quantiles(quantiles, ranges)


def everything() -> Partition:
    """One range of all positions, where nothing is compared by ranges."""
    return Partition((POSITION_MIN,), (63,))


def choose(
    *,
    ours: Digest,
    theirs: Digest,
    ranges: int,
    differing: int,
    row_bytes: float,
    forced: Method | None,
    line: Line,
    stall: Stall | None = None,
) -> Choice:
    """What follows a verdict: more cells, range digests at the cheapest coarsening, or everything.

    Args:
        ours, theirs: the two totals.
        ranges: of the finest partition.
        differing: ranges that seem to differ, or cells of the finest table where there is a sketch.
        row_bytes: a compressed row on the wire.
        forced: the method that the configuration asks for.
        stall: the sketch that the source holds.
    """
    full = Choice(Method.FULL, int(theirs.count * row_bytes))
    if forced is Method.FULL:
        return full
    found = (
        rows_changed(differing, ranges)
        if stall is None
        else rows_changed(differing, stall.sketch.cells) / HASHES
    )
    changed = min(found + max(theirs.count - ours.count, 0), theirs.count)
    if stall is not None:
        differing = round(ranges * -math.expm1(-found / ranges))
    by_range = _by_range(ours, theirs, ranges, differing, changed * row_bytes)
    by_sketch = None if stall is None else _by_sketch(stall, found, changed * row_bytes)
    if forced is Method.SKETCH and by_sketch:
        return by_sketch
    if forced is Method.RANGE and by_range:
        return by_range
    # The worst case counts: an estimate that is too low must not cost more than a copy.
    more = (ESTIMATE_ERROR - 1) * changed * row_bytes
    options = [(full.bytes_expected + 0.0, full)]
    if by_range:
        cost = by_range.bytes_expected + more + line.round_trip_bytes
        options.append((cost, by_range))
    if by_sketch:
        options.append((by_sketch.bytes_expected + more, by_sketch))
    return min(options, key=lambda option: option[0])[1]


def _by_range(
    ours: Digest, theirs: Digest, ranges: int, differing: int, payload: float
) -> Choice | None:
    """Range digests at the cheapest coarsening; None: too many rows would have to be hashed."""
    best: Choice | None = None
    for by in range(ranges.bit_length()):
        hit = 1 - (1 - min(differing / ranges, 1.0)) ** (1 << by)
        hashed = hit * min(ours.count, theirs.count)
        if hashed > ROW_HASHES_MAX:
            continue
        identify = DIGEST_BYTES * coarse_ranges(ranges, by) + ROW_HASH_BYTES * hashed
        cost = int(identify + payload)
        if best is None or cost < best.bytes_expected:
            best = Choice(Method.RANGE, cost, coarsen=by)
    return best


def _by_sketch(stall: Stall, changes: float, payload: float) -> Choice | None:
    """The cells that are missing; None: the finest table would not decode, or did not."""
    sketch, grid = stall.sketch, stall.grid
    need = cells_for(underestimated(changes, grid) * changes)
    if need > sketch.cells:
        return None
    if grid is None:
        wanted = fitting(sketch.third, need)
        sent = float(len(wanted))
    elif len(grid) == sketch.cells:
        return None
    else:
        wanted = refined(grid, need, is_stuck=stall.stuck > SPARSE * len(grid))
        sent = stall.stuck * (len(wanted) / len(grid) - 1)
    return Choice(Method.SKETCH, int(CELL_BYTES * sent + payload), grid=wanted)


def rows_changed(differing: int, slots: int) -> float:
    """How many scattered changes make so many of the slots (ranges, or cells) differ.

    The estimate of those that differ is good to a quarter, so a share near 1 tells little more than
    that: it counts as SATURATED, or the method would follow the noise.
    """
    return -slots * math.log1p(-min(differing / slots, SATURATED))


def payload_bytes(changed: int, row_bytes: float, few_row_bytes: float) -> float:
    """Of so many changed rows; the first FEW cost `few_row_bytes` each."""
    few = min(changed, FEW)
    return few * few_row_bytes + (changed - few) * row_bytes


def sketch_bytes(partition: Partition, sketch: Sketch, changed: int, payload: float) -> int:
    """What an exchange takes that finds so many changed rows, and guessed well."""
    fixed = opening_bytes(partition, sketch.cells) + SKETCH_BYTES + REPLY_BYTES
    if not changed:
        return fixed + sketch.bytes_sent
    cells = max(CELL_BYTES * cells_for(changed), sketch.bytes_sent)
    return fixed + FOUND_BYTES + int(cells + payload)


def floor_bytes(rows: int, changed: int, row_bytes: float) -> int:
    """What no method goes below: the changed rows, and which of `rows` they are (log2 C(n, d)
    bits)."""
    n, d = max(rows, changed), changed
    bits = (math.lgamma(n + 1) - math.lgamma(d + 1) - math.lgamma(n - d + 1)) / math.log(2)
    return round(changed * row_bytes + bits / 8)


def opening_bytes(partition: Partition, slots: int) -> int:
    """Of the first message: strata of so many slots, and a start and a shift for every segment."""
    starts = partition.starts
    # Steps are zigzag varints, modulo 2^64: seven bits a byte, one of them the sign.
    steps = [(b - a + (1 << 63)) % (1 << 64) - (1 << 63) for a, b in pairwise((0, *starts))]
    varints = sum((step.bit_length() + 7) // 7 for step in steps)
    return OPEN_BYTES + strata_of(slots) * STRATUM_CELLS + varints + len(starts)


def shrank(before: int, after: int) -> bool:
    """Whether more than half of the rows are gone: refused unless allowed."""
    return after * 2 < before
