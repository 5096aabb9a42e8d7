"""What other readers see of published tables: columns, values, and the bytes that they read.

    python -m benchmarks.reloads.readers --scale 0.1
    python -m benchmarks.reloads.readers --scale 0.001 --reader delta-rs --no-install

TPC-H tables in PostgreSQL are loaded, and refreshed once after changes. Each reader, which knows
nothing of Driftline, reads each table whole; what it reads must have the source's columns in its
order, and equal the source by a hash of all values, or the benchmark ends. Bytes are those of the
columns in the data files, by their footers: of all, and of those that the table declares, which are
what such a reader reads. Readers run in an environment of their own, Spark in that of the project.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import psycopg
import pyarrow.dataset as arrow
from deltalake import DeltaTable
from pyarrow import parquet

from benchmarks import environments, tpch
from benchmarks.reloads.contents import columns, compare, of_files, of_source
from tests.harness.legacy import PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment
from tests.harness.servers import PostgreSQL

ENVIRONMENT = "readers"
REQUIREMENTS = (
    "deltalake==1.6.6",
    "duckdb==1.5.5",
    "duckdb-extension-delta==1.5.5",
    "duckdb-extensions==1.5.5",
    "polars==2.1.0",
    "pyarrow==26.0.1",
)
SMALL_BYTES = 4 << 30  # no step is Spark's
# Libraries may end a process badly whose work is done; Spark's is to end its Java.
_END = "import os\nos._exit(0)\n"
_BEGIN = "import sys\ntable, out = sys.argv[1:]\nimport pyarrow.parquet as parquet\n"
_DELTA_RS = """
from deltalake import DeltaTable
parquet.write_table(DeltaTable(table).to_pyarrow_table(), out)
"""
_QUERY_BUILDER = """
import pyarrow
from deltalake import DeltaTable, QueryBuilder
rows = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t").read_all()
parquet.write_table(pyarrow.table(rows), out)
"""
_POLARS = """
import polars
polars.scan_delta(table).collect().write_parquet(out)
"""
_DUCKDB = """
import duckdb
from duckdb_extensions import import_extension
import_extension("delta")
with duckdb.connect() as database:
    database.execute("LOAD delta")
    database.execute(f"COPY (SELECT * FROM delta_scan('{table}')) TO '{out}' (FORMAT parquet)")
"""
_SPARK = """
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
import pyarrow
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").getOrCreate()
)
found = DeltaTable(table)
kind = from_arrow_schema(pyarrow.schema(found.schema().to_arrow()), prefer_timestamp_ntz=True)
rows = spark.read.schema(kind).parquet(*found.file_uris())
parquet.write_table(rows.toArrow(), out)
"""
READERS = {
    "delta-rs": _DELTA_RS,
    "QueryBuilder": _QUERY_BUILDER,
    "Polars": _POLARS,
    "DuckDB": _DUCKDB,
    "Spark": _SPARK,
}
OF_THE_PROJECT = {"delta-rs", "QueryBuilder", "Spark"}  # where nothing is to be installed


class ReadError(Exception):
    """A reader could not read a table, or read other columns."""


def read(reader: str, table: Path, out: Path, *, has_environment: bool) -> arrow.Dataset:
    """Return what a reader reads of a table, in the form in which it wrote that again.

    Raises:
        ReadError: it did not.
    """
    python: str | Path = sys.executable
    if has_environment and reader != "Spark":
        python = environments.program("python", ENVIRONMENT)
    script = _BEGIN + READERS[reader] + ("" if reader == "Spark" else _END)
    command = [python, "-c", script, table, out]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReadError(f"{reader}: {done.stderr[-1000:]}")
    return arrow.dataset(out)


def column_bytes(table: DeltaTable) -> tuple[int, int]:
    """Return the bytes of all columns of a table's data files, and of those that it declares."""
    declared = {field.name for field in table.schema().fields}
    every = own = 0
    for uri in table.file_uris():
        footer = parquet.read_metadata(uri.removeprefix("file://"))
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                every += column.total_compressed_size
                own += column.total_compressed_size * (column.path_in_schema in declared)
    return every, own


def change(connection: psycopg.Connection, table: str) -> None:
    """Update a hundredth of a table, scattered."""
    key, comment = (
        f"{table[0]}_{'cust' if table == 'customer' else 'order'}key",
        f"{table[0]}_comment",
    )
    connection.execute(f"UPDATE {table} SET {comment} = 'changed' WHERE {key} % 100 = 7")


@click.command()
@click.option("--scale", default=0.1, show_default=True)
@click.option("--reader", "readers", multiple=True, type=click.Choice([*READERS]), help="All.")
@click.option("--no-install", is_flag=True, help="Leave out what is not there yet.")
def main(scale: float, readers: Sequence[str], no_install: bool) -> None:
    """Publish orders, lineitem and customer, and read them as others do."""
    missing = environments.missing(ENVIRONMENT, REQUIREMENTS, install=not no_install)
    chosen = readers or [*READERS]
    run = [name for name in chosen if missing is None or name in OF_THE_PROJECT]
    with TemporaryDirectory() as folder, PostgreSQL() as server:
        legacy = PostgresLegacy(server)
        relations = {name: f'table = "{name}"' for name in ("orders", "lineitem", "customer")}
        with (
            server.superuser(legacy.database) as connection,
            Pair(NoSpark(), legacy, Path(folder), relations) as pair,
        ):
            pair.small_bytes = SMALL_BYTES
            for name in relations:
                tpch.load(connection, tpch.generate(tpch.DATA, scale, name), name)
            for name in relations:
                pair.refresh(name)
                change(connection, name)
                pair.refresh(name)
            print("| table | rows | MB of all columns | MB of the source's | ÷ | read equal by |")
            print("|---|---|---|---|---|---|")
            for name in relations:
                source, types = of_source(connection, name), columns(connection, name)
                table = pair.warehouse / name
                for reader in run:
                    out = Path(folder, f"{name}-{reader}.parquet")
                    found = read(reader, table, out, has_environment=missing is None)
                    if found.schema.names != [*types]:
                        raise ReadError(f"{reader} reads {found.schema.names} of {name}")
                    compare(reader, of_files(found, types), source)
                every, own = column_bytes(DeltaTable(str(table)))
                print(
                    f"| {name} | {source.rows:,} | {every / 1e6:.1f} | {own / 1e6:.1f}"
                    f" | {own / every:.2f} | {', '.join(run)} |"
                )
        legacy.close()
    for name in [name for name in chosen if name not in run]:
        print(f"- {name.upper()} IS LEFT OUT: {missing}")


if __name__ == "__main__":
    main()
