"""Refreshes that failed: what is counted, what clears it, and what monitoring makes of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from warehouse_agent.history import alarms, failures
from warehouse_agent.history.alarms import MonitoringState, TableFacts
from warehouse_agent.history.failures import Failure
from warehouse_agent.history.refresh_history import RefreshHistory, read
from warehouse_agent.storage.store import PRIVATE, Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
WENT_WELL = {
    "command": "refresh",
    "error": None,
    "version": 3,
    "checked_at": "2026-01-02T00:00:00Z",
}


def attempt(hour: int, code: str = "RECIPE", **more: Any) -> dict[str, Any]:
    error = {
        "code": code, "message": "Columns changed.", "where": "orders", "remedy": "Look.",
        "safe_to_retry": code == "UNREACHABLE", "exit_code": 6, "details": {"added": "note"},
    }  # fmt: skip
    failed_at = f"2026-01-05T{hour:02}:00:00Z"
    return {"command": "refresh", "error": error, "version": 3, "failed_at": failed_at} | more


def written(folder: Path, *lines: dict[str, Any] | str) -> RefreshHistory:
    store = Store(str(folder))
    body = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    store.write(body.encode(), PRIVATE, "runs", "orders.jsonl")
    found, enough = read(store, "orders"), read(store, "orders", failures.until_success())
    assert failures.since_success(enough) == failures.since_success(found)
    return found


def test_what_failed_last_is_said_with_its_cause_and_remedy(tmp_path: Path) -> None:
    history = written(tmp_path, WENT_WELL, attempt(8, "LOCKED"), attempt(9), attempt(11))
    found = failures.since_success(history)
    assert [(one.code, one.times) for one in found] == [("RECIPE", 2), ("LOCKED", 1)]
    whole = failures.in_all(found)
    assert whole is not None
    line, detail = whole.lines("orders", NOW)
    assert line == (
        "orders: the last 3 refreshes failed, the first 4 hours ago, the last 1 hour ago:"
        " RECIPE: orders: Columns changed. Look."
    )
    assert detail == "  added: note"
    assert Failure(**asdict(whole)) == whole


@pytest.mark.parametrize(
    ("lines", "times"),
    [
        ([], 0),
        ([WENT_WELL], 0),
        ([attempt(8)], 1),  # nothing was ever published
        ([attempt(8), WENT_WELL], 0),
        ([WENT_WELL, attempt(8), attempt(9, put_off_until="2026-01-06T00:00:00Z")], 1),
        ([WENT_WELL, attempt(8, command="verify"), "{cut off", "7", '{"command": "refresh"}'], 0),
        ([WENT_WELL, attempt(8), {**WENT_WELL, "command": "verify"}], 1),
        ([attempt(8)] * (failures.FAILURES_READ_MAX + 9), failures.FAILURES_READ_MAX),
    ],
)
def test_a_success_clears_failures_and_nothing_else_does(
    tmp_path: Path, lines: list[dict[str, Any] | str], times: int
) -> None:
    found = failures.since_success(written(tmp_path, *lines))
    assert sum(one.times for one in found) == times
    assert (failures.in_all(found) is None) == (times == 0)


def test_a_line_of_an_older_release_counts_without_a_time(tmp_path: Path) -> None:
    old = {"command": "refresh", "error": {"code": "VALUE", "exit_code": 1}, "version": "?"}
    history = written(tmp_path, old, old)
    (found,) = failures.since_success(history)
    assert (found.times, found.at, found.version) == (2, None, None)
    assert found.lines("orders", NOW)[0].startswith("orders: the last 2 refreshes failed: VALUE")
    assert failures.kept(history) == []


def failed(times: int = 1, *, safe_to_retry: bool = False) -> Failure:
    at = "2026-01-05T11:00:00Z"
    return Failure(times, at, at, 3, "X", "No.", "orders", "Look.", safe_to_retry, 1, {})


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (TableFacts(), MonitoringState.OK),
        (TableFacts(is_published=False), MonitoringState.UNKNOWN),
        (TableFacts(failure=failed()), MonitoringState.CRITICAL),
        (TableFacts(is_published=False, failure=failed()), MonitoringState.CRITICAL),
        (
            TableFacts(failure=failed(alarms.FAILURES_MAX - 1, safe_to_retry=True)),
            MonitoringState.WARNING,
        ),
        (
            TableFacts(failure=failed(alarms.FAILURES_MAX, safe_to_retry=True)),
            MonitoringState.CRITICAL,
        ),
        (TableFacts(damaged=1), MonitoringState.WARNING),
        (TableFacts(stale="orders was left out"), MonitoringState.WARNING),
        (TableFacts(unseen_s=3600 * alarms.LATE, interval_s=3600), MonitoringState.OK),
        (TableFacts(unseen_s=3601 * alarms.LATE, interval_s=3600), MonitoringState.WARNING),
        (TableFacts(unseen_s=1e9, interval_s=None), MonitoringState.OK),  # nothing was asked for
        (
            TableFacts(unseen_s=1e9, interval_s=3600, put_off_until="2026-01-06T00:00:00Z"),
            MonitoringState.OK,
        ),
    ],
)
def test_the_state_of_a_table(known: TableFacts, state: MonitoringState) -> None:
    found = alarms.alarms(known)
    assert alarms.worst([one.state for one in found] or [MonitoringState.OK]) is state
    late = [one.why for one in found if one.why.startswith("late: ")]
    since, limit = alarms.late_s(known), alarms.limit_s(known) or 0.0
    assert late == ([] if since is None else [alarms.late_text(since, limit)])


def test_the_worst_state_counts() -> None:
    assert alarms.worst([MonitoringState.OK, MonitoringState.UNKNOWN]) is MonitoringState.UNKNOWN
    assert (
        alarms.worst([MonitoringState.WARNING, MonitoringState.UNKNOWN, MonitoringState.OK])
        is MonitoringState.WARNING
    )
    assert (
        alarms.worst([MonitoringState.CRITICAL, MonitoringState.WARNING])
        is MonitoringState.CRITICAL
    )
    assert alarms.worst([]) is MonitoringState.UNKNOWN
    named = [
        MonitoringState.OK,
        MonitoringState.WARNING,
        MonitoringState.CRITICAL,
        MonitoringState.UNKNOWN,
    ]
    assert [one.value for one in named] == [0, 1, 2, 3]


def test_failures_of_the_last_day_that_are_over(tmp_path: Path) -> None:
    well = WENT_WELL | {"checked_at": "2026-01-05T09:00:00Z"}
    old = attempt(2) | {"failed_at": "2026-01-04T11:00:00Z"}
    known = written(
        tmp_path, old, WENT_WELL, attempt(3, "UNREACHABLE"), attempt(4), well, attempt(11)
    )
    assert [one.code for one in failures.recovered(known, NOW)] == ["RECIPE", "UNREACHABLE"]
    assert failures.recovered(known, NOW + timedelta(days=2)) == []
    damaged = attempt(4) | {"failed_at": "yesterday"}
    known = written(tmp_path, damaged, attempt(5), well)
    assert [one.at for one in failures.recovered(known, NOW)] == ["2026-01-05T05:00:00Z"]
    assert failures.recovered(RefreshHistory(), NOW) == []
