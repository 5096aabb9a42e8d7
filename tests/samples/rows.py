"""Random recipes and rows of them, for tests of whatever works on whole rows.

Rows are lists of values in tuple order, each its valid bytes or None, as the reference has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from driftline.rows.columns import Block, gather
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import strategies as st

from tests.reference import rows as reference
from tests.reference.rows import Row
from tests.samples import values as value_samples

KEYS = st.binary(min_size=32, max_size=32)
U64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1])
SALTS = st.tuples(U64, U64)

_LONG = st.integers(0, 300).flatmap(
    lambda n: st.binary(min_size=1, max_size=3).map(lambda b: b * n)
)


def recipe(types: Sequence[str], key_columns: int = 1) -> Recipe:
    """Columns c0, c1, … of these types, in tuple order."""
    columns = (Column(f"c{i}", parse_type(t), True, i) for i, t in enumerate(types))
    return Recipe(tuple(columns), key_columns)


def types_of(recipe: Recipe) -> list[str]:
    """The declared types as the reference names them."""
    return [str(column.type) for column in recipe.columns]


@st.composite
def recipes(draw: st.DrawFn, key: Sequence[str] = value_samples.TYPES) -> Recipe:
    types = draw(st.lists(st.sampled_from(value_samples.TYPES), min_size=1, max_size=5))
    types[0] = draw(st.sampled_from(key))
    return recipe(types, draw(st.integers(1, len(types))))


def values(type: str) -> st.SearchStrategy[bytes]:
    """Valid bytes of the type, some of them long."""
    samples = value_samples.any_bytes(type)
    return samples | _LONG if type == "bytea" else samples


def rows(recipe: Recipe, *, min_size: int = 0, max_size: int = 12) -> st.SearchStrategy[list[Row]]:
    """Rows without a NULL in the key, and with some elsewhere."""
    columns = []
    for number, type in enumerate(types_of(recipe)):
        is_key = number < recipe.key_columns
        columns.append(values(type) if is_key else st.none() | values(type))
    return st.lists(st.tuples(*columns).map(list), min_size=min_size, max_size=max_size)


@st.composite
def tables(draw: st.DrawFn, min_size: int = 0, max_size: int = 12) -> tuple[Recipe, list[Row]]:
    """A recipe and rows of it."""
    drawn = draw(recipes())
    return drawn, draw(rows(drawn, min_size=min_size, max_size=max_size))


def block(rows: Sequence[Row]) -> Block:
    """The rows as the product holds them."""
    return gather([reference.row_bytes(row) for row in rows])


def scattered(rows: Sequence[Row]) -> Block:
    """The same as a part of a larger block: other rows stand before and after them."""
    full = block([[b"before", None], *rows, [b"after"]])
    return Block(full.buffer, full.starts[1:-1])
