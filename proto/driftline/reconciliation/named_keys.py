"""Keys that travel themselves, to name rows that a source finds by an index (protocol, section 7).

A group names its rows by k. Where k is an integer key less a base, a source finds the row by an
index; a hash says nothing of where the row is. So the keys of a part whose key is not one such
integer travel themselves, as a frame of the key columns, and k is the rank of a key's position
among those of all named keys: both sides compute it, and it takes no byte on the line.

Two keys with one position, of 64 bits, cannot be named together: at most once in 2^24 parts of the
most keys. Rejected: k by a hash of 31 bits, which is also that of rows that were not named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from driftline.arrays import U64, Bools, Integers, Positions
from driftline.errors import MalformedMessage
from driftline.limits import NAMED_BODY_BYTES_MAX
from driftline.reconciliation.sketches import Embedding
from driftline.rows import frames
from driftline.rows.columns import Block, gather, join
from driftline.rows.digests import Digest, Salt
from driftline.rows.keys import received
from driftline.values.types import Recipe

FEATURE: Final = "keys"  # in `DescribeReply.features` and `Open.features`
_LEVEL: Final = 9  # of zstd: a key costs more on the line than in the processor


@dataclass(frozen=True, slots=True)
class Ranks:
    """A map of positions to k, 0 ≤ k < span: the rank of a position among the named ones.

    `positions`, int64 [n], ascend.
    """

    positions: Positions

    @classmethod
    def of(cls, positions: Positions) -> Self:
        """Return the ranks of these positions, int64 [n]; raise MalformedMessage if one is named
        twice."""
        ordered = np.sort(positions)
        if (ordered[1:] == ordered[:-1]).any():
            raise MalformedMessage(
                "A key is named twice.",
                remedy="Remove `read_at_most` from the fragment, so that all rows are compared.",
            )
        return cls(ordered)

    @property
    def span(self) -> int:
        """The number of named positions."""
        return len(self.positions)

    def embed(self, positions: Integers, salt: Salt | None = None) -> tuple[U64, Bools]:  # noqa: ARG002
        """Return k of each position, uint64 [n], 0 outside, and which are named, bool [n]."""
        if not self.span:
            return np.zeros(len(positions), np.uint64), np.zeros(len(positions), np.bool_)
        at = np.minimum(np.searchsorted(self.positions, positions), self.span - 1)
        inside = self.positions[at] == positions
        return np.where(inside, at, 0).astype(np.uint64), inside


KeyMap = Embedding | Ranks


def key_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of rows that have the key columns alone."""
    return Recipe(recipe.key, recipe.key_columns)


def pack(keys: Sequence[bytes], recipe: Recipe, salt: Salt) -> bytes:
    """Return the frame of 1 to FRAME_ROWS_MAX keys, given by their bytes; its digest is their
    count alone."""
    columns = len(recipe.key).to_bytes(2, "big")
    block = gather([columns + key for key in keys])
    return frames.encode(block, key_recipe(recipe), salt, Digest(len(keys)), level=_LEVEL)


def unpack(data: bytes, recipe: Recipe, *, count_max: int) -> Block:
    """Return rows of the key columns alone from a frame of keys.

    Raises MalformedMessage: no frame (FrameDamaged), more than `count_max` keys or
    NAMED_BODY_BYTES_MAX bytes, or a key with a NULL.
    """
    head = frames.head(data)
    if head.digest.count > count_max or head.body_bytes > NAMED_BODY_BYTES_MAX:
        raise MalformedMessage("A message names too many keys.")
    return join(received(frames.decode(data).columns, key_recipe(recipe)))


def joined(blocks: Sequence[Block]) -> Block:
    """Return the rows of all blocks, in their order, as one block."""
    sizes = [np.zeros(1, np.int64), *(np.diff(block.starts) for block in blocks)]
    buffers = [np.zeros(0, np.uint8), *(block.buffer for block in blocks)]
    return Block(np.concatenate(buffers), np.cumsum(np.concatenate(sizes)))
