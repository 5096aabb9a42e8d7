"""The order of notes and commits: what takes trust away comes before, what was learnt once after.

At each point the process may end; here the commit or the note after it fails, which leaves the same
files.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import NotFound, WarehouseUnavailable
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from warehouse_agent import changes
from warehouse_agent.history.notes import HeadNote, Notes
from warehouse_agent.inspection.published_state import PublishedState, fragment_state
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.storage import formats
from warehouse_agent.storage.backends.interface import Change
from warehouse_agent.storage.store import Store
from warehouse_agent.table_maintenance.verification import verified

ROWS = 300
ACCEPTED = Options(accept_restored=True)
NOTES = ("_driftline", "fragments", "orders.json")


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    """A table with three versions, the last of which was found equal afterwards."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status INT)")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(i, i % 7) for i in range(ROWS)])
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        made.refresh("orders")
        for status in range(2):
            legacy.execute("UPDATE orders SET status = status + 10 WHERE status = ?", status)
            made.refresh("orders")
        made.refresh("orders")
        yield made


def stored(pair: Pair) -> Store:
    return pair.store


def notes_of(pair: Pair) -> Notes:
    return Notes.read(stored(pair), "orders")


def status(pair: Pair) -> PublishedState:
    return fragment_state(stored(pair), "orders")


def head_version(pair: Pair) -> int:
    found = formats.head(stored(pair), "orders")
    assert found is not None
    return found.version


def lost(_job: Job) -> None:
    raise WarehouseUnavailable("The note is lost.")


def test_a_refresh_that_finds_nothing_reads_notes_once_and_writes_them_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()
    read, write, change = Store.read, Store.write, Store.change

    def counted_read(self: Store, *parts: str) -> bytes | None:
        calls["read"] += parts == NOTES
        return read(self, *parts)

    def counted_write(self: Store, data: bytes, *parts: str, private: bool = False) -> None:
        calls["written"] += parts == NOTES
        write(self, data, *parts, private=private)

    def counted_change(self: Store, new: Change, *parts: str) -> None:
        calls["changed"] += parts == NOTES
        change(self, new, *parts)

    monkeypatch.setattr(Store, "read", counted_read)
    monkeypatch.setattr(Store, "write", counted_write)
    monkeypatch.setattr(Store, "change", counted_change)
    assert pair.refresh("orders").version == 2
    assert +calls == {"read": 1, "written": 1}
    calls.clear()
    pair.legacy.execute("UPDATE orders SET status = 0 WHERE id = 7")
    assert pair.refresh("orders").version == 3
    assert +calls == {"read": 1, "written": 1}
    calls.clear()
    with monkeypatch.context() as without_locks:
        without_locks.setattr(Store, "has_locks", False)
        pair.refresh("orders")
    assert +calls == {"read": 1, "changed": 1}, "what others noted meanwhile is read too"


def test_a_note_that_is_lost_behind_its_commit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the version speaks for it; the next refresh costs no more than a forecast."""
    before = status(pair)
    pair.legacy.execute("UPDATE orders SET status = 0 WHERE id = 7")
    with monkeypatch.context() as patch:
        patch.setattr(Job, "write_notes", lost)
        report = pair.refresh("orders")
    found = status(pair)
    assert (found.version, found.as_of, found.proof) == (3, report.as_of, "total")
    assert found.as_of != before.as_of
    assert notes_of(pair).head == HeadNote(_table(pair), 2), "it accuses nobody"
    assert pair.refresh("orders").version == 3
    pair.check("orders")


def test_what_was_said_of_versions_goes_before_their_numbers_come_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is moved away, and the first load after it ends behind its commit."""
    (pair.warehouse / "orders").rename(pair.folder / "aside")
    commit, at_commit = formats.commit, list[Notes]()

    def noticed(*args: Any, **kwargs: Any) -> None:
        at_commit.append(notes_of(pair))
        commit(*args, **kwargs)
        monkeypatch.setattr(Job, "write_notes", lost)

    monkeypatch.setattr(formats, "commit", noticed)
    report = pair.refresh("orders")
    monkeypatch.undo()
    (known,) = at_commit
    assert not known.has_versions
    assert known.prices.copied_row_bytes, "what was learnt stays"
    found = status(pair)
    assert (found.version, found.as_of, found.proof) == (0, report.as_of, "total")
    assert pair.refresh("orders").version == 0
    # The other way: the old table comes back, with versions of the same numbers.
    noted = status(pair)
    shutil.rmtree(pair.warehouse / "orders")
    (pair.folder / "aside").rename(pair.warehouse / "orders")
    back = status(pair)
    assert back.version == 2
    assert (back.as_of or "") < (noted.as_of or ""), "the record of its newest version, and no note"


def test_numbers_that_come_again_are_refused_until_the_last_is_there(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader who had followed the feed to the newest number would be led on from other rows."""
    log = pair.warehouse / "orders" / "_delta_log"
    (log / f"{2:020d}.json").unlink()
    commit, at_commit = formats.commit, list[Notes]()

    def once(*args: Any, **kwargs: Any) -> None:
        at_commit.append(notes_of(pair))
        if len(at_commit) > 1:
            raise WarehouseUnavailable("The disk is full.")
        commit(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(formats, "commit", once)
        (report,) = pair.reports("orders", options=ACCEPTED)
    assert report.error is not None
    assert head_version(pair) == 2
    assert all(known.checked is None and known.part is None for known in at_commit)
    found = formats.head(stored(pair), "orders")
    assert found is not None
    assert found.record.restored == 1
    error = pair.error("orders")
    assert error["code"] == "WAREHOUSE"
    assert "version 2" in error["message"]
    assert "--accept-restored" in error["remedy"]
    with pytest.raises(WarehouseUnavailable, match="led on from rows that are gone"):
        verified(stored(pair), "orders", found, {})
    pair.legacy.execute("UPDATE orders SET status = 0 WHERE id = 7")
    report = pair.refresh("orders", options=ACCEPTED)
    assert (report.previous_version, report.version) == (3, 4)
    with pytest.raises(NotFound, match="was restored"):
        changes(pair.spark, pair.warehouse, "orders", since=2).collect()
    pair.check("orders")
    pair.check_feed("orders", 4)
    assert notes_of(pair).head == HeadNote(_table(pair), 4)
    assert pair.refresh("orders").version == 4


def test_what_an_attempt_learnt_is_kept_if_it_fails(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = pair.warehouse.joinpath(*NOTES)
    body = json.loads(place.read_text())
    known = {key: body[key] for key in body if key not in ("quantiles", "quantiles_rows", "key")}
    place.write_text(json.dumps(known))
    pair.legacy.execute("UPDATE orders SET status = 0 WHERE id = 7")
    with monkeypatch.context() as patch:
        patch.setattr(formats, "commit", lambda *_: 1 / 0)
        (report,) = pair.reports("orders")
    assert report.error is not None
    after = json.loads(place.read_text())
    assert {key: after[key] for key in known} == known
    assert after["quantiles_rows"] == ROWS


def _table(pair: Pair) -> str:
    found = formats.head(stored(pair), "orders")
    assert found is not None
    return found.table
