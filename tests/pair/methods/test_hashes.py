"""The pair where PostgreSQL makes the fingerprints: loads, refreshes, and changes of the kind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.rows.digests import Salt
from driftline.values.types import Recipe
from pyspark.sql import SparkSession

from source_agent.checks.total import Receipt, total
from source_agent.config import file as configure
from source_agent.engines.registry import connect
from tests.harness.legacy import PostgresLegacy
from tests.harness.pair import Pair
from tests.harness.servers import PostgreSQL
from tests.pair.refresh.test_every_engine import ITEMS, ORDERS, TYPES, edit, fill
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage.formats import head
from warehouse_agent.tasks.proof import values_digest

AGENT = {"orders": 'table = "orders"', "items": 'table = "items"'}
DATABASE = {name: f'{lines}\nfingerprint = "database"' for name, lines in AGENT.items()}
ACCEPT = Options(accept_schema=True)


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[PostgresLegacy]:
    made = PostgresLegacy(postgresql)
    yield made
    made.close()


@pytest.fixture
def pair(spark: SparkSession, legacy: PostgresLegacy, tmp_path: Path) -> Iterator[Pair]:
    for table in (ORDERS, ITEMS):
        legacy.execute(table.format(**TYPES["postgresql"]))
    fill(legacy, 3000)
    with Pair(spark, legacy, tmp_path / "pair", dict(DATABASE)) as made:
        yield made


def test_load_refresh_nothing(pair: Pair) -> None:
    loaded = pair.refresh("orders")
    assert (loaded.version, loaded.rows_total, loaded.fingerprint) == (0, 3000, "database")
    pair.check("orders")
    counts = edit(pair.legacy, 1)
    refreshed = pair.refresh("orders")
    found = (refreshed.rows_inserted, refreshed.rows_updated, refreshed.rows_deleted)
    assert (refreshed.version, found, refreshed.method) == (1, counts, "sketch")
    assert refreshed.round_trips <= 2
    assert refreshed.miss_probability == (sum(counts) + 1) * 5 * 2.0**-64  # of five columns
    pair.check("orders")
    pair.check_feed("orders", 1)
    quiet = pair.refresh("orders")
    assert (quiet.version, quiet.round_trips, quiet.rows_changed) == (1, 1, 0)
    assert (quiet.proof, quiet.fingerprint) == ("total", "database")


@pytest.mark.parametrize("method", ["range", "full", "sketch"])
def test_every_method(pair: Pair, method: str) -> None:
    pair.refresh("items")
    pair.legacy.execute("UPDATE items SET amount = -amount WHERE line = 2")
    pair.legacy.execute("DELETE FROM items WHERE code = ?", "Ä0007")
    pair.legacy.execute("INSERT INTO items VALUES (?, ?, ?, ?)", "ä0007", -1, None, "new")
    pair.fragment_lines["items"] = f'method = "{method}"'
    report = pair.refresh("items")
    assert (report.rows_inserted, report.rows_deleted) == (1, 5)
    pair.check("items")


def test_a_change_of_the_kind_keeps_the_rows(pair: Pair) -> None:
    """Refused by name; accepted, fingerprints are made again here and nothing is sent."""
    loaded = pair.refresh("orders")
    for version, (relations, before, after) in enumerate(
        [(AGENT, "database", "agent"), (DATABASE, "agent", "database")], start=1
    ):
        pair.publish("orders", relations["orders"])
        error = pair.error("orders")
        assert error["code"] == "RECIPE"
        assert f"by the {before} and are made by the {after}" in error["message"]
        assert error["remedy"].endswith("--accept-schema")
        report = pair.refresh("orders", options=ACCEPT)
        assert (report.version, report.fingerprint) == (version, after)
        assert (report.schema_changed, report.rows_changed) == (True, 0)
        assert report.bytes_received < loaded.bytes_received / 10
        pair.check("orders")
        snapshot = head(pair.store, "orders")
        assert snapshot is not None
        assert snapshot.record.fingerprint == after
    edit(pair.legacy, 3)
    assert pair.refresh("orders").rows_changed > 0
    pair.check("orders")


def test_rows_that_exchange_values_while_they_are_read(pair: Pair, postgresql: PostgreSQL) -> None:
    """Each version is one instant, in which every note exists once; the last one is the source."""
    pair.refresh("orders")
    done = threading.Event()
    database = pair.legacy.database  # type: ignore[attr-defined]

    def exchange_notes() -> None:
        with postgresql.superuser(database) as connection:
            number = 0
            while not done.is_set():
                number = (number + 1) % 2990
                connection.execute(
                    "UPDATE orders SET note = (SELECT o.note FROM orders AS o"
                    " WHERE o.id = %s - orders.id) WHERE id IN (%s, %s)",
                    (8 * number + 4, 4 * number, 4 * number + 4),
                )

    notes = sorted(row[4] for row in pair.legacy.rows("orders"))
    writer = threading.Thread(target=exchange_notes)
    writer.start()
    try:
        reports = [pair.refresh("orders") for _ in range(3)]
        assert all(r.rows_updated > 0 for r in reports)
        assert sorted(row[4] for row in pair.published("orders")) == notes
    finally:
        done.set()
        writer.join()
    pair.refresh("orders")
    pair.check("orders")


def test_a_receipt_is_of_the_rows_whatever_the_kind(pair: Pair) -> None:
    pair.refresh("orders")
    snapshot = head(pair.store, "orders")
    assert snapshot is not None
    key, salt = bytes(32), Salt(1, 2)
    digest = values_digest(pair.steps, snapshot.files, snapshot.layout, key, salt)
    written = Recipe(snapshot.layout.recipe.columns, 1)  # as a receipt has it: without the kind
    receipt = Receipt("orders", written, "", "0", digest, key, salt)
    config = configure.load(pair.source_toml())
    engine = connect(config.database.url, config.database.password, config.database.limits)
    assert total(config, engine, receipt).equal
    pair.legacy.execute("UPDATE orders SET note = '' WHERE id = 4")
    assert not total(config, engine, receipt).equal
