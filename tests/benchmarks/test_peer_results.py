"""benchmarks.peers.results: read as written, the last of a run counts, peers are credited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.meter import Measured
from benchmarks.peers.results import (
    Result,
    append,
    best,
    markdown,
    read,
    wins,
)


def result(tool, link_bytes, wall_s, **more):
    values = {
        "commit": "abc",
        "machine": "one core",
        "server": "PostgreSQL 15",
        "measured_at": "2026-11-20T00:00:00Z",
        "scale": 0.01,
        "table": "orders",
        "pattern": "scattered",
        "rate": 0.01,
        "rtt_ms": 0.0,
        "rate_mbit": None,
        "tool": tool,
        "family": tool.partition(":")[0],
        "needs": "SELECT",
        "delivers": "rows",
        "refreshes_before": 0,
        "is_warming": False,
        "rows_before": 1000,
        "changed": 10,
        "rows_found": 10,
        "is_right": True,
        "floor_bytes": 100,
        "round_trips": None,
        "source_statements": 4,
        "method": None,
        "seconds": {},
        "error": None,
    }
    cost = Measured(0, 1, link_bytes, 2, 0, wall_s, 0.1, 1_000_000, 2_000_000)
    return Result(**{**values, **more}, cost=cost)


OURS = result("driftline:range", 500, 3.0, seconds={"apply": 1.0, "prove": 0.5, "exchange": 1.5})
FEW = result("reladiff:4:50:4", 900, 2.0)
FAST = result("reladiff:32:16384:4", 5000, 1.0)
WRONG = result("reladiff:9:99:9", 10, 0.1, is_right=False, rows_found=9)


def test_lines_are_read_as_they_were_written(tmp_path):
    file = tmp_path / "results.jsonl"
    for one in (OURS, FEW, WRONG):
        append(file, one)
    assert read(file) == [OURS, FEW, WRONG]


def test_the_last_of_a_run_counts(tmp_path):
    file = tmp_path / "results.jsonl"
    again = result("reladiff:4:50:4", 901, 2.5)
    warming = replace(FEW, is_warming=True)
    for one in (FEW, warming, OURS, again):
        append(file, one)
    assert read(file) == [again, warming, OURS]


def test_the_best_of_a_family_by_bytes_and_by_seconds_never_a_wrong_one():
    assert best([FAST, WRONG, FEW, OURS]) == [FEW, FAST, OURS]
    assert best([WRONG, OURS]) == [WRONG, OURS]


def test_a_peer_is_credited_where_it_is_better():
    said = list(wins([OURS, FEW, FAST, WRONG]))
    assert any("reladiff:32:16384:4 in seconds, 1 against 3" in sentence for sentence in said)
    assert not any(" in bytes" in sentence for sentence in said)
    assert not any("reladiff:9:99:9" in sentence for sentence in said)
    assert OURS.known_s == pytest.approx(1.5)


def test_the_table_shows_the_floor_the_ratio_and_what_was_wrong():
    table = markdown([OURS, WRONG])
    assert "| *floor* | 100 | 1 |" in table
    assert "| driftline:range | 500 | 5.00 |" in table
    assert "WRONG: 9 rows found" in table
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
