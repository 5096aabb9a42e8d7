"""The generic engine: the suite over two real databases, and what it refuses or says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import ConfigurationError, DatabaseUnavailable
from sqlalchemy import types as sql
from sqlalchemy.dialects import mssql, mysql, oracle

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import read, session_of
from source_agent.engines.conformance.suite import *  # noqa: F403 - collected, with this `legacy`
from source_agent.engines.generic import dialects
from source_agent.engines.generic.types import InspectedColumn, _declared, _zone
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Consistency, Relation
from tests.harness.legacies import OfMariaDB, OfPostgreSQL
from tests.harness.legacy_generic import GenericOverPostgreSQL, GenericOverSQLite
from tests.harness.servers import PostgreSQL
from tests.harness.source_commands import source_command


@pytest.fixture(params=["sqlite", "postgresql"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made: Legacy
    if request.param == "sqlite":
        made = GenericOverSQLite(tmp_path / "legacy.sqlite")
    else:
        made = GenericOverPostgreSQL(request.getfixturevalue("postgresql"))
    yield made
    made.close()


def test_types_of_a_query_are_declared(legacy: Legacy) -> None:
    legacy.run("CREATE TABLE t (id BIGINT, v VARCHAR(9))", "INSERT INTO t VALUES (1, 'a%s')")
    query = "SELECT id AS k, v FROM t WHERE v LIKE '%s' -- ?"
    wanted = (("k", "int8"), ("v", "text"))
    with session_of(legacy) as session:
        assert read(session, Relation("q", query=query, key=("k",), types=wanted)) == [["1", "a%s"]]
        with pytest.raises(ConfigurationError, match="types = "):
            session.describe(Relation("q", query=query, key=("k",)))
        with pytest.raises(ConfigurationError, match="without loss"):
            session.describe(Relation("q", query=query, key=("k",), types=(("k", "float8"),)))
        known = Relation("t", table="t", key=("id",), types=(("id", "int8"),))
        with pytest.raises(ConfigurationError, match="Remove it from `types`"):
            session.describe(known)
        assert read(session, replace(known, types=())) == [["1", "a%s"]]


def test_a_marker_is_refused(legacy: Legacy) -> None:
    legacy.run("CREATE TABLE t (id BIGINT, v BIGINT)")
    marked = Relation("t", table="t", key=("id",), marker=Marker("v"))
    with session_of(legacy) as session, pytest.raises(ConfigurationError) as refused:
        session.describe(marked)
    assert (refused.value.where, refused.value.message) == (
        "t: marker",
        "This engine has no markers.",
    )


def test_without_a_snapshot_statement_a_session_is_fuzzy(
    legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the entry that makes a session exact, not the name of the database."""
    monkeypatch.setattr(dialects, "ENTRIES", {"sqlite": dialects.ENTRIES["sqlite"]})
    legacy.run("CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    with session_of(legacy) as session:
        assert read(session, Relation("t", table="t", key=("id",))) == [["1"]]
        assert session.snapshot.consistency is Consistency.FUZZY


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("generic://h/d", "names no dialect"),
        ("generic+nonesuch://h/d", "nonesuch"),
        ("generic+oracle+oracledb://u@h/d", "oracledb"),
    ],
)
def test_a_dialect_that_cannot_be_used_is_named(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        connect(url, None, Limits())


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    engine = connect(f"generic+sqlite:///{tmp_path}/none/x.sqlite", None, Limits())
    with pytest.raises(DatabaseUnavailable, match="unable to open"):
        engine.open()


def test_ours_keep_their_names(tmp_path: Path) -> None:
    assert connect(f"sqlite:///{tmp_path}/x", None, Limits()).name == "sqlite"


def column(type: sql.TypeEngine[Any], precision: Any = None, scale: Any = None) -> InspectedColumn:
    return InspectedColumn("v", type, precision, scale)


@pytest.mark.parametrize(
    ("described", "declared"),
    [
        (column(sql.Numeric(), 18, -4), "numeric(18,4)"),  # Firebird: only the driver knows
        (column(sql.Numeric(18, 4), 18, 4), "numeric(18,4)"),
        (column(sql.Numeric(18, 4)), "numeric(18,4)"),
        (column(sql.Numeric(18, 4), 18, 2), "the driver says that its scale is 2, not 4"),
        (column(sql.Numeric()), "without precision and scale"),
        (column(sql.Numeric(40, 2)), "beyond 38 digits"),
        (column(sql.Float()), "17 digits"),
        (column(mysql.DATETIME(fsp=6)), "timestamp"),
        (column(oracle.TIMESTAMP()), "timestamp"),
        (column(sql.Interval()), ""),
        (column(sql.NullType()), ""),
    ],
)
def test_a_description_that_contradicts_the_catalogue_is_refused(
    described: InspectedColumn, declared: str
) -> None:
    type, why = _declared(described)
    assert str(type) == declared if type else declared in why


ZONED = (
    sql.DateTime(timezone=True), sql.TIME(timezone=True), mssql.DATETIMEOFFSET(7),
    mysql.TIMESTAMP(fsp=6), oracle.TIMESTAMP(local_timezone=True),
)  # fmt: skip


@pytest.mark.parametrize("type", ZONED, ids=repr)
def test_times_that_a_driver_may_not_tell_apart_are_refused(type: sql.TypeEngine[Any]) -> None:
    assert "zone" in _zone(type)


@pytest.mark.parametrize("as_text", [(), ("at",)])
@pytest.mark.parametrize("over", ["mariadb", "postgresql"])
def test_an_instant_is_refused_and_its_text_in_utc_is_read(
    request: pytest.FixtureRequest, over: str, as_text: tuple[str, ...]
) -> None:
    """MariaDB's TIMESTAMP is shown in the session's zone: two of them, an hour apart, alike."""
    server = request.getfixturevalue(over)
    made, kind, utc = (
        (OfMariaDB(server), "TIMESTAMP(6) NULL", "CAST(UNIX_TIMESTAMP(at) AS CHAR)")
        if over == "mariadb"
        else (OfPostgreSQL(server), "timestamptz", "CAST(at AT TIME ZONE 'UTC' AS text)")
    )
    with closing(made) as legacy:
        legacy.run(
            f"CREATE TABLE t (id INT PRIMARY KEY, at {kind}, local TIMESTAMP)"
            if over == "postgresql"
            else f"CREATE TABLE t (id INT PRIMARY KEY, at {kind}, local DATETIME)",
            "INSERT INTO t VALUES (1, '2024-10-27 02:30:00', '2024-10-27 02:30:00')",
            f"CREATE VIEW v AS SELECT id, {utc} AS at, local FROM t",
        )
        engine = connect(f"generic+{legacy.url}", None, Limits())
        with closing(engine.open()) as session:
            table = Relation("t", table="t", as_text=as_text)
            with pytest.raises(ConfigurationError, match="a view that casts it to text in UTC"):
                session.describe(table)
            assert len(read(session, replace(table, columns=("id", "local"), as_text=()))) == 1
            [[_, text, local]] = read(session, Relation("v", table="v", key=("id",)))
            assert text
            assert local == "2024-10-27 02:30:00"


@pytest.mark.parametrize("as_text", [(), ("v",)])
def test_an_interval_is_refused_and_its_text_is_read(
    postgresql: PostgreSQL, as_text: tuple[str, ...]
) -> None:
    """The driver shows these three alike."""
    with closing(OfPostgreSQL(postgresql)) as legacy:
        legacy.run(
            "CREATE TABLE t (id INT PRIMARY KEY, v interval)",
            "INSERT INTO t VALUES (1, '1 mon'), (2, '30 days'), (3, '720:00:00')",
            "CREATE VIEW v AS SELECT id, v::text FROM t",
        )
        with closing(connect(f"generic+{legacy.url}", None, Limits()).open()) as session:
            with pytest.raises(ConfigurationError, match="a view that casts it to text"):
                session.describe(Relation("t", table="t", as_text=as_text))
            rows = read(session, Relation("v", table="v", key=("id",)))
    assert [text for _, text in rows] == ["1 mon", "30 days", "720:00:00"]


def test_the_dba_is_told_what_is_unknown(legacy: Legacy) -> None:
    legacy.run("CREATE TABLE t (id BIGINT)")
    engine = legacy.connect()
    relation = Relation("t", table="t", key=("id",))
    with closing(engine.open()) as session:
        shape = session.describe(relation)
    [privilege] = engine.privileges([relation])
    assert privilege.is_unknown
    assert "read-only rests on this login alone" in privilege.what
    assert "the driver shows" in engine.warnings(shape)[0]
    assert [listed.table for listed in engine.listed()] == ["t"]
    assert any("FROM t" in text for text in engine.templates([shape]))


def test_check_does_not_say_that_sessions_are_read_only(tmp_path: Path) -> None:
    made = GenericOverSQLite(tmp_path / "legacy.sqlite")
    made.run("CREATE TABLE orders (id BIGINT PRIMARY KEY)")
    (tmp_path / "source.toml").write_text(
        f'[database]\nurl = "{made.url}"\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n[relations.orders]\ntable = "orders"\n'
    )
    said = source_command(tmp_path / "source.toml", "check", "--verbose").stdout
    assert "reads    fuzzy; sessions are not opened read-only" in said
    assert "unknown  the generic engine cannot read privileges" in said
    assert "1 of 1 relation can be served" in said
