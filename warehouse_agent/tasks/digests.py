"""The warehouse's side of a comparison, added up task by task (protocol, sections 6 and 7).

Each task reads positions and fingerprint lanes of some files, mixes them with the contract's code
and returns one small array; the driver adds these up. So both sides use one formula, and the bytes
that reach the driver depend on the number of ranges, not on the table.

Rejected: grouping by range in Spark SQL. A quarter of a million groups need a shuffle, and the
formula would exist twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from driftline.arrays import Integers
from driftline.digests import Digest, Salt, mix
from driftline.errors import WarehouseUnavailable
from driftline.ranges import Partition, RangeSums
from driftline.sketches import CELL_BYTES, Cells, Embedding

from warehouse_agent.columns.layout import Layout
from warehouse_agent.planning.choice import everything
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.report import counted
from warehouse_agent.spark.executors import DATA_FILE
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.scan import Function, Piece, scan
from warehouse_agent.tasks.steps import Steps, size_of_digests

Files = Sequence[DataFile]
Place = Callable[[Integers], Integers]  # from positions, int64 [n], to int64 [n]

TASKS_MAX = 64  # each sends its partial sums to the driver
# All partial sums together. Six tasks at the largest size are still faster than a source.
PARTIALS_BYTES_MAX = 128 << 20
_SUMS = pa.schema([("sums", pa.binary()), ("cells", pa.binary()), ("check", pa.int64())])
_LISTED = pa.schema(
    [("range", pa.int64()), ("position", pa.int64()), ("hash", pa.int64()), ("file", pa.int32())]
)


@dataclass(frozen=True, slots=True)
class Listing:
    """Some rows, in arrays [n]: coarse range (or k of a sketch), position of the key, row hash.

    `file` is the index of the row's file in the files that were searched.
    """

    ranges: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    file: npt.NDArray[np.int32]

    @classmethod
    def joined(cls, listings: Sequence[Self]) -> Self:
        """Return the rows of all listings, in their order."""
        longs, none = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return cls(
            np.concatenate([longs, *(one.ranges for one in listings)]),
            np.concatenate([longs, *(one.positions for one in listings)]),
            np.concatenate([longs.view(np.uint64), *(one.hashes for one in listings)]),
            np.concatenate([none, *(one.file for one in listings)]),
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """Our side of a comparison: sums over ranges and, with a sketch, its cells."""

    ranges: RangeSums
    cells: Cells = field(default_factory=lambda: Cells(0))

    @property
    def total(self) -> Digest:
        """Return the digest of all rows."""
        return self.ranges.total


def reduced(
    steps: Steps,
    files: Files,
    layout: Layout,
    partition: Partition,
    salt: Salt,
    sketch: Sketch | None = None,
) -> Sums:
    """Return the sums over the rows of files; one step.

    Args:
        salt: for mixing fingerprints.
        sketch: whose cells to fill; None fills none.

    Raises:
        WarehouseUnavailable: a file cannot be read, or does not hold what the log says.
    """
    found = Sums(RangeSums(partition.ranges), Cells(sketch.third if sketch else 0))
    for row in partials(
        steps,
        files,
        layout,
        _sums(partition, salt, sketch),
        _SUMS,
        size=16 * partition.ranges + (CELL_BYTES * sketch.cells if sketch else 0),
    ):
        found.ranges.merge(RangeSums.from_bytes(row["sums"]))
        part = Cells.from_bytes(row["cells"])
        part.check = row["check"]
        found.cells.merge(part)
    check_rows(files, found.total.count)
    return found


def check_rows(files: Files, found: int) -> None:
    """Raise WarehouseUnavailable if the rows found are not as many as the files should hold."""
    rows = sum(f.rows for f in files)
    if found != rows:
        raise WarehouseUnavailable(
            f"Data files hold {counted(found, 'row')} and held {rows:,} when they were written.",
            remedy="`driftline verify` names damaged files, and repairs them with --repair.",
            details={DATA_FILE: f"of {len(files)}"},
        )


def partials(
    steps: Steps,
    files: Files,
    layout: Layout,
    function: Function,
    schema: pa.Schema,
    *,
    size: int,
) -> Iterator[dict[str, Any]]:
    """Run one step over the lanes of files, and yield the row that each task returns.

    Args:
        function: run by each task over its files.
        schema: of the rows that it returns, in one batch a task.
        size: bytes of such a row; larger rows mean fewer tasks.
    """
    at_once = max(min(TASKS_MAX, PARTIALS_BYTES_MAX // size), 1)
    read = size_of_digests(files)
    lanes = layout.lane_schema
    scanned = scan(steps, files, lanes, function, schema, size=read, tasks_max=at_once)
    found = scanned.to_batches()
    del scanned
    while found:  # a row is freed after it was yielded
        yield from found.pop().to_pylist()


def total(steps: Steps, files: Files, layout: Layout, salt: Salt) -> Digest:
    """Return the digest of the rows of files, from their stored fingerprints."""
    return reduced(steps, files, layout, everything(), salt).total


def in_ranges(
    partition: Partition, by: int, chosen: npt.NDArray[np.bool_], within: tuple[int, int] | None
) -> Place:
    """Return a function that finds the coarse range of a position; −1 if it is not chosen.

    Args:
        by: bits by which a range is coarsened.
        chosen: bool [coarse ranges].
        within: first and last position, both inclusive; no position outside is chosen.
    """

    def place(where: Integers) -> Integers:
        at = partition.indices(where) >> by
        is_chosen = chosen[at]
        if within is not None:
            is_chosen &= (within[0] <= where) & (where <= within[1])
        return np.where(is_chosen, at, np.int64(-1))

    return place


def list_rows(
    steps: Steps,
    files: Files,
    layout: Layout,
    place: Place,
    salt: Salt,
    *,
    within: tuple[int, int] | None = None,
) -> Listing:
    """List the rows for whose position `place` is not negative; one step.

    Files without keys from `within[0]` to `within[1]` are not read; None reads all.
    """
    numbered = {f.path: i for i, f in enumerate(files)}
    near = files if within is None else [f for f in files if f.meets(*within)]
    function, size = _list(place, salt, numbered), size_of_digests(near)
    table = scan(steps, near, layout.lane_schema, function, _LISTED, size=size)
    return Listing(
        table["range"].to_numpy(),
        table["position"].to_numpy(),
        table["hash"].to_numpy().view(np.uint64),
        table["file"].to_numpy(),
    )


def below(
    where: Integers, embedding: Embedding, salt: Salt, ks: npt.NDArray[np.uint64]
) -> Integers:
    """Return k of positions, int64 [n]; −1 for a k that is not in `ks`, uint64 [m] ascending."""
    found, inside = embedding.embed(where, salt)
    at = np.minimum(np.searchsorted(ks, found), max(len(ks) - 1, 0))
    is_named = inside & (ks[at] == found) if len(ks) else np.zeros(len(where), np.bool_)
    return np.where(is_named, found.astype(np.int64), np.int64(-1))


def _sums(partition: Partition, salt: Salt, sketch: Sketch | None) -> Function:
    def run(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
        sums = RangeSums(partition.ranges)
        cells = Cells(sketch.third if sketch else 0)
        for piece in pieces:
            where, hi, lo = (numbers(piece.batch, i) for i in range(3))
            mixed = mix(salt, hi.view(np.uint64), lo.view(np.uint64))
            sums.add(partition.indices(where), mixed)
            if sketch is not None:
                ks, inside = sketch.embedding.embed(where, salt)
                if not inside.all():
                    raise WarehouseUnavailable(
                        "A row lies outside the bounds that the log has of its data file.",
                        remedy="`driftline verify` names damaged files.",
                        details={DATA_FILE: piece.file},
                    )
                cells.add(ks, mixed.m0, salt)
        if sums.total.count:
            found = {"sums": [sums.to_bytes()], "cells": [cells.to_bytes()], "check": [cells.check]}
            yield pa.RecordBatch.from_pydict(found)

    return run


def _list(place: Place, salt: Salt, numbered: dict[str, int]) -> Function:
    def run(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            where, hi, lo = (numbers(piece.batch, i) for i in range(3))
            at = place(where)
            keep = np.flatnonzero(at >= 0)
            if not len(keep):
                continue
            hashes = mix(salt, hi[keep].view(np.uint64), lo[keep].view(np.uint64)).m0
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(at[keep]),
                    pa.array(where[keep]),
                    pa.array(hashes.view(np.int64)),
                    pa.array(np.full(len(keep), numbered[piece.file], np.int32)),
                ],
                schema=_LISTED,
            )

    return run


def numbers(batch: pa.RecordBatch, column: int | str) -> Integers:
    """Return a column of a batch, by index or name, without nulls, as int64 [rows]."""
    return np.ascontiguousarray(batch.column(column).to_numpy(zero_copy_only=False), np.int64)
