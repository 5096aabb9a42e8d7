"""From a described relation and a derivation to the `Shape` of the derived relation; no I/O.

A predicate becomes a condition beside the DBA's own `where`: an engine writes each comparison
(`Compare`), this module joins them with AND, OR and NOT. So every read path has the condition.

Invariants: names are quoted from the catalogue's columns; literals are bound, never in the text.
Text is compared by its bytes, whatever collation its column has, as Spark does.
Rejected: SQLAlchemy's Core. Four operators and three connectives are shorter than its dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from driftline.errors import DerivationRefused
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    DerivablePart,
    Derivation,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    canonical,
    check,
    text_of,
)
from driftline.values.types import Column

from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Condition, Shape

COLUMNS: Final = "{columns}"  # slots of a template
ROWS: Final = "{rows}"
OPERATOR: Final = "{operator}"
EQUALITY: Final = "{equality}"
ANY: Final = "…"  # any number

# Returns a comparison as SQL. The text is the number of its first value among those of the
# derivation, from 1; an engine whose placeholders have no numbers ignores it.
Compare = Callable[[ColumnPredicate, Column, str], Condition]


def derived(shape: Shape, derivation: Derivation, compare: Compare | None) -> Shape:
    """Return the shape of a derivation: fewer columns, and a condition of its own.

    compare: None only for a shape that compares no column.

    Raises:
        DerivationRefused: the relation lacks a column, does not compare one, or its database makes
            the fingerprints of all columns.
        LimitExceeded, MalformedMessage: see `driftline.relations.derivations.check`.
    """
    recipe, plan = shape.recipe, plan_of(shape)
    check(derivation, recipe.columns, shape.comparable_by_name, where=shape.relation.name)
    names = derivation.names
    if names is not None and plan.row_hash:
        raise DerivationRefused(
            "The database makes the fingerprints of this relation, over all of its columns.",
            where=shape.relation.name,
        )
    kept = [
        place
        for place, column in enumerate(recipe.columns)
        if place < recipe.key_columns or names is None or column.name in names
    ]
    rows = None if derivation.rows is None else canonical(derivation.rows)
    made = replace(
        shape,
        recipe=replace(
            recipe,
            columns=tuple(recipe.columns[place] for place in kept),
            rows="" if rows is None else text_of(rows),
        ),
        comparable=tuple(shape.comparable[place] for place in kept),
        rows_expected=shape.rows_expected if rows is None else 0,
        plan=replace(
            plan,
            reads=tuple(plan.reads[place] for place in kept),
            forms=tuple(plan.forms[place] for place in kept),
            chosen=rows,
        ),
    )
    if rows is None:
        return made
    assert compare is not None, "a column that is compared has a comparison"
    return _restricted(made, condition(rows, {c.name: c for c in recipe.columns}, compare))


def slotted(shape: Shape, parts: Collection[DerivablePart]) -> Shape:
    """Return a shape whose SQL texts are the templates of the derivations of a relation.

    COLUMNS stands in place of the expressions that are selected behind the key, ROWS in place of
    the condition, each only if it is one of the `parts` that may be chosen.
    """
    if DerivablePart.COLUMNS in parts:
        plan = plan_of(shape)
        reads = (*plan.reads[: shape.recipe.key_columns], COLUMNS)
        shape = replace(shape, plan=replace(plan, reads=reads))
    return _restricted(shape, Condition(ROWS)) if DerivablePart.ROWS in parts else shape


def comparison_forms(shape: Shape, compare: Compare | None) -> list[str]:
    """Return what may stand in ROWS, with OPERATOR or EQUALITY in place of an operator.

    An IN that takes one value here takes any number of them. compare: None: there are none.
    """
    forms: list[str] = []
    if compare is None:
        return forms
    for column, comparable in zip(shape.recipe.columns, shape.comparable, strict=True):
        operators = [
            operator
            for operator in (Operator.NOT_EQUAL, Operator.IN, Operator.IS_NULL)
            if comparable.allows(operator)
        ]
        slot = OPERATOR if comparable is Comparable.ORDER else EQUALITY
        for operator in operators:
            values = () if operator is Operator.IS_NULL else ("0",)
            text = compare(ColumnPredicate(column.name, operator, values), column, ANY).sql
            if operator is Operator.NOT_EQUAL:
                text = slot.join(text.rsplit(operator.value, 1))
            forms.append(text.replace("\0", "%s"))
    return forms


def condition(
    predicate: Predicate, columns: Mapping[str, Column], compare: Compare, bound: int = 0
) -> Condition:
    """Return a predicate as SQL with its values, in the order in which the text needs them.

    Args:
        columns: by name, of every comparison of the predicate.
        bound: the number of values that are bound before it.
    """
    match predicate:
        case ColumnPredicate(column):
            return compare(predicate, columns[column], str(bound + 1))
        case NotPredicate(part):
            inner = condition(part, columns, compare, bound)
            return Condition(f"NOT ({inner.sql})", inner.values)
        case AndPredicate(parts) | OrPredicate(parts):
            texts: list[str] = []
            values: tuple[object, ...] = ()
            for part in parts:
                inner = condition(part, columns, compare, bound + len(values))
                texts.append(f"({inner.sql})")
                values += inner.values
            word = " AND " if isinstance(predicate, AndPredicate) else " OR "
            return Condition(word.join(texts), values)


def _restricted(shape: Shape, extra: Condition) -> Shape:
    plan = plan_of(shape)
    where = f"{plan.where} AND ({extra.sql})" if plan.where else f"({extra.sql})"
    return replace(shape, plan=replace(plan, where=where, values=extra.values))
