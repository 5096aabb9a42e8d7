"""The reference for protocol section 8: frames, byte by byte.

Only what the section says; a receiver's limits are the product's business. Rows are lists of values
in tuple order, and any of the three layouts may be asked for, column by column.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import zstandard

from tests.reference.digests import Salt
from tests.reference.rows import Row

FIXED, PLANES, PLAIN = 0, 1, 2


def encode(
    rows: Sequence[Row],
    layouts: Sequence[int],
    salt: Salt,
    digest: tuple[int, int],
    *,
    level: int | None = 3,
) -> bytes:
    """A frame whose digest is (count, sum), true or not. Level None stores the body as it is."""
    body = b""
    for number, layout in enumerate(layouts):
        body += _encode_column([row[number] for row in rows], layout)
    header = b"DLF1"
    header += len(rows).to_bytes(4, "little") + len(layouts).to_bytes(2, "little")
    header += salt[0].to_bytes(8, "little") + salt[1].to_bytes(8, "little")
    header += (digest[1] % 2**64).to_bytes(8, "little") + (digest[1] >> 64).to_bytes(8, "little")
    header += len(body).to_bytes(4, "little")
    return header + (stored(body) if level is None else zstandard.compress(body, level))


def stored(body: bytes) -> bytes:
    """A zstd frame of raw blocks (RFC 8878): the same bytes whatever the library's version."""
    data = bytes.fromhex("28b52ffd" + "a0") + len(body).to_bytes(4, "little")
    for at in range(0, max(len(body), 1), 2**17):
        block = body[at : at + 2**17]
        is_last = at + 2**17 >= len(body)
        data += (is_last + 8 * len(block)).to_bytes(3, "little") + block
    return data


def _encode_column(values: Sequence[bytes | None], layout: int) -> bytes:
    data = bytes([layout])
    if layout == FIXED:
        assert values[0] is not None
        width = len(values[0])
        data += width.to_bytes(4, "little")
        for j in range(width):
            for value in values:
                assert value is not None
                assert len(value) == width
                data += value[j : j + 1]
        return data
    lengths = [struct.pack("<i", -1 if v is None else len(v)) for v in values]
    for j in range(4):
        for length in lengths:
            data += length[j : j + 1]
    there = [v for v in values if v is not None]
    if layout == PLAIN:
        return data + b"".join(there)
    for j in range(max(map(len, there), default=0)):
        for value in there:
            data += value[j : j + 1]
    return data


def decode(data: bytes) -> tuple[list[Row], Salt, tuple[int, int]]:
    """(rows, salt, digest) of a well-formed frame."""
    magic, count, columns, s0, s1, low, high, size = struct.unpack("<4sIHQQQQI", data[:46])
    assert magic == b"DLF1"
    body = zstandard.decompress(data[46:])
    assert len(body) == size
    parts = []
    for _ in range(columns):
        values, body = _decode_column(body, count)
        parts.append(values)
    assert body == b""
    rows: list[Row] = [[column[i] for column in parts] for i in range(count)]
    return rows, (s0, s1), (count, high * 2**64 + low)


def _decode_column(body: bytes, count: int) -> tuple[list[bytes | None], bytes]:
    layout, body = body[0], body[1:]
    if layout == FIXED:
        width, body = int.from_bytes(body[:4], "little"), body[4:]
        values = [bytes(body[j * count + i] for j in range(width)) for i in range(count)]
        return list(values), body[width * count :]
    head, body = body[: 4 * count], body[4 * count :]
    lengths = [
        struct.unpack("<i", bytes(head[j * count + i] for j in range(4)))[0] for i in range(count)
    ]
    found = [b"" for _ in lengths]
    if layout == PLAIN:
        for i, length in enumerate(lengths):
            if length > 0:
                found[i], body = body[:length], body[length:]
    else:
        assert layout == PLANES
        for j in range(max(0, *lengths)):
            for i, length in enumerate(lengths):
                if length > j:
                    found[i] += body[:1]
                    body = body[1:]
    nulls: list[bytes | None] = [
        None if n == -1 else v for n, v in zip(lengths, found, strict=True)
    ]
    return nulls, body
