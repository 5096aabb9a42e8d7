"""Evaluate a view's query by Spark, with what its text means held fixed.

The query runs in a session of its own, whose tables are temporary views of pinned files. Settings
that decide what the text means have fixed values there; those that Spark keeps for old behaviour
(`spark.sql.legacy.…`) belong to the recipe as they are, as does Spark's version. So rows of two
meanings never lie side by side: another recipe is a recomputation that somebody asked for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError, DriftlineError, ViewFailed

from warehouse_agent.columns.layout import KEY, Layout, quoted
from warehouse_agent.columns.view_layout import (
    LINEAGE,
    ViewColumn,
    ViewLayout,
    ViewRecipe,
    arrow_type,
)
from warehouse_agent.spark.executors import cause, meaning
from warehouse_agent.storage.data_files import DataFile, rows_of
from warehouse_agent.views.query import Query, resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LEGACY = "spark.sql.legacy."
_PINNED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
# What files hold, not what the text means.
_WRITING = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
_OWN_KEY = "_driftline_l"  # lineage in the temporary views, by number
# Classes of SQLSTATE: 22 and 42 are the query's and its data's; `cause` has the rest.
_STATE = re.compile(r"\[([A-Z0-9_.]+)\] (.*?)SQLSTATE: (?:22|42|0A)", re.DOTALL)
_CONTEXT = re.compile(r"== SQL[^\n]*==\n(.*?)\n *\^+", re.DOTALL)
_SHOWN = 300  # characters of Spark's message


@dataclass(frozen=True, slots=True)
class Input:
    """A pinned version of an input: files that a commit names, or will name."""

    name: str
    version: int
    layout: Layout | ViewLayout
    files: Sequence[DataFile]

    @property
    def lineage(self) -> tuple[tuple[str, str], ...]:
        """Return expression and Spark type of each column that identifies a row."""
        if isinstance(self.layout, ViewLayout):
            return tuple((quoted(column.name), column.type) for column in self.layout.lineage)
        key = self.layout.integer_key
        if key is None:
            return ((KEY, "binary"),)
        return ((f"CAST({quoted(key)} AS BIGINT)", "bigint"),)

    @property
    def identity(self) -> tuple[str, str]:
        """Return name, and columns with types, as a recipe has them."""
        lineage = (kind for _, kind in self.lineage)
        return self.name, f"{', '.join(self.layout.data_ddl)}; {', '.join(lineage)}"


def recipe_of(spark: SparkSession, query: Query, inputs: Sequence[Input]) -> ViewRecipe:
    """Return what the rows of a view depend on beside its inputs' rows."""
    settings = _PINNED | {k: v for k, v in _settings(spark).items() if k.startswith(_LEGACY)}
    version = ".".join(spark.version.split(".")[:2])
    return ViewRecipe(query.text, tuple(i.identity for i in inputs), settings, version)


def evaluated(
    spark: SparkSession, name: str, query: Query, inputs: Sequence[Input]
) -> tuple[DataFrame, ViewLayout]:
    """Return the rows of a view with their lineage, not computed yet, and their layout.

    Args:
        inputs: one for each occurrence, in order.

    Raises:
        ConfigurationError: an unknown or ambiguous column, or a type that Delta cannot hold.
        ViewFailed: Spark refuses the query.
    """
    resolve(query, [i.layout.data_names for i in inputs], where=f"views.{name}.query")
    own = spark.newSession()
    for key, value in (_PINNED | _WRITING).items():
        own.conf.set(key, value)
    tables, lineage = [], []
    for number, one in enumerate(inputs, 1):
        own_keys = [f"{_OWN_KEY}{number}_{i}" for i in range(len(one.lineage))]
        rows = rows_of(own, one.layout, [f.uri for f in one.files])
        data = (quoted(column) for column in one.layout.data_names)
        added = (f"{e} AS {key}" for (e, _), key in zip(one.lineage, own_keys, strict=True))
        rows.selectExpr(*data, *added).createOrReplaceTempView(f"driftline_{number}")
        tables.append(f"driftline_{number}")
        lineage.append(own_keys)
    with query_errors(name):
        found = own.sql(query.spliced(tables, lineage))
        types = [field.dataType.simpleString() for field in found.schema.fields]
    count = len(query.columns)
    columns = tuple(map(ViewColumn, query.columns, types))
    keys = tuple(ViewColumn(f"{LINEAGE}{i}", t) for i, t in enumerate(types[count:], 1))
    for column in columns:
        _check_type(name, column)
    return found.toDF(*query.columns, *(k.name for k in keys)), ViewLayout(
        columns, keys, recipe_of(spark, query, inputs)
    )


@contextlib.contextmanager
def query_errors(name: str) -> Iterator[None]:
    """Raise what Spark says of a query or of a value in a row as ViewFailed."""
    try:
        yield
    except DriftlineError:
        raise
    except Exception as problem:
        text = str(problem)
        if (known := meaning(problem)) is not None:
            raise known from problem
        if (match := _STATE.search(text)) is None:
            raise
        message = " ".join(match[2].split()).rstrip()
        context = _CONTEXT.search(text)
        details = {"condition": match[1]}
        if context is not None:
            details["in"] = " ".join(context[1].split())[:_SHOWN]
        raise ViewFailed(
            f"Spark cannot evaluate the view: {message[:_SHOWN] or cause(problem)}",
            where=name,
            remedy="Change the expression so that it fails on no row (such as try_divide, try_cast,"
            " nullif), or mend the rows at the source.",
            details=details,
        ) from problem


def changed_recipe(before: ViewRecipe, now: ViewRecipe) -> list[str]:
    """Return what differs between two recipes, in words; empty if they are equal."""
    found = []
    if before.query != now.query:
        found.append("the query")
    if [n for n, _ in before.inputs] != [n for n, _ in now.inputs]:
        found.append(f"its inputs, which are {', '.join(n for n, _ in now.inputs)} now")
    else:
        pairs = zip(before.inputs, now.inputs, strict=True)
        found += [f"columns of {n}" for (n, a), (_, b) in pairs if a != b]
    names = sorted({*before.settings, *now.settings})
    for key in names:
        old, new = before.settings.get(key), now.settings.get(key)
        if old != new:
            found.append(f"the setting {key}, which was {old} and is {new}")
    if before.spark != now.spark:
        found.append(f"Spark, which was {before.spark} and is {now.spark}")
    return list(dict.fromkeys(found))


def _settings(spark: SparkSession) -> Mapping[str, str]:
    """Return the settings of a session that somebody set."""
    found = spark.conf.getAll
    return dict(found() if callable(found) else found)


def _check_type(name: str, column: ViewColumn) -> None:
    try:
        arrow_type(column.type)
    except KeyError:
        raise ConfigurationError(
            f"The column {column.name!r} has the type {column.type}, which a view cannot have.",
            where=f"views.{name}.query",
            remedy="Convert it: CAST(… AS …), such as STRING.",
        ) from None
