"""How long writers wait beside a refresh, of engines whose readers block writers: as one exchange,
and in tiles.

    python -m benchmarks.writers [--rows 400000] [--tile 20000] [--reply-ms 200]

A thread of the owner's updates one row after the other, each a transaction of its own, while the
source's half of a refresh runs: up to the verdict, where the rows are compared, or to the end,
where all of them are shipped over a line on which a message takes so many milliseconds. The
warehouse's half only waits, so that nothing but the source is seen.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from driftline.digests import Digest
from driftline.ranges import POSITION_MIN, Partition

from source_agent.engines.interface import Engine, Limits, Relation
from source_agent.engines.registry import connect
from source_agent.methods.comparison import Comparison, Tally
from tests.harness.agents import opening
from tests.harness.servers import MariaDB
from warehouse_agent.planning.tiling import tiling

PAUSE_S = 0.05  # between two tiles
WRITE_EVERY_S = 0.005
TEXT = "x" * 60
Write = Callable[[int], None]


@dataclass
class Writer:
    """One row after the other until `stop`; what each write took, in seconds."""

    write: Write
    rows: int
    waits: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        time.sleep(0.2)
        self.waits.clear()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            began = time.monotonic()
            self.write(number * 7919 % self.rows)
            self.waits.append(time.monotonic() - began)
            time.sleep(WRITE_EVERY_S)


@contextmanager
def sqlite(rows: int) -> Iterator[tuple[Engine, Write]]:
    """A file with a rollback journal."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "legacy.db"
        with closing(sqlite3.connect(path, timeout=60, check_same_thread=False)) as owner:
            owner.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, a TEXT)")
            owner.executemany("INSERT INTO t VALUES (?, ?)", ((i, TEXT) for i in range(rows)))
            owner.commit()

            def write(key: int) -> None:
                owner.execute("UPDATE t SET a = 'y' || a WHERE id = ?", (key,))
                owner.commit()

            yield connect(f"sqlite:///{path}", None, Limits()), write


@contextmanager
def myisam(rows: int, key: str = "PRIMARY KEY") -> Iterator[tuple[Engine, Write]]:
    """A table of MariaDB's own engine; with a key that does not vouch, it cannot be read in
    pages."""
    with MariaDB() as server:
        server.create_database("bench")
        with closing(server.admin("bench")) as owner, owner.cursor() as cursor:
            cursor.execute(f"CREATE TABLE t (id bigint NOT NULL, a text, {key} (id)) ENGINE=MyISAM")
            for start in range(0, rows, 10_000):
                values = [(i, TEXT) for i in range(start, min(start + 10_000, rows))]
                cursor.executemany("INSERT INTO t VALUES (%s, %s)", values)
            owner.commit()

            def write(where: int) -> None:
                cursor.execute("UPDATE t SET a = CONCAT('y', a) WHERE id = %s", (where,))

            yield connect(server.url("root", "bench"), None, Limits()), write


def exchange(engine: Engine, within: tuple[int, int] | None, *, load: bool, reply_s: float) -> int:
    """The source's half, up to the verdict or, of a load, to its end; returns rows read."""
    tally = Tally()
    with closing(engine.open()) as session:
        shape = session.describe(Relation("t", table="t", key=("id",)))
        whole, ours = Partition((POSITION_MIN,), (56,)), Digest() if load else Digest(1, 1)
        message = opening(shape.recipe.id, ours=ours, partition=whole).open
        if within is not None:
            message.within.first, message.within.last = within
        for reply in Comparison(session, shape, message, tally).answer(iter(())):
            if reply.WhichOneof("message") == "verdict":
                break
            time.sleep(reply_s)
    return tally.rows_read


def measure(engine: Engine, write: Write, rows: int, tile: int, load: bool, reply_s: float) -> str:
    """A row of the table: as one exchange, and in tiles."""
    cut = tiling(range(0, rows + tile, tile), rows)
    cells = []
    for bounds in ([None], [cut.bounds(i) for i in range(len(cut))]):
        writer = Writer(write, rows)
        with writer.running():
            began = time.monotonic()
            for within in bounds:
                exchange(engine, within, load=load, reply_s=reply_s)
                time.sleep(PAUSE_S if within is not None else 0)
            spent = time.monotonic() - began
        waits = sorted(writer.waits)
        cells.append(f"{spent:.1f} s, {waits[-1] * 1e3:,.0f} ms, {len(waits):,}")
    return " | ".join(cells)


@click.command()
@click.option("--rows", default=400_000, show_default=True)
@click.option("--tile", default=20_000, show_default=True)
@click.option("--reply-ms", default=200, show_default=True)
def main(rows: int, tile: int, reply_ms: int) -> None:
    """Prints a row for each engine: took, longest wait, writes."""
    engines = {
        "SQLite, rollback journal": sqlite(rows),
        "MyISAM": myisam(rows),
        "MyISAM, no unique key": myisam(rows, "KEY"),
    }
    for name, database in engines.items():
        with database as (engine, write):
            for what, load in (("compared", False), ("shipped", True)):
                cells = measure(engine, write, rows, tile, load, reply_ms / 1e3)
                print(f"| {name} | {what} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
