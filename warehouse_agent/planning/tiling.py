"""The tiles of a pass, without I/O: their bounds, sums and costs.

A pass compares a relation tile by tile, by one exchange each, all under one
salt. The tiles cover every position once, so their digests add up to the relation's.
`TileCuts` divides all tiles into ranges, so that one job reduces our side; the partition of a tile
has the cuts within it, and empty ranges outside.

After Carnes and Hanson, section 3.4: a table of bounds in key order, the ends unbounded. Their
initialization scans the source for bounds; here they are quantiles of the copy, and rows that are
expected behind its last key get tiles of their own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import median

import numpy as np
import numpy.typing as npt
from driftline.limits import RANGES_MAX
from driftline.reconciliation.groups import ROW_HASH_BYTES
from driftline.reconciliation.ranges import (
    POSITION_MAX,
    POSITION_MIN,
    Partition,
    RangeSums,
    uniform,
)
from driftline.rows.digests import MASK128, Digest, MixedFingerprints
from driftline.rows.key_order import KeyBuffer, KeyOrder, KeyRange, key_text
from driftline.values.types import Recipe

from warehouse_agent.planning import choice

TILES_MAX = 1 << 14  # of a pass; beyond it, tiles have more rows than the configuration says
PASS_RANGES_MAX = 1 << 20  # 16 MB of sums on the driver and in every Spark task
TILE_RANGES_MAX = RANGES_MAX - 8  # of a tile on the wire, with the empty ranges outside
SAMPLE_BYTES_MAX = 64 << 20  # of keys from which the bounds of tiles are taken
TAIL_TILES_MAX = 64  # behind the last key of the copy
SHIFT_MAX = 63
Bounds = tuple[int, int] | KeyRange  # first and last position, inclusive, or keys
_LOW = np.uint64(0xFFFFFFFF)
_TILE_BYTES = 160  # of an exchange beside its opening: framing, `Finished`, the end of a stream


@dataclass(frozen=True, slots=True)
class PassSettings:
    """The configuration of a pass: rows of a tile, and seconds between two tiles.

    `adapts`: the pauses are longer while the database answers slowly (`tile_pause`).
    """

    rows: int = 100_000
    pause_s: float = 0.5
    adapts: bool = False


@dataclass(frozen=True, slots=True)
class Tiled:
    """A pass to begin or to resume: its number of tiles, and how many of them are done."""

    wanted: PassSettings
    tiles: int
    tiles_done: int = 0


class TileCuts(Partition):
    """A partition of any number of segments, which is never sent."""

    def __post_init__(self) -> None:
        assert self.starts[0] == POSITION_MIN
        assert len(self.starts) == len(self.shifts)


@dataclass(frozen=True)
class PositionTiling:
    """Tiles of positions, for an integer key.

    The ranges of all tiles have numbers, tile after tile. `heads`: the first segment of `cuts` in
    each tile, ascending from 0.
    """

    cuts: TileCuts
    heads: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def all_ranges(self) -> int:
        """The number of ranges in all tiles."""
        return self.cuts.ranges

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return (*self.heads[1:], len(self.cuts.starts))

    @cached_property
    def first_ranges(self) -> npt.NDArray[np.int64]:
        """The first range of each tile, int64 [tiles]."""
        return self.cuts.indices(np.array([self.cuts.starts[h] for h in self.heads], np.int64))

    def bounds(self, tile: int) -> tuple[int, int]:
        """Return the first and the last position of a tile, both inclusive."""
        end, starts = self._ends[tile], self.cuts.starts
        last = starts[end] - 1 if end < len(starts) else POSITION_MAX
        return starts[self.heads[tile]], last

    def ranges(self, tile: int) -> slice:
        """Return the ranges of a tile."""
        return _ranges_of(self, tile)

    def offset(self, tile: int) -> int:
        """Return the first range of the partition that is sent that is one of the tile's."""
        first = np.array(self.bounds(tile)[:1], np.int64)
        return int(self.partition(tile).indices(first)[0])

    def places(
        self,
        positions: npt.NDArray[np.int64],
        keys: KeyBuffer | None,  # noqa: ARG002 - the position is the key
    ) -> npt.NDArray[np.int64]:
        """Return the range of each row, int64 [n]."""
        return self.cuts.indices(positions)

    def partition(self, tile: int) -> Partition:
        """Return the tile's ranges between two empty segments."""
        head, end = self.heads[tile], self._ends[tile]
        starts, shifts = self.cuts.starts[head:end], self.cuts.shifts[head:end]
        first, last = self.bounds(tile)
        if first > POSITION_MIN:
            starts, shifts = (POSITION_MIN, *starts), (SHIFT_MAX, *shifts)
        if last < POSITION_MAX:
            starts, shifts = (*starts, last + 1), (*shifts, SHIFT_MAX)
        return Partition(starts, shifts)


