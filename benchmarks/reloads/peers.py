"""The peers: each loads the whole table again, as its own documentation would have it.

    dlt         `replace` into a Delta table, by its connectorx backend
    connectorx  four connections, into one file of Parquet, zstd
    spark       Spark's JDBC reader, four connections, into Parquet, zstd; the start included
    copy        `COPY … TO STDOUT` into a pipe, whose lines are counted and not kept

None of them encrypts, compresses on the line, keeps what was there before or proves anything: that
favours them. They are told the key and its bounds where they can read in parts. dlt and connectorx
run in an environment of their own; Spark is that of the project, with Debian's JDBC driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from abc import ABC, abstractmethod
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import pyarrow.dataset as arrow
from deltalake import DeltaTable

from benchmarks import environments
from benchmarks.reloads.contents import Contents, of_files
from benchmarks.reloads.place import DATABASE, Cost, Source, count_lines, run

ENVIRONMENT = "reloads"
REQUIREMENTS = (
    "connectorx==0.4.6",
    "dlt[deltalake]==1.31.0",
    "psycopg[binary]==3.3.9",
    "pyarrow==26.0.1",
    "sqlalchemy==2.1.9",
)
PARTS = 4
KEYS = {"orders": "o_orderkey", "lineitem": "l_orderkey"}  # whose bounds cut the table in parts
_DRIVER = Path("usr/share/java/postgresql.jar")  # where Debian's package has it
UNPACKED = Path(".cache/jdbc")
DRIVERS = (Path("/") / _DRIVER, UNPACKED / _DRIVER)
DRIVER_PACKAGE = "libpostgresql-jdbc-java"

_DLT = """
import sys
import dlt
from dlt.sources.sql_database import sql_table
host, port, database, table = sys.argv[1:]
where = f"://postgres@{host}:{port}/{database}"
pipeline = dlt.pipeline(
    "reload", pipelines_dir="state", dataset_name="reloaded",
    destination=dlt.destinations.filesystem("tables"),
)
rows = sql_table(
    "postgresql+psycopg" + where, table, "public", backend="connectorx",
    backend_kwargs={"conn": "postgresql" + where, "return_type": "arrow"},
)
pipeline.run(rows, write_disposition="replace", table_format="delta")
"""
_CONNECTORX = """
import sys
import connectorx
import pyarrow.parquet as parquet
host, port, database, table, key, parts = sys.argv[1:]
rows = connectorx.read_sql(
    f"postgresql://postgres@{host}:{port}/{database}", f"SELECT * FROM {table}",
    partition_on=key, partition_num=int(parts), return_type="arrow",
)
parquet.write_table(rows, f"{table}.parquet", compression="zstd")
"""
_SPARK = """
import sys
from pyspark.sql import SparkSession
driver, host, port, database, table, key, parts = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[*]").config("spark.driver.extraClassPath", driver)
    .config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
)
reader = spark.read.format("jdbc").options(
    url=f"jdbc:postgresql://{host}:{port}/{database}", user="postgres",
    driver="org.postgresql.Driver", fetchsize="10000",
)
(bounds,) = reader.option("query", f"SELECT min({key}), max({key}) FROM {table}").load().collect()
reader = spark.read.format("jdbc").options(
    url=f"jdbc:postgresql://{host}:{port}/{database}", user="postgres",
    driver="org.postgresql.Driver", fetchsize="10000", dbtable=table, partitionColumn=key,
    lowerBound=str(bounds[0]), upperBound=str(bounds[1]), numPartitions=parts,
)
reader.load().write.mode("overwrite").option("compression", "zstd").parquet(table)
spark.stop()
"""


class Reload(ABC):
    """A tool that brings the whole table."""

    name: ClassVar[str]
    writes: ClassVar[str]

    @abstractmethod
    def missing(self, *, install: bool) -> str | None:
        """Return why it cannot run here, or None; install it if it may be."""

    @abstractmethod
    def version(self) -> str:
        """Return what ran, with its release."""

    @abstractmethod
    def reload(self, source: Source, folder: Path) -> tuple[Cost, Contents | int]:
        """Load the table into a folder of the tool's own.

        Returns:
            What it cost, and what it wrote: its rows alone if nothing is kept.

        Raises:
            FailedError: it ended badly.
        """


class _FromEnvironment(Reload):
    """One that runs in the peers' own environment."""

    def missing(self, *, install: bool) -> str | None:
        return environments.missing(ENVIRONMENT, REQUIREMENTS, install=install)

    def _run(self, script: str, words: list[str], source: Source, folder: Path) -> Cost:
        python = environments.program("python", ENVIRONMENT)
        cost, _ = run(
            [python, "-c", script, *_where(source), *words],
            folder=folder,
            source_pids=[source.pid],
            env=_outside(),
        )
        return cost

    def _release(self, package: str) -> str:
        (line,) = (line for line in REQUIREMENTS if line.startswith(package))
        return line.partition("==")[2]


