"""Embeddings, tables of cells and lists of keys against the reference, and what is refused."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
import zstandard
from driftline.errors import MalformedMessage
from driftline.limits import SAMPLE_CELLS_MAX, SKETCH_KEYS_MAX, THIRD_CELLS_MAX
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from driftline.reconciliation.sketches import (
    CELL_BYTES,
    HASHES,
    PRIME,
    Cells,
    Embedding,
    Grid,
    pack,
    sampled,
    unpack,
)
from driftline.rows.digests import Salt
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.reference import digests
from tests.reference import frames as reference_frames
from tests.reference import sketches as reference
from tests.samples.rows import SALTS, U64
from tests.samples.sketches import (
    POSITIONS,
    Pair,
    array,
    embeddings,
    foldings,
    griddings,
    pairs,
    positions_array,
    spans,
)
from warehouse_agent.planning.sketch_size import CellSample

ELEMENTS = st.integers(0, PRIME - 1)
KEYS = st.sets(st.integers(0, SKETCH_KEYS_MAX - 1) | st.integers(0, 300), max_size=60)
# Of rows: the ends of the field and of what is reduced into it.
EXTREMES = U64 | st.sampled_from([PRIME - 2, PRIME - 1, PRIME, 2 * PRIME - 3, 2**64 - 2])


@st.composite
def folded_pairs(draw: st.DrawFn) -> tuple[Pair, int, list[Grid]]:
    third, grids = draw(griddings(third_max=6))
    return draw(pairs(third, hashes=EXTREMES)), third, grids


# Embeddings


@given(embeddings(), SALTS, st.lists(POSITIONS, max_size=20))
def test_positions_embed_as_in_the_reference(
    embedding: Embedding, halves: tuple[int, int], where: list[int]
) -> None:
    span, base, salt = embedding.span, embedding.base, Salt(*halves)
    if base is not None:
        edges = [base - 1, base, base + span // 2, base + span - 1, base + span]
        where = [*where, *(p for p in edges if POSITION_MIN <= p <= POSITION_MAX)]
    expected = [reference.embedded(p, span=span, base=base, s1=salt.s1) for p in where]
    ks, inside = embedding.embed(np.array(where, np.int64), salt)
    assert inside.tolist() == [k is not None for k in expected]
    assert ks.tolist() == [k or 0 for k in expected]
    if base is not None:
        there = [p for p, k in zip(where, expected, strict=True) if k is not None]
        assert embedding.positions(ks[inside]).tolist() == there
    zones = list(zip(*(ends.tolist() for ends in embedding.outside()), strict=True))
    assert all(first <= last for first, last in zones)
    for position, k in zip(where, expected, strict=True):
        assert any(a <= position <= b for a, b in zones) == (k is None)


@pytest.mark.parametrize(
    ("span", "base"),
    [
        (0, None),
        (0, 0),
        (-1, None),
        (SKETCH_KEYS_MAX + 1, None),
        (2**64, 0),
        (1, POSITION_MIN - 1),
        (1, POSITION_MAX + 1),
        (2, POSITION_MAX),
        (SKETCH_KEYS_MAX, POSITION_MAX - SKETCH_KEYS_MAX + 2),
    ],
)
def test_what_is_no_embedding(span: int, base: int | None) -> None:
    with pytest.raises(MalformedMessage):
        Embedding(span, base)


# Tables


@given(folded_pairs())
def test_tables_are_those_of_the_reference(case: tuple[Pair, int, list[Grid]]) -> None:
    pair, third, grids = case
    entries, s1 = pair.entries(pair.ours), pair.salt.s1
    cells = pair.cells(pair.ours, third)
    expected = reference.table(entries, third, s1)
    assert len(cells) == HASHES * third == len(expected)
    assert cells.to_bytes() == reference.wire(expected)
    assert cells.check == reference.check(entries, s1)
    for count in {1, third, len(cells)}:
        sample = reference.sample(expected, count)
        assert cells.sample(count) == sample
        assert cells.differing(sample) == 0
        assert cells.differing(bytes(x ^ 1 for x in sample)) == count
    parent = None
    for grid in grids:
        folded = reference.folded(expected, spans(grid))
        assert len(grid) == len(folded)
        assert cells.folded(grid).to_bytes() == reference.wire(folded)
        every = np.arange(HASHES * third)
        assert [every[part.start] for part in spans(grid)] == [
            int(np.flatnonzero(grid.cells(every) == at)[0]) for at in range(len(grid))
        ]
        if not grid.cut:
            assert Cells.from_bytes(reference.wire(folded)).third == third // grid.fold
            # A table of that size, filled at once, is the same.
            alone = pair.cells(pair.ours, third // grid.fold)
            assert alone.to_bytes() == reference.wire(folded)
        whole = cells.children(None, grid, np.zeros(0, np.bool_))
        assert whole.to_bytes() == reference.wire(folded)
        if parent is not None:
            stuck = np.arange(len(parent)) % 3 != s1 % 3
            at = np.flatnonzero(stuck).tolist()
            sent = reference.children(expected, spans(parent), spans(grid), at)
            assert cells.children(parent, grid, stuck).to_bytes() == reference.wire(sent)
            assert len(sent) == sum(
                np.count_nonzero(stuck[zone.parents]) * (zone.group - 1)
                for zone in parent.zones(grid)
            )
        parent = grid


def test_a_sample_is_of_no_more_cells_than_there_are_or_may_be() -> None:
    for cells, count in ((Cells(1), 4), (Cells(SAMPLE_CELLS_MAX), SAMPLE_CELLS_MAX + 1)):
        with pytest.raises(MalformedMessage, match="longer than one may be"):
            cells.differing(bytes(count))


@pytest.mark.slow
@pytest.mark.parametrize("third", [200_000, THIRD_CELLS_MAX])
@pytest.mark.parametrize("load", [0.1, 0.5, 1.0])
def test_a_sample_tells_the_share_better_than_the_strata(third: int, load: float) -> None:
    """Where a verdict has one: two standard deviations hold what is true in most of all cases."""
    rng, good, seeds = np.random.default_rng(7), 0, 25
    for _ in range(seeds):
        ours = Cells(third)
        ours.r = rng.integers(0, PRIME, len(ours), np.uint64)
        theirs = Cells(third)
        changed = rng.random(len(ours)) < -np.expm1(-load)
        theirs.r = np.where(changed, rng.integers(0, PRIME, len(ours), np.uint64), ours.r)
        differing = int(np.count_nonzero(changed))
        count = sampled(differing, len(ours))
        assert 0 < count <= SAMPLE_CELLS_MAX
        likely, most = CellSample(count, ours.differing(theirs.sample(count))).shares()
        assert most <= 1.14 * likely
        good += abs(likely - differing / len(ours)) <= most - likely
    assert good >= 0.8 * seeds, f"{good} of {seeds}"


@given(st.integers(1, 3 * THIRD_CELLS_MAX), st.floats(0, 1))
def test_a_sample_costs_next_to_nothing(cells: int, share: float) -> None:
    differing = int(share * cells)
    count = sampled(differing, cells)
    assert count <= min(cells, SAMPLE_CELLS_MAX, differing / 16)
    if count:
        assert count * differing / cells >= 256


@given(st.integers(-1, 60), st.integers(-1, 12), st.integers(-1, 70), st.integers(-1, 12))
def test_what_is_no_grid(third: int, fold: int, cut: int, finer: int) -> None:
    third = max(third, 1)
    is_alike = cut == finer == 0
    is_cut = fold > 0 and 0 < finer < fold and fold % finer == 0 and 0 < cut < 3 * third // fold
    if fold > 0 and third % fold == 0 and (is_alike or is_cut):
        assert len(Grid(third, fold, cut, finer)) == len(reference.grid(third, fold, cut, finer))
    else:
        with pytest.raises(MalformedMessage):
            Grid(third, fold, cut, finer)


@given(griddings(third_max=4), griddings(third_max=4), st.randoms(use_true_random=False))
def test_what_does_not_refine_a_grid(
    one: tuple[int, list[Grid]], other: tuple[int, list[Grid]], source: random.Random
) -> None:
    third = one[0] * other[0]
    grids = [
        Grid(third, grid.fold, grid.cut, grid.finer)
        for grid in one[1] + other[1]
        if grid.cut < HASHES * third // grid.fold
    ]
    parent, grid = source.choice(grids), source.choice(grids)
    ours, theirs = ({part.start for part in spans(one)} for one in (parent, grid))
    if ours < theirs and grid.cut * grid.fold in ours:
        assert sum(z.group * (z.parents.stop - z.parents.start) for z in parent.zones(grid)) == len(
            grid
        )
    else:
        with pytest.raises(MalformedMessage):
            parent.zones(grid)


@given(foldings())
def test_a_fold_of_a_fold_is_a_fold(folding: tuple[int, list[int]]) -> None:
    third, folds = folding
    cells = Cells(third)
    cells.r[:] = array(digests.xx(i, 1) for i in range(len(cells)))  # not reduced yet
    cells.kr[:] = ~cells.r
    sums = zip(cells.r.tolist(), cells.kr.tolist(), strict=True)
    expected = reference.folded(list(sums), reference.grid(third, folds[0]))
    assert cells.folded(Grid(third, folds[0])).to_bytes() == reference.wire(expected)
    for fold, finer in zip(reversed(folds), [1, *reversed(folds)], strict=False):
        cells = cells.folded(Grid(cells.third, fold // finer))
    assert cells.to_bytes() == reference.wire(expected)
    assert cells.third == third // folds[0]


@given(folded_pairs(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_neither_order_nor_partition_matters(
    case: tuple[Pair, int, list[Grid]], parts: int, source: random.Random
) -> None:
    pair, third, _ = case
    whole = pair.cells(pair.ours, third)
    rows = list(pair.ours.items())
    source.shuffle(rows)
    sums = Cells(third).sums()
    for part in range(parts):
        one = Cells(third)
        for batch in (rows[part :: 2 * parts], rows[part + parts :: 2 * parts]):
            side = dict(batch)
            ks, inside = pair.embedding.embed(positions_array(side), pair.salt)
            one.add(ks[inside], array(side.values())[inside], pair.salt)
        assert Cells.from_bytes(one.to_bytes()).to_bytes() == one.to_bytes()
        sums += one.sums()
        assert Cells.from_sums(one.sums()).to_bytes() == one.to_bytes()
    merged = Cells.from_sums(sums)
    assert merged.third == third
    assert merged.to_bytes() == whole.to_bytes()
    assert merged.check == whole.check


@pytest.mark.parametrize("row_hash", [PRIME - 2, 2**64 - 1])
def test_many_rows_of_one_cell(row_hash: int) -> None:
    """Sums are reduced where they are read; those of a million greatest products are exact."""
    count, k, salt = 1 << 20, SKETCH_KEYS_MAX - 1, Salt(1, 2)
    cells = Cells(1)
    cells.add(np.full(count, k, np.uint64), np.full(count, row_hash, np.uint64), salt)
    r = reference.element(row_hash)
    expected = [(count * r % PRIME, count * k * r % PRIME)] * HASHES
    assert cells.to_bytes() == reference.wire(expected)
    assert cells.check == count * (reference.c(k, salt.s1) % PRIME) * r % PRIME


def test_the_largest_table_is_as_large_as_it_says() -> None:
    cells = Cells(THIRD_CELLS_MAX)
    ks = array([0, 1, SKETCH_KEYS_MAX - 1])
    cells.add(ks, ks, Salt(3, 4))
    assert len(cells.to_bytes()) == HASHES * THIRD_CELLS_MAX * CELL_BYTES
    entries = [(k, reference.element(k)) for k in ks.tolist()]
    folded = cells.folded(Grid(THIRD_CELLS_MAX, THIRD_CELLS_MAX // 7))
    assert folded.to_bytes() == reference.wire(reference.table(entries, 7, 4))


@given(st.lists(st.tuples(ELEMENTS, ELEMENTS), max_size=12), st.integers(PRIME, 2**32 - 1))
def test_cells_travel(cells: list[tuple[int, int]], beyond: int) -> None:
    data = reference.wire(cells)
    assert Cells.from_bytes(data).to_bytes() == data
    for bad in [(beyond, 0), (0, beyond)]:
        with pytest.raises(MalformedMessage):
            Cells.from_bytes(reference.wire([*cells, bad]))


# Lists of keys


@given(KEYS)
def test_lists_of_keys_travel(members: set[int]) -> None:
    ks = sorted(members)
    span = max(ks, default=0) + 1
    data = pack(array(ks))
    assert zstandard.decompress(data) == reference.planes(ks)
    assert reference.unpack(data) == ks
    for sent in (data, reference.pack(ks)):
        assert unpack(sent, span=span, count_max=len(ks)).tolist() == ks
    if ks:
        with pytest.raises(MalformedMessage):
            unpack(data, span=span - 1, count_max=len(ks))
        with pytest.raises(MalformedMessage):
            unpack(data, span=span, count_max=len(ks) - 1)


def planes(steps: list[int]) -> bytes:
    """A list of any steps, compressed."""
    data = b"".join(step.to_bytes(4, "little") for step in steps)
    return zstandard.compress(b"".join(data[j::4] for j in range(4)))


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 3), max_size=8), st.data())
def test_only_what_ascends_below_the_span_is_a_list(steps: list[int], data: st.DataObject) -> None:
    ks = [sum(steps[: i + 1]) for i in range(len(steps))]
    span = data.draw(st.sampled_from([1, SKETCH_KEYS_MAX, *(k + 1 for k in ks if k < 2**31)]))
    if ks == sorted(set(ks)) and max(ks, default=0) < span:
        assert unpack(planes(steps), span=span, count_max=len(ks)).tolist() == ks
    else:
        with pytest.raises(MalformedMessage):
            unpack(planes(steps), span=span, count_max=len(ks))


@examples(300)
@given(KEYS, st.data())
def test_damaged_lists_are_refused_or_are_lists(members: set[int], data: st.DataObject) -> None:
    sound = pack(array(sorted(members)))
    at = data.draw(st.integers(0, len(sound)))
    hostile = data.draw(
        st.sampled_from([sound[:at] + sound[at + 1 :], sound[:at], sound[:at] + sound])
        | st.binary(max_size=40)
        | st.binary(min_size=1, max_size=4).map(lambda b: sound[:at] + b + sound[at + len(b) :])
        | st.binary(max_size=60).map(reference_frames.stored)
    )
    try:
        ks = unpack(hostile, span=SKETCH_KEYS_MAX, count_max=100).tolist()
    except MalformedMessage:
        return
    assert ks == sorted(set(ks))
    assert len(ks) <= 100
    assert all(0 <= k < SKETCH_KEYS_MAX for k in ks)


def declaring(size: int, body: bytes = bytes.fromhex("010000"), window: str = "") -> bytes:
    """A zstd frame that says how large it is; one empty block unless told."""
    return bytes.fromhex("28b52ffd" + ("c0" if window else "e0") + window) + (
        size.to_bytes(8, "little") + body
    )


COUNT_MAX = HASHES * THIRD_CELLS_MAX
BLOCK_OF_ZEROS = (1 + 2 + 8 * (1 << 17)).to_bytes(3, "little") + b"\0"  # 128 KiB from 4 bytes
HOSTILE = {
    "nothing": b"",
    "no frame": b"driftline",
    "no zeros but 64 MiB of them": zstandard.compress(bytes(1 << 26)),
    "one byte too many": zstandard.compress(bytes(4 * COUNT_MAX + 1)),
    "one key too many": zstandard.compress(bytes(4 * COUNT_MAX + 4)),
    "all zeros": zstandard.compress(bytes(4 * COUNT_MAX)),
    "all ones": zstandard.compress(b"\xff" * (4 * COUNT_MAX)),
    "a fraction of a key": zstandard.compress(bytes(7)),
    "no declared size": zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4)),
    "2^40 bytes declared": declaring(1 << 40),
    "2^64 − 1 bytes declared": declaring((1 << 64) - 1),
    "fewer bytes than declared": declaring(4 * COUNT_MAX),
    "more bytes than declared": declaring(4, BLOCK_OF_ZEROS),
    "a window of 2 TiB": declaring(8, BLOCK_OF_ZEROS, window="f8"),
    "a dictionary": bytes.fromhex("28b52ffd" + "2107" + "08" + "410000") + bytes(8),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lists_cost_little(name: str) -> None:
    data = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            unpack(data, span=SKETCH_KEYS_MAX, count_max=COUNT_MAX)
        # The bytes, their planes, and the keys and steps as 64-bit numbers.
        assert tracemalloc.get_traced_memory()[1] < 8 * 4 * COUNT_MAX
        if len(data) < 40:
            assert tracemalloc.get_traced_memory()[1] < 5 * COUNT_MAX
    finally:
        tracemalloc.stop()
