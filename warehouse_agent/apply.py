"""From a difference to files: what the next version is made of.

Shipped rows become files of their own; files that hold removed rows are written again without them;
all others are kept as they are. So rows that change often gather in young files by themselves, and
a refresh rewrites what it must. What is written again is laid out by heat: rows that are likely to
change soon (`heat`) go into files of their own, so that they touch few files when they do. Nothing
is written again only for that. Files are written once, into a folder of their own, and belong to
nothing until the commit names them.

Removed rows are named by position and row hash, or by k, computed in Spark SQL by the native
`xxhash64` that the contract's mixing was chosen for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from driftline.digests import Salt
from pyspark.sql import Column, DataFrame, DataFrameWriter, Observation, SparkSession
from pyspark.sql import functions as F

from warehouse_agent.exchange import Replaced
from warehouse_agent.executors import driver_errors
from warehouse_agent.layout import HI, LO, RESERVED, Layout, quoted
from warehouse_agent.publish import DataFile, data_files
from warehouse_agent.readers import rows_of
from warehouse_agent.reduce import Listing, k_column, long
from warehouse_agent.store import PRIVATE, Store

OPERATIONS = ("insert", "update_before", "update_after", "delete")  # of the change feed
SMALL_FILE_BYTES = 16 << 20
SMALL_FILES_MAX = 32  # more of them are put together at the next refresh that changes anything
# Columns of ours beside anybody's.
_PLACE, _HASH = f"{RESERVED}place", f"{RESERVED}hash"
_FILE = f"{RESERVED}file"
_PART = f"{RESERVED}part"  # parts the files that a rewriting makes
BEFORE_FOLDER = f"{_PART}=gone"  # of a rewriting: the before-images, no part of the table
_COLD, _HOT = "cold", "hot"
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


def write_rows(
    store: Store, name: str, folder: str, rows: DataFrame, layout: Layout, *, hot: str | None = None
) -> list[DataFile]:
    """Write rows as data files of the table, in a folder of its own.

    `hot`: Spark SQL for whether a row is to lie in a file with such rows only; None: none is.
    """
    if hot is None:
        with driver_errors():
            _writer(rows).parquet(store.uri(name, folder))
        return data_files(store, name, folder, layout)
    parted = rows.selectExpr(*map(quoted, rows.columns), f"{_part(hot)} as {_PART}")
    with driver_errors():
        _writer(parted).partitionBy(_PART).parquet(store.uri(name, folder))
    return _parts(store, name, folder, layout)


def _writer(rows: DataFrame) -> DataFrameWriter:
    return rows.write.option("compression", "zstd").mode("overwrite")


def _part(hot: str) -> str:
    return f"if({hot}, '{_HOT}', '{_COLD}')"


def _parts(store: Store, name: str, folder: str, layout: Layout) -> list[DataFile]:
    return [
        file
        for part in (_COLD, _HOT)
        for file in data_files(store, name, f"{folder}/{_PART}={part}", layout)
    ]


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows to remove: `named` is joined with the table's rows on `condition`; no two of its rows
    name one row of the table, which would be written twice."""

    named: DataFrame
    condition: Column


def rows_named(spark: SparkSession, removed: Listing, layout: Layout, salt: Salt) -> Removal:
    """Rows by position and row hash, as the comparison of ranges lists them."""
    table = pa.table({_PLACE: removed.positions, _HASH: removed.hashes.view(np.int64)})
    named = spark.createDataFrame(table.group_by([_PLACE, _HASH]).aggregate([]))
    s0 = long(salt.s0)
    mixed = F.xxhash64(s0, F.col(HI), F.col(LO))
    condition = (F.expr(layout.position_sql) == F.col(_PLACE)) & (mixed == F.col(_HASH))
    return Removal(_shared(named, len(removed.positions)), condition)


def keys_named(spark: SparkSession, replaced: Replaced, layout: Layout, salt: Salt) -> Removal:
    """Every row below these k, as a sketch tells them."""
    named = spark.createDataFrame(pa.table({_PLACE: replaced.ks.astype(np.int64)}))
    k = k_column(layout.position_sql, replaced.embedding, salt)
    return Removal(_shared(named, len(replaced.ks)), k == F.col(_PLACE))


