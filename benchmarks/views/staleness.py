"""Staleness of a view by the number of view phases, as in MAUVE's Figures 8-11 and 13-16.

    python -m benchmarks.views.staleness [--rows 4000] [--piece 60] [--only 8,9]
    python -m benchmarks.views.staleness --paper    Figure 8 with its 30,000 updates; minutes

Two tables of one source and their join, all through the real maintenance: a stream of insertions
and deletions comes in pieces; each piece is a refresh of both fragments, which run ahead of the
flip; `chunk_rows` says after how many changed rows the view phase comes. With "auto" Driftline says
so itself, from the history that it keeps; `max_lag` is the time that the pieces take and, because a
phase comes early enough that none is late, that of two more pieces and phases. The paper applies a
log to base tables; a piece takes the place of some updates of it.

Times are those measured, on the wall: of each piece (the median of those before without a view
phase), and what a view phase adds to it. When a piece arrives is the stream's: what waits for an
arrival is added up, not slept. VS, S1 and S2 are computed by Eq. 4 for every changed row: T_eb is
when its piece would have been proven without any view phase. The last piece always has its phase.
"evened" is the quotient if every piece and every phase of a figure took as long as the median one:
the same phases, without the machine's noise. "processor" is the same by the processor seconds of
this process and Spark's, which other programs of the machine hardly disturb.

`--paper`: 30,000 to 100,000 updates, as there, on tables of its smaller size (30 MB in all) and, in
Figure 16, of its larger one; Figure 8 alone, unless `--only` says more, because all figures are
some 700 refreshes of seconds each. Without it a stream has a sixtieth of the updates, by default.

Streams: steady ones of four sizes (Figures 8-11); discontinuous ones of a high and of a medium rate
(13, 14), where a share of the time is idle, in periods of a negative exponential distribution; lag
time (15); and two sizes of tables (16).
"""

from __future__ import annotations

import itertools
import math
import os
import random
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.meter import cpu_s
from tests.harness.views import Sites
from warehouse_agent.components.staleness import (
    PhaseCost,
    ProvenBatch,
    Staleness,
    expected_vs_s,
    measured,
)
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.views.selection import select

COLUMNS = "id INTEGER PRIMARY KEY, j INT, a INT, b INT, note VARCHAR"
TABLES = {"m": {"r": COLUMNS, "s": COLUMNS}}
QUERY = "SELECT r.id, s.id AS other, r.a, s.b, r.note FROM m.r r JOIN m.s s ON s.j = r.j"
SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "2g",
}
SIZES = {8: 8, 9: 11, 10: 19, 11: 27}  # pieces; 30, 40, 70 and 100 thousand updates there
NEVER = 'max_lag = "7d"\nchunk_rows = 1000000'  # unless the view is named
IDLE = (0.0, 0.5)
DISCONTINUOUS = 12  # pieces
WARM = (1, 3, 1, 2, 4)  # pieces between view phases, again and again: a and b are learned


