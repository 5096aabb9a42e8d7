"""MariaDB and MySQL: how each type is read and compared, and how its text becomes bytes.

The text protocol's text is exact for every type but FLOAT, which the server rounds to six digits:
it is read as a double, and packed as a single.

Invariants: a column is read in a form whose text is lossless under `settings`, or refused by
name; zero dates are refused by value. Text in a character set that Unicode does not hold completely
is refused: the server would write `?`, and a change between two such characters would be missed. So
is a value with a byte that is no character of its set.
How it writes numbers that are no decimals is the product's (`Product.number`).

A derivation compares numbers and instants with literals of their type: the server would compare a
number and a text as doubles. It compares the bytes of text as they are sent: no collation counts,
which would ignore case or blanks.

Rejected: CAST(… AS DOUBLE) for FLOAT. MySQL has it only since 8.0.17; `* 1e0` is as exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final, NamedTuple

from driftline.relations.derivations import ColumnPredicate, Comparable, Operator
from driftline.values.types import INTEGER_WIDTHS, Column, DeclaredType, parse_type

from source_agent.engines.encoding import rows
from source_agent.engines.encoding.plain_values import (
    BytesEncoder,
    ColumnEncoder,
    FixedWidthEncoder,
)
from source_agent.engines.mysql_family.product import Product
from source_agent.engines.mysql_family.sql import MARK
from source_agent.engines.relations.select import ReadColumn, quote, refused_type
from source_agent.engines.relations.shapes import Condition, Relation

# Character sets that convert to Unicode and back without loss. MySQL's latin1 is cp1252, completed.
# fmt: off
_LOSSLESS_CHARSETS: Final = frozenset((
    "latin1", "latin2", "latin5", "latin7", "utf8", "utf8mb3", "utf8mb4", "ucs2", "utf16",
    "utf16le", "utf32", "cp850", "cp852", "cp866", "koi8r", "koi8u",
))
# Those in which some bytes are no character: all of them would be read as `?`.
_INCOMPLETE_CHARSETS: Final = frozenset((
    "ascii", "cp1250", "cp1251", "cp1256", "cp1257", "greek", "hebrew",
))
# fmt: on
_INTEGERS: Final = {  # data type: declared when signed, when unsigned
    "tinyint": ("int2", "int2"),
    "smallint": ("int2", "int4"),
    "mediumint": ("int4", "int4"),
    "int": ("int4", "int8"),
    "bigint": ("int8", "numeric(20,0)"),
}
# fmt: off
TEXT: Final = frozenset((
    "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json",
))
_BYTES: Final = frozenset((
    "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector",
))
_GEOMETRY: Final = frozenset((
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
    "multipolygon", "geometrycollection", "geomcollection",
))
# fmt: on
_DATES: Final = {"date": "date", "datetime": "timestamp", "timestamp": "timestamptz"}
_MEMBERS: Final = re.compile(r"'((?:[^']|'')*)'")  # of ENUM and SET; 0 has the text '', too
_AS_CHAR: Final = frozenset(("time", "uuid", "inet4", "inet6"))

ENCODERS: Final[dict[str, Callable[[DeclaredType], ColumnEncoder]]] = {
    "int": lambda type: FixedWidthEncoder(type.kind, int),
    "float": lambda type: FixedWidthEncoder(type.kind, float),
    "decimal": rows.decimal_text,
    "ascii": rows.from_text,
    "date": rows.from_text,
    "utc": lambda type: rows.from_text(type, "+00"),
    "text": lambda _: BytesEncoder(rows.check_utf8),
    "bytes": lambda _: BytesEncoder(),
}
BINDERS: Final[dict[str, Callable[[bytes], object]]] = {
    "int": int,
    "decimal": lambda raw: Decimal(raw.decode()),
    "text": bytes.decode,
    "date": bytes.decode,
}
_COMPARED_TEXT: Final = frozenset(("varchar", "tinytext", "text", "mediumtext", "longtext"))
# Collations that do not pad: MariaDB's, by name, and those that MySQL has since 8.0.
_NO_PAD: Final = re.compile(r"nopad|(^|_)[0-9]{4}(_|$)|^binary$")
# Collations that compare code points. Most of them pad: a text with characters below the blank may
# then be sorted otherwise, which the reader of a tile notices.
_BYTE_ORDER: Final = re.compile(r"(ascii|utf8|utf8mb3|utf8mb4)_(nopad_|0900_)?bin")

# Character sets into which the server converts a text, read as UTF-8, without another result.
_CONVERTED_BACK: Final = frozenset(("utf8mb4", "utf8mb3", "utf8", "latin1", "ascii"))


class FamilyColumn(NamedTuple):
    """A column as the catalogue or a result's metadata describes it; for BIT, `precision` is bits.

    `collation` is empty if it is not known. `is_stored`: it is a column of a table; how an
    expression of a view or a query is compared, only the optimizer knows. `generated`: the
    expression of a generated column, in capitals. `is_unversioned`: an update of it alone makes no
    version of a row.
    """

    name: str
    type: str
    is_unsigned: bool
    precision: int
    scale: int
    is_nullable: bool
    charset: str
    written: str
    collation: str = ""
    is_stored: bool = False
    generated: str = ""
    is_unversioned: bool = False


def column(product: Product, relation: Relation, column: FamilyColumn) -> ReadColumn:
    """Return the read expression of one column, or raise the error that refuses its type."""
    quoted = quote(column.name, MARK)
    as_text = column.name in relation.as_text
    is_foreign = column.charset not in {"", *_LOSSLESS_CHARSETS, *_INCOMPLETE_CHARSETS}
    if column.type in TEXT and is_foreign and not as_text:
        raise refused_type(
            relation,
            column.name,
            f"has the character set {column.charset}, which Unicode does not hold completely",
            f'Set as_text = ["{column.name}"] to read it as hexadecimal digits.',
        )
    if column.type in {"enum", "set"} and "" in _MEMBERS.findall(column.written):
        raise refused_type(
            relation,
            column.name,
            f"is {column.written}, in which two numbers have the text ''",
            f"Publish a query that selects CAST({quoted} AS UNSIGNED), the number, beside it or "
            "instead.",
        )
    read, declared, form = _reading(product, column, quoted)
    if not form:
        raise refused_type(
            relation,
            column.name,
            f"has the type {column.written}, for which there is no lossless way to read it",
            "Publish a query that casts it to CHAR.",
        )
    if as_text and form != "text":
        is_raw = form == "bytes"
        number = product.number_text(quoted)
        text = number if form == "float" else f"CAST({read} AS CHAR)"
        read, declared, form = f"HEX({read})" if is_raw else text, "text", "text"
    elif as_text and (is_foreign or column.charset in _INCOMPLETE_CHARSETS):
        read = f"HEX({read})"
    elif column.type in TEXT and column.charset in _INCOMPLETE_CHARSETS:
        read = _checked(quoted, column.charset)
    reading = ReadColumn(column.name, parse_type(declared), read, form, nullable=column.is_nullable)
    unordered, is_found = _unordered(column, reading), _is_found(column, reading)
    reading = replace(reading, unordered=unordered, is_found=is_found)
    if not as_text and _is_compared(column, reading):
        return replace(reading, comparable=Comparable.ORDER)
    return reading


def can_page(column: FamilyColumn, reading: ReadColumn) -> bool:
    """Return True if a table can be read in pages by this column without losing rows.

    Its values must be bindable, and ORDER BY and `>` must agree about them. They do not for ENUM
    and SET, which are sorted by number and compared as strings, nor for CHAR under a collation that
    does not pad, which is sorted with the spaces that a comparison lacks.
    """
    if not _is_itself(column, reading) or reading.form not in BINDERS:
        return False
    if reading.form != "text":
        return True
    is_padded = bool(column.collation) and not _NO_PAD.search(column.collation.lower())
    return column.type in {"char", "varchar"} and is_padded


def marking(column: FamilyColumn) -> tuple[str, bool]:
    """Return the kind by which a column marks changes, and True if it may be NULL."""
    kind = "int8" if column.type in _INTEGERS else _DATES.get(column.type, column.type)
    return kind, column.is_nullable


def _reading(product: Product, column: FamilyColumn, quoted: str) -> tuple[str, str, str]:
    """Return read expression, declared type and form; three empty strings if there is none."""
    kind = column.type
    if kind in _INTEGERS:
        declared = _INTEGERS[kind][column.is_unsigned]
        return quoted, declared, "decimal" if declared.startswith("numeric") else "int"
    if kind == "decimal":
        if 1 <= column.precision <= 38 and column.scale <= column.precision:
            declared = str(DeclaredType("numeric", column.precision, column.scale))
            return quoted, declared, "decimal"
        return quoted, "numeric", "ascii"
    if kind in {"float", "double"}:
        return product.number(quoted), "float4" if kind == "float" else "float8", "float"
    if kind == "bit":
        declared, form = ("int8", "int") if column.precision <= 63 else ("numeric(20,0)", "decimal")
        return f"({quoted} + 0)", declared, form
    if kind == "year":
        return f"({quoted} + 0)", "int2", "int"
    if kind in _DATES:
        return quoted, _DATES[kind], "utc" if kind == "timestamp" else "date"
    if kind in _AS_CHAR:
        return f"CAST({quoted} AS CHAR)", "text", "text"
    if kind in TEXT:
        return quoted, "text", "text"
    if kind in _BYTES or kind in _GEOMETRY:
        return quoted, "bytea", "bytes"
    return "", "", ""


def _checked(quoted: str, charset: str) -> str:
    """Return a text as the bytes of its UTF-8, or bytes that are none, which `check_utf8` refuses,
    where it has bytes that are no character of its set."""
    text = f"CONVERT({quoted} USING utf8mb4)"
    is_whole = f"CAST(CONVERT({text} USING {charset}) AS BINARY) = CAST({quoted} AS BINARY)"
    return f"IF({quoted} IS NULL OR {is_whole}, CAST({text} AS BINARY), X'FF')"


def _is_itself(column: FamilyColumn, reading: ReadColumn) -> bool:
    """Return True if a column is read as it is, or as its bytes."""
    quoted = quote(column.name, MARK)
    return reading.read in {quoted, _checked(quoted, column.charset)}


def _is_compared(column: FamilyColumn, reading: ReadColumn) -> bool:
    """Return True if a derivation may compare a column (docs/types.md)."""
    if column.type in _INTEGERS and reading.type.kind in INTEGER_WIDTHS:
        return True
    if not column.is_stored:
        return False
    if column.type in _INTEGERS or column.type == "decimal":  # BIGINT UNSIGNED is numeric(20,0)
        return reading.type.precision is not None
    return column.type in _COMPARED_TEXT or column.type in {"date", "datetime"}


def _unordered(column: FamilyColumn, reading: ReadColumn) -> str:
    """Return how the server sorts a column if not as the protocol does (`ReadColumn.unordered`)."""
    if not column.is_stored or not _is_itself(column, reading):
        return f"as {column.written}"
    if column.type in _INTEGERS or column.type in {"decimal", "date", "datetime"}:
        return ""
    if column.type in {"binary", "varbinary"}:
        return ""
    if column.type in {"char", "varchar"}:
        collation = column.collation.lower()
        if not _BYTE_ORDER.fullmatch(collation):
            return f"by the collation {column.collation}, not by bytes"
        if column.type == "char" and _NO_PAD.search(collation):  # as in `can_page`
            return f"as CHAR under {column.collation}: with the blanks that its values lack"
        return ""
    return f"as {column.written}"


def _is_found(column: FamilyColumn, reading: ReadColumn) -> bool:
    """Return True if an index finds a text by its string form, by whatever collation."""
    is_text = column.type in {"char", "varchar"} and column.charset in _CONVERTED_BACK
    return is_text and column.is_stored and _is_itself(column, reading)


def bound(column: Column) -> str:
    """Return the expression of a bound of a key column; it has one place for a value, `%s`."""
    if column.type.kind == "numeric":
        return f"CAST(%s AS DECIMAL({column.type.precision},{column.type.scale}))"
    return _KEY_BOUNDS.get(column.type.kind, "%s")


def bound_value(column: Column, text: str) -> object:
    """Return the value of a bound in string form, as it is bound."""
    return int(text) if column.type.kind in INTEGER_WIDTHS else text


def as_bytes(text: str) -> str:
    """Return the expression of the UTF-8 of a text, as derivations compare it."""
    return f"CAST(CONVERT({text} USING utf8mb4) AS BINARY)"


def compare(comparison: ColumnPredicate, column: Column, place: str) -> Condition:
    """Return a comparison; a zero byte stands for each of its values (`sql`)."""
    del place  # values have no numbers
    operand, kind, operator = quote(column.name, MARK), column.type.kind, comparison.operator
    if operator is Operator.IS_NULL:
        return Condition(f"{operand} IS NULL")
    value, values = _BOUND.get(kind, "\0"), comparison.values
    if kind == "numeric":
        value = f"CAST(\0 AS DECIMAL({column.type.precision},{column.type.scale}))"
    elif kind == "text":
        operand = as_bytes(operand)
    bindings: tuple[object, ...] = tuple(map(int, values)) if kind in INTEGER_WIDTHS else values
    if operator is Operator.IN:
        return Condition(f"{operand} IN ({', '.join([value] * len(values))})", bindings)
    return Condition(f"{operand} {operator.value} {value}", bindings)


def within(own: Sequence[Column], other: Sequence[Column], source: str) -> str:
    """Return columns IN a SELECT of others; text is compared by its bytes."""
    left, right = (
        ", ".join(
            as_bytes(name) if column.type.kind == "text" else name
            for column in columns
            for name in [quote(column.name, MARK)]
        )
        for columns in (own, other)
    )
    return f"({left}) IN (SELECT {right} {source})"


_KEY_BOUNDS: Final = {  # constants, so that the optimizer takes ranges of an index
    "date": "CAST(%s AS DATE)",
    "timestamp": "CAST(%s AS DATETIME(6))",
    "bytea": "UNHEX(%s)",
}
_BOUND: Final = {  # a text as a value of the type
    "date": "CAST(\0 AS DATE)",
    "timestamp": "CAST(\0 AS DATETIME(6))",
    "text": as_bytes("\0"),
}
