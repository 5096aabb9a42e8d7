"""Accumulators take rows in any order, in batches of any size, and through a pipe."""

from __future__ import annotations

import pickle

import numpy as np
from driftline.reconciliation.ranges import Partition, RangeSums, uniform
from driftline.reconciliation.sketches import Cells, Embedding
from driftline.rows.columns import gather
from driftline.rows.digests import MixedFingerprints
from hypothesis import given
from hypothesis import strategies as st

from source_agent.scan.accumulators import HashedRows, RangeTotals, SketchCells
from source_agent.scan.batches import Batch
from tests.harness.agents import SALT

THIRD = 720
EMBEDDING = Embedding(1 << 20, 0)
POSITIONS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, EMBEDDING.span - 1)


class Filled:
    """The accumulators of an exchange that opened with a sketch."""

    def __init__(self, partition: Partition) -> None:
        self.totals, self.sketch = RangeTotals(partition), SketchCells(EMBEDDING, THIRD, SALT)
        self.both = (self.totals, self.sketch)

    def add(self, rows: HashedRows) -> None:
        for accumulator in self.both:
            accumulator.add(rows)

    @property
    def sums(self) -> RangeSums:
        return self.totals.sums


def assert_equal(one: Filled, other: Filled) -> None:
    assert one.sums.total == other.sums.total
    assert one.sketch.outside == other.sketch.outside
    assert np.array_equal(one.sums.counts, other.sums.counts)
    assert np.array_equal(one.sums.sums, other.sums.sums)
    assert one.sketch.cells.check == other.sketch.cells.check
    assert one.sketch.cells.to_bytes() == other.sketch.cells.to_bytes()


def hashed(rows: list[tuple[int, int]]) -> HashedRows:
    where = np.array([w for w, _ in rows], np.int64)
    hashes = np.array([h for _, h in rows], np.uint64)
    return HashedRows.of(Batch(gather([]), where, MixedFingerprints(hashes, hashes ^ np.uint64(7))))


def reference(rows: list[tuple[int, int]]) -> Cells:
    """The cells of embedded rows, added one by one; k is the position itself."""
    cells = Cells(THIRD)
    for where, row_hash in rows:
        cells.add(np.array([where], np.uint64), np.array([row_hash], np.uint64), SALT)
    return cells


@given(
    st.lists(
        st.tuples(POSITIONS, st.integers(0, 2**64 - 1), st.integers(0, 2)),
        max_size=60,
    ),
)
def test_rows_are_added_in_any_order(rows: list[tuple[int, int, int]]) -> None:
    """Three batches that came through a pipe add up to what one batch does."""
    whole, ours = Filled(uniform(16)), Filled(uniform(16))
    whole.add(hashed([row[:2] for row in rows]))
    for number in (2, 0, 1):
        part = hashed([row[:2] for row in rows if row[2] == number])
        ours.add(pickle.loads(pickle.dumps(part)))
    assert_equal(ours, whole)
    embedded = [(w, h) for w, h, _ in rows if 0 <= w < EMBEDDING.span]
    assert whole.sketch.outside == len(rows) - len(embedded)
    cells = reference(embedded)
    assert whole.sketch.cells.to_bytes() == cells.to_bytes()


def test_sums_are_those_of_the_ranges() -> None:
    filled = Filled(uniform(4))
    filled.add(hashed([(-(2**63), 5), (-1, 7), (0, 11), (1, 13), (2**63 - 1, 17)]))
    assert filled.sums.counts.tolist() == [1, 1, 2, 1]
    assert filled.sums.sums.tolist() == [5, 7, 24, 17]
    assert filled.sums.total.count == 5


def test_a_pickled_array_keeps_the_dtype_of_numpy() -> None:
    """`np.add.at` takes five times as long with a dtype object of its own."""
    found = pickle.loads(pickle.dumps(hashed([(1, 2), (3, 4)])))
    assert found.positions.dtype is np.dtype(np.int64)
    assert found.row_hashes.dtype is np.dtype(np.uint64)
