"""Derivations: the columns and rows of a relation that a warehouse wants (protocol, section 9).

A derivation is a projection and a selection. It travels as structure: names of columns, operators
and literals, never as SQL. A literal is written in the string form of its column's declared type
(`send_format`), so it has that type and one spelling. The columns of the key and those of the
predicate are always part of the projection: the recipe then has the types that its literals have.

A predicate may ask for the row that a row references by a foreign key, or for one that references
it (`ReferencePredicate`), so that of relations of one site only rows are left that join. Such a
semi-join multiplies no row, also where the database does not enforce the foreign key.

A predicate has the three truth values of SQL: a comparison with NULL is neither true nor false, and
a row belongs to the derivation if the predicate is true. Numbers, dates and timestamps are compared
by value, text by its bytes in UTF-8. `canonical` gives equal predicates that are written in another
order one form; its text belongs to the recipe of the derived relation.

Invariant: what a predicate may say is small enough to be checked before anything is read. Rejected:
arithmetic, functions, LIKE and comparisons of two columns; databases disagree about their results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from driftline.errors import DerivationRefused, LimitExceeded, MalformedMessage, ValueDoesNotFit
from driftline.limits import (
    DERIVATION_COMPARISONS_MAX,
    DERIVATION_DEPTH_MAX,
    DERIVATION_VALUES_MAX,
)
from driftline.values.send_format import decode_string, string_encoder
from driftline.values.types import Column, DeclaredType

FEATURE: Final = "derive"  # in `DescribeReply.features` and `Open.features`

_SHOWN_MAX: Final = 60  # characters of a name in an error

# Kinds of types whose literals are compared, and the literals that no carrier of Spark holds.
_KINDS: Final = frozenset({"int2", "int4", "int8", "numeric", "date", "timestamp", "text"})
_UNHELD: Final = re.compile(r"infinity|-.*|0000-.*|\d{5,}-.*")  # instants


class Operator(Enum):
    """Operators between a column and literals; IS_NULL has no literal, IN one or more."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    IN = "IN"
    IS_NULL = "IS NULL"

    @property
    def needs_order(self) -> bool:
        """True if its result depends on the order of values."""
        return self in (
            Operator.LESS, Operator.LESS_EQUAL, Operator.GREATER, Operator.GREATER_EQUAL,
        )  # fmt: skip


class Comparable(Enum):
    """The operators that mean the same at the source and in Spark, for one column.

    NOTHING: none. EQUALITY: `=`, `<>`, IN and IS NULL. ORDER: all. A word of a newer source, which
    `Comparable(word)` does not know, is NOTHING.
    """

    NOTHING = ""
    EQUALITY = "equality"
    ORDER = "order"

    @classmethod
    def _missing_(cls, value: object) -> Comparable | None:
        return cls.NOTHING if isinstance(value, str) else None

    def allows(self, operator: Operator) -> bool:
        """Return True if the operator has one meaning."""
        return self is Comparable.ORDER or (
            self is Comparable.EQUALITY and not operator.needs_order
        )


class DerivablePart(Enum):
    """Parts of a relation that a DBA lets a warehouse choose (`derive` in source.toml)."""

    COLUMNS = "columns"
    ROWS = "rows"
    JOINS = "joins"


@dataclass(frozen=True, slots=True)
class ColumnPredicate:
    """A column compared with literals, in the string form of the column's declared type."""

    column: str
    operator: Operator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AndPredicate:
    """AND of one or more predicates."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class OrPredicate:
    """OR of one or more predicates."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class NotPredicate:
    """NOT of a predicate."""

    part: Predicate


ReferencePath: TypeAlias = tuple[str, frozenset[tuple[str, str]]]  # a relation, pairs of columns


@dataclass(frozen=True, slots=True)
class ReferencePredicate:
    """True if a row of another relation has equal columns, and fulfils a predicate.

    A NULL equals nothing. It never stands below NOT.

    Attributes:
        columns, relation, referenced: pairs of columns along a foreign key of either relation.
        rows: a predicate on the columns of `relation`.
        types: name and declared type of each column that `rows` compares, by name.
    """

    columns: tuple[str, ...]
    relation: str
    referenced: tuple[str, ...]
    rows: Predicate
    types: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> ReferencePath:
        """Return the foreign key, in whatever order its columns are."""
        return self.relation, frozenset(zip(self.columns, self.referenced, strict=True))


Predicate: TypeAlias = (
    ColumnPredicate | AndPredicate | OrPredicate | NotPredicate | ReferencePredicate
)


