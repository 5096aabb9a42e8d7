"""IEEE 754 numbers: bytes to the shortest decimal text and back (protocol, section 2).

`float4` is four bytes, `float8` eight. -0.0 and 0.0 are different values. The only NaN is the quiet
one without payload and with a positive sign: no text could show the difference to another one.
Other NaNs, and text that is no number, give None; `values` raises the error.

Text is rounded to nearest, once. To read it as a double and round that to single precision would
round twice, and be wrong by one for some texts near the middle of two singles.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal, DecimalException
from typing import Final

SINGLE: Final = struct.Struct(">f")
DOUBLE: Final = struct.Struct(">d")
SINGLE_NAN: Final = bytes.fromhex("7fc00000")
DOUBLE_NAN: Final = bytes.fromhex("7ff8000000000000")

_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")


def from_text(text: str, *, single: bool) -> bytes | None:
    """Return the bytes of the number nearest to `text`; None for no number or a too large one."""
    form = SINGLE if single else DOUBLE
    if text == "NaN":
        return SINGLE_NAN if single else DOUBLE_NAN
    if text in {"Infinity", "-Infinity"}:
        return form.pack(float(text))
    if not _TEXT.fullmatch(text):
        return None
    value = float(text)
    if math.isinf(value):
        return None
    try:
        return form.pack(_round_to_odd(text, value) if single else value)
    except OverflowError:
        return None


def text(data: bytes) -> str | None:
    """Return the shortest text of the number in Python's notation, `NaN`, or `±Infinity`."""
    single = len(data) == SINGLE.size
    value: float = (SINGLE if single else DOUBLE).unpack(data)[0]
    if math.isnan(value):
        return "NaN" if data in {SINGLE_NAN, DOUBLE_NAN} else None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return _single_text(value, data) if single else repr(value)


def _single_text(value: float, data: bytes) -> str:
    """Return the fewest digits that round to the single, in Python's notation for a double;
    numpy's notation has changed between versions."""
    texts = (repr(float(f"{value:.{digits}g}")) for digits in range(1, 10))
    return next(text for text in texts if from_text(text, single=True) == data)


def _round_to_odd(text: str, nearest: float) -> float:
    """Return the double equal to the number `text`, else the neighbour whose last bit is odd.

    Rounding it to single precision gives the same as rounding the text. (Boldo, Melquiond:
    Emulation of FMA and Correctly Rounded Sums, IEEE TC 57:4, 2008.)
    """
    try:
        error = Decimal(text).compare(Decimal(nearest))
    except DecimalException:  # an exponent beyond all doubles: the nearest is exact enough
        return nearest
    if error == 0 or DOUBLE.pack(nearest)[-1] & 1:
        return nearest
    return math.nextafter(nearest, math.copysign(math.inf, error))
