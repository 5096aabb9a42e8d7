"""Shards: rows that one exchange of groups cannot name, divided by key order. No I/O.

An exchange names at most GROUPED_KEYS_MAX rows, whose keys have at most NAMED_BYTES_MAX bytes, so
that neither side holds more. More rows are compared in shards, one exchange after the other, in one
stream and one snapshot of the source. Shards are ranges of keys that follow each other, and cover
every key that can exist; so each row of the source belongs to one of them, whatever was inserted.

Bounds are keys of a sample. Rows are counted between them, and the bytes of their keys, and
neighbours joined while they fit, so a shard never has more than it may, however the chosen rows and
the long keys lie. Rejected: shards by a hash of
the key. They need no bounds, and tear neighbours apart, which an index reads together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from driftline.arrays import Integers
from driftline.limits import GROUPED_KEYS_MAX, NAMED_BYTES_MAX

KEYS_MAX: int = GROUPED_KEYS_MAX  # of a shard
PIECES_PER_SHARD: Final = 16  # ranges in which rows are counted
LENGTH_BYTES: Final = 2  # beside each key, where a source holds it
_FILLED: Final = 0.8  # of the bytes: keys may be longer than those of the sample


def limit(key_bytes: float, keys_max: int | None = None) -> int:
    """Return the most rows of a shard whose keys are as long as others.

    Args:
        key_bytes: of a key, a mean, before compression.
        keys_max: rows that an exchange may name; None: KEYS_MAX.
    """
    by_bytes = int(NAMED_BYTES_MAX * _FILLED / max(key_bytes, 1.0))
    return max(min(KEYS_MAX if keys_max is None else keys_max, by_bytes), 1)


def pieces(rows: int, most: int) -> int:
    """Return in how many ranges `rows` rows, of which any may be chosen, are counted, so that one
    has about most / PIECES_PER_SHARD of them."""
    return max(math.ceil(rows / most), 1) * PIECES_PER_SHARD


def ends(counts: Integers, sizes: Integers, most: int) -> list[int] | None:
    """Return where each shard ends: the number of ranges before its end, ascending.

    Each shard has 1 to `most` rows, whose keys have at most NAMED_BYTES_MAX bytes, and two
    neighbours have more than that together; the last one ends with the last range. None: a range
    alone has more. One empty shard if all are.

    Args:
        counts: chosen rows in each range, in key order, int64 [n], n >= 1.
        sizes: bytes of their keys, int64 [n].
        most: rows of a shard.
    """
    held = sizes + LENGTH_BYTES * counts
    if int(counts.max()) > most or int(held.max()) > NAMED_BYTES_MAX:
        return None
    cuts, rows, filled = [], 0, 0
    for at, (count, size) in enumerate(zip(counts.tolist(), held.tolist(), strict=True)):
        if rows and (rows + count > most or filled + size > NAMED_BYTES_MAX):
            cuts.append(at)
            rows = filled = 0
        rows, filled = rows + count, filled + size
    return [*cuts, len(counts)]


def budget(limit: int, read: int, rows: Sequence[int]) -> int:
    """Return how many rows a shard may read: what is left, but the rows of the shards behind it.

    Args:
        limit: rows that all shards may read together.
        read: rows that those before it have read.
        rows: chosen rows of the shards behind it.
    """
    return limit - read - sum(rows)
