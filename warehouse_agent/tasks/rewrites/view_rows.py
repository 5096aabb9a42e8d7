"""Apply recomputed rows to a view's files: the affected rows go, and what became of them comes.

A file that holds an affected row is written again without it (copy-on-write); new rows are files of
their own, made by Spark. So rows that change often gather in young, small files; when there are
more than SMALL_FILES_MAX of them, the next refresh writes them as one (`touched_files`).

Affected rows before and after are paired by lineage in memory, column by column. Rows that are the
same on both sides are no change. More of them than PAIRED_BYTES_MAX are for Spark's join.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import Bools, Integers

from warehouse_agent.columns.row_codes import KeySet
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks import change_feed
from warehouse_agent.tasks.change_feed import OPERATIONS, VersionFeed
from warehouse_agent.tasks.digests import check_rows
from warehouse_agent.tasks.rewrites.replaced_rows import BEFORE_FOLDER, touched_files
from warehouse_agent.tasks.scan import Divisible, FilePiece, Function, read_batches, scan
from warehouse_agent.tasks.steps import DIGESTS_FACTOR, Steps
from warehouse_agent.tasks.write import WRITTEN, Sink, written

PAIRED_BYTES_MAX = 256 << 20  # of affected rows, before and after
KEYS_PER_FILE = 64  # with more affected keys, each file counts as one that holds affected rows
_GONE = f"{BEFORE_FOLDER}/gone"
_PATHS = pa.schema([("path", pa.string())])
_LINEAGE_BYTES = 16  # of a key, as a step's size is estimated


@dataclass(frozen=True, slots=True)
class AffectedLineage:
    """Rows of a view that were made of a changed row. `keys`: for each occurrence, the columns of
    its part of the lineage, and the keys that changed."""

    keys: tuple[tuple[tuple[str, ...], KeySet], ...]

    def holds(self, batch: pa.RecordBatch) -> Bools:
        """Return which rows are affected, bool [rows]; `batch` has the lineage columns."""
        held = np.zeros(len(batch), np.bool_)
        for columns, keys in self.keys:
            if len(keys):
                held |= keys.holds([batch.column(name) for name in columns])
        return held

    def __len__(self) -> int:
        return sum(len(keys) for _, keys in self.keys)


@dataclass(frozen=True, slots=True)
class RemainingFiles:
    """Files of a view after its affected rows went.

    Attributes:
        kept: files that stay as they are; `replaced`: those that do not.
        rewritten: new files of the rows that stay, from replaced ones.
        gone: files of the affected rows, which are no part of the view.
    """

    kept: tuple[DataFile, ...]
    replaced: tuple[DataFile, ...]
    rewritten: tuple[DataFile, ...]
    gone: tuple[DataFile, ...]


def remove(
    steps: Steps,
    folder: DataFolder,
    files: Sequence[DataFile],
    layout: ViewLayout,
    affected: AffectedLineage,
) -> RemainingFiles:
    """Write the files that hold affected rows again without them, into a new folder.

    Raises:
        WarehouseUnavailable: a file is gone, damaged or cannot be written.
    """
    hit = list(files)
    if len(affected) < KEYS_PER_FILE * len(files):
        hit = _holding(steps, files, layout, affected)
    touched = touched_files(files, hit)
    if not touched:
        return RemainingFiles(tuple(files), (), (), ())
    folder.make(BEFORE_FOLDER)
    function = _remove(folder.uri(), layout, affected)
    size = steps.size_of_rows(touched)
    rows = scan(
        steps, touched, layout.file_schema, function, WRITTEN, work=StepWork(StepKind.WRITE, size)
    )
    new_files = written(rows, folder)
    check_rows(touched, sum(f.rows for f in new_files))
    out = set(touched)
    before = f"{folder.path}/{_GONE}"
    return RemainingFiles(
        tuple(f for f in files if f not in out),
        tuple(touched),
        tuple(f for f in new_files if not f.path.startswith(before)),
        tuple(f for f in new_files if f.path.startswith(before)),
    )


def _remove(folder: str, layout: ViewLayout, affected: AffectedLineage) -> Function:
    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        schema = layout.file_schema
        with Sink(folder, "kept", schema) as kept, Sink(folder, _GONE, schema) as gone:
            for batch in (piece.batch for piece in pieces):
                is_gone = affected.holds(batch)
                gone.add(batch, is_gone)
                kept.add(batch, ~is_gone)
            rows = [row for sink in (kept, gone) for row in sink.finish()]
        yield from rows

    return run


def _holding(
    steps: Steps, files: Sequence[DataFile], layout: ViewLayout, affected: AffectedLineage
) -> list[DataFile]:
    """Return the files that hold affected rows; one step."""
    names = [name for columns, keys in affected.keys if len(keys) for name in columns]
    read = pa.schema([layout.file_schema.field(name) for name in names])

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        paths: set[str] = set()
        for piece in pieces:
            if piece.file not in paths and affected.holds(piece.batch).any():
                paths.add(piece.file)
        yield pa.RecordBatch.from_pydict({"path": pa.array(sorted(paths), pa.string())})

    size = sum(f.rows for f in files) * len(names) * _LINEAGE_BYTES // DIGESTS_FACTOR
    rows = scan(steps, files, read, Divisible(run), _PATHS, work=StepWork(StepKind.DIGESTS, size))
    hit = set(rows["path"].to_pylist())
    return [f for f in files if f.path in hit]


@dataclass(frozen=True, slots=True)
class RowPairs:
    """Affected rows before and after, paired by lineage: indices of rows, int64 [n] each.

    `updated` are rows whose values differ: in order, index before and index after.
    """

    before: pa.Table
    after: pa.Table
    deleted: Integers
    inserted: Integers
    updated: tuple[Integers, Integers]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of images by operation."""
        updated = len(self.updated[0])
        numbers = len(self.inserted), updated, updated, len(self.deleted)
        return dict(zip(OPERATIONS, numbers, strict=True))


