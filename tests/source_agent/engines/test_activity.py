"""Probes of real servers: each kind of change is seen, and nothing is said where it cannot be.

The oracle is the test's own: it knows what it changed, and what it did not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from driftline.errors import DatabaseUnavailable
from driftline.relations.activity import Activity, CountedActivity, FlaggedActivity, UnknownActivity

from source_agent.engines.interface import Engine, Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.absent import needs_release
from tests.harness.family import FAMILY
from tests.harness.legacies import KINDS, OfMariaDB, OfPostgreSQL, OfSQLite, of_family
from tests.harness.mysql_server import own_server
from tests.harness.servers import PostgreSQL
from tests.harness.standby import Standby

SEEN_S_MAX = 20.0  # a busy session of PostgreSQL reports its counts within ten seconds
FIRST_COUNT = "before, the first count of a database changes what its counters are told by"
T = Relation("t", table="t")


def probe(engine: Engine, *relations: Relation) -> dict[str, Activity]:
    with closing(engine.open(relations or (T,))) as session:
        return dict(session.capabilities.activities)


def why(found: Activity) -> str:
    assert isinstance(found, UnknownActivity), found
    return found.why


def counted(found: Activity) -> CountedActivity:
    assert isinstance(found, CountedActivity), found
    return found


def flagged(found: Activity) -> FlaggedActivity:
    assert isinstance(found, FlaggedActivity), found
    return found


def eventually(look: Callable[[], Activity], before: Activity) -> Activity:
    """What a probe says as soon as it differs from `before`."""
    ends_at = time.monotonic() + SEEN_S_MAX
    while (found := look()) == before:
        assert time.monotonic() < ends_at, "the change was never seen"
        time.sleep(0.05)
    return found


@pytest.fixture
def postgres(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    made.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    if postgresql.release < 15:
        _wait_for_first_count(made)
    yield made
    made.close()


def _wait_for_first_count(legacy: OfPostgreSQL) -> None:
    """Wait until the database has counted: an older server tells its counters by that time, too."""
    ends_at = time.monotonic() + SEEN_S_MAX
    first = "SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()"
    with legacy.server.superuser(legacy.database) as owner:
        while owner.execute(first).fetchone() == (None,):
            assert time.monotonic() < ends_at, "nothing is counted"
            time.sleep(0.05)


class Watched:
    """A table of PostgreSQL as a login sees it that may read it and do nothing else."""

    def __init__(self, legacy: OfPostgreSQL, relation: Relation = T) -> None:
        login = f"reader_{legacy.database}"
        legacy.server.create_login(login)
        legacy.run(f"GRANT SELECT ON {relation.table} TO {login}")
        self.legacy, self.relation, self.login = legacy, relation, login
        self.engine = connect(legacy.server.url(login, legacy.database), None, Limits())

    def now(self) -> Activity:
        return probe(self.engine, self.relation)[self.relation.name]

    def after(self, *statements: str) -> tuple[CountedActivity, CountedActivity]:
        """What is said before these statements, and once they are seen."""
        before = self.now()
        self.legacy.run(*statements)  # whose session ends, and so reports at once
        return counted(before), counted(eventually(self.now, before))


def test_postgresql_counts_what_is_written(postgres: OfPostgreSQL) -> None:
    watched = Watched(postgres)
    for statement, rows in {
        "INSERT INTO t SELECT n, 0 FROM generate_series(1, 340) n": 340,
        "UPDATE t SET v = 1 WHERE id <= 7": 7,
        "DELETE FROM t WHERE id > 330": 10,
        "COPY (SELECT 1) TO STDOUT; INSERT INTO t VALUES (1000, 0)": 1,
    }.items():
        before, after = watched.after(*statement.split("; ")[-1:])
        assert after == CountedActivity(before.identity, before.changes + rows), statement
    assert watched.now() == watched.now(), "nothing has changed since"
    postgres.drop_login(watched.login)


def test_postgresql_says_nothing_of_what_is_not_committed(postgres: OfPostgreSQL) -> None:
    watched = Watched(postgres)
    before = watched.now()
    with psycopg.connect(postgres.server.uri_of(postgres.database)) as writer:
        writer.execute("INSERT INTO t VALUES (1, 1)")
        assert watched.now() == before
        writer.commit()
        writer.execute("SELECT 1")  # busy: it reports later
    assert counted(eventually(watched.now, before)).changes == counted(before).changes + 1
    postgres.drop_login(watched.login)


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE t",
        "VACUUM FULL t",
        "ALTER TABLE t ADD COLUMN w int DEFAULT 5",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "ALTER TABLE t ALTER COLUMN v TYPE bigint",
        "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v int); GRANT SELECT ON t TO PUBLIC",
        "SELECT pg_stat_reset()",
        "SELECT pg_stat_reset_single_table_counters('t'::regclass)",
    ],
)
def test_postgresql_counts_anew_after(postgres: OfPostgreSQL, statement: str) -> None:
    postgres.run("INSERT INTO t SELECT n, 0 FROM generate_series(1, 40) n")
    watched = Watched(postgres)
    before, after = watched.after(*statement.split("; "))
    assert before.identity != after.identity
    postgres.drop_login(watched.login)


def test_postgresql_adds_up_the_leaves_of_a_tree(postgres: OfPostgreSQL) -> None:
    postgres.run(
        "CREATE TABLE p (id int, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)",
        "CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE p3 (id int, v int)",
        "INSERT INTO p3 VALUES (250, 1)",
    )
    watched = Watched(postgres, Relation("p", table="p"))
    before, after = watched.after("INSERT INTO p SELECT n, 0 FROM generate_series(90, 109) n")
    assert after == CountedActivity(before.identity, before.changes + 20)
    for statement in (
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)",
        "ALTER TABLE p DETACH PARTITION p1",
        "TRUNCATE p21",
    ):
        before, after = watched.after(statement)
        assert before.identity != after.identity, statement
    mine = Relation("mine", table="public.t")
    owners = connect(postgres.url, None, Limits())
    postgres.run("CREATE TABLE heir () INHERITS (t)")
    empty = probe(owners, mine)["mine"]
    postgres.run("INSERT INTO t VALUES (1, 1)")
    found = counted(eventually(lambda: probe(owners, mine)["mine"], empty))
    postgres.run("INSERT INTO heir VALUES (2, 2)")
    later = eventually(lambda: probe(owners, mine)["mine"], found)
    assert counted(later) == CountedActivity(found.identity, found.changes + 1)
    postgres.drop_login(watched.login)


def test_postgresql_says_nothing_where_counters_do_not_tell(postgres: OfPostgreSQL) -> None:
    postgres.run(
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER files FOREIGN DATA WRAPPER elsewhere",
        "CREATE FOREIGN TABLE f (a text) SERVER files",
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON hidden USING (id < 5)",
        "GRANT SELECT ON hidden TO PUBLIC",
    )
    watched = Watched(postgres)
    found = probe(
        watched.engine,
        T,
        Relation("view", table="v"),
        Relation("foreign", table="f"),
        Relation("hidden", table="hidden"),
        Relation("query", query="SELECT * FROM t"),
        Relation("where", table="t", where="v > 1"),
        Relation("lost", table="no_such.table"),
        Relation("no name", table="a.b.c"),
    )
    counted(found.pop("t"))
    assert {name: why(said).split(",")[0] for name, said in found.items()} == {
        "view": "it is a view",
        "foreign": "it reads a foreign table",
        "hidden": "row security decides what the login sees of it",
        "query": "it is a query",
        "where": "its `where` may read other tables",
        "lost": "there is no such table",
        "no name": "there is no such table",
    }
    postgres.run(f"ALTER DATABASE {postgres.database} SET track_counts = off")
    assert "track_counts" in why(watched.now())
    postgres.drop_login(watched.login)


def test_postgresql_tells_a_failed_probe_and_opens_the_session(postgres: OfPostgreSQL) -> None:
    postgres.run("CREATE SCHEMA secret", "CREATE TABLE secret.s (id int)")
    watched = Watched(postgres)
    with closing(watched.engine.open((T, Relation("s", table="secret.s")))) as session:
        assert session.snapshot.as_of
        for said in session.capabilities.activities.values():
            assert "insufficient privilege" in why(said)
            assert "secret" not in why(said)
    postgres.drop_login(watched.login)


@pytest.mark.starts
def test_postgresql_keeps_counts_of_prepared_transactions_and_loses_them_by_a_crash() -> None:
    with PostgreSQL() as server:
        needs_release(server.release, 15, FIRST_COUNT)
        with server.superuser() as connection:
            connection.execute("ALTER SYSTEM SET max_prepared_transactions = 2")
        server.crash()
        server.start()
        legacy = OfPostgreSQL(server)
        legacy.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
        watched = Watched(legacy)
        before = counted(watched.now())
        with server.superuser(legacy.database) as writer:
            writer.execute("BEGIN")
            writer.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
            writer.execute("PREPARE TRANSACTION 'later'")
        assert watched.now() == before
        _, after = watched.after("COMMIT PREPARED 'later'")
        assert after == CountedActivity(before.identity, before.changes + 2)
        server.crash()
        server.start()
        restarted = counted(watched.now())
        assert restarted.identity != after.identity
        # One process is killed, as by the kernel: all others begin anew, and the server stays.
        with server.superuser() as connection:
            os.kill(connection.info.backend_pid, signal.SIGKILL)
        ends_at = time.monotonic() + SEEN_S_MAX
        recovered: Activity = restarted
        while recovered == restarted:
            assert time.monotonic() < ends_at
            with contextlib.suppress(DatabaseUnavailable):
                recovered = watched.now()
        assert counted(recovered).identity != restarted.identity


@pytest.mark.starts
def test_a_standby_counts_nothing() -> None:
    with PostgreSQL() as primary:
        with primary.superuser() as owner:
            owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with Standby(primary) as standby:
            engine = connect(standby.url("postgres", "postgres"), None, Limits())
            assert "standby" in why(probe(engine)["t"])


@pytest.fixture(params=FAMILY)
def maria(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OfMariaDB]:
    made = KINDS[request.param](request, tmp_path)
    assert isinstance(made, OfMariaDB)
    made.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    yield made
    made.close()


def next_second() -> None:
    """Wait until the server's second is another: its flags have no smaller unit."""
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.01)


