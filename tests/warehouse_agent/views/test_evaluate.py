"""The columns of a view's recipe, and versions that a view cannot be made of."""

from __future__ import annotations

from dataclasses import replace

from driftline.relations.derivations import (
    ColumnPredicate,
    Derivation,
    Operator,
    OrPredicate,
    ReferencePredicate,
)
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.columns.layout import derived, lay_out
from warehouse_agent.columns.view_layout import ViewRecipe
from warehouse_agent.views.evaluate import (
    PinnedInput,
    changed_recipe,
    chosen_by,
    has_inputs_of,
    lacking,
)
from warehouse_agent.views.query import read_query, resolve

TYPES = {"id": "int4", "a": "numeric(8,2)", "b": "date", "t": "text"}
WHOLE = lay_out(
    Recipe(tuple(Column(n, parse_type(t), ordinal=i) for i, (n, t) in enumerate(TYPES.items())), 1),
    {},
    where="r",
)
QUERY = read_query("SELECT x.a, t FROM erp.r x WHERE x.a > 3", where="v")


def recipe(one: PinnedInput) -> ViewRecipe:
    used = resolve(QUERY, [one.layout.data_names], where="v")
    return ViewRecipe(QUERY.text, (one.identity(used.used[0]),), {}, "4.1")


def test_a_recipe_has_the_columns_that_are_used() -> None:
    whole = PinnedInput("erp.r", 0, WHOLE, ())
    assert recipe(whole).inputs == (("erp.r", "`a` decimal(8,2), `t` string; bigint"),)
    some = PinnedInput("erp.r", 1, derived(WHOLE, Derivation(("a", "t"))), ())
    assert recipe(some) == recipe(whole)
    assert has_inputs_of(recipe(whole), QUERY, [some])


def test_older_recipes_have_all_columns() -> None:
    whole = PinnedInput("erp.r", 0, WHOLE, ())
    old = replace(
        recipe(whole),
        inputs=(("erp.r", f"{', '.join(WHOLE.data_ddl)}; bigint"),),
    )
    assert changed_recipe(old, recipe(whole)) == []
    assert has_inputs_of(
        old, QUERY, [PinnedInput("erp.r", 1, derived(WHOLE, Derivation(("a", "t"))), ())]
    )
    for other in ("`a` decimal(9,2), `t` string; bigint", "`a` decimal(8,2); bigint",
                  "`a` decimal(8,2), `t` string; binary"):  # fmt: skip
        known = replace(old, inputs=(("erp.r", other),))
        assert changed_recipe(known, recipe(whole)) == ["columns of erp.r"], other
        assert not has_inputs_of(known, QUERY, [whole])
    assert "its inputs" in changed_recipe(replace(old, inputs=(("s", ""),)), recipe(whole))[0]


def test_versions_that_lack_something() -> None:
    rows = ColumnPredicate("a", Operator.GREATER, ("3.00",))

    def missing(chosen: Derivation | None, text: str = QUERY.text) -> str | None:
        query = read_query(text, where="v")
        one = PinnedInput("erp.r", 0, derived(WHOLE, chosen), ())
        return lacking("v", query, [one] * len(query.occurrences))

    assert missing(None) is missing(Derivation(("a", "t"), rows)) is None
    assert missing(None, "SELECT nowhere FROM r") is None  # no column of the relation at all
    some = PinnedInput("erp.r", 0, derived(WHOLE, Derivation(("a",))), ())
    typo = read_query("SELECT nowhere FROM r", where="v")
    assert lacking("v", typo, [some]) is not None
    assert lacking("v", typo, [some], {"erp.r": {*TYPES}}) is None
    two = read_query("SELECT nowhere, b FROM r JOIN r s ON s.id = r.id", where="v")
    assert lacking("v", two, [some, some], {"erp.r": {*TYPES}}) == "no input has the column b yet"
    assert "lacks the column t" in str(missing(Derivation(("a",), rows)))
    assert "has only the rows where" in str(missing(Derivation(None, rows), "SELECT a FROM r"))
    both = "SELECT o.id, b FROM r o JOIN r p ON p.id = o.id WHERE o.a > 3 AND p.a > 3"
    assert missing(Derivation(("a", "b"), rows), both) is None
    assert missing(Derivation(("a",), rows), both) == "no input has the column b yet"


def test_rows_that_others_chose() -> None:
    """A view that has its rows without them does not depend on their time."""
    large = ColumnPredicate("a", Operator.GREATER, ("3.00",))
    joined = ReferencePredicate(("id",), "s", ("id",), large, (("a", "numeric(8,2)"),))
    join = "FROM erp.r r JOIN erp.s s ON s.id = r.id"
    condition, elsewhere = f"{join} WHERE r.a > 3", f"{join} WHERE s.a > 3"
    for rows, text, expected in (
        (joined, elsewhere, {"erp.r": {"erp.s"}}),
        (OrPredicate((large, joined)), elsewhere, {"erp.r": {"erp.s"}}),
        (OrPredicate((large, joined)), condition, {}),
        (large, condition, {}),
        (joined, "FROM erp.r r JOIN erp.t s ON s.id = r.id WHERE s.a > 3", {}),
    ):
        query = read_query(f"SELECT r.id {text}", where="v")
        names = [".".join(one.reference) for one in query.occurrences]
        layouts = [derived(WHOLE, Derivation(None, rows)), WHOLE]
        inputs = [PinnedInput(n, 0, layout, ()) for n, layout in zip(names, layouts, strict=True)]
        assert chosen_by("v", query, inputs) == expected, text
