"""The table of freshness: written by each refresh command, read by everybody, bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.harness.absent import absent
from tests.harness.legacy import SqliteLegacy
from tests.harness.object_stores import Moto
from tests.harness.pair import Pair
from warehouse_agent.cli.main import cli
from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.storage.formats import head
from warehouse_agent.visible_versions.readers import read

TABLES = {"orders": 'table = "orders"', "items": 'table = "items"'}
MOMENTS = ("as_of", "checked_at", "last_success_at", "last_failure_at")


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for name in TABLES:
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
        legacy.execute(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    with Pair(spark, legacy, tmp_path / "pair", dict(TABLES)) as made:
        made.fragment_lines = dict.fromkeys(TABLES, 'freshness = "1h"')
        yield made
    legacy.close()


def command(pair: Pair, *words: str) -> int:
    return CliRunner().invoke(cli, ["--config", str(pair.warehouse_toml()), *words]).exit_code


def freshness(pair: Pair) -> dict[str, dict[str, object]]:
    """Return the rows by name, as a reader of Delta finds them."""
    return {row["name"]: row for row in pair.delta(FRESHNESS).to_pyarrow_table().to_pylist()}


def said(pair: Pair) -> dict[str, dict[str, object]]:
    """Return what `status --json` says, by name; times as the table has them."""
    lines = pair.said("status", "--json").splitlines()
    return {body["name"]: body for body in map(json.loads, lines)}


def expect_as_status(pair: Pair) -> None:
    """The table says of each fragment what `status --json` says."""
    rows, states = freshness(pair), said(pair)
    assert rows.keys() == states.keys()
    for name, row in rows.items():
        state = states[name]
        for column in ("kind", "version", "proof", "consistency", "state"):
            assert row[column] == state[column], (name, column)
        assert row["rows"] == state["rows_total"]
        for column in ("as_of", "checked_at"):
            at = state[column]
            assert row[column] == (at if at is None else datetime.fromisoformat(str(at))), name
        failed = state["failed"]
        if failed is not None:
            assert isinstance(failed, dict)
            assert row["last_failure_code"] == failed["code"]
            assert row["last_failure_at"] == datetime.fromisoformat(failed["at"])
            assert row["failures"] == failed["times"]
        else:
            assert row["failures"] == 0


@pytest.mark.spark
def test_it_says_what_status_says(pair: Pair) -> None:
    assert command(pair, "refresh") == 0
    expect_as_status(pair)
    pair.legacy.execute("UPDATE orders SET note = 'c' WHERE id = 1")
    assert command(pair, "refresh", "orders") == 0
    expect_as_status(pair)
    assert command(pair, "refresh") == 0, "nothing changed"
    expect_as_status(pair)
    pair.legacy.execute("ALTER TABLE items RENAME TO gone")
    for _ in range(2):
        assert command(pair, "refresh") != 0
        expect_as_status(pair)
    broken = freshness(pair)["items"]
    assert broken["state"] == "critical"
    assert broken["rows"] == 2, "what is published is still said"
    pair.legacy.execute("ALTER TABLE gone RENAME TO items")
    assert command(pair, "refresh", "items") == 0
    expect_as_status(pair)
    mended = freshness(pair)["items"]
    assert (mended["state"], mended["failures"]) == ("ok", 0)
    assert mended["last_failure_code"] == broken["last_failure_code"]


@pytest.mark.spark
def test_rows_of_others_stay_and_of_gone_names_go(pair: Pair) -> None:
    assert command(pair, "refresh") == 0
    before = freshness(pair)
    assert command(pair, "refresh", "orders") == 0
    after = freshness(pair)
    assert after["items"] == before["items"]
    assert after["orders"]["last_success_at"] != before["orders"]["as_of"]
    pair.fragment_lines.pop("items")
    pair._relations.pop("items")
    assert command(pair, "refresh") == 0
    assert freshness(pair).keys() == {"orders"}


@pytest.mark.spark
def test_every_reader_joins_it(pair: Pair) -> None:
    assert command(pair, "refresh") == 0
    assert command(pair, "refresh", "orders") == 0, "a second version"
    orders = head(pair.store, "orders")
    assert orders is not None
    now = datetime.now(UTC)
    # Spark, by the reader of the product.
    from_there = partial(read, pair.spark, pair.store.root, storage=pair.storage)
    frame = from_there(FRESHNESS, columns=["name", "as_of", "rows"])
    assert {row["name"]: row["rows"] for row in frame.collect()} == {"orders": 2, "items": 2}
    from_there(FRESHNESS)
    from_there("orders")
    query = f"SELECT o.id, f.as_of FROM orders o JOIN {FRESHNESS} f ON f.name = 'orders' ORDER BY 1"
    assert [row["id"] for row in pair.spark.sql(query).collect()] == [1, 2]
    table = pair.delta(FRESHNESS)
    if pair.bucket is None:
        # Spark's own reader of Parquet, without the product: as with a connector for Delta.
        plain = pair.spark.read.parquet(*table.file_uris())
        assert dict(plain.dtypes)["as_of"] == "timestamp"
        assert plain.count() == 2
    # delta-rs and Arrow.
    assert all(str(table.schema().to_arrow().field(one).type) for one in MOMENTS)
    found = table.to_pyarrow_table()
    assert {str(found.schema.field(one).type) for one in MOMENTS} == {"timestamp[us, tz=UTC]"}
    assert table.protocol().min_reader_version == 1
    # DuckDB.
    fresh, rows = found, pair.delta("orders").to_pyarrow_table()
    with duckdb.connect() as db:
        db.register("fresh", fresh)
        db.register("orders", rows)
        joined = db.execute(
            "SELECT o.id, f.as_of, f.state FROM orders o"
            " JOIN fresh f ON f.name = 'orders' ORDER BY 1"
        ).fetchall()
    assert [(one, state) for one, _, state in joined] == [(1, "ok"), (2, "ok")]
    assert all(0 <= (now - at).total_seconds() < 600 for _, at, _ in joined)


@pytest.mark.spark
def test_polars_reads_it(pair: Pair) -> None:
    try:
        import polars  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        absent("POLARS", "pip install polars", is_required_in_ci=False)
    assert command(pair, "refresh") == 0
    frame = polars.read_delta(pair.store.table(FRESHNESS), storage_options=pair.store.delta_options)
    assert set(frame["name"]) == set(TABLES)


@pytest.mark.spark
def test_it_stays_small_and_gc_keeps_what_readers_have(pair: Pair) -> None:
    for note in range(23):
        pair.legacy.execute("UPDATE orders SET note = ? WHERE id = 1", f"n{note}")
        assert command(pair, "refresh", "orders") == 0
    folder = pair.root / FRESHNESS
    log = {file.name for file in (folder / "_delta_log").glob("*")}
    assert {f"{at:020d}.checkpoint.parquet" for at in (10, 20)} <= log
    assert len(list(folder.glob("*.parquet"))) == 23
    assert command(pair, "gc", "orders", "--yes") == 0
    assert len(list(folder.glob("*.parquet"))) == 23, "a week is kept"
    assert command(pair, "gc", "orders", "--yes", "--keep-hours", "0") == 0
    assert len(list(folder.glob("*.parquet"))) == 1
    assert freshness(pair).keys() == {"orders"}


@pytest.mark.spark
def test_it_is_not_written_where_it_is_not_wanted(pair: Pair) -> None:
    pair.warehouse_lines = "freshness_table = false"
    assert command(pair, "refresh") == 0
    assert not pair.store.files(FRESHNESS, "_delta_log")


@pytest.mark.spark
def test_another_program_in_it_fails_no_refresh(pair: Pair) -> None:
    assert command(pair, "refresh") == 0
    table = pair.delta(pair.store.folder(FRESHNESS))
    table.delete()
    ended = CliRunner().invoke(cli, ["--config", str(pair.warehouse_toml()), "refresh"])
    assert ended.exit_code == 0
    assert "not told of this command: freshness: " in ended.stderr
    assert "Move its folder away" in ended.stderr


@pytest.mark.spark
def test_in_a_bucket(pair: Pair, moto: Moto) -> None:
    pair.bucket = moto.bucket()
    for _ in range(2):
        assert command(pair, "refresh") == 0
    expect_as_status(pair)
    frame = read(pair.spark, pair.store.root, FRESHNESS, storage=pair.bucket.settings)
    assert frame.count() == 2
