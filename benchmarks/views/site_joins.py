"""What travels, and what a source works, if it leaves out rows that join with nothing a view needs.

    python -m benchmarks.views.site_joins --scale 0.1

The joins of TPC-H's Q3 and Q5, each in a warehouse of its own, over tables of one PostgreSQL with
foreign keys, in three ways:

    joins   relations are kept with the rows that join (`derive = ["columns", "rows", "joins"]`)
    kept    relations are kept by their own conditions (`derive = ["columns", "rows"]`)
    query   the join is published by the DBA, as one relation

0.1 % of customer, orders and lineitem changes, scattered (60 % updates, 20 % inserts, 20 % deletes
with the rows that reference them), again and again. Bytes are of messages. The source's processor
is that of its agent and of the database. Each view is compared with what DuckDB computes. The
table at the end is that of `docs/results/views.md`; its quotients are to `kept`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import duckdb
import psycopg
from deltalake import DeltaTable

from benchmarks import tpch
from benchmarks.meter import cpu_s, own_children
from benchmarks.refreshes.pair import program
from benchmarks.views.derived import change_scattered
from tests.harness.servers import PostgreSQL

SMALL = {
    "region": "r_regionkey bigint PRIMARY KEY, r_name varchar(25), r_comment varchar(152)",
    "nation": "n_nationkey bigint PRIMARY KEY, n_name varchar(25), n_regionkey bigint,"
    " n_comment varchar(152)",
    "supplier": "s_suppkey bigint PRIMARY KEY, s_name varchar(25), s_address varchar(40),"
    " s_nationkey bigint, s_phone varchar(15), s_acctbal numeric(15,2), s_comment varchar(101)",
}
LARGE = ("customer", "orders", "lineitem")
KEYS = (
    ("nation", "n_regionkey", "region"),
    ("supplier", "s_nationkey", "nation"),
    ("customer", "c_nationkey", "nation"),
    ("orders", "o_custkey", "customer"),
    ("lineitem", "l_orderkey", "orders"),
    ("lineitem", "l_suppkey", "supplier"),
)
BODIES = {
    "q3": """SELECT l.l_orderkey, l.l_linenumber, o.o_orderdate, o.o_shippriority,
       l.l_extendedprice, l.l_discount
FROM {0}lineitem{1} l JOIN {0}orders{1} o ON o.o_orderkey = l.l_orderkey
JOIN {0}customer{1} c ON c.c_custkey = o.o_custkey
WHERE c.c_mktsegment = 'BUILDING' AND o.o_orderdate < DATE '1995-03-15'
  AND l.l_shipdate > DATE '1995-03-15'""",
    "q5": """SELECT l.l_orderkey, l.l_linenumber, n.n_name, l.l_extendedprice, l.l_discount
FROM {0}lineitem{1} l JOIN {0}orders{1} o ON o.o_orderkey = l.l_orderkey
JOIN {0}customer{1} c ON c.c_custkey = o.o_custkey
JOIN {0}supplier{1} s ON s.s_suppkey = l.l_suppkey
JOIN {0}nation{1} n ON n.n_nationkey = s.s_nationkey AND n.n_nationkey = c.c_nationkey
JOIN {0}region{1} r ON r.r_regionkey = n.n_regionkey
WHERE r.r_name = 'ASIA' AND o.o_orderdate >= DATE '1994-01-01'
  AND o.o_orderdate < DATE '1995-01-01'""",
}
WAYS = ("kept", "joins", "query")
HEAD = (
    "| view | rows: kept; joins; query | first load, joins | bytes of a refresh: joins; query"
    " | processor of the source: joins; query |\n|---|---|---|---|---|"
)
READY_S = 60


def fill(connection: psycopg.Connection[Any], scale: float) -> None:
    """Make the tables, with foreign keys."""
    for table, columns in SMALL.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
        copy = f"COPY {table} FROM STDIN (FORMAT csv, HEADER)"
        with connection.cursor().copy(copy) as sink:
            sink.write(tpch.generate(tpch.DATA, scale, table).read_bytes())
    for table in LARGE:
        tpch.load(connection, tpch.generate(tpch.DATA, scale, table), table)
    for table, column, other in KEYS:
        key = f"FOREIGN KEY ({column}) REFERENCES {other} ON DELETE CASCADE"
        connection.execute(f"ALTER TABLE {table} ADD {key}")
    # By which deletes go on; a source has them, as a rule.
    connection.execute("CREATE INDEX ON orders (o_custkey)")
    connection.execute("VACUUM ANALYZE")


def configure(folder: Path, url: str, name: str) -> None:
    """Write source.toml; `name`: of the view."""
    lines = [f'[database]\nurl = "{url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n']
    lines.append('audit_file = "audit.jsonl"\n[limits]\nfeedback = false\n')
    for table in (*SMALL, *LARGE):
        lines.append(f'[relations.{table}]\ntable = "{table}"\n')
        lines.append('derive = ["columns", "rows", "joins"]\n')
        lines.append(f'[relations.{table}_kept]\ntable = "{table}"\nderive = ["columns", "rows"]\n')
    lines.append(f'[relations.{name}_query]\nkey = ["l_orderkey", "l_linenumber"]\n')
    lines.append(f'query = """{BODIES[name].format("", "")}"""\n')
    (folder / "source.toml").write_text("".join(lines))


def warehouse(folder: Path, port: int, name: str) -> Path:
    """Write warehouse.toml and return it; `name`: of the view."""
    lines = ['[warehouse]\npath = "warehouse"\n[spark]\n"spark.master" = "local[2]"\n']
    lines.append(f'[sources.erp]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    for way, suffix in (("joins", ""), ("kept", "_kept")):
        body = BODIES[name].format("erp.", suffix)
        lines.append(f'[views.{name}_{way}]\nsite_joins = true\nquery = """{body}"""\n')
    lines.append(f'[fragments.{name}_query]\nsource = "erp"\n')
    file = folder / "warehouse.toml"
    file.write_text("".join(lines))
    return file


class Rig:
    """A source, a warm warehouse, and the processes of the source's side."""

    def __init__(self, folder: Path, url: str, database: list[int], name: str) -> None:
        self.folder = folder
        configure(folder, url, name)
        ready = folder / "port"
        command = [program("driftline-source"), "--config", str(folder / "source.toml")]
        self._agent = subprocess.Popen([*command, "serve", "--port-file", str(ready)])
        deadline = time.monotonic() + READY_S
        while not ready.exists() or not ready.read_text().strip():
            assert time.monotonic() < deadline, "the source agent did not start"
            time.sleep(0.05)
        file = warehouse(folder, int(ready.read_text()), name)
        self._warm = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.warm", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._source = [*database, self._agent.pid]

    def refresh(self, name: str) -> tuple[dict[str, dict[str, Any]], float]:
        """Refresh a view or a fragment; return reports by name, and the source's seconds."""
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        expected = 1 if name.endswith("query") else {"q3": 4, "q5": 7}[name[:2]]
        before = cpu_s(self._source)
        self._warm.stdin.write(f"{name}\n")
        self._warm.stdin.flush()
        reports = [json.loads(self._warm.stdout.readline()) for _ in range(expected)]
        spent = cpu_s(self._source) - before
        assert not any(report["error"] for report in reports), reports
        return {report["name"]: report for report in reports}, spent

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return the published rows of a view, in order."""
        table = DeltaTable(str(self.folder / "warehouse" / name)).to_pyarrow_table()
        names = [n for n in table.column_names if not n.startswith("_driftline_")]
        return sorted(tuple(row.values()) for row in table.select(names).to_pylist())

    def close(self) -> None:
        """End both."""
        for process in (self._agent, self._warm):
            process.kill()
            process.wait()


@contextmanager
def rig(scale: float, name: str) -> Iterator[tuple[Rig, psycopg.Connection[Any]]]:
    """Yield a rig over a filled database, and its owner's connection."""
    with TemporaryDirectory() as folder, PostgreSQL() as server:
        database = own_children()
        server.create_database("erp")
        with server.superuser("erp") as connection:
            fill(connection, scale)
            made = Rig(Path(folder), server.url("postgres", "erp"), database, name)
            try:
                yield made, connection
            finally:
                made.close()


