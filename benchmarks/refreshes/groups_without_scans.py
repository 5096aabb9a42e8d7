"""Changes that parts find where no scan is allowed, against a uniform draw of as many rows.

    python -m benchmarks.refreshes.groups_without_scans [--rows 20000] [--changes 200] [--learnt 10]
        [--key uuid]

A PostgreSQL table, both agents, no Spark. A share HOT_SHARE of all updates falls on a tenth of the
rows, scattered over the keys; the others fall on the rest. First the statistics of the rows are
learnt from complete refreshes. Then the DBA allows no scan, and a budget of BUDGET_SHARE of the
rows by key: each round updates rows, and one refresh compares a part. Between two rounds a complete
refresh finds what is left, so that every round begins with equal tables.

A uniform draw of the same budget would find the share BUDGET_SHARE of the changes. Full scans are
those that the server counts for the table (`pg_stat_user_tables.seq_scan`) during the parts.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tests.harness.legacy import Legacy, PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.servers import PostgreSQL
from warehouse_agent.report import Report

HOT_ROWS, HOT_SHARE = 0.1, 0.9
BUDGET_SHARE = 0.05
ROUNDS = 5
SCHEMA = "CREATE TABLE orders (id {} PRIMARY KEY, note VARCHAR(40), hits INTEGER)"
TYPES = {"integer": "BIGINT", "uuid": "UUID"}


@dataclass(frozen=True, slots=True)
class Result:
    """Sums over all rounds.

    Attributes:
        changed: rows that were updated, and found by a part.
        budget_share: the most rows that a part compares, divided by the rows of the table.
        expected_left: updates that the reports of the parts expected among the rows left.
        rows_read: by key at the source; `scans`: full scans by the parts' reports.
    """

    changed: int
    found: int
    budget_share: float
    expected_left: float
    rows_read: int
    scans: int

    @property
    def gain(self) -> float:
        """Changes found, divided by those that a uniform draw of the budget would find."""
        return self.found / (self.budget_share * self.changed)


class Bench:
    """A table behind a source agent, and a warehouse that refreshes it."""

    def __init__(self, legacy: Legacy, folder: Path, *, rows: int, changes: int, key: str) -> None:
        self.legacy, self._random = legacy, random.Random(1)
        legacy.execute(SCHEMA.format(TYPES[key]))
        keys: list[Any] = self._random.sample(range(rows), rows)
        if key == "uuid":
            keys = [uuid.UUID(int=self._random.getrandbits(128)) for _ in keys]
        legacy.many("INSERT INTO orders VALUES (?, ?, ?)", [(k, "x" * 20, 0) for k in sorted(keys)])
        hot = round(HOT_ROWS * rows)
        self._hot, self._cold = keys[:hot], keys[hot:]
        legacy.execute("ANALYZE orders")
        self._changes, self._budget = changes, round(BUDGET_SHARE * rows)
        self.pair = Pair(NoSpark(), legacy, folder, {"orders": 'table = "orders"'})
        self.pair.fragment_lines["orders"] = 'require = "fuzzy"\nproof = "part"'

    def change(self) -> int:
        """Update rows; return how many."""
        hot = round(HOT_SHARE * self._changes)
        keys = self._random.sample(self._hot, hot)
        keys += self._random.sample(self._cold, self._changes - hot)
        self.legacy.many("UPDATE orders SET hits = hits + 1 WHERE id = ?", [(k,) for k in keys])
        return len(keys)

    def whole(self) -> Report:
        """Refresh everything."""
        self.pair.publish("orders", 'table = "orders"')
        report = self.pair.refresh("orders")
        assert report.proof == "total", report
        return report

    def part(self) -> Report:
        """Refresh a part, where no scan is allowed."""
        limits = f'scan = "never"\nrows_by_key = {self._budget}'
        self.pair.publish("orders", f'table = "orders"\n{limits}')
        report = self.pair.refresh("orders")
        assert report.proof == "part", report
        return report


def measure(
    legacy: Legacy,
    folder: Path,
    *,
    rows: int,
    changes: int,
    learnt: int,
    rounds: int,
    key: str = "integer",
) -> Result:
    """Learn from `learnt` complete refreshes, then measure `rounds` parts."""
    bench = Bench(legacy, folder, rows=rows, changes=changes, key=key)
    with bench.pair:
        bench.whole()
        for _ in range(learnt):
            changed = bench.change()
            assert bench.whole().rows_updated == changed
        changed, parts = 0, []
        for _ in range(rounds):
            changed += bench.change()
            before = _scans(legacy)
            parts.append(bench.part())
            assert _scans(legacy) == before
            left = bench.whole().rows_updated
            assert parts[-1].rows_updated + left == changes
    return Result(
        changed=changed,
        found=sum(part.rows_updated for part in parts),
        budget_share=BUDGET_SHARE,
        expected_left=sum(part.updates_left or 0.0 for part in parts),
        rows_read=sum(part.source_rows_read for part in parts),
        scans=sum(part.source_scans for part in parts),
    )


def _scans(legacy: Legacy) -> int:
    return legacy.sequential_scans("orders") if isinstance(legacy, PostgresLegacy) else 0


@click.command()
@click.option("--rows", default=20_000, show_default=True)
@click.option("--changes", default=200, show_default=True, help="Rows updated before each refresh.")
@click.option(
    "--learnt", default=10, show_default=True, help="Complete refreshes before the first part."
)
@click.option("--rounds", default=ROUNDS, show_default=True)
@click.option("--key", type=click.Choice([*TYPES]), default="integer", show_default=True)
def main(rows: int, changes: int, learnt: int, rounds: int, key: str) -> None:
    """Print what the parts found."""
    with PostgreSQL() as server, TemporaryDirectory() as folder:
        legacy = PostgresLegacy(server)
        sizes = {"rows": rows, "changes": changes, "learnt": learnt, "rounds": rounds}
        total = measure(legacy, Path(folder), **sizes, key=key)
        legacy.close()
    print(
        f"{rows:,} rows, {rounds} parts of {total.budget_share:.0%} after {learnt} complete "
        f"refreshes: {total.found:,} of {total.changed:,} changes found, {total.gain:.1f} times a "
        f"uniform draw; {total.changed - total.found:,} left, {total.expected_left:,.0f} expected; "
        f"{total.rows_read:,} rows read by key, {total.scans} full scans"
    )


if __name__ == "__main__":
    main()