def maria_login(legacy: OfMariaDB) -> Engine:
    password = legacy.server.create_login(login := legacy.database)
    legacy.run(f"GRANT SELECT ON {legacy.database}.t TO {login}")
    return connect(legacy.server.tcp_url(login, legacy.database), password, Limits())


def test_mariadb_flags_what_is_committed(maria: OfMariaDB) -> None:
    engine = maria_login(maria)

    def now() -> Activity:
        return probe(engine)["t"]

    assert "has not changed it" in why(now())
    for statement in (
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)",
        "UPDATE t SET v = 5 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        "TRUNCATE t",  # after which MySQL knows no time
        "INSERT INTO t VALUES (4, 4)",
    ):
        before = now()
        maria.run(statement)
        assert now() != before, statement
        next_second()
        if statement != "TRUNCATE t" or isinstance(now(), FlaggedActivity):
            assert flagged(now()) == flagged(now()) != before, "settled, and another than before"
    with maria.server.admin(maria.database) as writer, writer.cursor() as cursor:
        before = now()
        cursor.execute("BEGIN")
        cursor.execute("UPDATE t SET v = v")
        cursor.execute("SELECT 1")
        assert now() == before
        cursor.execute("ROLLBACK")
        assert now() == before
    maria.drop_login(maria.database)


