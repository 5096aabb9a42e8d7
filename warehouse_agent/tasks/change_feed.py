"""The change feed of a version: its differential file Δ+ Δ−, before- and after-images, no no-ops.

    _driftline/changes/<name>/_version=N/<attempt>/…      `_op`, then the data columns

A feed consists of the files that the commit names, in a folder of the attempt: without locks on
the storage two agents may write the same version, and one of them commits. The operation of an
image depends on the row of the same key on the other side. Tasks look that row up, in lots
(`write`); beyond LOTS_MAX lots Spark joins (`joined`), which moves all columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from driftline.errors import ProofFailed

from warehouse_agent.columns.layout import HI, LO, RESERVED, Layout, quoted
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage.data_files import DataFile, rows_of
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks import key_lookup
from warehouse_agent.tasks.key_lookup import KeyedRows
from warehouse_agent.tasks.scan import OfFiles, read_batches, spread
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import WRITTEN, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPERATIONS = ("insert", "update_before", "update_after", "delete")
# The operations of rows that are PAIRED and ALONE.
_BEFORE_OPERATIONS, _AFTER_OPERATIONS = ("update_before", "delete"), ("update_after", "insert")
# The other side has the same row, another row of the same key, or none.
SAME, PAIRED, ALONE = range(3)
LOTS_MAX = 8  # every task reads all lots; a join scales better, and takes at least 20 s
_THERE = f"{RESERVED}there"


@dataclass(frozen=True, slots=True)
class VersionFeed:
    """The change feed of a version: files in a folder below `changes/<name>`, rows per operation.

    `folder` is None if the version has no feed.
    """

    folder: str | None = None
    files: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def write(
    steps: Steps,
    store: Store,
    name: str,
    version: int,
    *,
    before: Sequence[DataFile],
    after: Sequence[DataFile],
    layout: Layout,
) -> VersionFeed:
    """Write the feed of a version from the files of its removed and its new rows; one step.

    A task holds keys and fingerprints: at most LOTS_MAX · ROWS_MAX of its rows on one side, and
    ROWS_MAX rows of the other side. A row that is the same on both sides is no change.

    Raises:
        ProofFailed: the operations do not add up.
    """
    at, folder = place(name, version)
    store.make_folder(*at)
    sides = [[f.uri for f in files] for files in (before, after)]
    function = _write(store.uri(*at), layout, sides[0], sides[1])
    size = steps.size_of_rows([*before, *after])
    rows = spread(
        steps, [*sides[0], *sides[1]], function, WRITTEN, work=StepWork(StepKind.WRITE, size)
    ).to_pylist()
    counts = dict.fromkeys(OPERATIONS, 0)
    for row in rows:
        counts[row["path"].partition("-")[0]] += row["rows"]
    _check(counts, before, after, name)
    return VersionFeed(folder, tuple(sorted(row["path"] for row in rows)), counts)


def joined(
    steps: Steps,
    store: Store,
    name: str,
    version: int,
    *,
    old: Sequence[DataFile],
    new: Sequence[DataFile],
    layout: Layout,
) -> VersionFeed:
    """Write the feed between two sets of files of any size, which may share rows, by Spark's joins.

    Raises:
        ProofFailed: the operations do not add up.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    spark = steps.spark_to_join(steps.size_of_rows([*old, *new]))
    before, after = (rows_of(spark, layout, [f.uri for f in files]) for files in (old, new))
    on = [*layout.key_names, HI, LO]
    gone, come = before.join(after, on, "left_anti"), after.join(before, on, "left_anti")
    images = _imaged(gone, come, layout, *_BEFORE_OPERATIONS).unionByName(
        _imaged(come, gone, layout, *_AFTER_OPERATIONS)
    )
    counted = Observation()
    sums = (F.count_if(F.col("_op") == op).alias(op) for op in OPERATIONS)
    observed = images.observe(counted, *sums)
    at, folder = place(name, version)
    with driver_errors():
        observed.write.option("compression", "zstd").mode("overwrite").parquet(store.uri(*at))
        counts = {op: int(counted.get.get(op) or 0) for op in OPERATIONS}
    _check(counts, old, new, name)
    names = (file for file, _ in store.files(*at) if file.endswith(".parquet"))
    return VersionFeed(folder, tuple(names), counts)


