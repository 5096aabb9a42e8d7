"""What a row costs: one of many, one of few, one of a copy."""

from __future__ import annotations

import pytest

from warehouse_agent.prices import FRAME_BYTES, Prices, flat, known, learnt

Notes = dict[str, object]


def told(
    notes: Notes, *, frame_bytes: int, shipped: int, changed: int = 0, copy: bool = False
) -> Notes:
    return notes | learnt(
        notes, frame_bytes=frame_bytes, shipped=shipped, changed=changed, is_copy=copy
    )


def test_few_rows_cost_more_each() -> None:
    found = Prices(20.0, 45.0, 18.0)
    assert found.changes(0) == 0
    assert found.changes(10) == 450
    assert found.changes(1064) == 64 * 45 + 1000 * 20
    assert found.copy(1000) == 18_000


def test_before_anything_was_shipped() -> None:
    assert known({}, 9) == known({"row_bytes": "?", "few_rows": None}, 9) == flat(72.0)


def test_a_load_is_the_price_of_everything_until_there_is_another() -> None:
    notes = told({}, frame_bytes=17_000, shipped=1000, changed=1000, copy=True)
    assert known(notes, 9) == flat(17.0)
    notes = told(notes, frame_bytes=2_400, shipped=100, changed=105)
    assert known(notes, 9) == Prices(24.0, 24.0, 17.0)


def test_one_of_few_costs_what_it_did_in_the_mean() -> None:
    notes: Notes = {"row_bytes": 20.0}
    assert told(notes, frame_bytes=0, shipped=0) == notes
    for _ in range(60):
        notes = told(notes, frame_bytes=FRAME_BYTES + 40 * 10, shipped=10, changed=10)
        notes = told(notes, frame_bytes=FRAME_BYTES + 40, shipped=1, changed=1)
    assert known(notes, 9).few == pytest.approx(40.0)
    assert known(notes, 9).row == 20.0
    for _ in range(60):
        notes = told(notes, frame_bytes=60, shipped=0, changed=1)  # nothing but a deletion
    assert known(notes, 9).few < 1


@pytest.mark.parametrize("shipped", [0, 1, 64, 65, 4999])
@pytest.mark.parametrize("copy", [False, True])
def test_rows_that_are_gone_make_no_row_cheap(shipped: int, copy: bool) -> None:
    """A purge ships next to nothing, and a full copy after it is as dear as before."""
    notes: Notes = {"row_bytes": 20.0, "copied_row_bytes": 20.0}
    size = FRAME_BYTES + 20 * shipped
    found = known(told(notes, frame_bytes=size, shipped=shipped, changed=10_000, copy=copy), 9)
    assert found.copied == pytest.approx(20.0, rel=0.1)
    assert found.row == pytest.approx(20.0, rel=0.1)
