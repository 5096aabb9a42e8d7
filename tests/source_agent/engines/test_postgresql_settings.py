"""Settings of a PostgreSQL server, a database and a role, on which a value or its text depends.

Settings that only change how a value is written do not show. Those that decide what the source's
own expressions mean are as any client of the database has them: what psycopg alone shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from driftline.errors import ConfigurationError, DatabaseRefused

from source_agent.engines.conformance.reads import flat, read, rows_of, session_of
from source_agent.engines.interface import Limits
from source_agent.engines.postgresql import settings
from source_agent.engines.postgresql.session import PostgresqlJoin
from source_agent.engines.postgresql.split import BlockRanges
from source_agent.engines.postgresql.sql import EXPORT
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfPostgreSQL
from tests.harness.legacy_generic import GenericOverPostgreSQL
from tests.harness.servers import PostgreSQL, PostgreSQLWithLanguages

T, V = Relation("t", table="t"), Relation("v", table="v", key=("id",))
MONEY = Relation("m", table="m")
PLACES = ("server", "database", "role")


@pytest.fixture
def abroad(postgresql_with_languages: PostgreSQLWithLanguages) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql_with_languages)
    yield made
    made.close()


@contextmanager
def owned(legacy: OfPostgreSQL, place: str, values: Mapping[str, str]) -> Iterator[None]:
    """Have the owner of the source set something for the agent's login, and undo it."""
    what = {
        "server": "ALTER SYSTEM",
        "database": f"ALTER DATABASE {legacy.database}",
        "role": "ALTER ROLE postgres",
    }[place]
    applied = ["SELECT pg_reload_conf()"] if place == "server" else []
    try:
        for name, value in values.items():  # quoted, a list would be one name
            text = value if name == "search_path" else f"'{value}'"
            legacy.run(f"{what} SET {name} = {text}")
        legacy.run(*applied)
        yield
    finally:
        legacy.run(*(f"{what} RESET {name}" for name in values), *applied)


