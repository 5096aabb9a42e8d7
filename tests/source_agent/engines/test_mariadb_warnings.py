"""Warnings that MariaDB raises while it reads values: lost values are refused, with their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest
from driftline import errors
from driftline.relations.derivations import ColumnPredicate, Derivation, Operator
from driftline.rows.key_order import KeyRange

from source_agent.engines.conformance.reads import (
    decoded,
    engine_of,
    flat,
    markers_of,
    read,
    rows_between,
    rows_by_keys,
    session_of,
)
from source_agent.engines.interface import Session
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfMariaDB, OfMySQL
from tests.harness.mysql_server import MySQL

PACKET = 1 << 20


@contextmanager
def small_packets(maria: OfMariaDB) -> Iterator[Session]:
    """A session of a server whose packets are small; values may be larger than half of one."""
    maria.run(f"SET GLOBAL max_allowed_packet = {PACKET}")
    try:
        with session_of(maria) as session:
            yield session
    finally:
        maria.run(f"SET GLOBAL max_allowed_packet = {128 << 20}")


def _large(maria: OfMariaDB, engine: str = "InnoDB") -> None:
    maria.run(
        "CREATE TABLE t (id int PRIMARY KEY, b longblob, c mediumtext CHARACTER SET cp1251, "
        f"kind mediumtext CHARACTER SET latin1, at timestamp(6) NOT NULL) ENGINE={engine}",
        "INSERT INTO t VALUES (1, 'a', 'b', 'spam', '2020-01-01'), "
        "(7, REPEAT('x', 700000), 'b', 'spam', '2037-01-02')",
    )


BY_KEY = [
    lambda session, shape: session.scan(shape),
    lambda session, shape: session.scan(shape, ordered=True),
    lambda session, shape: session.read_ranges(shape, np.array([5]), np.array([9])),
    lambda session, shape: rows_by_keys(session, shape, [("7",)]),
    lambda session, shape: rows_between(session, shape, KeyRange(("5",), None)),
]


@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
@pytest.mark.mariadb_alone  # as the next two: HEX and CONVERT of MySQL have no limit
def test_a_value_beyond_a_packet_is_refused_with_its_place(maria: OfMariaDB, engine: str) -> None:
    """HEX is twice as long: the server makes NULL of it, and says so in a warning alone."""
    _large(maria, engine)
    relation = Relation("t", table="t", as_text=("b",), marker=Marker("at", late_s=1))
    with small_packets(maria) as session:
        shape = session.describe(relation)
        reads = [
            *BY_KEY,
            lambda s, shape: markers_of(s).read_marked(shape, markers_of(s).mark(shape)),
        ]
        for number, way in enumerate(reads):
            with pytest.raises(errors.ValueDoesNotFit, match="1301") as caught:
                flat(way(session, shape))
            assert caught.value.where == "t.b", number
            assert caught.value.details["key"] == "7"
            assert "max_allowed_packet" in caught.value.remedy
        assert len(read(session, Relation("t", table="t"))) == 2, "as bytes it is whole"


@pytest.mark.mariadb_alone
def test_a_converted_text_beyond_a_packet_is_refused(maria: OfMariaDB) -> None:
    _large(maria)
    maria.run("UPDATE t SET b = NULL, c = REPEAT(_utf8mb4'ж', 700000) WHERE id = 7")
    with small_packets(maria) as session, pytest.raises(errors.ValueDoesNotFit) as caught:
        read(session, Relation("t", table="t"))
    assert "t.c" in caught.value.where
    assert "7" in str(caught.value)


@pytest.mark.mariadb_alone
def test_a_condition_that_a_warning_makes_null_is_refused(maria: OfMariaDB) -> None:
    """Without a refusal the row would be missing: it is neither equal nor unequal."""
    _large(maria)
    maria.run("UPDATE t SET b = NULL, kind = REPEAT(_latin1 X'E9', 700000) WHERE id = 7")
    with small_packets(maria) as session:
        shape = session.describe(Relation("t", table="t", columns=("id", "at", "kind")))
        chosen = Derivation(("at",), ColumnPredicate("kind", Operator.NOT_EQUAL, ("spam",)))
        with pytest.raises(errors.ValueDoesNotFit) as caught:
            flat(session.scan(session.derive(shape, chosen)))
        assert caught.value.where == "t.kind"
        assert caught.value.details["key"] == "7"


def test_values_beyond_a_packet_are_whole_on_mysql(mysql: MySQL) -> None:
    with closing(OfMySQL(mysql)) as legacy:
        _large(legacy)
        legacy.run("UPDATE t SET c = REPEAT(_utf8mb4'ж', 700000) WHERE id = 7")
        columns = ("id", "b", "c", "kind")
        with small_packets(legacy) as session:
            shape = session.describe(Relation("t", table="t", columns=columns, as_text=("b",)))
            chosen = Derivation(("id",), ColumnPredicate("c", Operator.NOT_EQUAL, ("spam",)))
            rows = sorted(decoded(row, shape) for row in flat(session.scan(shape)))
            kept = flat(session.scan(session.derive(shape, chosen)))
    assert rows[1] == ["7", "78" * 700_000, "ж" * 700_000, "spam"]
    assert len(kept) == 2


HIDDEN = "SELECT seq AS id, CONCAT(seq, 'x') + 0 AS v FROM many"
IN_MYSQL = {1931: 3636}  # an error, and the numbers of other warnings are the same
RECURSION = "WITH RECURSIVE r AS (SELECT 1 AS id UNION ALL SELECT id + 1 FROM r WHERE id < 5000)"


@pytest.mark.parametrize(
    ("relation", "number"),
    [
        (Relation("q", query="SELECT id, CONCAT(b, b) AS v FROM t", key=("id",)), 1301),
        (Relation("v", table="seen", key=("id",)), 1301),
        (Relation("t", table="t", where="CONCAT(b, b) <> 'spam'"), 1301),
        (Relation("t", table="made"), 1301),
        (Relation("q", query=f"{RECURSION} SELECT id FROM r", key=("id",)), 1931),
        pytest.param(
            Relation("q", query="SELECT id FROM t LIMIT ROWS EXAMINED 1", key=("id",)),
            1931,
            marks=pytest.mark.mariadb_alone,
        ),
        pytest.param(  # of which MySQL says nothing: the owner's query has another character
            Relation("q", query="SELECT id, CONVERT('ж' USING latin1) AS v FROM t", key=("id",)),
            1977,
            marks=pytest.mark.mariadb_alone,
        ),
        (Relation("q", query=HIDDEN, key=("id",)), 1292),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else value.name,
)
def test_lost_values_of_the_owners_expressions_are_refused(
    maria: OfMariaDB, relation: Relation, number: int
) -> None:
    """Neither NULL for a large value, nor a part of the rows, nor another character."""
    _large(maria)
    maria.run(
        "CREATE VIEW seen AS SELECT id, CONCAT(b, b) AS v FROM t",
        "CREATE TABLE made (id int PRIMARY KEY, b longblob, v longtext AS (CONCAT(b, b)) VIRTUAL)",
        "INSERT INTO made (id, b) SELECT id, b FROM t",
    )
    if relation.query == HIDDEN:
        maria.run("CREATE TABLE many AS SELECT seq FROM seq_1_to_66000")
    with small_packets(maria) as session:
        refusals = (errors.ValueDoesNotFit, errors.DatabaseRefused)
        found = IN_MYSQL.get(number, number) if maria.name == "mysql" else number
        with pytest.raises(refusals, match=str(found)):
            read(session, relation)


def test_other_warnings_of_the_owners_expressions_refuse_nothing(maria: OfMariaDB) -> None:
    """A text that is compared with a number is a part of the meaning of a query."""
    maria.run(
        "CREATE TABLE n (id int PRIMARY KEY, v varchar(9))",
        "INSERT INTO n VALUES (1, '5'), (2, 'x5')",
    )
    for relation in (
        Relation("n", table="n", where="v = 5"),
        Relation("q", query="SELECT id, v FROM n WHERE v = 5", key=("id",)),
    ):
        with session_of(maria) as session:
            assert read(session, relation) == [["1", "5"]]
    constant = "SELECT id, v FROM n WHERE id < CAST('9x' AS signed)"
    with session_of(maria) as session:
        shape = session.describe(Relation("q", query=constant, key=("id",)))
        cost = engine_of(maria).scan_cost(shape)
        if not session.product.plans_by_running:  # else nothing is planned, so nothing evaluated
            assert "the server warns: " in cost
            assert "1292" in cost
        assert len(flat(session.scan(shape))) == 2


def test_a_note_refuses_nothing(maria: OfMariaDB) -> None:
    """Not even one that the server would count, were notes on: a blank too many in a number."""
    maria.run("CREATE TABLE n (id int PRIMARY KEY)", "INSERT INTO n VALUES (1)")
    query = Relation("q", query="SELECT id, CAST('5 ' AS signed) AS v FROM n", key=("id",))
    with session_of(maria) as session:
        assert read(session, query) == [["1", "5"]]
