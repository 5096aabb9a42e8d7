"""Reading a sketch: the changed k out of the difference of two tables (protocol, section 7).

Peeling: a cell that holds a single entry gives its k as the quotient of its sums; the entry is
taken out of its other cells, which may then hold a single one. A quotient of several entries may
look like a k of that very cell; what is read falsely is read again with the opposite sign, and nets
to zero.

Invariants: solved means that every cell is zero and that what was read explains the check as well;
so it is exact but for 2^-32, and never a guess. What does not come to zero is refined level by
level, from the one table that the scan filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from driftline.digests import Salt
from driftline.errors import MalformedMessage
from driftline.sketches import HASHES, PRIME, Bools, Cells, Indices, checked, places

U64 = npt.NDArray[np.uint64]

_P = np.uint64(PRIME)
_ROUNDS_MAX = 200  # of peeling; a table that decodes needs a few dozen
_CHUNK = 1 << 16  # entries at once


class Decoder:
    """Reads the changed k out of the difference of their table and ours, level by level.

    `theirs` is the whole fine table of the side that decodes. `take` what the other side sends
    until `solved`; `stuck`, bool [cells at this fold], are the cells that did not come to zero.
    """

    def __init__(self, theirs: Cells, span: int, salt: Salt, *, check: int) -> None:
        self._theirs, self._span, self._salt = theirs, np.uint64(span), salt
        self._check = check  # ours
        self._ks, self._xs = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        self._left = Cells(0)  # what is not explained yet, at this fold
        self.fold = 0  # none was taken yet
        self.stuck = np.zeros(0, np.bool_)

    @property
    def solved(self) -> bool:
        return bool(self.fold) and not self.stuck.any()

    @property
    def ks(self) -> U64:
        """uint64 [n], ascending: every k below which something changed, so far."""
        return self._ks

    def cells_expected(self, fold: int) -> int:
        """How many cells follow when our side refines to this fold.

        Raises:
            MalformedMessage: a fold that refines nothing.
        """
        if fold < 1 or self._theirs.third % fold:
            raise MalformedMessage(f"A table of {self._theirs.third} cannot be folded by {fold}.")
        if not self.fold:
            return HASHES * (self._theirs.third // fold)
        if self.fold % fold or fold == self.fold:
            raise MalformedMessage(f"A fold by {self.fold} cannot be refined to one by {fold}.")
        return int(np.count_nonzero(self.stuck)) * (self.fold // fold - 1)

    def take(self, fold: int, ours: Cells) -> None:
        """Decode with our cells at this fold, as many as `cells_expected`, from `children`."""
        table = self._theirs.folded(fold)
        if not self.fold:
            table.r = (table.r + _P - ours.r) % _P
            table.kr = (table.kr + _P - ours.kr) % _P
        else:
            self._subtract(table, self._ks, self._xs)
            group = self.fold // fold
            table.r = self._refined(table.r, ours.r, self._left.r, group)
            table.kr = self._refined(table.kr, ours.kr, self._left.kr, group)
        self.fold = fold
        self._peel(table)
        self.stuck = _busy(table)
        if self.stuck.any():
            self._doubt(table)
            self.stuck = _busy(table)
        elif not self._explains():
            self._put_back(table, np.ones(len(self._ks), np.bool_))
            self.stuck[:] = True
        self._left = table

    def _refined(self, fine: U64, ours: U64, left: U64, group: int) -> U64:
        """The unexplained difference one level down: zero but below stuck cells."""
        theirs = fine.reshape(-1, group)[self.stuck]
        # Our parent is their parent less the difference; its last child is what the others lack.
        parent = (theirs.sum(axis=1) % _P + _P - left[self.stuck]) % _P
        known = ours.reshape(-1, group - 1)
        last = (parent + _P - known.sum(axis=1) % _P) % _P
        out = np.zeros((len(fine) // group, group), np.uint64)
        out[self.stuck] = (theirs + _P - np.column_stack([known, last])) % _P
        return out.ravel()

    def _peel(self, table: Cells) -> None:
        """Take entries out of the table while a cell holds a single one."""
        found_ks, found_xs = [self._ks], [self._xs]
        active = np.flatnonzero(_busy(table))
        left = 2 * len(table)  # more are never in it: hostile cells may be read back and forth
        for _ in range(_ROUNDS_MAX):
            ks, xs = self._pure(table, active)
            left -= len(ks)
            if not len(ks) or left < 0:
                break
            found_ks.append(ks)
            found_xs.append(xs)
            touched = self._subtract(table, ks, xs)
            active = touched[(table.r[touched] != 0) | (table.kr[touched] != 0)]
        self._ks, self._xs = _netted(np.concatenate(found_ks), np.concatenate(found_xs))

    def _doubt(self, table: Cells) -> None:
        """Put back what touches a stuck cell, for one of those entries may be false.

        A false entry brings the cell that it was read from to zero although others are in it; one
        level down these part again, so that cell must count as stuck. One pass: a false entry that
        another one hides is missed, and then no finer level is solved.
        """
        busy = _busy(table)
        doubted = [np.zeros(0, np.bool_)]
        for (ks,) in _chunks(self._ks):
            first, second, last = places(ks, table.third, self._salt)[0]
            doubted.append(busy[first] | busy[second] | busy[last])
        self._put_back(table, np.concatenate(doubted))

    def _explains(self) -> bool:
        """Whether what was read explains the difference of the checks as well."""
        found = 0
        for ks, xs in _chunks(self._ks, self._xs):
            found += checked(places(ks, 1, self._salt)[1], xs)
        return (self._theirs.check - self._check - found) % PRIME == 0

    def _put_back(self, table: Cells, which: Bools) -> None:
        self._subtract(table, self._ks[which], (_P - self._xs[which]) % _P)
        self._ks, self._xs = self._ks[~which], self._xs[~which]

    def _pure(self, table: Cells, active: Indices) -> tuple[U64, U64]:
        """The entries of the active cells that seem to hold a single one, each k once."""
        found_ks, found_rs = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for (cells,) in _chunks(active[table.r[active] != 0]):
            r = table.r[cells]
            ks = table.kr[cells] * _inverse(r) % _P
            small = ks < self._span
            at, r, ks = cells[small], r[small], ks[small]
            first, second, last = places(ks, table.third, self._salt)[0]
            mine = (first == at) | (second == at) | (last == at)
            found_ks.append(ks[mine])
            found_rs.append(r[mine])
        ks, first = np.unique(np.concatenate(found_ks), return_index=True)
        return ks, np.concatenate(found_rs)[first]

    def _subtract(self, table: Cells, ks: U64, xs: U64) -> Indices:
        """Take these entries out; returns the cells that were touched, ascending."""
        touched = np.zeros(len(table), np.bool_)
        for some, values in _chunks(ks, xs):
            minus = (_P - values) % _P
            minus_k = some * minus % _P
            for at in places(some, table.third, self._salt)[0]:
                np.add.at(table.r, at, minus)
                np.add.at(table.kr, at, minus_k)
                touched[at] = True
        every = np.flatnonzero(touched)
        table.r[every] %= _P
        table.kr[every] %= _P
        return every


def _chunks(*columns: Any) -> Iterator[tuple[Any, ...]]:
    """The arrays piece by piece, so that what is computed on the way stays small."""
    for at in range(0, len(columns[0]), _CHUNK):
        yield tuple(column[at : at + _CHUNK] for column in columns)


def _busy(table: Cells) -> Bools:
    busy: Bools = (table.r | table.kr) != 0
    return busy


def _netted(ks: U64, xs: U64) -> tuple[U64, U64]:
    """Every k once with the sum of its entries; those that come to zero were no change."""
    ks, where = np.unique(ks, return_inverse=True)
    sums = np.zeros(len(ks), np.uint64)
    np.add.at(sums, where, xs)
    sums %= _P
    return ks[sums != 0], sums[sums != 0]


def _inverse(x: U64) -> U64:
    """The inverses modulo PRIME, uint64 [n], of numbers that are not 0: x^(PRIME−2)."""
    out = np.ones(len(x), np.uint64)
    for bit in bin(PRIME - 2)[2:]:
        out = out * out % _P
        if bit == "1":
            out = out * x % _P
    return out
