"""What the phase of a view costs: maintained by affected keys against recomputed.

    python -m benchmarks.views.maintenance SCALE SHARE[,SHARE…] [QUERY[,QUERY…]] [ROUNDS]

The joins of TPC-H's Q3, Q5 and Q10, without GROUP BY and ORDER BY, over tables of tpchgen-cli. A
SHARE (such as 0.001) of customer, orders and lineitem each changes, scattered: 60 % updates, 20 %
inserts, 20 % deletes. In every round both roads start from the same version and lead to the same
next one, in turn, in a warm session; nothing is committed. Processor seconds are those of the whole
process tree (JVM, Python workers), medians of the rounds; wall seconds stand beside. `check`, the
proof of a slice, is shown beside the sum and not in it. Results of the first round are compared row
by row, by DuckDB. `auto` is what the product chooses after the rounds, with what it learned; its
quotient is that of its processor seconds to those of the cheaper road, the proof included. The
table at the end is that of `docs/results/views.md`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3
from driftline.values.types import Column, Recipe, parse_type
from pyspark.sql import SparkSession

from benchmarks.meter import cpu_s
from warehouse_agent.columns.layout import HI, KEY, LO, POSITION, STATISTICS, Layout, lay_out
from warehouse_agent.config import Maintain
from warehouse_agent.events import Event, PhaseStarted
from warehouse_agent.history.view_notes import ViewNotes
from warehouse_agent.planning.view_cost import ViewMethod
from warehouse_agent.report import Report
from warehouse_agent.spark import session
from warehouse_agent.storage import formats
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import NewVersion, NewViewVersion, VersionRecord
from warehouse_agent.tasks import change_feed
from warehouse_agent.tasks.steps import StepLog, Steps
from warehouse_agent.tasks.write import WRITTEN, Sink, written
from warehouse_agent.views.evaluate import PinnedInput
from warehouse_agent.views.maintenance.affected_keys import made_of
from warehouse_agent.views.maintenance.maintain import choose, maintain
from warehouse_agent.views.maintenance.next_version import Computed, NextVersion
from warehouse_agent.views.maintenance.view_job import ViewJob
from warehouse_agent.views.query import read_query

HEAD = "| scale, changed, view | incremental, s | check, s | ÷ recomputed |\n|---|---|---|---|"
SMALL_BYTES = 32 << 20
FILE_ROWS = 1_000_000
KEYS = {
    "customer": ("c_custkey",), "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"), "supplier": ("s_suppkey",),
    "nation": ("n_nationkey",), "region": ("r_regionkey",),
}  # fmt: skip
CHANGED = ("customer", "orders", "lineitem")
QUERIES = {
    "Q3": """SELECT l.l_orderkey, l.l_extendedprice * (1 - l.l_discount) AS revenue,
        o.o_orderdate, o.o_shippriority
        FROM customer c JOIN orders o ON c.c_custkey = o.o_custkey
        JOIN lineitem l ON l.l_orderkey = o.o_orderkey
        WHERE c.c_mktsegment = 'BUILDING' AND o.o_orderdate < DATE '1995-03-15'
        AND l.l_shipdate > DATE '1995-03-15'""",
    "Q5": """SELECT n.n_name, l.l_extendedprice * (1 - l.l_discount) AS revenue
        FROM customer c, orders o, lineitem l, supplier s, nation n, region r
        WHERE c.c_custkey = o.o_custkey AND l.l_orderkey = o.o_orderkey
        AND l.l_suppkey = s.s_suppkey AND c.c_nationkey = s.s_nationkey
        AND s.s_nationkey = n.n_nationkey AND n.n_regionkey = r.r_regionkey
        AND r.r_name = 'ASIA' AND o.o_orderdate >= DATE '1994-01-01'
        AND o.o_orderdate < DATE '1995-01-01'""",
    "Q10": """SELECT c.c_custkey, c.c_name, l.l_extendedprice * (1 - l.l_discount) AS revenue,
        c.c_acctbal, n.n_name, c.c_address, c.c_phone, c.c_comment
        FROM customer c, orders o, lineitem l, nation n
        WHERE c.c_custkey = o.o_custkey AND l.l_orderkey = o.o_orderkey
        AND o.o_orderdate >= DATE '1993-10-01' AND o.o_orderdate < DATE '1994-01-01'
        AND l.l_returnflag = 'R' AND c.c_nationkey = n.n_nationkey""",
    # Not of TPC-H: a large view, whose files are most of the work.
    "all": """SELECT c.c_name, o.o_orderdate, l.l_extendedprice, l.l_discount, l.l_shipdate
        FROM customer c JOIN orders o ON c.c_custkey = o.o_custkey
        JOIN lineitem l ON l.l_orderkey = o.o_orderkey""",
}


@dataclass(frozen=True)
class Bench:
    """A warehouse of published tables, and the session."""

    store: Store
    spark: SparkSession

    @property
    def steps(self) -> Steps:
        return Steps(self.spark, SMALL_BYTES)

    def publish(self, name: str, table: pa.Table) -> None:
        """Publish version 0 of a table."""
        layout, rows = prepared(name, table)
        files = self.write(name, rows, layout, f"data-{'0' * 12}-shipped")
        formats.commit(self.store, name, NewVersion(None, layout, files, (), record(rows)))

    def write(self, name: str, rows: pa.Table, layout: Layout, folder: str) -> list[DataFile]:
        place, batches = DataFolder(self.store, name, folder), list[pa.RecordBatch]()
        place.make()
        for start in range(0, len(rows), FILE_ROWS):
            with Sink(place.uri(), "part", layout.file_schema, layout.integer_key) as sink:
                for batch in rows.slice(start, FILE_ROWS).to_batches(max_chunksize=16_384):
                    sink.add(batch)
                batches += list(sink.finish())
        return written(pa.Table.from_batches(batches, WRITTEN), place)

    def changed(self, name: str, share: float, seed: int) -> PinnedInput:
        """Return the next version of a table, proven and not committed, with its feed."""
        base = formats.head(self.store, name)
        assert base is not None
        rng, key = np.random.default_rng(seed), KEYS[name][0]
        tables = [pq.read_table(f.uri.removeprefix("file://")) for f in base.files]
        rows = pa.concat_tables(tables).cast(base.layout.file_schema)
        count = round(len(rows) * share)
        chosen = rng.permutation(len(rows))[:count]
        cut = round(count * 0.75)  # of 60 % and 20 %
        updated = edited(rows.take(pa.array(np.sort(chosen[:cut]))), base.layout, rng)
        copied = rows.take(pa.array(rng.integers(0, len(rows), round(count * 0.25))))
        if len(KEYS[name]) > 1:
            numbers = np.arange(len(copied)) + 100
            field = rows.schema.field("l_linenumber")
            copied = put(copied, "l_linenumber", pa.array(numbers, field.type))
        else:
            numbers = np.arange(len(copied)) + pc.max(rows[key]).as_py() + 1
            copied = put(copied, key, pa.array(numbers, rows.schema.field(key).type))
        stays = np.ones(len(rows), np.bool_)
        stays[chosen] = False
        attempt = f"data-{seed:012x}"
        new = pa.concat_tables([updated, identified(copied, base.layout, rng)])
        shipped = self.write(name, new, base.layout, f"{attempt}-shipped")
        gone = self.write(name, rows.filter(pa.array(~stays)), base.layout, f"{attempt}-gone")
        kept = self.write(name, rows.filter(pa.array(stays)), base.layout, f"{attempt}-rewritten")
        feed = change_feed.write(
            self.steps, self.store, name, 1, before=gone, after=shipped, layout=base.layout
        )
        return PinnedInput(name, 1, base.layout, (*shipped, *kept), feed=feed)


def prepared(name: str, table: pa.Table) -> tuple[Layout, pa.Table]:
    """Return the layout of a table of TPC-H, and its rows with bookkeeping."""
    kinds = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_decimal(kind):
            kinds.append(f"numeric({kind.precision},{kind.scale})")
        elif pa.types.is_date(kind):
            kinds.append("date")
        else:
            is_text = pa.types.is_string_view(kind) or pa.types.is_string(kind)
            kinds.append("text" if is_text else f"int{kind.bit_width // 8}")
    names = table.schema.names
    order = [*KEYS[name], *(n for n in names if n not in KEYS[name])]
    columns = tuple(
        Column(n, parse_type(kinds[names.index(n)]), False, names.index(n) + 1) for n in order
    )
    layout = lay_out(Recipe(columns, len(KEYS[name])), {}, where=name)
    data = [table[n].cast(layout.file_schema.field(n).type) for n in layout.data_names]
    rows = pa.table(data, names=[*layout.data_names])
    return layout, identified(rows, layout, np.random.default_rng(1))


def identified(rows: pa.Table, layout: Layout, rng: np.random.Generator) -> pa.Table:
    """Return rows with bookkeeping: key bytes, and random fingerprints, which no view reads."""
    count = len(rows)
    arrays = {n: rows[n] for n in layout.data_names}
    if layout.integer_key is None:
        (batch,) = rows.select([*layout.key_columns]).combine_chunks().to_batches() or [None]
        arrays[KEY] = layout.key_bytes(batch) if batch is not None else pa.array([], pa.binary())
        arrays[POSITION] = positions_of(arrays[KEY])
    arrays |= {HI: _random(rng, count), LO: _random(rng, count)}
    arrays |= {n: pa.nulls(count, kind) for n, kind in STATISTICS}
    names = layout.file_schema.names
    return pa.table([arrays[n] for n in names], schema=layout.file_schema)


def edited(rows: pa.Table, layout: Layout, rng: np.random.Generator) -> pa.Table:
    """Change values of rows: amounts, and a day of a date."""
    for field in rows.schema:
        if pa.types.is_decimal(field.type):
            one = pa.scalar(1, field.type)
            rows = put(rows, field.name, pc.add(rows[field.name], one).cast(field.type))
        elif field.name in ("o_orderdate", "l_shipdate"):
            days = pc.add(rows[field.name].cast(pa.int32()), pa.scalar(1, pa.int32())).cast(
                pa.date32()
            )
            rows = put(rows, field.name, days)
    return identified(rows, layout, rng)


def put(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.names.index(name), rows.schema.field(name), values)


def positions_of(keys: pa.Array) -> pa.Array:
    """Return a position for each key, always the same: by it the same row is looked up again."""
    hashes = b"".join(blake3(key).digest(8) for key in keys.to_pylist())
    return pa.array(np.frombuffer(hashes, "<i8"))


def _random(rng: np.random.Generator, count: int) -> pa.Array:
    return pa.array(rng.integers(-(2**63), 2**63 - 1, count))


def record(rows: pa.Table, **more: Any) -> VersionRecord:
    now = datetime.now(UTC).isoformat()
    return VersionRecord(
        as_of=now, checked_at=now, consistency="exact", proof="total", rows=len(rows),
        published_at=now, **more,
    )  # fmt: skip


class Phases:
    """Processor and wall seconds of each phase: a listener."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.wall: dict[str, float] = {}
        self._name: str | None = None
        self._since = (0.0, 0.0)

    def __call__(self, event: Event) -> None:
        if isinstance(event, PhaseStarted):
            self.end()
            self._name = event.phase

    def end(self) -> None:
        now = cpu_s([os.getpid()]), time.perf_counter()
        if self._name is not None:
            self.cpu[self._name] = self.cpu.get(self._name, 0) + now[0] - self._since[0]
            self.wall[self._name] = self.wall.get(self._name, 0) + now[1] - self._since[1]
        self._since = now


