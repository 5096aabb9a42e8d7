"""Decide which files of a version are kept, written again and added.

Shipped rows become files of their own; files that hold removed rows are written again without them
(`rewrite`); all others are kept as they are. So rows that change often gather in young files, and a
refresh rewrites no more than it must. A file is written once, into a folder of the attempt, and is
in no version until a commit names it.

Rejected: separate files for rows that are likely to change soon. They rewrote 0.95 to 1.02 times
the rows on real histories and cost up to half a second (benchmarks/RESULTS.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame

from warehouse_agent.columns.layout import Layout
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage.data_files import DataFile, written_files
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.difference import BelowKeys

SMALL_FILE_BYTES = 16 << 20
SMALL_FILES_MAX = 32  # more of them are put together at the next refresh that changes anything


@dataclass(frozen=True, slots=True)
class Applied:
    """The files of the next version.

    Attributes:
        shipped: new files of rows that the source sent.
        rewritten: new files of rows that stay, from files that hold removed rows.
        kept: files of the version before that stay.
        gone: files of the version before that are removed.
        before: files of all removed rows; None if they are not written apart.
    """

    shipped: tuple[DataFile, ...]
    rewritten: tuple[DataFile, ...]
    kept: tuple[DataFile, ...]
    gone: tuple[DataFile, ...]
    before: tuple[DataFile, ...] | None = None

    @property
    def added(self) -> tuple[DataFile, ...]:
        """Return the new files."""
        return (*self.shipped, *self.rewritten)


def write_rows(
    store: Store, name: str, folder: str, rows: DataFrame, layout: Layout
) -> list[DataFile]:
    """Write rows as data files of the table, in a new folder."""
    with driver_errors():
        rows.write.option("compression", "zstd").mode("overwrite").parquet(store.uri(name, folder))
    return written_files(store, name, folder, layout)


def within_bounds(files: Sequence[DataFile], replaced: BelowKeys) -> list[DataFile]:
    """Return the files that may hold a row below one of the k, by their bounds."""
    if replaced.embedding.base is None:
        return list(files)
    where = replaced.embedding.positions(replaced.ks)
    found = []
    for file in files:
        assert file.bounds is not None, "keys embed from a base only where all files have bounds"
        least, greatest = file.bounds
        first = np.searchsorted(where, least, "left")
        if first < np.searchsorted(where, greatest, "right"):
            found.append(file)
    return found


def touched_files(files: Sequence[DataFile], hit: Sequence[DataFile]) -> list[DataFile]:
    """Return the hit files and, if there are more than SMALL_FILES_MAX, all small ones."""
    small = [f for f in files if f.size < SMALL_FILE_BYTES]
    wanted = {*hit, *(small if len(small) > SMALL_FILES_MAX else [])}
    return [f for f in files if f in wanted]
