"""Derivations: the columns and rows of a relation that a warehouse wants (protocol, section 9).

A derivation is a projection and a selection. It travels as structure: names of columns, operators
and literals, never as SQL. A literal is written in the string form of its column's declared type
(`driftline.values`), so it has that type and one spelling.

A predicate has the three truth values of SQL: a comparison with NULL is neither true nor false, and
a row belongs to the derivation if the predicate is true. `canonical` gives equal predicates that
are written in another order one form; its text belongs to the recipe of the derived relation.

Invariant: what a predicate may say is small enough to be checked before anything is read. Rejected:
arithmetic, functions, LIKE and comparisons of two columns; databases disagree about their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, LimitExceeded, MalformedMessage, ValueDoesNotFit
from driftline.limits import (
    DERIVATION_BYTES_MAX,
    DERIVATION_COMPARISONS_MAX,
    DERIVATION_DEPTH_MAX,
    DERIVATION_VALUES_MAX,
)
from driftline.types import Column
from driftline.values import decode_string, string_encoder

FEATURE = "derive"  # in `DescribeReply.features` and `Open.features`


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

    NOTHING: none. EQUALITY: `=`, `<>`, IN and IS NULL. ORDER: all.
    """

    NOTHING = ""
    EQUALITY = "equality"
    ORDER = "order"

    def allows(self, operator: Operator) -> bool:
        """Return True if the operator has one meaning."""
        return self is Comparable.ORDER or (
            self is Comparable.EQUALITY and not operator.needs_order
        )


