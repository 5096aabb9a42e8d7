"""Both agents around one relation that has a marker, without Spark.

`Rig` is what every test of the room does: it refreshes by the marker, makes an audit due, reads and
changes the published mark, and reads the published rows. `Stock` is the table that most modules
edit; it has a column for each kind of marker. A module with a table of its own derives from `Rig`.
The oracle is the owner's own connection (`Legacy.rows`).
"""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness.legacy import Legacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, expect_equal
from tests.harness.places import Place
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.storage.formats import head
from warehouse_agent.tasks.scan import read_batches

TYPES = {
    "sqlite": {"int8": "INTEGER", "text": "TEXT", "time": "DATETIME", "flag": "BOOLEAN"},
    "postgresql": {"int8": "BIGINT", "text": "TEXT", "time": "TIMESTAMPTZ", "flag": "BOOLEAN"},
    "mariadb": {
        "int8": "BIGINT",
        "text": "VARCHAR(200)",
        "time": "TIMESTAMP(6) NULL",
        "flag": "BOOLEAN",
    },
}
ZONES = {"sqlite": ', zone = "UTC"', "postgresql": "", "mariadb": ""}
OLD = "2001-01-01 00:00:00"
BY_VERSION = '{ column = "version" }'
XMIN = "{ xmin = true }"  # of PostgreSQL
STOCK = """CREATE TABLE stock (
    id {int8} PRIMARY KEY, amount INTEGER, note {text}, updated_at {time}, version {int8},
    gone {flag})"""
ROWS = 600  # of `stock`
HISTORIES = 300  # of a soak


def seeds(sample: int) -> list[Any]:
    """Return the seeds of random histories, of which the first ones run without `--soak`."""
    later = (pytest.param(seed, marks=pytest.mark.soak) for seed in range(sample, HISTORIES))
    return [*range(sample), *later]


def of(legacy: Legacy, at: str) -> str:
    """Return a time in UTC as a writer of this engine sets it."""
    return f"{at}+00" if legacy.engine == "postgresql" else at


