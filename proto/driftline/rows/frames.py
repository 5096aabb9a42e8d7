"""Frames: blocks of rows as columns in byte planes, compressed by zstd (protocol, section 8).

On 750,000 TPC-H orders, COPY tuples under zstd -3 take 26 MB, the same rows in columns and byte
planes 18 MB. A frame decodes on its own and carries the digest of its rows, so frames staged before
a lost connection can be verified without later ones.

The bytes may be hostile: `decode` checks every count and length before it allocates.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import zstandard

from driftline.arrays import U64, Bytes
from driftline.errors import FrameDamaged
from driftline.limits import (
    COLUMNS_MAX,
    FRAME_BODY_BYTES_MAX,
    FRAME_ROWS_MAX,
    ROW_BYTES_MAX,
)
from driftline.rows.columns import Block, RaggedColumn, join, split
from driftline.rows.digests import Digest, Salt, mix
from driftline.values.types import Recipe

MAGIC = b"DLF1"
_HEADER = struct.Struct("<4sIHQQQQI")
FIXED, PLANES, PLAIN = 0, 1, 2
PLANE_BYTES_MAX = 48  # longer values do not compress better in planes
ZSTD_HEADER_BYTES = 18  # at most
ZSTD_SHARE, ZSTD_BYTES = 128, 512  # incompressible data grows by less than 1/128 + 512 bytes
SAMPLE_ROWS, SAMPLE_LEVEL = 1024, 3  # to choose the layout of a text column
_TEXT = frozenset({"text", "jsonb"})

Fingerprints = Callable[[Iterable[bytes]], tuple[U64, U64]]


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame: its columns in tuple order and the digest that its sender declared."""

    columns: list[RaggedColumn]
    salt: Salt
    digest: Digest

    def __len__(self) -> int:
        return len(self.columns[0])


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A frame's header: number of columns, digest of its rows under a salt, bytes unpacked."""

    columns: int
    salt: Salt
    digest: Digest
    body_bytes: int


def encode(block: Block, recipe: Recipe, salt: Salt, digest: Digest, *, level: int) -> bytes:
    """Return the frame of a block of 1 to FRAME_ROWS_MAX rows, whose digest under `salt` is
    `digest`; `level` is zstd's, 1–19."""
    columns = split(block, len(recipe.columns))
    body = b"".join(
        _encode_column(data, column.type.kind in _TEXT)
        for data, column in zip(columns, recipe.columns, strict=True)
    )
    header = _HEADER.pack(
        MAGIC,
        len(block),
        len(columns),
        salt.s0,
        salt.s1,
        digest.sum & (1 << 64) - 1,
        digest.sum >> 64,
        len(body),
    )
    return header + zstandard.ZstdCompressor(level=level).compress(body)


def decode(data: bytes) -> Frame:
    """Return the frame in these bytes, before `verify`; raise FrameDamaged if they are no frame."""
    declared = head(data)
    packed, size = data[_HEADER.size :], max(declared.body_bytes, 1)
    try:
        body = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    except zstandard.ZstdError as error:
        raise FrameDamaged(f"A frame's body does not decompress: {error}.") from None
    reader = _Reader(body)
    rows = declared.digest.count
    decoded = [_decode_column(reader, rows) for _ in range(declared.columns)]
    if reader.bytes_left:
        raise FrameDamaged(f"{reader.bytes_left} bytes follow the last column of a frame.")
    return Frame(decoded, declared.salt, declared.digest)


def head(data: bytes) -> FrameHeader:
    """Read the header of a frame without unpacking its body.

    Raises FrameDamaged if the bytes are no frame, or its sizes contradict each other.
    """
    if len(data) < _HEADER.size:
        raise FrameDamaged("A frame is shorter than its header.")
    magic, rows, columns, s0, s1, low, high, body_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC or not 1 <= rows <= FRAME_ROWS_MAX or not 1 <= columns <= COLUMNS_MAX:
        raise FrameDamaged("A frame has a header that no sender writes.")
    # Empty columns still have lengths, so both sizes bound what is allocated.
    if max(body_bytes, rows * (2 + 4 * columns)) > FRAME_BODY_BYTES_MAX:
        raise FrameDamaged(f"A frame of {body_bytes} bytes is larger than any row.")
    packed = len(data) - _HEADER.size
    if packed > body_bytes + body_bytes // ZSTD_SHARE + ZSTD_BYTES:
        raise FrameDamaged(f"A frame of {body_bytes} bytes takes {packed} packed.")
    try:
        size = zstandard.frame_content_size(data[_HEADER.size : _HEADER.size + ZSTD_HEADER_BYTES])
    except zstandard.ZstdError as error:
        raise FrameDamaged(f"A frame's body does not decompress: {error}.") from None
    if size != body_bytes:
        raise FrameDamaged("A frame's body has another size than its header says.")
    return FrameHeader(columns, Salt(s0, s1), Digest(rows, (high << 64) + low), body_bytes)


