"""Recompute a view from pinned versions of its inputs, and compare it with what is published.

The new rows are written, read back and joined with the published ones by lineage. Each lineage must
occur once: it is made of keys. The join counts the rows of both sides, so rows that were lost or
doubled on the way are found. If no row differs, the files are removed and no version is made.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from driftline.errors import ProofFailed, RecipeChanged, WarehouseUnavailable

from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.spark.executors import DATA_FILE
from warehouse_agent.storage.data_files import DataFolder
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.tasks.change_feed import VersionFeed
from warehouse_agent.tasks.data_frames import rows_of
from warehouse_agent.tasks.write import write_rows
from warehouse_agent.views.evaluate import (
    PinnedInput,
    changed_recipe,
    evaluated,
    java_of,
    query_errors,
)
from warehouse_agent.views.maintenance.next_version import (
    CheckedRows,
    Computed,
    NextVersion,
    UnchangedView,
)
from warehouse_agent.views.maintenance.pairing import check_lineage, differences, write_changes
from warehouse_agent.views.maintenance.view_job import ViewAt
from warehouse_agent.views.query import Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def recompute(
    spark: SparkSession,
    store: Store,
    view: ViewAt,
    *,
    accept_schema: bool = False,
    anew: bool = False,
) -> Computed:
    """Evaluate a view from its inputs, and write what differs from its base.

    Args:
        accept_schema: go on if the recipe is another one, without a feed.
        anew: the rows of the base are wrong or cannot be read: write a version without a feed.

    Raises:
        RecipeChanged: the query, an input's columns, settings or Spark's version are others.
        ConfigurationError, ViewFailed: the query cannot be evaluated (`evaluate.evaluated`).
        ProofFailed: rows were lost or doubled on the way.
        WarehouseUnavailable: files cannot be read or written.
    """
    name, base = view.name, view.base
    rows, layout = evaluated(spark, name, view.query, view.inputs)
    if base is not None and not accept_schema:
        refuse_changed(name, base.layout, layout)
        layout = base.layout  # it may have columns of inputs that are not used
    java = java_of(spark)
    folder = DataFolder(store, name, f"data-{uuid.uuid4().hex[:12]}-view")
    try:
        with query_errors(name):
            added = tuple(write_rows(folder, rows, layout))
        changes = VersionFeed()
        if base is None or base.layout != layout or anew:
            check_lineage(spark, name, layout, added)
        else:
            version = base.version + 1
            changes = write_changes(spark, store, name, version, layout, base.files, added)
    except BaseException:
        store.remove(name, folder.path)
        raise
    is_compared = base is not None and bool(changes.counts)
    if base is not None and is_compared and not any(changes.counts.values()):
        store.remove(name, folder.path)
        return UnchangedView(base, java)
    removed = base.files if base is not None else ()
    return NextVersion(
        base, layout, added, (), removed, changes, (folder.path,), CheckedRows.TOTAL, java
    )


def refuse_changed(name: str, before: ViewLayout, now: ViewLayout) -> None:
    """Raise RecipeChanged if the recipe of a view is another one, and say what changed."""
    changes = changed_recipe(before.recipe, now.recipe)
    if not changes and (before.columns, before.lineage) != (now.columns, now.lineage):
        changes = ["the types of its columns"]
    if changes:
        raise RecipeChanged(
            f"What the view means has changed: {'; '.join(changes)}.",
            where=name,
            remedy=f"If that is right: driftline refresh {name} --accept-schema",
        )


def verified(
    spark: SparkSession,
    name: str,
    query: Query,
    inputs: Sequence[PinnedInput],
    published: ViewSnapshot,
) -> int:
    """Recompute a published version from its inputs and compare every row; return their number.

    Raises:
        RecipeChanged: the view means something else now; refresh it first.
        ProofFailed: rows differ; the details count them and show some.
        WarehouseUnavailable: a file cannot be read.
    """
    asked = replace(published.layout.recipe, query=query.text)
    refuse_changed(name, published.layout, replace(published.layout, recipe=asked))
    rows, layout = evaluated(spark, name, query, inputs)
    refuse_changed(name, published.layout, layout)
    old = rows_of(spark, published.files, published.layout.file_schema)
    try:
        wrong = differences(old, rows, layout, name)
    except WarehouseUnavailable as error:
        file = error.details.get(DATA_FILE, "").rpartition("/")[2]
        if any(f.path.endswith(f"/{file}") for f in published.files):  # none of its inputs'
            error.where = name
            error.remedy = _anew(name)
        raise
    if wrong:
        was, java = published.record.java, java_of(spark)
        why = f" Java {was or '?'} computed them, and this is Java {java}, whose texts may differ."
        raise ProofFailed(
            f"The published rows are not those that the query gives: {wrong}."
            f"{why if was != java else ''}",
            where=name,
            remedy=_anew(name),
            details=wrong.details,
        )
    return published.rows


def _anew(name: str) -> str:
    return (
        f"Run `driftline verify {name} --repair`: it computes the view anew. Report it if nobody"
        " changed files."
    )