ABROAD = PostgreSQLWithLanguages.JAPANESE, PostgreSQLWithLanguages.GERMAN
# Three values of each.
WRITTEN: dict[str, tuple[str, str, str]] = {
    "client_encoding": ("LATIN1", "SQL_ASCII", "UTF8"),
    "DateStyle": ("German, DMY", "SQL, YMD", "Postgres, MDY"),
    "IntervalStyle": ("sql_standard", "postgres_verbose", "iso_8601"),
    "extra_float_digits": ("-15", "0", "1"),
    "bytea_output": ("escape", "hex", "escape"),
    "quote_all_identifiers": ("on", "off", "on"),
    "gin_fuzzy_search_limit": ("1", "2", "100"),
    "enable_seqscan": ("off", "off", "off"),  # so that the index is used
    "jit": ("on", "off", "on"),
    "max_parallel_workers_per_gather": ("8", "1", "0"),
    "row_security": ("off", "on", "off"),
    "default_transaction_isolation": ("serializable", "read committed", "repeatable read"),
    "default_transaction_deferrable": ("on", "off", "on"),
    "lo_compat_privileges": ("on", "off", "on"),
    "synchronize_seqscans": ("off", "on", "off"),
}
MEANT: dict[str, tuple[str, str, str]] = {
    "search_path": ("other, public", "public", '"$user", public'),
    "TimeZone": ("Asia/Kolkata", "America/St_Johns", "Pacific/Kiritimati"),
    "timezone_abbreviations": ("Australia", "India", "Default"),
    "lc_monetary": (*ABROAD, "C"),
    "lc_numeric": (*ABROAD, "C"),
    "lc_time": (*ABROAD, "C"),
    "xmlbinary": ("hex", "base64", "hex"),
    "xmloption": ("document", "content", "document"),
    "array_nulls": ("off", "on", "off"),
    "backslash_quote": ("on", "off", "safe_encoding"),
    "standard_conforming_strings": ("off", "on", "off"),
    "transform_null_equals": ("on", "off", "on"),
    "default_text_search_config": ("pg_catalog.german", "pg_catalog.english", "pg_catalog.simple"),
}
# What a view or a query of an owner may compute, each by one of these settings.
EXPRESSIONS = (
    "(SELECT min(n) FROM named)",
    "at::date::text",
    "at::text",
    "date_trunc('day', at)::text",
    "('2024-05-06 12:00 ' || 'IST')::timestamptz::text",
    "('01/02/2' || '003')::date::text",
    "to_char(1234.5, '9G999D99L')",
    "to_char(at, 'TMDay TMMonth HH24 TZ')",
    "(1 || '234.5')::money::numeric::text",
    "xmlelement(name a, decode('00ff', 'hex'))::text",
    "('{NULL' || '}')::text[] IS NOT DISTINCT FROM ARRAY[NULL::text]",
    "(SELECT count(*) FROM t WHERE t.id = NULL)",
    "'a\\\\b'",
    "to_tsvector('the houses of ' || 'Häuser')::text",
)
TYPED = (
    "float8[]", "real[]", "interval[]", "date[]", "timestamp[]", "timestamptz", "bytea[]",
    "regclass", "daterange", "interval", "float8", "bytea", "point", "timetz", "numeric",
)  # fmt: skip
VALUES = (
    "'{0.1,0.30000000000000004}'", "'{1.1}'", "'{-1 mon +2 days -03:04:05.6}'", "'{2024-02-01}'",
    "'{2024-02-01 03:04:05.6}'", "'2024-10-27 02:30+02'", "ARRAY['\\x00ff41'::bytea]", "'\"T t\"'",
    "'[2024-02-01,2024-03-01)'", "'1 mon -1 s'", "0.30000000000000004", "'\\x00ff'",
    "'(0.1,0.30000000000000004)'", "'12:00+05:30'", "1.10",
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_settings_of_writing_do_not_show(pg: OfPostgreSQL, place: str) -> None:
    columns = ", ".join(f"c{i} {type}" for i, type in enumerate(TYPED))
    pg.run(
        'CREATE TABLE "T t" (id int)',
        f"CREATE TABLE t (id int PRIMARY KEY, name text, parts int[], {columns})",
        f"INSERT INTO t SELECT n, 'é😀', ARRAY[7, n], {', '.join(VALUES)}"
        " FROM generate_series(1, 400) n",
        "CREATE INDEX ON t USING gin (parts)",
    )
    relation = Relation("t", table="t", where="parts @> ARRAY[7]")
    with session_of(pg) as session:
        before = read(session, relation)
    assert len(before) == 400
    for turn in range(3):
        with (
            owned(pg, place, {name: values[turn] for name, values in WRITTEN.items()}),
            session_of(pg) as session,
        ):
            assert read(session, relation) == before


@pytest.mark.parametrize("place", PLACES)
def test_floats_of_the_generic_engine_are_not_rounded(postgresql: PostgreSQL, place: str) -> None:
    with closing(GenericOverPostgreSQL(postgresql)) as legacy:
        legacy.run(
            "CREATE TABLE t (id int PRIMARY KEY, v float8)",
            "INSERT INTO t VALUES (1, 0.1), (2, 0.30000000000000004)",
        )
        for digits in ("-15", "0", "3"):
            with (
                owned(legacy, place, {"extra_float_digits": digits}),
                session_of(legacy) as session,
            ):
                assert read(session, T) == [["1", "0.1"], ["2", "0.30000000000000004"]]


@pytest.mark.parametrize("place", PLACES)
def test_expressions_of_the_source_mean_what_they_mean_to_its_owner(
    abroad: OfPostgreSQL, place: str
) -> None:
    """Of a view, and of a query, whose literals are read in the agent's session."""
    expressions = ", ".join(f"{text} AS c{i}" for i, text in enumerate(EXPRESSIONS))
    select = f"SELECT id, {expressions} FROM t"
    abroad.run(
        "CREATE SCHEMA other",
        "CREATE TABLE public.named AS SELECT 1 AS n",
        "CREATE TABLE other.named AS SELECT 2 AS n",
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz)",
        "INSERT INTO t VALUES (1, '2024-10-27 23:30+00'), (2, '2024-03-31 02:30+02')",
        f"CREATE VIEW v AS {select}",
    )
    query = Relation("q", query=select, key=("id",))
    seen = set()
    for turn in range(3):
        values = {name: values[turn] for name, values in MEANT.items()}
        values["DateStyle"] = ("ISO, DMY", "ISO, MDY", "ISO, DMY")[turn]
        with (
            owned(abroad, place, values),
            psycopg.connect(abroad.server.uri_of(abroad.database)) as client,
        ):
            for relation, text in ((V, "SELECT * FROM v"), (query, select)):
                shown = [_as_text(row) for row in client.execute(text + " ORDER BY id")]
                with session_of(abroad) as session:
                    assert sorted(read(session, relation)) == shown
                seen.add(str(shown))
    assert len(seen) >= 3, "the settings do matter"


def _as_text(row: tuple[Any, ...]) -> list[str | None]:
    words = {True: "true", False: "false"}
    return [None if v is None else words[v] if isinstance(v, bool) else str(v) for v in row]


