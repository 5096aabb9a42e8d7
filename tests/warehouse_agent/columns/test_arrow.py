"""Ragged columns to Arrow and back: byte for byte, against the slow codec and the reference."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from driftline.errors import DriftlineError, MalformedMessage, ValueDoesNotFit
from driftline.rows.columns import RaggedColumn
from driftline.values.send_format import decode_string
from driftline.values.types import Column, parse_type
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.servers import PostgreSQL
from tests.reference import values as reference
from tests.samples import values as value_samples
from warehouse_agent.columns.arrow import Carrier, arrow_type, from_arrow, spark_type, to_arrow

NATIVE, STRING = Carrier.NATIVE, Carrier.STRING
CASES = [(type, carrier) for type in value_samples.TYPES for carrier in Carrier]


def ragged(found: list[bytes | None]) -> RaggedColumn:
    lengths = [-1 if data is None else len(data) for data in found]
    whole = b"".join(data for data in found if data is not None)
    return RaggedColumn(np.array(lengths, np.int32), np.frombuffer(whole, np.uint8))


def assert_equal(ours: RaggedColumn, theirs: RaggedColumn) -> None:
    assert ours.lengths.dtype == np.int32
    assert ours.data.dtype == np.uint8
    assert ours.lengths.tolist() == theirs.lengths.tolist()
    assert ours.data.tobytes() == theirs.data.tobytes()


def column(type: str) -> Column:
    return Column("c", parse_type(type))


def is_carried(type: str, data: bytes) -> bool:
    """Whether the native carrier holds the value, by what its Python type says."""
    text = reference.decode(type, data)
    if type in {"date", "timestamp", "timestamptz"}:
        return text[0].isdigit() and text[4] == "-" and text[:4] != "0000"
    return not (type.startswith("numeric(") and text == "NaN")


def carried(type: str) -> st.SearchStrategy[bytes]:
    return value_samples.any_bytes(type).filter(lambda data: is_carried(type, data))


def as_python(type: str, data: bytes | None) -> object:
    """What `to_pylist` gives for the native carrier."""
    if data is None:
        return None
    text, kind = reference.decode(type, data), type.partition("(")[0]
    if kind == "bool":
        return text == "true"
    if kind in reference.INT_FORMATS:
        return int(text)
    if kind in {"float4", "float8"}:
        return struct.unpack(">f" if kind == "float4" else ">d", data)[0]
    if "(" in type:
        return Decimal(text)
    if kind == "bytea":
        return data
    if kind == "date":
        return dt.date.fromisoformat(text)
    if kind in {"timestamp", "timestamptz"}:
        moment = dt.datetime.fromisoformat(text.removesuffix("+00"))
        return moment.replace(tzinfo=ZoneInfo("UTC")) if kind == "timestamptz" else moment
    return text


@pytest.mark.parametrize(("type", "carrier"), CASES)
@given(data=st.data())
def test_any_column_comes_back(type: str, carrier: Carrier, data: st.DataObject) -> None:
    some = carried(type) if carrier is NATIVE else value_samples.any_bytes(type)
    found = data.draw(st.lists(st.none() | some, max_size=20))
    array = to_arrow(column(type), ragged(found), carrier)
    array.validate(full=True)
    assert array.type == arrow_type(parse_type(type), carrier)
    if array.type == pa.string():
        wanted = [None if b is None else reference.decode(type, b) for b in found]
        assert array.to_pylist() == wanted
    else:
        # repr tells -0.0 from 0.0 and has NaN equal to itself.
        assert repr(array.to_pylist()) == repr([as_python(type, b) for b in found])
    assert_equal(from_arrow(column(type), array, carrier), ragged(found))


@pytest.mark.parametrize(("type", "carrier"), CASES)
@given(data=st.data())
def test_slices_and_chunks(type: str, carrier: Carrier, data: st.DataObject) -> None:
    some = carried(type) if carrier is NATIVE else value_samples.any_bytes(type)
    found = data.draw(st.lists(st.none() | some, max_size=40))
    start = data.draw(st.integers(0, len(found)))
    stop = data.draw(st.integers(start, len(found)))
    array = to_arrow(column(type), ragged(found), carrier)
    part = ragged(found[start:stop])
    sliced = array[start:stop]
    assert_equal(from_arrow(column(type), sliced, carrier), part)
    middle = (start + stop) // 2
    chunks = pa.chunked_array([array[start:middle], array[middle:stop]], array.type)
    assert_equal(from_arrow(column(type), chunks, carrier), part)
    assert_equal(from_arrow(column(type), chunks[len(chunks) :], carrier), ragged([]))


@pytest.mark.parametrize(("type", "carrier"), CASES)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_come_back(
    type: str, carrier: Carrier, data: st.DataObject
) -> None:
    """The vectorised path accepts exactly what the slow codec and the carrier accept."""
    found = bytearray(data.draw(value_samples.any_bytes(type) | st.binary(max_size=24)))
    if found and data.draw(st.booleans()):
        found[data.draw(st.integers(0, len(found) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    rows = ragged([None, bytes(found)])
    try:
        text: str | None = decode_string(parse_type(type), bytes(found))
    except DriftlineError:
        text = None
    if text is None or (carrier is NATIVE and not is_carried(type, bytes(found))):
        with pytest.raises((MalformedMessage, ValueDoesNotFit)) as caught:
            to_arrow(column(type), rows, carrier)
        assert caught.value.where == "c"
    else:
        array = to_arrow(column(type), rows, carrier)
        array.validate(full=True)
        assert_equal(from_arrow(column(type), array, carrier), rows)


@pytest.mark.parametrize("type", value_samples.UNCARRIED)
def test_what_the_carrier_cannot_hold_is_refused_by_name(type: str) -> None:
    for text in value_samples.UNCARRIED[type]:
        data = reference.encode(type, text)
        good = next(
            t for t in value_samples.CHOSEN[type] if is_carried(type, reference.encode(type, t))
        )
        found = [None, reference.encode(type, good), data, None]
        with pytest.raises(ValueDoesNotFit) as caught:
            to_arrow(Column("when?", parse_type(type)), ragged(found), NATIVE)
        assert text in caught.value.message
        assert caught.value.where == "when?"
        assert 'carriers = {"when?" = "string"}' in caught.value.remedy
        array = to_arrow(column(type), ragged(found), STRING)
        assert array.to_pylist() == [None, good, text, None]
        assert_equal(from_arrow(column(type), array, STRING), ragged(found))


@pytest.mark.parametrize("type", value_samples.TYPES)
@pytest.mark.parametrize("found", [[], [None], [None] * 9], ids=["none", "NULL", "NULLs"])
def test_columns_without_values(type: str, found: list[bytes | None]) -> None:
    for carrier in Carrier:
        array = to_arrow(column(type), ragged(found), carrier)
        assert array.null_count == len(array) == len(found)
        for sent in (array, pa.nulls(len(found)), pa.nulls(len(found), array.type)):
            assert_equal(from_arrow(column(type), sent, carrier), ragged(found))


def test_null_is_not_empty() -> None:
    for type in ("text", "bytea"):
        array = to_arrow(column(type), ragged([b"", None, b"a"]), NATIVE)
        assert array.is_null().to_pylist() == [False, True, False]
        assert_equal(from_arrow(column(type), array, NATIVE), ragged([b"", None, b"a"]))


def test_bytes_under_a_null_do_not_come_through() -> None:
    kept = pa.array(["ab", "secret", "c"])
    buffers = [pa.py_buffer(b"\x05"), *kept.buffers()[1:]]
    array = pa.Array.from_buffers(pa.string(), 3, buffers)
    assert array.to_pylist() == ["ab", None, "c"]
    for sent in (array, array[1:], array[:2]):
        wanted = [None if t is None else t.encode() for t in sent.to_pylist()]
        assert_equal(from_arrow(column("text"), sent, NATIVE), ragged(wanted))
        jsonb = [None if b is None else b"\1" + b for b in wanted]
        assert_equal(from_arrow(column("jsonb"), sent, NATIVE), ragged(jsonb))


def test_arrow_types_that_spark_may_send() -> None:
    moment = dt.datetime.fromisoformat("2024-02-29 12:00:00.000001")
    us = reference.encode("timestamp", "2024-02-29 12:00:00.000001")
    for kind in ("timestamp", "timestamptz"):
        for sent in (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns", "UTC")):
            assert_equal(from_arrow(column(kind), pa.array([moment], sent), NATIVE), ragged([us]))
    for sent in (pa.string(), pa.large_string(), pa.string_view()):
        assert_equal(
            from_arrow(column("text"), pa.array(["ä"], sent), NATIVE), ragged([b"\xc3\xa4"])
        )
    for sent in (pa.binary(), pa.large_binary()):
        assert_equal(from_arrow(column("bytea"), pa.array([b"ab"], sent), NATIVE), ragged([b"ab"]))
    decimal = pa.array([Decimal("1.5")], pa.decimal128(20, 1))
    wanted = ragged([reference.encode("numeric(15,2)", "1.50")])
    assert_equal(from_arrow(column("numeric(15,2)"), decimal, NATIVE), wanted)


@pytest.mark.parametrize(
    ("type", "array"),
    [
        ("int4", pa.array([2**31])),
        ("oid", pa.array([-1])),
        ("oid", pa.array([2**32])),
        ("float4", pa.array([0.1])),
        ("text", pa.array([1])),
        ("date", pa.array([0])),
        ("date", pa.array([2_932_897], pa.int32()).cast(pa.date32())),
        ("timestamp", pa.array([2**63 - 1]).cast(pa.timestamp("us"))),
        ("timestamp", pa.array([1]).cast(pa.timestamp("ns"))),
        ("numeric(15,2)", pa.array([Decimal("0.001")])),
        ("numeric(15,2)", pa.array([Decimal(10**13)])),
        ("numeric(15,2)", pa.array([1.5])),
        ("numeric", pa.array(["1,5"])),
        ("interval", pa.array(["1 day"])),
        ("uuid", pa.array(["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"])),
        ("uuid", pa.array([""])),
        ("bytea", pa.array(["00"])),
    ],
    ids=str,
)
def test_arrays_that_are_not_of_the_column(type: str, array: pa.Array) -> None:
    with pytest.raises(ValueDoesNotFit) as caught:
        from_arrow(column(type), array, NATIVE)
    assert caught.value.where == "c"


def test_every_nan_of_arrow_becomes_the_one_nan() -> None:
    array = pa.array(np.array([math.nan, -math.nan, 1.0]))
    found = from_arrow(column("float8"), array, NATIVE)
    assert found.data[:16].tobytes() == reference.encode("float8", "NaN") * 2


def test_lengths_that_are_not_of_the_bytes() -> None:
    for lengths in ([4, 4], [-2, 4], [8]):
        rows = RaggedColumn(np.array(lengths, np.int32), np.zeros(4, np.uint8))
        with pytest.raises(MalformedMessage):
            to_arrow(column("int4"), rows, NATIVE)


@pytest.mark.parametrize("type", ["int4", "numeric(15,2)", "numeric(38,10)", "uuid"])
def test_data_at_odd_addresses(type: str) -> None:
    found: list[bytes | None] = [reference.encode(type, t) for t in value_samples.CHOSEN[type]]
    rows = ragged(found)
    shifted = np.concatenate([np.zeros(1, np.uint8), rows.data])[1:]
    array = to_arrow(column(type), RaggedColumn(rows.lengths, shifted), NATIVE)
    assert array.equals(to_arrow(column(type), rows, NATIVE))


@pytest.mark.parametrize(
    "type", ["numeric(15,2)", "numeric(18,18)", "numeric(38,10)", "numeric(9,7)"]
)
def test_many_numerics(type: str) -> None:
    """Every number of digits on both sides of the point, at every place in a column."""
    precision, scale = (int(part) for part in type[8:-1].split(","))
    generator = np.random.default_rng(1)
    texts = []
    for _ in range(4000):
        digits = "".join(map(str, generator.integers(0, 10, generator.integers(1, precision + 1))))
        number = int(digits) * 10 ** int(generator.integers(0, precision - len(digits) + 1))
        texts.append(value_samples.point(number * int(generator.choice([-1, 1])), scale))
    found: list[bytes | None] = [reference.encode(type, text) for text in texts]
    array = to_arrow(column(type), ragged(found), NATIVE)
    assert array.to_pylist() == [Decimal(text) for text in texts]
    assert_equal(from_arrow(column(type), array, NATIVE), ragged(found))


def test_the_types() -> None:
    named = {t: spark_type(parse_type(t), NATIVE) for t in value_samples.TYPES}
    assert named == {t: SPARK_TYPES.get(t, t.replace("numeric(", "decimal(")) for t in named}
    assert {spark_type(parse_type(t), STRING) for t in named} == {"string"}
    assert {arrow_type(parse_type(t), STRING) for t in named} == {pa.string()}


SPARK_TYPES = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "oid": "bigint",
    "float4": "float",
    "float8": "double",
    "bytea": "binary",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    **dict.fromkeys(["numeric", "text", "time", "timetz", "interval", "uuid", "jsonb"], "string"),
}


@pytest.mark.postgresql
@pytest.mark.parametrize("type", value_samples.TYPES)
def test_the_bytes_of_postgresql_come_back(type: str, postgresql: PostgreSQL) -> None:
    expressions = value_samples.expressions(type)
    rows = " UNION ALL ".join(f"SELECT ({expression})::{type}" for expression in expressions)
    command = f"COPY ({rows}) TO STDOUT (FORMAT binary)"
    with (
        psycopg.connect(postgresql.uri) as connection,
        connection.cursor().copy(command.encode()) as copy,
    ):
        sent = b"".join(bytes(part) for part in copy)[19:-2]
    found: list[bytes | None] = []
    while sent:
        size = int.from_bytes(sent[2:6], "big")
        found.append(sent[6 : 6 + size])
        sent = sent[6 + size :]
    assert len(found) == len(expressions)
    for carrier in Carrier:
        held = [b for b in found if b is not None and (carrier is STRING or is_carried(type, b))]
        array = to_arrow(column(type), ragged([None, *held]), carrier)
        assert_equal(from_arrow(column(type), array, carrier), ragged([None, *held]))
