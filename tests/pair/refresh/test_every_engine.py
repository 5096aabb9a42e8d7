"""The main job on every engine, and on Spark alone: load, refresh, prove, publish."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.family import FAMILY
from tests.harness.legacy import Legacy
from tests.harness.pair import ON_SPARK, Pair, legacy_of
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage import formats
from warehouse_agent.table_maintenance.verification import damaged

MakePair = Callable[[dict[str, str]], Pair]

ORDERS = """CREATE TABLE orders (
    id {int8} PRIMARY KEY, status {text}, price DECIMAL(12,2), placed {text}, note {text})"""
ITEMS = """CREATE TABLE items (
    code VARCHAR(40) NOT NULL, line INTEGER NOT NULL, amount {float8}, note {text},
    PRIMARY KEY (code, line))"""
TYPES = {
    "sqlite": {"int8": "INTEGER", "text": "TEXT", "float8": "REAL"},
    "postgresql": {"int8": "BIGINT", "text": "TEXT", "float8": "DOUBLE PRECISION"},
    "mariadb": {"int8": "BIGINT", "text": "VARCHAR(200)", "float8": "DOUBLE"},
}


ENGINES = ["sqlite", "sqlite-journal", "postgresql", *FAMILY]


@pytest.fixture(params=[*ENGINES, ON_SPARK])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = legacy_of(request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def pair(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> Iterator[Pair]:
    for table in (ORDERS, ITEMS):
        legacy.execute(table.format(**TYPES[legacy.engine]))
    fill(legacy, 3000)
    relations = {"orders": 'table = "orders"', "items": 'table = "items"'}
    with Pair(spark, legacy, tmp_path / "pair", relations) as made:
        yield made


def fill(legacy: Legacy, count: int) -> None:
    legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(i * 4) for i in range(count)])
    items = [(f"Ä{i % 700:04d}", i // 700, i / 7, None if i % 11 else "é") for i in range(count)]
    legacy.many("INSERT INTO items VALUES (?, ?, ?, ?)", items)


def order(key: int) -> tuple[object, ...]:
    note = hashlib.sha256(str(key).encode()).hexdigest()  # nothing that compresses away
    return (key, "OFP"[key % 3], f"{key * 37 % 99991}.{key % 100:02d}", "1996-01-02", note)


def edit(legacy: Legacy, seed: int) -> tuple[int, int, int]:
    """Insert, update and delete some orders; returns how many of each."""
    rng = random.Random(seed)
    present = sorted(row[0] for row in legacy.rows("orders"))
    updated = rng.sample(present, 40)
    deleted = [k for k in rng.sample(present, 12) if k not in updated]
    inserted = [max(present) + 4 * i for i in range(1, 8)] + [k + 1 for k in deleted[:3]]
    legacy.many("UPDATE orders SET note = ? WHERE id = ?", [(f"sleep {seed}", k) for k in updated])
    legacy.many("DELETE FROM orders WHERE id = ?", [(k,) for k in deleted])
    legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(k) for k in inserted])
    return len(inserted), len(updated), len(deleted)


def test_load_refresh_nothing(pair: Pair) -> None:
    loaded = pair.refresh("orders")
    assert (loaded.version, loaded.rows_inserted, loaded.rows_total) == (0, 3000, 3000)
    assert loaded.source_scans == 1
    pair.check("orders")
    counts = edit(pair.legacy, 1)
    refreshed = pair.refresh("orders")
    found = (refreshed.rows_inserted, refreshed.rows_updated, refreshed.rows_deleted)
    assert (refreshed.version, found, refreshed.method) == (1, counts, "sketch")
    assert refreshed.round_trips <= 2
    assert refreshed.bytes_received < loaded.bytes_received / 2
    pair.check("orders")
    quiet = pair.refresh("orders")
    assert (quiet.version, quiet.previous_version, quiet.round_trips) == (1, 1, 1)
    assert quiet.rows_changed == 0
    assert quiet.proof == "total"


def test_composite_text_key(pair: Pair) -> None:
    pair.refresh("items")
    pair.check("items")
    pair.legacy.execute("UPDATE items SET amount = -0.5 WHERE line = 2")
    pair.legacy.execute("DELETE FROM items WHERE code = ?", "Ä0007")
    pair.legacy.execute("INSERT INTO items VALUES (?, ?, ?, ?)", "ä0007", -1, None, "new")
    report = pair.refresh("items")
    assert (report.rows_inserted, report.rows_deleted) == (1, 5)
    pair.check("items")


@pytest.mark.parametrize("legacy", ENGINES, indirect=True)
def test_several_in_one_snapshot(pair: Pair) -> None:
    first = pair.reports()
    assert [r.error for r in first] == [None, None]
    edit(pair.legacy, 2)
    pair.legacy.execute("UPDATE items SET note = 'both' WHERE line = 1")
    second = pair.reports()
    assert [r.version for r in second] == [1, 1]
    assert second[0].as_of == second[1].as_of
    pair.check("orders")
    pair.check("items")


def test_everything_changes(pair: Pair) -> None:
    loaded = pair.refresh("orders")
    pair.legacy.execute("UPDATE orders SET status = 'X'")
    report = pair.refresh("orders")
    assert (report.rows_updated, report.rows_inserted) == (3000, 0)
    assert report.bytes_received < 1.3 * loaded.bytes_received
    pair.check("orders")


def test_emptied_table_is_refused_until_allowed(pair: Pair) -> None:
    pair.refresh("orders")
    pair.legacy.execute("DELETE FROM orders")
    (refused,) = pair.reports("orders")
    assert refused.error is not None
    assert refused.error["code"] == "SHRANK"
    assert len(pair.published("orders")) == 3000
    report = pair.refresh("orders", options=Options(allow_shrink=True))
    assert (report.rows_deleted, report.rows_total) == (3000, 0)
    pair.check("orders")
    fill_again = [order(i) for i in range(5)]
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", fill_again)
    pair.refresh("orders")
    pair.check("orders")


def test_schema_change_is_refused_until_accepted(pair: Pair) -> None:
    pair.refresh("orders")
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN remark VARCHAR(20)")
    pair.legacy.execute("UPDATE orders SET remark = 'x' WHERE id < 40")
    (refused,) = pair.reports("orders")
    assert refused.error is not None
    assert refused.error["code"] == "RECIPE"
    assert "remark" in refused.error["message"]
    assert "--accept-schema" in refused.error["remedy"]
    report = pair.refresh("orders", options=Options(accept_schema=True))
    assert report.version == 1
    assert report.bytes_received < 20_000  # only the rows whose new column is not NULL
    pair.check("orders")
    pair.legacy.execute("UPDATE orders SET note = 'later' WHERE id = 8")
    pair.refresh("orders")
    pair.check("orders")
    assert len(pair.published("orders", version=0)[0]) == 5


MOMENT = {"mariadb": "DATETIME(6)"}  # SQLite declares nothing: its DBA does


def test_a_moment_is_added_to_a_table_without_one(pair: Pair) -> None:
    """A timestamp without zone needs a feature that the table has not declared yet."""
    pair.refresh("orders")
    kind = MOMENT.get(pair.legacy.engine, "TIMESTAMP")
    if pair.legacy.engine == "sqlite":
        kind = "TEXT"
        pair.publish("orders", 'table = "orders"\ntypes = { seen = "timestamp" }')
    pair.legacy.execute(f"ALTER TABLE orders ADD COLUMN seen {kind}")
    pair.legacy.execute("UPDATE orders SET seen = '2024-10-27 02:30:00.000000' WHERE id < 400")
    report = pair.refresh("orders", options=Options(accept_schema=True))
    assert (report.version, report.schema_changed) == (1, True)
    assert pair.delta("orders").protocol().reader_features == ["timestampNtz"]
    moment = dt.datetime.fromisoformat("2024-10-27 02:30")
    assert sum(moment in row for row in pair.published("orders")) == 100
    pair.legacy.execute("UPDATE orders SET note = 'later', seen = NULL WHERE id = 8")
    assert pair.refresh("orders").rows_updated == 1
    assert sum(moment in row for row in pair.published("orders")) == 99
    assert [entry.version for entry in formats.entries(pair.store, "orders")] == [2, 1, 0]
    head = formats.head(pair.store, "orders")
    assert head is not None
    assert not damaged(pair.steps, pair.store, "orders", head)
