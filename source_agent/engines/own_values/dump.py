"""Dump files: a file has no driver, so the text of its fields stands against what is published.

The fields are those of the file's parser, so what it cuts wrongly is not found; what the encoders
make of a field is. Of Parquet, the values are those that Arrow gives; its times are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain, islice
from typing import Any, Protocol

from driftline.rows.key_order import Key
from driftline.values.types import INTEGER_WIDTHS

from source_agent.engines.interface import Rows
from source_agent.engines.own_values.reading import DriverKey, NotComparable, OwnValues
from source_agent.engines.relations.shapes import Shape


class Notation(Protocol):
    """The part of a file's format that says how values are written."""

    @property
    def kind(self) -> str:
        """The kind of file."""

    @property
    def decimal(self) -> str:
        """The decimal sign."""

    @property
    def truth(self) -> tuple[bytes, bytes]:
        """The words for true and false."""


class DumpValues(OwnValues):
    """Read the fields of a file.

    Args:
        blocks: yields the columns of each block of rows, as the parser has them.
        notation: returns that of a relation's file.
    """

    limit = ""
    stored = "the first of the file; fields are those of its parser"

    def __init__(
        self,
        blocks: Callable[[Shape], Iterator[Sequence[Sequence[Any]]]],
        notation: Callable[[Shape], Notation],
    ) -> None:
        self._blocks, self._notation = blocks, notation

    def statements(self, shape: Shape) -> list[str]:
        del shape
        return []  # a file has no SQL

    def all_sql(self, shape: Shape) -> str:
        del shape
        return ""

    def fetch(self, shape: Shape, sql: str, values: Sequence[object], most: int) -> list[DriverKey]:
        del sql, values
        rows = (zip(*columns, strict=True) for columns in self._blocks(shape))
        return list(islice(chain.from_iterable(rows), most))

    def read(
        self, shape: Shape, keys: Sequence[DriverKey], published: Sequence[Key]
    ) -> Iterator[Rows]:
        raise AssertionError(f"{shape.relation.name} has no index: {keys}, {published}")

    def plain(self, shape: Shape, number: int, value: Any, published: str | None) -> Any:
        del published
        notation, kind = self._notation(shape), shape.recipe.columns[number].type.kind
        if notation.kind == "parquet" or not isinstance(value, bytes):
            return value.decode() if kind == "text" and isinstance(value, bytes) else value
        text = value.decode()
        try:
            if kind in INTEGER_WIDTHS or kind == "oid":
                return int(text)
            if kind == "numeric":
                return Decimal(text.replace(notation.decimal, "."))
            if kind in {"float4", "float8"}:
                return float(text.replace(notation.decimal, "."))
            if kind == "bool":
                return notation.truth.index(value) == 0
            if kind == "bytea":
                return bytes.fromhex(text.removeprefix("\\x"))
        except (ValueError, InvalidOperation):
            raise NotComparable(f"the field is no {kind} here") from None
        return text