@dataclass(frozen=True, slots=True)
class JoinableReference:
    """A foreign key along which a `ReferencePredicate` may go, and what is there.

    `known`, `comparable`: the columns of the other relation, as `check` takes them.
    `references`: the foreign keys along which it may go on.
    `is_referring`: it is one of the other relation, several of whose rows may match.
    `rows_expected`: of the other relation, by its source's estimate; 0: not known.
    """

    columns: tuple[str, ...]
    relation: str
    referenced: tuple[str, ...]
    known: tuple[Column, ...]
    comparable: Mapping[str, Comparable]
    references: tuple[JoinableReference, ...] = ()
    is_referring: bool = False
    rows_expected: int = 0

    @property
    def path(self) -> ReferencePath:
        """Return the foreign key, in whatever order its columns are."""
        return self.relation, frozenset(zip(self.columns, self.referenced, strict=True))


@dataclass(frozen=True, slots=True)
class Derivation:
    """Columns and rows of a relation. `columns`: one name or more; None: all. `rows`: None: all.

    The columns of the key and of the predicate are always part of it; see `names`.
    Raises MalformedMessage if `columns` is empty, which a message could not tell from None.
    """

    columns: tuple[str, ...] | None = None
    rows: Predicate | None = None

    def __post_init__(self) -> None:
        if self.columns == ():
            raise MalformedMessage("A derivation names at least one column, or none to have all.")

    @property
    def parts(self) -> frozenset[DerivablePart]:
        """Return the parts of the relation that it chooses; none: the whole relation."""
        chosen = {
            DerivablePart.COLUMNS: self.columns is not None,
            DerivablePart.ROWS: self.rows is not None,
            DerivablePart.JOINS: self.rows is not None and any(references_in(self.rows)),
        }
        return frozenset(part for part, is_chosen in chosen.items() if is_chosen)

    @property
    def names(self) -> frozenset[str] | None:
        """Return the columns that it wants beside those of the key; None: all."""
        if self.columns is None:
            return None
        return frozenset(self.columns) | (columns_in(self.rows) if self.rows else frozenset())


def comparisons(predicate: Predicate) -> Iterator[ColumnPredicate]:
    """Yield every comparison of a predicate with a column of the relation itself."""
    for leaf in _leaves(predicate):
        if isinstance(leaf, ColumnPredicate):
            yield leaf


def references_in(predicate: Predicate) -> Iterator[ReferencePredicate]:
    """Yield every foreign key of the relation itself along which a predicate goes."""
    for leaf in _leaves(predicate):
        if isinstance(leaf, ReferencePredicate):
            yield leaf


def relations_in(predicate: Predicate) -> Iterator[str]:
    """Yield the name of every relation with which a predicate joins."""
    for one in references_in(predicate):
        yield one.relation
        yield from relations_in(one.rows)


def columns_in(predicate: Predicate) -> frozenset[str]:
    """Return the columns of the relation itself that a predicate names."""
    compared = {comparison.column for comparison in comparisons(predicate)}
    return frozenset(compared.union(*(one.columns for one in references_in(predicate))))


def _leaves(predicate: Predicate) -> Iterator[ColumnPredicate | ReferencePredicate]:
    """Yield what AND, OR and NOT connect, from left to right."""
    match predicate:
        case ColumnPredicate() | ReferencePredicate():
            yield predicate
        case AndPredicate(parts) | OrPredicate(parts):
            for part in parts:
                yield from _leaves(part)
        case NotPredicate(part):
            yield from _leaves(part)


def canonical(predicate: Predicate) -> Predicate:
    """Return one form of predicates that differ in order, repetition and nesting alone."""
    match predicate:
        case ColumnPredicate(column, operator, values):
            if operator is Operator.IN:
                values = tuple(sorted(set(values)))
                if len(values) == 1:
                    operator = Operator.EQUAL
            return ColumnPredicate(column, operator, values)
        case ReferencePredicate(columns, relation, referenced, rows, types):
            own, other = zip(*sorted(zip(columns, referenced, strict=True)), strict=True)
            return ReferencePredicate(own, relation, other, canonical(rows), tuple(sorted(types)))
        case NotPredicate(part):
            inner = canonical(part)
            return inner.part if isinstance(inner, NotPredicate) else NotPredicate(inner)
        case AndPredicate(parts):
            operands = _flat(AndPredicate, parts)
            return operands[0] if len(operands) == 1 else AndPredicate(operands)
        case OrPredicate(parts):
            operands = _flat(OrPredicate, parts)
            return operands[0] if len(operands) == 1 else OrPredicate(operands)


