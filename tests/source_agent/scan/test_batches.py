"""Rows on their way through the agent: fingerprints are made once, and of no row that is not asked
for."""

from __future__ import annotations

import numpy as np
import pytest
from driftline.rows.columns import Block, gather
from driftline.rows.digests import MixedFingerprints, Salt, mix
from driftline.rows.fingerprints import hasher
from hypothesis import example, given
from hypothesis import strategies as st

from source_agent.scan import batches
from source_agent.scan.batches import Batch, IdentifiedRows, choose_counted, join_neighbours

KEY, SALT = bytes(range(32)), Salt(3, 5)

rows = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


class Counted:
    """A batch, and how many rows were hashed for it."""

    def __init__(self, rows: list[bytes]) -> None:
        self.hashed = 0
        self.batch = Batch(gather(rows), np.arange(len(rows)), self._mix)

    def _mix(self, part: Block) -> MixedFingerprints:
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


# Rows that are held until they are wanted


def identified(rows: list[bytes], slots: list[int]) -> IdentifiedRows:
    """These rows, in batches of three."""
    found = IdentifiedRows()
    for at in range(0, len(rows), 3):
        some = rows[at : at + 3]
        mixed = mix(SALT, *hasher(KEY)(some))
        batch = Batch(gather(some), np.arange(at, at + len(some)), mixed)
        found.add(batch, np.array(slots[at : at + 3], np.int64))
    return found


@given(st.data())
def test_hashes_are_ordered_by_range_and_then_by_arrival(data: st.DataObject) -> None:
    held = data.draw(rows)
    slots = [data.draw(st.integers(0, 4)) for _ in held]
    order, hashes = identified(held, slots).in_order()
    assert order.tolist() == sorted(range(len(held)), key=lambda at: (slots[at], at))
    assert hashes.tolist() == mix(SALT, *hasher(KEY)(held)).m0[order].tolist()


@pytest.mark.parametrize(("held_bytes", "is_held"), [(1000, True), (999, False)])
def test_bytes_are_held_while_they_fit(
    held_bytes: int, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS_HELD_BYTES", held_bytes)
    found = identified([bytes(100)] * 10, [0] * 10)
    assert (found.blocks is not None) == is_held
    assert sum(map(len, found.hashes)) == sum(map(len, found.positions)) == 10


@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30),
)
def test_equal_rows_are_chosen_as_often_as_they_are_wanted(
    wanted: list[int], arriving: list[tuple[int, bool]]
) -> None:
    left, expected = np.array(wanted), list(wanted)
    chosen = []
    for at, is_named in arriving:
        chosen.append(is_named and expected[at] > 0)
        expected[at] -= chosen[-1]
    places = np.array([at for at, _ in arriving], np.int64)
    named = np.array([is_named for _, is_named in arriving], np.bool_)
    assert choose_counted(left, places, named).tolist() == chosen
    assert left.tolist() == expected


@given(st.sets(st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20)))
@example({-(2**63), 2**63 - 1})  # further apart than an int64 holds
def test_neighbours_are_joined(places: set[int]) -> None:
    first, last = join_neighbours(np.array(sorted(places), np.int64))
    assert sum(int(b) - int(a) + 1 for a, b in zip(first, last, strict=True)) == len(places)
    assert all(int(a) in places and int(a) - 1 not in places for a in first)
    assert all(int(b) in places and int(b) + 1 not in places for b in last)
