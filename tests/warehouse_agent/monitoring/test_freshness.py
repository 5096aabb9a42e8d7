"""Rows of the table of freshness, from reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from driftline.errors import (
    ConfigurationError,
    DriftlineError,
    SourceUnreachable,
    WarehouseUnavailable,
)

from warehouse_agent.config import Fragment, Source, View, WarehouseConfig, load
from warehouse_agent.monitoring.after_command import EndedCommand
from warehouse_agent.monitoring.freshness import after, of
from warehouse_agent.report import Report
from warehouse_agent.storage.store import Store
from warehouse_agent.visible_versions.freshness_table import FreshnessRow

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SOURCE = Source("erp", "h:1")


def config(tmp_path: Path) -> WarehouseConfig:
    fragments = {
        "orders": Fragment("orders", SOURCE, "orders"),
        "kept": Fragment("kept", SOURCE, "kept", is_kept=True),
    }
    views = {"sums": View("sums", "SELECT 1")}
    return WarehouseConfig(tmp_path / "w.toml", str(tmp_path), None, {}, {}, fragments, views)


def told(
    tmp_path: Path, known: dict[str, FreshnessRow], *reports: Report
) -> dict[str, FreshnessRow]:
    one = config(tmp_path)
    return after(known, EndedCommand(one, Store.of(one), reports, NOW))


def success(name: str = "orders", version: int = 3) -> Report:
    report = Report(name, version=version, rows_total=7, proof="total", consistency="exact")
    report.as_of, report.checked_at = "2026-11-30T12:59:00.250+01:00", "2026-11-30T11:59:01Z"
    return report


def failure(error: DriftlineError, version: int | None = 3) -> Report:
    report = Report("orders", version=version, previous_version=version)
    report.fail(error)
    report.failed_at = "2026-11-30T11:58:00Z"
    return report


def test_a_success(tmp_path: Path) -> None:
    row = told(tmp_path, {}, success())["orders"]
    assert row == FreshnessRow(
        "orders", "fragment", 3,
        as_of=datetime(2026, 11, 30, 11, 59, 0, 250_000, tzinfo=UTC),
        checked_at=datetime(2026, 11, 30, 11, 59, 1, tzinfo=UTC),
        proof="total", consistency="exact", rows=7,
        last_success_at=datetime(2026, 11, 30, 11, 59, 1, tzinfo=UTC),
        failures=0, state="ok",
    )  # fmt: skip


def test_failures_get_critical_and_a_success_ends_them(tmp_path: Path) -> None:
    rows = told(tmp_path, {}, success())
    states = []
    for _ in range(3):
        rows = told(tmp_path, rows, failure(SourceUnreachable("Gone.")))
        states.append(rows["orders"].state)
    assert states == ["warning", "warning", "critical"]
    failed = rows["orders"]
    assert (failed.version, failed.rows, failed.failures, failed.proof) == (3, 7, 3, "total")
    assert failed.last_failure_at == datetime(2026, 11, 30, 11, 58, tzinfo=UTC)
    assert failed.last_failure_code == SourceUnreachable.code
    again = told(tmp_path, rows, success(version=4))["orders"]
    assert (again.version, again.failures, again.state) == (4, 0, "ok")
    assert again.last_failure_code == SourceUnreachable.code


def test_what_another_try_does_not_mend_is_critical_at_once(tmp_path: Path) -> None:
    row = told(tmp_path, {}, failure(WarehouseUnavailable("Full."), version=None))["orders"]
    assert (row.state, row.version, row.as_of, row.rows) == ("critical", None, None, None)


def test_who_was_not_refreshed_stays_and_who_is_gone_goes(tmp_path: Path) -> None:
    known = {name: FreshnessRow(name, "fragment", 1) for name in ("orders", "gone")}
    put_off = failure(SourceUnreachable("Closed."))
    put_off.put_off_until = "2026-11-30T20:00:00Z"
    waiting = Report("orders", not_started="no time is left")
    assert told(tmp_path, known, put_off, waiting) == {"orders": known["orders"]}


def test_views_and_kept_relations(tmp_path: Path) -> None:
    stale = replace(success("sums"), stale="its input orders is stale")
    rows = told(tmp_path, {}, stale, success("kept"), success("no longer configured"))
    assert {name: (row.kind, row.state) for name, row in rows.items()} == {
        "sums": ("view", "warning"),
        "kept": ("kept", "ok"),
    }


@pytest.mark.parametrize("as_of", ["yesterday", "9999-99-99", None])
def test_a_moment_that_cannot_be(tmp_path: Path, as_of: str | None) -> None:
    assert told(tmp_path, {}, replace(success(), as_of=as_of))["orders"].as_of is None


@pytest.mark.parametrize("table", ["fragments", "views"])
@pytest.mark.parametrize("name", ["driftline_freshness", "Driftline_Freshness"])
def test_its_name_is_reserved(tmp_path: Path, table: str, name: str) -> None:
    file = tmp_path / "warehouse.toml"
    body = 'source = "erp"' if table == "fragments" else 'query = "SELECT id FROM t"'
    file.write_text(
        f'[warehouse]\npath = "w"\n[sources.erp]\naddress = "localhost:1"\ninsecure = true\n'
        f"[{table}.{name}]\n{body}\n"
    )
    with pytest.raises(ConfigurationError, match="how fresh the others are"):
        load(file)


def test_it_may_be_left_out(tmp_path: Path) -> None:
    assert of(config(tmp_path)) is not None
    assert of(replace(config(tmp_path), freshness_table=False)) is None
