"""Derivations at every engine, against Spark: what an engine keeps is what Spark would keep.

The same predicates are evaluated by a real server over the column, and by Spark (ANSI, UTC) over
the values of the whole relation, in the carriers of their types. Both also agree with the slow
reference. Every other way to read a derived relation: `test_derived_reads`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from driftline import errors
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    Derivation,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    ReferencePredicate,
)
from driftline.values.types import DeclaredType

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import decoded, flat, session_of
from source_agent.engines.relations.shapes import Shape
from tests.conformance.derivation_cases import (
    COLLATIONS,
    COMPARED,
    EXCLUDED,
    EXPRESSIONS,
    LANGUAGES,
    RAW,
    Compared,
)
from tests.conformance.derived_reads import TABLE, derived_keys, kept_raw
from tests.conformance.engine_types import SINCE
from tests.harness.absent import needs_release
from tests.harness.legacies import KINDS, OfPostgreSQL
from tests.reference.predicates import keeps, value_of
from warehouse_agent.decomposition.conditions import ComparedColumn, pushed
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.query import read_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
CARRIERS = {
    "int2": "SMALLINT", "int4": "INT", "int8": "BIGINT", "date": "DATE", "text": "STRING",
    "timestamp": "TIMESTAMP_NTZ", "timestamptz": "TIMESTAMP", "float4": "FLOAT", "float8": "DOUBLE",
}  # fmt: skip


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    if request.param == LANGUAGES:
        made: Legacy = OfPostgreSQL(request.getfixturevalue(LANGUAGES))
        made.run(*COLLATIONS)
    else:
        made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


def carrier(type: DeclaredType) -> str:
    """The Spark type of a published column."""
    if type.kind == "numeric" and type.precision is not None:
        return f"DECIMAL({type.precision},{type.scale})"
    return CARRIERS.get(type.kind, "STRING")


def spark_literal(type: DeclaredType, text: str) -> str:
    """A literal of the column's own type, in Spark's SQL."""
    in_bytes = f"decode(X'{text.encode().hex()}', 'UTF-8')"
    return in_bytes if type.kind == "text" else f"CAST({in_bytes} AS {carrier(type)})"


def spark_sql(predicate: Predicate, types: dict[str, DeclaredType]) -> str:
    """A predicate in Spark's SQL."""
    assert not isinstance(predicate, ReferencePredicate), "one relation joins nothing"
    match predicate:
        case ColumnPredicate(column, Operator.IS_NULL, _):
            return f"`{column}` IS NULL"
        case ColumnPredicate(column, operator, values):
            literals = ", ".join(spark_literal(types[column], v) for v in values)
            listed = f"({literals})" if operator is Operator.IN else literals
            return f"`{column}` {operator.value} {listed}"
        case NotPredicate(part):
            return f"NOT ({spark_sql(part, types)})"
        case AndPredicate(parts) | OrPredicate(parts):
            word = " AND " if isinstance(predicate, AndPredicate) else " OR "
            return word.join(f"({spark_sql(part, types)})" for part in parts)


def kept_by_spark(
    spark: SparkSession, shape: Shape, rows: Sequence[Sequence[str | None]], conditions: list[str]
) -> list[list[str]]:
    """For each condition of Spark's SQL the keys of the rows that it keeps, ascending."""
    columns = tuple((c.name, carrier(c.type)) for c in shape.recipe.columns)
    return _kept_by_spark(spark, columns, tuple(map(tuple, rows)), tuple(conditions))


@functools.cache  # Spark sees no engine and no collation: many have the same texts
def _kept_by_spark(
    spark: SparkSession,
    columns: tuple[tuple[str, str], ...],
    rows: tuple[tuple[str | None, ...], ...],
    conditions: tuple[str, ...],
) -> list[list[str]]:
    """`columns`: names and carriers."""
    given = spark.createDataFrame(list(rows), ", ".join(f"`{name}` STRING" for name, _ in columns))
    casts = [f"CAST(`{name}` AS {carried}) AS `{name}`" for name, carried in columns]
    given.selectExpr(*casts).createOrReplaceTempView("published")
    marks = ", ".join(f"({sql}) AS p{i}" for i, sql in enumerate(conditions))
    found = spark.sql(f"SELECT `{columns[0][0]}`, {marks} FROM published ORDER BY 1").collect()
    return [[str(row[0]) for row in found if row[i + 1]] for i in range(len(conditions))]


def predicates_of(column: str, comparable: Comparable, literals: list[str]) -> list[Predicate]:
    """Every operator with every literal, negated too, and some in AND and OR."""
    found: list[Predicate] = [ColumnPredicate(column, Operator.IS_NULL)]
    for operator in Operator:
        if operator in {Operator.IN, Operator.IS_NULL} or not comparable.allows(operator):
            continue
        found += [ColumnPredicate(column, operator, (literal,)) for literal in literals]
    pairs = list(itertools.pairwise(literals))
    found += [ColumnPredicate(column, Operator.IN, pair) for pair in pairs]
    found.append(ColumnPredicate(column, Operator.IN, tuple(literals)))
    if comparable is Comparable.ORDER:
        for low, high in pairs:
            least = ColumnPredicate(column, Operator.GREATER_EQUAL, (low,))
            most = ColumnPredicate(column, Operator.LESS_EQUAL, (high,))
            found += [AndPredicate((least, most)), OrPredicate((least, NotPredicate(most)))]
    return found + [NotPredicate(predicate) for predicate in found]


