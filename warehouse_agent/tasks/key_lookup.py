"""Look up rows by key in a task: some columns of data files, which every task reads itself.

So a lookup needs no join by Spark and no shuffle, however many rows there are. A task takes the
rows that it looks up in lots. For each lot it reads the files once, and keeps what passes a filter
of the lot's positions: the rows of its keys, and one in eighty of the others. Among these the key
itself decides, so two keys with one position are two keys.

What it holds is bounded by its lots (`step_places.task_bytes`). What it reads is all of the files
for each lot, some 0.1 µs a row; of integer keys only the files whose bounds meet the lot's. So
larger lots cost less, and a task should have as many rows as it may hold.

Rejected: a join by Spark (2.5 times the table's bytes of temporary files, and four times the
processor seconds); lots of the files' rows, through each of which a task's own rows go (an index of
a million keys takes longer to build than ten million rows to filter); temporary files by class of
position (two lanes of fingerprints alone are a third of the table, and do not compress).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import U64, Bools, Bytes, Integers

from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import data_source
from warehouse_agent.tasks.digests import numbers
from warehouse_agent.tasks.scan import Sources, read_batches

_FILTER_BITS = 16  # a position, of which two are set
# Odd, with bits as even as those of a fraction: the golden ratio's, and a prime of xxHash.
_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A Bloom filter of a column's values: it holds all of them, and one in eighty of others.

    Attributes:
        column: of positions or of other integers of 64 bits, in data files.
        first, last: the least and the greatest value, both inclusive.
        bits: uint8 [a power of 2].
    """

    column: str
    first: int
    last: int
    bits: Bytes

    @classmethod
    def of(cls, column: str, values: Integers) -> Self:
        """Build from values, int64 [n], n > 0."""
        size = 1 << max((_FILTER_BITS * len(values) - 1).bit_length() - 3, 3)
        made = cls(column, int(values.min()), int(values.max()), np.zeros(size, np.uint8))
        for factor in _FACTORS:
            places = made._places(values, factor)
            masks = np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)
            np.bitwise_or.at(made.bits, (places >> np.uint64(3)).view(np.int64), masks)
        return made

    def near(self, files: Sequence[DataFile]) -> list[str]:
        """Return the URIs of the files that may hold one of its positions, by their bounds."""
        return [f.uri for f in files if f.meets(self.first, self.last)]

    def may_hold(self, values: Integers) -> Bools:
        """Return False for values, int64 [n], that it does not hold."""
        left = np.arange(len(values))
        for factor in _FACTORS:
            places = self._places(values[left], factor)
            held = self.bits[(places >> np.uint64(3)).view(np.int64)]
            left = left[(held >> (places & np.uint64(7)).astype(np.uint8)) & 1 != 0]
        is_held = np.zeros(len(values), np.bool_)
        is_held[left] = True
        return is_held

    def _places(self, values: Integers, factor: np.uint64) -> U64:
        bits = 8 * len(self.bits)
        places: U64 = values.view(np.uint64) * factor >> np.uint64(65 - bits.bit_length())
        return places


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
    def lots(
        cls,
        uris: Iterable[str],
        columns: pa.Schema,
        key: str,
        rows: int,
        passing: KeyFilter,
        sources: Sources = data_source,
    ) -> Iterator[Self]:
        """Read the rows of files that pass a filter in lots of `rows` and at most a batch more.

        `sources` opens the files. The caller must drop a lot before it asks for the next. Raises
        WarehouseUnavailable.
        """
        read = columns
        if passing.column not in columns.names:
            read = columns.append(pa.field(passing.column, pa.int64()))
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in (batch for uri in uris for batch in read_batches(uri, read, sources=sources)):
            chosen = passing.may_hold(numbers(batch, passing.column))
            if not chosen.any():
                continue
            held.append(batch.select(columns.names).filter(pa.array(chosen)))
            count += len(held[-1])
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
