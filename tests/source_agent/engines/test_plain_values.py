"""Joined rows are what their columns' own encoders make, whatever is NULL."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from driftline.errors import ValueDoesNotFit
from driftline.values.types import DeclaredType
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.encoding import rows
from source_agent.engines.encoding.plain_values import (
    NULL,
    BytesEncoder,
    FixedWidthEncoder,
    behind_length,
    joined,
)

LONG = st.sampled_from([b"", b"x", b"y" * 1023, b"z" * 1024, b"\xc3\xa4" * 2000])
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int8": (FixedWidthEncoder("int8"), st.integers(-(2**63), 2**63 - 1)),
    "int2 of text": (
        FixedWidthEncoder("int2", int),
        st.integers(-(2**15), 2**15 - 1).map(b"%d".__mod__),
    ),
    "float8": (FixedWidthEncoder("float8"), st.floats()),
    "bytes": (BytesEncoder(), LONG),
    "text": (BytesEncoder(rows.check_utf8), LONG.map(bytearray)),
    "other": (rows.variable(lambda value: value[::-1]), LONG),
    "number": (rows.decimal_text(DeclaredType("numeric", 5, 1)), st.just(b"12.5")),
}


@given(st.data(), st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
def test_joined_is_what_the_columns_make(data: st.DataObject, kinds: list[str]) -> None:
    count = data.draw(st.integers(1, 5))
    columns = [
        data.draw(
            st.lists(st.none() | KINDS[kind][1], min_size=count, max_size=count)
            if data.draw(st.booleans())
            else st.lists(KINDS[kind][1], min_size=count, max_size=count)
        )
        for kind in kinds
    ]
    encoders = [KINDS[kind][0] for kind in kinds]
    made = [encode(values) for encode, values in zip(encoders, columns, strict=True)]
    expected = [
        struct.pack(">h", len(kinds)) + b"".join(pieces) for pieces in zip(*made, strict=True)
    ]
    has_null = [None in values for values in columns]
    assert joined(columns, encoders, has_null) == expected
    assert joined(columns, encoders, [True] * len(kinds)) == expected
    plain_null = any(
        is_null and isinstance(e, FixedWidthEncoder | BytesEncoder)
        for is_null, e in zip(has_null, encoders, strict=True)
    )
    if plain_null:
        with pytest.raises((TypeError, struct.error)):
            joined(columns, encoders, [False] * len(kinds))
    else:
        assert joined(columns, encoders, [False] * len(kinds)) == expected


def test_a_check_is_asked_either_way() -> None:
    def refuse(_values: Any) -> None:
        raise ValueDoesNotFit("no")

    for encoder in (FixedWidthEncoder("int8", check=refuse), BytesEncoder(refuse)):
        for has_null in (False, True):
            with pytest.raises(ValueDoesNotFit):
                joined([[1]], [encoder], [has_null])


def test_lengths() -> None:
    for size in (0, 1, 1023, 1024, 70_000):
        assert behind_length([b"a" * size, None]) == [struct.pack(">i", size) + b"a" * size, NULL]
        assert behind_length([b"a" * size]) == [struct.pack(">i", size) + b"a" * size]
