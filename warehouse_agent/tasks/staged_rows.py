"""The rows of staged frames (`staging`), with the statistics of the rows that they replace.

A frame is verified alone, when it is decoded. Rows before are looked up by their keys: few are held
by each task, of many a task holds those of a lot of frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import pairwise

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Integers
from driftline.errors import FrameDamaged
from driftline.rows import frames, keys
from driftline.rows.columns import RaggedColumn
from driftline.values.types import Recipe

from warehouse_agent.columns.arrow import text_sizes
from warehouse_agent.columns.layout import HI, LO, STATISTICS, Layout
from warehouse_agent.columns.row_bytes import join
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.tasks import row_statistics
from warehouse_agent.tasks.key_lookup import KeyedRows, KeyFilter
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.scan import FILE_BYTES, OfFiles, spread
from warehouse_agent.tasks.staging import frames_of
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import WRITTEN, SplitSink, written

# Rows before that are looked up for each frame: the index of their keys is made anew for each, and
# of more rows that takes longer than to decode the frames twice (5.5 µs a row against 3.1).
AT_ONCE_ROWS = 100_000
TEXT_BYTES_MAX = 64 << 20  # of numerics in a batch, as a row group has; and of one row
# Of a lot while it is looked up: bytes of a row, of the one before and of their index; and how
# often a key is held.
LOT_ROW_BYTES = 160
LOT_KEYS = 3
_BEFORE = (HI, LO, *(name for name, _ in STATISTICS))


@dataclass(frozen=True, slots=True)
class RowsBefore:
    """The rows that staged ones replace.

    Attributes:
        files: of these rows, and perhaps of others.
        updated: number of updated rows, for `row_statistics.weight`.
    """

    files: Sequence[DataFile] = ()
    updated: int | None = 0

    def lot_bytes(self, steps: Steps, work: StepWork) -> int | None:
        """Return the bytes that a task of a step may hold of rows that it looks up; None: it may
        hold all of these rows."""
        is_few = sum(f.rows for f in self.files) <= AT_ONCE_ROWS
        return None if is_few else steps.task_bytes(work)


NO_ROWS = RowsBefore()


def write_staged(
    steps: Steps,
    folder: DataFolder,
    staged: Sequence[str],
    layout: Layout,
    key: KeyFile,
    stamp: StatisticsStamp,
    before: RowsBefore = NO_ROWS,
) -> list[DataFile]:
    """Write the rows of staged files, by URI, as data files in a new folder; one step.

    A task holds all of few rows before; of more it looks up its own rows in lots of so many bytes
    as it may hold, so there are no more tasks than run at once.

    Raises:
        FrameDamaged: a frame does not verify.
        ValueDoesNotFit: a value does not fit its column.
        WarehouseUnavailable: a file cannot be read or written.
    """
    work = StepWork(
        StepKind.WRITE, size_of_rows(staged, steps.most) + steps.size_of_rows(before.files)
    )
    lot_bytes = before.lot_bytes(steps, work)
    function = _write_decoded(folder.uri(), layout, key, stamp, before, lot_bytes)
    folder.make()
    rows = spread(steps, staged, function, WRITTEN, work=work, at_once=lot_bytes is not None)
    return written(rows, folder)


def _write_decoded(
    folder: str,
    layout: Layout,
    key: KeyFile,
    stamp: StatisticsStamp,
    before: RowsBefore,
    lot_bytes: int | None,
) -> OfFiles:
    """Return the function that writes staged rows with their statistics.

    lot_bytes: that a task may hold of rows that it looks up; None: it holds all rows before.
    """
    file_bytes = None if lot_bytes is None else FILE_BYTES

    def run(staged: Iterator[str]) -> Iterator[pa.RecordBatch]:
        rows = StagedRowReader(layout, key, stamp, before, lot_bytes)
        with SplitSink(
            folder, "shipped", layout.file_schema, layout.integer_key, file_bytes
        ) as out:
            for one in rows.read(_frames_in(staged)):
                out.add(one.batch)
            files = out.finish()
        yield from files

    return run


def loaded(
    staged: Iterable[str], layout: Layout, key: KeyFile, stamp: StatisticsStamp
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of staged files before which there are none, in `layout.file_schema`. Raises
    as `batches`."""
    for rows in batches(staged, layout, key):
        yield begun(rows, layout, stamp)


