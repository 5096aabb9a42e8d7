"""Where the rows of a scan lie, kept until it is known which of them are read again.

Rows with a key that is no integer, or has no index, cannot be looked up by what a comparison tells
of them. So a scan keeps for each row a *label*, the 32 bits by which the comparison names it, and
its locator (`engines.interface.LocatorReads`), or where the engine has none, its key
(`ReadKeys`). When labels are wanted, the rows that had them are read where they lie, in the same
snapshot, and no second scan is made.

Invariants: either every row of the scan is kept, or none is (`KeptLocators.again` is None). All
that the scans of an agent keep is within one limit, `limits.memory_at_most`; a scan that would
exceed it keeps nothing any more, and its rows are read again as without.

To keep them costs a tenth of a scan and more, and saves a second one where rows differ. So after a
comparison that found no difference the next one of the relation keeps nothing.

Rejected: a sorted table, or a merge of the batches. Labels are looked at once, batch by batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from driftline.arrays import U32, U64, Bools, Bytes, Positions
from driftline.rows.columns import Block, stacked

from source_agent.scan.accumulators import HashedRows
from source_agent.scan.batches import Locators
from source_agent.scan.reader import ReadAgain

BATCH_OVERHEAD_BYTES = 512  # of the objects around a batch
ROW_BYTES_LEAST = 8  # of a row: its label, and its locator behind the least of the batch
_NARROW = 1 << 32
_SIEVE_LEAST, _SIEVE_MOST = 1 << 12, 1 << 24  # bytes
_SIEVE_SHARE = 16  # bytes of a sieve for each label

Labelling = Callable[[Positions], U32]  # from positions, int64 [n], to labels, uint32 [n]


class LocatorMemory:
    """The memory that the scans of an agent share; `most` returns the limit, in bytes.

    Thread-safe. Each exchange takes of it through a `MemoryShare`. What was found last is known
    while the agent runs, by the names of relations that it serves.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most, self._taken = most, 0
        self._lock = threading.Lock()
        self._differed: dict[str, bool] = {}

    def note(self, relation: str, *, differs: bool) -> None:
        """Note whether a comparison of a relation found a difference."""
        self._differed[relation] = differs

    def expects(self, relation: str) -> bool:
        """Return False if the last comparison of a relation found no difference."""
        return self._differed.get(relation, True)

    @property
    def taken(self) -> int:
        """Bytes that scans keep now."""
        return self._taken

    def holds(self, count: int) -> bool:
        """Return True if there is room for so many bytes now."""
        return self._taken + count <= self._most()

    def take(self, count: int) -> bool:
        """Take so many bytes, or return False."""
        with self._lock:
            is_within = self.holds(count)
            self._taken += count if is_within else 0
        return is_within

    def release(self, count: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._taken -= count


class MemoryShare:
    """The part that one exchange has taken; `release` gives all of it back. For one thread."""

    def __init__(self, memory: LocatorMemory) -> None:
        self._memory, self._taken = memory, 0

    def holds(self, count: int) -> bool:
        """Return True if there is room for so many bytes now."""
        return self._memory.holds(count)

    def take(self, count: int) -> bool:
        """Take so many bytes, or return False."""
        is_within = self._memory.take(count)
        self._taken += count if is_within else 0
        return is_within

    def release(self) -> None:
        """Give all bytes back."""
        self._memory.release(self._taken)
        self._taken = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """Labels, uint32 [rows], and locators less `least`, uint32 or uint64 [rows]."""

    labels: U32
    least: int
    above: U32 | U64

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.labels.nbytes + self.above.nbytes

    def take(self, rows: Positions) -> U64:
        """Return the locators of these rows, numbered from 0."""
        return self.above[rows].astype(np.uint64) + np.uint64(self.least)


@dataclass(frozen=True, slots=True)
class _KeyBatch:
    """Labels, uint32 [rows], and keys end to end, with the bytes of each, uint32 [rows]."""

    labels: U32
    sizes: U32
    keys: Bytes

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.labels.nbytes + self.sizes.nbytes + self.keys.nbytes

    def take(self, rows: Positions) -> Block:
        """Return the keys of these rows, numbered from 0."""
        starts = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=starts[1:])
        return Block(self.keys, starts).take(rows)


class KeptLocators:
    """An accumulator of where the rows of a scan lie. Call `drop` when it is not needed any more.

    again: how the relation must be scanned, and its rows are read again; None: nothing is kept. An
    exchange has at most one, which takes all of its share.
    """

    def __init__(self, again: ReadAgain, label: Labelling, share: MemoryShare) -> None:
        self.again: ReadAgain | None = again
        self._label, self._share = label, share
        self._batches: list[_Batch | _KeyBatch] = []

    def add(self, rows: HashedRows) -> None:
        if self.again is None:
            return
        if rows.locators is None:
            self.drop()
            return
        if not len(rows.locators):
            return
        batch = _batch(self._label(rows.positions), rows.locators)
        if not self._share.take(batch.nbytes + BATCH_OVERHEAD_BYTES):
            self.drop()
            return
        self._batches.append(batch)

    def chosen(self, wanted: Callable[[U32], Bools], most: int) -> Locators | None:
        """Return the locators of the rows whose labels are wanted, numbers ascending; None: nothing
        was kept, or they are more than `most`, of which no list is made. `wanted` is asked for
        labels, uint32 [n], and returns bool [n]."""
        if self.again is None:
            return None
        found, count = list[Locators](), 0
        for batch in self._batches:
            some = np.flatnonzero(wanted(batch.labels))
            if (count := count + len(some)) > most:
                return None
            if len(some):
                found.append(batch.take(some))
        return _joined(found)

    def drop(self) -> None:
        """Keep nothing any more."""
        self.again, self._batches = None, []
        self._share.release()


def _joined(found: list[Locators]) -> Locators:
    """Return all of these, numbers ascending."""
    if keys := [some for some in found if isinstance(some, Block)]:
        return stacked(keys)
    numbers = [some for some in found if not isinstance(some, Block)]
    locators: U64 = np.concatenate([np.zeros(0, np.uint64), *numbers])
    locators.sort()
    return locators


def _batch(labels: U32, locators: Locators) -> _Batch | _KeyBatch:
    if isinstance(locators, Block):
        return _KeyBatch(labels, np.diff(locators.starts).astype(np.uint32), locators.buffer)
    least = int(locators.min())
    if int(locators.max()) - least < _NARROW:
        return _Batch(labels, least, (locators - np.uint64(least)).astype(np.uint32))
    return _Batch(labels, 0, locators.copy())


def among(labels: U32) -> Callable[[U32], Bools]:
    """Return a test for being one of these labels, uint32 [n] ascending.

    A sieve leaves few for the search: all rows of a table are asked for.
    """
    size = _SIEVE_LEAST
    while size < min(len(labels) * _SIEVE_SHARE, _SIEVE_MOST):
        size *= 2
    mask = np.uint32(size - 1)
    sieve = np.zeros(size, np.bool_)
    sieve[labels & mask] = True

    def is_among(asked: U32) -> Bools:
        answer: Bools = sieve[asked & mask]
        some = np.flatnonzero(answer)
        at = np.minimum(np.searchsorted(labels, asked[some]), max(len(labels) - 1, 0))
        answer[some] = labels[at] == asked[some] if len(some) else False
        return answer

    return is_among
