"""Values of every declared type: chosen ones, random ones, and SQL that PostgreSQL turns to bytes.

CHOSEN and any_text are string forms (protocol, section 2). Neighbours in CHOSEN differ by as little
as the type allows, so that a codec which loses anything makes two of them equal.
"""

from __future__ import annotations

import struct
import uuid

from hypothesis import strategies as st

from tests.reference import values as reference

CHOSEN: dict[str, list[str]] = {
    "bool": ["true", "false"],
    "int2": ["0", "-1", "1", "-32768", "-32767", "32766", "32767"],
    "int4": ["0", "-1", "1", "-2147483648", "2147483646", "2147483647"],
    "int8": ["0", "-1", "-9223372036854775808", "9223372036854775806", "9223372036854775807"],
    "oid": ["0", "1", "2147483647", "2147483648", "4294967295"],
    "float4": [
        "0.0",
        "-0.0",
        "1e-45",
        "-1e-45",
        "0.1",
        "0.10000001",
        "3.4028235e+38",
        "1e+16",
        "16777216.0",
        "16777218.0",
        "NaN",
        "Infinity",
        "-Infinity",
    ],
    "float8": [
        "0.0",
        "-0.0",
        "5e-324",
        "0.1",
        "0.10000000000000002",
        "1.7976931348623157e+308",
        "9007199254740992.0",
        "9007199254740994.0",
        "NaN",
        "Infinity",
        "-Infinity",
    ],
    "numeric": [
        "0",
        "0.0",
        "0.00",
        "1",
        "1.0",
        "1.00",
        "-1",
        "-0.1",
        "0.0001",
        "0.00010",
        "0.00001",
        "9999",
        "10000",
        "10001",
        "99990000",
        "100000000",
        "1" + "0" * 300,
        "12345678901234567890.123456789012345678901234567890",
        "NaN",
        "Infinity",
        "-Infinity",
    ],
    "numeric(15,2)": [
        "0.00",
        "0.01",
        "-0.01",
        "0.10",
        "1.00",
        "99.99",
        "100.00",
        "10000.00",
        "9999999999999.99",
        "-9999999999999.99",
        "9999999999999.98",
        "1000000000000.00",
    ],
    "numeric(18,0)": ["0", "1", "-1", "9999", "10000", "999999999999999999", "-999999999999999999"],
    "numeric(18,18)": ["0." + "0" * 18, "0." + "9" * 18, "-0." + "9" * 18, "0." + "0" * 17 + "1"],
    "numeric(4,4)": ["0.0000", "0.0001", "0.9999", "-0.9999"],
    "numeric(1,0)": ["0", "9", "-9"],
    "numeric(1,1)": ["0.0", "0.1", "0.9", "-0.9"],
    "numeric(19,5)": ["0.00000", "0.00001", "99999999999999.99999", "-99999999999999.99999"],
    "numeric(38,10)": [
        "0." + "0" * 10,
        "9" * 28 + "." + "9" * 10,
        "-" + "9" * 28 + "." + "9" * 10,
        "18446744073709551615.0000000000",
        "18446744073709551616.0000000000",
        "0.0000000001",
    ],
    "numeric(38,0)": [
        "0",
        "9" * 38,
        "-" + "9" * 38,
        "18446744073709551616",
        "-18446744073709551616",
        "340282366920938463463374607431768211",
    ],
    "numeric(38,38)": ["0." + "9" * 38, "-0." + "9" * 38, "0." + "0" * 37 + "1"],
    "text": ["", " ", "a", "A", "ä", "a\u0308", "\U0001f600", "\0", "1", "1.0", "\n", "x" * 5000],
    "bytea": ["", "00", "0000", "ff", "fffe", "c3a4"],
    "date": [
        "2000-01-01",
        "2000-01-02",
        "1999-12-31",
        "0001-01-01",
        "9999-12-31",
        "2000-02-29",
        "1900-02-28",
        "1900-03-01",
        "1970-01-01",
        "10000-01-01",
        "5874897-12-31",
        "0000-12-31",
        "-0001-12-31",
        "-4713-11-24",
        "infinity",
        "-infinity",
    ],
    "timestamp": [
        "2000-01-01 00:00:00",
        "2000-01-01 00:00:00.000001",
        "1999-12-31 23:59:59.999999",
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "0000-12-31 23:59:59.999999",
        "10000-01-01 00:00:00",
        "294276-12-31 23:59:59.999999",
        "-4713-11-24 00:00:00",
        "2024-02-29 12:34:56.7",
        "infinity",
        "-infinity",
    ],
    "time": ["00:00:00", "00:00:00.000001", "23:59:59.999999", "24:00:00", "12:30:00.5"],
    "timetz": [
        "00:00:00+00:00",
        "00:00:00-00:01",
        "00:00:00+01:00",
        "24:00:00+15:59:59",
        "12:00:00.000001-15:59:59",
        "12:00:00+00:00:01",
        "13:00:00+01:00",
    ],
    "interval": [
        "P0M0DT0S",
        "P1M0DT0S",
        "P0M30DT0S",
        "P0M0DT2592000S",
        "P0M1DT0S",
        "P0M0DT86400S",
        "P-1M0DT0S",
        "P0M0DT0.000001S",
        "P0M0DT-0.000001S",
        "P-1M2DT-3.5S",
        "infinity",
        "-infinity",
        "P2147483647M2147483647DT9223372036854.775806S",
    ],
    "uuid": [str(uuid.UUID(int=n)) for n in (0, 1, 2**127, 2**128 - 1)]
    + ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "jsonb": ["null", "{}", '{"a": 1}', '{"a": 1.0}', '{"a": 1.10}', '"ä"', "[]", "[[]]"],
}
CHOSEN["timestamptz"] = [t if "inf" in t else t + "+00" for t in CHOSEN["timestamp"]]
TYPES = sorted(CHOSEN)