class Part(Enum):
    """Parts of a relation that a DBA lets a warehouse choose (`derive` in source.toml)."""

    COLUMNS = "columns"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with literals, in the string form of the column's declared type."""

    column: str
    operator: Operator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Every:
    """AND of one or more predicates."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """OR of one or more predicates."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """NOT of a predicate."""

    part: Predicate


Predicate: TypeAlias = Comparison | Every | Some | Negated


@dataclass(frozen=True, slots=True)
class Derivation:
    """What is wanted of a relation. `columns`: names; None: all. `rows`: None: all.

    The columns of the key are always part of it.
    """

    columns: tuple[str, ...] | None = None
    rows: Predicate | None = None

    @property
    def parts(self) -> frozenset[Part]:
        """Return the parts of the relation that it chooses; none: the whole relation."""
        chosen = {Part.COLUMNS: self.columns is not None, Part.ROWS: self.rows is not None}
        return frozenset(part for part, is_chosen in chosen.items() if is_chosen)


def comparisons(predicate: Predicate) -> Iterator[Comparison]:
    """Yield every comparison of a predicate, from left to right."""
    match predicate:
        case Comparison():
            yield predicate
        case Every(parts) | Some(parts):
            for part in parts:
                yield from comparisons(part)
        case Negated(part):
            yield from comparisons(part)


def canonical(predicate: Predicate) -> Predicate:
    """Return one form of predicates that differ in order, repetition and nesting alone."""
    match predicate:
        case Comparison(column, operator, values):
            if operator is Operator.IN:
                values = tuple(sorted(set(values)))
                if len(values) == 1:
                    operator = Operator.EQUAL
            return Comparison(column, operator, values)
        case Negated(Negated(part)):
            return canonical(part)
        case Negated(part):
            return Negated(canonical(part))
        case Every(parts):
            found = _flat(Every, parts)
            return found[0] if len(found) == 1 else Every(found)
        case Some(parts):
            found = _flat(Some, parts)
            return found[0] if len(found) == 1 else Some(found)


def text_of(predicate: Predicate) -> str:
    """Return a predicate as text that no other predicate has: names in `"`, literals in `'`."""
    match predicate:
        case Comparison(column, Operator.IS_NULL, _):
            return f"{_quoted(column)} IS NULL"
        case Comparison(column, Operator.IN, values):
            return f"{_quoted(column)} IN ({', '.join(map(_literal, values))})"
        case Comparison(column, operator, values):
            return f"{_quoted(column)} {operator.value} {', '.join(map(_literal, values))}"
        case Negated(part):
            return f"NOT ({text_of(part)})"
        case Every(parts):
            return " AND ".join(f"({text_of(part)})" for part in parts)
        case Some(parts):
            return " OR ".join(f"({text_of(part)})" for part in parts)


def check(
    derivation: Derivation, columns: Iterable[Column], comparable: Mapping[str, Comparable]
) -> None:
    """Check a derivation against the relation's columns.

    Args:
        columns: of the relation.
        comparable: by name of column; a column that is missing compares with nothing.

    Raises:
        LimitExceeded: it has too many comparisons, levels, literals or bytes.
        ConfigurationError: a column that the relation lacks, or an operator that has not one
            meaning for its column.
        MalformedMessage: a literal, or a number of literals, that its operator cannot have.
    """
    known = {column.name: column for column in columns}
    for name in derivation.columns or ():
        if name not in known:
            raise ConfigurationError(f"The relation has no column {name!a}.")
    if derivation.columns is not None and len(set(derivation.columns)) < len(derivation.columns):
        raise MalformedMessage("A derivation names a column twice.")
    if derivation.rows is None:
        return
    _check_size(derivation.rows)
    for comparison in comparisons(derivation.rows):
        if comparison.column not in known:
            raise ConfigurationError(f"The relation has no column {comparison.column!a}.")
        if not comparable.get(comparison.column, Comparable.NOTHING).allows(comparison.operator):
            raise ConfigurationError(
                f"{comparison.operator.value} has not one meaning for the column"
                f" {comparison.column!a}, so it is not evaluated at the source.",
                remedy="Evaluate it at the warehouse.",
            )
        _check_values(comparison, known[comparison.column])


def to_message(derivation: Derivation) -> pb.Derivation:
    """Return a derivation as a message."""
    return pb.Derivation(
        columns=derivation.columns or (),
        rows=None if derivation.rows is None else _message(derivation.rows),
    )


def from_message(message: pb.Derivation) -> Derivation:
    """Return the derivation of a message; `check` it against the relation.

    Raises:
        LimitExceeded: it is too large, or too deep.
        MalformedMessage: a node of its predicate is empty, or an operator is unknown.
    """
    if message.ByteSize() > DERIVATION_BYTES_MAX:
        raise LimitExceeded(f"A derivation has at most {DERIVATION_BYTES_MAX:,} bytes.")
    rows = _predicate(message.rows, 1) if message.HasField("rows") else None
    return Derivation(tuple(message.columns) or None, rows)


def _flat(kind: type[Every | Some], parts: Iterable[Predicate]) -> tuple[Predicate, ...]:
    """Return the canonical operands of one AND or OR: without nesting, each once, in order."""
    found: dict[str, Predicate] = {}
    for part in map(canonical, parts):
        for one in part.parts if isinstance(part, kind) else (part,):
            found[text_of(one)] = one
    return tuple(found[key] for key in sorted(found))


def _check_size(predicate: Predicate) -> None:
    found = list(comparisons(predicate))
    if len(found) > DERIVATION_COMPARISONS_MAX:
        raise LimitExceeded(f"A predicate has at most {DERIVATION_COMPARISONS_MAX} comparisons.")
    if sum(len(c.values) for c in found) > DERIVATION_VALUES_MAX:
        raise LimitExceeded(f"A predicate has at most {DERIVATION_VALUES_MAX:,} literals.")
    if depth(predicate) > DERIVATION_DEPTH_MAX:
        raise _too_deep()


def depth(predicate: Predicate) -> int:
    """Return the number of levels of a predicate; 1: a comparison."""
    match predicate:
        case Comparison():
            return 1
        case Negated(part):
            return 1 + depth(part)
        case Every(parts) | Some(parts):
            return 1 + max(map(depth, parts))


def _check_values(comparison: Comparison, column: Column) -> None:
    """Raise MalformedMessage if literals do not fit the operator, or the type of the column."""
    number = len(comparison.values)
    wanted = {Operator.IS_NULL: number == 0, Operator.IN: number > 0}
    if not wanted.get(comparison.operator, number == 1):
        raise MalformedMessage(f"{comparison.operator.value} does not take {number} literals.")
    encode = string_encoder(column.type)
    for value in comparison.values:
        try:
            is_one = decode_string(column.type, encode(value)) == value
        except ValueDoesNotFit:
            is_one = False
        if not is_one:
            raise MalformedMessage(f"A literal for {column.name!a} is not of type {column.type}.")


def _message(predicate: Predicate) -> pb.Predicate:
    match predicate:
        case Comparison(column, operator, values):
            one = pb.Comparison(column=column, operator=operator.value, values=values)
            return pb.Predicate(comparison=one)
        case Every(parts):
            return pb.Predicate(every=pb.Predicates(parts=map(_message, parts)))
        case Some(parts):
            return pb.Predicate(some=pb.Predicates(parts=map(_message, parts)))
        case Negated(part):
            return pb.Predicate(negated=_message(part))


def _predicate(message: pb.Predicate, level: int) -> Predicate:
    if level > DERIVATION_DEPTH_MAX:
        raise _too_deep()
    match message.WhichOneof("node"):
        case "comparison":
            return _comparison(message.comparison)
        case "negated":
            return Negated(_predicate(message.negated, level + 1))
        case "every":
            return Every(_parts(message.every, level))
        case "some":
            return Some(_parts(message.some, level))
        case _:
            raise MalformedMessage("A node of a predicate is empty.")


def _parts(message: pb.Predicates, level: int) -> tuple[Predicate, ...]:
    if not message.parts:
        raise MalformedMessage("AND or OR of a predicate has no operand.")
    return tuple(_predicate(part, level + 1) for part in message.parts)


def _comparison(message: pb.Comparison) -> Comparison:
    try:
        operator = Operator(message.operator)
    except ValueError:
        raise MalformedMessage(f"{message.operator[:20]!a} is not an operator.") from None
    return Comparison(message.column, operator, tuple(message.values))


def _too_deep() -> LimitExceeded:
    return LimitExceeded(f"A predicate has at most {DERIVATION_DEPTH_MAX} levels.")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
