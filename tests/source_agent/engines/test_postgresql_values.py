"""Random and limit values of every type of PostgreSQL: what is read against what the driver shows.

psycopg alone reads each column itself, as text and in binary, in a session of its own; the engine
reads by its expressions, and the bytes of its rows are decoded. The first must be the second, and
two values that differ in binary must differ in what is read. `--soak` takes 100,000 values of each
of 64 types.
"""

from __future__ import annotations

import math
import random
import re
import string
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import pq

from source_agent.engines.conformance.reads import read, session_of
from source_agent.engines.relations.shapes import Relation
from tests.harness.absent import needs_release
from tests.harness.legacies import OfPostgreSQL

Make = Callable[[random.Random], str]
ROWS = 100
SOAK_ROWS, SOAK_TIMES = 5000, 20  # so that one comparison is in memory at a time
CHARACTERS = [
    *string.printable, *"éß€\u00a0\u0301\u200b\ufeff\ufffd😀\U0010ffff", "\x01", "\x1f", "\x7f",
]  # fmt: skip


def whole(bits: int, low: int | None = None) -> Make:
    """Return a generator of integers of a width, often at its limits; `low`: the least."""
    least = -(2 ** (bits - 1)) if low is None else low
    greatest = least + 2**bits - 1
    return lambda r: str(
        r.choice([least, greatest, least + 1, 0, r.randint(-9, 9) % (greatest + 1), 1])
        if r.random() < 0.4
        else r.randint(least, greatest)
    )


def floating(form: str) -> Make:
    """Return a generator of floats by their bits, the least and the special ones among them."""
    special = ["NaN", "Infinity", "-Infinity", "0", "-0", "0.1", "1e16"]
    special.append("1e-45" if form == "f" else "5e-324")

    def make(r: random.Random) -> str:
        (value,) = struct.unpack(f">{form}", r.randbytes(struct.calcsize(form)))
        if r.random() < 0.3 or math.isnan(value):
            return r.choice(special)
        return str(np.float32(value)) if form == "f" else repr(value)

    return make


def digits(before: int, after: int, special: tuple[str, ...] = ()) -> Make:
    def make(r: random.Random) -> str:
        if special and r.random() < 0.1:
            return r.choice(special)
        left = "".join(r.choice("0129") for _ in range(r.randint(0, before))) or "0"
        right = "".join(r.choice("0159") for _ in range(r.randint(0, after)))
        return r.choice(["", "-"]) + left + (f".{right}" if right else "")

    return make


def text(most: int) -> Make:
    return lambda r: "".join(r.choice(CHARACTERS) for _ in range(r.randint(0, most)))


def octets(r: random.Random) -> str:
    return "\\x" + r.randbytes(r.choice([0, 1, 2, 40])).hex()


def date(r: random.Random) -> str:
    year = r.choice([r.randint(1, 9999), r.randint(1, 4700), 2000, 1900, 2024])
    before = r.choice(["", "", " BC"]) if year <= 4700 else ""
    return f"{year:04d}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}{before}"


def day(r: random.Random) -> str:
    limits = ["infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "0001-12-31 BC"]
    return r.choice([*limits, "0001-01-01", "9999-12-31"]) if r.random() < 0.2 else date(r)


def clock(r: random.Random) -> str:
    if r.random() < 0.1:
        return r.choice(["24:00:00", "00:00:00", "23:59:59.999999", "00:00:00.000001"])
    return f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}" + r.choice(
        ["", f".{r.randint(0, 999_999):06d}", f".{r.randint(1, 9)}"]
    )


def moment(r: random.Random) -> str:
    if r.random() < 0.1:
        limits = ["infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999"]
        return r.choice(limits)
    day, space, before = date(r).partition(" ")
    return f"{day} {clock(r).replace('24:', '23:')}{space}{before}"


def zoned(r: random.Random) -> str:
    sign, seconds = r.choice("+-"), r.choice(["", "", f":{r.randint(0, 59):02d}"])
    return f"{clock(r)}{sign}{r.randint(0, 15):02d}:{r.randint(0, 59):02d}{seconds}"


