"""Convert rows to columns and back, as bytes (protocol, section 3).

Row bytes are fingerprinted; ragged columns are compressed, sent and converted to Arrow. `split` and
`join` are exact inverses and work on whole blocks with numpy: column by column, and value by value
only where values are long, because an index per byte takes eight times the memory. `split` trusts
its input, the tuples of an engine; `join` gets columns whose lengths `frames` has checked.

Rejected: a `struct` loop over rows (30 times slower) and Arrow at the source (a 100 MB wheel).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from driftline.arrays import I32, Bools, Bytes, Integers

NULL = -1  # the length of a NULL
SLICED_BYTES = 64  # average length from which values are copied one by one
ALIKE_BYTES_MAX = 1024  # values of one length up to this are copied by numpy, all at once
SPANS_AT_ONCE = 4096  # short values: their indices, 16 bytes per byte, stay in the cache


@dataclass(frozen=True, slots=True)
class RaggedColumn:
    """One column of a block.

    lengths: int32 [rows], NULL where there is no value. data: uint8 [sum of lengths], the values
    end to end.
    """

    lengths: I32
    data: Bytes

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sizes(self) -> Integers:
        """Bytes of each value, int64 [rows]; 0 for NULL."""
        return np.maximum(self.lengths, 0).astype(np.int64)

    @property
    def starts(self) -> Integers:
        """Offset of each value in `data`, int64 [rows]."""
        sizes = self.sizes
        return np.cumsum(sizes) - sizes

    def cut(self, first: int, end: int) -> RaggedColumn:
        """Return rows first to end (exclusive); they share this column's data."""
        sizes = self.sizes
        begin = int(sizes[:first].sum())
        stop = begin + int(sizes[first:end].sum())
        return RaggedColumn(self.lengths[first:end], self.data[begin:stop])


