"""Data files of a table: Parquet files of rows and bookkeeping, found, bounded by key and read.

No table format is known here: which files make a version is said by its `table.Snapshot`. Tasks on
executors import this module, so it imports nothing that reads a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from warehouse_agent.columns.layout import Layout
from warehouse_agent.storage.store import Store, located


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of the table. `path` is relative to the table; `rows` and bytes.

    `bounds`: the least and the greatest integer key in it; None where keys are no integers.
    """

    path: str
    uri: str
    size: int
    rows: int
    bounds: tuple[int, int] | None = None

    def meets(self, first: int, last: int) -> bool:
        """Whether rows of it may have keys between these, both ends inclusive."""
        return self.bounds is None or (self.bounds[0] <= last and first <= self.bounds[1])


def written_files(store: Store, name: str, folder: str, layout: Layout) -> list[DataFile]:
    """The Parquet files that Spark wrote into a folder of the table; empty ones are left out."""
    found = []
    for file, size in store.files(name, folder):
        if not file.endswith(".parquet"):
            continue
        path = f"{folder}/{file}"
        footer = _footer(store, name, path)
        if footer.num_rows:
            ends = bounds_in(footer, layout.integer_key)
            found.append(DataFile(path, store.uri(name, path), size, footer.num_rows, ends))
    return found


def bounds(files: Sequence[DataFile]) -> tuple[int, int] | None:
    """The least and the greatest integer key in these files; None where one does not say."""
    known = [f.bounds for f in files if f.bounds is not None]
    if not known or len(known) < len(files):
        return None
    return min(b[0] for b in known), max(b[1] for b in known)


def _footer(store: Store, name: str, path: str) -> pq.FileMetaData:
    system, base = located(store.uri(name, path))
    with system.open_input_file(base) as source:
        return pq.ParquetFile(source).metadata


def bounds_in(footer: pq.FileMetaData, key: str | None) -> tuple[int, int] | None:
    """The least and the greatest integer key; None where a row group, or the table, has none."""
    if key is None:
        return None
    column = footer.schema.names.index(key)
    groups = [footer.row_group(i).column(column).statistics for i in range(footer.num_row_groups)]
    if not all(group is not None and group.has_min_max for group in groups):
        return None
    return min(int(g.min) for g in groups), max(int(g.max) for g in groups)


def rows_of(spark: SparkSession, layout: Layout, uris: list[str]) -> DataFrame:
    """The rows of data files, bookkeeping included."""
    if not uris:
        return spark.createDataFrame([], layout.ddl)
    return spark.read.schema(layout.ddl).parquet(*uris)


def by_place(rows: DataFrame) -> DataFrame:
    """The rows with their columns numbered: mapInArrow cannot read names with `.` or a backtick."""
    return rows.toDF(*(f"c{i}" for i in range(len(rows.columns))))