def span(r: random.Random) -> str:
    if r.random() < 0.1:
        return r.choice(["0", "-178000000 years", "178000000 years", "-1 s", "1 mon -30 d"])
    parts = [f"{r.randint(-99, 99)} {unit}" for unit in ("year", "mon", "day", "hour", "min")]
    chosen = [*r.sample(parts, r.randint(0, 5)), f"{r.randint(-(10**9), 10**9) / 1e6:.6f} sec"]
    return " ".join(chosen)


def choice(*values: str) -> Make:
    return lambda r: r.choice(values)


def document(r: random.Random) -> str:
    word = text(4)(r)
    escaped = "".join(f"\\u{ord(c):04x}" if c < " " or c in '"\\' else c for c in word)
    number = r.choice(["1", "1.0", "1.10", "-0", "1e5", "12345678901234567890.123"])
    return r.choice(
        [f'{{"{escaped}": {number}, "b": [true, null]}}', number, f'"{escaped}"', "[]", '{"a":1}']
    )


def array(make: Make) -> Make:
    """Return a generator of arrays: with NULL, of two dimensions, with other lower bounds."""

    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def made(r: random.Random) -> str:
        some = [
            r.choice(["NULL", quoted(make(r)), quoted(make(r))]) for _ in range(r.randint(0, 4))
        ]
        inner = "{" + ",".join(some) + "}"
        if some and r.random() < 0.2:
            return f"[{-2}:{len(some) - 3}]={inner}"
        return f"{{{inner},{inner}}}" if some and r.random() < 0.2 else inner

    return made


def composite(*makes: Make) -> Make:
    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'

    return lambda r: "(" + ",".join(r.choice(["", quoted(m(r)), quoted(m(r))]) for m in makes) + ")"


def bounded(make: Make, order: Callable[[str], Any]) -> Make:
    def made(r: random.Random) -> str:
        low, high = sorted((make(r), make(r)), key=order)
        low, high = r.choice(["", f'"{low}"']), r.choice(["", f'"{high}"'])
        return r.choice(["empty", f"{r.choice('[(')}{low},{high}{r.choice('])')}"])

    return made


def bits(least: int, most: int) -> Make:
    return lambda r: "".join(r.choice("01") for _ in range(r.randint(least, most)))


def address(r: random.Random) -> str:
    if r.random() < 0.3:
        return ":".join(f"{r.randint(0, 65535):x}" for _ in range(8)) + r.choice(["", "/64", "/0"])
    return ".".join(str(r.randint(0, 255)) for _ in range(4)) + r.choice(["", "/8", "/32", "/0"])


def hexadecimal(count: int) -> Make:
    return lambda r: ":".join(f"{b:02x}" for b in r.randbytes(count))


FLOAT = floating("d")


def place(r: random.Random) -> str:
    return f"({FLOAT(r)},{FLOAT(r)})"


def near(r: random.Random) -> str:
    return f"({digits(3, 6)(r)},{digits(3, 6)(r)})"


