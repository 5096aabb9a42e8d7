"""Records of a snapshot in memory: position, fingerprint, number, and the bytes while they last.

A record <K, B> (Labio, Garcia-Molina, section 1.1) is a row: its row bytes begin with the key. It
is found by its position and compared by its fingerprint, 128 bits of keyed BLAKE3, which is the
paper's compressed b (section 3.2) for a key that is chosen anew each time. A deleted record
needs no more than its key, so of the old file only rows cut behind the key are kept.

Positions of keys that are not one integer are hashes and may collide. Equal fingerprints are equal
rows, so keys are compared only where rows with one position differ; a collision starts the
comparison again with other hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from driftline.arrays import U64, Bools, Bytes, Integers, Positions
from driftline.errors import NullKey
from driftline.rows.columns import Block, gather, pick, spans_at, stacked
from driftline.rows.fingerprints import fingerprints, position_seed
from driftline.rows.frames import Fingerprints
from driftline.rows.keys import null_keys, positions
from driftline.values.types import Recipe

ARRAYS_BYTES = 40  # of a record: its entries in the five arrays


class ChangeForm(StrEnum):
    """The three forms of a change (section 1.1)."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """One file of a relation.

    `name` stands in errors. `read` returns row bytes in batches, as an engine yields them; it may
    be called again, and then reads the same rows.
    """

    name: str
    recipe: Recipe
    read: Callable[[], Iterator[list[bytes]]]


@dataclass(frozen=True, slots=True)
class Records:
    """Records in the order of their file.

    Attributes:
        positions: int64 [records].
        hi, lo: lanes of the fingerprint, uint64 [records] each.
        numbers: places in the file from 0, int64 [records].
        at: rows of `block`, int64 [records].
        block: row bytes, whole or cut behind the key; it may hold rows of other records, too.
    """

    positions: Positions
    hi: U64
    lo: U64
    numbers: Integers
    at: Integers
    block: Block

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def held_bytes(self) -> int:
        """The memory that these records keep in use, in bytes."""
        return len(self) * ARRAYS_BYTES + len(self.block.buffer)

    def take(self, chosen: Integers | Bools) -> Records:
        """Return some records, by numbers, int64 [n], or a mask, bool [records]; copy no row."""
        if chosen.dtype == np.bool_:
            chosen = np.flatnonzero(chosen)  # once, not for each array
        return Records(
            self.positions[chosen],
            self.hi[chosen],
            self.lo[chosen],
            self.numbers[chosen],
            self.at[chosen],
            self.block,
        )

    def rows(self) -> Block:
        """Return the row bytes of these records."""
        return self.block.take(self.at)

    @property
    def is_sparse(self) -> bool:
        """True if less than half of the rows that are held belong to these records."""
        return 2 * len(self) < len(self.block)

    def compact(self) -> Records:
        """Return these records without the rows of others."""
        return replace(self, at=np.arange(len(self), dtype=np.int64), block=self.rows())

    def only_keys(self, recipe: Recipe) -> Records:
        """Return these records with their rows cut behind the keys."""
        starts = self.block.starts[:-1][self.at]
        block = _cut(self.block.buffer, starts, recipe)
        return replace(self, at=np.arange(len(self), dtype=np.int64), block=block)


def cut_behind_keys(rows: Block, recipe: Recipe) -> Block:
    """Return each row as far as its key goes, so that `key_spans` still finds it."""
    return _cut(rows.buffer, rows.starts[:-1], recipe)


def _cut(buffer: Bytes, starts: Integers, recipe: Recipe) -> Block:
    """Return the rows that begin at `starts`, int64 [n], as far as their keys go."""
    last, lengths = spans_at(buffer, starts + 2, recipe.key_columns)[-1]
    sizes = last + lengths - starts
    ends = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return Block(pick(buffer, starts, sizes), ends)


def stacked_records(chunks: Sequence[Records], *, has_rows: bool = True) -> Records:
    """Return all records as one, in their order; without their rows if not `has_rows`."""
    ints, words = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    count = sum(map(len, chunks)) if has_rows else 0
    return Records(
        np.concatenate([ints, *(c.positions for c in chunks)]),
        np.concatenate([words, *(c.hi for c in chunks)]),
        np.concatenate([words, *(c.lo for c in chunks)]),
        np.concatenate([ints, *(c.numbers for c in chunks)]),
        np.arange(count, dtype=np.int64),
        stacked([c.rows() for c in chunks] if has_rows else []),
    )


class RecordHashing:
    """The hashes of one comparison, by a secret of 32 bytes."""

    def __init__(self, recipe: Recipe, secret: bytes) -> None:
        self._recipe = recipe
        self._fingerprints: Fingerprints = fingerprints(secret, recipe)
        self._seed = position_seed(secret)

    def records(self, snapshot: FileSnapshot, rows: list[bytes], first: int) -> Records:
        """Return the records of row bytes, the first of which has the number `first`.

        Raises:
            NullKey: a key is NULL; names the file and the record.
        """
        block = gather(rows)
        null = null_keys(block, self._recipe)
        if null.any():
            raise NullKey(
                f"The key of record {first + int(null.argmax()) + 1:,} is NULL.",
                where=snapshot.name,
                remedy="Name key columns that are never NULL.",
            )
        hi, lo = self._fingerprints(rows)
        number = np.arange(len(rows), dtype=np.int64)
        key_positions = positions(block, self._recipe, self._seed)
        return Records(key_positions, hi, lo, number + first, number, block)


def in_blocks(snapshot: FileSnapshot, hashing: RecordHashing, rows_min: int) -> Iterator[Records]:
    """Yield the records of a file in blocks of at least `rows_min` records; the last has fewer."""
    held: list[bytes] = []
    first = 0
    for rows in snapshot.read():
        held += rows
        if len(held) >= rows_min:
            yield hashing.records(snapshot, held, first)
            first += len(held)
            held = []
    if held:
        yield hashing.records(snapshot, held, first)
