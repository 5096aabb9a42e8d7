"""Layouts of derived relations: names as in the whole, and JSON that says what was chosen."""

from __future__ import annotations

from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Derivation,
    Operator,
    OrPredicate,
    text_of,
)
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.columns.arrow import Carrier
from warehouse_agent.columns.layout import derived, from_json, lay_out, to_json

COLUMNS = tuple(
    Column(name, parse_type(kind), ordinal=ordinal)
    for name, kind, ordinal in [
        ("k 1", "text", 3), ("K_1", "int4", 0), ("a b", "date", 1), ("a_b", "numeric(8,2)", 2),
    ]
)  # fmt: skip
WHOLE = lay_out(Recipe(COLUMNS, 2), {"a b": Carrier.STRING}, where="t")
ROWS = OrPredicate((
    ColumnPredicate("a_b", Operator.LESS, ("1.50",)),
    AndPredicate((
        ColumnPredicate("k 1", Operator.IN, ("x", "x")), ColumnPredicate("K_1", Operator.IS_NULL),
    )),
))  # fmt: skip


def test_names_are_those_of_the_whole() -> None:
    assert WHOLE.names == ("k_1_2", "K_1", "a_b", "a_b_2")
    some = derived(WHOLE, Derivation(("a_b",)))
    assert some.names == ("k_1_2", "K_1", "a_b_2")
    assert some.data_names == ("K_1", "a_b_2", "k_1_2")
    assert [c.name for c in some.recipe.columns] == ["k 1", "K_1", "a_b"]
    assert some.recipe.key_columns == 2
    # The columns of a predicate belong to it.
    assert derived(WHOLE, Derivation(("k 1",), ROWS)).names == ("k_1_2", "K_1", "a_b_2")
    assert derived(WHOLE, Derivation(None, ROWS)).names == WHOLE.names
    assert derived(WHOLE, None) == WHOLE


def test_the_recipe_has_the_canonical_predicate() -> None:
    found = derived(WHOLE, Derivation(None, ROWS)).recipe
    expected = '("a_b" < \'1.50\') OR (("K_1" IS NULL) AND ("k 1" = \'x\'))'
    assert found.rows == expected
    ids = {
        derived(WHOLE, chosen).recipe.id
        for chosen in (
            None,
            Derivation(None, ROWS),
            Derivation(("a_b",), ROWS),
            Derivation(("a_b",)),
        )
    }
    assert len(ids) == 4


def test_json() -> None:
    for chosen in (None, Derivation(None, ROWS), Derivation(("a_b",), ROWS), Derivation(("a_b",))):
        layout = derived(WHOLE, chosen)
        found = from_json(to_json(layout))
        assert found == layout
        assert found.recipe.id == layout.recipe.id
    assert "derivation" not in to_json(WHOLE)
    assert text_of(ROWS)
