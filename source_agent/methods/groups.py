"""Groups at the source: units of rows that the warehouse names by their keys (protocol, section 7).

The three steps of Lu, Liu and Hyland in one pass over the rows. Rows whose keys the warehouse did
not name are sent at once: they are new, or likely to change. Named keys without rows were deleted.
The remaining rows of each unit are hashed and compared. Units that differ are sent whole, or by row
hashes where that is cheaper (`units.refines`). A *part* reads the named keys and some ranges by
index, and nothing else, for sources that cannot afford a scan.

Memory is bounded by GROUP_KEYS_MAX, GROUP_HASHES_MAX and ROWS_HELD_BYTES.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bools, Positions
from driftline.limits import GROUP_HASHES_MAX
from driftline.reconciliation.groups import UnitSums, refines
from driftline.reconciliation.named_keys import Ranks
from driftline.reconciliation.sketches import Embedding, pack
from driftline.rows.digests import MASK64, Digest

from source_agent.methods import request_validation
from source_agent.methods.interface import ExchangeEnd, Scan
from source_agent.methods.request_validation import GroupParameters, ParsedOpening, Recv
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

    def replies(self, scan: Scan, recv: Recv) -> Generator[pb.Reply, None, ExchangeEnd]:
        # Before the scan, so that a malformed message costs the database nothing.
        embedding, reader = self.parameters.embedding, scan.reader
        if embedding is not None:
            units, digests = request_validation.units(recv(), recv, embedding)
            regrouping = Regrouping(scan, self.parameters, units, embedding)
        else:
            assert isinstance(reader, KeyPartReader), "the opening names rows by keys"
            named = request_validation.named_units(recv(), recv, reader.recipe)
            ranks, ks = reader.name(named.keys, rows_max=self.parameters.rows_max)
            digests, units = named.digests, named.sums(ks)
            regrouping = Regrouping(scan, self.parameters, units, ranks)
        yield from regrouping.read()
        if regrouping.total == scan.ours:
            return ExchangeEnd(regrouping.total, equal=True)
        differs, lost = regrouping.differing(digests)
        del digests  # up to GROUP_KEYS_MAX: free memory before rows are sent
        yield from regrouping.answer(differs, lost, recv)
        return ExchangeEnd(regrouping.total)


class Regrouping:
    """The units of one exchange: `read` to its end, then `differing`, then `answer`."""

    def __init__(
        self,
        scan: Scan,
        parameters: GroupParameters,
        units: UnitSums,
        embedding: Embedding | Ranks,
    ) -> None:
        self._scan, self._reader, self._salt = scan, scan.reader, scan.reader.salt
        self._parameters, self._units, self._embedding = parameters, units, embedding
        self.total = Digest()

    def read(self) -> Iterator[pb.Reply]:
        """Read what is compared, once; send the rows that are in no unit. Raises as `part`."""
        for batch in self._batches():
            self.total += batch.mixed.digest()
            ks, inside = self._embedding.embed(batch.positions, self._salt)
            named = np.zeros(len(inside), np.bool_)
            named[inside] = self._units.add(ks[inside], batch.mixed.m0[inside])
            yield from self._scan.frames.pick(batch, ~named)
        yield from self._scan.frames.flush()

    def differing(self, digests: U64) -> tuple[Bools, Bools]:
        """Return which units differ, and which of these lost keys, bool [units] each.

        digests: of the warehouse's units, uint64 [units].
        """
        lost = self._units.lost()
        return lost | (self._units.short_digests() != digests), lost

    def answer(self, differs: Bools, lost: Bools, recv: Recv) -> Iterator[pb.Reply]:
        """Send the units that differ, or hashes of their rows; name the keys without rows.

        differs, lost: bool [units], from `differing`.
        """
        units, gone = self._units, self._units.gone()
        rows, kept, losers = int(units.counts[differs].sum()), differs & ~lost, int(lost.sum())
        is_refined = rows + len(units) // 4 <= GROUP_HASHES_MAX and refines(
            rows=rows,
            hashes=int(units.counts[kept].sum()) + losers,
            differing=int(np.count_nonzero(kept)),
            lost=losers,
            units=len(units),
            row_bytes=self._parameters.row_bytes,
            wait_bytes=self._parameters.wait_bytes,
        )
        if is_refined:
            yield mismatch(differs, units.counts[differs])
            yield pb.Reply(deleted=pb.Deleted(ks=pack(gone)))
            yield from self._refine(differs, lost, recv)
            return
        self._reader.tally.phase = "ship"
        for batch, _ in self._again(differs):
            yield from self._scan.frames.add(batch)
        yield from self._scan.frames.flush()
        yield pb.Reply(deleted=pb.Deleted(ks=pack(gone)))

    def _refine(self, differs: Bools, lost: Bools, recv: Recv) -> Iterator[pb.Reply]:
        """Send hashes of the differing units, then the rows that the warehouse wants.

        One hash for every row, but one for all rows of a unit that lost keys.
        """
        self._reader.tally.phase = "identify"
        identified, units = IdentifiedRows(), self._units
        holding = differs & (units.counts > 0)  # the others have nothing to hash
        slots = np.cumsum(holding, dtype=np.int32) - np.int32(1)
        for batch, unit in self._again(differs):
            identified.add(batch, slots[unit])
        if not identified.hashes:
            yield from send_hashes(np.zeros(0, np.uint64))
            return
        order, hashes = identified.in_order()
        counts = units.counts[holding]
        owner = np.repeat(np.arange(len(counts)), counts)  # the slot of every hash
        starts = np.cumsum(counts) - counts
        is_whole = lost[holding]
        keep = ~is_whole[owner]
        keep[starts[is_whole]] = True
        entries = hashes[keep]
        entries[is_whole[owner[keep]]] = units.short_digests(holding & lost)
        yield from send_hashes(entries)
        asked = np.zeros(len(hashes), np.bool_)
        asked[np.flatnonzero(keep)[request_validation.wanted(recv, len(entries))]] = True
        asked |= (is_whole & asked[starts])[owner]
        wanted = order[asked]
        yield from send_wanted(self._scan, identified, wanted, total=self._rows_to_search)

    def _again(self, differs: Bools) -> Iterator[tuple[Batch, Positions]]:
        """Yield the rows of these units, and their units, int64 [rows]; raise SnapshotLost."""
        units = self._units
        rows = hashes = 0
        expected = int(units.counts[differs].sum())
        if not expected:
            return
        for batch in self._find(differs, expected):
            ks, inside = self._embedding.embed(batch.positions, self._salt)
            unit = np.where(inside, units.find(ks), np.int64(-1))
            chosen = (unit >= 0) & differs[np.maximum(unit, 0)]
            part, unit = batch.take(chosen), unit[chosen]
            rows += len(unit)
            hashes += int(part.mixed.m0.sum(dtype=np.uint64))
            yield part, unit
        agrees = hashes & MASK64 == int(units.sums[differs].sum(dtype=np.uint64))
        self._reader.check_snapshot(rows == expected and agrees)

    def _find(self, differs: Bools, rows: int) -> Iterator[Batch]:
        embedding, total = self._embedding, self._rows_to_search
        is_scanned = total is not None and not self._reader.by_index(rows, total)
        if isinstance(embedding, Ranks) or embedding.base is None or is_scanned:
            yield from self._reader.scan()  # of a part by keys: it is held, or looked up again
            return
        for first, last in self._zones(embedding, self._units.ks_of(differs, seen=True)):
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
        zones = chain([ranges], self._zones(embedding, self._units.all_ks(), without=ranges))
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
