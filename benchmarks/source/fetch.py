"""How identified rows are best fetched, on all three engines: by index, by a second scan, or from
memory; and from which share of the rows on a second scan beats the index.

    python -m benchmarks.source.fetch [--scale 0.1] [--repeat 3]

TPC-H orders. The rows are in ranges of eight neighbouring keys, scattered from a fixed seed, as the
range method finds them. Every way ends with row bytes gathered and hashed, as the product does.
"""

from __future__ import annotations

import csv
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import numpy.typing as npt
from driftline.rows.columns import Block, gather
from driftline.rows.fingerprints import hasher, row_key
from driftline.rows.keys import positions

from benchmarks import tpch
from source_agent.engines.interface import Limits, Session
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation, Shape
from tests.harness.agents import FRAGMENT_KEY
from tests.harness.servers import MariaDB, PostgreSQL

SHARES = (0.001, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0)
KEYS_PER_RANGE = 32  # of which TPC-H uses eight
ROWS_PER_INSERT = 2000
Keys = npt.NDArray[np.int64]
SQLITE = """CREATE TABLE orders (o_orderkey integer PRIMARY KEY NOT NULL, o_custkey bigint NOT NULL,
    o_orderstatus text NOT NULL, o_totalprice real NOT NULL, o_orderdate text NOT NULL,
    o_orderpriority text NOT NULL, o_clerk text NOT NULL, o_shippriority integer NOT NULL,
    o_comment text NOT NULL)"""


def rows_of(file: Path) -> Iterator[list[str]]:
    with file.open(newline="") as lines:
        reader = csv.reader(lines)
        next(reader)
        yield from reader


def databases(stack: ExitStack, folder: Path, scale: float) -> dict[str, str]:
    """The URL of orders in each engine."""
    file = tpch.generate(tpch.DATA, scale, "orders")
    postgresql = stack.enter_context(PostgreSQL())
    postgresql.create_database("bench")
    with postgresql.superuser("bench") as pg:
        tpch.load(pg, file, "orders")
    mariadb = stack.enter_context(MariaDB())
    mariadb.create_database("bench")
    with mariadb.admin("bench") as maria, maria.cursor() as cursor:
        cursor.execute(tpch.TABLES["orders"])
        insert = f"INSERT INTO orders VALUES ({', '.join(['%s'] * 9)})"
        block: list[list[str]] = []
        cursor.execute("SET autocommit = 0")
        for row in rows_of(file):
            block.append(row)
            if len(block) == ROWS_PER_INSERT:
                cursor.executemany(insert, block)
                block = []
        cursor.executemany(insert, block)
        maria.commit()
        cursor.execute("ANALYZE TABLE orders")
    path = folder / "orders.sqlite"
    with closing(sqlite3.connect(path)) as lite:
        lite.execute("PRAGMA journal_mode = WAL")
        lite.execute(SQLITE)
        lite.executemany(f"INSERT INTO orders VALUES ({', '.join('?' * 9)})", rows_of(file))
        lite.commit()
    return {
        "postgresql": postgresql.url("postgres", "bench"),
        "mariadb": mariadb.url("root", "bench"),
        "sqlite": f"sqlite:///{path}",
    }


