"""Groups at the warehouse: units up, and what the source makes of them (protocol, section 9).

After Lu, Liu and Hyland, section VI. Insertions came as rows of keys that nobody named, deletions
come as keys; units that differ come whole, or as row hashes, where those that lost keys are hashed
again without them before they are compared. `list_keys` is called once, in that last case, for our
rows below the keys of the units that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from driftline import wire_pb2 as pb
from driftline.digests import Digest
from driftline.errors import MalformedMessage
from driftline.limits import GROUP_KEYS_MAX, UNIT_KEYS_PER_MESSAGE
from driftline.ranges import short_digests
from driftline.sketches import U64, Bools, Embedding, unpack
from driftline.units import Run, UnitSums

from warehouse_agent.methods.ranges import (
    Receive,
    mismatch,
    multiset_difference,
    row_hashes,
    some,
    want,
)
from warehouse_agent.tasks.digests import Listing

ListKeys = Callable[[U64], Listing]


@dataclass(frozen=True, slots=True)
class Piece:
    """Units as they travel: keys in each, the list of keys, a digest for each unit."""

    size: int
    ks: bytes
    digests: bytes


@dataclass(frozen=True, slots=True)
class PartOf:
    """What else is read where only the named keys are compared: ranges of positions, int64 [n]
    each, both ends inclusive; and the most rows of all that may be read."""

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    rows_max: int


@dataclass(frozen=True, slots=True)
class Grouped:
    """Our side in units. `hot`: k, uint64 [n] ascending, of our rows in no unit, which are replaced
    without being compared; `rest`: the digest of our rows that are left as they are."""

    embedding: Embedding
    pieces: tuple[Piece, ...]
    hot: U64
    row_bytes: int
    wait_bytes: int
    rest: Digest = field(default_factory=Digest)
    part: PartOf | None = None

    def described(self) -> pb.Grouping:
        """As the opening says it."""
        said = pb.Grouping(
            span=self.embedding.span,
            hashed=self.embedding.base is None,
            base=self.embedding.base or 0,
            row_bytes=self.row_bytes,
            wait_bytes=self.wait_bytes,
        )
        if self.part is not None:
            said.rows_max = self.part.rows_max
            said.firsts.extend(self.part.first.tolist())
            said.lasts.extend(self.part.last.tolist())
        return said

    def requests(self) -> Iterator[pb.Request]:
        """The units, for the source."""
        for at, piece in enumerate(self.pieces):
            last = at == len(self.pieces) - 1
            units = pb.Units(size=piece.size, ks=piece.ks, digests=piece.digests, last=last)
            yield pb.Request(units=units)
        if not self.pieces:
            yield pb.Request(units=pb.Units(last=True))

    def sums(self) -> UnitSums:
        """The units, unpacked."""
        span, most = self.embedding.span, UNIT_KEYS_PER_MESSAGE
        return UnitSums([Run(p.size, unpack(p.ks, span=span, count_max=most)) for p in self.pieces])

    def ours(self) -> U64:
        """The k, ascending, below which rows of ours are replaced by what comes."""
        return np.union1d(self.sums().all_ks(), self.hot)


@dataclass(frozen=True, slots=True)
class Regrouped:
    """Rows of ours that are replaced or deleted, and the end of the relation's answer."""

    removed: Listing
    round_trips: int
    reply: pb.Reply


def regroup(
    grouped: Grouped,
    *,
    send: Callable[[pb.Request], None],
    receive: Receive,
    first: pb.Reply,
    list_keys: ListKeys,
) -> Regrouped:
    """Compare the units that differ row by row, until the wanted rows have come.

    Args:
        first: the reply that says which units differ.

    Raises:
        MalformedMessage, and whatever `receive` raises.
    """
    units = grouped.sums()
    if not len(units):
        raise MalformedMessage("Units differ where none were sent.")
    differs, counts = mismatch(_with(first, receive), len(units))
    gone = gone_of(grouped, receive())
    hashes = row_hashes(receive)
    if hashes is None or (units.find(gone) < 0).any():
        raise MalformedMessage("Units were answered with something else.")
    lost = np.zeros(len(units), np.bool_)
    lost[units.find(gone)] = True
    # One hash for every row, but one for all rows of a unit that lost keys.
    entries = np.where(lost[differs], np.minimum(counts, 1), counts)
    if (lost & ~differs).any() or int(entries.sum()) != len(hashes):
        raise MalformedMessage("The source sent another number of row hashes than it said.")
    unit_of = np.repeat(np.flatnonzero(differs), entries)
    listed = list_keys(np.union1d(units.ks_of(differs), grouped.hot))
    ours = units.find(listed.ranges.astype(np.uint64))
    is_gone = np.isin(listed.ranges.astype(np.uint64), gone)
    is_lost = lost[unit_of]
    again = _same_again(units, lost, listed, np.where(is_gone, -1, ours), unit_of, hashes, is_lost)
    wanted = is_lost & ~again[unit_of]
    # Rows in no unit are deleted, as are those that are gone; units that differ without what is
    # gone are replaced.
    removed = (ours < 0) | is_gone | (lost & ~again)[np.maximum(ours, 0)]
    singly = (ours >= 0) & ~lost[np.maximum(ours, 0)]
    alone, asked = multiset_difference(
        ours[singly], listed.hashes[singly], unit_of[~is_lost], hashes[~is_lost]
    )
    removed[np.flatnonzero(singly)[alone]] = True
    wanted[np.flatnonzero(~is_lost)[asked]] = True
    if len(hashes):
        want(send, wanted)
    return Regrouped(some(listed, removed), 1 if len(hashes) else 0, receive())


def gone_of(grouped: Grouped, reply: pb.Reply) -> U64:
    """The k below which the source has no row. Raises MalformedMessage."""
    if reply.WhichOneof("message") != "deleted":
        raise MalformedMessage("The deleted keys were expected.")
    most = min(len(grouped.pieces) * UNIT_KEYS_PER_MESSAGE, GROUP_KEYS_MAX)
    return unpack(reply.deleted.ks, span=grouped.embedding.span, count_max=most)


def _same_again(
    units: UnitSums,
    lost: Bools,
    listed: Listing,
    ours: npt.NDArray[np.int64],
    unit_of: npt.NDArray[np.int64],
    hashes: U64,
    is_lost: Bools,
) -> Bools:
    """Which units, bool [units], are equal without the keys that they lost. `ours`: the unit of
    each listed row, −1 for those that are gone."""
    sums, counts = np.zeros(len(units), np.uint64), np.zeros(len(units), np.int64)
    mine = ours >= 0
    np.add.at(sums, ours[mine], listed.hashes[mine])
    np.add.at(counts, ours[mine], 1)
    theirs = np.zeros(len(units), np.uint64)
    theirs[unit_of[is_lost]] = hashes[is_lost]
    same: Bools = lost & (short_digests(sums, counts) == theirs)
    return same


def _with(first: pb.Reply, receive: Receive) -> Receive:
    """`receive`, with a reply that came already before the others."""
    held = [first]
    return lambda: held.pop() if held else receive()
