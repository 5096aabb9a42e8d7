"""Read data files by Arrow, in Spark's tasks or in this process (`steps`).

The driver divides the files among tasks by their sizes (`planning.task_shares`), and Spark decides
where these run; the JVM is given no file and lists no folder. A task reads its files itself, in
batches of the wanted columns, so no row goes through the JVM, which would convert it twice.
(Orders, 1.5 M rows, two cores: three columns in 0.4 s instead of 0.9, all columns in 0.6 s instead
of 2.2.) Pages are checked against the checksums that are written with them. One task reads a file.

In this process a few threads share the files, and row groups of a file where the step allows it.
A large step that reads rows has processes beside this one instead (`processes`).
Each thread has its share from the start and reads the next batch when the function wants it. So the
bytes in flight are at most a batch, and a page and a buffer of each column, for each thread,
however slow the function is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from threading import Event
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from driftline.errors import WarehouseUnavailable

from warehouse_agent.columns.layout import STATISTICS
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.planning.task_shares import task_shares
from warehouse_agent.spark.cluster import processors
from warehouse_agent.spark.executors import Batches, driver_errors, task, unreadable
from warehouse_agent.storage.backends.interface import DataSource, StoreError
from warehouse_agent.storage.data_files import DataFile, row_bytes, uncounted_columns
from warehouse_agent.storage.store import data_source
from warehouse_agent.tasks.processes import PROCESSES
from warehouse_agent.tasks.steps import STEP_THREADS, Steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BATCH_ROWS = 16_384
DIGEST_ROWS = 65_536  # of columns of fixed width alone: threads wait less for the interpreter
BATCH_BYTES = 32 << 20
# Of rows that are written into one file, as Spark gives a task 128 MiB of files: a file that holds
# all of a large table has bounds of no use, and is written again whole.
FILE_BYTES = 512 << 20
BUFFER_BYTES = 1 << 20  # of each column that is being read
THREADS_MAX = STEP_THREADS
THREAD_BYTES = 8 << 20  # of a step, for which another thread is worth while


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The wanted columns of some rows of a file, whose path in the table is `file`."""

    file: str
    batch: pa.RecordBatch


Function = Callable[[Iterator[FilePiece]], Iterator[pa.RecordBatch]]
OfFiles = Callable[[Iterator[str]], Iterator[pa.RecordBatch]]
Merge = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True)
class Divisible:
    """A function that may get the rows of a file in several calls, by row group.

    `merge`: what Spark makes of its rows, in the same schema, before the driver gets them.
    """

    function: Function
    merge: Merge | None = None


_Part = tuple[str, slice]  # a file by its URI, and which of its row groups
_WHOLE = slice(None)
Sources = Callable[[str], AbstractContextManager[DataSource]]  # opens a data file by its URI
RowGroups = Callable[[pq.FileMetaData], Sequence[int]]  # the wanted ones, ascending
_Work = TypeVar("_Work")
_NUMBER_BYTES = 8
_SIZE_MAX = 8 << 30  # Spark sends no table of this size to every task
_MAY_LACK = {name for name, _ in STATISTICS}


