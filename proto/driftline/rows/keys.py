"""Keys identify rows, positions order them (protocol, section 4).

Key bytes are a slice of the row bytes, so two keys are equal if their bytes are: finer than a
collation, never coarser. A position is 64 signed bits: the key itself if it is one integer, so that
ranges follow the key; else a seeded hash, so that ranges are even. Positions may collide: callers
compare the rows at a position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from driftline.arrays import Bools, Bytes, Integers, Positions
from driftline.errors import FrameDamaged, LimitExceeded
from driftline.limits import KEY_BYTES_MAX
from driftline.rows.columns import NULL, Block, RaggedColumn, integers_at, value_spans
from driftline.rows.digests import xx_array
from driftline.values.types import INTEGER_WIDTHS, Recipe


def null_keys(block: Block, recipe: Recipe) -> Bools:
    """Return the rows with a NULL in a key column, bool [rows]."""
    is_null = np.zeros(len(block), np.bool_)
    for _, lengths in value_spans(block, recipe.key_columns):
        is_null |= lengths == NULL
    return is_null


def received(columns: Sequence[RaggedColumn], recipe: Recipe) -> Sequence[RaggedColumn]:
    """Return the key columns of a received frame; raise FrameDamaged if their number is wrong, a
    key is NULL, or an integer has the wrong width."""
    if len(columns) != len(recipe.columns):
        raise FrameDamaged("A frame has another number of columns.")
    keys = columns[: recipe.key_columns]
    if any((column.lengths < 0).any() for column in keys):
        raise FrameDamaged("A frame has a row whose key is NULL.")
    if recipe.integer_key:
        width = INTEGER_WIDTHS[recipe.columns[0].type.kind]
        if (keys[0].lengths != width).any():
            raise FrameDamaged(f"A frame has a key that is no integer of {width} bytes.")
    return keys


def positions(block: Block, recipe: Recipe, seed: int) -> Positions:
    """Return the position of each row, int64 [rows]. No key may be NULL."""
    if recipe.integer_key:
        width = INTEGER_WIDTHS[recipe.columns[0].type.kind]
        return integers_at(block.buffer, block.starts[:-1] + 6, width).astype(np.int64)
    starts, lengths = key_spans(block, recipe)
    return hash_spans(block.buffer, starts, lengths, seed)


def key_spans(block: Block, recipe: Recipe) -> tuple[Integers, Integers]:
    """Return where the key bytes are in the block: (starts, lengths), int64 [rows] each."""
    last_start, last_length = value_spans(block, recipe.key_columns)[-1]
    starts = block.starts[:-1] + 2
    return starts, last_start + np.maximum(last_length, 0) - starts


def hash_spans(
    buffer: Bytes,
    starts: Integers,
    lengths: Integers,
    seed: int,
) -> Positions:
    """Return the seeded hash of each span of a buffer, int64 [n] (protocol, section 4); raise
    LimitExceeded if a span is longer than KEY_BYTES_MAX."""
    if not len(starts):
        return np.zeros(0, np.int64)
    longest = int(lengths.max())
    if longest > KEY_BYTES_MAX:
        raise LimitExceeded(
            f"A key has {longest} bytes; at most {KEY_BYTES_MAX} are compared.",
            remedy="Publish the relation with a shorter key.",
        )
    shortest = int(lengths.min())
    hashes = xx_array(lengths.astype(np.uint64), np.uint64(seed))
    if int((starts + lengths).max()) + 7 > len(buffer):  # a last word may reach so far
        buffer = np.concatenate([buffer, np.zeros(8, np.uint8)])
    live: Integers | slice = slice(None)  # spans that have the next word
    for offset in range(0, longest, 8):
        if offset >= shortest:
            live = np.flatnonzero(lengths > offset)
        word = integers_at(buffer, starts[live] + offset, 8).view("<u8")
        if offset + 8 > shortest:
            left = lengths[live] - offset
            spare = (np.maximum(8 - left, 0) * 8).astype(np.uint64)
            word = (word << spare) >> spare
        hashes[live] = xx_array(word, hashes[live])
    return hashes.view(np.int64)
