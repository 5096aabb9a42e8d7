"""Full copy at the source: send every row, whatever the warehouse has.

It answers a load, when the warehouse has no rows, and continues a comparison that would cost more
than a copy. Rows are sent in key order where that costs nothing. Memory: the rows of one frame.
"""

from __future__ import annotations

from typing import Self

from driftline.rows.digests import Digest

from source_agent.methods.interface import ExchangeEnd, Handover, Replies, Scan
from source_agent.methods.request_validation import ParsedOpening, strata_in


class EverythingSent:
    """The answer to an opening of no rows."""

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self | None:
        """Return the answer if the warehouse has no rows. Raises MalformedMessage."""
        if opening.ours.count:
            return None
        strata_in(opening.message, opening.partition.ranges)
        return cls()

    def replies(self, scan: Scan) -> Replies[ExchangeEnd]:
        total = yield from send_everything(scan)
        return ExchangeEnd(total, equal=total == scan.ours)


def send_everything(scan: Scan) -> Replies[Digest]:
    """Send all rows in one scan, in key order where that is free; return their digest."""
    scan.reader.tally.phase = "ship"
    total = Digest()
    for batch in scan.reader.scan(ordered=scan.reader.shape.ordered):
        total += batch.mixed.digest()
        yield from scan.frames.add(batch)
    yield from scan.frames.flush()
    return total


def send_again(scan: Scan, at: Handover) -> Replies[ExchangeEnd]:
    """Send all rows after a comparison. Raise SnapshotLost if they changed since."""
    total = yield from send_everything(scan)
    scan.reader.check_snapshot(total == at.sums.total)
    return ExchangeEnd(total)
