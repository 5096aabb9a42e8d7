"""Alert rules fire when they should and not else; the dashboard shows metrics that there are."""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from source_agent.server.metrics import AuditCounters
from tests import ROOT
from tests.harness.prometheus import promtool
from warehouse_agent.config import WarehouseConfig
from warehouse_agent.monitoring import metrics

FOLDER = ROOT / "deploy/monitoring"
RULES = FOLDER / "alerts.yml"
UNITS = {"none", "s", "bytes", "percentunit", "dateTimeFromNow"}  # of Grafana
DAY = 24 * 60  # minutes, the interval of all series
Case = tuple[dict[str, str], int]  # series by selector, and the minute at which to look

ONE = 'table="orders", warehouse="/w", job="node", instance="a"'
WAREHOUSE = 'warehouse="/w", job="node", instance="a"'


def failures(code: str, values: str) -> dict[str, str]:
    return {f'driftline_refresh_failures{{code="{code}", {ONE}}}': values}


def fresh(as_of: str, limit: str = "3600x{}") -> dict[str, str]:
    return {
        f"driftline_as_of_timestamp_seconds{{{ONE}}}": as_of,
        f"driftline_freshness_limit_seconds{{{ONE}}}": limit.format(2 * DAY),
    }


def exact(success: str, as_of: str | None) -> dict[str, str]:
    found = {f"driftline_refresh_last_success_timestamp_seconds{{{ONE}}}": success}
    if as_of is not None:
        found[f"driftline_exact_as_of_timestamp_seconds{{{ONE}}}"] = as_of
    return found


def held(held_back: str) -> dict[str, str]:
    phase = 'driftline_refresh_duration_seconds_sum{{phase="{}", ' + ONE + "}}"
    return {
        f"driftline_refresh_held_back_seconds_total{{{ONE}}}": held_back,
        phase.format("exchange"): f"0+8x{2 * DAY}",
        phase.format("apply"): f"0+2x{2 * DAY}",
    }


def written(values: str, limit: str = "") -> dict[str, str]:
    limits = {f"driftline_freshness_limit_seconds{{{ONE}}}": limit} if limit else {}
    return {f"driftline_metrics_written_timestamp_seconds{{{WAREHOUSE}}}": values} | limits


def paused(values: str) -> dict[str, str]:
    return {'driftline_source_paused{instance="b"}': values}


CASES: dict[str, tuple[list[Case], list[Case]]] = {
    "DriftlineFailing": (
        [(failures("UNREACHABLE", "1x30"), 20), (failures("KILLED", "0x9 2x30"), 30)],
        [
            (failures("", "0x30"), 20),
            (failures("UNREACHABLE", "1x5 _x30"), 20),  # the next refresh went well
            (failures("SHRANK", "1x30"), 20),
        ],
    ),
    "DriftlineShrank": (
        [(failures("SHRANK", "1x30"), 1)],
        [(failures("UNREACHABLE", "1x30"), 20), (failures("", "0x30"), 20)],
    ),
    "DriftlineStale": (
        [(fresh(f"0x{2 * DAY}"), 75), (fresh(f"0+30x{2 * DAY}"), 150)],
        [
            (fresh(f"0x{2 * DAY}"), 55),
            (fresh(f"0+60x{2 * DAY}"), 2 * DAY),
            ({f"driftline_as_of_timestamp_seconds{{{ONE}}}": f"0x{2 * DAY}"}, DAY),  # no limit
        ],
    ),
    "DriftlineNeverExact": (
        [
            (exact(f"0+60x{9 * DAY}", None), 2 * DAY),
            (exact(f"0+60x{9 * DAY}", f"0x{9 * DAY}"), 8 * DAY),
        ],
        [
            (exact(f"0+60x{9 * DAY}", f"0+60x{9 * DAY}"), 9 * DAY),
            (exact(f"0+60x{9 * DAY}", f"0x{9 * DAY}"), 6 * DAY),
            (exact(f"0x{9 * DAY}", f"0x{9 * DAY}"), 8 * DAY),  # it is stale, not inexact
        ],
    ),
    "DriftlineSourceHoldsBack": (
        [(held(f"0+6x{2 * DAY}"), 2 * DAY)],
        [(held(f"0+4x{2 * DAY}"), 2 * DAY), (held(f"0x{2 * DAY}"), 2 * DAY)],
    ),
    "DriftlineSourcePaused": (
        [(paused(f"1x{2 * DAY}"), DAY + 10)],
        [
            (paused(f"1x{2 * DAY}"), DAY - 10),
            (paused(f"1x{DAY // 2} 0x60 1x{2 * DAY}"), DAY + 10),  # quiet hours
        ],
    ),
    "DriftlineNothingWritten": (
        [
            (written(f"0x{3 * DAY}", f"3600x{3 * DAY}"), 90),
            (written(f"0x{3 * DAY}"), 2 * DAY + 20),
            (written(f"0+60x30 _x{3 * DAY}"), 60),
            ({}, 20),
        ],
        [
            (written(f"0x{3 * DAY}", f"3600x{3 * DAY}"), 55),
            (written(f"0x{3 * DAY}", f"{3 * 86_400}x{3 * DAY}"), 2 * DAY - 20),
            (written(f"0+60x{3 * DAY}", f"3600x{3 * DAY}"), 3 * DAY),
            (written(f"0+60x30 _x10 2400+60x{3 * DAY}"), 120),  # the machine was started again
        ],
    ),
}