def begun(rows: pa.RecordBatch, layout: Layout, stamp: StatisticsStamp) -> pa.RecordBatch:
    """Return decoded rows before which there are none, in `layout.file_schema`."""
    return _complete(rows, row_statistics.begun(len(rows), stamp), layout)


def _complete(
    rows: pa.RecordBatch, statistics: Sequence[pa.Array], layout: Layout
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*rows.columns, *statistics], schema=layout.file_schema)


class Gap(Enum):
    """Stands between staged frames that do not follow each other.

    FIRST: what comes next are the first rows of an exchange. UNKNOWN: rows are missing.
    """

    FIRST = auto()
    UNKNOWN = auto()


@dataclass(slots=True)
class StagedRowReader:
    """Decodes staged frames into rows with their statistics, which those before carry on.

    Attributes:
        lot_bytes: to hold of rows that are looked up together, whose keys are decoded twice; None:
            all rows before are held, and looked up for each frame.
    """

    layout: Layout
    key: KeyFile
    stamp: StatisticsStamp
    before: RowsBefore
    lot_bytes: int | None
    _decoder: FrameDecoder = field(init=False)
    _weight: float = field(init=False)

    def __post_init__(self) -> None:
        self._decoder = FrameDecoder(self.layout, self.key)
        self._weight = row_statistics.weight(self.stamp, self.before.updated)

    def read(self, staged: Iterable[bytes]) -> Iterator[DecodedRows]:
        """Yield the rows of frames, their batches in `layout.file_schema`.

        Raises:
            FrameDamaged: a frame does not verify.
            ValueDoesNotFit: a value does not fit its column.
        """
        for rows in self._rows(staged, skips=False):
            assert not isinstance(rows, Gap), "none was given"
            yield rows

    def read_sound(self, staged: Iterable[bytes | Gap]) -> Iterator[DecodedRows | Gap]:
        """Yield the rows of sound frames, and gaps; a damaged frame is a gap, too."""
        return self._rows(staged, skips=True)

    def _rows(self, staged: Iterable[bytes | Gap], *, skips: bool) -> Iterator[DecodedRows | Gap]:
        if not self.before.files:
            for item in staged:
                for rows in self._decoded(item, skips=skips):
                    yield rows if isinstance(rows, Gap) else self._begun(rows)
        elif self.lot_bytes is None:
            yield from self._at_once(staged, skips=skips)
        else:
            yield from self._in_lots(staged, self.lot_bytes, skips=skips)

    def _at_once(
        self, staged: Iterable[bytes | Gap], *, skips: bool
    ) -> Iterator[DecodedRows | Gap]:
        """Look the rows before up for each frame, in an index that is made anew for each."""
        (name,) = self.layout.key_names
        uris = [f.uri for f in self.before.files]
        known = KeyedRows.read(uris, _columns_before(self.layout), name)
        for item in staged:
            for rows in self._decoded(item, skips=skips):
                if isinstance(rows, Gap):
                    yield rows
                else:
                    yield self._carried(rows, known, known.find(rows.batch[name]))

    def _in_lots(
        self, staged: Iterable[bytes | Gap], lot_bytes: int, *, skips: bool
    ) -> Iterator[DecodedRows | Gap]:
        """Look the rows before up for many frames together, which are decoded twice."""
        layout = self.layout
        for lot in _lots(staged, layout, self.key.position_seed(), lot_bytes, skips=skips):
            known = _rows_before(lot, self.before.files, layout) if lot.keys else None
            end = 0
            for item, count in lot.items:
                at, end = end, end + count
                for rows in self._decoded(item, skips=skips):
                    if isinstance(rows, Gap) or known is None:
                        yield rows
                        continue
                    where = known.where[at : at + len(rows.sizes)]
                    at += len(rows.sizes)
                    yield self._carried(rows, known.rows, where)
            del lot, known  # before the next is held

    def _decoded(self, item: bytes | Gap, *, skips: bool) -> Iterator[DecodedRows | Gap]:
        if isinstance(item, Gap):
            yield item
            return
        try:
            yield from self._decoder.decode(item)
        except FrameDamaged:
            if not skips:
                raise
            yield Gap.UNKNOWN

    def _begun(self, rows: DecodedRows) -> DecodedRows:
        return replace(rows, batch=begun(rows.batch, self.layout, self.stamp))

    def _carried(self, rows: DecodedRows, known: KeyedRows, where: Integers) -> DecodedRows:
        batch = rows.batch
        statistics = row_statistics.carried(
            batch[HI], batch[LO], known.at(where, _BEFORE), self.stamp, self._weight
        )
        return replace(rows, batch=_complete(batch, statistics, self.layout))


