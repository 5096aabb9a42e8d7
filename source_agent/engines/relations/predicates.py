"""From a described relation and a derivation to the `Shape` of the derived relation; no I/O.

A predicate becomes a condition beside the DBA's own `where`: an engine writes each comparison
(`Compare`), this module joins them with AND, OR and NOT. So every read path has the condition.

Invariants: names are quoted from the catalogue's columns; literals are bound, never in the text.
Text is compared by its bytes, whatever collation its column has, as Spark does.

A join is `foreign key IN (SELECT key FROM other relation WHERE …)` with the other relation's own
`where`. The operand stands outside, so that no name of one relation is taken for one of the other.
Rejected: EXISTS, whose condition has to name the outer relation, which engines read in many ways.
Rejected: SQLAlchemy's Core. Four operators and three connectives are shorter than its dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from driftline.errors import DerivationRefused
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    DerivablePart,
    Derivation,
    JoinableReference,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    ReferencePredicate,
    canonical,
    check,
    references_in,
    text_of,
)
from driftline.relations.references import Reference
from driftline.values.types import Column

from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Condition, Consistency, Shape

COLUMNS: Final = "{columns}"  # slots of a template
ROWS: Final = "{rows}"
OPERATOR: Final = "{operator}"
EQUALITY: Final = "{equality}"
ANY: Final = "…"  # any number

# Returns a comparison as SQL. The text is the number of its first value among those of the
# derivation, from 1; an engine whose placeholders have no numbers ignores it.
Compare = Callable[[ColumnPredicate, Column, str], Condition]

# Returns columns that are IN the rows of a SELECT of others, whose text from FROM on is given.
Within = Callable[[Sequence[Column], Sequence[Column], str], str]


@dataclass(frozen=True, slots=True)
class JoinedRelation:
    """A foreign key of a relation, the other relation, and where that leads.

    `is_referring`: the foreign key is one of the other relation; `reference` has it turned.
    """

    reference: Reference
    shape: Shape
    joins: tuple[JoinedRelation, ...] = ()
    is_referring: bool = False

    @property
    def joinable(self) -> JoinableReference:
        """Return what a warehouse may know of it."""
        return JoinableReference(
            self.reference.columns,
            self.reference.relation,
            self.reference.referenced,
            self.shape.recipe.columns,
            self.shape.comparable_by_name,
            tuple(one.joinable for one in self.joins),
            is_referring=self.is_referring,
            rows_expected=max(self.shape.rows_expected, 0),
        )


def derived(
    shape: Shape,
    derivation: Derivation,
    compare: Compare | None,
    within: Within | None = None,
    joins: Sequence[JoinedRelation] = (),
) -> Shape:
    """Return the shape of a derivation: fewer columns, and a condition of its own.

    Rows that are chosen by those of other relations are read in scans, not in pages.

    compare: None only for a shape that compares no column.
    within: None only without joins.

    Raises:
        DerivationRefused: the relation lacks a column, does not compare one, or its database makes
            the fingerprints of all columns.
        LimitExceeded, MalformedMessage: see `driftline.relations.derivations.check`.
    """
    recipe, plan = shape.recipe, plan_of(shape)
    joinable = [one.joinable for one in joins]
    where = shape.relation.name
    check(derivation, recipe.columns, shape.comparable_by_name, joinable, where=where)
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
    if DerivablePart.JOINS in derivation.parts:
        assert within is not None, "an engine that joins nothing offers no join"
        is_fuzzy = any(_is_fuzzy(one) for one in _followed(rows, joins))
        consistency = Consistency.FUZZY if is_fuzzy else plan.consistency
        made = replace(made, plan=replace(plan_of(made), pages=(), consistency=consistency))
    writer = _Writer(compare, within)
    return _restricted(made, writer.condition(rows, shape, joins))


def _followed(rows: Predicate, joins: Sequence[JoinedRelation]) -> list[JoinedRelation]:
    """Return the relations that a predicate asks, each with those behind it."""
    by_path = {one.joinable.path: one for one in joins}
    found = []
    for wanted in references_in(rows):
        one = by_path[wanted.path]
        found += [one, *_followed(wanted.rows, one.joins)]
    return found


def _is_fuzzy(joined: JoinedRelation) -> bool:
    return plan_of(joined.shape).consistency is Consistency.FUZZY


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


def join_forms(
    shape: Shape,
    joins: Sequence[JoinedRelation],
    compare: Compare | None,
    within: Within | None,
) -> list[str]:
    """Return what may stand in ROWS to choose rows by those of other relations.

    Below each form, indented, is what may stand in its own ROWS.
    """
    forms = []
    for one in joins:
        forms.append(join_sql(within, shape, one, ROWS).replace("\0", "%s"))
        there = comparison_forms(one.shape, compare)
        forms += [
            f"  {form}" for form in (*there, *join_forms(one.shape, one.joins, compare, within))
        ]
    return forms


def join_sql(within: Within | None, shape: Shape, joined: JoinedRelation, rows: str) -> str:
    """Return SQL that is true for rows of a relation that join with a row of another one.

    rows: SQL of a condition on the other one, beside its own `where`.
    """
    assert within is not None, "an engine that joins nothing offers no join"
    own = {column.name: column for column in shape.recipe.columns}
    there = {column.name: column for column in joined.shape.recipe.columns}
    plan, reference = plan_of(joined.shape), joined.reference
    where = f"{plan.where} AND ({rows})" if plan.where else f"({rows})"
    return within(
        [own[name] for name in reference.columns],
        [there[name] for name in reference.referenced],
        f"FROM {plan.source} WHERE {where}",
    )


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes predicates as SQL, with the functions of an engine."""

    compare: Compare | None
    within: Within | None

    def condition(
        self, predicate: Predicate, shape: Shape, joins: Sequence[JoinedRelation], bound: int = 0
    ) -> Condition:
        """Return a predicate as SQL with its values, in the order in which the text needs them.

        bound: the number of values that are bound before it.
        """
        match predicate:
            case ColumnPredicate(column):
                assert self.compare is not None, "a column that is compared has a comparison"
                known = {c.name: c for c in shape.recipe.columns}
                return self.compare(predicate, known[column], str(bound + 1))
            case ReferencePredicate(rows=rows):
                joined = next(one for one in joins if one.joinable.path == predicate.path)
                inner = self.condition(rows, joined.shape, joined.joins, bound)
                return Condition(join_sql(self.within, shape, joined, inner.sql), inner.values)
            case NotPredicate(part):
                inner = self.condition(part, shape, joins, bound)
                return Condition(f"NOT ({inner.sql})", inner.values)
            case AndPredicate(parts) | OrPredicate(parts):
                texts: list[str] = []
                values: tuple[object, ...] = ()
                for part in parts:
                    inner = self.condition(part, shape, joins, bound + len(values))
                    texts.append(f"({inner.sql})")
                    values += inner.values
                word = " AND " if isinstance(predicate, AndPredicate) else " OR "
                return Condition(word.join(texts), values)


def _restricted(shape: Shape, extra: Condition) -> Shape:
    plan = plan_of(shape)
    where = f"{plan.where} AND ({extra.sql})" if plan.where else f"({extra.sql})"
    return replace(shape, plan=replace(plan, where=where, values=extra.values))
