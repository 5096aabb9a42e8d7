"""A warehouse with a past: published versions and histories of refreshes, made without a source.

What the product would have written after months of refreshes, from a seed: its own reports, its own
commits of a table, its own folds. For tests and benchmarks of what is shown of a past.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from driftline.errors import DriftlineError, SourceUnreachable
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.columns.layout import Layout, lay_out
from warehouse_agent.history import refresh_history
from warehouse_agent.report import Report
from warehouse_agent.storage import formats
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import NewVersion, VersionRecord

COLUMNS = ("id", "customer", "status", "total", "currency", "note", "changed_at")
BYTES_PER_ROW = 31.0  # of a copy


def text_of(at: datetime) -> str:
    """A moment as reports have it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def layout_of(columns: Sequence[str] = COLUMNS) -> Layout:
    described = (
        Column(name, parse_type("int8" if i == 0 else "text"), i > 0, i)
        for i, name in enumerate(columns)
    )
    return lay_out(Recipe(tuple(described), 1), {}, where="test")


@dataclass(frozen=True)
class Past:
    """The refreshes of one table.

    `lost`: the last of them failed so often, by `error`. `columns` names those that change.
    """

    name: str
    refreshes: int
    newest: datetime
    every: timedelta = timedelta(hours=1)
    rows: int = 750_000
    changes: int = 900  # of a usual refresh
    lost: int = 0
    error: DriftlineError | None = None
    columns: Sequence[str] = COLUMNS
    altered: int | None = None  # the refresh with which the columns changed
    seed: int = 1

    def reports(self) -> Iterator[Report]:
        """Yield the report of each refresh, the oldest first."""
        dice, version, rows = random.Random(self.seed), 0, self.rows
        for number in range(self.refreshes):
            at = self.newest - self.every * (self.refreshes - 1 - number)
            if number >= self.refreshes - self.lost or (number and dice.random() < 0.01):
                yield self._failed(at, version)
                continue
            busy = 0.2 + 0.8 * (8 <= at.hour <= 18)
            d = (
                0
                if number and dice.random() < 0.15
                else int(dice.lognormvariate(0, 0.5) * self.changes * busy)
            )
            if number and dice.random() < 0.01:
                d *= 40
            report = self._good(at, number, version, rows, d, dice)
            version, rows = report.version or 0, report.rows_total or rows
            yield report

    def _failed(self, at: datetime, version: int) -> Report:
        report = Report(self.name, version=version, previous_version=version, run=f"run{at:%d%H%M}")
        report.fail(self.error or SourceUnreachable("cut.", where="erp.example:7443"))
        report.started_at = report.failed_at = text_of(at)
        return report

    def _good(
        self, at: datetime, number: int, version: int, rows: int, d: int, dice: random.Random
    ) -> Report:
        inserted, deleted = d // 3, d // 10
        updated = d - inserted - deleted
        left = rows + inserted - deleted
        copy = int(left * BYTES_PER_ROW)
        moved = copy if number == 0 else int(1_100 + d * 40 * dice.uniform(0.9, 1.3))
        scan = left / 250_000 * dice.uniform(0.9, 1.2)
        parts = [0] * 32
        for _ in range(24 if d else 0):
            parts[min(int(abs(dice.gauss(31, 6))), 31)] += d // 24
        report = Report(
            self.name,
            version=version + bool(d) if number else 0,
            previous_version=version if number else None,
            run=f"run{number}",
            started_at=text_of(at - timedelta(seconds=scan)),
            release="0.1.0",
            source="erp",
            source_release="0.1.0",
            rows_inserted=left if number == 0 else inserted,
            rows_updated=0 if number == 0 else updated,
            rows_deleted=0 if number == 0 else deleted,
            rows_total=left,
            bytes_sent=moved // 6,
            bytes_received=moved - moved // 6,
            copy_bytes=copy,
            predicted={
                "what": "by sketch",
                "bytes": int(moved * dice.uniform(0.7, 1.5)),
                "seconds": round(scan * dice.uniform(0.8, 1.4) + 1, 2),
            },
            changes_expected=(self.changes // 4, self.changes, self.changes * 3)
            if number
            else None,
            round_trips=1 + (d > 5 * self.changes),
            source_scans=1,
            source_rows_read=left,
            held_back_s=round(scan / 8, 2) if dice.random() < 0.2 else 0.0,
            seconds={
                "reduce": round(0.2 + left / 4e6, 3),
                "exchange": round(scan, 3),
                "apply": round(0.1 + d / 20_000, 3),
                "prove": round(0.1 + d / 30_000, 3),
                "publish": 0.06,
            },
            places={"reduce": "driver", "apply": "driver", "prove": "driver"},
            places_why={
                phase: {
                    "place": "driver",
                    "reason": "seconds",
                    "needs_spark": False,
                    "bytes": moved,
                    "why": "expected to end first",
                    "driver_s": 0.2,
                    "spark_s": 4.1,
                }
                for phase in ("reduce", "apply", "prove")
            },
            method="full" if number == 0 else "range" if d > 5 * self.changes else "sketch",
            consistency="exact",
            proof="total",
            fingerprint="agent",
            miss_probability=1e-36,
            as_of=text_of(at - timedelta(seconds=scan)),
            checked_at=text_of(at),
            attempts=1,
            schema_changed=number == self.altered,
        )
        if number and updated:
            shares = {name: 1 / (i + 1) ** 1.5 for i, name in enumerate(self.columns[1:])}
            counts = {name: max(int(updated * share), 1) for name, share in shares.items()}
            report.changed = {"compared": updated, "columns": counts, "parts": parts}
        if dice.random() < 0.04:
            report.retried = [
                {"code": "UNREACHABLE", "message": "cut.", "where": "erp", "remedy": ""}
            ]
            report.attempts = 2
        return report

    def write(self, store: Store) -> None:
        """Write the history, and the newest version as a commit; no data file of it is there."""
        lines, newest = bytearray(), None
        for report in self.reports():
            lines += report.to_json().encode() + b"\n"
            newest = report if report.error is None else newest
            if len(lines) >= refresh_history.LINES_BYTES_MAX:
                lines = bytearray(refresh_history.shortened(bytes(lines)))
        store.write(bytes(lines), PRIVATE, "runs", f"{self.name}.jsonl")
        if newest is not None:
            self._publish(store, newest)

    def _publish(self, store: Store, newest: Report) -> None:
        rows = newest.rows_total or 0
        record = VersionRecord(
            as_of=newest.as_of or "",
            checked_at=newest.checked_at or "",
            consistency="exact",
            proof="total",
            fingerprint="agent",
            vouched=True,
            rows=rows,
            published_at=newest.checked_at or "",
            rows_inserted=newest.rows_inserted,
            rows_updated=newest.rows_updated,
            rows_deleted=newest.rows_deleted,
            method="sketch",
        )
        path = "data-000000000001-shipped/a.parquet"
        file = DataFile(
            path, store.uri(self.name, path), int(rows * BYTES_PER_ROW), rows, (0, rows)
        )
        version = formats.commit(
            store, self.name, NewVersion(None, layout_of(), [file], (), record)
        )
        assert version is not None


def configured(folder: Path, names: Sequence[str], settings: str = 'interval_max = "2h"') -> Path:
    """Write a warehouse.toml beside a warehouse; return it."""
    lines = ["[warehouse]", 'path = "warehouse"', "[sources.erp]", 'address = "127.0.0.1:7443"']
    lines += ["insecure = true"]
    lines += [f'[fragments."{name}"]\nsource = "erp"\n{settings}' for name in names]
    file = folder / "warehouse.toml"
    file.write_text("\n".join(lines) + "\n")
    return file
