"""Declared types and recipes: written forms, and what the id of a recipe depends on."""

from __future__ import annotations

import dataclasses

import pytest
from driftline.errors import MalformedMessage
from driftline.limits import COLUMNS_MAX
from driftline.values.types import INTEGER_WIDTHS, WIDTHS, Column, DeclaredType, Recipe, parse_type
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import fingerprints as reference
from tests.reference import values as reference_values
from tests.samples import values as value_samples
from tests.samples.rows import recipe

NAMES = st.text(max_size=5)
TYPES = st.sampled_from(value_samples.TYPES)


@pytest.mark.parametrize("text", [*WIDTHS, *value_samples.TYPES, "numeric(38,38)", "numeric(1,0)"])
def test_a_type_and_its_text(text: str) -> None:
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "int", "INT4", " int4", "int4 ", "varchar", "text(3)", "numeric()", "numeric(5)"),
        *("numeric(0,0)", "numeric(39,0)", "numeric(5,6)", "numeric(5,-1)", "numeric(5, 2)"),
        *("numeric(100,2)", "numeric(5,2)\n", "numeric(5,2)x", "float4(1,2)"),
    ],
)
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(MalformedMessage):
        parse_type(text)


@pytest.mark.parametrize("type", value_samples.TYPES)
def test_the_width_is_that_of_every_value(type: str) -> None:
    sizes = {len(reference_values.encode(type, text)) for text in value_samples.CHOSEN[type]}
    width = parse_type(type).width
    assert sizes == {width} if width is not None else len(sizes) > 1 or "numeric(" in type


@given(st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=5), st.integers(1, 5))
def test_the_id_is_that_of_the_reference(columns: list[tuple[str, str]], keys: int) -> None:
    keys = min(keys, len(columns))
    made = tuple(Column(name, parse_type(type)) for name, type in columns)
    assert Recipe(made, keys).id == reference.recipe_id(columns, keys)
    derived = Recipe(made, keys, rows="\"n\" = '1'")
    assert derived.id == reference.recipe_id(columns, keys, rows="\"n\" = '1'")


def test_the_id_depends_on_everything_that_both_sides_must_agree_on() -> None:
    first, second = Column("a", parse_type("int4")), Column("b", parse_type("text"))
    one = Recipe((first, second), 1)
    rename = dataclasses.replace
    others = [
        Recipe((first,), 1),
        Recipe((second, first), 1),
        Recipe((first, second), 2),
        Recipe((first, second), 1, fingerprint_version=2),
        Recipe((rename(first, name="A"), second), 1),
        Recipe((rename(first, name="a4"), second), 1),
        Recipe((rename(first, type=parse_type("int8")), second), 1),
    ]
    assert len({one.id, *(other.id for other in others)}) == len(others) + 1
    same = Recipe((rename(first, nullable=False, ordinal=7), second), 1)
    assert same.id == one.id
    assert len(one.id) == 16


def test_names_cannot_be_shifted_into_types() -> None:
    text = DeclaredType("text")
    pairs = [("a", "b"), ("atext\0001:b", ""), ("", "a"), ("1:atext", "b")]
    ids = {Recipe((Column(a, text), Column(b, text)), 1).id for a, b in pairs}
    assert len(ids) == len(pairs)


@pytest.mark.parametrize(("columns", "keys"), [(0, 0), (1, 0), (1, 2), (COLUMNS_MAX + 1, 1)])
def test_what_is_no_recipe(columns: int, keys: int) -> None:
    with pytest.raises(MalformedMessage):
        recipe(["int4"] * columns, keys)


@pytest.mark.parametrize("type", value_samples.TYPES)
def test_integer_keys(type: str) -> None:
    assert recipe([type, "text"]).integer_key == (type in INTEGER_WIDTHS)
    assert not recipe([type, "text"], 2).integer_key


def test_the_order_in_the_relation() -> None:
    made = [Column(n, parse_type("text"), True, at) for n, at in (("k", 2), ("a", 0), ("b", 1))]
    found = Recipe(tuple(made), 1)
    assert [c.name for c in found.published_order] == ["a", "b", "k"]
    assert [c.name for c in found.key] == ["k"]
