"""The source agent's memory over mutual TLS; see `benchmarks.source.agent`.

A real `driftline-source serve` of its own process for every answer. Resident means VmHWM, the peak
of the process's life; each further reader has its own.
"""

from __future__ import annotations

import math
import queue
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import psycopg
import zstandard
from driftline import wire_pb2 as pb
from driftline.limits import DIGESTS_PER_MESSAGE
from driftline.reconciliation.ranges import Partition, strata
from driftline.rows.frames import decode
from driftline.wire_pb2_grpc import SourceStub

from benchmarks import tpch
from benchmarks.source.speed import Fingerprinted, partition_for
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.enrolment import enroll
from tests.harness.agents import SALT, Peer, channel, opening
from tests.harness.servers import PostgreSQL

ANSWER_S_MAX = 900
LEVEL = 9  # of zstd, as a warehouse asks for in a refresh
ROWS_PER_COPY, KEYS_PER_COPY = 1_500_000, 6_000_000  # of TPC-H orders at scale 1


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


@contextmanager
def serving(folder: Path, url: str, tables: list[str], readers: int) -> Iterator[tuple[int, int]]:
    """A source agent of its own process: (pid, port)."""
    relations = "".join(f'[relations.{t}]\ntable = "{t}"\n' for t in tables)
    (folder / "source.toml").write_text(
        f'[database]\nurl = "{url}"\n[server]\nlisten = "127.0.0.1:0"\n'
        'certificate = "certs/source.pem"\nkey = "certs/source.key"\nclient_ca = "certs/ca.pem"\n'
        f'audit_file = "audit.jsonl"\n[limits]\nfeedback = false\nreaders = {readers}\n'
        f"{relations}"
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


def peak_mb(pid: int) -> str:
    """The peak of a process, and of each reader below it with what of that is its own: what it maps
    from files is mapped by the agent as well."""
    shown = [f"{status_mb(pid, 'VmHWM'):.1f}"]
    for reader in readers_of(pid):
        peak = status_mb(reader, "VmHWM")
        shown.append(f"{peak:.1f} ({peak - status_mb(reader, 'RssFile'):.1f} its own)")
    return " + ".join(shown) + " MB"


def readers_of(pid: int) -> list[int]:
    """The processes whose parent it is; `task/*/children` misses some while threads end."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                pids.append(int(path.parent.name))
    return pids


def status_mb(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith(field)).split()[1]) / 1000


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


def measure_memory(
    server: PostgreSQL,
    database: str,
    folder: Path,
    millions: Sequence[float],
    readers: int,
    changed: int,
) -> None:
    enroll(folder / "certs", source_names=["127.0.0.1"])
    url = server.url("postgres", database)
    print(f"\npeak resident (VmHWM), {changed:,} changed rows, {readers} reader(s)")
    with serving(folder, url, ["orders"], readers) as (pid, _):
        print(f"| serving, nothing asked yet | {'':40} | {peak_mb(pid)} |")
    for number, million in enumerate(millions):
        table, rows = f"big{number}", int(million * 1e6)
        with server.superuser(database) as connection:
            enlarge(connection, table, rows)
            with closing(connect(url, None, Limits()).open()) as session:
                partition = partition_for(session, table)
                ours = Fingerprinted(session, table, partition)
            for is_changed in (False, True):
                if is_changed:
                    scatter(connection, table, changed)
                with serving(folder, url, [table], readers) as (pid, port):
                    start = time.perf_counter()
                    what = ask(folder, port, table, ours, partition)
                    wall = time.perf_counter() - start
                    print(
                        f"| {rows:>12,} rows, {partition.ranges:,} ranges | {what:40} "
                        f"| {peak_mb(pid)} | {wall:.1f} s |",
                        flush=True,
                    )
            connection.execute(f"DROP TABLE {table}")
