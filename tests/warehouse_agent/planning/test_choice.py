"""Decisions of a refresh: coarsening, full copies, partitions, the guard against shrinking."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from driftline import wire_pb2 as pb
from driftline.limits import CELLS_TAKEN_MAX, RANGES_MAX, ROW_HASHES_MAX, THIRD_CELLS_MAX
from driftline.reconciliation.ranges import Partition
from driftline.reconciliation.sketches import CELL_BYTES, Embedding, Grid, sampled
from driftline.rows.digests import Digest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.expectations import alike, nothing
from tests.samples.prices import flat
from warehouse_agent.methods.registry import offers
from warehouse_agent.planning import choice as plan
from warehouse_agent.planning import sketch_size
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import (
    Choice,
    Costs,
    Disagreement,
    Method,
    choose,
    floor_bytes,
    partition_for,
    rows_changed,
    shrank,
)
from warehouse_agent.planning.network import Line, Objective
from warehouse_agent.planning.prices import Prices
from warehouse_agent.planning.sketch_size import (
    CELLS_MIN,
    CellSample,
    Sketch,
    Stall,
    cells_for,
    embedding_for,
    open_sketch,
)

LINE = Line(rtt_s=0.1, bytes_per_s=1.25e6)


def chosen(
    *,
    ours: Digest,
    theirs: Digest,
    ranges: int,
    differing: int,
    prices: Prices,
    forced: Method | None = None,
    line: Line = LINE,
    integer_key: bool = True,
    stall: Stall | None = None,
    of_keys: bool = False,
) -> Choice:
    """Return the choice between all offers."""
    costs = Costs(prices, line, integer_key, forced)
    at = Disagreement(costs, ours, theirs, ranges, differing, stall, of_keys)
    return choose(at, offers(at))


def cost(n: int, ranges: int, differing: int, by: int) -> float:
    """Bytes of digests and row hashes at a coarsening, by the definition."""
    share = 1 - (1 - differing / ranges) ** (2**by)
    return 8 * math.ceil(ranges / 2**by) + 8 * n * share


@given(st.integers(1_000, 5_000_000), st.integers(2, RANGES_MAX), st.floats(0.00001, 0.05))
def test_range_coarsens_to_the_cheapest(n: int, ranges: int, share: float) -> None:
    differing = max(int(ranges * share), 1)
    total = Digest(n, 1)
    choice = chosen(
        ours=total,
        theirs=Digest(n, 2),
        ranges=ranges,
        differing=differing,
        prices=flat(1e9),
        forced=Method.RANGE,
    )
    assert choice.method is Method.RANGE
    found = cost(n, ranges, differing, choice.coarsen)
    assert found <= 1.001 * min(cost(n, ranges, differing, by) for by in range(19)) + 8


def test_everything_when_everything_changed() -> None:
    n = 1_000_000
    choice = chosen(
        ours=Digest(n, 1),
        theirs=Digest(n, 2),
        ranges=250_000,
        differing=250_000,
        prices=flat(24.0),
    )
    assert choice.method is Method.FULL
    assert choice.bytes_expected == 24 * n


def test_too_many_row_hashes_is_everything() -> None:
    n = 40 * ROW_HASHES_MAX
    choice = chosen(
        ours=Digest(n, 1),
        theirs=Digest(n, 2),
        ranges=RANGES_MAX,
        differing=RANGES_MAX // 2,
        prices=flat(1000.0),
        forced=Method.RANGE,
    )
    assert choice.method is Method.FULL


def test_forced_full() -> None:
    choice = chosen(
        ours=Digest(10, 1),
        theirs=Digest(10, 2),
        ranges=2,
        differing=1,
        prices=flat(1.0),
        forced=Method.FULL,
    )
    assert choice.method is Method.FULL


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=65), st.integers(0, 10**9))
def test_partitions_are_bounded(quantiles: list[int], rows: int) -> None:
    for integer_key in (True, False):
        partition = partition_for(sorted(quantiles), rows, integer_key=integer_key)
        assert 1 <= partition.ranges <= RANGES_MAX


@pytest.mark.parametrize(
    ("rows", "bounds", "is_outgrown"),
    [
        (1000, (0, 100), False),
        (1200, (0, 100), False),
        (1300, (0, 100), True),
        (700, (0, 100), True),
        (1000, (20, 120), False),
        (1000, (21, 121), True),  # a table of a year's rows slides along
        (1000, (-30, 90), True),
        (1000, None, False),
    ],
)
def test_quantiles_are_outgrown(
    rows: int, bounds: tuple[int, int] | None, is_outgrown: bool
) -> None:
    assert plan.outgrown([0, 50, 100], 1000, rows, bounds) is is_outgrown
    assert plan.outgrown([], 1000, rows, bounds)


def test_rows_changed_inverts_the_share_of_ranges() -> None:
    ranges, changed = 10_000, 3_000
    differing = round(ranges * (1 - math.exp(-changed / ranges)))
    assert rows_changed(differing, ranges) == pytest.approx(changed, rel=0.01)
    assert rows_changed(ranges, ranges) == rows_changed(ranges * 97 // 100, ranges)


@pytest.mark.parametrize(
    ("before", "after", "refused"), [(10, 5, False), (10, 4, True), (0, 0, False)]
)
def test_shrank(before: int, after: int, refused: bool) -> None:
    assert shrank(before, after) is refused


# Sketches

N = 750_000
BOUNDS = (1, 3_000_000)


def opened(expected: ChangeForecast | None, **facts: Any) -> Sketch:
    said: dict[str, Any] = {"rows": N, "bounds": BOUNDS, "prices": flat(24.0), "line": LINE}
    said |= facts
    return open_sketch(expected=expected, **said)


def test_keys_embed_as_they_are_where_they_fit() -> None:
    assert embedding_for(N, (5, 5)) == Embedding(1, 5)
    assert embedding_for(N, (-7, 2**31 - 8)) == Embedding(2**31, -7)
    wide = embedding_for(N, (-7, 2**31 - 7))
    assert wide.base is None
    assert N / wide.span <= sketch_size.ROWS_PER_BUCKET
    assert embedding_for(1, None) == Embedding(256)
    assert embedding_for(10**12, None) == Embedding(2**31)


def test_nothing_goes_up_before_anything_is_known() -> None:
    sketch = opened(None)
    assert sketch.fold == sketch.bytes_sent == 0
    assert sketch.cells >= N
    assert opened(None, rows=1).cells >= cells_for(1)
    assert opened(None, rows=10**9).third == THIRD_CELLS_MAX


@pytest.mark.parametrize(
    ("rows", "cells"), [(1, 0), (5, 0), (360, 0), (361, 24), (2_520, 24), (10_080, 24)]
)
def test_a_small_table_sends_no_strata_before_anything_is_known(rows: int, cells: int) -> None:
    brief = Line(is_brief=True)
    sketch = opened(None, rows=rows, line=brief)
    assert (sketch.bytes_sent, sketch.stalls) == (cells * CELL_BYTES, False)
    assert opened(None, rows=rows).stalls, "an older source awaits strata"
    assert opened(None, rows=10_081, line=brief).stalls
    if sketch.sent is not None:
        for changed in (1, 10, 100, 1_000):
            grid = sketch_size.refined(sketch.sent, cells_for(changed), len(sketch.sent))
            assert len(grid) <= 1.6 * cells_for(changed) + 2 * CELLS_MIN


def test_few_rows_have_few_quantiles() -> None:
    rng = random.Random(1)
    for rows in (100, 1_000, 3_000):
        keys = sorted(rng.sample(range(600_000), rows))
        knots = [keys[round(i * (rows - 1) / plan.QUANTILES)] for i in range(65)]
        partition = partition_for(knots, rows, integer_key=True)
        assert len(partition.starts) <= 12
        assert partition.starts[1] == keys[0]
        assert partition.starts[-1] == keys[-1] + 1
        found = np.bincount(partition.indices(np.array(keys, np.int64)))
        assert found.max() <= 40


def test_a_steady_table_sends_what_decodes() -> None:
    expected = alike(7_500)
    sketch = opened(expected)
    cells = sketch.cells // sketch.fold
    assert cells_for(7_500) <= cells <= 1.25 * cells_for(7_500)
    # Twelve times as many changes are still read from the same scan.
    assert sketch.cells >= 12 * cells


def test_a_quiet_table_sends_nothing_or_little() -> None:
    assert opened(nothing()).bytes_sent <= 4096
    assert opened(nothing(), line=Line(objective=Objective.BYTES)).fold == 0


def test_a_first_flight_never_costs_more_than_its_worth() -> None:
    for changed in (10, 1_000, 100_000, 700_000):
        for rows in (100, 10_000, N):
            for row_bytes in (2.0, 24.0, 500.0):
                sent = opened(alike(changed), rows=rows, prices=flat(row_bytes)).bytes_sent
                assert sent <= sketch_size.WORTH * rows * row_bytes + sketch_size.WORTH_BYTES + 24


@given(
    st.integers(1, 10**10),
    st.lists(st.integers(0, 10**8), max_size=5),
    st.floats(0.1, 1e6),
    st.sampled_from(list(Objective)),
    st.none() | st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40)),
)
def test_any_sketch_is_one_that_a_source_accepts(
    rows: int,
    found: list[int],
    row_bytes: float,
    objective: Objective,
    bounds: tuple[int, int] | None,
) -> None:
    ends = None if bounds is None else (bounds[0], min(bounds[0] + bounds[1], 2**63 - 1))
    expected = alike(*found) if found else None
    line = Line(objective=objective)
    sketch = opened(expected, rows=rows, prices=flat(row_bytes), bounds=ends, line=line)
    assert 1 <= sketch.third <= THIRD_CELLS_MAX
    assert not sketch.fold or sketch.third % sketch.fold == 0


def decided(differing: int, **facts: Any) -> Choice:
    said: dict[str, Any] = {
        "ours": Digest(N, 1),
        "theirs": Digest(N, 2),
        "ranges": N // 4,
        "prices": flat(24.0),
    }
    return chosen(differing=differing, **(said | facts))


def touched(sketch: Sketch, changed: int) -> int:
    """Cells of the finest table that so many changes fall into."""
    return round(sketch.cells * (1 - math.exp(-3 * changed / sketch.cells)))


@pytest.mark.parametrize("changed", [1, 100, 7_500, 75_000])
def test_a_first_verdict_is_answered_with_enough_cells(changed: int) -> None:
    stall = Stall(opened(None))
    choice = decided(touched(stall.sketch, changed), stall=stall)
    assert choice.method is Method.SKETCH
    assert choice.grid is not None
    cells = len(choice.grid)
    assert cells_for(changed) < cells < 2 * cells_for(1.3 * changed) + 60
    assert choice.bytes_expected < 24 * N / 4 + 8 * cells


@pytest.mark.parametrize("changed", [500_000, 750_000])
def test_most_rows_changed_is_everything(changed: int) -> None:
    stall = Stall(opened(None))
    assert decided(touched(stall.sketch, changed), stall=stall).method is Method.FULL


def sample_of(sketch: Sketch, changed: int, off: float = 0.0) -> CellSample | None:
    """What a verdict samples of so many changes, off by so many standard deviations."""
    differing = touched(sketch, changed)
    count, share = sampled(differing, sketch.cells), differing / sketch.cells
    found = count * share * 255 / 256 + off * math.sqrt(count * share * (1 - share))
    return CellSample(count, min(round(found), count)) if count else None


@pytest.mark.parametrize("noise", [0.88, 1.0, 1.12])
@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("usual", [0, 100, 3_000, 30_000])
@pytest.mark.parametrize("price", [10.0, 24.0, 200.0])
@pytest.mark.parametrize("rows", [20_000, 300_000, 1_000_000, 4_000_000])
def test_an_unforeseen_bulk_change_costs_no_more_than_a_copy(
    rows: int, price: float, usual: int, is_sampled: bool, noise: float
) -> None:
    """Whatever the strata tell, off by a standard deviation, of changes that nobody expected."""
    sketch = opened(alike(usual), rows=rows, prices=flat(price))
    ranges = min(rows // 4, RANGES_MAX)
    most = 1.05 * rows * price + 16_384
    for percent in (1, 3, 7, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100):
        d = rows * percent // 100
        if cells_for(d) <= len(sketch.sent or ()):
            continue  # what was sent tells it all
        share = math.exp(-3 * d / sketch.cells)
        sample = sample_of(sketch, d, (noise - 1) / 0.12) if is_sampled else None
        before = sketch.bytes_sent + (sample.cells if sample else 0)
        choice = decided(
            min(round(noise * sketch.cells * (1 - share)), sketch.cells),
            ours=Digest(rows, 1),
            theirs=Digest(rows, 2),
            ranges=ranges,
            prices=flat(price),
            stall=Stall(sketch, sketch.sent, len(sketch.sent or ()), sample),
        )
        if choice.method is Method.FULL:
            found = rows * price
        elif choice.method is Method.RANGE:
            found = cost(rows, ranges, round(ranges * -math.expm1(-d / ranges)), choice.coarsen)
            found += d * price
        else:
            assert choice.grid is not None
            found = 8 * max(len(choice.grid), 1.04 * cells_for(d)) + d * price
            if sample:  # as it is: what was sent tells the last child of each cell
                found -= sketch.bytes_sent
            assert cells_for(d) <= sketch.cells
        assert before + found <= most, (percent, choice, sketch)
        if percent <= (20 if rows <= 1_000_000 else 7):
            assert choice.method is not Method.FULL, (percent, sketch)


def test_half_of_a_table_is_a_sketch_where_a_sample_tells_how_many() -> None:
    for sketch in (opened(None), opened(alike(100))):
        stall = Stall(sketch, sketch.sent, len(sketch.sent or ()))
        half = N // 2
        seeming = round(1.12 * touched(sketch, half))  # as the strata may have it
        assert decided(seeming, stall=stall).method is Method.FULL
        for off in (-1.0, 0.0, 1.0):
            known = replace(stall, sample=sample_of(sketch, half, off))
            choice = decided(seeming, stall=known)
            assert choice.grid is not None
            assert cells_for(half) <= len(choice.grid) <= 1.15 * cells_for(half)
        # Nothing is known of all rows but that they are many.
        known = replace(stall, sample=CellSample(8192, 8192))
        assert decided(sketch.cells, stall=known).method is Method.FULL


def test_after_a_stall_nothing_cheaper_than_a_copy_is_given_up() -> None:
    """What was sent is spent, whatever follows: 192,000 cells came, and 10 % more would do."""
    sketch = opened(None, rows=300_000, prices=flat(10.0))
    grid, d = sketch_size.fitting(sketch.third, 192_000), 150_000
    facts: dict[str, Any] = {"ours": Digest(300_000, 1), "theirs": Digest(300_000, 2)}
    stall = Stall(sketch, grid, len(grid))
    choice = decided(touched(sketch, d), prices=flat(10.0), stall=stall, **facts)
    assert choice.method is Method.SKETCH
    assert choice.bytes_expected < 3_000_000


@pytest.mark.parametrize("is_hashed", [False, True])
def test_what_is_gone_and_what_is_new_count_once(is_hashed: bool) -> None:
    """A third more rows, or a third of the rows gone: no copy takes as little as a sketch."""
    bounds = None if is_hashed else BOUNDS
    stall = Stall(opened(None, bounds=bounds))
    many = Digest(N + N // 3, 2)
    if is_hashed:  # else they may lie outside, where nothing tells of them
        found = decided(touched(stall.sketch, N // 3), theirs=many, stall=stall)
        assert found.method is Method.SKETCH
    few = Digest(N - N // 3, 2)
    found = decided(touched(stall.sketch, N // 3), theirs=few, stall=stall)
    assert found.method is not Method.FULL
    assert found.bytes_expected < few.count * 24 / 2


def test_a_table_that_nearly_vanished_is_not_listed_by_the_driver() -> None:
    """By ranges all of ours would be, however few the source has."""
    n = 25 * ROW_HASHES_MAX
    facts: dict[str, Any] = {"ours": Digest(n, 1), "theirs": Digest(n // 100, 2)}
    assert decided(RANGES_MAX, ranges=RANGES_MAX, **facts).method is Method.FULL


def test_a_nearly_read_sketch_gets_the_next_finer_cells() -> None:
    sketch = Sketch(embedding_for(N, BOUNDS), 16 * 4000, 16)
    sent = sketch.sent
    choice = decided(touched(sketch, 9_000), stall=Stall(sketch, sent, 300))
    assert (choice.method, choice.grid) == (Method.SKETCH, Grid(64_000, 8))
    assert choice.bytes_expected == pytest.approx(8 * 300 + 9_000 * 24, rel=0.05)


@pytest.mark.parametrize("changed", [10_000, 12_000, 17_000, 20_000, 30_000, 60_000])
def test_a_sketch_that_is_too_small_gets_what_is_missing(changed: int) -> None:
    """However much that is: not twice as many because a fold has divisors."""
    sketch = Sketch(embedding_for(N, BOUNDS), 16 * 4000, 16)
    choice = decided(touched(sketch, changed), stall=Stall(sketch, sketch.sent, 12_000))
    assert choice.method is Method.SKETCH
    assert choice.grid is not None
    need = cells_for(changed)
    error = sketch_size.ESTIMATE_ERROR if changed > 20_000 else 1.06
    assert max(need, 13_200) <= len(choice.grid) <= max(error * 1.06 * need, 13_201)
    # Stuck again: some more.
    again = decided(touched(sketch, changed), stall=Stall(sketch, choice.grid, len(choice.grid)))
    assert again.grid is not None
    assert 1.1 * len(choice.grid) <= len(again.grid) <= 1.2 * len(choice.grid)
    choice.grid.zones(again.grid)


def test_a_sketch_that_cannot_be_refined_gives_way() -> None:
    sketch = Sketch(embedding_for(N, BOUNDS), 100, 1)
    assert decided(200, stall=Stall(sketch, Grid(100, 1), 50)).method is not Method.SKETCH
    forced = decided(200, stall=Stall(sketch, Grid(100, 1), 50), forced=Method.SKETCH)
    assert forced.method is not Method.SKETCH


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_scan_is_weighed_against_bytes(is_slow: bool) -> None:
    """Hashed keys are found again by a scan, ranges of integers by their index in more bytes and a
    further round trip."""
    stall = Stall(opened(None, bounds=None))
    line = replace(LINE, rows_per_s=1e4 if is_slow else 1e7)
    said: dict[str, Any] = {"differing": touched(stall.sketch, 2_000), "stall": stall}
    found = decided(line=line, **said)
    assert found.method is (Method.RANGE if is_slow else Method.SKETCH)
    assert (found.rows_read < N / 4) == is_slow
    metered = decided(line=replace(line, objective=Objective.BYTES), **said)
    assert metered.method is Method.SKETCH
    assert decided(line=line, **said | {"integer_key": False}).method is Method.SKETCH


@pytest.mark.parametrize("rows", [400, N])
@pytest.mark.parametrize("changed", [1, 10, 100])
def test_a_sketch_of_keys_goes_on(rows: int, changed: int) -> None:
    """The keys do not tell how many rows a comparison of all rows would find."""
    sketch = opened(None, bounds=None, rows=rows)
    said: dict[str, Any] = {"stall": Stall(sketch), "ours": Digest(rows, 1)}
    said |= {"theirs": Digest(rows, 2), "ranges": rows // 4}
    said |= {"line": replace(LINE, rtt_s=0.0, rows_per_s=1e4), "of_keys": True}
    assert decided(touched(sketch, changed), **said).method is Method.SKETCH


def test_a_sketch_of_keys_gives_way_to_a_copy() -> None:
    stall = Stall(opened(None))
    found = decided(touched(stall.sketch, 750_000), stall=stall, of_keys=True)
    assert found.method is Method.FULL
    stuck = Sketch(embedding_for(N, BOUNDS), 100, 1)
    found = decided(200, stall=Stall(stuck, Grid(100, 1), 50), of_keys=True)
    assert found.method is not Method.SKETCH


def test_waiting_is_free_where_only_bytes_count() -> None:
    metered = Line(objective=Objective.BYTES)
    assert metered.round_trip_bytes == 0
    assert metered.level(1) > LINE.level(1) > LINE.level(0) == metered.level(0)
    assert decided(40, ranges=64, ours=Digest(256, 1), theirs=Digest(256, 2)).method is Method.FULL


def test_the_floor() -> None:
    assert floor_bytes(N, 0, 24.0) == 0
    assert floor_bytes(4, 2, 0.0) == round(math.log2(6) / 8)
    assert floor_bytes(N, 7_500, 24.0) == pytest.approx(7_500 * 25, rel=0.01)
    assert floor_bytes(3, 9, 1.0) >= 9


@given(
    st.sampled_from([1, 2, 4, 12, 60, 360, 2520]),
    st.integers(1, 40),
    st.integers(0, 400_000),
    st.booleans(),
    st.integers(0, 400_000),
)
def test_what_follows_refines_what_was_sent(
    fold: int, third: int, need: int, is_stuck: bool, need_again: int
) -> None:
    grid, steps = Grid(fold * third, fold), 0
    while len(grid) < 3 * fold * third:
        finer = sketch_size.refined(grid, need, len(grid) if is_stuck else len(grid) // 4)
        assert grid.zones(finer)
        if not grid.cut and is_stuck:
            assert len(finer) >= min(need, 3 * fold * third)
        grid, need, steps = finer, need_again, steps + 1
    assert steps <= 25


@pytest.mark.parametrize(
    ("stuck", "fold", "fold_if_cut"),
    [(1, 21, 12), (3, 21, 12), (9, 21, 12), (20, 42, 21), (40, 84, 42), (400, 84, 84)],
)
def test_few_stuck_cells_are_cut_finely(stuck: int, fold: int, fold_if_cut: int) -> None:
    """Two entries in the same three cells would else be together again, once in eight times, and
    always where these cells are as fine as the next ones."""
    assert sketch_size.refined(Grid(168 * 600, 168), 10_000, stuck) == Grid(168 * 600, fold)
    cut = Grid(168 * 600, 168, 1000, 84)
    assert sketch_size.refined(cut, 10_000, stuck) == Grid(168 * 600, fold_if_cut)


@given(st.sampled_from(sketch_size.THIRDS) | st.integers(1, 5000), st.integers(0, 2_000_000))
def test_a_table_of_nearly_any_size(third: int, need: int) -> None:
    grid = sketch_size.fitting(third, need)
    assert len(grid) >= min(need, 3 * third)
    if third in sketch_size.THIRDS and 3 <= need <= 3 * third:
        assert len(grid) <= 1.04 * need + 3


def decodes(load: float, refined: float, parts: int = 2) -> bool:
    """Whether a large table does, whose thirds have 1 / `load` cells for each change, after
    `refined` of its three thirds, in order, were cut in `parts`.

    By density evolution (Luby, Mitzenmacher, Shokrollahi and Spielman 2001):
    q is the chance that an entry cannot be read from its cell in a third: that another one is in
    it, which cannot be read from its other cells either.
    """
    q = [1.0] * 3
    for _ in range(4000):
        others = (q[1] * q[2], q[0] * q[2], q[0] * q[1])
        shares = [min(max(refined - third, 0.0), 1.0) for third in range(3)]
        q = [
            1 - share * math.exp(-load * other / parts) - (1 - share) * math.exp(-load * other)
            for share, other in zip(shares, others, strict=True)
        ]
        if max(q) < 1e-6:
            return True
    return False


@pytest.mark.parametrize(("parts", "more"), [(2, 1.044), (3, 1.12), (5, 1.286), (7, 1.477)])
@pytest.mark.parametrize("step", range(1, 10))
def test_a_table_refined_in_part_is_nearly_as_good(parts: int, more: float, step: int) -> None:
    """Some of the cells that suffice were sent: so many times as many in all do."""
    share = (more + (parts - more) * step / 10) / parts
    least = 1.2219 / 3  # cells of a third for each change, where all are alike
    assert decodes(1 / (1.001 * least), 0.0)
    assert not decodes(1 / (0.999 * least), 0.0)
    cut = 3 / (parts - 1)  # of a table's three thirds, for as many cells again
    assert decodes(1 / (share * least), cut * (more / share - 1), parts)
    assert not decodes(1 / (share * least), cut * (0.99 / share - 1), parts)
    # What is sent has that, beside the spare cells of `cells_for`.
    assert sketch_size.PARTLY[parts] * 1.24 >= more * 1.2219


@pytest.mark.parametrize("fold", [3, 6, 48, 1536, 5, 7, 14])
def test_a_stall_is_answered_with_what_is_missing_whatever_the_fold(fold: int) -> None:
    spare = max(more for parts, more in sketch_size.PARTLY.items() if fold % parts == 0)
    grid = Grid(fold * 4000, fold)
    while len(grid) < 3 * fold * 4000 / 2:
        parts = grid.fold // grid.finer if grid.cut else 2
        need = math.ceil(max(1.2, 1.1 * parts / 2) * len(grid))
        finer = sketch_size.refined(grid, need, len(grid))
        assert min(need, 3 * fold * 4000) <= len(finer) <= 1.01 * spare * need
        grid = finer


@pytest.mark.parametrize("fold", sketch_size.FOLDS)
@pytest.mark.parametrize("third", [1, 7, 20])
def test_no_honest_sketch_is_refined_too_often(fold: int, third: int) -> None:
    """Even if every estimate is too low."""
    grid, steps = Grid(fold * third, fold), 1
    while len(grid) < 3 * fold * third:
        grid, steps = sketch_size.refined(grid, 0, len(grid)), steps + 1
    assert steps <= CELLS_TAKEN_MAX


def test_behind_too_few_cells_is_the_largest_table() -> None:
    """Half of three million rows: 4 % of a copy are too few cells, and 1.9 million are needed."""
    sketch = opened(alike(1_500_000), rows=3_000_000, prices=flat(35.0), bounds=None)
    assert sketch.third == THIRD_CELLS_MAX
    assert 0 < 8 * len(sketch.sent or ()) < sketch_size.WORTH * 3_000_000 * 35
    assert cells_for(1.1 * 1_500_000) < sketch.cells


def test_the_method_that_is_asked_for_is_taken_however_dear() -> None:
    case: dict[str, Any] = {
        "ours": Digest(1_000_000, 1),
        "theirs": Digest(1_000_000, 2),
        "ranges": 250_000,
        "prices": flat(24.0),
    }
    assert chosen(**case, differing=3).method is Method.RANGE
    assert chosen(**case, differing=3, forced=Method.FULL).method is Method.FULL
    assert chosen(**case, differing=250_000).method is Method.FULL
    assert chosen(**case, differing=250_000, forced=Method.RANGE).method is Method.RANGE


def test_hashed_keys_are_partitioned_evenly_whatever_their_quantiles() -> None:
    """Quantiles of a version whose key was an integer say nothing of hashes."""
    quantiles = list(range(1000, 2000))
    made = partition_for(quantiles, 40_000, integer_key=False)
    assert made == partition_for([], 40_000, integer_key=False)
    steps = {b - a for a, b in pairwise(made.starts)}
    assert len(made.starts) == 1 or len(steps) == 1
    assert made != partition_for(quantiles, 40_000, integer_key=True)


@pytest.mark.parametrize("quantiles", [[0, 63, 64], [-(2**40), 0, 2**40], list(range(0, 9000, 7))])
def test_an_opening_takes_what_its_message_takes(quantiles: list[int]) -> None:
    """Beside its strata and what is the same in every opening."""

    def serialised(partition: Partition) -> int:
        starts = partition.starts
        steps = [(b - a + 2**63) % 2**64 - 2**63 for a, b in pairwise((0, *starts))]
        shifts = bytes(partition.shifts)
        return len(pb.Open(start_steps=steps, shifts=shifts).SerializeToString())

    made = partition_for(quantiles, 40_000, integer_key=True)
    grown = plan.opening_bytes(made, 2) - plan.opening_bytes(plan.everything(), 2)
    assert abs(grown - (serialised(made) - serialised(plan.everything()))) <= 2  # their lengths
