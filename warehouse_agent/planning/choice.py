"""Decisions of a refresh, without I/O: partitions, methods, and the cheapest way to go on.

What follows a verdict is decided from how much seems to differ (`choose`); what goes up before
there is one, from what earlier refreshes found (`sizing`). Nothing here knows Spark or gRPC.

A sketch takes 8 bytes a cell, some 10 bytes a changed row. The range method (Carnes and Hanson's
RCS refined by row hashes): with D of R finest ranges differing, coarsening by 2^c sends 8·R/2^c
bytes of digests up and 8 bytes for every row of a differing range down; the best c balances the
two. A full copy sends every row. Beside the bytes stand the round trips and what the source reads
for them: the cheapest takes the least time on the measured line and at the source (`Line.cost`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
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

from warehouse_agent.planning.network import Line
from warehouse_agent.planning.prices import Prices
from warehouse_agent.planning.sketch_size import (
    ESTIMATE_ERROR,
    Stall,
    cells_for,
    fitting,
    refined,
    underestimated,
)

OPEN_BYTES = 96  # of `Open` without its variable parts; a reply to it that says "equal" is smaller
SKETCH_BYTES = 24  # of a sketch's parameters
REPLY_BYTES = 80  # of an end
FOUND_BYTES = 160  # of a list of deleted keys, a frame's header and the messages around them
DIGEST_BYTES = 8
ROWS_PER_RANGE = 4  # of the finest partition: below it a digest costs as much as its row hashes
SATURATED = 0.95  # of the slots, 3 changes each: beyond that, any number
QUANTILES = 64  # knots of a partition of integer keys: 5 bytes each in every opening

OVER, OVER_BYTES = 1.05, 16_384  # times a copy, and bytes beside, that may be moved at worst
CHANGE_SHARE = 0.01  # of the rows, assumed where there is no earlier refresh
INDEX_SHARE = 0.25  # of the rows: if more are wanted again, a source reads all of them


class Method(Enum):
    """How the difference is found."""

    RANGE = "range"
    GROUP = "group"
    SKETCH = "sketch"
    FULL = "full"


# What people and reports call them, in the order in which candidates are listed.
NAMES = {
    Method.SKETCH: "by sketch",
    Method.RANGE: "by ranges",
    Method.GROUP: "by groups",
    Method.FULL: "full copy",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the warehouse answers to a verdict, with what it expects of that: bytes that move, round
    trips, and rows that the source reads again. `coarsen` of ranges, `grid` of cells."""

    method: Method
    bytes_expected: int
    _: KW_ONLY
    rows_read: int
    round_trips: int = 1
    coarsen: int = 0
    grid: Grid | None = None

    def cost(self, line: Line) -> float:
        """Return the cost on this line, in the unit of `Line.cost`."""
        return line.cost(self.bytes_expected, self.round_trips, self.rows_read)


@dataclass(frozen=True, slots=True)
class PricedChoice:
    """A choice that a method offers, with the bytes that it moves if the estimate was too low."""

    choice: Choice
    bytes_at_worst: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What decides between ways to go on.

    `forced` is the method that the configuration asks for; `integer_key` says that rows are found
    again by an index of their key; `rows_lost` are rows of ours that are known to be missing: they
    differ, and are not new.
    """

    prices: Prices
    line: Line
    integer_key: bool
    forced: Method | None = None
    rows_lost: int = 0


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Both sides differ: their totals, and how much seems to differ.

    The count of `ours` includes rows that were lost. `ranges` are those of the finest partition;
    `differing` are ranges that seem to differ or, where there is a sketch, cells of its finest
    table. `stall` is the sketch that the source holds.
    """

    costs: Costs
    ours: Digest
    theirs: Digest
    ranges: int
    differing: int
    stall: Stall | None = None