@dataclass(frozen=True)
class KeyTiling:
    """Tiles between keys, for a key that has an order (protocol, section 4).

    The positions of such keys are hashes, so every tile has the same `ranges_each` even ranges.

    Attributes:
        recipe: whose key the tiles are of.
        keys: the bounds as key bytes, ascending; the first tile ends before the first of them.
        near: of data files, by path, the first and the last tile of which each may have rows.
    """

    recipe: Recipe
    keys: tuple[bytes, ...]
    ranges_each: int
    near: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys) + 1

    @property
    def heads(self) -> tuple[int, ...]:
        """The first range of each tile."""
        return tuple(range(0, self.all_ranges, self.ranges_each))

    @property
    def all_ranges(self) -> int:
        """The number of ranges in all tiles."""
        return len(self) * self.ranges_each

    @cached_property
    def first_ranges(self) -> npt.NDArray[np.int64]:
        """The first range of each tile, int64 [tiles]."""
        return np.array(self.heads, np.int64)

    def keys_around(self, tile: int) -> tuple[bytes | None, bytes | None]:
        """Return the bounds of a tile; None at the ends."""
        ends = (None, *self.keys, None)
        return ends[tile], ends[tile + 1]

    def bounds(self, tile: int) -> KeyRange:
        """Return the keys of a tile."""
        lower, upper = self.keys_around(tile)
        return KeyRange(
            None if lower is None else key_text(lower, self.recipe),
            None if upper is None else key_text(upper, self.recipe),
        )

    def ranges(self, tile: int) -> slice:
        """Return the ranges of a tile."""
        return _ranges_of(self, tile)

    def partition(self, tile: int) -> Partition:  # noqa: ARG002 - all tiles have the same
        """Return the partition that is sent: even ranges of all positions."""
        return uniform(self.ranges_each)

    def offset(self, tile: int) -> int:  # noqa: ARG002
        """Return 0: all ranges that are sent are the tile's."""
        return 0

    def places(
        self, positions: npt.NDArray[np.int64], keys: KeyBuffer | None
    ) -> npt.NDArray[np.int64]:
        """Return the range of each row, int64 [n], by its key and position."""
        assert keys is not None, "a hash is in no order"
        tiles = KeyOrder(self.recipe).ranks(keys, KeyBuffer.of_bytes(self.keys))
        return tiles * self.ranges_each + uniform(self.ranges_each).indices(positions)


Tiling = PositionTiling | KeyTiling


def _ranges_of(tiling: Tiling, tile: int) -> slice:
    first = tiling.first_ranges
    end = int(first[tile + 1]) if tile + 1 < len(first) else tiling.all_ranges
    return slice(int(first[tile]), end)


class PassSums:
    """Our side of all tiles: sums over the ranges of the cuts, and over each tile.

    The Σ m0 of a tile modulo 2^64 is that of its ranges. The Σ m1 has a carry, so its halves are
    summed separately: low, high, uint64 [tiles], for at most 2^32 rows.
    """

    def __init__(self, tiling: Tiling) -> None:
        self.tiling = tiling
        self.ranges = RangeSums(tiling.all_ranges)
        self.low, self.high = (np.zeros(len(tiling), np.uint64) for _ in range(2))

    def add(
        self,
        positions: npt.NDArray[np.int64],
        mixed: MixedFingerprints,
        keys: KeyBuffer | None = None,
    ) -> None:
        """Add rows: their positions, int64 [n], their mixed fingerprints, and their keys."""
        at = self.tiling.places(positions, keys)
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
        at = self.tiling.offset(tile)
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
        if len(out.ranges.counts) != tiling.all_ranges:
            raise ValueError("sums of another number of ranges")
        return out


