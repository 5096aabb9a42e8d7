"""What reading changed rows again costs: where they lie, and by a second scan.

    python -m benchmarks.source.again [--engine mariadb] [--scale 0.5] [--rounds 3] [--share 0.01 …]

TPC-H lineitem, whose key is (bigint, int), on PostgreSQL, which has places of rows, or on MariaDB,
where they are read by their keys. A `driftline-source` of its own process serves it three times in
each round: with `limits.memory_at_most` that holds where all rows lie, with one that holds the keys
of few, which a scan of keys alone finds, and with none, so that all rows are scanned again. Each
refresh finds another scattered share of the rows updated. Processor seconds of the agent and of the
server, start excluded, and those of the database's client that copies the table to nothing and its
server; the least of all rounds.
"""

from __future__ import annotations

import csv
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import tpch
from benchmarks.meter import cpu_s, ended_children_cpu_s
from benchmarks.source.memory import status_mb
from tests.harness.legacy import MariaLegacy, PostgresLegacy, of_family
from tests.harness.no_spark import NoSpark
from tests.harness.pair import UNBRAKED, Pair, SourceProcess
from tests.harness.servers import FamilyServer, MariaDB, PostgreSQL
from warehouse_agent.report import Report

# By way, the bytes of `memory_at_most` for each row. Locators need eight at least.
WAYS = {"where they lie": 64, "keys first": 4, "second scan": 0}
SHARES = (0.0, 0.001, 0.01, 0.1)
ENGINES: dict[str, type[PostgreSQL | MariaDB]] = {"postgresql": PostgreSQL, "mariadb": MariaDB}
SESSIONS_END_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Processor seconds of one refresh at the source, scans, rows that changed, and the agent's
    peak of resident memory."""

    agent_s: float
    server_s: float
    scans: int
    changed: int
    peak_mb: float

    def __str__(self) -> str:
        """The seconds and what was found, in a line."""
        return (
            f"agent {self.agent_s:.2f} s, server {self.server_s:.2f} s, {self.scans} scans,"
            f" {self.changed:,} changed, peak {self.peak_mb:.0f} MB"
        )


class Bench:
    """A pair around lineitem, whose source agent is another process for each refresh."""

    def __init__(self, server: PostgreSQL | FamilyServer, folder: Path, scale: float) -> None:
        file = tpch.generate(tpch.DATA, scale, "lineitem")
        if isinstance(server, PostgreSQL):
            self._use_postgresql(server, file)
        else:
            self._use_mariadb(server, file)
        relation = {"lineitem": 'table = "lineitem"'}
        self._pair = Pair(NoSpark(), self.legacy, folder, relation)
        self._pair.small_bytes = 1 << 40
        self._pair.stop()

    def _use_postgresql(self, server: PostgreSQL, file: Path) -> None:
        self.legacy: PostgresLegacy | MariaLegacy = PostgresLegacy(server)
        self._pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        uri, copy = server.uri_of(self.legacy.database), "COPY lineitem TO STDOUT (FORMAT binary)"
        self._copy: list[str] = ["psql", uri, "-c", copy]
        self._which = "hashint8(l_orderkey * 8 + l_linenumber + {seed} * 1000003) & 1048575"
        self._settle = "VACUUM (ANALYZE) lineitem"
        with server.superuser(self.legacy.database) as connection:
            self.rows = tpch.load(connection, file, "lineitem")

    def _use_mariadb(self, server: FamilyServer, file: Path) -> None:
        self.legacy = of_family(server)
        assert server._process is not None
        self._pid = server._process.pid
        self._copy = ["mariadb", f"--socket={server.socket}", "--user=root", "--quick", "--batch"]
        self._copy += [self.legacy.database, "--execute=SELECT * FROM lineitem"]
        self._which = "crc32(concat(l_orderkey, '-', l_linenumber, '-', {seed})) & 1048575"
        self._settle = "ANALYZE TABLE lineitem"
        self.legacy.execute(tpch.TABLES["lineitem"])
        with file.open(newline="") as lines:
            rows = list(csv.reader(lines))[1:]
        self.legacy.many(f"INSERT INTO lineitem VALUES ({', '.join('?' * len(rows[0]))})", rows)
        self.rows = len(rows)

    def change(self, share: float, seed: int) -> None:
        """Update a share of the rows, scattered."""
        which = f"({self._which.format(seed=seed)}) < {share} * 1048576"
        self.legacy.execute(f"UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE {which}")
        self.legacy.execute(self._settle)

    def refresh(self, limits: str) -> Measured:
        """One refresh with these limits."""
        self._pair.limits = f"{UNBRAKED}\n{limits}"
        with SourceProcess(self._pair.source_toml()) as source:
            self._pair.address = source.address
            pid = source.process.pid
            agent, server = cpu_s([pid]), self._server_s()
            report: Report = self._pair.refresh("lineitem")
            agent, peak = cpu_s([pid]) - agent, status_mb(pid, "VmHWM")
            server = self._server_s() - server
        return Measured(agent, server, report.source_scans, report.rows_changed, peak)

    def copy(self) -> tuple[float, float]:
        """Copy the table to nothing; return seconds of psql, and of the server."""
        client, server = ended_children_cpu_s(), self._server_s()
        subprocess.run(self._copy, stdout=subprocess.DEVNULL, check=True)
        return ended_children_cpu_s() - client, self._server_s() - server

    def _server_s(self) -> float:
        """Return what the server has used when no session of the agent is left."""
        ends = time.monotonic() + SESSIONS_END_S_MAX
        while self.legacy.sessions():
            assert time.monotonic() < ends, "the agent still has a session"
            time.sleep(0.02)
        return cpu_s([self._pid])

    def close(self) -> None:
        """Drop the database."""
        self._pair.stop()
        self.legacy.close()


def measure(
    bench: Bench, shares: tuple[float, ...], rounds: int, say: Callable[[str], None] = click.echo
) -> dict[tuple[float, str], list[Measured]]:
    """Measure every way at every share, and say what was found; return it."""
    bench.refresh("")  # the load
    found: dict[tuple[float, str], list[Measured]] = {}
    copies = []
    for number in range(rounds):
        copies.append(sum(bench.copy()))
        say(f"{bench.rows:,} rows; COPY to nothing: {copies[-1]:.2f} s of client and server")
        for share in shares:
            for way, each in WAYS.items():
                if share:
                    bench.change(share, 97 * number + len(found))
                limits = f"memory_at_most = {each * bench.rows}"
                found.setdefault((share, way), []).append(bench.refresh(limits))
                say(f"{share:7.1%}  {way:14} {found[share, way][-1]}")
    for (share, way), measured in found.items():
        least = min(measured, key=lambda one: one.agent_s + one.server_s)
        both = (least.agent_s + least.server_s) / min(copies)
        say(f"{share:7.1%}  {way:14} {least} = {both:.2f} x COPY, least of {rounds}")
    return found


@click.command()
@click.option("--engine", type=click.Choice([*ENGINES]), default="postgresql", show_default=True)
@click.option("--scale", default=0.5, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--share", "shares", default=SHARES, multiple=True, show_default=True)
def main(engine: str, scale: float, rounds: int, shares: tuple[float, ...]) -> None:
    """Processor seconds of the source, agent and server, by what changed."""
    with (
        TemporaryDirectory() as folder,
        ENGINES[engine]() as server,
        closing(Bench(server, Path(folder), scale)) as bench,
    ):
        measure(bench, shares, rounds)


if __name__ == "__main__":
    main()
