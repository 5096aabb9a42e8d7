"""Steps in this process: how threads share files and row groups, and what is held meanwhile."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.errors import WarehouseUnavailable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.no_spark import NoSpark
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks import scan
from warehouse_agent.tasks.scan import Divisible, FilePiece, read_batches
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import Sink, written

KEYS = pa.schema([("k", pa.int64())])
PATHS = pa.schema([("path", pa.string()), ("k", pa.int64())])
TINY = StepWork(StepKind.READ, 2)
STEPS = Steps(NoSpark(), 1 << 30)


def put(folder: Path, name: str, table: pa.Table, group: int) -> DataFile:
    """Write a data file with row groups of `group` rows."""
    path = folder / name
    pq.write_table(table, path, row_group_size=group, write_page_checksum=True)
    return DataFile(name, f"file://{path}", path.stat().st_size, len(table))


def keys(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
    """Return the rows as they come, with their file."""
    for piece in pieces:
        paths = pa.array([piece.file] * len(piece.batch))
        yield pa.RecordBatch.from_arrays([paths, piece.batch.column(0)], schema=PATHS)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.booleans(),
)
@settings(max_examples=40)
def test_every_row_is_in_one_share(
    files: list[tuple[int, int]], count: int, is_divisible: bool
) -> None:
    """Files of so many rows, in row groups of so many: read once, in order, in even shares."""
    with tempfile.TemporaryDirectory() as folder:
        made: list[DataFile] = []
        first = 0
        for rows, group in files:
            table = pa.table([range(first, first := first + rows)], schema=KEYS)
            made.append(put(Path(folder), f"{len(made)}.parquet", table, group))
        shares = scan._shares(made, count, is_divisible)
        assert 1 <= len(shares) <= count
        read = [
            [batch for uri, groups in share for batch in read_batches(uri, KEYS, groups)]
            for share in shares
        ]
        rows_of = [sum(map(len, batches)) for batches in read]
        assert [k for b in chain(*read) for k in b["k"].to_pylist()] == list(range(first))
        most = max((min(g, r) if is_divisible else r) for r, g in files)
        assert all(rows <= first / count + most for rows in rows_of)
        if not is_divisible:
            assert [uri for share in shares for uri, _ in share] == [f.uri for f in made]


def test_threads_share_a_single_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait for each other, so both have a part of it; the rows come in their order."""
    monkeypatch.setattr(scan, "THREADS_MAX", 2)
    monkeypatch.setattr(scan, "THREAD_BYTES", 1)
    file = put(tmp_path, "a.parquet", pa.table([range(100)], schema=KEYS), 30)
    both = threading.Barrier(2)

    def together(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        both.wait(60)
        yield from keys(pieces)

    found = scan.scan(STEPS, [file], KEYS, Divisible(together), PATHS, work=TINY)
    assert found["k"].to_pylist() == list(range(100))
    found = scan.scan(STEPS, [file], KEYS, keys, PATHS, work=TINY)
    assert found["k"].to_pylist() == list(range(100))


def test_a_large_table_is_written_into_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call writes one file, so there are more calls than threads, each of neighbours."""
    monkeypatch.setattr(scan, "THREADS_MAX", 2)
    monkeypatch.setattr(scan, "THREAD_BYTES", 1)
    monkeypatch.setattr(scan, "FILE_BYTES", 100)
    tables = [pa.table([range(n * 10, n * 10 + 10)], schema=KEYS) for n in range(10)]
    files = [put(tmp_path, f"{n}.parquet", table, 10) for n, table in enumerate(tables)]
    threads, calls = set[int](), list[list[int]]()

    def write(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        threads.add(threading.get_ident())
        batches = [piece.batch for piece in pieces]
        calls.append([k for batch in batches for k in batch["k"].to_pylist()])
        yield from batches

    def of_uris(uris: Iterator[str]) -> Iterator[pa.RecordBatch]:
        yield from write(FilePiece(uri, batch) for uri in uris for batch in read_batches(uri, KEYS))

    uris = [f.uri for f in files]
    for size, count in ((1, 2), (200, 2), (450, 5), (5000, 10)):
        for found in (
            scan.scan(STEPS, files, KEYS, write, KEYS, work=StepWork(StepKind.WRITE, size)),
            scan.spread(STEPS, uris, of_uris, KEYS, work=StepWork(StepKind.WRITE, size)),
        ):
            assert found["k"].to_pylist() == list(range(100))
        assert len(calls) == 2 * count
        assert all(one == list(range(one[0], one[-1] + 1)) for one in calls)
        calls.clear()
    scan.scan(STEPS, files, KEYS, write, KEYS, work=StepWork(StepKind.READ, 5000))
    assert len(calls) == 2
    calls.clear()
    threads.clear()
    scan.scan(STEPS, files, KEYS, write, KEYS, work=StepWork(StepKind.WRITE, 5000))
    assert len(threads) <= 2


def test_a_file_that_cannot_be_cut_says_why_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "THREADS_MAX", 2)
    monkeypatch.setattr(scan, "THREAD_BYTES", 1)
    good = put(tmp_path, "a.parquet", pa.table([range(10)], schema=KEYS), 5)
    (tmp_path / "b.parquet").write_bytes(b"no Parquet at all")
    bad = DataFile("b.parquet", f"file://{tmp_path}/b.parquet", 17, 100)
    gone = DataFile("c.parquet", f"file://{tmp_path}/c.parquet", 17, 100)
    for file in (bad, gone):
        with pytest.raises(WarehouseUnavailable, match=file.path):
            scan.scan(STEPS, [good, file], KEYS, Divisible(keys), PATHS, work=TINY)


@pytest.mark.slow
@pytest.mark.parametrize("few", [True, False], ids=["dictionary", "plain"])
def test_no_more_is_read_than_a_step_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """Memory is a batch, and pages and buffers of a column, for each thread: not their files."""
    monkeypatch.setattr(scan, "THREADS_MAX", 2)
    monkeypatch.setattr(scan, "THREAD_BYTES", 1)
    monkeypatch.setattr(scan, "BATCH_BYTES", 1 << 20)
    dice = random.Random(5)
    values = [dice.randbytes(500).hex() for _ in range(40 if few else 32_000)]
    texts = pa.array([values[i % len(values)] for i in range(32_000)])  # 32 MB
    schema = pa.schema([("t", pa.string())])
    with Sink(f"file://{tmp_path}", "a", schema) as sink:
        sink.add(pa.record_batch([texts], schema=schema))
        files = written(
            pa.Table.from_batches(sink.finish()), DataFolder(Store(str(tmp_path)), ".", "")
        )
    del values, texts
    before, peaks = pa.total_allocated_bytes(), []

    def taken(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            assert piece.batch.nbytes <= 2 << 20
            peaks.append(pa.total_allocated_bytes() - before)
        yield from ()

    scan.scan(STEPS, [*files, *files], schema, taken, PATHS, work=TINY)
    assert len(peaks) >= 62
    assert max(peaks) < 12 << 20


def test_many_columns_of_fixed_width_come_in_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also across row groups, so that a file that is written again has no larger ones."""
    monkeypatch.setattr(scan, "BATCH_BYTES", 1 << 20)
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(20)] + [("flag", pa.bool_())])
    rows = 20_000  # 3 MB
    table = pa.table([*([range(rows)] * 20), [True] * rows], schema=schema)
    file = put(tmp_path, "a.parquet", table, 3000)
    batches = list(read_batches(file.uri, schema))
    assert (1 << 20) * 0.9 < max(batch.nbytes for batch in batches) <= 1 << 20
    assert pa.Table.from_batches(batches) == table
    monkeypatch.setattr(scan, "BATCH_BYTES", 1)
    few = put(tmp_path, "b.parquet", table.slice(0, 3), 3)
    assert [len(batch) for batch in read_batches(few.uri, schema)] == [1, 1, 1]


@pytest.mark.parametrize("few", [True, False], ids=["repeated", "distinct"])
def test_large_values_of_a_file_without_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """Spark's writer notes no size of the rows, and the footer counts a repeated value once."""
    monkeypatch.setattr(scan, "BATCH_BYTES", 1 << 20)
    dice = random.Random(7)
    texts = [dice.randbytes(2000).hex() for _ in range(20 if few else 4000)]
    values = [texts[i % len(texts)] if i % 7 else None for i in range(4000)]  # 14 MB
    schema = pa.schema([("k", pa.int64()), ("t", pa.string()), ("b", pa.binary())])
    table = pa.table([range(4000), values, [b"x" * (i % 3) for i in range(4000)]], schema=schema)
    file = put(tmp_path, "a.parquet", table, 1500)
    batches = list(read_batches(file.uri, schema))
    assert max(batch.nbytes for batch in batches) < 1.2 * (1 << 20)
    assert len(batches) < 30
    assert pa.Table.from_batches(batches) == table
