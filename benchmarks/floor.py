"""The information floor of a refresh: what nobody who ships only the difference can get below.

    floor = the new rows as CSV under zstd -19 + log2 C(n, d) bits

The first part pays for what the changed rows now say: those inserted and those updated, whole rows.
The second pays for saying which d of n rows changed, a deleted row needing nothing else. Here n
counts every row that either side has: the source's now and those it no longer has.

It is a yardstick, not a bound of theory: zstd is not the best compressor that there could be, whole
rows are more than the columns that changed, and a row's kind (1.16 bits each at most, for three
kinds as frequent as in the benchmarks' mix) is left out, in favour of the peers and of us alike.
Pure: no files, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import zstandard

ZSTD_LEVEL = 19  # the highest that a person would use without more memory
BITS_PER_BYTE = 8


def log2_choose(rows: int, changed: int) -> float:
    """log2 C(n, d) in bits: how many ways there are to choose d of n rows.

    By the logarithm of the gamma function: off by less than 10^-9 of n log2 n, which for a hundred
    million rows is some bits.

    Raises:
        ValueError: `changed` is not between 0 and `rows`.
    """
    if not 0 <= changed <= rows:
        raise ValueError(f"{changed} of {rows} rows")
    if changed in (0, rows):
        return 0.0
    nats = math.lgamma(rows + 1) - math.lgamma(changed + 1) - math.lgamma(rows - changed + 1)
    return max(nats / math.log(2), 0.0)


def compressed_bytes(lines: Iterable[bytes]) -> int:
    """Size of the lines under zstd -19 as one stream; nothing is nothing, not an empty frame.

    With a thread per core: minutes for a million rows even so. The number of threads does not
    change the size.
    """
    packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=-1).compressobj()
    size = is_some = 0
    for line in lines:
        is_some |= bool(line)
        size += len(packer.compress(line))
    return size + len(packer.flush()) if is_some else 0


def floor_bytes(lines: Iterable[bytes], *, rows: int, changed: int) -> int:
    """The floor in bytes.

    Args:
        lines: the new and the updated rows as CSV, each with its line feed, in the table's order.
        rows: n, the rows of both sides together.
        changed: d, the rows inserted, updated or deleted.
    """
    return compressed_bytes(lines) + math.ceil(log2_choose(rows, changed) / BITS_PER_BYTE)
