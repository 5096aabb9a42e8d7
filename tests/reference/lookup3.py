"""The reference for database fingerprints (protocol, section 5): one value at a time.

Written from the description of lookup3 (Bob Jenkins, 2006) as PostgreSQL's `hashfn.c` uses it, in
integers of any size that are cut to 32 bits where a register would overflow.
"""

from __future__ import annotations

from tests.reference.rows import Row

M32 = 0xFFFFFFFF


def _rotate(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & M32


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    a = (a - c & M32) ^ _rotate(c, 4)
    c = c + b & M32
    b = (b - a & M32) ^ _rotate(a, 6)
    a = a + c & M32
    c = (c - b & M32) ^ _rotate(b, 8)
    b = b + a & M32
    a = (a - c & M32) ^ _rotate(c, 16)
    c = c + b & M32
    b = (b - a & M32) ^ _rotate(a, 19)
    a = a + c & M32
    c = (c - b & M32) ^ _rotate(b, 4)
    b = b + a & M32
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int, int]:
    c = (c ^ b) - _rotate(b, 14) & M32
    a = (a ^ c) - _rotate(c, 11) & M32
    b = (b ^ a) - _rotate(a, 25) & M32
    c = (c ^ b) - _rotate(b, 16) & M32
    a = (a ^ c) - _rotate(c, 4) & M32
    b = (b ^ a) - _rotate(a, 14) & M32
    c = (c ^ b) - _rotate(b, 24) & M32
    return a, b, c


def hash_bytes(data: bytes, seed: int) -> int:
    """64 unsigned bits; `seed` as well."""
    a = b = c = 0x9E3779B9 + len(data) + 3923095 & M32
    if seed:
        a, b, c = _mix(a + (seed >> 32) & M32, b + (seed & M32) & M32, c)
    while len(data) >= 12:
        words = [int.from_bytes(data[i : i + 4], "little") for i in (0, 4, 8)]
        a, b, c = _mix(a + words[0] & M32, b + words[1] & M32, c + words[2] & M32)
        data = data[12:]
    a = a + int.from_bytes(data[:4], "little") & M32
    b = b + int.from_bytes(data[4:8], "little") & M32
    c = c + (int.from_bytes(data[8:], "little") << 8) & M32
    a, b, c = _final(a, b, c)
    return b << 32 | c


def row_hash(row: Row, seed: int) -> int:
    """The fingerprint of a row under 64 unsigned bits."""
    state = seed
    for first in range(0, len(row), 31):
        nulls = sum(1 << i for i, value in enumerate(row[first : first + 31]) if value is None)
        state = hash_bytes(nulls.to_bytes(4, "little"), state)
    for value in row:
        state = hash_bytes(value or b"", state)
    return state
