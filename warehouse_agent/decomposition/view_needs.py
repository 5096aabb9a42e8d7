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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    OrPredicate,
    Predicate,
    canonical,
    check,
    check_size,
    text_of,
)
from driftline.values.types import Recipe

from warehouse_agent.decomposition.conditions import (
    ComparedColumn,
    Condition,
    PushedCondition,
    form_of,
    pushed,
)

RULES = 2  # changes when the same views get another derivation


@dataclass(frozen=True, slots=True)
class Conjunct:
    """A condition that each row of a view fulfils, as text for people, and as read."""

    text: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class OccurrenceNeed:
    """The need that one occurrence in a view's query has of its table.

    Attributes:
        view, alias: where it occurs.
        columns: names that the query uses with this alias, in lower case.
        unqualified: names without an alias, in lower case; they may be of other tables.
        conjuncts: conditions on this occurrence, or on it and others.
    """

    view: str
    alias: str
    columns: frozenset[str]
    unqualified: frozenset[str] = frozenset()
    conjuncts: tuple[Conjunct, ...] = ()


@dataclass(frozen=True, slots=True)
class DerivationOffer:
    """A relation, and what its source lets a warehouse choose of it.

    Attributes:
        recipe: of the whole relation.
        names: published names of its columns, in tuple order.
        comparable: by name of column at the source.
        allowed: parts that the DBA lets a warehouse choose.
    """

    recipe: Recipe
    names: tuple[str, ...]
    comparable: Mapping[str, Comparable] = field(default_factory=dict)
    allowed: frozenset[DerivablePart] = frozenset()

    @property
    def compares(self) -> dict[str, ComparedColumn]:
        """Return the columns by published name in lower case."""
        return {
            name.lower(): ComparedColumn(c, self.comparable.get(c.name, Comparable.NOTHING))
            for c, name in zip(self.recipe.columns, self.names, strict=True)
        }


@dataclass(frozen=True, slots=True)
class NeedShare:
    """The share of one wish: the rows that it needs, None: all; and what becomes of each
    conjunct."""

    wish: OccurrenceNeed
    columns: tuple[str, ...]
    rows: Predicate | None
    conjuncts: tuple[tuple[Conjunct, PushedCondition], ...]


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
    needs = _share(wish, DerivationOffer(offer.recipe, offer.names, every)).rows
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
        return isinstance(a, AndPredicate) and any(proven(part, b) for part in a.parts)

    return proven(strong, weak)


def _signature(wish: OccurrenceNeed) -> tuple[list[str], list[str], list[str]]:
    conditions = sorted(form_of(conjunct.condition) for conjunct in wish.conjuncts)
    return sorted(wish.columns), sorted(wish.unqualified), conditions


def _share(wish: OccurrenceNeed, offer: DerivationOffer) -> NeedShare:
    known = offer.compares
    used = {known[name].column.name for name in wish.columns | wish.unqualified if name in known}
    columns = tuple(c.name for c in offer.recipe.columns if c.name in used)
    conjuncts = tuple((c, _within_limits(pushed(c.condition, known))) for c in wish.conjuncts)
    kept = tuple(p.predicate for _, p in conjuncts if p.predicate is not None)
    return NeedShare(wish, columns, canonical(AndPredicate(kept)) if kept else None, conjuncts)


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
        check(derivation, offer.recipe.columns, offer.comparable)
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
