"""Matching of records by position, and keys that come twice, against dictionaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.differential import matching
from warehouse_agent.differential.matching import (
    DistinctKeys,
    RepeatedPosition,
    WindowExhausted,
    match,
)

POSITIONS = st.lists(
    st.integers(-(2**63), 2**63 - 1) | st.integers(-50, 50), unique=True, max_size=60
)


def pairs(old, new):
    found = match(np.array(old, np.int64), np.array(new, np.int64))
    return sorted(zip(*(side.tolist() for side in found), strict=True))


def expected(old, new):
    places = {position: i for i, position in enumerate(old)}
    return sorted((places[p], j) for j, p in enumerate(new) if p in places)


@given(POSITIONS, POSITIONS)
def test_pairs_are_those_of_a_dictionary(old, new):
    assert pairs(old, new) == expected(old, new)


@pytest.mark.parametrize("slots", [1, 2, 5])
@given(old=POSITIONS, new=POSITIONS)
def test_records_that_share_slots_are_found(slots, old, new):
    """Of one slot alone, one record is found in each round, and the rest in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "_slots", lambda found, bits: found % min(slots, 1 << bits))
        assert pairs(old, new) == expected(old, new)


@given(
    st.lists(st.lists(st.integers(-40, 40) | st.integers(-(2**63), 2**63 - 1), max_size=8)),
    st.sampled_from([1, 3, 1 << 19]),
)
def test_what_comes_twice_is_found_by_its_places(blocks, at_once):
    """Whatever the blocks are, and in however many parts they are checked."""
    places: dict[int, list[int]] = {}
    for place, position in enumerate(p for block in blocks for p in block):
        places.setdefault(position, []).append(place)
    twice = [tuple(found[:2]) for found in places.values() if len(found) > 1]
    distinct = DistinctKeys(1, 1 << 20)
    for block in blocks:
        distinct.add(np.array(block, np.int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "_CHECKED_AT_ONCE", at_once)
        if not twice:
            distinct.check()
            return
        with pytest.raises(RepeatedPosition) as error:
            distinct.check()
    assert error.value.numbers in twice


def test_keys_near_each_other_take_little_memory():
    kept = matching._Near.of(np.arange(10_000, dtype=np.int64) * 6 - 2**40)
    assert kept.distances.nbytes == 20_000
    assert (kept.positions() == np.arange(10_000) * 6 - 2**40).all()


def test_more_keys_than_are_kept_must_ascend():
    distinct = DistinctKeys(0, 8 * 100)
    distinct.add(np.arange(500))
    with pytest.raises(
        WindowExhausted, match="the old file is not sorted by its key, and more than 100"
    ):
        distinct.add(np.arange(500))
