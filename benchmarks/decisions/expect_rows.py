"""How well it is predicted which rows will be updated, on two real histories.

    python -m benchmarks.decisions.expect_rows
    python -m benchmarks.decisions.expect_rows --history ourairports_runways --schedule weekly
                                               --refreshes 30

One step ahead, as in `expect`, and with its schedules: before each refresh from the second on,
every row gets a probability from what was known before. Estimators:

- *paper*: uno / tno, Lu, Liu and Hyland's P({±t}), with uno = tno = 1 at the start, as printed; its
  loss is infinite, because a new row is certain to be updated; *paper, clipped* to CLIP..1 − CLIP;
  *paper, from 0*: uno = tno = 0 at the start, clipped as well;
- *mean rate*: all updates over all time and rows, the same for all rows;
- *level*: `heat.usual_share` for all rows alike: the forecast of updates without the rows;
- *ours*: `warehouse_agent.planning.update_probability`; *ours, bulk counted* lets an update of
  a bulk change count 1.

Columns: log-loss, Σ −ln P of what every row did, in nats per updated row, in usual refreshes (at
most BULK_SHARE of the rows updated) and in all; Σ P ÷ updates of usual refreshes; and calibration:
the rows of usual refreshes in classes a decade wide by P, as updates found ÷ Σ P where that is
EXPECTED_MIN or more. And the largest P of any row: beside a sketch, which takes 10 bytes a change,
a row of B bytes on the line is worth asking for without comparing it where P > B / (B + 10).
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import click
import duckdb
import numpy as np
import numpy.typing as npt
from driftline.arrays import Floats, Integers

from benchmarks.decisions.expect import (
    HISTORIES,
    SCHEDULES,
    Schedule,
    load_s_of,
    seconds,
    snapshots,
)
from tests.harness.histories import DATA, History, available
from warehouse_agent.planning import update_probability
from warehouse_agent.planning.change_forecast import HISTORY_MAX, ChangeForecast, RefreshOutcome

BULK_SHARE = 0.02
CLIP = 1e-4  # of P, where the paper's would be certain
EXPECTED_MIN = 20.0  # of a class that is shown
DECADES = np.array([1e-5, 1e-4, 1e-3, 1e-2])


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a refresh: rows by number, int64 [n]."""

    at_s: float
    inserted: Integers
    updated: Integers
    deleted: Integers


@dataclass
class Table:
    """All rows that there ever are, by number, and ω± of those that are there.

    `first_s`, `changed_s`: times, not versions: here every refresh is a version. `plain` is `rate`
    with a bulk change counted as any other.
    """

    load_s: float
    at_s: float
    present: npt.NDArray[np.bool_]
    first_s: Floats
    changed_s: Floats
    rate: Floats
    plain: Floats
    uno: Integers
    tno: Integers
    history: list[RefreshOutcome] = field(default_factory=list)
    updates: float = 0.5
    row_seconds: float = 0.0

    @classmethod
    def loaded(cls, rows: int, present: Integers, at_s: float) -> Table:
        is_present = np.zeros(rows, np.bool_)
        is_present[present] = True
        return cls(
            at_s,
            at_s,
            is_present,
            first_s=np.full(rows, at_s),
            changed_s=np.full(rows, at_s),
            rate=np.zeros(rows),
            plain=np.zeros(rows),
            uno=np.zeros(rows, np.int64),
            tno=np.zeros(rows, np.int64),
        )

    def take(self, step: Step, most: int) -> None:
        elapsed_s = max(step.at_s - self.at_s, 1.0)
        rows, updated = int(self.present.sum()), step.updated
        self.history.append(
            RefreshOutcome(elapsed_s, rows, len(step.inserted), len(updated), len(step.deleted))
        )
        self.updates += len(updated)
        self.row_seconds += rows * elapsed_s
        self.tno[self.present] += 1
        self.uno[updated] += 1
        left = np.exp(-(step.at_s - self.changed_s[updated]) / update_probability.TAU_S)
        weight = update_probability.update_weight(most, len(updated))
        self.rate[updated] = self.rate[updated] * left + weight
        self.plain[updated] = self.plain[updated] * left + 1
        self.changed_s[updated] = step.at_s
        new = step.inserted
        self.present[new] = True
        self.present[step.deleted] = False
        self.first_s[new] = self.changed_s[new] = step.at_s
        self.rate[new] = self.plain[new] = update_probability.BIRTH
        self.uno[new] = self.tno[new] = 0
        self.at_s = step.at_s


