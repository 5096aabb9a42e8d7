"""SQLite: raw values, whose Python class is their storage class, to the bytes of declared types.

`int` is INTEGER, `float` REAL, `bytearray` TEXT, `bytes` BLOB (see `session`). `types` gives each
column its form. A value of another class than the form's is refused, never converted: 1 and '1'
would become equal, and a change between them be missed.

In a file in UTF-16, SQLite makes UTF-8 of any two bytes, also of half a pair: different stored
texts would be read as one. The bytes of such a text are read (`read_sql`), and decoded here
(`restored`).

A derivation compares integers and text alone: decimals are doubles here. Text is compared under
BINARY, by its bytes, whatever collation its column has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from driftline.errors import ValueDoesNotFit
from driftline.relations.derivations import ColumnPredicate, Operator
from driftline.values.send_format import encode_float4, string_encoder
from driftline.values.types import INTEGER_WIDTHS, Column, DeclaredType

from source_agent.engines.encoding import rows
from source_agent.engines.encoding.plain_values import (
    BytesEncoder,
    ColumnEncoder,
    FixedWidthEncoder,
    Values,
)
from source_agent.engines.relations.select import quote
from source_agent.engines.relations.shapes import Condition

MARK: Final = "`"  # around columns: SQLite reads an unknown name in "…" as a text
_NONE: Final = type(None)
_TEXTUAL: Final = frozenset({"text", "string", "tagged"})  # forms that take text


class InvalidText(bytes):
    """The stored bytes of a TEXT in UTF-16 that is no UTF-16; only tagged text takes it."""


def read_sql(column: str, form: str, encoding: str) -> str:
    """Return the expression that reads a quoted column; `encoding`: that of the file's text."""
    if encoding == "UTF-8" or form not in _TEXTUAL:
        return column
    stored = f"WHEN 'text' THEN CAST({column} AS BLOB) WHEN 'blob' THEN hex({column})"
    return f"CASE typeof({column}) {stored} ELSE {column} END"


def restored(
    rows: Iterable[tuple[Any, ...]], forms: Sequence[str], encoding: str
) -> Iterable[tuple[Any, ...]]:
    """Return rows read by `read_sql` with their values as in a file in UTF-8.

    Columns behind those of the forms stay as they are.
    """
    if encoding == "UTF-8":
        return rows
    places = [place for place, form in enumerate(forms) if form in _TEXTUAL]

    def value(stored: object) -> object:
        if isinstance(stored, bytearray):
            return bytes.fromhex(stored.decode())
        if not isinstance(stored, bytes):
            return stored
        try:
            return bytearray(stored.decode(encoding), "utf-8")
        except UnicodeDecodeError:
            return InvalidText(stored)

    def row(stored: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(stored)
        for place in places:
            values[place] = value(values[place])
        return tuple(values)

    return map(row, rows)


def _only(*classes: type) -> Callable[[Values], None]:
    """Return a check that a block holds only values of these storage classes."""
    allowed = frozenset((*classes, _NONE))

    def check(values: Values) -> None:
        if not allowed.issuperset(map(type, values)):
            raise ValueDoesNotFit("another storage class")

    return check


def _of(column: ColumnEncoder, *classes: type) -> ColumnEncoder:
    """Return the encoder `column`, restricted to values of these storage classes."""
    check = _only(*classes)

    def checked(values: Values) -> list[bytes]:
        check(values)
        return column(values)

    return checked


_is_text = _only(bytearray)


def _check_text(values: Values) -> None:
    _is_text(values)
    rows.check_utf8(values)


def _bool(value: int) -> bytes:
    if value not in {0, 1}:
        raise ValueDoesNotFit("not a truth value")
    return b"\x01" if value == 1 else b"\x00"


def _real(type: DeclaredType) -> ColumnEncoder:
    if type.kind == "float8":
        return FixedWidthEncoder("float8", check=_only(float))
    return _of(rows.variable(encode_float4), float)


def _string(type: DeclaredType) -> ColumnEncoder:
    encode = string_encoder(type)
    return _of(rows.variable(lambda value: encode(value.decode())), bytearray)


def _tagged(value: int | float | bytes | bytearray) -> bytes:
    if isinstance(value, int):
        return b"i:%d" % value
    if isinstance(value, float):
        return b"r:" + repr(value).encode()
    if isinstance(value, bytes):
        return (b"x:" if isinstance(value, InvalidText) else b"b:") + value.hex().encode()
    try:
        value.decode()
    except UnicodeDecodeError:
        return b"x:" + value.hex().encode()
    return b"t:" + bytes(value)


ENCODERS: Final[dict[str, Callable[[DeclaredType], ColumnEncoder]]] = {
    "int": lambda type: FixedWidthEncoder(type.kind),  # struct packs no other class
    "bool": lambda _: _of(rows.variable(_bool), int),
    "real": _real,
    "text": lambda _: BytesEncoder(_check_text),
    "blob": lambda _: BytesEncoder(_only(bytes)),
    "decimal": lambda type: _of(rows.short_decimals(type), int, float),
    "string": _string,
    "tagged": lambda _: rows.variable(_tagged),
}


def bound_value(form: str, text: str) -> object:
    """Return the value of a bound in string form, as a column of this form stores it."""
    if form == "int":
        return int(text)
    if form == "decimal":
        return float(text)
    return bytes.fromhex(text) if form == "blob" else text


def compare(comparison: ColumnPredicate, column: Column, place: str) -> Condition:
    """Return a comparison with a placeholder for each of its values."""
    del place  # placeholders have no numbers
    operand, operator, values = quote(column.name, MARK), comparison.operator, comparison.values
    if operator is Operator.IS_NULL:
        return Condition(f"{operand} IS NULL")
    is_integer = column.type.kind in INTEGER_WIDTHS
    bindings: tuple[object, ...] = tuple(map(int, values)) if is_integer else values
    if not is_integer:
        operand = f"{operand} COLLATE BINARY"
    if operator is Operator.IN:
        return Condition(f"{operand} IN ({', '.join('?' * len(values))})", bindings)
    return Condition(f"{operand} {operator.value} ?", bindings)


def within(own: Sequence[Column], other: Sequence[Column], source: str) -> str:
    """Return columns IN a SELECT of others; the operands on the left say how to compare."""
    names = [quote(column.name, MARK) for column in own]
    is_text = [column.type.kind not in INTEGER_WIDTHS for column in own]
    left = [f"{n} COLLATE BINARY" if t else n for n, t in zip(names, is_text, strict=True)]
    right = ", ".join(quote(column.name, MARK) for column in other)
    return f"({', '.join(left)}) IN (SELECT {right} {source})"
