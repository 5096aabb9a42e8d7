"""What it is worth that hot rows lie in files of their own: rows written again, with and without.

    python -m benchmarks.heat_files

The rules of `apply` without Spark, on rows and files that are numbers: shipped rows are a file of
their own; files that hold updated or deleted rows are written again without them, and with them the
small ones when there are more than SMALL_FILES_MAX; Spark puts what is written again into tasks of
at most FILE_ROWS rows, and each task writes one file, or one of hot rows and one of the others.
Which rows are hot is said by `heat`. The proportions are those of a table of 32 files of 128 MB,
a file below 16 MB being small, so real histories of 48,000 rows have files of 1,500.

*skewed* is made up: 48,000 rows, of which 1 % take 90 % of the updates; 1, 5 and 20 of them a day,
for a year.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.expect import DAY_S, HISTORIES, Schedule
from benchmarks.expect_rows import Integers, Step, Table, forecast, outlook_of, steps
from tests.harness.histories import DATA, available
from warehouse_agent.planning import update_probability
from warehouse_agent.tasks.apply import SMALL_FILES_MAX

FILE_ROWS = 1_500
SMALL_ROWS = FILE_ROWS // 8
ROWS, DAYS = 48_000, 365
HOT_ROWS, HOT_SHARE = 0.01, 0.9
UPDATES = (1, 5, 20)  # a day


@dataclass
class Files:
    """Which file every row lies in, int64; −1 where the row is not there."""

    of: Integers
    number: int = 0
    rewritten: int = 0  # rows, in all
    files: int = 0  # after each refresh, in all

    @classmethod
    def loaded(cls, present: npt.NDArray[np.bool_]) -> Files:
        at = np.flatnonzero(present)
        found = cls(np.full(len(present), -1, np.int64))
        found.of[at] = np.arange(len(at)) // FILE_ROWS
        found.number = int(found.of.max()) + 1
        return found

    def take(self, step: Step, is_hot: npt.NDArray[np.bool_] | None) -> None:
        """One refresh; `is_hot` of all rows, or None where files know no heat."""
        gone = np.concatenate([step.updated, step.deleted])
        touched = np.zeros(self.number, np.bool_)
        touched[self.of[gone]] = True
        sizes = np.bincount(self.of[self.of >= 0], minlength=self.number)
        small = (sizes > 0) & (sizes < SMALL_ROWS)
        if small.sum() > SMALL_FILES_MAX and len(gone) + len(step.inserted):
            touched |= small
        self.of[gone] = -1
        sizes = np.bincount(self.of[self.of >= 0], minlength=self.number)
        task, filled = np.full(self.number, -1, np.int64), FILE_ROWS
        tasks = 0
        for file in np.flatnonzero(touched)[np.argsort(-sizes[touched], kind="stable")]:
            if filled + sizes[file] > FILE_ROWS:
                tasks, filled = tasks + 1, 0
            filled += int(sizes[file])
            task[file] = tasks - 1
        rows = np.flatnonzero((self.of >= 0) & touched[self.of])
        self.rewritten += len(rows)
        hot = np.zeros(len(rows), np.int64) if is_hot is None else is_hot[rows].astype(np.int64)
        self.of[rows] = self.number + 2 * task[self.of[rows]] + hot
        self.number += 2 * tasks
        self.of[np.concatenate([step.updated, step.inserted])] = self.number
        self.number += 1
        # Numbers of files that are no more are given again.
        present = self.of >= 0
        named, self.of[present] = np.unique(self.of[present], return_inverse=True)
        self.number = len(named)
        self.files += len(named)


def replay(table: Table, found: list[Step]) -> tuple[Files, Files]:
    """Without and with heat, over all steps."""
    plain, heated = Files.loaded(table.present), Files.loaded(table.present)
    for step in found:
        elapsed_s = max(step.at_s - table.at_s, 1.0)
        expected = forecast(table, elapsed_s)
        table.take(step, update_probability.usual_most(expected))
        share = update_probability.usual_share(expected, int(table.present.sum()))
        view = outlook_of(table, elapsed_s, share)
        counted = table.rate * np.exp(-(view.middle_s - table.changed_s) / update_probability.TAU_S)
        is_hot = table.present & (counted > update_probability.hot_from(view))
        plain.take(step, None)
        heated.take(step, is_hot)
    return plain, heated


def skewed(updates: int) -> tuple[Table, list[Step]]:
    """A table with hot rows, and a year of updates."""
    rng = np.random.default_rng(updates)
    hot = rng.choice(ROWS, round(ROWS * HOT_ROWS), replace=False)
    none = np.zeros(0, np.int64)
    found = []
    for day in range(1, DAYS + 1):
        anywhere = rng.integers(0, ROWS, updates)
        chosen = np.where(rng.random(updates) < HOT_SHARE, rng.choice(hot, updates), anywhere)
        found.append(Step(day * DAY_S, none, np.unique(chosen), none))
    return Table.loaded(ROWS, np.arange(ROWS), 0.0), found


def series() -> Iterator[tuple[str, Table, list[Step]]]:
    for updates in UPDATES:
        yield (f"skewed, {updates} a day", *skewed(updates))
    for name in HISTORIES:
        for schedule in (Schedule.COMMIT, Schedule.DAILY, Schedule.WEEKLY):
            yield (f"{name}, {schedule.value}", *steps(name, schedule))


def main() -> None:
    """The table."""
    if not all(map(available, HISTORIES)):
        raise SystemExit(f"NO REAL TABLES, NOT MEASURED: {DATA} is not there")
    print("| history | rows changed | rows written again | by heat | ratio | files | by heat |")
    print("|---|---|---|---|---|---|---|")
    for title, table, found in series():
        changed = sum(len(s.inserted) + len(s.updated) + len(s.deleted) for s in found)
        plain, heated = replay(table, found)
        print(
            f"| {title} | {changed:,} | {plain.rewritten:,} | {heated.rewritten:,} "
            f"| {heated.rewritten / plain.rewritten:.2f} "
            f"| {plain.files / len(found):.0f} | {heated.files / len(found):.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
