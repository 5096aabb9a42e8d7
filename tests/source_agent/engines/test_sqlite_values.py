"""SQLite: what is published is what the driver alone shows, or is refused by name.

Values of every storage class lie in columns of every declaration, in files of each encoding. With
`--soak` there are twenty times as many, and 100,000 values of each type that a scan reads.
"""

from __future__ import annotations

import math
import random
import sqlite3
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from driftline import errors
from hypothesis import settings

from source_agent.engines.conformance.reads import decoded, flat, rows_by_keys
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfSQLite

PIECE = 500  # rows of an INSERT
ENCODINGS = ("UTF-8", "UTF-16le", "UTF-16be")
Expected = Callable[[Any], str | None]  # of a value of the class that a column takes; None: refuse
Column = tuple[str, str, dict[type, Expected]]  # declaration, `types`, what it takes


def _is_soak() -> bool:
    return settings.get_current_profile_name() == "soak"


def _number(bits: int) -> Expected:
    return lambda value: str(value) if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def _decimal(precision: int, scale: int) -> Expected:
    def expected(value: float) -> str | None:
        if not math.isfinite(value):
            return None
        number = Decimal(repr(value))
        with localcontext(prec=2000):  # digits: a double has some 310 before the point at most
            fixed = round(number, scale) if abs(number) < 10**precision else Decimal(10**precision)
        fits = fixed == number and abs(fixed) < 10 ** (precision - scale)
        return f"{fixed if fixed else abs(fixed):.{scale}f}" if fits else None

    return expected


