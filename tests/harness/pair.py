"""Both agents around one legacy system, for tests: real gRPC, real Spark, real Delta tables.

`Pair` serves the source agent in this process and refreshes with the session's warm Spark. After
every refresh `check` compares what was published with what the owner's own connection reads, as
multisets of rows: the independent oracle.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Self
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from source_agent.config import file as source_configure
from source_agent.server.service import Server, start
from tests import ROOT
from tests.harness.forks import SOURCE, Fork
from tests.harness.installation import Installation, clean_environment
from tests.harness.legacy import LEGACIES, Legacy
from tests.harness.no_spark import NoSpark
from tests.harness.places import InWarehouse
from warehouse_agent import config as configure
from warehouse_agent.cli.main import cli
from warehouse_agent.events import Event, RefreshEnded
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark import session
from warehouse_agent.storage.formats import head
from warehouse_agent.storage.store import PRIVATE, Store, read_at
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.views.selection import TableSelection
from warehouse_agent.visible_versions.readers import changes, read

START_S_MAX = 60.0

# The product's default, by which seconds decide, unless the variable is set. With 0 a test that has
# no Spark is skipped.
SMALL_BYTES = int(found) if (found := os.environ.get("DRIFTLINE_SMALL_BYTES")) else None
ON_SPARK = "sqlite, all on Spark"  # the name of a parameter, see `legacy_of`
# Else an agent beside its database rests up to 15 times as long as it reads while other tests run.
UNBRAKED = "feedback = false"


@dataclass(frozen=True, slots=True)
class Heard:
    """What a refresh by the command told its listeners, and what it printed."""

    report: Report
    events: list[Event]
    out: str
    err: str


class Pair(InWarehouse):
    """A source agent, a warehouse, and one fragment for each published relation."""

    def __init__(
        self,
        spark: SparkSession | session.DeferredSession,
        legacy: Legacy,
        folder: Path,
        relations: dict[str, str],
        limits: str = UNBRAKED,
        template: Path | None = None,
    ) -> None:
        """`template`: the folder of an earlier pair, with whose warehouse it begins.

        `relations`: name to the TOML lines of its table in source.toml.

        `limits`: the lines of [limits].
        """
        if SMALL_BYTES == 0 and isinstance(spark, NoSpark):
            pytest.skip("every step is Spark's, and the test has none")
        self._session = spark
        self.legacy = legacy
        self.folder = folder
        self._relations = relations
        self._server: Server | None = None
        self.choose(folder, template)
        self.small_bytes = SMALL_BYTES  # 0: small tables, too, reach Spark
        self.warehouse_lines = ""  # of [warehouse]
        self.fragment_lines: dict[str, str] = {}
        self.source_lines: str | None = None
        self.limits = limits  # from the next start on
        self.serve()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def publish(self, name: str, lines: str) -> None:
        """Change what the source serves under a name."""
        self._relations[name] = lines
        self.restart()

    def serve(self, port: int = 0) -> None:
        """Start the source agent with the relations as they are now, where it is free to listen."""
        lines = f'listen = "127.0.0.1:{port}"\ninsecure = true'
        self._server = start(source_configure.load(self.source_toml(lines)))
        self.address = f"127.0.0.1:{self._server.port}"

    def source_toml(self, server: str | None = None) -> Path:
        """Write the DBA's file; `server`: the lines of its [server], by default plain loopback."""
        file = self.folder / "source.toml"
        lines = server or 'listen = "127.0.0.1:0"\ninsecure = true'
        password = ""
        if self.legacy.password is not None:
            secret = self.folder / "reader.password"
            secret.write_text(self.legacy.password)
            secret.chmod(0o600)
            password = 'password_file = "reader.password"\n'
        limits = f"[limits]\n{self.limits}\n" if self.limits else ""
        parts = [
            f'[database]\nurl = "{self.legacy.url}"\n{password}',
            f'[server]\n{lines}\naudit_file = "audit.jsonl"\n{limits}',
            *(f"[relations.{name}]\n{relation}\n" for name, relation in self._relations.items()),
        ]
        file.write_text("\n".join(parts))
        return file

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def restart(self) -> None:
        self.stop()
        self.serve()

    @property
    def spark(self) -> SparkSession:
        """The session, for tests that have one."""
        assert not isinstance(self._session, session.DeferredSession)
        return session.pin(self._session)

    @property
    def store(self) -> Store:
        """The warehouse's folder, as its agent sees it."""
        if self.bucket is not None:
            return Store(self.bucket.root, storage=self.bucket.settings)
        return Store(str(self.disk))

    @property
    def steps(self) -> Steps:
        """Where steps run that a test calls itself, as in a refresh."""
        return Steps(self._session, self.small_bytes)

    def config(self) -> configure.WarehouseConfig:
        return configure.load(self.warehouse_toml())

    def warehouse_toml(self, more: str = "") -> Path:
        """Write the data engineer's file. `source_lines`, once set, are those of [sources.erp]."""
        file = self.folder / "warehouse.toml"
        lines = self.source_lines or f'address = "{self.address}"\ninsecure = true'
        small = "" if self.small_bytes is None else f"small_bytes = {self.small_bytes}\n"
        parts = [
            f'[warehouse]\npath = "{self.store.root}"\n{small}{self.warehouse_lines}{more}\n',
            "" if self.bucket is None else self.bucket.toml,
            f"[sources.erp]\n{lines}\n",
            *(
                f'[fragments.{name}]\nsource = "erp"\n{self.fragment_lines.get(name, "")}\n'
                for name in self._relations
            ),
        ]
        file.write_text("\n".join(parts))
        return file

    def said(self, *words: str) -> str:
        """Run a command of the warehouse's agent in this process; return what it prints."""
        ended = CliRunner().invoke(cli, ["--config", str(self.warehouse_toml()), *words])
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    def heard(self, *options: str) -> Heard:
        """Run the command `refresh` on one fragment, which must go well."""
        events, refresh = list[Event](), Runner.refresh

        def refreshed(runner: Runner, chosen: TableSelection, options: Options) -> list[Report]:
            listening = replace(runner, listeners=(*runner.listeners, events.append))
            return refresh(listening, chosen, options)

        words = ["--config", str(self.warehouse_toml()), "refresh", *options]
        with mock.patch.object(Runner, "refresh", refreshed):
            ended = CliRunner().invoke(cli, words)
        assert ended.exit_code == 0, ended.output
        (report,) = [event.report for event in events if isinstance(event, RefreshEnded)]
        return Heard(report, events, ended.stdout, ended.stderr)

    def reports(
        self, *names: str, options: Options | None = None, attempts: int = 1
    ) -> list[Report]:
        """Refresh fragments (all when none is named)."""
        config = self.config()
        runner = Runner(self._session, config, attempts=attempts, sleep=lambda seconds: None)
        chosen = configure.select(config, names, not names)
        return list(runner.refresh(chosen, options or Options()))

    def refresh(self, *names: str, options: Options | None = None, attempts: int = 1) -> Report:
        """Refresh one fragment, which must go well and leave it equal to the source."""
        (report,) = self.reports(*names, options=options, attempts=attempts)
        assert report.error is None, report.error
        return report

    def published(self, name: str, version: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a table as a reader of Delta finds them, which knows nothing of us.

        Where all steps are Spark's, so is the reader, and where the table has another format: then
        it is `read` of the product.
        """
        table, options = self.store.table(name), self.store.delta_options
        if self.small_bytes == 0 or not DeltaTable.is_deltatable(table, options):
            return self.read(name, version)
        found = DeltaTable(table, version, options).to_pyarrow_table()
        columns = [one for one in found.column_names if not one.startswith("_driftline_")]
        return rows_of(found.select(columns))

    def read(self, name: str, version: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a table by the product's `read`, with Spark."""
        store = self.store
        rows = read(self.spark, store.root, name, version, storage=store.storage)
        return rows_of(rows.toArrow())

    def error(self, name: str, options: Options | None = None) -> dict[str, Any]:
        """The refusal of a refresh that must fail, and change nothing that a reader sees."""
        before = self.version(name)
        (report,) = self.reports(name, options=options)
        assert report.error is not None, report
        assert report.version in (before, None)
        assert self.version(name) == before
        assert report.error["message"]
        return report.error

    def version(self, name: str) -> int | None:
        """The newest published version, None before the first."""
        snapshot = head(self.store, name)
        return None if snapshot is None else snapshot.version

    def check_feed(self, name: str, version: int) -> None:
        """The change feed says of each key what became of it since the version before."""
        snapshot = head(self.store, name, version=version)
        assert snapshot is not None
        layout = snapshot.layout
        keys = layout.names[: layout.recipe.key_columns]
        at = [layout.data_names.index(key) for key in keys]
        before, after = (
            {tuple(row[i] for i in at): row for row in (tuple(map(plain, r)) for r in rows)}
            for rows in (self.published(name, version - 1), self.published(name, version))
        )
        expected: Counter[tuple[Any, ...]] = Counter()
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if new is None:
                expected["delete", old] += 1
            elif old is None:
                expected["insert", new] += 1
            elif old != new:
                expected["update_before", old] += 1
                expected["update_after", new] += 1
        found = Counter((op, tuple(map(plain, row))) for op, *row in self._feed(name, snapshot))
        assert found == expected, (found - expected, expected - found)

    def _feed(self, name: str, snapshot: Snapshot) -> list[tuple[Any, ...]]:
        """Return the change feed of one version, as `published` its rows: `_op` and the columns."""
        version, feed = snapshot.version, snapshot.record.changes
        if self.small_bytes == 0:
            store, since = self.store, version - 1
            frame = changes(
                self.spark, store.root, name, since=since, upto=version, storage=store.storage
            )
            rows = rows_of(frame.toArrow())
            assert {row[0] for row in rows} <= {version}
            return [row[1:] for row in rows]
        assert feed is not None
        rows, columns = [], ["_op", *snapshot.layout.data_names]
        for file in snapshot.record.changes_files:
            uri = self.store.uri(PRIVATE, "changes", name, *feed.split("/"), file)
            rows += rows_of(pq.read_table(pa.BufferReader(read_at(uri))).select(columns))
        return rows

    def check(self, name: str, table: str | None = None) -> None:
        """Published == source, row for row."""
        expect_equal(self.published(name), self.legacy.rows(table or name))


def legacy_of(request: pytest.FixtureRequest, folder: Path) -> Legacy:
    """Return a new legacy system, by the name that is the parameter of a fixture.

    Args:
        request: of the fixture. Its parameter is a name in `LEGACIES`, or `ON_SPARK`: SQLite, and
            the pairs of this test run each step on Spark.
        folder: where a file may be made.
    """
    if request.param == ON_SPARK:
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        patch.setattr("tests.harness.pair.SMALL_BYTES", 0)
        return LEGACIES["sqlite"](request, folder)
    return LEGACIES[request.param](request, folder)


class SourceProcess:
    """`driftline-source serve` of a tree or an installed wheel, on a source.toml.

    A context manager.
    """

    process: subprocess.Popen[Any]

    def __init__(
        self,
        config: Path,
        *,
        tree: Path = ROOT,
        installation: Installation | None = None,
        is_forked: bool = False,
    ) -> None:
        """`installation` counts before `tree`: its program sees no tree at all.

        `is_forked`: of this tree, with all modules imported (`tests.harness.forks`).
        """
        self._port_file = config.with_name("source.port")
        self._port_file.unlink(missing_ok=True)
        words = ["--config", str(config), "serve", "--port-file", str(self._port_file)]
        with config.with_name("source.log").open("ab") as log:
            if is_forked:
                words = [*SOURCE, *words]
                self.process = Fork(words, cwd=ROOT, env=environment(), stdout=log, stderr=log)
            else:
                program: list[str | Path] = [sys.executable, *SOURCE]
                folder, variables = tree, environment(tree)  # `-m` looks in the folder first
                if installation is not None:
                    program = [installation.program("driftline-source")]
                    folder, variables = config.parent, clean_environment()
                self.process = subprocess.Popen(
                    [*program, *words],
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env=variables,
                    start_new_session=True,
                )
        deadline = time.monotonic() + START_S_MAX
        while not self._port_file.exists():
            said = config.with_name("source.log")
            assert self.process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        self.address = f"127.0.0.1:{int(self._port_file.read_text())}"

    def kill(self) -> None:
        """At once, without a word to anybody."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> SourceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def environment(tree: Path = ROOT, /, **more: str) -> dict[str, str]:
    """Of a child process that runs one of the agents from a tree, by default this one."""
    path = f"{tree}{os.pathsep}{tree / 'proto'}"
    return {**os.environ, "PYTHONPATH": path, **more}


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table of Arrow."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def expect_equal(published: Sequence[Sequence[Any]], source: Sequence[Sequence[Any]]) -> None:
    """Two tables are equal as multisets of rows, whatever Python types carry their values."""
    ours, theirs = (Counter(tuple(map(plain, row)) for row in rows) for rows in (published, source))
    missing, extra = theirs - ours, ours - theirs
    assert not missing, f"missing {sum(missing.values())}: {list(missing)[:3]} {list(extra)[:3]}"
    assert not extra, f"not at the source {sum(extra.values())}: {list(extra)[:3]}"


def plain(value: Any) -> Any:
    """A value in one form: numbers by exact value, times in UTC, bytes as bytes."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value) or (value == 0 and math.copysign(1, value) < 0):
            return repr(value)
        return Decimal(repr(value)).normalize()
    if isinstance(value, Decimal):
        return value.normalize() if value else Decimal(0)
    if isinstance(value, int):
        return Decimal(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value
