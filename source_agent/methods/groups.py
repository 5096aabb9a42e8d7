"""Groups at the source: rows that the warehouse names by their keys (protocol, section 7).

The three steps of Lu, Liu and Hyland in one pass over the rows. Rows whose keys the warehouse did
not name are sent at once: they are new, or likely to change. Named keys without rows were deleted.
The remaining rows of each group are hashed and compared. Groups that differ are sent whole, or by
row hashes where that is cheaper (`groups.refines`). A *part* reads the named keys and some ranges
by index, and nothing else, for sources that cannot afford a scan.

Memory is bounded by GROUPED_KEYS_MAX, GROUP_HASHES_MAX and ROWS_HELD_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bools, Positions
from driftline.limits import GROUP_HASHES_MAX
from driftline.reconciliation.groups import GroupSums, refines
from driftline.reconciliation.named_keys import Ranks
from driftline.reconciliation.sketches import Embedding, pack
from driftline.rows.digests import MASK64, Digest

from source_agent.methods import request_validation
from source_agent.methods.interface import ExchangeEnd, Replies, Scan
from source_agent.methods.request_validation import GroupParameters, ParsedOpening
from source_agent.methods.row_hashes import mismatch, send_hashes, send_wanted
from source_agent.scan.batches import Batch, IdentifiedRows, join_neighbours
from source_agent.scan.key_part import KeyPartReader

ZONE_KEYS = 1 << 16  # looked up at once: a range takes far more memory than a key


@dataclass(frozen=True, slots=True)
class GroupsCompared:
    """The answer to an opening with groups."""

    parameters: GroupParameters

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self | None:
        """Return the answer if the opening has groups; raises as `grouping_of`."""
        parameters = request_validation.grouping_of(opening.message, opening.shape)
        return None if parameters is None else cls(parameters)

    def replies(self, scan: Scan) -> Replies[ExchangeEnd]:
        # Before the scan, so that a malformed message costs the database nothing.
        embedding, reader = self.parameters.embedding, scan.reader
        if embedding is not None:
            groups, digests = yield from request_validation.groups((yield None), embedding)
            regrouping = Regrouping(scan, self.parameters, groups, embedding)
        else:
            assert isinstance(reader, KeyPartReader), "the opening names rows by keys"
            named = yield from request_validation.named_groups((yield None), reader.recipe)
            ranks, ks = reader.name(named.keys, rows_max=self.parameters.rows_max)
            digests, groups = named.digests, named.sums(ks)
            regrouping = Regrouping(scan, self.parameters, groups, ranks)
        yield from regrouping.read()
        if regrouping.total == scan.ours:
            return ExchangeEnd(regrouping.total, equal=True)
        differs, lost = regrouping.differing(digests)
        del digests  # up to GROUPED_KEYS_MAX: free memory before rows are sent
        yield from regrouping.answer(differs, lost)
        return ExchangeEnd(regrouping.total)


class Regrouping:
    """The groups of one exchange: `read` to its end, then `differing`, then `answer`."""

    def __init__(
        self,
        scan: Scan,
        parameters: GroupParameters,
        groups: GroupSums,
        embedding: Embedding | Ranks,
    ) -> None:
        self._scan, self._reader, self._salt = scan, scan.reader, scan.reader.salt
        self._parameters, self._groups, self._embedding = parameters, groups, embedding
        self.total = Digest()

    def read(self) -> Iterator[pb.Reply]:
        """Read what is compared, once; send the rows that are in no group. Raises as `part`."""
        for batch in self._batches():
            self.total += batch.mixed.digest()
            ks, inside = self._embedding.embed(batch.positions, self._salt)
            named = np.zeros(len(inside), np.bool_)
            named[inside] = self._groups.add(ks[inside], batch.mixed.m0[inside])
            yield from self._scan.frames.pick(batch, ~named)
        yield from self._scan.frames.flush()

    def differing(self, digests: U64) -> tuple[Bools, Bools]:
        """Return which groups differ, and which of these lost keys, bool [groups] each.

        digests: of the warehouse's groups, uint64 [groups].
        """
        lost = self._groups.lost()
        return lost | (self._groups.short_digests() != digests), lost

    def answer(self, differs: Bools, lost: Bools) -> Replies[None]:
        """Send the groups that differ, or hashes of their rows; name the keys without rows.

        differs, lost: bool [groups], from `differing`.
        """
        groups, gone = self._groups, self._groups.gone()
        rows, kept, losers = int(groups.counts[differs].sum()), differs & ~lost, int(lost.sum())
        is_refined = rows + len(groups) // 4 <= GROUP_HASHES_MAX and refines(
            rows=rows,
            hashes=int(groups.counts[kept].sum()) + losers,
            differing=int(np.count_nonzero(kept)),
            lost=losers,
            groups=len(groups),
            row_bytes=self._parameters.row_bytes,
            wait_bytes=self._parameters.wait_bytes,
        )
        if is_refined:
            yield mismatch(differs, groups.counts[differs])
            yield pb.Reply(deleted=pb.Deleted(ks=pack(gone)))
            yield from self._refine(differs, lost)
            return
        self._reader.tally.phase = "ship"
        for batch, _ in self._again(differs):
            yield from self._scan.frames.add(batch)
        yield from self._scan.frames.flush()
        yield pb.Reply(deleted=pb.Deleted(ks=pack(gone)))

    def _refine(self, differs: Bools, lost: Bools) -> Replies[None]:
        """Send hashes of the differing groups, then the rows that the warehouse wants.

        One hash for every row, but one for all rows of a group that lost keys.
        """
        self._reader.tally.phase = "identify"
        identified, groups = IdentifiedRows(), self._groups
        holding = differs & (groups.counts > 0)  # the others have nothing to hash
        slots = np.cumsum(holding, dtype=np.int32) - np.int32(1)
        for batch, group in self._again(differs):
            identified.add(batch, slots[group])
        if not identified.hashes:
            yield from send_hashes(np.zeros(0, np.uint64))
            return
        order, hashes = identified.in_order()
        counts = groups.counts[holding]
        owner = np.repeat(np.arange(len(counts)), counts)  # the slot of every hash
        starts = np.cumsum(counts) - counts
        is_whole = lost[holding]
        keep = ~is_whole[owner]
        keep[starts[is_whole]] = True
        entries = hashes[keep]
        entries[is_whole[owner[keep]]] = groups.short_digests(holding & lost)
        yield from send_hashes(entries)
        asked = np.zeros(len(hashes), np.bool_)
        asked[np.flatnonzero(keep)[(yield from request_validation.wanted(len(entries)))]] = True
        asked |= (is_whole & asked[starts])[owner]
        wanted = order[asked]
        yield from send_wanted(self._scan, identified, wanted, total=self._rows_to_search)

    def _again(self, differs: Bools) -> Iterator[tuple[Batch, Positions]]:
        """Yield the rows of these groups, and their groups, int64 [rows]; raise SnapshotLost."""
        groups = self._groups
        rows = hashes = 0
        expected = int(groups.counts[differs].sum())
        if not expected:
            return
        for batch in self._find(differs, expected):
            ks, inside = self._embedding.embed(batch.positions, self._salt)
            group = np.where(inside, groups.find(ks), np.int64(-1))
            chosen = (group >= 0) & differs[np.maximum(group, 0)]
            part, group = batch.take(chosen), group[chosen]
            rows += len(group)
            hashes += int(part.mixed.m0.sum(dtype=np.uint64))
            yield part, group
        agrees = hashes & MASK64 == int(groups.sums[differs].sum(dtype=np.uint64))
        self._reader.check_snapshot(rows == expected and agrees)

    def _find(self, differs: Bools, rows: int) -> Iterator[Batch]:
        embedding, total = self._embedding, self._rows_to_search
        is_scanned = total is not None and not self._reader.by_index(rows, total)
        if isinstance(embedding, Ranks) or embedding.base is None or is_scanned:
            yield from self._reader.scan()  # of a part by keys: it is held, or looked up again
            return
        for first, last in self._zones(embedding, self._groups.ks_of(differs, seen=True)):
            yield from self._reader.find(first, last, rows=rows, total=total)

    @property
    def _rows_to_search(self) -> int | None:
        """Number of rows to search for some of them; None for a part, which is never scanned."""
        return None if self._parameters.part is not None else self.total.count

    def _batches(self) -> Iterator[Batch]:
        part, embedding = self._parameters.part, self._embedding
        if part is None or isinstance(embedding, Ranks):
            return self._reader.scan()
        ranges = _merged(*part)
        zones = chain([ranges], self._zones(embedding, self._groups.all_ks(), without=ranges))
        return self._reader.part(zones, rows_max=self._parameters.rows_max)

    def _zones(
        self,
        embedding: Embedding,
        ks: U64,
        *,
        without: tuple[Positions, Positions] | None = None,
    ) -> Iterator[tuple[Positions, Positions]]:
        """Yield the positions of these k as ranges, ZONE_KEYS at a time, neighbours joined.

        without: ranges to leave out, int64 [n] first and last, ascending and disjoint.
        """
        for at in range(0, len(ks), ZONE_KEYS):
            where = embedding.positions(ks[at : at + ZONE_KEYS])
            if without is not None and len(without[0]):
                before = np.searchsorted(without[0], where, "right") - 1
                where = where[(before < 0) | (where > without[1][before])]
            yield join_neighbours(where)


def _merged(first: Positions, last: Positions) -> tuple[Positions, Positions]:
    """Return these ranges, int64 [n] each, both ends inclusive, ascending and disjoint."""
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    begins = np.flatnonzero(np.append(True, first[1:] > last[:-1])) if len(first) else order
    ends = np.append(begins[1:], len(first)) - 1
    return first[begins], last[ends] if len(first) else last
