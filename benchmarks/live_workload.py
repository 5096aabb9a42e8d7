"""How much slower a live workload is beside a refresh: pgbench at half of its own peak.

    python -m benchmarks.live_workload [--rounds 3] [--seconds 15] [--rows 1000000]
    python -m benchmarks.live_workload --slow

PostgreSQL (of the tests' wheel), pgbench's own transactions, and a source agent on one machine. The
peak is measured first; then pgbench keeps half of it (`-R`), and its latencies, which include the
wait for a turn, are those of its log. Each round has pgbench alone, beside refreshes with the
agent's default settings, beside refreshes without feedback, and beside refreshes by two readers, in
a new order. Refreshes follow each other without a break: a peer asks for a total that is not the
source's, so every row is scanned and hashed, and goes no further. The warehouse is another machine
and is left out. Printed: the p95 of each, its quotient to that of the same round alone (median of
the rounds; goal: at most 1.10), rows scanned per second, and the load of the machine before.

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import click
import grpc
from driftline.digests import Digest

from benchmarks.peer_sites import DEBIAN
from source_agent.config import load
from source_agent.engines.registry import connect
from tests.harness.agents import Peer, channel, opening
from tests.harness.pair import SourceProcess
from tests.harness.servers import PostgreSQL, find_program

CLIENTS = 4
SCALE = 10  # of pgbench: a million accounts, 150 MB
PEAK_S = 10
GOAL = 1.10
ALONE = "alone"
SLOW_S, STOPPED_S, LOOK_S = 15.0, 0.4, 0.05
# The lines of [limits] in each way to refresh.
LIMITS = {"default": "", "no feedback": "feedback = false", "two readers": "readers = 2"}


@dataclass
class Beside:
    """Refreshes one after the other, until `stop`."""

    rows: int = 0
    held_back_s: float = 0.0
    refreshes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, port: int, recipe: bytes) -> None:
        while not self.stop.is_set():
            with channel(port, None) as over, Peer(over) as peer:
                peer.send(opening(recipe, relation="items", ours=Digest(1, 1)))
                try:
                    while (reply := peer.reply(progress=True)).HasField("progress"):
                        if self.stop.is_set():
                            return
                except (AssertionError, grpc.RpcError):
                    return
                assert reply.HasField("verdict")
                self.rows += reply.verdict.count
                self.refreshes += 1


class Live:
    """A server with pgbench's tables and a table to refresh."""

    def __init__(self, folder: Path, server: PostgreSQL, rows: int, seconds: int) -> None:
        self.folder, self.server, self.seconds = folder, server, seconds
        server.create_database("live")
        program = find_program("pgbench")
        versions = sorted(DEBIAN.glob("*/bin/pgbench"))
        self._pgbench = program or (str(versions[-1]) if versions else None)
        if self._pgbench is None:
            raise click.ClickException("no pgbench: install postgresql-contrib or postgresql")
        self._run("-i", "-q", "-s", str(SCALE))
        with server.superuser("live") as connection:
            connection.execute(
                "CREATE TABLE items AS SELECT n::bigint AS id, md5(n::text) AS note,"
                f" n % 1000 AS amount, now() AS at FROM generate_series(1, {rows}) n"
            )
            connection.execute("ALTER TABLE items ADD PRIMARY KEY (id)")
            connection.execute("VACUUM ANALYZE items")
        config = load(self.toml(""))
        engine = connect(config.database.url, None, config.database.limits)
        session = engine.open()
        self.recipe = session.describe(config.relations["items"].relation).recipe.id
        session.close()

    def toml(self, limits: str) -> Path:
        path = self.folder / "source.toml"
        path.write_text(
            f'[database]\nurl = "{self.server.url("postgres", "live")}"\n'
            '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\naudit_file = "audit.jsonl"\n'
            f'[limits]\n{limits}\n[relations.items]\ntable = "items"\n'
        )
        return path

    def _run(self, *options: str) -> str:
        assert self._pgbench is not None
        words = [self._pgbench, "-h", str(self.server.folder), "-p", str(self.server.port)]
        done = subprocess.run(
            [*words, "-U", "postgres", *options, "live"],
            check=True, capture_output=True, text=True, cwd=self.folder,
        )  # fmt: skip
        return done.stdout

    def peak(self) -> float:
        """Return the transactions per second that pgbench gets alone."""
        said = self._run("-c", str(CLIENTS), "-j", "1", "-n", "-T", str(PEAK_S))
        return float(said.partition("tps = ")[2].split()[0])

    def p95_ms(self, rate: float) -> float:
        """Return the 95th percentile of a run at a rate, from the start that was planned."""
        for old in self.folder.glob("log.*"):
            old.unlink()
        self._run(
            "-c", str(CLIENTS), "-j", "1", "-n", "-T", str(self.seconds), "-R", f"{rate:.0f}",
            "-l", "--log-prefix=log",
        )  # fmt: skip
        lines = [line for log in self.folder.glob("log.*") for line in log.read_text().splitlines()]
        return quantiles([int(line.split()[2]) / 1000 for line in lines], n=20)[-1]

    @contextmanager
    def refreshed(self, limits: str) -> Iterator[Beside]:
        """Refresh meanwhile, beside what the caller measures."""
        audit = self.folder / "audit.jsonl"
        audit.unlink(missing_ok=True)
        with SourceProcess(self.toml(limits)) as agent:
            port, beside = int(agent.address.rpartition(":")[2]), Beside()
            thread = threading.Thread(target=beside.run, args=(port, self.recipe))
            thread.start()
            try:
                yield beside
            finally:
                beside.stop.set()
                thread.join()
        for line in audit.read_text().splitlines() if audit.exists() else ():
            beside.held_back_s += json.loads(line).get("held_back_s", 0.0)


