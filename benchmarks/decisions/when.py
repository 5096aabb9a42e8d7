"""What policies of refreshing would have cost on real histories of change.

    python -m benchmarks.decisions.when [FOLDER]

FOLDER holds, for each history, NAME/changes_all_commits.csv with the time and the counts of every
change. The first two thirds teach, by refreshes at a fixed interval; the last third is paid, in a
closed loop: a policy sees what its own refreshes and probes found. Costs are row-hours plus m for
each refresh, over those of the best fixed interval, which is chosen in hindsight and averaged over
its phases. m is such that this interval is a day, or a week. In parentheses: stale hours likewise.
The table is that of `docs/results/decisions.md`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from warehouse_agent.change_models.memory import Interval, Memory
from warehouse_agent.change_models.week import HOUR_S
from warehouse_agent.timetable import replay
from warehouse_agent.timetable.decision import Circumstances, decide
from warehouse_agent.timetable.probe import ProbeAnswer, ProbeResult
from warehouse_agent.timetable.replay import ReplayCost
from warehouse_agent.timetable.timing import Timing, TimingPolicy

HISTORIES = {
    "ourairports_runways": "America/New_York",
    "intl_football_results": "Europe/Helsinki",
}
INTERVALS_H = {"a day": 24, "a week": 168}
RELEARN_H = 168
INTERVAL_MAX_S = 28 * 86_400
POLICIES = ("threshold", "first alteration", "optimal", "auto", "hourly probe")


class History:
    """Moments of changes and their rows, of one relation; the paid part begins at `split`."""

    def __init__(self, path: Path) -> None:
        rows = [(datetime.fromisoformat(r["date"]).timestamp(), *_counts(r)) for r in _read(path)]
        rows.sort()
        changed = np.array([one for one in rows if sum(one[1:])])
        self.at, self.kinds = changed[:, 0], changed[:, 1:]
        self.rows = self.kinds.sum(axis=1)
        self.begin, self.end = float(self.at[0]), float(self.at[-1])
        self.split = self.begin + (self.end - self.begin) * 2 / 3
        paid = self.at > self.split
        self.paid_at, self.paid_rows = self.at[paid], self.rows[paid]

    def between(self, start: float, end: float) -> Interval:
        """The interval that a refresh at `end` finds after one at `start`."""
        seen = (self.at > start) & (self.at <= end)
        inserted, updated, deleted = self.kinds[seen].sum(axis=0).tolist()
        return Interval(start, end, inserted, updated, deleted, 45_000)

    def learned(self, hours: float) -> Memory:
        """What refreshes at a fixed interval found until the paid part begins."""
        memory, start = Memory(), self.begin
        while (end := start + hours * HOUR_S) <= self.split:
            memory = memory.plus(self.between(start, end))
            start = end
        return replace(memory, until=start)

    def price(self, hours: float) -> float:
        """m, with which this interval is the optimum of the paid part, averaged over phases."""
        return self.paid_rows.sum() / ((self.end - self.split) / HOUR_S) * hours**2 / 2


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _counts(row: dict[str, str]) -> tuple[float, float, float]:
    return float(row["inserts"]), float(row["updates"]), float(row["deletes"])


def weighted(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return (ends - starts) / HOUR_S


def paid(history: History, refreshes: list[float]) -> ReplayCost:
    return replay.cost(
        refreshes, history.paid_at, history.paid_rows, end=history.end, weighted=weighted
    )


def closed_loop(history: History, timing: Timing, probes: bool) -> ReplayCost:
    """Ask `decide` at every hour; remember what each refresh found."""
    memory = history.learned(timing.interval_h(None) if timing.refresh_worth is None else 24)
    last = memory.until or history.split
    now, refreshes = history.split, []
    known = memory
    relearned = now
    while now < history.end:
        if now - relearned >= RELEARN_H * HOUR_S:
            known, relearned = memory, now
        probe = ProbeResult()
        if probes:
            rows = history.between(last, now).changed
            probe = ProbeResult(ProbeAnswer.CHANGED if rows else ProbeAnswer.UNCHANGED, rows)
        decision = decide(known, [timing], Circumstances(last, probe), now)
        if decision.due:
            memory = memory.plus(history.between(last, now))
            refreshes.append(now)
            last = now
            now += HOUR_S
        else:
            now = now + HOUR_S if probes else max(decision.at, now + 1)
    return paid(history, refreshes)


def costs(history: History, hours: float, zone: str) -> dict[str, tuple[float, float]]:
    """Cost and stale hours of each policy, over those of the best fixed interval."""
    price = history.price(hours)
    ratios = {}
    span = (history.split, history.end, weighted)
    grid = [replay.fixed(h, history.paid_at, history.paid_rows, *span) for h in hours * GRID]
    best = min(grid, key=lambda one: one.total(price))
    timing = Timing("", refreshes_per_day=24 / hours, interval_max_s=INTERVAL_MAX_S, zone=zone)

    def of(policy: TimingPolicy, probes: bool = False) -> Callable[[], ReplayCost]:
        return lambda: closed_loop(history, replace(timing, policy=policy), probes)

    ways = {
        "threshold": of(TimingPolicy.THRESHOLD),
        "first alteration": of(TimingPolicy.FIRST_ALTERATION),
        "optimal": of(TimingPolicy.OPTIMAL),
        "auto": of(TimingPolicy.AUTO),
        "hourly probe": of(TimingPolicy.AUTO, probes=True),
    }
    for name, way in ways.items():
        one = way()
        ratios[name] = (one.total(price) / best.total(price), one.stale_hours / best.stale_hours)
    least = hindsight(
        ((history.paid_at - history.split) / HOUR_S).tolist(), history.paid_rows.tolist(), price
    )
    ratios["hindsight"] = (least / best.total(price), float("nan"))
    return ratios


def hindsight(waits: Sequence[float], rows: Sequence[float], price: float) -> float:
    """Return the least cost of any refreshes, known afterwards: a bound, not a policy.

    Refreshes are made right after changes; the last change is refreshed. O(n²).

    Args:
        waits: weighted hours from a common origin to each change, increasing, [n].
        rows: that each change touched, [n].
        price: m of a refresh, in weighted row-hours.
    """
    at, count = np.asarray(waits, np.float64), np.asarray(rows, np.float64)
    total = np.concatenate([[0.0], np.cumsum(count)])
    moment = np.concatenate([[0.0], np.cumsum(count * at)])
    least = np.zeros(len(at) + 1)
    for i in range(1, len(at) + 1):
        unseen = at[i - 1] * (total[i] - total[:i]) - (moment[i] - moment[:i])
        least[i] = price + float((least[:i] + unseen).min())
    return float(least[-1])


GRID = np.array([0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0])


def main(folder: Path) -> None:
    """Print cost and stale hours of each policy; the cheapest is bold."""
    print("| history, best fixed interval | " + " | ".join(POLICIES) + " | hindsight |")
    print("|---|" + "---|" * (len(POLICIES) + 1))
    for name, zone in HISTORIES.items():
        path = folder / name / "changes_all_commits.csv"
        if not path.exists():
            print(f"skipped: there is no {name}/changes_all_commits.csv in FOLDER", file=sys.stderr)
            continue
        history = History(path)
        for interval, hours in INTERVALS_H.items():
            ratios = costs(history, hours, zone)
            cheapest = min(POLICIES, key=lambda policy: ratios[policy][0])
            cells = [f"{ratios[p][0]:.2f} ({ratios[p][1]:.2f})" for p in POLICIES]
            cells[POLICIES.index(cheapest)] = f"**{cells[POLICIES.index(cheapest)]}**"
            least = f"{ratios['hindsight'][0]:.2f}"
            print(f"| {name}, {interval} | " + " | ".join([*cells, least]) + " |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
