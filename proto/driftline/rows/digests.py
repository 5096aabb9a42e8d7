"""Digests of sets of rows, and the mixing of fingerprints before they are summed (section 6).

A digest is a count and a sum modulo 2^128 of mixed fingerprints, so order does not matter and
digests of disjoint sets add. Mixing is XXH64 of the two lanes under a salt that is fresh for every
exchange; it is native in Spark SQL (`xxhash64`) and vectorised here. It is non-linear, so a writer
of source rows cannot prepare equal sums before the salt exists.

Rejected: XOR (duplicates cancel, and linear algebra finds collisions) and sums of unmixed
fingerprints (an accidental collision would repeat every night).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

import numpy as np

from driftline.arrays import U64

MASK64: Final = (1 << 64) - 1
MASK128: Final = (1 << 128) - 1

P1: Final = 0x9E3779B185EBCA87
P2: Final = 0xC2B2AE3D27D4EB4F
P3: Final = 0x165667B19E3779F9
P4: Final = 0x85EBCA77C2B2AE63
P5: Final = 0x27D4EB2F165667C5
SPARK_SEED: Final = 42  # of xxhash64 in Spark SQL


def xx(v: int, h: int) -> int:
    """Return XXH64 of one 8-byte integer under seed h, both unsigned."""
    t = (h + P5 + 8) & MASK64
    k = (v & MASK64) * P2 & MASK64
    t ^= ((k << 31 | k >> 33) & MASK64) * P1 & MASK64
    t = (((t << 27 | t >> 37) & MASK64) * P1 + P4) & MASK64
    t = (t ^ t >> 33) * P2 & MASK64
    t = (t ^ t >> 29) * P3 & MASK64
    return t ^ t >> 32


def xx_array(v: U64, h: U64 | np.uint64) -> U64:
    """Hash arrays like `xx`: v uint64 [n], h uint64 [n] or one seed; uint64 [n]."""
    u = np.uint64
    k = v * u(P2)
    k = (k << u(31)) | (k >> u(33))
    k *= u(P1)
    t = k ^ (np.asarray(h, np.uint64) + u((P5 + 8) & MASK64))
    t = (t << u(27)) | (t >> u(37))
    t *= u(P1)
    t += u(P4)
    t ^= t >> u(33)
    t *= u(P2)
    t ^= t >> u(29)
    t *= u(P3)
    t ^= t >> u(32)
    return t


@dataclass(frozen=True, slots=True)
class Salt:
    """Two unsigned 64-bit numbers, fresh for each exchange and relation."""

    s0: int
    s1: int

    @classmethod
    def fresh(cls) -> Salt:
        """Return a random salt."""
        return cls(secrets.randbits(64), secrets.randbits(64))

    def to_bytes(self) -> bytes:
        """Return the salt as 16 bytes."""
        return self.s0.to_bytes(8, "little") + self.s1.to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> Salt:
        """Return the salt in 16 bytes."""
        return cls(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:16], "little"))


@dataclass(frozen=True, slots=True)
class Digest:
    """A count and a sum modulo 2^128; `Digest()` is that of the empty set."""

    count: int = 0
    sum: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.count + other.count, (self.sum + other.sum) & MASK128)

    def __sub__(self, other: Digest) -> Digest:
        return Digest(self.count - other.count, (self.sum - other.sum) & MASK128)

    def sum_bytes(self) -> bytes:
        """Return the sum as 16 bytes, little-endian."""
        return self.sum.to_bytes(16, "little")


@dataclass(frozen=True, slots=True)
class MixedFingerprints:
    """Mixed fingerprints: m0 and m1, uint64 [n] each; m0 is also the row hash."""

    m0: U64
    m1: U64

    def digest(self) -> Digest:
        """Return the digest of all; exact for up to 2^32 rows."""
        return Digest(len(self.m0), (_sum(self.m0) << 64) + _sum(self.m1) & MASK128)


def mix(salt: Salt, hi: U64, lo: U64) -> MixedFingerprints:
    """Mix fingerprints (lanes uint64 [n] each) under a salt."""
    seed0, seed1 = xx(salt.s0, SPARK_SEED), xx(salt.s1, SPARK_SEED)
    return MixedFingerprints(
        xx_array(lo, xx_array(hi, np.uint64(seed0))),
        xx_array(hi, xx_array(lo, np.uint64(seed1))),
    )


def _sum(values: U64) -> int:
    """Return the exact sum, which may exceed 2^64."""
    low = int((values & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64))
    high = int((values >> np.uint64(32)).sum(dtype=np.uint64))
    return low + (high << 32)
