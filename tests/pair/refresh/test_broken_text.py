"""Bytes in PostgreSQL that are no text of the encoding that its database declares.

Old releases, pg_upgrade and functions in C leave them behind. The server checks no text that it
stores, and sends that of a database in UTF-8 as it is. The test declares another encoding for a
database that holds them. No such text is published, nor is a change missed because of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from driftline import errors

from source_agent.engines.conformance.reads import read
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.servers import PostgreSQL

ROWS = (
    "CREATE TABLE {} (id int PRIMARY KEY, v text, ch char(6), tags text[], js json, jb jsonb);"
    "INSERT INTO {} SELECT g, 'good', 'x', '{{a}}', '{{}}', '{{}}' FROM generate_series(1, 40) g"
)
BAD = {  # a column, and a value whose bytes E9 and FF are no UTF-8
    "v": b"E'caf\\xe9 \\\\x'",
    "ch": b"E'\\xff'",
    "tags": b"ARRAY[E'caf\\xe9']",
    "js": b'E\'{"a": "\\xe9"}\'',
    "jb": b'E\'{"a": "\\xe9"}\'',
}
COLUMNS = {f"t_{column}": column for column in BAD} | {"keyed": "code"}


@dataclass
class Broken:
    """A database whose owner writes bytes as they are."""

    server: PostgreSQL
    name: str
    password: None = None

    @property
    def url(self) -> str:
        return self.server.url("postgres", self.name)

    def write(self, statement: str | bytes) -> None:
        self.declare("SQL_ASCII")
        uri = f"{self.server.uri_of(self.name)}&client_encoding=SQL_ASCII"
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(statement)

    def declare(self, encoding: str) -> None:
        with self.server.superuser() as connection:
            connection.execute(
                "UPDATE pg_database SET encoding = pg_char_to_encoding(%s) WHERE datname = %s",
                (encoding, self.name),
            )


@contextmanager
def broken(server: PostgreSQL, name: str) -> Iterator[Broken]:
    server.create_database(name, encoding="SQL_ASCII")
    try:
        yield Broken(server, name)
    finally:
        server.drop_database(name)


def test_no_refresh_publishes_it_or_misses_its_change(
    postgresql: PostgreSQL, tmp_path: Path
) -> None:
    relations = {f"t_{column}": f'table = "t_{column}"' for column in BAD}
    relations["hashed"] = 'table = "t_v"\nfingerprint = "database"'
    relations["shown"] = 'table = "t_v"\nas_text = ["v"]'
    relations["asked"] = 'query = "SELECT id, upper(v) AS v FROM t_v"\nkey = ["id"]'
    relations["keyed"] = 'table = "keyed"'
    with broken(postgresql, "broken_utf8") as database:
        for column in BAD:
            database.write(ROWS.format(f"t_{column}", f"t_{column}"))
        database.write("CREATE TABLE keyed (code text PRIMARY KEY); INSERT INTO keyed VALUES ('a')")
        database.declare("UTF8")
        with Pair(NoSpark(), database, tmp_path / "pair", relations) as pair:  # type: ignore[arg-type]
            pair.reports()
            for column, value in BAD.items():
                statement = f"UPDATE t_{column} SET {column} = ".encode() + value
                database.write(statement + b" WHERE id = 7")
            database.write(b"INSERT INTO keyed VALUES (E'b\\xff')")
            database.declare("UTF8")
            for name in relations:
                assert pair.version(name) is not None
                error = pair.error(name)
                where = f"{name}.{COLUMNS.get(name, 'v')}"
                key = "x'62ff'" if name == "keyed" else "7"
                found = error["code"], error["where"], error["details"]["key"]
                assert found == ("VALUE", where, key), error
                assert "no text in UTF-8" in error["message"]
            with closing(connect(database.url, None, Limits()).open()) as session:
                as_bytes = "SELECT id, textsend({0}::text) AS v FROM t_{0} WHERE id = 7"
                for column in BAD:
                    query = Relation("b", query=as_bytes.format(column), key=("id",))
                    ((_, form),) = read(session, query)
                    assert form is not None
                    assert "e9" in form or "ff" in form, "as the remedy says"
            for column in BAD:
                database.write(f"UPDATE t_{column} SET {column} = NULL WHERE id = 7")
            database.write("DELETE FROM keyed WHERE code <> 'a'")
            database.declare("UTF8")
            for report in pair.reports():
                assert report.error is None, report.error
            for name in COLUMNS:
                rows = {row[0]: row[1:] for row in pair.published(name)}
                assert rows == {"a": ()} if name == "keyed" else None in rows[7], name


def test_an_expression_that_reads_it_is_refused_with_how_to_find_it(
    postgresql: PostgreSQL,
) -> None:
    with broken(postgresql, "broken_expression") as database:
        database.write(ROWS.format("t", "t"))
        database.write(b"UPDATE t SET v = " + BAD["v"] + b" WHERE id = 7")
        database.declare("UTF8")
        query = Relation("q", query="SELECT id, convert_to(v, 'UTF8') AS v FROM t", key=("id",))
        with closing(connect(database.url, None, Limits()).open()) as session:
            with pytest.raises(errors.ValueDoesNotFit, match="0xe9 0x20 0x5c") as caught:
                read(session, query)
            where = caught.value.remedy.split("WHERE ")[1].split(". ")[0].replace("col", "v")
            found = Relation("f", query=f"SELECT id FROM t WHERE {where}", key=("id",))
            assert read(session, found) == [["7"]], "as the remedy says"
            others = Relation("t", table="t", where="v = 'good'")
            assert len(read(session, others)) == 39


@pytest.mark.parametrize("encoding", ["EUC_KR", "EUC_CN"])
def test_the_server_refuses_it_in_another_encoding_with_column_and_key(
    postgresql: PostgreSQL, encoding: str
) -> None:
    with broken(postgresql, f"broken_{encoding.lower()}") as database:
        database.write("CREATE TABLE t (id int PRIMARY KEY, w text, v text)")
        # The bytes of the broken text, B0 20, are in a good one, too, behind the first of a letter.
        database.write(b"INSERT INTO t VALUES (1, E'\\xb0\\xb0 x', E'\\\\a'), (2, 'b', E'c\\xb0 ')")
        database.declare(encoding)
        with (
            closing(connect(database.url, None, Limits()).open()) as session,
            pytest.raises(errors.ValueDoesNotFit, match="0xb0 0x20") as caught,
        ):
            read(session, Relation("t", table="t"))
        assert (caught.value.where, caught.value.details["key"]) == ("t.v", "2")


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"])
def test_a_name_that_is_not_utf8_is_named(postgresql: PostgreSQL, encoding: str) -> None:
    with broken(postgresql, f"broken_names_{encoding.lower()}") as database:
        database.write(b'CREATE TABLE c (id int PRIMARY KEY, "n\xe9" int)')
        database.write(b'CREATE TABLE "t\xe9" (id int)')
        database.write("CREATE TABLE t (id int PRIMARY KEY)")
        database.declare(encoding)
        engine = connect(database.url, None, Limits())
        with closing(engine.open()) as session:
            assert read(session, Relation("t", table="t")) == []
            for failing in ("c", "x"):
                with pytest.raises(errors.DatabaseRefused, match="catalogue is not in") as caught:
                    session.describe(Relation(failing, table=failing))
                assert "xe9" in caught.value.message
                assert "RENAME" in caught.value.remedy
        names = {listed.table: listed.unread for listed in engine.listed()}
        assert [bool(unread) for unread in names.values()] == [False, False, True], names
        assert "b't\\xe9'" in names["public.t\\xe9"]
