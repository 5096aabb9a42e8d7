"""Dump files: the text of a value, as its format writes it, to the bytes of its declared type.

Every text is the string form of its type (docs/types.md), with the decimal sign and the words for
true and false of the format. Fast paths take blocks of values that can be nothing else, and give
every other block to `string_encoder`: nothing is rounded, and no text is taken that is not a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Final

import numpy as np
from driftline.arrays import Integers
from driftline.errors import ValueDoesNotFit
from driftline.values.send_format import string_encoder
from driftline.values.types import INTEGER_WIDTHS, DeclaredType

from source_agent.engines.dump.formats import FileFormat
from source_agent.engines.encoding import rows
from source_agent.engines.encoding.plain_values import (
    NULL,
    BytesEncoder,
    ColumnEncoder,
    FixedWidthEncoder,
    Values,
    behind_length,
)

DISTINCT_MAX: Final = 1 << 14  # values of a column whose bytes are kept: dates repeat
SHORT_CHARACTERS: Final = 16  # 15 digits and a point
DIGITS_MAX: Final = 18  # of a number that fits 64 bits whatever it is
OID_BYTES: Final = 4
_INTEGER: Final = b"0123456789-"
_HEX: Final = b"0123456789abcdef"
_REPEATING: Final = frozenset({"date", "time", "timestamp", "timestamptz", "timetz"})

Encoders = Mapping[str, Callable[[DeclaredType], ColumnEncoder]]


def form_of(type: DeclaredType) -> str:
    """Return the name of a type's conversion."""
    if type.kind in INTEGER_WIDTHS or type.kind == "oid":
        return "integer"
    if type.kind in {"numeric", "float4", "float8"}:
        return type.kind.rstrip("48")
    return type.kind if type.kind in {"bool", "text", "bytea"} else "string"


def encoders(format: FileFormat) -> Encoders:
    """Return the encoders of a text file's values, by form."""
    return {
        "integer": lambda type: _Integer(type.kind, convert=int, check=_check_integers),
        "numeric": partial(_decimals, sign=format.decimal.encode()),
        "float": lambda type: _located_sign(rows.from_text(type), format.decimal.encode()),
        "bool": lambda _: _bools(*format.truth),
        "text": lambda _: BytesEncoder(),  # the whole file was checked
        "bytea": lambda _: rows.variable(_bytes),
        "string": _strings,
    }


@dataclass(frozen=True, slots=True)
class _Integer(FixedWidthEncoder):
    """Encoder of integers in ASCII; those of a block are read at once."""

    def operands(self, values: Values) -> list[Iterable[Any]]:
        """Return what `form` packs for each row."""
        numbers = _numbers(values, 0)
        if numbers is None:
            return FixedWidthEncoder.operands(self, values)
        return [repeat(INTEGER_WIDTHS.get(self.kind, OID_BYTES)), numbers.tolist()]


def _numbers(values: Values, decimals: int) -> Integers | None:
    """Return numbers of ASCII digits times 10^decimals, int64 [n].

    None if one of them is longer than DIGITS_MAX characters, or is anything but digits behind at
    most one minus sign, with exactly so many behind a point if there are `decimals`.
    Raises TypeError for a NULL.
    """
    if max(map(len, values)) > DIGITS_MAX:
        return None
    text = b",".join(values) + b","
    if text.translate(None, _INTEGER + b",."):
        return None
    signs = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(signs == ord(","))
    points = np.flatnonzero(signs == ord("."))
    minus = np.flatnonzero(signs == ord("-"))
    is_begun = np.ones(len(signs) + 1, np.bool_)
    is_begun[1:] = signs == ord(",")
    if (
        len(ends) != len(values)
        or not is_begun[minus].all()
        or len(points) != (len(values) if decimals else 0)
        or (decimals and (ends - points != decimals + 1).any())
    ):
        return None
    whole = signs[(points if decimals else ends) - 1]  # the last characters of whole parts
    if ((whole < ord("0")) | (whole > ord("9"))).any():
        return None
    numbers: Integers = np.fromstring(
        text.translate(None, b".")[:-1].decode(), dtype=np.int64, sep=","
    )
    return numbers


def _check_integers(values: Values) -> None:
    """Refuse what Python's `int` takes beyond digits and a minus sign."""
    if _joined(values).translate(None, _INTEGER):
        raise ValueDoesNotFit("not an integer")


def _joined(values: Values, by: bytes = b"") -> bytes:
    try:
        return by.join(values)
    except TypeError:
        return by.join([v for v in values if v is not None])


def _decimals(type: DeclaredType, *, sign: bytes) -> ColumnEncoder:
    """Return the encoder of decimal numbers with this sign between whole part and decimals.

    Values with all of their decimals are read as integers. A double holds 15 digits: other values
    of at most SHORT_CHARACTERS take the way of `short_decimals`, which does not see zeros beyond
    the decimals of the type. A block with more decimals, and all others, take the exact way.
    """
    exact = rows.from_text(type)
    if type.precision is None or type.precision > rows.DOUBLE_DIGITS:
        return _located_sign(exact, sign)
    short, scaled = rows.short_decimals(type), rows.scaled_decimals(type)
    allowed, longer = _INTEGER + b".", re.compile(rb"\.[0-9]{%d}" % ((type.scale or 0) + 1))

    def column(values: Values) -> list[bytes]:
        try:
            numbers = _numbers(values, type.scale or 0)
            if numbers is not None:
                return scaled(numbers)
            longest = max(map(len, values))
        except TypeError:  # a NULL
            longest = max((len(v) for v in values if v is not None), default=0)
        if longest > SHORT_CHARACTERS or _joined(values).translate(None, allowed):
            return exact(values)
        return exact(values) if longer.search(_joined(values, b" ")) else short(values)

    return _located_sign(column, sign)


def _located_sign(column: ColumnEncoder, sign: bytes) -> ColumnEncoder:
    """Return an encoder of numbers with another decimal sign, in which a point is refused."""
    if sign == b".":
        return column

    def converted(values: Values) -> list[bytes]:
        if b"." in _joined(values):
            raise ValueDoesNotFit("a point is not the decimal sign")
        return column([None if v is None else v.replace(sign, b".") for v in values])

    return converted


def _bools(true: bytes, false: bytes) -> ColumnEncoder:
    known = {true: b"\x01", false: b"\x00"}

    def encode(value: bytes) -> bytes:
        if value not in known:
            raise ValueDoesNotFit("not a truth value")
        return known[value]

    return rows.variable(encode)


def _bytes(value: bytes) -> bytes:
    if value.translate(None, _HEX):  # `fromhex` takes blanks and upper case
        raise ValueDoesNotFit("not lower-case hexadecimal digits")
    return bytes.fromhex(value.decode())


def _strings(type: DeclaredType) -> ColumnEncoder:
    if type.kind not in _REPEATING:
        return rows.from_text(type)
    known = _Repeated(string_encoder(type))
    return lambda values: list(map(known.__getitem__, values))


class _Repeated(dict[bytes | None, bytes]):
    """The bytes of values behind their length, by their text; of at most DISTINCT_MAX."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        super().__init__({None: NULL})
        self._encode = encode

    def __missing__(self, value: bytes) -> bytes:
        if len(self) > DISTINCT_MAX:
            self.clear()
            self[None] = NULL
        (encoded,) = behind_length([self._encode(value.decode())])
        self[value] = encoded
        return encoded
