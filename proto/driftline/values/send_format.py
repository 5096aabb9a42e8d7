"""One value: PostgreSQL's binary send format to text and back (protocol, section 2).

SQLite and MariaDB encode with it; the warehouse uses the text where Spark has no type for a value.
The faster, vectorised code of `warehouse_agent.columns.arrow` is tested against this definition.

Invariants: decode_string accepts only the one encoding of a value, so encoding its result gives the
same bytes. Encoders never round or clip, except the text of floats, which is rounded once,
correctly. Text that is no value of the type is the caller's data (ValueDoesNotFit); bytes that are
no value are the other side's mistake (MalformedMessage), but for text that is not UTF-8: a database
can hold such bytes, and sends them as they are (ValueDoesNotFit).

Rejected: `datetime` and `decimal`, which neither hold every value nor keep what they hold as it is.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from driftline.errors import MalformedMessage, ValueDoesNotFit
from driftline.values import floats, numerics, times
from driftline.values.types import DeclaredType

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
_JSONB_VERSION: Final = b"\x01"


def string_encoder(type: DeclaredType) -> Callable[[str], bytes]:
    """Return the function from string forms of a type to bytes; it raises ValueDoesNotFit for
    text that is no value of the type."""
    encode = _CODECS[type.kind].encode

    def encoded(text: str) -> bytes:
        data = encode(type, text)
        if data is None:
            raise _unfit(type, text)
        return data

    return encoded


def decode_string(type: DeclaredType, data: bytes | memoryview) -> str:
    """Return the string form of a value's bytes; raise MalformedMessage if they are no encoding,
    ValueDoesNotFit if a number has too many digits for numeric(p,s), or a text is not UTF-8."""
    data = bytes(data)
    fits = type.width in {None, len(data)}
    text = _CODECS[type.kind].decode(type, data) if fits else None
    if text is None:
        shown = data[:40].hex() + ("…" if len(data) > 40 else "")
        if type.kind == "text" or (type.kind == "jsonb" and data[:1] == _JSONB_VERSION):
            raise ValueDoesNotFit(
                f"The bytes {shown} are no text in UTF-8.",
                remedy="Have the text corrected at the source, or published as bytes by a query:"
                " textsend(col::text) on PostgreSQL.",
            )
        raise MalformedMessage(f"The bytes {shown or '(none)'} are not a value of type {type}.")
    return text


def encode_float4(value: float) -> bytes:
    """Return the bytes of a number; raise ValueDoesNotFit if it would have to be rounded."""
    if math.isnan(value):
        return floats.SINGLE_NAN
    try:
        data = floats.SINGLE.pack(value)
    except OverflowError:
        raise _unfit("float4", repr(value)) from None
    if floats.SINGLE.unpack(data)[0] != value:
        raise _unfit("float4", repr(value))
    return data


def _unfit(type: DeclaredType | str, text: str) -> ValueDoesNotFit:
    shown = ascii(text if len(text) <= 60 else text[:60] + "…")
    return ValueDoesNotFit(f"{shown} is not a value of type {type}.")


# Encoders and decoders return None for text or bytes that are no value of the type.
def _encode_int(type: DeclaredType, text: str) -> bytes | None:
    if not _INTEGER_TEXT.fullmatch(text):
        return None
    try:
        return _INTEGERS[type.kind].pack(int(text))
    except struct.error:
        return None


def _decode_numeric(type: DeclaredType, data: bytes) -> str | None:
    text = numerics.text(data)
    if text is not None and type.precision is not None and text != "NaN":
        scale = int.from_bytes(data[6:8], "big")
        if text.endswith("Infinity") or scale != type.scale:
            return None
        if len(text.lstrip("-0.").replace(".", "")) > type.precision:
            raise _unfit(type, text)
    return text


def _encode_text(_: DeclaredType, text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _decode_text(_: DeclaredType, data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _encode_jsonb(type: DeclaredType, text: str) -> bytes | None:
    data = _encode_text(type, text)
    return None if data is None else _JSONB_VERSION + data


def _decode_jsonb(type: DeclaredType, data: bytes) -> str | None:
    return _decode_text(type, data[1:]) if data[:1] == _JSONB_VERSION else None


def _encode_hex(type: DeclaredType, text: str) -> bytes | None:
    form = _UUID_TEXT if type.kind == "uuid" else _HEX_TEXT
    return bytes.fromhex(text.replace("-", "")) if form.fullmatch(text) else None


def _decode_uuid(_: DeclaredType, data: bytes) -> str:
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


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


def _encode_moment(type: DeclaredType, text: str) -> bytes | None:
    form, greatest, from_text, _, zone = _MOMENTS[type.kind]
    if text in {"infinity", "-infinity"}:
        return form.pack(~greatest if text[0] == "-" else greatest)
    value = from_text(text.removesuffix(zone)) if text.endswith(zone) else None
    return form.pack(value) if value is not None and ~greatest < value < greatest else None


def _decode_moment(type: DeclaredType, data: bytes) -> str:
    form, greatest, _, to_text, zone = _MOMENTS[type.kind]
    value: int = form.unpack(data)[0]
    if value in {greatest, ~greatest}:
        return "infinity" if value > 0 else "-infinity"
    return to_text(value) + zone


def _encode_time(_: DeclaredType, text: str) -> bytes | None:
    us = times.clock_from_text(text)
    return None if us is None else _INT64.pack(us)


def _decode_time(_: DeclaredType, data: bytes) -> str | None:
    us: int = _INT64.unpack(data)[0]
    return times.clock_text(us) if 0 <= us <= DAY_US else None


def _encode_timetz(_: DeclaredType, text: str) -> bytes | None:
    at = max(text.rfind("+"), text.rfind("-"), 0)
    us, west_s = times.clock_from_text(text[:at]), times.zone_from_text(text[at:])
    if us is None or west_s is None or abs(west_s) > _ZONE_S_MAX:
        return None
    return _TIMETZ.pack(us, west_s)


def _decode_timetz(_: DeclaredType, data: bytes) -> str | None:
    us, west_s = _TIMETZ.unpack(data)
    if not 0 <= us <= DAY_US or abs(west_s) > _ZONE_S_MAX:
        return None
    return times.clock_text(us) + times.zone_text(west_s)


def _encode_interval(_: DeclaredType, text: str) -> bytes | None:
    if text in _INTERVAL_SPECIALS:
        return _INTERVAL_SPECIALS[text]
    parts = times.interval_from_text(text)
    try:
        data = _INTERVAL.pack(*parts) if parts else None
    except struct.error:
        return None
    return None if data in _INTERVAL_SPECIALS.values() else data


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
    encode: Callable[[DeclaredType, str], bytes | None]
    decode: Callable[[DeclaredType, bytes], str | None]


_INTEGER = _Codec(_encode_int, lambda t, b: str(_INTEGERS[t.kind].unpack(b)[0]))
_FLOAT = _Codec(
    lambda t, text: floats.from_text(text, single=t.kind == "float4"),
    lambda _, data: floats.text(data),
)
_MOMENT = _Codec(_encode_moment, _decode_moment)
_CODECS: Final[dict[str, _Codec]] = {
    "bool": _Codec(
        lambda _, text: {"true": b"\x01", "false": b"\x00"}.get(text),
        lambda _, data: {b"\x01": "true", b"\x00": "false"}.get(data),
    ),
    **dict.fromkeys(_INTEGERS, _INTEGER),
    "float4": _FLOAT,
    "float8": _FLOAT,
    "numeric": _Codec(
        lambda t, text: numerics.from_text(text, precision=t.precision, scale=t.scale),
        _decode_numeric,
    ),
    "text": _Codec(_encode_text, _decode_text),
    "bytea": _Codec(_encode_hex, lambda _, data: data.hex()),
    **dict.fromkeys(_MOMENTS, _MOMENT),
    "time": _Codec(_encode_time, _decode_time),
    "timetz": _Codec(_encode_timetz, _decode_timetz),
    "interval": _Codec(_encode_interval, _decode_interval),
    "uuid": _Codec(_encode_hex, _decode_uuid),
    "jsonb": _Codec(_encode_jsonb, _decode_jsonb),
}
