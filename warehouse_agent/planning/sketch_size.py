"""How large sketches are, without I/O: what goes up with the opening, and what follows a stall.

A changed row takes some 1.25 cells, 10 bytes. Before anything is known they are cells for a number
of changes that earlier refreshes make likely (`open_sketch`); where they do not suffice, the cells
themselves tell how many are missing, and only so many follow (`refined`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from driftline.arrays import Floats
from driftline.limits import SKETCH_KEYS_MAX, THIRD_CELLS_MAX
from driftline.sketches import CELL_BYTES, HASHES, Embedding, Grid

from warehouse_agent.planning.change_forecast import Expected
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.prices import Prices

ESTIMATE_ERROR = 1.25  # the strata are off by 12 % (one standard deviation)
FINER = 6  # times more cells than are likely: fuller ones do not tell how many changes there are
FINEST = 131_072  # cells at least; of more rows a cell each, which tell a change of half of them
STEP = 1.05  # from one number that is weighed to the next, of changes and of cells
CELLS_MIN = 24  # of what is sent at first, unless it is nothing
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
# A round trip is worth what the line carries in it, and no more than this many bytes: on a long and
# fast line a refresh of few changes would else send many times its own size in advance, only to
# save one round trip in a hundred (docs/architecture.md, "Costs known in advance").
ROUND_TRIP_BYTES_MAX = 50_000
# The peeling threshold of three hashes (density evolution), the shift and the width of the step
# from never to always for finite sets (Amraoui, Montanari, Richardson, Urbanke, IEEE Trans. Inf.
# Theory 55(2), 2009: d^(1/3) and d^(1/2)); both factors fitted to 60,000 simulated sketches.
THRESHOLD, SHIFT, WIDTH = 1.2219, 1.3, 0.38
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
        """Return whether the cells that go up with the opening are likely to do for so many
        changes."""
        sent = np.array(self.bytes_sent / CELL_BYTES)
        return not changes or float(odds_of_decoding(sent, np.array(float(changes)))) >= 0.5


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


def odds_of_decoding(cells: Floats, changes: Floats) -> Floats:
    """Return the probability that a sketch of so many cells tells so many changes, broadcast.

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
    expected: Expected | None,
    prices: Prices,
    line: Line,
    sure: int = 0,
) -> Sketch:
    """The sketch of a refresh, and what of it goes up before anything is known.

    Nothing sent costs a round trip and then the cells that are needed, and some more, because how
    many these are is estimated; cells that are sent cost themselves whatever changed, and a round
    trip and those that are missing where they do not decode. The number of cells with the least
    expected cost wins (`_cheapest`), up to WORTH of a full copy and WORTH_BYTES, lest a wrong
    prediction costs much more than one.

    Args:
        rows: of our side, at least one.
        bounds: the least and the greatest integer key.
        expected: how many rows changed; None: nothing is known.
        sure: so many of them are known to differ, for which no prediction can be wrong.
    """
    embedding = embedding_for(rows, bounds)
    if expected is None:
        return Sketch(embedding, next((t for t in THIRDS if t >= rows), THIRDS[-1]))
    full = prices.copy(rows)
    cap = int(WORTH * full + WORTH_BYTES) // CELL_BYTES + (cells_for(sure) if sure else 0)
    cap = min(cap, HASHES * THIRD_CELLS_MAX)
    chosen = _cheapest(expected, full=full, cap=cap, prices=prices, line=line)
    # Bulk changes come unforeseen: what is not on the wire is cheap, and a second scan is not.
    finest = min(max(FINER * cells_for(expected.quantile(0.98)), FINEST, rows), HASHES * rows)
    target = min(max(UNFOLDS * chosen, finest), HASHES * THIRD_CELLS_MAX)
    if not chosen:
        return Sketch(embedding, next(t for t in THIRDS if HASHES * t >= target))
    third = -(-chosen // HASHES)
    fits = [f for f in FOLDS if f * third <= THIRD_CELLS_MAX]
    if HASHES * fits[-1] * third < target and chosen < THRESHOLD * expected.median:
        # They are too few in any case: rather some others, and behind them the largest table.
        folded = (THIRD_CELLS_MAX // f for f in FOLDS if HASHES * (THIRD_CELLS_MAX // f) <= cap)
        third = min(folded, key=lambda cells: abs(cells - third), default=third)
        fits = [THIRD_CELLS_MAX // third]
    fold = next((f for f in fits if f * HASHES * third >= target), fits[-1])
    return Sketch(embedding, fold * third, fold)


def _cheapest(expected: Expected, *, full: float, cap: int, prices: Prices, line: Line) -> int:
    """Return how many cells, 0 to `cap`, cost the fewest bytes in the mean over the number of
    changes, a round trip counted as the bytes that it is worth.

        cost(m) = 8·m + Σ P(d) · (1 − odds(m, d)) · (R + 8·missing(m, d) + m/8)

    The sum is over 1 ≤ d for which a sketch takes less than a full copy: behind that nothing sent
    in advance saves anything. m/8: a stall names the stuck cells, a bit each.
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
    """Return how many times the cells that had sufficed are sent in all after a stall, broadcast:
    as `underestimated`, and TOPPED_UP at least."""
    load = np.minimum(HASHES * changes / np.maximum(cells, 1), LOAD_MAX)
    error = 2 * np.sqrt(np.expm1(load) / np.maximum(cells, 1)) / load
    factor: Floats = np.clip(1 + error, TOPPED_UP, ESTIMATE_ERROR)
    return factor


def _ladder(first: float, last: float) -> Floats:
    """Return whole numbers from `first` to at least `last`, each at most STEP times the one
    before, or 1 more."""
    count = math.ceil(math.log(max(last / first, 1)) / math.log(STEP)) + 1
    return np.unique(np.ceil(first * STEP ** np.arange(count)))


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
