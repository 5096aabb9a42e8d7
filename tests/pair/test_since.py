"""Refreshes by a marker: rows behind a mark, and the keys of all rows, on three engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.harness.legacy import LEGACIES, Legacy
from tests.harness.pair import Pair
from warehouse_agent.report import Report

# Written by the test, so that no test waits for a clock.
STOCK = """CREATE TABLE stock (
    id {int8} PRIMARY KEY, amount INTEGER, note {text}, updated_at {time}, version {int8})"""
TYPES = {
    "sqlite": {"int8": "INTEGER", "text": "TEXT", "time": "DATETIME"},
    "postgresql": {"int8": "BIGINT", "text": "TEXT", "time": "TIMESTAMPTZ"},
    "mariadb": {"int8": "BIGINT", "text": "VARCHAR(200)", "time": "TIMESTAMP(6) NULL"},
}
ZONES = {"sqlite": ', zone = "UTC"', "postgresql": "", "mariadb": ""}
ROWS = 2000
FRAGMENT = 'proof = "keys"\nmethod = "since"'
OLD = datetime.now(UTC) - timedelta(days=30)


def text(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")


def now(legacy: Legacy) -> str:
    """Return the time as a writer sets it."""
    suffix = "+00" if legacy.engine == "postgresql" else ""
    return text(datetime.now(UTC)) + suffix


@pytest.fixture(params=["sqlite", "sqlite-journal", "postgresql", "mariadb"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = LEGACIES[request.param](request, tmp_path)
    yield made
    made.close()


def create(legacy: Legacy, rows: int = ROWS) -> None:
    legacy.execute(STOCK.format(**TYPES[legacy.engine]))
    legacy.execute("CREATE INDEX stock_updated ON stock (updated_at)")
    old = text(OLD) + ("+00" if legacy.engine == "postgresql" else "")
    legacy.many(
        "INSERT INTO stock VALUES (?, ?, ?, ?, ?)",
        [(i * 3, i % 100, f"note {i}", old, i) for i in range(rows)],
    )


def relation(legacy: Legacy, marker: str = "") -> str:
    given = marker or f'{{ column = "updated_at", late = "1m"{ZONES[legacy.engine]} }}'
    return f'table = "stock"\nmarker = {given}'


@pytest.fixture
def pair(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> Iterator[Pair]:
    create(legacy)
    with Pair(spark, legacy, tmp_path / "pair", {"stock": relation(legacy)}) as made:
        made.fragment_lines["stock"] = FRAGMENT
        yield made


def counts(report: Report) -> tuple[int, int, int]:
    return report.rows_inserted, report.rows_updated, report.rows_deleted


def used(report: Report) -> dict[str, Any]:
    assert report.marker is not None
    return report.marker


def test_updates_by_the_marker_and_keys_without_it(pair: Pair) -> None:
    loaded = pair.refresh("stock")
    assert (loaded.proof, used(loaded)["used"]) == ("total", False)
    legacy = pair.legacy
    quiet = pair.refresh("stock")
    assert (quiet.version, quiet.proof, quiet.method) == (0, "keys", "since")
    assert (quiet.round_trips, used(quiet)["rows"]) == (1, 0)
    legacy.many(
        "UPDATE stock SET amount = 7000, updated_at = ? WHERE id = ?",
        [(now(legacy), k * 3) for k in range(10, 30)],
    )
    # Neither the deleted nor the inserted rows are in the marker.
    legacy.execute("DELETE FROM stock WHERE id IN (0, 300, 600)")
    old = "2001-01-01 00:00:00" + ("+00" if legacy.engine == "postgresql" else "")
    legacy.execute("INSERT INTO stock VALUES (?, ?, ?, ?, ?)", 301, 1, "between", old, 0)
    legacy.execute("INSERT INTO stock VALUES (?, ?, ?, ?, ?)", 900_000, 1, "beyond", old, 0)
    found = pair.refresh("stock")
    assert (found.version, found.proof, found.method) == (1, "keys", "since")
    assert counts(found) == (2, 20, 3)
    assert used(found) == {"used": True, "why": None, "rows": 20, "keys_counted": False}
    pair.check("stock")
    pair.check_feed("stock", 1)
    # What came is read again for a minute, and changes nothing.
    again = pair.refresh("stock")
    assert (again.version, again.rows_changed, used(again)["rows"]) == (1, 0, 20)
