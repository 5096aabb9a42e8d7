"""The division of rows into shards: nothing is left out, nothing is too large."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
from driftline.limits import GROUPED_KEYS_MAX, NAMED_BYTES_MAX
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.planning import group_shards


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    most=st.integers(1, 60),
)
def test_shards_are_neighbours_within_the_limit(counts: list[int], most: int) -> None:
    """Each has a row and no more than may be, unless there is none at all; no two fit into one."""
    found = group_shards.ends(np.array(counts, np.int64), 8 * np.array(counts, np.int64), most)
    if found is None:
        assert max(counts) > most
        return
    assert max(counts) <= most
    assert found[-1] == len(counts)
    assert found == sorted(set(found))
    rows = [sum(counts[a:b]) for a, b in zip([0, *found[:-1]], found, strict=True)]
    assert sum(rows) == sum(counts)
    if sum(counts):
        assert all(1 <= some <= most for some in rows)
    else:
        assert rows == [0]
    assert all(one + other > most for one, other in pairwise(rows))
    assert len(rows) <= 2 * sum(counts) // (most + 1) + 1


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 100)), min_size=1, max_size=40))
def test_shards_hold_the_bytes_that_a_source_takes(ranges: list[tuple[int, int]]) -> None:
    """Wherever the long keys lie: each range has rows, and keys of some length."""
    most = 2000
    counts, lengths = np.array(ranges, np.int64).T
    held = counts * (lengths + group_shards.LENGTH_BYTES)
    with patch.object(group_shards, "NAMED_BYTES_MAX", most):
        found = group_shards.ends(counts, counts * lengths, 10**9)
    if found is None:
        assert held.max() > most
        return
    each = [int(held[a:b].sum()) for a, b in zip([0, *found[:-1]], found, strict=True)]
    assert sum(each) == held.sum()
    assert max(each) <= most
    assert all(one + other > most for one, other in pairwise(each))


@given(
    rows=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=20),
    spare=st.integers(0, 200),
)
def test_a_budget_is_kept_by_all_shards_together(rows: list[tuple[int, int]], spare: int) -> None:
    """Whatever each reads of what it may: at least its own rows fit, and all within the limit."""
    limit = sum(own for own, _ in rows) + spare
    read = 0
    for number, (own, new) in enumerate(rows):
        behind = [count for count, _ in rows[number + 1 :]]
        allowed = group_shards.budget(limit, read, behind)
        assert allowed >= own
        read += min(own + new, allowed)
    assert read <= limit


def test_the_limit_is_that_of_rows_or_of_the_bytes_of_their_keys() -> None:
    assert group_shards.limit(8) == GROUPED_KEYS_MAX
    assert 600_000 < group_shards.limit(40) < 700_000
    assert group_shards.limit(40) * 40 < NAMED_BYTES_MAX
    assert group_shards.limit(40, 1000) == 1000
    assert group_shards.limit(float(NAMED_BYTES_MAX)) == 1
    assert group_shards.pieces(10, 1000) == group_shards.PIECES_PER_SHARD
    assert group_shards.pieces(3001, 1000) == 4 * group_shards.PIECES_PER_SHARD
