"""Full copy at the source: send every row, whatever the warehouse has.

It answers a load, when the warehouse has no rows, and continues a comparison that would cost more
than a copy. Rows are sent in key order where that costs nothing. A load that was cut goes on: the
chunks that are staged already are listed, and do not come again. Memory: the rows of one frame, and
the list (CHUNKS_MAX).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import zstandard
from driftline.rows.digests import Digest

from source_agent.methods.interface import ExchangeEnd, Handover, Replies, Scan
from source_agent.methods.request_validation import ParsedOpening, chunks, strata_in
from source_agent.scan.listed_chunks import UnlistedRows


@dataclass(frozen=True, slots=True)
class EverythingSent:
    """The answer to an opening of no rows. is_cut: chunks are listed that are staged already."""

    is_cut: bool

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self | None:
        """Return the answer if the warehouse has no rows. Raises MalformedMessage."""
        if opening.ours.count:
            return None
        strata_in(opening.message, opening.partition.ranges)
        return cls(opening.message.chunks)

    def replies(self, scan: Scan) -> Replies[ExchangeEnd]:
        rows, met = None, b""
        if self.is_cut:
            listed = yield from chunks()
            rows = UnlistedRows(listed.shift, listed.digests)
        total = yield from send_everything(scan, rows)
        if rows is not None:
            bits = np.packbits(rows.met, bitorder="little").tobytes()
            met = zstandard.ZstdCompressor(level=3).compress(bits)
        return ExchangeEnd(total, equal=total == scan.ours, met=met)


def send_everything(scan: Scan, unlisted: UnlistedRows | None = None) -> Replies[Digest]:
    """Send all rows in one scan, in key order where that is free; return their digest.

    unlisted: leaves out rows that the warehouse has; None: it has none.
    """
    scan.reader.tally.phase = "ship"
    total = Digest()
    for batch in scan.reader.scan(ordered=scan.reader.shape.ordered):
        total += batch.mixed.digest()
        for part in [batch] if unlisted is None else unlisted.add(batch):
            yield from scan.frames.add(part)
    for part in [] if unlisted is None else unlisted.end():
        yield from scan.frames.add(part)
    yield from scan.frames.flush()
    return total


def send_again(scan: Scan, at: Handover) -> Replies[ExchangeEnd]:
    """Send all rows after a comparison. Raise SnapshotLost if they changed since."""
    total = yield from send_everything(scan)
    scan.reader.check_snapshot(total == at.sums.total)
    return ExchangeEnd(total)