def read_rows(files: Sequence[DataFile], layout: ViewLayout) -> pa.Table:
    """Return all rows of files of a view, in one chunk. Raises WarehouseUnavailable."""
    batches = [batch for file in files for batch in read_batches(file.uri, layout.file_schema)]
    return pa.Table.from_batches(batches, layout.file_schema).combine_chunks()


def have_own_lineage(rows: pa.Table, layout: ViewLayout) -> bool:
    """Return True if no lineage is null or occurs twice."""
    lineage = rows.select([*layout.lineage_names])
    if any(column.null_count for column in lineage.columns):
        return False
    return bool(lineage.group_by([*layout.lineage_names]).aggregate([]).num_rows == len(rows))


def paired(before: pa.Table, after: pa.Table, layout: ViewLayout) -> RowPairs:
    """Match rows before and after; each lineage occurs once on a side (`have_own_lineage`)."""
    keys = [*layout.lineage_names]
    sides = [
        rows.select(keys).append_column(side, pa.array(np.arange(len(rows))))
        for side, rows in (("before", before), ("after", after))
    ]
    both = sides[0].join(sides[1], keys, join_type="full outer", use_threads=False)
    at = {
        side: both[side].fill_null(-1).to_numpy().astype(np.int64) for side in ("before", "after")
    }
    is_there = {side: where >= 0 for side, where in at.items()}
    both_sides = is_there["before"] & is_there["after"]
    old, new = at["before"][both_sides], at["after"][both_sides]
    order = np.argsort(old, kind="stable")
    old, new = old[order], new[order]
    differ = np.zeros(len(old), np.bool_)
    for column in layout.data_names:
        differ |= ~_same(before[column].take(pa.array(old)), after[column].take(pa.array(new)))
    return RowPairs(
        before,
        after,
        np.sort(at["before"][~is_there["after"]]),
        np.sort(at["after"][~is_there["before"]]),
        (old[differ], new[differ]),
    )


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Bools:
    """Compare values of two columns of one type, floats by their bits: bool [rows].

    All NaN are one value.
    """
    one, other = left.combine_chunks(), right.combine_chunks()
    are_nan = None
    if pa.types.is_floating(one.type):
        are_nan = pc.and_(pc.is_nan(one), pc.is_nan(other)).fill_null(False)
        kind = pa.int32() if one.type == pa.float32() else pa.int64()
        one, other = one.view(kind), other.view(kind)
    same = pc.equal(one, other).fill_null(False)
    if are_nan is not None:
        same = pc.or_(same, are_nan)
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    is_equal: Bools = pc.or_(same, both_null).to_numpy(zero_copy_only=False)
    return is_equal


def write_feed(
    store: Store, name: str, version: int, pairs: RowPairs, layout: ViewLayout
) -> VersionFeed:
    """Write the change feed of a version: `_op`, the data columns, and the lineage.

    Raises:
        WarehouseUnavailable: it cannot be written.
    """
    place, folder = change_feed.place(name, version)
    store.make_folder(*place)
    schema = feed_schema(layout)
    parts = (
        (pairs.after, pairs.inserted),
        (pairs.before, pairs.updated[0]),
        (pairs.after, pairs.updated[1]),
        (pairs.before, pairs.deleted),
    )
    with Sink(store.uri(*place), "changes", schema) as sink:
        for operation, (rows, indices) in zip(OPERATIONS, parts, strict=True):
            images = rows.take(pa.array(indices))
            ops = pa.array([operation] * len(images), pa.string())
            for batch in images.add_column(0, "_op", ops).combine_chunks().to_batches():
                sink.add(batch.cast(schema))
        files = [row["path"][0].as_py() for row in sink.finish()]
    return VersionFeed(folder, tuple(files), pairs.counts)


def feed_schema(layout: ViewLayout) -> pa.Schema:
    """Return the schema of a view's feed. Readers are given its columns without lineage."""
    return pa.schema([pa.field("_op", pa.string()), *layout.file_schema])
