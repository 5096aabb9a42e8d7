"""MariaDB, MySQL: what is published is what the driver alone shows, or is refused by name.

Values lie at the limits of their types, of character sets and of packets. With `--soak` there are
100,000 of each type, and every form of each character set.
"""

from __future__ import annotations

import math
import random
import struct
import subprocess
from contextlib import closing

import pymysql
import pytest
from driftline import errors
from hypothesis import settings
from pymysql.converters import conversions

from source_agent.engines.conformance.reads import Read, read, session_of
from source_agent.engines.mysql_family.sql import probe_sql
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfMariaDB
from tests.harness.servers import find_program

PACKET = 1 << 20
PIECE = 8_000  # rows of an INSERT
# Types, and how a plain SELECT shows them as text that compares equal.
EXACT = {
    "t": "tinyint",
    "su": "smallint unsigned",
    "m": "mediumint",
    "b": "bigint",
    "bu": "bigint unsigned",
    "d": "decimal(38,10)",
    "dl": "decimal(65,30)",
    "da": "date",
    "dt": "datetime(6)",
    "bi": "bit(64)",
    "y": "year",
}
FLOATS = {"f": "float", "e": "double"}
# fmt: off
SETS = (
    "ascii", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "greek", "hebrew",
    "koi8r", "koi8u", "latin1", "latin2", "latin5", "latin7", "ucs2", "utf16", "utf16le", "utf32",
    "utf8mb3", "utf8mb4",
)
# fmt: on


def _is_soak() -> bool:
    return settings.get_current_profile_name() == "soak"