def _check(
    counts: dict[str, int], before: Sequence[DataFile], after: Sequence[DataFile], name: str
) -> None:
    more = sum(f.rows for f in after) - sum(f.rows for f in before)
    is_paired = counts["update_before"] == counts["update_after"]
    if not is_paired or counts["insert"] - counts["delete"] != more:
        raise ProofFailed(
            f"The change feed does not add up: {counts} for {more:+} rows; nothing was published.",
            where=name,
            remedy="Run the refresh again; report it if it happens twice.",
        )


def place(name: str, version: int) -> tuple[tuple[str, ...], str]:
    """Return a new folder for the feed of a version: for the store, and below `changes/<name>`."""
    folder = f"_version={version}/{uuid4().hex[:12]}"
    return (PRIVATE, "changes", name, *folder.split("/")), folder


def _write(folder: str, layout: Layout, before: list[str], after: list[str]) -> OfFiles:
    (key,) = layout.key_names
    lanes = pa.schema([layout.file_schema.field(name) for name in (key, HI, LO)])
    data = pa.schema([layout.file_schema.field(name) for name in layout.data_names])
    schema = pa.schema([pa.field("_op", pa.string()), *data])
    lot_rows = key_lookup.ROWS_MAX  # read here, so that a test can set it for the workers

    def run(uris: Iterator[str]) -> Iterator[pa.RecordBatch]:
        mine = set(uris)
        with ExitStack() as stack:
            sinks = {op: stack.enter_context(Sink(folder, op, schema)) for op in OPERATIONS}
            for side, others, operations in (
                (before, after, _BEFORE_OPERATIONS),
                (after, before, _AFTER_OPERATIONS),
            ):
                some = [uri for uri in side if uri in mine]
                if not some:
                    continue
                lots = KeyedRows.lots(others, lanes, key, lot_rows)
                codes = _compared(KeyedRows.read(some, lanes, key), lots)
                at = 0
                for batch in (batch for uri in some for batch in read_batches(uri, data)):
                    its = codes[at : at + len(batch)]
                    at += len(batch)
                    for code, op in zip((PAIRED, ALONE), operations, strict=True):
                        chosen = its == code
                        if chosen.any():
                            named = [pa.array([op] * len(batch), pa.string()), *batch.columns]
                            images = pa.RecordBatch.from_arrays(named, schema=schema)
                            sinks[op].add(images, chosen)
            written = [row for sink in sinks.values() for row in sink.finish()]
        yield from written

    return run


def _compared(rows: KeyedRows, others: Iterable[KeyedRows]) -> npt.NDArray[np.uint8]:
    """Compare each row with the other side's row of its key: uint8 [n], SAME, PAIRED or ALONE."""
    keys = rows.columns[rows.key]
    lanes = [rows.columns[name].to_numpy() for name in (HI, LO)]
    codes = np.full(len(keys), ALONE, np.uint8)
    for lot in others:
        where = lot.find(keys)
        matched = where >= 0
        codes[matched] = PAIRED  # a key is in one lot
        for lane, theirs in zip(lanes, lot.at(where, (HI, LO)), strict=True):
            matched &= lane == theirs.fill_null(0).to_numpy()
        codes[matched] = SAME
        del lot  # before the next is read
    return codes


def _imaged(
    rows: DataFrame, others: DataFrame, layout: Layout, paired: str, alone: str
) -> DataFrame:
    """Return the images of one side, for rows that are not the same on the other."""
    # A key is NOT NULL and unique, so a plain equality join is exact.
    keys = [quoted(k) for k in layout.key_names]
    there = others.selectExpr(*keys, f"true as {_THERE}")
    return rows.join(there, list(layout.key_names), "left").selectExpr(
        f"if({_THERE} is null, '{alone}', '{paired}') as _op",
        *(quoted(c) for c in layout.data_names),
    )
