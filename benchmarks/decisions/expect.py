"""How well d, the number of changes of the next refresh, is predicted on two real histories.

    python -m benchmarks.decisions.expect [--history ourairports_runways] [--schedule weekly]

One step ahead: each refresh is predicted from those before it only (Dawid's prequential way), from
the second on. Refreshes are every commit, or a schedule at the hour of the load, or irregular (a
quarter of a day to a month apart, log-uniform, from a fixed seed); a row that was edited twice
between two refreshes changed once. Estimators:

- *paper*: Lu, Liu and Hyland's probabilities (section V) summed over the table: the mean share of
  rows updated and deleted per refresh, times the rows, and the mean number inserted; its rows are
  independent, so Poisson. In its favour uno = tno = 0 at first: as printed, with 1, the first
  predictions are all rows;
- *mean rate*: all changes over all time, Poisson;
- *mean rate, over-dispersed*: the same, negative binomial by moments; the fairer of the two;
- *ours*: `warehouse_agent.planning.change_forecast`; *ours, per refresh* does not know the time.

Columns: log-loss in nats per refresh; shares of the refreshes within low..high (the 80 % interval),
the same among those that changed anything, and within the 10 % and 90 % quantiles; the median of
|median − d| / d among those that changed anything.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import click
import duckdb
import numpy as np
import numpy.typing as npt

from tests.harness.histories import DATA, History, available
from warehouse_agent.planning.change_forecast import (
    HISTORY_MAX,
    ChangeForecast,
    RefreshOutcome,
    expect,
)

HISTORIES = ("ourairports_runways", "intl_football_results")
DAY_S = 86_400
IRREGULAR_DAYS = (0.25, 30.0)
POISSON_SIZE = 1e12  # a negative binomial of this size is one
CHANGED_MIN = 0.5  # in all the past: a Poisson mean of 0 would be certain


class Schedule(Enum):
    """When the table is refreshed."""

    COMMIT = "every commit"
    DAILY = "daily"
    WEEKDAYS = "weekdays"
    WEEKLY = "weekly"
    IRREGULAR = "irregular"


SCHEDULES = [schedule.value for schedule in Schedule]


class Predicted(Protocol):
    """A distribution of d. The interval is as `ChangeForecast` defines it."""

    @property
    def low(self) -> int: ...
    @property
    def high(self) -> int: ...
    @property
    def median(self) -> int: ...
    def quantile(self, q: float) -> int: ...
    def log_probability(self, d: int) -> float: ...


Estimator = Callable[
    [Sequence[RefreshOutcome]], Iterator[Predicted]
]  # for the second refresh, the third …


@dataclass(frozen=True)
class NegativeBinomial:
    """By mean and size: the variance is mean + mean² / size."""

    mean: float
    size: float = POISSON_SIZE

    @property
    def low(self) -> int:
        return self.quantile(0.1)

    @property
    def high(self) -> int:
        before = float(self._cumulative[self.low - 1]) if self.low else 0.0
        return self.quantile(before + 0.8)

    @property
    def median(self) -> int:
        return self.quantile(0.5)

    def quantile(self, q: float) -> int:
        return int(np.searchsorted(self._cumulative, q))

    def log_probability(self, d: int) -> float:
        return float(self._log_probabilities(d)[-1])

    @cached_property
    def _cumulative(self) -> npt.NDArray[np.float64]:
        deviation = math.sqrt(self.mean + self.mean**2 / self.size)
        upto = int(self.mean + 10 * deviation) + 20
        cumulative: npt.NDArray[np.float64] = np.cumsum(np.exp(self._log_probabilities(upto)))
        return cumulative

    def _log_probabilities(self, upto: int) -> npt.NDArray[np.float64]:
        """ln P(0), …, ln P(upto)."""
        k = np.arange(upto)
        steps = np.log1p((k - self.mean) / (self.size + self.mean)) + math.log(self.mean)
        steps -= np.log(k + 1)
        none = -self.size * math.log1p(self.mean / self.size)
        return np.cumsum(np.append(none, steps))


def paper(history: Sequence[RefreshOutcome]) -> Iterator[Predicted]:
    share = inserted = 0.0
    for count, (past, now) in enumerate(pairwise(history), start=1):
        share += (past.updated + past.deleted) / max(past.rows, 1)
        inserted += past.inserted
        yield NegativeBinomial(max(now.rows * share + inserted, CHANGED_MIN) / count)


def mean_rate(history: Sequence[RefreshOutcome]) -> Iterator[Predicted]:
    changed = seconds = 0.0
    for past, now in pairwise(history):
        changed, seconds = changed + past.changed, seconds + past.elapsed_s
        yield NegativeBinomial(max(changed, CHANGED_MIN) / seconds * now.elapsed_s)


def mean_rate_overdispersed(history: Sequence[RefreshOutcome]) -> Iterator[Predicted]:
    changes: list[int] = []
    for past, predicted in zip(history, mean_rate(history), strict=False):
        assert isinstance(predicted, NegativeBinomial)
        changes.append(past.changed)
        mean, variance = float(np.mean(changes)), float(np.var(changes))
        excess = variance - mean
        yield replace(predicted, size=mean**2 / excess if excess > 0 else POISSON_SIZE)


def ours(history: Sequence[RefreshOutcome]) -> Iterator[ChangeForecast]:
    for at in range(1, len(history)):
        before, now = history[max(at - HISTORY_MAX, 0) : at], history[at]
        yield expect(before, rows=now.rows, elapsed_s=now.elapsed_s)


def ours_per_refresh(history: Sequence[RefreshOutcome]) -> Iterator[Predicted]:
    yield from ours([replace(past, elapsed_s=1.0) for past in history])


ESTIMATORS: dict[str, Estimator] = {
    "paper": paper,
    "mean rate": mean_rate,
    "mean rate, over-dispersed": mean_rate_overdispersed,
    "ours, per refresh": ours_per_refresh,
    "**ours**": ours,
}


@dataclass(frozen=True)
class Score:
    """Of one estimator on one history; the columns of the table."""

    log_loss_nats: float
    coverage: float
    coverage_changed: float
    coverage_quantiles: float
    relative_error: float


def score(history: Sequence[RefreshOutcome], estimator: Estimator) -> Score:
    losses, inside, inside_changed, between, errors = [], [], [], [], []
    for now, predicted in zip(history[1:], estimator(history), strict=True):
        d, low = now.changed, predicted.low
        losses.append(-predicted.log_probability(d))
        inside.append(low <= d <= predicted.high)
        between.append(low <= d <= predicted.quantile(0.9))
        if d:
            inside_changed.append(inside[-1])
            errors.append(abs(predicted.median - d) / d)
    return Score(
        float(np.mean(losses)),
        float(np.mean(inside)),
        float(np.mean(inside_changed)),
        float(np.mean(between)),
        float(np.median(errors)),
    )


def pasts(name: str, schedule: Schedule) -> list[RefreshOutcome]:
    """What every refresh would have found, from the log of a history."""
    with (DATA / name / "changes_all_commits.csv").open(newline="") as file:
        commits = list(csv.DictReader(file))
    load_s, commits_s = load_s_of(name), [seconds(commit["date"]) for commit in commits]
    snapshots_s = snapshots(schedule, load_s, commits_s)
    refreshes = [bisect_left(snapshots_s, at) for at in commits_s]
    counts = _net(name, [int(commit["seq"]) for commit in commits], refreshes)
    rows, series = int(commits[0]["rows_before"]), []
    for number, (before_s, at_s) in enumerate(pairwise([load_s, *snapshots_s])):
        past = RefreshOutcome(at_s - before_s, rows, *counts.get(number, (0, 0, 0)))
        rows += past.inserted - past.deleted
        series.append(past)
    return series


def load_s_of(name: str) -> float:
    """When the load is, in seconds since 1970."""
    with (DATA / name / "versions.csv").open(newline="") as file:
        return seconds(next(csv.DictReader(file))["committer_date"])


def seconds(text: str) -> float:
    """Since 1970, of a time in ISO 8601."""
    return datetime.fromisoformat(text).timestamp()


def snapshots(schedule: Schedule, load_s: float, commits_s: list[float]) -> list[float]:
    """When the table is refreshed, in seconds since 1970."""
    if schedule is Schedule.COMMIT:
        return commits_s
    count = int((commits_s[-1] - load_s) / DAY_S)
    days = np.full(count, 7.0 if schedule is Schedule.WEEKLY else 1.0)
    if schedule is Schedule.IRREGULAR:
        low, high = map(math.log, IRREGULAR_DAYS)
        days = np.exp(np.random.default_rng(3).uniform(low, high, count))
    times = [at for at in (load_s + np.cumsum(days) * DAY_S).tolist() if at < commits_s[-1]]
    if schedule is Schedule.WEEKDAYS:
        times = [at for at in times if datetime.fromtimestamp(at, UTC).weekday() < 5]
    return times


def _net(name: str, commits: list[int], refreshes: list[int]) -> dict[int, tuple[int, int, int]]:
    """Rows inserted, updated and deleted by refresh, from the first and last event of each key."""
    key = ", ".join(History(name).key)
    rows = duckdb.execute(
        f"""WITH refreshes AS (SELECT unnest(?::int[]) AS _seq, unnest(?::int[]) AS refresh),
        keys AS (
            SELECT refresh, arg_min(_op, _seq) AS first, arg_max(_op, _seq) AS last
            FROM '{DATA / name / "log" / "events.parquet"}' JOIN refreshes USING (_seq)
            GROUP BY refresh, {key})
        SELECT refresh, count(*) FILTER (first = 'I' AND last <> 'D'),
            count(*) FILTER (first <> 'I' AND last <> 'D'),
            count(*) FILTER (first <> 'I' AND last = 'D')
        FROM keys GROUP BY refresh""",
        [commits, refreshes],
    ).fetchall()
    return {refresh: (inserted, updated, deleted) for refresh, inserted, updated, deleted in rows}


@click.command()
@click.option("--history", type=click.Choice(HISTORIES), multiple=True, help="By default, all.")
@click.option("--schedule", type=click.Choice(SCHEDULES), multiple=True, help="By default, all.")
def main(history: tuple[str, ...], schedule: tuple[str, ...]) -> None:
    """Print the table."""
    if not all(map(available, HISTORIES)):
        raise SystemExit(f"NO REAL TABLES, NOT MEASURED: {DATA} is not there")
    print(
        "| history | refreshes (unchanged) | estimator | log-loss | 80 % interval | of changed ",
        end="",
    )
    print("| q10–q90 | median error |")
    print("|---|---|---|---|---|---|---|---|")
    for name in history or HISTORIES:
        for when in map(Schedule, schedule or SCHEDULES):
            series = pasts(name, when)
            idle = np.mean([past.changed == 0 for past in series])
            for title, estimator in ESTIMATORS.items():
                scores = score(series, estimator)
                print(
                    f"| {name}, {when.value} | {len(series):,} ({idle:.1%}) | {title} "
                    f"| {scores.log_loss_nats:,.3f} | {scores.coverage:.1%} "
                    f"| {scores.coverage_changed:.1%} | {scores.coverage_quantiles:.1%} "
                    f"| {scores.relative_error:.0%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