def outlook_of(table: Table, elapsed_s: float, share: float) -> update_probability.ChangeOutlook:
    """Return the outlook on the next refresh. Its clock has two knots, and seconds for versions:
    `probability` then reads times as they are."""
    now_s = table.at_s + elapsed_s
    start, stop = int(table.load_s), int(now_s) + 1
    clock = update_probability.VersionClock((start, stop), (float(start), float(stop)))
    return update_probability.ChangeOutlook(clock, share, now_s, elapsed_s)


@dataclass(frozen=True, slots=True)
class Before:
    """The input of a prediction; `at` are the rows that exist, int64 [n]."""

    table: Table
    at: Integers
    elapsed_s: float
    share: float

    def ours(self, rate: Floats) -> Floats:
        view = outlook_of(self.table, self.elapsed_s, self.share)
        columns = (self.table.first_s, self.table.changed_s, rate)
        return update_probability.probability(view, *(column[self.at] for column in columns))


def paper(before: Before) -> Floats:
    uno, tno = before.table.uno[before.at], before.table.tno[before.at]
    return np.asarray((uno + 1) / (tno + 1), np.float64)


def paper_clipped(before: Before) -> Floats:
    return np.clip(paper(before), CLIP, 1 - CLIP)


def paper_from_zero(before: Before) -> Floats:
    uno, tno = before.table.uno[before.at], before.table.tno[before.at]
    return np.clip(uno / np.maximum(tno, 1), CLIP, 1 - CLIP)


def mean_rate(before: Before) -> Floats:
    rate = before.table.updates / before.table.row_seconds
    return np.full(len(before.at), -math.expm1(-rate * before.elapsed_s))


def level(before: Before) -> Floats:
    return np.full(len(before.at), -math.expm1(-before.share))


def ours(before: Before) -> Floats:
    return before.ours(before.table.rate)


def ours_bulk_counted(before: Before) -> Floats:
    return before.ours(before.table.plain)


ESTIMATORS: dict[str, Callable[[Before], Floats]] = {
    "paper": paper,
    "paper, clipped": paper_clipped,
    "paper, from 0": paper_from_zero,
    "mean rate": mean_rate,
    "level": level,
    "ours, bulk counted": ours_bulk_counted,
    "**ours**": ours,
}


@dataclass
class Score:
    """The score of one estimator on one history, summed over refreshes."""

    usual_nats: float = 0.0
    bulk_nats: float = 0.0
    largest: float = 0.0
    expected: Floats = field(default_factory=lambda: np.zeros(len(DECADES) + 1))
    found: Floats = field(default_factory=lambda: np.zeros(len(DECADES) + 1))

    def add(self, p: Floats, is_updated: npt.NDArray[np.bool_], *, is_bulk: bool) -> None:
        with np.errstate(divide="ignore"):
            nats = float(-np.log1p(-p[~is_updated]).sum() - np.log(p[is_updated]).sum())
        self.largest = max(self.largest, float(p.max(initial=0.0)))
        if is_bulk:
            self.bulk_nats += nats
            return
        self.usual_nats += nats
        classes = np.searchsorted(DECADES, p, side="right")
        self.expected += np.bincount(classes, p, len(self.expected))
        self.found += np.bincount(classes[is_updated], minlength=len(self.found))

    def calibration(self) -> str:
        names = ["< 1e-5", *(f"{low:.0e}".replace("e-0", "e-") for low in DECADES)]
        shown = zip(names, self.found, self.expected, strict=True)
        return ", ".join(f"{n}: {f / e:.2g}" for n, f, e in shown if e >= EXPECTED_MIN)


@dataclass(frozen=True)
class Result:
    usual_updates: int
    bulk_updates: int
    scores: dict[str, Score]


