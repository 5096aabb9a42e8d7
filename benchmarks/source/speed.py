"""The source's scan beside the driver's own reading; see `benchmarks.source.agent`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pymysql
from driftline.limits import RANGES_MAX
from driftline.reconciliation.ranges import Partition, RangeSums, from_quantiles, uniform
from driftline.reconciliation.sketches import Cells
from driftline.rows.columns import gather
from driftline.rows.digests import mix
from driftline.rows.fingerprints import hasher, position_seed, row_key
from driftline.rows.keys import positions
from pymysql.cursors import SSCursor
from sqlalchemy.engine import make_url

from benchmarks.source.fetch import databases
from source_agent.engines.interface import Limits, Session
from source_agent.engines.mysql_family.session import FamilySession
from source_agent.engines.registry import connect
from source_agent.engines.relations.select import scan_sql
from source_agent.engines.relations.shapes import Relation
from source_agent.engines.sqlite.session import SqliteSession
from source_agent.scan.accumulators import Accumulator, RangeTotals, SketchCells
from source_agent.scan.reader import ReadCounts, Reader
from source_agent.scan.workers import WorkerPool, fill
from tests.harness.agents import FRAGMENT_KEY, SALT
from tests.harness.servers import PostgreSQL
from tests.samples.prices import flat
from warehouse_agent.planning.change_forecast import RefreshOutcome, expect
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.sketch_size import Sketch, open_sketch

STAGES = ("read", "gather", "hash", "positions", "mix", "add", "sketch")
FETCH_ROWS = 512


def bare_copy(server: PostgreSQL, database: str, table: str) -> int:
    """Rows of a COPY that nobody looks at."""
    rows = -1  # the trailer comes alone, the header with the first tuple
    with server.superuser(database) as connection, connection.cursor() as cursor:
        copy = f"COPY (SELECT * FROM {table}) TO STDOUT (FORMAT binary)"
        with cursor.copy(copy) as out:
            for _ in out:
                rows += 1
    return rows


def scan_alone(session: Session, table: str) -> int:
    shape = session.describe(Relation(table, table=table))
    return sum(map(len, session.scan(shape)))


def partition_for(session: Session, table: str, ranges: int = RANGES_MAX) -> Partition:
    """What a warehouse would send: by the keys where they are integers."""
    shape = session.describe(Relation(table, table=table))
    if not shape.recipe.integer_key:
        return uniform(ranges)
    rng = np.random.default_rng(0)
    sampled = []
    for rows in session.scan(shape):
        where = positions(gather(rows), shape.recipe, 0)
        sampled.append(where[rng.random(len(where)) < 1 / 32])
    keys = np.sort(np.concatenate(sampled))
    at = np.linspace(0, len(keys) - 1, 200).astype(np.int64)
    return from_quantiles([int(k) for k in keys[at]], ranges)


class Fingerprinted:
    """One whole scan as `Comparison` makes it; what it found and where its time went."""

    def __init__(
        self, session: Session, table: str, partition: Partition, sketch: Sketch | None = None
    ) -> None:
        shape = session.describe(Relation(table, table=table))
        self.recipe = shape.recipe
        self.sums = RangeSums(partition.ranges)
        cells = Cells(sketch.third if sketch else 0)
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.hashes: list[npt.NDArray[np.uint64]] = []
        fingerprints = hasher(row_key(FRAGMENT_KEY, shape.recipe))
        seed = position_seed(FRAGMENT_KEY)
        at = time.thread_time()

        def lap(stage: str) -> None:
            nonlocal at
            now = time.thread_time()
            self.seconds[stage] += now - at
            at = now

        for rows in session.scan(shape):
            lap("read")
            block = gather(rows)
            lap("gather")
            hi, lo = fingerprints(rows)
            lap("hash")
            where = positions(block, shape.recipe, seed)
            lap("positions")
            mixed = mix(SALT, hi, lo)
            lap("mix")
            self.sums.add(partition.indices(where), mixed)
            lap("add")
            if sketch is not None:
                ks, inside = sketch.embedding.embed(where, SALT)
                cells.add(ks[inside], mixed.m0[inside], SALT)
                lap("sketch")
            self.hashes.append(mixed.m0)
            at = time.thread_time()


def shared(
    session: Session,
    table: str,
    partition: Partition,
    pool: WorkerPool,
    sketch: Sketch | None = None,
) -> RangeSums:
    """Return the sums of one whole scan, read as in an exchange, by this process and the pool."""
    shape = session.describe(Relation(table, table=table))
    reader = Reader(session, shape, fragment_key=FRAGMENT_KEY, salt=SALT, tally=ReadCounts())
    totals = RangeTotals(partition)
    accumulators: list[Accumulator] = [totals]
    if sketch:
        accumulators.append(SketchCells(sketch.embedding, sketch.third, SALT))
    fill(reader, accumulators, pool)
    return totals.sums


def found_again(session: Session, table: str, sketch: Sketch) -> int:
    """One row in a hundred found by another scan, as after a sketch of hashed keys."""
    shape = session.describe(Relation(table, table=table))
    reader = Reader(session, shape, fragment_key=FRAGMENT_KEY, salt=SALT, tally=ReadCounts())
    rows = 0
    for batch in reader.scan():
        ks, _ = sketch.embedding.embed(batch.positions, SALT)
        rows += len(batch.take(ks % np.uint64(100) == 0).mixed.m0)
    return rows


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and process CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure_speed(server: PostgreSQL, database: str, table: str, repeat: int, readers: int) -> None:
    engine = connect(server.url("postgres", database), None, Limits())
    rows = bare_copy(server, database, table)
    with closing(engine.open()) as session, closing(WorkerPool(readers - 1)) as pool:
        partition = partition_for(session, table)
        scans: list[Fingerprinted] = []
        first = Fingerprinted(session, table, partition)
        bounds = (partition.starts[1], partition.starts[-1]) if first.recipe.integer_key else None
        day = RefreshOutcome(86_400, rows, 0, rows // 100, 0)  # one in a hundred, ten days in a row
        sketch = open_sketch(
            rows=rows,
            bounds=bounds,
            expected=expect([day] * 10, rows=rows, elapsed_s=86_400),
            prices=flat(24.0),
            line=Line(),
        )
        works: dict[str, Callable[[], object]] = {
            "bare COPY": lambda: bare_copy(server, database, table),
            "scan": lambda: scan_alone(session, table),
            "scan, fingerprints, ranges": lambda: scans.append(
                Fingerprinted(session, table, partition)
            ),
            "the same and a sketch": lambda: scans.append(
                Fingerprinted(session, table, partition, sketch)
            ),
            f"ranges, {readers} processes": lambda: shared(session, table, partition, pool),
            "the same and a sketch, too": lambda: shared(session, table, partition, pool, sketch),
            "1 % found by another scan": lambda: found_again(session, table, sketch),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for _ in range(repeat):
            for name, work in works.items():
                taken[name].append(timed(work))
    print(f"\n{table}: {rows:,} rows, {partition.ranges:,} ranges, least of {repeat}")
    print(f"| {'':27} | wall s | M rows/s | ratio | CPU s | ratio |")
    base = [min(column) for column in zip(*taken["bare COPY"], strict=True)]
    for name, pairs in taken.items():
        wall, cpu = (min(column) for column in zip(*pairs, strict=True))
        print(
            f"| {name:27} | {wall:6.2f} | {rows / wall / 1e6:8.2f} | {wall / base[0]:5.2f} "
            f"| {cpu:5.2f} | {cpu / base[1]:5.2f} |"
        )
    sketched = [f for f in scans if f.seconds["sketch"]]
    best = min(sketched, key=lambda f: sum(f.seconds.values())).seconds
    parts = ", ".join(f"{stage} {s / rows * 1e6:.2f}" for stage, s in best.items())
    print(f"CPU, µs per row: {parts}", flush=True)


# Speed on the other engines


def fetched(session: Session, name: str) -> int:
    """Rows of the scan's SELECT, fetched as the agent's own connection gives them."""
    shape = session.describe(Relation("orders", table="orders"))
    if isinstance(session, SqliteSession):
        cursor: Any = session._connection.execute(scan_sql(shape))
    else:
        assert isinstance(session, FamilySession), name
        cursor = session._connection.cursor(SSCursor)
        cursor.execute(scan_sql(shape))
    rows = 0
    while block := cursor.fetchmany(FETCH_ROWS):
        rows += len(block)
    cursor.close()
    return rows


def fetched_by_default(url: str) -> int:
    """Rows of `fetchall` over a connection with the driver's defaults."""
    parsed = make_url(url)
    connection: Any = (
        sqlite3.connect(str(parsed.database))
        if parsed.get_backend_name() == "sqlite"
        else pymysql.connect(
            unix_socket=str(parsed.query["unix_socket"]),
            user=str(parsed.username),
            database=str(parsed.database),
        )
    )
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute("SELECT * FROM orders")
        return len(cursor.fetchall())


