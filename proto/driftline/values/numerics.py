"""PostgreSQL's numeric: base-10000 digits to decimal text and back, exactly (protocol, section 2).

A numeric is uint16 ndigits, int16 weight, uint16 sign, uint16 dscale, then ndigits int16 digits in
base 10000. Its value is the sum of digit[i] * 10000^(weight - i); dscale decimals are shown. Only
the canonical form, which PostgreSQL sends, is accepted: no zero as first or last digit, no digit
beyond dscale, and weight 0 and a positive sign for zero.

Text or bytes that are no numeric give None; `values` raises the error.

Rejected: `decimal` (its context rounds; -0 and exponents would have to be undone) and `int` (Python
refuses texts of more than 4,300 digits; a numeric has up to 147,455).
"""

from __future__ import annotations

import re
import struct
from typing import Final

SCALE_MAX: Final = 16_383  # PostgreSQL's bound
WEIGHT_MAX: Final = 0x7FFF
NEGATIVE: Final = 0x4000

# PostgreSQL sends its infinities with dscale 32: header bits of the stored value, read as a scale.
_SPECIALS: Final = {
    "NaN": bytes.fromhex("00000000c0000000"),
    "Infinity": bytes.fromhex("00000000d0000020"),
    "-Infinity": bytes.fromhex("00000000f0000020"),
}
_SPECIAL_TEXTS: Final = {data: text for text, data in _SPECIALS.items()}

_TEXT = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,6}))?")


def from_text(text: str, *, precision: int | None = None, scale: int | None = None) -> bytes | None:
    """Return the bytes of the number in `text`; its dscale is the number of decimals as written.

    `1.50` and `1.5` are different numerics; `1.5E+3` is 1500, `1E-3` is 0.001. With `precision` and
    `scale`, dscale = scale; too many digits on either side of the point and infinities give None.
    """
    match = _TEXT.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return _SPECIALS.get(text) if precision is None or text == "NaN" else None
    whole, decimals = _shift(match[2], match[3] or "", int(match[4] or 0))
    whole, written = whole.lstrip("0"), len(decimals)
    if precision is not None and scale is not None:
        if written > scale or len(whole) > precision - scale:
            return None
        written = scale
    groups = -(-len(whole) // 4)
    digits = whole.rjust(4 * groups, "0") + decimals + "0" * (-len(decimals) % 4)
    words = [int(digits[at : at + 4]) for at in range(0, len(digits), 4)]
    while words and not words[-1]:
        words.pop()
    first = next((at for at, word in enumerate(words) if word), 0)
    words = words[first:]
    weight = groups - 1 - first if words else 0
    if written > SCALE_MAX or weight > WEIGHT_MAX:
        return None
    sign = NEGATIVE if words and match[1] == "-" else 0
    return struct.pack(f">HhHH{len(words)}h", len(words), weight, sign, written, *words)


def text(data: bytes) -> str | None:
    """Return the number with exactly dscale decimals, `NaN`, `Infinity` or `-Infinity`."""
    if data in _SPECIAL_TEXTS:
        return _SPECIAL_TEXTS[data]
    if len(data) < 8 or len(data) % 2:
        return None
    count, weight, sign, scale, *words = struct.unpack(f">HhHH{len(data) // 2 - 4}h", data)
    if count != len(words) or sign not in {0, NEGATIVE} or scale > SCALE_MAX:
        return None
    is_canonical = weight == 0 and sign == 0
    if words:
        is_canonical = words[0] > 0 and words[-1] > 0 and min(words) >= 0 and max(words) < 10_000
    if not is_canonical:
        return None
    digits = "".join([f"{word:04d}" for word in words])
    point = 4 * (weight + 1)
    if point < 0:
        digits, point = "0" * -point + digits, 0
    digits = digits.ljust(point + scale, "0")
    if digits[point + scale :].strip("0"):
        return None
    whole, decimals = digits[:point].lstrip("0") or "0", digits[point : point + scale]
    return f"{'-' if sign else ''}{whole}{'.' if scale else ''}{decimals}"


def _shift(whole: str, decimals: str, exponent: int) -> tuple[str, str]:
    """Return the digits before and after the point once it has moved right by `exponent`."""
    if exponent == 0:
        return whole, decimals
    digits, point = whole + decimals, len(whole) + exponent
    if point < 0:
        digits, point = "0" * -point + digits, 0
    digits = digits.ljust(point, "0")
    return digits[:point], digits[point:]
