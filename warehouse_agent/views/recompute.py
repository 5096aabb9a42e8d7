"""Recompute a view from pinned versions of its inputs, and compare it with what is published.

The new rows are written, read back and joined with the published ones by lineage. Each lineage must
occur once: it is made of keys. The join counts the rows of both sides, so rows that were lost or
doubled on the way are found. If no row differs, the files are removed and no version is made.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftline.errors import ProofFailed, RecipeChanged

from warehouse_agent.columns.layout import quoted
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.report import counted
from warehouse_agent.storage.data_files import DataFile, rows_of, written_files
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.tasks import change_feed
from warehouse_agent.tasks.change_feed import OPERATIONS, Feed
from warehouse_agent.views.evaluate import Input, changed_recipe, evaluated, query_errors
from warehouse_agent.views.query import Query

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FLOATS = ("float", "double")
_SHOWN = 5  # lineages of rows that differ, in an error
_REPORT = "Report it: this is a mistake of Driftline, and nothing was published."


@dataclass(frozen=True, slots=True)
class UnchangedView:
    """The published version has the rows that the query gives."""

    base: ViewSnapshot


@dataclass(frozen=True, slots=True)
class RecomputedView:
    """Files of the next version, which no commit names yet. `folders`: to remove on failure."""

    base: ViewSnapshot | None
    layout: ViewLayout
    added: tuple[DataFile, ...]
    changes: Feed
    folders: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(f.rows for f in self.added)


def recompute(
    spark: SparkSession,
    store: Store,
    name: str,
    query: Query,
    inputs: Sequence[Input],
    base: ViewSnapshot | None,
    *,
    accept_schema: bool = False,
    anew: bool = False,
) -> UnchangedView | RecomputedView:
    """Evaluate a view from its inputs, one for each occurrence, and write what differs from `base`.

    Args:
        accept_schema: go on if the recipe is another one, without a feed.
        anew: the rows of `base` are wrong or cannot be read: write a version without a feed.

    Raises:
        RecipeChanged: the query, an input's columns, settings or Spark's version are others.
        ConfigurationError, ViewFailed: the query cannot be evaluated (`evaluate.evaluated`).
        ProofFailed: rows were lost or doubled on the way.
        WarehouseUnavailable: files cannot be read or written.
    """
    rows, layout = evaluated(spark, name, query, inputs)
    if base is not None and not accept_schema:
        refuse_changed(name, base.layout, layout)
    folder = f"data-{uuid.uuid4().hex[:12]}-view"
    try:
        with query_errors(name):
            rows.write.option("compression", "zstd").parquet(store.uri(name, folder))
        added = tuple(written_files(store, name, folder, layout))
        changes = Feed()
        if base is None or base.layout != layout or anew:
            _check_lineage(spark, name, layout, added)
        else:
            version = base.version + 1
            changes = _changes(spark, store, name, version, layout, base.files, added)
    except BaseException:
        store.remove(name, folder)
        raise
    is_compared = base is not None and bool(changes.counts)
    if base is not None and is_compared and not any(changes.counts.values()):
        store.remove(name, folder)
        return UnchangedView(base)
    return RecomputedView(base, layout, added, changes, (folder,))


def refuse_changed(name: str, before: ViewLayout, now: ViewLayout) -> None:
    """Raise RecipeChanged if the recipe of a view is another one, and say what changed."""
    found = changed_recipe(before.recipe, now.recipe)
    if not found and before != now:
        found = ["the types of its columns"]
    if found:
        raise RecipeChanged(
            f"What the view means has changed: {'; '.join(found)}.",
            where=name,
            remedy=f"If that is right: driftline refresh {name} --accept-schema",
        )


def verified(
    spark: SparkSession, name: str, query: Query, inputs: Sequence[Input], published: ViewSnapshot
) -> int:
    """Recompute a published version from its inputs and compare every row; return their number.

    Raises:
        RecipeChanged: the view means something else now; refresh it first.
        ProofFailed: rows differ; the details count them and show some.
    """
    rows, layout = evaluated(spark, name, query, inputs)
    refuse_changed(name, published.layout, layout)
    old = rows_of(spark, published.layout, published.uris())
    with query_errors(name):
        joined = _joined(old, rows, layout)
        wrong = joined.where("NOT _same").select("_op_before", "_op_after", "_key")
        counts = {"missing": 0, "extra": 0, "different": 0}
        shown = []
        for before, after, number in wrong.groupBy("_op_before", "_op_after").count().collect():
            counts["extra" if not after else "missing" if not before else "different"] = number
        if any(counts.values()):
            shown = [str(row[0]) for row in wrong.select("_key").limit(_SHOWN).collect()]
    if any(counts.values()):
        told = ", ".join(f"{counted(n, 'row')} {what}" for what, n in counts.items() if n)
        raise ProofFailed(
            f"The published rows are not those that the query gives: {told}.",
            where=name,
            remedy=f"Run `driftline verify {name} --repair`: it computes the view anew. Report it"
            " if nobody changed files.",
            details={**{k: str(v) for k, v in counts.items()}, "lineage": "; ".join(shown)},
        )
    return published.rows


def _joined(old: DataFrame, new: DataFrame, layout: ViewLayout) -> DataFrame:
    """Return both sides of each lineage: `_before`, `_after`, and if they are the same row.

    `_op_before` and `_op_after` are true where the side has the row; `_key` shows the lineage.
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
        if column.type in _FLOATS:  # Spark takes 0.0 and -0.0 for equal
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
    )


