"""Random and limit values of every type of Firebird: what is read against what the driver shows.

The driver alone reads each column in a connection of its own; numbers, dates and times are also
compared with the text that the server casts them to. `--soak` takes 100,000 values of
each of 21 types.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import string
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from source_agent.engines.conformance.reads import read, session_of
from source_agent.engines.relations.shapes import Relation

pytestmark = [pytest.mark.firebird, pytest.mark.usefixtures("firebird")]

Make = Callable[[random.Random], Any]
ROWS = 150
SOAK_ROWS, SOAK_TIMES = 4_000, 25
NULLS = 0.04  # of all values
CHARACTERS = [*string.printable, *"éß€\u00a0\u0301\u200b\ufeff\ufffd😀\U0010ffff\x01\x1f\x7f"]


def whole(bits: int) -> Make:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return lambda r: r.choice((low, low + 1, high, high - 1, -1, 0, 1, r.randint(low, high)))


def decimal(digits: int, scale: int) -> Make:
    def make(r: random.Random) -> Decimal:
        size = r.randint(1, digits)
        number = r.choice((0, 1, 10**digits - 1, r.randint(0, 10**size - 1)))
        return Decimal(r.choice((-1, 1)) * number).scaleb(-scale)

    return make


def floating(form: str, special: tuple[float, ...]) -> Make:
    def make(r: random.Random) -> float:
        found: float = struct.unpack(form, r.randbytes(struct.calcsize(form)))[0]
        return found if math.isfinite(found) and r.random() < 0.7 else r.choice(special)

    return make


def date(r: random.Random) -> dt.date:
    return r.choice((dt.date.min, dt.date.max, dt.date.fromordinal(r.randint(1, 3_652_059))))


def time(r: random.Random) -> dt.time:
    part = r.choice((0, 1, 9_999, r.randint(0, 9_999))) * 100  # of 100 µs, as Firebird has them
    return dt.time(r.choice((0, 23, r.randint(0, 23))), r.randint(0, 59), r.randint(0, 59), part)


def text(most: int, characters: list[str] = CHARACTERS) -> Make:
    return lambda r: "".join(r.choice(characters) for _ in range(r.randint(0, most)))


def short_utf8(r: random.Random) -> str:
    """Return text of nine bytes at most."""
    found = text(9)(r)
    while len(found.encode()) > 9:
        found = found[:-1]
    return found


def octets(most: int) -> Make:
    return lambda r: r.choice((b"\0", b"\xff", r.randbytes(1))) * r.randint(0, most)


SINGLES = (0.0, 3.4028234663852886e38, -3.4028234663852886e38, 1.401298464324817e-45, 16777216.0)
DOUBLES = (0.0, 1.7976931348623157e308, -1.7976931348623157e308, 5e-324, 0.1, 2.0**53 + 2, 1e16)
LATIN_1 = [chr(number) for number in range(1, 256)]
MAKE: dict[str, Make] = {
    "smallint": whole(16),
    "integer": whole(32),
    "bigint": whole(64),
    "numeric(4,1)": decimal(4, 1),
    "decimal(15,2)": decimal(15, 2),
    "decimal(18,10)": decimal(18, 10),
    "decimal(5,0)": decimal(5, 0),
    "float": floating("<f", SINGLES),
    "double precision": floating("<d", DOUBLES),
    "boolean": lambda r: r.random() < 0.5,
    # As text: the driver writes no date before 1858-11-17.
    "date": lambda r: date(r).isoformat(),
    "time": lambda r: time(r).isoformat("microseconds")[:13],
    "timestamp": lambda r: f"{date(r)} {time(r).isoformat('microseconds')[:13]}",
    "varchar(9)": text(9),
    "char(3)": text(3),
    "varchar(9) character set iso8859_1": text(9, LATIN_1),
    "varchar(9) character set none": short_utf8,
    "blob sub_type text": text(200),
    "blob": octets(200),
    "char(3) character set octets": octets(3),
    "varchar(3) character set octets": octets(3),
}
MOMENTS = ("date", "time", "timestamp")
# Types of which the server's own text says all.
CAST = tuple(kind for kind in MAKE if kind.startswith(("small", "int", "big", "num", "dec", "dat")))


@pytest.fixture
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    server = request.getfixturevalue("firebird")  # before the driver is imported
    from tests.harness.legacy_firebird import OfFirebird

    made = OfFirebird(tmp_path, server)
    yield made
    made.close()


def form(value: Any, kind: str) -> str | None:
    """Return a value of the driver as the protocol writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.date | dt.time):
        return without_zeros(str(value))
    if isinstance(value, Decimal):  # the driver shows zero without its decimals
        return f"{value:.{kind.rstrip(')').rpartition(',')[2]}f}"
    if kind == "float":
        return struct.pack("<f", value).hex()
    return struct.pack("<d", value).hex() if isinstance(value, float) else str(value)


