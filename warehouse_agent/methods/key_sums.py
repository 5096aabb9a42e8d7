"""Sums over our keys, task by task, and the rows that a refresh by a marker replaces.

Beside the sums over ranges of rows, one pass over the files adds up the cells of a sketch of keys,
the digest of all keys and, if the source's database hashes keys, the sum of these hashes. Sums are
modular, so neither order nor tasks matter. `key_digests` has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Integers
from driftline.digests import MASK64, MASK128, Digest, Salt, mix
from driftline.key_digests import hashed, mixed_keys
from driftline.ranges import Partition, RangeSums
from driftline.sketches import HASHES, Cells, Embedding
from driftline.types import INTEGER_WIDTHS

from warehouse_agent.columns.layout import Layout
from warehouse_agent.methods.interface import WorkingCopy
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.digests import (
    Adder,
    Listing,
    PartialSums,
    added,
    check_rows,
    keys_of,
    list_rows,
)
from warehouse_agent.tasks.digests import numbers as numbers_of
from warehouse_agent.tasks.scan import Piece

_WORDS = 5  # behind those of ranges: the digest of keys in four parts of 32 bits, and the hashes
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


@dataclass(frozen=True, slots=True)
class KeySums:
    """Our rows in ranges; our keys in cells and as a digest; and the sum of the hashes of keys, 0
    if it was not asked for."""

    ranges: RangeSums
    cells: Cells
    keys: Digest
    hashes: int


def reduced(copy: WorkingCopy, partition: Partition, sketch: Sketch, *, hashes: bool) -> KeySums:
    """Return the sums over the rows of a working copy; one step.

    hashes: also add up what the source's database makes of keys.
    Raises WarehouseUnavailable: a file cannot be read, or does not hold what the log says.
    """
    words = 2 * partition.ranges
    found = added(
        copy.steps,
        copy.files,
        copy.layout,
        _sums(copy.layout, partition, sketch, copy.salt, hashes=hashes),
        words=words + _WORDS,
        elements=2 * HASHES * sketch.third + 1,
        keyed=hashes and not copy.layout.recipe.integer_key,
    )
    check_rows(copy.files, found.total.count)
    a, b, c, d, total = (int(word) for word in found.words[words:])
    keys = Digest(found.total.count, ((a + (b << 32) << 64) + c + (d << 32)) & MASK128)
    ranges = RangeSums.from_words(found.total, found.words[:words])
    return KeySums(ranges, Cells.from_sums(found.elements), keys, total & MASK64)


def _sums(
    layout: Layout, partition: Partition, sketch: Sketch, salt: Salt, *, hashes: bool
) -> Adder:
    def run(pieces: Iterator[Piece]) -> PartialSums:
        sums, cells = RangeSums(partition.ranges), Cells(sketch.third)
        more = np.zeros(_WORDS, np.uint64)
        for piece in pieces:
            where, hi, lo = (numbers_of(piece.batch, i) for i in range(3))
            sums.add(partition.indices(where), mix(salt, hi.view(np.uint64), lo.view(np.uint64)))
            keys = mixed_keys(where, salt)
            ks, _ = sketch.embedding.embed(where, salt)
            cells.add(ks, keys.m0, salt)
            for i, half in enumerate((keys.m0, keys.m1)):
                more[2 * i] += (half & _LOW).sum(dtype=np.uint64)
                more[2 * i + 1] += (half >> _HALF).sum(dtype=np.uint64)
            if hashes:
                more[4:] += np.uint64(_hashed(layout, piece.batch, where, salt))  # modulo 2^64
        words = np.concatenate([sums.words(), more])
        return PartialSums(sums.total, words, cells.sums())

    return run


def _hashed(layout: Layout, batch: pa.RecordBatch, where: Integers, salt: Salt) -> int:
    """Return the sum of the hashes of the keys of some rows."""
    if layout.recipe.integer_key:
        width = INTEGER_WIDTHS[layout.recipe.columns[0].type.kind]
        rows = np.empty((len(where), 4 + width), np.uint8)
        rows[:, :4] = np.frombuffer(width.to_bytes(4, "big"), np.uint8)
        rows[:, 4:] = where.astype(f">i{width}").view(np.uint8).reshape(-1, width)
        return hashed(rows.ravel(), np.arange(len(where), dtype=np.int64) * (4 + width), 1, salt)
    keys = keys_of(batch)
    return hashed(keys.buffer, keys.starts, layout.recipe.key_columns, salt)


def chosen(
    where: Integers, positions: Integers, embedding: Embedding, salt: Salt, ks: U64
) -> Integers:
    """Return 0 for each position, int64 [n], that is among `positions`, int64 [m] ascending, or
    below one of `ks`; −1 for the others."""
    found = np.zeros(len(where), np.bool_)
    if len(positions):
        at = np.minimum(np.searchsorted(positions, where), len(positions) - 1)
        found |= positions[at] == where
    if len(ks):
        k, inside = embedding.embed(where, salt)
        found |= inside & np.isin(k, ks)
    return np.where(found, np.int64(0), np.int64(-1))


def replaced(
    copy: WorkingCopy, positions: Integers, embedding: Embedding, ks: U64
) -> tuple[Listing, Digest]:
    """Return our rows that are replaced, and their digest; at most two steps.

    positions, ks: of keys that came or differ, int64 [n] and uint64 [m] ascending.
    """
    place = partial(chosen, positions=positions, embedding=embedding, salt=copy.salt, ks=ks)
    with copy.phase("list"):
        listing = list_rows(copy.steps, copy.files, copy.layout, place, copy.salt)
        files = [copy.files[i] for i in np.unique(listing.file).tolist()]
        if not files:
            return listing, Digest()
        return listing, _digest(copy, files, place)


def _digest(copy: WorkingCopy, files: Sequence[DataFile], place: partial[Integers]) -> Digest:
    salt = copy.salt

    def run(pieces: Iterator[Piece]) -> PartialSums:
        found = Digest()
        for piece in pieces:
            where, hi, lo = (numbers_of(piece.batch, i) for i in range(3))
            keep = place(where) >= 0
            lanes = hi[keep].view(np.uint64), lo[keep].view(np.uint64)
            found += mix(salt, *lanes).digest()
        return PartialSums(found, np.zeros(1, np.uint64), np.zeros(1, np.uint64))

    return added(copy.steps, files, copy.layout, run, words=1, elements=1).total
