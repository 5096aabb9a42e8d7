"""Random embeddings and pairs of tables, for tests of sketches and of what reads them.

A pair is two sides of one relation, each a dict from position to row hash. What changed between
them is said by the reference: which k have another multiset of elements.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from driftline.limits import SKETCH_KEYS_MAX
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from driftline.reconciliation.sketches import HASHES, Cells, Embedding, Grid, places
from driftline.rows.digests import Salt
from hypothesis import strategies as st

from tests.reference import digests
from tests.reference import sketches as reference
from tests.samples.rows import SALTS, U64

Side = dict[int, int]

POSITIONS = (
    st.integers(POSITION_MIN, POSITION_MAX)
    | st.integers(-300, 300)
    | st.sampled_from([POSITION_MIN, POSITION_MIN + 1, -1, 0, POSITION_MAX - 1, POSITION_MAX])
)
SPANS = st.sampled_from([1, 2, 7, 300, 1 << 12, 1 << 22, 1 << 28, SKETCH_KEYS_MAX, SKETCH_KEYS_MAX])
CHANGES = ["changed", "only ours", "only theirs"]
MIXTURES = [["same"], ["same"] * 6 + CHANGES, CHANGES, ["changed"], ["only theirs"]]
ROWS_MAX = 100
CROWD_SEARCH = 3000  # positions among which those are sought that share a cell


def array(numbers) -> np.ndarray:
    return np.array([n % 2**64 for n in numbers], np.uint64)


def positions_array(side: Side) -> np.ndarray:
    return np.array(list(side), np.int64)


@dataclass(frozen=True)
class Pair:
    embedding: Embedding
    salt: Salt
    ours: Side
    theirs: Side

    def entries(self, side: Side) -> list[reference.Entry]:
        """By the reference; rows outside the embedding are none."""
        found = []
        for position, m0 in side.items():
            k = reference.embedded(
                position, span=self.embedding.span, base=self.embedding.base, s1=self.salt.s1
            )
            if k is not None:
                found.append((k, reference.element(m0)))
        return found

    def changed(self) -> list[int]:
        """Every k below which the multisets of elements differ."""
        ours, theirs = (Counter(self.entries(side)) for side in (self.ours, self.theirs))
        return sorted({k for k, _ in ((ours - theirs) | (theirs - ours))})

    def cells(self, side: Side, third: int) -> Cells:
        """By the product."""
        ks, inside = self.embedding.embed(positions_array(side), self.salt)
        cells = Cells(third)
        cells.add(ks[inside], array(side.values())[inside], self.salt)
        return cells


@st.composite
def embeddings(draw: st.DrawFn, spans: st.SearchStrategy[int] = SPANS) -> Embedding:
    span = draw(spans | st.integers(1, draw(spans)))
    if draw(st.booleans()):
        return Embedding(span)
    greatest = POSITION_MAX - span + 1
    bases = st.integers(POSITION_MIN, greatest) | st.integers(-span, min(span, greatest))
    return Embedding(span, draw(bases | st.sampled_from([POSITION_MIN, -1, 0, greatest])))


def _ks(shape: str, start: int, count: int, step_bits: int, seed: int) -> list[int]:
    match shape:
        case "contiguous":
            return [start + i for i in range(count)]
        case "strided":
            return [start + (i << step_bits) for i in range(count)]
        case _:
            return [digests.xx(i, seed) for i in range(count)]


def _crowded(embedding: Embedding, salt: Salt, start: int, third: int) -> list[int]:
    """Positions whose first cell is one and the same in a table of this third."""
    near = min(CROWD_SEARCH, embedding.span) if embedding.base is not None else CROWD_SEARCH
    found = _placed(embedding, [start + i for i in range(near)])
    ks, _ = embedding.embed(np.array(found, np.int64), salt)
    first = places(ks, third, salt)[0][0]
    return [position for position, at in zip(found, first, strict=True) if at == first[0]]


def _placed(embedding: Embedding, ks: list[int]) -> list[int]:
    """These k as positions inside the embedding, wrapped round where they leave it."""
    if embedding.base is None:
        return [(k - POSITION_MIN) % 2**64 + POSITION_MIN for k in ks]
    return [embedding.base + k % embedding.span for k in ks]


@st.composite
def pairs(
    draw: st.DrawFn,
    third: int,
    spans: st.SearchStrategy[int] = SPANS,
    *,
    hashes: st.SearchStrategy[int] | None = None,
) -> Pair:
    """Two sides that differ in none, some or all rows.

    Args:
        third: of the table into whose cells the crowded keys crowd.
        hashes: of which few are drawn for all rows; by default they are noise, no two alike.
    """
    embedding = draw(embeddings(spans))
    salt = Salt(*draw(SALTS))
    possible = draw(st.sampled_from(MIXTURES))
    count = draw(st.integers(0, ROWS_MAX))
    start, seed = draw(st.integers(0, embedding.span - 1)), draw(U64)
    shape = draw(st.sampled_from(["contiguous", "strided", "scattered", "crowded"]))
    if shape == "crowded":
        positions = _crowded(embedding, salt, start, third)[:count]
    else:
        positions = _placed(embedding, _ks(shape, start, count, draw(st.integers(1, 30)), seed))
    if draw(st.booleans()):  # some outside, if anything is
        positions = [*draw(st.lists(POSITIONS, max_size=3)), *positions]
    pool = draw(st.lists(hashes, min_size=2, max_size=6)) if hashes is not None else []
    ours, theirs = Side(), Side()
    for number, position in enumerate(dict.fromkeys(positions)):
        was, now, state = (digests.xx(number, digests.xx(i, seed)) for i in range(3))
        if pool:
            was, now = pool[was % len(pool)], pool[now % len(pool)]
        match possible[state % len(possible)]:
            case "only ours":
                ours[position] = was
            case "only theirs":
                theirs[position] = now
            case "changed":
                ours[position], theirs[position] = was, now
            case _:
                ours[position] = theirs[position] = was
    return Pair(embedding, salt, ours, theirs)


@st.composite
def foldings(draw: st.DrawFn, third_max: int = 40) -> tuple[int, list[int]]:
    """A third and a chain of folds, each a divisor of the one before; the last may be above 1."""
    coarse = draw(st.integers(1, third_max))
    factors = draw(st.lists(st.integers(2, 5), max_size=3))
    last = draw(st.sampled_from([1, 1, 2, 3]))
    folds = [last]
    for factor in factors:
        folds.insert(0, folds[0] * factor)
    return coarse * folds[0], folds


@st.composite
def griddings(draw: st.DrawFn, third_max: int = 40) -> tuple[int, list[Grid]]:
    """A third and a chain of grids, each of which refines the one before; some are cut."""
    third, folds = draw(foldings(third_max))
    grids = [Grid(third, folds[0])]
    for before, fold, finer in zip([0, *folds], folds, [*folds[1:], 0], strict=False):
        # A cut is between cells of the grid before, which is this fold's own or a coarser one.
        step = draw(st.sampled_from([1, before // fold])) if before else 1
        cuts = HASHES * third // (fold * step)
        if step == 1 and grids[-1] != Grid(third, fold):
            grids.append(Grid(third, fold))
        if finer and cuts > 1 and draw(st.booleans()):
            grids.append(Grid(third, fold, step * draw(st.integers(1, cuts - 1)), finer))
        elif step > 1:
            grids.append(Grid(third, fold))
    return third, grids


def spans(grid: Grid) -> list[range]:
    """The same grid, as the reference has it."""
    return reference.grid(grid.third, grid.fold, grid.cut, grid.finer)