@dataclass(frozen=True, slots=True)
class _Lot:
    """Staged frames, packed, with their rows, and gaps between them; of each frame the keys and the
    positions of its rows."""

    items: list[tuple[bytes | Gap, int]] = field(default_factory=list)
    keys: list[pa.Array] = field(default_factory=list)
    positions: list[Integers] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _RowsBefore:
    """The rows that a lot replaces, and for each row of the lot which it is, int64 [n]; −1: none.

    `rows` have no keys any more.
    """

    rows: KeyedRows
    where: Integers


def _lots(
    staged: Iterable[bytes | Gap], layout: Layout, seed: int, lot_bytes: int, *, skips: bool
) -> Iterator[_Lot]:
    """Yield frames together that take `lot_bytes` while they are looked up, and at most one more.

    The caller must drop a lot before it asks for the next. Raises FrameDamaged unless it `skips`.
    """
    lot, held = _Lot(), 0
    for item in staged:
        if isinstance(item, Gap):
            lot.items.append((item, 0))
            continue
        try:
            columns = keys.received(frames.decode(item).columns, layout.recipe)
        except FrameDamaged:
            if not skips:
                raise
            lot.items.append((Gap.UNKNOWN, 0))
            continue
        found, where = layout.keys(columns, seed=seed)
        lot.items.append((item, len(where)))
        lot.keys.append(found)
        lot.positions.append(where)
        held += len(item) + LOT_ROW_BYTES * len(where) + LOT_KEYS * found.nbytes
        if held >= lot_bytes:
            yield lot
            lot, held = _Lot(), 0
    if lot.items:
        yield lot


def _rows_before(lot: _Lot, before: Sequence[DataFile], layout: Layout) -> _RowsBefore:
    """Look up the rows that those of a lot replace; the first of each key counts."""
    columns = _columns_before(layout)
    (name,) = layout.key_names
    wanted = pa.chunked_array(lot.keys, columns.field(name).type)
    passing = KeyFilter.of(layout.position_name, np.concatenate(lot.positions))
    where = np.full(len(wanted), -1, np.int64)
    found, count = [columns.empty_table().select(_BEFORE)], 0
    for some in KeyedRows.lots(passing.near(before), columns, name, 2 * len(wanted), passing):
        at = some.find(wanted)
        new = np.flatnonzero((at >= 0) & (where < 0))
        where[new] = np.arange(count, count + len(new))
        count += len(new)
        found.append(pa.table(some.at(at[new], _BEFORE), names=list(_BEFORE)))
        del some  # before the next is read
    return _RowsBefore(KeyedRows(pa.concat_tables(found).combine_chunks(), ""), where)


def _columns_before(layout: Layout) -> pa.Schema:
    return pa.schema([layout.file_schema.field(n) for n in (*layout.key_names, *_BEFORE)])


