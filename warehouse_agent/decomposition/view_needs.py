"""Decomposition: the columns and rows of a relation that views need, as one derivation.

A relation that is kept for views serves several occurrences of several views. Its columns are those
that some view uses, and the key. Its rows are those that some view may use: the OR of what the
conditions of each occurrence imply; an occurrence without any needs all rows. The DBA allows the
choice of columns and of rows, and the source says which operators mean the same in Spark.

Lu, Liu and Hyland, IV.A: a view V over sites is φ₁ ⋈ … ⋈ φₙ, where φᵢ is Rᵢ projected and selected
by what V needs of it. They compare φᵢ with Π(V); here φᵢ is kept, because V has only joined rows.

Invariant (`lacks`): a view is evaluated from a version only if the version's derivation has every
column that the view uses, and every row that the view's conditions let through. `united` makes
such a derivation for each wish; `lacks` proves it anew, from the version alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from blake3 import blake3
from driftline.errors import LimitExceeded
from driftline.limits import DERIVATION_BYTES_MAX
from driftline.relations.derivation_messages import to_message
from driftline.relations.derivations import (
    AndPredicate,
    Comparable,
    DerivablePart,
    Derivation,
    JoinableReference,
    OrPredicate,
    Predicate,
    ReferencePath,
    ReferencePredicate,
    canonical,
    check,
    check_size,
    comparisons,
    references_in,
    text_of,
)
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.decomposition.conditions import (
    ComparedColumn,
    Condition,
    PushedCondition,
    form_of,
    pushed,
)

_PLAIN = re.compile(r"\w+")  # a name that is published as it is
RULES = 2  # changes when the same views get another derivation
_JOIN_RULES = 2  # when only views with joins at a site do


@dataclass(frozen=True, slots=True)
class Conjunct:
    """A condition that each row of a view fulfils, as text for people, and as read."""

    text: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class JoinNeed:
    """The rows of another table of the same source that an occurrence joins with.

    Attributes:
        equal: pairs of columns that are equal, of the occurrence and of the other table, as names
            in lower case.
        relation: the other table, as its source publishes it.
        conjuncts: conditions on the other one.
        joins: the tables with which that one joins.
    """

    equal: frozenset[tuple[str, str]]
    relation: str
    conjuncts: tuple[Conjunct, ...]
    joins: tuple[JoinNeed, ...] = ()

    @property
    def relations(self) -> frozenset[str]:
        """Return the other table, and those with which it joins."""
        return frozenset({self.relation}).union(*(join.relations for join in self.joins))


@dataclass(frozen=True, slots=True)
class OccurrenceNeed:
    """The need that one occurrence in a view's query has of its table.

    Attributes:
        view, alias: where it occurs.
        columns: names that the query uses with this alias, in lower case.
        unqualified: names without an alias, in lower case; they may be of other tables.
        conjuncts: conditions on this occurrence, or on it and others.
        joins: tables of the same source by whose conditions its rows may be chosen.
    """

    view: str
    alias: str
    columns: frozenset[str]
    unqualified: frozenset[str] = frozenset()
    conjuncts: tuple[Conjunct, ...] = ()
    joins: tuple[JoinNeed, ...] = ()

    @property
    def relations(self) -> frozenset[str]:
        """Return the tables of its source by whose conditions its rows may be chosen."""
        return frozenset[str]().union(*(join.relations for join in self.joins))


@dataclass(frozen=True, slots=True)
class DerivationOffer:
    """A relation, and what its source lets a warehouse choose of it.

    Attributes:
        recipe: of the whole relation.
        names: published names of its columns, in tuple order.
        comparable: by name of column at the source.
        allowed: parts that the DBA lets a warehouse choose.
        references: foreign keys along which its rows may be chosen.
        referring_at_most: rows of relations that reference it that may be read; None: any number.
    """

    recipe: Recipe
    names: tuple[str, ...]
    comparable: Mapping[str, Comparable] = field(default_factory=dict)
    allowed: frozenset[DerivablePart] = frozenset()
    references: tuple[JoinableReference, ...] = ()
    referring_at_most: int | None = None

    @property
    def compares(self) -> dict[str, ComparedColumn]:
        """Return the columns by published name in lower case."""
        return {
            name.lower(): ComparedColumn(c, self.comparable.get(c.name, Comparable.NOTHING))
            for c, name in zip(self.recipe.columns, self.names, strict=True)
        }


@dataclass(frozen=True, slots=True)
class NeedShare:
    """The share of one wish: the rows that it needs, None: all; what becomes of each conjunct; and
    the joins that choose rows."""

    wish: OccurrenceNeed
    columns: tuple[str, ...]
    rows: Predicate | None
    conjuncts: tuple[tuple[Conjunct, PushedCondition], ...]
    joins: tuple[ReferencePredicate, ...] = ()


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The derivation of a relation for all its wishes; None: the whole relation.

    `why`: for each part that is not chosen, the reason.
    """

    derivation: Derivation | None
    shares: tuple[NeedShare, ...]
    why: Mapping[DerivablePart, str]


