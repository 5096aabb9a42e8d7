"""Write Parquet data files, and say what was written.

What a step wrote is known by what its tasks return, rows of WRITTEN: nothing is looked for in the
folder. Spark takes the rows of one attempt of each task alone. So a file of an attempt that failed
after it wrote, or that was slower than another one of the same task, is named nowhere, and `gc`
removes it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from driftline.arrays import Bools

from warehouse_agent.columns import parquet
from warehouse_agent.columns.layout import Layout
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.spark.executors import Batches, Task, task
from warehouse_agent.storage.backends.interface import NewFile
from warehouse_agent.storage.data_files import ROW_BYTES, DataFile, DataFolder, bounds_in
from warehouse_agent.storage.store import begun, file_errors, located, refuse_full_disk
from warehouse_agent.tasks.scan import FILE_BYTES, from_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW_GROUP_BYTES = 64 << 20  # of a row group in Arrow, which a task holds for each file
DICTIONARY_SHARE = 0.5  # of distinct values in a sample: a column with fewer gets a dictionary
DICTIONARY_VALUE_BYTES = 1024  # mean size; a reader would not see how large the values are
_CALENDAR = "org.apache.spark.version"  # key of a file's metadata
WRITTEN = pa.schema(
    [
        ("path", pa.string()),
        *((n, pa.int64()) for n in ("size", "rows", "least", "greatest")),
        ("not_null", pa.list_(pa.string())),
    ]
)


@dataclass
class Sink:
    """A file `<folder>/<part>-<random>.zstd.parquet` that is created with its first row.

    A context manager, which removes the file again unless it is finished. `folder` is the URI of an
    existing folder; `part` may have folders in it; `key` is the integer key column, whose bounds
    are returned.
    """

    folder: str
    part: str
    schema: pa.Schema
    key: str | None = None
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _held_bytes: int = 0
    _row_bytes: int = 0
    _nulls: set[str] = field(default_factory=set)  # columns that hold one
    _writer: pq.ParquetWriter | None = None
    _footers: list[pq.FileMetaData] = field(default_factory=list)
    _file: NewFile | None = None
    _is_finished: bool = False

    def __post_init__(self) -> None:
        self._place = f"{self.part}-{uuid.uuid4().hex}.zstd.parquet"
        self._uri = f"{self.folder}/{self._place}"

    @property
    def _path(self) -> str:
        return located(self._uri)[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Remove the file again unless it is finished."""
        if self._file is None or self._is_finished:
            return
        # The failure itself is already raised; pyarrow adds that the footer is missing.
        with contextlib.suppress(OSError, RuntimeError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            self._file.abandon()

    def add(self, batch: pa.RecordBatch, chosen: Bools | None = None) -> int:
        """Add the chosen rows of a batch, bool [rows], or all; return their bytes in Arrow."""
        rows = batch
        if chosen is not None and not chosen.all():
            rows = batch.filter(pa.array(chosen))
        if not len(rows):
            return 0
        pairs = zip(rows.schema.names, rows.columns, strict=True)
        self._nulls.update(name for name, column in pairs if column.null_count)
        size: int = rows.nbytes
        self._held.append(rows)
        self._held_bytes += size
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._write()
        return size

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Close the file and yield it as a row of WRITTEN; yield nothing if it has no rows."""
        self._write()
        if self._writer is None:
            return
        assert self._file is not None
        with file_errors("written", self._path, self._row_bytes):
            self._writer.add_key_value_metadata(
                {_CALENDAR: _spark_version(), ROW_BYTES: str(self._row_bytes)}
            )
            self._writer.close()
            size = self._file.finish()
            WarehouseFailpoint.FILE_WRITTEN.reach()
        (footer,) = self._footers
        ends = bounds_in(footer, self.key) or (None, None)
        not_null = [name for name in self.schema.names if name not in self._nulls]
        values = [self._place, size, footer.num_rows, *ends, not_null]
        self._is_finished = True
        yield pa.RecordBatch.from_pydict(
            {name: [value] for name, value in zip(WRITTEN.names, values, strict=True)},
            schema=WRITTEN,
        )

    def _write(self) -> None:
        if not self._held:
            return
        rows = pa.Table.from_batches(self._held)
        refuse_full_disk(self.folder)  # staged frames may be much smaller than their rows
        with file_errors("written", self._path, rows.nbytes):
            if self._writer is None:
                self._file = begun(self._uri)
                self._writer = _writer(self._file.out, max(self._held, key=len), self._footers)
            self._writer.write_table(rows, row_group_size=len(rows))
            WarehouseFailpoint.ROWS_WRITTEN.reach()
        self._row_bytes += self._held_bytes
        self._held, self._held_bytes = [], 0


@dataclass
class SplitSink:
    """Files of `file_bytes` of rows in Arrow and at most a batch more; else as `Sink`."""

    folder: str
    part: str
    schema: pa.Schema
    key: str | None = None
    file_bytes: int | None = None  # None: one file
    _sink: Sink | None = None
    _bytes: int = 0
    _done: list[pa.RecordBatch] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._sink is not None:
            self._sink.abandon()

    def add(self, batch: pa.RecordBatch, chosen: Bools | None = None) -> None:
        """Add the chosen rows of a batch, bool [rows]; None for all."""
        if self._sink is None:
            self._sink, self._bytes = Sink(self.folder, self.part, self.schema, self.key), 0
        self._bytes += self._sink.add(batch, chosen)
        if self.file_bytes is not None and self._bytes >= self.file_bytes:
            self._finish()

    def finish(self) -> list[pa.RecordBatch]:
        """Close the files and return them as rows of WRITTEN."""
        self._finish()
        return self._done

    def _finish(self) -> None:
        if self._sink is not None:
            self._done += self._sink.finish()
            self._sink = None


def _writer(
    out: pa.NativeFile, sample: pa.RecordBatch, footers: list[pq.FileMetaData]
) -> pq.ParquetWriter:
    """Begin a file's rows; a sample of them decides which columns get a dictionary."""
    few, most = DICTIONARY_SHARE * len(sample), DICTIONARY_VALUE_BYTES * len(sample)
    columns = [(field, sample.column(i)) for i, field in enumerate(sample.schema)]
    return parquet.writer(
        out,
        sample.schema,
        compression_level=3,
        repeated=[
            field.name
            for field, column in columns
            if column.nbytes <= most and pc.count_distinct(column).as_py() < few
        ],
        store_decimal_as_integer=True,  # as Spark does, which reads these fastest
        store_schema=False,
        write_page_checksum=True,
        metadata_collector=footers,
    )


def written(rows: pa.Table, folder: DataFolder) -> list[DataFile]:
    """Return the files that the tasks of a step wrote into a folder of a table, by path."""
    files = []
    for row in rows.to_pylist():
        path, uri = f"{folder.path}/{row['path']}", folder.uri(row["path"])
        ends = None if row["least"] is None else (row["least"], row["greatest"])
        known = frozenset(row["not_null"])
        files.append(DataFile(path, uri, row["size"], row["rows"], ends, known))
    return sorted(files, key=lambda file: file.path)


def write_rows(folder: DataFolder, rows: DataFrame, layout: Layout | ViewLayout) -> list[DataFile]:
    """Write rows of Spark as data files of the table, in a new folder; columns as the layout has.

    An error of Spark is the caller's to explain (`driver_errors`, `evaluate.query_errors`).
    """
    folder.make()
    uri, key = folder.uri(), layout.integer_key
    schema = pa.schema([layout.file_schema.field(name) for name in rows.columns])

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        with SplitSink(uri, "part", schema, key, FILE_BYTES) as sink:
            for batch in batches:
                sink.add(batch.cast(schema))
            done = sink.finish()
        yield from done

    return written(written_by(rows, run), folder)


def written_by(rows: DataFrame, function: Task) -> pa.Table:
    """Return the rows of WRITTEN that `function` makes of rows of Spark, which it writes; one job.

    Spark takes what one attempt of each task returns.
    """
    return rows.mapInArrow(task(function), from_arrow(WRITTEN)).toArrow()


@functools.cache
def _spark_version() -> str:
    """Return the version of PySpark, without importing it where pip installed it.

    A file must name it: else Spark may refuse old dates, because they might not be Gregorian.
    """
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:  # Spark's own folder, as on a cluster
        from pyspark import __version__

        return __version__
