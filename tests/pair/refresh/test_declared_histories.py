"""Random histories of tables whose columns are declared as older releases did, and as we do.

Releases take turns: one declares bookkeeping columns and none NOT NULL, one keeps what it finds and
looks for no NULL, one is ours. Between refreshes rows change at the source, columns there become
nullable and NOT NULL again, and another program compacts the table. After each refresh the rows and
columns that a reader of Delta finds are those of SQLite, and so is the change feed; after ours no
column that is declared NOT NULL holds one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.older_tables import declare, declaring_bookkeeping, keeping_declarations
from tests.harness.pair import Pair, expect_equal, rows_of
from warehouse_agent.columns.layout import RESERVED
from warehouse_agent.planning.choice import Method
from warehouse_agent.refresh.job import Options
from warehouse_agent.spark.session import DeferredSession

METHODS = (Method.SKETCH.value, Method.GROUP.value, Method.FULL.value)
STEPS = 5
IN_EVERY_RUN, BY_THE_SOAK = 6, 5_000  # histories of each place; on Spark fewer in every run
ROWS = 60
TABLES = {
    "CREATE TABLE t (note TEXT{0}, id INTEGER PRIMARY KEY, n INT{0})": ("note id n", {"id"}),
    "CREATE TABLE t (id INT NOT NULL, n REAL{0}, note TEXT NOT NULL, PRIMARY KEY (note, id))": (
        "id n note", {"note", "id"},
    ),
    "CREATE TABLE t (id INT NOT NULL, note TEXT NOT NULL, PRIMARY KEY (note, id))": (
        "id note", {"note", "id"},
    ),
    "CREATE TABLE t (id TEXT NOT NULL PRIMARY KEY)": ("id", {"id"}),
}  # columns in order, and those that are always NOT NULL  # fmt: skip
TIGHT = " NOT NULL"
Release = Callable[[], AbstractContextManager[None]]


def history(spark: SparkSession | DeferredSession, folder: Path, seed: int) -> int:
    """Live through one; return how often the table was changed back to the source's columns."""
    drawn, undeclared = random.Random(seed), 0
    statement = drawn.choice([*TABLES])
    order, key = TABLES[statement]
    columns = order.split()
    legacy = SqliteLegacy(folder / "erp.db")
    has_null = drawn.random() < 0.3
    legacy.execute(statement.format("" if has_null else TIGHT))
    with Pair(spark, legacy, folder / "pair", {"t": 'table = "t"'}) as pair:
        pair.small_bytes = 4 << 30 if isinstance(spark, DeferredSession) else 0
        change(legacy, columns, drawn, 0, has_null=has_null)
        release: Release = nullcontext
        for step in range(STEPS):
            pair.fragment_lines["t"] = drawn.choice(["", *(f'method = "{m}"' for m in METHODS)])
            before = None if step == 0 else seen(pair)
            # delta-rs reads no NULL that a release which looks for none left under NOT NULL.
            if drawn.random() < 0.3 and before and release is not keeping_declarations:
                pair.delta("t").optimize.compact()
            kinds: list[Release] = [nullcontext, declaring_bookkeeping]
            kinds += [keeping_declarations] if before else []
            release = drawn.choices(kinds, [5, 3, 2][: len(kinds)])[0]
            is_ours = release is nullcontext
            options = Options(accept_schema=drawn.random() < 0.3)
            with release():
                (report,) = pair.reports("t", options=options)
            assert report.error is None, report.error
            names = seen(pair)
            assert [one for one in names if not one.startswith(RESERVED)] == columns
            if is_ours:
                assert names == columns, "whatever was found"
                undeclared += before not in (None, columns)
            check(pair, legacy, key if is_ours else None)
            if report.version and report.rows_updated + report.rows_deleted:
                pair.check_feed("t", report.version)
            if drawn.random() < 0.3:
                declare(pair.store, "t")
                check(pair, legacy, None)
            if drawn.random() < 0.3:
                has_null = not has_null
                alter(legacy, statement, columns, has_null=has_null)
            if drawn.random() < 0.7:
                change(legacy, columns, drawn, step + 1, has_null=has_null)
    legacy.close()
    return undeclared


def seen(pair: Pair) -> list[str]:
    return [field.name for field in pair.delta("t").schema().fields]


def check(pair: Pair, legacy: SqliteLegacy, key: set[str] | None) -> None:
    """Compare rows; `key`: NOT NULL columns, if this release published them."""
    rows = legacy.rows("t")
    table = pair.delta("t")
    found = table.to_pyarrow_table()
    own = [name for name in found.column_names if not name.startswith(RESERVED)]
    expect_equal(rows_of(found.select(own)), rows)
    if key is not None:
        declared = {field.name for field in table.schema().fields if not field.nullable}
        holding = {name for place, name in enumerate(own) if any(r[place] is None for r in rows)}
        assert key <= declared
        assert not declared & holding
    if pair.small_bytes == 0:
        expect_equal(pair.read("t"), rows)


def alter(legacy: SqliteLegacy, statement: str, columns: list[str], *, has_null: bool) -> None:
    """Make columns nullable, or NOT NULL: SQLite makes the table anew for it."""
    if not has_null:
        for name in {"n", "note"}.intersection(columns):
            legacy.execute(f"UPDATE t SET {name} = 0 WHERE {name} IS NULL")
    legacy.execute("ALTER TABLE t RENAME TO aside")
    legacy.execute(statement.format("" if has_null else TIGHT))
    legacy.execute("INSERT INTO t SELECT * FROM aside")
    legacy.execute("DROP TABLE aside")


def change(
    legacy: SqliteLegacy, columns: list[str], drawn: random.Random, step: int, *, has_null: bool
) -> None:
    """Insert some rows, or many; update and delete a few; `n` may get NULL."""
    first, every = step * ROWS, drawn.choice([2, 50]) if has_null else 0
    values = {
        "id": lambda i: i,
        "note": lambda i: f"note {i % 7}",
        "n": lambda i: None if every and i % every == 1 else i % 5,
    }
    marks = ", ".join("?" * len(columns))
    numbers = range(first, first + drawn.choice([1, 9, ROWS]))
    legacy.many(
        f"INSERT INTO t VALUES ({marks})",
        [tuple(values[column](i) for column in columns) for i in numbers],
    )
    if "n" in columns:
        value = None if has_null and drawn.random() < 0.5 else 100 + step
        legacy.execute("UPDATE t SET n = ? WHERE id % 7 = ?", value, drawn.randrange(7))
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
