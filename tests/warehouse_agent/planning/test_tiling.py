"""Tiles cover every position, their digests add up, and each is what an exchange needs of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from driftline.limits import RANGES_MAX
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN, RangeSums
from driftline.rows.digests import Digest, Salt, mix
from driftline.rows.key_order import KeyBuffer, key_bytes
from driftline.values.types import Column, DeclaredType, Recipe
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import digests as reference
from warehouse_agent.planning import tiling as tiles
from warehouse_agent.planning.tiling import (
    PassSettings,
    PassSums,
    PositionTiling,
    count_for,
    key_tiling,
    pass_cost,
    tiling,
)
from warehouse_agent.tasks.difference import EmptiedZones

KEYS = st.integers(-60, 60) | st.integers(POSITION_MIN, POSITION_MAX)
SALT = Salt(0x0123456789ABCDEF, 0xFEDCBA9876543210)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[PositionTiling, list[int]]:
    """Tiles of a copy, and the keys that it holds, ascending."""
    keys = sorted(draw(st.lists(KEYS, min_size=1, max_size=60, unique=True)))
    count = draw(st.integers(1, 20))
    knots = [keys[round(i * (len(keys) - 1) / count)] for i in range(count + 1)]
    return tiling(knots, len(keys), tail=draw(st.integers(0, 5))), keys


@given(tilings())
def test_tiles_cover_every_position_once(made: tuple[PositionTiling, list[int]]) -> None:
    cut, _ = made
    bounds = [cut.bounds(tile) for tile in range(len(cut))]
    assert bounds[0][0] == POSITION_MIN
    assert bounds[-1][1] == POSITION_MAX
    assert all(first <= last for first, last in bounds)
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(bounds))


@given(tilings(), st.data())
def test_digests_of_tiles_add_up(
    made: tuple[PositionTiling, list[int]], data: st.DataObject
) -> None:
    """Against sums over the rows of each tile by themselves, and the reference's total."""
    cut, keys = made
    lanes = data.draw(
        st.lists(
            st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
            min_size=len(keys),
            max_size=len(keys),
        )
    )
    where = np.array(keys, np.int64)
    hi, lo = np.array(lanes, np.uint64).reshape(-1, 2).T
    mixed = mix(SALT, hi, lo)
    halves = [PassSums(cut), PassSums(cut)]
    for half, at in zip(halves, np.array_split(np.arange(len(keys)), 2), strict=True):
        half.add(where[at], type(mixed)(mixed.m0[at], mixed.m1[at]))
    both = halves[0].ranges.total + halves[1].ranges.total
    added = PassSums.from_words(both, halves[0].words() + halves[1].words(), cut)
    sums = PassSums.from_bytes(added.to_bytes(), cut)
    total = Digest()
    for tile in range(len(cut)):
        first, last = cut.bounds(tile)
        inside = np.flatnonzero((where >= first) & (where <= last))
        alone = type(mixed)(mixed.m0[inside], mixed.m1[inside])
        assert sums.digest(tile) == alone.digest()
        partition, ours = cut.partition(tile), sums.of(tile)
        assert partition.ranges <= RANGES_MAX
        expected = RangeSums(partition.ranges)
        expected.add(partition.indices(where[inside]), alone)
        assert ours.total == expected.total
        assert np.array_equal(ours.counts, expected.counts)
        assert np.array_equal(ours.sums, expected.sums)
        total += sums.digest(tile)
    assert total == sums.ranges.total == mixed.digest()
    bare = [h.to_bytes(8, "little") + low.to_bytes(8, "little") for h, low in lanes]
    slow = reference.digest(bare, (SALT.s0, SALT.s1))
    assert (total.count, total.sum) == slow


@given(tilings(), st.data())
def test_what_tiles_empty_is_what_lies_in_them(
    made: tuple[PositionTiling, list[int]], data: st.DataObject
) -> None:
    cut, keys = made
    some = data.draw(st.lists(st.integers(0, len(cut) - 1), min_size=1, unique=True).map(sorted))
    zones = list(map(cut.bounds, some))
    emptied = EmptiedZones.of(zones, 0)
    named = [any(a <= k <= b for a, b in zones) for k in keys]
    assert emptied.holds(np.array(keys, np.int64)).tolist() == named
    first, last = sorted(data.draw(st.tuples(*[st.sampled_from(keys) | KEYS] * 2)))
    assert emptied.meets(first, last) == any(a <= last and first <= b for a, b in zones)


def test_sums_of_another_size_are_no_sums() -> None:
    cut = tiling([0, 10, 20], 20)
    data = PassSums(cut).to_bytes()
    for damaged in (b"", data[:-16], data + bytes(16)):
        with pytest.raises(ValueError, match=r"sums|buffer|reshape"):
            PassSums.from_bytes(damaged, cut)


@pytest.mark.parametrize(
    ("rows", "wanted", "count"),
    [(1, 100, 1), (100, 100, 1), (101, 100, 2), (10**9, 100_000, 10_000), (10**9, 1, 1 << 14)],
)
def test_how_many(rows: int, wanted: int, count: int) -> None:
    assert count_for(rows, PassSettings(rows=wanted)) == count


