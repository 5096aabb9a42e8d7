"""What PostgreSQL alone promises or refuses; the rest is in the conformance suite."""

from __future__ import annotations

from typing import Any

import pytest
from driftline import errors

from source_agent.engines.conformance.reads import flat, read, session_of
from source_agent.engines.postgresql import types as postgresql_types
from source_agent.engines.postgresql.session import PostgresqlSession
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Consistency, Relation
from tests.harness.legacies import OfPostgreSQL


def test_vouches_only_for_what_cannot_be_null_or_twice(pg: OfPostgreSQL) -> None:
    pg.run(
        "CREATE TABLE a (k int NOT NULL, v int, u int NOT NULL)",
        "CREATE UNIQUE INDEX ON a (k) WHERE v > 0",
        "ALTER TABLE a ADD UNIQUE (u) DEFERRABLE INITIALLY DEFERRED",
        "CREATE UNIQUE INDEX ON a (v)",
        "CREATE UNIQUE INDEX ON a ((k + 1))",
        "CREATE TABLE parent (k int PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE parted (k int PRIMARY KEY, v int, w int NOT NULL) PARTITION BY RANGE (k)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "INSERT INTO parted VALUES (1, 2, 3)",
        "INSERT INTO child VALUES (1), (1)",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM parted",
        "CREATE UNIQUE INDEX ON m (k)",
    )
    with session_of(pg) as session:
        for key in ("k", "u", "v"):
            assert not session.describe(Relation("a", table="a", key=(key,))).vouched
        assert not session.describe(Relation("p", table="parent", key=("k",))).vouched
        parted = session.describe(Relation("p", table="public.parted", key=("k",)))
        assert parted.vouched
        assert parted.indexed
        assert len(flat(session.scan(parted))) == 1
        seen = session.describe(Relation("m", table="m", key=("k",)))
        assert not seen.vouched
        assert len(flat(session.scan(seen))) == 1
        both = session.describe(Relation("p", table="parted", key=("w", "k")))
        assert both.vouched
        nullable = session.describe(Relation("p", table="parted", key=("v", "k")))
        assert not nullable.vouched


def test_an_index_over_a_type_that_is_read_as_its_text_vouches_for_nothing(
    pg: OfPostgreSQL,
) -> None:
    """What an output function shows alike, an index may tell apart."""
    keys = ("int[]", "macaddr", "int4range")
    for number, type in enumerate(keys):
        pg.run(f"CREATE TABLE t{number} (k {type} PRIMARY KEY, i inet UNIQUE NOT NULL)")
    with session_of(pg) as session:
        for number in range(len(keys)):
            table = f"t{number}"
            assert not session.describe(Relation("t", table=table, key=("k",))).vouched
            assert session.describe(Relation("t", table=table, key=("i",))).vouched


@pytest.mark.parametrize("type", ["regproc", "regoper", "regproc[]", "named", "held"])
def test_a_text_that_two_values_have_is_refused(pg: OfPostgreSQL, type: str) -> None:
    """Two functions of one name have one text: a change from one to the other is not seen."""
    pg.run(
        "CREATE TYPE named AS (label text, f regproc)",
        "CREATE DOMAIN held AS named[]",
        f"CREATE TABLE t (id int PRIMARY KEY, v {type}, w regprocedure)",
    )
    with session_of(pg) as session:
        with pytest.raises(errors.ConfigurationError, match="v: regproc and regoper show one name"):
            session.describe(Relation("t", table="t"))
        assert session.describe(Relation("t", table="t", columns=("id", "w"))).vouched


def test_not_null_is_what_the_server_checks(pg: OfPostgreSQL) -> None:
    pg.run(
        "CREATE DOMAIN whole AS int NOT NULL",
        "CREATE TABLE plain (id int PRIMARY KEY, v int NOT NULL, w whole, x int)",
        "CREATE TABLE parent (id int NOT NULL, v int NOT NULL)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE tree (id int NOT NULL, v int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (9)",
        "CREATE VIEW seen AS SELECT * FROM plain",
        "CREATE MATERIALIZED VIEW made AS SELECT * FROM plain",
    )

    def not_null(table: str) -> set[str]:
        with session_of(pg) as session:
            shape = session.describe(Relation(table, table=table, key=("id",)))
        return {column.name for column in shape.recipe.columns if not column.nullable}

    assert not_null("plain") == {"id", "v"}
    assert not_null("parent") == set(), "a table that inherits may drop it"
    assert not_null("child") == not_null("tree") == not_null("leaf") == {"id", "v"}
    assert not_null("seen") == not_null("made") == set()


