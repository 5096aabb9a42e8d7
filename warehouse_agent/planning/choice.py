"""Decisions of a refresh, without I/O: partitions, methods, and the cheapest way to continue.

After a verdict `choose` decides by how much seems to differ; what goes up with the opening is sized
by what earlier refreshes found (`sketch_size`). Spark and gRPC are unknown here.

A sketch takes 8 bytes a cell, about 10 bytes a changed row. The range method (the RCS of Carnes and
Hanson, refined by row hashes): if D of R finest ranges differ, coarsening by 2^c sends 8·R/2^c
bytes of digests up and 8 bytes for every row of a differing range down; the best c balances the
two. A full copy sends every row. The cheapest way takes the least time for bytes, round trips and
reading at the source, on the measured line (`Line.cost`), and for what the warehouse does for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from itertools import pairwise

from driftline.limits import RANGES_MAX, ROW_HASHES_MAX, ROWS_HELD_BYTES, STRATUM_CELLS
from driftline.reconciliation import ranges as key_ranges
from driftline.reconciliation.groups import ROW_HASH_BYTES
from driftline.reconciliation.ranges import POSITION_MIN, Partition
from driftline.reconciliation.sketches import CELL_BYTES, HASHES, Grid
from driftline.rows.digests import Digest

from warehouse_agent.planning import sketch_size
from warehouse_agent.planning.network import Line, Objective
from warehouse_agent.planning.prices import Prices
from warehouse_agent.planning.sketch_size import ESTIMATE_ERROR, PARTLY, Stall, cells_for

OPEN_BYTES = 96  # of `Open` without its variable parts; the reply "equal" to it is smaller
SKETCH_BYTES = 24  # of the parameters of a sketch
REPLY_BYTES = 80  # of an end
FOUND_BYTES = 160  # of a list of deleted keys, a frame's header and the messages around them
DIGEST_BYTES = 8
ROWS_PER_RANGE = 4  # of the finest partition: below it a digest costs as much as its row hashes
SATURATED = 0.95  # of the slots, 3 changes each: a larger share says nothing of the changes
QUANTILES = 64  # of a partition of integer keys: 5 bytes each in every opening
ROWS_PER_QUANTILE = 64  # at least: of fewer rows, chance alone makes segments of other widths

OVER, OVER_BYTES = 1.05, 16_384  # of the bytes of a copy, and beside them: the most at worst
CHANGE_SHARE = 0.01  # of the rows, assumed if there is no earlier refresh
INDEX_SHARE = 0.25  # of the rows: if it must read more again, a source reads all of them
FOUND_SHARE = 0.1  # the same, where it finds rows by the places or keys that its scan kept

# Seconds for a row that comes, of lineitem on two cores (2026-11-28). A source packs 3 M rows in
# some 7 s, while the line carries those before; to decode, verify and write them takes the
# warehouse 5.2 s in the driver's threads, and 1.8 s to write as many again that stay.
PACKED_ROW_S, CAME_ROW_S = 2.3e-6, 1.1e-6
HASHED_ROW_S = 0.6e-6  # the warehouse's, to sort and compare a row hash of either side, as measured
UNPACKED = 4.0  # bytes of a row that a source holds, over those on the line: of lineitem


class Method(Enum):
    """A method that finds the difference."""

    RANGE = "range"
    GROUP = "group"
    SKETCH = "sketch"
    FULL = "full"
    SINCE = "since"


# Names for people and reports, in the order in which candidates are listed.
NAMES = {
    Method.SINCE: "by marker",
    Method.SKETCH: "by sketch",
    Method.RANGE: "by ranges",
    Method.GROUP: "by groups",
    Method.FULL: "full copy",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer of the warehouse to a verdict, with its expected cost: bytes that move, round
    trips, rows that the source reads again, rows that come, and row hashes of both sides that are
    compared. `coarsen` is for ranges, `grid` for cells."""

    method: Method
    bytes_expected: int
    _: KW_ONLY
    rows_read: int
    round_trips: int = 1
    rows_come: float = 0.0
    hashes: float = 0.0
    coarsen: int = 0
    grid: Grid | None = None

    def cost(self, line: Line) -> float:
        """Return what the objective minimizes: bytes, or seconds, those of the warehouse too."""
        cost = line.cost(self.bytes_expected, self.round_trips, self.rows_read)
        if line.objective is Objective.BYTES:
            return cost
        cost += seconds_of_rows(line, self.rows_come, self.bytes_expected)
        return cost + self.hashes * HASHED_ROW_S