def measure(live: Live, rate: float, rounds: int) -> dict[str, list[tuple[float, Beside]]]:
    """Return p95 in ms and the refreshes beside it, by way, one for each round."""
    found: dict[str, list[tuple[float, Beside]]] = {way: [] for way in (ALONE, *LIMITS)}
    for number in range(rounds):
        for way in random.Random(number).sample(list(found), len(found)):
            if way == ALONE:
                found[way].append((live.p95_ms(rate), Beside()))
                continue
            with live.refreshed(LIMITS[way]) as beside:
                p95_ms = live.p95_ms(rate)
            found[way].append((p95_ms, beside))
    return found


def slowed(live: Live, limits: str) -> tuple[float, float, float]:
    """Return the seconds of a refresh, of one whose backends are mostly stopped, and its hold."""
    find = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active'"
    with live.refreshed(limits) as beside:
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
    lines = [json.loads(line) for line in (live.folder / "audit.jsonl").read_text().splitlines()]
    slow = max(lines[1:], key=lambda line: float(line["seconds"]))
    return lines[0]["seconds"], slow["seconds"], slow.get("held_back_s", 0.0)


def text_of(found: dict[str, list[tuple[float, Beside]]], seconds: int) -> str:
    """Return a table of what was measured."""
    alone = [p95_ms for p95_ms, _ in found[ALONE]]
    lines = ["| beside | p95, ms | of alone | rows/s | held back, s |", "|---|---|---|---|---|"]
    for way, runs in found.items():
        quotient = median(p95_ms / one for (p95_ms, _), one in zip(runs, alone, strict=True))
        rows = sum(beside.rows for _, beside in runs) / seconds / len(runs)
        held_s = sum(beside.held_back_s for _, beside in runs)
        p95 = ", ".join(f"{p95_ms:.1f}" for p95_ms, _ in runs)
        lines.append(f"| {way} | {p95} | {quotient:.2f} | {rows:,.0f} | {held_s:.1f} |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=15, show_default=True, help="Of each run of pgbench.")
@click.option("--slow", is_flag=True, help="A database that becomes slow, without pgbench.")
@click.option("--rows", default=1_000_000, show_default=True, help="Of the refreshed table.")
def main(rounds: int, seconds: int, slow: bool, rows: int) -> None:
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with TemporaryDirectory() as name, PostgreSQL() as server:
        live = Live(Path(name), server, rows, seconds)
        if slow:
            for way in ("default", "two readers"):
                usual_s, slow_s, held_s = slowed(live, LIMITS[way])
                print(
                    f"{way}: {usual_s:.1f} s; slow {slow_s:.1f} s, of it {held_s:.1f} s held back"
                )
            return
        peak = live.peak()
        print(f"peak: {peak:,.0f} transactions/s; pgbench keeps {peak / 2:,.0f}", flush=True)
        print(text_of(measure(live, peak / 2, rounds), seconds))
        print(f"goal: at most {GOAL} of alone")


if __name__ == "__main__":
    main()
