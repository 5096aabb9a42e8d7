"""Data files written again without rows that are replaced or deleted, in Spark's tasks.

A task reads its files in batches (`scan`). It writes the rows that stay to one data file, and the
rows that are replaced or deleted to another, the before-images, which are no part of the table. It
returns what it wrote; a file that no task returned, left by an attempt that failed, is in no
version. No row goes through the JVM: 1.5 M orders are written again in about a second; a join and
Spark's writer took three (two cores).

Rows that are replaced or deleted are named by position and row hash, or by k, computed by the
contract's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Bools, Integers
from driftline.digests import Salt, mix
from driftline.sketches import Embedding
from pyspark.sql import SparkSession

from warehouse_agent.columns.layout import Layout
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.difference import Emptied
from warehouse_agent.tasks.digests import Files, Listing, below, check_rows, numbers
from warehouse_agent.tasks.scan import Function, Piece, scan
from warehouse_agent.tasks.write import WRITTEN, Sink, written

BEFORE_FOLDER = "before"  # of a rewriting: the before-images, no part of the table
_GONE = f"{BEFORE_FOLDER}/gone"


class Removal(Protocol):
    """Decides which rows are replaced or deleted, bool [n], from their positions and fingerprint
    lanes, int64 [n] each."""

    def __call__(self, where: Integers, hi: Integers, lo: Integers) -> Bools: ...


@dataclass(frozen=True, slots=True)
class ByHash:
    """Rows by position and row hash, from a comparison of ranges; sorted by hash."""

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
        found = np.zeros(len(where), np.bool_)
        while len(left := np.flatnonzero(~found & (at < end))):  # one turn, but for equal hashes
            found[left] = self.positions[at[left]] == where[left]
            at[left] += 1
        return found


@dataclass(frozen=True, slots=True)
class ByK:
    """Rows below these k, uint64 [n] ascending, that a sketch decoded."""

    ks: U64
    embedding: Embedding
    salt: Salt

    def __call__(
        self,
        where: Integers,
        hi: Integers,  # noqa: ARG002 - k is made of the position alone
        lo: Integers,  # noqa: ARG002
    ) -> Bools:
        found: Bools = below(where, self.embedding, self.salt, self.ks) >= 0
        return found


@dataclass(frozen=True, slots=True)
class InTiles:
    """Every row in emptied zones, and listed rows of other tiles."""

    emptied: Emptied
    listed: ByHash

    def __call__(self, where: Integers, hi: Integers, lo: Integers) -> Bools:
        found: Bools = self.emptied.holds(where) | self.listed(where, hi, lo)
        return found


def files_holding(
    spark: SparkSession, files: Files, layout: Layout, removal: Removal
) -> list[DataFile]:
    """Return the files that hold rows to remove; one Spark job."""

    def run(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
        found: set[str] = set()
        for piece in pieces:
            lanes = (numbers(piece.batch, i) for i in range(3))
            if piece.file not in found and removal(*lanes).any():
                found.add(piece.file)
        yield pa.RecordBatch.from_pydict({"path": pa.array(sorted(found), pa.string())})

    scanned = scan(spark, files, layout.lane_schema, run, "path string")
    with driver_errors():
        hit = {row.path for row in scanned.collect()}
    return [f for f in files if f.path in hit]


def rewrite(
    spark: SparkSession,
    store: Store,
    name: str,
    folder: str,
    files: Files,
    layout: Layout,
    *,
    removal: Removal | None,
) -> tuple[list[DataFile], list[DataFile]]:
    """Write the rows of these files again, the removed ones apart; one Spark job.

    Args:
        folder: new, in the table's folder.
        removal: tells which rows to leave out; None keeps all.

    Returns:
        The new data files, and the files of the before-images, which are no part of the table.

    Raises:
        WarehouseUnavailable: a file is gone, damaged or cannot be written.
    """
    store.make_folder(name, folder, BEFORE_FOLDER)
    function = _rewrite(store.uri(name, folder), layout, removal)
    with driver_errors():
        rows = scan(spark, files, layout.file_schema, function, WRITTEN).collect()
    found = written(rows, store, name, folder)
    check_rows(files, sum(f.rows for f in found))
    before = f"{folder}/{_GONE}"
    return (
        [f for f in found if not f.path.startswith(before)],
        [f for f in found if f.path.startswith(before)],
    )


def _rewrite(folder: str, layout: Layout, removal: Removal | None) -> Function:
    names = layout.file_schema.names
    lanes = [names.index(name) for name in layout.lane_schema.names]

    def run(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
        schema, key = layout.file_schema, layout.integer_key
        with (
            Sink(folder, "kept", schema, key) as kept,
            Sink(folder, _GONE, schema, key) as before,
        ):
            for piece in pieces:
                batch = piece.batch
                is_gone = np.zeros(len(batch), np.bool_)
                if removal is not None:
                    is_gone = removal(*(numbers(batch, i) for i in lanes))
                before.add(batch, is_gone)
                kept.add(batch, ~is_gone)
            found = [row for sink in (kept, before) for row in sink.finish()]
        yield from found

    return run
