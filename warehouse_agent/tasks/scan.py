"""Read data files by Arrow, in Spark's tasks or in this process (`steps`).

Spark decides which task gets which files, and where it runs. The task reads them itself, in batches
of the wanted columns, so no row goes through the JVM, which would convert it twice. (Orders, 1.5 M
rows, two cores: three columns in 0.4 s instead of 0.9, all columns in 0.6 s instead of 2.2.) Pages
are checked against the checksums that are written with them. One task reads a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from driftline.errors import WarehouseUnavailable

from warehouse_agent.columns.layout import STATISTICS
from warehouse_agent.spark.executors import DATA_FILE, Batches, driver_errors, task
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import located
from warehouse_agent.tasks.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 16_384
BATCH_BYTES = 32 << 20  # by the footer, which counts a repeated value once
BUFFER_BYTES = 1 << 20  # of each column that is being read
THREADS_MAX = min(4, os.cpu_count() or 1)  # of a step in this process
THREAD_BYTES = 8 << 20  # of a step, for which another thread is worth while


@dataclass(frozen=True, slots=True)
class Piece:
    """The wanted columns of some rows of a file, whose path in the table is `file`."""

    file: str
    batch: pa.RecordBatch


Function = Callable[[Iterator[Piece]], Iterator[pa.RecordBatch]]
OfFiles = Callable[[Iterator[str]], Iterator[pa.RecordBatch]]
_MAY_LACK = {name for name, _ in STATISTICS}
_PARTS = 3  # last parts of a URI, which differ among the files of a table


def scan(
    steps: Steps,
    files: Sequence[DataFile],
    columns: pa.Schema,
    function: Function,
    schema: pa.Schema,
    *,
    size: int,
    tasks_max: int | None = None,
) -> pa.Table:
    """Return the rows that `function` makes of data files, in one step.

    Args:
        columns: to read; statistics that a file lacks are null.
        function: gets the rows of a task's files, file by file.
        schema: of the rows that it returns.
        size: bytes that the step reads or writes, by which its place is chosen.
        tasks_max: number of Spark's tasks at most; None leaves it to Spark.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    paths = {f.uri: f.path for f in files}

    def run(uris: Iterator[str]) -> Iterator[pa.RecordBatch]:
        yield from function(
            Piece(paths[uri], batch) for uri in uris for batch in read_batches(uri, columns)
        )

    return spread(steps, list(paths), run, schema, size=size, tasks_max=tasks_max)


def spread(
    steps: Steps,
    uris: Sequence[str],
    function: OfFiles,
    schema: pa.Schema,
    *,
    size: int,
    tasks_max: int | None = None,
) -> pa.Table:
    """Return the rows that `function` makes of files, by URI, in one step; arguments as of `scan`.

    Raises:
        DriftlineError: whatever `function` raises.
    """
    if not uris:
        return schema.empty_table()
    if steps.runs_here(size):
        threads = min(1 + size // THREAD_BYTES, tasks_max or THREADS_MAX, THREADS_MAX)
        return _in_threads(uris, function, schema, threads)
    with driver_errors():
        spark = steps.spark(size)
        return spread_frame(spark, uris, function, schema, tasks_max=tasks_max).toArrow()


def spread_frame(
    spark: SparkSession,
    uris: Sequence[str],
    function: OfFiles,
    schema: pa.Schema,
    *,
    tasks_max: int | None = None,
) -> DataFrame:
    """Return the rows that `function` makes of files, by URI, in the tasks of a lazy Spark job."""
    from pyspark.sql.pandas.types import from_arrow_schema

    kind = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if not uris:
        return spark.createDataFrame([], kind)
    known = {_end(uri): uri for uri in uris}
    assert len(known) == len(uris), "two files end alike"

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from function(
            known[_end(path)] for batch in batches for path in batch.column(0).to_pylist()
        )

    # Spark only lists, packs and places the files: their contents are not selected.
    with driver_errors():
        placed = spark.read.format("binaryFile").load(list(uris)).select("path")
    if tasks_max is not None:
        placed = placed.coalesce(tasks_max)
    return placed.mapInArrow(task(run), kind)


def _in_threads(
    uris: Sequence[str], function: OfFiles, schema: pa.Schema, threads: int
) -> pa.Table:
    """Run a step in a few threads of this process, each over neighbouring files.

    Raises:
        WarehouseUnavailable: the memory does not suffice.
    """
    count, stopped = min(threads, len(uris)), Event()
    cuts = [len(uris) * i // count for i in range(count + 1)]

    def run(first: int, end: int) -> list[pa.RecordBatch]:
        return list(function(takewhile(lambda _: not stopped.is_set(), uris[first:end])))

    with ThreadPoolExecutor(count) as pool:
        try:
            found = list(pool.map(run, cuts[:-1], cuts[1:]))
        except MemoryError as error:
            raise WarehouseUnavailable(
                "The driver's process ran out of memory.",
                remedy="Set a smaller `small_bytes` in [warehouse], so that Spark does more.",
            ) from error
        finally:
            stopped.set()  # after a failure or Ctrl-C no thread begins another file
    return pa.Table.from_batches([batch.cast(schema) for one in found for batch in one], schema)


def _end(uri: str) -> str:
    """Return the last parts of a URI; Spark may write the parts before them in another way."""
    return "/".join(uri.split("/")[-_PARTS:])


def read_batches(uri: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read columns of a file in batches of the schema `columns`.

    Raises:
        WarehouseUnavailable: the file cannot be read, or lacks a column (ArrowInvalid inside), or
            has it in another type.
    """
    try:
        system, path = located(uri)
        with (
            system.open_input_file(path) as source,
            pq.ParquetFile(
                source, buffer_size=BUFFER_BYTES, page_checksum_verification=True
            ) as file,
        ):
            names = set(file.schema_arrow.names)
            there = [name for name in columns.names if name in names]
            absent = [name for name in columns.names if name not in names | _MAY_LACK]
            if absent:
                raise pa.ArrowInvalid(f"It has no column {absent[0]!r}.")
            rows = _rows_at_once(file.metadata)
            for batch in file.iter_batches(rows, columns=there, use_threads=False):
                yield _typed(batch, columns)
    except (OSError, ValueError, pa.ArrowException) as error:  # a footer may hold no UTF-8
        if isinstance(error, MemoryError):
            raise
        raise WarehouseUnavailable(
            f"Data file {uri.rsplit('/', 1)[-1]} cannot be read: {error}",
            remedy="Run the command again; `driftline verify` tells whether files are damaged.",
            details={DATA_FILE: uri.rsplit("/", 1)[-1]},
        ) from error


def _rows_at_once(footer: pq.FileMetaData) -> int:
    """Return the rows of a batch; fewer if they are large."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    largest = max((g.total_byte_size / g.num_rows for g in groups if g.num_rows), default=0)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(largest, 1))))


def _typed(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return columns of a batch, in order and type; null columns where it has none."""
    arrays = []
    for field in columns:
        index = batch.schema.get_field_index(field.name)
        array = pa.nulls(len(batch), field.type) if index < 0 else batch.column(index)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
