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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Bools, Integers
from driftline.reconciliation.named_keys import KeyMap, Ranks
from driftline.rows.digests import Salt, mix

from warehouse_agent.columns.layout import Layout
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.storage import data_files
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.tasks.difference import BelowKeys, EmptiedZones, PlacedRows
from warehouse_agent.tasks.digests import Files, Listing, below, check_rows, numbers
from warehouse_agent.tasks.scan import Divisible, FilePiece, Function, read_batches, scan
from warehouse_agent.tasks.steps import Steps, work_of_digests
from warehouse_agent.tasks.write import WRITTEN, Sink, written

SMALL_FILE_BYTES = 16 << 20
SMALL_FILES_MAX = 32  # more of them are put together at the next refresh that changes anything
BEFORE_FOLDER = "before"  # for before-images, which are no part of the table
_GONE = f"{BEFORE_FOLDER}/gone"
_PATHS = pa.schema([("path", pa.string())])
_PLACES = pa.schema([("path", pa.string()), ("bits", pa.binary())])
ROWS_MAX = 1_000_000  # of newer rows whose positions a task holds, 24 bytes each


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
    one step, without before-images. Raises as `rewrite`."""
    uri, gone = folder.uri(), gone.inside({f.path for f in files})
    folder.make()

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        at: Counter[str] = Counter()  # rows of each file that were read
        with Sink(uri, "kept", layout.file_schema, layout.integer_key) as kept:
            for piece in pieces:
                first, count = at[piece.file], len(piece.batch)
                at[piece.file] += count
                kept.add(piece.batch, ~gone.at(piece.file, first, count))
            yield from list(kept.finish())

    work = StepWork(StepKind.WRITE, steps.size_of_rows(files))
    rows = scan(steps, files, layout.file_schema, run, WRITTEN, work=work)
    new_files = written(rows, folder)
    check_rows(files, sum(f.rows for f in new_files) + gone.rows)
    return new_files


def superseded(steps: Steps, groups: Sequence[Files], layout: Layout) -> PlacedRows:
    """Return the rows of groups of files at whose positions a later group has rows, too.

    The positions of later groups are looked up in lots of about ROWS_MAX, each in one step: a task
    holds those of a lot, and reads the positions of its own files.

    Args:
        groups: the oldest first.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    number_of = {f.path: number for number, group in enumerate(groups) for f in group}
    older, gone = [f for group in groups[:-1] for f in group], PlacedRows()
    for lot in _lots([f for group in groups[1:] for f in group]):
        ends = data_files.bounds(lot)
        near = [f for f in older if ends is None or f.meets(*ends)]
        newer = [(f.uri, number_of[f.path]) for f in lot]
        find = _superseded(newer, number_of, layout)
        columns = pa.schema([layout.lane_schema.field(0)])
        work = work_of_digests([*near, *lot])
        rows = scan(steps, near, columns, find, _PLACES, work=work).to_pylist()
        bits = {row["path"]: np.frombuffer(row["bits"], np.uint8) for row in rows}
        gone = gone.joined(PlacedRows(bits))
    return gone


def _superseded(
    newer: Sequence[tuple[str, int]], number_of: Mapping[str, int], layout: Layout
) -> Function:
    """Return the function that finds rows at whose positions these files, by URI and the number of
    their group, have newer rows."""
    columns = pa.schema([layout.lane_schema.field(0)])

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        some = [
            (numbers(b, 0), number) for uri, number in newer for b in read_batches(uri, columns)
        ]
        positions, at = np.unique(np.concatenate([p for p, _ in some]), return_inverse=True)
        newest = np.zeros(len(positions), np.int64)
        np.maximum.at(newest, at, np.repeat([n for _, n in some], [len(p) for p, _ in some]))
        found: dict[str, list[Bools]] = {}
        for piece in pieces:
            where = numbers(piece.batch, 0)
            at = np.minimum(np.searchsorted(positions, where), len(positions) - 1)
            is_gone = (positions[at] == where) & (newest[at] > number_of[piece.file])
            found.setdefault(piece.file, []).append(is_gone)
        gone = PlacedRows.of({path: np.concatenate(parts) for path, parts in found.items()})
        bits = [one.tobytes() for one in gone.bits.values()]
        yield pa.RecordBatch.from_pydict(
            {"path": pa.array([*gone.bits], pa.string()), "bits": pa.array(bits, pa.binary())}
        )

    return run


def _lots(files: Files) -> Iterator[list[DataFile]]:
    """Yield files together that have ROWS_MAX rows, and at most a file more."""
    lot: list[DataFile] = []
    for file in files:
        lot.append(file)
        if sum(f.rows for f in lot) >= ROWS_MAX:
            yield lot
            lot = []
    if lot:
        yield lot


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
