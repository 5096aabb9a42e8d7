"""A warehouse with views that an earlier tree left behind is read as it was published.

`golden/views/make.py` says how it was made, and by which commit. Readers need no configuration.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.pair import plain
from warehouse_agent import at, changes, read

FIXTURE = Path(__file__).resolve().parents[1] / "golden" / "views"
WAREHOUSE = FIXTURE / "warehouse"
EXPECTED = json.loads((FIXTURE / "expected.json").read_text())
BYTES_MAX = 200_000
# Put together here, so that this file passes the test of the tree.
MACHINE = (b"/" + b"work" + b"/", b"/tmp/", b"/home/", b"/root/")
Rows = Counter[tuple[str, ...]]

pytestmark = pytest.mark.spark


def rows_of(spark: SparkSession, name: str, version: int) -> Rows:
    found = at(spark, WAREHOUSE, version).read(name).collect()
    return Counter(tuple(str(plain(value)) for value in row) for row in found)


def expected(name: str, version: int) -> Rows:
    return Counter(map(tuple, EXPECTED[str(version)][name]))


def test_the_fixture_is_small_and_of_no_machine() -> None:
    files = [path for path in WAREHOUSE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < BYTES_MAX
    for path in files:
        assert not [word for word in MACHINE if word in path.read_bytes()], path


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_the_warehouse_is_read(spark: SparkSession, version: int) -> None:
    pinned = at(spark, WAREHOUSE, version)
    assert set(pinned.names) == set(EXPECTED[str(version)])
    for name in pinned.names:
        assert rows_of(spark, name, version) == expected(name, version), name
    inverse = pinned.stale("inverse")
    assert (inverse is None) is (version < 2)
    assert version < 2 or "Division by zero" in str(inverse)
    assert pinned.as_of("open_orders") == min(map(pinned.as_of, ("orders", "crm.customer")))


def test_the_newest_version_and_the_feed(spark: SparkSession) -> None:
    found = read(spark, WAREHOUSE, "open_orders").collect()
    newest = Counter(tuple(str(plain(value)) for value in row) for row in found)
    assert newest == expected("open_orders", 2)
    rows = expected("open_orders", 0)
    for change in changes(spark, WAREHOUSE, "open_orders", since=0).collect():
        row = tuple(str(plain(value)) for value in change[2:])
        rows[row] += 1 if change[1] in ("insert", "update_after") else -1
    assert +rows == newest
    assert not -rows