def alerts() -> set[str]:
    return set(re.findall(r"- alert: (\w+)", RULES.read_text()))


def test_prometheus_accepts_the_rules_and_each_has_cases() -> None:
    promtool("check", "rules", RULES)
    assert alerts() == set(CASES)
    text = RULES.read_text()
    assert text.count("summary:") == text.count("description:") == len(CASES)


@pytest.mark.parametrize("alert", CASES)
def test_it_fires_when_it_should_and_not_else(alert: str, tmp_path: Path) -> None:
    firing, quiet = CASES[alert]
    tests = [*cases(alert, firing, True), *cases(alert, quiet, False)]
    file = tmp_path / "test.yml"  # JSON is YAML, too
    body = {"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": tests}
    file.write_text(json.dumps(body))
    promtool("test", "rules", file)


def cases(alert: str, listed: list[Case], is_firing: bool) -> Iterator[dict[str, Any]]:
    """Yield tests of promtool: by ALERTS, so that labels and texts need no repeating here."""
    for series, minute in listed:
        found = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
        samples = [{"labels": "{}", "value": 1}] if is_firing else []
        expected = {"expr": found, "eval_time": f"{minute}m", "exp_samples": samples}
        yield {
            "interval": "1m",
            "input_series": [{"series": one, "values": v} for one, v in series.items()],
            "promql_expr_test": [expected],
        }


def exported() -> set[str]:
    """Return the names of all metrics of both agents."""
    from prometheus_client.parser import text_string_to_metric_families

    config = WarehouseConfig(Path("w.toml"), "/w", None, {}, {}, {})
    names = {metric.name for metric in metrics.numbers(config, {}, datetime.now(UTC))}
    names |= {f"{one}_total" for one in names} | {f"{one}_sum" for one in names}
    page = AuditCounters().page(["orders"], is_paused=False, calls=0).decode()
    for family in text_string_to_metric_families(page):
        names |= {family.name, f"{family.name}_total"}
    return names


def named(text: str) -> set[str]:
    return set(re.findall(r"\bdriftline_\w+", text))


def test_rules_name_metrics_that_there_are() -> None:
    assert named(RULES.read_text()) <= exported()


def test_the_dashboard_is_that_of_its_declaration() -> None:
    made = runpy.run_path(str(FOLDER / "make_dashboard.py"))["DASHBOARD"]
    assert json.loads((FOLDER / "dashboard.json").read_text()) == made


def test_each_panel_shows_metrics_that_there_are_in_a_unit(tmp_path: Path) -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    assert dashboard["schemaVersion"] == 39
    panels = dashboard["panels"]
    for key in ("id", "title"):
        assert len({panel[key] for panel in panels}) == len(panels)
    cells = Counter(
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert set(cells.values()) == {1}  # no two panels overlap
    assert {x for x, _ in cells} == set(range(24))
    known = {one["name"] for one in dashboard["templating"]["list"]}
    rules: list[dict[str, Any]] = []
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            expr = target["expr"].replace("$__interval", "1h")
            assert set(re.findall(r"\$(\w+)", expr)) <= known
            rules.append({"record": f"one:two:n{len(rules)}", "expr": expr})
    assert named(json.dumps(dashboard)) <= exported()
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)  # so each is an expression of Prometheus
