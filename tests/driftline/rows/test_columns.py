"""Rows as bytes and as columns: the two ways against each other and against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from driftline.rows import columns
from driftline.rows.columns import Block, RaggedColumn
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import rows as reference
from tests.reference.rows import Row
from tests.samples.rows import block, scattered, tables

Table = tuple[object, list[Row]]
MAKERS = pytest.mark.parametrize("made", [block, scattered])


@st.composite
def chosen(draw: st.DrawFn) -> tuple[list[Row], list[int]]:
    """Rows and numbers of some of them, in any order, some twice."""
    _, rows = draw(tables())
    return rows, draw(st.lists(st.integers(0, len(rows) - 1))) if rows else []


def values(column: RaggedColumn) -> list[bytes | None]:
    ends = np.cumsum(column.sizes)
    return [
        None if n == columns.NULL else column.data[end - max(n, 0) : end].tobytes()
        for n, end in zip(column.lengths.tolist(), ends.tolist(), strict=True)
    ]


@MAKERS
@given(table=tables())
def test_split_gives_the_values_of_the_reference(made, table: Table) -> None:
    _, rows = table
    width = len(rows[0]) if rows else 1
    parts = columns.split(made(rows), width)
    assert [values(part) for part in parts] == [[r[i] for r in rows] for i in range(width)]


@MAKERS
@given(table=tables(min_size=1))
def test_join_is_the_inverse_of_split(made, table: Table) -> None:
    _, rows = table
    again = columns.join(columns.split(made(rows), len(rows[0])))
    assert again.rows() == [reference.row_bytes(row) for row in rows]
    assert [reference.values_of(row) for row in again.rows()] == rows


@given(tables())
def test_gather_keeps_the_rows(table: Table) -> None:
    encoded = [reference.row_bytes(row) for row in table[1]]
    gathered = columns.gather(encoded)
    assert gathered.rows() == encoded
    assert len(gathered) == len(encoded)
    assert gathered.starts.tolist()[-1] == sum(map(len, encoded))


@given(chosen())
def test_take_of_a_block(drawn: tuple[list[Row], list[int]]) -> None:
    rows, numbers = drawn
    whole, wanted = block(rows), np.array(numbers, np.int64)
    expected = [reference.row_bytes(rows[i]) for i in numbers]
    assert whole.take(wanted).rows() == expected
    mask = np.isin(np.arange(len(rows)), wanted)
    assert whole.take(mask).rows() == [reference.row_bytes(rows[i]) for i in sorted({*numbers})]


def test_values_too_wide_to_be_written_plane_by_plane() -> None:
    rows: list[Row] = [[bytes([i]) * 17, bytes([i]) * 70_000, b""] for i in range(3)]
    again = columns.join(columns.split(block(rows), 3))
    assert [reference.values_of(row) for row in again.rows()] == rows


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9))))
def test_spans(pairs: list[tuple[int, int]]) -> None:
    starts, sizes = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    expected = [i for start, size in pairs for i in range(start, start + size)]
    assert columns.spans(starts, sizes).tolist() == expected


def test_no_rows() -> None:
    empty = columns.gather([])
    assert len(empty) == 0
    assert empty.rows() == []
    assert [len(c) for c in columns.split(empty, 2)] == [0, 0]
    assert columns.join(columns.split(empty, 2)).rows() == []
    assert empty.take(np.zeros(0, np.bool_)).rows() == []
    assert Block(empty.buffer, empty.starts).rows() == []
