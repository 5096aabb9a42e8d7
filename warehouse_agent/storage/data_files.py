"""Data files of a table: Parquet files of rows and bookkeeping, bounded by key.

This module knows no table format: a `table.Snapshot` lists the files of a version. Tasks on
executors import it, so it imports nothing that reads a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from warehouse_agent.storage.store import Store

if TYPE_CHECKING:
    pass

ROW_BYTES = "driftline.row_bytes"  # key of a file's metadata: the bytes of its rows in Arrow


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table.

    `path` is relative to the table, `size` in bytes. `bounds` are the least and the greatest
    integer key; None if the key is no integer. `not_null`: columns that are known to hold no NULL.
    """

    path: str
    uri: str
    size: int
    rows: int
    bounds: tuple[int, int] | None = None
    not_null: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def meets(self, first: int, last: int) -> bool:
        """Return True if the file may hold keys from `first` to `last`, both inclusive."""
        return self.bounds is None or (self.bounds[0] <= last and first <= self.bounds[1])


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A folder for new data files; `path` is relative to the table, as those of its files are."""

    store: Store
    table: str
    path: str

    def make(self, *inner: str) -> None:
        """Make it, and the folder `inner` in it (`Store.make_folder`)."""
        self.store.make_folder(self.table, self.path, *inner)

    def uri(self, *file: str) -> str:
        """Return its URI, or that of a file in it."""
        return self.store.uri(self.table, self.path, *file)


def bounds(files: Sequence[DataFile]) -> tuple[int, int] | None:
    """Return the least and the greatest integer key of files; None if a file has no bounds."""
    known = [f.bounds for f in files if f.bounds is not None]
    if not known or len(known) < len(files):
        return None
    return min(b[0] for b in known), max(b[1] for b in known)


def bounds_in(footer: pq.FileMetaData, key: str | None) -> tuple[int, int] | None:
    """Return the least and the greatest value of an integer key; None without key or statistics."""
    if key is None:
        return None
    column = footer.schema.names.index(key)
    groups = [footer.row_group(i).column(column).statistics for i in range(footer.num_row_groups)]
    if not all(group is not None and group.has_min_max for group in groups):
        return None
    return min(int(g.min) for g in groups), max(int(g.max) for g in groups)


def without_null(footer: pq.FileMetaData) -> frozenset[str]:
    """Return the columns that hold no NULL by their statistics; floats often have none."""
    groups = map(footer.row_group, range(footer.num_row_groups))
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    may = {c.path_in_schema for c in chunks if c.statistics is None or c.statistics.null_count != 0}
    return frozenset(footer.schema.names) - may


def uncompressed(footer: pq.FileMetaData) -> int:
    """Return the bytes of a file's rows, as its writer noted them, or at least by the footer.

    The footer counts a value that repeats within a row group once. Raises ValueError.
    """
    noted = int((footer.metadata or {}).get(ROW_BYTES.encode(), 0))
    return max(noted, sum(size for _, size in _groups(footer)))


def uncounted_columns(footer: pq.FileMetaData) -> set[str]:
    """Return the columns whose repeated values count once, because nobody noted their bytes.

    Spark's writer notes nothing. Raises ValueError.
    """
    if ROW_BYTES.encode() in (footer.metadata or {}):
        return set()
    groups = map(footer.row_group, range(footer.num_row_groups))
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    return {c.path_in_schema for c in chunks if any("DICTIONARY" in e for e in c.encodings)}


def row_bytes(footer: pq.FileMetaData) -> float:
    """Return the mean bytes of a row, in the row group with the largest rows if that is more.

    Raises ValueError.
    """
    rows: int = footer.num_rows
    largest = max((size / some for some, size in _groups(footer) if some), default=0.0)
    return max(uncompressed(footer) / max(rows, 1), largest)


def _groups(footer: pq.FileMetaData) -> list[tuple[int, int]]:
    """Return rows and bytes of each row group; a value that repeats counts once."""
    groups = map(footer.row_group, range(footer.num_row_groups))
    return [(group.num_rows, group.total_byte_size) for group in groups]
