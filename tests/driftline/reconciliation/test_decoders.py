"""What is read from sketches: exact or refused, as the reference reads it, and how much it takes.

That a decoder never guesses is asked of random and of unlucky keys and hashes, of tables too small
and too large, and of every level of a refinement. How many cells a change takes, and how rarely a
level stalls, is asked of fixed seeds.
"""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from driftline.errors import MalformedMessage
from driftline.limits import SKETCH_KEYS_MAX
from driftline.reconciliation.decoders import Decoder
from driftline.reconciliation.sketches import HASHES, PRIME, Cells, Embedding, Grid, places
from driftline.rows.digests import Salt
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.reference import digests
from tests.reference import sketches as reference
from tests.samples.sketches import SPANS, Pair, Side, foldings, griddings, pairs, spans
from warehouse_agent.planning import sketch_size

# Quotients of few small elements are keys more often than not.
UNLUCKY = st.integers(0, 3) | st.sampled_from([PRIME - 3, PRIME - 2])
SMALL = st.sampled_from([2, 7, 256, 256])

Case = tuple[Pair, int, list[Grid]]


@st.composite
def cases(
    draw: st.DrawFn,
    third_max: int = 40,
    *,
    of: st.SearchStrategy[int] = SPANS,
    hashes: st.SearchStrategy[int] | None = None,
) -> Case:
    """A pair, a third and a chain of grids."""
    third, grids = draw(griddings(third_max))
    return draw(pairs(third // grids[0].fold, of, hashes=hashes)), third, grids


def refined(pair: Pair, third: int, grids: list[Grid]) -> Iterator[Decoder]:
    """The decoder after every level, cells having travelled as bytes."""
    ours, theirs = pair.cells(pair.ours, third), pair.cells(pair.theirs, third)
    decoder = Decoder(theirs, pair.embedding.span, pair.salt, check=ours.check)
    assert not decoder.solved
    for grid in grids:
        sent = ours.children(decoder.grid, grid, decoder.stuck)
        assert len(sent) == decoder.cells_expected(grid)
        decoder.take(grid, Cells.from_bytes(sent.to_bytes()))
        assert decoder.grid == grid
        assert len(decoder.stuck) == len(grid)
        yield decoder


def difference(pair: Pair, third: int) -> list[reference.Cell]:
    theirs, ours = (
        reference.table(pair.entries(side), third, pair.salt.s1)
        for side in (pair.theirs, pair.ours)
    )
    return reference.difference(theirs, ours)


def check_difference(pair: Pair) -> int:
    s1 = pair.salt.s1
    theirs, ours = (reference.check(pair.entries(s), s1) for s in (pair.theirs, pair.ours))
    return (theirs - ours) % PRIME


# Exact or refused


@given(cases())
def test_what_is_read_is_exact_or_refused(case: Case) -> None:
    pair, third, grids = case
    for decoder in refined(pair, third, grids):
        assert decoder.solved != decoder.stuck.any()
        if decoder.solved:
            assert decoder.ks.tolist() == pair.changed()


@given(cases(third_max=6, hashes=UNLUCKY))
def test_unlucky_elements_are_read_exactly_or_refused(case: Case) -> None:
    """Here changes of the rows below one k may cancel, which only the total tells."""
    pair, third, grids = case
    sums: dict[int, int] = {}
    for sign, side in ((1, pair.theirs), (-1, pair.ours)):
        for k, r in pair.entries(side):
            sums[k] = (sums.get(k, 0) + sign * r) % PRIME
    for decoder in refined(pair, third, grids):
        if decoder.solved:
            assert decoder.ks.tolist() == sorted(k for k, x in sums.items() if x)


@given(cases(of=SMALL))
def test_every_level_is_read_as_the_reference_reads_it(case: Case) -> None:
    """The levels of a refinement tell as much as all cells of its last one.

    Of few keys, so that no cell seems to hold a single entry when it holds several (2^-26 each):
    then the order in which cells are emptied does not matter, and the stuck ones are the same.
    """
    pair, third, grids = case
    whole, check = difference(pair, third), check_difference(pair)
    for decoder in refined(pair, third, grids):
        assert decoder.grid is not None
        grid = spans(decoder.grid)
        cells = reference.folded(whole, grid)
        found, stuck = reference.read(cells, grid, check, pair.embedding.span, pair.salt.s1)
        assert np.flatnonzero(decoder.stuck).tolist() == stuck
        assert decoder.ks.tolist() == sorted(found)
        if not stuck:
            assert sorted(found) == pair.changed()


def test_dense_keys_are_read_as_the_reference_reads_them() -> None:
    """Also k = 0, whose cells have a second sum of 0."""
    count, third, runs, solved = 30, 16, 40, 0
    for seed in range(runs):
        rows = Side((k - 7, digests.xx(k, seed)) for k in range(count))
        pair = Pair(Embedding(count, -7), Salt(0, seed), {}, rows)
        (decoder,) = refined(pair, third, [Grid(third, 1)])
        cells, grid = difference(pair, third), reference.grid(third, 1)
        found, stuck = reference.read(cells, grid, check_difference(pair), count, pair.salt.s1)
        assert decoder.ks.tolist() == sorted(found)
        assert np.flatnonzero(decoder.stuck).tolist() == stuck
        solved += decoder.solved
    assert runs / 4 <= solved < runs


@given(cases(third_max=12))
def test_the_reference_is_exact_or_refuses(case: Case) -> None:
    pair, third, grids = case
    grid = spans(grids[-1])
    cells = reference.folded(difference(pair, third), grid)
    span, s1 = pair.embedding.span, pair.salt.s1
    found, stuck = reference.read(cells, grid, check_difference(pair), span, s1)
    if not stuck:
        assert sorted(found) == pair.changed()


@given(cases(third_max=6))
def test_equal_sides_are_solved_by_any_cells(case: Case) -> None:
    pair, third, grids = case
    same = Pair(pair.embedding, pair.salt, pair.ours, pair.ours)
    for decoder in refined(same, third, grids):
        assert decoder.solved
        assert decoder.ks.tolist() == []


@given(cases(third_max=6), st.integers(0, 2**32 - 1))
def test_another_check_is_never_solved(case: Case, check: int) -> None:
    pair, third, _ = case
    ours, theirs = pair.cells(pair.ours, third), pair.cells(pair.theirs, third)
    assume(check % PRIME != ours.check)
    decoder = Decoder(theirs, pair.embedding.span, pair.salt, check=check)
    decoder.take(Grid(third, 1), ours.children(None, Grid(third, 1), decoder.stuck))
    assert not decoder.solved


def test_entries_that_share_their_cells_are_not_taken_for_one() -> None:
    """In a table of one third all do; the quotient is a k every second time."""
    seemed = 0
    for seed in range(40):
        source = np.random.default_rng(seed)
        salt = Salt(seed, seed + 1)
        rows = [(int(k), int(h)) for k, h in source.integers(1, SKETCH_KEYS_MAX, (2, 2))]
        pair = Pair(Embedding(SKETCH_KEYS_MAX, 0), salt, {}, Side(rows))
        sum_r, sum_kr = reference.summed([(r, k * r % PRIME) for k, r in pair.entries(pair.theirs)])
        seemed += sum_kr * pow(sum_r, -1, PRIME) % PRIME < SKETCH_KEYS_MAX
        (decoder,) = refined(pair, 1, [Grid(1, 1)])
        assert decoder.stuck.all()
        assert decoder.ks.tolist() == []
    assert 10 <= seemed <= 30


# What a peer may ask and send


@given(foldings(), st.integers(-3, 400), st.integers(-3, 400), st.randoms(use_true_random=False))
def test_folds_that_refine_nothing_are_refused(
    folding: tuple[int, list[int]], first: int, second: int, source
) -> None:
    third, _ = folding
    decoder = Decoder(Cells(third), 7, Salt(1, 2), check=0)
    divisors = [f for f in range(1, third + 1) if third % f == 0]
    for fold in (first, *divisors):
        if fold in divisors:
            assert decoder.cells_expected(Grid(third, fold)) == HASHES * third // fold
        else:
            with pytest.raises(MalformedMessage):
                decoder.cells_expected(Grid(third, fold))
    taken = source.choice(divisors)
    garbage = Cells(third // taken)
    garbage.r[:: source.randint(1, 3)] = 0
    garbage.kr[:: source.randint(1, 3)] = 5  # Σ r = 0: no quotient, so it stays as it is
    decoder.take(Grid(third, taken), garbage)
    stuck = int(np.count_nonzero(decoder.stuck))
    assert stuck
    for fold in (second, first, *divisors):
        if fold in divisors and taken % fold == 0 and fold != taken:
            assert decoder.cells_expected(Grid(third, fold)) == stuck * (taken // fold - 1)
        else:
            with pytest.raises(MalformedMessage):
                decoder.cells_expected(Grid(third, fold))


def noise(count: int, source: np.random.Generator) -> Cells:
    cells = Cells(0)
    cells.r = source.integers(0, PRIME, count, np.uint64)
    cells.kr = source.integers(0, PRIME, count, np.uint64)
    return cells


@examples(30)
@given(cases(third_max=12), st.integers(0, 2**32 - 1), st.booleans())
def test_cells_of_a_hostile_peer_are_never_solved(case: Case, seed: int, from_start: bool) -> None:
    """Nor do they raise: what is no set of rows is stuck."""
    pair, third, grids = case
    source = np.random.default_rng(seed)
    ours, theirs = pair.cells(pair.ours, third), pair.cells(pair.theirs, third)
    decoder = Decoder(theirs, pair.embedding.span, pair.salt, check=ours.check)
    if not from_start:
        decoder.take(grids[0], ours.folded(grids[0]))
    for grid in grids if from_start else grids[1:]:
        count = decoder.cells_expected(grid)
        was_solved = decoder.solved
        decoder.take(grid, noise(count, source))
        assert decoder.solved == was_solved
        assert decoder.solved != decoder.stuck.any()
        if decoder.solved:
            assert decoder.ks.tolist() == pair.changed()


def seesaw(third: int, salt: Salt) -> Cells:
    """Cells of single entries that are missing from their other two cells.

    Whoever takes such an entry out finds it, negative, in the other two; taking that out fills the
    first again.
    """
    ks = np.arange(8 * third, dtype=np.uint64)
    first = places(ks, third, salt)[0][0]
    at, which = np.unique(first, return_index=True)
    cells = Cells(third)
    cells.r[at] = np.uint64(1)
    cells.kr[at] = ks[which]
    return cells


def test_cells_of_a_hostile_peer_cost_little() -> None:
    third, salt = 5040, Salt(1, 2)
    decoder = Decoder(Cells(third), SKETCH_KEYS_MAX, salt, check=0)
    tracemalloc.start()
    began = time.process_time()
    try:
        decoder.take(Grid(third, 1), seesaw(third, salt))
        assert not decoder.solved
        assert tracemalloc.get_traced_memory()[1] < 1000 * HASHES * third
        assert time.process_time() - began < 1  # 0.1 s; it was 6 s
    finally:
        tracemalloc.stop()


# How much it takes


def scattered(seed: int, changes: int, span: int) -> Pair:
    """70 % of the changes are updates, 20 % inserts and 10 % deletes; as many rows stay."""
    source = np.random.default_rng([seed, changes, span])
    salt = Salt(*(int(half) for half in source.integers(0, 2**64, 2, np.uint64)))
    ks = source.permutation(np.unique(source.integers(0, span, 3 * changes)))[: 2 * changes]
    old, new = source.integers(0, 2**64, (2, len(ks)), np.uint64)
    updated, deleted, inserted, kept = np.split(
        np.arange(len(ks)), [changes * 7 // 10, changes * 8 // 10, changes]
    )

    def side(hashes: np.ndarray, *parts: np.ndarray) -> Side:
        at = np.concatenate(parts)
        return Side(zip(ks[at].tolist(), hashes[at].tolist(), strict=True))

    ours = side(old, updated, deleted, kept)
    theirs = side(new, updated, inserted) | side(old, kept)
    return Pair(Embedding(span, 0), salt, ours, theirs)


def test_refinement_gives_up_nothing_that_was_read_falsely() -> None:
    """Of half a field of keys every stall reads some entry falsely, and hides others below it.

    Two thirds of these runs ended unsolved while what touches a stuck cell was not put back.
    """
    runs, unsolved, first, coarse = 40, 0, 8, 8
    for seed in range(runs):
        pair = scattered(seed, 20, SKETCH_KEYS_MAX)
        third = first * coarse
        grids = [Grid(third, coarse), Grid(third, coarse // 2), Grid(third, 1)]
        levels = list(refined(pair, third, grids))
        unsolved += not levels[-1].solved
        if levels[-1].solved:
            assert levels[-1].ks.tolist() == pair.changed()
    assert unsolved <= 2


@pytest.mark.slow
def test_one_damaged_cell_hides_only_what_touches_it() -> None:
    pair, third = scattered(1, 100_000, 1 << 24), 45_000
    ours, theirs = pair.cells(pair.ours, third), pair.cells(pair.theirs, third)
    check, ours.kr[7] = ours.check, (ours.kr[7] + 1) % PRIME
    decoder = Decoder(theirs, pair.embedding.span, pair.salt, check=check)
    decoder.take(Grid(third, 1), ours.children(None, Grid(third, 1), decoder.stuck))
    assert 1 <= np.count_nonzero(decoder.stuck) < 50
    changed = np.array(pair.changed(), np.uint64)
    left = np.setdiff1d(changed, decoder.ks)
    assert len(changed) - len(left) == len(decoder.ks)
    assert decoder.stuck[np.stack(places(left, third, pair.salt)[0])].all(axis=0).all()


@pytest.mark.slow
@pytest.mark.parametrize("key_bits", [22, 24, 31])
@pytest.mark.parametrize(
    ("changes", "cells_per_change", "runs", "stalls_max"),
    [
        # Of a hundred changes two share all three cells in 1 % of the runs, of a thousand in 0.5 %.
        (100, 2.28, 40, 1),
        (1_000, 1.40, 40, 1),
        (10_000, 1.28, 10, 0),
        (100_000, 1.26, 2, 0),
    ],
)
def test_cells_per_change(
    changes: int, cells_per_change: float, runs: int, stalls_max: int, key_bits: int
) -> None:
    finest = 4
    third = round(changes * cells_per_change / HASHES)
    stalls = 0
    for seed in range(runs):
        pair = scattered(seed, changes, 1 << key_bits)
        ks = pair.ours.keys() | pair.theirs.keys()
        changed = sorted(k for k in ks if pair.ours.get(k) != pair.theirs.get(k))
        assert len(changed) == changes
        grids = [Grid(finest * third, finest), Grid(finest * third, 1)]
        levels = refined(pair, finest * third, grids)
        decoder = next(levels)
        if not decoder.solved:
            stalls += 1
            # Little is stuck, and little follows.
            assert decoder.cells_expected(grids[1]) < 100
            decoder = next(levels)
        assert decoder.solved
        assert decoder.ks.tolist() == changed
    assert stalls <= stalls_max


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.4, 0.55, 0.65, 0.75, 0.85, 0.92])
def test_what_is_missing_is_enough(share: float) -> None:
    """A table that was too small tells how many changes there are, and is then refined in part."""
    changes, runs, unsolved = 10_000, 6, 0
    need = sketch_size.cells_for(changes)
    for seed in range(runs):
        pair = scattered(seed, changes, 1 << 24)
        third = 12 * round(share * need / HASHES)
        first = Grid(third, 12)
        ours, theirs = pair.cells(pair.ours, third), pair.cells(pair.theirs, third)
        decoder = Decoder(theirs, pair.embedding.span, pair.salt, check=ours.check)
        decoder.take(first, ours.folded(first))
        assert not decoder.solved
        assert np.count_nonzero(decoder.stuck) > sketch_size.SPARSE * len(first)
        assert decoder.differing is not None
        told = -len(theirs) * math.log1p(-decoder.differing / len(theirs)) / HASHES
        assert told == pytest.approx(changes, rel=0.1)
        grid = sketch_size.refined(first, need, len(first))
        assert len(grid) <= 1.06 * need
        decoder.take(grid, ours.children(first, grid, decoder.stuck))
        unsolved += not decoder.solved
        if decoder.solved:
            assert decoder.ks.tolist() == pair.changed()
    assert unsolved <= 1


@pytest.mark.slow
def test_what_shares_all_cells_takes_one_more_flight() -> None:
    """Of few changes, two are now and then in the same three cells: chance, whatever the size."""
    third, changes, stalls = 10_080, 60, 0
    first = sketch_size.fitting(third, sketch_size.cells_for(changes))
    for seed in range(300):
        pair = scattered(seed, changes, 1 << 16)
        ours, theirs = pair.cells(pair.ours, third), pair.cells(pair.theirs, third)
        decoder = Decoder(theirs, pair.embedding.span, pair.salt, check=ours.check)
        decoder.take(first, ours.folded(first))
        if not decoder.solved:
            stalls += 1
            stuck = int(np.count_nonzero(decoder.stuck))
            grid = sketch_size.refined(first, sketch_size.cells_for(changes), stuck)
            assert decoder.cells_expected(grid) <= 64
            decoder.take(grid, ours.children(first, grid, decoder.stuck))
        assert decoder.solved
        assert decoder.ks.tolist() == pair.changed()
    assert 0 < stalls < 12
