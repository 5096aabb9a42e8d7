"""A new engine is one module and one line: DuckDB passes the conformance suite, and refreshes.

What DuckDB in one process cannot keep is in `LACKS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from source_agent.engines import registry
from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Case, Legacy
from source_agent.engines.conformance.suite import *  # noqa: F403 - collected, with this `legacy`
from source_agent.engines.registry import EngineKind
from tests.harness.pair import Pair

pytestmark = pytest.mark.slow

KIND = EngineKind("tests.source_agent.engines.duckdb_engine", "duckdb", is_file=True)
TYPES: list[Case] = [
    ("smallint", "int2", ["-32768", "0", "32767"], ["-32768", "0", "32767"]),
    ("integer", "int4", ["-2147483648", "2147483647"], []),
    ("bigint", "int8", ["-9223372036854775808", "12345678901235"], []),
    ("decimal(15,2)", "numeric(15,2)", ["-0.01", "0", "20000.5"], ["-0.01", "0.00", "20000.50"]),
    ("decimal(38,10)", "numeric(38,10)", ["1.0000000001", "1.0000000002"], []),
    ("double", "float8", ["0.1", "0.30000000000000004", "0.3", "1e300", "'inf'", "'nan'"],
     ["0.1", "0.30000000000000004", "0.3", "1e+300", "Infinity", "NaN"]),
    ("date", "date", ["'0001-01-01'", "'9999-12-31'"], ["0001-01-01", "9999-12-31"]),
    ("varchar", "text", ["''", "' '", "'a'", "'a '", "'NULL'", "'é'", "'e\u0301'", "'😀'"], []),
    ("blob", "bytea", ["''", "'\\x00'", "'\\x00\\x00'"], ["", "00", "0000"]),
]  # fmt: skip

LACKS = frozenset(
    {
        Capability.READ_ONLY_CONNECTION,
        Capability.TIME_LIMIT,
        Capability.PLANS,
        Capability.LOGINS,
    }
)


class DuckdbLegacy(Legacy):
    """A file; the owner's connection is one of this process. Serves the suite and `Pair`."""

    name = engine = "duckdb"
    password: str | None = None
    text_key = "varchar"
    hostile_where = "name IS DISTINCT FROM '%s?' -- a comment"
    blob = "blob"
    types = TYPES
    write_errors = (duckdb.Error,)
    lacks = LACKS

    def __init__(self, path: Path) -> None:
        self._owner = duckdb.connect(str(path))
        self.url = f"duckdb:///{path}"

    def run(self, *statements: str) -> None:
        for sql in statements:
            self._owner.execute(sql)

    def execute(self, sql: str, *parameters: Any) -> None:
        self._owner.execute(sql, parameters)

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        marks = f"({', '.join('?' * len(rows[0]))})"
        for start in range(0, len(rows), 500):  # `executemany` takes a millisecond for each row
            some = rows[start : start + 500]
            values = [value for row in some for value in row]
            self._owner.execute(
                f"INSERT INTO {table} VALUES {', '.join([marks] * len(some))}", values
            )

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._owner.executemany(sql, list(rows))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self._owner.execute(f'SELECT * FROM "{table}"').fetchall()

    def record(self, monkeypatch: pytest.MonkeyPatch, issued: list[str]) -> None:
        connect = duckdb.connect
        monkeypatch.setattr(duckdb, "connect", lambda path: _Recorded(connect(path), issued))

    def close(self) -> None:
        self._owner.close()


class _Recorded:
    """A connection whose statements are appended to `issued`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, issued: list[str]) -> None:
        self._connection, self._issued = connection, issued

    def execute(self, sql: str, *values: Any) -> Any:
        self._issued.append(sql)
        return self._connection.execute(sql, *values)

    def cursor(self) -> _Recorded:
        return _Recorded(self._connection.cursor(), self._issued)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def legacy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DuckdbLegacy]:
    monkeypatch.setitem(registry.KINDS, "duckdb", KIND)
    made = DuckdbLegacy(tmp_path / "legacy.duckdb")
    yield made
    made.close()


def test_a_table_is_loaded_and_refreshed(
    spark: SparkSession, legacy: DuckdbLegacy, tmp_path: Path
) -> None:
    legacy.run("CREATE TABLE orders (id BIGINT PRIMARY KEY, price DECIMAL(12,2), note VARCHAR)")
    legacy.insert("orders", [(i * 3, f"{i}.25", f"note {i}") for i in range(2000)])
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        loaded = pair.refresh()
        assert (loaded.version, loaded.rows_total) == (0, 2000)
        pair.check("orders")
        legacy.execute("UPDATE orders SET note = ? WHERE id < ?", "changed", 30)
        legacy.execute("DELETE FROM orders WHERE id >= ?", 5970)
        legacy.execute("INSERT INTO orders VALUES (?, ?, ?)", -1, "0.01", None)
        refreshed = pair.refresh()
        changed = (refreshed.rows_inserted, refreshed.rows_updated, refreshed.rows_deleted)
        assert (refreshed.version, changed) == (1, (1, 10, 10))
        pair.check("orders")
        assert pair.refresh().version == 1
