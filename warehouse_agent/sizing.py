"""How large sketches are, without I/O: what goes up with the opening, and what follows a stall.

A changed row takes some 1.25 cells, 10 bytes. Before anything is known they are cells for a number
of changes that earlier refreshes make likely (`open_sketch`); where they do not suffice, the cells
themselves tell how many are missing, and only so many follow (`refined`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from driftline.limits import SKETCH_KEYS_MAX, THIRD_CELLS_MAX
from driftline.sketches import CELL_BYTES, HASHES, Embedding, Grid

from warehouse_agent.expect import Expected
from warehouse_agent.line import Line
from warehouse_agent.prices import Prices

ESTIMATE_ERROR = 1.25  # the strata are off by 12 % (one standard deviation)
FINER = 6  # times more cells than are likely: fuller ones do not tell how many changes there are
FINEST = 131_072  # cells at least; of more rows a cell each, which tell a change of half of them
POSSIBLE = tuple(percent / 100 for percent in range(5, 100, 10))  # quantiles of d, all as likely
SENT = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)  # quantiles that are weighed
# As many cells as had sufficed at once, where a table is refined in part, by how many a cell is cut
# into (density evolution).
PARTLY = {2: 1.04, 3: 1.12, 5: 1.28, 7: 1.46}
TOPPED_UP = 1.1  # as many cells in all as had sufficed, because how many are missing is estimated
SOME_MORE = 1.1  # times the cells that did not suffice, whatever is estimated
LOAD_MAX = 20.0  # changes a cell: then every cell differs
UNFOLDS = 12  # times finer than what is sent at once, and as much more as is not unlikely
# A stall cuts some cells of these, and again.
FOLDS = tuple(sorted([*(1 << b for b in range(16)), *(3 << b for b in range(3, 15))]))
ROWS_PER_BUCKET = 1 / 256  # of a hashed k: what shares it is shipped for nothing
WORTH = 0.046  # of a full copy: a first flight that tells nothing costs no more
WORTH_BYTES = 8192
SPARSE = 0.3  # of the cells are stuck, or fewer: finer ones of these will do
# Entries that share all their cells stay together in all of these cut in n once in n³ times.
PARTS_SPARSE = 8
CELLS_SPARSE = 64  # that follow for it, or some more where a grid has coarser cells as well
# Thirds whose tables fold to nearly any size, where nothing was predicted.
THIRDS = (60, 360, 2520, 10080, 27720, 55440, 110880, 221760, 332640, 498960, THIRD_CELLS_MAX)


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
    def sent(self) -> Grid | None:
        """Of the cells that go up with the opening."""
        return Grid(self.third, self.fold) if self.fold else None

    @property
    def bytes_sent(self) -> int:
        """Of the cells that go up with the opening."""
        return CELL_BYTES * len(self.sent) if self.sent else 0

    def tells(self, changes: int) -> bool:
        """Whether the cells that go up with the opening do for so many changes."""
        return CELL_BYTES * cells_for(changes) <= self.bytes_sent


@dataclass(frozen=True, slots=True)
class Sample:
    """Cells of the finest table, and how many of them differ by a byte."""

    cells: int
    differing: int

    def shares(self) -> tuple[float, float]:
        """The share of all cells that differ, as is likely and two standard deviations above."""
        likely = min(self.differing / self.cells * 256 / 255, 1.0)
        return likely, likely + 2 * math.sqrt(likely * (1 - likely) / self.cells)


@dataclass(frozen=True, slots=True)
class Stall:
    """A sketch at the source: the grid of what it heard (None: nothing), its stuck cells, and what
    a sample of its own tells (None: there is none)."""

    sketch: Sketch
    grid: Grid | None = None
    stuck: int = 0
    sample: Sample | None = None

    @property
    def bytes_spent(self) -> int:
        """On what tells no more than this."""
        cells = CELL_BYTES * len(self.grid) if self.grid else 0
        return cells + (self.sample.cells if self.sample else 0)


def embedding_for(rows: int, bounds: tuple[int, int] | None) -> Embedding:
    """How the keys of so many rows embed; `bounds`: the least and the greatest integer key."""
    if bounds is not None and bounds[1] - bounds[0] < SKETCH_KEYS_MAX:
        return Embedding(bounds[1] - bounds[0] + 1, bounds[0])
    return Embedding(min(1 << math.ceil(math.log2(rows / ROWS_PER_BUCKET)), SKETCH_KEYS_MAX))


def cells_for(changes: float) -> int:
    """Cells from which so many changes are read nearly always: 1.26 to 1.4 for each of 100,000 to
    1,000 (in the limit 1.2219, density evolution); tiny sets need spare ones."""
    return math.ceil(1.24 * changes + 5 * math.sqrt(changes) + 40)


def open_sketch(
    *,
    rows: int,
    bounds: tuple[int, int] | None,
    expected: Expected | None,
    prices: Prices,
    line: Line,
) -> Sketch:
    """The sketch of a refresh, and what of it goes up before anything is known.

    Nothing sent costs a round trip and then the cells that are needed, and some more, because how
    many these are is estimated; cells for a quantile of d cost themselves whatever changed, and a
    round trip and those that are missing where they do not suffice. The cheapest quantile wins, up
    to WORTH of a full copy and WORTH_BYTES, lest a wrong prediction costs much more than one.

    Args:
        rows: of our side, at least one.
        bounds: the least and the greatest integer key.
        expected: how many rows changed; None: nothing is known.
    """
    embedding = embedding_for(rows, bounds)
    if expected is None:
        return Sketch(embedding, next((t for t in THIRDS if t >= rows), THIRDS[-1]))
    full = prices.copy(rows)
    needs = []
    for d in map(expected.quantile, POSSIBLE):
        cells = cells_for(d)
        is_worth_it = d and CELL_BYTES * cells + prices.changes(d) < full
        needs.append(cells if is_worth_it else 0)
    cap = min(int(WORTH * full + WORTH_BYTES) // CELL_BYTES, HASHES * THIRD_CELLS_MAX)
    sizes = [min(cells_for(expected.quantile(q)), cap) for q in SENT]
    chosen = min([0, *sizes], key=lambda sent: _cost(sent, needs, line))
    # Bulk changes come unforeseen: what is not on the wire is cheap, and a second scan is not.
    finest = min(max(FINER * cells_for(expected.quantile(0.98)), FINEST, rows), HASHES * rows)
    target = min(max(UNFOLDS * chosen, finest), HASHES * THIRD_CELLS_MAX)
    if not chosen:
        return Sketch(embedding, next(t for t in THIRDS if HASHES * t >= target))
    third = -(-chosen // HASHES)
    fits = [f for f in FOLDS if f * third <= THIRD_CELLS_MAX]
    if chosen == cap and HASHES * fits[-1] * third < target:
        # They are too few in any case: rather fewer, and behind them the largest table there is.
        third = next(t for t in (THIRD_CELLS_MAX // f for f in FOLDS) if t <= third)
        fits = [THIRD_CELLS_MAX // third]
    fold = next((f for f in fits if f * HASHES * third >= target), fits[-1])
    return Sketch(embedding, fold * third, fold)


def _cost(sent: int, needs: Sequence[int], line: Line) -> float:
    """Bytes of sending so many cells at first, in the mean over what may be needed; 0 is needed
    where nothing changed, or so much that no sketch is worth it."""
    cost = float(CELL_BYTES * sent * len(needs))
    for need in needs:
        if need > sent:
            missing = TOPPED_UP * need - sent if sent else ESTIMATE_ERROR * need
            cost += line.round_trip_bytes + CELL_BYTES * missing + sent / 8  # a bit for each
    return cost


def underestimated(changes: float, grid: Grid | None) -> float:
    """By how much an estimate of the changes may be too low, as a factor: that of the strata, or
    two standard deviations of what is told by the cells of a grid that do not differ."""
    if grid is None or not changes:
        return ESTIMATE_ERROR
    load = min(HASHES * changes / len(grid), LOAD_MAX)
    return min(1 + 2 * math.sqrt(math.expm1(load) / len(grid)) / load, ESTIMATE_ERROR)


def fitting(third: int, need: int) -> Grid:
    """The smallest grid from which so much is read that takes so many cells of one fold."""
    return _least(third, _divisors(third), need)


def refined(grid: Grid, need: int, stuck: int) -> Grid:
    """The grid to refine one to that is not the finest.

    `need`: cells of one fold from which all changes would be read. `stuck`: cells of the grid; of
    few of them the next finer ones will do, or ones so fine that they will hardly be stuck again.
    """
    folds = [grid.fold, *_divisors(grid.finer)] if grid.cut else _divisors(grid.fold)
    if stuck <= SPARSE * len(grid):
        parts = min(1 + CELLS_SPARSE / max(stuck, 1), PARTS_SPARSE)
        finest = (grid.finer or grid.fold) / parts
        return Grid(grid.third, min(folds[1], *(f for f in folds if f >= finest)))
    parts = grid.fold // grid.finer if grid.cut else 2  # cut in more, it needs more spare cells
    need = max(need, math.ceil(SOME_MORE * parts / 2 * len(grid)))
    return _least(grid.third, folds, need, before=grid.fold)


def _least(third: int, folds: list[int], need: int, before: int = 1) -> Grid:
    """The smallest of the grids of one of these folds, descending, or of one up to a cut by a half
    of it, a third where it is odd, and so on; a cut is between two cells of the fold `before`."""
    found = [Grid(third, next((f for f in folds if HASHES * (third // f) >= need), 1))]
    for fold in folds:
        parts = next((p for p in PARTLY if fold % p == 0 and fold // p in folds), None)
        if parts is None:
            continue
        cells, whole = HASHES * (third // fold), max(before // fold, 1)
        cut = whole * math.ceil((PARTLY[parts] * need - cells) / ((parts - 1) * whole))
        if 0 < cut < cells:
            found.append(Grid(third, fold, cut, fold // parts))
    return min(found, key=len)


def _divisors(fold: int) -> list[int]:
    """Descending."""
    return [f for f in range(fold, 0, -1) if fold % f == 0]
