"""Differentials by Spark's full outer joins, for files that differ too much for the window.

Labio and Garcia-Molina, sections 3.1 and 3.3: the sort-merge and the partitioned hash outer join,
with compressed records. Of the old file, <K, b> takes part. Of the new file either <K, B>, the
whole row (the paper's SMC1 and PHC1), or <K, b, p> (SMC2, PHC2), after which the new file is read
once more for the inserted and updated rows. p is a record's number, so these are read in order.

Spark's joins are the printed algorithms without their flaws: they are complete, and spill to disk.
Keys are grouped before they are joined, by the same partitioning, so a key that a file has twice is
found. Files are read by one task each: text can be cut into rows only from its beginning.

Everything is of this machine; the files are not sent anywhere.
"""

from __future__ import annotations

import shutil
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from driftline.arrays import Integers
from driftline.rows.columns import Block, gather, pick
from driftline.rows.keys import key_spans
from driftline.values.types import Recipe

from warehouse_agent.columns.buffers import ragged_of, variable_array_of
from warehouse_agent.differential.comparison import duplicate, refuse_shrunk
from warehouse_agent.differential.output import ChangesFile
from warehouse_agent.differential.records import (
    ChangeForm,
    FileSnapshot,
    RecordHashing,
    Records,
    in_blocks,
)
from warehouse_agent.differential.window import DiffCounts
from warehouse_agent.spark.executors import Batches, Task, driver_errors, task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK_RECORDS = 1 << 13
_RECORD = "key binary, hi bigint, lo bigint, number bigint"
_NO_ROW = "cast(null as binary) as row"


class Algorithm(StrEnum):
    """A join. `hint` is Spark's name of it."""

    SORT_MERGE = "sort-merge"
    HASH = "hash"

    @property
    def hint(self) -> str:
        """The hint by which Spark takes this join."""
        return "merge" if self is Algorithm.SORT_MERGE else "shuffle_hash"


@dataclass(frozen=True, slots=True)
class FileJoin:
    """A join of two files. `pointers`: <K, b, p> of the new file takes part, else <K, B>.

    `secret`: 32 bytes, for the fingerprints of both files.
    """

    algorithm: Algorithm
    pointers: bool
    secret: bytes


def records_of(
    spark: SparkSession, snapshot: FileSnapshot, secret: bytes, *, whole: bool
) -> DataFrame:
    """Return the records of a file as <K, b, p>, and with its row if `whole`, else without.

    Columns: key binary, hi and lo bigint, number bigint (p), row binary.
    """
    ddl = f"{_RECORD}, row binary" if whole else _RECORD
    one = spark.range(1, numPartitions=1)
    records = one.mapInArrow(task(_read(snapshot, secret, whole)), ddl)
    return records if whole else records.selectExpr("*", _NO_ROW)


def _read(snapshot: FileSnapshot, secret: bytes, whole: bool) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        for block in in_blocks(snapshot, RecordHashing(snapshot.recipe, secret), BLOCK_RECORDS):
            yield _batch(block, snapshot.recipe, whole)

    return run


def _batch(records: Records, recipe: Recipe, whole: bool) -> pa.RecordBatch:
    rows, every = records.block, np.ones(len(records), np.bool_)
    starts, sizes = key_spans(rows, recipe)
    arrays = {
        "key": variable_array_of(pa.binary(), every, sizes, pick(rows.buffer, starts, sizes)),
        "hi": pa.array(records.hi.view(np.int64)),
        "lo": pa.array(records.lo.view(np.int64)),
        "number": pa.array(records.numbers),
    }
    if whole:
        arrays["row"] = variable_array_of(pa.binary(), every, np.diff(rows.starts), rows.buffer)
    return pa.RecordBatch.from_pydict(arrays)


def by_key(records: DataFrame) -> DataFrame:
    """Return one record for each key; `last` is greater than `number` where there were several."""
    from pyspark.sql import functions as f

    return records.groupBy("key").agg(
        f.min("hi").alias("hi"),
        f.min("lo").alias("lo"),
        f.min("number").alias("number"),
        f.max("number").alias("last"),
        f.max("row").alias("row"),
    )


def by_join(
    old: DataFrame,
    new: DataFrame,
    join: FileJoin,
    files: tuple[str, FileSnapshot],
    output: Path,
    *,
    allow_shrink: bool = False,
) -> DiffCounts:
    """Write the changes between two files, and return their counts.

    Args:
        old, new: records as of `by_key`.
        join: how they are joined; `new` has rows unless it is by pointers.
        files: the name of the old file, and the new file.
        output: the file of changes.
        allow_shrink: accept that more than half of the records are gone.

    Raises:
        DuplicateKey, NullKey: a key comes twice or is NULL.
        TableShrank: more than half of the records are gone.
        SnapshotLost: the new file changed before it was read again.
    """
    held = output.with_name(f".{output.name}-{uuid.uuid4().hex}.spark")
    new_file = files[1]
    with ChangesFile(output, new_file.recipe) as changes:
        try:
            with driver_errors():
                counts = _joined(old, new, join, held)
            _refuse_duplicates(held, (files[0], new_file.name))
            refuse_shrunk(counts, new_file.name, allow_shrink=allow_shrink)
            _put(held, join, new_file, changes)
        finally:
            shutil.rmtree(held, ignore_errors=True)
        changes.finish()
    return counts


