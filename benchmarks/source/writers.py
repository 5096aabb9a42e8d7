"""How long writers wait beside a refresh, as one exchange and in tiles, over kinds of keys.

    python -m benchmarks.source.writers [--rows 400000] [--tile 20000] [--reply-ms 200]
                                 [--keys integer --keys composite …]

A thread of the owner's updates one row after the other, each a transaction of its own, while the
source's half of a refresh runs: up to the verdict, where the rows are compared, or to the end,
where all of them are shipped over a line on which a message takes so many milliseconds. The
warehouse's half only waits, so that nothing but the source is seen.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from driftline.reconciliation.ranges import POSITION_MIN, Partition
from driftline.rows.digests import Digest
from driftline.rows.key_order import KeyRange, key_bytes

from source_agent.engines.interface import Engine, Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from source_agent.methods.comparison import Comparison, ReadCounts
from tests.harness.agents import opening
from tests.harness.servers import MariaDB, PostgreSQL
from warehouse_agent.planning.tiling import Bounds, Tiling, key_tiling, tiling

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


@dataclass(frozen=True)
class Key:
    """A kind of key. columns: by engine, else by ""; value: of a row's number, as the owner's
    driver takes it."""

    columns: dict[str, str]
    value: Callable[[int], tuple[Any, ...]]
    binary: bool = False  # MariaDB keeps UUIDs in 16 bytes

    def names(self) -> list[str]:
        return [column.split()[0] for column in self.columns[""].split(", ")]

    def ddl(self, engine: str, rule: str = "PRIMARY KEY") -> str:
        columns = self.columns.get(engine, self.columns[""])
        return f"CREATE TABLE t ({columns}, a text, {rule} ({', '.join(self.names())}))"

    def values(self, engine: str, number: int) -> tuple[Any, ...]:
        key = self.value(number)
        return (uuid.UUID(key[0]).bytes,) if self.binary and engine == "mariadb" else key

    def text(self, engine: str, number: int) -> tuple[str, ...]:
        return tuple(
            v.hex() if isinstance(v, bytes) else str(v) for v in self.values(engine, number)
        )


def mixed(number: int) -> int:
    """A number that is far from its neighbours', 128 bits."""
    return number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128


C, BIN = 'COLLATE "C"', "COLLATE utf8mb4_bin"
KEYS = {
    "integer": Key({"": "id bigint NOT NULL", "sqlite": "id INTEGER NOT NULL"}, lambda n: (n,)),
    "composite": Key(
        {
            "": "k text NOT NULL, d date NOT NULL, n int NOT NULL",
            "mariadb": f"k varchar(9) {BIN} NOT NULL, d date NOT NULL, n int NOT NULL",
            "postgresql": f"k varchar(9) {C} NOT NULL, d date NOT NULL, n int NOT NULL",
        },
        lambda n: (f"b{n % 7}", str(date.fromordinal(730_000 + n % 365)), n),
    ),
    "text": Key(
        {
            "": "k text NOT NULL",
            "mariadb": f"k varchar(40) {BIN} NOT NULL",
            "postgresql": f"k varchar(40) {C} NOT NULL",
        },
        lambda n: (f"{mixed(n) >> 96:08x}-{n}",),
    ),
    "date": Key({"": "k date NOT NULL"}, lambda n: (str(date.fromordinal(1 + 7 * n)),)),
    "uuid": Key(
        {
            "": "k text NOT NULL",
            "mariadb": "k binary(16) NOT NULL",
            "postgresql": "k uuid NOT NULL",
        },
        lambda n: (str(uuid.UUID(int=mixed(n))),),
        binary=True,
    ),
}


