"""Declared types, columns and recipes (protocol, sections 2 and 5).

A declared type names a byte format, not a meaning. A recipe is all that must be equal on both sides
so that equal rows have equal fingerprints. Names are part of the recipe but not of the row key, so
a renamed column is noticed, and nothing is computed again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from driftline.errors import MalformedMessage
from driftline.limits import COLUMNS_MAX, FINGERPRINT_VERSION

# Bytes of each value by type; None if they vary.
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
        """Bytes of each value, or None if they vary."""
        return WIDTHS[self.kind]


def parse_type(text: str) -> DeclaredType:
    """Return the type of a written form, such as `int8` or `numeric(15,2)`; raise
    MalformedMessage for other text."""
    if text in WIDTHS:
        return DeclaredType(text)
    if match := _NUMERIC.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= 38 and scale <= precision:
            return DeclaredType("numeric", precision, scale)
    raise MalformedMessage(f"{text!r} is not a declared type.")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation. `ordinal`, its place from 0, is not part of the recipe."""

    name: str
    type: DeclaredType
    nullable: bool = True
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that both sides must agree on; `columns` are in tuple order, the key columns first.

    `rows`: the canonical predicate of a derived relation as text; empty: all rows.
    """

    columns: tuple[Column, ...]
    key_columns: int
    fingerprint_version: int = FINGERPRINT_VERSION
    rows: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.key_columns <= len(self.columns) <= COLUMNS_MAX:
            raise MalformedMessage(
                f"{len(self.columns)} columns with {self.key_columns} in the key are no recipe."
            )

    @property
    def key(self) -> tuple[Column, ...]:
        """The key columns."""
        return self.columns[: self.key_columns]

    @property
    def integer_key(self) -> bool:
        """True if the position of a row is its key (protocol, section 4)."""
        return self.key_columns == 1 and self.columns[0].type.kind in INTEGER_WIDTHS

    @property
    def published_order(self) -> tuple[Column, ...]:
        """The columns in the order of the relation."""
        return tuple(sorted(self.columns, key=lambda c: c.ordinal))

    @property
    def id(self) -> bytes:
        """16 bytes that name this recipe (protocol, section 5)."""
        parts = [f"{self.fingerprint_version}\0{self.key_columns}\0".encode()]
        parts += [f"{len(c.name.encode())}:{c.name}{c.type}\0".encode() for c in self.columns]
        if self.rows:
            parts.append(f"rows\0{self.rows}".encode())
        return blake3(b"".join(parts)).digest(16)
