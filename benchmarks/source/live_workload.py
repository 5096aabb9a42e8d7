"""How much slower a live workload is beside a refresh: pgbench at half of its own peak.

    python -m benchmarks.source.live_workload [--rounds 10] [--seconds 6]
                                              [--rows 1000000] [--scale 100]
    python -m benchmarks.source.live_workload --rounds 1 --settle 1 --peak 2 --way "two readers"
    python -m benchmarks.source.live_workload --slow

PostgreSQL (of the tests' wheel, commits durable as by default), pgbench's own transactions, and a
source agent on one machine. The peak is measured first; then one run of pgbench keeps half of it
(`-R`), while spans take turns, in a new order in each round: pgbench alone, beside refreshes with
the agent's default settings, without feedback, at a limited rate instead of it, by two readers, and
beside a session that holds a snapshot and does nothing; with `--way`, alone and that one only.
Refreshes follow each other without a break: a peer asks for a total that is not the source's, so
every row is scanned and hashed, and goes no further. The warehouse is another machine and is left
out.

Latencies are those of pgbench's log, from the moment at which a transaction was due; not of the
seconds in which a span begins (`--settle`): what the one before has delayed is over then. Printed
for each way: the p95 of all its transactions, the median over its seconds of the p95 of a second,
its quotient to pgbench alone (goal: at most 1.10), rows scanned per second, and the load of the
machine before. Single seconds with a p95 of 30 ms and more happen alone, too, on a virtual machine;
the median is what they do not move.

With --slow, without pgbench: the backends of a refresh are stopped (SIGSTOP) for 0.4 s of each
0.45 s after a first refresh, as by a database that has become slow. Printed: what both refreshes
took, and for how long the second was held back, by one reader and by two.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import click
import grpc
from driftline.rows.digests import Digest
from psycopg import IsolationLevel

from source_agent.config.file import load
from source_agent.engines.registry import connect
from tests.harness.agents import Peer, channel, opening
from tests.harness.pair import SourceProcess
from tests.harness.servers import PostgreSQL, find_program, postgresql_programs

CLIENTS = 4
GOAL = 1.10
ALONE, SNAPSHOT = "alone", "a snapshot"
SLOW_S, STOPPED_S, LOOK_S = 15.0, 0.4, 0.05
# The lines of [limits] in each way to refresh.
LIMITS = {
    "default": "",
    "no feedback": "feedback = false",
    "200,000 rows/s": "feedback = false\nrows_per_second = 200000",
    "two readers": "readers = 2",
}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@dataclass
class Beside:
    """Refreshes one after the other, until `stop`."""

    rows: int = 0
    refreshes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, port: int, recipe: bytes) -> None:
        while not self.stop.is_set():
            with channel(port, None) as over, Peer(over) as peer:
                before = self.rows
                peer.send(opening(recipe, relation="items", ours=Digest(1, 1)))
                try:
                    while (reply := peer.reply(progress=True)).HasField("progress"):
                        self.rows = before + reply.progress.rows
                        if self.stop.is_set():
                            return
                except (AssertionError, grpc.RpcError):
                    return
                assert reply.HasField("verdict")
                self.rows = before + reply.verdict.count
                self.refreshes += 1


class Live:
    """A server with pgbench's tables and a table to refresh."""

    def __init__(self, folder: Path, server: PostgreSQL, rows: int, scale: int) -> None:
        self.folder, self.server = folder, server
        server.create_database("live")
        program = find_program("pgbench")
        versions = [p / "pgbench" for p in postgresql_programs() if (p / "pgbench").exists()]
        path = program or (str(versions[-1]) if versions else None)
        if path is None:
            raise click.ClickException("no pgbench: install postgresql-contrib or postgresql")
        self._pgbench = [path, "-h", str(server.folder), "-p", str(server.port), "-U", "postgres"]
        self._run("-i", "-q", "-s", str(scale))
        with server.superuser("live") as connection:
            connection.execute(
                "CREATE TABLE items AS SELECT n::bigint AS id, md5(n::text) AS note,"
                f" n % 1000 AS amount, now() AS at FROM generate_series(1, {rows}) n"
            )
            connection.execute("ALTER TABLE items ADD PRIMARY KEY (id)")
            connection.execute("VACUUM ANALYZE items")
            connection.execute("CHECKPOINT")
        config = load(self.toml("recipe", ""))
        engine = connect(config.database.url, None, config.database.limits)
        session = engine.open()
        self.recipe = session.describe(config.relations["items"].relation).recipe.id
        session.close()

    def toml(self, way: str, limits: str) -> Path:
        """Write the settings of one agent; return their path."""
        folder = self.folder / way.replace("/", " per ")
        folder.mkdir(exist_ok=True)
        path = folder / "source.toml"
        path.write_text(
            f'[database]\nurl = "{self.server.url("postgres", "live")}"\n'
            '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\naudit_file = "audit.jsonl"\n'
            f'[limits]\n{limits}\n[relations.items]\ntable = "items"\n'
        )
        return path

    def _run(self, *options: str) -> str:
        done = subprocess.run(
            [*self._pgbench, *options, "live"],
            check=True, capture_output=True, text=True, cwd=self.folder,
        )  # fmt: skip
        return done.stdout

    def peak(self, seconds: int) -> float:
        """Return the transactions per second that pgbench gets alone."""
        said = self._run("-c", str(CLIENTS), "-j", "1", "-n", "-T", str(seconds))
        return float(said.partition("tps = ")[2].split()[0])

    @contextmanager
    def worked(self, rate: float, seconds: float) -> Iterator[list[tuple[float, float]]]:
        """Run pgbench at a rate meanwhile. Yields a list, empty until the run is over: when each
        transaction was due, in seconds of the epoch, and its latency in ms."""
        words = ["-c", str(CLIENTS), "-j", "1", "-n", "-T", f"{seconds:.0f}", "-R", f"{rate:.0f}"]
        latencies: list[tuple[float, float]] = []
        with subprocess.Popen(
            [*self._pgbench, *words, "-l", "--log-prefix=log", "live"],
            cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                yield latencies
                assert process.wait() == 0
            finally:
                process.kill()
        for log in self.folder.glob("log.*"):
            for line in log.read_text().splitlines():
                _, _, latency_us, _, at_s, at_us, *_ = map(int, line.split())
                latencies.append((at_s + (at_us - latency_us) / 1e6, latency_us / 1000))
            log.unlink()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Hold a snapshot meanwhile, as long a one as a refresh does."""
        with self.server.superuser("live") as connection:
            connection.autocommit = False
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM pgbench_branches")
            yield
            connection.rollback()


@contextmanager
def refreshed(agent: SourceProcess, recipe: bytes) -> Iterator[Beside]:
    """Refresh meanwhile, beside what the caller measures."""
    beside = Beside()
    port = int(agent.address.rpartition(":")[2])
    thread = threading.Thread(target=beside.run, args=(port, recipe))
    thread.start()
    try:
        yield beside
    finally:
        beside.stop.set()
        thread.join()


@dataclass
class Span:
    """A part of a run of pgbench, and what was beside it."""

    way: str
    first_s: float  # of the epoch, when it has settled
    last_s: float
    rows: int


def measure(
    live: Live, rate: float, rounds: int, seconds: int, settle_s: float, ways: dict[str, str]
) -> dict[str, list[list[float]]]:
    """Return latencies in ms by way, [seconds, transactions]; print the rows scanned by each."""
    order = [way for n in range(rounds) for way in random.Random(n).sample(list(ways), len(ways))]
    spans: list[Span] = []
    with ExitStack() as stack:
        agents = {
            way: stack.enter_context(SourceProcess(live.toml(way, limits)))
            for way, limits in ways.items()
            if way not in (ALONE, SNAPSHOT)
        }
        lasts_s = len(order) * (settle_s + seconds + 0.5) + settle_s + 1
        with live.worked(rate, lasts_s) as transactions:
            time.sleep(settle_s)
            for way in order:
                with ExitStack() as beside:
                    refreshes = Beside()
                    if way == SNAPSHOT:
                        beside.enter_context(live.snapshot())
                    elif way != ALONE:
                        refreshes = beside.enter_context(refreshed(agents[way], live.recipe))
                    first_s = time.time() + settle_s
                    time.sleep(settle_s + seconds)
                    spans.append(Span(way, first_s, first_s + seconds, refreshes.rows))
    latencies: dict[str, list[list[float]]] = {way: [] for way in ways}
    for span in spans:
        by_second: dict[int, list[float]] = {}
        for due_s, latency_ms in transactions:
            if span.first_s <= due_s < span.last_s:
                by_second.setdefault(int(due_s - span.first_s), []).append(latency_ms)
        latencies[span.way] += by_second.values()
    for way in agents:
        rows = sum(span.rows for span in spans if span.way == way)
        print(f"{way}: {rows / rounds / (settle_s + seconds):,.0f} rows/s scanned")
    return latencies


def slowed(live: Live, way: str) -> tuple[float, float, float]:
    """Return the seconds of a refresh, of one whose backends are mostly stopped, and its hold."""
    find = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active'"
    with (
        SourceProcess(live.toml(way, LIMITS[way])) as agent,
        refreshed(agent, live.recipe) as beside,
    ):
        while beside.refreshes < 1:
            time.sleep(LOOK_S)
        with live.server.superuser("live") as connection:
            ends_at = time.monotonic() + SLOW_S
            while time.monotonic() < ends_at:
                pids = [int(pid) for (pid,) in connection.execute(find).fetchall()]
                for how, pause_s in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, LOOK_S)):
                    for pid in pids:
                        with suppress(ProcessLookupError):
                            os.kill(pid, how)
                    time.sleep(pause_s)
        before = beside.refreshes
        while beside.refreshes == before:
            time.sleep(LOOK_S)
        time.sleep(1.0)  # until the audit has its line
    audit = live.folder / way / "audit.jsonl"
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    slow = max(lines[1:], key=lambda line: float(line["seconds"]))
    return lines[0]["seconds"], slow["seconds"], slow.get("held_back_s", 0.0)


def p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20)[-1]


def text_of(latencies: dict[str, list[list[float]]]) -> str:
    """Return a table of what was measured."""
    lines = ["| beside | seconds | p95, ms | median of the p95 of a second | of alone |"]
    lines.append("|---|---|---|---|---|")
    alone = median(map(p95, latencies[ALONE]))
    for way, seconds in latencies.items():
        usual = median(map(p95, seconds))
        every = p95([latency for second in seconds for latency in second])
        lines.append(
            f"| {way} | {len(seconds)} | {every:.1f} | {usual:.2f} | {usual / alone:.2f} |"
        )
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--rounds", default=10, show_default=True)
@click.option("--seconds", default=6, show_default=True, help="Of a span.")
@click.option("--slow", is_flag=True, help="A database that becomes slow, without pgbench.")
@click.option("--rows", default=1_000_000, show_default=True, help="Of the refreshed table.")
@click.option("--scale", default=100, show_default=True, help="Of pgbench's tables.")
@click.option(
    "--settle", default=4.0, show_default=True, help="Seconds of a span that are not counted."
)
@click.option("--peak", "peak_s", default=10, show_default=True, help="Seconds to find the peak.")
@click.option(
    "--way",
    "named",
    type=click.Choice([SNAPSHOT, *LIMITS]),
    multiple=True,
    help="Beside alone; by default all.",
)
def main(
    rounds: int,
    seconds: int,
    slow: bool,
    rows: int,
    scale: int,
    settle: float,
    peak_s: int,
    named: tuple[str, ...],
) -> None:
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with TemporaryDirectory() as name, PostgreSQL(**DURABLE) as server:
        live = Live(Path(name), server, rows, scale)
        if slow:
            for way in ("default", "two readers"):
                usual_s, slow_s, held_s = slowed(live, way)
                print(
                    f"{way}: {usual_s:.1f} s; slow {slow_s:.1f} s, of it {held_s:.1f} s held back"
                )
            return
        peak = live.peak(peak_s)
        print(f"peak: {peak:,.0f} transactions/s; pgbench keeps {peak / 2:,.0f}", flush=True)
        ways = {ALONE: "", SNAPSHOT: "", **LIMITS}
        ways = {way: limits for way, limits in ways.items() if way in (ALONE, *(named or ways))}
        print(text_of(measure(live, peak / 2, rounds, seconds, settle, ways)))
        print(f"goal: at most {GOAL} of alone")


if __name__ == "__main__":
    main()