def size_of_rows(uris: Sequence[str], most: int) -> int:
    """Return the bytes of the rows of staged files, decompressed; stop above `most`.

    Raises:
        FrameDamaged: a staged file does not consist of frames.
    """
    size = 0
    for uri in uris:
        size += sum(frames.head(data).body_bytes for data in frames_of(uri))
        if size > most:
            break
    return size


@dataclass(frozen=True, slots=True)
class StagedFrames:
    """Staged files, at least one, by URI, the bytes of all frames in them, the number of rows that
    are expected to have changed since, and the published rows, which they replace."""

    uris: Sequence[str]
    frame_bytes: int
    changed: float = 0.0
    before: RowsBefore = NO_ROWS

    def row_bytes(self) -> int:
        """Return the bytes of all rows, if they are packed as well as those of the first file that
        begins with a sound frame; 0 if none does.

        Raises WarehouseUnavailable: it cannot be read.
        """
        packed = body_bytes = 0
        for uri in self.uris:
            with suppress(FrameDamaged):
                for data in frames_of(uri):
                    body_bytes += frames.head(data).body_bytes
                    packed += len(data)
            if packed:
                break
        return self.frame_bytes * body_bytes // max(packed, 1)


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of a frame, or of a part of it, in `layout.decoded_schema`, or in `layout.file_schema`
    with their statistics; the bytes of each, int64 [rows], and the lanes of their fingerprints,
    uint64 [rows]."""

    batch: pa.RecordBatch
    sizes: Integers
    hi: U64
    lo: U64


class FrameDecoder:
    """Decodes frames that were staged, and verifies them."""

    def __init__(self, layout: Layout, key: KeyFile) -> None:
        """Decode into the columns of `layout`. Raises WarehouseUnavailable: the key is gone."""
        self._layout = layout
        self._fingerprints = key.fingerprints(layout.recipe)
        self._seed = key.position_seed()

    def decode(self, data: bytes) -> Iterator[DecodedRows]:
        """Yield the rows of a frame, in parts if its numerics become long texts.

        Raises:
            FrameDamaged: it does not verify; before any part.
            ValueDoesNotFit: a value does not fit its column.
        """
        frame, recipe = frames.decode(data), self._layout.recipe
        keys.received(frame.columns, recipe)
        block, hi, lo = frames.verify(frame, self._fingerprints, join)
        sizes = np.diff(block.starts)
        for first, end in _parts(frame.columns, recipe):
            some, columns, rows = slice(first, end), frame.columns, block
            if end - first < len(block):
                columns, rows = [c.cut(first, end) for c in columns], block.cut(first, end)
            batch = self._layout.batch(columns, rows, hi[some], lo[some], seed=self._seed)
            yield DecodedRows(batch, sizes[some], hi[some], lo[some])


def batches(uris: Iterable[str], layout: Layout, key: KeyFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of staged files, verified, a frame at a time, in `layout.decoded_schema`.

    A frame whose numerics become long texts is yielded in parts.

    Raises:
        FrameDamaged: a frame does not verify.
        ValueDoesNotFit: a value does not fit its column.
    """
    decoder = FrameDecoder(layout, key)
    for data in _frames_in(uris):
        yield from (part.batch for part in decoder.decode(data))


def _parts(columns: Sequence[RaggedColumn], recipe: Recipe) -> list[tuple[int, int]]:
    """Return the parts of a frame, (first, end) rows, whose numerics become bounded texts."""
    sizes = [text_sizes(c, ragged) for c, ragged in zip(recipe.columns, columns, strict=True)]
    part = np.cumsum(np.sum(sizes, axis=0)) // TEXT_BYTES_MAX
    ends = [*(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
    return list(pairwise([0, *ends]))


def _frames_in(uris: Iterable[str]) -> Iterator[bytes]:
    """Yield the packed frames of staged files; raises as `frames_of`."""
    for uri in uris:
        yield from frames_of(uri)
