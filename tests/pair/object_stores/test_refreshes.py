"""The main job with a warehouse in a bucket: load, refresh, prove, publish, verify."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.object_stores import Bucket
from tests.harness.pair import Pair, rows_of
from warehouse_agent import changes, read
from warehouse_agent.storage.store import PRIVATE

ROWS = 3000


@pytest.fixture(params=[None, 0], ids=["seconds decide", "all on Spark"])
def pair(
    request: pytest.FixtureRequest, spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "legacy.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, note TEXT)")
    rows = [(i * 3, i % 7, f"note {i}") for i in range(ROWS)]
    legacy.many("INSERT INTO t VALUES (?, ?, ?)", rows)
    with Pair(spark, legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
        made.bucket, made.small_bytes = bucket, request.param
        yield made
    legacy.close()


def check(pair: Pair) -> None:
    """What delta-rs finds in the bucket, without the product, is what the source has."""
    assert pair.bucket is not None
    table = DeltaTable(f"{pair.bucket.root}/t", storage_options=pair.bucket.delta_options)
    found = rows_of(table.to_pyarrow_table())
    assert sorted(found) == sorted(map(tuple, pair.legacy.rows("t")))


def test_readers_fetch_what_they_name(pair: Pair) -> None:
    assert pair.refresh("t").version == 0
    assert pair.bucket is not None
    root, source = pair.bucket.root, sorted(map(tuple, pair.legacy.rows("t")))
    assert sorted(map(tuple, read(pair.spark, root, "t").collect())) == source
    some = read(
        pair.spark, root, "t", columns=["note", "n"], where=[("id", "<", 300), ("n", "=", 3)]
    )
    assert sorted(map(tuple, some.collect())) == sorted(
        (note, n) for key, n, note in source if key < 300 and n == 3
    )
    pair.legacy.execute("UPDATE t SET n = 77 WHERE id = 30")
    assert pair.refresh("t").version == 1
    feed = changes(pair.spark, root, "t", since=0, columns=["n"])
    assert sorted(map(tuple, feed.collect())) == [(1, "update_after", 77), (1, "update_before", 3)]


def test_a_table_follows_its_source(pair: Pair) -> None:
    rng = random.Random(4)
    assert pair.refresh("t").version == 0
    check(pair)
    assert pair.refresh("t").version == 0
    for version in (1, 2):
        for key in rng.sample(range(ROWS), 30):
            pair.legacy.execute(f"UPDATE t SET n = {100 + version} WHERE id = {key * 3}")
        pair.legacy.execute(f"DELETE FROM t WHERE id = {version * 30}")
        pair.legacy.execute(f"INSERT INTO t VALUES ({version * 30 + 1}, 0, NULL)")
        assert pair.refresh("t").version == version
        check(pair)
    assert not pair.disk.exists()
    assert "t: " in pair.said("verify", "--all")
    assert [e.place[-1] for e in pair.store.walk(PRIVATE, "keys")] == ["t.key"]
