"""The layout of a view's files: data columns of Spark's types, then the lineage of each row.

Lineage columns are the keys of the rows that a row was made of, one for each table that the query
reads: the integer key, or the key bytes. A view over a view has the lineage of that view's rows.
The table does not declare them: its other readers see the columns of the query alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

LINEAGE = "_driftline_k"  # and the number of the occurrence, from 1

_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True, slots=True)
class ViewRecipe:
    """Recipe of a view: all that its rows depend on beside its inputs' rows.

    Attributes:
        query: the text of the data engineer.
        inputs: name, and columns with types, of each occurrence in order.
        settings: settings of Spark that decide what the text means, by name.
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
    """Columns of a view's table. `lineage` has types "bigint" or "binary"."""

    columns: tuple[ViewColumn, ...]
    lineage: tuple[ViewColumn, ...]
    recipe: ViewRecipe

    @cached_property
    def declared_schema(self) -> pa.Schema:
        """The schema that the Delta table declares: the columns of the query alone."""
        return pa.schema([(column.name, arrow_type(column.type)) for column in self.columns])

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The schema of the table's files."""
        lineage = [(column.name, arrow_type(column.type)) for column in self.lineage]
        return pa.schema([*self.declared_schema, *lineage])

    @property
    def ddl(self) -> str:
        """The Spark schema of the table's files."""
        return ", ".join(_declared(column) for column in (*self.columns, *self.lineage))

    @property
    def data_ddl(self) -> tuple[str, ...]:
        """The Spark schema of the data columns, one by one."""
        return tuple(_declared(column) for column in self.columns)

    @property
    def data_names(self) -> tuple[str, ...]:
        """Names without lineage."""
        return tuple(column.name for column in self.columns)

    @property
    def lineage_names(self) -> tuple[str, ...]:
        """Names of the lineage columns."""
        return tuple(column.name for column in self.lineage)

    @property
    def integer_key(self) -> str | None:
        """None: the files of a view have no bounds."""
        return None


def arrow_type(ddl: str) -> pa.DataType:
    """Return the Arrow type of a Spark type. Raises KeyError: a view cannot have it."""
    if match := _DECIMAL.fullmatch(ddl):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _TYPES[ddl]


def to_json(layout: ViewLayout) -> dict[str, Any]:
    """Return the layout as JSON for the metadata of a version."""
    return asdict(layout) | {"recipe": asdict(layout.recipe)}


def from_json(data: Mapping[str, Any]) -> ViewLayout:
    """Return the layout that `to_json` wrote. Raises KeyError, TypeError: another release did."""
    recipe = data["recipe"]
    return ViewLayout(
        tuple(ViewColumn(**column) for column in data["columns"]),
        tuple(ViewColumn(**column) for column in data["lineage"]),
        ViewRecipe(
            recipe["query"],
            tuple((name, columns) for name, columns in recipe["inputs"]),
            dict(recipe["settings"]),
            recipe["spark"],
        ),
    )


def _declared(column: ViewColumn) -> str:
    return f"`{column.name.replace('`', '``')}` {column.type}"
