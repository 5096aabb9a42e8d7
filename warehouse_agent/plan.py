"""Decisions of a refresh, without I/O: partitions, coarsening, and when a full copy is cheaper.

The cost of the range method (Carnes and Hanson's RCS refined by row
hashes): with D of R finest ranges differing, coarsening by 2^c sends 8·R/2^c bytes of digests up
and 8 bytes for every row of a differing range down; the best c balances the two. A full copy sends
every row. Nothing here knows Spark or gRPC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from driftline.digests import Digest
from driftline.limits import RANGES_MAX, ROW_HASHES_MAX
from driftline.ranges import Partition, coarse_ranges, from_quantiles, uniform

DIGEST_BYTES = 8
ROW_HASH_BYTES = 8
ROWS_PER_RANGE = 4  # of the finest partition: below it a digest costs as much as its row hashes
SATURATED = 0.95  # of the ranges: 3 changes a range
QUANTILES = 64  # knots of a partition of integer keys: 5 bytes each in every opening
# Of zstd: a load is bound by the line and the scan, a reply is small.
LOAD_LEVEL, REFRESH_LEVEL = 3, 9


class Method(Enum):
    """How the difference is found."""

    RANGE = "range"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the warehouse answers to a verdict, with the bytes it expects to move."""

    method: Method
    coarsen: int
    bytes_expected: int


def partition_for(quantiles: list[int], rows: int, *, integer_key: bool) -> Partition:
    """The finest partition for a working copy of `rows` rows with these key quantiles."""
    ranges = min(max(rows // ROWS_PER_RANGE, 2), RANGES_MAX)
    if not integer_key:
        return uniform(ranges)
    return from_quantiles(quantiles, ranges)


def choose(
    *,
    ours: Digest,
    theirs: Digest,
    ranges: int,
    differing: int,
    row_bytes: float,
    forced: Method | None,
) -> Choice:
    """Range digests at the cheapest coarsening, or everything.

    Args:
        ours, theirs: the two totals.
        ranges, differing: of the finest partition, and how many of them seem to differ.
        row_bytes: a compressed row on the wire.
        forced: the method that the configuration asks for.
    """
    everything = Choice(Method.FULL, 0, int(theirs.count * row_bytes))
    if forced is Method.FULL:
        return everything
    changed = min(rows_changed(differing, ranges) + max(theirs.count - ours.count, 0), theirs.count)
    best: Choice | None = None
    for by in range(ranges.bit_length()):
        hit = 1 - (1 - min(differing / ranges, 1.0)) ** (1 << by)
        hashed = hit * min(ours.count, theirs.count)
        if hashed > ROW_HASHES_MAX:
            continue
        identify = DIGEST_BYTES * coarse_ranges(ranges, by) + ROW_HASH_BYTES * hashed
        cost = int(identify + changed * row_bytes)
        if best is None or cost < best.bytes_expected:
            best = Choice(Method.RANGE, by, cost)
    if best is None or (forced is None and everything.bytes_expected < best.bytes_expected):
        return everything
    return best


def rows_changed(differing: int, ranges: int) -> float:
    """How many scattered changes make so many of the ranges differ.

    The estimate of those that differ is good to a quarter, so a share near 1 tells little more than
    that: it counts as SATURATED, or the method would follow the noise.
    """
    return -ranges * math.log1p(-min(differing / ranges, SATURATED))


def shrank(before: int, after: int) -> bool:
    """Whether more than half of the rows are gone: refused unless allowed."""
    return after * 2 < before
