"""The layout of a view's table: data columns of Spark's types, then the lineage of each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

LINEAGE = "_driftline_k"  # and the number of the occurrence, from 1


@dataclass(frozen=True, slots=True)
class ViewRecipe:
    """What the rows of a view depend on beside its inputs' rows.

    Attributes:
        query: the text of the data engineer.
        inputs: name and hexadecimal recipe id of each occurrence, in order.
        settings: pinned settings of Spark by name.
        spark: major and minor version of Spark, such as "4.1".
    """

    query: str
    inputs: tuple[tuple[str, str], ...]
    settings: Mapping[str, str]
    spark: str


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a view: its name and its Spark type as DDL, such as "decimal(10,2)"."""

    name: str
    type: str


@dataclass(frozen=True)
class ViewLayout:
    """Columns of a view's table. `lineage` has types "bigint" or "binary", one per occurrence."""

    columns: tuple[ViewColumn, ...]
    lineage: tuple[ViewColumn, ...]
    recipe: ViewRecipe

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema that the Delta table declares."""
        raise NotImplementedError

    @property
    def ddl(self) -> str:
        """The Spark schema of the table's files."""
        raise NotImplementedError

    @property
    def data_names(self) -> tuple[str, ...]:
        """Names without lineage."""
        return tuple(column.name for column in self.columns)

    @property
    def lineage_names(self) -> tuple[str, ...]:
        """Names of the lineage columns."""
        return tuple(column.name for column in self.lineage)
