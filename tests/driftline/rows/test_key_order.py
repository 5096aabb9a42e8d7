"""The order of keys, against values compared by Python, and a file for other implementations."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline.errors import MalformedMessage
from driftline.limits import KEY_BYTES_MAX
from driftline.rows import key_order
from driftline.rows.key_order import KeyBuffer, KeyOrder, key_bytes, key_text, unordered
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "key_order.json").read_text())


def recipe_of(*types: str) -> Recipe:
    columns = tuple(Column(f"c{i}", parse_type(text)) for i, text in enumerate(types))
    return Recipe((*columns, Column("rest", parse_type("text"))), len(types))


def keys_of(keys: list[Any], recipe: Recipe) -> KeyBuffer:
    return KeyBuffer.of_bytes([key_bytes(key, recipe) for key in keys])


DECIMALS = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3))
# Values by type: as Python compares them, and their string form.
VALUES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "int2": (st.integers(-(2**15), 2**15 - 1), str),
    "int8": (st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), str),
    "numeric(12,3)": (DECIMALS | st.just(Decimal("0.000")), lambda d: f"{d:.3f}"),
    "numeric(20,0)": (st.integers(0, 2**64 - 1), str),
    "date": (st.dates(), str),
    "timestamp": (st.datetimes(), lambda at: str(at).rstrip("0") if at.microsecond else str(at)),
    "uuid": (st.binary(min_size=16, max_size=16), lambda b: str(uuid.UUID(bytes=b))),
    "bytea": (st.binary(max_size=4), bytes.hex),
    "text": (
        st.text(st.sampled_from("\0 a~é\U00010000"), max_size=4).map(str.encode),
        bytes.decode,
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Recipe, list[tuple[Any, ...]], list[tuple[str, ...]]]:
    """Draw a key's types, and keys as Python compares them and in string form."""
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    few = [draw(st.lists(VALUES[type][0], min_size=1, max_size=4)) for type in types]
    rows = draw(st.lists(st.tuples(*map(st.sampled_from, few)), min_size=1, max_size=20))
    texts = [tuple(VALUES[t][1](v) for t, v in zip(types, row, strict=True)) for row in rows]
    return recipe_of(*types), rows, texts


@given(table=tables(), piece=st.sampled_from([1, 64, 1 << 20]))
@examples(300)
def test_keys_are_ordered_as_their_values(table: Any, piece: int) -> None:
    """Whatever piece of sort keys is made at once."""
    recipe, rows, texts = table
    order, keys = KeyOrder(recipe), keys_of(texts, recipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "SORTED_BYTES", piece)
        at = order.sorted(keys).tolist()
        assert [rows[i] for i in at] == sorted(rows)
        bounds = sorted(set(zip(rows[::2], texts[::2], strict=True)))
        ranks = order.ranks(keys, keys_of([text for _, text in bounds], recipe)).tolist()
        assert ranks == [sum(bound <= row for bound, _ in bounds) for row in rows]
        assert order.ascends(keys) == all(a < b for a, b in pairwise(rows))
    assert [key_text(key_bytes(text, recipe), recipe) for text in texts] == texts


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: ", ".join(case["types"]))
def test_golden(case: dict[str, Any]) -> None:
    """Ascending keys of a file, with their bytes."""
    recipe = recipe_of(*case["types"])
    texts = [tuple(key["text"]) for key in case["ascending"]]
    encoded = [key_bytes(text, recipe) for text in texts]
    assert [data.hex() for data in encoded] == [key["bytes"] for key in case["ascending"]]
    assert KeyOrder(recipe).ascends(KeyBuffer.of_bytes(encoded))
    assert KeyOrder(recipe).ranks(
        KeyBuffer.of_bytes(encoded), KeyBuffer.of_bytes(encoded)
    ).tolist() == list(range(1, len(texts) + 1))


def test_no_keys_and_no_bounds() -> None:
    recipe = recipe_of("text", "int4")
    none, some = KeyBuffer.of_bytes([]), keys_of([("a", "1")], recipe)
    order = KeyOrder(recipe)
    assert order.ranks(none, some).tolist() == []
    assert order.ranks(some, none).tolist() == [0]
    assert order.ascends(none)
    assert order.ascends(some)


@pytest.mark.parametrize(
    "type",
    ["bool", "oid", "float4", "float8", "numeric", "time", "timetz", "interval", "jsonb"],
)
def test_types_without_an_order(type: str) -> None:
    found = unordered(recipe_of("int4", type, "text"))
    assert found is not None
    assert found.name == "c1"


@pytest.mark.parametrize(
    "key",
    [
        (),
        ("1",),
        ("1", "a", "b"),
        ("x", "a"),
        ("1", "\ud800"),
        ("99999999999", "a"),
        ("1", "a" * KEY_BYTES_MAX),
    ],
)
def test_what_is_no_bound(key: tuple[str, ...]) -> None:
    with pytest.raises(MalformedMessage):
        key_bytes(key, recipe_of("int4", "text"))


@pytest.mark.parametrize(
    "data", ["", "00000004", "ffffffff00000000", "000000020001" + "00000000", "0000000400000001"]
)
def test_what_is_no_key(data: str) -> None:
    """A NULL, another width, or too few bytes or too many."""
    recipe = recipe_of("int4")
    with pytest.raises(MalformedMessage):
        key_text(bytes.fromhex(data) + b"\0", recipe)


def test_a_null_has_no_rank() -> None:
    recipe = recipe_of("int4", "text")
    keys = KeyBuffer.of_bytes([b"\0\0\0\x04\0\0\0\x01" + b"\xff" * 4 + b"\0" * 8])
    with pytest.raises(MalformedMessage):
        KeyOrder(recipe).ranks(keys, keys_of([("1", "")], recipe))


def test_offsets_need_not_ascend() -> None:
    """Keys of a block may be taken in any order."""
    recipe = recipe_of("int4")
    keys = keys_of([("5",), ("3",), ("9",)], recipe)
    turned = KeyBuffer(keys.buffer, np.array([16, 0, 8]))
    assert KeyOrder(recipe).sorted(turned).tolist() == [2, 1, 0]