@dataclass(frozen=True, slots=True)
class Block:
    """Rows end to end: row i is buffer[starts[i]:starts[i + 1]]; starts is int64 [rows + 1]."""

    buffer: Bytes
    starts: Integers

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self) -> list[bytes]:
        """Return the bytes of each row."""
        whole = self.buffer.tobytes()
        return [whole[a:b] for a, b in pairwise(self.starts.tolist())]

    def cut(self, first: int, end: int) -> Block:
        """Return rows first to end (exclusive); they share this block's buffer."""
        begin, stop = self.starts[first], self.starts[end]
        return Block(self.buffer[begin:stop], self.starts[first : end + 1] - begin)

    def take(self, rows: Integers | Bools) -> Block:
        """Return only these rows: numbers in any order, int64 [n], or a mask, bool [rows]."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        sizes = self.starts[1:][rows] - self.starts[:-1][rows]
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        return Block(pick(self.buffer, self.starts[:-1][rows], sizes), starts)


def spans(starts: Integers, sizes: Integers) -> Integers:
    """Return the indices of every byte of every span, in order, int64 [sum of sizes]."""
    total = int(sizes.sum())
    if total == 0:
        return np.zeros(0, np.int64)
    ends = np.cumsum(sizes)
    indices = np.repeat(starts - (ends - sizes), sizes)
    indices += np.arange(total, dtype=np.int64)
    return indices


def pick(buffer: Bytes, starts: Integers, sizes: Integers) -> Bytes:
    """Return the spans of a buffer end to end, uint8 [sum of sizes]."""
    if len(sizes) and 0 < (width := int(sizes[0])) <= ALIKE_BYTES_MAX and (sizes == width).all():
        return _windows(buffer, width)[starts].view(np.uint8)
    if not _are_long(sizes):
        out = np.empty(int(sizes.sum()), np.uint8)
        at = 0
        for i in range(0, len(sizes), SPANS_AT_ONCE):
            indices = spans(starts[i : i + SPANS_AT_ONCE], sizes[i : i + SPANS_AT_ONCE])
            out[at : at + len(indices)] = buffer[indices]
            at += len(indices)
        return out
    # A slice of bytes is faster than one of a view, but the copy is of the whole buffer.
    is_most = 2 * int(sizes.sum()) > len(buffer)
    whole = buffer.tobytes() if is_most else np.ascontiguousarray(buffer).data
    pairs = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    return np.frombuffer(b"".join([whole[a:b] for a, b in pairs]), np.uint8)


def _put(buffer: Bytes, starts: Integers, sizes: Integers, data: Bytes) -> None:
    """Write data into the spans of a buffer: the inverse of `pick`."""
    at = 0
    if not _are_long(sizes):
        for i in range(0, len(sizes), SPANS_AT_ONCE):
            indices = spans(starts[i : i + SPANS_AT_ONCE], sizes[i : i + SPANS_AT_ONCE])
            buffer[indices] = data[at : at + len(indices)]
            at += len(indices)
        return
    view, whole = buffer.data, data.tobytes()
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        view[start : start + size] = whole[at : at + size]
        at += size


def _are_long(sizes: Integers) -> bool:
    """Return True if one slice per span costs less than an index (8 bytes, twice) per byte."""
    return bool(sizes.sum() >= SLICED_BYTES * max(len(sizes), 1))


def gather(rows: Sequence[bytes]) -> Block:
    """Return the rows of an engine as one block."""
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=starts[1:])
    return Block(np.frombuffer(b"".join(rows), np.uint8), starts)


def stacked(blocks: Sequence[Block]) -> Block:
    """Return the rows of all blocks as one."""
    sizes = [np.diff(block.starts) for block in blocks]
    starts = np.zeros(sum(map(len, sizes)) + 1, np.int64)
    if blocks:
        np.cumsum(np.concatenate(sizes), out=starts[1:])
    empty = np.zeros(0, np.uint8)
    return Block(np.concatenate([empty, *(b.buffer[: b.starts[-1]] for b in blocks)]), starts)


def integers_at(buffer: Bytes, at: Integers, width: int) -> npt.NDArray[np.signedinteger]:
    """Return the big-endian integer of 2, 4 or 8 bytes at each offset, [n] of that width."""
    if not len(at):
        return np.zeros(0, f">i{width}")
    return _windows(buffer, width)[at].view(f">i{width}")


def _windows(buffer: Bytes, width: int) -> npt.NDArray[np.void]:
    """Return the `width` bytes that begin at each place of a buffer, [bytes - width + 1]."""
    whole = np.ascontiguousarray(buffer)
    return np.ndarray((len(whole) - width + 1,), f"V{width}", whole, strides=(1,))


def value_spans(block: Block, columns: int) -> list[tuple[Integers, I32]]:
    """Return (starts, lengths), [rows] each, of the values of each of the first columns."""
    return spans_at(block.buffer, block.starts[:-1] + 2, columns)  # behind the number of columns


def spans_at(buffer: Bytes, at: Integers, columns: int) -> list[tuple[Integers, I32]]:
    """Return (starts, lengths), [n] each, of values that follow each other from these offsets."""
    pairs = []
    for _ in range(columns):
        lengths = integers_at(buffer, at, 4).astype(np.int32)
        pairs.append((at + 4, lengths))
        at = at + 4 + np.maximum(lengths, 0)
    return pairs


def split(block: Block, columns: int) -> list[RaggedColumn]:
    """Return the columns of a block in tuple order."""
    parts = []
    for starts, lengths in value_spans(block, columns):
        sizes = np.maximum(lengths, 0).astype(np.int64)
        parts.append(RaggedColumn(lengths, pick(block.buffer, starts, sizes)))
    return parts


def join(columns: Sequence[RaggedColumn]) -> Block:
    """Return row bytes made of columns: the inverse of `split`."""
    rows = len(columns[0])
    sizes = [c.sizes for c in columns]
    starts = np.zeros(rows + 1, np.int64)
    np.cumsum(sum(sizes, np.full(rows, 2 + 4 * len(columns), np.int64)), out=starts[1:])
    buffer = np.empty(int(starts[-1]), np.uint8)
    at = starts[:-1].copy()
    _put_fixed(buffer, at, np.full(rows, len(columns), ">u2").view(np.uint8).reshape(-1, 2))
    at += 2
    for column, size in zip(columns, sizes, strict=True):
        header = column.lengths.astype(">i4").view(np.uint8).reshape(-1, 4)
        _put_fixed(buffer, at, header)
        at += 4
        if rows and size.min() == size.max() and size[0] <= 16:
            _put_fixed(buffer, at, column.data.reshape(rows, int(size[0])))
        else:
            _put(buffer, at, size, column.data)
        at += size
    return Block(buffer, starts)


def _put_fixed(buffer: Bytes, at: Integers, values: Bytes) -> None:
    """Write values [rows, width] at the offsets, plane by plane."""
    for j in range(values.shape[1]):
        buffer[at + j] = values[:, j]
