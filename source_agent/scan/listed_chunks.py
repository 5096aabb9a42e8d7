"""Rows of a scan without those of chunks that the warehouse has listed (protocol, section 7).

Memory: the list, and the rows of one chunk, whose end may lie in a later batch. The rows of a chunk
that is longer than almost all are sent, listed or not: rows of a view that come again and again may
have no end at all.
"""

from __future__ import annotations

import numpy as np
from driftline.arrays import U64, Bools
from driftline.reconciliation.chunks import ChunkSums, longest

from source_agent.scan.batches import Batch


class UnlistedRows:
    """Leaves out the rows of listed chunks; `met` says which of these came by, bool [chunks]."""

    def __init__(self, shift: int, listed: U64) -> None:
        """Begin with the first row; `listed` are digests, uint64 [chunks] ascending."""
        self.met = np.zeros(len(listed), np.bool_)
        self._listed, self._sums = listed, ChunkSums(shift)
        self._held: list[Batch] = []  # of the chunk that has not ended
        self._open_bytes, self._held_most = 0, longest(shift)

    def add(self, batch: Batch) -> list[Batch]:
        """Return the rows that are to be sent, of chunks that end in this batch."""
        ends, digests = self._sums.add(np.diff(batch.block.starts), batch.mixed)
        is_sent = self._open_bytes > self._held_most  # the open chunk, in part
        if not len(ends):
            self._held.append(batch)
            self._open_bytes += len(batch.block.buffer)
            return self.end() if self._open_bytes > self._held_most else []
        is_listed, end = np.zeros(len(ends), np.bool_), int(ends[-1])
        is_listed[int(is_sent) :] = self._meet(digests[int(is_sent) :])
        unlisted = [] if is_listed[0] else self._held
        chosen = np.zeros(len(batch.block), np.bool_)
        chosen[:end] = np.repeat(~is_listed, np.diff(ends, prepend=0))
        if chosen.any():
            unlisted = [*unlisted, batch.take(chosen)]
        rest = np.arange(len(batch.block)) >= end
        self._held = [batch.take(rest)] if rest.any() else []
        self._open_bytes = sum(len(one.block.buffer) for one in self._held)
        return unlisted

    def end(self) -> list[Batch]:
        """Return the rows that are held; at the end no chunk of theirs is listed."""
        held, self._held = self._held, []
        return held

    def _meet(self, digests: U64) -> Bools:
        """Return which of these chunks, bool [n], are listed, and did not come by before: a chunk
        is left out once."""
        if not len(self._listed):
            return np.zeros(len(digests), np.bool_)
        at = np.minimum(np.searchsorted(self._listed, digests), len(self._listed) - 1)
        hit = np.flatnonzero((self._listed[at] == digests) & ~self.met[at])
        numbers, first = np.unique(at[hit], return_index=True)
        self.met[numbers] = True
        is_listed = np.zeros(len(digests), np.bool_)
        is_listed[hit[first]] = True
        return is_listed
