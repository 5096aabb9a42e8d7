"""Evaluate a view's query by Spark, with what its text means held fixed.

The query runs in a session of its own, whose tables are temporary views of pinned files. Settings
that decide what the text means have fixed values there; those that Spark keeps for old behaviour
(`spark.sql.legacy.…`) belong to the recipe as they are, as does Spark's version. So rows of two
meanings never lie side by side: another recipe is a recomputation that somebody asked for. Java's
version is noted with the rows (`VersionRecord.java`): after another one the view is recomputed.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from driftline.errors import ConfigurationError, DriftlineError, ViewFailed
from driftline.relations.derivations import relations_in

from warehouse_agent.columns.layout import KEY, Layout, quoted
from warehouse_agent.columns.row_codes import RowSlice
from warehouse_agent.columns.view_layout import (
    LINEAGE,
    ViewColumn,
    ViewLayout,
    ViewRecipe,
    arrow_type,
)
from warehouse_agent.decomposition.view_needs import DerivationOffer, lacks
from warehouse_agent.spark.executors import cause, meaning
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.table import Snapshot, ViewSnapshot
from warehouse_agent.tasks.change_feed import VersionFeed
from warehouse_agent.tasks.data_frames import RowFunction, rows_of
from warehouse_agent.tasks.semi_join import CHANGED, LINEAGE_PART
from warehouse_agent.views.common_types import rounded
from warehouse_agent.views.conditions import site_of, wish_of
from warehouse_agent.views.query import Query, ResolvedColumns, resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlglot import exp

_LEGACY = "spark.sql.legacy."
_PINNED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.charAsVarchar": "false",
    "spark.sql.chunkBase64String.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.function.eltOutputAsString": "false",
    "spark.sql.icu.caseMappings.enabled": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.preserveCharVarcharTypeInfo": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
}
# Classes of SQLSTATE: 22 is of a value, 42 and 0A of the query; `cause` has the rest.
_STATE = re.compile(r"\[([A-Z0-9_.]+)\] (.*?)SQLSTATE: (22|42|0A)", re.DOTALL)
_OF_A_ROW = "22"
_REMEDIES = {
    _OF_A_ROW: "Change the expression so that it fails on no row (such as try_divide, try_cast,"
    " nullif), or mend the rows at the source.",
    "42": "Correct the query: Spark refuses it whatever the rows are.",
    "0A": "Write the query without it: Spark does not support it.",
}
_CONTEXT = re.compile(r"== SQL[^\n]*==\n(.*?)\n *\^+", re.DOTALL)
_SHOWN = 300  # characters of Spark's message


@dataclass(frozen=True, slots=True)
class PinnedInput:
    """A pinned version of an input: files that a commit names, or will name.

    Attributes:
        stamp: tells the version from others of the same number (`stamp_of`); None: not committed.
        feed: the change feed of a version that is not committed; None: its record has it.
    """

    name: str
    version: int
    layout: Layout | ViewLayout
    files: Sequence[DataFile]
    stamp: str | None = None
    feed: VersionFeed | None = None

    @classmethod
    def published(cls, name: str, snapshot: Snapshot | ViewSnapshot) -> Self:
        """Return a version that was committed."""
        at = snapshot.version
        return cls(name, at, snapshot.layout, snapshot.files, stamp_of(snapshot))

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns of the files that `lineage` is made of."""
        if isinstance(self.layout, ViewLayout):
            return self.layout.lineage_names
        return self.layout.key_names

    @property
    def lineage(self) -> tuple[tuple[str, str], ...]:
        """Return expression and Spark type of each column that identifies a row."""
        if isinstance(self.layout, ViewLayout):
            return tuple((quoted(column.name), column.type) for column in self.layout.lineage)
        key = self.layout.integer_key
        if key is None:
            return ((KEY, "binary"),)
        return ((f"CAST({quoted(key)} AS BIGINT)", "bigint"),)

    def identity(self, used: Collection[str]) -> tuple[str, str]:
        """Return name, and the used columns with their types, as a recipe has them."""
        columns = zip(self.layout.data_names, self.layout.data_ddl, strict=True)
        lineage = ", ".join(kind for _, kind in self.lineage)
        return self.name, f"{', '.join(ddl for name, ddl in columns if name in used)}; {lineage}"


def stamp_of(snapshot: Snapshot | ViewSnapshot) -> str:
    """Return what tells a version from one of the same number after a restore or a new load."""
    return f"{snapshot.table} {snapshot.record.published_at}"


