"""What the harness writes and reads again: a JSON line per run; of them, a table.

The lines are the record; tables and plots are drawn from them and can be drawn anew without running
anything. Lines are only ever added; of several of the same run the last counts. The tables show,
for each family of settings, the run with the fewest bytes and, where it is another, the fastest.
Where a peer is better than every Driftline tool is computed and said, in whatever it is better.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.meter import Measured

OURS = "driftline"
AFTERWARDS = ("apply", "prove", "publish")  # Driftline's phases once it has the change


@dataclass(frozen=True, slots=True)
class Result:
    """One run. Sizes in bytes, rates as shares; None where nothing is known."""

    commit: str
    machine: str
    server: str
    measured_at: str
    scale: float
    table: str
    pattern: str
    rate: float
    rtt_ms: float
    rate_mbit: float | None
    tool: str
    family: str
    needs: str
    delivers: str
    refreshes_before: int  # since the first load; 0 is cold
    is_warming: bool  # else one of the runs that the table is about
    rows_before: int
    changed: int
    rows_found: int | None
    is_right: bool
    floor_bytes: int | None
    round_trips: int | None
    source_statements: int | None
    method: str | None
    seconds: dict[str, float]
    error: str | None
    cost: Measured

    @property
    def known_s(self) -> float:
        """Seconds until the change is at the warehouse: what peers' are to be compared with, where
        a tool goes on to apply and prove it and says how long that took."""
        after = sum(self.seconds.get(phase, 0.0) for phase in AFTERWARDS)
        return self.cost.wall_s - after

    @property
    def run(self) -> tuple[object, ...]:
        """Return the values that identify the run."""
        return (
            *(self.scale, self.table, self.pattern, self.rtt_ms, self.rate_mbit, self.rate),
            *(self.tool, self.refreshes_before if self.is_warming else None),
        )


def append(file: Path, result: Result) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(asdict(result)) + "\n")


def read(file: Path) -> list[Result]:
    """The last of each run; by table, pattern, link and rate, tools in the order of the file."""
    last: dict[tuple[object, ...], Result] = {}
    with file.open() as lines:
        for line in lines:
            values = json.loads(line)
            result = Result(**{**values, "cost": Measured(**values["cost"])})
            last[result.run] = result
    return sorted(last.values(), key=_place)


def _place(result: Result) -> tuple[object, ...]:
    link = result.rtt_ms, result.rate_mbit or math.inf
    return result.scale, result.table, result.pattern, *link, result.rate


def best(results: Iterable[Result]) -> list[Result]:
    """Choose of each family the correct runs with the fewest bytes and the fewest seconds.

    If all runs of a family failed, these. Driftline's tools are methods: all of them are chosen.
    """
    chosen = []
    for family, members in _grouped(results, lambda result: result.family):
        right = [result for result in members if result.is_right]
        if family == OURS or not right:
            chosen += members
        else:
            fewest = min(right, key=lambda result: result.cost.link_bytes)
            fastest = min(right, key=lambda result: result.cost.wall_s)
            chosen += [fewest] if fewest is fastest else [fewest, fastest]
    return chosen


MEASURES: dict[str, Callable[[Result], float]] = {
    "bytes": lambda result: result.cost.link_bytes,
    "seconds": lambda result: result.cost.wall_s,
    "seconds until the change is known": lambda result: result.known_s,
    "source CPU seconds": lambda result: result.cost.source_cpu_s,
    "MB at the source": lambda result: result.cost.source_rss_bytes_max / 1e6,
    "MB at the warehouse": lambda result: result.cost.warehouse_rss_bytes_max / 1e6,
}


def wins(results: Sequence[Result]) -> Iterator[str]:
    """Return a sentence for each cell in which a peer beats the best of Driftline's."""
    right = [result for result in results if result.is_right]
    ours = [result for result in right if result.family == OURS]
    for name, measure in MEASURES.items():
        peers = [result for result in right if result.family != OURS]
        if ours and peers:
            first, mine = min(peers, key=measure), min(ours, key=measure)
            if measure(first) < measure(mine):
                yield (
                    f"{percent(first.rate)}: {first.tool} in {name}, {measure(first):,.4g} against "
                    f"{measure(mine):,.4g} of {_tool(mine)}; it delivers {first.delivers} and "
                    f"needs {first.needs}"
                )


