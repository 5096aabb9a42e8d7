"""Objects that a source's owner can create, against every read expression of the three engines.

Each test puts one in place (a cast, an operator, a function, a domain, a type, a collation, a
generated column, a setting …), changes a value at the source, and reads before and after: the
change is seen or the relation is refused by name. The table in docs/types.md lists the answers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pytest
from driftline.errors import ConfigurationError, DatabaseRefused, ValueDoesNotFit
from pyspark.sql import SparkSession

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import markers_of
from source_agent.engines.interface import Limits, Rows, Session
from source_agent.engines.postgresql import values as postgresql_values
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Mark, Marker
from source_agent.engines.relations.shapes import Fingerprint, Relation
from tests.harness.absent import needs_release
from tests.harness.legacies import OfMariaDB, OfPostgreSQL, OfSQLite
from tests.harness.legacy import PostgresLegacy
from tests.harness.pair import Pair
from tests.harness.servers import PostgreSQL

T = Relation("t", table="t")
EVERY_KEY = np.array([-(2**63)], np.int64), np.array([2**63 - 1], np.int64)


@pytest.fixture
def lite(tmp_path: Path) -> OfSQLite:
    return OfSQLite(tmp_path / "legacy.sqlite")


def opened(legacy: Legacy) -> Session:
    return connect(legacy.url, None, Limits()).open()


def flat(batches: Iterator[Rows]) -> list[bytes]:
    return sorted(row for batch in batches for row in batch)


def shown(legacy: Legacy, relation: Relation = T) -> list[list[bytes]]:
    """Return what is compared, in every way of reading: rows, ranges of keys, hashes."""
    with closing(opened(legacy)) as session:
        shape = session.describe(relation)
        found = [flat(session.scan(shape))]
        if shape.recipe.integer_key:
            found.append(flat(session.read_ranges(shape, *EVERY_KEY)))
            assert found[0] == found[1]
        if legacy.name == "postgresql":
            hashing = session.describe(replace(relation, fingerprint=Fingerprint.DATABASE))
            found.append(flat(session.scan(hashing.hashed(seed=5))))
    return found


def expect_seen(legacy: Legacy, edit: str, relation: Relation = T, *, rows: int = 1) -> None:
    """One row changes at the source: it changes in every way of reading, and no other does."""
    before = shown(legacy, relation)
    legacy.run(edit)
    after = shown(legacy, relation)
    for was, now in zip(before, after, strict=True):
        assert len(set(was) - set(now)) == len(set(now) - set(was)) == rows, (was, now)


# PostgreSQL: casts.
ROUNDING = (
    "CREATE TYPE money_amt AS (amount numeric, currency text)",
    """CREATE FUNCTION rounded(money_amt) RETURNS text LANGUAGE sql IMMUTABLE AS
       $$SELECT '(' || round(($1).amount, 2) || ',' || ($1).currency || ')'$$""",
    "CREATE CAST (money_amt AS text) WITH FUNCTION rounded(money_amt) AS IMPLICIT",
    "CREATE FUNCTION rounded(money_amt[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'some'$$",
    "CREATE CAST (money_amt[] AS text) WITH FUNCTION rounded(money_amt[]) AS IMPLICIT",
    "CREATE DOMAIN price AS money_amt CHECK ((VALUE).currency <> '')",
    "CREATE DOMAIN prices AS money_amt[]",
    "CREATE TYPE priced AS (label text, price money_amt)",
    "CREATE TYPE span AS RANGE (subtype = money_amt)",
    "CREATE FUNCTION same(span) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'same'$$",
    "CREATE CAST (span AS text) WITH FUNCTION same(span)",
)
HOLDING = {
    "money_amt": "({},EUR)",
    "money_amt[]": '{{"({},EUR)"}}',
    "price": "({},EUR)",
    "prices": '{{"({},EUR)"}}',
    "price[]": '{{"({},EUR)"}}',
    "priced": '(a,"({},EUR)")',
    "priced[]": '{{"(a,\\"({},EUR)\\")"}}',
    "span": '["({},EUR)","(9,EUR)"]',
}


@pytest.mark.parametrize("as_text", [(), ("v",)])
@pytest.mark.parametrize("type", HOLDING)
def test_a_cast_that_rounds_hides_no_change(
    pg: OfPostgreSQL, type: str, as_text: tuple[str, ...]
) -> None:
    pg.run(
        *ROUNDING,
        f"CREATE TABLE t (id int PRIMARY KEY, v {type})",
        f"INSERT INTO t SELECT n, '{HOLDING[type].format('1.001')}' FROM generate_series(1, 3) n",
    )
    edit = f"UPDATE t SET v = '{HOLDING[type].format('1.004')}' WHERE id = 2"
    expect_seen(pg, edit, replace(T, as_text=as_text))


@pytest.mark.parametrize("not_null", ["", "NOT NULL"])
def test_a_row_of_nulls_is_not_null(pg: OfPostgreSQL, not_null: str) -> None:
    pg.run(
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN couple AS pair",
        f"CREATE TABLE t (id int PRIMARY KEY, v pair {not_null}, w couple)",
        "INSERT INTO t VALUES (1, (NULL, NULL), NULL), (2, (NULL, ''), (NULL, NULL))",
    )
    expect_seen(pg, "UPDATE t SET w = (NULL, NULL) WHERE id = 1")
    expect_seen(pg, "UPDATE t SET w = NULL WHERE id = 2")
    if not not_null:
        expect_seen(pg, "UPDATE t SET v = NULL WHERE id = 1")


# A type, a value and another. Casts that are not PostgreSQL's own can be made by a superuser.
OF_THE_SERVER = {
    "smallint": ("1", "2"),
    "integer": ("1", "2"),
    "bigint": ("1", "2"),
    "oid": ("1", "2"),
    "real": ("1", "1.0000001"),
    "double precision": ("0.1", "0.10000000000000002"),
    "numeric": ("1.0", "1.00"),
    "numeric(9,2)": ("1.01", "1.02"),
    "money": ("1.01", "1.02"),
    "bytea": ("\\x00", "\\x01"),
    "date": ("2020-01-01", "2020-01-02"),
    "time": ("01:00", "01:00:01"),
    "timetz": ("01:00+01", "00:00+00"),
    "timestamp": ("2020-01-01", "2020-01-02"),
    "timestamptz": ("2020-01-01", "2020-01-02"),
    "interval": ("1 month", "30 days"),
    "uuid": ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"),
    "json": ('{"a":1}', '{"a": 1}'),
    "jsonb": ('{"a":1.0}', '{"a":1.00}'),
    "integer[]": ("{1}", "{2}"),
    "int4range": ("[1,2)", "[1,3)"),
    "int4multirange": ("{[1,2)}", "{[1,3)}"),
    "macaddr": ("08:00:2b:01:02:03", "08:00:2b:01:02:04"),
    "bit(4)": ("1010", "1011"),
    "varbit": ("1", "10"),
    "point": ("(0.1,2)", "(0.10000000000000002,2)"),
    "tsvector": ("a:1", "a:2"),
    "pg_lsn": ("0/1", "0/2"),
    "xid": ("1", "2"),
    "regclass": ("pg_class", "pg_type"),
    "jsonpath": ("$.a", "$.b"),
}
PINNED = {
    "boolean": ("true", "false"),
    "inet": ("10.0.0.1/8", "10.0.0.1/9"),
    "cidr": ("10.0.0.0/8", "10.0.0.0/9"),
    "char(3)": ("a", "b"),
    "varchar": ("a", "a "),
    "name": ("a", "b"),
    '"char"': ("a", "b"),
}


def test_no_cast_to_text_of_a_type_of_the_server_is_used(pg: OfPostgreSQL) -> None:
    """The text is what the cast made before anybody created another: what was right stays."""
    columns = [f"c{number} {type}" for number, type in enumerate(OF_THE_SERVER)]
    values = [", ".join(f"'{v[i]}'" for v in OF_THE_SERVER.values()) for i in range(2)]
    names = tuple(f"c{number}" for number in range(len(columns)))
    relation = replace(T, as_text=names)
    pg.run(
        f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)})",
        f"INSERT INTO t VALUES (1, {values[0]}), (2, {values[0]}), (3, {values[1]})",
        "INSERT INTO t (id) VALUES (4)",
    )
    with pg.server.superuser(pg.database) as connection:
        for name in names:
            text = postgresql_values.OUTPUT_TEXT.format(name)
            differ = connection.execute(
                f"SELECT id FROM t WHERE {name}::text IS DISTINCT FROM {text}"
            ).fetchall()
            assert not differ, name
    both = [relation, T]
    before = [shown(pg, r) for r in both]
    for base in dict.fromkeys(type.split("(", maxsplit=1)[0] for type in OF_THE_SERVER):
        pg.run(
            f"CREATE FUNCTION same({base}) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'x'$$",
            f"DO $$ BEGIN CREATE CAST ({base} AS text) WITH FUNCTION same({base});"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        )
    assert [shown(pg, r) for r in both] == before
    for number, name in enumerate(names):
        value = list(OF_THE_SERVER.values())[number][1]
        edit = f"UPDATE t SET {name} = '{value}' WHERE id = {1 + number % 2}"
        with closing(opened(pg)) as session:
            shape = session.describe(relation)
            was = flat(session.scan(shape))
            pg.run(edit)
        with closing(opened(pg)) as session:
            assert flat(session.scan(shape)) != was, name


@pytest.mark.parametrize("type", PINNED)
def test_casts_of_the_server_are_read_through(pg: OfPostgreSQL, type: str) -> None:
    before, after = PINNED[type]
    pg.run(
        f"CREATE TABLE t (id int PRIMARY KEY, v {type})",
        f"INSERT INTO t VALUES (1, '{before}'), (2, '{before}')",
    )
    expect_seen(pg, f"UPDATE t SET v = '{after}' WHERE id = 1")
    expect_seen(pg, f"UPDATE t SET v = '{after}' WHERE id = 2", replace(T, as_text=("v",)))


def test_casts_of_the_server_cannot_be_replaced(pg: OfPostgreSQL) -> None:
    """By nobody: neither those that are read through, nor that of money to numeric."""
    casts = [(type.split("(", maxsplit=1)[0], "text") for type in (*PINNED, "xml")]
    for source, target in (*casts, ("money", "numeric")):
        pg.run(
            f"CREATE FUNCTION same({source}) RETURNS {target} LANGUAGE sql IMMUTABLE"
            f" AS $$SELECT NULL::{target}$$"
        )
        for sql in (
            f"CREATE CAST ({source} AS {target}) WITH FUNCTION same({source})",
            f"DROP CAST ({source} AS {target})",
        ):
            with pytest.raises(psycopg.Error, match=r"already exists|required by the database"):
                pg.run(sql)


# PostgreSQL: what stands in for functions, operators and types by the search_path.
SHADOWS = (
    """CREATE FUNCTION concat(VARIADIC anyarray) RETURNS text IMMUTABLE LANGUAGE sql
       AS $$SELECT 'same'$$""",
    "CREATE FUNCTION concat(shade) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT 'same'$$",
    "CREATE FUNCTION num_nulls(shade) RETURNS int IMMUTABLE LANGUAGE sql AS $$SELECT 1$$",
    "CREATE FUNCTION float8send(share) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$SELECT bytea ''$$",
    "CREATE FUNCTION int8send(number) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$SELECT bytea ''$$",
    "CREATE FUNCTION textsend(label) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$SELECT bytea ''$$",
    """CREATE FUNCTION hashtextextended(label, int8) RETURNS int8 IMMUTABLE LANGUAGE sql
       AS $$SELECT 1::int8$$""",
    "CREATE FUNCTION yes(share, float8) RETURNS bool IMMUTABLE LANGUAGE sql AS $$SELECT true$$",
    "CREATE FUNCTION no(number, int8) RETURNS bool IMMUTABLE LANGUAGE sql AS $$SELECT false$$",
    "CREATE OPERATOR = (LEFTARG = share, RIGHTARG = float8, FUNCTION = yes)",
    "CREATE OPERATOR >= (LEFTARG = number, RIGHTARG = int8, FUNCTION = no)",
    "CREATE OPERATOR <= (LEFTARG = number, RIGHTARG = int8, FUNCTION = no)",
)


@pytest.mark.parametrize("edit", ["f = 0.6", "v = 'B'", "c = (2, 'y')", "f = 'NaN'"])
def test_nothing_of_the_search_path_stands_in(pg: OfPostgreSQL, edit: str) -> None:
    pg.run(
        "CREATE TYPE shade AS (a int, b text)",
        "CREATE DOMAIN share AS float8",
        "CREATE DOMAIN number AS int8",
        "CREATE DOMAIN label AS text",
        *SHADOWS,
        "CREATE TABLE t (id number PRIMARY KEY, f share, v label, c shade)",
        "INSERT INTO t VALUES (1, 0.5, 'A', (1, 'x')), (2, 0.5, 'A', (1, 'x'))",
        f"ALTER DATABASE {pg.database} SET search_path = public, pg_catalog",
    )
    expect_seen(pg, f"UPDATE t SET {edit} WHERE id OPERATOR(pg_catalog.=) 2")


def test_an_index_of_an_own_operator_class_vouches_for_nothing(pg: OfPostgreSQL) -> None:
    """By this one no value equals another, so that it is unique of two equal ones."""
    pg.run(
        "CREATE FUNCTION never(int8, int8) RETURNS int IMMUTABLE LANGUAGE sql AS $$SELECT 1$$",
        "CREATE OPERATOR CLASS odd FOR TYPE int8 USING btree AS OPERATOR 1 <, OPERATOR 2 <=,"
        " OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 never(int8, int8)",
        "CREATE TABLE t (id int8 NOT NULL, v text)",
        "CREATE UNIQUE INDEX ON t (id odd)",
        "INSERT INTO t VALUES (1, 'a'), (1, 'b')",
    )
    relation = replace(T, key=("id",))
    with closing(opened(pg)) as session:
        shape = session.describe(relation)
        assert not shape.vouched
        assert len(flat(session.scan(shape))) == 2
    pg.run("DELETE FROM t WHERE v = 'b'", "CREATE UNIQUE INDEX ON t (id)")
    with closing(opened(pg)) as session:
        assert session.describe(relation).vouched


def test_views_and_generated_columns_are_what_they_compute(pg: OfPostgreSQL) -> None:
    """The owner's function decides what they show; a new one is a change like any other."""
    needs_release(pg.server.release, 18, "virtual columns")
    pg.run(
        "CREATE FUNCTION shown(numeric) RETURNS numeric IMMUTABLE LANGUAGE sql"
        " AS $$SELECT round($1)$$",
        "CREATE TABLE items (id int PRIMARY KEY, v numeric, twice numeric GENERATED ALWAYS AS"
        " (v * 2) VIRTUAL)",
        "INSERT INTO items VALUES (1, 1.4), (2, 1.6)",
        "CREATE VIEW t AS SELECT id, shown(v) AS v, twice FROM items",
    )
    relation = replace(T, key=("id",))
    expect_seen(pg, "UPDATE items SET v = 1.3 WHERE id = 1", relation)
    expect_seen(
        pg,
        "CREATE OR REPLACE FUNCTION shown(numeric) RETURNS numeric IMMUTABLE LANGUAGE sql"
        " AS $$SELECT $1$$",
        relation,
        rows=2,
    )