def test_mariadb_is_not_settled_within_the_second_of_a_change(maria: OfMariaDB) -> None:
    engine = connect(maria.url, None, Limits())
    next_second()
    maria.run("INSERT INTO t VALUES (1, 1)")
    within = flagged(probe(engine)["t"])
    maria.run("UPDATE t SET v = 2")  # in the same second
    assert flagged(probe(engine)["t"]) != within
    next_second()
    assert flagged(probe(engine)["t"]) != within


def test_mariadb_says_nothing_where_its_flag_does_not_tell(maria: OfMariaDB) -> None:
    maria.run(
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE TABLE a (id int PRIMARY KEY) ENGINE = MyISAM",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
        "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO a VALUES (1)",
        "INSERT INTO p VALUES (1)",
    )
    engine = connect(maria.url, None, Limits())
    found = probe(
        engine,
        T,
        Relation("qualified", table=f"{maria.database}.t"),
        Relation("view", table="v"),
        Relation("plain", table="a"),
        Relation("parts", table="p"),
        Relation("query", query="SELECT * FROM t"),
        Relation("lost", table="nothing"),
    )
    identity = flagged(found.pop("t")).identity
    assert flagged(found.pop("qualified")).identity == identity
    assert {name: why(said).split(",")[0] for name, said in found.items()} == {
        "view": "it is a view",
        "plain": "its engine is not InnoDB",
        "parts": "it is partitioned",
        "query": "it is a query",
        "lost": "there is no such table",
    }


