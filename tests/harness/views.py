"""Several sources, one warehouse with views, and an oracle that computes the views itself.

Each source is an SQLite database with a source agent of its own. The oracle is DuckDB over the rows
that the owners' connections read.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.harness.legacy import Legacy, SqliteLegacy
from tests.harness.pair import SMALL_BYTES, Pair, plain, rows_of
from tests.harness.places import InWarehouse
from warehouse_agent.config import WarehouseConfig
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.store import Store, located
from warehouse_agent.views.inputs import load
from warehouse_agent.views.selection import select
from warehouse_agent.visible_versions import warehouse_versions
from warehouse_agent.visible_versions.readers import Warehouse, at
from warehouse_agent.visible_versions.warehouse_versions import WarehouseVersion


def served(table: str, derive: Sequence[str] = ()) -> str:
    """The lines of a relation in source.toml."""
    return f'table = "{table}"\n' + (f"derive = {json.dumps(list(derive))}\n" if derive else "")


def rows_at(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a data file by its URI."""
    system, path = located(uri)
    return pq.read_table(path, columns=columns, filesystem=system)


class Sites(InWarehouse):
    """Sources by name, with tables by name and their columns; and a warehouse with views."""

    def __init__(
        self,
        spark: SparkSession | DeferredSession,
        folder: Path,
        tables: dict[str, dict[str, str]],
        views: dict[str, str],
        legacies: Mapping[str, Legacy] | None = None,
        derive: Sequence[str] = (),
        template: Path | None = None,
    ) -> None:
        """`legacies`: the database of each source, which the caller closes; else SQLite files.

        `derive`: the parts of every relation that a warehouse may choose. `template`: the folder of
        earlier `Sites` over SQLite, which were closed: begin with their databases and warehouse.
        """
        self.spark, self.folder, self.tables = spark, folder, tables
        self.choose(folder, template)
        self.views = views
        self.view_lines: dict[str, str] = {}
        self.fragment_lines: dict[str, str] = {}
        self.small_bytes = SMALL_BYTES
        self.pairs: dict[str, Pair] = {}
        self._stack = ExitStack()
        for source, columns in tables.items():
            (folder / source).mkdir(parents=True)
            legacy: Legacy
            if legacies is not None:
                legacy = legacies[source]
            else:
                file = folder / f"{source}.db"
                if template is not None:
                    shutil.copyfile(template / file.name, file)
                legacy = SqliteLegacy(file)
                self._stack.callback(legacy.close)
            for name, ddl in columns.items() if template is None else ():
                legacy.execute(f"CREATE TABLE {name} ({ddl})")
            relations = {name: served(name, derive) for name in columns}
            self.pairs[source] = self._stack.enter_context(
                Pair(spark, legacy, folder / source, relations)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def store(self) -> Store:
        return Store.of(self.config())

    def sql(self, source: str, text: str, *parameters: Any) -> None:
        self.pairs[source].legacy.execute(text, *parameters)

    def toml(self, more: str = "") -> Path:
        """Write warehouse.toml: fragments are those that `fragment_lines` names."""
        small = "" if self.small_bytes is None else f"small_bytes = {self.small_bytes}\n"
        root = self.disk if self.bucket is None else self.bucket.root
        parts = [f'[warehouse]\npath = "{root}"\n{small}{more}\n']
        parts += [] if self.bucket is None else [self.bucket.toml]
        for name, pair in self.pairs.items():
            parts.append(f'[sources.{name}]\naddress = "{pair.address}"\ninsecure = true\n')
        parts += [f"[fragments.{name}]\n{lines}\n" for name, lines in self.fragment_lines.items()]
        parts += [
            f'[views.{name}]\nquery = """{text}"""\n{self.view_lines.get(name, "")}\n'
            for name, text in self.views.items()
        ]
        file = self.folder / "warehouse.toml"
        file.write_text("\n".join(parts))
        return file

    def config(self) -> WarehouseConfig:
        return load(self.toml())

    def refresh(
        self,
        *names: str,
        without: Sequence[str] = (),
        options: Options | None = None,
        attempts: int = 1,
    ) -> dict[str, Report]:
        """Refresh, by default all; return the reports by name."""
        config = self.config()
        runner = Runner(self.spark, config, attempts=attempts, sleep=lambda _: None)
        chosen = select(config, names, not names, without)
        return {r.name: r for r in runner.refresh(chosen, options or Options())}

    def well(self, *names: str, **options: Any) -> dict[str, Report]:
        """Refresh, which must go well."""
        reports = self.refresh(*names, **options)
        wrong = {n: r.error or r.not_started or r.stale or r.held for n, r in reports.items()}
        assert not any(wrong.values()), wrong
        return reports

    def newest(self) -> WarehouseVersion | None:
        return warehouse_versions.newest(self.store)

    def pinned(self, version: int | None = None) -> Warehouse:
        assert not isinstance(self.spark, DeferredSession)
        if self.bucket is None:  # without a look at the configuration, which a test may spoil
            return at(self.spark, self.disk, version)
        return at(self.spark, self.bucket.root, version, storage=self.bucket.settings)

    def seen(self, name: str, version: int | None = None) -> Counter[tuple[Any, ...]]:
        """Return the rows that a reader of a warehouse version is given, by default the newest.

        On a disk Spark names the files; that it reads them is for `check`.
        """
        if self.bucket is not None:
            return self._given(name, version)[0]
        rows = self.pinned(version).read(name)
        found = Counter[tuple[Any, ...]]()
        for uri in rows.inputFiles():
            table = rows_at(uri, rows.columns)
            found.update(tuple(map(plain, row.values())) for row in table.to_pylist())
        return found

    def expected(self, view: str) -> Counter[tuple[Any, ...]]:
        """Return the rows of a view, computed from the sources' rows."""
        return self._expected([view])[view]

    def _expected(self, views: Iterable[str]) -> dict[str, Counter[tuple[Any, ...]]]:
        with duckdb.connect() as db:
            for source, tables in self.tables.items():
                db.execute(f"CREATE SCHEMA {source}")
                for name, ddl in tables.items():
                    db.execute(f"CREATE TABLE {source}.{name} ({ddl})")
                    insert(db, f"{source}.{name}", self.pairs[source].legacy.rows(name))
            for name, lines in self.fragment_lines.items():
                pairs = dict(line.split(" = ") for line in lines.splitlines())
                relation = pairs.get("relation", name).strip('"')
                table = f"{pairs['source']}.{relation}".replace('"', "")
                db.execute(f"CREATE VIEW {name} AS SELECT * FROM {table}")
            for name, text in self.views.items():
                as_duckdb = text.replace("`", '"').replace(" div ", " // ")
                db.execute(f"CREATE VIEW {name} AS {as_duckdb}")
            found = {view: db.execute(f"SELECT * FROM {view}").fetchall() for view in views}
        return {v: Counter(tuple(map(plain, row)) for row in rows) for v, rows in found.items()}

    def check(self, *views: str, version: int | None = None) -> None:
        """Compare views, by default all, that a reader is given with the oracle's."""
        for name, expected in self._expected(views or self.views).items():
            found, stale = self._given(name, version)
            assert found == expected, name
            assert stale is None

    def _given(self, name: str, version: int | None) -> tuple[Counter[tuple[Any, ...]], str | None]:
        """Return the rows of a view in a warehouse version, and why it is stale.

        In a bucket delta-rs reads, which knows nothing of us.
        """
        if self.bucket is None:
            pinned = self.pinned(version)
            rows: Iterable[Any] = pinned.read(name).collect()
            stale = pinned.stale(name)
        else:
            store = Store(self.bucket.root, storage=self.bucket.settings)
            one = (
                self.newest() if version is None else warehouse_versions.at_version(store, version)
            )
            assert one is not None
            member = one.members[name]
            table, options = f"{self.bucket.root}/{member.folder}", self.bucket.delta_options
            read = DeltaTable(table, member.version, options).to_pyarrow_table()
            own = [n for n in read.column_names if not n.startswith("_driftline_")]
            rows, stale = rows_of(read.select(own)), member.stale
        return Counter(tuple(map(plain, row)) for row in rows), stale


def insert(db: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows by one statement, which DuckDB runs faster than one for each row."""
    if rows:
        marks = ", ".join(["(" + ", ".join("?" * len(rows[0])) + ")"] * len(rows))
        db.execute(f"INSERT INTO {table} VALUES {marks}", [value for row in rows for value in row])
