"""Digests of keys, without the values of their rows (protocol, section 6, "Keys").

A key is represented by its position: of one integer it is the key itself, of any other key 64 bits
of a keyed hash. So digests and sketches of keys cost no fingerprint, on either side. Where the
source maintains a checksum of each row, its hash stands beside the position. Where a database can
hash bytes itself, it adds up hashes of all keys (`hashed`), and sends no key at all.
"""

from __future__ import annotations

import numpy as np

from driftline.arrays import I32, U64, Bytes, Integers, Positions
from driftline.rows.columns import spans_at
from driftline.rows.digests import MASK64, MixedFingerprints, Salt, mix, xx
from driftline.rows.fingerprints import chain

HASH_BYTES = 8  # of a sum of hashes


def mixed_keys(positions: Positions, salt: Salt, checksums: U64 | None = None) -> MixedFingerprints:
    """Return the mixed fingerprints of keys, which are their positions, int64 [n], and of the
    hashes of their rows' checksums, uint64 [n]; None: of keys alone."""
    beside = np.zeros(len(positions), np.uint64) if checksums is None else checksums
    return mix(salt, positions.view(np.uint64), beside)


def checksum_hashes(buffer: Bytes, starts: Integers, lengths: I32, salt: Salt) -> U64:
    """Return the hash of each checksum, uint64 [n]: of the bytes of its value, by its type.

    starts, lengths: where the values are in the buffer, [n] each; NULL as in
        `columns.RaggedColumn`.
    """
    return chain(buffer, [(starts, lengths)], len(starts), hash_seed(salt))


def hash_seed(salt: Salt) -> int:
    """Return the seed of the key hashes of an exchange, 64 signed bits."""
    seed = xx(salt.s0, salt.s1)
    return seed - (1 << 64) if seed >> 63 else seed


def hashed(buffer: Bytes, at: Integers, columns: int, salt: Salt) -> int:
    """Return the sum of the database's hashes of keys, modulo 2^64.

    Args:
        buffer: holds the key bytes of each row, from the offsets `at`, int64 [n].
        columns: the number of key columns.
    """
    hashes: U64 = chain(buffer, spans_at(buffer, at, columns), len(at), hash_seed(salt))
    return int(hashes.sum(dtype=np.uint64)) & MASK64