def view_job(
    bench: Bench, name: str, inputs: dict[str, PinnedInput], listener: Callable
) -> ViewJob:
    query = read_query(QUERIES[name], where=name)
    given = [inputs[o.reference[-1]] for o in query.occurrences]
    base, report = formats.view_head(bench.store, name), Report(name)
    steps = replace(bench.steps, log=StepLog(report.places))
    return ViewJob(name, query, given, base, bench.store, steps, report, listener)


def load(bench: Bench, name: str, inputs: dict[str, PinnedInput]) -> None:
    """Publish version 0 of a view."""
    job = view_job(bench, name, inputs, lambda _: None)
    made = maintain(job, Maintain.RECOMPUTE)
    assert isinstance(made, NextVersion)
    versions = {one.name: 0 for one in job.inputs}
    told = record(
        pa.table({"x": range(made.rows)}),
        inputs=versions,
        made_of=made_of(bench.store, versions),
        java=made.java,
    )
    new = NewViewVersion(None, made.layout, made.added, (), told)
    formats.commit(bench.store, name, new)


def run(
    bench: Bench, name: str, inputs: dict[str, PinnedInput], how: Maintain
) -> tuple[Phases, Computed]:
    phases = Phases()
    job = view_job(bench, name, inputs, phases)
    made = maintain(job, how)
    phases.end()
    assert how is Maintain.AUTO or job.report.method == how.value, job.report.method_why
    return phases, made


