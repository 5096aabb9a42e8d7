"""The table of versions: flips of several writers, versions pinned, and damage."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import duckdb
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from driftline.errors import NotFound, WarehouseUnavailable

from tests.warehouse_agent.visible_versions.test_members import fragment, view
from warehouse_agent.storage import one_file_table
from warehouse_agent.storage.store import Store
from warehouse_agent.visible_versions import warehouse_versions as versions
from warehouse_agent.visible_versions.members import moved


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def put(store: Store, name: str, version: int) -> versions.WarehouseVersion:
    found = versions.flip(store, lambda before: moved(before, [fragment(name, version)]))
    assert found is not None
    return found


def test_no_table(store: Store) -> None:
    assert versions.newest(store) is None
    assert not versions.exists(store)
    assert versions.flip(store, lambda _: None) is None
    with pytest.raises(NotFound, match="no view was published yet"):
        versions.at_version(store, 0)


def test_versions_can_be_pinned(store: Store) -> None:
    made = view("v", 1, a=4)
    assert put(store, "a", 4).number == 0
    after = versions.flip(store, lambda before: moved(before, [made]))
    assert after is not None
    assert (after.number, after.members["v"]) == (1, made)
    assert put(store, "b", 9).number == 2
    assert put(store, "b", 9).number == 2, "nothing moved"
    assert set(versions.at_version(store, 0).members) == {"a"}
    assert set(versions.at_version(store, 1).members) == {"a", "v"}
    with pytest.raises(NotFound, match="There is no warehouse version 7; the newest is 2"):
        versions.at_version(store, 7)
    assert versions.at_version(store, 2) == versions.newest(store)
    moment = versions.at_version(store, 1).flipped_at
    assert [v.number for v in versions.since(store, moment)] == [1, 2]
    assert [v.number for v in versions.since(store, moment - timedelta(days=1))] == [0, 1, 2]


@pytest.mark.slow
def test_writers_beside_each_other(store: Store) -> None:
    """No flip is lost, numbers are dense, and no version has two of one writer's moves undone."""
    writers, moves = 4, 12

    def write(name: str) -> None:
        for version in range(moves):
            put(store, name, version)

    threads = [threading.Thread(target=write, args=(f"f{i}",)) for i in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = versions.newest(store)
    assert last is not None
    assert last.number == writers * moves - 1
    assert {m.version for m in last.members.values()} == {moves - 1}
    before: dict[str, int] = {}
    for number in range(last.number + 1):
        members = versions.at_version(store, number).members
        now = {name: m.version for name, m in members.items()}
        assert all(now[name] >= version for name, version in before.items())
        assert sum(now.values()) + len(now) == number + 1
        before = now


@pytest.mark.parametrize("error", [CommitFailedError, DeltaError])
@pytest.mark.parametrize("before", [0, 1])
def test_a_flip_that_was_made_and_is_answered_with_an_error(
    store: Store, before: int, error: type[DeltaError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a store that repeats a write whose answer was lost, and finds its own."""
    for version in range(before):
        put(store, "orders", version)
    create = vars(one_file_table)["create_table_with_add_actions"]
    write = DeltaTable.create_write_transaction

    def created(*args: Any, **options: Any) -> None:
        create(*args, **options)
        raise error("A table already exists")

    def written(*args: Any, **options: Any) -> None:
        write(*args, **options)
        raise error("Transaction failed: version already exists")

    with monkeypatch.context() as patched:
        patched.setattr(one_file_table, "create_table_with_add_actions", created)
        patched.setattr(DeltaTable, "create_write_transaction", written)
        assert put(store, "orders", 7).number == before
    found = versions.newest(store)
    assert found is not None
    assert (found.number, found.members["orders"].version) == (before, 7)
    assert put(store, "orders", 8).number == before + 1


def test_a_clock_that_was_behind_makes_no_version_old(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a", 0)
    put(store, "a", 1)
    moment = datetime.now(UTC)

    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) - timedelta(days=40)

    with monkeypatch.context() as patched:
        patched.setattr(versions, "datetime", Behind)
        put(store, "a", 2)
    assert [v.number for v in versions.since(store, moment)] == [1, 2]


def test_garbage(store: Store) -> None:
    for version in range(5):
        put(store, "a", version)
    store.write(b"x", "_driftline", "warehouse", "0000000002-overtaken.parquet")
    last = versions.newest(store)
    assert last is not None
    found = {f.place[-1][:10] for f in versions.garbage(store, 3, last)}
    assert found == {"0000000000", "0000000001", "0000000002"}
    for file in versions.garbage(store, 3, last):
        store.remove_file(*file.place)
    assert versions.at_version(store, 3).members["a"].version == 3
    with pytest.raises(NotFound, match="`gc` removed its file"):
        versions.at_version(store, 1)
    begin = datetime.min.replace(tzinfo=UTC)
    assert [v.number for v in versions.since(store, begin)] == [3, 4], "a smaller --keep-hours"


def test_a_file_of_a_flip_that_is_being_made_stays(store: Store) -> None:
    put(store, "a", 0)
    store.write(b"x", "_driftline", "warehouse", "0000000001-half.parquet")
    last = versions.newest(store)
    assert last is not None
    assert versions.garbage(store, 0, last) == []
    put(store, "a", 1)
    last = versions.newest(store)
    assert last is not None
    assert [f.place[-1] for f in versions.garbage(store, 0, last)] == ["0000000001-half.parquet"]


def test_versions_that_the_log_lost(store: Store, tmp_path: Path) -> None:
    """Left out of what is kept, and never mistaken for one that cannot be read just now."""
    for version in range(4):
        put(store, "a", version)
    begin, log = datetime.min.replace(tzinfo=UTC), tmp_path / versions.TABLE / "_delta_log"
    whole = (log / f"{2:020d}.json").read_text()
    (log / f"{2:020d}.json").write_text("{")
    with pytest.raises(WarehouseUnavailable):
        versions.since(store, begin)
    (log / f"{2:020d}.json").write_text(whole)
    DeltaTable(str(tmp_path / versions.TABLE)).create_checkpoint()
    (log / f"{1:020d}.json").unlink()
    assert [v.number for v in versions.since(store, begin)] == [3]
    with pytest.raises(NotFound, match="the log does not have it"):
        versions.at_version(store, 2)


def test_another_program_wrote_it(store: Store, tmp_path: Path) -> None:
    put(store, "a", 1)
    place = str(tmp_path / versions.TABLE)
    write_deltalake(place, DeltaTable(place).to_pyarrow_table(), mode="append")
    with pytest.raises(WarehouseUnavailable, match="not written by Driftline"):
        versions.newest(store)
    write_deltalake(place, DeltaTable(place, version=0).to_pyarrow_table(), mode="overwrite")
    with pytest.raises(WarehouseUnavailable, match="not written by Driftline"):
        versions.newest(store)


def test_damage_and_newer_releases(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "FORMAT", 2)
    put(store, "a", 1)
    monkeypatch.setattr(versions, "FORMAT", 1)
    with pytest.raises(WarehouseUnavailable, match="newer release"):
        versions.newest(store)
    monkeypatch.setattr(versions, "FORMAT", 2)
    (file,) = (f for f, _ in store.files("_driftline", "warehouse") if f.endswith("parquet"))
    store.write(b"no parquet", "_driftline", "warehouse", file)
    with pytest.raises(WarehouseUnavailable, match="cannot be read"):
        versions.newest(store)
    store.write(b"{", "_driftline", "warehouse", "_delta_log", f"{1:020d}.json")
    with pytest.raises(WarehouseUnavailable, match="cannot be read"):
        versions.newest(store)


def test_others_can_read_it(store: Store, tmp_path: Path) -> None:
    put(store, "a", 4)
    versions.flip(store, lambda before: moved(before, [view("v", 1, a=4)]))
    rows = DeltaTable(str(tmp_path / versions.TABLE)).to_pyarrow_table()
    assert rows.num_rows == 2
    with duckdb.connect() as db:
        db.register("versions", rows)
        asked = "SELECT name, version, inputs['a'] FROM versions ORDER BY name"
        found = db.execute(asked).fetchall()
    assert found == [("a", 4, None), ("v", 1, 4)]
    assert datetime.now(UTC) - versions.at_version(store, 1).flipped_at < timedelta(minutes=5)
