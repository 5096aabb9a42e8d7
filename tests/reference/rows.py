"""The reference for protocol sections 3 and 4: row bytes, key bytes and positions, one at a time.

A row is a list of values in tuple order, each its bytes or None. Written from the text of the
protocol with `struct` and integers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from blake3 import blake3

from tests.reference.digests import xx

Row = Sequence[bytes | None]

INTEGER_FORMATS = {"int2": ">h", "int4": ">i", "int8": ">q"}


def row_bytes(row: Row) -> bytes:
    """A tuple of COPY's binary format."""
    return struct.pack(">h", len(row)) + fields(row)


def fields(values: Row) -> bytes:
    data = b""
    for value in values:
        if value is None:
            data += struct.pack(">i", -1)
        else:
            data += struct.pack(">i", len(value)) + value
    return data


def values_of(data: bytes) -> list[bytes | None]:
    """The values in row bytes."""
    (columns,) = struct.unpack(">h", data[:2])
    values: list[bytes | None] = []
    at = 2
    for _ in range(columns):
        (length,) = struct.unpack(">i", data[at : at + 4])
        at += 4
        if length == -1:
            values.append(None)
        else:
            values.append(data[at : at + length])
            at += length
    assert at == len(data)
    return values


def key_bytes(row: Row, key_columns: int) -> bytes:
    """The row bytes from offset 2 to the end of the last key column."""
    end = 2 + len(fields(row[:key_columns]))
    return row_bytes(row)[2:end]


def position(row: Row, types: Sequence[str], key_columns: int, fragment_key: bytes) -> int:
    """64 signed bits; no key column is NULL."""
    if key_columns == 1 and types[0] in INTEGER_FORMATS:
        assert row[0] is not None
        value: int = struct.unpack(INTEGER_FORMATS[types[0]], row[0])[0]
        return value
    key = key_bytes(row, key_columns)
    seed = blake3(b"driftline position 1", key=fragment_key).digest()[:8]
    return hash_key(key, int.from_bytes(seed, "little"))


def hash_key(key: bytes, seed: int) -> int:
    """Return the 64 signed bits that XXH64 over the length and the words of a key gives."""
    hashed = xx(len(key), seed)
    padded = key + bytes(-len(key) % 8)
    for at in range(0, len(padded), 8):
        hashed = xx(int.from_bytes(padded[at : at + 8], "little"), hashed)
    return hashed - 2**64 if hashed >= 2**63 else hashed