class Dlt(_FromEnvironment):
    """dlt's `replace` into Delta."""

    name, writes = "dlt", "a Delta table"

    def version(self) -> str:
        return f"dlt {self._release('dlt')}, connectorx backend"

    def reload(self, source: Source, folder: Path) -> tuple[Cost, Contents | int]:
        cost = self._run(_DLT, [source.table], source, folder)
        table = DeltaTable(str(folder / "tables" / "reloaded" / source.table))
        return cost, of_files(table.to_pyarrow_dataset(), source.types)


class Connectorx(_FromEnvironment):
    """connectorx into a file."""

    name, writes = "connectorx", "one file of Parquet"

    def version(self) -> str:
        return f"connectorx {self._release('connectorx')}, {PARTS} parts"

    def reload(self, source: Source, folder: Path) -> tuple[Cost, Contents | int]:
        words = [source.table, KEYS[source.table], str(PARTS)]
        cost = self._run(_CONNECTORX, words, source, folder)
        return cost, of_files(arrow.dataset(folder / f"{source.table}.parquet"), source.types)


class SparkJdbc(Reload):
    """Spark's own reader of databases."""

    name, writes = "spark", "files of Parquet"

    def missing(self, *, install: bool) -> str | None:
        if _driver() is not None:
            return None
        if not install:
            return f"no JDBC driver (Debian: {DRIVER_PACKAGE}), and nothing is to be installed"
        UNPACKED.mkdir(parents=True, exist_ok=True)
        download = ["apt-get", "download", "--quiet", DRIVER_PACKAGE]
        try:
            subprocess.run(download, cwd=UNPACKED, check=True, capture_output=True)
            (package,) = UNPACKED.glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", package, UNPACKED], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError, ValueError):
            return f"no JDBC driver (Debian: {DRIVER_PACKAGE})"
        return None

    def version(self) -> str:
        return (
            f"Spark {metadata.version('pyspark')}, JDBC driver {_release(_driver())}, {PARTS} parts"
        )

    def reload(self, source: Source, folder: Path) -> tuple[Cost, Contents | int]:
        driver = _driver()
        assert driver is not None
        words = [*_where(source), source.table, KEYS[source.table], str(PARTS)]
        cost, _ = run(
            [sys.executable, "-c", _SPARK, driver.absolute(), *words],
            folder=folder,
            source_pids=[source.pid],
            env=_outside(),
        )
        return cost, of_files(arrow.dataset(folder / source.table), source.types)


class Copy(Reload):
    """PostgreSQL's own COPY, whose processor time is the yardstick of a source's."""

    name, writes = "copy", "nothing: its lines are counted"

    def missing(self, *, install: bool) -> str | None:
        return None

    def version(self) -> str:
        return "psql of the server's release"

    def reload(self, source: Source, folder: Path) -> tuple[Cost, Contents | int]:
        cost, out = run(
            [*source.psql, "-c", f"COPY {source.table} TO STDOUT"],
            folder=folder,
            source_pids=[source.pid],
            read=count_lines,
        )
        return cost, int(out)


PEERS: dict[str, Reload] = {one.name: one for one in (Dlt(), Connectorx(), SparkJdbc(), Copy())}


def _where(source: Source) -> list[str]:
    host, port = source.tcp
    return [host, str(port), DATABASE]


def _outside() -> dict[str, str]:
    """Return the variables of a program that sees no tree, and tells nobody that it runs."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "RUNTIME__DLTHUB_TELEMETRY": "false", "SPARK_LOCAL_IP": "127.0.0.1"}


def _driver() -> Path | None:
    return next((one for one in DRIVERS if one.exists()), None)


def _release(driver: Path | None) -> str:
    assert driver is not None
    with zipfile.ZipFile(driver) as jar:
        lines = jar.read("META-INF/MANIFEST.MF").decode().splitlines()
    found = [line.partition(":")[2].strip() for line in lines if "Implementation-Version" in line]
    return found[0] if found else "of unknown release"
