"""A history is read once in a turn, and once for an answer; what it has no more is still told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.config import select
from warehouse_agent.history import change_memory, refresh_history
from warehouse_agent.history.refresh_history import append, read
from warehouse_agent.inspection import refresh_prediction
from warehouse_agent.scheduler import due
from warehouse_agent.storage.store import PRIVATE, Store


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy, relations = SqliteLegacy(tmp_path / "erp.db"), {}
    for name in ("orders", "items"):
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
        legacy.many(f"INSERT INTO {name} VALUES (?, ?)", [(i, f"note {i}") for i in range(300)])
        relations[name] = f'table = "{name}"'
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
        made.small_bytes = 32 << 20
        made.reports()
        yield made
    legacy.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the histories that are opened to be read, in their order."""
    found: list[str] = []

    def noted(function: str) -> None:
        whole = getattr(Store, function)

        def call(store: Store, *parts: str) -> object:
            if parts[:2] == (PRIVATE, "runs"):
                found.append(parts[2].removesuffix(".jsonl"))
            return whole(store, *parts)

        monkeypatch.setattr(Store, function, call)

    noted("lines_backwards")
    noted("read")
    return found


def test_a_history_is_read_once(pair: Pair, opened: list[str]) -> None:
    fragment = select(pair.config(), ["orders"], False)[0]
    assert pair.refresh("orders").rows_changed == 0
    assert opened == ["orders"]
    for answer in (
        lambda: refresh_prediction.forecast(pair.store, fragment),
        lambda: due.scheduled(pair.config(), pair.store, fragment, time.time(), None),
        lambda: pair.said("status", "orders"),
        lambda: pair.said("history", "orders"),
    ):
        opened.clear()
        assert "older than" not in str(answer())
        assert opened == ["orders"]
    opened.clear()
    pair.reports()
    assert sorted(opened) == ["items"] * 2 + ["orders"] * 2, "once for the order of the command"


def test_a_turn_sees_what_it_appends(pair: Pair, opened: list[str]) -> None:
    """The line that a command lost, which the next one writes, is remembered as well."""
    places = ((PRIVATE, "runs", "orders.jsonl"), (PRIVATE, "schedule", "orders.json"))
    before = [pair.store.read(*place) or b"" for place in places]
    pair.legacy.execute("UPDATE orders SET note = 'x' WHERE id < 9")
    pair.refresh("orders")
    for body, place in zip(before, places, strict=True):
        pair.store.write(body, *place)
    opened.clear()
    assert pair.refresh("orders").rows_changed == 0
    assert opened == ["orders"]
    found = change_memory.remembered(pair.store, "orders", "UTC")
    assert sum(one.changed for one in found.recent) == 9
    assert [one.changed for one in read(pair.store, "orders").earlier] == [300, 9, 0]


def test_what_is_not_kept_is_still_told(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_history, "LINES_BYTES_MAX", 9000)
    monkeypatch.setattr(refresh_history, "KEPT_BYTES", 5000)
    for _ in range(6):
        line = pair.refresh("orders").to_json()
    known = read(pair.store, "orders")
    assert len(known.lines) < 7
    assert (known.totals.refreshes, known.totals.loads, known.totals.loaded) == (7, 1, 300)
    assert len(known.lines) + known.folded.whole.refreshes == 7
    shown = json.loads(pair.said("status", "--totals", "--json", "orders"))["totals"]
    assert (shown["refreshes"], shown["failed"], shown["rows_loaded"]) == (7, 0, 300)
    assert shown["since"] == known.folded.since
    assert (
        shown["bytes_sent"] + shown["bytes_received"] == known.totals.sent + known.totals.received
    )
    text = pair.said("status", "--totals", "orders")
    assert f"orders: since {shown['since']}: 7 refreshes went well, 0 failed; rows: 0 " in text
    assert json.loads(pair.said("status", "--json", "orders"))["totals"] is None
    told = pair.said("history", "orders").splitlines()[-1]
    assert told.startswith(f"older than the lines that are kept, from {known.folded.since}: ")
    assert f": {known.folded.whole.refreshes} refreshes went well, 0 failed; rows: 0 " in told
    for _ in range(4):  # foreign lines, in between, change nothing
        append(pair.store, "orders", line.replace('"refresh"', '"verify"'))
    assert pair.refresh("orders").error is None
    assert read(pair.store, "orders").totals.refreshes == 8
