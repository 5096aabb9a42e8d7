"""Remedies for databases that are silent, slow or odd: with what each says, rows are read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import psycopg
import pytest
from driftline.errors import DatabaseRefused, DatabaseUnavailable, DriftlineError

from source_agent.budgets.watch import PROBE_AFTER_S, SessionWatch
from source_agent.engines.conformance.reads import Read, rows_of
from source_agent.engines.interface import Limits, Pulse, Session
from source_agent.engines.mysql_family import warnings
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Fingerprint, Relation
from source_agent.scan.reader import ReadCounts, Reader
from tests.harness.family import FAMILY
from tests.harness.legacies import OfMariaDB, OfPostgreSQL, of_family
from tests.harness.servers import PostgreSQL
from tests.harness.staged import KEY, SALT
from tests.remedies.told import told
from tests.source_agent.budgets.test_watch import Silent

WAITS = (
    "Find out what the agent's session waits for. Raise database.silence_timeout_s if a statement"
    " needs longer before its first row."
)


@pytest.fixture(scope="module")
def pg(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    yield made
    made.close()


@pytest.fixture(scope="module", params=FAMILY)
def maria(request: pytest.FixtureRequest) -> Iterator[OfMariaDB]:
    made = of_family(request.getfixturevalue(request.param))
    yield made
    made.close()


def rows(url: str, relation: Relation, **limits: Any) -> list[Read]:
    with closing(connect(url, None, Limits(**limits)).open()) as session:
        return rows_of(session, session.describe(relation))


def query(text: str) -> Relation:
    return Relation("q", query=text, key=("id",))


def test_a_watch_over_a_silent_database() -> None:
    now = [100.0]

    def dead(session: Silent, silent_s: float, limits: Limits) -> DriftlineError | None:
        session.pulse = Pulse()
        session.pulse.at = now[0]
        watch = SessionWatch(cast(Session, session), limits, clock=lambda: now[0])
        with watch.waiting():
            now[0] += silent_s
            return watch.dead()

    found = dead(Silent(0.1), 70.0, Limits(silence_s=60.0))
    assert found is not None
    told(found, WAITS)
    assert dead(Silent(0.1), 70.0, Limits(silence_s=120.0)) is None
    found = dead(Silent(1e9), PROBE_AFTER_S, Limits())
    assert found is not None
    told(found, "Check that the server runs and can be reached, then run the command again.")
    assert dead(Silent(0.1), PROBE_AFTER_S, Limits()) is None


def test_postgresql_is_silent(pg: OfPostgreSQL) -> None:
    slow = query("SELECT 1 AS id FROM pg_sleep(1)")
    with pytest.raises(DatabaseUnavailable) as caught:
        rows(pg.url, slow, silence_s=0.3)
    told(caught.value, WAITS)
    assert rows(pg.url, slow, silence_s=60.0) == [["1"]]


def test_mariadb_is_silent(maria: OfMariaDB) -> None:
    slow = query("SELECT CAST(SLEEP(0.8) + 1 AS SIGNED) AS id")
    with pytest.raises(DatabaseUnavailable) as caught:
        rows(maria.url, slow, silence_s=0.4)
    told(caught.value, WAITS)
    assert rows(maria.url, slow, silence_s=60.0) == [["1"]]


def test_a_statement_that_takes_too_long_for_mariadb(maria: OfMariaDB) -> None:
    maria.run("CREATE TABLE s (id int PRIMARY KEY)", "INSERT INTO s VALUES (1), (2)")
    slow = query("SELECT id FROM s WHERE SLEEP(0.2) = 0")
    with pytest.raises(DatabaseRefused) as caught:
        rows(maria.url, slow, statement_s=0.1)
    told(
        caught.value,
        "Raise statement_timeout_s of the file or the account's own limit, whichever is shorter,"
        " or publish less of it.",
    )
    assert len(rows(maria.url, slow, statement_s=60.0)) == 2
    assert len(rows(maria.url, query("SELECT id FROM s"), statement_s=1.0)) == 2


def test_more_warnings_than_mariadb_lists(
    maria: OfMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lists is made little, not the warnings many."""
    monkeypatch.setattr(warnings, "LISTED_MAX", 3)
    maria.run("CREATE TABLE w (id int PRIMARY KEY)", "INSERT INTO w SELECT seq FROM seq_1_to_5")
    text = "SELECT id, CAST({} AS SIGNED) AS n FROM w"
    with pytest.raises(DatabaseRefused) as caught:
        rows(maria.url, query(text.format("CONCAT(id, 'x')")))
    told(caught.value, "Write the query, view or `where` so that it raises none, with CAST.")
    assert len(rows(maria.url, query(text.format("LEFT(CONCAT(id, 'x'), 1)")))) == 5