PG_SETTINGS = {
    "extra_float_digits": "SET extra_float_digits = -15",
    "DateStyle": "SET LOCAL DateStyle = 'German'",
    "TimeZone": "PERFORM set_config('TimeZone', 'Europe/Berlin', false)",
    "search_path": "SET search_path = pg_catalog",
    "client_encoding": "SET client_encoding = 'LATIN1'",
    "row_security": "SET row_security = off",
    "lc_monetary": "SET lc_monetary = 'POSIX'",
    "role": "PERFORM set_config('role', 'pg_read_all_data', true)",
}


@pytest.mark.parametrize("setting", PG_SETTINGS)
def test_a_function_that_changes_the_session_is_refused(pg: OfPostgreSQL, setting: str) -> None:
    """A later array of floats would be rounded, and a change in its last digits missed."""
    pg.run(
        "CREATE TABLE items (id int PRIMARY KEY, v float8[])",
        "INSERT INTO items VALUES (1, '{0.1}'), (2, '{0.2}')",
        f"CREATE FUNCTION odd(int) RETURNS int LANGUAGE plpgsql AS"
        f" $$BEGIN {PG_SETTINGS[setting]}; RETURN $1; END$$",
        "CREATE VIEW t AS SELECT odd(id) AS id, v FROM items",
        "CREATE FUNCTION even(int) RETURNS int LANGUAGE plpgsql SET extra_float_digits = 0"
        " SET DateStyle = 'German' AS $$BEGIN SET LOCAL DateStyle = 'SQL'; RETURN $1; END$$",
        "CREATE VIEW u AS SELECT even(id) AS id, v FROM items",
    )
    with closing(opened(pg)) as session:
        shape = session.describe(replace(T, key=("id",)))
        for read in (session.scan(shape), session.read_ranges(shape, *EVERY_KEY)):
            with pytest.raises((DatabaseRefused, ConfigurationError)) as caught:
                flat(read)
            assert caught.value.where == "t"
            # Where the table is not found any more, PostgreSQL says so first.
            assert f"changed {setting} for" in str(caught.value) or setting == "search_path"
        items = session.describe(Relation("items", table="public.items"))
        assert len(flat(session.scan(items))) == 2, "the session is as it was"
        other = session.describe(Relation("u", table="u", key=("id",)))
        assert len(flat(session.scan(other))) == 2


