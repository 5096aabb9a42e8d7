"""Arrow's buffers as numpy arrays, and numpy arrays as Arrow arrays, without a copy where possible.

Arrow arrays from Spark are sliced (an offset into every buffer), have a validity bitmap or none,
and may keep bytes where a value is NULL. The arrays that this module returns are dense.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from driftline.arrays import Bools, Bytes
from driftline.rows.columns import NULL, RaggedColumn, spans

Items = npt.NDArray[Any]  # of the dtype that the column's type says


def array_of(type: pa.DataType, present: Bools, *buffers: Items) -> pa.Array:
    """Build an array from its data buffers; `present`, bool [rows], is its validity bitmap."""
    nulls = len(present) - int(np.count_nonzero(present))
    bitmap = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
    held = [pa.py_buffer(np.ascontiguousarray(buffer)) for buffer in buffers]
    return pa.Array.from_buffers(type, len(present), [bitmap, *held], null_count=nulls)


def variable_array_of(type: pa.DataType, present: Bools, sizes: Items, data: Bytes) -> pa.Array:
    """Build an array of a string or binary type with int32 offsets from the bytes of each value,
    `sizes` [rows], 0 for NULL, and the values end to end, uint8 [sum of the sizes]."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return array_of(type, present, offsets, data)


def spread(items: Items, present: Bools) -> Items:
    """Return one entry per row, [rows, …], from one per value, [values, …]; zero where NULL."""
    if len(items) == len(present):
        return items
    rows = np.zeros((len(present), *items.shape[1:]), items.dtype)
    rows[present] = items
    return rows


def present_in(array: pa.Array) -> Bools:
    """Return which values are not NULL, bool [rows]."""
    bitmap = array.buffers()[0]
    return np.ones(len(array), np.bool_) if bitmap is None else bits_of(bitmap, array)


def bits_of(buffer: pa.Buffer, array: pa.Array) -> Bools:
    """Return the bits of one of the array's buffers, bool [rows]."""
    packed = np.frombuffer(buffer, np.uint8)
    start = array.offset // 8
    bits = np.unpackbits(packed[start:], count=array.offset % 8 + len(array), bitorder="little")
    return bits[array.offset % 8 :].view(np.bool_)


def items_of(array: pa.Array, form: npt.DTypeLike, width: int = 1) -> Items:
    """Return the array's data buffer, [rows · width] items, without what the slice left out."""
    if len(array) == 0:
        return np.zeros(0, form)
    items = np.frombuffer(array.buffers()[1], form)
    return items[array.offset * width : (array.offset + len(array)) * width]


def ragged_of(array: pa.Array) -> RaggedColumn:
    """Return the values of an array of large_string or large_binary."""
    if len(array) == 0:
        return RaggedColumn(np.zeros(0, np.int32), np.zeros(0, np.uint8))
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset :][: len(array) + 1]
    octets = np.frombuffer(data_buffer or b"", np.uint8)
    sizes, present = np.diff(offsets), present_in(array)
    lengths = np.where(present, sizes, NULL).astype(np.int32)
    if not sizes[~present].any():
        return RaggedColumn(lengths, octets[offsets[0] : offsets[-1]])
    # Arrow lets a NULL have bytes.
    return RaggedColumn(lengths, octets[spans(offsets[:-1][present], sizes[present])])
