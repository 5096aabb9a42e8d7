"""The source agent alone: how fast it scans, where the time goes, and what it holds.

    python -m benchmarks.source.agent                                  everything
    python -m benchmarks.source.agent --no-memory --no-drivers         speed on PostgreSQL only
    python -m benchmarks.source.agent --no-memory --no-speed           on MariaDB and SQLite only
    python -m benchmarks.source.agent --no-speed --no-drivers --rows-millions 1.5    memory only

Speed: a bare `COPY (SELECT * …) TO STDOUT (FORMAT binary)` read by psycopg, the product's scan
alone, scan + fingerprints + positions + total + range sums, and the same with the sketch of a table
that changes by 1 % between refreshes, in this process, interleaved; the least of several
repetitions of wall and of process CPU time. Ratios are to the bare COPY. Then the same as the agent
does it with `limits.readers`: a part of the work, and of the CPU time, is that of other processes.

Drivers: on MariaDB and SQLite, orders, beside `fetchmany` of the same SELECT over the agent's own
connection, which decodes nothing, and `fetchall` over one with the driver's defaults.

Memory: `driftline-source serve` processes over mutual TLS, answering a client that speaks the
protocol by hand: nothing changed, then `--changed` rows (1 % of 1.5 million, whatever the size) by
ranges, for each size of table. Resident means VmHWM, the peak of the process's life; every answer
has a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import tpch
from benchmarks.source.memory import measure_memory
from benchmarks.source.speed import measure_drivers, measure_speed
from tests.harness.servers import PostgreSQL


@click.command()
@click.option("--scale", default=1.0, show_default=True)
@click.option("--rows-millions", default=[1.5, 10.0], multiple=True, show_default=True)
@click.option("--table", "named", default=["orders", "lineitem"], multiple=True)
@click.option("--repeat", default=5, show_default=True)
@click.option("--speed/--no-speed", default=True)
@click.option("--drivers/--no-drivers", default=True, help="MariaDB and SQLite.")
@click.option("--memory/--no-memory", default=True)
@click.option("--readers", default=2, show_default=True, help="limits.readers, for memory as well.")
@click.option("--changed", default=15_000, show_default=True, help="Rows, for memory.")
def main(
    scale: float,
    rows_millions: tuple[float, ...],
    named: tuple[str, ...],
    repeat: int,
    speed: bool,
    drivers: bool,
    memory: bool,
    readers: int,
    changed: int,
) -> None:
    """Scan speed on TPC-H orders and lineitem, and the agent's memory on orders of two sizes."""
    if drivers:
        measure_drivers(scale, repeat)
    if not (speed or memory):
        return
    with TemporaryDirectory() as folder, PostgreSQL() as server:
        database = server.create_database("bench")
        tables = list(named) if speed else ["orders"]
        with server.superuser(database) as connection:
            for table in tables:
                tpch.load(connection, tpch.generate(tpch.DATA, scale, table), table)
        if speed:
            for table in tables:
                measure_speed(server, database, table, repeat, readers)
        if memory:
            measure_memory(server, database, Path(folder), rows_millions, readers, changed)


if __name__ == "__main__":
    main()