def now(legacy: Legacy) -> str:
    """Return the present time as a writer of this engine sets it."""
    return of(legacy, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"))


def by_time(legacy: Legacy, more: str = "", *, column: str = "updated_at") -> str:
    """Return the TOML of a marker whose column has times in UTC."""
    return f'{{ column = "{column}", late = "1m"{ZONES[legacy.engine]}{more} }}'


def counts(report: Report) -> tuple[int, int, int]:
    """Return the numbers of inserted, updated and deleted rows."""
    return report.rows_inserted, report.rows_updated, report.rows_deleted


def used(report: Report) -> dict[str, Any]:
    """Return what a report says about the use of the marker."""
    assert report.marker is not None
    return report.marker


class Rig:
    """A pair over one relation with a marker, without Spark.

    The relation has the fragment's name. Its rows begin with an integer that is never repeated.
    """

    def __init__(
        self, legacy: Legacy, folder: Path, name: str, lines: str, proof: str = "keys"
    ) -> None:
        """`lines`: the TOML of the relation in source.toml, with its marker; `proof`: the weakest
        that the fragment accepts."""
        self.legacy, self.name, self.proof = legacy, name, proof
        self.pair = Pair(NoSpark(), legacy, folder, {name: lines})
        if legacy.engine == "mariadb":
            self.await_next_second()
        self.fragment()

    def await_next_second(self) -> None:
        """Wait until the tables were made in an earlier second, which a mark of MariaDB needs."""
        made = int(time.time())
        while int(time.time()) <= made:
            time.sleep(0.05)

    def fragment(self, lines: str = "") -> None:
        """Configure a refresh by the marker, with further lines of TOML."""
        self.pair.fragment_lines[self.name] = f'proof = "{self.proof}"\nmethod = "since"\n{lines}'

    def refresh(self, options: Options | None = None) -> Report:
        return self.pair.refresh(self.name, options=options)

    def make_due(self) -> None:
        """Change the time of the last audit to years ago."""
        notes = json.loads(self.notes.read_text())
        assert notes["mark"]["audit"] is not None
        notes["mark"]["audit"]["at"] = "2020-01-01T00:00:00Z"
        self.notes.write_text(json.dumps(notes))

    def refresh_when_due(self) -> Report:
        """Refresh as if the last audit were years ago."""
        self.make_due()
        return self.refresh()

    def audit(self) -> dict[str, Any]:
        """Compare all rows, as if the last audit were years ago; return what it found."""
        self.fragment('audit = "1s"')
        report = self.refresh_when_due()
        self.fragment()
        assert report.proof == "total"
        assert report.audit is not None
        return report.audit

    @property
    def notes(self) -> Place:
        """The file with what the warehouse's agent notes about the published version."""
        return self.pair.root / "_driftline" / "fragments" / f"{self.name}.json"

    def last_mark(self) -> dict[str, Any]:
        """Return the entries of the published version's mark."""
        notes = json.loads(self.notes.read_text())
        mark: dict[str, Any] = json.loads(base64.b64decode(notes["mark"]["mark"]))
        return mark

    def change_mark(self, **entries: object) -> None:
        """Change entries of the published version's mark, such as the time when it was made."""
        mark = self.last_mark()
        assert entries.keys() <= mark.keys()
        notes = json.loads(self.notes.read_text())
        notes["mark"]["mark"] = base64.b64encode(json.dumps(mark | entries).encode()).decode()
        self.notes.write_text(json.dumps(notes))

    def published(self) -> list[tuple[Any, ...]]:
        """Return the published rows, read without Spark."""
        snapshot = head(self.pair.store, self.name)
        assert snapshot is not None
        layout, rows = snapshot.layout, list[tuple[Any, ...]]()
        for file in snapshot.files:
            for batch in read_batches(file.uri, layout.file_schema):
                columns = (batch.column(name).to_pylist() for name in layout.data_names)
                rows += zip(*columns, strict=True)
        return rows

    def ours(self) -> dict[int, tuple[Any, ...]]:
        """Return the published rows by their first value."""
        rows = self.published()
        found = {row[0]: row for row in rows}
        assert len(found) == len(rows)
        return found


class Stock(Rig):
    """A pair over the table `stock`, without Spark."""

    def __init__(
        self,
        legacy: Legacy,
        folder: Path,
        marker: str,
        *,
        options: str = "",
        rows: int = ROWS,
        proof: str = "keys",
    ) -> None:
        """`options`: of the table, in SQL."""
        legacy.execute(f"{STOCK.format(**TYPES[legacy.engine])} {options}")
        legacy.execute("CREATE INDEX stock_updated ON stock (updated_at)")
        old = of(legacy, OLD)
        made = [(i * 3, i % 100, f"note {i}", old, i, False) for i in range(rows)]
        legacy.many("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?)", made)
        super().__init__(legacy, folder, "stock", f'table = "stock"\nmarker = {marker}', proof)

    def mark(self, marker: str, more: str = "") -> None:
        """Have the DBA name another marker, with further lines of TOML."""
        self.pair.publish("stock", f'table = "stock"\nmarker = {marker}\n{more}')

    def check(self, where: str = "") -> None:
        """Compare what is published with the owner's rows; `where`: those without the flag."""
        theirs = [r for r in self.legacy.rows("stock") if not where or not r[5]]
        ours = self.published()
        places = (0, 1, 2, 4)  # times differ by engine in their Python types
        expect_equal(
            [tuple(row[i] for i in places) for row in ours],
            [tuple(row[i] for i in places) for row in theirs],
        )

    def update(self, keys: list[int], amount: int, *, honest: bool = True) -> None:
        """Update rows; unless the writer is honest, no marker shows it."""
        sql = "UPDATE stock SET amount = ? WHERE id = ?"
        rows: list[tuple[Any, ...]] = [(amount, k) for k in keys]
        if honest:
            sql = "UPDATE stock SET amount = ?, updated_at = ?, version = ? WHERE id = ?"
            versions = [int(row[4] or 0) for row in self.legacy.rows("stock")]
            top = max(versions, default=0)
            rows = [(amount, now(self.legacy), top + 1 + i, k) for i, k in enumerate(keys)]
        self.legacy.many(sql, rows)

    def insert(self, keys: list[int], at: str = OLD, version: int | None = 0) -> None:
        """Insert rows as a bulk load does, with an old time and no version of their own."""
        rows = [(k, 1, "new", of(self.legacy, at), version, False) for k in keys]
        self.legacy.many("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?)", rows)

    def delete(self, keys: list[int]) -> None:
        self.legacy.many("DELETE FROM stock WHERE id = ?", [(k,) for k in keys])