def scan(
    steps: Steps,
    files: Sequence[DataFile],
    columns: pa.Schema,
    function: Function | Divisible,
    schema: pa.Schema,
    *,
    work: StepWork,
    tasks_max: int | None = None,
) -> pa.Table:
    """Return the rows that `function` makes of data files, in one step.

    Args:
        columns: to read; statistics that a file lacks are null.
        function: gets the rows of a task's files, file by file.
        schema: of the rows that it returns.
        work: of the step, by which its place is chosen; the number of files is known here.
        tasks_max: number of Spark's tasks, or of threads, at most; None leaves it to Spark.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    paths = {f.uri: f.path for f in files}
    asked = function if isinstance(function, Divisible) else Divisible(function)
    whole, merge, is_divisible = asked.function, asked.merge, asked is function

    def run(parts: Iterator[_Part]) -> Iterator[pa.RecordBatch]:
        yield from whole(
            FilePiece(paths[uri], batch)
            for uri, groups in parts
            for batch in read_batches(uri, columns, groups)
        )

    if not files:
        return schema.empty_table()
    work = replace(work, files=min(len(files), tasks_max or len(files)))
    if steps.runs_here(work):
        count = min(_threads(work.size), tasks_max or THREADS_MAX)
        shares = _shares(files, max(count, _files(work)), is_divisible)
        if steps.in_processes(work):
            return _in_processes(shares, run, schema, count)
        return _in_threads(shares, run, schema, count)
    with driver_errors():
        spark = steps.spark(work)
        own = task_shares([f.size for f in files], processors(spark), tasks_max)
        parts = [[(f.uri, _WHOLE) for f in files[share]] for share in own]
        rows = numbered_tasks(spark, parts, run, from_arrow(schema))
        return (rows if merge is None else merge(rows)).toArrow()


def spread(
    steps: Steps,
    uris: Sequence[str],
    function: OfFiles,
    schema: pa.Schema,
    *,
    work: StepWork,
    sizes: Sequence[int] | None = None,
    at_once: bool = False,
) -> pa.Table:
    """Return the rows that `function` makes of files, by URI, in one step; arguments as of `scan`.

    sizes: bytes of each file; None: all have about the same.
    at_once: no more tasks than run at once, because each reads other files beside its own.

    Raises:
        DriftlineError: whatever `function` raises.
    """
    if not uris:
        return schema.empty_table()
    work = replace(work, files=len(uris))
    if steps.runs_here(work):
        threads = min(_threads(work.size), len(uris))
        count = threads if at_once else max(threads, min(_files(work), len(uris)))
        cuts = [len(uris) * i // count for i in range(count + 1)]
        parts = [uris[a:b] for a, b in pairwise(cuts)]
        if steps.in_processes(work):
            return _in_processes(parts, function, schema, threads)
        return _in_threads(parts, function, schema, threads)
    with driver_errors():
        spark = steps.spark(work)
        most = processors(spark)
        shares = task_shares(
            [work.size // len(uris)] * len(uris) if sizes is None else sizes,
            most,
            most if at_once else None,
        )
        parts = [uris[share] for share in shares]
        return numbered_tasks(spark, parts, function, from_arrow(schema)).toArrow()


def numbered_tasks(
    spark: SparkSession,
    parts: Sequence[Sequence[_Work]],
    function: Callable[[Iterator[_Work]], Iterator[pa.RecordBatch]],
    kind: StructType,
    *,
    size: int = 0,
) -> DataFrame:
    """Return the rows that `function` makes of each part of the work, in the tasks of a lazy job.

    Each part is one task. Nothing but its number goes through the JVM to the task.

    Args:
        parts: the work of each task.
        kind: of the rows.
        size: bytes of all rows, by which Spark chooses how to join them. It takes the rows of a
            Python function to be as large as what the function is given. So the numbers of the
            tasks are chosen among as many as have this size: else any table would seem small enough
            to be sent to every task.
    """
    if not parts:
        return spark.createDataFrame([], kind)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from function(iter(parts[number]))

    each = max(1, min(size, _SIZE_MAX) // (_NUMBER_BYTES * len(parts)))
    with driver_errors():
        numbers = spark.range(0, len(parts) * each, 1, len(parts))
        if each > 1:  # of each task's numbers the first
            numbers = numbers.where(f"id % {each} = 0").selectExpr(f"id div {each} AS task")
        return numbers.mapInArrow(task(run), kind)


def from_arrow(schema: pa.Schema) -> StructType:
    """Return the Spark types of a schema; a timestamp without time zone stays one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _threads(size: int) -> int:
    """Return the number of threads for a step of `size` bytes in this process."""
    return min(1 + size // THREAD_BYTES, THREADS_MAX)


def _files(work: StepWork) -> int:
    """Return the least number of files that a step writes; 1 if it writes none."""
    return -(-work.size // FILE_BYTES) if work.kind is StepKind.WRITE else 1


def _shares(files: Sequence[DataFile], count: int, is_divisible: bool) -> list[list[_Part]]:
    """Divide files into at most `count` shares of neighbours, with about as many rows each.

    A file, or if `is_divisible` a row group, is in the share in which its middle row lies. Only
    files in which two shares meet are opened for it.
    """
    rows, at = max(sum(f.rows for f in files), 1), 0
    shares: list[list[_Part]] = [[] for _ in range(count)]
    for f in files:
        is_cut = is_divisible and at * count // rows != (at + f.rows) * count // rows
        groups = _group_rows(f) if is_cut else [f.rows]
        ends = at + np.cumsum(groups)
        middles = ends - np.array(groups) / 2
        of = np.minimum(middles * count / rows, count - 1).astype(np.int64)
        for share in np.unique(of):
            first, end = np.searchsorted(of, [share, share + 1]).tolist()
            shares[share].append((f.uri, slice(first, end) if len(groups) > 1 else _WHOLE))
        at += f.rows
    return [share for share in shares if share]


def _group_rows(file: DataFile) -> list[int]:
    """Return the rows of each row group of a file; of a file that cannot be read, its rows."""
    try:
        with data_source(file.uri) as source:
            footer = source.footer
    except (OSError, ValueError, pa.ArrowException):  # whoever reads its rows says why
        return [file.rows]
    return [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] or [file.rows]


def _in_threads(
    shares: Sequence[Sequence[_Work]],
    function: Callable[[Iterator[_Work]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    threads: int,
) -> pa.Table:
    """Run a step in threads of this process, a share of the work after the other in each.

    Raises:
        WarehouseUnavailable: the memory does not suffice.
    """
    stopped = Event()

    def run(share: Sequence[_Work]) -> list[pa.RecordBatch]:
        return list(function(takewhile(lambda _: not stopped.is_set(), share)))

    with ThreadPoolExecutor(min(threads, len(shares))) as pool:
        try:
            with memory_errors():
                results = list(pool.map(run, shares))
        finally:
            stopped.set()  # after a failure or Ctrl-C no thread begins another file
    return pa.Table.from_batches([batch.cast(schema) for one in results for batch in one], schema)


def _in_processes(
    shares: Sequence[Sequence[_Work]],
    function: Callable[[Iterator[_Work]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    count: int,
) -> pa.Table:
    """Run a step that reads in processes beside this one, or if none can be started in threads of
    this one; raises as `_in_threads`."""
    try:
        with memory_errors():
            results = PROCESSES.read(function, shares, count)
    except OSError:
        return _in_threads(shares, function, schema, count)
    return pa.Table.from_batches([batch.cast(schema) for one in results for batch in one], schema)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise WarehouseUnavailable if the memory of this process does not suffice."""
    try:
        yield
    except MemoryError as error:
        raise WarehouseUnavailable(
            "The driver's process ran out of memory.",
            remedy="Set a smaller `small_bytes` in [warehouse], so that Spark does more.",
        ) from error


def read_batches(
    uri: str,
    columns: pa.Schema,
    groups: slice | RowGroups = _WHOLE,
    sources: Sources = data_source,
) -> Iterator[pa.RecordBatch]:
    """Read columns of a file, or of some of its row groups, in batches of the schema `columns`.

    `sources` opens the file.

    Raises:
        WarehouseUnavailable: the file cannot be read, or lacks a column (ArrowInvalid inside), or
            has it in another type.
    """
    try:
        with sources(uri) as source:
            file = _opened(source.file, source.footer if source.end else None)
            footer = file.metadata
            if dictionaries := uncounted_columns(footer) & {*columns.names}:
                file = _opened(source.file, footer, sorted(dictionaries))
            names = set(file.schema_arrow.names)
            there = [name for name in columns.names if name in names]
            absent = [name for name in columns.names if name not in names | _MAY_LACK]
            if absent:
                raise pa.ArrowInvalid(f"It has no column {absent[0]!r}.")
            if isinstance(groups, slice):
                some: Sequence[int] = range(file.num_row_groups)[groups]
            else:
                some = groups(footer)
            rows = _rows_at_once(footer, columns)
            for batch in _read(file, source, some, there, rows):
                for part in _bounded(batch):
                    yield _typed(part, columns)
    except (OSError, ValueError, pa.ArrowException) as error:  # a footer may hold no UTF-8
        if isinstance(error, MemoryError):
            raise
        file = uri.rsplit("/", 1)[-1]
        if isinstance(error, StoreError):  # the file may be well
            raise WarehouseUnavailable(
                f"Data file {file} cannot be read: {error}.", remedy=error.remedy
            ) from error
        raise unreadable(f"Data file {file} cannot be read: {error}", file) from error


def _opened(
    source: pa.NativeFile,
    footer: pq.FileMetaData | None = None,
    dictionaries: list[str] | None = None,
) -> pq.ParquetFile:
    """Open a data file, whose footer is read unless it is known; `dictionaries`: columns whose
    values stay encoded."""
    return pq.ParquetFile(
        source,
        metadata=footer,
        read_dictionary=dictionaries,
        buffer_size=BUFFER_BYTES,
        coerce_int96_timestamp_unit="us",  # of Spark's files; nanoseconds end in 2262
        pre_buffer=False,  # it would hold all of the file's compressed pages
        page_checksum_verification=True,
    )


def _read(
    file: pq.ParquetFile,
    source: DataSource,
    groups: Sequence[int],
    columns: list[str],
    rows: int,
) -> Iterator[pa.RecordBatch]:
    """Read columns of row groups in batches; where each read is a request, those of a row group are
    fetched together before."""
    if source.fetch is None:
        yield from file.iter_batches(rows, groups, columns, use_threads=False)
        return
    for group in groups:
        source.fetch(_column_ranges(file.metadata.row_group(group), columns))
        yield from file.iter_batches(rows, [group], columns, use_threads=False)


def _column_ranges(group: pq.RowGroupMetaData, columns: Sequence[str]) -> list[tuple[int, int]]:
    """Return where the compressed pages of columns of a row group begin and end in the file."""
    ranges, beginnings = [], tuple(f"{name}." for name in columns)
    for chunk in map(group.column, range(group.num_columns)):
        if f"{chunk.path_in_schema}.".startswith(beginnings):
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            ranges.append((begin, begin + chunk.total_compressed_size))
    return ranges


def _rows_at_once(footer: pq.FileMetaData, columns: pa.Schema) -> int:
    """Return the rows of a batch of these columns; fewer if rows are large."""
    fixed = [kind.bit_width + 1 for kind in columns.types if pa.types.is_primitive(kind)]
    size = sum(fixed) / 8  # with a bit of each value that says if it is null
    rows = DIGEST_ROWS
    if len(fixed) < len(columns):
        rows, size = BATCH_ROWS, max(size, row_bytes(footer))
    return max(1, min(rows, int(BATCH_BYTES / max(size, 1))))


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch so that the values of its dictionaries fill BATCH_BYTES at most, or one row."""
    ends = np.zeros(len(batch), np.int64)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            sizes = pc.binary_length(column.dictionary).take(column.indices)
            ends += np.cumsum(sizes.fill_null(0), dtype=np.int64)
    at = 0
    while at < len(batch):
        most = (ends[at - 1] if at else 0) + BATCH_BYTES
        end = max(at + 1, int(np.searchsorted(ends, most, "right")))
        yield batch.slice(at, end - at)
        at = end


def _typed(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return columns of a batch, in order and type; null columns where it has none."""
    arrays = []
    for field in columns:
        index = batch.schema.get_field_index(field.name)
        array = pa.nulls(len(batch), field.type) if index < 0 else batch.column(index)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
