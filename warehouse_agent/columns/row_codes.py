"""Sets of keys that columns of Arrow are looked up in, millions of rows at a time.

A *code* is an int64 of the values of a row in some columns: equal values have equal codes. One
integer, date, timestamp or boolean is its own code; other columns, and several, are hashed. So a
`CodeSet` may hold a row too many, never one too few: it finds candidates. A `KeySet` is exact: it
compares the values of the few rows whose code is in the set.

A code depends on values alone, so files of two relations give codes that can be compared where both
columns have a type of one family (`family`). Executors import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import U64, Bools, Integers
from driftline.limits import KEY_BYTES_MAX
from driftline.rows.columns import Block, RaggedColumn
from driftline.rows.digests import xx_array
from driftline.rows.keys import hash_spans

from warehouse_agent.columns.buffers import bits_of, items_of, present_in, ragged_of
from warehouse_agent.columns.row_bytes import join

_SEED = 20_007
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: multiplicative hashing
# Slots of the first look: 2^12 to 2^23 bytes, 16 for each code, so that they stay in the cache.
_SLOTS_LEAST, _SLOTS_MOST, _SLOTS_EACH = 12, 23, 4
_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_BITS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def family(ddl: str) -> str | None:
    """Return the family of a Spark type within which Spark's `=` is equality of values.

    Two columns of one family have equal codes wherever Spark says that they are equal. None: Spark
    compares in another way, such as 0.0 = -0.0.
    """
    if ddl in _INTEGERS:
        return "integer"
    if ddl in ("boolean", "date", "timestamp", "timestamp_ntz", "string", "binary"):
        return ddl
    return ddl if ddl.startswith("decimal(") else None  # of the same precision and scale


def codes(columns: Sequence[pa.Array]) -> tuple[Integers, Bools]:
    """Return the code of each row, int64 [rows], and True where no value is NULL, bool [rows]."""
    present = present_in(columns[0])
    for column in columns[1:]:
        present &= present_in(column)
    first = columns[0]
    if len(columns) == 1 and _is_own_code(first.type):
        return _integers(first), present
    hashes = np.full(len(first), _SEED, np.uint64)
    for column in columns:
        for word in _words(column):
            hashes = xx_array(word, hashes)
    return hashes.view(np.int64), present


@dataclass(frozen=True)
class CodeSet:
    """A set of codes: distinct, ascending, int64 [n]."""

    codes: Integers

    @classmethod
    def of(cls, *parts: Integers) -> Self:
        """Build from codes that may repeat, in any order."""
        return cls(np.unique(np.concatenate([np.zeros(0, np.int64), *parts])))

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def _slots(self) -> tuple[np.uint64, Bools]:
        bits = min(max(len(self).bit_length() + _SLOTS_EACH, _SLOTS_LEAST), _SLOTS_MOST)
        slots, shift = np.zeros(1 << bits, np.bool_), np.uint64(64 - bits)
        slots[(self.codes.view(np.uint64) * _SPREAD) >> shift] = True
        return shift, slots

    def holds(self, row_codes: Integers) -> Bools:
        """Return which codes, int64 [rows], are in the set: bool [rows]."""
        if not len(self):
            return np.zeros(len(row_codes), np.bool_)
        shift, slots = self._slots
        held: Bools = slots[(row_codes.view(np.uint64) * _SPREAD) >> shift]
        near = np.flatnonzero(held)
        at = np.minimum(np.searchsorted(self.codes, row_codes[near]), len(self) - 1)
        held[near] = self.codes[at] == row_codes[near]
        return held

    def holds_rows(self, columns: Sequence[pa.Array]) -> Bools:
        """Return which rows have no NULL and a code of the set: bool [rows]."""
        row_codes, present = codes(columns)
        return self.holds(row_codes) & present


@dataclass(frozen=True)
class KeySet:
    """A set of keys of one or several columns that are NOT NULL.

    Attributes:
        codes: those of the keys.
        keys: the keys as bytes, binary [n]; None where a code is the key.
    """

    codes: CodeSet
    keys: pa.Array | None

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> Self:
        """Build from the columns of keys, which may repeat."""
        row_codes, _ = codes(columns)
        if len(columns) == 1 and _is_own_code(columns[0].type):
            return cls(CodeSet.of(row_codes), None)
        return cls(CodeSet.of(row_codes), pc.unique(_as_bytes(columns)))

    def __len__(self) -> int:
        return len(self.codes) if self.keys is None else len(self.keys)

    def holds(self, columns: Sequence[pa.Array]) -> Bools:
        """Return which rows of these columns are in the set: bool [rows]."""
        held = self.codes.holds_rows(columns)
        if self.keys is None:
            return held
        near = np.flatnonzero(held)
        if len(near):
            some = [column.take(pa.array(near)) for column in columns]
            exact = pc.is_in(_as_bytes(some), value_set=self.keys)
            held[near] = exact.to_numpy(zero_copy_only=False)
        return held


@dataclass(frozen=True, slots=True)
class RowSlice:
    """One of `slices` parts of the rows of a relation, by the hash of their keys: `number`, from 0.

    Keys of integers are hashed as int64, so a key has the same slice in any integer type.
    """

    number: int
    slices: int

    def rows(self, keys: Sequence[str], batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the slice, of a batch that holds the key columns."""
        row_codes, _ = codes([batch.column(name) for name in keys])
        hashes = xx_array(row_codes.view(np.uint64), np.uint64(_SEED))
        return batch.filter(pa.array(hashes % np.uint64(self.slices) == self.number))


