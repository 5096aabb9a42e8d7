"""Rows without those of listed chunks: what is held is bounded, whatever rows there are."""

from __future__ import annotations

import numpy as np
from driftline.arrays import U64
from driftline.reconciliation.chunks import longest
from driftline.rows.columns import Block
from driftline.rows.digests import MASK64, MixedFingerprints

from source_agent.scan.batches import Batch
from source_agent.scan.listed_chunks import UnlistedRows

SHIFT, ROWS, ROW_BYTES = 12, 100, 50
NEVER, ALWAYS = MASK64, 0  # m1 of rows that end no chunk, and of those that do


def batch(*ends: int) -> Batch:
    """Return rows whose m0 is 1; those at `ends` end a chunk."""
    m1: U64 = np.full(ROWS, NEVER, np.uint64)
    m1[list(ends)] = ALWAYS
    block = Block(np.zeros(ROWS * ROW_BYTES, np.uint8), np.arange(ROWS + 1) * ROW_BYTES)
    return Batch(block, np.arange(ROWS), MixedFingerprints(np.ones(ROWS, np.uint64), m1))


def test_a_chunk_that_does_not_end_is_not_held() -> None:
    """Its rows are sent, also those that come before its end, and it is not met, though listed."""
    count = 5 * longest(SHIFT) // (ROWS * ROW_BYTES)
    long = count * ROWS + 10  # rows up to the first end
    unlisted = UnlistedRows(SHIFT, np.array([30, long], np.uint64))
    sent, read = 0, 0
    for _ in range(count):
        sent += sum(len(one.block) for one in unlisted.add(batch()))
        read += ROWS
        assert (read - sent) * ROW_BYTES <= longest(SHIFT)
    sent += sum(len(one.block) for one in unlisted.add(batch(9, 39)))
    assert sent == long
    assert unlisted.met.tolist() == [True, False]
    assert sum(len(one.block) for one in unlisted.add(batch(0, 29))) == 61 + 29
    assert sum(len(one.block) for one in unlisted.end()) == 70