def wish_id(wishes: Iterable[OccurrenceNeed]) -> str:
    """Return a text that differs for wishes with other columns or conditions."""
    said = sorted({repr(_signature(wish)) for wish in wishes})
    return blake3(repr((RULES, said)).encode()).hexdigest(16)


def united(wishes: Sequence[OccurrenceNeed], offer: DerivationOffer) -> Decomposition:
    """Return the derivation that serves every wish; it always has the key columns."""
    shares = tuple(_share(wish, offer) for wish in wishes)
    columns, why_columns = _columns(shares, offer)
    rows, why_rows = _rows(shares, offer)
    derivation = Derivation(columns, rows)
    why = {DerivablePart.COLUMNS: why_columns, DerivablePart.ROWS: why_rows}
    return Decomposition(
        derivation if derivation.parts else None, shares, {p: w for p, w in why.items() if w}
    )


def lacks(
    wish: OccurrenceNeed,
    derivation: Derivation,
    offer: DerivationOffer,
    relation: Collection[str] | None = None,
) -> str | None:
    """Return what a derived relation lacks for a wish; None if it has all that the wish needs.

    Args:
        offer: the columns that the derived relation has.
        relation: the columns of the whole relation, in lower case, if they are known: a name that
            is none of them is a mistake of the query, and nothing that is lacking.
    """
    missing = wish.columns - offer.compares.keys()
    if relation is not None:
        missing &= {*relation}
    if derivation.columns is not None and missing:
        return f"lacks the column {min(missing)}"
    if derivation.rows is None:
        return None
    every = dict.fromkeys((c.name for c in offer.recipe.columns), Comparable.ORDER)
    references = tuple(_known_of(one) for one in _every_reference(derivation.rows))
    free = DerivationOffer(offer.recipe, offer.names, every, references=references)
    needs = _share(wish, free).rows
    if needs is not None and implies(needs, canonical(derivation.rows)):
        return None
    return f"has only the rows where {text_of(derivation.rows)}"


def implies(strong: Predicate, weak: Predicate) -> bool:
    """Return True if each row for which `strong` is true is one for which `weak` is.

    Both are canonical. True is proven from the structure of both; False may be wrong.
    """

    @cache
    def proven(a: Predicate, b: Predicate) -> bool:
        if a == b:
            return True
        if isinstance(b, AndPredicate):
            return all(proven(a, part) for part in b.parts)
        if isinstance(a, OrPredicate):
            return all(proven(part, b) for part in a.parts)
        if isinstance(b, OrPredicate) and any(proven(a, part) for part in b.parts):
            return True
        if isinstance(a, ReferencePredicate) and isinstance(b, ReferencePredicate):
            return a.path == b.path and proven(a.rows, b.rows)
        return isinstance(a, AndPredicate) and any(proven(part, b) for part in a.parts)

    return proven(strong, weak)


def _every_reference(rows: Predicate) -> list[ReferencePredicate]:
    """Return the joins of a predicate; those along one foreign key are united."""
    by_path: dict[ReferencePath, ReferencePredicate] = {}
    for one in references_in(rows):
        if (known := by_path.get(one.path)) is not None:
            types = tuple(dict((*known.types, *one.types)).items())
            by_path[one.path] = replace(
                known, rows=OrPredicate((known.rows, one.rows)), types=types
            )
        else:
            by_path[one.path] = one
    return list(by_path.values())


def _known_of(joined: ReferencePredicate) -> JoinableReference:
    """Return what a join of a published version tells of the relation that it asks."""
    columns = tuple(
        Column(name, parse_type(type), nullable=True, ordinal=at)
        for at, (name, type) in enumerate(joined.types)
    )
    return JoinableReference(
        joined.columns,
        joined.relation,
        joined.referenced,
        columns,
        {column.name: Comparable.ORDER for column in columns},
        tuple(_known_of(one) for one in _every_reference(joined.rows)),
    )


def _joined(
    needs: Iterable[JoinNeed],
    own: Mapping[str, ComparedColumn],
    references: Sequence[JoinableReference],
    at_most: int | None,
) -> tuple[ReferencePredicate, ...]:
    """Return the joins along foreign keys, with the conditions on what is there.

    A join without a condition is left out, and so is one for which a source would have to read too
    many rows of relations that reference it, or nobody knows how many.

    Args:
        own: columns of the relation, by published name in lower case.
        at_most: as `DerivationOffer.referring_at_most`.
    """
    found = []
    for need in needs:
        equal = {(own[a].column.name.lower() if a in own else a, b) for a, b in need.equal}
        for one in references:
            names = zip(one.columns, one.referenced, strict=True)
            is_along = {(a.lower(), b.lower()) for a, b in names} <= equal
            there = _plainly_named(one)
            if one.relation != need.relation or not is_along or there is None:
                continue
            left = at_most
            if at_most is not None and one.is_referring:
                left = at_most - one.rows_expected
                if left < 0 or not one.rows_expected:
                    continue
            conditions = [pushed(conjunct.condition, there) for conjunct in need.conjuncts]
            parts: list[Predicate] = [p.predicate for p in conditions if p.predicate is not None]
            parts += _joined(need.joins, there, one.references, left)
            if not parts:
                continue
            rows = canonical(AndPredicate(tuple(parts)))
            compared = {comparison.column for comparison in comparisons(rows)}
            types = tuple((c.name, str(c.type)) for c in one.known if c.name in compared)
            made = ReferencePredicate(one.columns, one.relation, one.referenced, rows, types)
            if _within_limits(PushedCondition(made)).predicate is not None:
                found.append(made)
    return tuple(found)


