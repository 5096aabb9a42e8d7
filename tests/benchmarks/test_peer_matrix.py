"""benchmarks.peers.matrix: what is changed, in which order, and how a failed tool comes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import meter
from benchmarks.peers import matrix as peer_matrix
from benchmarks.peers.changes import ORDERS, Pattern
from benchmarks.peers.matrix import Choice, Matrix, Shape, Where, warm_rounds
from benchmarks.peers.results import read
from benchmarks.peers.tool import Cell, Outcome, Tool, ToolError, family
from tests.wan.link import Counters

CELL = Cell(ORDERS, Pattern.SCATTERED, 0.1)
LINES = [b'%d,1,O,1.00,1996-01-02,5-LOW,c,0,"words %d"\n' % (at * 4, at) for at in range(100)]
SHAPES = [Shape(0, None), Shape(100, 10)]


class Database:
    """A table of lines, by key."""

    def __init__(self):
        self.rows = {}

    def load(self, table, lines):
        self.rows = {table.key_of(line): line for line in lines}

    def apply(self, changes):
        for key in changes.deleted_keys:
            del self.rows[key]
        new = (*changes.updated, *changes.inserted)
        self.rows |= {changes.table.key_of(line): line for line in new}

    def statements(self):
        return None

    def version(self):
        return "dictionary 1"


def rows(database: Any) -> dict[bytes, bytes]:
    return database.rows


class Link:
    def __init__(self):
        self.shapes = []

    def counters(self):
        return Counters(0, 0, 0, 0, 0)

    def shape(self, *, rtt_ms, rate_mbit):
        self.shapes.append((rtt_ms, rate_mbit))


class Sites:
    def __init__(self):
        self.link = Link()
        self._databases = {}

    def database(self, engine, side):
        return self._databases.setdefault((engine, side), Database())


class Compared(Tool):
    """Compares both dictionaries."""

    def run(self, cell, meter):
        ours, theirs = rows(self.warehouse), rows(self.source)
        return Outcome(len(dict(ours.items() ^ theirs.items())))

    def source_pids(self):
        return [os.getpid()]

    def warehouse_pids(self):
        return []


class Kept(Compared):
    """Keeps a copy from run to run. Some runs fail halfway."""

    learns = True
    compares = False

    def __init__(self, *args, failing=()):
        super().__init__(*args)
        self.copy, self.runs, self.failing = {}, 0, failing

    def prepare(self, cell):
        self.copy = dict(rows(self.source))

    def run(self, cell, meter):
        self.runs += 1
        if self.runs in self.failing:
            raise ToolError("not done after 1 s")
        found = len(dict(self.copy.items() ^ rows(self.source).items()))
        self.copy = dict(rows(self.source))
        return Outcome(found)


class Unready(Kept):
    def prepare(self, cell):
        raise ToolError("no such relation")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_matrix, "lines_of", lambda *_: list(LINES))
    monkeypatch.setattr(meter, "QUIET_S", 0.0)
    sites: Any = Sites()

    def go(tools, warm=2):
        made = [make(name, sites, 60) for name, make in tools.items()]
        where = Where("abc", "one core", 0.01, Path(tmp_path / "results.jsonl"))
        matrix = Matrix(sites, [Choice(tool, 1.0) for tool in made], where, seed=3)
        matrix.run(CELL, SHAPES, warm)
        return read(where.file), sites

    return go


@pytest.mark.slow
def test_every_tool_finds_each_change_once_on_each_link(run):
    results, sites = run({"compared": Compared, "kept": Kept})
    assert all(result.is_right for result in results), results
    measured = [(r.tool, r.rtt_ms) for r in results if not r.is_warming]
    assert measured == [("compared", 0), ("kept", 0), ("compared", 100), ("kept", 100)]
    warming = [(r.tool, r.refreshes_before) for r in results if r.is_warming]
    assert warming == [("kept", 0), ("kept", 1), ("kept", 3), ("kept", 4)]
    assert sites.link.shapes == [(0, None), (0, None), (100, 10)]


@pytest.mark.slow
def test_a_floor_is_computed_for_what_is_shown(run):
    results, _ = run({"kept": Kept})
    shown = {r.floor_bytes is not None: r for r in results}
    assert {r.refreshes_before for r in results if r.floor_bytes} == {0, 2, 5}
    assert shown[True].floor_bytes > 0


@pytest.mark.slow
def test_what_a_failed_run_left_is_not_found_by_the_next(run):
    results, _ = run({"kept": lambda *args: Kept(*args, failing=(1, 3))})
    failed = [result for result in results if result.error]
    assert [result.refreshes_before for result in failed] == [0, 2]
    assert all(result.is_right for result in results if not result.error)


@pytest.mark.slow
def test_a_tool_that_is_never_ready_is_shown_as_such(run):
    results, _ = run({"compared": Compared, "unready": Unready})
    unready = [result for result in results if result.tool == "unready"]
    assert [result.error for result in unready] == ["not prepared: no such relation"] * 2
    assert all(result.is_right for result in results if result.tool == "compared")


def test_rows_are_changed_about_once_while_warming():
    assert [warm_rounds(10, rate) for rate in (0, 0.001, 0.1, 0.5, 1)] == [1, 10, 10, 2, 1]
    assert warm_rounds(0, 0.1) == 0


def test_families():
    assert family("reladiff:32:16384:4") == "reladiff"
    assert family("reladiff:32:16384:4+ssh") == family("reladiff+ssh") == "reladiff+ssh"
    assert family("driftline") == "driftline"
