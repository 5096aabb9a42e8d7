"""What only Firebird 4.0 and later has: types, and the settings of a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline.errors import ConfigurationError, DatabaseRefused, ValueDoesNotFit

from source_agent.engines.conformance.reads import read, session_of
from source_agent.engines.relations.shapes import Relation
from tests.harness import server_versions
from tests.harness.firebird_server import FirebirdServer

pytestmark = [pytest.mark.firebird, pytest.mark.usefixtures("firebird")]


@pytest.fixture
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    server = request.getfixturevalue("firebird")  # before the driver is imported
    from tests.harness.legacy_firebird import OfFirebird

    made = OfFirebird(tmp_path, server)
    try:
        if made.version < 4:
            pytest.skip("Firebird 3.0 has no such types")
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kind", ["TIME", "TIMESTAMP"])
@pytest.mark.parametrize("as_text", [("v",), ()])
def test_times_with_a_zone_are_refused(legacy: Any, kind: str, as_text: tuple[str, ...]) -> None:
    legacy.run(f'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "v" {kind} WITH TIME ZONE)')
    query = 'SELECT "id", "v" FROM "t"'
    with session_of(legacy) as session:
        for relation in (
            Relation("t", table="t", as_text=as_text),
            Relation("q", query=query, key=("id",), as_text=as_text),
        ):
            with pytest.raises(ConfigurationError, match="time zone"):
                session.describe(relation)


# Three values of each.
HOSTILE = (
    (
        "SET BIND OF DOUBLE PRECISION TO FLOAT",
        "SET BIND OF VARCHAR(9) TO CHAR(20)",
        "SET BIND OF NUMERIC(5,2) TO NUMERIC(5,0)",
        "SET TIME ZONE 'Europe/Vienna'",
        "SET DECFLOAT ROUND CEILING",
        "SET DECFLOAT TRAPS TO INVALID_OPERATION",
    ),
    (
        "SET BIND OF DOUBLE PRECISION TO DECFLOAT(16)",
        "SET BIND OF VARCHAR(9) TO BLOB SUB_TYPE TEXT",
        "SET BIND OF NUMERIC(5,2) TO FLOAT",
        "SET TIME ZONE '-03:30'",
        "SET DECFLOAT ROUND UP",
        "SET DECFLOAT TRAPS TO OVERFLOW",
    ),
    (
        "SET BIND OF DOUBLE PRECISION TO INTEGER",
        "SET BIND OF INTEGER TO VARCHAR(20)",
        "SET BIND OF NUMERIC(5,2) TO LEGACY",
        "SET TIME ZONE 'Asia/Kolkata'",
        "SET DECFLOAT ROUND FLOOR",
        "SET DECFLOAT TRAPS TO INEXACT, DIVISION_BY_ZERO",
    ),
)
# A row that each of these settings shows as another one.
TABLE = (
    """CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "v" DOUBLE PRECISION, "c" VARCHAR(9),
    "n" NUMERIC(5,2), "z" TIMESTAMP WITH TIME ZONE, "d" DECFLOAT(16))""",
    """INSERT INTO "t"
    VALUES (1, 0.10000000000000002e0, 'a', 1.25, '2024-07-01 12:00 Europe/Vienna', 1.1)""",
)
QUERY = """SELECT "id", "v", "c", "n", CAST("z" AS TIMESTAMP) AS "at",
CAST(QUANTIZE("d", 1) AS VARCHAR(9)) AS "q" FROM "t" """
ROW = ["1", "0.10000000000000002", "a", "1.25", "2024-07-01 10:00:00", "1"]


Q = Relation("q", query=QUERY, key=("id",))
T = Relation("t", table="t", columns=("id", "v", "c", "n"))


@pytest.mark.parametrize("hostile", HOSTILE, ids=["first", "second", "third"])
@pytest.mark.parametrize("event", ["CONNECT", "TRANSACTION START"])
def test_settings_of_the_owner_do_not_count(
    legacy: Any, event: str, hostile: tuple[str, ...]
) -> None:
    sets = f"BEGIN {'; '.join(hostile)}; END"
    legacy.run(*TABLE, f"CREATE TRIGGER SETTINGS ON {event} AS {sets}")
    with session_of(legacy) as session:
        assert read(session, Q) == [ROW]
        # What a statement of this session leaves behind does not count either.
        for sql in hostile:
            session._transaction.execute_immediate(sql)
        assert read(session, Q) == [ROW]
        assert read(session, T) == [ROW[:4]]


@pytest.mark.parametrize(
    "lines",
    [
        ("DataTypeCompatibility = 3.0", "DefaultTimeZone = Europe/Vienna"),
        ("DataTypeCompatibility = 2.5", "DefaultTimeZone = America/St_Johns"),
        ("DefaultTimeZone = Asia/Kolkata",),
    ],
    ids=["first", "second", "third"],
)
def test_settings_of_the_server_s_file_do_not_count(tmp_path: Path, lines: tuple[str, ...]) -> None:
    root = server_versions.firebird_root()
    if root is None:
        pytest.skip("no server, and thus no file of its own")
    from tests.harness.legacy_firebird import OfFirebird

    with (
        FirebirdServer(root, "".join(f"{line}\n" for line in lines)) as server,
        closing(OfFirebird(tmp_path, server)) as legacy,
    ):
        legacy.run(*TABLE)
        plain = [tuple(map(str, row)) for row in legacy._owner.cursor().execute(QUERY).fetchall()]
        assert plain != [tuple(ROW)], "the settings do matter"
        with session_of(legacy) as session:
            assert read(session, Q) == [ROW]
            assert read(session, T) == [ROW[:4]]
            shape = session.describe(T)
            assert [str(c.type) for c in shape.recipe.columns][1:] == [
                "float8", "text", "numeric(5,2)",
            ]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SET TIME ZONE 'Europe/Vienna'", "TIME ZONE"),
        ("SET DECFLOAT ROUND CEILING", "DECFLOAT ROUND"),
        ("SET DECFLOAT ROUND HALF_DOWN", "DECFLOAT ROUND"),
        ("SET DECFLOAT TRAPS TO OVERFLOW", "DECFLOAT TRAPS"),
        ("SET ROLE READS", "ROLE"),
    ],
)
def test_a_setting_that_a_read_changes_is_refused_by_name(legacy: Any, sql: str, name: str) -> None:
    if name == "DECFLOAT TRAPS" and legacy.version < 5:
        pytest.skip("Firebird 4.0 does not show them")
    legacy.run(
        *TABLE,
        "CREATE ROLE READS",
        'GRANT SELECT ON "t" TO READS',
        "GRANT READS TO SYSDBA",
        f"CREATE FUNCTION SETS RETURNS INT AS BEGIN {sql}; RETURN 1; END",
        "GRANT EXECUTE ON FUNCTION SETS TO PUBLIC",
        'ALTER TABLE "t" ADD "f" COMPUTED BY (SETS())',
    )
    calls = Relation("t", table="t", columns=("id", "f"))
    with session_of(legacy) as session:
        with pytest.raises(DatabaseRefused, match=name):
            read(session, calls)
        if name != "ROLE":  # the others are set before each read
            assert read(session, Q) == [ROW]
    bound = np.array([1], np.int64)
    with session_of(legacy) as session:
        shape = session.describe(calls)
        with pytest.raises(DatabaseRefused, match=name):
            list(session.read_ranges(shape, bound, bound))


def test_whole_numbers_and_decimals_of_128_bits(legacy: Any) -> None:
    """A sum is one of them; a value with more than 38 digits is refused by name."""
    legacy.run(
        'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "i" INT128, "n" NUMERIC(38,37),'
        ' "m" NUMERIC(20,2))'
    )
    values = [
        (1, "9" * 38, f"9.{'9' * 37}", "-0.01"),
        (2, f"-{'9' * 38}", f"-0.{'0' * 36}1", f"{'9' * 18}.99"),
        (3, "0", f"0.{'0' * 37}", "0.00"),
        (4, "12345678901234567890", f"-1.{'5' * 37}", "-1.50"),
    ]
    for key, *row in values:
        legacy.run(f'INSERT INTO "t" VALUES ({key}, {", ".join(repr(v) for v in row)})')
    sums = 'SELECT "id", SUM("i") AS "s", SUM("m") AS "m" FROM "t" GROUP BY "id"'
    cast = 'SELECT "id", CAST("i" AS VARCHAR(40)), CAST("n" AS VARCHAR(40)) FROM "t"'
    with session_of(legacy) as session:
        shape = session.describe(Relation("t", table="t"))
        kinds = [str(column.type) for column in shape.recipe.columns]
        assert kinds == ["int4", "numeric(38,0)", "numeric(38,37)", "numeric(20,2)"]
        found = read(session, Relation("t", table="t"))
        assert found == [[str(key), *row] for key, *row in values]
        assert [tuple(row[:3]) for row in found] == [
            (str(key), *row) for key, *row in session.ask(cast)
        ]
        added = Relation("q", query=sums, key=("id",))
        assert read(session, added) == [[row[0], row[1], row[3]] for row in found]
    legacy.run(f'INSERT INTO "t" ("id", "i") VALUES (5, {2**127 - 1})')
    with session_of(legacy) as session:
        with pytest.raises(ValueDoesNotFit, match=r"t\.i"):
            read(session, Relation("t", table="t"))
        as_text = Relation("t", table="t", columns=("id", "i"), as_text=("i",))
        assert read(session, as_text)[-1] == ["5", str(2**127 - 1)]


def test_decimal_floats_are_refused_by_name(legacy: Any) -> None:
    legacy.run('CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "v" DECFLOAT(16))')
    legacy.run('INSERT INTO "t" VALUES (1, 1.10)')
    query = 'SELECT "id", "v" FROM "t"'
    with session_of(legacy) as session:
        for relation in (
            Relation("t", table="t"),
            Relation("q", query=query, key=("id",)),
        ):
            with pytest.raises(ConfigurationError, match=r"DECFLOAT\(16\)"):
                session.describe(relation)
            shown = dataclasses.replace(relation, as_text=("v",))
            assert read(session, shown) == [["1", "1.10"]]


@pytest.mark.parametrize("event", ["CONNECT", "TRANSACTION START"])
def test_a_limit_that_a_trigger_sets_is_named(legacy: Any, event: str) -> None:
    busy = Relation(
        "q",
        query='SELECT COUNT(*) AS "n" FROM RDB$FIELDS a CROSS JOIN RDB$FIELDS b'
        " CROSS JOIN RDB$FIELDS c CROSS JOIN RDB$FIELDS d",
        key=("n",),
    )
    limit = "BEGIN SET STATEMENT TIMEOUT 50 MILLISECOND; END"
    legacy.run(f"CREATE TRIGGER LIMITS ON {event} AS {limit}")
    with session_of(legacy) as session:
        with pytest.raises(DatabaseRefused, match="longer than the database") as refused:
            read(session, busy)
        assert "SET STATEMENT TIMEOUT of a trigger" in refused.value.remedy


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIME"])
def test_the_two_casts_of_the_remedy_tell_all_times_with_a_zone_apart(
    legacy: Any, kind: str
) -> None:
    """Every zone that the server knows, and offsets, at instants around changes of the clock."""
    moments = [
        *(f"2024-10-27 {hour:02}:30:00.{part:04}" for hour in (0, 1, 2, 23) for part in (0, 1)),
        *("0001-01-02 00:00:00", "1883-11-18 17:00:00", "2024-03-10 07:30:00.9999"),
        "9999-12-30 23:59:59.9999",
    ]
    offsets = ["+00:00", "-00:01", "+01:00", "+13:59", "-13:59"]
    legacy.run(
        'CREATE TABLE "u" ("at" TIMESTAMP, "z" VARCHAR(60))',
        f'CREATE TABLE "t" ("id" INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,'
        f' "u" {kind}, "z" VARCHAR(60), "v" {kind} WITH TIME ZONE)',
        *(f"INSERT INTO \"u\" VALUES ('{moment}', NULL)" for moment in moments),
        *(f"INSERT INTO \"u\" VALUES (NULL, '{offset}')" for offset in offsets),
        f"""INSERT INTO "t" ("u", "z", "v")
        SELECT CAST(a."at" AS {kind}), z."z",
          CAST(CAST(CAST(a."at" AS {kind}) AS VARCHAR(60)) || ' UTC' AS {kind} WITH TIME ZONE)
            AT TIME ZONE z."z"
        FROM (SELECT "at" FROM "u" WHERE "at" IS NOT NULL) a CROSS JOIN
          (SELECT "z" FROM "u" WHERE "z" IS NOT NULL
           UNION ALL SELECT TRIM(RDB$TIME_ZONE_NAME) FROM RDB$TIME_ZONES) z""",
    )
    with session_of(legacy) as session:
        with pytest.raises(ConfigurationError) as caught:
            session.describe(Relation("t", table="t"))
        casts = [part.split(" shows")[0] for part in str(caught.value.remedy).split("CAST(")[1:]]
        shown = ", ".join(
            f'CAST({cast.split(" the instant")[0].replace("…", chr(34) + "v" + chr(34))} AS "c{i}"'
            for i, cast in enumerate(casts)
        )
        query = f'SELECT "id", CAST("u" AS VARCHAR(60)) || \' \' || "z" AS "is", {shown} FROM "t"'
        rows = read(session, Relation("q", query=query, key=("id",)))
    known: dict[tuple[str | None, ...], str | None] = {}
    for _, held, *texts in rows:
        assert known.setdefault(tuple(texts), held) == held, texts
    assert len(rows) >= len(moments) * 600
    assert len(known) == len({held for _, held, *_ in rows})
