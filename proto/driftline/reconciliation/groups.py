"""Units: rows compared as one, named by their keys (protocol, section 7).

A unit is a set of k with a short digest of the rows at them: ⟨uid, keys, hash⟩ of Lu, Liu and
Hyland; its uid is its number in the order of sending. The warehouse names its keys, so the source
finds inserts and deletes by comparing keys; a unit that lost keys is hashed again without them
(their regrouping); then unequal hashes mark the units with updated rows (their Algorithm 2).

Keys travel in runs of units of one size, ascending, as differences: 0.3 bytes each for dense
integer keys, 1.2 for hashed ones. Rejected: key bytes instead of k, which cost too much; a uid on
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
from driftline.reconciliation.ranges import short_digests
from driftline.reconciliation.sketches import pack

ROW_HASH_BYTES: Final = 8
_NEARLY_ALL = 0.95  # of the units differ: beyond it, the number of changes cannot be estimated


@dataclass(frozen=True, slots=True)
class UnitRun:
    """Units of `size` keys each, the last one perhaps of fewer; ks: uint64 [n], ascending.
    Raises MalformedMessage if no unit may have this size."""

    size: int
    ks: U64

    def __post_init__(self) -> None:
        if not 1 <= self.size <= UNIT_KEYS_MAX:
            raise MalformedMessage(f"A unit of {self.size} keys is not allowed.")

    @property
    def units(self) -> int:
        """The number of units."""
        return -(-len(self.ks) // self.size)

    def pieces(self, digests: U64) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and digests (uint64 [units]) as bytes, in pieces that fit a message."""
        units = UNIT_KEYS_PER_MESSAGE // self.size
        for at in range(0, self.units, units):
            ks = self.ks[at * self.size : (at + units) * self.size]
            yield pack(ks), digests[at : at + units].astype("<u8").tobytes()


class UnitSums:
    """Sums over the units of runs, filled by one reading of the rows.

    counts: rows, int64 [units]; sums: uint64 [units], Σ m0 modulo 2^64. No run is kept, because a
    peer may put every key into a run of its own. Raises MalformedMessage if a key is named twice,
    or more than GROUP_KEYS_MAX keys are.
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
        """Return the unit of each k, int64 [n]; −1 if none names it."""
        at = self._places(ks)
        units = np.full(len(ks), -1, np.int64)
        units[at >= 0] = self._unit[at[at >= 0]]
        return units

    def add(self, ks: U64, row_hashes: U64) -> Bools:
        """Add rows by k and row hash, uint64 [n] each; return which are in a unit, bool [n]."""
        at = self._places(ks)
        named = at >= 0
        at = at[named]
        self._seen[at] = True
        np.add.at(self.counts, self._unit[at], 1)
        np.add.at(self.sums, self._unit[at], row_hashes[named])
        return named

    def short_digests(self, chosen: Bools | None = None) -> U64:
        """Return digests of the added rows, uint64 [units], or only of chosen units, bool [units];
        a unit that lost keys is thereby regrouped."""
        if chosen is None:
            return short_digests(self.sums, self.counts)
        return short_digests(self.sums[chosen], self.counts[chosen])

    def lost(self) -> Bools:
        """Return the units with a key for which no row was added, bool [units]."""
        out = np.zeros(len(self), np.bool_)
        out[self._unit[~self._seen]] = True
        return out

    def gone(self) -> U64:
        """Return the k for which no row was added, ascending, uint64 [n]."""
        return self._ks[~self._seen].astype(np.uint64)

    def ks_of(self, units: Bools, *, seen: bool = False) -> U64:
        """Return the k of chosen units, bool [units], ascending; `seen`: only those with rows."""
        chosen = units[self._unit]
        return self._ks[chosen & self._seen if seen else chosen].astype(np.uint64)

    def all_ks(self) -> U64:
        """Return every k, ascending, uint64 [n]."""
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
    """Return True if row hashes and a round trip cost less than all rows of the differing units.

    Args:
        rows: in the differing units, at the source.
        hashes: one for each of these rows, but one for each unit that lost keys.
        differing: units that lost no key; `lost` units are assumed to change at the same rate.
        row_bytes: of a row on the line.
        wait_bytes: what the line could carry during a round trip.
    """
    share = min(differing / max(units - lost, 1), _NEARLY_ALL)
    changed = min(-units * math.log1p(-share), rows)
    return rows * row_bytes > hashes * ROW_HASH_BYTES + changed * row_bytes + wait_bytes
