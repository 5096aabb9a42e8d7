"""Groups: rows compared as one, named by their keys (protocol, section 7).

A group is a set of k with a short digest of the rows at them: ⟨uid, keys, hash⟩ of Lu, Liu and
Hyland; its uid is its number in the order of sending. The warehouse names its keys, so the source
finds inserts and deletes by comparing keys; a group that lost keys is hashed again without them
(their regrouping); then unequal hashes mark the groups with updated rows (their Algorithm 2).

Keys travel in lists for groups of one size, ascending, as differences: 0.3 bytes each for dense
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
from driftline.limits import GROUP_KEYS_PER_MESSAGE, GROUPED_KEYS_MAX, KEYS_PER_GROUP_MAX
from driftline.reconciliation.ranges import short_digests
from driftline.reconciliation.sketches import pack

ROW_HASH_BYTES: Final = 8
_NEARLY_ALL = 0.95  # of the groups differ: beyond it, the number of changes cannot be estimated


@dataclass(frozen=True, slots=True)
class SizedGroups:
    """Groups of `size` keys each, the last one perhaps of fewer; ks: uint64 [n], ascending.
    Raises MalformedMessage if no group may have this size."""

    size: int
    ks: U64

    def __post_init__(self) -> None:
        if not 1 <= self.size <= KEYS_PER_GROUP_MAX:
            raise MalformedMessage(f"A unit of {self.size} keys is not allowed.")

    @property
    def count(self) -> int:
        """The number of groups."""
        return -(-len(self.ks) // self.size)

    def pieces(self, digests: U64) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and digests (uint64 [groups]) as bytes, in pieces that fit a message."""
        groups = GROUP_KEYS_PER_MESSAGE // self.size
        for at in range(0, self.count, groups):
            ks = self.ks[at * self.size : (at + groups) * self.size]
            yield pack(ks), digests[at : at + groups].astype("<u8").tobytes()


class GroupSums:
    """Sums over groups, filled by one reading of the rows.

    counts: rows, int64 [groups]; sums: uint64 [groups], Σ m0 modulo 2^64. No list is kept, as a
    peer may put every key into one of its own. Raises MalformedMessage if a key is named twice,
    or more than GROUPED_KEYS_MAX keys are.
    """

    def __init__(self, sized: Iterable[SizedGroups]) -> None:
        named, owners, groups = bytearray(), bytearray(), 0
        for one in sized:
            if len(named) // 4 + len(one.ks) > GROUPED_KEYS_MAX:
                raise MalformedMessage(f"More than {GROUPED_KEYS_MAX} keys are named.")
            named += one.ks.astype(np.uint32).tobytes()  # below SKETCH_KEYS_MAX
            owners += (groups + np.arange(len(one.ks)) // one.size).astype(np.int32).tobytes()
            groups += one.count
        self._ks, self._group = np.frombuffer(named, np.uint32), np.frombuffer(owners, np.int32)
        if not (self._ks[1:] > self._ks[:-1]).all():
            order = np.argsort(self._ks, kind="stable")
            self._ks, self._group = self._ks[order], self._group[order]
            if not (self._ks[1:] > self._ks[:-1]).all():
                raise MalformedMessage("A key is named twice.")
        self._seen = np.zeros(len(self._ks), np.bool_)
        self.counts = np.zeros(groups, np.int64)
        self.sums = np.zeros(groups, np.uint64)

    def __len__(self) -> int:
        return len(self.counts)

    def find(self, ks: U64) -> Integers:
        """Return the group of each k, int64 [n]; −1 if none names it."""
        at = self._places(ks)
        found = np.full(len(ks), -1, np.int64)
        found[at >= 0] = self._group[at[at >= 0]]
        return found

    def add(self, ks: U64, row_hashes: U64) -> Bools:
        """Add rows by k and row hash, uint64 [n] each; return which are in a group, bool [n]."""
        at = self._places(ks)
        named = at >= 0
        at = at[named]
        self._seen[at] = True
        np.add.at(self.counts, self._group[at], 1)
        np.add.at(self.sums, self._group[at], row_hashes[named])
        return named

    def short_digests(self, chosen: Bools | None = None) -> U64:
        """Return digests of the added rows, uint64 [groups], or only of chosen groups, bool
        [groups]; a group that lost keys is thereby regrouped."""
        if chosen is None:
            return short_digests(self.sums, self.counts)
        return short_digests(self.sums[chosen], self.counts[chosen])

    def lost(self) -> Bools:
        """Return the groups with a key for which no row was added, bool [groups]."""
        out = np.zeros(len(self), np.bool_)
        out[self._group[~self._seen]] = True
        return out

    def gone(self) -> U64:
        """Return the k for which no row was added, ascending, uint64 [n]."""
        return self._ks[~self._seen].astype(np.uint64)

    def ks_of(self, groups: Bools, *, seen: bool = False) -> U64:
        """Return the k of chosen groups, bool [groups], ascending; `seen`: only those with rows."""
        chosen = groups[self._group]
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
    groups: int,
    row_bytes: int,
    wait_bytes: int,
) -> bool:
    """Return True if row hashes and a round trip cost less than all rows of the differing groups.

    Args:
        rows: in the differing groups, at the source.
        hashes: one for each of these rows, but one for each group that lost keys.
        differing: groups that lost no key; `lost` groups are assumed to change at the same rate.
        row_bytes: of a row on the line.
        wait_bytes: what the line could carry during a round trip.
    """
    share = min(differing / max(groups - lost, 1), _NEARLY_ALL)
    changed = min(-groups * math.log1p(-share), rows)
    return rows * row_bytes > hashes * ROW_HASH_BYTES + changed * row_bytes + wait_bytes
