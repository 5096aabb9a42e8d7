"""What MariaDB alone promises or refuses; the rest is in the conformance suite."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pymysql
import pytest
from driftline import errors

from source_agent.engines.conformance.reads import decoded, flat, read, session_of
from source_agent.engines.shapes import Consistency, Relation
from tests.harness.legacies import OfMariaDB
from tests.harness.servers import MariaDB


@pytest.fixture
def maria(mariadb: MariaDB) -> Iterator[OfMariaDB]:
    made = OfMariaDB(mariadb)
    yield made
    made.close()


@pytest.mark.parametrize("key", ["id int", "id varchar(20)", "id double"])
def test_tables_without_snapshots_are_fuzzy_and_let_writers_in(maria: OfMariaDB, key: str) -> None:
    maria.run(f"CREATE TABLE m ({key} NOT NULL PRIMARY KEY, v varchar(2000)) ENGINE=MyISAM")
    maria.insert("m", [(i, "v" * 2000) for i in range(9000)])
    with session_of(maria) as session:
        assert session.consistency.value == "exact"
        shape = session.describe(Relation("m", table="m"))
        assert shape.notes
        batches = session.scan(shape)
        rows = next(batches)
        maria.run("SET lock_wait_timeout = 1", "UPDATE m SET v = 'x' WHERE id = 1")
        rows += flat(batches)
        assert len(rows) == len({decoded(r, shape)[0] for r in rows}) == 9000
        assert session.consistency is Consistency.FUZZY
        if shape.recipe.integer_key:
            bounds = np.array([5], np.int64), np.array([9], np.int64)
            assert len(flat(session.read_ranges(shape, *bounds))) == 5


SWAP = (
    "INSERT INTO staged SELECT seq, 'new' FROM seq_0_to_99",
    "RENAME TABLE t TO gone, staged TO t",
)
DROPPED = ("ALTER TABLE t DROP PARTITION p1",)


@pytest.mark.parametrize(
    "reload",
    [
        ("TRUNCATE t", "INSERT INTO t SELECT seq, 'new' FROM seq_0_to_99"),
        ("ALTER TABLE t ADD COLUMN b double DEFAULT rand(), ALGORITHM = COPY",),
        ("CREATE TABLE other AS SELECT * FROM t", "RENAME TABLE t TO gone, other TO t"),
        ("DROP TABLE t", "CREATE TABLE t AS SELECT 1 AS k, 'a' AS a"),
        ("ALTER TABLE t TRUNCATE PARTITION p1",),
        DROPPED,
        SWAP,
    ],
)
def test_reads_no_table_that_was_replaced(maria: OfMariaDB, reload: tuple[str, ...]) -> None:
    """InnoDB says so itself, but of an older table under a new name, and of partitions."""
    maria.run(
        "CREATE TABLE t (k int PRIMARY KEY, a varchar(9)) PARTITION BY RANGE (k) "
        "(PARTITION p0 VALUES LESS THAN (50), PARTITION p1 VALUES LESS THAN (100))"
        if "PARTITION" in reload[0]
        else "CREATE TABLE t (k int PRIMARY KEY, a varchar(9))",
        "CREATE TABLE staged (k int PRIMARY KEY, a varchar(9))",
        "INSERT INTO t SELECT seq, 'old' FROM seq_0_to_99",
    )
    relation = Relation("t", table="t", key=("k",))
    with session_of(maria) as session:
        if reload in {SWAP, DROPPED}:  # which only the catalogue tells, and it knows seconds
            time.sleep(1.1)
        maria.run(*reload)
        with pytest.raises(errors.SnapshotLost):
            read(session, relation)
    with session_of(maria) as session:
        read(session, relation)
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            maria.run("SET lock_wait_timeout = 1", "TRUNCATE t")


def test_reads_a_table_that_was_renamed_before(maria: OfMariaDB) -> None:
    maria.run("CREATE TABLE staged (k int PRIMARY KEY)", "RENAME TABLE staged TO t")
    with session_of(maria) as session:
        assert read(session, Relation("t", table="t")) == []


def test_character_sets_that_unicode_does_not_hold(maria: OfMariaDB) -> None:
    maria.run("CREATE TABLE j (id int PRIMARY KEY, v varchar(9) CHARACTER SET cp932)")
    maria.run("INSERT INTO j VALUES (1, 'ア')")
    with session_of(maria) as session:
        with pytest.raises(errors.ConfigurationError, match="cp932"):
            session.describe(Relation("j", table="j"))
        assert read(session, Relation("j", table="j", as_text=("v",))) == [["1", "8341"]]
