"""Driftline as a tool that refreshes: both agents of a checkout, and copies of one warehouse.

A run is the command `driftline refresh` as a scheduler starts it, from a copy of the same published
version, so that what one run learnt does not help the next. Settings are the defaults, behind
mutual TLS; the source agent is a service, and stands.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from deltalake import DeltaTable

from benchmarks.reloads.contents import Contents, of_files
from benchmarks.reloads.lines import LOOPBACK, Line
from benchmarks.reloads.place import Cost, FailedError, Source, run
from source_agent.enrolment import enroll
from tests.harness.pair import environment

START_S_MAX = 60.0
_CHANGES = ("rows_inserted", "rows_updated", "rows_deleted")


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A refresh: what it cost, what is published, the agent's own report, and those of views."""

    cost: Cost
    contents: Contents
    report: Mapping[str, Any]
    views: Sequence[Mapping[str, Any]] = ()


class Checkout:
    """Both agents of a tree, for one table."""

    def __init__(
        self,
        name: str,
        tree: Path,
        folder: Path,
        source: Source,
        line: Line = LOOPBACK,
        settings: str = "",
        words: Sequence[str] = (),
    ) -> None:
        """`settings`: lines of [warehouse], and tables behind them; `words`: before the command."""
        self.name, self._tree, self._folder, self._source = name, tree.resolve(), folder, source
        self._line, self._settings, self._words = line, settings, words

    def __enter__(self) -> Self:
        folder, table, host = self._folder, self._source.table, self._line.address
        folder.mkdir()
        enroll(folder / "certs", source_names=[host])
        (folder / "source.toml").write_text(
            f'[database]\nurl = "{self._source.url}"\n[server]\nlisten = "{host}:0"\n'
            'certificate = "certs/source.pem"\nkey = "certs/source.key"\n'
            'client_ca = "certs/ca.pem"\naudit_file = "audit.jsonl"\n'
            f'[relations.{table}]\ntable = "{table}"\n'
        )
        port = self._serve()
        (folder / "warehouse.toml").write_text(
            f'[warehouse]\npath = "warehouse"\n{self._settings}\n'
            f'[sources.erp]\naddress = "{host}:{port}"\n'
            'ca = "certs/ca.pem"\ncertificate = "certs/warehouse.pem"\n'
            f'key = "certs/warehouse.key"\n[fragments.{table}]\nsource = "erp"\n'
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.kill()
        self._agent.wait()
        shutil.rmtree(self._folder)

    def _serve(self) -> int:
        """Start the source agent; return its port."""
        ready, log = self._folder / "port", self._folder / "source.log"
        words = ["--config", str(self._folder / "source.toml"), "serve", "--port-file", str(ready)]
        with log.open("wb") as out:
            self._agent = subprocess.Popen(
                [*self._line.at_source, sys.executable, "-m", "source_agent.cli", *words],
                cwd=self._folder,
                env=environment(self._tree),
                stdout=out,
                stderr=out,
            )
        until = time.monotonic() + START_S_MAX
        while not ready.exists():
            if self._agent.poll() is not None or time.monotonic() > until:
                self._agent.kill()
                raise FailedError(f"the source agent did not start: {log.read_text()}")
            time.sleep(0.05)
        return int(ready.read_text())

    def load(self) -> Refreshed:
        """Load the table into an empty warehouse, and keep that as what refreshes begin with."""
        shutil.rmtree(self._warehouse, ignore_errors=True)
        loaded = self._refresh()
        self.keep()
        return loaded

    def refresh(self, changed: int) -> Refreshed:
        """Refresh a copy of what is kept, and find so many changes.

        Raises:
            FailedError: it did not.
        """
        shutil.rmtree(self._warehouse, ignore_errors=True)
        shutil.copytree(self._published, self._warehouse)
        refreshed = self._refresh()
        if (found := sum(refreshed.report[what] for what in _CHANGES)) != changed:
            raise FailedError(f"{self.name} found {found:,} changes of {changed:,}")
        return refreshed

    def keep(self) -> None:
        """Let refreshes begin with what the last one published."""
        shutil.rmtree(self._published, ignore_errors=True)
        self._warehouse.rename(self._published)

    @property
    def _warehouse(self) -> Path:
        return self._folder / "warehouse"

    @property
    def _published(self) -> Path:
        return self._folder / "published"

    def _refresh(self) -> Refreshed:
        cost, out = run(
            [
                *self._line.at_warehouse,
                *self._words,
                *(sys.executable, "-m", "warehouse_agent.cli", "refresh", "--all", "--json"),
            ],
            folder=self._folder,
            source_pids=[self._source.pid, self._agent.pid],
            env=environment(self._tree),
        )
        reports = [json.loads(line) for line in out.splitlines()]
        for report in reports:
            if report["error"] is not None:
                raise FailedError(str(report["error"]))
        table = DeltaTable(str(self._warehouse / self._source.table))
        contents = of_files(table.to_pyarrow_dataset(), self._source.types)
        return Refreshed(cost, contents, reports[0], reports[1:])
