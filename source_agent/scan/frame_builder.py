"""Gather rows into blocks, and cut them into frames that fit a message.

One `FrameBuilder` per answer. It holds the rows of one frame at most, so memory does not grow with
the rows that are sent. It measures the compression ratio, so that frames nearly fill a message.
Only a frame of a single row may exceed a message: a row cannot be cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from driftline import wire_pb2
from driftline.arrays import Bools
from driftline.limits import FRAME_BODY_BYTES_TARGET, FRAME_ROWS_MAX, MESSAGE_BYTES_MAX
from driftline.rows import frames
from driftline.rows.columns import Block, stacked
from driftline.rows.digests import MixedFingerprints, Salt
from driftline.values.types import Recipe

from source_agent.failpoints import SourceFailpoint
from source_agent.scan.batches import Batch

_ENVELOPE_BYTES = 64  # of the message around a frame
_RATIO_FIRST = 2.0  # assumed before anything was compressed


class FrameBuilder:
    """Turns batches of rows into `Rows` messages: `add` yields full ones, `flush` the rest."""

    def __init__(self, recipe: Recipe, salt: Salt, *, level: int) -> None:
        self._recipe, self._salt, self._level = recipe, salt, level
        self._blocks: list[Block] = []
        self._mixed: list[MixedFingerprints] = []
        self._bytes = self._rows = 0
        self._ratio = _RATIO_FIRST
        self.sent: Callable[[Batch], None] | None = None  # is called with all rows

    def add(self, batch: Batch) -> Iterator[wire_pb2.Reply]:
        """Add rows; yield the messages that became full."""
        if not len(batch.block):
            return
        if self.sent is not None:
            self.sent(batch)
        self._blocks.append(batch.block)
        self._mixed.append(batch.mixed)
        self._bytes += len(batch.block.buffer)
        self._rows += len(batch.block)
        if self._bytes >= FRAME_BODY_BYTES_TARGET or self._rows >= FRAME_ROWS_MAX:
            yield from self._drain(keep=True)

    def pick(self, batch: Batch, chosen: Bools) -> Iterator[wire_pb2.Reply]:
        """Add the chosen rows of a batch, bool [rows]; yield the messages that became full."""
        if chosen.any():
            yield from self.add(batch.take(chosen))

    def flush(self) -> Iterator[wire_pb2.Reply]:
        """Yield messages with all rows that are still held."""
        yield from self._drain(keep=False)
        SourceFailpoint.LAST_FRAME_SENT.reach()

    def _drain(self, *, keep: bool) -> Iterator[wire_pb2.Reply]:
        """Yield what is held; with `keep`, hold back a last frame that is far from full."""
        if not self._blocks:
            return
        block, mixed = _concatenate(self._blocks, self._mixed)
        self._blocks, self._mixed = [], []
        at, rows = 0, len(block)
        while at < rows:
            end = self._cut(block, at)
            if keep and end == rows and at > 0:
                break
            yield from self._frames(block, mixed, at, end)
            at = end
        self._bytes = self._rows = 0
        if at < rows:
            rest = block.cut(at, rows)  # copied, to free the memory of rows that were sent
            self._blocks = [Block(rest.buffer.copy(), rest.starts)]
            self._mixed = [MixedFingerprints(mixed.m0[at:].copy(), mixed.m1[at:].copy())]
            self._bytes, self._rows = len(self._blocks[0].buffer), rows - at

    def _cut(self, block: Block, at: int) -> int:
        """Return the end of the frame that begins with row `at`, exclusive."""
        body = min(FRAME_BODY_BYTES_TARGET, int(self._ratio * 0.9 * MESSAGE_BYTES_MAX))
        room = int(np.searchsorted(block.starts, block.starts[at] + body, "right")) - 1
        return min(max(room, at + 1), at + FRAME_ROWS_MAX, len(block))

    def _frames(
        self, block: Block, mixed: MixedFingerprints, at: int, end: int
    ) -> Iterator[wire_pb2.Reply]:
        """Yield the rows [at, end) as one frame, or as two halves if one would be too large."""
        part = block.cut(at, end)
        digest = MixedFingerprints(mixed.m0[at:end], mixed.m1[at:end]).digest()
        data = frames.encode(part, self._recipe, self._salt, digest, level=self._level)
        self._ratio = max(len(part.buffer) / len(data), 1.0)
        if len(data) > MESSAGE_BYTES_MAX - _ENVELOPE_BYTES and end - at > 1:
            middle = (at + end) // 2
            yield from self._frames(block, mixed, at, middle)
            yield from self._frames(block, mixed, middle, end)
            return
        yield wire_pb2.Reply(rows=wire_pb2.Rows(frame=data))
        SourceFailpoint.FRAME_SENT.reach()


def _concatenate(
    blocks: list[Block], mixed: list[MixedFingerprints]
) -> tuple[Block, MixedFingerprints]:
    if len(blocks) == 1:
        return blocks[0], mixed[0]
    return (
        stacked(blocks),
        MixedFingerprints(
            np.concatenate([m.m0 for m in mixed]), np.concatenate([m.m1 for m in mixed])
        ),
    )
