"""Conditions of a view's query on one relation, and the predicates that a source may evaluate.

A condition has no types: it is what the text says (`views.conditions` reads it). With the columns
of the relation it becomes a predicate of the contract (`relations.derivations`), or stays at the
warehouse, with the reason. Every condition stays in the view's query as well, so a predicate may be
weaker than its condition: of `a AND b` the part that can be evaluated at the source is enough, of
`a OR b` both are needed, and of NOT all.

Operators have one meaning on both sides only with literals of the column's own type: integers;
decimals with at most the column's scale; dates; timestamps without zone; text. Measured with Spark
(ANSI, UTC): `date < '2020-01-01'` casts the text to a date, `timestamp_ntz = TIMESTAMP '…'` casts
the column to UTC, and neither changes a value. Rejected: text against numbers and floats, because
three engines give three answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import TypeAlias

from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    is_literal,
)
from driftline.values.types import INTEGER_WIDTHS, Column, DeclaredType

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?")


class LiteralKind(Enum):
    """Kinds of literals, as they are written."""

    NUMBER = "a number"
    TEXT = "text"
    DATE = "a date"
    TIMESTAMP = "a timestamp"


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal of a query; `text` is what it means, with a sign, without quotes."""

    kind: LiteralKind
    text: str


@dataclass(frozen=True, slots=True)
class ColumnTest:
    """A column, by its published name, compared with literals; IS NULL has none."""

    column: str
    operator: Operator
    literals: tuple[Literal, ...] = ()


@dataclass(frozen=True, slots=True)
class Conjunction:
    """AND."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    """OR."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """NOT."""

    part: Condition


@dataclass(frozen=True, slots=True)
class WarehouseCondition:
    """A condition that is evaluated at the warehouse alone, and why."""

    why: str


Condition: TypeAlias = ColumnTest | Conjunction | Disjunction | Negation | WarehouseCondition


def form_of(condition: Condition) -> str:
    """Return a condition as text, whose hash notes keep: it has no names of classes of today."""
    match condition:
        case ColumnTest(column, operator, literals):
            return f"Test(column={column!r}, operator={operator!r}, literals={literals!r})"
        case Conjunction(parts) | Disjunction(parts):
            forms = "".join(f"{form_of(part)}, " for part in parts)
            forms = forms.removesuffix(", ") if len(parts) > 1 else forms.rstrip()
            kind = "Conjunction" if isinstance(condition, Conjunction) else "Disjunction"
            return f"{kind}(parts=({forms}))"
        case Negation(part):
            return f"Negation(part={form_of(part)})"
        case WarehouseCondition(why):
            return f"Stays(why={why!r})"


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column of a relation, and the operators that have one meaning for it."""

    column: Column
    comparable: Comparable


@dataclass(frozen=True, slots=True)
class PushedCondition:
    """The part of a condition that the source evaluates, None: nothing; and why it is not all."""

    predicate: Predicate | None
    why: tuple[str, ...] = ()


def pushed(condition: Condition, columns: Mapping[str, ComparedColumn]) -> PushedCondition:
    """Return the strongest predicate that a condition implies and the source may evaluate.

    Args:
        columns: of the relation, by published name in lower case.
    """
    match condition:
        case Conjunction(parts):
            results = [pushed(part, columns) for part in parts]
            kept = tuple(p.predicate for p in results if p.predicate is not None)
            return PushedCondition(_one_of(AndPredicate, kept), _reasons(results))
        case Disjunction(parts):
            results = [pushed(part, columns) for part in parts]
            kept = tuple(p.predicate for p in results if p.predicate is not None)
            is_whole = len(kept) == len(parts)
            return PushedCondition(
                _one_of(OrPredicate, kept) if is_whole else None, _reasons(results)
            )
        case Negation(part):
            inner = pushed(part, columns)
            if inner.predicate is None or inner.why:
                return PushedCondition(None, inner.why)
            return PushedCondition(NotPredicate(inner.predicate))
        case WarehouseCondition(why):
            return PushedCondition(None, (why,))
        case ColumnTest():
            return _tested(condition, columns)


def _tested(test: ColumnTest, columns: Mapping[str, ComparedColumn]) -> PushedCondition:
    known = columns.get(test.column.lower())
    if known is None:
        return PushedCondition(None, (f"{test.column} is a column of another table",))
    column = known.column
    if not known.comparable.allows(test.operator):
        why = f"{test.operator.value} has not one meaning for {column.name} at the source"
        return PushedCondition(None, (why,))
    values = []
    for literal in test.literals:
        value = literal_of(literal, column.type)
        if value is None:
            why = f"{literal.kind.value} ({literal.text}) against {column.name}, {column.type}"
            return PushedCondition(None, (why,))
        values.append(value)
    return PushedCondition(ColumnPredicate(column.name, test.operator, tuple(values)))


def literal_of(literal: Literal, type: DeclaredType) -> str | None:
    """Return a literal in the string form of a column's type; None if it is none of this type."""
    read = _READERS.get((_family(type), literal.kind))
    value = None if read is None else read(literal.text, type)
    return value if value is not None and is_literal(type, value) else None


def _family(type: DeclaredType) -> str:
    if type.kind in INTEGER_WIDTHS:
        return "integer"
    if type.kind == "numeric":
        return "numeric" if type.precision is not None else ""
    return type.kind


def _integer(text: str, _: DeclaredType) -> str | None:
    match = _NUMBER.fullmatch(text)
    return str(int(text)) if match and match[3] is None else None


def _decimal(text: str, type: DeclaredType) -> str | None:
    """Return a number with the digits of the type; None if it has more of them as written."""
    match = _NUMBER.fullmatch(text)
    assert type.scale is not None
    assert type.precision is not None
    if match is None or len(match[3] or "") > type.scale:
        return None
    whole, fraction = str(int(match[2])), (match[3] or "").ljust(type.scale, "0")
    if whole != "0" and len(whole) > type.precision - type.scale:
        return None
    value = f"{whole}.{fraction}" if fraction else whole
    return value if not match[1] or not value.strip("0.") else f"-{value}"


def _date(text: str, _: DeclaredType) -> str | None:
    if not _DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        return None


def _timestamp(text: str, _: DeclaredType) -> str | None:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    clock = match[2] or "00:00:00"
    try:
        datetime.fromisoformat(f"{match[1]}T{clock}")
    except ValueError:
        return None
    fraction = (match[3] or "").rstrip("0")
    return f"{match[1]} {clock}" + (f".{fraction}" if fraction else "")


def _text(text: str, _: DeclaredType) -> str | None:
    return text


_READERS: dict[tuple[str, LiteralKind], Callable[[str, DeclaredType], str | None]] = {
    ("integer", LiteralKind.NUMBER): _integer,
    ("numeric", LiteralKind.NUMBER): _decimal,
    ("date", LiteralKind.DATE): _date,
    ("date", LiteralKind.TEXT): _date,
    ("timestamp", LiteralKind.TIMESTAMP): _timestamp,
    ("text", LiteralKind.TEXT): _text,
}


def _one_of(
    kind: type[AndPredicate | OrPredicate], parts: tuple[Predicate, ...]
) -> Predicate | None:
    """Return AND or OR of predicates; None of none."""
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else kind(parts)


def _reasons(results: list[PushedCondition]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(why for one in results for why in one.why))