def without_zeros(moment: str) -> str:
    """Return a time without the zeros that Python and Firebird write behind its fraction."""
    return moment.rstrip("0").rstrip(".") if "." in moment else moment


def published(value: str | None, kind: str) -> str | None:
    """Return a value that was read; a float by its bits."""
    if value is None or kind not in {"float", "double precision"}:
        return value
    return form(float(value), kind)


def insert(legacy: Any, row: tuple[Any, ...]) -> None:
    """Insert a row. NULL is written as such: the driver sends `None`, too long for a CHAR(3)."""
    given = [
        "NULL" if value is None else "?" if kind not in MOMENTS
        else f"CAST(CAST(? AS VARCHAR(40)) AS {kind})"
        for kind, value in zip(("integer", *MAKE), row, strict=True)
    ]  # fmt: skip
    legacy.execute(
        f'INSERT INTO "t" VALUES ({", ".join(given)})', *(v for v in row if v is not None)
    )


def test_every_type_of_the_engine_has_its_values_here(legacy: Any) -> None:
    assert {kind for kind, *_ in legacy.types} == set(MAKE)


NAMES = {kind: f'"c{place}"' for place, kind in enumerate(MAKE)}


def test_what_is_read_is_what_the_driver_and_the_server_show(legacy: Any) -> None:
    columns = ", ".join(f"{name} {kind}" for kind, name in NAMES.items())
    legacy.run(f'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, {columns})')
    is_soak = settings.get_current_profile_name() == "soak"
    for _ in range(SOAK_TIMES if is_soak else 1):
        compare(legacy, SOAK_ROWS if is_soak else ROWS, random.randrange(2**32))
        legacy.run('DELETE FROM "t"')


def compare(legacy: Any, count: int, seed: int) -> None:
    """Fill the table with random rows, and compare what is read of it."""
    r, kinds = random.Random(seed), list(MAKE)
    put = [
        (key, *(None if r.random() < NULLS else make(r) for make in MAKE.values()))
        for key in range(count)
    ]
    for values in put:
        insert(legacy, values)
    shown = legacy.rows_of('SELECT * FROM "t" ORDER BY "id"')
    casts = ", ".join(f"CAST({NAMES[kind]} AS VARCHAR(40))" for kind in (*CAST, "time"))
    stamps = f"CAST({NAMES['timestamp']} AS VARCHAR(40))"
    said = legacy.rows_of(f'SELECT {casts}, {stamps} FROM "t" ORDER BY "id"')
    with session_of(legacy) as session:
        found = sorted(read(session, Relation("t", table="t")), key=lambda row: int(row[0] or 0))
    assert len(found) == len(shown) == len(said) == count
    places = [1 + kinds.index(kind) for kind in CAST]
    moments = [1 + kinds.index(kind) for kind in ("time", "timestamp")]
    for row, driver, server in zip(found, shown, said, strict=True):
        for kind, value, other in zip(kinds, row[1:], driver[1:], strict=True):
            assert published(value, kind) == form(other, kind), f"{kind}, seed {seed}"
        assert [row[place] for place in places] == list(server[: len(CAST)]), f"seed {seed}"
        times = [moment and without_zeros(moment) for moment in server[len(CAST) :]]
        assert [row[place] for place in moments] == times, f"seed {seed}"
    # Nothing is lost on the way in: floats are what was put.
    for kind in ("float", "double precision"):
        place = 1 + kinds.index(kind)
        assert [published(row[place], kind) for row in found] == [
            form(values[place], kind) for values in put
        ], f"seed {seed}"
