"""Two real histories refreshed by groups: the benefit that was expected, and what was saved.

    python -m benchmarks.replay.groups [--commits 40]

Commits that changed something, one refresh each with `method = "group"`, through both agents and an
SQLite file, without Spark. The benefit is that of Lu, Liu and Hyland (section V.D): bytes of a copy
less bytes of the comparison. *Expected* is by the prediction that the report had before the
refresh, *modelled* by the same prices for the changes that were found, *saved* by the bytes that
moved; *error* is Σ|modelled − moved| ÷ Σ moved, of the bytes of refreshes 11 to 40. A copy has the
bytes per row of the first load, and the rows of the version. The refreshes follow each other at
once, so the forecast does not see the times of the commits, and learns from these refreshes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.harness.histories import DATA, History, available
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.pair.refresh.test_replay import FOOTBALL, RUNWAYS, Table
from warehouse_agent.refresh.job import Options

HISTORIES = (RUNWAYS, FOOTBALL)
LEARNT = slice(10, 40)  # refreshes whose prices were learnt


@dataclass(frozen=True, slots=True)
class Benefit:
    """One refresh, in bytes; `modelled` is None if the model has no such way."""

    changed: int
    deleted: int
    copied: int
    expected: int
    modelled: int | None
    saved: int

    @property
    def moved(self) -> int:
        """Return the bytes of the comparison."""
        return self.copied - self.saved

    @property
    def error(self) -> int:
        """Return by how many bytes the model is wrong; 0 if it has no such way."""
        return 0 if self.modelled is None else abs(self.modelled - self.saved)


def replay(name: str, folder: Path, *, commits: int | None = None) -> Iterator[Benefit]:
    """Yield a refresh for each of the first `commits` commits that changed something; None: all.

    Raises:
        AssertionError: a refresh failed, or found other changes than the commit's.
    """
    history = History(name)
    legacy = SqliteLegacy(folder / "erp.db")
    table = Table(legacy, history)
    table.load(list(history.rows_at(0).values()))
    with Pair(NoSpark(), legacy, folder / "pair", {"t": 'table = "t"'}) as pair:
        pair.fragment_lines["t"] = 'method = "group"'
        loaded = pair.refresh("t")
        row_bytes = (loaded.bytes_received + loaded.bytes_sent) / (loaded.rows_total or 1)
        changing = (commit for commit in history.commits(0, history.last) if len(commit))
        for commit in islice(changing, commits):
            table.edit(commit)
            report = pair.refresh("t", options=Options(allow_shrink=True))
            edits = (len(commit.inserts), len(commit.updates), len(commit.deletes))
            counts = (report.rows_inserted, report.rows_updated, report.rows_deleted)
            assert counts == edits, (name, commit.number, counts, edits)
            predicted, model = report.predicted or {}, report.modelled
            copied = round(row_bytes * (report.rows_total or 0))
            yield Benefit(
                changed=sum(edits),
                deleted=edits[2],
                copied=copied,
                expected=copied - int(predicted["bytes"]),
                modelled=None if model is None else copied - int(model["bytes"]),
                saved=copied - report.bytes_sent - report.bytes_received,
            )
    legacy.close()


def model_error(benefits: Sequence[Benefit]) -> float:
    """Return Σ|modelled − moved| ÷ Σ moved of some refreshes; 0 of none."""
    return sum(b.error for b in benefits) / max(sum(b.moved for b in benefits), 1)


def line_of(name: str, benefits: list[Benefit]) -> str:
    """Return a row of the table in `docs/results/replay.md`."""
    expected, saved = sum(b.expected for b in benefits), sum(b.saved for b in benefits)
    modelled = sum(b.saved if b.modelled is None else b.modelled for b in benefits)
    return (
        f"| {name} | {len(benefits)} | {sum(b.changed for b in benefits):,} "
        f"({sum(b.deleted for b in benefits):,} deleted) | {sum(b.copied for b in benefits):,} "
        f"| {expected:,} | {modelled:,} | {saved:,} | {model_error(benefits[LEARNT]):.1%} |"
    )


@click.command()
@click.option("--commits", type=int, help="The first ones of each history; otherwise all.")
def main(commits: int | None) -> None:
    """Print a row for each history."""
    print("| history | refreshes | changed | copies | expected | modelled | saved | error |")
    print("|---|---|---|---|---|---|---|---|")
    for name in HISTORIES:
        if not available(name):
            print(f"NO REAL TABLES, NOT MEASURED: {DATA / name} is not there")
            continue
        with TemporaryDirectory() as folder:
            print(line_of(name, list(replay(name, Path(folder), commits=commits))), flush=True)


if __name__ == "__main__":
    main()
