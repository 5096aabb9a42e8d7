"""Data files read and written by Spark's tasks: what is scanned, what gives way, what is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.errors import DriftlineError, WarehouseUnavailable
from driftline.reconciliation.sketches import Embedding
from driftline.rows.digests import Salt, mix
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from warehouse_agent.columns.layout import CHANGED, HI, LO, RATE, Layout, lay_out
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks import scan as read_scan
from warehouse_agent.tasks import write
from warehouse_agent.tasks.digests import Listing
from warehouse_agent.tasks.rewrites.replaced_rows import (
    Removal,
    RowsByHash,
    RowsByK,
    files_holding,
    rewrite,
)
from warehouse_agent.tasks.scan import FilePiece, read_batches, scan
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import Sink

SALT = Salt(3, 5)
KINDS = ("int8", "text", "numeric(15,2)", "date", "float8")
RECIPE = Recipe(
    tuple(Column(f"c{i}", parse_type(kind), i > 0, i) for i, kind in enumerate(KINDS)), 1
)
LAYOUT = lay_out(RECIPE, {}, where="test")
COUNTS = pa.schema([("n", pa.int32())])
MANY = st.lists(st.integers(0, 12), max_size=40)


def batch_of(keys: list[int], rate: float = 0.0) -> pa.RecordBatch:
    """Rows of these keys; what else is in them follows from the key."""
    n = len(keys)
    values = [
        pa.array(keys, pa.int64()),
        pa.array([None if k % 7 == 0 else f"text {k % 3}" for k in keys], pa.string()),
        pa.array(keys, pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(15, 2)),
        pa.array([-719162 + k % 100 for k in keys], pa.int32()).cast(pa.date32()),  # the year 1
        pa.array([float("nan") if k % 5 == 0 else k for k in keys], pa.float64()),
        pa.array([k * 31 for k in keys], pa.int64()),
        pa.array([k * 37 for k in keys], pa.int64()),
        *(pa.array([0] * n, pa.int32()) for _ in range(3)),
        pa.array([rate] * n, pa.float32()),
    ]
    return pa.RecordBatch.from_arrays(values, schema=LAYOUT.file_schema)


def put(folder: Path, name: str, table: pa.Table) -> DataFile:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name, row_group_size=7, write_page_checksum=True)
    path = f"{folder.name}/{name}"
    return DataFile(path, f"file://{folder}/{name}", (folder / name).stat().st_size, len(table))


def plain(table: pa.Table) -> list[str]:
    """Rows that compare, also where they hold NaN."""
    return [repr(row) for row in table.to_pylist()]


def keys_in(files: list[DataFile]) -> list[int]:
    found: list[int] = []
    for file in files:
        found += pq.read_table(file.uri.removeprefix("file://"))["c0"].to_pylist()
    return sorted(found)


@given(where=MANY, hi=MANY, named=MANY)
def test_rows_by_hash(where: list[int], hi: list[int], named: list[int]) -> None:
    """Few positions and hashes, so that many are equal in one and differ in the other."""
    n = min(len(where), len(hi))
    at, lane = np.array(where[:n], np.int64), np.array(hi[:n], np.int64)
    hashes = mix(SALT, lane.view(np.uint64), lane.view(np.uint64)).m0
    some = np.array([i % max(n, 1) for i in named if n], np.int64)
    none = np.zeros(len(some), np.int64)
    shuffled = np.roll(hashes[some], 1)  # pairs that may be of no row
    removal = RowsByHash.of(Listing(none, at[some], shuffled, none.astype(np.int32)), SALT)
    pairs = set(zip(at[some].tolist(), shuffled.tolist(), strict=True))
    expected = [pair in pairs for pair in zip(at.tolist(), hashes.tolist(), strict=True)]
    assert removal(at, lane, lane).tolist() == expected


@given(where=st.lists(st.integers(-(2**40), 2**40), max_size=40), named=MANY, hashed=st.booleans())
def test_rows_below_k(where: list[int], named: list[int], hashed: bool) -> None:
    """Whatever has a named k gives way, and nothing outside the embedding does."""
    at = np.array([w % 97 - 10 if hashed else w for w in where], np.int64)
    embedding = Embedding(64) if hashed else Embedding(64, -3)
    ks = np.unique(np.array(named, np.uint64))
    found, inside = embedding.embed(at, SALT)
    expected = [i and k in set(ks.tolist()) for i, k in zip(inside, found.tolist(), strict=True)]
    zero = np.zeros(len(at), np.int64)
    assert RowsByK(ks, embedding, SALT)(at, zero, zero).tolist() == expected


def test_a_sink_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with Sink(f"file://{tmp_path}", "part", LAYOUT.file_schema, "c0") as out:
        out.add(batch_of([1, 2]), np.ones(2, np.bool_))
        out._write()
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    with Sink(f"file://{tmp_path}", "part", LAYOUT.file_schema, "c0") as out:
        assert not list(out.finish())


def test_what_a_sink_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row groups, decimals as integers, dictionaries where values repeat, bounds."""
    monkeypatch.setattr(write, "ROW_GROUP_BYTES", 1)
    keys = list(range(500, 1500))
    with Sink(f"file://{tmp_path}", "part", LAYOUT.file_schema, "c0") as out:
        out.add(batch_of(keys[:600]), np.ones(600, np.bool_))
        out.add(batch_of(keys[600:]), np.ones(400, np.bool_))
        ((row,),) = (batch.to_pylist() for batch in out.finish())
    file = tmp_path / row["path"]
    assert row["size"] == file.stat().st_size
    assert (row["rows"], row["least"], row["greatest"]) == (1000, 500, 1499)
    with pq.ParquetFile(file) as parquet:
        footer = parquet.metadata
        assert footer.num_row_groups == 2
        columns = [footer.row_group(0).column(i) for i in range(4)]
        assert [c.physical_type for c in columns] == ["INT64", "BYTE_ARRAY", "INT64", "INT32"]
        assert [c.has_dictionary_page for c in columns] == [False, True, False, True]
        assert b"ARROW:schema" not in footer.metadata
        assert not footer.row_group(0).column(4).is_stats_set, "NaN is in no bounds"
        assert plain(parquet.read()) == plain(pa.Table.from_batches([batch_of(keys)]))


