"""The source agent alone: how fast it scans, where the time goes, and what it holds.

    python -m benchmarks.source                                  everything
    python -m benchmarks.source --no-memory --repeat 7           speed only
    python -m benchmarks.source --no-speed --rows-millions 1.5   memory only

Speed: a bare `COPY (SELECT * …) TO STDOUT (FORMAT binary)` read by psycopg, the product's scan
alone, scan + fingerprints + positions + total + range sums, and the same with the sketch of a table
that changes by 1 % between refreshes, in this process, interleaved; the least of several
repetitions of wall and of process CPU time. Ratios are to the bare COPY.

Memory: `driftline-source serve` processes over mutual TLS, answering a client that speaks the
protocol by hand: nothing changed, then the same number of changed rows by ranges, for each size of
table. Resident means VmHWM, the peak of the process's life; every answer has a process of its own.
"""

from __future__ import annotations

import math
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import grpc
import numpy as np
import numpy.typing as npt
import psycopg
import zstandard
from driftline import wire_pb2 as pb
from driftline.columns import gather
from driftline.digests import mix
from driftline.fingerprints import hasher, position_seed, row_key
from driftline.frames import decode
from driftline.keys import positions
from driftline.limits import DIGESTS_PER_MESSAGE, RANGES_MAX
from driftline.ranges import Partition, RangeSums, from_quantiles, strata, uniform
from driftline.sketches import Cells
from driftline.wire_pb2_grpc import SourceStub

from benchmarks import tpch
from source_agent.engine import Limits, Relation, Session
from source_agent.engines import connect
from tests.agents import FRAGMENT_KEY, SALT, Peer, channel, opening
from tests.servers import PostgreSQL
from warehouse_agent.expect import Past, expect
from warehouse_agent.plan import Line, Sketch, open_sketch

DATA = Path(".cache/tpch")
CHANGED_ROWS = 15_000  # 1 % of 1.5 M, whatever the table's size
ANSWER_S_MAX = 900
LEVEL = 9  # of zstd, as a warehouse asks for in a refresh
ROWS_PER_COPY, KEYS_PER_COPY = 1_500_000, 6_000_000  # of TPC-H orders at scale 1
STAGES = ("read", "gather", "hash", "positions", "mix", "add", "sketch")