# MariaDB.
MARIA_FUNCTIONS = ("hex(x text)", "atan2(x double, y double)", "`if`(x text, y text, z text)")


def test_mariadb_stored_functions_do_not_stand_in(maria: OfMariaDB) -> None:
    uuid = "uuid" if maria.name == "mariadb" else "char(36)"
    maria.run(
        *(
            f"CREATE FUNCTION {name} RETURNS text DETERMINISTIC RETURN 'same'"
            for name in MARIA_FUNCTIONS
        ),
        "CREATE TABLE t (id int PRIMARY KEY, f float, d double, b bit(9), y year, i time,"
        f" u {uuid}, r varbinary(9), c varchar(9) CHARACTER SET cp932)",
        "INSERT INTO t VALUES (1, 1.5, 1.5, 5, 2020, '01:00', uuid(), 'a', 'a'),"
        " (2, 1.5, 1.5, 5, 2020, '01:00', uuid(), 'a', 'a')",
    )
    relation = replace(T, as_text=("r", "c"))
    for edit in (
        *("f = 1.25", "f = 0", "f = -1e-46", "d = 2", "b = 6", "y = 2021", "i = '01:01'"),
        *("u = uuid()", "r = 'b'", "c = 'b'", "f = NULL"),
    ):
        expect_seen(maria, f"UPDATE t SET {edit} WHERE id = 2", relation)


