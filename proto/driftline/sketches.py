"""Set sketches: cells from which the changed keys themselves are read (protocol, section 7).

A row is an entry (k, r): k its embedded position, r its row hash in the field of PRIME elements.
Every entry is added to three cells (Σ r, Σ k·r). Cells add, so the difference of two tables holds
the difference of two sets: a changed row is one entry there, not two, and a cell that holds a
single entry gives its k as a quotient. Peeling such cells one after the other reads all of them
from about 1.25 cells, 10 bytes, per changed row.

A table folds: with `third` cells in each third, adding `fold` neighbours gives the table of
third / fold. So both sides fill one fine table in one scan, a coarse one travels, and where it
does not decode only children of its stuck cells follow: as many as are missing, because a grid may
be finer up to some cell than behind it. A table refined in part decodes nearly as well as one that
had been of that size from the start: 4.4 % more cells are needed at worst, half way (density
evolution of the three thirds, Luby et al. 2001).

Invariants: a decoder never guesses. It is solved exactly when every cell is zero and the check is
explained; what nets to zero was no change. What it cannot see, a changed row whose r is the same
(2^-32), the total does.

After the IBLTs of Goodrich and Mitzenmacher; the cell is the 1-sparse recovery of Ganguly and of
Cormode and Firmani. Rejected: a ring of 2^64 (quotients are ambiguous, twice the bytes), a count
and a checksum per cell (a quotient that names another cell's key is found out by its places).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import zstandard

from driftline.arrays import U64, Bools, Integers
from driftline.digests import SPARK_SEED, Salt, xx, xx_array
from driftline.errors import MalformedMessage
from driftline.limits import SAMPLE_CELLS_MAX, SKETCH_KEYS_MAX
from driftline.ranges import POSITION_MAX, POSITION_MIN

PRIME: Final = 2**32 - 5
HASHES: Final = 3  # cells of an entry, one in each third
CELL_BYTES: Final = 8  # two little-endian uint32
# Of zstd for a list of keys; 19 takes ten times the memory of what is compressed.
_LEVEL, _LEVEL_LONG, _LEVEL_KEYS_MAX = 19, 3, 1 << 17
_P = np.uint64(PRIME)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Embedding:
    """How positions become k, 0 ≤ k < span: from `base` on, or hashed where `base` is None.

    Raises:
        MalformedMessage: a span or base out of bounds.
    """

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
        """k of every position, uint64 [n], and whether it is inside, bool [n]; else k is 0."""
        if self.base is None:
            hashed = xx_array(positions.view(np.uint64), np.uint64(xx(salt.s1, SPARK_SEED)))
            ks = ((hashed >> _HALF) * np.uint64(self.span)) >> _HALF
            return ks, np.ones(len(positions), np.bool_)
        ks = positions.view(np.uint64) - np.uint64(self.base % (1 << 64))
        inside = ks < np.uint64(self.span)
        return np.where(inside, ks, np.uint64(0)), inside

    def positions(self, ks: U64) -> Integers:
        """int64 [n]: where these k stand; not for a hashed embedding."""
        assert self.base is not None
        return (ks + np.uint64(self.base % (1 << 64))).view(np.int64)

    def outside(self) -> tuple[Integers, Integers]:
        """First and last position (both inclusive) of what is not embedded, int64 [0–2] each."""
        if self.base is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        zones = [(POSITION_MIN, self.base - 1), (self.base + self.span, POSITION_MAX)]
        kept = np.array([zone for zone in zones if zone[0] <= zone[1]], np.int64).reshape(-1, 2)
        return kept[:, 0], kept[:, 1]


@dataclass(frozen=True, slots=True)
class Zone:
    """Cells of a grid that a finer one refines alike: each parent by a group of children."""

    parents: slice
    children: slice
    group: int


@dataclass(frozen=True, slots=True)
class Grid:
    """How a table is folded: by `fold`, but what would be its first `cut` cells by `finer`.

    Both are 0 where all is folded alike.

    Raises:
        MalformedMessage: a fold that does not divide what it folds, a cut outside the table.
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
        """The cells here, int64 [n], in which these cells of the finest table, int64 [n], are."""
        if not self.cut:
            return places // self.fold
        behind = places // self.fold + self._more
        return np.where(places < self._border, places // self.finer, behind)

    def folded(self, values: U64) -> U64:
        """Sums modulo PRIME, uint64 [cells here], of those of the finest table, below PRIME."""
        spans = [(values[first:end], fold) for first, end, fold in self.spans()]
        parts = [some.reshape(-1, fold).sum(axis=1, dtype=np.uint64) for some, fold in spans]
        out: U64 = parts[0] if len(parts) == 1 else np.concatenate(parts)
        out %= _P
        return out

    def zones(self, finer: Grid) -> list[Zone]:
        """How another grid refines this one, whose cells it has all cut up or left whole, and any
        cut between them. Raises MalformedMessage where it does not."""
        borders = {0, self._border, finer._border, HASHES * self.third}
        found = []
        for first, end in pairwise(sorted(borders)):
            ours, theirs = self._fold_at(first), finer._fold_at(first)
            if ours % theirs or first % ours or end % ours:
                raise MalformedMessage("What is to refine a grid of cells cuts through them.")
            parents = slice(self._cell(first), self._cell(end))
            children = slice(finer._cell(first), finer._cell(end))
            found.append(Zone(parents, children, ours // theirs))
        if all(zone.group == 1 for zone in found):
            raise MalformedMessage("What is to refine a grid of cells is the same.")
        return found

    @property
    def _border(self) -> int:
        """The first cell of the finest table that is folded by `fold`."""
        return self.cut * self.fold

    @property
    def _more(self) -> int:
        """How many cells `finer` adds."""
        return self.cut * (self.fold // self.finer - 1) if self.cut else 0

    def spans(self) -> list[tuple[int, int, int]]:
        """First cell, end and fold, in cells of the finest table."""
        behind = (self._border, HASHES * self.third, self.fold)
        return [(0, self._border, self.finer), behind] if self.cut else [behind]

    def _fold_at(self, place: int) -> int:
        return self.finer if place < self._border else self.fold

    def _cell(self, place: int) -> int:
        """The cell that begins there, or the end."""
        if place < self._border:
            return place // self.finer
        return place // self.fold + self._more


class Cells:
    """A table of 3·third cells: r and kr, uint64 or, shrunk, uint32 [3·third], sums modulo PRIME.

    `check` is Σ c(k)·r modulo PRIME of all rows, c another hash of k: what is read from the cells
    must explain it as well, so that entries which share all of their cells are not taken for one.
    """

    def __init__(self, third: int) -> None:
        self.third = third
        self.r = np.zeros(HASHES * third, np.uint64)
        self.kr = np.zeros(HASHES * third, np.uint64)
        self.check = 0

    def __len__(self) -> int:
        return len(self.r)

    def add(self, ks: U64, row_hashes: U64, salt: Salt) -> None:
        """Add rows: their k and their row hashes, uint64 [n] each; at most 2^32 rows in all."""
        r = elements(row_hashes)
        kr = ks * r % _P
        found, checks = places(ks, self.third, salt)
        for at in found:
            np.add.at(self.r, at, r)
            np.add.at(self.kr, at, kr)
        self.check = (self.check + checked(checks, r)) % PRIME

    def reduce(self) -> None:
        """Modulo PRIME, where they are: a table may be 35 MB."""
        self.r %= _P
        self.kr %= _P

    def shrink(self) -> None:
        """Reduced, and half as large: nothing is added to it any more."""
        self.reduce()
        self.r = self.r.astype(np.uint32, copy=False)
        self.kr = self.kr.astype(np.uint32, copy=False)

    def merge(self, other: Cells) -> None:
        self.r += other.r
        self.kr += other.kr
        self.reduce()
        self.check = (self.check + other.check) % PRIME

    def folded(self, grid: Grid) -> Cells:
        """The same cells folded, reduced; a table where the grid has no cut."""
        self.reduce()
        out = Cells(0 if grid.cut else self.third // grid.fold)
        out.r, out.kr = grid.folded(self.r), grid.folded(self.kr)
        return out

    def children(self, parent: Grid | None, grid: Grid, stuck: Bools) -> Cells:
        """What refines the stuck cells, bool [cells of the parent], of one grid to another.

        All children but the last of each, which is what its parent lacks. Without a parent every
        cell. The result is a list of cells, no table.
        """
        fine = self.folded(grid)
        if parent is None:
            return fine
        zones, out = parent.zones(grid), Cells(0)
        out.r, out.kr = _sent(fine.r, zones, stuck), _sent(fine.kr, zones, stuck)
        return out

    def sample(self, count: int) -> bytes:
        """Σ r modulo 2^8 of so many cells, count ≤ len(self), spread evenly."""
        at = np.arange(count) * len(self) // max(count, 1)
        return (self.r[at] % _P & np.uint64(0xFF)).astype(np.uint8).tobytes()

    def differing(self, sample: bytes) -> int:
        """How many cells of another table's sample differ from ours. Raises MalformedMessage."""
        if len(sample) > min(SAMPLE_CELLS_MAX, len(self)):
            raise MalformedMessage("A sample of cells is longer than one may be.")
        ours, theirs = (np.frombuffer(s, np.uint8) for s in (self.sample(len(sample)), sample))
        return int(np.count_nonzero(ours != theirs))

    def to_bytes(self) -> bytes:
        """Reduced, as they travel: r and kr of each cell, little-endian uint32."""
        self.reduce()
        return np.stack([self.r, self.kr], axis=1).astype("<u4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Cells:
        """A list of cells, or a table of 3·third, shrunk. Raises MalformedMessage."""
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
    """uint64 [n] in [1, PRIME): what stands for a row in the cells."""
    return row_hashes % (_P - np.uint64(1)) + np.uint64(1)


def places(ks: U64, third: int, salt: Salt) -> tuple[tuple[Integers, Integers, Integers], U64]:
    """The three cells of every k in a table of this third, int64 [n] each; and c(k)."""
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
    """Σ c(k)·r modulo PRIME."""
    return int((checks * r % _P).sum(dtype=np.uint64)) % PRIME


def sampled(differing: int, cells: int) -> int:
    """How many of these cells a verdict samples, where so many seem to differ; 0: none.

    A byte for each 16 of those that differ, a fiftieth of a sketch that tells them; 256 of the
    sample would differ at least, for fewer tell their share no better than the strata did.
    """
    count = min(differing // 16, SAMPLE_CELLS_MAX)
    return count if count * differing >= 256 * cells else 0


def pack(ks: U64) -> bytes:
    """Ascending k, uint64 [n], as they travel: their differences in byte planes under zstd."""
    steps = np.diff(ks.astype("<u4"), prepend=np.zeros(1, "<u4"))
    planes = steps.view(np.uint8).reshape(-1, 4).T
    level = _LEVEL if len(ks) <= _LEVEL_KEYS_MAX else _LEVEL_LONG
    return zstandard.ZstdCompressor(level=level).compress(planes.tobytes())


def unpack(data: bytes, *, span: int, count_max: int) -> U64:
    """The k of `pack`, at most `count_max`, ascending and below span. Raises MalformedMessage."""
    try:
        # The size that a frame declares is allocated: look at it first.
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
