"""Declared types, columns and recipes (protocol, sections 2 and 5).

A declared type names a byte format: which bytes stand for a value, nothing about meaning. A recipe
is everything that must be equal on both sides for equal rows to get equal fingerprints. Names are
part of the recipe but not of the row key, so renaming a column is seen and recomputes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from driftline.errors import MalformedMessage
from driftline.limits import COLUMNS_MAX, FINGERPRINT_VERSION

# Widths in bytes of the types whose every value has the same length; None: it varies.
WIDTHS: Final[dict[str, int | None]] = {
    "bool": 1,
    "int2": 2,
    "int4": 4,
    "int8": 8,
    "oid": 4,
    "float4": 4,
    "float8": 8,
    "numeric": None,
    "text": None,
    "bytea": None,
    "date": 4,
    "timestamp": 8,
    "timestamptz": 8,
    "time": 8,
    "timetz": 12,
    "interval": 16,
    "uuid": 16,
    "jsonb": None,
}
INTEGER_WIDTHS: Final[dict[str, int]] = {"int2": 2, "int4": 4, "int8": 8}

_NUMERIC = re.compile(r"numeric\((\d{1,2}),(\d{1,2})\)")


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """A byte format: `kind` is a key of WIDTHS; precision and scale only with `numeric`."""

    kind: str
    precision: int | None = None
    scale: int | None = None

    def __str__(self) -> str:
        if self.precision is None:
            return self.kind
        return f"{self.kind}({self.precision},{self.scale})"

    @property
    def width(self) -> int | None:
        """Bytes of every value, None where they vary."""
        return WIDTHS[self.kind]


def parse_type(text: str) -> DeclaredType:
    """`DeclaredType` from its written form, such as `int8` or `numeric(15,2)`.

    Raises:
        MalformedMessage: it is none.
    """
    if text in WIDTHS:
        return DeclaredType(text)
    if match := _NUMERIC.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= 38 and scale <= precision:
            return DeclaredType("numeric", precision, scale)
    raise MalformedMessage(f"{text!r} is not a declared type.")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation. `ordinal` is its place in the relation, from 0; not in the recipe."""

    name: str
    type: DeclaredType
    nullable: bool = True
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What both sides must agree on. `columns` stand in tuple order: the key columns first."""

    columns: tuple[Column, ...]
    key_columns: int
    fingerprint_version: int = FINGERPRINT_VERSION

    def __post_init__(self) -> None:
        if not 1 <= self.key_columns <= len(self.columns) <= COLUMNS_MAX:
            raise MalformedMessage(
                f"{len(self.columns)} columns with {self.key_columns} in the key are no recipe."
            )

    @property
    def key(self) -> tuple[Column, ...]:
        return self.columns[: self.key_columns]

    @property
    def integer_key(self) -> bool:
        """Whether the position of a row is its key (protocol, section 4)."""
        return self.key_columns == 1 and self.columns[0].type.kind in INTEGER_WIDTHS

    @property
    def published_order(self) -> tuple[Column, ...]:
        """The columns as the relation has them."""
        return tuple(sorted(self.columns, key=lambda c: c.ordinal))

    @property
    def id(self) -> bytes:
        """16 bytes that name this recipe (protocol, section 5)."""
        parts = [f"{self.fingerprint_version}\0{self.key_columns}\0".encode()]
        parts += [f"{len(c.name.encode())}:{c.name}{c.type}\0".encode() for c in self.columns]
        return blake3(b"".join(parts)).digest(16)
