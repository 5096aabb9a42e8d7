"""What was measured, as a table with ratios beside the goals, and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.peers.changes import Pattern
from benchmarks.reloads.place import Cost

OURS, BEFORE = "driftline", "before"
LOAD, NOTHING = "first load, proven", "nothing changed"
COPY_ON_LINE = "zstd copy"
ABSENT = "NOT MEASURED"


def updated(share_percent: float) -> str:
    """Return the name of a step."""
    return f"{share_percent:g} % updated"


def half(pattern: str, *, is_known: bool) -> str:
    """Return the name of a step in which half of the rows change."""
    return f"half, {pattern}, {'when forecast' if is_known else 'at first'}"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a tool. `report`: of Driftline, its own: method, places, seconds."""

    table: str
    step: str
    tool: str
    cost: Cost
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Goal:
    """At most so many times what another tool took in the same step."""

    table: str
    step: str
    than: str
    at_most: float
    is_processor: bool = False


GOALS = (
    Goal("lineitem", LOAD, "spark", 1.0),
    Goal("lineitem", NOTHING, "dlt", 0.6),
    Goal("lineitem", updated(0.1), "dlt", 1.2),
    Goal("lineitem", updated(1), "dlt", 1.2),
    Goal("lineitem", updated(10), BEFORE, 0.55),
    Goal("lineitem", updated(1), "copy", 2.0, is_processor=True),
    Goal("orders", NOTHING, "dlt", 0.5),
    Goal("orders", updated(0.1), BEFORE, 0.27),
    Goal("orders", updated(1), BEFORE, 0.27),
    *(
        Goal("lineitem", half(pattern.value, is_known=is_known), COPY_ON_LINE, at_most)
        for pattern in (Pattern.CLUSTERED, Pattern.SCATTERED)
        for is_known, at_most in ((False, 1.3), (True, 1.05))
    ),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """All runs of one table.

    Attributes:
        line: between the agents.
        machine, commit, server: what they were made on and with.
        versions: of each other tool, in the order of the columns.
        left_out: why a tool was not run.
    """

    table: str
    line: str
    rows: int
    rounds: int
    machine: str
    commit: str
    server: str
    versions: Mapping[str, str]
    left_out: Mapping[str, str]
    runs: Sequence[Run]

    def markdown(self) -> str:
        """Return the table, what its columns are, and what is not in it."""
        others = [*self.versions, *self.left_out]
        head = [f"{self.table}, {self.rows:,} rows, {self.line}", f"{OURS}, s"]
        for other in others:
            head += [f"{other}, s", f"÷ {other}"]
        head += ["source's processor, s", *(["÷ copy's"] if "copy" in others else []), "goal"]
        lines = [_row(head), _row(["---"] * len(head))]
        for step in dict.fromkeys(run.step for run in self.runs):
            lines.append(_row(self._cells(step, others)))
        lines.append("")
        lines.append(
            f"Seconds from the command to its exit: minimum; median of {self.rounds}. Ratios: of"
            f" minima; of medians. {self.server}; {self.machine}; Driftline {self.commit}."
        )
        if held_s := max((run.report.get("held_back_s", 0.0) for run in self.runs), default=0.0):
            lines.append(
                f"- {OURS}: for up to {held_s:.1f} s of a run its source agent held itself back,"
                " as it does by default where others need the processors: was the machine quiet?"
            )
        lines += [f"- {tool}: {version}" for tool, version in self.versions.items()]
        lines += [f"- {tool.upper()} IS LEFT OUT: {why}" for tool, why in self.left_out.items()]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        found = asdict(self)
        found["goals"] = [
            {**asdict(goal), "reached": ratio}
            for goal in GOALS
            if goal.table == self.table and (ratio := self._reached(goal)) is not None
        ]
        return found

    def _cells(self, step: str, others: Sequence[str]) -> list[str]:
        cells = [step, _pair(self._seconds(step, OURS, _wall))]
        for other in others:
            cells += [
                _pair(self._seconds(step, other, _wall)),
                _pair(self._ratios(step, other, _wall)),
            ]
        cells.append(_pair(self._seconds(step, OURS, _source_processor)))
        if "copy" in others:
            cells.append(_pair(self._ratios(step, "copy", _source_processor)))
        goals = [goal for goal in GOALS if (goal.table, goal.step) == (self.table, step)]
        return [*cells, "; ".join(map(self._told, goals))]

    def _told(self, goal: Goal) -> str:
        """Return a goal and whether the medians reach it."""
        what = "the processor of " if goal.is_processor else ""
        text = f"≤ {goal.at_most:g} × {what}{goal.than}"
        ratio = self._reached(goal)
        if ratio is None:
            return f"{text}: {ABSENT}"
        return f"{text}: {'met' if ratio <= goal.at_most else 'MISSED'}, {ratio:.2f}"

    def _reached(self, goal: Goal) -> float | None:
        value = _source_processor if goal.is_processor else _wall
        ratios = self._ratios(goal.step, goal.than, value)
        return ratios[1] if ratios else None

    def _ratios(
        self, step: str, other: str, value: Callable[[Run], float]
    ) -> tuple[float, float] | None:
        ours, theirs = self._seconds(step, OURS, value), self._seconds(step, other, value)
        if ours is None or theirs is None or not all(theirs):
            return None
        return ours[0] / theirs[0], ours[1] / theirs[1]

    def _seconds(
        self, step: str, tool: str, value: Callable[[Run], float]
    ) -> tuple[float, float] | None:
        """Return the minimum and the median of a tool in a step."""
        found = [value(run) for run in self.runs if (run.step, run.tool) == (step, tool)]
        return (min(found), statistics.median(found)) if found else None


def dump(measurements: Sequence[Measurement]) -> str:
    """Return all as JSON."""
    return json.dumps([one.document() for one in measurements], indent=1) + "\n"


def _wall(run: Run) -> float:
    return run.cost.wall_s


def _source_processor(run: Run) -> float:
    """Return the seconds of the database and what is beside it; of COPY, its client as well."""
    return run.cost.source_cpu_s + (run.cost.cpu_s if run.tool == "copy" else 0.0)


def _pair(values: tuple[float, float] | None) -> str:
    return ABSENT if values is None else f"{values[0]:.2f}; {values[1]:.2f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