def _is_own_code(kind: pa.DataType) -> bool:
    types = pa.types
    is_time = types.is_date32(kind) or types.is_timestamp(kind)
    return bool(types.is_boolean(kind) or types.is_signed_integer(kind) or is_time)


def _integers(column: pa.Array) -> Integers:
    """Return values of fixed width as int64 [rows], by their bits; anything where NULL."""
    if not len(column):
        return np.zeros(0, np.int64)
    if pa.types.is_boolean(column.type):
        return bits_of(column.buffers()[1], column).astype(np.int64)
    return items_of(column, _BITS[column.type.bit_width]).astype(np.int64)


def _words(column: pa.Array) -> list[U64]:
    """Return uint64 [rows] each, which together tell values apart (long values by their hash)."""
    if pa.types.is_decimal128(column.type):
        words = items_of(column, np.uint64, 2).reshape(-1, 2)
        return [words[:, 0].copy(), words[:, 1].copy()]
    if pa.types.is_primitive(column.type):
        return [_integers(column).view(np.uint64)]
    ragged = _ragged(column)
    sizes = np.minimum(ragged.sizes, KEY_BYTES_MAX)  # a longer value has the code of its beginning
    return [hash_spans(ragged.data, ragged.starts, sizes, _SEED).view(np.uint64)]


def _ragged(column: pa.Array) -> RaggedColumn:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return ragged_of(column.cast(pa.large_string() if is_text else pa.large_binary()))


def _as_bytes(columns: Sequence[pa.Array]) -> pa.Array:
    """Return keys as bytes, binary [rows]: two are equal only if all their values are."""
    if len(columns) == 1 and pa.types.is_binary(columns[0].type):
        return columns[0]
    parts = []
    for column in columns:
        if pa.types.is_primitive(column.type):
            data = _integers(column).view(np.uint8)
            parts.append(RaggedColumn(np.full(len(column), 8, np.int32), data))
        else:
            parts.append(_ragged(column))
    return array_of_block(join(parts))


def array_of_block(block: Block) -> pa.Array:
    """Return the rows of a block as an array, binary [rows]."""
    offsets = pa.py_buffer(block.starts.astype(np.int32))
    data = pa.py_buffer(np.ascontiguousarray(block.buffer))
    return pa.Array.from_buffers(pa.binary(), len(block), [None, offsets, data])
