"""The 128 bits that stand for a row (protocol, section 5).

Keyed BLAKE3 of the row bytes, under a row key derived from the fragment key and the declared types.
The fragment key is a secret of the warehouse: who writes rows at the source cannot aim for equal
fingerprints, and fingerprints never travel.

One hasher per batch is reset after each row: 3.8 M rows/s of 118 bytes, against 2.5 M/s for a copy
per row and 1.9 M/s for `blake3(row, key=k)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from driftline.types import Recipe

FRAGMENT_KEY_BYTES = 32
U64 = npt.NDArray[np.uint64]


def row_key(fragment_key: bytes, recipe: Recipe) -> bytes:
    """32 bytes: the BLAKE3 key of this recipe's rows."""
    message = b"driftline fingerprint 1\0" + b"".join(
        str(c.type).encode() + b"\0" for c in recipe.columns
    )
    return blake3(message, key=fragment_key).digest()


def position_seed(fragment_key: bytes) -> int:
    """The seed of positions for keys that are not one integer (protocol, section 4)."""
    return int.from_bytes(blake3(b"driftline position 1", key=fragment_key).digest(8), "little")


def hasher(key: bytes) -> Callable[[Iterable[bytes | memoryview]], tuple[U64, U64]]:
    """A function from row bytes to fingerprints, lanes (hi, lo) uint64 [rows] each."""
    base = blake3(key=key)

    def fingerprints(rows: Iterable[bytes | memoryview]) -> tuple[U64, U64]:
        own = base.copy()  # two threads may share the function
        update, digest, reset = own.update, own.digest, own.reset
        digests: list[bytes] = []
        append = digests.append
        for row in rows:
            update(row)
            append(digest(16))
            reset()
        lanes = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        return np.ascontiguousarray(lanes[:, 0]), np.ascontiguousarray(lanes[:, 1])

    return fingerprints
