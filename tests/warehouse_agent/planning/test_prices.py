"""What a row costs: one of many, one of few, one of a copy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driftline.rows.digests import Digest

from tests.harness.expectations import alike
from tests.samples.prices import flat
from warehouse_agent.methods.registry import offers
from warehouse_agent.planning.choice import Costs, Disagreement, Method, choose
from warehouse_agent.planning.network import LOAD_LEVEL, METERED_LEVEL, REFRESH_LEVEL, Line
from warehouse_agent.planning.prices import (
    FRAME_BYTES,
    LEVELS,
    MANY,
    LearntPrices,
    Prices,
    from_notes,
    new_notes,
)
from warehouse_agent.planning.sketch_size import Stall, cells_for, open_sketch


def known(learnt: LearntPrices, columns: int = 9, level: int = LOAD_LEVEL) -> Prices:
    return from_notes(learnt, columns, level=level)


def told(
    learnt: LearntPrices,
    *,
    frame_bytes: int,
    shipped: int,
    changed: int = 0,
    copy: bool = False,
    level: int = LOAD_LEVEL,
) -> LearntPrices:
    return new_notes(
        learnt,
        frame_bytes=frame_bytes,
        shipped=shipped,
        changed=changed,
        is_copy=copy,
        level=level,
    )


def test_few_rows_cost_more_each() -> None:
    found = Prices(20.0, 45.0, 18.0)
    assert found.changes(0) == 0
    assert found.changes(10) == 450
    assert found.changes(1064) == 64 * 45 + 1000 * 20
    assert found.copy(1000) == 18_000


def test_before_anything_was_shipped() -> None:
    guess = replace(flat(72.0), guessed=True)
    assert known(LearntPrices(), 9) == guess
    assert known(LearntPrices(few_bytes=300.0, few_rows=6.0), 9) == flat(50.0), (
        "what one price tells"
    )


def test_a_load_is_the_price_of_everything_until_there_is_another() -> None:
    learnt = told(LearntPrices(), frame_bytes=17_000, shipped=1000, changed=1000, copy=True)
    assert known(learnt) == Prices(17.0, 17.0, 17.0, 1000)
    learnt = told(learnt, frame_bytes=2_400, shipped=100, changed=105)
    assert known(learnt) == Prices(24.0, 24.0, 17.0, 1000)


def test_one_of_few_costs_what_it_did_in_the_mean() -> None:
    learnt = LearntPrices(row_bytes=20.0)
    assert told(learnt, frame_bytes=0, shipped=0) == learnt
    for _ in range(60):
        learnt = told(learnt, frame_bytes=FRAME_BYTES + 40 * 10, shipped=10, changed=10)
        learnt = told(learnt, frame_bytes=FRAME_BYTES + 40, shipped=1, changed=1)
    assert known(learnt, 9).few == pytest.approx(40.0)
    assert known(learnt, 9).row == 20.0
    for _ in range(60):
        learnt = told(learnt, frame_bytes=60, shipped=0, changed=1)  # nothing but a deletion
    assert known(learnt, 9).few < 1


@pytest.mark.parametrize("shipped", [0, 1, 64, 65, 4999])
@pytest.mark.parametrize("copy", [False, True])
def test_rows_that_are_gone_make_no_row_cheap(shipped: int, copy: bool) -> None:
    """A purge ships next to nothing, and a full copy after it is as dear as before."""
    learnt = LearntPrices(row_bytes=20.0, copied_row_bytes=20.0)
    size = FRAME_BYTES + 20 * shipped
    found = known(told(learnt, frame_bytes=size, shipped=shipped, changed=10_000, copy=copy), 9)
    assert found.copied == pytest.approx(20.0, rel=0.1)
    assert found.row == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("level", [REFRESH_LEVEL, METERED_LEVEL])
def test_a_load_is_of_a_coarser_level_than_a_refresh(level: int) -> None:
    """Priced too low rather than too high: a copy that seems dear is never made, nor learnt of."""
    learnt = told(LearntPrices(), frame_bytes=2_000_000, shipped=100_000, copy=True)
    found = known(learnt, level=level)
    assert found.copied == LEVELS[level] * 20 < 20
    assert found.row == 20.0, "changed rows have fewer around them to be compressed against"
    learnt = told(learnt, frame_bytes=1_900_000, shipped=100_000, copy=True, level=level)
    assert known(learnt, level=level).copied == 19.0
    for other in (None, 4, 40):  # of a file that lost it, or of another release
        assert known(replace(learnt, copied_level=other), level=level).copied <= 19.0


def test_a_copy_draws_the_price_of_a_changed_row_half_way() -> None:
    """In proportion: what it costs is between what rows took before and what the copy's took."""
    learnt = told(LearntPrices(), frame_bytes=40 * 1000, shipped=1000, changed=1000)
    assert known(learnt).row == 40.0
    learnt = told(learnt, frame_bytes=10 * 1000, shipped=1000, copy=True)
    assert known(learnt).row == pytest.approx(20.0)