def count_for(rows: int, wanted: PassSettings) -> int:
    """Return the number of tiles of a copy of `rows` rows."""
    return min(max(-(-rows // wanted.rows), 1), TILES_MAX)


def tiling(quantiles: Sequence[int], rows: int, *, tail: int = 0) -> PositionTiling:
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
    return PositionTiling(TileCuts(tuple(starts), tuple(shifts)), tuple(heads))


def key_tiling(
    recipe: Recipe,
    sample: Sequence[bytes],
    rows: int,
    tiles: int,
    ends: Mapping[str, tuple[bytes, bytes]],
) -> KeyTiling:
    """Return the tiles of a copy of `rows` rows between keys of an even sample of them.

    Args:
        sample: key bytes, in any order.
        tiles: how many are wanted; there are fewer if the sample is small.
        ends: the least and the greatest key of each data file, by path.
    """
    order = KeyOrder(recipe)
    # All are compared at once, each with as many bytes as the longest.
    every = -(-len(sample) * max(map(len, sample), default=0) // SAMPLE_BYTES_MAX) or 1
    some = sample[::every]
    keys = [some[at] for at in order.sorted(KeyBuffer.of_bytes(some)).tolist()]
    chosen = dict.fromkeys(keys[i * len(keys) // tiles] for i in range(1, tiles) if keys)
    bounds = tuple(key for key in chosen if key != keys[0])
    least, greatest = (
        order.ranks(
            KeyBuffer.of_bytes([pair[i] for pair in ends.values()]), KeyBuffer.of_bytes(bounds)
        )
        for i in (0, 1)
    )
    near = zip(least.tolist(), greatest.tolist(), strict=True)
    share = max(rows // choice.ROWS_PER_RANGE, 2) // (len(bounds) + 1)
    share = min(max(share, 2), PASS_RANGES_MAX // (len(bounds) + 1), TILE_RANGES_MAX)
    ranges_each = uniform(share).ranges
    return KeyTiling(recipe, bounds, ranges_each, dict(zip(ends, near, strict=True)))


def tail_for(inserted: Sequence[int], wanted: PassSettings) -> int:
    """Return the number of tiles behind the last key, for the most rows that one of the last
    refreshes inserted; less than half a tile of them is left to the last tile."""
    return min((max(inserted, default=0) + wanted.rows // 2) // wanted.rows, TAIL_TILES_MAX)


def pass_cost(
    rows: int, changed: int, row_bytes: float, wanted: PassSettings, *, has_strata: bool = True
) -> tuple[int, int]:
    """Return bytes and round trips of a pass that finds `changed` scattered changes.

    An equal tile takes its opening and an end, in one round trip; one that differs takes digests
    and row hashes as well, in three (`choice`, the range method).

    has_strata: every opening has strata; else they come of tiles that differ.
    """
    tiles = count_for(rows, wanted)
    hit = tiles * -math.expm1(changed * math.log1p(-1 / tiles)) if tiles > 1 else min(changed, 1)
    strata = choice.strata_bytes(max(rows // tiles // choice.ROWS_PER_RANGE, 2))
    size = tiles * (choice.OPEN_BYTES + _TILE_BYTES) + changed * row_bytes
    size += strata * (tiles if has_strata else hit)
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


SLOWER = 1.5  # times the median; answers of a database at rest vary by less
TILES_REMEMBERED = 32
TILES_MIN = 3  # before anything is slow
ROWS_SHARE_MIN = 0.5  # of a tile's rows: what fewer take is mostly waiting for the line
PAUSE_S_MAX = 60.0  # and no longer than this, however short the configured pause


class TilePause:
    """The pause after each tile of one attempt; `rows` of a tile and `pause_s` are configured.

    A pass is to disturb a database little when it is busy, and nobody knows beforehand when that
    is. Each tile tells: the seconds per row until its first answer, against the median of the last
    tiles. A slow answer doubles the pause, up to PAUSE_S_MAX; any other halves it, down to what
    was configured. A database that stays slow is not slower than its recent past: the median
    follows within half of TILES_REMEMBERED tiles, and the pass goes on as before.

    Rejected: a fixed share of time (n seconds of pause for each second of reading). It slows a
    pass down where rows are wide or the line is long, which disturbs nobody.
    """

    def __init__(self, rows: int, pause_s: float) -> None:
        self._rows, self._least_s = rows, pause_s
        self._most_s = max(pause_s, PAUSE_S_MAX)
        self._past: deque[float] = deque(maxlen=TILES_REMEMBERED)
        self.seconds = pause_s

    def note(self, rows: int, answered_s: float) -> float:
        """Return the seconds of the pause after a tile.

        Args:
            rows: of the source in the tile.
            answered_s: seconds from its opening to its first answer.
        """
        if rows < ROWS_SHARE_MIN * self._rows:
            return self.seconds
        cost = answered_s / rows
        is_slow = len(self._past) >= TILES_MIN and cost > SLOWER * median(self._past)
        self._past.append(cost)
        wanted = self.seconds * 2 if is_slow else self.seconds / 2
        self.seconds = min(max(wanted, self._least_s), self._most_s)
        return self.seconds
