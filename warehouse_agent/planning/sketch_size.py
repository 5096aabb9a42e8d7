"""Sizes of sketches, without I/O: the cells of the opening, and the cells after a stall.

A changed row takes about 1.25 cells, 10 bytes. The opening has cells for a number of changes that
earlier refreshes make likely (`open_sketch`). If they do not decode, they say about how many cells
are missing, and only these follow (`refined`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from driftline.arrays import Floats
from driftline.limits import SKETCH_KEYS_MAX, STRATUM_CELLS, THIRD_CELLS_MAX
from driftline.reconciliation.ranges import strata_of
from driftline.reconciliation.sketches import CELL_BYTES, HASHES, Embedding, Grid

from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.prices import Prices

ESTIMATE_ERROR = 1.25  # the strata are off by 12 % (one standard deviation)
FINER = 6  # times the cells of a large forecast: from fuller cells no number can be estimated
FINEST = 131_072  # cells at least; one a row if there are more rows, to decode a change of half
STEP = 1.05  # the ratio of neighbouring numbers, of changes and of cells, whose costs are compared
CELLS_MIN = 24  # of the opening, unless it has none
# Cells in all, over those that suffice at once, if only some are cut, by the number of pieces that
# a cell is cut into (density evolution).
PARTLY = {2: 1.04, 3: 1.12, 5: 1.28, 7: 1.46}
TOPPED_UP = 1.1  # cells in all over those that suffice at once: the missing ones are estimated
SOME_MORE = 1.1  # times the cells that did not suffice, at least
LOAD_MAX = 20.0  # changes a cell: then every cell differs
UNFOLDS = 12  # times finer than the opening is the finest table, at least
# A stall cuts some cells of these folds, and again.
FOLDS = tuple(sorted([*(1 << b for b in range(16)), *(3 << b for b in range(3, 15))]))
ROWS_PER_BUCKET = 1 / 256  # of a hashed k: rows that share one are shipped for nothing
WORTH, WORTH_BYTES = 0.046, 8192  # of a full copy, and beside it: the most for an opening
# The bytes of a round trip are at most this, or a refresh of few changes over a long and fast line
# would send many times its own size in advance, to save one round trip in a hundred
# (docs/results/decisions.md, "Small refreshes of small tables").
ROUND_TRIP_BYTES_MAX = 50_000
# The peeling threshold of three hashes (density evolution), the shift and the width of the step
# from never to always for finite sets (Amraoui, Montanari, Richardson, Urbanke, IEEE Trans. Inf.
# Theory 55(2), 2009: d^(1/3) and d^(1/2)); both factors fitted to 60,000 simulated sketches.
THRESHOLD, SHIFT, WIDTH = 1.2219, 1.3, 0.38
SPARSE = 0.3  # of the cells are stuck, or fewer: then it is enough to cut these
PARTS_SPARSE = 8  # cut into n, entries that share all their cells stay together once in n³ times
CELLS_SPARSE = 64  # that follow for it, or some more if a grid has coarser cells as well
# Rows of a table without a forecast, at most, whose strata come from the source, if needed. The
# sample that our strata give is worth its bytes only where nearly half of so many rows changed.
UNKNOWN_ROWS_MAX = 10_080
# Thirds whose tables fold to nearly any size, for sketches without a forecast.
THIRDS = (60, 360, 2520, 10080, 27720, 55440, 110880, 221760, 332640, 498960, THIRD_CELLS_MAX)


@dataclass(frozen=True, slots=True)
class Sketch:
    """A sketch of our side: how keys embed, cells in a third of its finest table, the fold of the
    cells that go up with the opening, 0 if none do, and if these are expected not to decode."""

    embedding: Embedding
    third: int
    fold: int = 0
    stalls: bool = True

    @property
    def cells(self) -> int:
        """Cells of the finest table."""
        return HASHES * self.third

    @property
    def sent(self) -> Grid | None:
        """The grid of the cells that go up with the opening."""
        return Grid(self.third, self.fold) if self.fold else None

    @property
    def bytes_sent(self) -> int:
        """Bytes of the cells that go up with the opening."""
        return CELL_BYTES * len(self.sent) if self.sent else 0

    def decodes(self, changes: int) -> bool:
        """Return True if the cells of the opening are likely to decode to this many changes."""
        sent = np.array(self.bytes_sent / CELL_BYTES)
        return not changes or float(odds_of_decoding(sent, np.array(float(changes)))) >= 0.5


@dataclass(frozen=True, slots=True)
class CellSample:
    """Cells of the finest table, and how many of them differ by a byte."""

    cells: int
    differing: int

    def shares(self) -> tuple[float, float]:
        """Return the share of all cells that differ: likely, and two standard deviations above."""
        likely = min(self.differing / self.cells * 256 / 255, 1.0)
        return likely, likely + 2 * math.sqrt(likely * (1 - likely) / self.cells)


@dataclass(frozen=True, slots=True)
class Stall:
    """A sketch at the source: the grid that it received, None for none, its number of stuck cells,
    and a sample of its own cells, None for none."""

    sketch: Sketch
    grid: Grid | None = None
    stuck: int = 0
    sample: CellSample | None = None

    @property
    def bytes_spent(self) -> int:
        """Bytes that were spent on the cells and the sample."""
        cells = CELL_BYTES * len(self.grid) if self.grid else 0
        return cells + (self.sample.cells if self.sample else 0)


def embedding_for(rows: int, bounds: tuple[int, int] | None) -> Embedding:
    """Return how the keys of `rows` rows embed; `bounds`: the least and greatest integer key."""
    if bounds is not None and bounds[1] - bounds[0] < SKETCH_KEYS_MAX:
        return Embedding(bounds[1] - bounds[0] + 1, bounds[0])
    return Embedding(min(1 << math.ceil(math.log2(rows / ROWS_PER_BUCKET)), SKETCH_KEYS_MAX))


def cells_for(changes: float) -> int:
    """Return cells that nearly always decode to `changes`: 1.26 to 1.4 for each of 100,000 to 1,000
    (in the limit 1.2219, density evolution); tiny sets need spare ones."""
    return math.ceil(1.24 * changes + 5 * math.sqrt(changes) + 40)


def odds_of_decoding(cells: Floats, changes: Floats) -> Floats:
    """Return the probability that sketches of `cells` decode to `changes`, shapes broadcast.

    The first factor is the peeling threshold, a logistic in the number of cells. The second is the
    probability that no two changes share all three cells (d²/2 pairs, (3/cells)³ each).
    """
    step = (cells - THRESHOLD * changes - SHIFT * np.cbrt(changes)) / (WIDTH * np.sqrt(changes))
    shared = 13.5 * changes**2 / np.maximum(cells, 1) ** 3
    odds: Floats = np.where(cells > 0, np.exp(-np.logaddexp(0, -step) - shared), 0)
    return odds


def open_sketch(
    *,
    rows: int,
    bounds: tuple[int, int] | None,
    expected: ChangeForecast | None,
    prices: Prices,
    line: Line,
    sure: int = 0,
) -> Sketch:
    """Return the sketch of a refresh, with the fold of the cells that go up with the opening.

    Their number has the least expected cost (`_cheapest`), up to WORTH of a full copy and
    WORTH_BYTES, so that a wrong forecast costs little more than a copy.

    Args:
        rows: of our side, at least one.
        bounds: the least and the greatest integer key.
        expected: the number of changed rows; None if nothing is known of it.
        sure: rows that are known to differ, whose cells count beside that limit.
    """
    embedding = embedding_for(rows, bounds)
    if expected is None:
        return _unknown(embedding, rows, line)
    third, fold = _third_and_fold(rows, expected, prices, line, sure)
    sketch = Sketch(embedding, third, fold)
    return replace(sketch, stalls=not sketch.decodes(expected.median))


def _unknown(embedding: Embedding, rows: int, line: Line) -> Sketch:
    """Return the sketch of a refresh whose changes nothing foretells.

    The strata of a small table come with a verdict, if the source can. Then the fewest cells go up
    where they are smaller than these; a stall adds to them, and sends none twice.
    """
    third = next((t for t in THIRDS if t >= rows), THIRDS[-1])
    if not line.is_brief or rows > UNKNOWN_ROWS_MAX:
        return Sketch(embedding, third)
    fold = next(f for f in _divisors(third) if HASHES * third // f >= CELLS_MIN)
    first = Sketch(embedding, third, fold, stalls=False)
    strata = strata_of(first.cells) * STRATUM_CELLS
    return first if first.bytes_sent < strata else replace(first, fold=0)


def _third_and_fold(
    rows: int, expected: ChangeForecast, prices: Prices, line: Line, sure: int
) -> tuple[int, int]:
    """Return the cells of a third of the finest table, and the fold of those that go first."""
    full = prices.copy(rows)
    cap = int(WORTH * full + WORTH_BYTES) // CELL_BYTES + (cells_for(sure) if sure else 0)
    cap = min(cap, HASHES * THIRD_CELLS_MAX)
    chosen = _cheapest(expected, full=full, cap=cap, prices=prices, line=line)
    # A bulk change cannot be foreseen; cells that are not sent are cheap, and a second scan is not.
    finest = min(max(FINER * cells_for(expected.quantile(0.98)), FINEST, rows), HASHES * rows)
    target = min(max(UNFOLDS * chosen, finest), HASHES * THIRD_CELLS_MAX)
    if not chosen:
        return next(t for t in THIRDS if HASHES * t >= target), 0
    third = -(-chosen // HASHES)
    fits = [f for f in FOLDS if f * third <= THIRD_CELLS_MAX]
    if HASHES * fits[-1] * third < target and chosen < THRESHOLD * expected.median:
        # They will not decode: prefer a number that is a fold of the largest table.
        folded = (THIRD_CELLS_MAX // f for f in FOLDS if HASHES * (THIRD_CELLS_MAX // f) <= cap)
        third = min(folded, key=lambda cells: abs(cells - third), default=third)
        fits = [THIRD_CELLS_MAX // third]
    fold = next((f for f in fits if f * HASHES * third >= target), fits[-1])
    return fold * third, fold


def _cheapest(
    expected: ChangeForecast, *, full: float, cap: int, prices: Prices, line: Line
) -> int:
    """Return the number of cells, 0 to `cap`, with the least expected cost in bytes, a round trip
    counted as R, the bytes that the line could carry in it.

        cost(m) = 8·m + Σ P(d) · (1 − odds(m, d)) · (R + 8·missing(m, d) + m/8)

    The sum is over all d ≥ 1 for which a sketch takes less than a full copy; for more changes, no
    cells of the opening save anything. m/8: a stall names the stuck cells, a bit each.
    """
    changes = _ladder(1, min(full / CELL_BYTES, HASHES * THIRD_CELLS_MAX))
    needs = 1.24 * changes + 5 * np.sqrt(changes) + 40  # as `cells_for`
    shipped = np.array([prices.changes(d) for d in changes])
    changes = changes[: np.searchsorted(CELL_BYTES * needs + shipped, full)]
    needs = needs[: len(changes)]
    probabilities = -np.diff(expected.survivals(np.append(0.0, changes)))
    sizes = np.append(0.0, np.minimum(_ladder(CELLS_MIN, cap), cap))[:, None]
    stalls = 1 - odds_of_decoding(sizes, changes)
    missing = np.maximum(_topped_up(sizes, changes) * needs - sizes, 0)
    wait = min(line.round_trip_bytes, ROUND_TRIP_BYTES_MAX)
    mean = (stalls * (wait + CELL_BYTES * missing + sizes / 8)) @ probabilities
    return int(sizes[np.argmin(CELL_BYTES * sizes[:, 0] + mean), 0])


def _topped_up(cells: Floats, changes: Floats) -> Floats:
    """Return the cells in all after a stall over those that suffice at once, shapes broadcast: as
    `underestimated`, and TOPPED_UP at least."""
    load = np.minimum(HASHES * changes / np.maximum(cells, 1), LOAD_MAX)
    error = 2 * np.sqrt(np.expm1(load) / np.maximum(cells, 1)) / load
    factor: Floats = np.clip(1 + error, TOPPED_UP, ESTIMATE_ERROR)
    return factor


def _ladder(first: float, last: float) -> Floats:
    """Return whole numbers from `first` to at least `last`, float64 [n], each at most STEP times
    the one before, or 1 more."""
    count = math.ceil(math.log(max(last / first, 1)) / math.log(STEP)) + 1
    return np.unique(np.ceil(first * STEP ** np.arange(count)))


def underestimated(changes: float, grid: Grid | None) -> float:
    """Return the factor by which an estimate of the changes may be too low: that of the strata, or
    two standard deviations of an estimate from the cells of `grid` that do not differ."""
    if grid is None or not changes:
        return ESTIMATE_ERROR
    load = min(HASHES * changes / len(grid), LOAD_MAX)
    return min(1 + 2 * math.sqrt(math.expm1(load) / len(grid)) / load, ESTIMATE_ERROR)


def fitting(third: int, need: int) -> Grid:
    """Return the smallest grid that decodes what needs `need` cells of one fold."""
    return _least(third, _divisors(third), need)


def refined(grid: Grid, need: int, stuck: int) -> Grid:
    """Return the grid to which one that is not the finest is refined: one as good as `need` cells
    of one fold, or, if few cells are `stuck`, one so fine that these hardly get stuck again."""
    folds = [grid.fold, *_divisors(grid.finer)] if grid.cut else _divisors(grid.fold)
    if stuck <= SPARSE * len(grid):
        parts = min(1 + CELLS_SPARSE / max(stuck, 1), PARTS_SPARSE)
        finest = (grid.finer or grid.fold) / parts
        return Grid(grid.third, min(folds[1], *(f for f in folds if f >= finest)))
    parts = grid.fold // grid.finer if grid.cut else 2  # cut in more, it needs more spare cells
    need = max(need, math.ceil(SOME_MORE * parts / 2 * len(grid)))
    return _least(grid.third, folds, need, before=grid.fold)


def _least(third: int, folds: list[int], need: int, before: int = 1) -> Grid:
    """Return the smallest sufficient grid of one of `folds`, descending, or with some cells cut to
    a half of one, a third if it is odd, and so on; a cut is between two cells of fold `before`."""
    grids = [Grid(third, next((f for f in folds if HASHES * (third // f) >= need), 1))]
    for fold in folds:
        parts = next((p for p in PARTLY if fold % p == 0 and fold // p in folds), None)
        if parts is None:
            continue
        cells, whole = HASHES * (third // fold), max(before // fold, 1)
        cut = whole * math.ceil((PARTLY[parts] * need - cells) / ((parts - 1) * whole))
        if 0 < cut < cells:
            grids.append(Grid(third, fold, cut, fold // parts))
    return min(grids, key=len)


def _divisors(fold: int) -> list[int]:
    """Return the divisors, descending."""
    return [f for f in range(fold, 0, -1) if fold % f == 0]
