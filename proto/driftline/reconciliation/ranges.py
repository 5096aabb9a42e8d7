"""Partitions of the key domain and sums over their ranges (protocol, section 7).

A partition cuts all 2^64 positions into numbered ranges; a few segments describe it, so both sides
can derive it. Sums over ranges add: one unordered scan fills them, and sums of neighbours give any
coarser partition. The strata, samples of the ranges at geometrically falling rates, estimate how
many ranges differ before any is compared.

Source: the range checksums (RCS) and the auxiliary table of bounds of Carnes and Hanson; the strata
are Eppstein's difference estimator, over ranges instead of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from driftline.arrays import U64, Bytes, Integers
from driftline.errors import MalformedMessage
from driftline.limits import RANGES_MAX, SEGMENTS_MAX, STRATUM_CELLS
from driftline.rows.digests import P3, Digest, MixedFingerprints, Salt, xx_array

POSITION_MIN = -(1 << 63)
POSITION_MAX = (1 << 63) - 1
_BIAS = np.uint64(1 << 63)
_SLOTS_AT_ONCE = 1 << 16  # so that intermediate arrays stay small


@dataclass(frozen=True)
class Partition:
    """Segments of the position domain: ascending starts, the first POSITION_MIN, and shifts 0–63.
    Raises MalformedMessage if they are no partition, or make more than RANGES_MAX ranges."""

    starts: tuple[int, ...]
    shifts: tuple[int, ...]

    def __post_init__(self) -> None:
        starts, shifts = self.starts, self.shifts
        if not 1 <= len(starts) == len(shifts) <= SEGMENTS_MAX:
            raise MalformedMessage(f"A partition of {len(starts)} segments is not allowed.")
        if starts[0] != POSITION_MIN or starts[-1] > POSITION_MAX:
            raise MalformedMessage("A partition must cover every position.")
        if any(a >= b for a, b in pairwise(starts)):
            raise MalformedMessage("The segments of a partition must ascend.")
        if any(not 0 <= s <= 63 for s in shifts):
            raise MalformedMessage("A segment's shift must be 0 to 63.")
        if self.ranges > RANGES_MAX:
            raise MalformedMessage(f"A partition has at most {RANGES_MAX} ranges.")

    @cached_property
    def _bases(self) -> tuple[int, ...]:
        """The first range of each segment, then the number of all ranges."""
        bases = [0]
        ends = (*self.starts[1:], POSITION_MAX + 1)
        for start, end, shift in zip(self.starts, ends, self.shifts, strict=True):
            bases.append(bases[-1] + ((end - start - 1) >> shift) + 1)
        return tuple(bases)

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return self._bases[-1]

    def indices(self, positions: Integers) -> Integers:
        """Return the range of each position, int64 [n]."""
        starts = np.array(self.starts, np.int64)
        segment = np.searchsorted(starts, positions, side="right") - 1
        inside = positions.view(np.uint64) - starts.view(np.uint64)[segment]
        within = inside >> np.array(self.shifts, np.uint64)[segment]
        return np.array(self._bases[:-1], np.int64)[segment] + within.astype(np.int64)

    def bounds(self, indices: Integers) -> tuple[Integers, Integers]:
        """Return first and last position (both inclusive) of each named range, int64 [n] each."""
        bases = np.array(self._bases, np.int64)
        segment = np.searchsorted(bases, indices, side="right") - 1
        shifts = np.array(self.shifts, np.uint64)[segment]
        starts = np.array(self.starts, np.int64).view(np.uint64)
        offset = (indices - bases[segment]).astype(np.uint64) << shifts
        # In the biased domain, unsigned order is the order of positions.
        first = (starts[segment] + offset) ^ _BIAS
        end = (np.append(starts[1:], _BIAS) - np.uint64(1))[segment] ^ _BIAS
        last = np.minimum(first + ((np.uint64(1) << shifts) - np.uint64(1)), end)
        last = np.where(last < first, end, last)  # the sum overflowed
        return (first ^ _BIAS).view(np.int64), (last ^ _BIAS).view(np.int64)


def uniform(ranges: int) -> Partition:
    """Return equal ranges for hashed positions: `ranges`, rounded down to a power of two."""
    bits = max(min(ranges, RANGES_MAX).bit_length() - 1, 1)
    return Partition((POSITION_MIN,), (64 - bits,))


def from_quantiles(quantiles: Sequence[int], ranges: int) -> Partition:
    """Return at most about `ranges` ranges of similar size from ascending quantiles of the key.

    Positions below the first and above the last quantile have ranges of their own, so rows inserted
    beyond the largest key are apart from all others. A width of ranges stays in use as
    long as it makes 0.4 to 1 times the wanted number of them, so that keys that are spread about
    evenly have few segments.
    """
    knots = sorted(set(quantiles))
    if not knots:
        return uniform(2)
    # Too many knots are thinned evenly; the last one stays, because it bounds all rows.
    stride = -(-(len(knots) - 1) // (SEGMENTS_MAX - 3)) or 1
    knots = [*knots[:-1:stride], knots[-1]]
    starts, shifts = [], []
    if knots[0] > POSITION_MIN:
        starts.append(POSITION_MIN)
        shifts.append(63)
    share = max(min(ranges, RANGES_MAX - 3 * SEGMENTS_MAX) // max(len(knots) - 1, 1), 1)
    past = knots[-1] + 1
    shift, is_first = 0, True
    for start, end in zip(knots, [*knots[1:-1], past], strict=False):
        most = share << shift
        if is_first or not 0.4 * most <= end - start <= most:
            shift = min(max(-(-(end - start) // share) - 1, 0).bit_length(), 63)
            starts.append(start)
            shifts.append(shift)
        is_first = False
    if past <= POSITION_MAX:
        starts.append(past)
        shifts.append(63)
    return Partition(tuple(starts), tuple(shifts))


class RangeSums:
    """Counts and sums over the ranges of a partition, filled by one scan.

    counts: int64 [ranges]; sums: uint64 [ranges], Σ m0 modulo 2^64; total: the digest of all.
    """

    def __init__(self, ranges: int) -> None:
        self.counts = np.zeros(ranges, np.int64)
        self.sums = np.zeros(ranges, np.uint64)
        self.total = Digest()

    def add(self, indices: Integers, mixed: MixedFingerprints) -> None:
        """Add rows: the range of each, int64 [n], and their mixed fingerprints."""
        self.add_hashes(indices, mixed.m0, mixed.digest())

    def add_hashes(self, indices: Integers, row_hashes: U64, digest: Digest) -> None:
        """Add rows: range, int64 [n], and row hash, uint64 [n], of each, and the digest of all."""
        np.add.at(self.counts, indices, 1)
        np.add.at(self.sums, indices, row_hashes)
        self.total += digest

    def coarsened(self, by: int) -> RangeSums:
        """Return the sums of the coarser partition in which 2^by neighbours are one range."""
        out = RangeSums(coarse_ranges(len(self.counts), by))
        cuts = np.arange(0, len(self.counts), 1 << by)
        out.counts = np.add.reduceat(self.counts, cuts)
        out.sums = np.add.reduceat(self.sums, cuts)
        out.total = self.total
        return out

    def short_digests(self) -> U64:
        """Return the short digest of each range, uint64 [ranges]; 0 only for empty ranges."""
        return short_digests(self.sums, self.counts)

    def words(self) -> U64:
        """Return counts, then sums, uint64 [2·ranges]; words of disjoint rows add modulo 2^64."""
        return np.concatenate([self.counts.view(np.uint64), self.sums])

    @classmethod
    def from_words(cls, total: Digest, words: U64) -> RangeSums:
        """Return the sums that have these words, uint64 [2·ranges]."""
        out = cls(0)
        counts, out.sums = np.split(words, 2)
        out.counts, out.total = counts.view(np.int64), total
        return out

    def to_bytes(self) -> bytes:
        """Return the sums as bytes, for a file."""
        head = self.total.count.to_bytes(8, "little") + self.total.sum_bytes()
        return head + self.words().tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> RangeSums:
        """Return the sums that `to_bytes` wrote. Raises ValueError: they are cut off."""
        total = Digest(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:24], "little"))
        return cls.from_words(total, np.frombuffer(data, np.uint64, offset=24).copy())


def short_digests(sums: U64, counts: Integers) -> U64:
    """Return a digest of each set of rows from its Σ m0 and count, uint64 [n]; 0 only if empty."""
    digests = counts.astype(np.uint64)  # then in place, because there may be millions
    digests *= np.uint64(P3)
    digests += sums
    digests[digests == 0] = 1
    digests[counts == 0] = 0
    return digests


def coarse_ranges(ranges: int, by: int) -> int:
    """Return the number of ranges after 2^by neighbours became one."""
    return -(-ranges // (1 << by))


def strata_of(slots: int) -> int:
    """Return the number of strata: the sparsest has one or two slots per cell."""
    return max((slots // STRATUM_CELLS).bit_length(), 1)


def strata(digests: U64, salt: Salt) -> Bytes:
    """Return sums modulo 2^8 over sampled slots, uint8 [strata_of(slots), STRATUM_CELLS], of
    digests, uint64 [slots]: short digests of ranges or Σ r of a sketch's cells."""
    count = strata_of(len(digests))
    out = np.zeros((count, STRATUM_CELLS), np.uint64)
    for first in range(0, len(digests), _SLOTS_AT_ONCE):
        some = digests[first : first + _SLOTS_AT_ONCE]
        slots = np.arange(first, first + len(some), dtype=np.uint64)
        x = xx_array(slots, np.uint64(salt.s0))
        low = x & -x
        zeros = np.where(x == 0, count, np.log2(np.maximum(low, np.uint64(1)).astype(np.float64)))
        stratum = np.minimum(zeros.astype(np.int64), count - 1)
        cell = ((x >> np.uint64(48)) % np.uint64(STRATUM_CELLS)).astype(np.int64)
        np.add.at(out, (stratum, cell), some)
    return (out & np.uint64(0xFF)).astype(np.uint8)


def estimate_differing(ours: Bytes, theirs: Bytes, ranges: int) -> int:
    """Estimate how many of `ranges` slots differ, at least 1, from two [strata, cells] of `strata`.

    The most likely D is returned: a cell of stratum t has on average share_t·D/cells differing
    slots and is one byte, so it differs with probability (1 − exp(−share_t·D/cells))·255/256.
    """
    differing = (ours != theirs).sum(axis=1)
    shares = np.array([2.0 ** -(t + 1) for t in range(len(ours))])
    shares[-1] *= 2
    grid = np.unique(np.geomspace(1, max(ranges, 2), 256).astype(np.int64))
    load = np.outer(grid, shares) / STRATUM_CELLS
    differs = -np.expm1(-load) * (255 / 256)
    same = STRATUM_CELLS - differing
    likelihood = (differing * np.log(differs) + same * np.log1p(-differs)).sum(axis=1)
    return int(grid[int(np.argmax(likelihood))])