class Bench:
    """One engine's orders, and the three ways."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.shape: Shape = session.describe(Relation("orders", table="orders"))
        self._hash = hasher(row_key(FRAGMENT_KEY, self.shape.recipe))
        self.keys = np.sort(np.concatenate([k for _, k in self.read(session.scan(self.shape))]))

    def read(self, batches: Iterator[list[bytes]]) -> Iterator[tuple[Block, Keys]]:
        for rows in batches:
            block = gather(rows)
            self._hash(rows)
            yield block, positions(block, self.shape.recipe, 0)

    def by_index(self, first: Keys, last: Keys) -> int:
        blocks = self.read(self.session.read_ranges(self.shape, first, last))
        return sum(len(block) for block, _ in blocks)

    def by_scan(self, first: Keys, last: Keys) -> int:
        return sum(len(block) for block in self._chosen(first, last))

    def hold(self, first: Keys, last: Keys) -> list[Block]:
        return list(self._chosen(first, last))

    def from_memory(self, held: list[Block]) -> int:
        for block in held:
            self._hash(block.rows())
        return sum(map(len, held))

    def _chosen(self, first: Keys, last: Keys) -> Iterator[Block]:
        for block, keys in self.read(self.session.scan(self.shape)):
            at = np.maximum(np.searchsorted(first, keys, side="right") - 1, 0)
            chosen = (keys >= first[at]) & (keys <= last[at])
            if chosen.any():
                yield block.take(chosen)


def scattered(keys: Keys, share: float) -> tuple[Keys, Keys]:
    """Disjoint ranges that hold about this share of the keys, neighbours joined."""
    ranges = np.unique(keys // KEYS_PER_RANGE)
    chosen = np.sort(
        np.random.default_rng(1).choice(ranges, max(int(len(ranges) * share), 1), replace=False)
    )
    begins = np.flatnonzero(np.diff(chosen, prepend=-2) > 1)
    ends = np.append(begins[1:] - 1, len(chosen) - 1)
    return chosen[begins] * KEYS_PER_RANGE, (chosen[ends] + 1) * KEYS_PER_RANGE - 1


def least(work: Callable[[], int], repeat: int) -> tuple[float, int]:
    """The least wall seconds of several runs, and the rows that came."""
    seconds, rows = float("inf"), 0
    for _ in range(repeat):
        start = time.perf_counter()
        rows = work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, rows


def break_even(shares: list[float], index: list[float], scan: list[float]) -> str:
    """Where the straight line between two measured shares crosses the scan."""
    gaps = [i - s for i, s in zip(index, scan, strict=True)]
    for at in range(1, len(gaps)):
        if gaps[at - 1] <= 0 < gaps[at]:
            part = -gaps[at - 1] / (gaps[at] - gaps[at - 1])
            return f"{shares[at - 1] + part * (shares[at] - shares[at - 1]):.0%}"
    return f"above {shares[-1]:.0%}" if gaps[-1] <= 0 else f"below {shares[0]:.1%}"


def measure(name: str, url: str, repeat: int) -> None:
    with closing(connect(url, None, Limits()).open()) as session:
        bench = Bench(session)
        shares, by_index, by_scan = [], [], []
        for wanted in SHARES:
            first, last = scattered(bench.keys, wanted)
            scan_s, rows = least(lambda f=first, t=last: bench.by_scan(f, t), repeat)  # type: ignore[misc]
            index_s, count = least(lambda f=first, t=last: bench.by_index(f, t), repeat)  # type: ignore[misc]
            assert count == rows, (count, rows)
            held = bench.hold(first, last)
            memory_s, _ = least(lambda h=held: bench.from_memory(h), repeat)  # type: ignore[misc]
            size = sum(len(block.buffer) for block in held) / 1e6
            shares.append(rows / len(bench.keys))
            by_index.append(index_s)
            by_scan.append(scan_s)
            print(
                f"| {name:10} | {shares[-1]:6.1%} | {rows:>9,} | {len(first):>7,} | {index_s:7.3f} "
                f"| {scan_s:7.3f} | {memory_s:7.3f} | {size:7.1f} |",
                flush=True,
            )
    print(f"{name}: a second scan beats the index from {break_even(shares, by_index, by_scan)} on")


@click.command()
@click.option("--scale", default=0.1, show_default=True)
@click.option("--repeat", default=3, show_default=True)
def main(scale: float, repeat: int) -> None:
    """Index, second scan or memory, and the break-even share."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        urls = databases(stack, folder, scale)
        print("| engine | share | rows | ranges | index s | scan s | memory s | MB |")
        for name, url in urls.items():
            measure(name, url, repeat)


if __name__ == "__main__":
    main()
