"""Recompute a view from pinned versions of its inputs, and compare it with what is published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warehouse_agent.columns.layout import Layout
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.tasks.change_feed import Feed
from warehouse_agent.views.query import Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Input:
    """A pinned version of an input: files that a commit names, or will name."""

    name: str
    version: int
    layout: Layout | ViewLayout
    files: Sequence[DataFile]


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
) -> UnchangedView | RecomputedView:
    """Evaluate a view from its inputs, one for each occurrence, and write what differs from `base`.

    Raises:
        RecipeChanged: the query, an input's recipe, settings or Spark's version are others.
        ViewFailed: Spark cannot evaluate the query, or an expression raised on a row.
        WarehouseUnavailable: files cannot be read or written.
    """
    raise NotImplementedError
