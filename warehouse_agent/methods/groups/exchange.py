"""The group method: our rows in groups, each compared as one (protocol, section 9).

After Lu, Liu and Hyland, section VI. We send the keys and a digest of each group. The source ships
rows whose keys were not named (insertions) and sends keys that it lacks (deletions). A group that
differs is shipped whole, or its row hashes are sent. A group that lost keys is hashed again without
them before it is compared; then our rows of the groups that differ are listed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bools, Integers
from driftline.errors import MalformedMessage
from driftline.limits import GROUP_KEYS_PER_MESSAGE, GROUPED_KEYS_MAX
from driftline.reconciliation import named_keys
from driftline.reconciliation.groups import ROW_HASH_BYTES, GroupSums, SizedGroups
from driftline.reconciliation.named_keys import KeyMap, Ranks
from driftline.reconciliation.ranges import short_digests
from driftline.reconciliation.sketches import unpack
from driftline.rows.digests import Digest
from driftline.rows.key_order import KeyRange

from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.conversation import ExchangeTerms, ShippedKeys
from warehouse_agent.methods.interface import Lister, Step
from warehouse_agent.methods.ranges import (
    mismatch,
    multiset_difference,
    row_hashes,
    some,
    want,
)
from warehouse_agent.planning.choice import Method, everything
from warehouse_agent.planning.group_selection import GroupSizes
from warehouse_agent.tasks.difference import BelowKeys, ListedRows, Outcome
from warehouse_agent.tasks.digests import Listing
from warehouse_agent.transport.waiting import Requests


@dataclass(frozen=True, slots=True)
class GroupPiece:
    """Groups as they are sent: keys in each, the list of all keys, a digest for each group."""

    size: int
    ks: bytes
    digests: bytes


@dataclass(frozen=True, slots=True)
class NamedPiece:
    """Groups whose rows are named by keys: keys in each, positions of all keys, int64 [n], a digest
    for each group, and the keys themselves in a frame."""

    size: int
    positions: Integers
    digests: bytes
    keys: bytes


@dataclass(frozen=True, slots=True)
class KeyPartLimits:
    """The limits of a part whose rows are named by keys: ranges of keys to be read beside these,
    ascending, and the most rows that may be read, named ones included."""

    ranges: tuple[KeyRange, ...]
    rows_max: int


@dataclass(frozen=True, slots=True)
class PartLimits:
    """The limits of a part beside the named keys.

    Attributes:
        first, last: ranges of positions to be read, int64 [n] each, both ends inclusive.
        rows_max: the most rows that may be read, named ones included.
    """

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    rows_max: int


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Our rows in groups.

    Attributes:
        ungrouped: k, uint64 [n] ascending, of our rows in no group: replaced, never compared.
        row_bytes, wait_bytes: costs of a row and of a round trip; they decide if hashes are sent.
        part: None if all rows are compared.
    """

    embedding: KeyMap
    pieces: tuple[GroupPiece | NamedPiece, ...]
    ungrouped: U64
    row_bytes: int
    wait_bytes: int
    part: PartLimits | KeyPartLimits | None = None

    def described(self) -> pb.Grouping:
        """Return the description for the opening."""
        said = pb.Grouping(row_bytes=self.row_bytes, wait_bytes=self.wait_bytes)
        if isinstance(self.part, KeyPartLimits):
            said.rows_max = self.part.rows_max
            said.keys.SetInParent()  # also of no range
            for within in self.part.ranges:
                said.keys.ranges.add(lower=within.lower or (), upper=within.upper or ())
            return said
        assert not isinstance(self.embedding, Ranks), "ranks are for a part by keys"
        said.span, said.base = self.embedding.span, self.embedding.base or 0
        said.hashed = self.embedding.base is None
        if self.part is not None:
            said.rows_max = self.part.rows_max
            said.firsts.extend(self.part.first.tolist())
            said.lasts.extend(self.part.last.tolist())
        return said

    def requests(self) -> Iterator[pb.Request]:
        """Return the messages that carry the groups."""
        for at, piece in enumerate(self.pieces):
            message = pb.Units(size=piece.size, digests=piece.digests)
            if isinstance(piece, NamedPiece):
                message.keys = piece.keys
            else:
                message.ks = piece.ks
            message.last = at == len(self.pieces) - 1
            yield pb.Request(units=message)
        if not self.pieces:
            yield pb.Request(units=pb.Units(last=True))

    def sums(self) -> GroupSums:
        """Return the groups, unpacked."""
        return GroupSums([SizedGroups(piece.size, self._ks(piece)) for piece in self.pieces])

    def _ks(self, piece: GroupPiece | NamedPiece) -> U64:
        """Return the k of a piece, uint64 [n]."""
        if isinstance(piece, GroupPiece):
            return unpack(piece.ks, span=self.embedding.span, count_max=GROUP_KEYS_PER_MESSAGE)
        assert isinstance(self.embedding, Ranks), "a piece is named as its groups are"
        return self.embedding.embed(piece.positions)[0]

    def measured(self, compared: int) -> GroupSizes | None:
        """Return what `compared` rows took, for the next forecast; None: there is no group."""
        groups = sum(len(piece.digests) for piece in self.pieces) // ROW_HASH_BYTES
        if not groups or not compared:
            return None
        named = [len(p.keys if isinstance(p, NamedPiece) else p.ks) for p in self.pieces]
        alone, is_named = len(self.ungrouped), isinstance(self.part, KeyPartLimits)
        return GroupSizes(compared, groups, alone, sum(named) / compared, is_named)

    def ours(self) -> U64:
        """Return the k, uint64 [n] ascending, of our rows that may be replaced."""
        return np.union1d(self.sums().all_ks(), self.ungrouped)


