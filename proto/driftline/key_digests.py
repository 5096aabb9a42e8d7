"""Digests of keys, without the values of their rows (protocol, section 6, "Keys").

A key is represented by its position: of one integer it is the key itself, of any other key 64 bits
of a keyed hash. So digests and sketches of keys cost no fingerprint, on either side. Where a
database can hash bytes itself, it adds up hashes of all keys (`hashed`), and sends no key at all.
"""

from __future__ import annotations

import numpy as np

from driftline.arrays import U64, Bytes, Integers, Positions
from driftline.columns import spans_at
from driftline.digests import MASK64, Mixed, Salt, mix, xx
from driftline.fingerprints import chain

HASH_BYTES = 8  # of a sum of hashes


def mixed_keys(positions: Positions, salt: Salt) -> Mixed:
    """Return the mixed fingerprints of keys, which are their positions, int64 [n]."""
    return mix(salt, positions.view(np.uint64), np.zeros(len(positions), np.uint64))


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
