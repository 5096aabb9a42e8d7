"""What commits between a snapshot and the first lock on a table, and is not in the snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from driftline.errors import ConfigurationError, SnapshotLost
from driftline.rows.key_order import KeyRange
from psycopg.errors import LockNotAvailable

from source_agent.config.file import load
from source_agent.engines.conformance.reads import rows_between
from source_agent.engines.interface import Limits, Session
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from source_agent.server.service import start
from tests.harness.agents import Recorded, configuration, opening
from tests.harness.legacies import OfPostgreSQL
from tests.harness.servers import PostgreSQL
from tests.source_agent.server.test_service import RECIPE, ROWS, Agent, independent_total, peer

TABLE = Relation("orders", table="t")
TREE = Relation("orders", table="p")
VIEW = Relation("orders", table="v", key=("k",))
QUERY = Relation("orders", query="SELECT k, a FROM t WHERE k > (SELECT min(k) FROM u)", key=("k",))
RELATIONS = {"table": TABLE, "tree": TREE, "leaf": Relation("orders", table="p1")}
RELATIONS |= {"view": VIEW, "query": QUERY, "function": Relation("orders", table="f", key=("k",))}

FILL = "INSERT INTO {} SELECT k, 'new' FROM generate_series(0, 99) k"
SCHEMA = (
    *(f"CREATE TABLE {t} (k int PRIMARY KEY, a text)" for t in ("t", "u", "staged", "empty")),
    "CREATE TABLE p (k int PRIMARY KEY, a text) PARTITION BY RANGE (k)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (50)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (50) TO (100)",
    "CREATE TABLE aside (k int PRIMARY KEY, a text)",
    "INSERT INTO aside VALUES (60, 'aside')",
    "CREATE SCHEMA s",
    'CREATE TABLE s."T t" (k int PRIMARY KEY, a text)',
    "CREATE VIEW w AS SELECT k, a FROM t",
    "CREATE VIEW v AS SELECT k, a FROM w",
    "CREATE FUNCTION read_t() RETURNS SETOF t LANGUAGE sql AS 'SELECT * FROM t'",
    "CREATE VIEW f AS SELECT k, a FROM read_t()",
    *(FILL.format(t) for t in ("t", "u", "p", 's."T t"')),
)


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    made.run(*SCHEMA)
    yield made
    made.close()


def open_session(legacy: OfPostgreSQL) -> Session:
    return connect(legacy.url, None, Limits(lock_s=1)).open()


def together(legacy: OfPostgreSQL, *statements: str) -> None:
    """One transaction of somebody else's."""
    with legacy.server.superuser(legacy.database) as connection, connection.transaction():
        for sql in statements:
            connection.execute(sql)


def count(session: Session, relation: Relation) -> int:
    return sum(map(len, session.scan(session.describe(relation))))


RELOADS = {
    "truncated": ("TRUNCATE {0}", FILL),
    "rewritten": ("ALTER TABLE {0} ADD COLUMN b float8 DEFAULT random()",),
    "given another type": ("ALTER TABLE {0} ALTER COLUMN a TYPE varchar(3)",),
    "swapped": (
        "ALTER TABLE {0} RENAME TO gone",
        "CREATE TABLE {0} (k int PRIMARY KEY, a text)",
        FILL,
    ),
    # It was there when the snapshot was taken, and empty.
    "swapped with an older one": (
        FILL.format("staged"),
        "ALTER TABLE {0} RENAME TO gone",
        "ALTER TABLE staged RENAME TO {0}",
    ),
    # Neither name nor file of the table changes.
    "given another column of the name": (
        "ALTER TABLE {0} ADD COLUMN b text",
        "UPDATE {0} SET b = a",
        "ALTER TABLE {0} DROP COLUMN a",
        "ALTER TABLE {0} RENAME COLUMN b TO a",
    ),
    "given a column anew": (
        "ALTER TABLE {0} DROP COLUMN a",
        "ALTER TABLE {0} ADD COLUMN a text DEFAULT 'x'",
    ),
    "dropped and made again": ("DROP TABLE {0}", "CREATE TABLE {0} AS TABLE u"),
}


@pytest.mark.parametrize("how", RELOADS)
def test_a_reload_behind_the_snapshot_is_not_read(legacy: OfPostgreSQL, how: str) -> None:
    legacy.run("DROP VIEW w CASCADE", "DROP FUNCTION read_t CASCADE")  # they forbid some of it
    with closing(open_session(legacy)) as session:
        together(legacy, *(sql.format("t") for sql in RELOADS[how]))
        with pytest.raises(SnapshotLost, match=r"public.*(truncated|altered)|\"t\""):
            count(session, TABLE)
        assert count(session, Relation("others", table="u")) == 100
        with pytest.raises(SnapshotLost):  # nor at a second look
            count(session, TABLE)
    relation = Relation("orders", table="t", key=("k",))
    with closing(open_session(legacy)) as session:
        assert count(session, relation) == 100


