"""DuckDB's own extension for Delta maintains a published table, or writes to it.

It reads, adds rows and writes checkpoints, by the Delta kernel, and refuses the rest.
`test_other_programs` has what delta-rs does, and what Spark writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness.absent import absent
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment, expect_equal
from tests.harness.server_versions import NotToBeHad, obtain
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage import formats

pytestmark = pytest.mark.starts
ROWS = 500
# Prints what each statement gives, or the class of its error, in its last line.
PROGRAM = """
import json, sys
import duckdb, duckdb_extensions
duckdb_extensions.import_extension("delta")
database = duckdb.connect()
database.execute("LOAD delta")
database.execute(f"ATTACH '{sys.argv[1]}' AS t (TYPE delta)")
told = []
for statement in sys.argv[2:]:
    try:
        told.append(database.execute(statement).fetchall())
    except duckdb.Error as error:
        told.append(type(error).__name__)
print(json.dumps(told, default=str))
"""


@pytest.fixture(scope="module")
def duckdb() -> Path:
    try:
        return obtain("duckdb", "1.5")
    except NotToBeHad as error:
        absent("DUCKDB", str(error), is_required_in_ci=True)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with closing(SqliteLegacy(tmp_path / "erp.db")) as legacy:
        legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, price DECIMAL(12,2), seen TEXT)")
        relations = {"t": 'table = "t"\ntypes = { seen = "timestamp" }'}
        with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
            made.small_bytes = 64 << 20
            for _ in range(3):
                add(made)
                made.refresh("t")
            yield made


def add(pair: Pair) -> None:
    first = len(pair.legacy.rows("t"))
    seen = ("1583-01-01 00:00:00.000000", "2024-10-27 02:30:00.123456", None)
    pair.legacy.many(
        "INSERT INTO t VALUES (?, ?, ?)",
        [(i, f"{i}.{i % 100:02d}", seen[i % 3]) for i in range(first, first + ROWS)],
    )


def check(pair: Pair) -> None:
    """Published == source, row for row; SQLite has moments as text."""
    found = [
        tuple(v.isoformat(" ", "microseconds") if isinstance(v, datetime) else v for v in row)
        for row in pair.published("t")
    ]
    expect_equal(found, pair.legacy.rows("t"))


def asked(duckdb: Path, pair: Pair, *statements: str) -> list[object]:
    """Return what DuckDB answers to each statement about the published table."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(pair.root / "t"), *statements],
        env=environment() | {"PYTHONPATH": str(duckdb), "HOME": str(pair.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])  # behind a bar of progress
    return found


def test_it_maintains_a_table(duckdb: Path, pair: Pair) -> None:
    """A checkpoint of its own, from which it and others read; the rest it refuses."""
    rows = 3 * ROWS
    for number in range(2):
        told = asked(duckdb, pair, "SELECT count(*) FROM t", "VACUUM t", "CHECKPOINT t")
        assert told == [[[rows]], "BinderException", []]
        version = 2 + number
        log = pair.root / "t" / "_delta_log"
        assert (log / f"{version:020d}.checkpoint.parquet").exists()
        head = formats.head(pair.store, "t")
        assert head is not None
        assert (head.version, head.other) == (version, None)
        pair.legacy.execute(f"UPDATE t SET price = price + 1 WHERE id % 50 = {number}")
        add(pair)
        rows += ROWS
        report = pair.refresh("t")
        assert (report.version, report.rows_inserted, report.rows_updated) == (
            version + 1, ROWS, (rows - ROWS) // 50,
        )  # fmt: skip
        check(pair)
    assert asked(duckdb, pair, "SELECT count(*), sum(price) FROM t")[0] == [
        [rows, str(sum(row[1] for row in pair.published("t")))]
    ]


def test_rows_that_it_adds_are_told_and_not_adopted(duckdb: Path, pair: Pair) -> None:
    more = "INSERT INTO t SELECT id + 10000, price, seen FROM t LIMIT 3"
    told = asked(
        duckdb, pair, more, "CHECKPOINT t", "UPDATE t SET price = 1", "DELETE FROM t WHERE id = 1"
    )
    assert told[1:] == [[], "BinderException", "BinderException"]
    assert pair.delta("t").version() == 3
    error = pair.error("t")
    assert error["code"] == "WAREHOUSE"
    assert "Version 3 was written by another program (" in error["message"]
    assert "there are 1,503 rows instead of 1,500" in error["message"]
    assert "driftline refresh t --accept-restored" in error["remedy"]
    (report,) = pair.reports("t", options=Options(accept_restored=True))
    assert report.error is None
    assert pair.delta("t").to_pyarrow_table().num_rows == 3 * ROWS
    check(pair)
    add(pair)
    pair.refresh("t")
    check(pair)