def recipe_of(
    own: SparkSession, name: str, query: Query, inputs: Sequence[PinnedInput]
) -> ViewRecipe:
    """Return what the rows of a view depend on beside its inputs' rows.

    Args:
        own: the session that evaluates it (`session_of`).
    """
    settings = _PINNED | {k: v for k, v in _settings(own).items() if k.startswith(_LEGACY)}
    version = ".".join(own.version.split(".")[:2])
    used = resolve(query, [i.layout.data_names for i in inputs], where=f"views.{name}.query")
    return ViewRecipe(query.text, _identities(inputs, used), settings, version)


@functools.lru_cache(maxsize=1)
def java_of(spark: SparkSession) -> str | None:
    """Return the version of the Java that evaluates queries, such as "17".

    Java makes texts of doubles, and since Java 19 some are others (JDK-4511638). A task is asked,
    not the driver: on a cluster and with Spark Connect they may have different ones. All tasks are
    taken to have the same.

    Returns:
        None if Spark does not let us ask.
    """
    from pyspark.errors import AnalysisException

    asked = "java_method('java.lang.System', 'getProperty', 'java.specification.version')"
    try:
        (row,) = spark.sql(f"SELECT {asked}").collect()
    except AnalysisException:
        return None
    return str(row[0])


def has_inputs_of(recipe: ViewRecipe, query: Query, inputs: Sequence[PinnedInput]) -> bool:
    """Return True if the columns that the query uses are still those of a recipe."""
    try:
        used = resolve(query, [i.layout.data_names for i in inputs], where="")
    except ConfigurationError:
        return False
    return not _changed_inputs(recipe.inputs, _identities(inputs, used))


