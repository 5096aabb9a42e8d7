"""Set sketches: cells from which the changed keys are decoded (protocol, section 7).

A row is an entry (k, r): k its embedded position, r its row hash in the field of PRIME elements.
Each entry is added to three cells (Σ r, Σ k·r). Cells add, so the difference of two tables holds
the difference of two sets, a changed row as one entry. A cell that holds one entry gives its k as a
quotient. Peeling such cells decodes all entries from about 1.25 cells, 10 bytes, per changed row.

Adding `fold` neighbours of a table of `third` cells in each third gives the table of third / fold.
So one scan fills one fine table on each side, a coarse table travels, and only children of its
stuck cells follow, as many as needed, because a grid may be finer up to some cell. A table refined
in part needs at most 4.4 % more cells (density evolution of the thirds, Luby et al. 2001).

Source: the IBLTs of Goodrich and Mitzenmacher; the cell is the 1-sparse recovery of Ganguly and of
Cormode and Firmani. Rejected: a ring of 2^64 (ambiguous quotients, twice the bytes), and a count
and a checksum per cell (a false quotient does not belong to the cell).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import zstandard

from driftline.arrays import U64, Bools, Integers
from driftline.errors import MalformedMessage
from driftline.limits import SAMPLE_CELLS_MAX, SKETCH_KEYS_MAX
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from driftline.rows.digests import SPARK_SEED, Salt, xx, xx_array

PRIME: Final = 2**32 - 5
HASHES: Final = 3  # cells of an entry, one in each third
CELL_BYTES: Final = 8  # two little-endian uint32
# zstd levels for lists of keys; level 19 takes ten times the memory of its input.
_LEVEL, _LEVEL_LONG, _LEVEL_KEYS_MAX = 19, 3, 1 << 17
_P = np.uint64(PRIME)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Embedding:
    """A map of positions to k, 0 ≤ k < span: from `base` on, or hashed if `base` is None.
    Raises MalformedMessage if span or base are out of bounds."""

    span: int
    base: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.span <= SKETCH_KEYS_MAX:
            raise MalformedMessage(f"A sketch over {self.span} keys is not allowed.")
        if self.base is not None and not (
            POSITION_MIN <= self.base <= POSITION_MAX - self.span + 1
        ):
            raise MalformedMessage("A sketch reaches beyond the positions.")

    def embed(self, positions: Integers, salt: Salt) -> tuple[U64, Bools]:
        """Return k of each position, uint64 [n], 0 outside, and which are inside, bool [n]."""
        if self.base is None:
            hashed = xx_array(positions.view(np.uint64), np.uint64(xx(salt.s1, SPARK_SEED)))
            ks = ((hashed >> _HALF) * np.uint64(self.span)) >> _HALF
            return ks, np.ones(len(positions), np.bool_)
        ks = positions.view(np.uint64) - np.uint64(self.base % (1 << 64))
        inside = ks < np.uint64(self.span)
        return np.where(inside, ks, np.uint64(0)), inside

    def positions(self, ks: U64) -> Integers:
        """Return the position of each k, int64 [n]; not for a hashed embedding."""
        assert self.base is not None
        return (ks + np.uint64(self.base % (1 << 64))).view(np.int64)

    def outside(self) -> tuple[Integers, Integers]:
        """Return first and last (inclusive) of ranges that are not embedded, int64 [0–2] each."""
        if self.base is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        zones = [(POSITION_MIN, self.base - 1), (self.base + self.span, POSITION_MAX)]
        kept = np.array([zone for zone in zones if zone[0] <= zone[1]], np.int64).reshape(-1, 2)
        return kept[:, 0], kept[:, 1]


@dataclass(frozen=True, slots=True)
class Zone:
    """Cells of a grid that a finer one refines alike: each parent into a group of children."""

    parents: slice
    children: slice
    group: int


@dataclass(frozen=True, slots=True)
class Grid:
    """A folding of the finest table by `fold`, and by `finer` where its first `cut` cells would be.

    `cut` and `finer` are 0 if all is folded alike. Raises MalformedMessage if a fold does not
    divide what it folds, or the cut is outside the table.
    """

    third: int
    fold: int
    cut: int = 0
    finer: int = 0

    def __post_init__(self) -> None:
        if self.fold < 1 or self.third % self.fold:
            raise MalformedMessage(f"A table of {self.third} cannot be folded by {self.fold}.")
        if not self.cut and not self.finer:
            return
        is_finer = 1 <= self.finer < self.fold and self.fold % self.finer == 0
        if not is_finer or not 0 < self.cut < HASHES * (self.third // self.fold):
            raise MalformedMessage(
                f"A fold by {self.fold} cannot be one by {self.finer} up to cell {self.cut}."
            )

    def __len__(self) -> int:
        return self._cell(HASHES * self.third)

    def cells(self, places: Integers) -> Integers:
        """Return the cells that hold these cells of the finest table, int64 [n] each."""
        if not self.cut:
            return places // self.fold
        behind = places // self.fold + self._more
        return np.where(places < self._border, places // self.finer, behind)

    def folded(self, values: U64) -> U64:
        """Return sums modulo PRIME, uint64 [cells], of values (below PRIME) of the finest table."""
        spans = [(values[first:end], fold) for first, end, fold in self.spans()]
        parts = [some.reshape(-1, fold).sum(axis=1, dtype=np.uint64) for some, fold in spans]
        out: U64 = parts[0] if len(parts) == 1 else np.concatenate(parts)
        out %= _P
        return out

    def zones(self, finer: Grid) -> list[Zone]:
        """Return the zones in which a finer grid cuts cells of this one alike; raise
        MalformedMessage if it does not refine this grid."""
        borders = {0, self._border, finer._border, HASHES * self.third}
        zones = []
        for first, end in pairwise(sorted(borders)):
            ours, theirs = self._fold_at(first), finer._fold_at(first)
            if ours % theirs or first % ours or end % ours:
                raise MalformedMessage("What is to refine a grid of cells cuts through them.")
            parents = slice(self._cell(first), self._cell(end))
            children = slice(finer._cell(first), finer._cell(end))
            zones.append(Zone(parents, children, ours // theirs))
        if all(zone.group == 1 for zone in zones):
            raise MalformedMessage("What is to refine a grid of cells is the same.")
        return zones

    @property
    def _border(self) -> int:
        """Return the first cell of the finest table that is folded by `fold`."""
        return self.cut * self.fold

    @property
    def _more(self) -> int:
        """Return the number of cells that `finer` adds."""
        return self.cut * (self.fold // self.finer - 1) if self.cut else 0

    def spans(self) -> list[tuple[int, int, int]]:
        """Return (first cell, end, fold) of each part, in cells of the finest table."""
        behind = (self._border, HASHES * self.third, self.fold)
        return [(0, self._border, self.finer), behind] if self.cut else [behind]

    def _fold_at(self, place: int) -> int:
        return self.finer if place < self._border else self.fold

    def _cell(self, place: int) -> int:
        """Return the cell that begins at a place of the finest table, or the end."""
        if place < self._border:
            return place // self.finer
        return place // self.fold + self._more


class Cells:
    """A table of 3·third cells: r and kr, uint64 or, shrunk, uint32 [3·third], sums modulo PRIME.

    `check` is Σ c(k)·r modulo PRIME of all rows, c another hash of k. Decoded entries must explain
    it as well, so entries that share all three cells are not mistaken for one.
    """

    def __init__(self, third: int) -> None:
        self.third = third
        self.r = np.zeros(HASHES * third, np.uint64)
        self.kr = np.zeros(HASHES * third, np.uint64)
        self.check = 0

    def __len__(self) -> int:
        return len(self.r)

    def add(self, ks: U64, row_hashes: U64, salt: Salt) -> None:
        """Add rows by their k and row hashes, uint64 [n] each; at most 2^32 rows in all."""
        r = elements(row_hashes)
        kr = ks * r % _P
        indices, checks = places(ks, self.third, salt)
        for at in indices:
            np.add.at(self.r, at, r)
            np.add.at(self.kr, at, kr)
        self.check = (self.check + checked(checks, r)) % PRIME

    def reduce(self) -> None:
        """Reduce all sums modulo PRIME in place; a table may take 35 MB."""
        self.r %= _P
        self.kr %= _P

    def shrink(self) -> None:
        """Reduce the table and halve its memory; nothing can be added afterwards."""
        self.reduce()
        self.r = self.r.astype(np.uint32, copy=False)
        self.kr = self.kr.astype(np.uint32, copy=False)

    def sums(self) -> U64:
        """Return r, kr and check, uint64 [6·third + 1]; those of other rows add modulo PRIME."""
        return np.concatenate([self.r, self.kr, np.array([self.check], np.uint64)])

    @classmethod
    def from_sums(cls, sums: U64) -> Cells:
        """Return the cells that have these sums, uint64 [6·third + 1], shrunk."""
        out = cls(0)
        out.third, out.check = len(sums) // (2 * HASHES), int(sums[-1]) % PRIME
        out.r, out.kr = np.split(sums[:-1] % _P, 2)
        out.shrink()
        return out

    def folded(self, grid: Grid) -> Cells:
        """Return the reduced cells of a grid; they are a table if the grid has no cut."""
        self.reduce()
        out = Cells(0 if grid.cut else self.third // grid.fold)
        out.r, out.kr = grid.folded(self.r), grid.folded(self.kr)
        return out

    def children(self, parent: Grid | None, grid: Grid, stuck: Bools) -> Cells:
        """Return the children on a grid of the stuck cells, bool [cells], of a parent grid.

        The last child of each is left out: it is the rest of its parent. Without a parent, all
        cells are returned. The result is a list of cells, not a table.
        """
        fine = self.folded(grid)
        if parent is None:
            return fine
        zones, out = parent.zones(grid), Cells(0)
        out.r, out.kr = _sent(fine.r, zones, stuck), _sent(fine.kr, zones, stuck)
        return out

    def sample(self, count: int) -> bytes:
        """Return Σ r modulo 2^8 of `count` evenly spread cells."""
        at = np.arange(count) * len(self) // max(count, 1)
        return (self.r[at] % _P & np.uint64(0xFF)).astype(np.uint8).tobytes()

    def differing(self, sample: bytes) -> int:
        """Return how many cells differ from another table's sample; raise MalformedMessage if the
        sample is too long."""
        if len(sample) > min(SAMPLE_CELLS_MAX, len(self)):
            raise MalformedMessage("A sample of cells is longer than one may be.")
        ours, theirs = (np.frombuffer(s, np.uint8) for s in (self.sample(len(sample)), sample))
        return int(np.count_nonzero(ours != theirs))

    def to_bytes(self) -> bytes:
        """Return r and kr of each cell, reduced, as little-endian uint32."""
        self.reduce()
        return np.stack([self.r, self.kr], axis=1).astype("<u4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Cells:
        """Return the cells of `to_bytes`, shrunk; raise MalformedMessage for other bytes."""
        if len(data) % CELL_BYTES:
            raise MalformedMessage("A cell is cut off.")
        pairs = np.frombuffer(data, "<u4").reshape(-1, 2)
        if len(pairs) and int(pairs.max()) >= PRIME:
            raise MalformedMessage("A cell is no element of the field.")
        out = cls(len(pairs) // HASHES)
        out.r, out.kr = pairs[:, 0].copy(), pairs[:, 1].copy()
        return out


def _sent(values: U64, zones: list[Zone], stuck: Bools) -> U64:
    groups = ((values[z.children].reshape(-1, z.group), stuck[z.parents]) for z in zones)
    return np.concatenate([group[chosen, :-1].ravel() for group, chosen in groups])


def elements(row_hashes: U64) -> U64:
    """Return the field element of each row hash, uint64 [n] in 1 to PRIME − 1."""
    return row_hashes % (_P - np.uint64(1)) + np.uint64(1)


def places(ks: U64, third: int, salt: Salt) -> tuple[tuple[Integers, Integers, Integers], U64]:
    """Return the three cells of each k in a table of this third, int64 [n] each, and c(k)."""
    seed = np.uint64(salt.s1)
    a = xx_array(ks, seed)
    b = xx_array(a, seed)
    s = np.uint64(third)
    first = ((a & _LOW) * s) >> _HALF
    second = ((a >> _HALF) * s) >> _HALF
    last = ((b >> _HALF) * s) >> _HALF
    cells = (
        first.astype(np.int64),
        second.astype(np.int64) + third,
        last.astype(np.int64) + 2 * third,
    )
    return cells, b & _LOW


def checked(checks: U64, r: U64) -> int:
    """Return Σ c(k)·r modulo PRIME for c(k) and r, uint64 [n] each."""
    return int((checks * r % _P).sum(dtype=np.uint64)) % PRIME


def sampled(differing: int, cells: int) -> int:
    """Return the number of cells that a verdict samples if about `differing` differ: one for each
    16, a fiftieth of the sketch that decodes them; 0 if fewer than 256 of the sample would differ,
    because the strata estimate that share as well."""
    count = min(differing // 16, SAMPLE_CELLS_MAX)
    return count if count * differing >= 256 * cells else 0


def pack(ks: U64) -> bytes:
    """Return ascending k, uint64 [n], as bytes: their differences in byte planes under zstd."""
    steps = np.diff(ks.astype("<u4"), prepend=np.zeros(1, "<u4"))
    planes = steps.view(np.uint8).reshape(-1, 4).T
    level = _LEVEL if len(ks) <= _LEVEL_KEYS_MAX else _LEVEL_LONG
    return zstandard.ZstdCompressor(level=level).compress(planes.tobytes())


def unpack(data: bytes, *, span: int, count_max: int) -> U64:
    """Return the k of `pack`, uint64 [n]; raise MalformedMessage unless they are at most
    `count_max`, ascending and below `span`."""
    try:
        # zstd allocates the size that a frame declares, so check it first.
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= 4 * count_max or size % 4:
            raise MalformedMessage("A list of keys is longer than what it is about.")
        unpacker = zstandard.ZstdDecompressor()
        raw = unpacker.decompress(data, max_output_size=max(size, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedMessage(f"A list of keys is damaged: {error}.") from None
    planes = np.frombuffer(raw, np.uint8).reshape(4, -1)
    steps = np.ascontiguousarray(planes.T).view("<u4").ravel().astype(np.uint64)
    ks = np.cumsum(steps, dtype=np.uint64)
    if len(ks) and (not steps[1:].all() or int(ks[-1]) >= span):
        raise MalformedMessage("A list of keys does not ascend below its span.")
    return ks