def test_a_reload_of_the_servers_file_does_not_reach_a_session(pg: OfPostgreSQL) -> None:
    """Nor do new settings of the database reach a reader that joins the session."""
    pg.run(
        "CREATE TABLE t (id int PRIMARY KEY, v tstzrange)",
        "INSERT INTO t VALUES (1, '[2024-10-27 00:30+00,)')",
    )
    with session_of(pg) as session:
        shape = session.describe(T)
        before = flat(session.scan(shape))
        with (
            owned(pg, "server", {"TimeZone": "Asia/Kolkata"}),
            owned(pg, "database", {"TimeZone": "Asia/Tokyo"}),
        ):
            assert flat(session.scan(shape)) == before
            ((name, sees),) = session.ask(EXPORT)
            held = settings.held(session._shown)
            join = PostgresqlJoin(
                session._parameters, Limits(), str(name), str(sees), held, shape, BlockRanges(1, 1)
            )
            other = join()
            with closing(other.session):
                assert flat(other.session.scan(shape)) == before
            with session_of(pg) as later:
                assert flat(later.scan(shape)) != before


@pytest.mark.parametrize("setting", ["zero_damaged_pages", "ignore_checksum_failure"])
def test_a_server_that_hides_damage_is_refused(pg: OfPostgreSQL, setting: str) -> None:
    with (
        owned(pg, "database", {setting: "on"}),
        pytest.raises(DatabaseRefused, match=f"{setting} is on"),
    ):
        connect(pg.url, None, Limits()).open()
    pg.server.create_login(pg.database)
    pg.run(f"ALTER ROLE {pg.database} SET {setting} = off")  # as the remedy says
    url = pg.server.url(pg.database, pg.database)
    with owned(pg, "database", {setting: "on"}), closing(connect(url, None, Limits()).open()):
        pass
    pg.run(f"DROP ROLE {pg.database}")


AMOUNTS = {  # the same stored integers
    PostgreSQLWithLanguages.JAPANESE: ["0", "1", "-123456", "9223372036854775807"],
    PostgreSQLWithLanguages.GERMAN: ["0.00", "0.01", "-1234.56", "92233720368547758.07"],
    PostgreSQLWithLanguages.KUWAITI: ["0.000", "0.001", "-123.456", "9223372036854775.807"],
}


def filled_with_money(legacy: OfPostgreSQL) -> None:
    legacy.run(
        "SET lc_monetary = 'C'; CREATE DOMAIN price AS money;"
        "CREATE TYPE offer AS (what text, price price);"
        "CREATE TABLE m (id int PRIMARY KEY, v money, w price, l money[], o offer[]);"
        "INSERT INTO m SELECT n, v, v, ARRAY[v], ARRAY[('a', v)::offer] FROM unnest("
        "'{0,0.01,-1234.56,92233720368547758.07}'::money[]) WITH ORDINALITY AS a(v, n)"
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("locale", AMOUNTS)
def test_money_is_the_amount_that_the_database_says(
    abroad: OfPostgreSQL, place: str, locale: str
) -> None:
    filled_with_money(abroad)
    with owned(abroad, place, {"lc_monetary": locale}):
        with psycopg.connect(abroad.server.uri_of(abroad.database)) as client:
            cursor = client.execute("SELECT v::numeric::text, l::text, o::text FROM m ORDER BY id")
            shown = cursor.fetchall()
        with session_of(abroad) as session:
            shape = session.describe(MONEY)
            rows = rows_of(session, shape)
            declared = shape.recipe.columns[1].type
    assert [row[1] for row in rows] == [row[2] for row in rows] == AMOUNTS[locale]
    assert [(row[1], row[3], row[4]) for row in rows] == shown
    assert declared.scale == len(AMOUNTS[locale][0].partition(".")[2])


def test_money_whose_decimals_roles_see_differently_is_refused(abroad: OfPostgreSQL) -> None:
    filled_with_money(abroad)
    clerk, german = f"{abroad.database}_c", PostgreSQLWithLanguages.GERMAN
    abroad.run(
        f"CREATE ROLE {clerk} LOGIN",
        f"ALTER ROLE {clerk} SET lc_monetary = '{german}'",
    )
    columns = (("id", "v"), ("id", "w"), ("id", "l"), ("id", "o"))
    with session_of(abroad) as session:
        assert read(session, MONEY)
        assert session.decimals_as("no_NOWHERE") is None, "a login with it has the server's"
    here = f"IN DATABASE {abroad.database}"
    abroad.run(f"ALTER ROLE {clerk} {here} SET lc_monetary = 'ja_JP.UTF-8'")
    with session_of(abroad) as session:
        for names in columns:
            with pytest.raises(ConfigurationError, match=f"'ja_JP.UTF-8' as the role {clerk}"):
                session.describe(Relation("m", table="m", columns=names))
        assert read(session, Relation("m", table="m", columns=("id",)))
    with owned(abroad, "role", {"lc_monetary": "ja_JP.UTF-8"}), session_of(abroad) as session:
        assert [row[1] for row in read(session, MONEY)] == AMOUNTS["ja_JP.UTF-8"]
    abroad.run(f"DROP ROLE {clerk}")
