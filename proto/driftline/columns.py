"""Rows as bytes, columns as bytes, and the way between them (protocol, section 3).

Row bytes are what is fingerprinted; ragged columns are what is shipped, compressed and turned into
Arrow. `split` and `join` are exact inverses and work on whole blocks with numpy: per column, and
per value only where values are long, because an index for each byte would take eight times the
memory. Input of `split` comes from the engine beside us and is trusted to be tuples of the recipe;
input of `join` comes from a frame, whose lengths `frames` has checked.

Rejected: a per-row `struct` loop (30 times slower) and Arrow on the source side (a 100 MB wheel).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from driftline.arrays import I32, Bools, Bytes, Integers

NULL = -1  # the length of a value that is not there
SLICED_BYTES = 64  # average length from which on values are cut out one by one
SPANS_AT_ONCE = 4096  # of short values: their indices, 16 bytes for each byte, stay in cache


@dataclass(frozen=True, slots=True)
class Ragged:
    """One column of a block.

    lengths: int32 [rows], -1 is NULL. data: uint8 [sum of the lengths], the values end to end.
    """

    lengths: I32
    data: Bytes

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sizes(self) -> Integers:
        """int64 [rows]: bytes of each value, 0 for NULL."""
        return np.maximum(self.lengths, 0).astype(np.int64)

    @property
    def starts(self) -> Integers:
        """int64 [rows]: where each value begins in `data`."""
        sizes = self.sizes
        return np.cumsum(sizes) - sizes

    def take(self, rows: Integers | Bools) -> Ragged:
        """The column with only those rows, in that order."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        sizes = self.sizes[rows]
        return Ragged(self.lengths[rows], pick(self.data, self.starts[rows], sizes))


@dataclass(frozen=True, slots=True)
class Block:
    """Rows end to end.

    buffer: uint8; starts: int64 [rows + 1], row i is [starts[i], starts[i+1]).
    """

    buffer: Bytes
    starts: Integers

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self) -> list[bytes]:
        """Every row's bytes."""
        whole = self.buffer.tobytes()
        cuts = self.starts.tolist()
        return [whole[a:b] for a, b in pairwise(cuts)]

    def cut(self, first: int, end: int) -> Block:
        """Rows [first, end), sharing this block's buffer."""
        begin, stop = self.starts[first], self.starts[end]
        return Block(self.buffer[begin:stop], self.starts[first : end + 1] - begin)

    def take(self, rows: Integers | Bools) -> Block:
        """The block with only those rows, in that order."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        sizes = self.starts[1:][rows] - self.starts[:-1][rows]
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        return Block(pick(self.buffer, self.starts[:-1][rows], sizes), starts)


def spans(starts: Integers, sizes: Integers) -> Integers:
    """int64 [sum of sizes]: the indices starts[i], starts[i]+1, … of every span, end to end."""
    total = int(sizes.sum())
    if total == 0:
        return np.zeros(0, np.int64)
    ends = np.cumsum(sizes)
    indices = np.repeat(starts - (ends - sizes), sizes)
    indices += np.arange(total, dtype=np.int64)
    return indices


def pick(buffer: Bytes, starts: Integers, sizes: Integers) -> Bytes:
    """The spans of the buffer, end to end."""
    if not _are_long(sizes):
        out = np.empty(int(sizes.sum()), np.uint8)
        at = 0
        for i in range(0, len(sizes), SPANS_AT_ONCE):
            indices = spans(starts[i : i + SPANS_AT_ONCE], sizes[i : i + SPANS_AT_ONCE])
            out[at : at + len(indices)] = buffer[indices]
            at += len(indices)
        return out
    whole = buffer.tobytes()
    pairs = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    return np.frombuffer(b"".join([whole[a:b] for a, b in pairs]), np.uint8)


def _put(buffer: Bytes, starts: Integers, sizes: Integers, data: Bytes) -> None:
    """Write the spans of the buffer: the inverse of `pick`."""
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
    """Whether a slice for each span costs less than an index (8 bytes, twice) for each byte."""
    return bool(sizes.sum() >= SLICED_BYTES * max(len(sizes), 1))


def gather(rows: Sequence[bytes]) -> Block:
    """Rows from an engine as one block."""
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=starts[1:])
    return Block(np.frombuffer(b"".join(rows), np.uint8), starts)


def int32_at(buffer: Bytes, at: Integers) -> I32:
    """The big-endian int32 at each offset."""
    view = np.lib.stride_tricks.sliding_window_view(buffer, 4)
    return np.ascontiguousarray(view[at]).view(">i4").reshape(-1).astype(np.int32)


def value_spans(block: Block, columns: int) -> list[tuple[Integers, I32]]:
    """Where the values of the first `columns` columns stand: per column (starts, lengths)."""
    found = []
    at = block.starts[:-1] + 2
    for _ in range(columns):
        lengths = int32_at(block.buffer, at) if len(at) else np.zeros(0, np.int32)
        found.append((at + 4, lengths))
        at = at + 4 + np.maximum(lengths, 0)
    return found


def split(block: Block, columns: int) -> list[Ragged]:
    """The block's columns, `columns` of them, in tuple order."""
    parts = []
    for starts, lengths in value_spans(block, columns):
        sizes = np.maximum(lengths, 0).astype(np.int64)
        parts.append(Ragged(lengths, pick(block.buffer, starts, sizes)))
    return parts


def join(columns: Sequence[Ragged]) -> Block:
    """Row bytes from columns: the inverse of `split`."""
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


def concatenate(parts: Sequence[Ragged]) -> Ragged:
    """Columns of several blocks as one."""
    return Ragged(
        np.concatenate([p.lengths for p in parts]), np.concatenate([p.data for p in parts])
    )