MARIA_SETTINGS = {
    "time_zone": "'+05:00'",
    "character_set_results": "latin1",
    "sql_select_limit": "1",
    "lc_time_names": "'de_DE'",
    "div_precision_increment": "0",
}


@pytest.mark.parametrize("setting", MARIA_SETTINGS)
def test_a_mariadb_function_that_changes_the_session_is_refused(
    maria: OfMariaDB, setting: str
) -> None:
    maria.run(
        "CREATE TABLE items (id int PRIMARY KEY, v timestamp, w varchar(9))",
        "INSERT INTO items VALUES (1, '2024-10-27 00:30:00', 'a'), (2, now(), 'a')",
        f"CREATE FUNCTION odd(x int) RETURNS int DETERMINISTIC BEGIN SET SESSION {setting} ="
        f" {MARIA_SETTINGS[setting]}; RETURN x; END",
        "CREATE VIEW t AS SELECT odd(id) AS id, v, w FROM items",
    )
    with closing(opened(maria)) as session:
        items = session.describe(Relation("items", table="items"))
        expected = flat(session.scan(items))
        shape = session.describe(replace(T, key=("id",)))
        with pytest.raises(DatabaseRefused, match=f"changed {setting} for") as caught:
            flat(session.scan(shape))
        assert caught.value.where == "t"
        assert flat(session.scan(items)) == expected, "the session is as it was"
        with pytest.raises(DatabaseRefused, match=f"changed {setting} for"):
            flat(session.read_ranges(shape, *EVERY_KEY))
        by_version = session.describe(replace(T, key=("id",), marker=Marker("id")))
        with pytest.raises(DatabaseRefused, match=f"changed {setting} for"):
            flat(markers_of(session).read_marked(by_version, Mark("", "0")))