@dataclass(frozen=True, slots=True)
class GroupSide:
    """Our side in groups. `compared` is the digest of our rows that may be replaced, `rest` that of
    all others, which only a part has; `updates_left` of these are expected to have been updated."""

    grouped: GroupedRows
    compared: Digest
    lister: Lister
    rest: Digest = field(default_factory=Digest)
    turn: NextPartNote = field(default_factory=NextPartNote)
    updates_left: float = 0.0

    @property
    def rows(self) -> int:
        """Return the number of our rows that are compared."""
        return self.compared.count

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Open with groups, and compare those that differ row by row."""
        outcome = yield from self.compare(terms)
        return outcome if self.grouped.part is None else outcome.beside(self.rest)

    def compare(self, terms: ExchangeTerms) -> Requests[Outcome]:
        """Return the outcome of the rows that are compared."""
        grouped = self.grouped
        difference: ListedRows | BelowKeys | None = None
        features = (named_keys.FEATURE,) if isinstance(grouped.part, KeyPartLimits) else ()
        said = pb.Open(features=features, grouping=grouped.described())
        yield terms.opening(self.compared, everything(), said)
        yield from grouped.requests()
        # Rows of other k replace nothing of ours, however many come. But if a part receives a row
        # that we did not compare, the proof must fail.
        among = grouped.ours() if grouped.part is None else None
        keys = ShippedKeys(terms, grouped.embedding, among)
        reply = yield keys.take
        if reply.HasField("mismatch"):
            difference = yield from regroup(grouped, first=reply, lister=self.lister)
            reply = yield None
        elif reply.HasField("deleted"):
            gone = gone_of(grouped, reply)
            difference = keys.replaced(np.concatenate([gone, grouped.ungrouped]))
            reply = yield keys.take
        return terms.finished(reply, self.compared, difference, Method.GROUP)


def regroup(grouped: GroupedRows, *, first: pb.Reply, lister: Lister) -> Requests[ListedRows]:
    """Compare the groups that differ row by row, until the wanted rows are on their way.

    Args:
        first: the reply that says which groups differ.

    Returns:
        Rows of ours that are replaced or deleted.

    Raises:
        MalformedMessage: the replies do not fit each other, or the units that were sent.
    """
    groups = grouped.sums()
    if not len(groups):
        raise MalformedMessage("Units differ where none were sent.")
    differs, counts = yield from mismatch(first, len(groups))
    gone = gone_of(grouped, (yield None))
    hashes = yield from row_hashes()
    if hashes is None or (groups.find(gone) < 0).any():
        raise MalformedMessage(
            "Units were answered with something else.",
            remedy="Install the same release on both sides.",
        )
    lost = np.zeros(len(groups), np.bool_)
    lost[groups.find(gone)] = True
    # One hash for every row, but one for all rows of a group that lost keys.
    entries = np.where(lost[differs], np.minimum(counts, 1), counts)
    if (lost & ~differs).any() or int(entries.sum()) != len(hashes):
        raise MalformedMessage("The source sent another number of row hashes than it said.")
    group_of = np.repeat(np.flatnonzero(differs), entries)
    ks = np.union1d(groups.ks_of(differs), grouped.ungrouped)
    listed = lister.list_keys(grouped.embedding, ks)
    ours = groups.find(listed.ranges.astype(np.uint64))
    is_gone = np.isin(listed.ranges.astype(np.uint64), gone)
    is_lost = lost[group_of]
    again = _same_again(
        groups, lost, listed, np.where(is_gone, -1, ours), group_of, hashes, is_lost
    )
    wanted = is_lost & ~again[group_of]
    # Rows in no group and deleted rows are removed; a group that lost keys and still differs is
    # replaced.
    removed = (ours < 0) | is_gone | (lost & ~again)[np.maximum(ours, 0)]
    singly = (ours >= 0) & ~lost[np.maximum(ours, 0)]
    alone, asked = multiset_difference(
        ours[singly], listed.hashes[singly], group_of[~is_lost], hashes[~is_lost]
    )
    removed[np.flatnonzero(singly)[alone]] = True
    wanted[np.flatnonzero(~is_lost)[asked]] = True
    if len(hashes):
        yield from want(wanted)
    return ListedRows(some(listed, removed))


def gone_of(grouped: GroupedRows, reply: pb.Reply) -> U64:
    """Return the k, uint64 [n], for which the source has no row. Raises MalformedMessage."""
    most = min(len(grouped.pieces) * GROUP_KEYS_PER_MESSAGE, GROUPED_KEYS_MAX)
    return unpack(reply.deleted.ks, span=grouped.embedding.span, count_max=most)


def _same_again(
    groups: GroupSums,
    lost: Bools,
    listed: Listing,
    ours: npt.NDArray[np.int64],
    group_of: npt.NDArray[np.int64],
    hashes: U64,
    is_lost: Bools,
) -> Bools:
    """Return which groups, bool [groups], are equal without the keys that they lost.

    Args:
        ours: the group of each listed row, int64 [listed]; −1 for deleted rows.
    """
    sums, counts = np.zeros(len(groups), np.uint64), np.zeros(len(groups), np.int64)
    mine = ours >= 0
    np.add.at(sums, ours[mine], listed.hashes[mine])
    np.add.at(counts, ours[mine], 1)
    theirs = np.zeros(len(groups), np.uint64)
    theirs[group_of[is_lost]] = hashes[is_lost]
    same: Bools = lost & (short_digests(sums, counts) == theirs)
    return same
