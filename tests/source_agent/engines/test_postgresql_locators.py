"""PostgreSQL: rows are read by their places (`ctid`) in one snapshot, whatever is done beside it.

The oracle is a scan of the same snapshot. What has no places, or may not be asked for them, says so
by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import psycopg
import pytest
from driftline import errors
from driftline.arrays import U64
from driftline.relations.derivations import DerivablePart, Derivation

from source_agent.engines.conformance.reads import flat, session_of
from source_agent.engines.conformance.test_locators import located_scan, read_at
from source_agent.engines.interface import BATCH_ROWS, LocatedRows, Rows, Session, Unlocated
from source_agent.engines.postgresql import locators as module
from source_agent.engines.postgresql import split, sql
from source_agent.engines.relations.predicates import slotted
from source_agent.engines.relations.select import plan_of, scan_sql
from source_agent.engines.relations.shapes import Relation, Shape
from tests.harness.legacies import OfPostgreSQL
from tests.harness.slots import fills

LINES = (
    """CREATE TABLE lines (gone int, a int NOT NULL, b text NOT NULL, v numeric, w jsonb,
    PRIMARY KEY (a, b))""",
    "ALTER TABLE lines DROP COLUMN gone",
    """INSERT INTO lines SELECT n % 100, 'b' || n, NULLIF(n, 7), '{"k": 1}'
    FROM generate_series(1, 9000) n""",
)
RELATION = Relation("lines", table="lines")
TREES = {
    "partitions": (
        "CREATE TABLE t (a int NOT NULL, b text NOT NULL, v int) PARTITION BY RANGE (a)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (30)",
        "CREATE TABLE t2 (v int, x int, b text NOT NULL, a int NOT NULL)",
        "ALTER TABLE t2 DROP COLUMN x",
        "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (30) TO (60)",
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (60) TO (100) PARTITION BY RANGE (b)",
        "CREATE TABLE t4 PARTITION OF t3 DEFAULT",
    ),
    "children": (
        "CREATE TABLE t (a int NOT NULL, b text NOT NULL, v int)",
        "CREATE TABLE t1 (more text, CHECK (a >= 0)) INHERITS (t)",
        "INSERT INTO t1 SELECT n % 100, 'c' || n, n FROM generate_series(1, 500) n",
    ),
}


def located_of(session: Session, shape: Shape) -> Shape:
    """Return a relation with locators, which it must have."""
    able = session.capabilities.locators
    assert able is not None
    located = able.locate(shape)
    assert isinstance(located, Shape), located
    return located


def again(session: Session, located: Shape, at: U64) -> Rows:
    """Return the rows at some places, sorted."""
    able = session.capabilities.locators
    assert able is not None
    return sorted(read_at(able, located, at))


def why_not(pg: OfPostgreSQL, relation: Relation) -> Unlocated:
    """Return why a relation has no locators."""
    with session_of(pg) as session:
        located = session.capabilities.locators.locate(session.describe(relation))
        assert isinstance(located, Unlocated), relation
        return located


@pytest.mark.parametrize("key", [("a", "b"), ("b",), ("u",)])
def test_keys_of_each_kind(pg: OfPostgreSQL, key: tuple[str, ...]) -> None:
    """Composite, text and uuid keys, a column that was dropped, a null, and more than one COPY."""
    pg.run(*LINES, "ALTER TABLE lines ADD COLUMN u uuid NOT NULL DEFAULT gen_random_uuid()")
    with session_of(pg) as session:
        shape = session.describe(Relation("lines", table="lines", key=key))
        located = located_of(session, shape)
        rows, at = located_scan(session, located)
        assert sorted(rows) == sorted(flat(session.scan(shape)))
        assert again(session, located, at[::3]) == sorted(rows[::3])
        one = int(at.max()) + 1
        assert again(session, located, np.array([one], np.uint64)) == [], "no row lies there"


@pytest.mark.parametrize("kind", TREES)
def test_several_tables(pg: OfPostgreSQL, kind: str) -> None:
    """Rows of several tables lie at the same places: the number of the table tells them apart."""
    pg.run(
        *TREES[kind], "INSERT INTO t SELECT n % 100, 'b' || n, n FROM generate_series(1, 3000) n"
    )
    with session_of(pg) as session:
        shape = session.describe(Relation("t", table="t", key=("a", "b")))
        located = located_of(session, shape)
        rows, at = located_scan(session, located)
        places = at & np.uint64((1 << 48) - 1)
        assert len(np.unique(places)) < len(at) == len(np.unique(at)), "places alone would not do"
        assert sorted(rows) == sorted(flat(session.scan(shape)))
        pg.run("UPDATE t SET v = v + 1", "VACUUM t")
        for step in (1, 5):
            assert again(session, located, at[::step]) == sorted(rows[::step])


def test_one_statement_reads_the_places_of_all_tables(
    pg: OfPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each plans and opens all of them, so one for each table would take longer than a scan."""
    pg.run(
        "CREATE TABLE t (a int NOT NULL, b text NOT NULL) PARTITION BY LIST (a)",
        *(f"CREATE TABLE t{n} PARTITION OF t FOR VALUES IN ({n})" for n in range(30)),
        "INSERT INTO t SELECT n % 30, 'b' || n FROM generate_series(1, 3000) n",
    )
    with session_of(pg) as session:
        located = located_of(session, session.describe(Relation("t", table="t", key=("a", "b"))))
        rows, at = located_scan(session, located)
        assert len(np.unique(at >> np.uint64(48))) == 30
        read, copy = list[str](), session._copy

        def noted(shape: Shape, statement: str) -> Iterator[Rows]:
            read.append(statement)
            return copy(shape, statement)

        monkeypatch.setattr(session, "_copy", noted)
        assert again(session, located, at[::7]) == sorted(rows[::7])
        assert len(read) == 1
        monkeypatch.setattr(module, "LOCATORS_PER_COPY", 10)
        assert again(session, located, at[::7]) == sorted(rows[::7])
        assert len(read) == 1 + -(-len(np.unique(at[::7] & np.uint64((1 << 48) - 1))) // 10)


def test_rows_are_found_by_tid_scans(pg: OfPostgreSQL) -> None:
    """The database's own plan, without and with a condition of the DBA's, and row security."""
    pg.run(
        *LINES,
        "ALTER TABLE lines ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE lines FORCE ROW LEVEL SECURITY",
        "CREATE POLICY p ON lines USING (a < 50)",
        "CREATE ROLE seeing LOGIN",
        "GRANT SELECT ON lines TO seeing",
    )
    try:
        seen = OfPostgreSQL.__new__(OfPostgreSQL)
        seen.url = pg.server.url("seeing", pg.database)
        for each in (pg, seen):
            for where in (None, "v > 100 AND (b LIKE 'b%' OR b = 'x')"):
                relation = Relation("lines", table="lines", where=where)
                with session_of(each) as session:
                    located = located_of(session, session.describe(relation))
                    rows, at = located_scan(session, located)
                    assert again(session, located, at[::9]) == sorted(rows[::9])
                    session.ask(sql.BOUNDS, '{"(0,1)","(0,2)"}', "")
                    text = module.located_sql(located)
                    plan = session.ask(sql.EXPLAIN + text)[0][0][0]["Plan"]
                    assert plan["Node Type"] == "Tid Scan"
    finally:
        pg.drop_login("seeing")


def test_what_has_no_places_says_so(pg: OfPostgreSQL) -> None:
    """Views, queries, foreign tables and partitions, and a planner that will not use them."""
    pg.run(
        *LINES,
        "CREATE VIEW seen AS SELECT * FROM lines",
        "CREATE MATERIALIZED VIEW kept AS SELECT * FROM lines",
        *TREES["partitions"],
    )
    key = ("a", "b")
    for relation in (
        Relation("v", table="seen", key=key),
        Relation("q", query="SELECT a, b FROM lines", key=key),
    ):
        assert "no place" in why_not(pg, relation).why
    with session_of(pg) as session:
        located = located_of(session, session.describe(Relation("m", table="kept", key=key)))
        rows, at = located_scan(session, located)
        assert again(session, located, at[::9]) == sorted(rows[::9])
    with session_of(pg) as session:
        tree = session.describe(Relation("t", table="t", key=key))
        located_of(session, tree)
    pg.run(
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER files FOREIGN DATA WRAPPER elsewhere",
        "CREATE FOREIGN TABLE far PARTITION OF t FOR VALUES FROM (900) TO (999) SERVER files",
    )
    with session_of(pg) as session:
        without = session.capabilities.locators.locate(tree)
        assert isinstance(without, Unlocated)
        assert "foreign" in without.why
    if pg.server.release >= 18:  # before, it uses them where a sequential scan is off as well
        pg.run(f'ALTER DATABASE "{pg.database}" SET enable_tidscan = off')
        assert "planner" in why_not(pg, RELATION).why


def test_a_database_that_refuses_places_is_scanned(pg: OfPostgreSQL) -> None:
    """A refresh that does without them does not fail, and its snapshot stays."""
    pg.run(
        *LINES,
        """CREATE FUNCTION public.known() RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
        IF current_setting('enable_seqscan') = 'off' THEN RAISE 'no places'; END IF;
        RETURN true; END $$""",
    )
    with session_of(pg) as session:
        shape = session.describe(Relation("lines", table="lines", where="public.known()"))
        before = sorted(flat(session.scan(shape)))
        pg.run("UPDATE lines SET v = 0")
        without = session.capabilities.locators.locate(shape)
        assert isinstance(without, Unlocated)
        assert "refuses" in without.why
        assert sorted(flat(session.scan(shape))) == before


def test_a_grant_of_columns_must_name_the_place(pg: OfPostgreSQL) -> None:
    """`grants` names system columns, which the server takes; without them it is said what to do."""
    pg.run(*LINES, "CREATE ROLE narrow LOGIN", "GRANT SELECT (a, b) ON lines TO narrow")
    relation = Relation("lines", table="lines", key=("a", "b"), columns=("a", "b"))
    narrow = OfPostgreSQL.__new__(OfPostgreSQL)
    narrow.url = pg.server.url("narrow", pg.database)
    try:
        without = why_not(narrow, relation)
        assert "ctid" in without.why
        assert "GRANT SELECT (ctid)" in without.remedy
        pg.run("GRANT SELECT (ctid) ON lines TO narrow")
        with session_of(narrow) as session:
            located_of(session, session.describe(relation))
    finally:
        pg.drop_login("narrow")
    script = pg.connect().grants([relation], login="driftline_located", connections=6)
    assert '("a", "b", "ctid", "tableoid")' in script
    url = pg.granted(script, "driftline_located")
    narrow.url = url
    try:
        with session_of(narrow) as session:
            located_of(session, session.describe(relation))
        assert not any(p.excess for p in narrow.connect().privileges([relation]))
    finally:
        pg.run(f'REVOKE ALL ON DATABASE "{pg.database}" FROM driftline_located')
        pg.drop_login("driftline_located")


def test_parts_have_the_same_places(pg: OfPostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that several readers share tells the places that another session reads by."""
    monkeypatch.setattr(split, "BLOCKS_MIN", 0)
    monkeypatch.setattr(split, "PART_BLOCKS", 8)
    pg.run(*LINES, "ANALYZE lines")
    with session_of(pg) as session:
        located = located_of(session, session.describe(RELATION))
        whole = session.capabilities.split(located)
        assert whole is not None
        joined = whole.join()
        with closing(joined.session):
            rows: Rows = []
            places: list[U64] = []
            for part in range(whole.parts):
                for batch in (joined, whole)[part % 2].read(part):
                    assert isinstance(batch, LocatedRows)
                    rows += batch
                    places.append(batch.locators)
        whole.finish()
        at = np.concatenate(places)
        assert sorted(rows) == sorted(flat(session.scan(located)))
        pg.run("UPDATE lines SET v = v + 1", "VACUUM lines")
        assert again(session, located, at[::7]) == sorted(rows[::7])


@pytest.mark.parametrize("kind", ["one table", *TREES])
def test_rows_have_the_bytes_of_a_scan_without_places(pg: OfPostgreSQL, kind: str) -> None:
    """In key order too; of an empty table, of one row, and of the last row of a batch."""
    key = "a int NOT NULL, b text NOT NULL, v int"
    pg.run(*TREES.get(kind, (f"CREATE TABLE t ({key})",)), "TRUNCATE t")
    relation = Relation("t", table="t", key=("a", "b"))
    for count in (0, 1, BATCH_ROWS - 1, BATCH_ROWS):
        pg.run(
            "TRUNCATE t",
            f"INSERT INTO t SELECT n % 97, n, NULLIF(n % 3, 1) FROM generate_series(1, {count}) n",
        )
        with session_of(pg) as session:
            shape = session.describe(relation)
            located = located_of(session, shape)
            rows, at = located_scan(session, located)
            assert len(np.unique(at)) == len(rows) == count
            assert rows == flat(session.scan(shape))
            ordered = flat(session.scan(located, ordered=True))
            assert sorted(ordered) == sorted(rows)
            keys = [row[6:10] for row in ordered]  # `a`, behind the number of columns and a length
            assert keys == sorted(keys)


def test_as_many_columns_as_a_table_may_have(pg: OfPostgreSQL) -> None:
    """The server selects up to 1,664: the place and the number of columns are beside them."""
    columns = ", ".join(f"c{n} bool" for n in range(1598))
    pg.run(
        f"CREATE TABLE t (a int NOT NULL, b text NOT NULL, {columns}) PARTITION BY LIST (a)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)",
        "INSERT INTO t (a, b, c1597) SELECT 1 + n % 2, n, true FROM generate_series(1, 9) n",
    )
    with session_of(pg) as session:
        for table in ("t", "t1"):
            shape = session.describe(Relation("t", table=table, key=("a", "b")))
            assert len(shape.recipe.columns) == 1600
            located = located_of(session, shape)
            rows, at = located_scan(session, located)
            assert sorted(rows) == sorted(flat(session.scan(shape)))
            assert again(session, located, at[::2]) == sorted(rows[::2])


def test_a_wrong_number_of_columns_is_noticed(pg: OfPostgreSQL) -> None:
    """The row would begin with it."""
    pg.run(*LINES)
    with session_of(pg) as session:
        plan = located_of(session, session.describe(RELATION)).plan
        assert plan is not None
        other = session.describe(RELATION).located(("ctid", "3::pg_catalog.int2"), first=True)
        assert plan.locators == ("ctid", "4::pg_catalog.int2")
        with pytest.raises(errors.DatabaseRefused, match="the columns were counted"):
            located_scan(session, other)


def test_the_number_of_a_derivations_columns_is_a_slot(pg: OfPostgreSQL) -> None:
    """What reads some of the columns is a template too, also in parts."""
    pg.run(*LINES)
    with session_of(pg) as session:
        shape = session.describe(RELATION)
        known = pg.connect().templates([slotted(shape, [DerivablePart.COLUMNS])])
        located = located_of(session, session.derive(shape, Derivation(("w",))))
        issued = [scan_sql(located), module.located_sql(located), split.part_sql(located)]
        counted = [text.startswith("SELECT ctid, 3::pg_catalog.int2, ") for text in issued]
        assert counted == [True, False, True]
        for text in map(sql.copy_of, issued):
            reads = plan_of(shape).reads[2:]
            assert any(fills(text, template, reads=reads, forms=()) for template in known), text


def test_a_row_that_just_fits_has_a_place(
    pg: OfPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of a row does not count its place, and an error names its key."""
    pg.run(*LINES)
    with session_of(pg) as session:
        located = located_of(session, session.describe(RELATION))
        rows, _ = located_scan(session, located)
        longest = max(map(len, rows))
        for limited in pg.row_limits:
            monkeypatch.setattr(limited, "ROW_BYTES_MAX", longest)
        assert len(located_scan(session, located)[0]) == len(rows)
        for limited in pg.row_limits:
            monkeypatch.setattr(limited, "ROW_BYTES_MAX", longest - 1)
        with pytest.raises(errors.LimitExceeded, match=rf"\d, .*b\d+.* has {longest} bytes"):
            located_scan(session, located)


def test_places_stay_while_the_table_is_written_and_vacuumed(pg: OfPostgreSQL) -> None:
    """Each update moves every row, and VACUUM removes what no snapshot sees: not ours."""
    pg.run(*LINES)
    with session_of(pg) as session:
        located = located_of(session, session.describe(RELATION))
        rows, at = located_scan(session, located)
        for _ in range(3):
            pg.run("UPDATE lines SET v = COALESCE(v, 0) + 1", "VACUUM (FREEZE) lines")
        pg.run("DELETE FROM lines WHERE a < 90", "VACUUM lines")
        assert again(session, located, at) == sorted(rows)


MOVES = {
    "vacuum full": "VACUUM FULL lines",
    "cluster": "CLUSTER lines USING lines_pkey",
    "truncate": "TRUNCATE lines",
    "rewrite": "ALTER TABLE lines ALTER COLUMN v TYPE text",
}


@pytest.mark.parametrize("move", MOVES)
def test_what_moves_rows_waits_for_the_snapshot(pg: OfPostgreSQL, move: str) -> None:
    """It waits for our lock, and the rows are read meanwhile, at their places; then it goes on."""
    pg.run(*LINES)
    failures: list[BaseException] = []

    def moved() -> None:
        try:
            pg.run(MOVES[move])
        except psycopg.Error as error:
            failures.append(error)

    beside = threading.Thread(target=moved, daemon=True)
    with session_of(pg) as session:
        located = located_of(session, session.describe(RELATION))
        rows, at = located_scan(session, located)
        beside.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode LIKE 'AccessExcl%'"
        ends = time.monotonic() + 20
        while time.monotonic() < ends:
            with pg.server.superuser(pg.database) as connection:
                ((count,),) = connection.execute(waiting).fetchall()
            if count:
                break
        assert count, "it waits for the lock of the scan"
        assert again(session, located, at[::3]) == sorted(rows[::3])
    beside.join(20)
    assert not beside.is_alive()
    assert not failures


@pytest.mark.parametrize("move", MOVES)
def test_rows_that_were_moved_before_the_scan_are_refused(pg: OfPostgreSQL, move: str) -> None:
    """Between the snapshot and the first lock: no wrong row is read by a place."""
    pg.run(*LINES)
    with session_of(pg) as session:
        pg.run(MOVES[move])
        with pytest.raises(errors.SnapshotLost):
            located_scan(session, located_of(session, session.describe(RELATION)))


def test_a_child_that_comes_later_is_refused(pg: OfPostgreSQL) -> None:
    """A row of a table that was not among those of the relation has no locator."""
    pg.run(
        *TREES["children"], "CREATE TABLE later (LIKE t)", "INSERT INTO later VALUES (1, 'x', 2)"
    )
    with session_of(pg) as session:
        located = located_of(session, session.describe(Relation("t", table="t", key=("a", "b"))))
        session.close()
    with session_of(pg) as session:
        shape = session.describe(Relation("t", table="t", key=("a", "b")))
        assert located_of(session, shape).plan == located.plan
        plan = located.plan
        assert plan is not None
        fewer = shape.located(plan.locators, plan.tables[:1], first=True)
        with pytest.raises(errors.SnapshotLost, match="another partition or child"):
            located_scan(session, fewer)