def rows_read(joins: Iterable[ReferencePredicate], references: Sequence[JoinableReference]) -> int:
    """Return the rows of other relations that a database reads to choose rows by these joins, by
    its source's estimates."""
    offered = {one.path: one for one in references}
    return sum(
        there.rows_expected + rows_read(references_in(join.rows), there.references)
        for join in joins
        for there in (offered[join.path],)
    )


def _plainly_named(joined: JoinableReference) -> dict[str, ComparedColumn] | None:
    """Return the columns of a referenced relation by name in lower case; None if some might be
    published under another name than they have at the source."""
    named = {
        column.name.lower(): ComparedColumn(
            column, joined.comparable.get(column.name, Comparable.NOTHING)
        )
        for column in joined.known
    }
    is_plain = len(named) == len(joined.known) and all(map(_PLAIN.fullmatch, named))
    return named if is_plain else None


def _signature(wish: OccurrenceNeed) -> tuple[object, ...]:
    conditions = sorted(form_of(conjunct.condition) for conjunct in wish.conjuncts)
    joins = sorted(map(_join_form, wish.joins))
    said = sorted(wish.columns), sorted(wish.unqualified), conditions
    return (*said, joins, _JOIN_RULES) if joins else said


def _join_form(join: JoinNeed) -> str:
    conditions = sorted(form_of(conjunct.condition) for conjunct in join.conjuncts)
    then = sorted(map(_join_form, join.joins))
    return repr((sorted(join.equal), join.relation, conditions, then))


def _share(wish: OccurrenceNeed, offer: DerivationOffer) -> NeedShare:
    known = offer.compares
    used = {known[name].column.name for name in wish.columns | wish.unqualified if name in known}
    columns = tuple(c.name for c in offer.recipe.columns if c.name in used)
    conjuncts = tuple((c, _within_limits(pushed(c.condition, known))) for c in wish.conjuncts)
    joins = _joined(wish.joins, known, offer.references, offer.referring_at_most)
    kept = (*(p.predicate for _, p in conjuncts if p.predicate is not None), *joins)
    rows = canonical(AndPredicate(kept)) if kept else None
    return NeedShare(wish, columns, rows, conjuncts, joins)


def _within_limits(implied: PushedCondition) -> PushedCondition:
    """Return what is pushed of a conjunct; nothing if it alone is more than a source takes."""
    if implied.predicate is None:
        return implied
    try:
        check_size(canonical(implied.predicate))
    except LimitExceeded as error:
        return PushedCondition(None, (*implied.why, f"it is too large: {error.message}"))
    return implied


def _columns(
    shares: Iterable[NeedShare], offer: DerivationOffer
) -> tuple[tuple[str, ...] | None, str]:
    if DerivablePart.COLUMNS not in offer.allowed:
        return None, "the DBA does not allow a choice of columns"
    used = {name for share in shares for name in share.columns}
    used |= {column.name for column in offer.recipe.key}
    if len(used) == len(offer.recipe.columns):
        return None, "views need every column"
    return tuple(c.name for c in offer.recipe.columns if c.name in used), ""


def _rows(shares: Sequence[NeedShare], offer: DerivationOffer) -> tuple[Predicate | None, str]:
    if DerivablePart.ROWS not in offer.allowed:
        return None, "the DBA does not allow a choice of rows"
    needs = []
    for share in shares:
        if share.rows is None:
            return None, f"{share.wish.view} needs every row of {share.wish.alias}"
        needs.append(share.rows)
    if not needs:
        return None, "no view needs it"
    weakest = [p for i, p in enumerate(needs) if not _is_covered(p, i, needs)]
    rows = canonical(OrPredicate(tuple(weakest)))
    derivation = Derivation(rows=rows)
    try:
        check(derivation, offer.recipe.columns, offer.comparable, offer.references)
        if to_message(derivation).ByteSize() > DERIVATION_BYTES_MAX:
            raise LimitExceeded(f"A derivation has at most {DERIVATION_BYTES_MAX:,} bytes.")
    except LimitExceeded as error:
        return None, f"what all views need is too large: {error.message}"
    return rows, ""


def _is_covered(one: Predicate, number: int, needs: Sequence[Predicate]) -> bool:
    """Return True if another need lets the rows of this one through; of equals the first stays."""
    return any(
        implies(one, other) and (i < number or not implies(other, one))
        for i, other in enumerate(needs)
        if i != number
    )
