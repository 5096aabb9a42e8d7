"""Ranges at the source: those that differ are refined by row hashes, and what is wanted is shipped.

What differs is read again, by index where that touches few rows, and answered with row hashes
(`identify`).
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt
from driftline import wire_pb2 as pb
from driftline.digests import MASK64
from driftline.limits import ROW_HASHES_MAX
from driftline.ranges import Partition, RangeSums

from source_agent.methods import request_validation
from source_agent.methods.identification import hashes_sent, mismatch, ship_wanted
from source_agent.scan.frames_out import Shipper
from source_agent.scan.held_rows import Identified, Positions
from source_agent.scan.reader import Reader


class Refinement:
    """The range method from the warehouse's digests on."""

    def __init__(
        self, reader: Reader, shipper: Shipper, partition: Partition, sums: RangeSums
    ) -> None:
        self._reader, self._shipper = reader, shipper
        self._partition, self._sums = partition, sums

    def answer(
        self, first: pb.Request, more: request_validation.Hear
    ) -> Generator[pb.Reply, None, bool]:
        """Every reply but the last; False: too many rows to hash, everything must follow."""
        by, ours = request_validation.digests(first, more, self._partition.ranges)
        coarse = self._sums.coarsened(by)
        differs = coarse.short_digests() != ours
        yield mismatch(differs, coarse.counts[differs])
        reading = differs & (coarse.counts > 0)
        hashed = reading & (ours != 0)
        if int(coarse.counts[hashed].sum()) > ROW_HASHES_MAX:
            yield pb.Reply(hashes_end=pb.HashesEnd(too_many=True))
            return False
        found = yield from self._identify(coarse, by, reading, hashed)
        if not found.hashes:
            yield pb.Reply(hashes_end=pb.HashesEnd())
            return True
        order, hashes = found.in_order()
        yield from hashes_sent(hashes)
        wanted = order[request_validation.wanted(more, len(hashes))]
        total = self._sums.total.count
        yield from ship_wanted(self._reader, self._shipper, found, wanted, total=total)
        return True

    def _identify(
        self,
        coarse: RangeSums,
        by: int,
        reading: npt.NDArray[np.bool_],
        hashed: npt.NDArray[np.bool_],
    ) -> Generator[pb.Reply, None, Identified]:
        """Reads the coarse ranges in `reading`; ships those of them that are not in `hashed`."""
        found = Identified()
        if not reading.any():
            return found
        slot_of = np.cumsum(hashed) - 1
        expected = int(coarse.counts[reading].sum())
        rows = total = 0
        self._reader.tally.phase = "identify"
        first, last = _coarse_bounds(self._partition, np.flatnonzero(reading), by)
        for batch in self._reader.find(first, last, rows=expected, total=coarse.total.count):
            at = self._partition.indices(batch.positions) >> by
            part, at = batch.take(reading[at]), at[reading[at]]
            rows += len(at)
            total += int(part.mixed.m0.sum(dtype=np.uint64))
            yield from self._shipper.pick(part, ~hashed[at])
            found.add(part.take(hashed[at]), slot_of[at[hashed[at]]])
        yield from self._shipper.flush()
        agrees = total & MASK64 == int(coarse.sums[reading].sum(dtype=np.uint64))
        self._reader.same_snapshot(rows == expected and agrees)
        return found


def _coarse_bounds(
    partition: Partition, coarse: npt.NDArray[np.int64], by: int
) -> tuple[Positions, Positions]:
    """First and last position of coarse ranges, neighbours joined into one."""
    joined = np.flatnonzero(np.diff(coarse, prepend=-2) > 1)
    begin = coarse[joined] << by
    ends = coarse[np.append(joined[1:] - 1, len(coarse) - 1)] if len(coarse) else coarse
    last = np.minimum(((ends + 1) << by) - 1, partition.ranges - 1)
    return partition.bounds(begin)[0], partition.bounds(last)[1]
