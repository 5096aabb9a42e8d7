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
    """Files of the next version: `shipped` and `rewritten` are new, `kept` stay, `gone` go.

    `before`: files of all removed rows, where they are written apart; None where they are not.
    """

    shipped: tuple[DataFile, ...]
    rewritten: tuple[DataFile, ...]
    kept: tuple[DataFile, ...]
    gone: tuple[DataFile, ...]
    before: tuple[DataFile, ...] | None = None

    @property
    def added(self) -> tuple[DataFile, ...]:
        return (*self.shipped, *self.rewritten)


def write_rows(
    store: Store, name: str, folder: str, rows: DataFrame, layout: Layout
) -> list[DataFile]:
    """Write rows as data files of the table, in a folder of its own."""
    with driver_errors():
        rows.write.option("compression", "zstd").mode("overwrite").parquet(store.uri(name, folder))
    return written_files(store, name, folder, layout)


def within_bounds(files: Sequence[DataFile], replaced: BelowKeys) -> list[DataFile]:
    """The files whose bounds say that some of these k may be in them."""
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
    """The files that are hit; with them the small ones, when there are many."""
    small = [f for f in files if f.size < SMALL_FILE_BYTES]
    wanted = {*hit, *(small if len(small) > SMALL_FILES_MAX else [])}
    return [f for f in files if f in wanted]
