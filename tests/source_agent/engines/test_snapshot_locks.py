"""How a snapshot of InnoDB begins: what opens it, what locks a table, and what runs a query."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pymysql
import pytest
from driftline import errors

from source_agent.engines.conformance.reads import read, session_of
from source_agent.engines.interface import Limits
from source_agent.engines.mysql_family.session import FamilySession
from source_agent.engines.mysql_family.sql import BEGIN_LATER, EXPLAIN, lock_sql, source_of
from source_agent.engines.mysql_family.types import COLUMNS, CREATION, INDEXES, TABLE
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Consistency, Relation
from tests.harness.legacies import OfMariaDB

T = Relation("t", table="t")
U = Relation("u", table="u")


@pytest.fixture(params=["mariadb", "mysql"])
def family(request: pytest.FixtureRequest) -> Iterator[OfMariaDB]:
    made = OfMariaDB(request.getfixturevalue(request.param))
    made.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE u (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "INSERT INTO u VALUES (1, 1), (2, 2)",
        "CREATE VIEW summed AS SELECT 1 AS id, SUM(v + SLEEP(0.2)) AS s FROM t",
    )
    yield made
    made.close()


def _is_open(family: OfMariaDB, sql: str, *values: object) -> bool:
    """Whether a statement, the first of a transaction, opens the snapshot."""
    with session_of(family) as session:
        session.ask("START TRANSACTION READ ONLY")
        session.ask(sql, *values)
        family.run("INSERT INTO t VALUES (3, 3)")
        ((count,),) = session.ask("SELECT COUNT(*) FROM t")
    family.run("DELETE FROM t WHERE id = 3")
    return bool(count == "2")


def test_what_opens_a_snapshot(family: OfMariaDB) -> None:
    """MySQL's catalogue is in InnoDB, which is why it is not asked before everything is locked."""
    never = (
        lock_sql("`t`"),
        lock_sql(source_of(Relation("q", query="SELECT SUM(v) AS s FROM t GROUP BY id"))),
        EXPLAIN + lock_sql("`t`"),
        CREATION.format(table="`t`"),
        "SELECT * FROM t LIMIT 0",
    )
    assert [sql for sql in never if _is_open(family, sql)] == []
    family.run("CREATE TABLE nothing (id int PRIMARY KEY)")
    assert _is_open(family, "SELECT 1 FROM u LIMIT 1")
    assert _is_open(family, "SELECT 1 FROM nothing LIMIT 1")
    with session_of(family) as session:
        is_mysql = session.product.catalogue_opens
    named = (family.database, "t")
    opening = [sql for sql in (TABLE, COLUMNS, INDEXES) if _is_open(family, sql, *named)]
    assert opening == ([TABLE, COLUMNS, INDEXES] if is_mysql else [])


@pytest.mark.parametrize("named", [[T, U], [U, T], [U, Relation("q", query="SELECT * FROM t")]])
def test_a_named_table_is_locked_before_the_snapshot(
    family: OfMariaDB, named: list[Relation]
) -> None:

    def waits(sql: str) -> None:
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            family.run("SET lock_wait_timeout = 1", sql)

    ddl = ("RENAME TABLE t TO gone", "ALTER TABLE t ADD COLUMN w int", "TRUNCATE t")
    with closing(family.connect().open((), named)) as session:
        family.run("INSERT INTO u VALUES (3, 3)")
        with ThreadPoolExecutor() as beside:
            assert len([*beside.map(waits, ddl)]) == len(ddl)
        assert len(read(session, T)) == len(read(session, U)) == 2
    family.run("RENAME TABLE t TO gone")