def _shown(maria: OfMariaDB, sql: str) -> list[tuple[bytes | None, ...]]:
    """Return what the driver alone shows, as the bytes that came."""
    with (
        closing(
            pymysql.connect(
                unix_socket=str(maria.server.socket),
                user="root",
                database=maria.database,
                charset="utf8mb4",
                use_unicode=False,
                conv={k: v for k, v in conversions.items() if not isinstance(k, int)},
                ssl_disabled=True,
                init_command="SET time_zone = '+00:00', sql_mode = ''",
            )
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(sql)
        return list(cursor.fetchall())


def _insert(maria: OfMariaDB, table: str, rows: list[str]) -> None:
    pieces = range(0, len(rows), PIECE)
    maria.run(
        "SET sql_mode = ''",
        *(f"INSERT INTO {table} VALUES {', '.join(rows[i : i + PIECE])}" for i in pieces),
    )


def _number(draw: random.Random, bits: int, *, signed: bool) -> int:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return draw.choice((low, low + 1, high, high - 1, 0, 1, draw.randint(low, high)))


def _decimal(draw: random.Random, digits: int, scale: int) -> str:
    size = draw.choice((1, digits // 2, digits - 1, digits))
    number = draw.choice((0, 1, 10**digits - 1, draw.randint(0, 10**size - 1)))
    text = str(number).rjust(scale + 1, "0")
    return f"{draw.choice(('', '-'))}{text[:-scale]}.{text[-scale:]}"


def _double(draw: random.Random) -> float:
    limits = (0.0, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, 0.1)
    found: float = struct.unpack("<d", draw.randbytes(8))[0]
    return draw.choice(limits) if not math.isfinite(found) else found


def _single(draw: random.Random) -> float:
    limits = (0.0, 3.4028234663852886e38, -3.4028234663852886e38, 1.17549435e-38, 16777217.0)
    found: float = struct.unpack("<f", draw.randbytes(4))[0]
    return draw.choice(limits) if not math.isfinite(found) else found


def _row(draw: random.Random, place: int) -> str:
    day = f"{draw.randint(1, 9999):04}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
    clock = f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}:{draw.randint(0, 59):02}"
    part = draw.choice((0, 1, 999_999, draw.randint(0, 999_999)))
    values = [
        str(place),
        str(_number(draw, 8, signed=True)),
        str(_number(draw, 16, signed=False)),
        str(_number(draw, 24, signed=True)),
        str(_number(draw, 64, signed=True)),
        str(_number(draw, 64, signed=False)),
        f"'{_decimal(draw, 38, 10)}'",
        f"'{_decimal(draw, 65, 30)}'",
        f"'{draw.choice(('0001-01-01', '9999-12-31', day))}'",
        f"'{day} {clock}.{part:06}'",
        str(_number(draw, 64, signed=False)),
        str(draw.choice((0, 1901, 2155, draw.randint(1901, 2155)))),
        repr(_single(draw)),
        repr(_double(draw)),
    ]
    return (
        "("
        + ", ".join("NULL" if i and draw.random() < 0.02 else v for i, v in enumerate(values))
        + ")"
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _rows(maria: OfMariaDB) -> list[Read]:
    with session_of(maria) as session:
        return read(session, Relation("f", table="f"))


def test_floats_of_a_dump_are_others(maria: OfMariaDB) -> None:
    """As docs/types.md says: mariadb-dump writes six digits, so a restored table has changed."""
    program = find_program("mariadb-dump")
    if program is None:
        pytest.skip("mariadb-dump is not installed")
    maria.run(
        "CREATE TABLE f (id int NOT NULL PRIMARY KEY, x float, d double)",
        "INSERT INTO f VALUES (1, 1.2345678, 1.2345678)",
    )
    before = _rows(maria)
    socket = f"--socket={maria.server.socket}"
    dump = subprocess.run(
        [program, "--no-defaults", socket, "--user=root", "--compact", maria.database, "f"],
        capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    insert = dump[dump.index("INSERT") :].partition(";")[0]
    maria.run("DELETE FROM f", insert)
    assert _rows(maria) != before
    maria.run("UPDATE f SET x = 1.2345678")
    assert _rows(maria) == before, "only the FLOAT was another"


def test_numbers_and_times_at_their_limits_are_what_the_driver_shows(maria: OfMariaDB) -> None:
    seed = random.randrange(2**32)
    draw, count = random.Random(seed), 100_000 if _is_soak() else 400
    columns = ", ".join(f"{name} {kind}" for name, kind in (EXACT | FLOATS).items())
    maria.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    _insert(maria, "t", [_row(draw, place) for place in range(count)])
    plain = ", ".join({"bi": "bi + 0", "y": "y + 0"}.get(name, name) for name in EXACT)
    # A FLOAT is shown with six digits; as a double, which holds it exactly, with all.
    shown = _shown(maria, f"SELECT id, {plain}, f * 1e0, e FROM t ORDER BY id")
    with session_of(maria) as session:
        found = sorted(read(session, Relation("t", table="t")), key=lambda row: int(row[0] or 0))
    assert len(found) == len(shown) == count
    for published, driver in zip(found, shown, strict=True):
        exact = len(EXACT) + 1
        assert [_instant(v) for v in published[:exact]] == [
            _instant(_text(v)) for v in driver[:exact]
        ], f"seed {seed}"
        single = [v and struct.pack("<f", float(v)) for v in (published[exact], driver[exact])]
        assert single[0] == single[1], f"seed {seed}"
        double = [v and float(v) for v in (published[exact + 1], driver[exact + 1])]
        assert double[0] == double[1], f"seed {seed}"


def _instant(text: str | None) -> str | None:
    """Return a value without zeros behind a fraction of seconds, which Python and MariaDB write."""
    is_time = text is not None and text.count(":") == 2 and "." in text
    return text.rstrip("0").rstrip(".") if text and is_time else text


@pytest.mark.parametrize("charset", SETS)
def test_every_form_of_a_set_has_a_text_of_its_own_or_is_refused(
    maria: OfMariaDB, charset: str
) -> None:
    """All bytes, and two-byte forms: no two that the server stores are read as one text."""
    forms = [bytes([one]) for one in range(256)]
    if charset.startswith(("utf", "ucs")):
        step = 1 if _is_soak() else 101
        units = [one.to_bytes(2) for one in range(0, 1 << 16, step)]
        forms += units if charset != "utf32" else [b"\0\0" + unit for unit in units]
    maria.run(f"CREATE TABLE t (id int PRIMARY KEY, v varchar(9) CHARACTER SET {charset})")
    # A form that is refused by the server becomes another, which is another row of the same form.
    rows = [f"({place}, X'{form.hex()}')" for place, form in enumerate(forms)]
    _insert(maria, "t", rows)
    with session_of(maria) as session:
        shape = session.describe(Relation("t", table="t"))
        session.fields(probe_sql(shape))
        expression = plan_of(shape).reads[1]
    stored: dict[bytes, set[bytes]] = {}
    for form, text in _shown(maria, f"SELECT HEX(v), {expression} FROM t"):
        assert text is not None
        try:
            text.decode()
        except UnicodeDecodeError:
            continue  # refused by name: `check_utf8`
        stored.setdefault(text, set()).add(form or b"")
    assert all(len(found) == 1 for found in stored.values())
    assert len(stored) >= 128


def test_every_set_of_the_server_is_read_or_refused_by_name(maria: OfMariaDB) -> None:
    listed = "SELECT character_set_name FROM information_schema.character_sets"
    names = {str(_text(name)) for (name,) in _shown(maria, listed)} - {"binary"}
    for charset in sorted(names - set(SETS)):
        maria.run(
            f"CREATE TABLE {charset} (id int PRIMARY KEY, v varchar(9) CHARACTER SET {charset})"
        )
        with session_of(maria) as session:
            with pytest.raises(errors.ConfigurationError, match=charset):
                session.describe(Relation("t", table=charset))
            assert session.describe(Relation("t", table=charset, as_text=("v",)))
    assert set(SETS) <= names


@pytest.mark.parametrize("size", [PACKET // 3, PACKET // 2 - 2, PACKET // 2 + 2, PACKET - 4096])
def test_values_at_the_limit_of_a_packet_are_whole_or_refused(maria: OfMariaDB, size: int) -> None:
    """No text is NULL or shorter: it is what the driver shows, or it is refused."""
    sets = {"latin1": "µ", "cp1251": "ж", "greek": "β", "utf8mb3": "µ", "utf16": "µ"}
    columns = ", ".join(f"{charset} longtext CHARACTER SET {charset}" for charset in sets)
    fill = [f"{c} = REPEAT(CONVERT('{one}' USING {c}), {size // 2})" for c, one in sets.items()]
    maria.run(
        f"CREATE TABLE t (id int PRIMARY KEY, raw longblob, {columns})",
        "INSERT INTO t (id) VALUES (1)",
        f"UPDATE t SET raw = REPEAT('x', {size})",
        *(f"UPDATE t SET {one}" for one in fill),
        f"SET GLOBAL max_allowed_packet = {PACKET}",
    )
    try:
        for name in ("raw", *sets):
            for as_text in ((), (name,)):
                relation = Relation("t", table="t", key=("id",), columns=(name,), as_text=as_text)
                shown = _shown(maria, f"SELECT {name} FROM t")[0][0] or b""
                with session_of(maria) as session:
                    try:
                        ((_, found),) = read(session, relation)
                    except errors.ValueDoesNotFit as error:
                        place: tuple[str, bool] | None = (
                            error.where,
                            "key 1" in error.message,
                        )
                        found = None
                    else:
                        place = None
                if place is not None:
                    assert place == (f"t.{name}", True)
                    continue
                codec = {"cp1251": "cp1251", "greek": "iso8859_7"}.get(name) if as_text else None
                coded = shown.decode().encode(codec) if codec else shown
                text = coded.hex() if codec or name == "raw" else shown.decode()
                assert (found or "").lower() == text.lower()
    finally:
        maria.run(f"SET GLOBAL max_allowed_packet = {128 << 20}")
