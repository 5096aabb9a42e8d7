"""Match records of two files by position, and find keys that a file has twice."""

from __future__ import annotations

import numpy as np
from driftline.arrays import Integers, Positions


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


class GaveUp(Exception):
    """The window's memory does not suffice for these files; the text says which limit and why."""


def match(
    old: Positions, new: Positions, numbers: tuple[Integers, Integers]
) -> tuple[Integers, Integers]:
    """Return the pairs with equal positions as indices into both, int64 [pairs] each.

    Args:
        old, new: positions, int64 [n] and int64 [m].
        numbers: of the records, int64 [n] and int64 [m], for the error.

    Raises:
        RepeatedPosition: one of them holds a position twice.
    """
    both = np.concatenate([old, new])
    order = np.argsort(both, kind="stable")  # two sorted runs are merged in linear time
    in_order = both[order]
    equal = np.flatnonzero(in_order[1:] == in_order[:-1])
    left, right = order[equal], order[equal + 1]
    wrong = (left >= len(old)) | (right < len(old))
    if wrong.any():
        pair = int(wrong.argmax())
        all_numbers = np.concatenate(numbers)
        two = sorted((int(all_numbers[left[pair]]), int(all_numbers[right[pair]])))
        raise RepeatedPosition(int(left[pair] >= len(old)), (two[0], two[1]))
    return left, right - len(old)


class DistinctKeys:
    """The positions of a file's records, kept to find those that come twice.

    Whether a stream has a duplicate can only be known by keeping what was read: 8 bytes per record.
    A file in the order of its positions has none; beyond `bytes_max` only such a file is accepted.
    """

    def __init__(self, side: int, bytes_max: int) -> None:
        self._side, self._bytes_max = side, bytes_max
        self._kept: list[Positions] = []
        self._bytes = 0
        self._is_ascending = True
        self._last: int | None = None

    def add(self, positions: Positions) -> None:
        """Add the positions of the next records, int64 [n].

        Raises:
            GaveUp: they are not ascending, and do not fit in the memory for them.
        """
        if not len(positions):
            return
        follows = self._last is None or int(positions[0]) > self._last
        self._is_ascending &= follows and bool((positions[1:] > positions[:-1]).all())
        self._last = int(positions[-1])
        self._bytes += positions.nbytes
        if self._bytes <= self._bytes_max:
            self._kept.append(positions)
        elif self._is_ascending:
            self._kept = []
        else:
            raise GaveUp(
                f"the {('old', 'new')[self._side]} file is not sorted by its key, and more than "
                f"{self._bytes_max // 8:,} keys are not kept to find duplicates"
            )

    def check(self) -> None:
        """Raise RepeatedPosition if two of the records have one position."""
        if self._is_ascending:
            return
        kept = np.concatenate(self._kept)
        in_order = np.sort(kept)
        equal = np.flatnonzero(in_order[1:] == in_order[:-1])
        if len(equal):
            first, second, *_ = np.flatnonzero(kept == in_order[equal[0]]).tolist()
            raise RepeatedPosition(self._side, (first, second))
