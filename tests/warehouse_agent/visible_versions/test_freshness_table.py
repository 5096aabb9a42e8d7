"""The table of freshness: commits beside each other, and what is kept of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from driftline.errors import Locked, NotFound, WarehouseUnavailable

from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.storage.store import Store
from warehouse_agent.visible_versions import freshness_table
from warehouse_agent.visible_versions.freshness_table import FreshnessRow

Rows = Mapping[str, FreshnessRow]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def put(store: Store, name: str, version: int) -> None:
    def change(known: Rows) -> Rows:
        return {**known, name: FreshnessRow(name, "fragment", version)}

    freshness_table.replace(store, change)


def rows(store: Store) -> dict[str, int]:
    found = DeltaTable(store.table(FRESHNESS)).to_pyarrow_table().to_pylist()
    return {row["name"]: row["version"] for row in found}


def test_the_same_rows_are_no_commit(store: Store) -> None:
    put(store, "a", 1)
    put(store, "a", 1)
    assert DeltaTable(store.table(FRESHNESS)).version() == 0


def test_commands_beside_each_other_lose_nothing(store: Store) -> None:
    writers, commits = 3, 6

    def write(name: str) -> None:
        for version in range(commits):
            put(store, name, version)

    threads = [threading.Thread(target=write, args=(f"t{i}",)) for i in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(store) == {f"t{i}": commits - 1 for i in range(writers)}
    assert DeltaTable(store.table(FRESHNESS)).version() == writers * commits - 1
    files = list(Path(store.table(FRESHNESS)).glob("*.parquet"))
    assert len(files) == writers * commits, "those that were overtaken are removed"


def test_it_is_overtaken_so_many_times(store: Store) -> None:
    put(store, "a", 0)
    asked = []

    def change(known: Rows) -> Rows:
        asked.append(known["a"].version)
        put(store, "a", len(asked))
        return {**known, "b": FreshnessRow("b", "fragment", 0)}

    with pytest.raises(Locked):
        freshness_table.replace(store, change)
    assert asked == list(range(freshness_table.TRIES_MAX))
    assert "b" not in rows(store)


def test_another_program_wrote_it(store: Store) -> None:
    put(store, "a", 0)
    DeltaTable(store.table(FRESHNESS)).delete()
    with pytest.raises(WarehouseUnavailable, match="another program"):
        put(store, "a", 1)
    with pytest.raises(WarehouseUnavailable, match="another program"):
        freshness_table.data_file(store)
    assert freshness_table.garbage(store, datetime.now(UTC)) == (0, [])


def test_nothing_is_there(store: Store) -> None:
    with pytest.raises(NotFound):
        freshness_table.data_file(store)
    assert freshness_table.garbage(store, datetime.now(UTC)) == (0, [])
    freshness_table.shorten(store, 3)


def test_what_was_the_newest_within_the_time_is_kept(store: Store) -> None:
    for version in range(4):
        put(store, "a", version)
    now = datetime.now(UTC)
    folder = Path(store.table(FRESHNESS))
    for hours, file in zip((9, 5, 3, 1), sorted(folder.glob("*.parquet")), strict=True):
        at = (now - timedelta(hours=hours)).timestamp()
        os.utime(file, (at, at))

    def left(hours: float) -> list[int]:
        _, files = freshness_table.garbage(store, now - timedelta(hours=hours))
        gone = {file.place[-1] for file in files}
        return [int(f.name[:10]) for f in sorted(folder.glob("*.parquet")) if f.name not in gone]

    assert left(10) == [0, 1, 2, 3]
    assert left(4) == [1, 2, 3]
    assert left(2) == [2, 3]
    assert left(0) == [3]