def test_mariadb_sql_mode_of_a_function_ends_with_it(maria: OfMariaDB) -> None:
    maria.run(
        "CREATE TABLE items (id int PRIMARY KEY, v char(5))",
        "INSERT INTO items VALUES (1, 'a'), (2, 'b')",
        "CREATE FUNCTION odd(x int) RETURNS int DETERMINISTIC BEGIN"
        " SET SESSION sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'; RETURN x; END",
        "CREATE VIEW t AS SELECT odd(id) AS id, v FROM items",
    )
    relation = replace(T, key=("id",))
    rows = shown(maria, relation)[0]
    assert {len(row) for row in rows} == {len(shown(maria, replace(T, table="items"))[0][0])}
    expect_seen(maria, "UPDATE items SET v = 'c' WHERE id = 2", relation)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sql_mode", "'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES,PIPES_AS_CONCAT'"),
        ("sql_select_limit", "1"),
        ("time_zone", "'+05:00'"),
        ("character_set_results", "latin1"),
        ("max_sort_length", "64"),
        ("init_connect", "'SET NAMES latin1, sql_select_limit = 1, time_zone = ''+07:00'''"),
    ],
)
def test_settings_of_a_mariadb_server_change_nothing(
    maria: OfMariaDB, setting: str, value: str
) -> None:
    """Those of an account do not exist; a reader's session begins with the server's."""
    maria.server.create_login(maria.database)
    prefix = "k" * 70
    maria.run(
        f"GRANT SELECT ON {maria.database}.* TO {maria.database}",
        f"ALTER USER {maria.database} IDENTIFIED BY ''",
        "CREATE TABLE t (id varchar(90) PRIMARY KEY, v timestamp, w char(5), x varchar(9))"
        " ENGINE = MyISAM",
        *(
            f"INSERT INTO t VALUES ('{prefix}{n}', '2024-10-27 00:30:00', 'ä', 'é€')"
            for n in range(5)
        ),
    )
    maria.url = maria.server.url(maria.database, maria.database)
    before = shown(maria)
    with maria.server.admin() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{setting}")
        found = cursor.fetchone()
        assert found is not None
        try:
            cursor.execute(f"SET GLOBAL {setting} = {value}")
            assert shown(maria) == before
        finally:
            cursor.execute(f"SET GLOBAL {setting} = %s", found)
    assert len(before[0]) == 5


