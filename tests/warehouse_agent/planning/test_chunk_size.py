"""The list of staged chunks is short beside what is staged, and a source takes it."""

from __future__ import annotations

import pytest
from driftline.limits import CHUNK_BYTES_SHIFT_MAX, CHUNK_BYTES_SHIFT_MIN, CHUNKS_MAX
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.planning.chunk_size import DIGEST_BYTES, LIST_SHARE, chunk_shift


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