def _single(value: float) -> str | None:
    try:
        (found,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return None
    return struct.pack("<f", value).hex() if found == value else None


def _parsed(parse: Callable[[str], object]) -> Expected:
    def expected(value: bytearray) -> str | None:
        text = value.decode()
        try:
            return text if str(parse(text)) == text else None
        except ValueError:
            return None

    return expected


def _day(text: str) -> str:
    """Return the text of a day, whose year may have more digits than Python's.

    Raises ValueError: it is later than a date can be (PostgreSQL, table 8.9), or is no day.
    """
    year, _, rest = text.partition("-")
    if int(year) > 5_874_897:
        raise ValueError(text)
    date.fromisoformat(f"{2000 + int(year) % 400}-{rest}")
    return f"{int(year):04}-{rest}"


def _utf8(value: bytearray) -> str:
    return value.decode()


def _double(value: float) -> str:
    return struct.pack("<d", value).hex()


INTEGERS: dict[type, Expected] = {int: _number(64)}
TEXT: dict[type, Expected] = {bytearray: _utf8}
FLOAT: dict[type, Expected] = {float: _double}
COLUMNS: list[Column] = [
    ("INTEGER", "", INTEGERS),
    ("BIGINT", "", INTEGERS),
    ("UNSIGNED BIG INT", "", INTEGERS),
    ("BOOLEAN", "", INTEGERS),
    ("TEXT", "", TEXT),
    ("VARCHAR(9)", "", TEXT),
    ("CLOB", "", TEXT),
    ("DATETIME", "", TEXT),
    ("TIME", "", TEXT),
    ("BLOB", "", {bytes: bytes.hex}),
    ("REAL", "", FLOAT),
    ("DOUBLE PRECISION", "", FLOAT),
    ("DECIMAL(12,2)", "", {int: _decimal(12, 2), float: _decimal(12, 2)}),
    ("NUMERIC(15,0)", "", {int: _decimal(15, 0), float: _decimal(15, 0)}),
    ("DECIMAL(15,15)", "", {int: _decimal(15, 15), float: _decimal(15, 15)}),
    ("", "int2", {int: _number(16)}),
    ("", "int4", {int: _number(32)}),
    ("", "bool", {int: {0: "false", 1: "true"}.get}),
    ("", "float4", {float: _single}),
    ("", "float8", FLOAT),
    ("", "text", TEXT),
    ("", "bytea", {bytes: bytes.hex}),
    ("", "date", {bytearray: _parsed(_day)}),
    ("", "uuid", {bytearray: _parsed(uuid.UUID)}),
]
TAGGED = ("", "NUMERIC", "DECIMAL(20,4)", "BLOB SUB", "JSON", "INTEGER as_text", "TEXT as_text")


def _integer(r: random.Random) -> str:
    limits = (0, 1, -1, 2**15, 2**31, -(2**31) - 1, 2**53 + 1, 10**15, 2**63 - 1, -(2**63) + 1)
    return str(r.choice((*limits, r.randint(-(2**63) + 1, 2**63 - 1), r.randint(-(10**6), 10**6))))


def _real(r: random.Random) -> str:
    found: float = struct.unpack("<d", r.randbytes(8))[0]
    cents = r.randint(-(10**13), 10**13) / 100
    single: float = struct.unpack("<f", struct.pack("<f", r.uniform(-9, 9)))[0]
    limits = (-0.0, 5e-324, 1.7976931348623157e308, 0.1, 0.1 + 0.2, 1e15, 2.0**63, cents, single)
    if r.random() < 0.05:
        return r.choice(("9e999", "-9e999"))
    return repr(r.choice((*limits, found if math.isfinite(found) else 1.5)))


def _characters(r: random.Random, encoding: str) -> str:
    usual = ["a", "é", "\0", "\ufeff", "\ufffd", "\U0010ffff", "12", "0.50", " ", "2024-02-29"]
    text = r.choice((
        "".join(r.choices(usual, k=r.randint(0, 4))),
        str(date.fromordinal(r.randint(1, 3_652_059))),
        str(uuid.UUID(bytes=r.randbytes(16))),
    ))  # fmt: skip
    return f"CAST(x'{text.encode(encoding).hex()}' AS TEXT)"


def _malformed(r: random.Random, encoding: str) -> str:
    """Return text of any bytes; in UTF-16 often with a half of a pair."""
    if encoding == "UTF-8":
        return f"CAST(x'{r.choice((b'', b'a')).hex()}{r.randbytes(r.randint(1, 4)).hex()}' AS TEXT)"
    order = "little" if encoding.endswith("le") else "big"
    halves = (0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0x41, 0, 0xFFFF, r.randrange(1 << 16))
    units = [r.choice(halves).to_bytes(2, order) for _ in range(r.randint(1, 3))]  # type: ignore[arg-type]
    return f"CAST(x'{b''.join(units).hex()}' AS TEXT)"


def _literal(r: random.Random, encoding: str) -> str:
    kind = r.randrange(11)
    if kind == 0:
        return "NULL"
    if kind < 3:
        return _integer(r)
    if kind < 5:
        return _real(r)
    if kind < 8:
        return _characters(r, encoding)
    return _malformed(r, encoding) if kind < 9 else f"x'{r.randbytes(r.randint(0, 9)).hex()}'"


def _tagged(value: Any, stored: bytes, encoding: str) -> str:
    if isinstance(value, bytearray):
        try:
            return f"t:{stored.decode(encoding)}"
        except UnicodeDecodeError:
            return f"x:{stored.hex()}"
    if isinstance(value, bytes):
        return f"b:{value.hex()}"
    return f"i:{value}" if isinstance(value, int) else f"r:{value!r}"


def _expected(takes: dict[type, Expected], value: Any, stored: bytes, encoding: str) -> str | None:
    """Return what is published of a value that is not NULL, or None: it is refused."""
    if not takes:
        return _tagged(value, stored, encoding)
    if type(value) not in takes:
        return None
    if isinstance(value, bytearray):
        try:
            value = bytearray(stored.decode(encoding), "utf-8")
        except UnicodeDecodeError:
            return None
    return takes[type(value)](value)


def _shown(path: Path, first: int = 0) -> Iterator[tuple[int, Any, bytes]]:
    """Yield the key and value of each row as the driver shows it, and the bytes of a text."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytearray
        sql = "SELECT id, v, hex(CAST(v AS BLOB)) FROM t WHERE id >= ? ORDER BY id"
        for key, value, stored in connection.execute(sql, (first,)):
            yield key, value, bytes.fromhex(stored.decode())


def _compared(value: str | None, type: str) -> str | None:
    if value is None or type not in {"float4", "float8"}:
        return value
    return struct.pack("<f" if type == "float4" else "<d", float(value)).hex()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_every_class_in_every_column(tmp_path: Path, encoding: str, journal: str) -> None:
    seed = random.randrange(2**32)
    r, count = random.Random(seed), 500 if _is_soak() else 25
    kinds = [*COLUMNS, *((declaration, "", {}) for declaration in TAGGED)]
    for number, (declaration, override, takes) in enumerate(kinds):
        path = tmp_path / f"{number}.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA encoding = '{encoding}'")
            connection.execute(f"PRAGMA journal_mode = {journal}")
            name = declaration.removesuffix(" as_text")
            connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {name})")
            for key in range(count):
                connection.execute(f"INSERT INTO t VALUES ({key}, {_literal(r, encoding)})")
            connection.commit()
        as_text = ("v",) if name != declaration else ()
        types = (("v", override),) if override else ()
        relation = Relation("t", table="t", as_text=as_text, types=types)
        with closing(OfSQLite(path, journal=journal).connect().open()) as session:
            shape = session.describe(relation)
            kind = shape.recipe.columns[1].type.kind
            fitting: dict[str | None, str | None] = {}
            texts: dict[str | None, tuple[type, object]] = {}
            refused: list[tuple[Any, ...]] = []
            for key, value, stored in _shown(path):
                said = None if value is None else _expected(takes, value, stored, encoding)
                where = f"{declaration} {override}, key {key}, seed {seed}: {value!r}"
                try:
                    ((_, found),) = [
                        decoded(row, shape)
                        for row in flat(rows_by_keys(session, shape, [(str(key),)]))
                    ]
                except errors.ValueDoesNotFit as error:
                    refused.append((said, value, error.where, error.details["key"], key))
                    continue
                assert _compared(found, kind) == said, where
                fitting[str(key)] = found
                whole = (type(value), stored if isinstance(value, bytearray) else value)
                assert texts.setdefault(found, whole) == whole, where  # no two are one
        for said, value, place, named, key in refused:
            assert said is None is not value, f"{declaration} {override}, key {key}, seed {seed}"
            assert (place, named) == ("t.v", str(key)), f"seed {seed}"
        if fitting:  # a scan shows the same
            keys = ", ".join(map(str, fitting))
            with closing(OfSQLite(path, journal=journal).connect().open()) as session:
                shape = session.describe(
                    Relation("t", table="t", as_text=as_text, types=types, where=f"id IN ({keys})")
                )
                scanned = {
                    row[0]: row[1] for row in (decoded(r, shape) for r in flat(session.scan(shape)))
                }
            assert scanned == fitting


def _of_class(r: random.Random, kind: type, encoding: str) -> str:
    if kind is int:
        return _integer(r)
    if kind is float:
        return _real(r)
    return (
        _characters(r, encoding) if kind is bytearray else f"x'{r.randbytes(r.randrange(9)).hex()}'"
    )


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column[0]} {column[1]}".strip())
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_scan_shows_what_the_driver_shows(tmp_path: Path, encoding: str, column: Column) -> None:
    """Whole tables of values that are not refused: 100,000 of each type under --soak."""
    declaration, override, takes = column
    seed = random.randrange(2**32)
    r, count = random.Random(seed), 100_000 if _is_soak() else 60
    path, expected = tmp_path / "t.sqlite", dict[int, str]()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA encoding = '{encoding}'")
        connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declaration})")
        key = 0
        while len(expected) < count:
            first, key = key, key + PIECE
            drawn = (_of_class(r, r.choice([*takes]), encoding) for _ in range(PIECE))
            rows = ", ".join(f"({first + i}, {value})" for i, value in enumerate(drawn))
            connection.execute(f"INSERT INTO t VALUES {rows}")
            connection.commit()
            refused = []
            for place, value, stored in _shown(path, first):
                said = _expected(takes, value, stored, encoding)
                if said is None:
                    refused.append((place,))
                else:
                    expected[place] = said
            connection.executemany("DELETE FROM t WHERE id = ?", refused)
        connection.commit()
    relation = Relation("t", table="t", types=(("v", override),) if override else ())
    with closing(OfSQLite(path).connect().open()) as session:
        shape = session.describe(relation)
        kind = shape.recipe.columns[1].type.kind
        for row in flat(session.scan(shape)):
            number, found = decoded(row, shape)
            assert _compared(found, kind) == expected.pop(int(number or 0)), f"seed {seed}"
    assert not expected
