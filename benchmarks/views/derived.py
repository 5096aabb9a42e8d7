"""What travels for a view over two sites that let a warehouse choose columns and rows.

    python -m benchmarks.views.derived --scale 0.5

The join of TPC-H's Q3: customer at one site, orders and lineitem at another, each a PostgreSQL
database with a source agent, over one user-space link as in `pair`. The same view is kept twice:
over relations with `derive`, and over the same tables without. Then 0.1 % of every table changes,
scattered (60 % updates, 20 % inserts, 20 % deletes), again and again.

The floor is that of `floor`, over the columns and rows that the view needs: rows that changed there
as CSV under zstd -19, and which of them they are; beside it the one over the same columns of every
row, whether the view needs the row or not. Updates hit needed columns and others alike. The market
segment is varchar, not char, because no engine compares char(n) as Spark does.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import click
import psycopg

from benchmarks import tpch
from benchmarks.floor import floor_bytes
from benchmarks.refreshes.pair import SOURCE_PORT, program
from source_agent.enrolment import enroll
from tests.harness.servers import PostgreSQL
from tests.wan.link import SOURCE_ADDRESS, Link

SITES = {"crm": ("customer",), "erp": ("orders", "lineitem")}
VIEW = """SELECT l.l_orderkey, l.l_linenumber, o.o_orderdate, o.o_shippriority,
       l.l_extendedprice * (1 - l.l_discount) AS revenue
