"""The demonstration's legacy system: three TPC-H tables, an SQLite file, and a day's work.

It plays the application and its DBA: it makes the tables, loads what tpchgen-cli generates, and
changes about one row in a hundred (80 % updates, 15 % inserts, 5 % deletes, the same in every run).
It uses no Driftline code; `texts` returns the tables for the comparison. The other system is
`demo.postgresql`. Rejected: data of our own making, which would flatter us.
"""

from __future__ import annotations

import contextlib
import csv
import random
import shutil
import sqlite3
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from driftline.errors import ConfigurationError

SEED = 42
CHANGED_SHARE = 0.01
UPDATED, INSERTED = 0.80, 0.15  # of the changed rows; the others are deleted


@dataclass(frozen=True, slots=True)
class Table:
    """A table of TPC-H.

    An update changes `amount` and `comment`. A copy of a row gets a new key: the first of `moved`
    is a key column, the second is added to it (TPC-H leaves these keys free; 0: the row count).
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    amount: str
    comment: str
    moved: tuple[str, int]

    @property
    def names(self) -> list[str]:
        """Return the names of all columns."""
        return [name for name, _ in self.columns]

    @property
    def ddl(self) -> str:
        """Return the CREATE TABLE statement."""
        columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in self.columns)
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({', '.join(self.key)}))"

    @property
    def keys_query(self) -> str:
        """Return the SELECT of all keys in order."""
        key = ", ".join(self.key)
        return f"SELECT {key} FROM {self.name} ORDER BY {key}"


def _columns(text: str) -> tuple[tuple[str, str], ...]:
    kinds = {"i": "INTEGER", "m": "DECIMAL(15,2)", "d": "DATE", "t": "VARCHAR(200)"}
    pairs = (word.split(":") for word in text.split())
    return tuple((name, kinds[kind]) for name, kind in pairs)


TABLES = (
    Table(
        "orders",
        _columns(
            "o_orderkey:i o_custkey:i o_orderstatus:t o_totalprice:m o_orderdate:d "
            "o_orderpriority:t o_clerk:t o_shippriority:i o_comment:t"
        ),
        ("o_orderkey",),
        "o_totalprice",
        "o_comment",
        ("o_orderkey", 8),
    ),
    Table(
        "lineitem",
        _columns(
            "l_orderkey:i l_partkey:i l_suppkey:i l_linenumber:i l_quantity:m l_extendedprice:m "
            "l_discount:m l_tax:m l_returnflag:t l_linestatus:t l_shipdate:d l_commitdate:d "
            "l_receiptdate:d l_shipinstruct:t l_shipmode:t l_comment:t"
        ),
        ("l_orderkey", "l_linenumber"),
        "l_extendedprice",
        "l_comment",
        ("l_linenumber", 7),
    ),
    Table(
        "customer",
        _columns(
            "c_custkey:i c_name:t c_address:t c_nationkey:i c_phone:t c_acctbal:m "
            "c_mktsegment:t c_comment:t"
        ),
        ("c_custkey",),
        "c_acctbal",
        "c_comment",
        ("c_custkey", 0),
    ),
)


class Legacy(Protocol):
    """A database that somebody else runs. `mark` is its placeholder for a parameter."""

    label: str
    mark: str

    def database_toml(self) -> str:
        """Return the lines of `[database]` in source.toml."""

    def grant(self, script: Callable[[], str]) -> None:
        """Run the script of `driftline-source grants` and set a password, if it has logins."""

    def load(self, table: Table, file: Path) -> None:
        """Make the table from a CSV file with a header."""

    def texts(self, table: Table) -> pa.Table:
        """Return all rows, every value as the database writes it."""

    def keys(self, table: Table) -> list[tuple[int, ...]]:
        """Return all keys in order."""

    def transaction(self) -> contextlib.AbstractContextManager[Any]:
        """Open a cursor; commit at the end of the block."""


def generate(folder: Path, scale: float) -> None:
    """Write orders.csv, lineitem.csv and customer.csv.

    Raises:
        ConfigurationError: tpchgen-cli is not installed, or failed.
    """
    beside = shutil.which("tpchgen-cli", path=sysconfig.get_path("scripts"))
    program = beside or shutil.which("tpchgen-cli")
    if program is None:
        raise ConfigurationError(
            "tpchgen-cli, which generates the demonstration's data, is not installed.",
            remedy="Run: pip install 'driftline[demo]'",
        )
    names = ",".join(table.name for table in TABLES)
    words = ["csv", "-s", str(scale), "-T", names, "-o", str(folder), "--overwrite", "--quiet"]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigurationError(f"tpchgen-cli failed: {done.stderr.strip()}", where="demo")


def change(legacy: Legacy, seed: int = SEED) -> dict[str, tuple[int, int, int]]:
    """Modify all tables in one transaction; return the rows inserted, updated, deleted in each."""
    dice = random.Random(seed)  # noqa: S311 - the same changes in every run
    done = {}
    with legacy.transaction() as cursor:
        for table in TABLES:
            keys = legacy.keys(table)
            chosen = dice.sample(keys, max(round(len(keys) * CHANGED_SHARE), 3))
            updates = max(round(len(chosen) * UPDATED), 1)
            inserts = max(round(len(chosen) * INSERTED), 1)
            updated, rest = chosen[:updates], chosen[updates:]
            copied, deleted = rest[:inserts], rest[inserts:]
            where = " AND ".join(f"{column} = {legacy.mark}" for column in table.key)
            cursor.executemany(
                f"UPDATE {table.name} SET {table.amount} = {legacy.mark}, "
                f"{table.comment} = {legacy.mark} WHERE {where}",
                [(f"{dice.randrange(10**7) / 100:.2f}", _comment(dice), *key) for key in updated],
            )
            column, by = table.moved
            chosen_columns = ", ".join(
                f"{name} + {by or len(keys)}" if name == column else name for name in table.names
            )
            cursor.executemany(
                f"INSERT INTO {table.name} SELECT {chosen_columns} FROM {table.name} WHERE {where}",
                copied,
            )
            cursor.executemany(f"DELETE FROM {table.name} WHERE {where}", deleted)
            done[table.name] = (len(copied), len(updated), len(deleted))
    return done


def _comment(dice: random.Random) -> str:
    words = ("called", "back", "goods", "damaged", "credit", "granted", "pending", "déjà vu")
    return " ".join(dice.choice(words) for _ in range(5))


class SQLite:
    """An SQLite file in WAL mode. It has no logins."""

    label = "SQLite"
    mark = "?"

    def __init__(self, folder: Path) -> None:
        self.file = folder / "legacy.db"
        with contextlib.closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

    def database_toml(self) -> str:
        return f'url = "sqlite:///{self.file.name}"\n'

    def grant(self, script: Callable[[], str]) -> None:
        """Do nothing: SQLite has no logins."""

    def load(self, table: Table, file: Path) -> None:
        marks = ", ".join("?" for _ in table.columns)
        with self.transaction() as cursor, file.open(encoding="utf-8", newline="") as lines:
            cursor.execute(table.ddl)
            rows = csv.reader(lines)
            next(rows)
            cursor.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows)

    def texts(self, table: Table) -> pa.Table:
        shown = [
            f"printf('%.2f', {name})" if kind.startswith("DECIMAL") else f"CAST({name} AS TEXT)"
            for name, kind in table.columns
        ]
        schema = pa.schema([(name, pa.string()) for name in table.names])
        batches = []
        with contextlib.closing(self._connect()) as connection:
            cursor = connection.execute(f"SELECT {', '.join(shown)} FROM {table.name}")
            while rows := cursor.fetchmany(50_000):
                columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return pa.Table.from_batches(batches, schema)

    def keys(self, table: Table) -> list[tuple[int, ...]]:
        with contextlib.closing(self._connect()) as connection:
            return list(connection.execute(table.keys_query))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        with contextlib.closing(self._connect()) as connection, connection:
            yield connection.cursor()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.file)
