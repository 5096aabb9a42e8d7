"""What only Firebird 4.0 and later has: times with a zone, binds and the time zone of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import ConfigurationError, DatabaseRefused

from source_agent.engines.conformance.reads import read, session_of
from source_agent.engines.shapes import Relation

pytestmark = [pytest.mark.firebird, pytest.mark.usefixtures("firebird")]


@pytest.fixture
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    request.getfixturevalue("firebird")  # before the driver is imported
    from tests.harness.legacy_firebird import OfFirebird

    made = OfFirebird(tmp_path)
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


def test_a_bind_of_the_owner_does_not_count(legacy: Any) -> None:
    legacy.run(
        'CREATE TABLE "t" ("id" INT NOT NULL PRIMARY KEY, "v" DOUBLE PRECISION, "n" BIGINT)',
        'INSERT INTO "t" VALUES (1, 0.10000000000000002e0, 9223372036854775807)',
        "CREATE TRIGGER BINDS ON CONNECT AS BEGIN"
        " EXECUTE STATEMENT 'SET BIND OF DOUBLE PRECISION TO FLOAT';"
        " EXECUTE STATEMENT 'SET BIND OF BIGINT TO DOUBLE PRECISION'; END",
    )
    with session_of(legacy) as session:
        assert read(session, Relation("t", table="t")) == [
            ["1", "0.10000000000000002", "9223372036854775807"]
        ]


def test_a_session_is_in_utc(legacy: Any) -> None:
    legacy.run(
        "CREATE TRIGGER ZONE ON CONNECT AS BEGIN"
        " EXECUTE STATEMENT 'SET TIME ZONE ''Europe/Vienna'''; END"
    )
    with session_of(legacy) as session:
        zone = "SELECT RDB$GET_CONTEXT('SYSTEM', 'SESSION_TIMEZONE') FROM RDB$DATABASE"
        assert session.ask(zone) == [("UTC",)]


def test_a_limit_of_the_server_is_named(legacy: Any) -> None:
    busy = Relation(
        "q",
        query='SELECT COUNT(*) AS "n" FROM RDB$FIELDS a CROSS JOIN RDB$FIELDS b'
        " CROSS JOIN RDB$FIELDS c CROSS JOIN RDB$FIELDS d",
        key=("n",),
    )
    with session_of(legacy) as session:
        session._connection.execute_immediate("SET STATEMENT TIMEOUT 50 MILLISECOND")
        with pytest.raises(DatabaseRefused, match="level timeout") as refused:
            read(session, busy)
        assert "StatementTimeout of the server" in refused.value.remedy
