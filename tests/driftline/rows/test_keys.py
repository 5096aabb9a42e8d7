"""Keys and positions against the reference, on every key that a recipe may have."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from driftline.errors import FrameDamaged, LimitExceeded
from driftline.limits import KEY_BYTES_MAX
from driftline.rows import keys
from driftline.rows.columns import gather, split
from driftline.rows.fingerprints import position_seed
from driftline.values.types import Recipe
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import rows as reference
from tests.reference.rows import Row, hash_key
from tests.samples.rows import KEYS, block, recipe, recipes, rows, scattered, tables, types_of

Table = tuple[Recipe, list[Row]]
MAKERS = pytest.mark.parametrize("made", [block, scattered])
INTEGERS = {"int2": ">h", "int4": ">i", "int8": ">q"}


@MAKERS
@given(table=tables(), key=KEYS)
def test_positions_are_those_of_the_reference(made, table: Table, key: bytes) -> None:
    recipe, rows = table
    found = keys.positions(made(rows), recipe, position_seed(key))
    types = types_of(recipe)
    assert found.dtype == np.int64
    assert found.tolist() == [reference.position(r, types, recipe.key_columns, key) for r in rows]


@MAKERS
@given(table=tables())
def test_key_bytes_are_those_of_the_reference(made, table: Table) -> None:
    recipe, rows = table
    made_of = made(rows)
    whole = made_of.buffer.tobytes()
    starts, lengths = keys.key_spans(made_of, recipe)
    found = [whole[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
    assert found == [reference.key_bytes(row, recipe.key_columns) for row in rows]


@pytest.mark.parametrize("kind", INTEGERS)
def test_the_position_of_an_integer_is_the_integer(kind: str) -> None:
    form = INTEGERS[kind]
    bits = 8 * struct.calcsize(form)
    numbers = [-(2 ** (bits - 1)), -256, -1, 0, 1, 255, 2 ** (bits - 1) - 1]
    data = block([[struct.pack(form, n), b"x"] for n in numbers])
    assert keys.positions(data, recipe([kind, "text"]), 9).tolist() == numbers


FORGED: dict[str, tuple[list[str], int, list[bytes | None]]] = {
    "NULL as an integer": (["int8", "text"], 1, [None, b"x"]),
    "an integer of no bytes": (["int8", "text"], 1, [b"", b"x"]),
    "an integer too narrow": (["int4", "text"], 1, [b"\0\0", b"x"]),
    "an integer too wide": (["int2", "text"], 1, [b"\0\0\0", b"x"]),
    "NULL as a second key": (["int4", "text"], 2, [b"\0\0\0\0", None]),
    "a column less": (["int4", "text", "text"], 1, [b"\0\0\0\0", b"x"]),
}


@pytest.mark.parametrize("name", FORGED)
def test_keys_that_came_are_looked_at(name: str) -> None:
    """Whoever digested them: else they are found by positions that are none."""
    types, key_columns, forged = FORGED[name]
    right = [b"x" if kind == "text" else struct.pack(INTEGERS[kind], 7) for kind in types]
    made = recipe(types, key_columns)
    assert keys.received(split(block([right]), len(types)), made)
    rows = block([right[: len(forged)], forged])
    with pytest.raises(FrameDamaged):
        keys.received(split(rows, len(forged)), made)


@given(recipes(["int2", "int4", "int8"]), KEYS, st.data())
def test_recipes_with_an_integer_first(recipe: Recipe, key: bytes, data: st.DataObject) -> None:
    drawn = data.draw(rows(recipe))
    found = keys.positions(block(drawn), recipe, position_seed(key)).tolist()
    types = types_of(recipe)
    assert found == [reference.position(r, types, recipe.key_columns, key) for r in drawn]


@given(st.lists(st.binary(max_size=70), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_the_two_hashes_of_keys_agree(drawn: list[bytes], seed: int) -> None:
    """Whether they are as long or not, and though nothing stands behind the last one."""
    buffer = np.frombuffer(b"before" + b"".join(drawn), np.uint8)
    sizes = np.array([len(key) for key in drawn])
    starts = 6 + np.cumsum(sizes) - sizes
    found = keys.hash_spans(buffer, starts, sizes, seed)
    assert found.tolist() == [hash_key(key, seed) for key in drawn]


@given(st.lists(st.lists(st.none() | st.binary(max_size=3), min_size=3, max_size=3)))
def test_null_keys(rows: list[Row]) -> None:
    found = keys.null_keys(block(rows), recipe(["bytea", "bytea", "bytea"], 2))
    assert found.tolist() == [row[0] is None or row[1] is None for row in rows]


def test_the_end_of_one_value_is_not_the_beginning_of_the_next() -> None:
    pairs: list[Row] = [[b"a", b"bc"], [b"ab", b"c"], [b"", b"abc"], [b"abc", b""]]
    found = keys.positions(block(pairs), recipe(["text", "text"], 2), 1)
    assert len(set(found.tolist())) == len(pairs)


def test_a_key_longer_than_the_limit_is_refused() -> None:
    fits = KEY_BYTES_MAX - 4
    data = block([[b"k" * fits]])
    assert len(keys.positions(data, recipe(["text"]), 1)) == 1
    with pytest.raises(LimitExceeded, match=str(KEY_BYTES_MAX)):
        keys.positions(block([[b"k" * (fits + 1)]]), recipe(["text"]), 1)


@pytest.mark.parametrize("types", [["int8"], ["text"], ["int4", "text"]])
def test_no_rows(types: list[str]) -> None:
    assert keys.positions(gather([]), recipe(types, len(types)), 1).tolist() == []
