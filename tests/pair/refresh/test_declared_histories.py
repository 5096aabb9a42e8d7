"""Random histories of tables whose bookkeeping columns are declared, and then are not, and are.

Releases take turns: one publishes as those did that declared them, one goes on from there. Between
refreshes rows change at the source, and another program compacts the table. After each refresh the
rows and columns that a reader of Delta finds are those of SQLite, and so is the change feed.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.older_tables import declare, declaring_bookkeeping
from tests.harness.pair import Pair, expect_equal, rows_of
from warehouse_agent.columns.layout import RESERVED
from warehouse_agent.planning.choice import Method
from warehouse_agent.spark.session import DeferredSession

METHODS = (Method.SKETCH.value, Method.GROUP.value, Method.FULL.value)
STEPS = 5
IN_EVERY_RUN, BY_THE_SOAK = 4, 5_000  # histories of each place; on Spark fewer in every run
ROWS = 60
TABLES = {
    "CREATE TABLE t (note TEXT, id INTEGER PRIMARY KEY, n INT)": "note, id, n",
    "CREATE TABLE t (id INT NOT NULL, note TEXT NOT NULL, PRIMARY KEY (note, id))": "id, note",
    "CREATE TABLE t (id TEXT NOT NULL PRIMARY KEY)": "id",
}  # fmt: skip


def history(spark: SparkSession | DeferredSession, folder: Path, seed: int) -> int:
    """Live through one; return how often the table was changed back to the source's columns."""
    drawn, undeclared = random.Random(seed), 0
    statement = drawn.choice([*TABLES])
    columns = TABLES[statement].split(", ")
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute(statement)
    with Pair(spark, legacy, folder / "pair", {"t": 'table = "t"'}) as pair:
        pair.small_bytes = 4 << 30 if isinstance(spark, DeferredSession) else 0
        change(legacy, columns, drawn, 0)
        for step in range(STEPS):
            pair.fragment_lines["t"] = drawn.choice(["", *(f'method = "{m}"' for m in METHODS)])
            before = None if step == 0 else seen(pair)
            if before and drawn.random() < 0.3:
                DeltaTable(str(pair.warehouse / "t")).optimize.compact()
            is_older = drawn.random() < 0.4
            with declaring_bookkeeping() if is_older else nullcontext():
                report = pair.refresh("t")
            names = seen(pair)
            assert [one for one in names if not one.startswith(RESERVED)] == columns
            if not is_older:
                assert names == columns, "whatever was found"
                undeclared += before not in (None, columns)
            check(pair, legacy)
            if report.version and report.rows_updated + report.rows_deleted:
                pair.check_feed("t", report.version)
            if drawn.random() < 0.3:
                declare(pair.store, "t")
                check(pair, legacy)
            if drawn.random() < 0.7:
                change(legacy, columns, drawn, step + 1)
    legacy.close()
    return undeclared


def seen(pair: Pair) -> list[str]:
    return [field.name for field in DeltaTable(str(pair.warehouse / "t")).schema().fields]


def check(pair: Pair, legacy: SqliteLegacy) -> None:
    rows = legacy.rows("t")
    found = DeltaTable(str(pair.warehouse / "t")).to_pyarrow_table()
    own = [name for name in found.column_names if not name.startswith(RESERVED)]
    expect_equal(rows_of(found.select(own)), rows)
    if pair.small_bytes == 0:
        expect_equal(pair.read("t"), rows)


def change(legacy: SqliteLegacy, columns: list[str], drawn: random.Random, step: int) -> None:
    """Insert some rows, or many; update and delete a few."""
    first = step * ROWS
    values = {"id": lambda i: i, "note": lambda i: f"note {i % 7}", "n": lambda i: i % 5}
    marks = ", ".join("?" * len(columns))
    numbers = range(first, first + drawn.choice([1, 9, ROWS]))
    legacy.many(
        f"INSERT INTO t VALUES ({marks})",
        [tuple(values[column](i) for column in columns) for i in numbers],
    )
    if "n" in columns:
        legacy.execute("UPDATE t SET n = ? WHERE id % 7 = ?", 100 + step, drawn.randrange(7))
    legacy.execute("DELETE FROM t WHERE id % 11 = ? AND id > 0", drawn.randrange(11))


def test_in_threads(tmp_path: Path) -> None:
    assert sum(each(NoSpark(), tmp_path, IN_EVERY_RUN)) > 2


@pytest.mark.spark
def test_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    assert len(each(spark, tmp_path, 1)) == 1


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(86_400)
def test_many(spark: SparkSession, tmp_path: Path) -> None:
    found = [each(place, tmp_path, BY_THE_SOAK) for place in (NoSpark(), spark)]
    print(f"{len(found[0]) + len(found[1])} histories, {sum(map(sum, found))} times undeclared")
    assert all(map(sum, found))


def each(spark: SparkSession | DeferredSession, folder: Path, count: int) -> list[int]:
    found = []
    for seed in range(count):
        place = folder / f"{type(spark).__name__}-{seed}"
        place.mkdir()
        found.append(history(spark, place, seed))
    return found
