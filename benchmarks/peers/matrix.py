"""The matrix of side-by-side runs: for each cell the loads, the changes, the tools, the results.

A cell is a table, a pattern and a change rate. Its table is loaded anew at both sites; then, for
each link, tools that learn are warmed up by changes of that rate, then comes one more change and
every tool finds it. Both sites' databases are alike before each change. What a tool found is held
against what was changed: a wrong count is a wrong result, however cheap.
"""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import tpch
from benchmarks.floor import floor_bytes
from benchmarks.meter import Measured, Meter
from benchmarks.peers.changes import ChangeSet, draw, lines_of
from benchmarks.peers.results import Result, append, link_name, percent
from benchmarks.peers.sites import Database, Side, Sites
from benchmarks.peers.tool import Cell, Outcome, Tool, ToolError

WARM_AGAIN = 3  # refreshes on a later link: the rate is learnt, the link is new
NO_COST = Measured(0, 0, 0, 0, 0, 0.0, 0.0, 0, 0)  # it did not run


@dataclass(frozen=True, slots=True)
class Shape:
    """A link. `rate_mbit`: None is as fast as it can."""

    rtt_ms: float
    rate_mbit: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A tool and up to which change rate it runs."""

    tool: Tool
    rate_max: float


@dataclass(frozen=True, slots=True)
class Round:
    """One change of a cell on a link. `refreshes`: since the load, so far."""

    cell: Cell
    shape: Shape
    refreshes: int
    is_warming: bool


@dataclass(frozen=True, slots=True)
class Where:
    """What all results of one invocation have in common."""

    commit: str
    machine: str
    scale: float
    file: Path


class Matrix:
    """Runs the cells and writes the results."""

    def __init__(self, sites: Sites, choices: Sequence[Choice], where: Where, seed: int) -> None:
        self._sites, self._choices, self._where = sites, choices, where
        self._seeds = itertools.count(seed)

    def run(self, cell: Cell, shapes: Sequence[Shape], warm: int) -> None:
        tools = [c.tool for c in self._choices if cell.rate <= c.rate_max]
        self._shape(Shape(0, None))
        lines = lines_of(cell.table, tpch.DATA, self._where.scale)
        for side in Side:
            for database in self._databases(tools, side):
                database.load(cell.table, lines)
        broken: dict[str, str] = {}
        try:
            for tool in tools:
                prepare(tool, cell, broken)
            refreshes = 0
            for number, shape in enumerate(shapes):
                self._shape(shape)
                rounds = warm_rounds(warm if number == 0 else min(warm, WARM_AGAIN), cell.rate)
                learners = [tool for tool in tools if tool.learns and tool.name not in broken]
                now = Round(cell, shape, refreshes, is_warming=True)
                for _ in range(rounds if learners else 0):
                    lines = self._round(now, lines, learners, tools, broken)
                    now = replace(now, refreshes=now.refreshes + 1)
                lines = self._round(replace(now, is_warming=False), lines, tools, tools, broken)
                refreshes = now.refreshes + 1
        finally:
            for tool in tools:
                tool.finish(cell)

    def _round(
        self,
        now: Round,
        lines: Sequence[bytes],
        running: Sequence[Tool],
        tools: Sequence[Tool],
        broken: dict[str, str],
    ) -> list[bytes]:
        """One change, found by every running tool; returns the table after it."""
        cell = now.cell
        seed = next(self._seeds)
        changes, after = draw(cell.table, lines, rate=cell.rate, pattern=cell.pattern, seed=seed)
        floor = None
        if now.refreshes == 0 or not now.is_warming:
            new = itertools.chain(changes.updated, changes.inserted)
            floor = floor_bytes(new, rows=changes.rows_of_both, changed=changes.changed)
        databases = {side: self._databases(tools, side) for side in Side}
        for database in databases[Side.SOURCE]:
            database.apply(changes)
        for tool in running:
            result = self._measure(tool, now, changes, floor, broken.get(tool.name))
            append(self._where.file, result)
            show(result)
            if tool.learns and result.error and tool.name not in broken:
                prepare(tool, cell, broken)  # or it would find this change with the next
        for database in databases[Side.WAREHOUSE]:
            database.apply(changes)
        return after

    def _measure(
        self, tool: Tool, now: Round, changes: ChangeSet, floor: int | None, error: str | None
    ) -> Result:
        """One run; with an `error`, none."""
        outcome, cost = Outcome(-1), NO_COST
        before = tool.source.statements()
        if error is None:
            pids = tool.source_pids(), tool.warehouse_pids()
            with Meter(self._sites.link, now.shape.rtt_ms, *pids) as meter:
                try:
                    outcome = tool.run(now.cell, meter)
                except ToolError as failure:
                    error = str(failure)
            assert meter.measured is not None
            cost = meter.measured
        after = tool.source.statements()
        expected = changes.changed if tool.finds_changes else changes.rows_after
        return Result(
            commit=self._where.commit,
            machine=self._where.machine,
            server=tool.source.version(),
            measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            scale=self._where.scale,
            table=now.cell.table.name,
            pattern=now.cell.pattern.value,
            rate=now.cell.rate,
            rtt_ms=now.shape.rtt_ms,
            rate_mbit=now.shape.rate_mbit,
            tool=tool.name,
            family=tool.family,
            needs=tool.needs,
            delivers=tool.delivers.value,
            refreshes_before=now.refreshes if tool.learns else 0,
            is_warming=now.is_warming,
            rows_before=changes.rows_before,
            changed=changes.changed,
            rows_found=None if error else outcome.rows_found,
            is_right=error is None and outcome.rows_found == expected,
            floor_bytes=floor,
            round_trips=outcome.round_trips,
            source_statements=None if before is None or after is None else after - before,
            method=outcome.method,
            seconds=dict(outcome.seconds),
            error=error,
            cost=cost,
        )

    def _databases(self, tools: Sequence[Tool], side: Side) -> list[Database]:
        """Those of one side that these tools need."""
        engines = {tool.engine: None for tool in tools if side is Side.SOURCE or tool.compares}
        return [self._sites.database(engine, side) for engine in engines]

    def _shape(self, shape: Shape) -> None:
        self._sites.link.shape(rtt_ms=shape.rtt_ms, rate_mbit=shape.rate_mbit)


def prepare(tool: Tool, cell: Cell, broken: dict[str, str]) -> None:
    """Make a tool ready, or note why it is not."""
    try:
        tool.prepare(cell)
    except ToolError as error:
        broken[tool.name] = f"not prepared: {error}"


def warm_rounds(wanted: int, rate: float) -> int:
    """As many as were asked for, but no more than it takes to change every row once; one where
    nothing changes, since it is all the same."""
    return min(wanted, max(int(1 / rate), 1) if rate else 1)


def here(scale: float, file: Path) -> Where:
    """This machine and this commit, a `+` behind it if files differ."""
    revision = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else "")
    machine = f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return Where(revision, machine, scale, file)


def _git(*words: str) -> str:
    process = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return process.stdout.strip()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def show(result: Result) -> None:
    """A line on standard output."""
    when = f"warming {result.refreshes_before}" if result.is_warming else "measured"
    what = "" if result.is_right else f"  WRONG: {result.rows_found} rows"
    method = f" ({result.method})" if result.method else ""
    print(
        f"{result.table} {result.pattern} {percent(result.rate)} [{link_name(result)}] {when}: "
        f"{result.tool}{method} {result.cost.link_bytes:,} bytes, "
        f"floor {result.floor_bytes or 0:,}, {result.cost.wall_s:.2f} s"
        + (f"  FAILED: {result.error}" if result.error else what),
        flush=True,
    )
