"""Rows on their way through the agent: fingerprints are made once, and of no row that is not asked
for."""

from __future__ import annotations

import numpy as np
from driftline.columns import Block, gather
from driftline.digests import Mixed, Salt, mix
from driftline.fingerprints import hasher
from hypothesis import given
from hypothesis import strategies as st

from source_agent.scan.batches import Batch

KEY, SALT = bytes(range(32)), Salt(3, 5)

rows = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


class Counted:
    """A batch, and how many rows were hashed for it."""

    def __init__(self, rows: list[bytes]) -> None:
        self.hashed = 0
        self.batch = Batch(gather(rows), np.arange(len(rows)), self._mix)

    def _mix(self, part: Block) -> Mixed:
        self.hashed += len(part)
        return mix(SALT, *hasher(KEY)(part.rows()))


@given(rows, st.data())
def test_chosen_rows_alone_are_hashed_and_once(rows: list[bytes], data: st.DataObject) -> None:
    chosen = np.array([data.draw(st.booleans()) for _ in rows])
    wanted = [row for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen]
    expected = mix(SALT, *hasher(KEY)(wanted))
    for is_known in (False, True):
        counted = Counted(rows)
        if is_known:
            assert len(counted.batch.mixed.m0) == len(rows)
        part = counted.batch.take(chosen)
        assert counted.hashed == (len(rows) if is_known else 0)
        for _ in range(2):
            assert np.array_equal(part.mixed.m0, expected.m0)
            assert np.array_equal(part.mixed.m1, expected.m1)
        assert part.block.rows() == wanted
        assert part.positions.tolist() == np.flatnonzero(chosen).tolist()
        assert counted.hashed == (len(rows) if is_known else len(wanted))