def measure_drivers(scale: float, repeat: int) -> None:
    with ExitStack() as stack:
        urls = databases(stack, Path(stack.enter_context(TemporaryDirectory())), scale)
        for name in ("mariadb", "sqlite"):
            with closing(connect(urls[name], None, Limits()).open()) as session:
                measure_driver(session, name, urls[name], repeat)


def measure_driver(session: Session, name: str, url: str, repeat: int) -> None:
    partition = partition_for(session, "orders")
    scans: list[Fingerprinted] = []
    works: dict[str, Callable[[], object]] = {
        "fetchmany, undecoded": lambda: fetched(session, name),
        "fetchall, driver's defaults": lambda: fetched_by_default(url),
        "scan": lambda: scan_alone(session, "orders"),
        "scan, fingerprints, ranges": lambda: scans.append(
            Fingerprinted(session, "orders", partition)
        ),
    }
    taken: dict[str, list[float]] = {work: [] for work in works}
    for _ in range(repeat):
        for label, work in works.items():
            taken[label].append(timed(work)[0])
    rows = scans[0].sums.total.count
    print(f"\n{name}: {rows:,} orders, {partition.ranges:,} ranges, least of {repeat}")
    print(f"| {'':27} | wall s | M rows/s | ÷ fetchmany | ÷ fetchall |")
    many, everything = (min(taken[label]) for label in list(works)[:2])
    for label, seconds in taken.items():
        wall = min(seconds)
        print(
            f"| {label:27} | {wall:6.2f} | {rows / wall / 1e6:8.2f} | {wall / many:11.2f} "
            f"| {wall / everything:10.2f} |"
        )
    best = min(scans, key=lambda f: sum(f.seconds.values())).seconds
    parts = ", ".join(f"{stage} {s / rows * 1e6:.2f}" for stage, s in best.items())
    print(f"CPU, µs per row: {parts}", flush=True)
