"""Decisions of a refresh, without I/O: partitions, sketches, and the cheapest way to go on.

What goes up with the opening is decided from what earlier refreshes found (`open_sketch`); what
follows a verdict from how much seems to differ (`choose`). Costs are bytes on the line, and bytes
that the line could have carried while a round trip was waited for. Nothing here knows Spark or
gRPC.

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
    SKETCH_KEYS_MAX,
    STRATA,
    STRATUM_CELLS,
    THIRD_CELLS_MAX,
)
from driftline.ranges import POSITION_MIN, Partition, coarse_ranges, from_quantiles, uniform
from driftline.sketches import CELL_BYTES, HASHES, Embedding, fold_for
from driftline.units import ROW_HASH_BYTES

from warehouse_agent.expect import Expected

OPEN_BYTES = 96  # of `Open` without its variable parts; a reply to it that says "equal" is smaller
SKETCH_BYTES = 24  # of a sketch's parameters
REPLY_BYTES = 80  # of an end
FOUND_BYTES = 160  # of a list of deleted keys, a frame's header and the messages around them
DIGEST_BYTES = 8
ROWS_PER_RANGE = 4  # of the finest partition: below it a digest costs as much as its row hashes
SATURATED = 0.95  # of the ranges: 3 changes a range
QUANTILES = 64  # knots of a partition of integer keys: 5 bytes each in every opening
# Of zstd. A load is bound by the scan; 12 takes 3 µs a row, and 19 ten times that for 9 % less,
# which pays on metered lines alone.
LOAD_LEVEL, REFRESH_LEVEL, METERED_LEVEL = 3, 12, 19

CHANGE_SHARE = 0.01  # of the rows, assumed where there is no earlier refresh
ESTIMATE_ERROR = 1.25  # the strata are off by 12 % (one standard deviation)
FINEST = 131_072  # cells of any table of so many rows; 2 MB at the source, nothing on the wire
QUANTILES_SENT = (50, 60, 70, 80, 90, 95, 98)
REFINED = 0.8  # of the cells that were sent, once more where they do not suffice
UNFOLDS = 12  # times finer than what is sent at once, and as much more as is not unlikely
FOLDS = (1, 2, 4, 12, 60, 360, 2520, 27_720)  # of many divisors: a stall gets what it needs
ROWS_PER_BUCKET = 1 / 256  # of a hashed k: what shares it is shipped for nothing
WORTH = 0.04  # of a full copy: a first flight that tells nothing costs no more
WORTH_BYTES = 8192
SPARSE = 0.3  # of the cells are stuck: the next finer table will do
# Thirds whose tables fold to nearly any size, where nothing was predicted.
THIRDS = (60, 360, 2520, 10080, 27720, 55440, 110880, 221760, 332640, 498960, THIRD_CELLS_MAX)


class Method(Enum):
    """How the difference is found."""

    RANGE = "range"
    GROUP = "group"
    SKETCH = "sketch"
    FULL = "full"


class Objective(Enum):
    """What a refresh is to take little of."""

    SECONDS = "seconds"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Line:
    """What connects the agents, as measured: a round trip in seconds, and bytes a second."""

    rtt_s: float = 0.1
    bytes_per_s: float = 1.25e6
    objective: Objective = Objective.SECONDS

    @property
    def round_trip_bytes(self) -> float:
        """What it could have carried while a round trip was waited for; waiting is free where only
        bytes count."""
        return self.rtt_s * self.bytes_per_s if self.objective is Objective.SECONDS else 0.0

    @property
    def level(self) -> int:
        """Of zstd, for the rows of a refresh."""
        return METERED_LEVEL if self.objective is Objective.BYTES else REFRESH_LEVEL


@dataclass(frozen=True, slots=True)
class Sketch:
    """A sketch of our side: how keys embed, cells in a third of its finest table, and the fold of
    the cells that go up with the opening; 0 when none do."""

    embedding: Embedding
    third: int
    fold: int = 0

    @property
    def cells(self) -> int:
        """Of the finest table."""
        return HASHES * self.third

    @property
    def bytes_sent(self) -> int:
        """Of the cells that go up with the opening."""
        return CELL_BYTES * self.cells // self.fold if self.fold else 0


@dataclass(frozen=True, slots=True)
class Stall:
    """A sketch that the source holds: the fold of what it heard (0: nothing), its stuck cells."""

    sketch: Sketch
    fold: int = 0
    stuck: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What the warehouse answers to a verdict, with the bytes it expects to move: `coarsen` of
    ranges, `fold` of cells."""

    method: Method
    bytes_expected: int
    coarsen: int = 0
    fold: int = 0