@contextmanager
def sqlite(key: Key, rows: int) -> Iterator[tuple[Engine, Write]]:
    """A file with a rollback journal."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "legacy.db"
        with closing(sqlite3.connect(path, timeout=60, check_same_thread=False)) as owner:
            owner.execute(key.ddl("sqlite"))
            marks = ", ".join("?" * (len(key.names()) + 1))
            values = ((*key.values("sqlite", i), TEXT) for i in range(rows))
            owner.executemany(f"INSERT INTO t VALUES ({marks})", values)
            owner.commit()
            where = " AND ".join(f"{name} = ?" for name in key.names())

            def write(number: int) -> None:
                values = key.values("sqlite", number)
                owner.execute(f"UPDATE t SET a = 'y' || a WHERE {where}", values)
                owner.commit()

            yield connect(f"sqlite:///{path}", None, Limits()), write


@contextmanager
def myisam(key: Key, rows: int, rule: str = "PRIMARY KEY") -> Iterator[tuple[Engine, Write]]:
    """A table of MariaDB's own engine; with a key that does not vouch, it cannot be read in
    pages."""
    with MariaDB() as server:
        server.create_database("bench")
        with closing(server.admin("bench")) as owner, owner.cursor() as cursor:
            cursor.execute(f"{key.ddl('mariadb', rule)} ENGINE=MyISAM")
            marks = ", ".join(["%s"] * (len(key.names()) + 1))
            for start in range(0, rows, 10_000):
                numbers = range(start, min(start + 10_000, rows))
                values = [(*key.values("mariadb", i), TEXT) for i in numbers]
                cursor.executemany(f"INSERT INTO t VALUES ({marks})", values)
            owner.commit()
            where = " AND ".join(f"{name} = %s" for name in key.names())

            def write(number: int) -> None:
                values = key.values("mariadb", number)
                cursor.execute(f"UPDATE t SET a = CONCAT('y', a) WHERE {where}", values)

            yield connect(server.url("root", "bench"), None, Limits()), write


@contextmanager
def postgresql(key: Key, rows: int) -> Iterator[tuple[Engine, Write]]:
    """An engine whose readers block nobody, for comparison."""
    with PostgreSQL() as server:
        server.create_database("bench")
        with server.superuser("bench") as owner, owner.cursor() as cursor:
            cursor.execute(key.ddl("postgresql"))
            marks = ", ".join(["%s"] * (len(key.names()) + 1))
            values = ((*key.values("postgresql", i), TEXT) for i in range(rows))
            cursor.executemany(f"INSERT INTO t VALUES ({marks})", values)
            cursor.execute("ANALYZE t")
            where = " AND ".join(f"{name} = %s" for name in key.names())

            def write(number: int) -> None:
                values = key.values("postgresql", number)
                cursor.execute(f"UPDATE t SET a = 'y' || a WHERE {where}", values)

            yield connect(server.url("postgres", "bench"), None, Limits()), write


def exchange(
    engine: Engine, names: list[str], tile: Bounds | None, load: bool, reply_s: float
) -> int:
    """The source's half, up to the verdict or, of a load, to its end; returns rows read."""
    tally = ReadCounts()
    with closing(engine.open()) as session:
        shape = session.describe(Relation("t", table="t", key=tuple(names)))
        whole, ours = Partition((POSITION_MIN,), (56,)), Digest() if load else Digest(1, 1)
        message = opening(shape.recipe.id, ours=ours, partition=whole).open
        if isinstance(tile, KeyRange):
            message.between.SetInParent()
            message.between.lower.extend(tile.lower or ())
            message.between.upper.extend(tile.upper or ())
        elif tile is not None:
            message.within.first, message.within.last = tile
        for reply in Comparison(session, shape, message, tally).answer(iter(())):
            if reply.WhichOneof("message") == "verdict":
                break
            time.sleep(reply_s)
    return tally.rows_read


def tiles_of(engine: Engine, key: Key, rows: int, tile: int) -> list[Bounds]:
    """The tiles that a warehouse would have."""
    cut: Tiling
    with closing(engine.open()) as session:
        recipe = session.describe(Relation("t", table="t", key=tuple(key.names()))).recipe
    if recipe.integer_key:
        cut = tiling(range(0, rows + tile, tile), rows)
    else:
        numbers = range(0, rows, max(tile // 64, 1))
        sample = [key_bytes(key.text(engine.name, n), recipe) for n in numbers]
        cut = key_tiling(recipe, sample, rows, max(rows // tile, 1), {})
    return [cut.bounds(i) for i in range(len(cut))]


def measure(
    engine: Engine, write: Write, key: Key, rows: int, tile: int, load: bool, reply_s: float
) -> str:
    """A row of the table: as one exchange, and in tiles."""
    cells, whole = [], [None]
    for tiles in (whole, tiles_of(engine, key, rows, tile)):
        writer = Writer(write, rows)
        with writer.running():
            began = time.monotonic()
            for bounds in tiles:
                exchange(engine, key.names(), bounds, load, reply_s)
                time.sleep(PAUSE_S if bounds is not None else 0)
            spent = time.monotonic() - began
        longest = max(writer.waits, default=0.0)  # none, where all was over before the next write
        cells.append(f"{spent:.1f} s, {longest * 1e3:,.0f} ms, {len(writer.waits):,}")
    return " | ".join(cells)


@click.command()
@click.option("--rows", default=400_000, show_default=True)
@click.option("--tile", default=20_000, show_default=True)
@click.option("--reply-ms", default=200, show_default=True)
@click.option("--keys", multiple=True, type=click.Choice(list(KEYS)), default=["integer"])
def main(rows: int, tile: int, reply_ms: int, keys: tuple[str, ...]) -> None:
    """Prints a row for each engine and key: took, longest wait, writes."""
    for kind in keys:
        key = KEYS[kind]
        engines = {
            "SQLite, rollback journal": sqlite(key, rows),
            "MyISAM": myisam(key, rows),
            "MyISAM, no unique key": myisam(key, rows, "KEY"),
            "PostgreSQL": postgresql(key, rows),
        }
        for name, database in engines.items():
            with database as (engine, write):
                for what, load in (("compared", False), ("shipped", True)):
                    cells = measure(engine, write, key, rows, tile, load, reply_ms / 1e3)
                    print(f"| {name} | {kind} | {what} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