def compared() -> Iterator[object]:
    """Yield every column with all of its predicates, or with a third of them where it is text.

    Where an engine compares text, it compares the same bytes under every collation. So the first
    column of text has all predicates, and each three of the others have them together; a soak has
    all of them for each.
    """
    for engine, cases in COMPARED.items():
        texts = [case for case in cases if case[1] == "text"]
        for case in cases:
            name = f"{engine}-{case[0]}"
            if case not in texts[1:]:
                yield pytest.param(engine, case, slice(None), id=name)
                continue
            third = slice(texts.index(case) % 3, None, 3)
            yield pytest.param(engine, case, third, id=name)
            yield pytest.param(engine, case, slice(None), id=f"{name}-all", marks=pytest.mark.soak)


@pytest.mark.parametrize(("legacy", "case", "share"), list(compared()), indirect=["legacy"])
def test_an_engine_keeps_the_rows_that_spark_keeps(
    legacy: Legacy, case: Compared, share: slice, spark: SparkSession
) -> None:
    declaration, declared, comparable, values, literals = case
    if isinstance(legacy, OfPostgreSQL) and declaration in SINCE:
        needs_release(legacy.server.release, SINCE[declaration], declaration)
    legacy.run(*legacy.prelude)
    if legacy.name == "postgresql":
        legacy.run("CREATE DOMAIN label AS text")
    rows = ", ".join(f"({i}, {value})" for i, value in enumerate([*values, "NULL"]))
    legacy.run(
        f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {declaration}{legacy.null})",
        f"INSERT INTO t VALUES {rows}",
    )
    every = predicates_of("v", comparable, literals)
    predicates = every[share]
    with session_of(legacy) as session:
        shape = session.describe(TABLE)
        types = {c.name: c.type for c in shape.recipe.columns}
        assert str(types["v"]) == declared
        assert shape.comparable_by_name == {"id": Comparable.ORDER, "v": comparable}
        whole = [decoded(row, shape) for row in flat(session.scan(shape, ordered=True))]
        kept = [derived_keys(session, shape, predicate) for predicate in predicates]
    assert len(whole) == len(values) + 1
    in_spark = kept_by_spark(spark, shape, whole, [spark_sql(p, types) for p in every])[share]
    wrong = [
        (predicate, ours, theirs)
        for predicate, ours, theirs in zip(predicates, kept, in_spark, strict=True)
        if ours != theirs
    ]
    assert wrong == []
    type = {"v": types["v"]}
    values_of = [(key, None if text is None else value_of(types["v"], text)) for key, text in whole]
    for predicate, keys in zip(predicates, kept, strict=True):
        assert keys == [k for k, value in values_of if keeps(predicate, {"v": value}, type)]
    assert any(0 < len(keys) < len(whole) for keys in kept), "some keep something"


def listed(legacy: Legacy, declaration: str, values: list[str]) -> Any:
    rows = ", ".join(f"({i}, {value})" for i, value in enumerate(values))
    legacy.run(*legacy.prelude)
    legacy.run(
        f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {declaration}{legacy.null})",
        f"INSERT INTO t VALUES {rows}",
    )
    with session_of(legacy) as session:
        shape = session.describe(TABLE)
        return shape, [decoded(row, shape) for row in flat(session.scan(shape, ordered=True))]


@pytest.mark.parametrize(
    ("legacy", "declaration", "values", "condition", "in_spark"),
    [(engine, *case) for engine, cases in EXCLUDED.items() for case in cases],
    indirect=["legacy"],
)
def test_why_other_columns_are_not_compared(
    legacy: Legacy, declaration: str, values: list[str], condition: str, in_spark: str,
    spark: SparkSession,
) -> None:  # fmt: skip
    shape, rows = listed(legacy, declaration, values)
    assert shape.comparable_by_name["v"] is Comparable.NOTHING
    with session_of(legacy) as session, pytest.raises(errors.DerivationRefused, match="'v'"):
        session.derive(shape, Derivation(None, ColumnPredicate("v", Operator.IS_NULL)))
    (kept,) = kept_by_spark(spark, shape, rows, [in_spark])
    assert kept_raw(legacy, condition) != kept


@pytest.mark.parametrize(
    ("legacy", "declaration", "values", "condition", "in_spark"),
    [(engine, *case) for engine, cases in RAW.items() for case in cases],
    indirect=["legacy"],
)
def test_why_text_is_compared_by_its_bytes(
    legacy: Legacy, declaration: str, values: list[str], condition: str, in_spark: str,
    spark: SparkSession,
) -> None:  # fmt: skip
    shape, rows = listed(legacy, declaration, values)
    assert shape.comparable_by_name["v"] is Comparable.ORDER
    (kept,) = kept_by_spark(spark, shape, rows, [in_spark])
    assert kept_raw(legacy, condition) != kept


@pytest.mark.parametrize(
    ("legacy", "declaration", "values", "condition", "in_spark"),
    [(engine, *case) for engine, cases in EXPRESSIONS.items() for case in cases],
    indirect=["legacy"],
)
def test_why_expressions_stay(
    legacy: Legacy, declaration: str, values: list[str], condition: str, in_spark: str,
    spark: SparkSession,
) -> None:  # fmt: skip
    """The column may be compared; what a view makes of it is evaluated by Spark alone."""
    shape, rows = listed(legacy, declaration, values)
    assert shape.comparable_by_name["v"] is not Comparable.NOTHING
    query = read_query(f"SELECT t.v FROM erp.t t WHERE {in_spark}", where="v")
    columns = {
        c.name: ComparedColumn(c, shape.comparable_by_name[c.name]) for c in shape.recipe.columns
    }
    conjuncts = wish_of("v", query, 0).conjuncts
    assert conjuncts
    for conjunct in conjuncts:
        found = pushed(conjunct.condition, columns)
        assert found.predicate is None
        assert found.why
    (kept,) = kept_by_spark(spark, shape, rows, [in_spark])
    assert kept_raw(legacy, condition) != kept