@pytest.mark.parametrize("name", RELATIONS)
def test_whatever_is_read_from_a_table(legacy: OfPostgreSQL, name: str) -> None:
    table = {"tree": "p2", "leaf": "p1"}.get(name, "t")
    with closing(open_session(legacy)) as session:
        before = count(session, RELATIONS[name])
    with closing(open_session(legacy)) as session:
        together(legacy, f"TRUNCATE {table}", "TRUNCATE u", "INSERT INTO u VALUES (1, 'x')")
        with pytest.raises(SnapshotLost, match="truncated"):
            count(session, RELATIONS[name])
    with closing(open_session(legacy)) as session:
        assert count(session, RELATIONS[name]) < before


READS = {
    "scan": lambda session, shape: session.scan(shape),
    "keys": lambda session, shape: rows_between(session, shape, KeyRange()),
    "ranges": lambda session, shape: session.read_ranges(shape, np.array([0]), np.array([99])),
}


@pytest.mark.parametrize("read", READS)
def test_a_table_that_is_truncated_after_it_was_described(legacy: OfPostgreSQL, read: str) -> None:
    """However it is read then: an empty table must not be believed."""
    with closing(open_session(legacy)) as session:
        shape = session.describe(TABLE)
        assert sum(map(len, READS[read](session, shape))) == 100
    with closing(open_session(legacy)) as session:
        together(legacy, "TRUNCATE t", "INSERT INTO t VALUES (7, 'new')")
        with pytest.raises(SnapshotLost, match="truncated"):
            list(READS[read](session, shape))


def test_other_names_of_the_same(legacy: OfPostgreSQL) -> None:
    odd = Relation("orders", table='s."T t"')
    swap = ("ALTER SCHEMA s RENAME TO gone", "CREATE SCHEMA s", "ALTER TABLE staged SET SCHEMA s")
    for change in ((*swap, 'ALTER TABLE s.staged RENAME TO "T t"'), ('TRUNCATE s."T t"',)):
        with closing(open_session(legacy)) as session:
            legacy.run(*change)
            with pytest.raises(SnapshotLost, match=r's\."T t"'):
                session.describe(odd)
        with closing(open_session(legacy)) as session:
            assert count(session, odd) == 0


def test_a_table_that_begins_to_inherit_is_not_read(legacy: OfPostgreSQL) -> None:
    legacy.run("CREATE TABLE child (k int NOT NULL, a text)", FILL.format("child"))
    with closing(open_session(legacy)) as session:
        before = count(session, TABLE)
        legacy.run("ALTER TABLE child INHERIT t")  # which no lock of a reader prevents
        assert count(session, TABLE) == before
    with closing(open_session(legacy)) as session:
        assert count(session, TABLE) == 2 * before


def test_a_materialized_view_that_was_made_anew(legacy: OfPostgreSQL) -> None:
    legacy.run("CREATE MATERIALIZED VIEW m AS TABLE t")
    relation = Relation("orders", table="m", key=("k",))
    with closing(open_session(legacy)) as session:
        legacy.run("DELETE FROM t WHERE k < 50", "REFRESH MATERIALIZED VIEW m")
        with pytest.raises(SnapshotLost, match=r"public\.m"):
            session.describe(relation)


PARTITIONS = {
    "detached": ("ALTER TABLE p DETACH PARTITION p2",),
    "dropped": ("DROP TABLE p2",),
    "exchanged": (
        "ALTER TABLE p DETACH PARTITION p2",
        "ALTER TABLE p ATTACH PARTITION aside FOR VALUES FROM (50) TO (100)",
    ),
    "attached": ("ALTER TABLE p ATTACH PARTITION aside FOR VALUES FROM (100) TO (200)",),
    "made": (
        "CREATE TABLE p3 (k int PRIMARY KEY, a text)",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (100) TO (200)",
    ),
}


LEFT = {"detached": 50, "dropped": 50, "exchanged": 51, "attached": 101, "made": 100}


@pytest.mark.parametrize("how", PARTITIONS)
def test_partitions_that_came_or_went(legacy: OfPostgreSQL, how: str) -> None:
    with closing(open_session(legacy)) as session:
        legacy.run("UPDATE aside SET k = 160" if how == "attached" else "SELECT 1")
        together(legacy, *PARTITIONS[how])
        with pytest.raises(SnapshotLost, match=r"partition|replaced"):
            count(session, TREE)
    with closing(open_session(legacy)) as session:
        assert count(session, TREE) == LEFT[how]


def test_a_partition_attached_between_two_scans(legacy: OfPostgreSQL) -> None:
    """Attaching waits for no reader."""
    legacy.run("UPDATE aside SET k = 160")
    with closing(open_session(legacy)) as session:
        shape = session.describe(TREE)
        assert sum(map(len, session.scan(shape))) == 100
        together(legacy, *PARTITIONS["attached"])
        with pytest.raises(SnapshotLost, match="aside was attached or detached"):
            list(session.scan(shape))