def partition_for(quantiles: list[int], rows: int, *, integer_key: bool) -> Partition:
    """The finest partition for a working copy of `rows` rows with these key quantiles."""
    ranges = min(max(rows // ROWS_PER_RANGE, 2), RANGES_MAX)
    if not integer_key:
        return uniform(ranges)
    return from_quantiles(quantiles, ranges)


def outgrown(
    quantiles: Sequence[int], counted: int, rows: int, bounds: tuple[int, int] | None
) -> bool:
    """Whether a fifth of the rows, or of the span of the keys, came or went since the quantiles
    were found, of so many rows; `bounds` of the keys now, where they are known."""
    if not quantiles or abs(counted - rows) > rows // 5:
        return True
    if bounds is None:
        return False
    first, last = quantiles[0], quantiles[-1]
    return max(abs(bounds[0] - first), abs(bounds[1] - last)) > (last - first) // 5


def everything() -> Partition:
    """One range of all positions, where nothing is compared by ranges."""
    return Partition((POSITION_MIN,), (63,))


def choose(at: Disagreement, offers: Sequence[PricedChoice]) -> Choice:
    """Return the cheapest offer whose bytes at worst stay near those of a copy.

    The offer of the method that the configuration asks for is returned as it is.

    Args:
        offers: one of each method that can go on; a copy is among them, and of equally cheap ones
            the first is taken.
    """
    for offer in offers:
        if offer.choice.method is at.costs.forced:
            return offer.choice
    copied = copy(at).choice.bytes_expected
    spent = at.stall.bytes_spent if at.stall else 0
    # What was spent is gone: nothing that costs less than a copy from here on is worse than one.
    most = max(OVER * copied + OVER_BYTES - spent, copied)
    usable = [offer.choice for offer in offers if offer.bytes_at_worst <= most]
    return min(usable, key=lambda choice: choice.cost(at.costs.line))


@dataclass(frozen=True, slots=True)
class _Told:
    """What a verdict tells: rows of both sides, and changes that were found, likely and at worst.

    `enough`: of which cells mostly do. `outside`: whether new rows may lie where nothing was
    compared.
    """

    ours: int
    theirs: int
    likely: float
    worst: float
    enough: float
    outside: bool

    def shipped(self, changes: float) -> float:
        """How many rows come where so many changes were found: those that are gone do not."""
        inside = max(changes - max(self.ours - self.theirs, 0), 0)
        new = max(self.theirs - self.ours, 0)
        return min(inside + new if self.outside else max(inside, new), self.theirs)


def _told(at: Disagreement) -> _Told:
    """Return what a verdict tells of the changes.

    A share of differing slots near 1 tells nothing: all rows may have changed. What strata are
    wrong by is a share of the slots that differ; that of the changes is the larger the fuller the
    slots are. A sample tells that share better than they do.
    """
    ours, theirs, differing, stall = at.ours.count, at.theirs.count, at.differing, at.stall
    slots, each = (at.ranges, 1) if stall is None else (stall.sketch.cells, HASHES)
    outside = stall is not None and stall.sketch.embedding.base is not None
    sample = stall.sample if stall else None
    found, most = differing / slots, ESTIMATE_ERROR * differing / slots
    if sample is not None:
        found, most = sample.shares()
    likely = rows_changed(found * slots, slots) / each
    at_most = rows_changed(most * slots, slots) / each if most < SATURATED else max(ours, theirs)
    # There is a sample where the cells that were heard did not tell.
    heard = stall.grid if stall and sample is None else None
    error = underestimated(likely, heard)
    if error < ESTIMATE_ERROR:
        at_most = error * likely
    enough = min(error * likely, at_most)
    return _Told(ours, theirs, likely, max(likely, at_most), enough, outside)


def copy(at: Disagreement) -> PricedChoice:
    """Return the offer to ship every row of the source."""
    rows = at.theirs.count
    found = Choice(Method.FULL, int(at.costs.prices.copy(rows)), rows_read=rows)
    return PricedChoice(found, found.bytes_expected)


def by_range(at: Disagreement) -> PricedChoice | None:
    """Return the offer of range digests at the cheapest coarsening (Carnes and Hanson, refined by
    row hashes); None: too many rows would have to be hashed or listed."""
    told, ranges, prices = _told(at), at.ranges, at.costs.prices

    def hashed(by: int, changes: float) -> float:
        """The share of the rows that are."""
        return -math.expm1(-changes / ranges * (1 << by))

    def cost(by: int, changes: float, price: Callable[[float], float]) -> float:
        rows = hashed(by, changes) * min(told.ours, told.theirs)
        identify = DIGEST_BYTES * coarse_ranges(ranges, by) + ROW_HASH_BYTES * rows
        return identify + price(told.shipped(changes))

    most = max(told.ours, told.theirs)
    usable = [
        by for by in range(ranges.bit_length()) if hashed(by, told.likely) * most <= ROW_HASHES_MAX
    ]
    if not usable:
        return None
    best = min(usable, key=lambda by: cost(by, told.likely, prices.changes))
    size = int(cost(best, told.likely, prices.changes))
    touched = hashed(best, told.likely) * told.theirs
    rows = rows_again(touched, told.theirs, by_index=at.costs.integer_key)
    choice = Choice(Method.RANGE, size, rows_read=rows, round_trips=2, coarsen=best)
    return PricedChoice(choice, cost(best, told.worst, prices.changes_at_worst))


def by_sketch(at: Disagreement) -> PricedChoice | None:
    """Return the offer of the cells that are missing; None: there is no sketch, or its finest table
    might not decode, or did not."""
    if (stall := at.stall) is None:
        return None
    told, prices, sketch, grid = _told(at), at.costs.prices, stall.sketch, stall.grid
    need = cells_for(told.enough)
    if cells_for(told.worst) > sketch.cells:
        return None
    if grid is None:
        wanted = fitting(sketch.third, need)
        sent = float(len(wanted))
    elif len(grid) == sketch.cells:
        return None
    else:
        wanted = refined(grid, need, stall.stuck)
        sent = stall.stuck * (len(wanted) / len(grid) - 1)
    likely = CELL_BYTES * sent + prices.changes(told.shipped(told.likely))
    more = max(cells_for(told.worst) - len(wanted), 0)
    worst = CELL_BYTES * (sent + more) + prices.changes_at_worst(told.shipped(told.worst))
    by_index = sketch.embedding.base is not None
    rows = rows_again(told.shipped(told.likely), told.theirs, by_index=by_index)
    return PricedChoice(Choice(Method.SKETCH, int(likely), rows_read=rows, grid=wanted), worst)


def rows_again(wanted: float, total: int, *, by_index: bool) -> int:
    """How many of `total` rows a source reads to find so many of them again."""
    return math.ceil(wanted) if by_index and wanted <= INDEX_SHARE * total else total


def rows_changed(differing: float, slots: int) -> float:
    """How many scattered changes make so many of the slots (ranges, or cells) differ; as many as
    SATURATED tell where nearly all do."""
    return -slots * math.log1p(-min(differing / slots, SATURATED))


def floor_bytes(rows: int, changed: int, row_bytes: float) -> int:
    """What methods are measured by: the changed rows as the line has carried such rows, and which
    of `rows` they are (log2 C(n, d) bits)."""
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
