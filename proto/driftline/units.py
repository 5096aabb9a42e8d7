"""Units: rows compared as one, named by their keys (protocol, section 7).

A unit is a set of k with a short digest of the rows below them: ⟨uid, keys, hash⟩ of Lu, Liu and
Hyland, where the uid is its number in the order of sending. The warehouse names its keys, so the
source finds out by comparing keys alone what was inserted and what was deleted; a unit that lost
keys is hashed again without them (their regrouping); then unequal hashes tell the units in which
rows were updated (their Algorithm 2).

Keys travel in runs of units of one size, ascending, so that they cost what their differences cost:
0.3 bytes where integer keys are dense, 1.2 where keys are hashed.

Rejected: naming rows by key bytes, which cost more than the rows they stand for are worth; a uid on
the wire.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from driftline.arrays import U64, Bools, Integers
from driftline.errors import MalformedMessage
from driftline.limits import GROUP_KEYS_MAX, UNIT_KEYS_MAX, UNIT_KEYS_PER_MESSAGE
from driftline.ranges import short_digests
from driftline.sketches import pack

ROW_HASH_BYTES: Final = 8
_NEARLY_ALL = 0.95  # of the units differ: how many changes there are is not to be told any more


@dataclass(frozen=True, slots=True)
class UnitRun:
    """Units of `size` keys each, the last one perhaps of fewer; ks: uint64 [n], ascending.

    Raises:
        MalformedMessage: no such size.
    """

    size: int
    ks: U64

    def __post_init__(self) -> None:
        if not 1 <= self.size <= UNIT_KEYS_MAX:
            raise MalformedMessage(f"A unit of {self.size} keys is not allowed.")

    @property
    def units(self) -> int:
        return -(-len(self.ks) // self.size)

    def pieces(self, digests: U64) -> Iterator[tuple[bytes, bytes]]:
        """What travels, keys and digests (uint64 [units]), in pieces that fit a message."""
        units = UNIT_KEYS_PER_MESSAGE // self.size
        for at in range(0, self.units, units):
            ks = self.ks[at * self.size : (at + units) * self.size]
            yield pack(ks), digests[at : at + units].astype("<u8").tobytes()


class UnitSums:
    """Sums over the units of some runs; what one reading of the rows fills.

    Runs are let go of as they come: a peer may name every key in a run of its own.
    counts: rows, int64 [units]; sums: uint64 [units], Σ m0 modulo 2^64.

    Raises:
        MalformedMessage: a key is named twice, or more than GROUP_KEYS_MAX are.
    """

    def __init__(self, runs: Iterable[UnitRun]) -> None:
        named, owners, units = bytearray(), bytearray(), 0
        for run in runs:
            if len(named) // 4 + len(run.ks) > GROUP_KEYS_MAX:
                raise MalformedMessage(f"More than {GROUP_KEYS_MAX} keys are named.")
            named += run.ks.astype(np.uint32).tobytes()  # below SKETCH_KEYS_MAX
            owners += (units + np.arange(len(run.ks)) // run.size).astype(np.int32).tobytes()
            units += run.units
        self._ks, self._unit = np.frombuffer(named, np.uint32), np.frombuffer(owners, np.int32)
        if not (self._ks[1:] > self._ks[:-1]).all():
            order = np.argsort(self._ks, kind="stable")
            self._ks, self._unit = self._ks[order], self._unit[order]
            if not (self._ks[1:] > self._ks[:-1]).all():
                raise MalformedMessage("A key is named twice.")
        self._seen = np.zeros(len(self._ks), np.bool_)
        self.counts = np.zeros(units, np.int64)
        self.sums = np.zeros(units, np.uint64)

    def __len__(self) -> int:
        return len(self.counts)

    def find(self, ks: U64) -> Integers:
        """int64 [n]: the unit of every k; −1 where none names it."""
        at = self._places(ks)
        found = np.full(len(ks), -1, np.int64)
        found[at >= 0] = self._unit[at[at >= 0]]
        return found

    def add(self, ks: U64, row_hashes: U64) -> Bools:
        """Add rows, uint64 [n] each; bool [n]: which of them are in a unit."""
        at = self._places(ks)
        named = at >= 0
        at = at[named]
        self._seen[at] = True
        np.add.at(self.counts, self._unit[at], 1)
        np.add.at(self.sums, self._unit[at], row_hashes[named])
        return named

    def short_digests(self, chosen: Bools | None = None) -> U64:
        """uint64 [units], or of the chosen units alone (bool [units]): of the rows that were added.
        Where keys are gone, that is the unit's digest regrouped."""
        if chosen is None:
            return short_digests(self.sums, self.counts)
        return short_digests(self.sums[chosen], self.counts[chosen])

    def lost(self) -> Bools:
        """bool [units]: those with a key below which no row was added."""
        out = np.zeros(len(self), np.bool_)
        out[self._unit[~self._seen]] = True
        return out

    def gone(self) -> U64:
        """The k, ascending, below which no row was added."""
        return self._ks[~self._seen].astype(np.uint64)

    def ks_of(self, units: Bools, *, seen: bool = False) -> U64:
        """The k, ascending, of the chosen units (bool [units]); those `seen` alone where asked."""
        chosen = units[self._unit]
        return self._ks[chosen & self._seen if seen else chosen].astype(np.uint64)

    def all_ks(self) -> U64:
        """Every k, ascending."""
        return self._ks.astype(np.uint64)

    def _places(self, ks: U64) -> Integers:
        if not len(self._ks):
            return np.full(len(ks), -1, np.int64)
        at = np.minimum(np.searchsorted(self._ks, ks.astype(np.uint32)), len(self._ks) - 1)
        return np.where(self._ks[at] == ks, at, np.int64(-1))


def refines(
    *,
    rows: int,
    hashes: int,
    differing: int,
    lost: int,
    units: int,
    row_bytes: int,
    wait_bytes: int,
) -> bool:
    """Whether row hashes, and one more round trip, are cheaper than shipping every row of the
    units that differ.

    Args:
        rows: in the differing units, at the source.
        hashes: one for each of them, but one for all of a unit that lost keys.
        differing: units that differ though they lost no key; the others, `lost` of all `units`, are
            taken to be changed as seldom.
        row_bytes: of a row on the line.
        wait_bytes: what the line could carry during a round trip.
    """
    share = min(differing / max(units - lost, 1), _NEARLY_ALL)
    changed = min(-units * math.log1p(-share), rows)
    return rows * row_bytes > hashes * ROW_HASH_BYTES + changed * row_bytes + wait_bytes
