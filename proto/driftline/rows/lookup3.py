"""PostgreSQL's 64-bit hash of bytes, for many spans at once (protocol, section 5).

This is `hash_bytes_extended` of PostgreSQL's `hashfn.c` as little-endian machines compute it:
lookup3 by Bob Jenkins (2006, public domain) after mixing in a 64-bit seed. `hashtextextended` and
`hashbyteaextended` return it, so a row hash made inside the database can be computed from row
bytes, bit for bit. It detects accidents; it is no keyed hash against attacks.

Each 12 bytes take sixty array operations, a hundredth of the time of a Python loop over values.
Where only FEW spans still have bytes, Python integers are faster and hash them one by one.
"""

from __future__ import annotations

from struct import iter_unpack
from typing import Final

import numpy as np

from driftline.arrays import U32, U64, Bytes, Integers

CHUNK_BYTES: Final = 12
FEW: Final = 8  # with twice as many, both ways take as long
_M32: Final = 0xFFFFFFFF
_START: Final = np.uint32(0x9E3779B9 + 3923095 & 0xFFFFFFFF)

# Masks of the bits of the last chunk's three words by its length, uint32 [12, 3].
_TAILS: Final = np.array(
    [[(1 << 8 * min(max(size - 4 * i, 0), 4)) - 1 for i in range(3)] for size in range(12)],
    np.uint32,
)


def hash_spans(buffer: Bytes, starts: Integers, sizes: Integers, seeds: U64) -> U64:
    """Return the hash of each span of the buffer under its own seed, uint64 [n]; sizes may be 0."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    state = [sizes.astype(np.uint32) + _START for _ in range(3)]
    _seed(state, seeds)
    padded = np.concatenate([buffer, np.zeros(CHUNK_BYTES, np.uint8)])
    chunks = np.lib.stride_tricks.sliding_window_view(padded, CHUNK_BYTES)
    whole = sizes // CHUNK_BYTES
    fewest, most = int(whole.min()) if len(starts) > FEW else 0, int(whole.max())
    for number in range(fewest):  # every span has this chunk
        _add(state, _words(chunks, starts + number * CHUNK_BYTES))
        _mix(state)
    for number in range(fewest, most):
        live = np.flatnonzero(whole > number)
        if len(live) <= FEW:
            for i in live.tolist():
                begin = int(starts[i])
                left = slice(begin + number * CHUNK_BYTES, begin + int(whole[i]) * CHUNK_BYTES)
                _mix_one(state, i, padded[left])
            break
        part = [word[live] for word in state]
        _add(part, _words(chunks, starts[live] + number * CHUNK_BYTES))
        _mix(part)
        for word, mixed in zip(state, part, strict=True):
            word[live] = mixed
    tail = whole * CHUNK_BYTES
    words = _words(chunks, starts + tail) & _TAILS[sizes - tail]
    words[:, 2] <<= np.uint32(8)  # the lowest byte of the last word is reserved
    _add(state, words)
    _final(state)
    return state[1].astype(np.uint64) << np.uint64(32) | state[2]


def hash_words(values: U32, seeds: U64) -> U64:
    """Return the hash of each value's four bytes, lowest first, uint64 [n] (`hashint4extended`)."""
    state = [np.full(len(values), _START + np.uint32(4), np.uint32) for _ in range(3)]
    _seed(state, seeds)
    state[0] += values
    _final(state)
    return state[1].astype(np.uint64) << np.uint64(32) | state[2]


def _seed(state: list[U32], seeds: U64) -> None:
    before = [word.copy() for word in state]
    state[0] += (seeds >> np.uint64(32)).astype(np.uint32)
    state[1] += seeds.astype(np.uint32)
    _mix(state)
    if not seeds.all():  # a seed of zero means: no seed
        for word, unseeded in zip(state, before, strict=True):
            np.copyto(word, unseeded, where=seeds == 0)


def _words(chunks: Bytes, at: Integers) -> U32:
    """Return twelve bytes from each offset as little-endian words, uint32 [n, 3]."""
    return np.ascontiguousarray(chunks[at]).view("<u4").astype(np.uint32, copy=False)


def _add(state: list[U32], words: U32) -> None:
    for i in range(3):
        state[i] += words[:, i]


def _rotated(word: U32, by: int) -> U32:
    rotated = word << np.uint32(by)
    rotated |= word >> np.uint32(32 - by)
    return rotated


def _mix(state: list[U32]) -> None:
    a, b, c = state
    for by in (4, 6, 8, 16, 19, 4):
        a -= c
        a ^= _rotated(c, by)
        c += b
        a, b, c = b, c, a
    # After six turns the names are where they began.


def _mix_one(state: list[U32], at: int, chunks: Bytes) -> None:
    """Add and mix the further chunks of one span: the Python form of `_add` and `_mix`."""
    a, b, c = (int(word[at]) for word in state)
    for x, y, z in iter_unpack("<3I", chunks.data):
        b += y
        c = c + z & _M32
        a = (a + x - c ^ (c << 4 | c >> 28)) & _M32
        c += b
        b = (b - a ^ (a << 6 | a >> 26)) & _M32
        a += c
        c = (c - b ^ (b << 8 | b >> 24)) & _M32
        b += a
        a = (a - c ^ (c << 16 | c >> 16)) & _M32
        c += b
        b = (b - a ^ (a << 19 | a >> 13)) & _M32
        a = a + c & _M32
        c = (c - b ^ (b << 4 | b >> 28)) & _M32
        b = b + a & _M32
    for word, mixed in zip(state, (a, b, c), strict=True):
        word[at] = mixed


def _final(state: list[U32]) -> None:
    a, b, c = state
    for by in (14, 11, 25, 16, 4, 14, 24):
        c ^= b
        c -= _rotated(b, by)
        a, b, c = b, c, a
