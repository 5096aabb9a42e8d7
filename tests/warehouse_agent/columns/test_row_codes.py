"""Sets of keys find every row that Spark's `=` finds; a `KeySet` finds no other."""

from __future__ import annotations

import pickle
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.columns.row_codes import CodeSet, KeySet, codes, family

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=20)


@given(st.lists(INTEGERS, max_size=50), st.lists(INTEGERS, max_size=50))
def test_integers(some: list[int], others: list[int]) -> None:
    held = CodeSet.of(np.array(some, np.int64))
    found = held.holds_rows([pa.array([*others, *some, None], pa.int64())])
    assert found.tolist() == [value in some for value in (*others, *some)] + [False]


@given(st.lists(TEXTS, max_size=30), st.lists(st.none() | TEXTS, min_size=1, max_size=30))
def test_texts(some: list[str], rows: list[str | None]) -> None:
    held = CodeSet.of(*(codes([pa.array(some, pa.string())])[0] for _ in range(2)))
    assert held.holds_rows([pa.array(rows, pa.string())]).tolist() == [r in some for r in rows]
    sliced = pa.array(["x", *rows], pa.string())[1:]
    assert held.holds_rows([sliced]).tolist() == [r in some for r in rows]


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=40))
def test_keys_of_several_columns_are_exact(rows: list[tuple[int, bytes]]) -> None:
    half = rows[: len(rows) // 2]

    def columns(some: list[tuple[int, bytes]]) -> list[pa.Array]:
        return [
            pa.array([a for a, _ in some], pa.int64()),
            pa.array([b for _, b in some], pa.binary()),
        ]

    keys = KeySet.of(columns(half))
    assert len(keys) == len(set(half))
    for held in (keys, pickle.loads(pickle.dumps(keys))):
        assert held.holds(columns(rows)).tolist() == [row in half for row in rows]


def test_a_key_set_is_exact_where_codes_collide() -> None:
    keys = KeySet.of([pa.array([b"a", b"b"], pa.binary())])
    every = CodeSet.of(codes([pa.array([b"a", b"b", b"c"], pa.binary())])[0])
    wide = KeySet(every, keys.keys)
    assert wide.holds([pa.array([b"c", b"a", b"d"], pa.binary())]).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int16(), [1, -1, None]),
        (pa.bool_(), [True, False, None]),
        (pa.date32(), [0, 18_000, None]),
        (pa.timestamp("us"), [0, -1, None]),
        (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("-99999999999999999.99"), None]),
        (pa.string(), ["", "ä", None]),
        (pa.binary(), [b"", b"\0", None]),
        (pa.string(), ["x" * 8_000, "x" * 8_001, None]),
    ],
)
def test_equal_values_have_equal_codes(kind: pa.DataType, values: list[object]) -> None:
    rows = pa.array([*values, *values], kind)
    found, present = codes([rows])
    assert found[:2].tolist() == found[3:5].tolist()
    assert found[0] != found[1]
    assert present.tolist() == [True, True, False] * 2
    assert CodeSet.of(found[:1]).holds_rows([rows]).tolist() == [True, False, False] * 2


def test_integers_of_two_widths() -> None:
    small, large = (codes([pa.array([3, -3], kind)])[0] for kind in (pa.int8(), pa.int64()))
    assert small.tolist() == large.tolist()
    assert family("tinyint") == family("bigint") != family("decimal(10,0)")


def test_nothing() -> None:
    empty = CodeSet.of()
    assert not len(empty)
    assert empty.holds_rows([pa.array([1, None], pa.int64())]).tolist() == [False, False]
    assert KeySet.of([pa.array([], pa.binary())]).holds([pa.array([b""])]).tolist() == [False]