FROM crm.customer{0} c JOIN erp.orders{0} o ON c.c_custkey = o.o_custkey
JOIN erp.lineitem{0} l ON l.l_orderkey = o.o_orderkey
WHERE c.c_mktsegment = 'BUILDING' AND o.o_orderdate < DATE '1995-03-15'
  AND l.l_shipdate > DATE '1995-03-15'"""
# What the view needs of each table: columns, the key first, and rows.
COLUMNS = {
    "customer": "c_custkey, c_mktsegment",
    "orders": "o_orderkey, o_custkey, o_orderdate, o_shippriority",
    "lineitem": "l_orderkey, l_linenumber, l_extendedprice, l_discount, l_shipdate",
}
ROWS = {
    "customer": "c_mktsegment = 'BUILDING'",
    "orders": "o_orderdate < '1995-03-15'",
    "lineitem": "l_shipdate > '1995-03-15'",
}
KEYS = {"customer": 1, "orders": 1, "lineitem": 2}
UPDATES = {
    "customer": (
        "c_mktsegment = (ARRAY['BUILDING', 'MACHINERY'])[1 + (random() < 0.5)::int]",
        "c_acctbal = c_acctbal + 1",
    ),
    "orders": ("o_orderdate = o_orderdate + 1", "o_totalprice = o_totalprice + 1.01"),
    "lineitem": ("l_discount = l_discount + 0.01", "l_comment = left('x' || l_comment, 44)"),
}
NEW_KEY = {"customer": "c_custkey", "orders": "o_orderkey", "lineitem": "l_linenumber"}
Rows = dict[tuple[Any, ...], tuple[Any, ...]]


class Bench:
    """Two sites, each with a database and a source agent, and one warehouse with two views."""

    def __init__(self, folder: Path, server: PostgreSQL, link: Link) -> None:
        self.folder, self.link = folder, link
        self.connections: dict[str, psycopg.Connection[Any]] = {}
        self._processes: list[subprocess.Popen[Any]] = []
        enroll(folder / "certs", source_names=[SOURCE_ADDRESS])
        lines = ['[warehouse]\npath = "warehouse"\n[spark]\n"spark.master" = "local[2]"\n']
        for number, (site, tables) in enumerate(SITES.items()):
            server.create_database(site)
            self.connections[site] = server.superuser(site)
            relations = [
                f'[relations.{t}]\ntable = "{t}"\nderive = ["columns", "rows"]\n'
                f'[relations.{t}_whole]\ntable = "{t}"\n'
                for t in tables
            ]
            (folder / f"{site}.toml").write_text(
                f'[database]\nurl = "{server.url("postgres", site)}"\n'
                f'[server]\nlisten = "0.0.0.0:{SOURCE_PORT + number}"\n'
                'certificate = "certs/source.pem"\nkey = "certs/source.key"\n'
                f'client_ca = "certs/ca.pem"\naudit_file = "{site}.jsonl"\n'
                # Both sides share the processors here.
                f"[limits]\nfeedback = false\n{''.join(relations)}"
            )
            lines.append(
                f'[sources.{site}]\naddress = "{SOURCE_ADDRESS}:{SOURCE_PORT + number}"\n'
                'ca = "certs/ca.pem"\ncertificate = "certs/warehouse.pem"\n'
                'key = "certs/warehouse.key"\n'
            )
        for name, suffix in (("q3", ""), ("q3_whole", "_whole")):
            lines.append(f'[views.{name}]\nquery = """{VIEW.format(suffix)}"""\n')
        (folder / "warehouse.toml").write_text("".join(lines))

    def __enter__(self) -> Self:
        for site in SITES:
            ready = self.folder / f"{site}.port"
            command = [program("driftline-source"), "--config", str(self.folder / f"{site}.toml")]
            command += ["serve", "--port-file", str(ready)]
            self._processes.append(self.link.popen_source(command))
            deadline = time.monotonic() + 30
            while not ready.exists():
                assert time.monotonic() < deadline, "the source agent did not start"
                time.sleep(0.05)
        warm = [sys.executable, "-m", "benchmarks.warm", str(self.folder / "warehouse.toml")]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._warehouse = self.link.popen_warehouse(warm, **pipes)
        self._processes.append(self._warehouse)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for connection in self.connections.values():
            connection.close()

    def refresh(self, view: str) -> tuple[dict[str, dict[str, Any]], int]:
        """Refresh a view and what it reads; return reports by name, and the bytes on the link."""
        assert self._warehouse.stdin is not None
        assert self._warehouse.stdout is not None
        before = self.link.counters()
        self._warehouse.stdin.write(f"{view}\n")
        self._warehouse.stdin.flush()
        reports = [json.loads(self._warehouse.stdout.readline()) for _ in range(len(COLUMNS) + 1)]
        assert not any(report["error"] for report in reports), reports
        time.sleep(0.5)  # the last acknowledgements
        moved = self.link.counters() - before
        return {r["name"]: r for r in reports}, moved.to_source_bytes + moved.to_warehouse_bytes

    def needed(self, *, every_row: bool = False) -> dict[str, Rows]:
        """The columns that the view needs of each table, of the rows that it needs, by key."""
        by_table = {}
        for site, tables in SITES.items():
            for table in tables:
                where = "true" if every_row else ROWS[table]
                query = f"SELECT {COLUMNS[table]} FROM {table} WHERE {where}"
                rows = self.connections[site].execute(query).fetchall()
                by_table[table] = {row[: KEYS[table]]: row for row in rows}
        return by_table

    def change(self, share: float, rng: random.Random) -> None:
        """Change a share of every table."""
        for site, tables in SITES.items():
            change_scattered(self.connections[site], tables, share, rng)


def change_scattered(
    connection: psycopg.Connection[Any], tables: Iterable[str], share: float, rng: random.Random
) -> None:
    """Change a share of each table: 60 % updates, 20 % inserts, 20 % deletes, scattered."""
    for table in tables:
        rows = connection.execute(f"SELECT ctid::text FROM {table}").fetchall()
        count = round(len(rows) * share)
        places = [row[0] for row in rng.sample(rows, count)]
        cuts = [round(count * cut) for cut in (0.3, 0.6, 0.8)]
        groups = [places[a:b] for a, b in zip((0, *cuts), (*cuts, count), strict=True)]
        where = "WHERE ctid = ANY(%s::tid[])"
        copied = f"INSERT INTO {table} SELECT r.* FROM {table} AS t, "
        own = NEW_KEY[table]
        copied += (
            f"jsonb_populate_record(t, jsonb_build_object('{own}', t.{own} + 100000000))"
            " AS r WHERE t.ctid = ANY(%s::tid[]) ON CONFLICT DO NOTHING"
        )
        with connection.transaction():
            connection.execute(copied, (groups[2],))
            connection.execute(f"DELETE FROM {table} {where}", (groups[3],))
            for group, update in zip(groups, UPDATES[table], strict=False):
                connection.execute(f"UPDATE {table} SET {update} {where}", (group,))


def floor_of(before: Rows, after: Rows) -> tuple[int, int]:
    """Changed rows between two states, and the floor of telling them in bytes."""
    new = [key for key, row in after.items() if before.get(key) != row]
    gone = before.keys() - after.keys()
    lines = (",".join(map(str, after[key])).encode() + b"\n" for key in sorted(new))
    rows, changed = len(before.keys() | after.keys()), len(new) + len(gone)
    return changed, floor_bytes(lines, rows=rows, changed=changed)


def moved(reports: dict[str, dict[str, Any]], names: Iterable[str]) -> int:
    return sum(reports[name]["bytes_sent"] + reports[name]["bytes_received"] for name in names)


@click.command()
@click.option("--scale", default=0.1, show_default=True)
@click.option("--refreshes", default=4, show_default=True)
@click.option("--share", default=0.1, show_default=True, help="Per cent changed in each.")
def main(scale: float, refreshes: int, share: float) -> None:
    """Load both views, then refresh them after scattered changes."""
    with (
        TemporaryDirectory() as folder,
        PostgreSQL() as server,
        Link(rtt_ms=0, rate_mbit=None) as link,
        Bench(Path(folder), server, link) as bench,
    ):
        for site, tables in SITES.items():
            for table in tables:
                tpch.load(bench.connections[site], tpch.generate(tpch.DATA, scale, table), table)
        for view in ("q3", "q3_whole"):
            reports, on_link = bench.refresh(view)
            rows = {name: r["rows_total"] for name, r in reports.items()}
            print(f"first load of {view}: {on_link:,} bytes on the link, rows {rows}", flush=True)
        rng = random.Random(1)
        for number in range(refreshes):
            before, every_before = bench.needed(), bench.needed(every_row=True)
            bench.change(share / 100, rng)
            after, every_after = bench.needed(), bench.needed(every_row=True)
            reports, on_link = bench.refresh("q3")
            total = of_every_row = 0
            for site, tables in SITES.items():
                for table in tables:
                    changed, floor = floor_of(before[table], after[table])
                    size = moved(reports, [f"{site}.{table}"])
                    total += floor
                    of_every_row += floor_of(every_before[table], every_after[table])[1]
                    print(
                        f"{number}: {table:9} {changed:6,} changed rows, floor {floor:8,},"
                        f" {size:8,} bytes, {size / floor:.2f} x,"
                        f" {reports[f'{site}.{table}']['method']}",
                        flush=True,
                    )
            names = [f"{site}.{table}" for site, tables in SITES.items() for table in tables]
            size = moved(reports, names)
            others, whole_link = bench.refresh("q3_whole")
            whole = moved(others, [f"{name}_whole" for name in names])
            print(
                f"{number}: in all    floor {total:,}, {size:,} bytes, {size / total:.2f} x;"
                f" of every changed row {of_every_row:,}, {size / of_every_row:.2f} x;"
                f" on the link {on_link:,}; whole {whole:,} bytes, on the link {whole_link:,}",
                flush=True,
            )


if __name__ == "__main__":
    main()
