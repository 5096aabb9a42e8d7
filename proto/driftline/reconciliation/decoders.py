"""Decode a sketch: find the changed k in the difference of two tables (protocol, section 7).

Peeling: a cell that holds one entry gives its k as the quotient of its two sums; the entry is then
subtracted from its other cells, which may now hold one entry each. The quotient of several entries
may look like a k of that cell; such a false entry is found again with the opposite sign, and the
two cancel out.

Invariants: a decoder is solved if every cell is zero and the entries explain the check as well; so
the result is exact but for a probability of 2^-32. Cells that do not become zero are refined level
by level, from the one table that the scan filled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from driftline.arrays import U64, Bools, Integers
from driftline.limits import PEELING_ROUNDS_MAX
from driftline.reconciliation.sketches import PRIME, Cells, Grid, Zone, checked, places
from driftline.rows.digests import Salt

Array = TypeVar("Array", U64, Integers)

_P = np.uint64(PRIME)
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_NONE = np.zeros(0, np.uint64)
_CHUNK = 1 << 16  # entries processed at once
_BLOCK = 1 << 20  # cells searched at once
_HALVINGS = 60  # of an interval of doubles
ERROR_MAX = 0.1  # relative standard deviation of an estimate of differing cells


class Decoder:
    """Find the changed k in the difference of their table and ours, level by level.

    `theirs` is the whole fine table of the side that decodes. Call `take` with what the other side
    sends until `solved`. `stuck`, bool [cells of the grid], marks the cells that are not zero.
    `differing` is the estimated number of finest cells that differ, from the share of the first
    cells that do not; None if nothing was taken, or if that share is too small.
    """

    def __init__(self, theirs: Cells, span: int, salt: Salt, *, check: int) -> None:
        self._theirs, self._span, self._salt = theirs, np.uint64(span), salt
        self._check = check  # ours
        self._entries = _NONE  # found so far, in order: a changed k and the difference of its r
        self._left = Cells(0)  # the unexplained difference on this grid
        self.grid: Grid | None = None
        self.differing: int | None = None
        self.stuck = np.zeros(0, np.bool_)

    @property
    def solved(self) -> bool:
        """True if every cell is zero and the check is explained."""
        return self.grid is not None and not self.stuck.any()

    @property
    def ks(self) -> U64:
        """The changed k found so far, ascending, uint64 [n]."""
        return self._entries >> _HALF

    @property
    def rs(self) -> U64:
        """Their r less ours, modulo PRIME, of each of `ks`, uint64 [n]."""
        return self._entries & _LOW

    def cells_expected(self, grid: Grid) -> int:
        """Return the number of cells that follow when our side refines to this grid; raise
        MalformedMessage if the grid refines nothing."""
        if self.grid is None:
            return len(grid)
        zones = self.grid.zones(grid)
        return sum(int(np.count_nonzero(self.stuck[z.parents])) * (z.group - 1) for z in zones)

    def take(self, grid: Grid, ours: Cells) -> None:
        """Decode with our cells on this grid, `cells_expected` of `children`. Their arrays are
        emptied, because memory has no room for a second large table."""
        parent, self.grid = self.grid, grid
        self._theirs.reduce()
        if parent is None:
            table = Cells(0)
            table.r = _less(grid.folded(self._theirs.r), ours.r)
            ours.r = _NONE
            table.kr = _less(grid.folded(self._theirs.kr), ours.kr)
            ours.kr = _NONE
            self.differing = self._estimate(grid, table)
        else:
            table, zones = self._theirs.folded(grid), parent.zones(grid)
            self._subtract(table, self._entries)
            table.r = self._refined(table.r, ours.r, self._left.r, zones)
            table.kr = self._refined(table.kr, ours.kr, self._left.kr, zones)
            self._left, ours.r, ours.kr = Cells(0), _NONE, _NONE
        self._peel(table)
        self.stuck = _busy(table)
        if self.stuck.any():
            self._put_back_doubtful(table)
            self.stuck = _busy(table)
        elif not self._explains():
            self._put_back(table, np.ones(len(self._entries), np.bool_))
            self.stuck[:] = True
        self._left = table

    def _estimate(self, grid: Grid, table: Cells) -> int | None:
        """Return `differing`: a cell is equal if all finest cells in it are equal."""
        same = len(table) - int(np.count_nonzero(_busy(table)))
        load = math.log(len(table) / same) if same else math.inf
        if not same or math.sqrt(math.expm1(load) / len(table)) > ERROR_MAX * load:
            return None
        parts = [((end - first) // fold, fold) for first, end, fold in grid.spans()]
        low, high = 0.0, 1.0  # the share of finest cells that are equal
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_more = sum(cells * middle**fold for cells, fold in parts) > same
            low, high = (low, middle) if is_more else (middle, high)
        return max(round(len(self._theirs) * (1 - high)), 1)

    def _refined(self, fine: U64, ours: U64, left: U64, zones: list[Zone]) -> U64:
        """Return the unexplained difference one level down, uint64 [cells there], written over
        `fine`: zero except below stuck cells."""
        at = 0
        for zone in zones:
            stuck, lacking = self.stuck[zone.parents], left[zone.parents]
            groups = fine[zone.children].reshape(-1, zone.group)
            groups[~stuck] = 0
            for some in _chunks(np.flatnonzero(stuck), size=max(_CHUNK // zone.group, 1)):
                theirs = groups[some, :-1]
                known = ours[at : at + theirs.size].reshape(theirs.shape)
                at += theirs.size
                differs = (theirs + _P - known) % _P
                groups[some, :-1] = differs
                # The last child is the parent's unexplained difference less the other children.
                groups[some, -1] = (lacking[some] + _P - differs.sum(axis=1) % _P) % _P
        return fine

    def _peel(self, table: Cells) -> None:
        """Subtract entries from the table while a cell holds a single one."""
        parts, self._entries = [self._entries], _NONE
        active = _busy(table)
        left = 2 * len(table)  # a sound table holds fewer; hostile cells may repeat entries forever
        for _ in range(PEELING_ROUNDS_MAX):
            entries = self._pure(table, active)
            left -= len(entries)
            if not len(entries) or left < 0:
                break
            parts.append(entries)
            active = self._subtract(table, entries)
            active &= _busy(table)
        entries = np.concatenate(parts)
        parts.clear()
        self._entries = _netted(entries)

    def _put_back_doubtful(self, table: Cells) -> None:
        """Put back the entries that touch a stuck cell, because one of them may be false.

        A false entry makes its cell zero although others are in it; one level down they separate
        again, so that cell must count as stuck. A false entry hidden by another one is missed.
        """
        busy = _busy(table)
        doubted = [np.zeros(0, np.bool_)]
        for some in _chunks(self._entries):
            first, second, last = self._places(some >> _HALF)
            doubted.append(busy[first] | busy[second] | busy[last])
        self._put_back(table, np.concatenate(doubted))

    def _explains(self) -> bool:
        """Return True if the entries explain the difference of the checks as well."""
        explained = 0
        for some in _chunks(self._entries):
            explained += checked(places(some >> _HALF, 1, self._salt)[1], some & _LOW)
        return (self._theirs.check - self._check - explained) % PRIME == 0

    def _places(self, ks: U64) -> tuple[Integers, Integers, Integers]:
        """Return the three cells of each k on the grid, int64 [n] each."""
        assert self.grid is not None
        first, second, last = places(ks, self._theirs.third, self._salt)[0]
        return self.grid.cells(first), self.grid.cells(second), self.grid.cells(last)

    def _put_back(self, table: Cells, which: Bools) -> None:
        entries = self._entries[which]
        self._subtract(table, _packed(entries >> _HALF, (_P - (entries & _LOW)) % _P))
        self._entries = self._entries[~which]

    def _pure(self, table: Cells, active: Bools) -> U64:
        """Return the entries of active cells that seem to hold a single one, each k once."""
        parts = [_NONE]
        for every in _where(active):
            cells = every[table.r[every] != 0]
            r = table.r[cells]
            ks = table.kr[cells] * _inverse(r) % _P
            small = ks < self._span
            at, r, ks = cells[small], r[small], ks[small]
            first, second, last = self._places(ks)
            mine = (first == at) | (second == at) | (last == at)
            parts.append(_packed(ks[mine], r[mine]))
        entries = np.concatenate(parts)
        parts.clear()
        entries.sort()
        return entries[_firsts(entries)]

    def _subtract(self, table: Cells, entries: U64) -> Bools:
        """Subtract entries from the table; return the cells that were touched, bool [cells]."""
        touched = np.zeros(len(table), np.bool_)
        for some in _chunks(entries):
            ks = some >> _HALF
            minus = (_P - (some & _LOW)) % _P
            minus_k = ks * minus % _P
            for at in self._places(ks):
                np.add.at(table.r, at, minus)
                np.add.at(table.kr, at, minus_k)
                touched[at] = True
        for every in _where(touched):
            table.r[every] %= _P
            table.kr[every] %= _P
        return touched


def _chunks(values: Array, size: int = _CHUNK) -> Iterator[Array]:
    """Yield an array in pieces, so that intermediate arrays stay small."""
    for at in range(0, len(values), size):
        yield values[at : at + size]


def _where(mask: Bools) -> Iterator[Integers]:
    """Yield the indices of a mask in pieces: together they would take eight times its memory."""
    for at in range(0, len(mask), _BLOCK):
        every = np.flatnonzero(mask[at : at + _BLOCK])
        every += at
        yield from _chunks(every)


def _busy(table: Cells) -> Bools:
    """Return the cells that are not zero, bool [cells]."""
    busy: Bools = table.r != 0
    busy |= table.kr != 0
    return busy


def _packed(ks: U64, xs: U64) -> U64:
    """Return each entry as one sortable number: k (below 2^31) in the upper half, x below."""
    return ks << _HALF | xs


def _firsts(entries: U64) -> Bools:
    """Return a mask of the first entry of each k, for sorted entries."""
    firsts = np.ones(len(entries), np.bool_)
    for at in range(1, len(entries), _CHUNK):
        ks = entries[at - 1 : at + _CHUNK] >> _HALF
        firsts[at : at + _CHUNK] = ks[1:] != ks[:-1]
    return firsts


def _netted(entries: U64) -> U64:
    """Return each k once, in order, with the sum of its entries, written over the entries; a sum
    of zero was no change."""
    entries.sort()
    at = kept = 0
    while at < len(entries):
        last = entries[min(at + _CHUNK, len(entries)) - 1] >> _HALF
        end = int(np.searchsorted(entries, (last + np.uint64(1)) << _HALF))  # no k is cut up
        some = entries[at:end]
        firsts = np.flatnonzero(_firsts(some))
        sums = np.add.reduceat(some & _LOW, firsts) % _P
        is_change = sums != 0
        some = _packed(some[firsts[is_change]] >> _HALF, sums[is_change])
        entries[kept : kept + len(some)] = some
        at, kept = end, kept + len(some)
    return entries[:kept]


def _less(theirs: U64, ours: U64) -> U64:
    """Return theirs less ours modulo PRIME, written over theirs."""
    theirs += _P
    theirs -= ours
    theirs %= _P
    return theirs


def _inverse(x: U64) -> U64:
    """Return the inverses modulo PRIME, uint64 [n], of numbers that are not 0: x^(PRIME−2)."""
    out = np.ones(len(x), np.uint64)
    for bit in bin(PRIME - 2)[2:]:
        out = out * out % _P
        if bit == "1":
            out = out * x % _P
    return out
