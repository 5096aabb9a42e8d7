"""The reference for protocol section 2: one value, text to bytes and back.

Written from PostgreSQL's documentation of its binary formats with the means of the standard library
(`decimal`, `struct`, `uuid`, `datetime` within one cycle of 400 years). Types are named by their
text. What is no value of the type raises ValueError, with nobody to blame: it knows no errors of
the product.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from decimal import Context, Decimal
from fractions import Fraction

EXACT = Context(prec=400_000, Emax=10**9, Emin=-(10**9))
CYCLE_DAYS = 146_097  # the Gregorian calendar repeats every 400 years
DAY_US = 24 * 60 * 60 * 10**6
GREATEST_SINGLE = (2 - 2**-23) * 2.0**127 * (1 + 2**-25)  # what rounds down to it
INT_FORMATS = {"int2": ">h", "int4": ">i", "int8": ">q", "oid": ">I"}
NUMERIC_SPECIALS = {
    "NaN": struct.pack(">HhHH", 0, 0, 0xC000, 0),
    "Infinity": struct.pack(">HhHH", 0, 0, 0xD000, 32),
    "-Infinity": struct.pack(">HhHH", 0, 0, 0xF000, 32),
}
INFINITIES = {
    "date": {"infinity": b"\x7f" + 3 * b"\xff", "-infinity": b"\x80" + 3 * b"\0"},
    "timestamp": {"infinity": b"\x7f" + 7 * b"\xff", "-infinity": b"\x80" + 7 * b"\0"},
    "interval": {
        "infinity": b"\x7f" + 7 * b"\xff" + 2 * (b"\x7f" + 3 * b"\xff"),
        "-infinity": b"\x80" + 7 * b"\0" + 2 * (b"\x80" + 3 * b"\0"),
    },
}
INFINITIES["timestamptz"] = INFINITIES["timestamp"]


def encode(type: str, text: str) -> bytes:
    kind = type.partition("(")[0]
    if text in INFINITIES.get(kind, {}):
        return INFINITIES[kind][text]
    if kind == "bool":
        return {"true": b"\1", "false": b"\0"}[text]
    if kind in INT_FORMATS:
        return struct.pack(INT_FORMATS[kind], int(text))
    if kind in {"float4", "float8"}:
        return encode_float(kind, text)
    if kind == "numeric":
        return encode_numeric(type, text)
    if kind == "text":
        return text.encode()
    if kind == "jsonb":
        return b"\1" + text.encode()
    if kind == "bytea":
        return bytes.fromhex(text)
    if kind == "uuid":
        return uuid.UUID(text).bytes
    if kind == "date":
        return struct.pack(">i", days_of(text))
    if kind in {"timestamp", "timestamptz"}:
        date, clock = text.removesuffix("+00").split(" ")
        return struct.pack(">q", days_of(date) * DAY_US + us_of(clock))
    if kind == "time":
        return struct.pack(">q", us_of(text))
    if kind == "timetz":
        at = max(text.find("+"), text.find("-"))
        west = us_of((text[at + 1 :] + ":00")[:8]) // 10**6
        return struct.pack(">qi", us_of(text[:at]), west if text[at] == "-" else -west)
    assert kind == "interval"
    months, rest = text.removeprefix("P").split("M")
    days, seconds = rest.removesuffix("S").split("DT")
    return struct.pack(">qii", int(Fraction(seconds) * 10**6), int(days), int(months))


def decode(type: str, data: bytes) -> str:
    kind = type.partition("(")[0]
    for text, extreme in INFINITIES.get(kind, {}).items():
        if data == extreme:
            return text
    if kind == "bool":
        return {b"\1": "true", b"\0": "false"}[data]
    if kind in INT_FORMATS:
        return str(struct.unpack(INT_FORMATS[kind], data)[0])
    if kind in {"float4", "float8"}:
        return decode_float(kind, data)
    if kind == "numeric":
        return decode_numeric(data)
    if kind == "text":
        return data.decode()
    if kind == "jsonb":
        return data[1:].decode()
    if kind == "bytea":
        return data.hex()
    if kind == "uuid":
        return str(uuid.UUID(bytes=data))
    if kind == "date":
        return date_of(struct.unpack(">i", data)[0])
    if kind in {"timestamp", "timestamptz"}:
        days, us = divmod(struct.unpack(">q", data)[0], DAY_US)
        return f"{date_of(days)} {clock_of(us)}" + ("+00" if kind == "timestamptz" else "")
    if kind == "time":
        return clock_of(struct.unpack(">q", data)[0])
    if kind == "timetz":
        us, west = struct.unpack(">qi", data)
        zone = clock_of(abs(west) * 10**6).removesuffix(":00")
        zone = zone if zone.count(":") else zone + ":00"
        return clock_of(us) + ("-" if west > 0 else "+") + zone
    assert kind == "interval"
    us, days, months = struct.unpack(">qii", data)
    return f"P{months}M{days}DT{plain(Decimal(us).scaleb(-6, EXACT))}S"


def encode_numeric(type: str, text: str) -> bytes:
    """Digits by long division of the value's integer at the next multiple of four decimals."""
    if text in NUMERIC_SPECIALS:
        return NUMERIC_SPECIALS[text]
    value = EXACT.create_decimal(text)
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    dscale = max(0, -exponent)
    if "(" in type:
        precision, scale = (int(part) for part in type[8:-1].split(","))
        if dscale > scale or value.copy_abs() >= EXACT.power(Decimal(10), precision - scale):
            raise ValueError(text)
        dscale = scale
    places = -(-dscale // 4)
    rest = int(EXACT.scaleb(value.copy_abs(), 4 * places))
    digits: list[int] = []
    while rest:
        rest, digit = divmod(rest, 10_000)
        digits.insert(0, digit)
    weight = len(digits) - 1 - places
    while digits and digits[-1] == 0:
        digits.pop()
    if not digits:
        return struct.pack(">HhHH", 0, 0, 0, dscale)
    sign = 0x4000 if value < 0 else 0
    header = struct.pack(">HhHH", len(digits), weight, sign, dscale)
    return header + b"".join(struct.pack(">h", digit) for digit in digits)


def decode_numeric(data: bytes) -> str:
    for text, special in NUMERIC_SPECIALS.items():
        if data == special:
            return text
    ndigits, weight, sign, dscale = struct.unpack(">HhHH", data[:8])
    value = Decimal(0)
    for i in range(ndigits):
        (digit,) = struct.unpack(">h", data[8 + 2 * i : 10 + 2 * i])
        value = EXACT.add(value, EXACT.scaleb(Decimal(digit), 4 * (weight - i)))
    shown = EXACT.quantize(value, Decimal(1).scaleb(-dscale, EXACT))
    return ("-" if sign else "") + format(shown, "f")


def encode_float(kind: str, text: str) -> bytes:
    if text == "NaN":
        return bytes.fromhex("7fc00000" if kind == "float4" else "7ff8000000000000")
    if kind == "float8" or "Inf" in text:
        return struct.pack(">f" if kind == "float4" else ">d", float(text))
    # The nearest of the singles around it, measured exactly; the even one of two equally near.
    guess = int.from_bytes(struct.pack(">f", float(text)), "big")
    near = [n for n in (guess - 1, guess, guess + 1) if 0 <= n < 2**32]
    singles = [n for n in near if math.isfinite(single(n)) and (n >> 31) == (guess >> 31)]
    best = min(singles, key=lambda n: (abs(Fraction(single(n)) - Fraction(text)), n & 1))
    return best.to_bytes(4, "big")


def single(bits: int) -> float:
    value: float = struct.unpack(">f", bits.to_bytes(4, "big"))[0]
    return value


def decode_float(kind: str, data: bytes) -> str:
    value: float = struct.unpack(">f" if kind == "float4" else ">d", data)[0]
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if kind == "float8":
        return repr(value)
    # The fewest digits that read as the same single, as Python writes such a number.
    for digits in range(1, 10):
        text = format(value, f".{digits}g")
        if abs(float(text)) <= GREATEST_SINGLE and encode_float("float4", text) == data:
            return repr(float(text))
    raise ValueError(data)


def days_of(text: str) -> int:
    year, month, day = text[:-6], text[-5:-3], text[-2:]
    cycles, year_in_cycle = divmod(int(year) - 2000, 400)
    date = dt.date(2000 + year_in_cycle, int(month), int(day))
    return cycles * CYCLE_DAYS + (date - dt.date(2000, 1, 1)).days


def date_of(days: int) -> str:
    cycles, days_in_cycle = divmod(days, CYCLE_DAYS)
    date = dt.date(2000, 1, 1) + dt.timedelta(days=days_in_cycle)
    year = date.year + 400 * cycles
    return ("-" if year < 0 else "") + f"{abs(year):04d}-{date.month:02d}-{date.day:02d}"


def us_of(clock: str) -> int:
    hours, minutes, seconds = clock.split(":")
    return int((Fraction(hours) * 3600 + Fraction(minutes) * 60 + Fraction(seconds)) * 10**6)


def clock_of(us: int) -> str:
    hours, us = divmod(us, 3600 * 10**6)
    minutes, us = divmod(us, 60 * 10**6)
    seconds = plain(Decimal(us).scaleb(-6, EXACT))
    return f"{hours:02d}:{minutes:02d}:" + ("0" if us < 10 * 10**6 else "") + seconds


def plain(value: Decimal) -> str:
    """Fixed notation; a fraction ends in no zero."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
