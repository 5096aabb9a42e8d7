"""Where a version changed, from the images that tasks keep, against all pairs of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.tasks import changed_places
from warehouse_agent.tasks.changed_places import PARTS, ChangedPlaces, ChangeSampler, merged

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), ("price", pa.float64())])
Row = tuple[str | None, float | None]
Rows = Mapping[int, tuple[Row, Row]]
PRICES = (None, 0.0, -0.0, float("nan"), 1.5)
VALUES = st.tuples(st.sampled_from([None, "", "a", "ä" * 40]), st.sampled_from(PRICES))
UPDATES = st.dictionaries(st.integers(-(2**40), 2**40), st.tuples(VALUES, VALUES), max_size=40)


def batch(rows: Mapping[int, Row]) -> pa.RecordBatch:
    listed = [{"id": key, "note": note, "price": price} for key, (note, price) in rows.items()]
    return pa.RecordBatch.from_pylist(listed, SCHEMA)


def sampled(
    updates: Rows, tasks: int, bounds: tuple[int, int] | None, measured: str | None = None
) -> ChangedPlaces:
    """Let each task see some rows of each side, in another order."""
    samplers = [ChangeSampler(bounds) for _ in range(tasks)]
    for number, side in enumerate(("before", "after")):
        for at, sampler in enumerate(samplers):
            mine = [k for i, k in enumerate(updates) if (i + number) % tasks == at]
            mine = mine[::-1] if number else mine
            rows = batch({key: updates[key][number] for key in mine})
            positions = np.array(mine, np.int64)
            sampler.pair(side, rows, positions, np.ones(len(mine), np.bool_))
            if number:
                sampler.count(positions)
    return merged((one.finish() for one in samplers), measured)


def differs(before: object, after: object) -> bool:
    return repr(before) != repr(after)  # -0.0 is not 0.0, and NaN is NaN


@given(UPDATES, st.integers(1, 4))
def test_few_updates_are_all_compared(updates: Rows, tasks: int) -> None:
    places = sampled(updates, tasks, (-(2**40), 2**40))
    columns = {
        name: sum(differs(a[i], b[i]) for a, b in updates.values())
        for i, name in enumerate(("note", "price"))
    }
    assert places.compared == len(updates)
    assert places.columns == {name: number for name, number in columns.items() if number}
    assert sum(places.parts or ()) == len(updates)
    assert sampled(updates, tasks, None).parts is None


@given(UPDATES, st.integers(1, 4), st.integers(1, 9), st.sampled_from([1, 400, 1 << 20]))
def test_a_sample_is_the_same_rows_of_both_sides(
    updates: Rows, tasks: int, rows: int, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed_places, "PAIRS_MAX", rows)
        patch.setattr(changed_places, "PAIRS_BYTES", size)
        places = sampled(
            {key: (before, ("other", 7.0)) for key, (before, _) in updates.items()}, tasks, None
        )
    assert places.compared <= len(updates)
    assert {*places.columns.values()} <= {places.compared}, "every row that is compared differs"


def test_parts_are_equally_wide() -> None:
    sampler = ChangeSampler((100, 100 + 32 * 10 - 1))
    sampler.count(np.array([100, 109, 110, 419, 418, 50, 900], np.int64))
    expected = [0] * PARTS
    expected[0], expected[1], expected[-1] = 3, 1, 3  # beyond the bounds: the first, the last
    assert merged([sampler.finish()]).parts == tuple(expected)


@pytest.mark.parametrize("ends", [(7, 7), (-(2**63), 2**63 - 1)])
def test_any_bounds(ends: tuple[int, int]) -> None:
    sampler = ChangeSampler(ends)
    sampler.count(np.array(ends, np.int64))
    assert sum(merged([sampler.finish()]).parts or ()) == 2


def test_what_the_report_has() -> None:
    told: dict[str, Any] = ChangedPlaces(3, {"note": 2}, None).to_json()
    assert told == {"compared": 3, "columns": {"note": 2}, "parts": None}


@given(UPDATES, st.integers(1, 4))
def test_moves_are_measured_where_both_sides_have_a_number(updates: Rows, tasks: int) -> None:
    moves = sampled(updates, tasks, None, "price").moves
    both = [(a[1], b[1]) for a, b in updates.values()]
    known = [
        (new - old) ** 2
        for old, new in both
        if old is not None and new is not None and not math.isnan(new - old)
    ]
    if not updates:
        assert moves is None
        return
    assert moves is not None
    assert (moves.column, moves.rows) == ("price", len(known))
    assert moves.square == pytest.approx(np.mean(known) if known else 0.0)
    assert sampled(updates, tasks, None).moves is None


@pytest.mark.parametrize(
    ("kind", "old", "new", "rows", "square"),
    [
        (pa.int64(), 2**62, 2**62 + 2**20, 1, 2.0**40),
        (pa.int64(), -(2**63), 2**63 - 1, 1, 2.0**128),
        (pa.decimal128(38, 2), Decimal("-1.25"), Decimal("1.25"), 1, 6.25),
        (pa.float64(), 1e308, -1e308, 0, 0.0),
        (pa.float64(), 0.0, math.inf, 0, 0.0),
        (pa.float32(), None, 1.0, 0, 0.0),
    ],
)
def test_moves_at_the_ends_of_types(
    kind: pa.DataType, old: object, new: object, rows: int, square: float
) -> None:
    schema, sampler = pa.schema([("price", kind)]), ChangeSampler(None)
    for side, value in (("before", old), ("after", new)):
        images = pa.RecordBatch.from_pylist([{"price": value}], schema)
        sampler.pair(side, images, np.zeros(1, np.int64), np.ones(1, np.bool_))
    moves = merged([sampler.finish()], "price").moves
    assert moves is not None
    assert moves.rows == rows
    assert moves.square == pytest.approx(square)