@dataclass(frozen=True, slots=True)
class PricedChoice:
    """A choice that a method offers, with the bytes that it moves if the estimate was too low."""

    choice: Choice
    bytes_at_worst: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs that decide between continuations.

    `forced` is the method in the configuration; with an `integer_key` the source finds rows again
    by an index; `finds_rows`: it found them by the places or keys that its scan kept; `rows_lost`
    rows of ours are known to be missing: they differ, and are not new.
    """

    prices: Prices
    line: Line
    integer_key: bool
    forced: Method | None = None
    rows_lost: int = 0
    finds_rows: bool = False


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two sides that differ: their totals, and how much seems to differ.

    The count of `ours` includes rows that were lost. `ranges` are those of the finest partition;
    `differing` are the ranges that seem to differ or, with a sketch, the cells of its finest table.
    `stall` is the sketch that the source holds; if it is one `of_keys`, a marker shows the updates.
    """

    costs: Costs
    ours: Digest
    theirs: Digest
    ranges: int
    differing: int
    stall: Stall | None = None
    of_keys: bool = False


def partition_for(quantiles: list[int], rows: int, *, integer_key: bool) -> Partition:
    """Return the finest partition for a working copy of `rows` rows with these key quantiles."""
    ranges = min(max(rows // ROWS_PER_RANGE, 2), RANGES_MAX)
    if not integer_key:
        return key_ranges.uniform(ranges)
    stride = math.ceil((len(quantiles) - 1) / max(rows // ROWS_PER_QUANTILE, 1))
    if stride > 1:
        quantiles = [*quantiles[:-1:stride], quantiles[-1]]
    return key_ranges.from_quantiles(quantiles, ranges)


def outgrown(
    quantiles: Sequence[int], counted: int, rows: int, bounds: tuple[int, int] | None
) -> bool:
    """Return True if a fifth of the rows, or of the span of the keys, came or went since the
    quantiles of `counted` rows were computed; `bounds` of the keys now, None if unknown."""
    if not quantiles or abs(counted - rows) > rows // 5:
        return True
    if bounds is None:
        return False
    first, last = quantiles[0], quantiles[-1]
    return max(abs(bounds[0] - first), abs(bounds[1] - last)) > (last - first) // 5


def everything() -> Partition:
    """Return one range of all positions, for methods that compare no ranges."""
    return Partition((POSITION_MIN,), (63,))


def choose(at: Disagreement, offers: Sequence[PricedChoice]) -> Choice:
    """Return the offer of the method in the configuration; else the cheapest one, the first of
    equals, whose bytes at worst stay near those of a copy, which is among the offers.

    A sketch of keys goes on while its cells are one of these: any other way would read all rows
    once more, and ship the updates as well, whose number the keys do not tell.
    """
    for offer in offers:
        if offer.choice.method is at.costs.forced:
            return offer.choice
    copied = offer_copy(at).choice.bytes_expected
    spent = at.stall.bytes_spent if at.stall else 0
    # Bytes that are spent are lost either way: compare only what is still to come with a copy.
    most = max(OVER * copied + OVER_BYTES - spent, copied)
    usable = [offer.choice for offer in offers if offer.bytes_at_worst <= most]
    if at.of_keys:
        usable = [choice for choice in usable if choice.method is Method.SKETCH] or usable
    return min(usable, key=lambda choice: choice.cost(at.costs.line))


@dataclass(frozen=True, slots=True)
class _Estimate:
    """An estimate from a verdict: rows of both sides, and the number of changes, `likely`, at
    `worst`, and `enough` that their cells mostly decode; `outside`: new rows may lie where nothing
    was compared."""

    ours: int
    theirs: int
    likely: float
    worst: float
    enough: float
    outside: bool

    def shipped(self, changes: float) -> float:
        """Return how many rows are shipped for `changes`; deleted rows are not."""
        inside = max(changes - max(self.ours - self.theirs, 0), 0)
        new = max(self.theirs - self.ours, 0)
        return min(inside + new if self.outside else max(inside, new), self.theirs)


def _estimated(at: Disagreement) -> _Estimate:
    """Return what a verdict says of the changes. The error of strata is a share of the slots that
    differ; a sample estimates it better; near 1, all rows may have changed."""
    ours, theirs, differing, stall = at.ours.count, at.theirs.count, at.differing, at.stall
    slots, each = (at.ranges, 1) if stall is None else (stall.sketch.cells, HASHES)
    outside = stall is not None and stall.sketch.embedding.base is not None
    sample = stall.sample if stall else None
    share, most = differing / slots, ESTIMATE_ERROR * differing / slots
    if sample is not None:
        share, most = sample.shares()
    likely = rows_changed(share * slots, slots) / each
    at_most = rows_changed(most * slots, slots) / each if most < SATURATED else max(ours, theirs)
    # With a sample, the cells that the source received were too full to estimate from.
    received = stall.grid if stall and sample is None else None
    error = sketch_size.underestimated(likely, received)
    if error < ESTIMATE_ERROR:
        at_most = error * likely
    enough = min(error * likely, at_most)
    return _Estimate(ours, theirs, likely, max(likely, at_most), enough, outside)


def offer_copy(at: Disagreement) -> PricedChoice:
    """Return the offer to ship every row of the source."""
    rows = at.theirs.count
    size = int(at.costs.prices.copy(rows))
    choice = Choice(Method.FULL, size, rows_read=rows, rows_come=rows)
    return PricedChoice(choice, choice.bytes_expected)


def offer_ranges(at: Disagreement) -> PricedChoice | None:
    """Return the offer of range digests at the cheapest coarsening (Carnes and Hanson, refined by
    row hashes); None if too many rows would have to be hashed or listed."""
    estimate, ranges, prices = _estimated(at), at.ranges, at.costs.prices

    def hashed(by: int, changes: float) -> float:
        """Return the share of the rows that are hashed."""
        return -math.expm1(-changes / ranges * (1 << by))

    def cost(by: int, changes: float, price: Callable[[float], float]) -> float:
        rows = hashed(by, changes) * min(estimate.ours, estimate.theirs)
        identify = DIGEST_BYTES * key_ranges.coarse_ranges(ranges, by) + ROW_HASH_BYTES * rows
        return identify + price(estimate.shipped(changes))

    most = max(estimate.ours, estimate.theirs)
    usable = [
        by
        for by in range(ranges.bit_length())
        if hashed(by, estimate.likely) * most <= ROW_HASHES_MAX
    ]
    if not usable:
        return None
    best = min(usable, key=lambda by: cost(by, estimate.likely, prices.changes))
    size = int(cost(best, estimate.likely, prices.changes))
    touched = hashed(best, estimate.likely) * estimate.theirs
    come, by_index = estimate.shipped(estimate.likely), at.costs.integer_key
    rows = rows_again(touched, estimate.theirs, by_index=by_index)
    if touched * prices.row * UNPACKED > ROWS_HELD_BYTES:  # the wanted rows are read once more
        finds = at.costs.finds_rows
        rows += rows_again(come, estimate.theirs, by_index=by_index, finds_rows=finds)
    choice = Choice(
        Method.RANGE,
        size,
        rows_read=rows,
        round_trips=2,
        rows_come=come,
        hashes=hashed(best, estimate.likely) * (estimate.ours + estimate.theirs),
        coarsen=best,
    )
    return PricedChoice(choice, cost(best, estimate.worst, prices.changes_at_worst))


def offer_cells(at: Disagreement) -> PricedChoice | None:
    """Return the offer of the cells that are missing; None if there is no sketch, or its finest
    table might not decode, or did not."""
    if (stall := at.stall) is None:
        return None
    estimate, prices, sketch, grid = _estimated(at), at.costs.prices, stall.sketch, stall.grid
    need = cells_for(estimate.enough)
    if cells_for(estimate.worst) > sketch.cells:
        return None
    if grid is None:
        wanted = sketch_size.fitting(sketch.third, need)
        sent = float(len(wanted))
    elif len(grid) == sketch.cells:
        return None
    else:
        wanted = sketch_size.refined(grid, need, stall.stuck)
        sent = stall.stuck * (len(wanted) / len(grid) - 1)
    shipped = estimate.shipped(estimate.likely)
    likely = CELL_BYTES * sent + prices.changes(shipped)
    # They may be sent in two parts, of which more are needed.
    more = max(PARTLY[2] * cells_for(estimate.worst) - len(wanted), 0)
    worst = CELL_BYTES * (sent + more) + prices.changes_at_worst(estimate.shipped(estimate.worst))
    rows = rows_again(
        shipped, estimate.theirs, by_index=estimate.outside, finds_rows=at.costs.finds_rows
    )
    choice = Choice(Method.SKETCH, int(likely), rows_read=rows, rows_come=shipped, grid=wanted)
    return PricedChoice(choice, worst)


def seconds_of_rows(line: Line, rows: float, size: float) -> float:
    """Return the seconds that rows which come take beyond those of reading and of the line, which
    carries `size` bytes while they are packed."""
    return rows * CAME_ROW_S + max(rows * PACKED_ROW_S - size / line.bytes_per_s, 0.0)


def rows_again(wanted: float, total: int, *, by_index: bool, finds_rows: bool = False) -> int:
    """Return how many of `total` rows a source reads to find the `wanted` ones again."""
    most = INDEX_SHARE if by_index else FOUND_SHARE if finds_rows else 0.0
    return math.ceil(wanted) if most and wanted <= most * total else total


def rows_changed(differing: float, slots: int) -> float:
    """Return how many scattered changes make `differing` of the slots (ranges, or cells) differ,
    as far as SATURATED of them."""
    return -slots * math.log1p(-min(differing / slots, SATURATED))


def floor_bytes(rows: int, changed: int, row_bytes: float) -> int:
    """Return the bytes that methods are compared with: those of the changed rows on the line, and
    log2 C(n, d) bits that say which of `rows` they are."""
    n, d = max(rows, changed), changed
    bits = (math.lgamma(n + 1) - math.lgamma(d + 1) - math.lgamma(n - d + 1)) / math.log(2)
    return round(changed * row_bytes + bits / 8)


def opening_bytes(partition: Partition, slots: int) -> int:
    """Return the bytes of the first message: strata of `slots`, 0 if it has none, and a start and a
    shift for every segment."""
    starts = partition.starts
    # Steps are zigzag varints, modulo 2^64: seven bits a byte, one of them the sign.
    steps = [(b - a + (1 << 63)) % (1 << 64) - (1 << 63) for a, b in pairwise((0, *starts))]
    varints = sum((step.bit_length() + 7) // 7 for step in steps)
    return OPEN_BYTES + strata_bytes(slots) + varints + len(starts)


def strata_bytes(slots: int) -> int:
    """Return the bytes of strata of `slots`; 0 if there are none."""
    return key_ranges.strata_of(slots) * STRATUM_CELLS if slots else 0


def shrank(before: int, after: int) -> bool:
    """Return True if more than half of the rows are gone, which is refused unless allowed."""
    return after * 2 < before
