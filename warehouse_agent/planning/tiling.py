"""The tiles of a pass, without I/O: their bounds, sums and costs.

A pass compares a relation with an integer key tile by tile, by one exchange each, all under one
salt. The tiles cover every position once, so their digests add up to the relation's.
`Cuts` divides all tiles into ranges, so that one job reduces our side; the partition of a tile has
the cuts within it, and empty ranges outside.

After Carnes and Hanson, section 3.4: a table of bounds in key order, the ends unbounded. Their
initialization scans the source for bounds; here they are quantiles of the copy, and rows that are
expected behind its last key get tiles of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from driftline.digests import MASK128, Digest, Mixed
from driftline.limits import RANGES_MAX, STRATUM_CELLS
from driftline.ranges import POSITION_MAX, POSITION_MIN, Partition, RangeSums, strata_of
from driftline.units import ROW_HASH_BYTES

from warehouse_agent.planning import choice

TILES_MAX = 1 << 14  # of a pass; beyond it, tiles have more rows than the configuration says
PASS_RANGES_MAX = 1 << 20  # 16 MB of sums on the driver and in every Spark task
TILE_RANGES_MAX = RANGES_MAX - 8  # of a tile on the wire, with the empty ranges outside
TAIL_TILES_MAX = 64  # behind the last key of the copy
SHIFT_MAX = 63
_LOW = np.uint64(0xFFFFFFFF)
_TILE_BYTES = 160  # of an exchange beside its opening: framing, `Finished`, the end of a stream


@dataclass(frozen=True, slots=True)
class Incremental:
    """The configuration of a pass: rows of a tile, and seconds between two tiles."""

    rows: int = 100_000
    pause_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Tiled:
    """A pass to begin or to resume: its number of tiles, and how many of them are done."""

    wanted: Incremental
    tiles: int
    tiles_done: int = 0


class Cuts(Partition):
    """A partition of any number of segments, which is never sent."""

    def __post_init__(self) -> None:
        assert self.starts[0] == POSITION_MIN
        assert len(self.starts) == len(self.shifts)


@dataclass(frozen=True)
class Tiling:
    """All tiles of a pass. `heads`: the first segment of `cuts` in each tile, ascending from 0."""

    cuts: Cuts
    heads: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.heads)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return (*self.heads[1:], len(self.cuts.starts))

    @cached_property
    def first_ranges(self) -> npt.NDArray[np.int64]:
        """The first range of `cuts` in each tile, int64 [tiles]."""
        return self.cuts.indices(np.array([self.cuts.starts[h] for h in self.heads], np.int64))

    def bounds(self, tile: int) -> tuple[int, int]:
        """Return the first and the last position of a tile, both inclusive."""
        end, starts = self._ends[tile], self.cuts.starts
        last = starts[end] - 1 if end < len(starts) else POSITION_MAX
        return starts[self.heads[tile]], last

    def ranges(self, tile: int) -> slice:
        """Return the ranges of `cuts` in a tile."""
        ends = (*self.first_ranges[1:].tolist(), self.cuts.ranges)
        return slice(int(self.first_ranges[tile]), ends[tile])

    def partition(self, tile: int) -> Partition:
        """Return the partition that is sent: the tile's ranges between two empty segments."""
        head, end = self.heads[tile], self._ends[tile]
        starts, shifts = self.cuts.starts[head:end], self.cuts.shifts[head:end]
        first, last = self.bounds(tile)
        if first > POSITION_MIN:
            starts, shifts = (POSITION_MIN, *starts), (SHIFT_MAX, *shifts)
        if last < POSITION_MAX:
            starts, shifts = (*starts, last + 1), (*shifts, SHIFT_MAX)
        return Partition(starts, shifts)


