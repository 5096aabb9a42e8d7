"""Sums over our keys, task by task, and the rows that a refresh by a marker replaces.

Beside the sums over ranges of rows, one pass over the files adds up the cells of a sketch of keys,
the digest of all keys and, if the source's database hashes keys, the sum of these hashes. Where the
marker is a checksum of each row, it is added up with the key. Sums are modular, so neither order
nor tasks matter. `key_digests` has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Integers
from driftline.reconciliation.ranges import Partition, RangeSums
from driftline.reconciliation.sketches import HASHES, Cells, Embedding
from driftline.rows.digests import MASK64, MASK128, Digest, MixedFingerprints, Salt, mix
from driftline.rows.key_digests import checksum_hashes, hashed, mixed_keys
from driftline.values.types import INTEGER_WIDTHS

from warehouse_agent.columns.arrow import from_arrow
from warehouse_agent.columns.layout import Layout
from warehouse_agent.methods.interface import WorkingCopy
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.digests import (
    Adder,
    Adding,
    Listing,
    OtherHashes,
    PartialSums,
    Place,
    RowChoice,
    added,
    check_rows,
    keys_of,
    list_rows,
)
from warehouse_agent.tasks.digests import numbers as numbers_of
from warehouse_agent.tasks.scan import FilePiece
from warehouse_agent.tasks.steps import Steps

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


def reduced(
    copy: WorkingCopy,
    partition: Partition,
    sketch: Sketch,
    *,
    hashes: bool = False,
    checksum: str = "",
) -> KeySums:
    """Return the sums over the rows of a working copy; one step.

    hashes: also add up what the source's database makes of keys; checksum: see `MarkerState`.
    Raises WarehouseUnavailable: a file cannot be read, or does not hold what the log says.
    """
    words, layout = 2 * partition.ranges, copy.layout
    sums = added(
        copy.steps,
        copy.files,
        layout,
        Adding(
            _sums(_Mixed(layout, copy.salt, checksum), partition, sketch, hashes=hashes),
            words=words + _WORDS,
            elements=2 * HASHES * sketch.third + 1,
            keyed=hashes and not layout.recipe.integer_key,
            beside=_beside(layout, checksum),
        ),
    )
    check_rows(copy.files, sums.total.count)
    keys, total = _keys_of(sums, words), int(sums.words[-1])
    ranges = RangeSums.from_words(sums.total, sums.words[:words])
    return KeySums(ranges, Cells.from_sums(sums.elements), keys, total & MASK64)


def _keys_of(sums: PartialSums, words: int) -> Digest:
    """Return the digest of the keys, whose words follow the first `words`."""
    a, b, c, d = (int(word) for word in sums.words[words : words + 4])
    return Digest(sums.total.count, ((a + (b << 32) << 64) + c + (d << 32)) & MASK128)


def _beside(layout: Layout, checksum: str) -> tuple[str, ...]:
    """Return the published name of the checksum, if there is one."""
    return (layout.names[_place(layout, checksum)],) if checksum else ()


def _place(layout: Layout, checksum: str) -> int:
    return [column.name for column in layout.recipe.columns].index(checksum)


@dataclass(frozen=True, slots=True)
class _Mixed:
    """Mix the keys of rows, and their checksums if these are the marker."""

    layout: Layout
    salt: Salt
    checksum: str

    def __call__(self, batch: pa.RecordBatch, where: Integers) -> MixedFingerprints:
        """Return the mixed keys of a batch with positions `where`, int64 [n]."""
        if not self.checksum:
            return mixed_keys(where, self.salt)
        place = _place(self.layout, self.checksum)
        column, carrier = self.layout.recipe.columns[place], self.layout.carriers[place]
        values = from_arrow(column, batch.column(self.layout.names[place]), carrier)
        hashes = checksum_hashes(values.data, values.starts, values.lengths, self.salt)
        return mixed_keys(where, self.salt, hashes)


def _words(keys: MixedFingerprints) -> list[np.uint64]:
    """Return the sums of both halves of mixed keys, each of its low and high 32 bits."""
    words = []
    for half in (keys.m0, keys.m1):
        words += [(half & _LOW).sum(dtype=np.uint64), (half >> _HALF).sum(dtype=np.uint64)]
    return words


def _sums(mixed: _Mixed, partition: Partition, sketch: Sketch, *, hashes: bool) -> Adder:
    salt = mixed.salt

    def run(pieces: Iterator[FilePiece]) -> PartialSums:
        sums, cells = RangeSums(partition.ranges), Cells(sketch.third)
        more = np.zeros(_WORDS, np.uint64)
        for piece in pieces:
            where, hi, lo = (numbers_of(piece.batch, i) for i in range(3))
            sums.add(partition.indices(where), mix(salt, hi.view(np.uint64), lo.view(np.uint64)))
            keys = mixed(piece.batch, where)
            ks, _ = sketch.embedding.embed(where, salt)
            cells.add(ks, keys.m0, salt)
            more[:4] += np.array(_words(keys), np.uint64)
            if hashes:  # modulo 2^64
                more[4:] += np.uint64(_hashed(mixed.layout, piece.batch, where, salt))
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
    where: Integers, positions: Integers, embedding: Embedding | None, salt: Salt, ks: U64
) -> Integers:
    """Return 0 for each position, int64 [n], that is among `positions`, int64 [m] ascending, or
    below one of `ks`; −1 for the others. Without an embedding there are no `ks`."""
    is_chosen = np.zeros(len(where), np.bool_)
    if len(positions):
        at = np.minimum(np.searchsorted(positions, where), len(positions) - 1)
        is_chosen |= positions[at] == where
    if embedding is not None and len(ks):
        k, inside = embedding.embed(where, salt)
        is_chosen |= inside & np.isin(k, ks)
    return np.where(is_chosen, np.int64(0), np.int64(-1))


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """Our rows that are replaced; their digest, and that of their keys and checksums."""

    rows: Listing
    digest: Digest = field(default_factory=Digest)
    keys: Digest = field(default_factory=Digest)


def replaced(
    copy: WorkingCopy,
    positions: Integers,
    embedding: Embedding | None,
    ks: U64,
    *,
    checksum: str = "",
) -> ReplacedRows:
    """Return our rows that are replaced; at most two steps.

    positions, ks: of keys that came or differ, int64 [n] and uint64 [m] ascending; checksum: as in
    `reduced`.
    """
    place = partial(chosen, positions=positions, embedding=embedding, salt=copy.salt, ks=ks)
    with copy.phase("list"):
        listing = list_rows(copy.steps, copy.files, copy.layout, RowChoice(place), copy.salt)
        files = [copy.files[i] for i in np.unique(listing.file).tolist()]
        if not files:
            return ReplacedRows(listing)
        return _digests(copy, listing, files, place, checksum)


def _digests(
    copy: WorkingCopy,
    listing: Listing,
    files: Sequence[DataFile],
    place: partial[Integers],
    checksum: str,
) -> ReplacedRows:
    salt, mixed = copy.salt, _Mixed(copy.layout, copy.salt, checksum)

    def run(pieces: Iterator[FilePiece]) -> PartialSums:
        digest, words = Digest(), np.zeros(4, np.uint64)
        for piece in pieces:
            keep = place(numbers_of(piece.batch, 0)) >= 0
            batch = piece.batch.filter(pa.array(keep))
            where, hi, lo = (numbers_of(batch, i) for i in range(3))
            digest += mix(salt, hi.view(np.uint64), lo.view(np.uint64)).digest()
            words += np.array(_words(mixed(batch, where)), np.uint64)
        return PartialSums(digest, words, np.zeros(1, np.uint64))

    sums = added(
        copy.steps,
        files,
        copy.layout,
        Adding(run, words=4, elements=1, beside=_beside(copy.layout, checksum)),
    )
    return ReplacedRows(listing, sums.total, _keys_of(sums, 0))


def list_checksums(
    steps: Steps,
    files: Sequence[DataFile],
    layout: Layout,
    place: Place,
    salt: Salt,
    checksum: str,
) -> Listing:
    """List the rows for whose position `place` is not negative; their hashes are those of the mixed
    key and checksum. One step."""
    return list_rows(
        steps,
        files,
        layout,
        RowChoice(place),
        salt,
        OtherHashes(_Mixed(layout, salt, checksum), _beside(layout, checksum)),
    )
