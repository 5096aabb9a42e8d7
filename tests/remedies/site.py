"""Both agents with an SQLite database, in this process: commands run as a remedy prints them.

No test here.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from source_agent.cli.main import main as source_main
from source_agent.config.file import load
from source_agent.server.service import Server, start
from warehouse_agent.cli.main import main as warehouse_main
from warehouse_agent.runs import batch

_COMMAND = re.compile(r"(driftline(?:-source)? [^`.;]*)")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> dict[str, Any]:
        """The error of its only report, or {}."""
        (report,) = [json.loads(line) for line in self.out.splitlines()]
        error: dict[str, Any] = report.get("error") or {}
        return error


class Site:
    """Files of both agents in one folder; the source agent listens until `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.relation = 'table = "orders"'
        self.url = "sqlite:///erp.db"
        self.limits = self.fragment = self.warehouse = ""
        self._server: Server | None = None
        with closing(sqlite3.connect(folder / "erp.db")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        self.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT, n INT)")
        self.sql("WITH RECURSIVE i(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM i WHERE x < 300)"
                 " INSERT INTO orders SELECT x, 'note ' || x, x % 7 FROM i")  # fmt: skip

    @property
    def table(self) -> Path:
        return self.folder / "warehouse" / "orders"

    @property
    def log(self) -> Path:
        return self.table / "_delta_log"

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.port

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "erp.db")) as connection, connection:
            return list(connection.execute(statement))

    def serve(self, relation: str | None = None, *, limits: str = "") -> None:
        """Write source.toml and start the agent, again if it runs."""
        self.stop()
        self.relation = self.relation if relation is None else relation
        file = self.folder / "source.toml"
        file.write_text(
            f'[database]\nurl = "{self.url}"\n[server]\nlisten = "127.0.0.1:0"\n'
            f"insecure = true\n[limits]\n{limits}\n[relations.orders]\n{self.relation}\n"
        )
        self._server = start(load(file))
        self.keep()

    def keep(self, fragment: str | None = None, warehouse: str | None = None) -> None:
        """Write warehouse.toml with these lines of the fragment and of [warehouse]."""
        self.fragment = self.fragment if fragment is None else fragment
        self.warehouse = self.warehouse if warehouse is None else warehouse
        port = self._server.port if self._server else 9
        (self.folder / "warehouse.toml").write_text(
            f'[warehouse]\npath = "warehouse"\n{self.warehouse}\n[sources.erp]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
            f'[fragments.orders]\nsource = "erp"\n{self.fragment}\n'
        )

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def driftline(self, *words: str, config: Path | None = None) -> Ended:
        """Run a command of the warehouse's agent."""
        file = str(config or self.folder / "warehouse.toml")
        return _run(warehouse_main, "driftline", "--config", file, *words)

    def source(self, *words: str) -> Ended:
        """Run a command of the source's agent."""
        config = str(self.folder / "source.toml")
        return _run(source_main, "driftline-source", "--config", config, *words)

    def refresh(self, *options: str) -> Ended:
        """Refresh `orders`, without waiting for another attempt; the report is JSON."""
        with mock.patch.object(batch, "WAIT_S_MAX", 0.0):
            return self.driftline("refresh", "orders", "--json", *options)

    def fault(self, *options: str) -> str:
        """Refresh, which has to fail; return the remedy that it prints."""
        ended = self.refresh(*options)
        assert ended.code, ended
        remedy: str = ended.error["remedy"]
        return remedy

    def run_as_printed(self, remedy: str) -> Ended:
        """Run the command that a remedy names, word by word."""
        found = _COMMAND.search(remedy)
        assert found, remedy
        program, *words = shlex.split(found[1])
        return self.source(*words) if program == "driftline-source" else self.driftline(*words)

    def check(self, table: str = "orders") -> None:
        """Refresh once more, and compare what is published with what the owner of a table sees."""
        ended = self.refresh()
        assert ended.code == 0, ended
        found = DeltaTable(str(self.table)).to_pyarrow_table()
        names = [n for n in found.column_names if not n.startswith("_driftline")]
        ours = sorted(zip(*(found[name].to_pylist() for name in names), strict=True))
        assert ours == sorted(self.sql(f"SELECT {', '.join(names)} FROM {table}"))


def rewrite(table: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Write a data file of the newest version again, as a disk has it that damaged its rows.

    The log is told its new size: only its rows are not those that were written.
    """
    path = Path(DeltaTable(str(table)).file_uris()[0])
    pq.write_table(change(pq.read_table(path)), path)
    for entry in (table / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for line in lines:
            if "add" in line and path.name in line["add"]["path"]:
                line["add"]["size"] = path.stat().st_size
        entry.write_text("\n".join(map(json.dumps, lines)))
    return path


def _run(main: Callable[[], None], *words: str) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        mock.patch.object(sys, "argv", list(words)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return Ended(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