def steps(name: str, schedule: Schedule) -> tuple[Table, list[Step]]:
    """The table after its load, and what every refresh finds."""
    with (DATA / name / "changes_all_commits.csv").open(newline="") as file:
        commits = list(csv.DictReader(file))
    commits_s = [seconds(c["date"]) for c in commits]
    load_s = load_s_of(name)
    times = snapshots(schedule, load_s, commits_s)
    refreshes = [bisect_left(times, at) for at in commits_s]
    key, log = ", ".join(History(name).key), DATA / name / "log"
    with duckdb.connect() as db:
        db.execute(
            f"""CREATE TABLE numbered AS SELECT *, row_number() OVER (ORDER BY {key}) - 1 AS _row
            FROM (SELECT {key} FROM '{log}/base.parquet'
                  UNION SELECT {key} FROM '{log}/events.parquet')"""
        )
        base = db.execute(
            f"SELECT _row FROM '{log}/base.parquet' JOIN numbered USING ({key})"
        ).fetchnumpy()["_row"]
        net = db.execute(
            f"""WITH refreshes AS (SELECT unnest(?::int[]) AS _seq, unnest(?::int[]) AS refresh)
            SELECT refresh, _row, arg_min(_op, _seq) <> 'I' AS was, arg_max(_op, _seq) <> 'D' AS is
            FROM '{log}/events.parquet' JOIN refreshes USING (_seq) JOIN numbered USING ({key})
            GROUP BY refresh, _row ORDER BY refresh, _row""",
            [[int(c["seq"]) for c in commits], refreshes],
        ).fetchnumpy()
        (rows,) = db.execute("SELECT count(*) FROM numbered").fetchall()[0]
    cuts = np.searchsorted(net["refresh"], np.arange(len(times) + 1))
    series = []
    for number, (low, high) in enumerate(pairwise(cuts)):
        ids, was, now = (net[column][low:high] for column in ("_row", "was", "is"))
        series.append(Step(times[number], ids[~was & now], ids[was & now], ids[was & ~now]))
    return Table.loaded(rows, base, load_s), series


def score(name: str, schedule: Schedule, refreshes: int | None = None) -> Result:
    """Return the scores of all estimators on one series, or on its first refreshes."""
    table, series = steps(name, schedule)
    scores = {title: Score() for title in ESTIMATORS}
    updates = [0, 0]
    for number, step in enumerate(series[:refreshes]):
        elapsed_s = max(step.at_s - table.at_s, 1.0)
        at = np.flatnonzero(table.present)
        expected = forecast(table, elapsed_s)
        if number:
            before = Before(table, at, elapsed_s, update_probability.usual_share(expected, len(at)))
            is_updated = np.zeros(len(table.present), np.bool_)
            is_updated[step.updated] = True
            is_bulk = len(step.updated) > BULK_SHARE * len(at)
            updates[is_bulk] += len(step.updated)
            for title, estimator in ESTIMATORS.items():
                scores[title].add(estimator(before), is_updated[at], is_bulk=is_bulk)
        table.take(step, update_probability.usual_most(expected))
    return Result(updates[0], updates[1], scores)


def forecast(table: Table, elapsed_s: float) -> ChangeForecast:
    """Forecast the updates of the next refresh."""
    rows = int(table.present.sum())
    return update_probability.updates_expected(
        table.history[-HISTORY_MAX:], rows=rows, elapsed_s=elapsed_s
    )


def lines(
    histories: Sequence[str], schedules: Sequence[Schedule], refreshes: int | None
) -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    columns = "usual | all | Σ P ÷ updates | found ÷ Σ P | largest P"
    yield f"| history | updates (bulk) | estimator | {columns} |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in histories:
        for schedule in schedules:
            result = score(name, schedule, refreshes)
            usual, bulk = result.usual_updates, result.bulk_updates
            for title, scores in result.scores.items():
                yield (
                    f"| {name}, {schedule.value} | {usual:,} ({bulk:,}) | {title} "
                    f"| {scores.usual_nats / usual:.3f} "
                    f"| {(scores.usual_nats + scores.bulk_nats) / (usual + bulk):.3f} "
                    f"| {scores.expected.sum() / usual:.2f} | {scores.calibration()} "
                    f"| {scores.largest:.2g} |"
                )


@click.command()
@click.option("--history", type=click.Choice(HISTORIES), multiple=True, help="By default, all.")
@click.option("--schedule", type=click.Choice(SCHEDULES), multiple=True, help="By default, all.")
@click.option("--refreshes", type=int, help="The first ones of each series; otherwise all.")
def main(history: tuple[str, ...], schedule: tuple[str, ...], refreshes: int | None) -> None:
    """Print the table."""
    if not all(map(available, HISTORIES)):
        raise SystemExit(f"NO REAL TABLES, NOT MEASURED: {DATA} is not there")
    schedules = [Schedule(one) for one in schedule or SCHEDULES]
    for line in lines(history or HISTORIES, schedules, refreshes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
