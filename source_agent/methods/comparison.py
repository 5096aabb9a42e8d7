"""The source's half of an exchange about one relation (protocol, section 9).

A generator of replies over an iterator of requests: one scan fingerprints every row and fills the
total, the range sums and, where the warehouse opened with one, the sketch. Equal totals end it. A
sketch that decodes is answered with the rows at once (`decode`); else the verdict says how much
seems to differ, and the warehouse asks for everything, refines ranges (`refine`) or sends more
cells. Groups have an answer of their own (`regroup`); where the opening names a tile, only its rows
exist (`tile`). Memory is bounded by RANGES_MAX, THIRD_CELLS_MAX, GROUP_KEYS_MAX, ROW_HASHES_MAX,
ROWS_HELD_BYTES and TILE_HELD_BYTES, never by the table.

This module knows no gRPC server and no engine: it takes a `Session` and yields messages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from driftline import wire_pb2 as pb
from driftline.digests import Digest
from driftline.errors import MalformedMessage
from driftline.negotiation import check_fields
from driftline.ranges import RangeSums, estimate_differing, strata
from driftline.sketches import HASHES, sampled

from source_agent.engines.interface import Session, Shape
from source_agent.methods import request_validation
from source_agent.methods.groups import Regrouping
from source_agent.methods.ranges import Refinement
from source_agent.methods.sketch import Sketching
from source_agent.scan.accumulators import RangeTotals
from source_agent.scan.frames_out import Shipper
from source_agent.scan.reader import Tally
from source_agent.scan.tile import reader_of
from source_agent.scan.workers import Crew, fill

__all__ = ["Comparison", "Tally"]


class Comparison:
    """One relation of one exchange. `answer` is the whole conversation."""

    def __init__(
        self,
        session: Session,
        shape: Shape,
        opening: pb.Open,
        tally: Tally,
        crew: Crew | None = None,
    ) -> None:
        """`crew`: further processes that may read parts of the scan."""
        request_validation.check_opening(opening, shape)
        self._salt, self._ours = (
            request_validation.salt_of(opening),
            request_validation.digest_of(opening),
        )
        self._partition = request_validation.partition_of(opening)
        self._sketch = request_validation.sketch_of(opening, shape)
        self._crew = crew
        self._grouping = request_validation.grouping_of(opening, shape)
        slots = HASHES * self._sketch.third if self._sketch else self._partition.ranges
        self._strata = None if self._grouping else request_validation.strata_in(opening, slots)
        self._reader = reader_of(session, shape, opening, salt=self._salt, tally=tally)
        level = min(max(opening.level, 1), 19)
        self._shipper = Shipper(shape.recipe, self._salt, level=level)

    def answer(self, requests: Iterator[pb.Request]) -> Generator[pb.Reply, None, None]:
        """Every reply to the opening and to what follows it.

        Raises:
            NullKey, ValueDoesNotFit, SnapshotLost, MalformedMessage, LimitExceeded.
        """
        if self._ours.count == 0:
            total = yield from self._ship_everything()
            yield self._finished(total, equal=total == self._ours)
            return
        if self._grouping is not None:
            yield from self._by_groups(self._grouping, requests)
            return
        sketch, sketching = self._sketch, None
        totals = RangeTotals(self._partition)
        if sketch is not None:
            sketching = Sketching(self._reader, self._shipper, sketch)
            if sketch.fold:
                # Heard before the scan: what is malformed costs the database nothing.
                sketching.hear(self._next(requests), lambda: self._next(requests))
        accumulators = (totals, sketching.filled) if sketching else (totals,)
        fill(self._reader, accumulators, self._crew)
        del accumulators  # the cells of the sketch are released before rows are shipped
        sums = totals.sums
        if sums.total == self._ours:
            yield self._finished(sums.total, equal=True)
            return
        yield from self._differ(sums, sketching, requests)

    def _by_groups(
        self, said: request_validation.Grouping, requests: Iterator[pb.Request]
    ) -> Iterator[pb.Reply]:
        grouping = Regrouping(self._reader, self._shipper, said, self._salt)
        # Heard before the scan: what is malformed costs the database nothing.
        grouping.take(self._next(requests), lambda: self._next(requests))
        yield from grouping.read()
        is_equal = grouping.total == self._ours
        if not is_equal:
            yield from grouping.answer(lambda: self._next(requests))
        yield self._finished(grouping.total, equal=is_equal)

    def _differ(
        self, sums: RangeSums, sketching: Sketching | None, requests: Iterator[pb.Request]
    ) -> Iterator[pb.Reply]:
        """From the end of a scan that found a difference to the end."""
        is_first = True
        while True:
            if sketching is not None and sketching.solved():
                yield from sketching.answer(sums.total.count)
                break
            yield self._verdict(sums, sketching, is_first=is_first)
            is_first = False
            request = self._next(requests)
            kind = request.WhichOneof("message")
            if kind == "cells" and sketching is not None:
                sketching.hear(request, lambda: self._next(requests))
                continue
            if sketching is not None:
                sketching.release()
            if kind == "whole":
                yield from self._everything_again(sums.total)
                break
            refinement = Refinement(self._reader, self._shipper, self._partition, sums)
            is_done = yield from refinement.answer(request, lambda: self._next(requests))
            if not is_done:
                yield from self._everything_again(sums.total)
            break
        yield self._finished(sums.total)

    def _verdict(self, sums: RangeSums, sketching: Sketching | None, *, is_first: bool) -> pb.Reply:
        differing, stuck, sample = self._differing(sums, sketching), b"", b""
        if sketching is not None:
            stuck = sketching.stuck()
            if is_first and sketching.differing is None:
                sample = sketching.cells.sample(sampled(differing, len(sketching.cells)))
        total = sums.total
        return pb.Reply(
            verdict=pb.Verdict(
                count=total.count,
                sum=total.sum_bytes(),
                differing=differing,
                stuck=stuck,
                sample=sample,
            )
        )

    def _differing(self, sums: RangeSums, sketching: Sketching | None) -> int:
        """How many ranges, or cells where there are some, seem to differ."""
        assert self._strata is not None
        if sketching is None:
            slots = sums.short_digests()
        elif sketching.differing is not None:
            return sketching.differing
        else:
            slots = sketching.cells.r
        return estimate_differing(self._strata, strata(slots, self._salt), len(slots))

    def _ship_everything(self) -> Generator[pb.Reply, None, Digest]:
        """All rows in one scan, in key order where that is free; returns their digest."""
        self._reader.tally.phase = "ship"
        total = Digest()
        for batch in self._reader.scan(ordered=self._reader.shape.ordered):
            total += batch.mixed.digest()
            yield from self._shipper.add(batch)
        yield from self._shipper.flush()
        return total

    def _everything_again(self, before: Digest) -> Iterator[pb.Reply]:
        total = yield from self._ship_everything()
        self._reader.same_snapshot(before == total)

    def _next(self, requests: Iterator[pb.Request]) -> pb.Request:
        self._reader.pause()
        request = next(requests, None)
        if request is None:
            raise MalformedMessage("The stream ended in the middle of a relation.")
        check_fields(request)
        return request

    def _finished(self, total: Digest, *, equal: bool = False) -> pb.Reply:
        reader, security = self._reader, self._reader.shape.row_security
        return pb.Reply(
            finished=pb.Finished(
                equal=equal,
                count=total.count,
                sum=total.sum_bytes(),
                as_of=reader.as_of,
                consistency=reader.consistency.value,
                changed=reader.changed,
                vouched=reader.shape.vouched,
                scans=reader.tally.scans,
                rows_read=reader.tally.rows_read,
                row_security=security.message() if security else None,
            )
        )