def test_columns_that_a_file_does_not_have_are_null(tmp_path: Path) -> None:
    table = pa.Table.from_batches([batch_of([1, 2, 3])]).drop_columns([RATE, CHANGED])
    file = put(tmp_path / "f", "a.parquet", table)
    wanted = pa.schema([LAYOUT.file_schema.field(name) for name in (RATE, "c1", CHANGED, "c0")])
    (found,) = read_batches(file.uri, wanted)
    assert found.schema == wanted
    assert found.to_pydict() == {
        RATE: [None] * 3,
        "c1": ["text 1", "text 2", "text 0"],
        CHANGED: [None] * 3,
        "c0": [1, 2, 3],
    }


def test_a_column_that_every_file_has_is_not_made_up(tmp_path: Path) -> None:
    table = pa.Table.from_batches([batch_of([1, 2, 3])]).drop_columns(["c1"])
    file = put(tmp_path / "f", "a.parquet", table)
    with pytest.raises(WarehouseUnavailable, match="no column 'c1'"):
        list(read_batches(file.uri, LAYOUT.file_schema))


def test_large_rows_come_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_scan, "BATCH_BYTES", 1 << 20)
    schema = pa.schema([("t", pa.string())])
    texts = ["x" * 1000 + str(i) for i in range(5000)]
    file = put(tmp_path / "f", "a.parquet", pa.table({"t": texts}, schema))
    batches = list(read_batches(file.uri, schema))
    assert max(batch.nbytes for batch in batches) < 2 << 20
    assert [text for batch in batches for text in batch["t"].to_pylist()] == texts


def test_a_damaged_page_is_found_as_it_is_read(tmp_path: Path) -> None:
    """Even where no fingerprint is looked at: pages have checksums."""
    file = put(tmp_path / "f", "a.parquet", pa.Table.from_batches([batch_of(list(range(100)))]))
    path = tmp_path / "f" / "a.parquet"
    data = bytearray(path.read_bytes())
    at = data.index((5 * 31).to_bytes(8, "little"))  # in a dictionary of fingerprint lanes
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(WarehouseUnavailable, match=r"a\.parquet cannot be read"):
        list(read_batches(file.uri, LAYOUT.file_schema))
    with pytest.raises(WarehouseUnavailable, match="cannot be read"):
        list(read_batches(f"file://{tmp_path}/nowhere.parquet", LAYOUT.file_schema))