def _joined(old: DataFrame, new: DataFrame, join: FileJoin, held: Path) -> DiffCounts:
    """Write what changed to a folder of Parquet files; return the counts of all records."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    o, n = (
        side.select("key", *(f.col(c).alias(f"{name}_{c}") for c in side.columns if c != "key"))
        for name, side in (("o", old), ("n", new))
    )
    both = o.hint(join.algorithm.hint).join(n, "key", "full_outer")
    is_old, is_new = f.col("o_number").isNotNull(), f.col("n_number").isNotNull()
    differs = (f.col("o_hi") != f.col("n_hi")) | (f.col("o_lo") != f.col("n_lo"))
    form = (
        f.when(~is_old, ChangeForm.INSERT.value)
        .when(~is_new, ChangeForm.DELETE.value)
        .when(differs, ChangeForm.UPDATE.value)
    )
    repeated = (f.col("o_last") > f.col("o_number")) | (f.col("n_last") > f.col("n_number"))
    compared = both.withColumn("form", form)
    counted = Observation()
    compared = compared.observe(
        counted,
        f.count("o_number").alias("old"),
        f.count("n_number").alias("new"),
        *(f.count(f.when(form == x.value, 1)).alias(f"{x}s") for x in ChangeForm),
        f.sum(f.abs(f.col("o_number") - f.col("n_number"))).alias("apart"),
    )
    chosen = compared.where(form.isNotNull() | repeated)
    chosen.select("form", "key", "n_row", "o_number", "o_last", "n_number", "n_last").write.parquet(
        str(held)
    )
    counts = {name: int(value or 0) for name, value in counted.get.items()}
    same = counts["old"] - counts["updates"] - counts["deletes"]
    return DiffCounts(**counts, same=same)


def _parts(held: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in sorted(held.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(BLOCK_RECORDS, columns=list(columns))


def _refuse_duplicates(held: Path, names: tuple[str, str]) -> None:
    for batch in _parts(held, ["o_number", "o_last", "n_number", "n_last"]):
        for name, side in zip(names, ("o", "n"), strict=True):
            first, last = (
                batch.column(f"{side}_{c}").fill_null(0).to_numpy() for c in ("number", "last")
            )
            if (last > first).any():
                at = int((last > first).argmax())
                raise duplicate(name, (int(first[at]), int(last[at])))


def _put(held: Path, join: FileJoin, new: FileSnapshot, changes: ChangesFile) -> None:
    """Put the changes; with pointers, read the rows of updates and inserts from the new file."""
    columns = struct.pack(">h", len(new.recipe.columns))
    wanted: dict[ChangeForm, list[Integers]] = {ChangeForm.UPDATE: [], ChangeForm.INSERT: []}
    for batch in _parts(held, ["form", "key", "n_row", "n_number"]):
        for form in ChangeForm:
            some = batch.filter(pa.compute.equal(batch.column("form"), form.value))
            if not len(some):
                continue
            if form is ChangeForm.DELETE:
                changes.put(form, gather([columns + key for key in some.column("key").to_pylist()]))
            elif join.pointers:
                wanted[form].append(some.column("n_number").to_numpy())
            else:
                changes.put(form, _block(some.column("n_row")))
    if join.pointers:
        for form, rows in _numbered(new, wanted):
            changes.put(form, rows)


def _block(rows: pa.Array) -> Block:
    ragged = ragged_of(rows.cast(pa.large_binary()))
    starts = np.zeros(len(ragged) + 1, np.int64)
    np.cumsum(ragged.sizes, out=starts[1:])
    return Block(ragged.data, starts)


def _numbered(
    new: FileSnapshot, wanted: dict[ChangeForm, list[Integers]]
) -> Iterator[tuple[ChangeForm, Block]]:
    """Yield the rows of a file with these numbers, in the order of the file."""
    none = [np.zeros(0, np.int64)]
    numbers = {form: np.sort(np.concatenate(none + lots)) for form, lots in wanted.items()}
    if not any(map(len, numbers.values())):
        return
    first = 0
    for rows in new.read():
        for form, of_form in numbers.items():
            a, b = np.searchsorted(of_form, [first, first + len(rows)])
            if b > a:
                yield form, gather([rows[i - first] for i in of_form[a:b].tolist()])
        first += len(rows)