def test_mariadb_views_and_virtual_columns_are_what_they_compute(maria: OfMariaDB) -> None:
    maria.run(
        "CREATE TABLE t (id int PRIMARY KEY, v decimal(9,3), w int AS (ROUND(v)) VIRTUAL,"
        " x varchar(9) COLLATE utf8mb4_general_ci)",
        "INSERT INTO t (id, v, x) VALUES (1, 1.2, 'a'), (2, 1.2, 'a')",
    )
    expect_seen(maria, "UPDATE t SET v = 1.3 WHERE id = 1")
    expect_seen(maria, "UPDATE t SET x = 'A' WHERE id = 1")
    expect_seen(maria, "UPDATE t SET x = 'ä' WHERE id = 2")
    expect_seen(maria, "ALTER TABLE t MODIFY w int AS (ROUND(v) + 1) VIRTUAL", rows=2)


# SQLite: what an application's connection has is not in the file.
def _application(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("rounded", 1, round, deterministic=True)
        connection.create_collation("loose", lambda a, b: (a > b) - (a < b))
        for sql in statements:
            connection.execute(sql)


def test_sqlite_functions_of_an_application_are_refused_by_name(lite: OfSQLite) -> None:
    _application(
        lite.path,
        "CREATE TABLE items (id INTEGER PRIMARY KEY, v REAL)",
        "CREATE VIEW t AS SELECT id, rounded(v) AS v FROM items",
        "CREATE TABLE made (id INTEGER PRIMARY KEY, v REAL, w AS (rounded(v)))",
    )
    for relation in (replace(T, key=("id",)), Relation("made", table="made")):
        with (
            closing(opened(lite)) as session,
            pytest.raises(ConfigurationError, match="rounded"),
        ):
            flat(session.scan(session.describe(relation)))


def test_sqlite_collations_of_an_application_change_no_text(lite: OfSQLite) -> None:
    _application(
        lite.path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT COLLATE loose UNIQUE NOT NULL)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE u (v TEXT COLLATE NOCASE NOT NULL, w TEXT COLLATE RTRIM, UNIQUE (v))",
        "INSERT INTO u VALUES ('a', 'x')",
    )
    before = shown(lite)
    _application(lite.path, "UPDATE t SET v = 'A' WHERE id = 1")
    after = shown(lite)
    assert [len(set(a) - set(b)) for a, b in zip(before, after, strict=True)] == [1, 1]
    with closing(opened(lite)) as session:
        assert not session.describe(replace(T, key=("v",))).vouched
        assert session.describe(Relation("u", table="u", key=("v",))).vouched
    expect_seen(lite, "UPDATE u SET w = 'x '", Relation("u", table="u", key=("v",)))
    expect_seen(lite, "UPDATE u SET v = 'A'", Relation("u", table="u", key=("v",)))


