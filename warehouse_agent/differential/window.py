"""The window algorithm: the changes between two files, each read once, in bounded memory.

Labio and Garcia-Molina, section 4, Algorithm 4.1. Each file has an input buffer, here its newest
block, and an aging buffer. Records of a new block are matched against both buffers of the other
file; the rest ages, oldest first.

What differs from the printed lines:

- Blocks are not taken in step. Files drift apart by the net inserts so far, so the next block comes
  from the file that is behind, by the median distance of the last matching records: those of the
  last blocks of both, because a block finds only partners that were read before it. (Rejected:
  the matches of the last block alone. A block of the new file finds records that moved back, so
  the new file is read farther ahead, where its blocks find only those that moved farther. Nor the
  file with fewer unmatched records. Where the window is full of inserts, the old file is read a
  whole window ahead: with a fifth of the records inserted, half of all records missed theirs.)
- The loop ends when both files have ended, and what the buffers still hold is reported.
- A record that leaves an aging buffer is not reported at once: <K, b> is kept of the old file, the
  row of the new one. They are joined at the end, so no useless pair is reported. Beyond
  `left_bytes` the window gives up; a partitioned hash join needs no such memory.
- Duplicate keys are found and refused, as far apart as they may be.

It decides without I/O: files are iterators, changes go to a function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from driftline.arrays import Bools, Integers
from driftline.limits import (
    DIFF_AGING_BYTES,
    DIFF_AGING_ROWS,
    DIFF_BLOCK_ROWS,
    DIFF_KEYS_BYTES,
    DIFF_LEFT_BYTES,
)
from driftline.rows.columns import Block, stacked

from warehouse_agent.differential.matching import Collision, DistinctKeys, WindowExhausted, match
from warehouse_agent.differential.records import (
    ChangeForm,
    FileSnapshot,
    RecordHashing,
    Records,
    cut_behind_keys,
    in_blocks,
    stacked_records,
)

Put = Callable[[ChangeForm, Block], None]  # whole rows; of deletes, rows cut behind their keys
OLD, NEW = 0, 1
MATCHED_SHARE = 4  # one record in so many tells the drift; few may be records that moved
DRIFT_SAMPLE = 1024  # matches of a block that are looked at
DRIFT_BLOCKS = 4  # of each file; fewer let the drift wander where records moved far


@dataclass(frozen=True, slots=True)
class WindowBuffers:
    """The memory of the window algorithm, for each file.

    Attributes:
        block_records: the paper's n, in records; a block may be larger by a batch of the reader.
        aging_records, aging_bytes: of an aging buffer; whichever is reached first.
        left_bytes: of all records that left an aging buffer, both files together.
        keys_bytes: of the keys that are kept to find duplicates, 8 bytes each.
    """

    block_records: int = DIFF_BLOCK_ROWS
    aging_records: int = DIFF_AGING_ROWS
    aging_bytes: int = DIFF_AGING_BYTES
    left_bytes: int = DIFF_LEFT_BYTES
    keys_bytes: int = DIFF_KEYS_BYTES


@dataclass(slots=True)
class DiffCounts:
    """The result of a differential in numbers.

    Attributes:
        old, new: records of each file.
        same: records that are in both files, equal.
        mended: pairs that the window missed and the join at the end found: without it, each were a
            useless pair of an insert and a delete.
        apart: sum of the distances between the places of matching records.
    """

    old: int = 0
    new: int = 0
    same: int = 0
    updates: int = 0
    deletes: int = 0
    inserts: int = 0
    mended: int = 0
    apart: int = 0

    @property
    def distance(self) -> float:
        """The distance of the files, 0 to 1 (section 4, Equation 3)."""
        records = max(self.old, self.new)
        return self.apart / (records**2 / 2) if records else 0.0


@dataclass(frozen=True, slots=True)
class _Matched:
    """A sample of a block: its records, and how many places their partners in the new file are
    behind those in the old one, int64 [matches]."""

    records: int
    ahead: Integers


@dataclass(slots=True)
class _Side:
    """One file: its blocks to come, its buffers, and what left them."""

    number: int
    blocks: Iterator[Records]
    distinct: DistinctKeys
    chunks: deque[Records] = field(default_factory=deque)  # the newest one is the input buffer
    left: list[Records] = field(default_factory=list)
    left_bytes: int = 0
    has_ended: bool = False
    last: deque[_Matched] = field(default_factory=lambda: deque(maxlen=DRIFT_BLOCKS))

    @property
    def unmatched(self) -> int:
        """Records in both buffers."""
        return sum(map(len, self.chunks))


def window(
    old: FileSnapshot,
    new: FileSnapshot,
    put: Put,
    *,
    secret: bytes,
    buffers: WindowBuffers | None = None,
) -> DiffCounts:
    """Put the changes between two files, and return their counts.

    Args:
        old, new: with equal recipes.
        put: takes the rows of one form at a time, in no order.
        secret: 32 bytes, random for each comparison.
        buffers: None for the default sizes.

    Raises:
        RepeatedPosition, Collision: keys come twice, or these hashes do not tell them apart.
        WindowExhausted: the files need more memory.
        NullKey: a key is NULL.
    """
    return _Window(
        old, new, put, RecordHashing(new.recipe, secret), buffers or WindowBuffers()
    ).run()


class _Window:
    """One comparison."""

    def __init__(
        self,
        old: FileSnapshot,
        new: FileSnapshot,
        put: Put,
        hashing: RecordHashing,
        buffers: WindowBuffers,
    ) -> None:
        self._put, self._buffers, self._recipe = put, buffers, new.recipe
        self._counts = DiffCounts()
        self._drift = 0.0  # places of the new file less those of the old, of the last matches
        rows = buffers.block_records
        self._sides = tuple(
            _Side(i, in_blocks(file, hashing, rows), DistinctKeys(i, buffers.keys_bytes))
            for i, file in enumerate((old, new))
        )

    def run(self) -> DiffCounts:
        old, new = self._sides
        while not (old.has_ended and new.has_ended):
            side = min((s for s in self._sides if not s.has_ended), key=self._progress)
            if (block := next(side.blocks, None)) is None:
                side.has_ended = True
            else:
                self._take(side, block)
        for side in self._sides:
            side.distinct.check()
        self._report_rest()
        return self._counts

    def _progress(self, side: _Side) -> float:
        """Return how far a file was read, in places of the old file."""
        return self._counts.old if side.number == OLD else self._counts.new - self._drift

    def _take(self, side: _Side, block: Records) -> None:
        """Match a new block of a file, and put what is unmatched into the file's input buffer."""
        if side.number == OLD:
            self._counts.old += len(block)
        else:
            self._counts.new += len(block)
        side.distinct.add(block.positions)
        other = self._sides[1 - side.number]
        mine, theirs, ahead = self._join(side.number, [block], list(other.chunks))
        self._note_drift(side, len(block), ahead)
        _remove(other.chunks, theirs)
        self._age(side)
        rest = np.ones(len(block), np.bool_)
        rest[mine] = False
        if rest.any():
            side.chunks.append(self._held(side, block.take(rest)))

    def _note_drift(self, side: _Side, read: int, ahead: Integers) -> None:
        """Note how far the files are apart, by the matches of the last blocks of each."""
        step = max(self._buffers.block_records // DRIFT_SAMPLE, 1)
        side.last.append(_Matched(-(-read // step), ahead[::step]))
        blocks = [block for s in self._sides for block in s.last]
        matched = np.concatenate([block.ahead for block in blocks])
        if len(matched) * MATCHED_SHARE >= sum(block.records for block in blocks) and len(matched):
            self._drift = float(np.median(matched))

    def _held(self, side: _Side, records: Records) -> Records:
        """Return unmatched records as they are held: keys of the old file, rows of the new one."""
        if side.number == OLD:
            return records.only_keys(self._recipe)
        return records.compact() if records.is_sparse else records

    def _age(self, side: _Side) -> None:
        """Let the oldest records leave until the rest fits into the aging buffer."""
        side.chunks = _merged(side.chunks, self._buffers.block_records // 4)
        over = side.unmatched - self._room(side)
        while over > 0:
            oldest = side.chunks.popleft()
            if len(oldest) > over:
                side.chunks.appendleft(oldest.take(np.arange(over, len(oldest))))
                oldest = oldest.take(np.arange(over))
            over -= len(oldest)
            self._leave(side, oldest.compact())

    def _room(self, side: _Side) -> int:
        """Return how many of the buffered records of a file fit into its aging buffer."""
        held_bytes = sum(c.held_bytes for c in side.chunks)
        if held_bytes <= self._buffers.aging_bytes:
            return self._buffers.aging_records
        by_bytes = self._buffers.aging_bytes * side.unmatched // held_bytes
        return min(self._buffers.aging_records, by_bytes)

    def _leave(self, side: _Side, records: Records) -> None:
        side.left.append(records)
        side.left_bytes += records.held_bytes
        if sum(s.left_bytes for s in self._sides) > self._buffers.left_bytes:
            raise WindowExhausted(
                f"records without a partner in the window take more than "
                f"{self._buffers.left_bytes >> 20} MiB; distance of the files so far: "
                f"{self._counts.distance:.3f}"
            )

    def _join(
        self, side: int, mine: Sequence[Records], theirs: Sequence[Records]
    ) -> tuple[Integers, Integers, Integers]:
        """Match records of a file, `side`, with records of the other, and put their updates.

        Returns:
            Indices of the matched records among mine, and among theirs, and how many places those
            of the new file are behind those of the old one, int64 [pairs] each.
        """
        one, two = _joined(mine), _joined(theirs)
        i, j = match(one.positions, two.positions)
        ahead = (one.numbers[i] - two.numbers[j]) * (1 if side == NEW else -1)
        differ = (one.hi[i] != two.hi[j]) | (one.lo[i] != two.lo[j])
        self._counts.apart += int(np.abs(ahead).sum())
        self._counts.same += len(i) - int(differ.sum())
        if differ.any():
            updated = (_rows_at(mine, i[differ]), _rows_at(theirs, j[differ]))
            self._put_updates(updated[side], updated[1 - side])
        return i, j, ahead

    def _put_updates(self, old: Block, new: Block) -> None:
        """Put the new rows of records with equal positions; raise Collision if a key differs."""
        keys = [cut_behind_keys(rows, self._recipe) for rows in (old, new)]
        if any(
            not np.array_equal(a, b)
            for a, b in ((keys[0].starts, keys[1].starts), (keys[0].buffer, keys[1].buffer))
        ):
            raise Collision
        self._counts.updates += len(new)
        self._put(ChangeForm.UPDATE, new)

    def _report_rest(self) -> None:
        """Join what was never matched; put what stays as deletes and inserts."""
        rest = [[*side.left, *side.chunks] for side in self._sides]
        ours, theirs, _ = self._join(OLD, rest[OLD], rest[NEW])
        self._counts.mended = len(ours)
        self._counts.deletes = self._put_rest(ChangeForm.DELETE, rest[OLD], ours)
        self._counts.inserts = self._put_rest(ChangeForm.INSERT, rest[NEW], theirs)

    def _put_rest(self, form: ChangeForm, chunks: Sequence[Records], matched: Integers) -> int:
        stays = np.ones(sum(map(len, chunks)), np.bool_)
        stays[matched] = False
        for records, mask in _by_chunk(chunks, stays):
            if mask.any():
                self._put(form, records.take(mask).rows())
        return int(stays.sum())


def _merged(chunks: Iterable[Records], records_max: int) -> deque[Records]:
    """Return the same records in their order, without rows of others, in fewer chunks.

    What is left of most blocks is little, and each chunk costs as much again for each block. Chunks
    are merged with their like, so that a record is copied seldom.
    """
    merged: deque[Records] = deque()
    for chunk in chunks:
        last = chunk.compact() if chunk.is_sparse else chunk
        while merged and len(merged[-1]) <= min(2 * len(last), records_max - len(last)):
            last = stacked_records([merged.pop(), last])
        merged.append(last)
    return merged


def _joined(chunks: Sequence[Records]) -> Records:
    """Return the arrays of all records; their rows stay where they are."""
    if len(chunks) == 1:
        return chunks[0]
    return stacked_records(chunks, has_rows=False)


def _rows_at(chunks: Sequence[Records], at: Integers) -> Block:
    """Return the rows of joined records, in the order of their indices `at`, int64 [n]."""
    order = np.argsort(at, kind="stable")
    ends = np.cumsum([0, *map(len, chunks)])
    bounds = np.searchsorted(at[order], ends)
    parts = [
        chunk.take(at[order[a:b]] - end).rows()
        for chunk, end, a, b in zip(chunks, ends[:-1], bounds[:-1], bounds[1:], strict=True)
        if b > a
    ]
    back = np.empty(len(at), np.int64)
    back[order] = np.arange(len(at))
    return stacked(parts).take(back)


def _by_chunk(chunks: Sequence[Records], mask: Bools) -> Iterator[tuple[Records, Bools]]:
    at = 0
    for chunk in chunks:
        yield chunk, mask[at : at + len(chunk)]
        at += len(chunk)


def _remove(chunks: deque[Records], matched: Integers) -> None:
    """Remove matched records, indices into all chunks, int64 [n]."""
    stays = np.ones(sum(map(len, chunks)), np.bool_)
    stays[matched] = False
    kept = [c if mask.all() else c.take(mask) for c, mask in _by_chunk(list(chunks), stays)]
    chunks.clear()
    chunks.extend(c for c in kept if len(c))
