"""Pair the rows of a view, before and after, by lineage: Spark's join, for any number of rows.

Rows are compared null-safely and floats by their bits, because Spark takes 0.0 and -0.0 for equal.
The join counts the rows of both sides, so rows that were lost or doubled on the way are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from driftline.errors import ProofFailed

from warehouse_agent.columns.layout import quoted
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.report import counted
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks import change_feed
from warehouse_agent.tasks.change_feed import VersionFeed
from warehouse_agent.tasks.data_frames import rows_of
from warehouse_agent.tasks.rewrites.view_rows import feed_schema
from warehouse_agent.views.evaluate import query_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REPORT = "Report it: this is a mistake of Driftline, and nothing was published."
_FLOATS = ("float", "double")
SHOWN = 5  # lineages of rows that differ, in an error


@dataclass(frozen=True, slots=True)
class ViewDifferences:
    """Numbers of rows that differ from what the query gives, and lineages of some of them."""

    missing: int
    extra: int
    different: int
    shown: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.different)

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers by name."""
        return {"missing": self.missing, "extra": self.extra, "different": self.different}

    def __str__(self) -> str:
        return ", ".join(f"{counted(n, 'row')} {what}" for what, n in self.counts.items() if n)

    @property
    def details(self) -> dict[str, str]:
        """Return what an error tells beside its message."""
        numbers = {what: str(n) for what, n in self.counts.items()}
        return {**numbers, "lineage": "; ".join(self.shown)}


def differences(
    ours: DataFrame, right: DataFrame, layout: ViewLayout, name: str
) -> ViewDifferences:
    """Compare rows of a view with those that are right.

    Raises:
        ViewFailed: Spark cannot evaluate one of them.
    """
    counts = {"missing": 0, "extra": 0, "different": 0}
    shown: tuple[str, ...] = ()
    with query_errors(name):
        joined = pair(ours, right, layout)
        wrong = joined.where("NOT _same").select("_op_before", "_op_after", "_key")
        for before, after, number in wrong.groupBy("_op_before", "_op_after").count().collect():
            counts["extra" if not after else "missing" if not before else "different"] = number
        if any(counts.values()):
            shown = tuple(str(row[0]) for row in wrong.select("_key").limit(SHOWN).collect())
    return ViewDifferences(**counts, shown=shown)


def pair(old: DataFrame, new: DataFrame, layout: ViewLayout) -> DataFrame:
    """Return both sides of each lineage: `_before`, `_after`, and if they are the same row.

    `_op_before` and `_op_after` are true where the side has the row; `_key` shows the lineage,
    whose columns are there as well.
    """
    from pyspark.sql import functions as F

    keys, names = layout.lineage_names, layout.data_names
    sides = []
    for side, rows in (("before", old), ("after", new)):
        data = F.struct(*(F.col(quoted(n)) for n in names)).alias(f"_{side}")
        sides.append(rows.select(*keys, F.lit(True).alias(f"_op_{side}"), data))
    both = sides[0].join(sides[1], list(keys), "full_outer")
    there = F.coalesce(F.col("_op_before"), F.lit(False)) & F.coalesce(
        F.col("_op_after"), F.lit(False)
    )
    same = there
    for column in layout.columns:
        pair = [F.col(f"_{side}").getField(column.name) for side in ("before", "after")]
        if column.type in _FLOATS:
            pair = [one.cast("string") for one in pair]
        same &= pair[0].eqNullSafe(pair[1])
    shown = [
        F.hex(F.col(key.name)) if key.type == "binary" else F.col(key.name).cast("string")
        for key in layout.lineage
    ]
    return both.select(
        F.coalesce(F.col("_op_before"), F.lit(False)).alias("_op_before"),
        F.coalesce(F.col("_op_after"), F.lit(False)).alias("_op_after"),
        "_before",
        "_after",
        F.coalesce(same, F.lit(False)).alias("_same"),
        F.concat_ws(", ", *shown).alias("_key"),
        *keys,
    )


def write_changes(
    spark: SparkSession,
    store: Store,
    name: str,
    version: int,
    layout: ViewLayout,
    before: Sequence[DataFile],
    after: Sequence[DataFile],
) -> VersionFeed:
    """Write the change feed between two sets of a view's files; count the rows of both.

    Its columns are `_op`, the data columns, and the lineage.

    Raises:
        ProofFailed: a lineage occurs twice, or rows were lost.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    old, new = (rows_of(spark, files, layout.file_schema) for files in (before, after))
    seen = Observation()
    joined = pair(old, new, layout).observe(
        seen, *(F.count_if(F.col(c)).alias(c) for c in ("_op_before", "_op_after"))
    )

    def image(operation: str, side: str) -> Column:
        fields = (F.col(side).getField(n).alias(n) for n in layout.data_names)
        return F.struct(F.lit(operation).alias("_op"), *fields, *layout.lineage_names)

    images = (
        F.when(~F.col("_op_before"), F.array(image("insert", "_after")))
        .when(~F.col("_op_after"), F.array(image("delete", "_before")))
        .otherwise(F.array(image("update_before", "_before"), image("update_after", "_after")))
    )
    feed = joined.where("NOT _same").select(F.explode(images).alias("i")).select("i.*")
    with query_errors(name):
        written = change_feed.write_images(store, name, version, feed, feed_schema(layout))
        there = [int(seen.get.get(c) or 0) for c in ("_op_before", "_op_after")]
    counts = written.counts
    held = [sum(f.rows for f in files) for files in (before, after)]
    is_whole = there == held and counts["insert"] - counts["delete"] == held[1] - held[0]
    if not is_whole or not any(counts.values()):
        store.remove(PRIVATE, "changes", name, *str(written.folder).split("/"))
    if not is_whole:
        raise ProofFailed(
            f"The rows of two versions do not pair by lineage: {there} of {held}, {counts}.",
            where=name,
            remedy=REPORT,
        )
    return written


def check_lineage(
    spark: SparkSession, name: str, layout: ViewLayout, files: Sequence[DataFile]
) -> None:
    """Raise ProofFailed if a lineage is null or occurs twice."""
    lineage = pa.schema([layout.file_schema.field(n) for n in layout.lineage_names])
    rows = rows_of(spark, files, lineage)
    held = sum(f.rows for f in files)
    with query_errors(name):
        distinct = rows.dropna().distinct().count()
    if distinct != held:
        raise ProofFailed(
            f"Of {counted(held, 'row')} only {distinct:,} have a lineage of their own.",
            where=name,
            remedy=REPORT,
        )