@pytest.mark.spark
@pytest.mark.parametrize("by_hash", [True, False])
def test_files_are_written_again(
    steps: Steps, spark: SparkSession, tmp_path: Path, by_hash: bool
) -> None:
    """In a folder of an odd name; two files of one name, as parts of one Spark task have."""
    store = Store(str(tmp_path / "wäre house #1 100%25"))
    files = [
        put(Path(store.table("t")) / part, "same.parquet", pa.Table.from_batches([rows]))
        for part, rows in {
            "a": batch_of(list(range(100))),
            "b": batch_of(list(range(100, 200)), rate=0.9),
            "c": batch_of(list(range(200, 300))),
        }.items()
    ]
    gone = [3, 50, 150, 99999]
    removal: Removal = RowsByK(np.array(gone, np.uint64), Embedding(1 << 20, 0), SALT)
    if by_hash:
        lanes = (np.array(gone, np.uint64) * np.uint64(n) for n in (31, 37))
        none = np.zeros(len(gone), np.int64)
        listed = Listing(none, np.array(gone), mix(SALT, *lanes).m0, none.astype(np.int32))
        removal = RowsByHash.of(listed, SALT)
    assert files_holding(steps, files, LAYOUT, removal) == files[:2]
    stays, before = rewrite(steps, DataFolder(store, "t", "new"), files, LAYOUT, removal=removal)
    assert keys_in(before) == [3, 50, 150]
    assert keys_in(stays) == sorted(set(range(300)) - set(gone))
    assert all(f.path.startswith("new/kept-") for f in stays), stays
    for file in (*stays, *before):
        keys = keys_in([file])
        assert (file.rows, file.bounds) == (len(keys), (keys[0], keys[-1]))
        assert file.size == Path(file.uri.removeprefix("file://")).stat().st_size
    written = {p for p in Path(store.table("t"), "new").rglob("*") if p.is_file()}
    assert written == {Path(f.uri.removeprefix("file://")) for f in (*stays, *before)}
    packed, nothing = rewrite(steps, DataFolder(store, "t", "all"), files, LAYOUT, removal=None)
    assert (keys_in(packed), nothing) == (list(range(300)), [])
    # What was written is what Spark reads, also where it is told to be careful with old dates.
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION")
    try:
        rows = spark.read.schema(LAYOUT.ddl).parquet(*(f.uri for f in packed)).orderBy("c0")
        found = rows.toArrow()
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")
    assert plain(found.cast(LAYOUT.file_schema)) == plain(pa.Table.from_batches(expected_rows()))


def expected_rows() -> Iterator[pa.RecordBatch]:
    yield batch_of(list(range(100)))
    yield batch_of(list(range(100, 200)), rate=0.9)
    yield batch_of(list(range(200, 300)))


def test_what_fails_in_a_step_is_typed_and_leaves_nothing(steps: Steps, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    folder = tmp_path / "t" / "a"
    good = put(folder, "good.parquet", pa.Table.from_batches([batch_of(list(range(100)))]))
    (folder / "bad.parquet").write_bytes(b"PAR1 this is none PAR1")
    bad = DataFile("a/bad.parquet", f"file://{folder}/bad.parquet", 22, 1)
    with pytest.raises(WarehouseUnavailable, match=r"bad\.parquet cannot be read") as caught:
        rewrite(steps, DataFolder(store, "t", "new"), [good, bad], LAYOUT, removal=None)
    assert "driftline verify" in (caught.value.remedy or "")
    work = StepWork(StepKind.READ, 1)
    with pytest.raises(DriftlineError):
        scan(steps, [bad], LAYOUT.lane_schema, _count, COUNTS, work=work)
    assert scan(steps, [], LAYOUT.lane_schema, _count, COUNTS, work=work).num_rows == 0
    gone = DataFile("a/gone.parquet", f"file://{folder}/gone.parquet", 22, 1)
    absent = r"gone\.parquet cannot be read"
    with pytest.raises(WarehouseUnavailable, match=absent):
        rewrite(steps, DataFolder(store, "t", "new"), [good, gone], LAYOUT, removal=None)
    (folder / "gone.parquet").write_bytes(b"")
    with pytest.raises(WarehouseUnavailable, match=absent):
        rewrite(steps, DataFolder(store, "t", "new"), [good, gone], LAYOUT, removal=None)
    (tmp_path / "t" / "file").write_bytes(b"")
    with pytest.raises(WarehouseUnavailable, match="cannot be made"):
        rewrite(steps, DataFolder(store, "t", "file"), [good], LAYOUT, removal=None)


@pytest.mark.spark
def test_not_a_number_is_found_by_every_reader(
    steps: Steps, spark: SparkSession, tmp_path: Path
) -> None:
    """The greatest of all values, for Spark and for DuckDB; Arrow's bounds would leave it out."""
    store, rows = Store(str(tmp_path)), batch_of(list(range(100)))
    file = put(tmp_path / "t" / "a", "a.parquet", pa.Table.from_batches([rows]))
    (made,), _ = rewrite(steps, DataFolder(store, "t", "new"), [file], LAYOUT, removal=None)
    found = spark.read.parquet(made.uri)
    path = made.uri.removeprefix("file://")
    for where in ("c4 > 1000", "isnan(c4)", "c4 = cast('NaN' as double)", "not c4 <= 1000"):
        assert found.where(where).count() == 20, where
        query = f"SELECT count(*) FROM '{path}' WHERE {where}"
        assert duckdb.execute(query).fetchall() == [(20,)], where


def _count(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
    rows = sum(len(piece.batch) for piece in pieces)
    yield pa.RecordBatch.from_pydict({"n": pa.array([rows], pa.int32())})


def test_lanes_are_the_key_or_the_position() -> None:
    assert LAYOUT.lane_schema.names == ["c0", HI, LO]
    text: Layout = lay_out(Recipe((RECIPE.columns[1],), 1), {}, where="test")
    assert text.lane_schema.names == ["_driftline_position", HI, LO]