def partition_for(quantiles: list[int], rows: int, *, integer_key: bool) -> Partition:
    """The finest partition for a working copy of `rows` rows with these key quantiles."""
    ranges = min(max(rows // ROWS_PER_RANGE, 2), RANGES_MAX)
    if not integer_key:
        return uniform(ranges)
    return from_quantiles(quantiles, ranges)


def everything() -> Partition:
    """One range of all positions, where nothing is compared by ranges."""
    return Partition((POSITION_MIN,), (63,))


def embedding_for(rows: int, bounds: tuple[int, int] | None) -> Embedding:
    """How the keys of so many rows embed; `bounds`: the least and the greatest integer key."""
    if bounds is not None and bounds[1] - bounds[0] < SKETCH_KEYS_MAX:
        return Embedding(bounds[1] - bounds[0] + 1, bounds[0])
    return Embedding(min(1 << math.ceil(math.log2(rows / ROWS_PER_BUCKET)), SKETCH_KEYS_MAX))


def cells_for(changes: float) -> int:
    """Cells from which so many changes are read nearly always (RECONCILIATION, section 11:
    1.26 to 1.4 for each of 100,000 to 1,000; tiny sets need spare ones)."""
    return math.ceil(1.24 * changes + 5 * math.sqrt(changes) + 40)


def open_sketch(
    *,
    rows: int,
    bounds: tuple[int, int] | None,
    expected: Expected | None,
    row_bytes: float,
    line: Line,
) -> Sketch:
    """The sketch of a refresh, and what of it goes up before anything is known.

    Nothing sent costs a round trip and then the cells that are needed; cells for a quantile of d
    cost themselves whatever changed, and a round trip and the children of stuck cells where they do
    not suffice. The cheapest quantile wins, and is capped by what a full copy would cost, lest a
    wrong prediction costs more.

    Args:
        rows: of our side, at least one.
        bounds: the least and the greatest integer key.
        expected: how many rows changed; None: nothing is known.
        row_bytes: a compressed row on the wire.
    """
    embedding = embedding_for(rows, bounds)
    if expected is None:
        return Sketch(embedding, next((t for t in THIRDS if HASHES * t >= rows), THIRDS[-1]))
    wait = line.round_trip_bytes
    likely = CELL_BYTES * cells_for(expected.median)
    cost, chosen = (1 - expected.unchanged) * (wait + ESTIMATE_ERROR * likely), 0
    cap = WORTH * rows * row_bytes + WORTH_BYTES
    for percent in QUANTILES_SENT:
        cells = cells_for(expected.quantile(percent / 100))
        sent = CELL_BYTES * cells
        stalls = (1 - percent / 100) * (wait + REFINED * sent)
        if sent <= min(cap, CELL_BYTES * HASHES * THIRD_CELLS_MAX) and sent + stalls < cost:
            cost, chosen = sent + stalls, cells
    # Bulk changes come unforeseen: what is not on the wire is cheap, and a second scan is not.
    finest = min(max(cells_for(expected.quantile(0.98)), FINEST), HASHES * rows)
    target = min(max(UNFOLDS * chosen, finest), HASHES * THIRD_CELLS_MAX)
    if not chosen:
        return Sketch(embedding, next(t for t in THIRDS if HASHES * t >= target))
    third = -(-chosen // HASHES)
    fits = [f for f in FOLDS if f * third <= THIRD_CELLS_MAX]
    fold = next((f for f in fits if f * HASHES * third >= target), fits[-1])
    return Sketch(embedding, fold * third, fold)


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
    # Row by row the worst case counts: an estimate that is too low must not cost more than a copy.
    waits = line.round_trip_bytes
    options = [(full.bytes_expected + 0.0, full)]
    if by_range:
        options.append((by_range.bytes_expected + waits, by_range))
    if by_sketch:
        options.append((ESTIMATE_ERROR * by_sketch.bytes_expected, by_sketch))
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
    sketch = stall.sketch
    need = cells_for(ESTIMATE_ERROR * changes)
    if stall.fold == 1 or need > sketch.cells:
        return None
    if not stall.fold:
        fold = fold_for(sketch.third, need)
        return Choice(Method.SKETCH, int(CELL_BYTES * sketch.cells / fold + payload), fold=fold)
    finer = [f for f in range(1, stall.fold) if stall.fold % f == 0]
    fold = finer[-1]
    if stall.stuck * stall.fold > SPARSE * sketch.cells:
        fold = max((f for f in finer if sketch.cells >= f * need), default=1)
    sent = stall.stuck * (stall.fold // fold - 1)
    return Choice(Method.SKETCH, int(CELL_BYTES * sent + payload), fold=fold)


def rows_changed(differing: int, slots: int) -> float:
    """How many scattered changes make so many of the slots (ranges, or cells) differ.

    The estimate of those that differ is good to a quarter, so a share near 1 tells little more than
    that: it counts as SATURATED, or the method would follow the noise.
    """
    return -slots * math.log1p(-min(differing / slots, SATURATED))


def sketch_bytes(partition: Partition, sketch: Sketch, changed: int, row_bytes: float) -> int:
    """What an exchange takes that finds so many changed rows, and guessed well."""
    fixed = opening_bytes(partition) + SKETCH_BYTES + REPLY_BYTES
    if not changed:
        return fixed + sketch.bytes_sent
    cells = max(CELL_BYTES * cells_for(changed), sketch.bytes_sent)
    return fixed + FOUND_BYTES + int(cells + changed * row_bytes)


def floor_bytes(rows: int, changed: int, row_bytes: float) -> int:
    """What no method goes below: the changed rows, and which of `rows` they are (log2 C(n, d)
    bits)."""
    n, d = max(rows, changed), changed
    bits = (math.lgamma(n + 1) - math.lgamma(d + 1) - math.lgamma(n - d + 1)) / math.log(2)
    return round(changed * row_bytes + bits / 8)


def opening_bytes(partition: Partition) -> int:
    """Of the first message: strata, and a start and a shift for every segment."""
    starts = partition.starts
    # Steps are zigzag varints, modulo 2^64: seven bits a byte, one of them the sign.
    steps = [(b - a + (1 << 63)) % (1 << 64) - (1 << 63) for a, b in pairwise((0, *starts))]
    varints = sum((step.bit_length() + 7) // 7 for step in steps)
    return OPEN_BYTES + STRATA * STRATUM_CELLS + varints + len(starts)


def shrank(before: int, after: int) -> bool:
    """Whether more than half of the rows are gone: refused unless allowed."""
    return after * 2 < before
