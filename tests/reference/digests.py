"""The reference for protocol section 6: mixing and digests, number by number.

Python's integers, reduced modulo 2^64 after every step. A fingerprint is its 16 bytes, a digest is
the pair (count, sum), a salt the pair (s0, s1).
"""

from __future__ import annotations

from collections.abc import Iterable

P1 = 0x9E3779B185EBCA87
P2 = 0xC2B2AE3D27D4EB4F
P3 = 0x165667B19E3779F9
P4 = 0x85EBCA77C2B2AE63
P5 = 0x27D4EB2F165667C5

Salt = tuple[int, int]


def rotl(x: int, bits: int) -> int:
    x %= 2**64
    return (x * 2**bits) % 2**64 + x // 2 ** (64 - bits)


def xx(v: int, h: int) -> int:
    """XXH64 of one long v under seed h; negative numbers stand for their two's complement."""
    t = (h + P5 + 8) % 2**64
    t ^= rotl(v * P2, 31) * P1 % 2**64
    t = (rotl(t, 27) * P1 + P4) % 2**64
    t ^= t >> 33
    t = t * P2 % 2**64
    t ^= t >> 29
    t = t * P3 % 2**64
    t ^= t >> 32
    return t


def xxhash64(*values: int) -> int:
    """Spark's function of the same name over longs, unsigned."""
    h = 42
    for value in values:
        h = xx(value, h)
    return h


def mixed(fingerprint: bytes, salt: Salt) -> tuple[int, int]:
    """(m0, m1) of a fingerprint; m0 is the row hash."""
    hi = int.from_bytes(fingerprint[:8], "little")
    lo = int.from_bytes(fingerprint[8:], "little")
    return xxhash64(salt[0], hi, lo), xxhash64(salt[1], lo, hi)


def digest(fingerprints: Iterable[bytes], salt: Salt) -> tuple[int, int]:
    """(count, sum of m modulo 2^128)."""
    count, total = 0, 0
    for fingerprint in fingerprints:
        m0, m1 = mixed(fingerprint, salt)
        count += 1
        total = (total + m0 * 2**64 + m1) % 2**128
    return count, total


def short_digest(fingerprints: Iterable[bytes], salt: Salt) -> int:
    """8 bytes for the rows of one range; 0 exactly if there are none."""
    hashes = [mixed(fingerprint, salt)[0] for fingerprint in fingerprints]
    if not hashes:
        return 0
    return (sum(hashes) + len(hashes) * P3) % 2**64 or 1
