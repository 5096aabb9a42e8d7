"""Fingerprints that PostgreSQL makes itself: what they cost, and what the alternatives would.

    python -m benchmarks.source.hashes --scale 0.5

Every line is a whole pass over TPC-H orders or lineitem, interleaved, the least of several: wall
seconds, CPU of this process, CPU of the database's backend. Ratios are to the bare COPY of the
table read by psycopg. "Survey" is the product's own scan with total, range sums and sketch, by
either kind; all other lines are statements read as bare as the COPY is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import click
import psycopg
from driftline.reconciliation.ranges import Partition, RangeSums
from driftline.reconciliation.sketches import Cells
from driftline.rows.digests import Salt

from benchmarks import tpch
from benchmarks.source.speed import partition_for
from source_agent.engines.interface import Limits, Session
from source_agent.engines.postgresql import hashes
from source_agent.engines.registry import connect
from source_agent.engines.relations.select import ReadColumn, plan_of, scan_sql
from source_agent.engines.relations.shapes import Fingerprint, Relation
from source_agent.scan.reader import ReadCounts, Reader
from tests.harness.agents import FRAGMENT_KEY, SALT
from tests.harness.servers import PostgreSQL
from tests.samples.prices import flat
from warehouse_agent.planning.change_forecast import RefreshOutcome, expect
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.sketch_size import Sketch, open_sketch

Taken = tuple[float, float, float]


def relation(table: str, kind: Fingerprint) -> Relation:
    return Relation(table, table=table, fingerprint=kind)


def survey(session: Session, made: Relation, partition: Partition, sketch: Sketch | None) -> None:
    """The source's half of a comparison up to the end of its scan."""
    sums, cells = RangeSums(partition.ranges), Cells(sketch.third if sketch else 0)
    shape = session.describe(made)
    salt: Salt = SALT
    reader = Reader(session, shape, fragment_key=FRAGMENT_KEY, salt=salt, tally=ReadCounts())
    for batch in reader.scan_hashes():
        sums.add(partition.indices(batch.positions), batch.mixed)
        if sketch is not None:
            ks, inside = sketch.embedding.embed(batch.positions, salt)
            cells.add(ks[inside], batch.mixed.m0[inside], salt)


def statements(session: Session, table: str) -> dict[str, str]:
    """What is timed beside the product, each as one COPY."""
    shape = session.describe(relation(table, Fingerprint.DATABASE))
    plan, recipe = plan_of(shape), shape.recipe
    columns = zip(recipe.columns, plan.reads, plan.forms, strict=True)
    reads = [ReadColumn(c.name, c.type, read, form, c.nullable) for c, read, form in columns]
    older = hashes.expression(reads, form=hashes.BYTES_BEFORE_18)
    key, record = ", ".join(plan.reads[: recipe.key_columns]), f"ROW({', '.join(plan.reads)})"
    hashed, first = scan_sql(shape.hashed(0)), plan.reads[0]
    block = f"{first} >> 12"
    return {
        "bare COPY": f"SELECT * FROM {table}",
        "the key alone": f"SELECT {key} FROM {table}",
        "key and hash": hashed,
        "the same before PostgreSQL 18": f"SELECT {key}, {older} FROM {table}",
        "one sum of all hashes": f"SELECT count(*), sum({plan.row_hash}) FROM {table}",
        "sums by 32 keys": f"SELECT {first} >> 5, count(*), sum({plan.row_hash}) FROM {table}"
        " GROUP BY 1",
        "packed by 4,096 keys": f"SELECT string_agg(int8send({first}) || int8send({plan.row_hash}),"
        f" ''::bytea) FROM {table} GROUP BY {block}",
        "hash_record_extended (blind)": f"SELECT {key}, hash_record_extended({record}, 42)"
        f" FROM {table}",
        "md5(record_send)": f"SELECT {key}, md5(record_send({record})) FROM {table}",
        "sha256(record_send)": f"SELECT {key}, sha256(record_send({record})) FROM {table}",
    }


def backend_s(pid: int) -> float:
    """CPU seconds of a backend so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(pid: int, work: Callable[[], object]) -> Taken:
    wall, cpu, server = time.perf_counter(), time.process_time(), backend_s(pid)
    work()
    return time.perf_counter() - wall, time.process_time() - cpu, backend_s(pid) - server


def copied(connection: psycopg.Connection, sql: str) -> None:
    with connection.cursor().copy(f"COPY ({sql}) TO STDOUT (FORMAT binary)") as out:
        for _ in out:
            pass


def measure(server: PostgreSQL, database: str, table: str, rows: int, repeat: int) -> None:
    url = server.url("postgres", database)
    engine = connect(url, None, Limits())
    with closing(engine.open()) as session, server.superuser(database) as connection:
        for setting in ("jit = off", "max_parallel_workers_per_gather = 0", "driftline.seed = 42"):
            connection.execute(f"SET {setting}")
        partition = partition_for(session, table)
        shape = session.describe(relation(table, Fingerprint.AGENT))
        bounds = (partition.starts[1], partition.starts[-1]) if shape.recipe.integer_key else None
        day = RefreshOutcome(86_400, rows, 0, rows // 100, 0)
        sketch = open_sketch(
            rows=rows,
            bounds=bounds,
            expected=expect([day] * 10, rows=rows, elapsed_s=86_400),
            prices=flat(24.0),
            line=Line(),
        )
        pids = (connection.info.backend_pid, session.ask("SELECT pg_backend_pid()")[0][0])  # type: ignore[attr-defined]
        works: dict[str, tuple[int, Callable[[], object]]] = {}
        for name, sql in statements(session, table).items():
            works[name] = (pids[0], partial(copied, connection, sql))
        for kind in Fingerprint:
            made = relation(table, kind)
            works[f"survey, {kind.value}"] = (
                pids[1],
                partial(survey, session, made, partition, sketch),
            )
        taken: dict[str, list[Taken]] = {name: [] for name in works}
        for _ in range(repeat):
            for name, (pid, work) in works.items():
                taken[name].append(timed(pid, work))
    print(f"\n{table}: {rows:,} rows, {partition.ranges:,} ranges, least of {repeat}")
    print(f"| {'':30} | wall s | ratio | agent CPU s | database CPU s |")
    base = min(wall for wall, _, _ in taken["bare COPY"])
    for name, times in taken.items():
        wall, cpu, backend = (min(column) for column in zip(*times, strict=True))
        print(f"| {name:30} | {wall:6.2f} | {wall / base:5.2f} | {cpu:11.2f} | {backend:14.2f} |")
    print(flush=True)


@click.command()
@click.option("--scale", default=0.5, show_default=True)
@click.option("--repeat", default=5, show_default=True)
@click.option("--table", "tables", default=["orders", "lineitem"], multiple=True, show_default=True)
def main(scale: float, repeat: int, tables: tuple[str, ...]) -> None:
    """What hashes made by the database cost, on TPC-H orders and lineitem."""
    with PostgreSQL() as server:
        database = server.create_database("bench")
        for table in tables:
            with server.superuser(database) as connection:
                rows = tpch.load(connection, tpch.generate(tpch.DATA, scale, table), table)
            measure(server, database, table, rows, repeat)


if __name__ == "__main__":
    main()