def text_of(predicate: Predicate) -> str:
    """Return a canonical predicate as text that no other one has: names in `"`, literals in `'`.

    It looks like SQL and is shown and compared, but never sent to a database.
    """
    match predicate:
        case ColumnPredicate(column, Operator.IS_NULL, _):
            return f"{_quoted(column)} IS NULL"
        case ColumnPredicate(column, Operator.IN, values):
            return f"{_quoted(column)} IN ({', '.join(map(_literal, values))})"
        case ColumnPredicate(column, operator, values):
            return f"{_quoted(column)} {operator.value} {', '.join(map(_literal, values))}"
        case ReferencePredicate(columns, relation, referenced, rows, types):
            own, other = (", ".join(map(_quoted, names)) for names in (columns, referenced))
            typed = ", ".join(f"{_quoted(name)} {type}" for name, type in types)
            there = f"SELECT {other} FROM {_quoted(relation)} ({typed}) WHERE {text_of(rows)}"
            return f"({own}) IN ({there})"
        case NotPredicate(part):
            return f"NOT ({text_of(part)})"
        case AndPredicate(parts):
            return " AND ".join(f"({text_of(part)})" for part in parts)
        case OrPredicate(parts):
            return " OR ".join(f"({text_of(part)})" for part in parts)


def check(
    derivation: Derivation,
    columns: Iterable[Column],
    comparable: Mapping[str, Comparable],
    references: Iterable[JoinableReference] = (),
    *,
    where: str = "",
) -> None:
    """Check a derivation against the relation's columns.

    Args:
        columns: of the relation.
        comparable: by name of column; a column that is missing compares with nothing.
        references: along which its rows may be chosen by others.
        where: the place for errors, such as the relation's name.

    Raises:
        LimitExceeded: it has too many comparisons, levels or literals.
        DerivationRefused: a column that the relation lacks, an operator that has not one meaning
            for its column, or a join that is none of `references`.
        MalformedMessage: a literal, or a number of literals, that its operator cannot have; a join
            below NOT.
    """
    known = {column.name: column for column in columns}
    for name in derivation.columns or ():
        if name not in known:
            raise _no_column(name, where)
    if derivation.columns is not None and len(set(derivation.columns)) < len(derivation.columns):
        raise MalformedMessage("A derivation names a column twice.", where=where)
    if derivation.rows is None:
        return
    check_size(derivation.rows, where)
    if any(any(references_in(part)) for part in _negated(derivation.rows)):
        raise MalformedMessage("A join of a derivation stands below NOT.", where=where)
    _check_rows(derivation.rows, known, comparable, references, where)


def _check_rows(
    rows: Predicate,
    known: Mapping[str, Column],
    comparable: Mapping[str, Comparable],
    references: Iterable[JoinableReference],
    where: str,
) -> None:
    """Check the comparisons of a predicate, and the joins of it."""
    for comparison in comparisons(rows):
        if comparison.column not in known:
            raise _no_column(comparison.column, where)
        if not comparable.get(comparison.column, Comparable.NOTHING).allows(comparison.operator):
            raise DerivationRefused(
                f"{comparison.operator.value} does not mean the same at the source and in Spark for"
                f" the column {_shown(comparison.column)}.",
                where=where,
            )
        _check_values(comparison, known[comparison.column], where)
    offered = {one.path: one for one in references}
    for wanted in references_in(rows):
        if (joined := offered.get(wanted.path)) is None:
            own = ", ".join(map(_shown, wanted.columns))
            raise DerivationRefused(
                f"No foreign key joins {own} with a relation {_shown(wanted.relation)} whose rows"
                " this warehouse may choose.",
                where=where,
                remedy="Declare FOREIGN KEY … REFERENCES in the database. The other relation needs"
                ' derive = ["rows"], and no `scan`.',
            )
        there = {column.name: column for column in joined.known}
        _check_types(wanted, there, where)
        _check_rows(wanted.rows, there, joined.comparable, joined.references, where)


def _check_types(wanted: ReferencePredicate, there: Mapping[str, Column], where: str) -> None:
    """Check that a join says the types that the compared columns of the other relation have."""
    said = dict(wanted.types)
    if len(said) < len(wanted.types) or said.keys() != {c.column for c in comparisons(wanted.rows)}:
        raise MalformedMessage("A join of a derivation needs the type of each column.", where=where)
    for name, type in wanted.types:
        if name not in there:
            raise _no_column(name, f"{where}: {wanted.relation}")
        if str(there[name].type) != type:
            raise DerivationRefused(
                f"The column {_shown(name)} of {_shown(wanted.relation)} is"
                f" {there[name].type}, not {_shown(type)}.",
                where=where,
            )


