"""The warehouse's side of a comparison, reduced in Spark (protocol, sections 6 and 7).

Each task reads positions and fingerprint lanes as Arrow, mixes them with the contract's own code
and returns one small array; the driver adds them up. So both sides compute digests with the same
lines, and what reaches the driver depends on the number of ranges, never on the table.

Rejected: grouping by range in Spark SQL. A quarter of a million groups need a shuffle, and the
formula would exist twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from driftline.digests import Digest, Salt, mix
from driftline.errors import InternalError
from driftline.ranges import Partition, RangeSums
from driftline.sketches import CELL_BYTES, Cells, Embedding
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from warehouse_agent.executors import Batches, Task, driver_errors, task
from warehouse_agent.layout import HI, LO, Layout
from warehouse_agent.plan import everything
from warehouse_agent.sizing import Sketch

TASKS_MAX = 64  # their partial sums meet on the driver
PARTIALS_BYTES_MAX = 128 << 20  # of all of them: of 6 tasks at the largest, still ahead of a source


@dataclass(frozen=True, slots=True)
class Listing:
    """Some rows: coarse range (or k), position, row hash, number of the file."""

    ranges: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    file: npt.NDArray[np.int32]


def lanes(rows: DataFrame, layout: Layout) -> DataFrame:
    """position, hi, lo of published rows."""
    return rows.selectExpr(f"{layout.position_sql} as position", f"{HI} as hi", f"{LO} as lo")


@dataclass(frozen=True, slots=True)
class Sums:
    """Our side of a comparison: sums over ranges and, where there is a sketch, its cells."""

    ranges: RangeSums
    cells: Cells | None = None

    @property
    def total(self) -> Digest:
        return self.ranges.total


def reduced(
    rows: DataFrame, layout: Layout, partition: Partition, salt: Salt, sketch: Sketch | None = None
) -> Sums:
    """The sums over these rows; one Spark job."""
    found = Sums(RangeSums(partition.ranges), Cells(sketch.third) if sketch else None)
    for row in partials(
        lanes(rows, layout),
        _sums(partition, salt, sketch),
        "sums binary, cells binary, check bigint",
        size=16 * partition.ranges + (CELL_BYTES * sketch.cells if sketch else 0),
    ):
        found.ranges.merge(RangeSums.from_bytes(row["sums"]))
        if found.cells is not None:
            part = Cells.from_bytes(row["cells"])
            part.check = row["check"]
            found.cells.merge(part)
    return found


def partials(
    rows: DataFrame, function: Task, schema: str, *, size: int
) -> Iterator[dict[str, Any]]:
    """What the tasks of one Spark job found, `size` bytes each; none is held once it was seen."""
    at_once = max(min(TASKS_MAX, PARTIALS_BYTES_MAX // size), 1)
    with driver_errors():
        found = rows.coalesce(at_once).mapInArrow(task(function), schema).toArrow().to_batches()
    while found:
        yield from found.pop().to_pylist()


def total(rows: DataFrame, layout: Layout, salt: Salt) -> Digest:
    """The digest of these rows from their stored fingerprints."""
    return reduced(rows, layout, everything(), salt).total


def list_rows(
    rows: DataFrame,
    layout: Layout,
    partition: Partition,
    salt: Salt,
    *,
    by: int,
    chosen: npt.NDArray[np.bool_],
    files: Sequence[str],
) -> Listing:
    """The rows in the chosen coarse ranges (bool [coarse ranges]); one Spark job.

    `files`: the names, without folders, of all files that hold these rows; no two are alike.
    """
    bits = np.packbits(chosen, bitorder="little").tobytes()
    listed = _in_files(rows, layout).mapInArrow(
        task(_list(lambda where: _within(where, partition, by, bits), salt, list(files))),
        "range bigint, position bigint, hash bigint, file int",
    )
    return _listing(listed)


def list_keys(
    rows: DataFrame,
    layout: Layout,
    embedding: Embedding,
    salt: Salt,
    *,
    ks: npt.NDArray[np.uint64],
    files: Sequence[str],
) -> Listing:
    """The rows below these k (uint64 [n], ascending), `ranges` being their k; one Spark job.

    `files` as for `list_rows`.
    """
    listed = _in_files(rows, layout).mapInArrow(
        task(_list(lambda where: _below(where, embedding, salt, ks), salt, list(files))),
        "range bigint, position bigint, hash bigint, file int",
    )
    return _listing(listed)


def k_column(position_sql: str, embedding: Embedding, salt: Salt) -> Column:
    """k of a row in Spark SQL, where it is inside the embedding (protocol, section 7)."""
    position = F.expr(position_sql)
    if embedding.base is not None:
        return position - F.lit(embedding.base).cast("bigint")
    high = F.shiftrightunsigned(F.xxhash64(long(salt.s1), position), 32)
    return F.shiftrightunsigned(high * F.lit(embedding.span).cast("bigint"), 32)


def long(unsigned: int) -> Column:
    """A bigint of these 64 bits."""
    return F.lit(unsigned - (1 << 64) if unsigned >> 63 else unsigned).cast("bigint")


def _in_files(rows: DataFrame, layout: Layout) -> DataFrame:
    """position, hi, lo, and the name of the file without its folder."""
    return rows.selectExpr(
        f"{layout.position_sql} as position",
        f"{HI} as hi",
        f"{LO} as lo",
        # Not `_metadata.file_name`: a source's column may be called `_metadata`.
        "substring_index(input_file_name(), '/', -1) as file",
    )


def _below(
    where: npt.NDArray[np.int64], embedding: Embedding, salt: Salt, ks: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """int64 [n]: k of every position, −1 where it is none of `ks`."""
    found, inside = embedding.embed(where, salt)
    at = np.minimum(np.searchsorted(ks, found), max(len(ks) - 1, 0))
    is_named = inside & (ks[at] == found) if len(ks) else np.zeros(len(where), np.bool_)
    return np.where(is_named, found.astype(np.int64), np.int64(-1))


def _sums(partition: Partition, salt: Salt, sketch: Sketch | None) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        sums = RangeSums(partition.ranges)
        cells = Cells(sketch.third if sketch else 0)
        for batch in batches:
            where, hi, lo = (numbers(batch, i) for i in range(3))
            mixed = mix(salt, hi.view(np.uint64), lo.view(np.uint64))
            sums.add(partition.indices(where), mixed)
            if sketch is not None:
                ks, inside = sketch.embedding.embed(where, salt)
                if not inside.all():
                    raise InternalError("A row lies outside the bounds of its file.")
                cells.add(ks, mixed.m0, salt)
        if sums.total.count:
            found = {"sums": [sums.to_bytes()], "cells": [cells.to_bytes()], "check": [cells.check]}
            yield pa.RecordBatch.from_pydict(found)

    return run


def _within(
    where: npt.NDArray[np.int64], partition: Partition, by: int, bits: bytes
) -> npt.NDArray[np.int64]:
    """int64 [n]: the coarse range of every position, −1 where it is not chosen."""
    chosen = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").astype(np.bool_)
    at = partition.indices(where) >> by
    return np.where(chosen[at], at, np.int64(-1))


def _list(
    place: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]], salt: Salt, files: list[str]
) -> Task:
    """Lists the rows whose position has a place that is not negative."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            where, hi, lo = (numbers(batch, i) for i in range(3))
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
                    pc.index_in(batch.column(3).take(pa.array(keep)), pa.array(files)),
                ],
                names=["range", "position", "hash", "file"],
            )

    return run


def _listing(listed: DataFrame) -> Listing:
    with driver_errors():
        table = listed.toArrow()
    return Listing(
        table["range"].to_numpy(),
        table["position"].to_numpy(),
        table["hash"].to_numpy().view(np.uint64),
        table["file"].to_numpy(),
    )


def numbers(batch: pa.RecordBatch, index: int) -> npt.NDArray[np.int64]:
    """A column of a batch that has no nulls, int64 [rows]."""
    return np.ascontiguousarray(batch.column(index).to_numpy(zero_copy_only=False), np.int64)