def markdown(results: Sequence[Result]) -> str:
    """All runs that are not warming, but for the cold ones, by table, pattern and link."""
    shown = [result for result in results if not result.is_warming or not result.refreshes_before]
    parts = ["Generated from peers.jsonl by `python -m benchmarks.peers.compare --redraw`.\n\n"]
    parts.append(f"{_each_once(shown, lambda result: result.machine)}; commits and servers: ")
    commits, servers = (_each_once(shown, one) for one in (lambda r: r.commit, lambda r: r.server))
    parts.append(f"{commits}; {servers}.\n\n")
    for title, section in _grouped(shown, _title):
        parts.append(f"## {title}\n\n{_HEAD}\n")
        better = []
        for _, cell in _grouped(section, lambda result: result.rate):
            parts.append(_floor_row(cell[0]))
            parts += [f"{_row(result)}\n" for result in best(cell)]
            warm = [result for result in cell if not result.is_warming]
            better += [f"- {sentence}\n" for sentence in wins(warm)]
        parts.append("\nWhere a peer wins:\n\n" + "".join(better) if better else "")
        parts.append("\n")
    return "".join(parts)


def _grouped(
    results: Iterable[Result], key: Callable[[Result], object]
) -> Iterator[tuple[object, list[Result]]]:
    """In the order of first appearance."""
    groups: dict[object, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    yield from groups.items()


def link_name(result: Result) -> str:
    rate = "no limit" if result.rate_mbit is None else f"{result.rate_mbit:g} Mbit/s"
    return f"{result.rtt_ms:g} ms, {rate}"


def percent(rate: float) -> str:
    return f"{rate * 100:g} %"


def _title(result: Result) -> str:
    return f"{result.table}, scale {result.scale:g}, {result.pattern}, {link_name(result)}"


def _each_once(results: Iterable[Result], what: Callable[[Result], str]) -> str:
    return ", ".join(dict.fromkeys(what(result) for result in results))


_COLUMNS = (
    *("changed", "rows", "tool", "bytes", "÷ floor", "packets", "round trips", "statements"),
    *(
        "s",
        "s until known",
        "source CPU s",
        "source MB",
        "warehouse MB",
        "delivers",
        "needs at the source",
    ),
)
_HEAD = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def _row(result: Result) -> str:
    start = [percent(result.rate), f"{result.changed:,}", _tool(result)]
    if not result.is_right:
        why = result.error or f"WRONG: {result.rows_found:,} rows found"
        return f"| {' | '.join([*start, why, *[''] * (len(_COLUMNS) - 4)])} |"
    floor = result.floor_bytes
    cells = [
        f"{result.cost.link_bytes:,}",
        _ratio(result.cost.link_bytes / floor) if floor else "",
        f"{result.cost.link_packets:,}",
        _count(result.round_trips),
        _count(result.source_statements),
        f"{result.cost.wall_s:.2f}",
        f"{result.known_s:.2f}",
        f"{result.cost.source_cpu_s:.2f}",
        f"{result.cost.source_rss_bytes_max / 1e6:.0f}",
        f"{result.cost.warehouse_rss_bytes_max / 1e6:.0f}",
        result.delivers,
        result.needs,
    ]
    return f"| {' | '.join([*start, *cells])} |"


def _floor_row(result: Result) -> str:
    if result.floor_bytes is None:
        return ""
    start = (
        f"| {percent(result.rate)} | {result.changed:,} | *floor* | {result.floor_bytes:,} | 1 |"
    )
    return start + " |" * (len(_COLUMNS) - 5) + "\n"


def _tool(result: Result) -> str:
    is_choice = result.method is not None and result.tool == OURS
    name = f"{result.tool} ({result.method})" if is_choice else result.tool
    return f"{name}, cold" if result.is_warming else name


def _ratio(number: float) -> str:
    return f"{number:.2f}" if number < 10 else f"{number:,.0f}"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
