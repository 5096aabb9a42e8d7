"""Look up rows by key in a task: some columns of a few files, which every task reads itself.

The rows that a refresh removes or adds are few beside the table and fit into the memory of a task,
so a lookup by key needs no join and no shuffle. Beyond ROWS_MAX rows statistics and a change feed
are looked up in lots, up to `change_feed.LOTS_MAX`. Beyond that, and above BYTES_MAX or a
`small_bytes` that is set, Spark joins the rows: every task holds what it looks up, so the driver's
share of memory says nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import Integers

from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.scan import read_batches
from warehouse_agent.tasks.steps import Steps

ROWS_MAX = 1_000_000  # 40 bytes each, plus a key that is no integer
BYTES_MAX = 32 << 20  # of all columns of more rows


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Columns of rows that can be looked up by the column `key`, which has no nulls."""

    columns: pa.Table
    key: str

    @classmethod
    def read(cls, uris: Sequence[str], columns: pa.Schema, key: str) -> Self:
        """Read the rows of files, in order. Raises WarehouseUnavailable."""
        batches = [batch for uri in uris for batch in read_batches(uri, columns)]
        return cls(pa.Table.from_batches(batches, columns), key)

    @classmethod
    def lots(cls, uris: Sequence[str], columns: pa.Schema, key: str, rows: int) -> Iterator[Self]:
        """Read the rows of files in lots of `rows` and at most a batch more.

        The caller must drop a lot before it asks for the next. Raises WarehouseUnavailable.
        """
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
        """Return the index of the first row of each key, int64 [n]; −1 if there is none."""
        at = pc.index_in(keys, value_set=self.columns[self.key])
        return np.asarray(at.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)

    def at(self, where: Integers, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Return columns of the rows at `where`, int64 [n] of `find`; null where it is −1."""
        indices = pa.array(where, mask=where < 0)
        return [self.columns[name].take(indices) for name in names]


def fits(steps: Steps, files: Sequence[DataFile], lots: int = 1) -> bool:
    """Return True if tasks may look up the rows of these files: in `lots` lots, or few bytes."""
    is_few = sum(f.rows for f in files) <= lots * ROWS_MAX
    most = BYTES_MAX if steps.small_bytes is None else steps.small_bytes
    return is_few or steps.size_of_rows(files) <= most
