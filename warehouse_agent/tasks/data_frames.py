"""Data files as rows of Spark: for joins, for the queries of views, and for readers.

Files of a disk are read by Spark's own reader, for which rows cost two thirds. Elsewhere, or where
a function of batches chooses rows, tasks in Python read them by Arrow and hand the rows to the JVM,
which opens no file then and needs no library for the storage. Spark does not see into such tasks,
so what its own reader would do by itself is said here: the columns that a query needs, and ranges
of values outside which row groups and whole files are left out. A large file is read by several
tasks.

Rejected: a data source in Python (`pyspark.sql.datasource`). It is given filters only where a
setting of the session allows it, is never given the wanted columns, and is registered by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse_agent.planning.task_shares import task_bytes, task_shares
from warehouse_agent.spark.cluster import processors
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.scan import (
    RowGroups,
    from_arrow,
    numbered_tasks,
    read_batches,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of batches that tasks apply to what they read, and the columns that it returns."""

    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """A range of a column of integers or dates, both ends inclusive; None: no such end."""

    column: str
    least: int | date | None
    greatest: int | date | None

    def meets(self, least: object, greatest: object) -> bool:
        """Return True if a value between two others, both inclusive, may be in the range. Values of
        other types, such as decimals, may always be."""
        is_above = _is_less(greatest, self.least)
        return not is_above and not _is_less(self.greatest, least)


def _is_less(value: object, other: object) -> bool:
    """Return True if both are integers, or both dates, and one is less than the other."""
    if type(value) is int and type(other) is int:
        return value < other
    return type(value) is date and type(other) is date and value < other


@dataclass(frozen=True, slots=True)
class _FilePart:
    """The row groups of a file that one of `parts` tasks reads, by number; `size` in bytes."""

    uri: str
    size: int
    number: int
    parts: int


def rows_of(
    spark: SparkSession,
    files: Sequence[DataFile],
    columns: pa.Schema,
    *,
    ranges: Sequence[ColumnRange] = (),
    then: RowFunction | None = None,
) -> DataFrame:
    """Return rows of data files as a DataFrame; they are read when Spark computes it.

    A file that cannot be read then raises WarehouseUnavailable (`executors.meaning`).

    Args:
        columns: to read; statistics that a file lacks are null.
        ranges: row groups without a value in one of them are left out; other rows of other values
            may be returned.
        then: makes the rows to be returned of those that are read; None: they are the same.
    """
    if files and then is None and known.backend_of(files[0].uri).is_local:
        # Files of earlier releases have dictionaries of floats (`columns.parquet`).
        reader = spark.read.option("parquet.filter.dictionary.enabled", "false")
        return reader.schema(from_arrow(columns)).parquet(*(f.uri for f in files))
    return rows_by_tasks(spark, files, columns, ranges=ranges, then=then)


def rows_by_tasks(
    spark: SparkSession,
    files: Sequence[DataFile],
    columns: pa.Schema,
    *,
    ranges: Sequence[ColumnRange] = (),
    then: RowFunction | None = None,
) -> DataFrame:
    """Return rows as `rows_of`, read by tasks wherever the files are."""
    at_once = processors(spark)
    most = task_bytes([f.size for f in files], at_once)
    parts = [part for f in files for part in _parts(f, most)]
    shares = task_shares([part.size for part in parts], at_once)

    def run(some: Iterator[_FilePart]) -> Iterator[pa.RecordBatch]:
        for part in some:
            for batch in read_batches(part.uri, columns, _groups(part, ranges)):
                yield batch if then is None else then.function(batch)

    kind = from_arrow(columns if then is None else then.schema)
    size = sum(f.size for f in files)
    return numbered_tasks(spark, [parts[share] for share in shares], run, kind, size=size)


def _parts(file: DataFile, most: int) -> list[_FilePart]:
    """Divide a file among tasks of about `most` bytes each."""
    count = max(1, -(-file.size // most))
    return [_FilePart(file.uri, file.size // count, number, count) for number in range(count)]


def _groups(part: _FilePart, ranges: Sequence[ColumnRange]) -> RowGroups:
    """Return what chooses the row groups of a part that may hold rows of all ranges."""

    def chosen(footer: pq.FileMetaData) -> list[int]:
        count, names = footer.num_row_groups, footer.schema.names
        ends = [count * number // part.parts for number in (part.number, part.number + 1)]
        asked = [(names.index(one.column), one) for one in ranges if one.column in names]
        return [
            number
            for number in range(*ends)
            if all(_meets(footer.row_group(number).column(i), one) for i, one in asked)
        ]

    return chosen


def _meets(chunk: pq.ColumnChunkMetaData, one: ColumnRange) -> bool:
    """Return True if a row group may have a value in a range, by its statistics."""
    if (ends := chunk.statistics) is None or not ends.has_min_max:
        return True
    return one.meets(ends.min, ends.max)
