"""Predicates of derivations, slowly: three truth values as True, False and None."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    ReferencePredicate,
)
from driftline.values.types import DeclaredType

Row = Mapping[str, Any]  # a Python value, or None, by column


def value_of(type: DeclaredType, text: str) -> Any:
    """The Python value of a literal, whose order and equality are those of Spark."""
    match type.kind:
        case "int2" | "int4" | "int8":
            return int(text)
        case "numeric":
            return Decimal(text)
        case "date":
            return date.fromisoformat(text)
        case "timestamp":
            return datetime.fromisoformat(text)
        case "text":
            return text.encode()
    raise AssertionError(f"{type} is not compared")


def truth(predicate: Predicate, row: Row, types: Mapping[str, DeclaredType]) -> bool | None:
    """What a predicate is for a row: true, false or unknown."""
    if isinstance(predicate, ColumnPredicate):
        value = row[predicate.column]
        if predicate.operator is Operator.IS_NULL:
            return value is None
        if value is None:
            return None
        literals = [value_of(types[predicate.column], text) for text in predicate.values]
        if predicate.operator is Operator.IN:
            return any(value == literal for literal in literals)
        (literal,) = literals
        return {
            Operator.EQUAL: value == literal,
            Operator.NOT_EQUAL: value != literal,
            Operator.LESS: value < literal,
            Operator.LESS_EQUAL: value <= literal,
            Operator.GREATER: value > literal,
            Operator.GREATER_EQUAL: value >= literal,
        }[predicate.operator]
    if isinstance(predicate, NotPredicate):
        inner = truth(predicate.part, row, types)
        return None if inner is None else not inner
    assert not isinstance(predicate, ReferencePredicate), "one relation joins nothing"
    found = [truth(part, row, types) for part in predicate.parts]
    decisive = isinstance(predicate, OrPredicate)
    if decisive in found:
        return decisive
    return None if None in found else not decisive


def keeps(predicate: Predicate, row: Row, types: Mapping[str, DeclaredType]) -> bool:
    """Whether a row belongs to the derivation."""
    return truth(predicate, row, types) is True


def shuffled(predicate: Predicate, draw: Any) -> Predicate:
    """The same predicate in another order, with operands repeated and nested; `draw` is random."""
    if isinstance(predicate, ColumnPredicate):
        if predicate.operator is Operator.IN:
            values = [*predicate.values, draw.choice(predicate.values)]
            draw.shuffle(values)
            return ColumnPredicate(predicate.column, Operator.IN, tuple(values))
        return predicate
    if isinstance(predicate, NotPredicate):
        return NotPredicate(shuffled(predicate.part, draw))
    assert not isinstance(predicate, ReferencePredicate), "one relation joins nothing"
    kind = AndPredicate if isinstance(predicate, AndPredicate) else OrPredicate
    parts = [shuffled(part, draw) for part in predicate.parts]
    parts.append(shuffled(draw.choice(predicate.parts), draw))
    draw.shuffle(parts)
    cut = draw.randint(1, len(parts))
    inner = kind(tuple(parts[:cut]))
    return kind((inner, *parts[cut:]))