def test_a_marker_of_a_foreign_table_may_be_null(pg: OfPostgreSQL) -> None:
    """The server takes its NOT NULL on trust; a row without a time is read each time."""
    pg.run(
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER files FOREIGN DATA WRAPPER elsewhere",
        "CREATE FOREIGN TABLE far (id int NOT NULL, at timestamptz NOT NULL) SERVER files",
        "CREATE TABLE tree (id int NOT NULL, at timestamptz NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (9)",
    )

    def is_nullable(table: str) -> bool:
        relation = Relation(table, table=table, marker=Marker("at", late_s=1.0))
        with session_of(pg) as session:  # not described: no plan without the wrapper's handler
            source = postgresql_types._table(session, relation)
            marked = postgresql_types._marked(session, relation, source)
        return marked is not None and marked.nullable

    assert [is_nullable(table) for table in ("far", "tree", "leaf")] == [True, False, False]
    pg.run(
        "CREATE FOREIGN TABLE far_leaf PARTITION OF tree FOR VALUES FROM (9) TO (99) SERVER files"
    )
    assert is_nullable("tree")
    pg.run("DROP TABLE tree", "DROP FOREIGN DATA WRAPPER elsewhere CASCADE")


@pytest.mark.parametrize("name", ["leaf", "tree", "view", "query"])
def test_has_no_snapshot_of_foreign_tables(
    pg: OfPostgreSQL, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' server has no wrapper: a plan of it says Foreign Scan where it scans `leaf`."""
    pg.run(
        "CREATE TABLE tree (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE near (id int PRIMARY KEY)",
        "CREATE VIEW view AS SELECT l.id FROM leaf l JOIN near USING (id)",
        "INSERT INTO tree VALUES (1, 'a')",
        "INSERT INTO near VALUES (1)",
        "ANALYZE",
    )
    ask = PostgresqlSession.ask

    def asked(self: Any, sql: str, *values: object) -> Any:
        def foreign(node: dict[str, Any]) -> None:
            if node.get("Relation Name") == "leaf":
                node["Node Type"] = "Foreign Scan"
            for child in node.get("Plans", []):
                foreign(child)

        found = ask(self, sql, *values)
        if sql == postgresql_types.TABLE and found[0][2] == "leaf":
            found = [(*found[0][:3], "f", *found[0][4:])]
        if sql.startswith("EXPLAIN"):
            foreign(found[0][0][0]["Plan"])
        return found

    monkeypatch.setattr(PostgresqlSession, "ask", asked)
    text = "SELECT id FROM (SELECT id FROM leaf UNION ALL SELECT id FROM near) q"
    relation = Relation("r", table=None if name == "query" else name, key=("id",))
    if name == "query":
        relation = Relation("r", query=text, key=("id",))
    with session_of(pg) as session:
        near = session.describe(Relation("near", table="near"))
        flat(session.scan(near))
        assert not near.notes
        assert session.snapshot.consistency.value == "exact"
        shape = session.describe(relation)
        assert shape.notes == ("read without a snapshot: a foreign table",)
        flat(session.scan(shape))
        assert session.snapshot.consistency is Consistency.FUZZY


def test_nan_has_one_encoding(pg: OfPostgreSQL) -> None:
    pg.run(
        "CREATE TABLE f (id int PRIMARY KEY, a float8, b float4)",
        "INSERT INTO f VALUES (1, 'NaN', 'NaN'), (2, 'inf'::float8 - 'inf'::float8, 'NaN')",
    )
    with session_of(pg) as session:
        rows = flat(session.scan(session.describe(Relation("f", table="f"))))
    assert len({row[10:] for row in rows}) == 1
    assert all(bytes.fromhex("7ff8000000000000") in row for row in rows)


def test_search_path_cannot_stand_in(pg: OfPostgreSQL) -> None:
    pg.run(
        "CREATE SCHEMA evil",
        "CREATE FUNCTION evil.eq(float8, float8) RETURNS bool LANGUAGE sql AS 'SELECT true'",
        "CREATE OPERATOR evil.= (LEFTARG = float8, RIGHTARG = float8, FUNCTION = evil.eq)",
        "CREATE TABLE f (id int PRIMARY KEY, a float8)",
        "INSERT INTO f VALUES (1, 0.5)",
        f"ALTER DATABASE {pg.database} SET search_path = evil, public, pg_catalog",
    )
    with session_of(pg) as session:
        assert read(session, Relation("f", table="f")) == [["1", "0.5"]]
