"""From a difference to files: what the next version is made of.

Shipped rows become files of their own; files that hold removed rows are written again without them;
all others are kept as they are. So rows that change often gather in young files by themselves, and
a refresh rewrites what it must. Files are written once, into a folder of their own, and belong to
nothing until the commit names them.

Removed rows are named by position and row hash, computed in Spark SQL by the native `xxhash64` that
the contract's mixing was chosen for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from driftline.digests import Salt
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from warehouse_agent.executors import driver_errors
from warehouse_agent.layout import HI, LO, RESERVED, Layout, quoted
from warehouse_agent.publish import DataFile, data_files
from warehouse_agent.readers import rows_of
from warehouse_agent.reduce import Listing
from warehouse_agent.store import PRIVATE, Store

OPERATIONS = ("insert", "update_before", "update_after", "delete")  # of the change feed
SMALL_FILE_BYTES = 16 << 20
SMALL_FILES_MAX = 32  # more of them are put together at the next refresh that changes anything
# Columns of ours beside anybody's.
_PLACE, _HASH, _PAIRED = f"{RESERVED}place", f"{RESERVED}hash", f"{RESERVED}paired"
_GONE = f"{RESERVED}gone"  # parts the files that a rewriting makes
BEFORE_FOLDER = f"{_GONE}=true"  # of a rewriting: the before-images, no part of the table
BROADCAST_ROWS_MAX = 1_000_000  # of removed rows: 16 MB to every executor


@dataclass(frozen=True, slots=True)
class Applied:
    """Files of the next version: `shipped` and `rewritten` are new, `kept` stay, `gone` go.

    `before`: URIs of the removed rows, where they were written apart; None where they were not.
    """

    shipped: tuple[DataFile, ...]
    rewritten: tuple[DataFile, ...]
    kept: tuple[DataFile, ...]
    gone: tuple[DataFile, ...]
    before: list[str] | None = None

    @property
    def added(self) -> tuple[DataFile, ...]:
        return (*self.shipped, *self.rewritten)


def write_rows(store: Store, name: str, folder: str, rows: DataFrame) -> list[DataFile]:
    """Write rows as data files of the table, in a folder of its own."""
    with driver_errors():
        rows.write.option("compression", "zstd").mode("overwrite").parquet(store.uri(name, folder))
    return data_files(store, name, folder)


def removed_rows(spark: SparkSession, removed: Listing) -> DataFrame:
    """The removed rows as (position, hash), to be joined."""
    table = pa.table({_PLACE: removed.positions, _HASH: removed.hashes.view(np.int64)})
    # One pair may not match twice: a row would be written twice.
    frame = spark.createDataFrame(table.group_by([_PLACE, _HASH]).aggregate([]))
    return F.broadcast(frame) if len(removed.positions) <= BROADCAST_ROWS_MAX else frame


def rewrite(
    store: Store,
    name: str,
    folder: str,
    rows: DataFrame,
    removed: DataFrame,
    layout: Layout,
    salt: Salt,
) -> tuple[list[DataFile], list[str]]:
    """Write rows without the removed ones, and those apart, in one pass over them.

    Returns the data files, and the URIs of the before-images, which are no part of the table.
    """
    parted = rows.join(removed, _is(removed, layout, salt), "left").selectExpr(
        *(quoted(c) for c in rows.columns), f"{_HASH} is not null as {_GONE}"
    )
    with driver_errors():
        (
            parted.write.option("compression", "zstd")
            .option("maxRecordsPerFile", 0)
            .partitionBy(_GONE)
            .mode("overwrite")
            .parquet(store.uri(name, folder))
        )
    before = [f.uri for f in data_files(store, name, f"{folder}/{BEFORE_FOLDER}")]
    return data_files(store, name, f"{folder}/{_GONE}=false"), before


def touched_files(files: tuple[DataFile, ...], removed: Listing | None) -> list[DataFile]:
    """The files that hold removed rows; with them the small ones, when there are many.

    `files` in the order in which the removed rows number them.
    """
    hit = set() if removed is None else set(np.unique(removed.file).tolist())
    small = [f for f in files if f.size < SMALL_FILE_BYTES]
    pack = {f.path for f in small} if len(small) > SMALL_FILES_MAX else set()
    return [f for i, f in enumerate(files) if i in hit or f.path in pack]


def write_changes(
    store: Store, name: str, version: int, *, before: DataFrame, after: DataFrame, layout: Layout
) -> tuple[str, dict[str, int]]:
    """Write the differential file of a version: before- and after-images, no no-ops.

    Returns its place below `changes/<name>` and the number of rows of each `_op`.
    """
    keys = [quoted(k) for k in layout.key_names]
    data = [quoted(c) for c in layout.data_names]
    # A key is NOT NULL and unique, so a plain equality join is exact.
    old_keys = before.select(*keys).withColumn(_PAIRED, F.lit(True))
    new_keys = after.select(*keys).withColumn(_PAIRED, F.lit(True))
    names = list(layout.key_names)
    gone = before.join(new_keys, names, "left").selectExpr(
        f"if({_PAIRED}, 'update_before', 'delete') as _op", *data
    )
    come = after.join(old_keys, names, "left").selectExpr(
        f"if({_PAIRED}, 'update_after', 'insert') as _op", *data
    )
    feed = f"_version={version}"
    counted = Observation()
    images = gone.unionByName(come).observe(
        counted, *(F.count_if(F.col("_op") == op).alias(op) for op in OPERATIONS)
    )
    with driver_errors():
        images.write.option("compression", "zstd").mode("overwrite").parquet(
            store.uri(PRIVATE, "changes", name, feed)
        )
        return feed, {op: int(counted.get.get(op) or 0) for op in OPERATIONS}


def differing(
    spark: SparkSession, layout: Layout, old: list[str], new: list[str]
) -> tuple[DataFrame, DataFrame]:
    """Before- and after-images between two sets of files, by key and fingerprint."""
    before, after = rows_of(spark, layout, old), rows_of(spark, layout, new)
    on = [*layout.key_names, HI, LO]
    return before.join(after, on, "left_anti"), after.join(before, on, "left_anti")


def _is(removed: DataFrame, layout: Layout, salt: Salt) -> Column:
    s0 = F.lit(salt.s0 - (1 << 64) if salt.s0 >> 63 else salt.s0).cast("bigint")
    mixed = F.xxhash64(s0, F.col(HI), F.col(LO))
    return (F.expr(layout.position_sql) == removed[_PLACE]) & (mixed == removed[_HASH])
