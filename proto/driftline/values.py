"""One value: PostgreSQL's binary send format to text and back (protocol, section 2).

The engines that must *make* bytes (SQLite, MariaDB) call the encoders; the warehouse uses the text
where Spark has no type that holds the value. Whatever is fast and vectorised is elsewhere
(`warehouse_agent.columns.arrow`); this module is the definition that it is tested against.

Invariants:
- decode_string refuses every byte string that is not the one encoding of a value, so that
  encode_string(t, decode_string(t, b)) == b for every b that it accepts;
- encode_string never rounds, with the exception of the two float types, whose text is rounded once
  and correctly; what does not fit is refused, never clipped;
- text that is no value of the type is the caller's data (ValueDoesNotFit); bytes that are none are
  the other side's mistake (MalformedMessage).

Rejected: `datetime` and `decimal` as the values' form in Python. Neither holds every value, both
normalise what they hold; `times`, `numerics` and `floats` need integers and text only.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, NamedTuple

from driftline import floats, numerics, times
from driftline.errors import MalformedMessage, ValueDoesNotFit
from driftline.types import DeclaredType

DAY_US: Final = times.DAY_US
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_INTEGERS: Final = {"int2": _INT16, "int4": _INT32, "int8": _INT64, "oid": struct.Struct(">I")}
_TIMETZ: Final = struct.Struct(">qi")
_INTERVAL: Final = struct.Struct(">qii")
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_ZONE_S_MAX: Final = 16 * 3600 - 1  # PostgreSQL's own bound

_INTEGER_TEXT = re.compile(r"-?[0-9]{1,20}")
_UUID_TEXT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX_TEXT = re.compile(r"(?:[0-9a-f]{2})*")


def encode_string(type: DeclaredType, text: str) -> bytes:
    """The bytes of the value that `text` writes, in the string form of protocol section 2.

    Raises:
        ValueDoesNotFit: it writes no value of this type, or one that the type cannot hold.
    """
    return string_encoder(type)(text)


def decode_string(type: DeclaredType, data: bytes | memoryview) -> str:
    """The string form of a value's bytes.

    Raises:
        MalformedMessage: they are not the encoding of a value.
        ValueDoesNotFit: of a value, but of one that numeric(p,s) cannot hold.
    """
    data = bytes(data)
    if type.width not in {None, len(data)}:
        raise _malformed(type, data)
    return _CODECS[type.kind].decode(type, data)


@lru_cache(maxsize=1024)
def string_encoder(type: DeclaredType) -> Callable[[str], bytes]:
    """encode_string for one type, resolved once: for engines that encode column by column."""
    return partial(_CODECS[type.kind].encode, type)


def encode_bool(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def encode_int(kind: str, value: int) -> bytes:
    """`kind` is int2, int4, int8 or oid."""
    try:
        return _INTEGERS[kind].pack(value)
    except struct.error:
        raise _unfit(kind, str(value)) from None


def encode_float4(value: float) -> bytes:
    """Of a number that single precision holds exactly; any other is refused, not rounded."""
    if math.isnan(value):
        return floats.SINGLE_NAN
    try:
        data = floats.SINGLE.pack(value)
    except OverflowError:
        raise _unfit("float4", repr(value)) from None
    if floats.SINGLE.unpack(data)[0] != value:
        raise _unfit("float4", repr(value))
    return data


def encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _unfit("text", text) from None


def encode_jsonb(text: str) -> bytes:
    return b"\x01" + encode_text(text)


def encode_time(us: int) -> bytes:
    """`us` since midnight, up to and including 24:00."""
    if not 0 <= us <= times.DAY_US:
        raise _unfit("time", f"{us} µs since midnight")
    return _INT64.pack(us)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:60] + "…")


def _unfit(type: DeclaredType | str, text: str) -> ValueDoesNotFit:
    return ValueDoesNotFit(f"{_shown(text)} is not a value of type {type}.")


def _malformed(type: DeclaredType, data: bytes) -> MalformedMessage:
    shown = data[:40].hex() + ("…" if len(data) > 40 else "")
    return MalformedMessage(f"The bytes {shown or '(none)'} are not a value of type {type}.")


# Numbers.
def _encode_int_text(type: DeclaredType, text: str) -> bytes:
    if not _INTEGER_TEXT.fullmatch(text):
        raise _unfit(type, text)
    return encode_int(type.kind, int(text))


def _encode_float_text(type: DeclaredType, text: str) -> bytes:
    data = floats.from_text(text, single=type.kind == "float4")
    if data is None:
        raise _unfit(type, text)
    return data


def _decode_float(type: DeclaredType, data: bytes) -> str:
    text = floats.text(data)
    if text is None:
        raise _malformed(type, data)
    return text


def _encode_numeric(type: DeclaredType, text: str) -> bytes:
    data = numerics.from_text(text, precision=type.precision, scale=type.scale)
    if data is None:
        raise _unfit(type, text)
    return data


def _decode_numeric(type: DeclaredType, data: bytes) -> str:
    text = numerics.text(data)
    if text is None:
        raise _malformed(type, data)
    if type.precision is not None and text != "NaN":
        scale = int.from_bytes(data[6:8], "big")
        if text.endswith("Infinity") or scale != type.scale:
            raise _malformed(type, data)
        if len(text.lstrip("-0.").replace(".", "")) > type.precision:
            raise _unfit(type, text)
    return text


# Text, and bytes that have a text.
def _encode_bool_text(type: DeclaredType, text: str) -> bytes:
    if text not in {"true", "false"}:
        raise _unfit(type, text)
    return encode_bool(text == "true")


def _decode_bool(type: DeclaredType, data: bytes) -> str:
    if data not in {b"\x00", b"\x01"}:
        raise _malformed(type, data)
    return "true" if data == b"\x01" else "false"


def _decode_text(type: DeclaredType, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _malformed(type, data) from None


def _decode_jsonb(type: DeclaredType, data: bytes) -> str:
    if data[:1] != b"\x01":
        raise _malformed(type, data)
    return _decode_text(type, data[1:])


def _encode_hex(type: DeclaredType, text: str) -> bytes:
    if not (_UUID_TEXT if type.kind == "uuid" else _HEX_TEXT).fullmatch(text):
        raise _unfit(type, text)
    return bytes.fromhex(text.replace("-", ""))


def _decode_uuid(_: DeclaredType, data: bytes) -> str:
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


# Dates and times.
class _Moment(NamedTuple):
    form: struct.Struct
    greatest: int
    from_text: Callable[[str], int | None]
    text: Callable[[int], str]
    zone: str


_MOMENTS: Final = {
    "date": _Moment(_INT32, _INT32_MAX, times.days_from_text, times.date_text, ""),
    "timestamp": _Moment(_INT64, _INT64_MAX, times.timestamp_from_text, times.timestamp_text, ""),
    "timestamptz": _Moment(
        _INT64, _INT64_MAX, times.timestamp_from_text, times.timestamp_text, "+00"
    ),
}


def _encode_moment(type: DeclaredType, text: str) -> bytes:
    form, greatest, from_text, _, zone = _MOMENTS[type.kind]
    if text in {"infinity", "-infinity"}:
        return form.pack(~greatest if text[0] == "-" else greatest)
    value = from_text(text.removesuffix(zone)) if text.endswith(zone) else None
    if value is None or not ~greatest < value < greatest:
        raise _unfit(type, text)
    return form.pack(value)


def _decode_moment(type: DeclaredType, data: bytes) -> str:
    form, greatest, _, to_text, zone = _MOMENTS[type.kind]
    value: int = form.unpack(data)[0]
    if value in {greatest, ~greatest}:
        return "infinity" if value > 0 else "-infinity"
    return to_text(value) + zone


def _encode_time_text(type: DeclaredType, text: str) -> bytes:
    us = times.clock_from_text(text)
    if us is None:
        raise _unfit(type, text)
    return encode_time(us)


def _decode_time(type: DeclaredType, data: bytes) -> str:
    us: int = _INT64.unpack(data)[0]
    if not 0 <= us <= times.DAY_US:
        raise _malformed(type, data)
    return times.clock_text(us)


def _encode_timetz_text(type: DeclaredType, text: str) -> bytes:
    at = max(text.rfind("+"), text.rfind("-"), 0)
    us, west_s = times.clock_from_text(text[:at]), times.zone_from_text(text[at:])
    if us is None or west_s is None or abs(west_s) > _ZONE_S_MAX:
        raise _unfit(type, text)
    return _TIMETZ.pack(us, west_s)


def _decode_timetz(type: DeclaredType, data: bytes) -> str:
    us, west_s = _TIMETZ.unpack(data)
    if not 0 <= us <= times.DAY_US or abs(west_s) > _ZONE_S_MAX:
        raise _malformed(type, data)
    return times.clock_text(us) + times.zone_text(west_s)


def _encode_interval_text(type: DeclaredType, text: str) -> bytes:
    if text in _INTERVAL_SPECIALS:
        return _INTERVAL_SPECIALS[text]
    parts = times.interval_from_text(text)
    try:
        data = _INTERVAL.pack(*parts) if parts else b""
    except struct.error:
        raise _unfit(type, text) from None
    if not data or data in _INTERVAL_SPECIALS.values():
        raise _unfit(type, text)
    return data


def _decode_interval(_: DeclaredType, data: bytes) -> str:
    for text, special in _INTERVAL_SPECIALS.items():
        if data == special:
            return text
    return times.interval_text(*_INTERVAL.unpack(data))


_INTERVAL_SPECIALS: Final = {
    "infinity": _INTERVAL.pack(_INT64_MAX, _INT32_MAX, _INT32_MAX),
    "-infinity": _INTERVAL.pack(-_INT64_MAX - 1, -_INT32_MAX - 1, -_INT32_MAX - 1),
}


class _Codec(NamedTuple):
    encode: Callable[[DeclaredType, str], bytes]
    decode: Callable[[DeclaredType, bytes], str]


_INTEGER = _Codec(_encode_int_text, lambda t, b: str(_INTEGERS[t.kind].unpack(b)[0]))
_FLOAT = _Codec(_encode_float_text, _decode_float)
_MOMENT = _Codec(_encode_moment, _decode_moment)
_CODECS: Final[dict[str, _Codec]] = {
    "bool": _Codec(_encode_bool_text, _decode_bool),
    **dict.fromkeys(_INTEGERS, _INTEGER),
    "float4": _FLOAT,
    "float8": _FLOAT,
    "numeric": _Codec(_encode_numeric, _decode_numeric),
    "text": _Codec(lambda _, text: encode_text(text), _decode_text),
    "bytea": _Codec(_encode_hex, lambda _, data: data.hex()),
    **dict.fromkeys(_MOMENTS, _MOMENT),
    "time": _Codec(_encode_time_text, _decode_time),
    "timetz": _Codec(_encode_timetz_text, _decode_timetz),
    "interval": _Codec(_encode_interval_text, _decode_interval),
    "uuid": _Codec(_encode_hex, _decode_uuid),
    "jsonb": _Codec(lambda _, text: encode_jsonb(text), _decode_jsonb),
}