# Speed


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


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and process CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure_speed(server: PostgreSQL, database: str, table: str, repeat: int) -> None:
    engine = connect(server.url("postgres", database), None, Limits())
    rows = bare_copy(server, database, table)
    with closing(engine.open()) as session:
        partition = partition_for(session, table)
        found: list[Fingerprinted] = []
        first = Fingerprinted(session, table, partition)
        bounds = (partition.starts[1], partition.starts[-1]) if first.recipe.integer_key else None
        day = Past(86_400, rows, 0, rows // 100, 0)  # one in a hundred, ten days in a row
        sketch = open_sketch(
            rows=rows,
            bounds=bounds,
            expected=expect([day] * 10, rows=rows, elapsed_s=86_400),
            row_bytes=24.0,
            line=Line(),
        )
        works: dict[str, Callable[[], object]] = {
            "bare COPY": lambda: bare_copy(server, database, table),
            "scan": lambda: scan_alone(session, table),
            "scan, fingerprints, ranges": lambda: found.append(
                Fingerprinted(session, table, partition)
            ),
            "the same and a sketch": lambda: found.append(
                Fingerprinted(session, table, partition, sketch)
            ),
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
    sketched = [f for f in found if f.seconds["sketch"]]
    best = min(sketched, key=lambda f: sum(f.seconds.values())).seconds
    parts = ", ".join(f"{stage} {s / rows * 1e6:.2f}" for stage, s in best.items())
    print(f"CPU, µs per row: {parts}", flush=True)


# Memory


def enlarge(connection: psycopg.Connection, table: str, rows: int) -> None:
    """A table like orders (of scale 1) with about so many rows: orders again and again, its keys
    moved. A power of two of copies, each thinned, so that the number of ranges is always the same.
    """
    connection.execute(f"DROP TABLE IF EXISTS {table}")
    create = tpch.TABLES["orders"].replace("TABLE orders", f"TABLE {table}", 1)
    connection.execute(create)
    copies = 1 << max(math.ceil(math.log2(rows / ROWS_PER_COPY)), 0)
    connection.execute(
        f"INSERT INTO {table} SELECT o_orderkey + g * {KEYS_PER_COPY}, o_custkey, o_orderstatus,"
        " o_totalprice, o_orderdate, o_orderpriority, o_clerk, o_shippriority, o_comment"
        " FROM generate_series(0, %s) AS g CROSS JOIN orders WHERE o_orderkey / 32 %% 600 < %s"
        " ORDER BY 1",
        (copies - 1, round(600 * rows / copies / ROWS_PER_COPY)),
    )
    connection.execute(f"VACUUM (ANALYZE) {table}")


def scatter(connection: psycopg.Connection, table: str, rows: int) -> None:
    """Update so many rows, scattered evenly from a fixed seed."""
    keys = [r[0] for r in connection.execute(f"SELECT o_orderkey FROM {table} ORDER BY 1")]
    chosen = np.random.default_rng(1).choice(np.array(keys, np.int64), rows, replace=False)
    connection.execute(
        f"UPDATE {table} SET o_totalprice = o_totalprice + 1.01 WHERE o_orderkey = ANY(%s)",
        (chosen.tolist(),),
    )


def enroll(folder: Path) -> None:
    """Certificates for both sides."""
    command = [
        sys.executable,
        "-m",
        "source_agent.cli",
        "enroll",
        "--directory",
        str(folder / "certs"),
        "--source-name",
        "127.0.0.1",
    ]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def serving(folder: Path, url: str, tables: list[str]) -> Iterator[tuple[int, int]]:
    """A source agent of its own process: (pid, port)."""
    relations = "".join(f'[relations.{t}]\ntable = "{t}"\n' for t in tables)
    (folder / "source.toml").write_text(
        f'[database]\nurl = "{url}"\n[server]\nlisten = "127.0.0.1:0"\n'
        'certificate = "certs/source.pem"\nkey = "certs/source.key"\nclient_ca = "certs/ca.pem"\n'
        f'audit_file = "audit.jsonl"\n{relations}'
    )
    ready = folder / "port"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "source_agent.cli",
            "--config",
            str(folder / "source.toml"),
            "serve",
            "--port-file",
            str(ready),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert process.poll() is None, "it did not start"
            assert time.monotonic() < deadline, "it is slow to start"
            time.sleep(0.05)
        yield process.pid, int(ready.read_text())
    finally:
        process.terminate()
        process.wait()


def peak_rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(x for x in status.splitlines() if x.startswith("VmHWM")).split()[1]) / 1000


class Client(Peer):
    """A peer that waits as long as ten million rows take."""

    def __init__(self, over: grpc.Channel) -> None:
        self._requests: queue.SimpleQueue[pb.Request | None] = queue.SimpleQueue()
        self.call = SourceStub(over).Exchange(iter(self._requests.get, None), timeout=ANSWER_S_MAX)


def ask(folder: Path, port: int, table: str, ours: Fingerprinted, partition: Partition) -> str:
    """One exchange by ranges, with no coarsening; what came of it."""
    digests = ours.sums.short_digests()
    known = np.sort(np.concatenate(ours.hashes))
    with channel(port, folder / "certs") as over, Client(over) as peer:
        cells = strata(digests, SALT).tobytes()
        request = opening(ours.recipe.id, relation=table, ours=ours.sums.total, strata=cells)
        steps = np.diff(np.array(partition.starts, np.int64), prepend=np.int64(0))  # modulo 2^64
        request.open.start_steps[:] = steps.tolist()
        request.open.shifts = bytes(partition.shifts)
        request.open.level = LEVEL
        peer.send(request)
        first = peer.reply()
        if first.WhichOneof("message") == "finished":
            assert first.finished.equal
            return "nothing changed"
        for start in range(0, len(digests), DIGESTS_PER_MESSAGE):
            piece = digests[start : start + DIGESTS_PER_MESSAGE]
            last = start + len(piece) == len(digests)
            data = piece.astype("<u8").tobytes()
            peer.send(pb.Request(digests=pb.Digests(coarsen=0, digests=data, last=last)))
        replies = peer.until("hashes_end")
        hashes = np.frombuffer(b"".join(r.row_hashes.hashes for r in replies), "<u8")
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        bits = np.packbits(known[at] != hashes, bitorder="little").tobytes()
        bitmap = zstandard.ZstdCompressor().compress(bits)
        peer.send(pb.Request(wanted=pb.Wanted(bitmap=bitmap, last=True)))
        shipped = sum(
            len(decode(r.rows.frame))
            for r in peer.until("finished")
            if r.WhichOneof("message") == "rows"
        )
    return f"{shipped:,} rows by ranges ({len(hashes):,} row hashes)"


def measure_memory(server: PostgreSQL, database: str, folder: Path, millions: list[float]) -> None:
    enroll(folder)
    url = server.url("postgres", database)
    print(f"\nsource agent, peak resident (VmHWM), {CHANGED_ROWS:,} changed rows")
    with serving(folder, url, ["orders"]) as (pid, _):
        print(f"| serving, nothing asked yet | {'':40} | {peak_rss_mb(pid):6.1f} MB |")
    for number, million in enumerate(millions):
        table, rows = f"big{number}", int(million * 1e6)
        with server.superuser(database) as connection:
            enlarge(connection, table, rows)
            with closing(connect(url, None, Limits()).open()) as session:
                partition = partition_for(session, table)
                ours = Fingerprinted(session, table, partition)
            for is_changed in (False, True):
                if is_changed:
                    scatter(connection, table, CHANGED_ROWS)
                with serving(folder, url, [table]) as (pid, port):
                    start = time.perf_counter()
                    what = ask(folder, port, table, ours, partition)
                    wall = time.perf_counter() - start
                    print(
                        f"| {rows:>12,} rows, {partition.ranges:,} ranges | {what:40} "
                        f"| {peak_rss_mb(pid):6.1f} MB | {wall:.1f} s |",
                        flush=True,
                    )
            connection.execute(f"DROP TABLE {table}")


@click.command()
@click.option("--scale", default=1.0, show_default=True)
@click.option("--rows-millions", default=[1.5, 10.0], multiple=True, show_default=True)
@click.option("--repeat", default=5, show_default=True)
@click.option("--speed/--no-speed", default=True)
@click.option("--memory/--no-memory", default=True)
def main(
    scale: float, rows_millions: tuple[float, ...], repeat: int, speed: bool, memory: bool
) -> None:
    """Scan speed on TPC-H orders and lineitem, and the agent's memory on orders of two sizes."""
    with TemporaryDirectory() as folder, PostgreSQL() as server:
        database = server.create_database("bench")
        tables = ["orders", "lineitem"] if speed else ["orders"]
        with server.superuser(database) as connection:
            for table in tables:
                tpch.load(connection, tpch.generate(DATA, scale, table), table)
        if speed:
            for table in tables:
                measure_speed(server, database, table, repeat)
        if memory:
            measure_memory(server, database, Path(folder), list(rows_millions))


if __name__ == "__main__":
    main()