Step = tuple[float, float | None]  # seconds of a piece, and of the view phase after it, if any


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of one use of the command; see its options."""

    rows: int
    piece: int
    only: str
    phases: str
    warm: int


SMALL = Scale(4000, 60, "8,9,10,11,13,14,16", "1,2,3,4,6", 20)
PAPER = Scale(72_000, 3_750, "8", SMALL.phases, 4)  # 30 MB in two tables of 208 bytes a row


@dataclass(frozen=True, slots=True)
class Run:
    """What one stream through the maintenance came to; `lag_s`: seconds in which nothing came.
    `processor`: the steps in seconds of the processor."""

    found: Staleness
    lag_s: float
    steps: Sequence[Step]
    processor: Sequence[Step] = ()

    @property
    def phases(self) -> Sequence[float]:
        """Seconds of each view phase."""
        return [phase_s for _, phase_s in self.steps if phase_s is not None]


def evened(runs: Sequence[Sequence[Step]], rows: int) -> list[float]:
    """Return the VS of steady streams, if every piece and every phase of all of them took as long
    as the median one."""
    piece_s = statistics.median(base_s for steps in runs for base_s, _ in steps)
    phase_s = statistics.median(s for steps in runs for _, s in steps if s is not None)
    alike = ([(piece_s, None if s is None else phase_s) for _, s in steps] for steps in runs)
    return [run_of(steps, [0.0] * len(steps), rows).found.vs_s for steps in alike]


def run_of(steps: Sequence[Step], arrivals: Sequence[float], rows: int) -> Run:
    """Return what pieces of `rows` changed rows come to, which took these times."""
    now = earliest = idle = 0.0
    gathered: list[ProvenBatch] = []
    staleness: Staleness | None = None
    for (base_s, phase_s), arrival in zip(steps, arrivals, strict=True):
        idle += max(arrival - now, 0.0)
        now, earliest = max(now, arrival) + base_s, max(earliest, arrival) + base_s
        gathered.append(ProvenBatch(rows, now, now - earliest))
        if phase_s is None:
            continue
        now += phase_s
        one = measured(gathered, now)
        assert one is not None
        staleness, gathered = one if staleness is None else staleness.merged(one), []
    assert staleness is not None
    return Run(staleness, idle, steps)


class Mauve:
    """Two tables of `rows` rows, their join, and streams of pieces of `piece` updates."""

    def __init__(
        self, spark: DeferredSession, folder: Path, rows: int, piece: int, warm: int
    ) -> None:
        self.rng, self.rows, self.piece = random.Random(1998), rows, piece
        self.sites = Sites(spark, folder, TABLES, {"v": QUERY})
        self.alive: dict[str, list[int]] = {name: [] for name in TABLES["m"]}
        self.numbers = itertools.count()
        self.pieces: deque[float] = deque(maxlen=20)  # seconds without a view phase
        self.phases: deque[float] = deque(maxlen=5)  # what the last ones added
        self.processor: deque[float] = deque(maxlen=20)  # as `pieces`
        for name in self.alive:
            self._insert(name, rows)
        self._runner(NEVER)
        self._refresh(is_named=True)
        for pieces in itertools.islice(itertools.cycle(WARM), warm):
            for number in range(pieces):
                self._edit()
                self._refresh(is_named=number == pieces - 1)

    def __enter__(self) -> Mauve:
        return self

    def __exit__(self, *_: object) -> None:
        self.sites.__exit__()

    def _insert(self, name: str, count: int) -> None:
        keys = list(itertools.islice(self.numbers, count))
        rows = [(k, self.rng.randrange(self.rows), k % 97, k % 89, f"row {k}") for k in keys]
        legacy = self.sites.pairs["m"].legacy
        legacy.many(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?)", rows)
        self.alive[name] += keys

    def _edit(self) -> None:
        """Apply a piece at the source: as many insertions as deletions, in both tables."""
        for name, alive in self.alive.items():
            self.rng.shuffle(alive)
            gone = [(alive.pop(),) for _ in range(self.piece // 4)]
            self.sites.pairs["m"].legacy.many(f"DELETE FROM {name} WHERE id = ?", gone)
            self._insert(name, self.piece // 4)

    def _runner(self, lines: str) -> None:
        self.sites.view_lines = {"v": lines}
        self.config = self.sites.config()
        self.runner = Runner(self.sites.spark, self.config, sleep=lambda _: None)

    def _refresh(self, *, is_named: bool) -> tuple[Step, Step]:
        """Refresh; return the seconds without the view phase, and those of the phase if any: on the
        wall, and of the processor."""
        chosen = select(self.config, ["v"] if is_named else [], not is_named)
        began, spent_s = time.monotonic(), cpu_s([os.getpid()])
        reports = {r.name: r for r in self.runner.refresh(chosen, Options())}
        took, spent_s = time.monotonic() - began, cpu_s([os.getpid()]) - spent_s
        assert all(r.error is None for r in reports.values()), reports
        if not reports["v"].view_phases:
            self.pieces.append(took)
            self.processor.append(spent_s)
            return (took, None), (spent_s, None)
        base_s, base_cpu_s = (statistics.median(q or [0.0]) for q in (self.pieces, self.processor))
        self.phases.append(max(took - base_s, 0.0))
        return (base_s, self.phases[-1]), (base_cpu_s, max(spent_s - base_cpu_s, 0.0))

    def stream(self, arrivals: Sequence[float], phases: int | None) -> Run:
        """Send a stream; `arrivals` of its pieces in seconds after the beginning.

        `phases`: the number of view phases; None: Driftline says when one is due.
        """
        if phases is None:
            piece_s, phase_s = map(statistics.median, (self.pieces, self.phases))
            lag_s = math.ceil((len(arrivals) + 2) * piece_s + 2 * phase_s)
            self._runner(f'max_lag = "{lag_s}s"\nchunk_rows = "auto"')
        else:
            chunk = -(-len(arrivals) * self.piece // phases)
            self._runner(f'max_lag = "7d"\nchunk_rows = {chunk}')
        steps = []
        for number in range(1, len(arrivals) + 1):
            self._edit()
            steps.append(self._refresh(is_named=number == len(arrivals)))
        wall, processor = zip(*steps, strict=True)
        return replace(run_of(wall, arrivals, self.piece // 4 * 4), processor=processor)

    def sweep(self, arrivals: Sequence[float], phases: Sequence[int]) -> Iterator[Run]:
        return (self.stream(arrivals, n) for n in phases)


def discontinuous(rng: random.Random, each_s: float, idle: float) -> list[float]:
    """Return arrivals, one each `each_s` seconds on average of the active time, so that a share
    `idle` of the time nothing arrives."""
    now, arrivals = 0.0, []
    for number in range(DISCONTINUOUS):
        now += each_s
        if idle and number % 4 == 3:  # a period after each fourth piece
            now += rng.expovariate(1 / (4 * each_s * idle / (1 - idle)))
        arrivals.append(now)
    return arrivals


def row(name: str, runs: Sequence[Run], *more: str) -> None:
    cells = [f"{run.found.vs_s:.2f}" for run in runs]
    print(f"| {name} | {' | '.join([*cells, *more])} |", flush=True)


def head(*columns: str) -> None:
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def steady(mauve: Mauve, only: set[int], phases: Sequence[int]) -> None:
    """Print Figures 8 to 11: VS by the number of phases, and what `auto` does."""
    wanted = [figure for figure in SIZES if figure in only]
    if not wanted:
        return
    named = [f"n = {n}" for n in phases]
    head(
        "figure, updates",
        *named,
        "automatic: n",
        "VS",
        "÷ best",
        "evened",
    )
    notes = []
    for figure in wanted:
        arrivals = [0.0] * SIZES[figure]
        # Phases become faster while the JVM compiles: ours is measured between the others.
        before = list(mauve.sweep(arrivals, phases[:3]))
        ours = mauve.stream(arrivals, None)
        runs = [*before, *mauve.sweep(arrivals, phases[3:])]
        piece_s = statistics.median(base_s for run in runs for base_s, _ in run.steps)
        phase_s = statistics.median(seconds for run in runs for seconds in run.phases)
        changed = mauve.piece // 4 * 4
        quotients = [
            evened_vs[0] / min(evened_vs[1:])
            for kind in ("steps", "processor")
            for evened_vs in [evened([getattr(run, kind) for run in (ours, *runs)], changed)]
        ]
        best = min(run.found.vs_s for run in runs)
        more = [str(len(ours.phases)), f"{ours.found.vs_s:.2f}", f"{ours.found.vs_s / best:.2f}"]
        by_wall, by_processor = quotients
        base_s, cost = len(arrivals) * piece_s, PhaseCost(phase_s, 0.0)
        row(f"{figure}: {len(arrivals) * mauve.piece:,}", runs, *more, f"**{by_wall:.2f}**")
        notes.append(
            f"Figure {figure}, automatic: evened by processor {by_processor:.2f};"
            f" S1 {ours.found.s1_s:.2f}, S2 {ours.found.s2_s:.2f};"
            f" Eq. 7 {expected_vs_s(len(ours.phases), base_s, 0, cost):.2f};"
            f" U {base_s:.2f}, V {phase_s:.2f}"
        )
    print("\n".join(["", *notes]), flush=True)


def interrupted(mauve: Mauve, only: set[int]) -> None:
    """Print Figures 13 to 15: streams that pause, faster and as fast as the maintenance."""
    each_s = statistics.median(mauve.pieces)
    phases = (1, 2, 4)
    for figure, share in ((13, 0.1), (14, 1.0)):
        if figure not in only:
            continue
        head("figure, idle", *(f"n = {n}" for n in phases), "lag time by n, s")
        for idle in IDLE:
            arrivals = discontinuous(random.Random(15), each_s * share, idle)
            runs = list(mauve.sweep(arrivals, phases))
            lags = ", ".join(f"{run.lag_s:.1f}" for run in runs)
            row(f"{figure}: {idle:.0%}", runs, lags)


def scaled(mauve: Mauve, phases: Sequence[int]) -> None:
    """Print a line of Figure 16: the same updates on tables of another size."""
    head("figure, rows of a table", *(f"n = {n}" for n in phases[:3]))
    row(f"16: {mauve.rows:,}", list(mauve.sweep([0.0] * DISCONTINUOUS, phases[:3])))


@click.command()
@click.option("--paper", "is_papers_size", is_flag=True, help="Rows and updates as in the paper.")
@click.option("--rows", type=int, help=f"Of each table. [{SMALL.rows}]")
@click.option("--piece", type=int, help=f"Updates in a piece. [{SMALL.piece}]")
@click.option("--only", help=f"Figures. [{SMALL.only}]")
@click.option("--phases", help=f"Of a view, in Figures 8-11. [{SMALL.phases}]")
@click.option("--warm", type=int, help=f"View phases that teach the costs. [{SMALL.warm}]")
def main(*, is_papers_size: bool, **options: Any) -> None:
    """Print the tables."""
    given = {name: value for name, value in options.items() if value is not None}
    scale = replace(PAPER if is_papers_size else SMALL, **given)
    began, spent_s = time.monotonic(), cpu_s([os.getpid()])
    wanted = {int(figure) for figure in scale.only.split(",")}
    sweep = [int(n) for n in scale.phases.split(",")]
    spark = DeferredSession(SETTINGS)
    with TemporaryDirectory() as folder:
        with Mauve(spark, Path(folder) / "small", scale.rows, scale.piece, scale.warm) as mauve:
            steady(mauve, wanted, sweep)
            interrupted(mauve, wanted)
            if 16 in wanted:
                scaled(mauve, sweep)
        if 16 in wanted:
            large = Path(folder) / "large"
            with Mauve(spark, large, 3 * scale.rows, scale.piece, scale.warm) as mauve:
                scaled(mauve, sweep)
    spent_s = cpu_s([os.getpid()]) - spent_s
    print(f"\nAll of it: {time.monotonic() - began:.0f} s, {spent_s:.0f} s of processor.")


if __name__ == "__main__":
    main()
