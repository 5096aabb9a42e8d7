"""Driftline as a tool that refreshes: both agents of a checkout, and copies of one warehouse.

A run is the command `driftline refresh` as a scheduler starts it, from a copy of the same published
version, so that what one run learnt does not help the next. Settings are the defaults, behind
mutual TLS; the source agent is a service, and stands.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from deltalake import DeltaTable

from benchmarks.reloads.contents import Contents, of_files
from benchmarks.reloads.place import Cost, FailedError, Source, run
from source_agent.enrolment import enroll
from tests.harness.pair import SourceProcess, environment


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A refresh: what it cost, what is published, and the agent's own report."""

    cost: Cost
    contents: Contents
    report: Mapping[str, Any]


class Checkout:
    """Both agents of a tree, for one table."""

    def __init__(self, name: str, tree: Path, folder: Path, source: Source) -> None:
        self.name, self._tree, self._folder, self._source = name, tree.resolve(), folder, source
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder, table = self._folder, self._source.table
        folder.mkdir()
        enroll(folder / "certs", source_names=["127.0.0.1"])
        (folder / "source.toml").write_text(
            f'[database]\nurl = "{self._source.url}"\n[server]\nlisten = "127.0.0.1:0"\n'
            'certificate = "certs/source.pem"\nkey = "certs/source.key"\n'
            'client_ca = "certs/ca.pem"\naudit_file = "audit.jsonl"\n'
            f'[relations.{table}]\ntable = "{table}"\n'
        )
        process = SourceProcess(folder / "source.toml", tree=self._tree)
        self._agent = self._stack.enter_context(process)
        (folder / "warehouse.toml").write_text(
            f'[warehouse]\npath = "warehouse"\n[sources.erp]\naddress = "{self._agent.address}"\n'
            'ca = "certs/ca.pem"\ncertificate = "certs/warehouse.pem"\n'
            f'key = "certs/warehouse.key"\n[fragments.{table}]\nsource = "erp"\n'
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self._folder)

    def load(self) -> Refreshed:
        """Load the table into an empty warehouse, and keep that as what refreshes begin with."""
        shutil.rmtree(self._warehouse, ignore_errors=True)
        loaded = self._refresh()
        shutil.rmtree(self._published, ignore_errors=True)
        self._warehouse.rename(self._published)
        return loaded

    def refresh(self, changed: int) -> Refreshed:
        """Refresh a copy of what was loaded, and find so many updated rows.

        Raises:
            FailedError: it did not.
        """
        shutil.rmtree(self._warehouse, ignore_errors=True)
        shutil.copytree(self._published, self._warehouse)
        refreshed = self._refresh()
        if refreshed.report["rows_updated"] != changed:
            raise FailedError(f"{refreshed.report['rows_updated']} rows updated, {changed} changed")
        return refreshed

    @property
    def _warehouse(self) -> Path:
        return self._folder / "warehouse"

    @property
    def _published(self) -> Path:
        return self._folder / "published"

    def _refresh(self) -> Refreshed:
        cost, out = run(
            [sys.executable, "-m", "warehouse_agent.cli", "refresh", "--all", "--json"],
            folder=self._folder,
            source_pids=[self._source.pid, self._agent.process.pid],
            env=environment(self._tree),
        )
        report = json.loads(out)
        if report["error"] is not None:
            raise FailedError(str(report["error"]))
        table = DeltaTable(str(self._warehouse / self._source.table))
        contents = of_files(table.to_pyarrow_dataset(), self._source.types)
        return Refreshed(cost, contents, report)
