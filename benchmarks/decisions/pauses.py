"""How well d is predicted after a pause, by refreshes and by the totals of days before them.

    python -m benchmarks.decisions.pauses [--history ourairports_runways] [--pauses 250]

A table of a real history is refreshed every few minutes or hours, HISTORY_MAX times, up to a moment
that is drawn from a fixed seed; the next refresh comes after a pause. The lines of its history are
those refreshes, and the totals are of the DAYS days before them. Both forecasts are
`warehouse_agent.planning.change_forecast`: of the lines alone, and of totals that are added up to
times as long as the pause (`spans`), whether it would take them or not. A row that changed twice
between two refreshes changed once; in the totals of days it counts for each commit.

Columns: the interval between refreshes, the pause over it, and the mean log-loss in nats of both.
A row in which the agent takes the totals is marked.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise

import click
import duckdb
import numpy as np

from benchmarks.decisions.expect import HISTORIES, seconds
from tests.harness.histories import DATA, History, available
from warehouse_agent.planning.change_forecast import (
    DAY_S,
    HISTORY_MAX,
    DayOfChanges,
    RefreshOutcome,
    expect,
    is_pause,
    spans,
)

HOUR_S = 3600.0
DAYS = 100  # that a history keeps apart
EVERY_S = (HOUR_S / 6, HOUR_S, 6 * HOUR_S)
PAUSES_S = (DAY_S / 2, DAY_S, 3 * DAY_S, 7 * DAY_S, 30 * DAY_S)
SEED = 7

Counts = tuple[int, int, int]  # inserted, updated, deleted


@dataclass(frozen=True)
class Commits:
    """The commits of a real history: when each was, and what it changed."""

    name: str

    @cached_property
    def _lines(self) -> list[dict[str, str]]:
        with (DATA / self.name / "changes_all_commits.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    @cached_property
    def at_s(self) -> list[float]:
        """When each was, in seconds since 1970."""
        return [seconds(one["date"]) for one in self._lines]

    def counts(self, number: int) -> Counts:
        """Rows that a commit changed."""
        one = self._lines[number]
        return int(one["inserts"]), int(one["updates"]), int(one["deletes"])

    def rows(self, at_s: float) -> int:
        """Rows of the table at a moment."""
        return int(
            self._lines[min(bisect_right(self.at_s, at_s), len(self._lines) - 1)]["rows_before"]
        )

    @cached_property
    def _events(self) -> duckdb.DuckDBPyConnection:
        found = duckdb.connect()
        source = DATA / self.name / "log" / "events.parquet"
        found.execute(f"CREATE TABLE events AS SELECT * FROM '{source}'")
        return found

    def between(self, after_s: float, upto_s: float) -> Counts:
        """Rows that a refresh would find changed between two moments."""
        first, end = bisect_right(self.at_s, after_s), bisect_right(self.at_s, upto_s)
        if end - first < 2:
            return self.counts(first) if end > first else (0, 0, 0)
        key = ", ".join(History(self.name).key)
        sequence = (int(self._lines[first]["seq"]), int(self._lines[end - 1]["seq"]))
        found = self._events.execute(
            f"""SELECT count(*) FILTER (first = 'I' AND last <> 'D'),
                count(*) FILTER (first <> 'I' AND last <> 'D'),
                count(*) FILTER (first <> 'I' AND last = 'D')
            FROM (SELECT arg_min(_op, _seq) AS first, arg_max(_op, _seq) AS last FROM events
                WHERE _seq BETWEEN ? AND ? GROUP BY {key})""",
            sequence,
        ).fetchone()
        assert found is not None
        return (found[0], found[1], found[2])

    def day(self, begin_s: float) -> DayOfChanges:
        """The totals of the day that begins at a moment."""
        first, end = (bisect_right(self.at_s, at) for at in (begin_s, begin_s + DAY_S))
        counts = np.array([self.counts(n) for n in range(first, end)] or [(0, 0, 0)]).sum(0)
        return DayOfChanges(datetime.fromtimestamp(begin_s, UTC).date(), *counts.tolist())


@dataclass(frozen=True)
class Loss:
    """Log-loss in nats of one refresh after a pause, of two forecasts."""

    by_refreshes: float
    by_days: float


def losses(
    commits: Commits, moments_s: Sequence[float], every_s: float, pause_s: float
) -> Iterator[Loss]:
    """Yield the losses of the refreshes that follow a pause after each moment."""
    for at_s in moments_s:
        rows = commits.rows(at_s)
        times = [at_s - n * every_s for n in range(HISTORY_MAX, -1, -1)]
        lines = [RefreshOutcome(every_s, rows, *commits.between(a, b)) for a, b in pairwise(times)]
        last = times[0] // DAY_S * DAY_S
        days = [commits.day(last - n * DAY_S) for n in range(DAYS, -1, -1)]
        found = sum(commits.between(at_s, at_s + pause_s))
        by_refreshes, by_days = (
            expect(history, rows=rows, elapsed_s=pause_s)
            for history in (lines, spans(days, rows, pause_s))
        )
        yield Loss(-by_refreshes.log_probability(found), -by_days.log_probability(found))


@click.command()
@click.option("--history", type=click.Choice(HISTORIES), multiple=True, help="By default, all.")
@click.option("--pauses", default=250, show_default=True, help="For each row of the table.")
def main(history: tuple[str, ...], pauses: int) -> None:
    """Print the table."""
    if not all(map(available, HISTORIES)):
        raise SystemExit(f"NO REAL TABLES, NOT MEASURED: {DATA} is not there")
    print("| history, refreshed | pause | by refreshes | by totals of days | taken |")
    print("|---|---|---|---|---|")
    for name in history or HISTORIES:
        commits, random = Commits(name), np.random.default_rng(SEED)
        reach = timedelta(seconds=HISTORY_MAX * EVERY_S[-1] + (DAYS + 2) * DAY_S)
        first, last = commits.at_s[0] + reach.total_seconds(), commits.at_s[-1] - PAUSES_S[-1]
        for every_s in EVERY_S:
            for pause_s in PAUSES_S:
                moments = random.uniform(first, last, pauses).tolist()
                found = list(losses(commits, moments, every_s, pause_s))
                by_refreshes = np.mean([one.by_refreshes for one in found])
                by_days = np.mean([one.by_days for one in found])
                taken = "yes" if is_pause([every_s] * HISTORY_MAX, pause_s) else ""
                print(
                    f"| {name}, every {every_s / HOUR_S:.2g} h | {pause_s / DAY_S:g} days"
                    f" | {by_refreshes:,.3f} | {by_days:,.3f} | {taken} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
