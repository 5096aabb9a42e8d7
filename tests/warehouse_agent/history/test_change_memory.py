"""The memory of change on a real folder: complete after rotation, reload and damage."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.warehouse_agent.change_models.weeks import MONDAY
from warehouse_agent.events import RefreshCommitted
from warehouse_agent.history import change_memory, refresh_history
from warehouse_agent.history.refresh_history import HistoryListener, read, refreshes
from warehouse_agent.report import Report
from warehouse_agent.storage.store import PRIVATE, Store

DAY_S = 86_400.0


def report(day: float, changed: int = 3, *, is_load: bool = False) -> Report:
    at = datetime.fromtimestamp(MONDAY + day * DAY_S, UTC).isoformat()
    return Report(
        "orders",
        version=1,
        previous_version=None if is_load else 0,
        rows_updated=changed,
        rows_total=10,
        as_of=at,
        checked_at=at,
        bytes_sent=100,
        bytes_received=int(day),
        seconds={"exchange": 2.0, "apply": 1.0},
    )


def refreshed(store: Store, *reports: Report) -> None:
    """As `runs.batch` does it: the line first, then the memory."""
    for one in reports:
        for listen in (
            HistoryListener(store),
            change_memory.IntervalHistory(store, {"orders": "UTC"}),
        ):
            listen(RefreshCommitted(one))


def test_nothing_is_forgotten_when_lines_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_history, "LINES_BYTES_MAX", 20_000)  # a dozen reports
    monkeypatch.setattr(refresh_history, "KEPT_BYTES", 10_000)
    store = Store(str(tmp_path))
    refreshed(store, report(0, is_load=True), *(report(day, day) for day in range(1, 60)))
    memory = change_memory.remembered(store, "orders", "UTC")
    assert [one.changed for one in memory.recent] == list(range(1, 60))
    assert len(list(store.lines_backwards(PRIVATE, "runs", "orders.jsonl"))) < 40


def test_a_reload_forgets_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    refreshed(store, report(0, is_load=True), report(1), report(2), report(5, is_load=True))
    refreshed(store, report(6))
    memory = change_memory.remembered(store, "orders", "UTC")
    assert [one.start for one in memory.recent] == [MONDAY + d * DAY_S for d in (0, 1, 5)]


def test_lines_that_the_memory_lacks_are_read(tmp_path: Path) -> None:
    """Of releases before, and of a command that was killed before it wrote the memory."""
    store = Store(str(tmp_path))
    for one in (report(0, is_load=True), report(1), report(2)):
        HistoryListener(store)(RefreshCommitted(one))
    assert len(change_memory.remembered(store, "orders", "UTC").recent) == 2
    refreshed(store, report(3))
    assert len(change_memory.remembered(store, "orders", "UTC").recent) == 3
    HistoryListener(store)(RefreshCommitted(report(4)))
    assert len(change_memory.remembered(store, "orders", "UTC").recent) == 4


def test_a_clock_that_was_set_back_is_counted_once(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    refreshed(store, report(0, is_load=True), report(3), report(2), report(2.5))
    memory = change_memory.remembered(store, "orders", "UTC")
    assert memory.dropped == 1
    assert [one.hours for one in memory.recent] == [72, 12]


def test_a_history_that_was_read_too_little_is_read_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    refreshed(store, report(0, is_load=True), report(1))
    for day in range(2, 9):
        HistoryListener(store)(RefreshCommitted(report(day)))
    for most in (1, 3, 20):
        newest = read(store, "orders", refreshes(most))
        assert len(change_memory.remembered(store, "orders", "UTC", newest).recent) == 8


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"recent": 3}'])
def test_a_damaged_file_costs_what_lines_do_not_have(tmp_path: Path, damage: bytes) -> None:
    store = Store(str(tmp_path))
    refreshed(store, report(0, is_load=True), report(1), report(2))
    store.write(damage, PRIVATE, "schedule", "orders.json")
    assert len(change_memory.remembered(store, "orders", "UTC").recent) == 2


def test_what_a_refresh_takes(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert change_memory.habits(read(store, "orders")) == (0.0, None)
    refreshed(store, report(0, is_load=True), report(10), report(20), report(30))
    assert change_memory.habits(read(store, "orders")) == (3.0, 115)


def test_the_file_is_small(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    refreshed(store, report(0, is_load=True), report(1))
    body = json.loads((tmp_path / PRIVATE / "schedule" / "orders.json").read_text())
    assert len(body["recent"]) == 1