# What the native carrier does not hold.
UNCARRIED: dict[str, list[str]] = {
    "date": ["infinity", "-infinity", "10000-01-01", "0000-12-31", "-4713-11-24"],
    "timestamp": ["infinity", "-infinity", "10000-01-01 00:00:00", "0000-12-31 23:59:59.999999"],
    "timestamptz": ["infinity", "10000-01-01 00:00:00+00", "0000-12-31 23:59:59.999999+00"],
    "numeric(15,2)": ["NaN"],
    "numeric(38,10)": ["NaN"],
}

# Expressions whose bytes are not at once those of a literal in string form.
SQL: dict[str, list[str]] = {
    "numeric": [
        "power(10::numeric, 131071)",
        "1e-16383::numeric",
        "-0.00::numeric",
        "1/3::numeric",
    ],
    "numeric(15,2)": ["(-0.001)::numeric(15,2)", "1.5::numeric(15,2)"],
    "date": ["'4714-11-24 BC'::date", "'5874897-12-31'::date"],
    "timestamp": ["'4714-11-24 BC'::timestamp", "'294276-12-31 23:59:59.999999'::timestamp"],
    "timetz": ["'24:00:00-15:59:59'::timetz"],
    "interval": ["'1 year 2 mons -3 days 04:05:06.7'::interval", "'-1 month +1 day'::interval"],
    "jsonb": ['\'{"b":1,  "a":1.10}\'::jsonb'],
    "float8": ["'-0'::float8", "1e-310::float8"],
    "float4": ["'-0'::float4", "1e-40::float4", "16777217::float4"],
}

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


# PostgreSQL reads the seconds of ISO 8601 as a double.
_MISREAD = {"P2147483647M2147483647DT9223372036854.775806S"}


def expressions(type: str) -> list[str]:
    """SQL for the chosen values that PostgreSQL reads as they are written, and for SQL's."""
    quoted = []
    for text in CHOSEN[type]:
        if text in _MISREAD or "\0" in text or text[:5] == "0000-":
            continue
        if text[:1] == "-" and type in {"date", "timestamp", "timestamptz"} and text != "-infinity":
            continue
        shown = ("\\x" if type == "bytea" else "") + text.replace("'", "''")
        quoted.append(f"'{shown}'::{type}")
    return quoted + SQL.get(type, [])


def any_bytes(type: str) -> st.SearchStrategy[bytes]:
    """Random valid bytes of the type, the chosen ones among them."""
    return st.one_of(
        st.sampled_from(CHOSEN[type]).map(lambda t: reference.encode(type, t)), _random(type)
    )


def _random(type: str) -> st.SearchStrategy[bytes]:
    kind = type.partition("(")[0]
    if kind == "numeric":
        return _numerics(type).map(lambda text: reference.encode(type, text))
    if kind in {"text", "jsonb"}:
        return _TEXT.map(lambda text: (b"\1" if kind == "jsonb" else b"") + text.encode())
    if kind == "bytea":
        return st.binary(max_size=40)
    if kind in {"float4", "float8"}:
        width, form = (4, ">f") if kind == "float4" else (8, ">d")
        return st.binary(min_size=width, max_size=width).filter(
            lambda b: struct.unpack(form, b)[0] == struct.unpack(form, b)[0]
        )
    if kind == "bool":
        return st.sampled_from([b"\0", b"\1"])
    if kind in {"time", "timetz"}:
        clock = st.integers(0, reference.DAY_US).map(lambda us: struct.pack(">q", us))
        zone = st.integers(-57_599, 57_599).map(lambda west: struct.pack(">i", west))
        return clock if kind == "time" else st.tuples(clock, zone).map(b"".join)
    sizes = {"int2": 2, "int8": 8, "timestamp": 8, "timestamptz": 8, "interval": 16, "uuid": 16}
    size = sizes.get(kind, 4)
    return st.binary(min_size=size, max_size=size)


def _numerics(type: str) -> st.SearchStrategy[str]:
    if "(" in type:
        precision, scale = (int(part) for part in type[8:-1].split(","))
        most = 10**precision - 1
        unscaled = st.integers(0, precision).flatmap(lambda d: st.integers(-(10**d) + 1, 10**d - 1))
        return (unscaled | st.integers(-most, most)).map(lambda n: point(n, scale))
    return st.tuples(st.integers(-(10**60), 10**60), st.integers(0, 70)).map(lambda t: point(*t))


def point(unscaled: int, scale: int) -> str:
    """unscaled / 10^scale with exactly `scale` decimals."""
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, decimals = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return ("-" if unscaled < 0 else "") + whole + ("." + decimals if scale else "")