def lacking(
    view: str,
    query: Query,
    inputs: Sequence[PinnedInput],
    relations: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> str | None:
    """Return why a view cannot be evaluated from versions of kept relations; None if it can.

    Each has the columns and rows that the views needed when it was refreshed, and another need is
    served by its next refresh.

    Args:
        relations: by input, the columns of the whole relation, in lower case, where known.
    """
    derived, sites = False, [site_of(one.name) for one in inputs]
    for number, one in enumerate(inputs):
        if isinstance(one.layout, ViewLayout) or one.layout.derivation is None:
            continue
        derived |= one.layout.derivation.columns is not None
        offer = DerivationOffer(one.layout.recipe, one.layout.names)
        chosen, whole = one.layout.derivation, relations.get(one.name)
        if why := lacks(wish_of(view, query, number, sites), chosen, offer, whole):
            return f"its input {one.name} {why}, and the view needs more"
    known = {name.lower() for one in inputs for name in one.layout.data_names}
    missing = {use.name.lower() for use in query.uses if use.qualifier is None} - known
    if not derived or not missing:
        return None
    if all(one.name in relations for one in inputs):
        missing &= {name for columns in relations.values() for name in columns}
    return f"no input has the column {min(missing)} yet" if missing else None


def chosen_by(view: str, query: Query, inputs: Sequence[PinnedInput]) -> dict[str, frozenset[str]]:
    """Return the inputs of which a view has only rows that others of its inputs chose at their
    site, with these others. Each is a kept relation, and lacks nothing else."""
    found, names = dict[str, frozenset[str]](), {one.name for one in inputs}
    for number, one in enumerate(inputs):
        if isinstance(one.layout, ViewLayout) or (chosen := one.layout.derivation) is None:
            continue
        if chosen.rows is None:
            continue
        source = one.name.partition(".")[0]
        others = names & {f"{source}.{relation}" for relation in relations_in(chosen.rows)}
        offer = DerivationOffer(one.layout.recipe, one.layout.names)
        if others and lacks(wish_of(view, query, number), chosen, offer) is not None:
            found[one.name] = found.get(one.name, frozenset()) | others
    return found


def evaluated(
    spark: SparkSession, name: str, query: Query, inputs: Sequence[PinnedInput]
) -> tuple[DataFrame, ViewLayout]:
    """Return the rows of a view with their lineage, not computed yet, and their layout.

    Args:
        inputs: one for each occurrence, in order.

    Raises:
        ConfigurationError: an unknown or ambiguous column, or a type that Delta cannot hold.
        ViewFailed: Spark refuses the query, or an input lacks columns or rows that it needs.
    """
    own = session_of(spark)
    recipe = recipe_of(own, name, query, inputs)
    return evaluated_over(own, name, query, recipe, inputs, rows_in(own, name, query, inputs))


def session_of(spark: SparkSession) -> SparkSession:
    """Return a session with what a query's text means held fixed."""
    own = spark.newSession()
    for key, value in _PINNED.items():
        own.conf.set(key, value)
    return own


def rows_in(
    own: SparkSession,
    name: str,
    query: Query,
    inputs: Sequence[PinnedInput],
    slices: Mapping[int, RowSlice] = MappingProxyType({}),
) -> list[DataFrame]:
    """Return the rows of each input: the columns that the query uses, then lineage by number.

    Args:
        slices: of the rows of some inputs, by number; all rows of others.

    Raises:
        ConfigurationError: an unknown or ambiguous column.
    """
    columns = [one.layout.data_names for one in inputs]
    resolved = resolve(query, columns, where=f"views.{name}.query")
    every = zip(inputs, resolved.used, strict=True)
    return [_rows(own, one, used, slices.get(n)) for n, (one, used) in enumerate(every)]


def _rows(
    own: SparkSession, one: PinnedInput, used: Collection[str], part: RowSlice | None
) -> DataFrame:
    layout = one.layout
    names = [n for n in layout.data_names if n in used]
    read = pa.schema([layout.file_schema.field(n) for n in dict.fromkeys([*names, *one.keys])])
    then = None if part is None else RowFunction(partial(part.rows, one.keys), read)
    rows = rows_of(own, one.files, read, then=then)
    keys = zip(one.lineage, lineage_names(one), strict=True)
    own_names = map(quoted, names)
    return rows.selectExpr(*own_names, *(f"{expression} AS {key}" for (expression, _), key in keys))


def lineage_names(one: PinnedInput) -> tuple[str, ...]:
    """Return the names of the lineage columns of an input's rows, while a query is evaluated."""
    return tuple(f"{LINEAGE_PART}{number}" for number in range(1, len(one.lineage) + 1))


def evaluated_over(
    own: SparkSession,
    name: str,
    query: Query,
    recipe: ViewRecipe,
    inputs: Sequence[PinnedInput],
    rows: Sequence[DataFrame],
    *,
    only_flagged: bool = False,
) -> tuple[DataFrame, ViewLayout]:
    """Return what `evaluated` does, from given rows of each occurrence.

    Args:
        own: a session of `session_of`, in which the rows were made.
        recipe: of the view (`recipe_of`).
        rows: at least the columns that the query uses, and lineage (`lineage_names`).
        only_flagged: rows have a column CHANGED; return what was made of a row in which it is true.

    Raises:
        ConfigurationError, ViewFailed: as `evaluated`.
    """
    resolve(query, [i.layout.data_names for i in inputs], where=f"views.{name}.query")
    if why := lacking(name, query, inputs):
        raise ViewFailed(
            f"The view cannot be evaluated from these versions: {why}.",
            where=name,
            remedy=f"Refresh what it reads: driftline refresh {name}",
        )
    tables, spliced = [], []
    flags = (CHANGED,) if only_flagged else ()
    for number, (one, some) in enumerate(zip(inputs, rows, strict=True), 1):
        some.createOrReplaceTempView(f"driftline_{number}")
        tables.append(f"driftline_{number}")
        spliced.append((*lineage_names(one), *flags))
    with query_errors(name):
        result = own.sql(query.spliced(tables, spliced))
        kinds = [field.dataType.simpleString() for field in result.schema.fields]
        _refuse_rounding(own, name, query, inputs, tables)
    count = len(query.columns)
    names, flagged = list(query.columns), list[str]()
    for column in (column for columns in spliced for column in columns):
        if column == CHANGED:
            flagged.append(f"{CHANGED}{len(flagged)}")
            names.append(flagged[-1])
        else:
            names.append(f"{LINEAGE}{len(names) - count - len(flagged) + 1}")
    columns = tuple(map(ViewColumn, query.columns, kinds))
    keys = tuple(
        ViewColumn(column, kind)
        for column, kind in zip(names[count:], kinds[count:], strict=True)
        if column not in flagged
    )
    for column in columns:
        _check_type(name, column)
    layout = ViewLayout(columns, keys, recipe)
    result = result.toDF(*names)
    if only_flagged:
        result = result.where(" OR ".join(flagged)).drop(*flagged)
    return result, layout


def _refuse_rounding(
    own: SparkSession, name: str, query: Query, inputs: Sequence[PinnedInput], tables: Sequence[str]
) -> None:
    """Raise ViewFailed if Spark would round numbers that SQL compares or adds as they are.

    Args:
        tables: the temporary view of each occurrence.
    """
    aliases = [one.alias for one in query.occurrences]
    known = [_types(one) for one in inputs]

    def type_of(column: exp.Column) -> str:
        among = [
            types
            for alias, types in zip(aliases, known, strict=True)
            if column.table.lower() in ("", alias.lower())
        ]
        return next(types[column.name.lower()] for types in among if column.name.lower() in types)

    def types_of(texts: Sequence[str]) -> list[str]:
        places = zip(tables, aliases, strict=True)
        read = ", ".join(f"{quoted(table)} AS {quoted(alias)}" for table, alias in places)
        named = ", ".join(f"{text} AS c{number}" for number, text in enumerate(texts))
        fields = own.sql(f"SELECT {named} FROM {read}").schema.fields
        return [field.dataType.simpleString() for field in fields]

    if (rounding := rounded(query.select, type_of, types_of)) is not None:
        raise ViewFailed(
            f"The query is refused: {rounding.why}.",
            where=f"views.{name}.query, {query.place(rounding.node)}",
            remedy=rounding.remedy,
            details={"in": rounding.node.sql(dialect="spark")[:_SHOWN]},
        )


def _types(one: PinnedInput) -> dict[str, str]:
    """Return the Spark types of an input's columns, by name in lower case."""
    columns = zip(one.layout.data_names, one.layout.data_ddl, strict=True)
    return {name.lower(): ddl.removeprefix(quoted(name)).strip() for name, ddl in columns}


@contextlib.contextmanager
def query_errors(name: str) -> Iterator[None]:
    """Raise what Spark says of a query or of a value in a row as ViewFailed."""
    try:
        yield
    except DriftlineError:
        raise
    except Exception as problem:
        text = str(problem)
        match = _STATE.search(text)
        # What fails on a row quotes a value of it, which may read like any other failure.
        is_of_row = match is not None and match[3] == _OF_A_ROW
        if not is_of_row and (known := meaning(problem)) is not None:
            raise known from problem
        if match is None:
            raise
        message = " ".join(match[2].split()).rstrip()
        context = _CONTEXT.search(text)
        details = {"condition": match[1]}
        if context is not None:
            details["in"] = " ".join(context[1].split())[:_SHOWN]
        raise ViewFailed(
            f"Spark cannot evaluate the view: {message[:_SHOWN] or cause(problem)}",
            where=name,
            remedy=_REMEDIES[match[3]],
            details=details,
        ) from problem


def changed_recipe(before: ViewRecipe, now: ViewRecipe) -> list[str]:
    """Return what differs between two recipes, in words; empty if they are equal."""
    changes = []
    if before.query != now.query:
        changes.append("the query")
    if [n for n, _ in before.inputs] != [n for n, _ in now.inputs]:
        changes.append(f"its inputs, which are {', '.join(n for n, _ in now.inputs)} now")
    else:
        changes += [f"columns of {n}" for n in _changed_inputs(before.inputs, now.inputs)]
    names = sorted({*before.settings, *now.settings})
    for key in names:
        old, new = before.settings.get(key), now.settings.get(key)
        if old != new:
            changes.append(f"the setting {key}, which was {old} and is {new}")
    if before.spark != now.spark:
        changes.append(f"Spark, which was {before.spark} and is {now.spark}")
    return list(dict.fromkeys(changes))


def _identities(
    inputs: Sequence[PinnedInput], used: ResolvedColumns
) -> tuple[tuple[str, str], ...]:
    return tuple(one.identity(names) for one, names in zip(inputs, used.used, strict=True))


def _changed_inputs(
    before: Sequence[tuple[str, str]], now: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """Return the names of inputs with other columns than before.

    The recipe of a view that was first made by an older release has all columns of an input, not
    only the used ones, and incremental maintenance keeps it. Columns that are gone from it were not
    used: a query that is the same uses the same columns, so that another input would have to have
    them now.
    """
    if [name for name, _ in before] != [name for name, _ in now]:
        return tuple(name for name, _ in now)
    pairs = zip(before, now, strict=True)
    return tuple(name for (name, old), (_, new) in pairs if not _has(old, new))


def _has(old: str, new: str) -> bool:
    """Return True if the columns of one identity have those of another, in the same order."""
    (had, lineage), (has, same) = (text.rsplit("; ", 1) for text in (old, new))
    left = iter(had.split(", "))
    return lineage == same and (not has or all(column in left for column in has.split(", ")))


def _settings(spark: SparkSession) -> Mapping[str, str]:
    """Return the settings of a session that somebody set."""
    settings = spark.conf.getAll
    return dict(settings() if callable(settings) else settings)


def _check_type(name: str, column: ViewColumn) -> None:
    try:
        arrow_type(column.type)
    except KeyError:
        raise ConfigurationError(
            f"The column {column.name!r} has the type {column.type}, which a view cannot have.",
            where=f"views.{name}.query",
            remedy="Convert it: CAST(… AS …), such as STRING.",
        ) from None