def computed(connection: psycopg.Connection[Any], folder: Path, name: str) -> list[Any]:
    """Return what DuckDB computes for a view from the tables as they are."""
    with duckdb.connect() as db:
        for table in (*SMALL, *LARGE):
            types = connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
                (table,),
            ).fetchall()
            db.execute(f"CREATE TABLE {table} ({', '.join(f'{n} {t}' for n, t in types)})")
            file = folder / f"{table}.csv"
            copied = connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT csv)")
            with file.open("wb") as out, copied as copy:
                out.writelines(copy)
            db.execute(f"COPY {table} FROM '{file}' (FORMAT csv, HEADER false)")
        return sorted(db.execute(BODIES[name].format("", "")).fetchall())


@click.command()
@click.option("--scale", default=0.1, show_default=True)
@click.option("--refreshes", default=3, show_default=True)
@click.option("--share", default=0.1, show_default=True, help="Per cent changed in each.")
@click.option("--only", type=click.Choice([*BODIES]), help="One of the views.")
def main(scale: float, refreshes: int, share: float, only: str | None) -> None:
    """Load the views each way, then refresh them after scattered changes."""
    table = [HEAD]
    for name in [only] if only else BODIES:
        with rig(scale, name) as (made, connection):
            table.append(measure(made, connection, name, refreshes, share))
    print("\n".join(table))


def measure(
    made: Rig, connection: psycopg.Connection[Any], name: str, refreshes: int, share: float
) -> str:
    """Load one view each way, and refresh it. Returns its row of the table."""
    rng = random.Random(1)
    size, spent = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0.0)
    loaded, rows_of = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)
    for number in range(refreshes + 1):
        if number:
            change_scattered(connection, LARGE, share / 100, rng)
            connection.execute("VACUUM ANALYZE")
        expected = computed(connection, made.folder, name)
        for way in WAYS:
            reports, seconds = made.refresh(f"{name}_{way}")
            tables = [r for r in reports.values() if "." in r["name"] or way == "query"]
            moved = sum(r["bytes_sent"] + r["bytes_received"] for r in tables)
            rows = sum(r["rows_total"] for r in tables)
            each = ", ".join(
                f"{r['name']} {r['bytes_sent'] + r['bytes_received']:,}" for r in tables
            )
            print(
                f"{number}: {name} {way:5} {rows:9,} rows, {moved:10,} bytes,"
                f" {seconds:6.2f} s of the source ({each})",
                flush=True,
            )
            assert made.rows(f"{name}_{way}") == expected, (name, way)
            if number:
                size[way] += moved
                spent[way] += seconds
            else:
                loaded[way], rows_of[way] = moved, rows

    def against_kept(of: dict[str, int] | dict[str, float]) -> str:
        return "; ".join(f"{of[way] / of['kept']:.2f} ×" for way in ("joins", "query"))

    cells = (
        f"{name.upper()}, {refreshes} refreshes",
        "; ".join(f"{rows_of[way]:,}" for way in WAYS),
        f"{loaded['joins'] / loaded['kept']:.2f} ×",
        against_kept(size),
        against_kept(spent),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