def test_rows_that_are_expected_behind_the_last_key() -> None:
    """Tiles as wide as the others, so that many new rows are no long tile."""
    wanted = PassSettings(rows=100)
    assert tiles.tail_for([], wanted) == 0
    assert tiles.tail_for([5, 49, 0], wanted) == 0
    assert tiles.tail_for([5, 250, 0], wanted) == 3
    cut = tiling(range(0, 1001, 100), 1000, tail=3)
    assert len(cut) == 13
    assert cut.bounds(9) == (900, 1000)
    assert [cut.bounds(tile)[0] for tile in (10, 11, 12)] == [1001, 1102, 1203]
    edge = tiling([POSITION_MAX - 10, POSITION_MAX], 11, tail=3)
    assert [edge.bounds(tile) for tile in range(len(edge))] == [(POSITION_MIN, POSITION_MAX)]


def test_a_large_copy_stays_within_its_limits() -> None:
    rows = 1_600_000_000
    knots = range(0, 4 * rows, 4 * rows // (1 << 14))
    cut = tiling(knots, rows, tail=64)
    assert len(cut) <= tiles.TILES_MAX + tiles.TAIL_TILES_MAX + 1
    assert cut.cuts.ranges <= tiles.PASS_RANGES_MAX + 2 * len(cut)
    one = tiling([0, rows], rows)
    assert one.partition(0).ranges <= RANGES_MAX


def test_what_a_pass_costs() -> None:
    """Nothing changed: an opening and an end for each tile; then three round trips where rows did,
    and never more hashes than rows."""
    wanted = PassSettings(rows=1000)
    still, trips = pass_cost(100_000, 0, 40.0, wanted)
    assert (100 * 300 < still < 100 * 500, trips) == (True, 100)
    one, trips = pass_cost(100_000, 1, 40.0, wanted)
    assert (still + 40 + 300 < one < still + 2000, trips) == (True, 102)
    many, trips = pass_cost(100_000, 50_000, 40.0, wanted)
    assert many == pytest.approx(still + 100_000 * 8 + 50_000 * 40, abs=100)
    few, _ = pass_cost(100_000, 1000, 40.0, wanted)
    assert 1000 * 40 + 1000 * 8 < few - still < 1000 * 40 + 100_000 * 8 / 4
    assert trips == 300


PAIRS = Recipe((Column("a", DeclaredType("text")), Column("n", DeclaredType("int4"))), 2)


@given(st.data())
def test_tiles_between_keys(data: st.DataObject) -> None:
    """Every row in one tile, by Python's order; tiles and ranges add up to the table; each file is
    near all tiles of which it has rows."""
    texts = st.text(st.sampled_from("ab~"), max_size=2)
    chosen = st.lists(st.tuples(texts, st.integers(-9, 9)), min_size=1, max_size=60, unique=True)
    keys = data.draw(chosen)
    encoded = [key_bytes((a, str(n)), PAIRS) for a, n in keys]
    files = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(keys), max_size=len(keys))))
    ends = {}
    for file in sorted(set(files.tolist())):
        mine = sorted(key for key, of in zip(keys, files, strict=True) if of == file)
        ends[f"f{file}"] = tuple(key_bytes((a, str(n)), PAIRS) for a, n in (mine[0], mine[-1]))
    sample = data.draw(st.lists(st.sampled_from(encoded), min_size=1))
    cut = key_tiling(PAIRS, sample, len(keys), data.draw(st.integers(1, 9)), ends)  # type: ignore[arg-type]
    bounds = [cut.bounds(tile) for tile in range(len(cut))]
    assert (bounds[0].lower, bounds[-1].upper) == (None, None)
    assert all(one.upper == other.lower for one, other in pairwise(bounds))

    def typed(key: tuple[str, ...] | None) -> tuple[str, int] | None:
        return None if key is None else (key[0], int(key[1]))

    ends_of = [(typed(b.lower), typed(b.upper)) for b in bounds]
    tile_of = [
        [
            i
            for i, (low, high) in enumerate(ends_of)
            if (low is None or low <= k) and (high is None or k < high)
        ]
        for k in keys
    ]
    assert all(len(tiles) == 1 for tiles in tile_of)
    where = np.array(data.draw(st.lists(KEYS, min_size=len(keys), max_size=len(keys))), np.int64)
    hi, lo = where.view(np.uint64) * np.uint64(3), where.view(np.uint64) + np.uint64(1)
    mixed = mix(SALT, hi, lo)
    sums = PassSums(cut)
    sums.add(where, mixed, KeyBuffer.of_bytes(encoded))
    assert PassSums.from_bytes(sums.to_bytes(), cut).ranges.total == mixed.digest()
    for tile in range(len(cut)):
        inside = np.array([i for i, tiles in enumerate(tile_of) if tiles == [tile]], np.int64)
        alone = type(mixed)(mixed.m0[inside], mixed.m1[inside])
        partition, ours = cut.partition(tile), sums.of(tile)
        expected = RangeSums(partition.ranges)
        expected.add(partition.indices(where[inside]), alone)
        assert ours.total == sums.digest(tile) == alone.digest()
        assert np.array_equal(ours.counts, expected.counts)
        assert np.array_equal(ours.sums, expected.sums)
        for i in inside.tolist():
            first, last = cut.near[f"f{files[i]}"]
            assert first <= tile <= last


def test_a_sample_of_long_keys_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys are compared at once, each with as many bytes as the longest."""
    sample = [key_bytes(("x" * 100, str(n)), PAIRS) for n in range(100)]
    ends = {"f": (sample[0], sample[-1])}
    assert len(key_tiling(PAIRS, sample, 1000, 20, ends)) == 20
    monkeypatch.setattr(tiles, "SAMPLE_BYTES_MAX", 10 * len(sample[0]))
    assert len(key_tiling(PAIRS, sample, 1000, 20, ends)) == 10
    assert len(key_tiling(PAIRS, [], 1000, 20, {})) == 1