def test_sqlite_views_triggers_and_generated_columns(lite: OfSQLite) -> None:
    lite.run(
        "CREATE TABLE items (id INTEGER PRIMARY KEY, v REAL, w REAL AS (round(v)),"
        " x TEXT AS (v) STORED)",
        "CREATE TRIGGER again AFTER UPDATE ON items BEGIN"
        " UPDATE items SET v = old.v WHERE id = 99; END",
        "INSERT INTO items VALUES (1, 1.25), (2, 1.5)",
        "CREATE VIEW t AS SELECT id, CAST(v AS INTEGER) AS v FROM items",
    )
    expect_seen(lite, "UPDATE items SET v = 1.375 WHERE id = 1", replace(T, table="items"))
    expect_seen(lite, "UPDATE items SET v = 2.5 WHERE id = 1", replace(T, key=("id",)))


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_sqlite_column_that_is_gone_is_not_its_name(tmp_path: Path, journal: str) -> None:
    """SQLite takes a name in double quotes that no column bears for a text of these letters."""
    lite = OfSQLite(tmp_path / "legacy.sqlite", journal=journal)
    lite.run(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, w BLOB)",
        "INSERT INTO t VALUES (1, 'a', x'00'), (2, 'b', x'01')",
    )
    with closing(opened(lite)) as session:
        shape = session.describe(T)
        before = flat(session.scan(shape))
        session.pause()
        lite.run("ALTER TABLE t DROP COLUMN v")
        if journal == "wal":
            assert flat(session.scan(shape)) == before
        else:
            for read in (session.scan(shape), session.read_ranges(shape, *EVERY_KEY)):
                with pytest.raises(ConfigurationError, match="no such column"):
                    flat(read)


def test_sqlite_affinities_do_not_convert(lite: OfSQLite) -> None:
    """A declaration that promises a storage class is held to it, whatever a view casts."""
    lite.run(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v, w VARCHAR(9))",
        "INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'a')",
    )
    for edit in ("v = 1.0", "v = '1'", "v = x'31'", "v = NULL", "w = 'A'"):
        expect_seen(lite, f"UPDATE t SET {edit} WHERE id = 2")
    lite.run("UPDATE t SET w = x'41'")
    with (
        closing(opened(lite)) as session,
        pytest.raises(ValueDoesNotFit, match="value 'A' is not one"),
    ):
        flat(session.scan(session.describe(T)))


# Both agents: what was reported as "0 rows changed, proof total".
@pytest.mark.parametrize("kind", ["agent", "database"])
def test_a_refresh_sees_what_a_cast_hides(
    spark: SparkSession, postgresql: PostgreSQL, tmp_path: Path, kind: str
) -> None:
    with closing(PostgresLegacy(postgresql)) as legacy:
        for sql in (
            *ROUNDING,
            "CREATE TABLE t (id int PRIMARY KEY, v money_amt, w price[])",
            "CREATE TABLE numbers AS SELECT generate_series(1, 50) AS n",
            """INSERT INTO t SELECT n, '(1.001,EUR)', '{"(1.001,EUR)"}' FROM numbers""",
        ):
            legacy.execute(sql)
        lines = f'table = "t"\nfingerprint = "{kind}"'
        with Pair(spark, legacy, tmp_path / "pair", {"t": lines}) as pair:
            assert pair.refresh("t").rows_total == 50
            legacy.execute("UPDATE t SET v = (1.004, 'EUR') WHERE id = 7")
            legacy.execute("""UPDATE t SET w = '{"(1.004,EUR)"}' WHERE id = 8""")
            report = pair.refresh("t")
            assert (report.rows_updated, report.proof) == (2, "total")
            values = {row[0]: row[1:] for row in pair.published("t")}
    assert values[7] == ("(1.004,EUR)", '{"(1.001,EUR)"}')
    assert values[8] == ("(1.001,EUR)", '{"(1.004,EUR)"}')
