"""Match records of two files by position, and find keys that a file has twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from driftline.arrays import Integers, Positions

_SLOTS_PER_RECORD: Final = 4  # one record in eight or less finds its slot taken
_ROUNDS: Final = 4
_CHECKED_AT_ONCE: Final = 1 << 19  # keys that are sorted at once, some 4 MiB
_MARKS_MAX: Final = 8 << 20  # bytes, one for each integer between the least key and the greatest


class RepeatedPosition(Exception):
    """Two records of one file have one position: a duplicate key or a collision of hashes.

    Args:
        side: 0 for the old file, 1 for the new one.
        numbers: the places of both records in the file, from 0.
    """

    def __init__(self, side: int, numbers: tuple[int, int]) -> None:
        super().__init__(side, numbers)
        self.side, self.numbers = side, numbers


class Collision(Exception):
    """Two different keys have one position."""


class WindowExhausted(Exception):
    """The window's memory does not suffice for these files; the text says which limit and why."""


def match(old: Positions, new: Positions) -> tuple[Integers, Integers]:
    """Return the pairs with equal positions as indices into both, int64 [pairs] each.

    A hash join: a table holds one record of the smaller side in each of its slots. Records that
    found theirs taken go into it next time, when those of the other side ask again that met another
    record. What is left after _ROUNDS is sorted.

    Args:
        old, new: positions, int64 [n] and int64 [m]. What one side holds twice may be in several
            pairs: `DistinctKeys` refuses it.
    """
    if len(new) < len(old):
        j, i = match(new, old)
        return i, j
    bits = max(len(old) * _SLOTS_PER_RECORD, 1).bit_length()
    slots, probes = _slots(old, bits), _slots(new, bits)
    table = np.full(1 << bits, -1, np.int32)
    waiting = np.arange(len(old), dtype=np.int32)
    asking = np.arange(len(new), dtype=np.int64)
    pairs = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for _ in range(_ROUNDS):
        table[slots[waiting]] = waiting
        there = table[probes[asking]]
        is_met = there >= 0
        there, asking = there[is_met], asking[is_met]
        is_same = old[there] == new[asking]
        pairs.append((there[is_same].astype(np.int64), asking[is_same]))
        rest = waiting[table[slots[waiting]] != waiting]
        asking = asking[~is_same]
        if not len(rest) or not len(asking):
            break
        table[slots[waiting]] = -1
        waiting = rest
    else:
        i, j = _by_order(old, new[asking], waiting)
        pairs.append((i, asking[j]))
    return np.concatenate([i for i, _ in pairs]), np.concatenate([j for _, j in pairs])


def _slots(positions: Positions, bits: int) -> Integers:
    """Return the slot of each record in a table of 2^bits, int64 [n] (Fibonacci hashing)."""
    mixed = positions.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(64 - bits)).astype(np.int64)


def _by_order(
    old: Positions, new: Positions, waiting: npt.NDArray[np.int32]
) -> tuple[Integers, Integers]:
    """Return the pairs of the records `waiting` of the old side, as `match`."""
    in_order = waiting[np.argsort(old[waiting], kind="stable")].astype(np.int64)
    at = np.searchsorted(old[in_order], new)
    at[at == len(in_order)] = 0
    j = np.flatnonzero(old[in_order[at]] == new)
    return in_order[at[j]], j


class DistinctKeys:
    """The positions of a file's records, kept to find those that come twice.

    Whether a stream has a duplicate can only be known by keeping what was read. A file in the order
    of its positions has none; beyond `bytes_max`, 8 for each record, only such a file is accepted.
    Positions that are near each other, as integer keys are, take less than that.
    """

    def __init__(self, side: int, bytes_max: int) -> None:
        self._side, self._records_max = side, bytes_max // 8
        self._kept: list[_Near] = []
        self._records = 0
        self._is_ascending = True
        self._last: int | None = None

    def add(self, positions: Positions) -> None:
        """Add the positions of the next records, int64 [n].

        Raises:
            WindowExhausted: they are not ascending, and do not fit in the memory for them.
        """
        if not len(positions):
            return
        follows = self._last is None or int(positions[0]) > self._last
        self._is_ascending &= follows and bool((positions[1:] > positions[:-1]).all())
        self._last = int(positions[-1])
        self._records += len(positions)
        if self._records <= self._records_max:
            self._kept.append(_Near.of(positions))
        elif self._is_ascending:
            self._kept = []
        else:
            raise WindowExhausted(
                f"the {('old', 'new')[self._side]} file is not sorted by its key, and more than "
                f"{self._records_max:,} keys are not kept to find duplicates"
            )

    def check(self) -> None:
        """Raise RepeatedPosition if two of the records have one position."""
        if self._is_ascending or self._are_marked_apart():
            return
        bits = (self._records // _CHECKED_AT_ONCE).bit_length()
        for part in range(1 << bits):
            some = []
            for near in self._kept:
                positions = near.positions()
                some.append(positions[_slots(positions, bits) == part] if bits else positions)
            in_order = np.concatenate(some)
            in_order.sort()
            equal = np.flatnonzero(in_order[1:] == in_order[:-1])
            if len(equal):
                raise RepeatedPosition(self._side, self._numbers(in_order[equal[0]]))

    def _are_marked_apart(self) -> bool:
        """Return True if no two are equal, by a mark for each value between the least and the
        greatest; False also where these are too many."""
        least = min(near.least for near in self._kept)
        greatest = max(near.least + int(near.distances.max()) for near in self._kept)
        if greatest - least >= _MARKS_MAX:
            return False
        is_there = np.zeros(greatest - least + 1, np.bool_)
        for near in self._kept:
            is_there[near.distances.astype(np.int64) + (near.least - least)] = True
        return int(np.count_nonzero(is_there)) == self._records

    def _numbers(self, position: np.int64) -> tuple[int, int]:
        """Return the places of the first two records with this position."""
        numbers: list[int] = []
        first = 0
        for near in self._kept:
            positions = near.positions()
            numbers += (np.flatnonzero(positions == position) + first).tolist()
            first += len(positions)
        return numbers[0], numbers[1]


@dataclass(frozen=True, slots=True)
class _Near:
    """Positions as their distances from the least, [n] of the narrowest type that holds them."""

    least: int
    distances: npt.NDArray[np.unsignedinteger]

    @classmethod
    def of(cls, positions: Positions) -> _Near:
        least, greatest = int(positions.min()), int(positions.max())
        type = np.min_scalar_type(greatest - least)
        return cls(least, (positions.view(np.uint64) - np.uint64(least % 2**64)).astype(type))

    def positions(self) -> Positions:
        return (self.distances.astype(np.uint64) + np.uint64(self.least % 2**64)).view(np.int64)