def discard(bench: Bench, name: str, made: Computed) -> None:
    for folder in made.folders if isinstance(made, NextVersion) else ():
        bench.store.remove(name, folder)
    bench.store.remove(PRIVATE, "changes", name)


def same(one: Computed, other: Computed) -> None:
    """Compare two results row by row, lineage included."""
    if not (isinstance(one, NextVersion) and isinstance(other, NextVersion)):
        assert type(one) is type(other), "no row of the view differs, or some do"
        return
    sides = [
        "SELECT * FROM read_parquet(["
        + ", ".join(f"'{f.uri.removeprefix('file://')}'" for f in made.files)
        + "])"
        for made in (one, other)
    ]
    with duckdb.connect() as db:
        for a, b in (sides, sides[::-1]):
            differing = db.execute(f"SELECT count(*) FROM ({a} EXCEPT ALL {b})").fetchone()
            assert differing == (0,), differing
    assert one.changes.counts == other.changes.counts, (one.changes.counts, other.changes.counts)


def measured(bench: Bench, name: str, inputs: dict[str, PinnedInput], rounds: int) -> list[str]:
    """Print lines for a view; return its cells of the table: what both ways took."""
    roads = {how: list[Phases]() for how in (Maintain.RECOMPUTE, Maintain.INCREMENTAL)}
    rows = 0
    for number in range(rounds + 1):  # the first one warms up
        results = {}
        for how in [*roads][:: 1 if number % 2 else -1]:
            phases, results[how] = run(bench, name, inputs, how)
            if number:
                roads[how].append(phases)
        if number == 0:
            same(*results.values())
        for made in results.values():
            rows = made.rows if isinstance(made, NextVersion) else made.base.rows
            discard(bench, name, made)

    def median(how: Maintain, kind: str, phase: str) -> float:
        return statistics.median(getattr(p, kind).get(phase, 0.0) for p in roads[how])

    parts = ("reduce", "join", "rewrite")
    cells = list[str]()
    for kind in ("cpu", "wall"):
        again = median(Maintain.RECOMPUTE, kind, "evaluate")
        each = {p: median(Maintain.INCREMENTAL, kind, p) for p in (*parts, "check")}
        total = sum(each[p] for p in parts)
        if kind == "cpu":
            cells += [f"{total:.2f}", f"{each['check']:.2f}", f"**{total / again:.2f}**"]
        print(
            f"  {name:4} {kind:4} s: recompute {again:5.2f}, incremental {total:5.2f} = "
            f"**{total / again:.2f}** ("
            + ", ".join(f"{p} {each[p]:.2f}" for p in parts)
            + f"), check {each['check']:.2f}; view {rows:,} rows",
            flush=True,
        )
    job = view_job(bench, name, inputs, lambda _: None)
    notes = ViewNotes.read(job.store, name)
    chosen = choose(job.store, job, Maintain.AUTO, notes)
    took = {
        ViewMethod.RECOMPUTE: median(Maintain.RECOMPUTE, "cpu", "evaluate"),
        ViewMethod.INCREMENTAL: sum(
            median(Maintain.INCREMENTAL, "cpu", phase) for phase in (*parts, "check")
        ),
    }
    quotient = took[chosen.method] / min(took.values())
    said = f"{chosen.method.value} = **{quotient:.2f}** of the better, check included"
    print(f"  {name:4} auto: {said}; {chosen.why}", flush=True)
    return cells