def test_a_relation_that_cannot_be_locked_stops_no_other(family: OfMariaDB) -> None:
    login = f"l{family.database}"
    password = family.server.create_login(login)
    family.run("CREATE TABLE secret (id int PRIMARY KEY)", "CREATE TABLE held (id int PRIMARY KEY)")
    for table in ("t", "u", "held"):
        family.run(f"GRANT SELECT ON {family.database}.{table} TO {login}")
    others = [Relation(name, table=name) for name in ("secret", "absent", "held", "a.b.c", "")]
    engine = connect(family.server.url(login, family.database), password, Limits(lock_s=1))
    with family.server.admin(family.database) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLES held WRITE")
        named = [*others, T, Relation("q", query="SELECT * FROM u, nope")]
        with closing(engine.open((), named)) as session:
            cursor.execute("UNLOCK TABLES")
            family.run("CREATE TABLE absent (id int PRIMARY KEY)")
            family.run(f"GRANT SELECT ON {family.database}.absent TO {login}")
            assert len(read(session, T)) == 2
            with pytest.raises(errors.DatabaseUnavailable, match="longer than lock_timeout_s"):
                session.describe(others[2])
            with pytest.raises(errors.DatabaseRefused, match="denied"):
                session.describe(others[0])
            with pytest.raises(errors.SnapshotLost, match="replaced after"):
                session.describe(others[1])
            assert len(read(session, U)) == 2, "it was not named"
    family.drop_login(login)


def test_locks_in_the_way_of_others_are_taken_again(
    family: OfMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session has what a query reads, and waits for a table that is locked already: the
    server ends the wait of the one that has less to lose."""
    family.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (7)")
    query = Relation("q", query="SELECT id FROM a", key=("id",))
    renamed = "RENAME TABLE a TO b, t TO s, s TO t, b TO a"
    other = threading.Thread(target=family.run, args=(renamed,), daemon=True)
    issued: list[str] = []
    ask = FamilySession.ask

    def asked(session: FamilySession, sql: str, *values: object) -> list[tuple[str | None, ...]]:
        issued.append(sql)
        if sql == lock_sql(source_of(query)) and other.ident is None:
            other.start()
            time.sleep(0.5)
        return ask(session, sql, *values)

    monkeypatch.setattr(FamilySession, "ask", asked)
    with closing(family.connect().open((), [T, query])) as session:
        other.join(10)
        monkeypatch.undo()
        assert not other.is_alive(), "its tables were unlocked"
        assert issued.count(BEGIN_LATER) == 2
        assert read(session, query) == [["7"]]
        assert len(read(session, T)) == 2


def test_the_owners_limit_of_rows_stops_no_snapshot(family: OfMariaDB) -> None:
    """Even one row of a table may be refused by it; the read itself tells why."""
    rows = ", ".join(f"({number}, 0)" for number in range(3, 20_000))
    family.run(f"INSERT INTO t VALUES {rows}", "ANALYZE TABLE t")
    family.run("SET GLOBAL max_join_size = 2000")
    try:
        with closing(family.connect().open((), [T])) as session:
            assert session.describe(T).vouched
            with pytest.raises(errors.DatabaseRefused, match="1104"):
                read(session, T)
    finally:
        family.run("SET GLOBAL max_join_size = DEFAULT")


SLOW = {
    "an aggregate": "SELECT 1 AS id, SUM(v + SLEEP(0.2)) AS s FROM t",
    "one within": "SELECT t.id, x.s FROM t JOIN (SELECT SUM(v + SLEEP(0.2)) AS s FROM t) AS x",
    "a common table": "WITH c AS (SELECT SUM(SLEEP(0.2)) AS s FROM t) SELECT 1 AS id, s FROM c",
    "a subquery": "SELECT id, v AS s FROM t WHERE id > (SELECT SUM(SLEEP(0.2)) FROM t)",
    "rows": "SELECT id, SLEEP(0.2) AS s FROM t ORDER BY s LIMIT 1",
    "of a view": "SELECT * FROM summed",
    "a comment": "SELECT 1 AS id, SUM(v + SLEEP(0.2)) AS s FROM t -- at its end",
    "a view": "",
}


@pytest.mark.parametrize("query", SLOW.values(), ids=SLOW)
def test_a_query_is_run_by_its_read_alone(family: OfMariaDB, query: str) -> None:
    """Locks, descriptions and the plan of `check` evaluate nothing, as far as it can be seen."""
    given = {"query": query} if query else {"table": "summed"}
    relation = Relation("q", key=("id",), as_text=("s",), **given)  # type: ignore[arg-type]
    engine = family.connect()
    with closing(engine.open((), [relation])) as session:
        began = time.monotonic()
        shape = session.describe(relation)
        engine.scan_cost(shape)
        assert time.monotonic() - began < 0.2
        assert session.snapshot.consistency is Consistency.EXACT
        began = time.monotonic()
        list(session.scan(shape))
        assert time.monotonic() - began >= 0.2