@pytest.mark.starts
@pytest.mark.parametrize("kind", FAMILY)
def test_mariadb_forgets_by_a_restart(kind: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(kind)  # or a skip
    with own_server(kind) as server:
        legacy = of_family(server)
        legacy.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        engine = connect(legacy.url, None, Limits())
        before = flagged(probe(engine)["t"])
        server.crash()
        server.start()
        assert "has not changed it" in why(probe(engine)["t"])
        legacy.run("INSERT INTO t VALUES (2)")
        assert flagged(probe(engine)["t"]) != before


@pytest.fixture
def lite(tmp_path: Path) -> OfSQLite:
    made = OfSQLite(tmp_path / "erp.db", journal="delete")
    made.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v)", "CREATE VIEW v AS SELECT * FROM t")
    return made


def test_sqlite_flags_every_commit_of_the_file(lite: OfSQLite) -> None:
    engine = connect(lite.url, None, Limits())
    for statement in (
        "INSERT INTO t VALUES (1, 1)",
        "UPDATE t SET v = 2",
        "DELETE FROM t",
        "CREATE TABLE other (id)",
        "PRAGMA journal_mode = truncate",
        "INSERT INTO other VALUES (1)",
        "VACUUM",
    ):
        before = flagged(probe(engine)["t"])
        lite.run(statement)
        after = flagged(probe(engine)["t"])
        assert after.identity == before.identity
        is_write = not statement.startswith("PRAGMA")
        assert (after != before) == is_write, statement
    with closing(sqlite3.connect(lite.path, isolation_level=None)) as writer:
        before = flagged(probe(engine)["t"])
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO t VALUES (9, 9)")
        assert probe(engine)["t"] == before
        writer.execute("COMMIT")
        assert probe(engine)["t"] != before


def test_sqlite_sees_what_was_done_in_wal_mode_once_it_has_left_it(lite: OfSQLite) -> None:
    engine = connect(lite.url, None, Limits())
    before = flagged(probe(engine)["t"])
    lite.run("PRAGMA journal_mode = wal", "INSERT INTO t VALUES (1, 1)")
    assert "WAL" in why(probe(engine)["t"])
    lite.run("PRAGMA journal_mode = delete")
    assert flagged(probe(engine)["t"]) != before


def test_sqlite_says_nothing_of_views_and_of_a_file_that_was_replaced(lite: OfSQLite) -> None:
    engine = connect(lite.url, None, Limits())
    found = probe(
        engine,
        T,
        Relation("v", table="v"),
        Relation("q", query="SELECT 1"),
        Relation("x", table="x"),
    )
    before = flagged(found["t"])
    assert "view" in why(found["v"])
    assert "query" in why(found["q"])
    assert "no such table" in why(found["x"])
    copy = lite.path.with_name("copy.db")
    copy.write_bytes(lite.path.read_bytes())
    copy.replace(lite.path)
    assert flagged(probe(engine)["t"]).identity != before.identity


def test_sqlite_probes_keep_the_lock_of_a_session_that_reads(lite: OfSQLite) -> None:
    """A descriptor that is closed would release the locks of the whole process."""
    engine = connect(lite.url, None, Limits())
    with closing(engine.open((T,))):  # holds its lock: it has read, and was not paused
        probe(engine)
        with (
            closing(sqlite3.connect(lite.path, timeout=0.05, isolation_level=None)) as writer,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            writer.execute("INSERT INTO t VALUES (1, 1)")
    lite.run("INSERT INTO t VALUES (1, 1)")


@pytest.mark.parametrize("kind", KINDS)
def test_every_statement_of_a_probe_is_explained(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy = KINDS[kind](request, tmp_path)
    legacy.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    request.addfinalizer(legacy.close)
    engine = connect(legacy.url, None, Limits())
    engine.open().close()  # the first one also looks for a pooler
    issued: list[str] = []
    legacy.record(monkeypatch, issued)
    engine.open().close()
    usual = [legacy.general(text) for text in issued]
    issued.clear()
    probe(engine, T, *(Relation(f"r{i}", table=f"r{i}") for i in range(20)))
    more = [legacy.general(text) for text in issued]
    for text in usual:
        more.remove(text)
    assert len(more) == 1, "one statement for any number of relations"
    assert more[0] in {legacy.general(text) for text in engine.templates([])}


def test_nothing_is_asked_of_a_session_that_probes_nothing(lite: OfSQLite) -> None:
    with closing(connect(lite.url, None, Limits()).open()) as session:
        assert session.capabilities.activities == {}
