"""One value: the codec against the reference, its own inverse, and a real PostgreSQL."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import TYPE_CHECKING

import psycopg
import pytest
from driftline.errors import DriftlineError, MalformedMessage, ValueDoesNotFit
from driftline.values import send_format, times
from driftline.values.types import parse_type
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import values as reference
from tests.samples import values as value_samples

if TYPE_CHECKING:
    from tests.harness.servers import PostgreSQL

BAD_TEXT = [
    ("bool", ["", "t", "True", "1"]),
    ("int2", ["32768", "-32769", "", "1.0", "1 ", "+1", "٣", "1" * 5000]),
    ("oid", ["-1", "4294967296"]),
    ("float4", ["1e39", "-1e39", "nan", "inf", "0x10", "1_0", "", "3.4028236e38"]),
    ("float8", ["1e309", "1_000", " 1", "Infinit"]),
    ("numeric", ["", ".", "-", "1e", "nan", "1_0", "1e999999", "1e-16384", "1E1000000", "0x1"]),
    ("numeric(15,2)", ["0.001", "1.000", "10000000000000", "1E+13", "Infinity", "-Infinity"]),
    ("numeric(2,2)", ["1", "1.00", "0.123"]),
    ("text", ["\ud800"]),
    ("bytea", ["0", "FF", "0 0", "zz", "\\x00"]),
    ("date", ["2001-02-29", "1900-02-29", "2000-13-01", "2000-00-01", "2000-01-32", "2000-1-1"]),
    ("date", ["2001-04-31", "2001-06-31", "2001-09-31", "2001-11-31", "2001-12-32", "2000-02-30"]),
    ("date", ["0000-00-00", "02000-01-01", "9999999-01-01"]),
    ("timestamp", ["2000-01-01", "2000-01-01T00:00:00", "2000-01-01 24:00:00", "infinity+00"]),
    ("timestamp", ["2000-01-01 00:00:00.0000001", "2000-01-01 00:00:60", "2000-01-01 00:00:00+00"]),
    ("timestamptz", ["2000-01-01 00:00:00", "2000-01-01 00:00:00+01", "400000-01-01 00:00:00+00"]),
    ("time", ["24:00:00.000001", "23:59:60", "-01:00:00", "838:59:59", "1:00:00"]),
    ("timetz", ["00:00:00", "00:00:00+16:00", "00:00:00+1", "00:00:00+00:60"]),
    ("interval", ["P1M", "P2147483648M0DT0S", "P2147483647M2147483647DT9223372036854.775807S"]),
    ("uuid", ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc999c0b4ef8bb6d6bb9bd380a11"]),
    ("jsonb", ["\udfff"]),
]

BAD_BYTES = [
    ("bool", ["", "02", "0001"]),
    ("int4", ["", "000000", "0000000000"]),
    ("float4", ["7fc00001", "ffc00000", "7f800001"]),
    ("float8", ["fff8000000000000", "7ff0000000000001"]),
    ("numeric", ["", "0000", "000000000000000000", "0001000000000000"]),
    ("numeric", ["00010000000000000000", "000200000000000000010000", "000100000000" + "00002710"]),
    ("numeric", ["0001000000000000ffff", "00010000200000000001", "0000000140000000"]),
    ("numeric", ["0000000040000000", "00000000c0000001", "00000000d0000000", "0000000000004000"]),
    ("numeric", ["0001ffff000000000001", "0001ffff000000010001"]),  # digits beyond dscale
    ("numeric(15,2)", ["00010000000000010001", "00000000d0000020", "00010000000000000001"]),
    ("time", ["ffffffffffffffff", "000000141dd76001"]),
    ("timetz", ["0000000000000000" + "0000e100", "0000000000000000" + "ffff1f00"]),
    ("jsonb", ["", "02", "007b7d"]),
    ("uuid", ["00"]),
    ("interval", ["00" * 15]),
]


def encode(type: str, text: str) -> bytes:
    return send_format.string_encoder(parse_type(type))(text)


def decode(type: str, data: bytes | memoryview) -> str:
    return send_format.decode_string(parse_type(type), data)


@pytest.mark.parametrize("type", value_samples.TYPES)
def test_chosen_values_go_both_ways_as_the_reference_says(type: str) -> None:
    for text in value_samples.CHOSEN[type]:
        data = encode(type, text)
        assert data == reference.encode(type, text)
        assert decode(type, data) == text
        assert decode(type, memoryview(data)) == text


@pytest.mark.parametrize("type", value_samples.TYPES)
def test_neighbours_have_different_bytes(type: str) -> None:
    found = {encode(type, text) for text in value_samples.CHOSEN[type]}
    assert len(found) == len(value_samples.CHOSEN[type])


@pytest.mark.parametrize("type", value_samples.TYPES)
@given(data=st.data())
def test_any_bytes_come_back(type: str, data: st.DataObject) -> None:
    value = data.draw(value_samples.any_bytes(type))
    text = decode(type, value)
    assert text == reference.decode(type, value)
    assert encode(type, text) == value == reference.encode(type, text)


@pytest.mark.parametrize("type", value_samples.TYPES)
@given(data=st.data())
def test_arbitrary_bytes_are_refused_or_come_back(type: str, data: st.DataObject) -> None:
    """Damaged bytes of a value, and noise: never another exception, never another value."""
    value = bytearray(data.draw(value_samples.any_bytes(type) | st.binary(max_size=24)))
    if value and data.draw(st.booleans()):
        value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        text = decode(type, bytes(value))
    except DriftlineError:
        return
    assert encode(type, text) == value


@given(st.text(), st.sampled_from(value_samples.TYPES))
def test_arbitrary_text_is_refused_or_a_value(text: str, type: str) -> None:
    try:
        value = encode(type, text)
    except ValueDoesNotFit:
        return
    assert encode(type, decode(type, value)) == value


@pytest.mark.parametrize(("type", "texts"), BAD_TEXT)
def test_text_that_is_no_value(type: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueDoesNotFit) as caught:
            encode(type, text)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(("type", "datas"), BAD_BYTES)
def test_bytes_that_are_no_value(type: str, datas: list[str]) -> None:
    for data in datas:
        with pytest.raises(MalformedMessage):
            decode(type, bytes.fromhex(data))


@pytest.mark.parametrize(
    ("type", "data"), [("text", "ff"), ("text", "c3"), ("text", "61eda080"), ("jsonb", "0122ff22")]
)
def test_text_that_is_not_utf8_is_a_value_that_does_not_fit(type: str, data: str) -> None:
    with pytest.raises(ValueDoesNotFit, match=f"The bytes {data} are no text in UTF-8") as caught:
        decode(type, bytes.fromhex(data))
    assert "textsend(col::text)" in caught.value.remedy


def test_a_numeric_beyond_its_precision_does_not_fit() -> None:
    data = encode("numeric", "12345.67")
    with pytest.raises(ValueDoesNotFit, match=r"12345\.67"):
        decode("numeric(6,2)", data)
    assert decode("numeric(7,2)", data) == "12345.67"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("1E+3", "1000"),
        ("1.5e3", "1500"),
        ("1.50E1", "15.0"),
        ("12E-1", "1.2"),
        ("1E-3", "0.001"),
        ("-0", "0"),
        ("-0.00", "0.00"),
        ("+007.10", "7.10"),
        (".5", "0.5"),
        ("5.", "5"),
        ("0E5", "0"),
        ("0E-3", "0.000"),
    ],
)
def test_numeric_spellings(text: str, plain: str) -> None:
    assert encode("numeric", text) == encode("numeric", plain) == reference.encode("numeric", text)
    assert decode("numeric", encode("numeric", text)) == plain


def test_numeric_p_s_is_padded_to_its_scale() -> None:
    assert encode("numeric(15,2)", "1") == encode("numeric(15,2)", "1.0")
    assert encode("numeric(15,2)", "1") == encode("numeric(15,2)", "1.00")
    assert decode("numeric(15,2)", encode("numeric(15,2)", "1E+3")) == "1000.00"


def test_the_largest_numeric() -> None:
    text = "9" * 131_072 + "." + "9" * 16_383
    data = encode("numeric", text)
    assert len(data) == 8 + 2 * 36_864
    assert decode("numeric", data) == text
    with pytest.raises(ValueDoesNotFit):
        encode("numeric", "9" * 131_073)


@given(st.floats(width=32), st.integers(-2, 2))
def test_float4_text_is_rounded_once(value: float, nudge: int) -> None:
    """Texts at and just beside the middle between two singles, where two roundings go wrong."""
    bits = struct.unpack(">I", struct.pack(">f", value))[0]
    low, high = reference.single(bits), reference.single((bits + 1) % 2**32)
    if not (math.isfinite(low) and math.isfinite(high)) or low * high < 0:
        return
    middle = reference.EXACT.create_decimal(low / 2 + high / 2)
    tiny = reference.EXACT.scaleb(Decimal(nudge), middle.adjusted() - 60)
    text = str(reference.EXACT.add(middle, tiny))
    assert encode("float4", text) == reference.encode("float4", text)


def test_float4_of_a_number() -> None:
    assert send_format.encode_float4(struct.unpack(">f", b"\xff\xc0\0\1")[0]) == encode(
        "float4", "NaN"
    )
    assert send_format.encode_float4(0.5) == encode("float4", "0.5")
    assert send_format.encode_float4(-math.inf) == encode("float4", "-Infinity")


@pytest.mark.parametrize("value", [0.1, 1e39, 16777217.0, 1e-46])
def test_float4_is_never_rounded_from_a_number(value: float) -> None:
    with pytest.raises(ValueDoesNotFit):
        send_format.encode_float4(value)


@pytest.mark.parametrize("bits", [31, 63, 70])
def test_a_finite_moment_is_never_an_infinity(bits: int) -> None:
    for value in (2**bits - 1, -(2**bits)):
        text = (times.date_text if bits == 31 else times.timestamp_text)(value)
        with pytest.raises(ValueDoesNotFit):
            encode("date" if bits == 31 else "timestamp", text)


@pytest.mark.postgresql
@pytest.mark.parametrize("type", value_samples.TYPES)
def test_the_bytes_are_those_of_postgresql(type: str, postgresql: PostgreSQL) -> None:
    expressions = value_samples.expressions(type)
    with psycopg.connect(postgresql.uri) as connection, connection.cursor() as cursor:
        for expression in expressions:
            data = copied(cursor, expression)
            text = decode(type, data)
            assert text == reference.decode(type, data)
            assert encode(type, text) == data, expression
            written = expression[1:].partition("'")[0]
            if expression == f"'{written}'::{type}" and written in value_samples.CHOSEN[type]:
                assert text == written


@pytest.mark.postgresql
@pytest.mark.parametrize("expression", ["'-NaN'::float8", "'inf'::float8 - 'inf'::float8"])
def test_postgresql_sends_other_nans_than_the_one(expression: str, postgresql: PostgreSQL) -> None:
    """Why the source reads floats with an expression that has only one: these come from tables."""
    with psycopg.connect(postgresql.uri) as connection, connection.cursor() as cursor:
        for wrapped, is_refused in (
            (expression, True),
            (f"CASE WHEN x = 'NaN' THEN 'NaN' ELSE x END FROM (SELECT {expression}) v(x)", False),
        ):
            data = copied(cursor, wrapped)
            assert (data != encode("float8", "NaN")) == is_refused
            if is_refused:
                with pytest.raises(MalformedMessage):
                    decode("float8", data)


def copied(cursor: psycopg.Cursor[tuple[object, ...]], expression: str) -> bytes:
    """The one value of COPY … (FORMAT binary): after 19 bytes of header, a count and a length."""
    command = f"COPY (SELECT {expression}) TO STDOUT (FORMAT binary)"
    with cursor.copy(command.encode()) as copy:
        rows = b"".join(bytes(part) for part in copy)
    (length,) = struct.unpack(">i", rows[21:25])
    assert len(rows) == 25 + length + 2
    return rows[25 : 25 + length]
