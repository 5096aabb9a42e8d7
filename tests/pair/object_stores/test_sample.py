"""What refreshes do in special cases, with a warehouse in a bucket of each server: a sample.

`DRIFTLINE_STORE=moto tests/run tests/pair` runs all tests of both agents there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from driftline.errors import SourceUnreachable
from pyspark.sql import SparkSession

from source_agent.scan import frame_builder
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Bucket
from tests.harness.pair import SMALL_BYTES, Pair
from tests.harness.views import Sites
from warehouse_agent.storage import formats
from warehouse_agent.tasks import staging

ROWS = 3000
Serve = Callable[[str], Pair]  # a pair of a table with these lines of its fragment


@pytest.fixture
def serve(bucket: Bucket, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Serve]:
    spark = request.getfixturevalue("spark") if SMALL_BYTES == 0 else NoSpark()
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, v INTEGER, note TEXT)")
    legacy.many("INSERT INTO t VALUES (?, ?, ?)", [(i * 3, i, f"note {i}") for i in range(ROWS)])
    marker = 'marker = { column = "v" }'
    with Pair(spark, legacy, tmp_path / "pair", {"t": f'table = "t"\n{marker}'}) as pair:
        pair.bucket = bucket

        def served(lines: str) -> Pair:
            pair.fragment_lines["t"] = lines
            return pair

        yield served
    legacy.close()


def edit(pair: Pair, version: int) -> None:
    new = ROWS + version
    pair.legacy.execute(f"UPDATE t SET note = 'at {version}', v = {new} WHERE id % 99 = 0")
    pair.legacy.execute(f"DELETE FROM t WHERE id = {version * 6}")
    pair.legacy.execute(f"INSERT INTO t VALUES ({version * 6 + 1}, {new}, 'new')")


def parquet_files(pair: Pair) -> set[str]:
    """Return all data files of the table in the bucket, by their paths in it."""
    files = ("/".join(file.place[1:]) for file in pair.store.walk("t"))
    return {path for path in files if path.endswith(".parquet") and "_delta_log" not in path}


def named(pair: Pair) -> set[str]:
    head = formats.head(pair.store, "t")
    assert head is not None
    return {file.path for file in head.files}


@pytest.mark.parametrize(
    ("lines", "method"),
    [
        ('method = "since"\nproof = "keys"', "since"),
        (
            'method = "range"\nrequire = "fuzzy"\nincremental = { rows = 200, pause_s = 0.01 }',
            "range",
        ),
        ('method = "group"\nread_at_most = 1000\nrequire = "fuzzy"', "group"),
    ],
    ids=["marker", "tiles", "group part"],
)
def test_kinds_of_refreshes(serve: Serve, lines: str, method: str) -> None:
    pair = serve(lines)
    pair.refresh("t")
    pair.check("t")
    for version in (1, 2):
        edit(pair, version)
        assert pair.refresh("t").method == method
        if method != "group":  # a part leaves what it did not compare
            pair.check("t")
    pair.fragment_lines["t"] = ""
    pair.refresh("t")
    pair.check("t")


@contextmanager
def cut_after(frames: int) -> Iterator[None]:
    """Cut the line after so many frames, of some hundred rows each."""
    add, left = staging.FrameWriter.add, iter(range(frames))

    def counting(writer: staging.FrameWriter, frame: bytes) -> None:
        add(writer, frame)
        if next(left, None) is None:
            raise SourceUnreachable("The line is cut.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging.FrameWriter, "add", counting)
        yield


def test_a_load_that_was_cut_goes_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "FILE_BYTES", 1000)
    monkeypatch.setattr(frame_builder, "FRAME_BODY_BYTES_TARGET", 4000)
    pair = serve("")
    with cut_after(4):
        assert pair.error("t")["code"] == "UNREACHABLE"
    assert pair.store.walk("_driftline", "staging", "t")
    pair.refresh("t")
    pair.check("t")
    assert not pair.store.walk("_driftline", "staging", "t")
    assert parquet_files(pair) == named(pair)


def test_a_lost_file_is_found_and_repaired_and_gc_runs(serve: Serve) -> None:
    pair = serve("")
    for version in range(3):
        edit(pair, version)
        pair.refresh("t")
    lost = sorted(named(pair))[0]
    pair.store.remove_file("t", *lost.split("/"))
    assert "t: " in pair.said("verify", "t", "--repair")
    pair.check("t")
    assert lost not in named(pair)
    before = parquet_files(pair)
    pair.said("gc", "t", "--keep-hours", "24", "--yes")
    assert parquet_files(pair) == before  # all are young
    pair.said("verify", "t")


@pytest.mark.parametrize("maintain", ["recompute", "incremental"])
@pytest.mark.spark
def test_views(bucket: Bucket, spark: SparkSession, tmp_path: Path, maintain: str) -> None:
    tables = {
        "erp": {"orders": "id INTEGER PRIMARY KEY, customer INT, amount INT"},
        "crm": {"customer": "id INTEGER PRIMARY KEY, name VARCHAR"},
    }
    query = "SELECT o.id, c.name FROM erp.orders o JOIN crm.customer c ON c.id = o.customer"
    with Sites(spark, tmp_path, tables, {"named": query}) as sites:
        sites.bucket = bucket
        sites.view_lines["named"] = f'maintain = "{maintain}"'
        for i in range(60):
            sites.sql("erp", "INSERT INTO orders VALUES (?, ?, ?)", i, i % 7, i)
        for i in range(7):
            sites.sql("crm", "INSERT INTO customer VALUES (?, ?)", i, f"name {i}")
        sites.well()
        sites.check()
        for version in (1, 2):
            sites.sql("erp", "UPDATE orders SET customer = ? WHERE id % 20 = ?", version, version)
            sites.sql("crm", "DELETE FROM customer WHERE id = ?", 6 - version)
            sites.well()
            sites.check()