def test_a_cancelled_statement_in_another_language(pg: OfPostgreSQL) -> None:
    """As of a server whose messages are German: no word says what cancelled it."""
    pg.run(
        "CREATE FUNCTION slow(seconds float) RETURNS int LANGUAGE plpgsql STABLE AS $$BEGIN"
        " PERFORM pg_sleep(seconds); RETURN 1; EXCEPTION WHEN query_canceled THEN"
        " RAISE EXCEPTION 'storniere Anfrage' USING ERRCODE = '57014'; END$$"
    )
    slow = query("SELECT slow(0.4) AS id")
    with pytest.raises(DatabaseRefused) as caught:
        rows(pg.url, slow, statement_s=0.2)
    printed = told(caught.value, "If it took long: … If not: …")
    assert "Raise statement_timeout_s" in printed
    assert "ask the DBA" in printed
    assert rows(pg.url, slow, statement_s=60.0) == [["1"]]
    assert rows(pg.url, query("SELECT slow(0.0) AS id"), statement_s=0.2) == [["1"]]


def test_a_null_where_the_database_knows_of_none(pg: OfPostgreSQL) -> None:
    """A constraint is marked as validated that is not, as heirs have it before PostgreSQL 18."""
    pg.run(
        "CREATE TABLE p (k int PRIMARY KEY, v int NOT NULL)",
        "INSERT INTO p VALUES (1, 7)",
        "CREATE TABLE h (k int PRIMARY KEY, v int)",
        "INSERT INTO h VALUES (1, NULL)",
    )
    pg.run("UPDATE pg_attribute SET attnotnull = true WHERE attrelid = 'h'::regclass"
           " AND attname = 'v'")  # fmt: skip
    relation = Relation("h", table="h", fingerprint=Fingerprint.DATABASE)

    def hashes(relation: Relation) -> int:
        with closing(connect(pg.url, None, Limits()).open()) as session:
            shape = session.describe(relation)
            reader = Reader(session, shape, fragment_key=KEY, salt=SALT, tally=ReadCounts())
            return sum(len(batch.positions) for batch in reader.scan_hashes())

    with pytest.raises(DriftlineError) as caught:
        hashes(relation)
    told(caught.value, 'Validate the constraint, or remove `fingerprint = "database"`.')
    assert rows(pg.url, replace(relation, fingerprint=Fingerprint.AGENT)) == [["1", None]]
    pg.run("UPDATE h SET v = 7")
    pg.run("UPDATE pg_attribute SET attnotnull = false WHERE attrelid = 'h'::regclass"
           " AND attname = 'v'", "ALTER TABLE h ALTER v SET NOT NULL")  # fmt: skip
    assert hashes(relation) == 1


def test_a_database_whose_encoding_the_server_does_not_convert(postgresql: PostgreSQL) -> None:
    old = postgresql.create_database("remedy_mule", encoding="MULE_INTERNAL")
    new = postgresql.create_database("remedy_utf8")
    try:
        with psycopg.connect(
            f"{postgresql.uri_of(old)}&client_encoding=SQL_ASCII", autocommit=True
        ) as owner:
            owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            owner.execute(
                "INSERT INTO t VALUES (1, 'caf' || convert_from('\\x81e9', 'MULE_INTERNAL'))"
            )
        with pytest.raises(DatabaseRefused) as caught:
            connect(postgresql.url("postgres", old), None, Limits()).open()
        told(
            caught.value,
            "Restore a dump of it, made with `pg_dump --encoding`, into a database of another"
            " encoding.",
        )
        words = [str(postgresql.tool("pg_dump")), "--encoding", "LATIN1"]
        dump = subprocess.run([*words, postgresql.uri_of(old)], check=True, capture_output=True)
        words = [str(postgresql.tool("psql")), "--set", "ON_ERROR_STOP=1", postgresql.uri_of(new)]
        subprocess.run(words, input=dump.stdout, check=True, capture_output=True)
        assert rows(postgresql.url("postgres", new), Relation("t", table="t")) == [["1", "café"]]
    finally:
        for name in (old, new):
            postgresql.drop_database(name)
