"""Rows behind a mark, and nothing else: what changed or went is the marker's claim.

The rows behind the mark are sent, and the keys of those that the relation has no more. No key of
another row is read, so nothing is proven but that what was sent arrives. The warehouse asks for it
where its engineer accepts claims, and an opening is refused unless the DBA says how rows are
deleted: by a flag, whose rows the marker shows, or never.

Rows with a time that is yet to come are counted by audits alone: it costs another search.

If the mark does not fit, or too many rows are behind it, all rows are compared, as in `since`.

Source: Carnes and Hanson, section 3 (TDI; TI where nothing is deleted).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from driftline import wire_pb2 as pb
from driftline.arrays import Bytes
from driftline.reconciliation.ranges import Partition

from source_agent.methods import request_validation
from source_agent.methods.interface import ExchangeEnd, Handover, Replies, Scan
from source_agent.methods.ranges import compare_unmarked
from source_agent.methods.request_validation import ParsedOpening


@dataclass(frozen=True, slots=True)
class ClaimRead:
    """The answer to an opening with a mark that is claimed. strata: the warehouse's, of its ranges
    of rows, None: left out; is_brief: an empty list of deleted keys is left out."""

    partition: Partition
    strata: Bytes | None
    is_brief: bool

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self | None:
        """Return the answer if the opening claims a mark. Raises MalformedMessage."""
        if not request_validation.is_claim(opening.message):
            return None
        partition, said = opening.partition, opening.message
        strata = request_validation.strata_in(said, partition.ranges)
        return cls(partition, strata, request_validation.is_brief(said))

    def replies(self, scan: Scan) -> Replies[ExchangeEnd | Handover]:
        marked = scan.marked
        assert marked is not None, "an opening with a mark has a marker"
        scan.reader.tally.phase = "read changes"
        changes = marked.changes()
        if changes is None:
            scan.reader.tally.phase = "scan"
            return (yield from compare_unmarked(scan, self.partition, self.strata))
        behind, gone = changes
        scan.reader.tally.phase = "ship"
        for batch in behind.batches():
            yield from scan.frames.add(batch)
        yield from scan.frames.flush()
        scan.reader.check_snapshot()
        if len(gone) or not self.is_brief:
            yield pb.Reply(deleted=pb.Deleted(positions=gone.astype("<i8").tobytes()))
        return ExchangeEnd(behind.digest, by_marker=True)