def test_ranges_and_abandoned_scans_are_asked_about(legacy: OfPostgreSQL) -> None:
    """What a function reads is locked when it is called; a read that is abandoned gives it back."""
    legacy.run(
        "CREATE FUNCTION called() RETURNS SETOF u LANGUAGE plpgsql AS"
        " 'BEGIN RETURN QUERY SELECT * FROM u; END'",
        "CREATE VIEW g AS SELECT k, a FROM called()",
    )
    relation = Relation("orders", table="g", key=("k",))
    bounds = np.array([0], np.int64), np.array([99], np.int64)
    with closing(open_session(legacy)) as session:
        shape = session.describe(relation)
        unfinished = session.scan(shape)
        next(unfinished)
        unfinished.close()  # type: ignore[attr-defined]
        assert sum(map(len, session.read_ranges(shape, *bounds))) == 100
    with closing(open_session(legacy)) as session:
        shape = session.describe(relation)
        unfinished = session.scan(shape)
        next(unfinished)
        unfinished.close()  # type: ignore[attr-defined]
        legacy.run("SET lock_timeout = 1000", "TRUNCATE u")
        for again in (session.read_ranges(shape, *bounds), session.scan(shape)):
            with pytest.raises(SnapshotLost, match=r"public\.u"):
                list(again)
        assert count(session, TABLE) == 100  # which does not read it


def test_what_is_described_is_locked(legacy: OfPostgreSQL) -> None:
    legacy.run("ANALYZE")
    for name, table in (("tree", "p1"), ("view", "t"), ("query", "u"), ("table", "t")):
        with closing(open_session(legacy)) as session:
            session.describe(RELATIONS[name])
            with pytest.raises(LockNotAvailable):
                legacy.run("SET lock_timeout = 50", f"TRUNCATE {table}")


def test_what_is_no_reload_is_read(legacy: OfPostgreSQL) -> None:
    relations = [*RELATIONS.values(), Relation("odd", table='s."T t"')]
    legacy.run(
        "CREATE TABLE heir () INHERITS (t)",
        "CREATE TABLE q PARTITION OF p FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (k)",
        "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (100) TO (200)",
    )
    with closing(open_session(legacy)) as session:
        legacy.run(
            "CREATE TABLE unrelated (k int)",
            "TRUNCATE empty",
            "DELETE FROM t WHERE k > 50",
            "UPDATE p SET a = 'changed'",
            "ALTER TABLE t ADD COLUMN more int",
            "CREATE INDEX later ON t (a)",
            "REINDEX TABLE p",
            "VACUUM t",
            "ANALYZE",
            "CREATE OR REPLACE VIEW w AS SELECT k, a FROM t WHERE true",
        )
        assert [count(session, r) for r in relations[:-1]] == [100, 100, 50, 100, 99, 100]
        assert count(session, relations[-1]) == 100


def test_a_partition_that_is_being_detached_is_none(legacy: OfPostgreSQL) -> None:
    """Its detaching waits for who may still see it; who comes later must not wait for that."""
    with closing(open_session(legacy)) as early:
        assert count(early, TREE) == 100
        with legacy.server.superuser(legacy.database) as connection:
            connection.execute("SET statement_timeout = '500ms'")
            with pytest.raises(Exception, match="timeout"):
                connection.execute("ALTER TABLE p DETACH PARTITION p2 CONCURRENTLY")
    with closing(open_session(legacy)) as session:
        assert count(session, TREE) == 50
        assert count(session, Relation("part", table="p2")) == 50


def test_a_name_of_nothing_is_still_unknown(legacy: OfPostgreSQL) -> None:
    legacy.run("CREATE SEQUENCE numbers")
    with closing(open_session(legacy)) as session:
        for name in ("numbers", "t_pkey", "nothing"):
            with pytest.raises(ConfigurationError, match="does not exist"):
                session.describe(Relation("orders", table=name))


def test_the_next_relation_is_read_in_a_snapshot_of_its_own(
    legacy: OfPostgreSQL, tmp_path: Path
) -> None:
    """In a stream of many, the gap is the time that all before it have taken."""
    legacy.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, comment text)",
        "CREATE TABLE bills (id bigint PRIMARY KEY, comment text)",
        "INSERT INTO bills VALUES (1, 'old')",
    )
    legacy.insert("orders", ROWS)
    tables = "".join(f'[relations.{t}]\ntable = "{t}"\n' for t in ("orders", "bills"))
    config = configuration(tmp_path, tmp_path / "unused", certs=None, relations=tables)
    config.path.write_text(config.path.read_text().replace(config.database.url, legacy.url))
    config = load(config.path)
    engine = Recorded(config)
    server = start(config, engine=engine)
    try:
        with peer(Agent(server, engine, tmp_path), None) as conversation:
            conversation.send(opening(RECIPE, ours=independent_total(ROWS)))
            first = conversation.reply().finished
            together(legacy, "TRUNCATE bills", "INSERT INTO bills TABLE orders")
            conversation.send(opening(RECIPE, relation="bills", ours=independent_total(ROWS)))
            second = conversation.reply().finished
            assert first.equal
            assert second.equal
            assert second.as_of > first.as_of
            assert engine.opened == 2
    finally:
        server.stop()