def _changes(
    spark: SparkSession,
    store: Store,
    name: str,
    version: int,
    layout: ViewLayout,
    before: Sequence[DataFile],
    after: Sequence[DataFile],
) -> Feed:
    """Write the change feed between two versions of a view; count the rows of both.

    Raises:
        ProofFailed: a lineage occurs twice, or rows were lost.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    old, new = (rows_of(spark, layout, [f.uri for f in files]) for files in (before, after))
    seen = Observation()
    joined = _joined(old, new, layout).observe(
        seen, *(F.count_if(F.col(c)).alias(c) for c in ("_op_before", "_op_after"))
    )

    def image(operation: str, side: str) -> Column:
        fields = (F.col(side).getField(n).alias(n) for n in layout.data_names)
        return F.struct(F.lit(operation).alias("_op"), *fields)

    images = (
        F.when(~F.col("_op_before"), F.array(image("insert", "_after")))
        .when(~F.col("_op_after"), F.array(image("delete", "_before")))
        .otherwise(F.array(image("update_before", "_before"), image("update_after", "_after")))
    )
    found = joined.where("NOT _same").select(F.explode(images).alias("i")).select("i.*")
    counter = Observation()
    found = found.observe(counter, *(F.count_if(F.col("_op") == op).alias(op) for op in OPERATIONS))
    place, folder = change_feed.place(name, version)
    with query_errors(name):
        found.write.option("compression", "zstd").mode("overwrite").parquet(store.uri(*place))
        counts = {op: int(counter.get.get(op) or 0) for op in OPERATIONS}
        there = [int(seen.get.get(c) or 0) for c in ("_op_before", "_op_after")]
    held = [sum(f.rows for f in files) for files in (before, after)]
    if there != held or counts["insert"] - counts["delete"] != held[1] - held[0]:
        store.remove(*place)
        raise ProofFailed(
            f"The rows of two versions do not pair by lineage: {there} of {held}, {counts}.",
            where=name,
            remedy=_REPORT,
        )
    files = tuple(file for file, _ in store.files(*place) if file.endswith(".parquet"))
    if not any(counts.values()):
        store.remove(*place)
        return Feed(folder, (), counts)
    return Feed(folder, files, counts)


def _check_lineage(
    spark: SparkSession, name: str, layout: ViewLayout, files: Sequence[DataFile]
) -> None:
    """Raise ProofFailed if a lineage is null or occurs twice."""
    rows = rows_of(spark, layout, [f.uri for f in files]).select(*layout.lineage_names)
    held = sum(f.rows for f in files)
    with query_errors(name):
        found = rows.dropna().distinct().count()
    if found != held:
        raise ProofFailed(
            f"Of {counted(held, 'row')} only {found:,} have a lineage of their own.",
            where=name,
            remedy=_REPORT,
        )
