"""Writes dashboard.json, a dashboard for Grafana 11 and later.

A row of PANELS is one row of the dashboard; its panels share the width of 24.
"""

import json
from pathlib import Path

TABLES = 'warehouse=~"$warehouse", table=~"$table"'
AGE = f"time() - driftline_as_of_timestamp_seconds{{{TABLES}}}"
LIMIT = f"driftline_freshness_limit_seconds{{{TABLES}}}"
RED = {"mode": "absolute", "steps": [{"color": "green"}, {"color": "red", "value": 1}]}


def increase(name: str, by: str) -> str:
    """Return the sum of a counter of refreshes by a label, in each interval of the panel."""
    return f"sum by ({by}) (increase(driftline_refresh_{name}{{{TABLES}}}[$__interval]))"


def source(name: str, by: str) -> str:
    """Return the same of a counter of sources."""
    return f"sum by ({by}) (increase(driftline_source_{name}[$__interval]))"


STAT, SERIES = "stat", "timeseries"
READ = source("rows_read_total", "relation")
FAILURES = f"driftline_refresh_failures{{{TABLES}}} > 0"
WRITTEN = 'driftline_metrics_written_timestamp_seconds{warehouse=~"$warehouse"}'
CALLS = {
    "driftline_source_calls": "calls, {{instance}}",
    "driftline_source_paused": "paused, {{instance}}",
}
# Title, kind, unit, and expressions with their legends; rows of panels.
PANELS = [
    [
        ("Failing", STAT, "none", {f"count({FAILURES}) or vector(0)": ""}),
        ("Stale", STAT, "none", {f"count({AGE} > {LIMIT}) or vector(0)": ""}),
        ("Oldest", STAT, "s", {f"max({AGE})": ""}),
        ("Last written", STAT, "dateTimeFromNow", {f"max({WRITTEN}) * 1000": ""}),
    ],
    [
        ("Failures since the last success", SERIES, "none", {FAILURES: "{{table}}: {{code}}"}),
        ("Age of tables", SERIES, "s", {AGE: "{{table}}"}),
        ("Age / limit", SERIES, "percentunit", {f"({AGE}) / {LIMIT}": "{{table}}"}),
    ],
    [
        ("Changed rows", SERIES, "none", {increase("rows_changed_total", "change"): "{{change}}"}),
        ("Bytes", SERIES, "bytes", {increase("bytes_total", "direction"): "{{direction}}"}),
        ("Seconds by phase", SERIES, "s", {increase("duration_seconds_sum", "phase"): "{{phase}}"}),
    ],
    [
        ("Errors by code", SERIES, "none", {increase("errors_total", "code"): "{{code}}"}),
        ("Rows", SERIES, "none", {f"driftline_rows{{{TABLES}}}": "{{table}}"}),
        ("Held back", SERIES, "s", {increase("held_back_seconds_total", "table"): "{{table}}"}),
    ],
    [
        ("Source: rows read", SERIES, "none", {READ: "{{relation}}"}),
        ("Source: refused", SERIES, "none", {source("refused_total", "reason"): "{{reason}}"}),
        ("Source: calls, and 1 while paused", SERIES, "none", CALLS),
    ],
]


def panel(
    number: int, place: dict[str, int], title: str, kind: str, unit: str, shown: dict[str, str]
) -> dict:
    """Return a panel."""
    defaults = {"unit": unit, "decimals": 0} if kind == STAT else {"unit": unit, "min": 0}
    if title in ("Failing", "Stale"):
        defaults["thresholds"] = RED
    made = {
        "id": number,
        "title": title,
        "type": kind,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": expr, "legendFormat": legend}
            for n, (expr, legend) in enumerate(shown.items())
        ],
    }
    if "$__interval" in str(shown):
        made["interval"] = "1h"  # refreshes are rare: shorter ones would show single ones
    return made


def panels() -> list[dict]:
    """Return all panels, each row below the one before."""
    made, top = [], 0
    for row in PANELS:
        height, width = (4 if row[0][1] == STAT else 8), 24 // len(row)
        for n, one in enumerate(row):
            place = {"x": n * width, "y": top, "w": width, "h": height}
            made.append(panel(len(made) + 1, place, *one))
        top += height
    return made


def variable(name: str, within: str = "") -> dict:
    """Return a variable of the values that a label has."""
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values(driftline_as_of_timestamp_seconds{within}, {name})",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


DASHBOARD = {
    "uid": "driftline",
    "title": "Driftline",
    "schemaVersion": 39,
    "tags": ["driftline"],
    "time": {"from": "now-7d", "to": "now"},
    "refresh": "1m",
    "templating": {
        "list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            variable("warehouse"),
            variable("table", '{warehouse=~"$warehouse"}'),
        ]
    },
    "panels": panels(),
}

if __name__ == "__main__":
    file = Path(__file__).with_name("dashboard.json")
    file.write_text(json.dumps(DASHBOARD, indent=1) + "\n")
