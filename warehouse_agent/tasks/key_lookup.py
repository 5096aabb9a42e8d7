"""Rows that tasks look up by key: some columns of a few files, which every task reads for itself.

A difference is small beside the table, so the rows that a refresh removed, or shipped, fit into the
memory of a task, and what is known of each key needs no join and no shuffle. Statistics are looked
up in ROWS_MAX rows at most; a feed in `feed.LOTS_MAX` lots of so many, one after the other. Beyond
that the same is done by Spark's joins (`tally.joined`, `feed.joined`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.digests import Integers
from warehouse_agent.tasks.scan import read_batches

ROWS_MAX = 1_000_000  # 40 bytes each, and a key that is no integer


@dataclass(frozen=True, slots=True)
class Known:
    """`columns`: of these rows; `key` is one of them, without nulls."""

    columns: pa.Table
    key: str

    @classmethod
    def read(cls, uris: Sequence[str], columns: pa.Schema, key: str) -> Self:
        """The rows of these files, in order. Raises WarehouseUnavailable."""
        batches = [batch for uri in uris for batch in read_batches(uri, columns)]
        return cls(pa.Table.from_batches(batches, columns), key)

    @classmethod
    def lots(cls, uris: Sequence[str], columns: pa.Schema, key: str, rows: int) -> Iterator[Self]:
        """The same rows, at most `rows` and a batch more at once, where the caller lets go of a lot
        before it asks for the next. Raises WarehouseUnavailable."""
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in (batch for uri in uris for batch in read_batches(uri, columns)):
            held.append(batch)
            count += len(batch)
            if count >= rows:
                lot = cls(pa.Table.from_batches(held, columns), key)
                held.clear()
                count = 0
                yield lot
                del lot
        if held:
            yield cls(pa.Table.from_batches(held, columns), key)

    def find(self, keys: pa.Array) -> Integers:
        """Where each key is among the rows, int64 [n]; of those alike the first, −1 where none."""
        at = pc.index_in(keys, value_set=self.columns[self.key])
        return np.asarray(at.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)

    def at(self, where: Integers, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """These columns of the rows that were found, null where none was."""
        indices = pa.array(where, mask=where < 0)
        return [self.columns[name].take(indices) for name in names]


def fits(files: Sequence[DataFile], lots: int = 1) -> bool:
    """Whether every task may look up the rows of these files, in so many lots."""
    return sum(f.rows for f in files) <= lots * ROWS_MAX
