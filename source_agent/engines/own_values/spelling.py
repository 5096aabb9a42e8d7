"""Spell a driver's Python values as the protocol publishes them, independently of the encoders.

Plain Python, a few lines a type, and no import from `encoding` or `values`: code that is shared
with what it checks would prove nothing. Floats are compared by their bits, decimals by their
digits, all else as text.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from driftline.values.types import DeclaredType

from source_agent.engines.own_values.reading import NotComparable

_FLOATS: Final = {"float4": ">f", "float8": ">d"}
_INTEGERS: Final = frozenset({"int2", "int4", "int8", "oid"})
_TIMES: Final = frozenset({"date", "time", "timestamp", "timestamptz"})
_SPAN: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


def normal(type: DeclaredType, published: str) -> str:
    """Return a published value in the form of `spelled`: floats as their bits in hexadecimal."""
    return _bits(type.kind, float(published)) if type.kind in _FLOATS else published


def spelled(type: DeclaredType, value: Any, published: str | None = None) -> str:
    """Return a value of the driver, other than NULL, as it must be published.

    Args:
        published: what it is published as. A text that another program writes of a number or a time
            may have more than one form; the published one is taken if it means the same value.

    Raises:
        NotComparable: a value of a class that says too little, or that nothing here knows.
    """
    kind = type.kind
    if kind in _FLOATS and isinstance(value, float | int) and not isinstance(value, bool):
        return _bits(kind, float(value))
    if kind in _INTEGERS and isinstance(value, int | Decimal) and value == int(value):
        return str(int(value))
    if kind == "numeric":
        return _decimal(type, value)
    if kind == "bool" and value in {0, 1}:
        return "true" if value else "false"
    if kind == "bytea" and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if kind in _TIMES:
        return _time(kind, value)
    if kind == "text":
        return _text(value, published)
    if kind == "uuid" and isinstance(value, uuid.UUID | str):
        return str(value).lower()
    if isinstance(value, str) and kind not in {*_FLOATS, *_INTEGERS, "bool", "bytea"}:
        return value
    raise _unknown(value)


def _unknown(value: object) -> NotComparable:
    return NotComparable(f"the driver gives the class {type(value).__name__}")


def _bits(kind: str, value: float) -> str:
    if math.isnan(value):  # the protocol has one NaN
        return "NaN"
    try:
        return struct.pack(_FLOATS[kind], value).hex()
    except OverflowError:  # no single is as large
        return repr(value)


def _decimal(type: DeclaredType, value: Any) -> str:
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except (InvalidOperation, TypeError, ValueError):
        raise _unknown(value) from None
    if not number.is_finite():
        return str(number)
    text = format(number, "f")
    if type.scale is not None:
        whole, _, decimals = text.partition(".")
        decimals = decimals.rstrip("0").ljust(type.scale, "0")
        text = f"{whole}.{decimals}" if decimals else whole
    return text.removeprefix("-") if number == 0 else text


def _time(kind: str, value: Any) -> str:
    if isinstance(value, dt.datetime):
        if kind == "timestamptz":
            value = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
            return _short(value.isoformat(sep=" ")) + "+00"
        if kind == "timestamp" and value.tzinfo is None:
            return _short(value.isoformat(sep=" "))
    elif (isinstance(value, dt.date) and kind == "date") or (
        isinstance(value, dt.time) and kind == "time" and value.tzinfo is None
    ):
        return _short(value.isoformat())
    elif isinstance(value, str):
        zone = "+00" if kind == "timestamptz" and value.endswith("+00") else ""
        return _short(value.removesuffix(zone)) + zone
    raise _unknown(value)


def _short(text: str) -> str:
    """Return a time whose fraction of a second has no zeros at its end."""
    whole, point, fraction = text.partition(".")
    return f"{whole}{point}{fraction}".rstrip("0").rstrip(".") if point else text


def _text(value: Any, published: str | None) -> str:
    """Return the text of a value; with `as_text` values of any class are published as text."""
    if isinstance(value, str):
        return value
    if published is not None and _means(published, value):
        return published
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, float | int | dt.date | dt.time | dt.timedelta | uuid.UUID):
        return str(value)
    raise _unknown(value)


def _means(published: str, value: Any) -> bool:
    """Return True if a text means this value of another class."""
    try:
        if isinstance(value, float):
            return _bits("float8", float(published)) == _bits("float8", value)
        if isinstance(value, bytes | bytearray | memoryview):
            return published.lower().removeprefix("\\x") == bytes(value).hex()
        if isinstance(value, dt.timedelta):
            return _span(published) == value
        if isinstance(value, dt.date | dt.time):
            return type(value).fromisoformat(published) == value
        if isinstance(value, int | Decimal):
            return Decimal(published) == value and "e" not in published.lower()
    except (ValueError, InvalidOperation, TypeError):
        return False
    return False


def _span(text: str) -> dt.timedelta | None:
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    sign, hours, minutes, seconds, fraction = match.groups()
    span = dt.timedelta(
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(seconds),
        microseconds=int((fraction or "0").ljust(6, "0")),
    )
    return -span if sign else span