def _negated(predicate: Predicate) -> Iterator[Predicate]:
    """Yield what stands below NOT, on each side of a join."""
    match predicate:
        case NotPredicate(part):
            yield part
        case AndPredicate(parts) | OrPredicate(parts):
            for part in parts:
                yield from _negated(part)
        case ReferencePredicate(rows=rows):
            yield from _negated(rows)


def is_literal(type: DeclaredType, text: str) -> bool:
    """Return True if a text is the one spelling of a value of the type that may be compared.

    That is a value that the type's native carrier holds. NaN, infinities and years outside
    0001-9999 are none, and neither is text with a zero byte, which PostgreSQL does not know.
    """
    if type.kind not in _KINDS or (type.kind == "numeric" and type.precision is None):
        return False
    is_held = "\0" not in text if type.kind == "text" else _is_held(type, text)
    try:
        return is_held and decode_string(type, string_encoder(type)(text)) == text
    except ValueDoesNotFit:
        return False


def _is_held(type: DeclaredType, text: str) -> bool:
    if type.kind in {"date", "timestamp"}:
        return not _UNHELD.fullmatch(text)
    return text != "NaN"


def _flat(
    kind: type[AndPredicate | OrPredicate], parts: Iterable[Predicate]
) -> tuple[Predicate, ...]:
    """Return the canonical operands of one AND or OR: without nesting, each once, in order."""
    by_text: dict[str, Predicate] = {}
    for part in map(canonical, parts):
        for one in part.parts if isinstance(part, kind) else (part,):
            by_text[text_of(one)] = one
    return tuple(by_text[key] for key in sorted(by_text))


def check_size(predicate: Predicate, where: str = "") -> None:
    """Raise LimitExceeded if a predicate has too many levels, comparisons or literals."""
    if depth(predicate) > DERIVATION_DEPTH_MAX:
        raise too_deep(where)
    leaves = list(_every_comparison(predicate))
    if len(leaves) > DERIVATION_COMPARISONS_MAX:
        raise LimitExceeded(
            f"A predicate has at most {DERIVATION_COMPARISONS_MAX} comparisons.", where=where
        )
    if sum(len(c.values) for c in leaves) > DERIVATION_VALUES_MAX:
        raise LimitExceeded(
            f"A predicate has at most {DERIVATION_VALUES_MAX:,} literals.", where=where
        )


def _every_comparison(predicate: Predicate) -> Iterator[ColumnPredicate]:
    """Yield every comparison of a predicate, also with columns of other relations."""
    yield from comparisons(predicate)
    for one in references_in(predicate):
        yield from _every_comparison(one.rows)


def depth(predicate: Predicate) -> int:
    """Return the number of levels of a predicate; 1: a comparison."""
    match predicate:
        case ColumnPredicate():
            return 1
        case NotPredicate(part) | ReferencePredicate(rows=part):
            return 1 + depth(part)
        case AndPredicate(parts) | OrPredicate(parts):
            return 1 + max(map(depth, parts))


def _check_values(comparison: ColumnPredicate, column: Column, where: str) -> None:
    """Raise MalformedMessage if literals do not fit the operator, or the type of the column."""
    number = len(comparison.values)
    wanted = {Operator.IS_NULL: number == 0, Operator.IN: number > 0}
    if not wanted.get(comparison.operator, number == 1):
        raise MalformedMessage(
            f"{comparison.operator.value} does not take {number} literals.", where=where
        )
    for value in comparison.values:
        if not is_literal(column.type, value):
            raise MalformedMessage(
                f"A literal for {_shown(column.name)} is not one of type {column.type}.",
                where=where,
            )


def too_deep(where: str = "") -> LimitExceeded:
    """Return the error of a predicate that has too many levels."""
    return LimitExceeded(f"A predicate has at most {DERIVATION_DEPTH_MAX} levels.", where=where)


def _no_column(name: str, where: str) -> DerivationRefused:
    return DerivationRefused(f"The relation has no column {_shown(name)}.", where=where)


def _shown(name: str) -> str:
    return ascii(name if len(name) <= _SHOWN_MAX else name[:_SHOWN_MAX] + "…")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
