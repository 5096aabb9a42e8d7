"""Driftline as a tool among the others: each of its methods, and the planner's own choice.

`driftline` lets the planner choose; `driftline:range` and so on force a method, of those that the
warehouse agent has when the harness is run. All of them share the two agents of
`refreshes.pair`: a warm session, a source agent beside the source's PostgreSQL, mutual TLS, and a
new connection for every refresh. Each has a fragment of its own for each cell of the matrix, so
that what is learnt at one rate does not help at another, and each is warmed up by earlier
refreshes.

A run is a whole refresh: the rows are applied to a Delta table, proven equal and published. Of its
seconds, `exchange` is what the peers' are to be compared with. The warehouse's memory is that of
the shared session, JVM included, and grows with its age.
"""

from __future__ import annotations

import json
import queue
import shutil
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.meter import Meter
from benchmarks.peers.changes import TABLES
from benchmarks.peers.sites import READER, Side, Sites
from benchmarks.peers.tool import ERROR_CHARACTERS_MAX, Cell, Delivers, Outcome, Tool, ToolError
from benchmarks.refreshes.pair import SOURCE_PORT, Bench
from tests.harness.servers import PostgreSQL
from tests.wan.link import SOURCE_ADDRESS, Link
from warehouse_agent.planning.choice import Method

PLANNER = "driftline"
LOAD_S_MAX = 1800.0
Report = dict[str, Any]


class Gone(ToolError):
    """The warehouse agent is of no more use."""


def names() -> list[str]:
    return [PLANNER, *(f"{PLANNER}:{method.value}" for method in Method)]


class Agents(Bench):
    """Both agents, for all fragments of a benchmark."""

    def __init__(
        self,
        folder: Path,
        server: PostgreSQL,
        link: Link,
        fragments: Iterable[tuple[Cell, str]],
        lazy_spark: bool,
    ) -> None:
        super().__init__(folder, server, link, lazy_spark=lazy_spark)
        relations = "".join(f'[relations.{name}]\ntable = "{name}"\n' for name in TABLES)
        (folder / "source.toml").write_text(
            f'[database]\nurl = "{server.url(READER, self.database)}"\n'
            f'[server]\nlisten = "0.0.0.0:{SOURCE_PORT}"\ncertificate = "certs/source.pem"\n'
            'key = "certs/source.key"\nclient_ca = "certs/ca.pem"\naudit_file = "audit.jsonl"\n'
            f"[limits]\nfeedback = false\n{relations}"  # both sides share the processors here
        )
        head = (
            '[warehouse]\npath = "warehouse"\n[spark]\n"spark.master" = "local[2]"\n'
            f'[sources.erp]\naddress = "{SOURCE_ADDRESS}:{SOURCE_PORT}"\nca = "certs/ca.pem"\n'
            'certificate = "certs/warehouse.pem"\nkey = "certs/warehouse.key"\n'
        )
        parts = [head]
        for cell, tool in fragments:
            method = tool.partition(":")[2]
            parts.append(
                f'[fragments."{fragment(cell, tool)}"]\nsource = "erp"\n'
                f'relation = "{cell.table.name}"\n' + (f'method = "{method}"\n' if method else "")
            )
        (folder / "warehouse.toml").write_text("".join(parts))

    @property
    def pids(self) -> tuple[int, int]:
        """The source agent's and the warehouse agent's."""
        assert self._source is not None
        assert self._warehouse is not None
        return self._source.pid, self._warehouse.pid

    def ask(self, name: str, timeout_s: float) -> Report:
        """One refresh in the warm session; its report, without waiting for the link to rest."""
        assert self._warehouse is not None
        assert self._warehouse.stdin is not None
        assert self._warehouse.stdout is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        reader = threading.Thread(
            target=lambda out: lines.put(out.readline()),
            args=(self._warehouse.stdout,),
            daemon=True,
        )
        reader.start()
        try:
            self._warehouse.stdin.write(f"{name}\n")
            self._warehouse.stdin.flush()
            line = lines.get(timeout=timeout_s)
        except queue.Empty:
            raise Gone(f"not done after {timeout_s:g} s") from None
        except OSError:
            line = ""
        if not line:
            raise Gone("the warehouse agent ended")
        report: Report = json.loads(line)
        if report["error"] is not None:
            error = report["error"]
            raise ToolError(f"{error['code']}: {error['message']}"[:ERROR_CHARACTERS_MAX])
        return report


class SharedAgents:
    """The agents, started when first needed, and again after one was given up."""

    def __init__(
        self,
        stack: ExitStack,
        sites: Sites,
        cells: Sequence[Cell],
        tools: Sequence[str],
        lazy_spark: bool,
    ) -> None:
        self._sites, self._lazy_spark = sites, lazy_spark
        self._fragments = [(cell, tool) for cell in cells for tool in tools]
        self._agents: Agents | None = None
        self._is_running = False
        self.folder = sites.folder / "agents"
        stack.callback(self.stop)

    @property
    def running(self) -> Agents:
        if self._agents is None:
            self.folder.mkdir()
            server = self._sites.postgresql(Side.SOURCE)
            self._agents = Agents(
                self.folder, server, self._sites.link, self._fragments, self._lazy_spark
            )
        if not self._is_running:
            (self.folder / "port").unlink(missing_ok=True)
            self._agents.__enter__()
            self._is_running = True
        return self._agents

    def stop(self) -> None:
        if self._agents is not None and self._is_running:
            self._agents.__exit__()
            self._is_running = False


class Driftline(Tool):
    """`driftline`, or `driftline:METHOD`."""

    delivers = Delivers.COPY
    learns = True
    compares = False

    def __init__(self, name: str, sites: Sites, timeout_s: float, shared: SharedAgents) -> None:
        super().__init__(name, sites, timeout_s)
        self._shared = shared

    def prepare(self, cell: Cell) -> None:
        """The first load."""
        self._refresh(cell, LOAD_S_MAX)

    def run(self, cell: Cell, meter: Meter) -> Outcome:
        report = self._refresh(cell, self.timeout_s)
        changed = sum(report[f"rows_{what}"] for what in ("inserted", "updated", "deleted"))
        return Outcome(
            changed,
            round_trips=report["round_trips"],
            seconds=report["seconds"],
            method=report["method"],
        )

    def finish(self, cell: Cell) -> None:
        """Remove what a refresh wrote: versions add up to much."""
        warehouse, name = self._shared.folder / "warehouse", fragment(cell, self.name)
        private = warehouse / "_driftline"
        for folder in (warehouse / name, private / "staging" / name, private / "changes" / name):
            shutil.rmtree(folder, ignore_errors=True)

    def source_pids(self) -> list[int]:
        return [self.source.pid, self._shared.running.pids[0]]

    def warehouse_pids(self) -> list[int]:
        return [self._shared.running.pids[1]]

    def _refresh(self, cell: Cell, timeout_s: float) -> Report:
        try:
            return self._shared.running.ask(fragment(cell, self.name), timeout_s)
        except Gone:
            self._shared.stop()  # its copy stays where it is
            raise


def fragment(cell: Cell, tool: str) -> str:
    return f"{cell.name}.{tool.replace(':', '-')}"