def verify(
    frame: Frame, fingerprints: Fingerprints, join: Callable[[Sequence[RaggedColumn]], Block] = join
) -> tuple[Block, U64, U64]:
    """Return row bytes and fingerprints (hi, lo), uint64 [rows] each; raise FrameDamaged if they
    do not match the frame's digest. `join` makes row bytes of columns."""
    block = join(frame.columns)
    hi, lo = fingerprints(block.rows())
    if mix(frame.salt, hi, lo).digest() != frame.digest:
        raise FrameDamaged("The rows of a frame are not those that its sender digested.")
    return block, hi, lo


def _encode_column(column: RaggedColumn, is_text: bool) -> bytes:
    longest, shortest = int(column.lengths.max()), int(column.lengths.min())
    if longest > PLANE_BYTES_MAX or (is_text and not _is_worth_planes(column)):
        return struct.pack("<B", PLAIN) + _lengths(column) + column.data.tobytes()
    if longest == shortest and longest >= 0:
        return struct.pack("<BI", FIXED, longest) + _planes(column)
    return struct.pack("<B", PLANES) + _lengths(column) + _planes(column)


def _lengths(column: RaggedColumn) -> bytes:
    square = column.lengths.astype("<i4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(square.T).tobytes()


def _planes(column: RaggedColumn) -> bytes:
    lengths, longest = column.lengths, int(column.lengths.max())
    if int(lengths.min()) == longest >= 0:
        return np.ascontiguousarray(column.data.reshape(len(column), longest).T).tobytes()
    starts = column.starts
    return b"".join(column.data[starts[lengths > j] + j].tobytes() for j in range(longest))


def _is_worth_planes(column: RaggedColumn) -> bool:
    """Return True if the first values of a text column compress better in planes: words do not;
    numbers, dates and identifiers do, by a tenth to a third."""
    lengths = column.lengths[:SAMPLE_ROWS]
    sample = RaggedColumn(lengths, column.data[: int(np.maximum(lengths, 0).sum())])
    pack = zstandard.ZstdCompressor(level=SAMPLE_LEVEL).compress
    return len(pack(_planes(sample))) < len(pack(sample.data.tobytes()))


class _Reader:
    """Take pieces off a body, never beyond its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def bytes_left(self) -> int:
        return len(self._body) - self._at

    def take(self, count: int) -> Bytes:
        if not 0 <= count <= self.bytes_left:
            raise FrameDamaged("A frame ends in the middle of a column.")
        piece = np.frombuffer(self._body, np.uint8, count, self._at)
        self._at += count
        return piece


def _decode_column(reader: _Reader, rows: int) -> RaggedColumn:
    layout = int(reader.take(1)[0])
    if layout == FIXED:
        width = int(reader.take(4).view("<u4")[0])
        if width > PLANE_BYTES_MAX:
            raise FrameDamaged(f"A fixed column of width {width} is not allowed.")
        data = np.ascontiguousarray(reader.take(rows * width).reshape(width, rows).T)
        return RaggedColumn(np.full(rows, width, np.int32), data.reshape(-1))
    if layout not in (PLANES, PLAIN):
        raise FrameDamaged(f"Layout {layout} of a column is unknown.")
    planes = reader.take(4 * rows).reshape(4, rows)
    lengths = np.ascontiguousarray(planes.T).view("<i4").reshape(-1).astype(np.int32)
    if int(lengths.min()) < -1 or int(lengths.max()) > ROW_BYTES_MAX:
        raise FrameDamaged("A column has a length that no value has.")
    total = int(np.maximum(lengths, 0).sum(dtype=np.int64))
    if total > reader.bytes_left:
        raise FrameDamaged("A frame ends in the middle of a column.")
    if layout == PLAIN:
        return RaggedColumn(lengths, reader.take(total))
    if int(lengths.max()) > PLANE_BYTES_MAX:
        raise FrameDamaged("A column in planes has a value too long for them.")
    data = np.empty(total, np.uint8)
    column = RaggedColumn(lengths, data)
    starts = column.starts
    for j in range(int(lengths.max())):
        at = starts[lengths > j] + j
        data[at] = reader.take(len(at))
    return column