def main(scale: str, shares: str, queries: str = "Q3,Q5,Q10", rounds: str = "3") -> None:
    chosen = queries.split(",")
    table = [HEAD]
    print(f"scale {scale}, load {os.getloadavg()[0]:.1f}, {datetime.now(UTC):%Y-%m-%d}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "tpch"
        program = Path(sys.executable).parent / "tpchgen-cli"
        tables = ",".join(KEYS)
        command = [str(program), "parquet", "-s", scale, "--tables", tables, "-o", str(source)]
        subprocess.run(command, check=True, capture_output=True)
        bench = Bench(Store(f"{folder}/warehouse"), session.start({}))
        for name in KEYS:
            bench.publish(name, pq.read_table(source / f"{name}.parquet"))
        first = {
            name: PinnedInput.published(name, head)
            for name in KEYS
            if (head := formats.head(bench.store, name)) is not None
        }
        for name in chosen:
            load(bench, name, first)
        for seed, share in enumerate(map(float, shares.split(",")), 1):
            inputs = first | {n: bench.changed(n, share, seed) for n in CHANGED}
            print(f"{share:.3%} changed", flush=True)
            for name in chosen:
                cells = measured(bench, name, inputs, int(rounds))
                table.append(f"| {scale}, {share * 100:g} %, {name} | {' | '.join(cells)} |")
            for name in CHANGED:
                bench.store.remove(PRIVATE, "changes", name)
        bench.spark.stop()
    print("\n".join(table))


if __name__ == "__main__":
    main(*sys.argv[1:])
