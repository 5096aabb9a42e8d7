"""The list of staged chunks is short beside what is staged, and a source takes it."""

from __future__ import annotations

import math

import pytest
from driftline.limits import CHUNK_BYTES_SHIFT_MAX, CHUNK_BYTES_SHIFT_MIN, CHUNKS_MAX
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.planning.chunk_size import DIGEST_BYTES, LIST_SHARE, chunk_shift, share_again


@given(st.integers(1, 1 << 44), st.floats(1.0, 40.0))
def test_the_list_keeps_its_share(body_bytes: int, ratio: float) -> None:
    """Or chunks are as large, or as small, as they may be."""
    frame_bytes = int(body_bytes / ratio)
    shift = chunk_shift(body_bytes, frame_bytes)
    assert CHUNK_BYTES_SHIFT_MIN <= shift <= CHUNK_BYTES_SHIFT_MAX
    chunks = body_bytes / (1 << shift)
    if shift < CHUNK_BYTES_SHIFT_MAX:
        assert chunks * DIGEST_BYTES <= LIST_SHARE * frame_bytes * 1.01 + DIGEST_BYTES
        assert chunks <= CHUNKS_MAX / 2
    if shift > CHUNK_BYTES_SHIFT_MIN:  # no larger than they need to be
        smaller = 2 * chunks
        is_long = smaller * DIGEST_BYTES > 0.99 * LIST_SHARE * frame_bytes
        assert is_long or smaller > CHUNKS_MAX / 2 * 0.99


@pytest.mark.parametrize("size", [(0, 0), (1, 0), (0, 1)])
def test_nothing_is_a_size_too(size: tuple[int, int]) -> None:
    assert CHUNK_BYTES_SHIFT_MIN <= chunk_shift(*size) <= CHUNK_BYTES_SHIFT_MAX


@given(st.integers(1 << 20, 1 << 40), st.floats(0.0, 1.0))
def test_no_other_size_costs_fewer_bytes(body_bytes: int, share: float) -> None:
    """Of the list and of the rows that come again, where rows of 100 bytes have changed."""
    frame_bytes, changed = body_bytes // 4, share * body_bytes / 100
    shift = chunk_shift(body_bytes, frame_bytes, changed)

    def cost(by: int) -> float:
        chunks = body_bytes / (1 << by)
        return DIGEST_BYTES * chunks - frame_bytes * math.expm1(-changed / chunks)

    usable = [
        by
        for by in range(CHUNK_BYTES_SHIFT_MIN, CHUNK_BYTES_SHIFT_MAX + 1)
        if body_bytes / (1 << by) <= CHUNKS_MAX / 2
    ]
    least = min(map(cost, usable), default=0.0)
    assert cost(shift) <= 1.5 * least + 1.01 * LIST_SHARE * frame_bytes + frame_bytes * 0.01
    again = share_again(frame_bytes, body_bytes, changed)
    assert 0 <= again <= 1
    assert (again == 0) is (changed == 0)