class PassSums:
    """Our side of all tiles: sums over the ranges of the cuts, and over each tile.

    The Σ m0 of a tile modulo 2^64 is that of its ranges. The Σ m1 has a carry, so its halves are
    summed separately: low, high, uint64 [tiles], for at most 2^32 rows.
    """

    def __init__(self, tiling: Tiling) -> None:
        self.tiling = tiling
        self.ranges = RangeSums(tiling.cuts.ranges)
        self.low, self.high = (np.zeros(len(tiling), np.uint64) for _ in range(2))

    def add(self, positions: npt.NDArray[np.int64], mixed: Mixed) -> None:
        """Add rows: their positions, int64 [n], and their mixed fingerprints."""
        at = self.tiling.cuts.indices(positions)
        self.ranges.add(at, mixed)
        tile = np.searchsorted(self.tiling.first_ranges, at, side="right") - 1
        np.add.at(self.low, tile, mixed.m1 & _LOW)
        np.add.at(self.high, tile, mixed.m1 >> np.uint64(32))

    def digest(self, tile: int) -> Digest:
        """Return the digest of our rows in a tile."""
        inside = self.tiling.ranges(tile)
        m0 = int(self.ranges.sums[inside].sum(dtype=np.uint64))
        m1 = int(self.low[tile]) + (int(self.high[tile]) << 32)
        count = int(self.ranges.counts[inside].sum())
        return Digest(count, ((m0 << 64) + m1) & MASK128)

    def of(self, tile: int) -> RangeSums:
        """Return our side of a tile, over the partition that is sent."""
        partition, inside = self.tiling.partition(tile), self.tiling.ranges(tile)
        out = RangeSums(partition.ranges)
        at = int(partition.indices(np.array(self.tiling.bounds(tile)[:1], np.int64))[0])
        there = slice(at, at + inside.stop - inside.start)
        out.counts[there], out.sums[there] = self.ranges.counts[inside], self.ranges.sums[inside]
        out.total = self.digest(tile)
        return out

    def words(self) -> npt.NDArray[np.uint64]:
        """Return low, high and the words of the ranges, uint64 [2·(tiles + ranges)].

        Words of disjoint rows add modulo 2^64.
        """
        return np.concatenate([self.low, self.high, self.ranges.words()])

    @classmethod
    def from_words(cls, total: Digest, words: npt.NDArray[np.uint64], tiling: Tiling) -> PassSums:
        """Return the sums that have this total and these words, uint64 [2·(tiles + ranges)]."""
        out, tiles = cls(tiling), len(tiling)
        out.low, out.high, ranges = np.split(words, [tiles, 2 * tiles])
        out.ranges = RangeSums.from_words(total, ranges)
        return out

    def to_bytes(self) -> bytes:
        """Return the halves, then the ranges."""
        return self.low.tobytes() + self.high.tobytes() + self.ranges.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, tiling: Tiling) -> PassSums:
        """Read what `to_bytes` wrote. Raises ValueError: it has another size."""
        out, tiles = cls(tiling), len(tiling)
        out.low, out.high = np.frombuffer(data, np.uint64, 2 * tiles).reshape(2, tiles).copy()
        out.ranges = RangeSums.from_bytes(data[16 * tiles :])
        if len(out.ranges.counts) != tiling.cuts.ranges:
            raise ValueError("sums of another number of ranges")
        return out


def count_for(rows: int, wanted: Incremental) -> int:
    """Return the number of tiles of a copy of `rows` rows."""
    return min(max(-(-rows // wanted.rows), 1), TILES_MAX)


def tiling(quantiles: Sequence[int], rows: int, *, tail: int = 0) -> Tiling:
    """Return the tiles of a copy of `rows` rows between the quantiles of its integer keys.

    Args:
        quantiles: the least key, the first key of every other tile, the greatest key; ascending.
        tail: number of tiles behind the greatest key, as wide as the others are on average.
    """
    least, greatest = quantiles[0], quantiles[-1]
    inner = sorted({key for key in quantiles[1:-1] if least < key <= greatest})
    width = (greatest - least) // (len(inner) + 1) + 1
    behind = [greatest + 1 + i * width for i in range(min(tail, TAIL_TILES_MAX))]
    firsts = [POSITION_MIN, *inner, *(key for key in behind if key <= POSITION_MAX)]
    share = max(rows // choice.ROWS_PER_RANGE, 2) // (len(inner) + 1)
    share = min(max(share, 1), PASS_RANGES_MAX // len(firsts), TILE_RANGES_MAX)
    starts: list[int] = []
    shifts: list[int] = []
    heads = []
    for first, end in pairwise([*firsts, POSITION_MAX + 1]):
        heads.append(len(starts))
        # No row of ours lies before the least key or behind the greatest.
        knots = [first, *(k for k in (least, greatest + 1) if first < k < end), end]
        for start, stop in pairwise(knots):
            positions = -(-(stop - start) // share)  # of a range
            is_empty = stop <= least or start > greatest
            starts.append(start)
            shifts.append(SHIFT_MAX if is_empty else min((positions - 1).bit_length(), SHIFT_MAX))
    return Tiling(Cuts(tuple(starts), tuple(shifts)), tuple(heads))


def tail_for(inserted: Sequence[int], wanted: Incremental) -> int:
    """Return the number of tiles behind the last key, for the most rows that one of the last
    refreshes inserted; less than half a tile of them is left to the last tile."""
    return min((max(inserted, default=0) + wanted.rows // 2) // wanted.rows, TAIL_TILES_MAX)


def pass_cost(rows: int, changed: int, row_bytes: float, wanted: Incremental) -> tuple[int, int]:
    """Return bytes and round trips of a pass that finds `changed` scattered changes.

    An equal tile takes its opening and an end, in one round trip; one that differs takes digests
    and row hashes as well, in three (`choice`, the range method).
    """
    tiles = count_for(rows, wanted)
    hit = tiles * -math.expm1(changed * math.log1p(-1 / tiles)) if tiles > 1 else min(changed, 1)
    strata = strata_of(max(rows // tiles // choice.ROWS_PER_RANGE, 2))
    opening = choice.OPEN_BYTES + strata * STRATUM_CELLS + _TILE_BYTES
    size = tiles * opening + changed * row_bytes
    if changed:
        size += hit * _refine_bytes(rows / tiles, changed / hit)
    return round(size), tiles + 2 * round(hit)


def _refine_bytes(rows: float, changed: float) -> float:
    """Return the bytes of digests and row hashes of a tile, at the best coarsening."""
    best = ROW_HASH_BYTES * rows
    ranges = max(rows / choice.ROWS_PER_RANGE, 2.0)
    while ranges > 1:
        hashed = rows * -math.expm1(-changed / ranges)
        best = min(best, choice.DIGEST_BYTES * ranges + ROW_HASH_BYTES * hashed)
        ranges /= 2
    return best