INT4, WORD = whole(32), text(6)
TYPES: dict[str, Make] = {
    "bool": choice("t", "f"), "int2": whole(16), "int4": INT4, "int8": whole(64),
    "oid": whole(32, 0), "float4": floating("f"), "float8": FLOAT,
    "numeric(15,2)": digits(13, 4, ("NaN",)), "numeric(38,0)": digits(38, 0, ("NaN",)),
    "numeric(38,38)": digits(0, 38), "numeric": digits(60, 60, ("NaN", "Infinity", "-Infinity")),
    "numeric(50,2)": digits(48, 2), "numeric(3,-2)": digits(4, 0),
    "money": digits(16, 2, ("-92233720368547758.08", "92233720368547758.07", "0.01", "-0.01")),
    "text": text(40), "varchar(20)": text(20), "char(5)": text(5), "name": text(12),
    "json": document, "jsonb": document, "bytea": octets, "date": day, "timestamp": moment,
    "timestamptz": moment, "time": clock, "timetz": zoned, "interval": span,
    "uuid": lambda r: r.randbytes(16).hex(), "mood": choice("sad", "ok"),
    "positive": lambda r: str(r.randint(1, 99)), "int4[]": array(INT4), "text[]": array(WORD),
    "float4[]": array(floating("f")), "float8[]": array(FLOAT),
    "numeric[]": array(digits(9, 9)), "timestamptz[]": array(moment), "interval[]": array(span),
    "bytea[]": array(octets), "bool[]": array(choice("t", "f")), "jsonb[]": array(document),
    "pair": composite(INT4, WORD), "pair[]": array(composite(INT4, WORD)),
    "int4range": bounded(lambda r: str(r.randint(-99, 99)), int),
    "numrange": bounded(digits(3, 3), float), "daterange": bounded(
        lambda r: f"2024-0{r.randint(1, 9)}-1{r.randint(0, 9)}", str),
    "tstzrange": bounded(lambda r: f"2024-0{r.randint(1, 9)}-1{r.randint(0, 9)} 10:00", str),
    "int4multirange": lambda r: f"{{[{r.randint(0, 9)},{r.randint(10, 19)}),[50,60)}}",
    "inet": address, "cidr": lambda r: f"{r.randint(0, 255)}.0.0.0/{r.choice([8, 16, 32])}",
    "macaddr": hexadecimal(6), "macaddr8": hexadecimal(8), "bit(9)": bits(9, 9),
    "varbit": bits(0, 20), "point": place, "lseg": lambda r: f"[{place(r)},{place(r)}]",
    "box": lambda r: f"{near(r)},{near(r)}",
    "path": lambda r: r.choice(["[{}]", "({})"]).format(",".join([near(r), near(r)])),
    "polygon": lambda r: f"({near(r)},{near(r)},{near(r)})",
    "circle": lambda r: f"<{near(r)},{r.randint(0, 99)}>",
    "tsvector": lambda r: " ".join(f"{w}:{r.randint(1, 99)}{r.choice('ABC')}" for w in "xyz"),
    "tsquery": choice("a & b", "a | !b", "a <-> b:*A", "'it''s'"),
    '"char"': lambda r: r.choice(string.ascii_letters + " \\'\""),
    "pg_lsn": lambda r: f"{r.getrandbits(32):X}/{r.getrandbits(32):X}", "xid": whole(32, 0),
}  # fmt: skip
NATIVE = {
    "bool", "int2", "int4", "int8", "oid", "float8", "numeric(15,2)", "numeric(38,0)",
    "numeric(38,38)", "numeric", "numeric(50,2)", "numeric(3,-2)", "text", "varchar(20)", "char(5)",
    "name", "json", "bytea", "date", "timestamp", "timestamptz", "time", "timetz", "interval",
    "uuid", "mood", "positive",
}  # fmt: skip


def _date(shown: str) -> str:
    """Return PostgreSQL's text of a date or timestamp with a sign for years before the first."""
    found = re.fullmatch(r"(\d{4,})(-.*) BC", shown)
    if not found:
        return shown
    year = int(found[1]) - 1
    return f"{'-' if year else ''}{year:04d}{found[2]}"


def _interval(shown: str) -> str:
    """Return PostgreSQL's text of an interval in parts that each have a sign."""
    count = {unit: int(number) for number, unit in re.findall(r"(-?\d+) (year|mon|day)s?", shown)}
    months = count.get("year", 0) * 12 + count.get("mon", 0)
    found = re.search(r"(-?)\+?(\d+):(\d\d):(\d\d)(\.\d+)?$", shown)
    sign, seconds, fraction = "", 0, ""
    if found:
        sign, fraction = found[1], found[5] or ""
        seconds = int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4])
    return f"P{months}M{count.get('day', 0)}DT{sign}{seconds}{fraction}S"


def _zone(shown: str) -> str:
    clock_, sign, zone = re.fullmatch(r"([\d:.]+)([+-])([\d:]+)", shown).groups()  # type: ignore[union-attr]
    hour, *rest = zone.split(":")
    return f"{clock_}{sign}{hour}:{':'.join(rest or ['00'])}"


def _masked(shown: str) -> str:
    return shown if "/" in shown else f"{shown}/{128 if ':' in shown else 32}"


