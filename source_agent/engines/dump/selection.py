"""Dump files: the rows of a file that a derivation chooses.

A file has no database that evaluates a predicate, so the agent does, over row bytes: every value of
a row was checked before, also in rows that are not chosen. It has the three truth values of SQL.
Numbers, dates and instants are compared by value, text by its bytes, as databases and Spark do
(docs/types.md#what-a-view-may-compare-at-the-source).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, Self

import numpy as np
from driftline.arrays import I32, Bools, Integers
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    ReferencePredicate,
    comparisons,
)
from driftline.rows.columns import Block, gather, integers_at, value_spans
from driftline.values.send_format import decode_string, string_encoder
from driftline.values.types import DeclaredType, Recipe

from source_agent.engines.interface import Rows

_BY_NUMBER: Final = frozenset({"int2", "int4", "int8", "date", "timestamp"})
_TESTS: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQUAL: eq,
    Operator.NOT_EQUAL: ne,
    Operator.LESS: lt,
    Operator.LESS_EQUAL: le,
    Operator.GREATER: gt,
    Operator.GREATER_EQUAL: ge,
}


def comparable(type: DeclaredType) -> Comparable:
    """Return what a column of this type can be compared by."""
    is_decimal = type.kind == "numeric" and type.precision is not None  # else text in Spark
    known = is_decimal or type.kind in _BY_NUMBER or type.kind == "text"
    return Comparable.ORDER if known else Comparable.NOTHING


@dataclass(frozen=True, slots=True)
class _Truth:
    """Truth of a predicate for each row, bool [rows] each; neither is set where it is unknown."""

    is_true: Bools
    is_false: Bools

    @classmethod
    def known(cls, is_true: Bools) -> Self:
        """Return truth that is nowhere unknown."""
        return cls(is_true, ~is_true)


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of some rows: has_value, bool [rows], and the values of the rows that have one."""

    has_value: Bools
    values: Sequence[Any]


class RowSelection:
    """The rows for which a predicate is true; `recipe` has every column that it compares.

    Files have no foreign keys, so it joins nothing.
    """

    def __init__(self, predicate: Predicate, recipe: Recipe) -> None:
        self._predicate = predicate
        self._places = {column.name: i for i, column in enumerate(recipe.columns)}
        self._types = [column.type for column in recipe.columns]
        self._compared = sorted({self._places[c.column] for c in comparisons(predicate)})

    def of(self, rows: Rows) -> Rows:
        """Return the chosen ones of some rows, at least one, in their order."""
        block = gather(rows)
        spans = value_spans(block, self._compared[-1] + 1)
        columns = {at: _column(self._types[at], block, *spans[at]) for at in self._compared}
        is_chosen = self._truth(self._predicate, columns).is_true
        return [rows[i] for i in np.flatnonzero(is_chosen).tolist()]

    def _truth(self, predicate: Predicate, columns: Mapping[int, _Column]) -> _Truth:
        assert not isinstance(predicate, ReferencePredicate), "files have no foreign keys"
        match predicate:
            case ColumnPredicate(name, operator, literals):
                at = self._places[name]
                return _compared(columns[at], self._types[at], operator, literals)
            case NotPredicate(part):
                inner = self._truth(part, columns)
                return _Truth(inner.is_false, inner.is_true)
            case AndPredicate(parts):
                truths = [self._truth(part, columns) for part in parts]
                return _Truth(
                    np.logical_and.reduce([t.is_true for t in truths]),
                    np.logical_or.reduce([t.is_false for t in truths]),
                )
            case OrPredicate(parts):
                truths = [self._truth(part, columns) for part in parts]
                return _Truth(
                    np.logical_or.reduce([t.is_true for t in truths]),
                    np.logical_and.reduce([t.is_false for t in truths]),
                )


def _compared(
    column: _Column, type: DeclaredType, operator: Operator, literals: Sequence[str]
) -> _Truth:
    if operator is Operator.IS_NULL:
        return _Truth.known(~column.has_value)
    wanted = [_value_of(type, string_encoder(type)(text)) for text in literals]
    if operator is Operator.IN:
        choices = set(wanted)
        holds = [value in choices for value in column.values]
    else:
        test, literal = _TESTS[operator], wanted[0]
        holds = [test(value, literal) for value in column.values]
    is_true = np.zeros(len(column.has_value), np.bool_)
    is_true[column.has_value] = holds
    return _Truth(is_true, column.has_value & ~is_true)


def _column(type: DeclaredType, block: Block, starts: Integers, lengths: I32) -> _Column:
    has_value = lengths >= 0
    first = starts[has_value]
    if type.kind in _BY_NUMBER:
        return _Column(has_value, integers_at(block.buffer, first, type.width or 0).tolist())
    ends = (first + lengths[has_value]).tolist()
    whole = block.buffer.tobytes()
    values = [whole[a:b] for a, b in zip(first.tolist(), ends, strict=True)]
    if type.kind == "text":
        return _Column(has_value, values)
    return _Column(has_value, [_decimal(type, data) for data in values])


def _value_of(type: DeclaredType, data: bytes) -> Any:
    """Return the value of its bytes, in the form in which `_column` has them."""
    if type.kind in _BY_NUMBER:
        return int.from_bytes(data, "big", signed=True)
    return data if type.kind == "text" else _decimal(type, data)


@lru_cache(maxsize=1 << 14)
def _decimal(type: DeclaredType, data: bytes) -> Decimal:
    """Return a decimal by its bytes; NaN, which is greater than every number, as infinity."""
    text = decode_string(type, data)
    return Decimal("Infinity" if text == "NaN" else text)
