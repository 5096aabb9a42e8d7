"""Write data files again without rows that are replaced or deleted.

Rows that the source sent become files of their own; files that hold removed rows are written again
without them; all others are kept. So rows that change often gather in young files. A file is
written once, into a folder of the attempt, and is in no version until a commit names it. Removed
rows go to files of their own, the before-images. No row goes through the JVM: 1.5 M orders are
written again in about a second; a join and Spark's writer took three (two cores).

Rejected: separate files for rows that are likely to change soon. They rewrote 0.95 to 1.02 times
the rows on real histories and cost up to half a second (docs/results/decisions.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Bools, Integers
from driftline.reconciliation.named_keys import KeyMap, Ranks
from driftline.rows.digests import Salt, mix

from warehouse_agent.columns.layout import Layout
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.tasks.difference import BelowKeys, EmptiedZones, PlacedRows
from warehouse_agent.tasks.digests import Files, Listing, below, check_rows, numbers
from warehouse_agent.tasks.scan import Divisible, FilePiece, Function, scan
from warehouse_agent.tasks.steps import Steps, work_of_digests
from warehouse_agent.tasks.write import WRITTEN, Sink, written

SMALL_FILE_BYTES = 16 << 20
SMALL_FILES_MAX = 32  # more of them are put together at the next refresh that changes anything
BEFORE_FOLDER = "before"  # for before-images, which are no part of the table
_GONE = f"{BEFORE_FOLDER}/gone"
_NO_PLACES = np.zeros(0, np.int64)
_PATHS = pa.schema([("path", pa.string())])


# Decides which rows are replaced or deleted, bool [n], from positions and lanes, int64 [n] each.
Removal = Callable[[Integers, Integers, Integers], Bools]


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """The files of the next version.

    Attributes:
        shipped: new files of rows that the source sent.
        rewritten: new files of rows that stay, from files that hold removed rows.
        kept, gone: files of the version before that stay, and that are removed.
        before: files of all removed rows; None if they are not written apart.
    """

    shipped: tuple[DataFile, ...]
    rewritten: tuple[DataFile, ...]
    kept: tuple[DataFile, ...]
    gone: tuple[DataFile, ...]
    before: tuple[DataFile, ...] | None = None

    @property
    def added(self) -> tuple[DataFile, ...]:
        """Return the new files."""
        return (*self.shipped, *self.rewritten)


@dataclass(frozen=True, slots=True)
class RowsByHash:
    """Rows by row hash, uint64 [n] ascending, and position, int64 [n]."""

    hashes: U64
    positions: Integers
    salt: Salt

    @classmethod
    def of(cls, removed: Listing, salt: Salt) -> Self:
        """Build from the rows to remove."""
        order = np.argsort(removed.hashes, kind="stable")
        return cls(removed.hashes[order], removed.positions[order], salt)

    def __call__(self, where: Integers, hi: Integers, lo: Integers) -> Bools:
        hashes = mix(self.salt, hi.view(np.uint64), lo.view(np.uint64)).m0
        at = np.searchsorted(self.hashes, hashes, "left")
        end = np.searchsorted(self.hashes, hashes, "right")
        is_gone = np.zeros(len(where), np.bool_)
        while len(left := np.flatnonzero(~is_gone & (at < end))):  # once, except for equal hashes
            is_gone[left] = self.positions[at[left]] == where[left]
            at[left] += 1
        return is_gone


@dataclass(frozen=True, slots=True)
class RowsByK:
    """Rows below these k, uint64 [n] ascending, that a sketch decoded."""

    ks: U64
    embedding: KeyMap
    salt: Salt

    def __call__(
        self,
        where: Integers,
        hi: Integers,  # noqa: ARG002 - k depends on the position alone
        lo: Integers,  # noqa: ARG002
    ) -> Bools:
        is_gone: Bools = below(where, self.embedding, self.salt, self.ks) >= 0
        return is_gone


@dataclass(frozen=True, slots=True)
class RowsByPosition:
    """Rows at these positions, int64 [n] ascending, n > 0."""

    positions: Integers

    def __call__(
        self,
        where: Integers,
        hi: Integers,  # noqa: ARG002 - the position alone decides
        lo: Integers,  # noqa: ARG002
    ) -> Bools:
        at = np.minimum(np.searchsorted(self.positions, where), len(self.positions) - 1)
        is_gone: Bools = self.positions[at] == where
        return is_gone


@dataclass(frozen=True, slots=True)
class RowsInTiles:
    """Every row in emptied zones, and listed rows of other tiles."""

    emptied: EmptiedZones
    listed: RowsByHash

    def __call__(self, where: Integers, hi: Integers, lo: Integers) -> Bools:
        is_gone: Bools = self.emptied.holds(where) | self.listed(where, hi, lo)
        return is_gone


def within_bounds(files: Sequence[DataFile], replaced: BelowKeys) -> list[DataFile]:
    """Return the files that may hold a row below one of the k, by their bounds."""
    embedding = replaced.embedding
    if isinstance(embedding, Ranks) or embedding.base is None:
        return list(files)
    where = embedding.positions(replaced.ks)
    hit = []
    for file in files:
        assert file.bounds is not None, "keys embed from a base only where all files have bounds"
        least, greatest = file.bounds
        first = np.searchsorted(where, least, "left")
        if first < np.searchsorted(where, greatest, "right"):
            hit.append(file)
    return hit


def touched_files(files: Sequence[DataFile], hit: Sequence[DataFile]) -> list[DataFile]:
    """Return the hit files and, if there are more than SMALL_FILES_MAX, all small ones."""
    small = [f for f in files if f.size < SMALL_FILE_BYTES]
    wanted = {*hit, *(small if len(small) > SMALL_FILES_MAX else [])}
    return [f for f in files if f in wanted]


def files_holding(steps: Steps, files: Files, layout: Layout, removal: Removal) -> list[DataFile]:
    """Return the files that hold rows to remove; one step."""

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        paths: set[str] = set()
        for piece in pieces:
            lanes = (numbers(piece.batch, i) for i in range(3))
            if piece.file not in paths and removal(*lanes).any():
                paths.add(piece.file)
        yield pa.RecordBatch.from_pydict({"path": pa.array(sorted(paths), pa.string())})

    rows = scan(
        steps, files, layout.lane_schema, Divisible(run), _PATHS, work=work_of_digests(files)
    )
    hit = set(rows["path"].to_pylist())
    return [f for f in files if f.path in hit]


def rewrite(
    steps: Steps,
    folder: DataFolder,
    files: Files,
    layout: Layout,
    *,
    removal: Removal | None,
) -> tuple[list[DataFile], list[DataFile]]:
    """Write the rows of files again into a new folder of the table; one step.

    Return the new data files and those of the before-images. `removal` is None if all rows stay.

    Raises:
        WarehouseUnavailable: a file is gone, damaged or cannot be written.
    """
    folder.make(BEFORE_FOLDER)
    function = _rewrite(folder.uri(), layout, removal)
    size = steps.size_of_rows(files)
    rows = scan(
        steps, files, layout.file_schema, function, WRITTEN, work=StepWork(StepKind.WRITE, size)
    )
    new_files = written(rows, folder)
    check_rows(files, sum(f.rows for f in new_files))
    before = f"{folder.path}/{_GONE}"
    return (
        [f for f in new_files if not f.path.startswith(before)],
        [f for f in new_files if f.path.startswith(before)],
    )


def rewrite_without(
    steps: Steps, folder: DataFolder, files: Files, layout: Layout, gone: PlacedRows
) -> list[DataFile]:
    """Write the rows of files again, without those at some places, into a new folder of the table;
    one step. No before-images: no version had these rows. Raises as `rewrite`."""
    uri, places = folder.uri(), gone.places
    folder.make()

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        at: Counter[str] = Counter()  # rows of each file that were read
        with Sink(uri, "kept", layout.file_schema, layout.integer_key) as kept:
            for piece in pieces:
                rows = np.arange(at[piece.file], at[piece.file] + len(piece.batch))
                at[piece.file] += len(rows)
                first, end = places.get(piece.file, (_NO_PLACES, _NO_PLACES))
                run_of = np.searchsorted(first, rows, "right") - 1
                kept.add(piece.batch, ~((run_of >= 0) & (rows < np.append(end, 0)[run_of])))
            yield from list(kept.finish())

    work = StepWork(StepKind.WRITE, steps.size_of_rows(files))
    rows = scan(steps, files, layout.file_schema, run, WRITTEN, work=work)
    new_files = written(rows, folder)
    left = sum(int((end - first).sum()) for first, end in places.values())
    check_rows(files, sum(f.rows for f in new_files) + left)
    return new_files


def _rewrite(folder: str, layout: Layout, removal: Removal | None) -> Function:
    names = layout.file_schema.names
    lanes = [names.index(name) for name in layout.lane_schema.names]

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        schema, key = layout.file_schema, layout.integer_key
        with Sink(folder, "kept", schema, key) as kept, Sink(folder, _GONE, schema, key) as before:
            for piece in pieces:
                batch = piece.batch
                is_gone = np.zeros(len(batch), np.bool_)
                if removal is not None:
                    is_gone = removal(*(numbers(batch, i) for i in lanes))
                before.add(batch, is_gone)
                kept.add(batch, ~is_gone)
            rows = [row for sink in (kept, before) for row in sink.finish()]
        yield from rows

    return run