def test_a_copy_of_few_rows_tells_little_of_one_of_many() -> None:
    learnt = told(LearntPrices(), frame_bytes=100 * 35, shipped=100, copy=True)
    assert known(learnt).copy(100) == pytest.approx(100 * 35)
    assert 20 < known(learnt).copy(1_000_000) / 1_000_000 < 24
    assert known(learnt).copy(10**6) / 10**6 == known(learnt).copy(MANY) / MANY
    # As many rows that changed tell more.
    for count, price in ((90, 35.0), (100, 26.0), (5_000, 26.0)):
        then = told(learnt, frame_bytes=26 * count, shipped=count, changed=count)
        assert known(then).copied == price
    # Fewer, and rows that are dearer, do not.
    then = told(learnt, frame_bytes=99 * 5_000, shipped=5_000, changed=5_000)
    assert known(then).copied == 35


def test_rows_at_worst_cost_what_any_row_does() -> None:
    found = Prices(row=1.0, few=1.0, copied=12.0)
    assert found.changes(1000) == 1000
    assert found.changes_at_worst(1000) == 12_000
    assert flat(3.0).changes_at_worst(1000) == 3000


ROWS, TRUE = 1_000_000, 32.0


def refreshed(learnt: LearntPrices, changed: int) -> tuple[LearntPrices, Method, float]:
    """One refresh of a table whose rows cost the same under any level, and its frames' bytes."""
    line = Line()
    costs = known(learnt, level=line.level(ROWS))
    sketch = open_sketch(
        rows=ROWS, bounds=(1, ROWS), expected=alike(changed), prices=costs, line=line
    )
    sent, method = len(sketch.sent or ()), Method.SKETCH
    if cells_for(changed) > sent:
        share = 1 - (1 - 1 / sketch.cells) ** (3 * changed)
        at = Disagreement(
            Costs(costs, line, integer_key=True),
            Digest(ROWS, 1),
            Digest(ROWS, 2),
            ranges=ROWS // 4,
            differing=round(share * sketch.cells),
            stall=Stall(sketch, sketch.sent, sent),
        )
        method = choose(at, offers(at)).method
    is_copy = method is Method.FULL
    shipped = ROWS if is_copy else changed
    size = round(TRUE * shipped)
    level = line.level(ROWS)
    learnt = told(
        learnt, frame_bytes=size, shipped=shipped, changed=changed, copy=is_copy, level=level
    )
    return learnt, method, size


@pytest.mark.parametrize("wrong", [0.3, 3.0, 300.0, 3_000.0, 30_000.0])
@pytest.mark.parametrize("changed", [20_000, 200_000])
def test_a_price_that_was_learnt_of_odd_rows_is_forgotten(wrong: float, changed: int) -> None:
    """Seventy rows once; then ordinary ones every night, which no price may turn into copies."""
    learnt = told(LearntPrices(), frame_bytes=round(TRUE * ROWS), shipped=ROWS, copy=True)
    learnt = told(
        learnt, frame_bytes=round(wrong * 70), shipped=70, changed=70, level=REFRESH_LEVEL
    )
    methods = []
    for _ in range(6):
        learnt, method, _ = refreshed(learnt, changed)
        methods.append(method)
    assert methods.count(Method.FULL) <= 4, methods
    assert methods[-2:] == [Method.SKETCH] * 2
    assert known(learnt).row == pytest.approx(TRUE, rel=0.01)


@pytest.mark.parametrize("changed", [100, 1_000, 8_000])
def test_a_price_that_was_learnt_of_a_few_odd_rows_is_forgotten(changed: int) -> None:
    """Five of 1 MB once, after which nothing but many rows comes."""
    learnt = told(LearntPrices(), frame_bytes=round(TRUE * ROWS), shipped=ROWS, copy=True)
    learnt = told(learnt, frame_bytes=round(TRUE * 2000), shipped=2000, level=REFRESH_LEVEL)
    learnt = told(learnt, frame_bytes=5_000_000, shipped=5, changed=5, level=REFRESH_LEVEL)
    methods = []
    for _ in range(6):
        learnt, method, _ = refreshed(learnt, changed)
        methods.append(method)
    assert methods[-2:] == [Method.SKETCH] * 2, methods


@pytest.mark.parametrize("wrong", [0.3, 3.0, 300.0, 3_000.0])
def test_a_copy_that_was_learnt_of_odd_rows_is_forgotten(wrong: float) -> None:
    """The table was loaded when it was short, or before its widest column was filled or emptied."""
    learnt = told(LearntPrices(), frame_bytes=round(wrong * 100), shipped=100, copy=True)
    for _ in range(6):
        learnt, method, _ = refreshed(learnt, ROWS)
    assert method is Method.FULL
    assert known(learnt, level=REFRESH_LEVEL).copied == pytest.approx(TRUE, rel=0.01)
    for _ in range(3):
        learnt, method, _ = refreshed(learnt, 20_000)
    assert method is Method.SKETCH
