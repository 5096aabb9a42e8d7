"""What is learned from histories for the next view phase."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from warehouse_agent.components.phase_history import (
    PHASES,
    RefreshHabit,
    last_phases,
    last_refreshes,
)
from warehouse_agent.components.phase_history import cost as cost_of
from warehouse_agent.components.phase_history import habit as habit_of
from warehouse_agent.components.staleness import PhaseCost
from warehouse_agent.history.history_lines import moved_views
from warehouse_agent.history.refresh_history import append, read
from warehouse_agent.report import MovedViews, Report
from warehouse_agent.storage.store import PRIVATE, Store

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def line(store: Store, name: str, minute: float, rows: int = 0, **fields: object) -> None:
    report = Report(name, version=1, previous_version=0, rows_updated=rows)
    report.checked_at = (T0 + timedelta(minutes=minute)).isoformat()
    report.seconds = {"exchange": 1.5, "apply": 0.5}
    for key, value in fields.items():
        setattr(report, key, value)
    append(store, name, report.to_json())


def cost(store: Store, views: list[str]) -> PhaseCost | None:
    found = cost_of(read(store, view, last_phases()) for view in views)
    assert found == cost_of(read(store, view) for view in views)
    return found


def habit(store: Store, name: str, now: datetime) -> RefreshHabit:
    found = habit_of(read(store, name, last_refreshes()), now)
    assert found == habit_of(read(store, name), now)
    return found


def test_habits(tmp_path: Path) -> None:
    store, now = Store(str(tmp_path)), T0 + timedelta(minutes=45)
    assert habit(store, "orders", now) == RefreshHabit()
    line(store, "orders", 0, 1000, previous_version=None)
    assert habit(store, "orders", now) == RefreshHabit(), "one refresh tells no interval"
    line(store, "orders", 10, 30)
    line(store, "orders", 20, 90)
    line(store, "orders", 25, error={"code": "X"})
    line(store, "orders", 35, 60)
    found = habit(store, "orders", now)
    assert found.interval_s == 15 * 60
    assert found.rows_per_s == 180 / (35 * 60)
    assert (found.rows, found.takes_s) == (60, 2.0)
    assert habit(store, "orders", now + timedelta(hours=2)).interval_s == 130 * 60
    assert habit(store, "orders", T0) == RefreshHabit(), "a clock was set back"


def test_only_the_last_refreshes_count(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    line(store, "orders", 0, previous_version=None)
    for minute in (2000, 2010, 2020, 2030, 2040, 2050):
        line(store, "orders", minute, 10)
    assert habit(store, "orders", T0 + timedelta(minutes=2060)).interval_s == 600


def test_cost_of_phases(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert cost(store, ["v", "w"]) is None
    line(store, "v", 0, view_phases=[{"rows": None, "seconds": 30.0, "at": "2026-01-01"}])
    assert cost(store, ["v", "w"]) is None, "a first load tells nothing"
    both = [{"rows": 100, "seconds": 2.0, "at": "2026-01-02"}]
    line(store, "v", 1, view_phases=both)
    line(store, "w", 1, view_phases=both)
    line(store, "w", 2, view_phases=[{"rows": 300, "seconds": 4.0, "at": "2026-01-03"}, "damage"])
    assert cost(store, ["v", "w"]) == PhaseCost(1.0, 0.01)
    for i in range(PHASES):
        at = f"2027-01-{i + 1:02}"
        line(store, "v", 3 + i, view_phases=[{"rows": 10, "seconds": 7.0, "at": at}])
    assert cost(store, ["v", "w"]) == PhaseCost(7.0, 0.0)
    place = tmp_path / PRIVATE / "runs" / "v.jsonl"
    place.write_bytes(place.read_bytes() + b"{damaged\n" + json.dumps([1]).encode() + b"\n")
    assert cost(store, ["v"]) == PhaseCost(7.0, 0.0)


def test_a_report_names_phases_as_it_always_did() -> None:
    phases = [MovedViews(None, 30.0, "2026-01-01"), MovedViews(7, 0.25, "2026-01-02")]
    body = json.loads(Report("v", view_phases=phases).to_json())
    assert body["view_phases"] == [
        {"rows": None, "seconds": 30.0, "at": "2026-01-01"},
        {"rows": 7, "seconds": 0.25, "at": "2026-01-02"},
    ]
    assert [*moved_views(body["view_phases"])] == phases
    damaged = ["damage", {"rows": 1}, {"rows": -1, "seconds": 1.0, "at": ""}]
    assert [*moved_views([*damaged, *body["view_phases"]])] == phases
    assert not [*moved_views(None)]