def rewrite(
    store: Store,
    name: str,
    folder: str,
    rows: DataFrame,
    removal: Removal,
    layout: Layout,
    *,
    hot: str,
) -> tuple[list[DataFile], list[DataFile]]:
    """Write rows without the removed ones, and those apart, in one pass over them.

    Returns the data files, and those of the before-images, which are no part of the table. `hot` is
    as of `write_rows`.
    """
    part = f"if({_PLACE} is null, {_part(hot)}, 'gone') as {_PART}"
    parted = rows.join(removal.named, removal.condition, "left").selectExpr(
        *map(quoted, rows.columns), part
    )
    with driver_errors():
        (
            _writer(parted)
            .option("maxRecordsPerFile", 0)
            .partitionBy(_PART)
            .parquet(store.uri(name, folder))
        )
    before = data_files(store, name, f"{folder}/{BEFORE_FOLDER}", layout)
    return _parts(store, name, folder, layout), before


def within_bounds(files: Sequence[DataFile], replaced: Replaced) -> list[DataFile]:
    """The files whose bounds say that some of these k may be in them."""
    if replaced.embedding.base is None:
        return list(files)
    where = replaced.embedding.positions(replaced.ks)
    found = []
    for file in files:
        assert file.bounds is not None, "keys embed from a base only where all files have bounds"
        least, greatest = file.bounds
        first = np.searchsorted(where, least, "left")
        if first < np.searchsorted(where, greatest, "right"):
            found.append(file)
    return found


def files_holding(rows: DataFrame, removal: Removal) -> set[str]:
    """Names, without folders, of the files that hold rows to remove; one Spark job."""
    # The name is taken before the join: it is known only to the scan.
    named = rows.withColumn(_FILE, F.expr("substring_index(input_file_name(), '/', -1)"))
    with driver_errors():
        found = named.join(removal.named, removal.condition, "left_semi").select(_FILE).distinct()
        return {str(row[0]) for row in found.collect()}


def touched_files(files: tuple[DataFile, ...], hit: set[str]) -> list[DataFile]:
    """The files of these names; with them the small ones, when there are many."""
    small = [f for f in files if f.size < SMALL_FILE_BYTES]
    pack = {f.path for f in small} if len(small) > SMALL_FILES_MAX else set()
    return [f for f in files if f.name in hit or f.path in pack]


def write_changes(
    store: Store, name: str, version: int, *, before: DataFrame, after: DataFrame, layout: Layout
) -> tuple[str, dict[str, int]]:
    """Write the differential file of a version: before- and after-images, no no-ops.

    Returns its place below `changes/<name>` and the number of rows of each `_op`.
    """
    gone = _imaged(before, after, layout, paired="update_before", alone="delete")
    come = _imaged(after, before, layout, paired="update_after", alone="insert")
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


def _imaged(
    rows: DataFrame, others: DataFrame, layout: Layout, *, paired: str, alone: str
) -> DataFrame:
    """One side's images. A row that both sides have as it is was shipped, but is no change."""
    # A key is NOT NULL and unique, so a plain equality join is exact.
    keys = list(layout.key_names)
    lanes = [f"{HI} as {_PLACE}", f"{LO} as {_HASH}"]
    joined = rows.join(others.selectExpr(*(quoted(k) for k in keys), *lanes), keys, "left")
    return joined.where(f"not ({HI} <=> {_PLACE} and {LO} <=> {_HASH})").selectExpr(
        f"if({_PLACE} is null, '{alone}', '{paired}') as _op",
        *(quoted(c) for c in layout.data_names),
    )


def differing(
    spark: SparkSession, layout: Layout, old: list[str], new: list[str]
) -> tuple[DataFrame, DataFrame]:
    """Before- and after-images between two sets of files, by key and fingerprint."""
    before, after = rows_of(spark, layout, old), rows_of(spark, layout, new)
    on = [*layout.key_names, HI, LO]
    return before.join(after, on, "left_anti"), after.join(before, on, "left_anti")


def _shared(named: DataFrame, rows: int) -> DataFrame:
    return F.broadcast(named) if rows <= BROADCAST_ROWS_MAX else named
