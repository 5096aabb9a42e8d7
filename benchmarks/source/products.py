"""MySQL beside MariaDB: the processor seconds of a source for the same refreshes of the same table.

    python -m benchmarks.source.products [--scale 0.5] [--repeat 3]

Each product has a server of its own with TPC-H orders, and `driftline-source serve` as a process of
its own. A warehouse in this process loads the table, finds nothing changed, and finds 1 % of the
rows updated, scattered over the table. Seconds are those of the processor, user and system, of the
agent and of the server, so that what else runs on the machine counts little; of refreshes that can
be repeated, the least.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import tpch
from tests.harness.legacy import MariaLegacy, MysqlLegacy
from tests.harness.mysql_server import MySQL
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.servers import FamilyServer, MariaDB

TICKS = os.sysconf("SC_CLK_TCK")
IN_STEPS = 4 << 30  # bytes: everything runs without Spark
PRODUCTS: dict[str, tuple[type[MariaDB | MySQL], type[MariaLegacy]]] = {
    "MariaDB": (MariaDB, MariaLegacy),
    "MySQL": (MySQL, MysqlLegacy),
}
UPDATE = "UPDATE orders SET o_clerk = CONCAT(?, o_orderkey) WHERE MOD(o_custkey, 100) = ?"
CUSTOMER = 1  # the place of o_custkey


@dataclass(frozen=True)
class Spent:
    """Processor seconds."""

    agent_s: float
    server_s: float

    @property
    def total_s(self) -> float:
        return self.agent_s + self.server_s


def processor_s(pid: int) -> float:
    """Seconds that a process has had so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Product:
    """One product with its table, its agent and a warehouse."""

    def __init__(
        self, server: FamilyServer, legacy: MariaLegacy, folder: Path, rows: list[list[str]]
    ) -> None:
        """Fill the table with `rows`."""
        self._server, self._legacy, self.rows = server, legacy, rows
        legacy.execute(tpch.TABLES["orders"])
        legacy.many(f"INSERT INTO orders VALUES ({', '.join('?' * len(rows[0]))})", rows)
        self._pair = Pair(NoSpark(), legacy, folder, {"orders": 'table = "orders"'})
        self._pair.stop()
        self._pair.small_bytes = IN_STEPS
        words: list[str | Path] = [sys.executable, "-m", "source_agent.cli", "--config"]
        words += [self._pair.source_toml(), "serve", "--port-file", folder / "port"]
        self._agent = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while not (folder / "port").exists():
            assert self._agent.poll() is None, "the agent ended"
            time.sleep(0.05)
        self._pair.address = f"127.0.0.1:{int((folder / 'port').read_text())}"

    def refreshed(self, changed: int) -> Spent:
        """Refresh the table; return what the source spent. `changed`: rows that it must find."""
        assert self._server._process is not None
        pids = (self._agent.pid, self._server._process.pid)
        before = [processor_s(pid) for pid in pids]
        report = self._pair.refresh("orders")
        assert report.rows_changed == changed, report.rows_changed
        agent_s, server_s = (processor_s(pid) - was for pid, was in zip(pids, before, strict=True))
        return Spent(agent_s, server_s)

    def update(self, number: int) -> int:
        """Update the orders of 1 % of the customers; return their number."""
        self._legacy.execute(UPDATE, f"C{number}-", number)
        return sum(int(row[CUSTOMER]) % 100 == number for row in self.rows)

    def close(self) -> None:
        self._agent.terminate()
        self._agent.wait()
        self._legacy.close()


@contextmanager
def product(name: str, rows: list[list[str]]) -> Iterator[Product]:
    """A product whose table has these rows."""
    server_of, legacy_of = PRODUCTS[name]
    with server_of() as server, TemporaryDirectory() as folder:
        made = Product(server, legacy_of(server), Path(folder), rows)
        try:
            yield made
        finally:
            made.close()


@click.command()
@click.option("--scale", default=0.5, show_default=True)
@click.option("--repeat", default=3, show_default=True)
def main(scale: float, repeat: int) -> None:
    """Print the table."""
    found = dict[str, list[Spent]]()
    with tpch.generate(tpch.DATA, scale, "orders").open(newline="") as lines:
        rows = list(csv.reader(lines))[1:]
    for name in PRODUCTS:
        with product(name, rows) as one:
            load = one.refreshed(len(rows))
            unchanged = [one.refreshed(0) for _ in range(repeat)]
            changed = [one.refreshed(one.update(number)) for number in range(repeat)]
        least = [min(spent, key=lambda each: each.total_s) for spent in (unchanged, changed)]
        found[name] = [load, *least]
        print(f"{name}: {len(rows):,} rows", file=sys.stderr, flush=True)
    print("| processor seconds of the source | MariaDB: agent, server | MySQL | MySQL ÷ MariaDB |")
    print("|---|---|---|---|")
    for place, what in enumerate(("load", "nothing changed", "1 % updated")):
        maria, mysql = (found[name][place] for name in PRODUCTS)
        print(
            f"| {what} | {maria.total_s:.2f}: {maria.agent_s:.2f}, {maria.server_s:.2f}"
            f" | {mysql.total_s:.2f}: {mysql.agent_s:.2f}, {mysql.server_s:.2f}"
            f" | {mysql.total_s / maria.total_s:.2f} |"
        )


if __name__ == "__main__":
    main()
