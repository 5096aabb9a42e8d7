"""From a difference to files: what the next version is made of.

Shipped rows become files of their own; files that hold removed rows are written again without them
(`rewrite`); all others are kept as they are. So rows that change often gather in young files by
themselves, and a refresh rewrites what it must. What is written again is laid out by heat: rows
that are likely to change soon (`heat`) go into files of their own, so that they touch few files
when they do. Nothing is written again only for that. Files are written once, into a folder of their
own, and belong to nothing until the commit names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame

from warehouse_agent.columns.layout import RESERVED, Layout
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage.data_files import DataFile, written_files
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.difference import BelowKeys

SMALL_FILE_BYTES = 16 << 20
SMALL_FILES_MAX = 32  # more of them are put together at the next refresh that changes anything
# Columns of ours beside anybody's.
_PLACE, _HASH = f"{RESERVED}place", f"{RESERVED}hash"


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
