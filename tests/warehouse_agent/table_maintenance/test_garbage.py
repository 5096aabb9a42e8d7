"""What gc removes and, above all, what it never does."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from driftline.errors import NotFound, UsageError, WarehouseUnavailable
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.table_maintenance.garbage import Garbage, oldest_kept, unreferenced
from warehouse_agent.visible_versions.readers import changes, read

KEEP_HOURS = 24
KEEP = timedelta(hours=KEEP_HOURS)
LATER = timedelta(days=400)  # after every retention


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=True)
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(i, f"order {i}") for i in range(400)])
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        yield made
    legacy.close()


def edit(pair: Pair, turn: int) -> None:
    """Touches old files and young ones."""
    pair.legacy.execute("UPDATE orders SET note = ? WHERE id % 50 = ?", f"turn {turn}", turn % 50)
    pair.legacy.execute("DELETE FROM orders WHERE id = ?", turn * 7)


def store_of(pair: Pair) -> Store:
    return Store(str(pair.warehouse))


def clean(store: Store, now: datetime, name: str = "orders") -> Garbage:
    """gc, as the command does it."""
    with store.lock(name):
        found = unreferenced(store, name, keep_hours=KEEP_HOURS, now=now)
        for place in found.places:
            store.remove_file(*place)
    return found


def age(path: Path, hours: float) -> None:
    then = datetime.now(UTC).timestamp() - hours * 3600
    for file in [path, *path.rglob("*")]:
        os.utime(file, (then, then))


def committed(pair: Pair, version: int) -> datetime:
    """When a version was committed, by its log file: not what gc asks first."""
    log = pair.warehouse / "orders" / "_delta_log" / f"{version:020d}.json"
    return datetime.fromtimestamp(log.stat().st_mtime, UTC)


def files_of(pair: Pair, version: int) -> list[Path]:
    return [Path(uri) for uri in DeltaTable(pair.warehouse / "orders", version=version).file_uris()]


def data_files(pair: Pair) -> set[Path]:
    return set((pair.warehouse / "orders").glob("data-*/**/*.parquet"))


def test_the_oldest_version_that_was_the_newest() -> None:
    def at(minute: int) -> datetime:
        return datetime(2026, 1, 1, 0, minute, tzinfo=UTC)

    times = [(0, at(0)), (1, at(10)), (2, at(20)), (5, at(50))]
    assert oldest_kept(times, at(9)) == 0
    # Version 1 took the place of 0 at this instant: from now on nobody new pins 0.
    assert oldest_kept(times, at(10)) == 1
    assert oldest_kept(times, at(19)) == 1
    assert oldest_kept(times, at(49)) == 2
    assert oldest_kept(times, at(55)) == 5
    # Older than the log goes back: everything that it knows is kept.
    assert oldest_kept(times, at(0) - LATER) == 0
    # Versions 6 and 7 by a clock that was behind: they may be as new as the last one.
    behind = [*times, (6, at(1)), (7, at(2)), (8, at(59))]
    assert oldest_kept(behind, at(58)) == 5
    assert oldest_kept(behind, at(59)) == 8


def test_a_reader_keeps_reading_during_ten_refreshes_with_gc(pair: Pair) -> None:
    store = store_of(pair)
    pair.refresh()
    for turn in range(1, 3):
        edit(pair, turn)
        pair.refresh()
    pinned = 2
    rows = read(pair.spark, pair.warehouse, "orders", pinned)
    expected = sorted(map(tuple, rows.collect()))
    removed = 0
    for turn in range(3, 13):
        edit(pair, turn)
        pair.refresh()
        # The last moment at which the pinned version is within its retention.
        moment = committed(pair, pinned + 1) + KEEP - timedelta(milliseconds=1)
        removed += len(clean(store, moment).places)
        assert sorted(map(tuple, rows.collect())) == expected
        assert all(file.exists() for v in range(pinned, turn + 1) for file in files_of(pair, v))
    assert removed, "files of the versions before the pinned one were to go"
    assert not all(file.exists() for file in files_of(pair, 0))
    pair.check("orders")
    # Past its retention its own files go, none of the next version, whose retention has not ended.
    clean(store, committed(pair, pinned + 2) + KEEP - timedelta(milliseconds=1))
    assert not all(file.exists() for file in files_of(pair, pinned))
    assert all(file.exists() for v in range(pinned + 1, 13) for file in files_of(pair, v))
    pair.check("orders")
    edit(pair, 20)
    pair.refresh()
    pair.check("orders")


def test_after_every_retention_only_the_newest_is_left(pair: Pair) -> None:
    pair.refresh()
    for turn in range(3):
        edit(pair, turn)
        pair.refresh()
    store = store_of(pair)
    dry = unreferenced(store, "orders", keep_hours=KEEP_HOURS, now=datetime.now(UTC))
    assert (dry.places, dry.bytes) == ((), 0), "everything is young"
    before = sum(f.stat().st_size for f in pair.warehouse.rglob("*") if f.is_file())
    found = clean(store, datetime.now(UTC) + LATER)
    after = sum(f.stat().st_size for f in pair.warehouse.rglob("*") if f.is_file())
    assert before - after == found.bytes > 0
    assert data_files(pair) == set(files_of(pair, 3))
    feeds = {f.name for f in (pair.warehouse / PRIVATE / "changes" / "orders").iterdir()}
    assert feeds == {"_version=3"}
    assert changes(pair.spark, pair.warehouse, "orders", since=2).count() > 0
    (feed,) = (pair.warehouse / PRIVATE / "changes" / "orders" / "_version=3").iterdir()
    crashed = feed.with_name("0123456789ab")
    crashed.mkdir()
    (crashed / "insert-x.zstd.parquet").write_bytes(b"of an attempt that was not published")
    clean(store, datetime.now(UTC) + LATER)
    assert feed.exists()
    assert not crashed.exists()
    with pytest.raises(NotFound, match="Version 1 has lost 3 files of its change feed"):
        changes(pair.spark, pair.warehouse, "orders", since=0)
    with pytest.raises(NotFound, match="Version 4 is not there; the newest is 3"):
        changes(pair.spark, pair.warehouse, "orders", since=4)
    assert changes(pair.spark, pair.warehouse, "orders", since=3).count() == 0
    assert clean(store, datetime.now(UTC) + LATER).places == ()
    left = {f.name for f in (pair.warehouse / "orders").iterdir()}
    table = pair.warehouse / "orders"
    assert left == {"_delta_log"} | {f.relative_to(table).parts[0] for f in files_of(pair, 3)}
    pair.check("orders")


def test_leftovers_of_crashes_go_when_they_are_old(pair: Pair) -> None:
    pair.refresh()
    store, table = store_of(pair), pair.warehouse / "orders"
    private = pair.warehouse / PRIVATE
    leftovers = {
        table / "data-0123456789ab-shipped" / "_temporary" / "0" / "x" / "part-0.parquet": b"12",
        table / "data-0123456789ab-shipped" / "part-1.parquet": b"345",
        table / "_delta_log" / "_commit_0123-abcd.json.tmp": b"6",
        private / "keys" / "orders.key.0123abcd.tmp": b"7",
        private / "fragments" / "orders.json.0123abcd.tmp": b"8",
        private / "schedule" / "orders.json.0123abcd.tmp": b"of the same fragment",
        private / "runs" / "orders.jsonl.0123abcd.tmp": b"of the same fragment",
        private / "sources" / "erp.json.0123abcd.tmp": b"of all fragments",
        private / "warehouse" / "0000000001-0.parquet.0123abcd.tmp": b"of all fragments",
        private / "warehouse" / "_delta_log" / "_commit_0123-abcd.json.tmp": b"of all fragments",
        private / "executors" / "0123" / "driver": b"of all fragments",
        private / "fragments" / "doctor.0123abcd": b"of all fragments",
        private / "changes" / "orders" / "_version=9" / "part-0.parquet": b"9",
        private / "staging" / "orders" / "000001" / "000001.frames": b"frames",
    }
    note = private / "staging" / "orders" / "000001" / "exchange.json"
    leftovers[note] = json.dumps({"base_version": 7, "recipe": "00"}).encode()
    useful = private / "staging" / "orders" / "000002" / "exchange.json"
    strangers = {
        useful: json.dumps({"base_version": 0, "recipe": "00"}).encode(),
        useful.with_name("000001.frames"): b"frames",
        table / "README.md": b"somebody's",
        table / "data-by-hand" / "part-0.parquet": b"somebody's",
        private / "keys" / "orders.key.old": b"somebody's",
        private / "keys" / "orders2.key.0123abcd.tmp": b"of another fragment",
        private / "fragments" / "other.json.0123abcd.tmp": b"of another fragment",
        private / "schedule" / "other.json.0123abcd.tmp": b"of another fragment",
    }
    for path, data in {**leftovers, **strangers}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    now = datetime.now(UTC)
    assert clean(store, now).places == (), "an attempt may be writing them"
    age(pair.warehouse, KEEP_HOURS + 1)
    found = clean(store, now)
    assert {store.root + "/" + "/".join(p) for p in found.places} == set(map(str, leftovers))
    assert found.bytes == sum(map(len, leftovers.values()))
    assert found.staged_bytes == len(b"frames"), "of those that the next refresh can use"
    assert not any(path.exists() for path in leftovers)
    assert not (table / "data-0123456789ab-shipped").exists()
    assert {path: path.read_bytes() for path in strangers} == strangers
    pair.check("orders")


def test_nothing_goes_when_the_log_is_not_whole(pair: Pair) -> None:
    pair.refresh()
    edit(pair, 1)
    pair.refresh()
    edit(pair, 2)
    pair.refresh()
    age(pair.warehouse, KEEP_HOURS + 1)
    before = data_files(pair)
    log = pair.warehouse / "orders" / "_delta_log"
    shutil.move(log, pair.folder / "kept")
    with pytest.raises(WarehouseUnavailable, match="log is missing"):
        clean(store_of(pair), datetime.now(UTC) + LATER)
    assert data_files(pair) == before


def unpublished(folder: Path) -> Store:
    crashed = folder / "orders" / "data-0123456789ab-shipped"
    crashed.mkdir(parents=True)
    (crashed / "part-0.parquet").write_bytes(b"1234")
    return Store(str(folder))


def test_a_first_load_that_crashed(tmp_path: Path) -> None:
    store = unpublished(tmp_path)
    now = datetime.now(UTC)
    assert clean(store, now).places == ()
    assert clean(store, now + KEEP + timedelta(minutes=1)).bytes == 4
    assert clean(store, now + LATER).places == ()


@pytest.mark.parametrize(
    ("root", "hours"), [(str, -1), (lambda path: f"s3://bucket{path}", 23)], ids=["disk", "s3"]
)
def test_retentions_that_are_too_short(
    tmp_path: Path, root: Callable[[Path], str], hours: int
) -> None:
    with pytest.raises(UsageError, match="too few"):
        unreferenced(Store(root(tmp_path)), "orders", keep_hours=hours, now=datetime.now(UTC))
