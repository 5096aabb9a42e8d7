"""Python values as a driver decodes them, each checked for its class, to the bytes of its type.

For engines that cannot have the text or the bytes of the database itself: generic and Firebird.

A value of another class than the column's type has is refused by name, never converted: a driver
that gives a float for DECIMAL(20,2) has rounded it, and a change below would never be seen. What
the driver rounds before cannot be noticed here: rows are equal to what the driver shows.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from driftline.errors import ValueDoesNotFit
from driftline.values.send_format import encode_float4, string_encoder
from driftline.values.types import DeclaredType

from source_agent.engines.encoding import rows
from source_agent.engines.encoding.plain_values import (
    BytesEncoder,
    ColumnEncoder,
    FixedWidthEncoder,
    Values,
)


def _refuse(value: object, wanted: str) -> ValueDoesNotFit:
    return ValueDoesNotFit(f"The driver gave {type(value).__name__}, not {wanted}.")


def _check_integers(values: Values) -> None:
    for value in values:
        if type(value) is not int and value is not None:
            raise _refuse(value, "an integer")


def _integers(type_: DeclaredType) -> ColumnEncoder:
    return FixedWidthEncoder(type_.kind, check=_check_integers)


def _decimals(type_: DeclaredType) -> ColumnEncoder:
    """Return the encoder of Decimal and int, and of floats that hold every digit of the type."""
    encode = string_encoder(type_)
    holds_floats = (type_.precision or 99) <= rows.DOUBLE_DIGITS
    of_floats = rows.short_decimals(type_) if holds_floats else None

    def exact(value: Any) -> bytes:
        if type(value) is float and of_floats is not None:
            return of_floats((value,))[0][4:]
        if type(value) is int:
            value = Decimal(value)
        if not isinstance(value, Decimal):
            raise _refuse(value, "a decimal number")
        text = format(value, "f")
        whole, _, decimals = text.partition(".")
        scale = type_.scale or 0
        if decimals[scale:].strip("0"):
            raise ValueDoesNotFit("more decimals than its type has")
        return encode(f"{whole}.{decimals[:scale].ljust(scale, '0')}" if scale else whole)

    return rows.variable(exact)


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _refuse(value, "text")
    return value.encode()


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _refuse(value, "bytes")
    return bytes(value)


def _bool(value: Any) -> bytes:
    if not isinstance(value, int) or value not in {0, 1}:
        raise _refuse(value, "a truth value")
    return b"\x01" if value else b"\x00"


def _moments(wanted: type, type_: DeclaredType) -> ColumnEncoder:
    """Return the encoder of dates or timestamps; SQLite's driver gives their text."""
    encode = string_encoder(type_)

    def moment(value: Any) -> bytes:
        if isinstance(value, str):
            return encode(_without_zeros(value))
        if type(value) is not wanted or getattr(value, "tzinfo", None) is not None:
            raise _refuse(value, f"a {wanted.__name__} without a zone")
        return encode(_without_zeros(str(value)))

    return rows.variable(moment)


def _without_zeros(text: str) -> str:
    """Return the form of the protocol: a fraction of a second has no zeros at its end."""
    whole, point, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    return whole + point + fraction if fraction else whole


def _float_text(type_: DeclaredType) -> ColumnEncoder:
    encode = string_encoder(type_)

    def number(value: Any) -> bytes:
        if not isinstance(value, str):
            raise _refuse(value, "the text of a number")
        return encode(value)

    return rows.variable(number)


def _check_floats(values: Values) -> None:
    for value in values:
        if type(value) is not float and value is not None:
            raise _refuse(value, "a float")


def _single(value: Any) -> bytes:
    _check_floats((value,))
    return encode_float4(value)


def _shown(value: Any) -> bytes:
    """Return the text of a value that a driver shows without loss."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex().encode()
    if isinstance(value, float):
        return repr(value).encode()
    if isinstance(getattr(value, "tzinfo", None), dt.tzinfo):
        raise _refuse(value, "a time without a zone; publish a query that casts it to text")
    if isinstance(value, bool | int | Decimal | dt.date | dt.time | uuid.UUID | dt.timedelta):
        return str(value).encode()
    raise _refuse(value, "a value with one text; publish a view that casts it")


ENCODERS: Final[dict[str, Callable[[DeclaredType], ColumnEncoder]]] = {
    "integer": _integers,
    "decimal": _decimals,
    "text": lambda _: rows.variable(_text),
    "bytes": lambda _: rows.variable(_bytes),
    "bool": lambda _: rows.variable(_bool),
    "date": lambda type: _moments(dt.date, type),
    "timestamp": lambda type: _moments(dt.datetime, type),
    "float text": _float_text,
    "time": lambda type: _moments(dt.time, type),
    "single": lambda _: rows.variable(_single),
    "double": lambda _: FixedWidthEncoder("float8", check=_check_floats),
    "utf-8": lambda _: BytesEncoder(rows.check_utf8),
    "shown": lambda _: rows.variable(_shown),
}