EXPECTED: dict[str, Callable[[str], str]] = {
    "bool": lambda s: {"t": "true", "f": "false"}[s],
    "float4": lambda s: str(np.float32(s)), "float8": lambda s: repr(float(s)),
    "money": lambda s: re.sub(r"[$,]", "", s), "bytea": lambda s: s[2:],
    "inet": _masked, "date": _date, "timestamp": _date, "timestamptz": _date, "timetz": _zone,
    "interval": _interval,
}  # fmt: skip
READ: dict[str, Callable[[str], str]] = {  # a float's text may have another notation
    "float4": lambda s: str(np.float32(s)), "float8": lambda s: repr(float(s)),
}  # fmt: skip


def columns(
    connection: psycopg.Connection, select: str, form: pq.Format
) -> list[list[bytes | None]]:
    """Return the values of a SELECT as the server sends them, column by column."""
    result = connection.pgconn.exec_params(select.encode(), [], result_format=form)
    assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
    return [
        [result.get_value(row, column) for row in range(result.ntuples)]
        for column in range(result.nfields)
    ]


@pytest.mark.parametrize("times", [1, pytest.param(SOAK_TIMES, marks=pytest.mark.soak)])
def test_what_is_read_is_what_the_driver_shows(pg: OfPostgreSQL, times: int) -> None:
    needs_release(pg.server.release, 15, "a scale below 0")
    pg.run(
        *pg.prelude,
        "CREATE TABLE t (id int PRIMARY KEY, "
        + ", ".join(f"c{place} {type}" for place, type in enumerate(TYPES))
        + ")",
        f"ALTER DATABASE {pg.database} SET TimeZone = 'UTC'",
    )
    for _ in range(times):
        compare(pg, ROWS if times == 1 else SOAK_ROWS, random.randrange(10**9))


def compare(pg: OfPostgreSQL, rows: int, seed: int) -> None:
    """Fill the table with random rows, and compare each value that is read with the driver's."""
    rng = random.Random(seed)
    with psycopg.connect(pg.server.uri_of(pg.database)) as connection:
        connection.execute("TRUNCATE t")
        with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            for number in range(rows):
                copy.write_row([number, *(_made(make, rng) for make in TYPES.values())])
        connection.commit()
        texts = columns(connection, "SELECT * FROM t ORDER BY id", pq.Format.TEXT)
        binary = columns(connection, "SELECT * FROM t ORDER BY id", pq.Format.BINARY)
    with session_of(pg) as session:
        shape = session.describe(Relation("t", table="t"))
        found = list(
            zip(
                *sorted(read(session, Relation("t", table="t")), key=lambda row: int(row[0] or 0)),
                strict=True,
            )
        )
        raw = _raw(session, shape, rows)
    assert len(found) == len(TYPES) + 1
    for place, type in enumerate(TYPES, 1):
        told = f"{type}, seed {seed}"
        known = [None if v is None else _expected(type, v.decode()) for v in texts[place]]
        seen = [None if v is None else READ.get(type, str)(v) for v in found[place]]
        assert seen == known, told
        if type in NATIVE:
            assert raw[place] == [_one_nan(type, v) for v in binary[place]], told
        values = {_one_nan(type, v) for v in binary[place]}
        assert len(values) == len(set(raw[place])), f"{told}: two values look alike"


def _raw(session: Any, shape: Any, rows: int) -> list[list[bytes | None]]:
    """Return the bytes of each value of the rows that the engine reads, column by column."""
    found: list[list[bytes | None]] = []
    for row in (row for batch in session.scan(shape) for row in batch):
        place = 2
        values: list[bytes | None] = []
        for _ in shape.recipe.columns:
            (length,) = struct.unpack_from(">i", row, place)
            place += 4
            values.append(None if length < 0 else row[place : place + length])
            place += max(length, 0)
        found.append(values)
    assert len(found) == rows
    found.sort(key=lambda values: values[0] or b"")
    return [list(column) for column in zip(*found, strict=True)]


def _made(make: Make, rng: random.Random) -> str | None:
    return None if rng.random() < 0.05 else make(rng)


def _expected(type: str, shown: str) -> str:
    return EXPECTED.get(type, str)(shown)


def _one_nan(type: str, value: bytes | None) -> bytes | None:
    is_nan = type in {"float4", "float8"} and value is not None and len(value) == 8
    if is_nan and np.isnan(struct.unpack(">d", value)[0]):  # type: ignore[arg-type]
        return struct.pack(">d", float("nan"))
    return value
