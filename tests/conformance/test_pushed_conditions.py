"""Conditions of a view as people write them, drawn at random: what the source evaluates of one
keeps every row that Spark keeps, and no other if all of it is evaluated there."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from driftline.errors import ConfigurationError, LimitExceeded
from driftline.relations.derivations import AndPredicate, Predicate

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import decoded, flat, session_of
from source_agent.engines.relations.shapes import Shape
from tests.conformance.derived_reads import TABLE, derived_keys
from tests.conformance.expression_search import evaluated
from tests.conformance.test_derivations import carrier
from tests.harness.family import spelled_as
from tests.harness.legacies import KINDS
from warehouse_agent.decomposition.conditions import ComparedColumn, pushed
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.evaluate import session_of as spark_session_of
from warehouse_agent.views.query import read_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
NUMBERS = (
    "0", "1", "-1", "7", "- 7", "(7)", "007", "7.0", "7.00", "7.001", "7e0", "7L", "7.0BD", "7D",
    "'7'", "-0", "0.5", ".5", "-.5", "5.", "1.10", "0.30", "32768", "2147483648", "NULL", "6 + 1",
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", "-7.00", "0.010",
    "99999999999999999999.5", "1.0000000001", "-(7)", "+7", "'7.0'", "true", "TINYINT(7)",
)  # fmt: skip
DATES = (
    "DATE '2024-02-29'", "'2024-02-29'", "'2024-2-29'", "DATE '2024-2-29'", "DATE '2024-02'",
    "'2024'", "TIMESTAMP '2024-02-29'", "TIMESTAMP '2024-02-29 00:00:00'", "'1582-10-10'",
    "TIMESTAMP_NTZ '2024-02-29 10:00:00'", "DATE '0001-01-01'", "'9999-12-31'", "' 2024-02-29 '",
    "CAST('2024-02-29' AS DATE)", "'2024-02-29T10'", "NULL", "to_date('2024-02-29')",
    "TIMESTAMP '2024-02-29 00:00:00Z'", "TIMESTAMP '2024-02-29 01:00:00+01:00'", "DATE'2024-12-31'",
    "TIMESTAMP '2024-02-29 10:00'", "TIMESTAMP '2024-02-29 10:00:00.5'", "date '1970-01-01'",
    "TIMESTAMP_LTZ '2024-02-29 10:00:00'", "TIMESTAMP_NTZ '2024-02-29 10:00:00.500000'",
)  # fmt: skip
TEXTS = (
    "'a'", '"a"', "'A'", "'a '", "''", "' '", "'ä'", "'a' 'b'", "'it''s'", r"'a\'b'", r"'a\\b'",
    "r'a'", "X'61'", "'%'", "'a%'", "'$x'", "'${x}'", "'7'", "'10'", "'NULL'", "NULL",
    "'\u00e4'", "'a\u0308'", "'😀'", "concat('a', '')", "'a' || ''", "lower('A')", "'ß'", "'ab'",
)  # fmt: skip
SIGNS = ("=", "<>", "<", "<=", ">", ">=", "==", "!=", "<=>")
JOINED = (
    "{} AND {}", "{} OR {}", "NOT {}", "({})", "NOT ({} OR {})", "!{}", "({} AND {})",
    "({}) = TRUE", "{} IS NOT NULL", "NOT {} AND {}",
)  # fmt: skip
VALUES = {
    "i2": ("-32768", "-7", "0", "7", "32767"),
    "i4": ("-2147483648", "-7", "0", "7", "2147483647"),
    "i8": ("-9223372036854775808", "-7", "0", "7", "9223372036854775807", "32768"),
    "d": ("-7.00", "-0.01", "0.00", "0.30", "0.50", "1.10", "7.00", "99999.99"),
    "w": ("-7.0000000000", "0.0000000000", "0.0100000000", "1.0000000001", "7.0010000000"),
    "a": ("0001-01-01", "1582-10-15", "1970-01-01", "2024-02-29", "2024-12-31", "9999-12-31"),
    "s": ("2024-02-29 00:00:00", "2024-02-29 10:00:00", "2024-02-29 10:00:00.5",
          "1970-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
    "t": ("a", "A", "a ", "", " ", "ä", "a\u0308", "ab", "10", "7", "NULL", "%", "a%", "😀", "ß"),
}  # fmt: skip
WHOLE = {"i2": "smallint", "i4": "int", "i8": "bigint"}
NUMERIC = WHOLE | {"d": "decimal(7,2)", "w": "decimal(38,10)"}
TYPES = {
    "postgresql": NUMERIC | {"a": "date", "s": "timestamp", "t": "text"},
    "mariadb": NUMERIC | {"a": "date", "s": "datetime(6)", "t": "varchar(20)"},
    "sqlite": {"i8": "bigint", "t": "text COLLATE NOCASE"},
}
LITERALS = {**dict.fromkeys(NUMERIC, NUMBERS), "a": DATES, "s": DATES, "t": TEXTS}
ROWS = 40


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


def a_condition(chance: random.Random, columns: list[str], depth: int) -> str:
    if depth and chance.random() < 0.6:
        form = chance.choice(JOINED)
        return form.format(
            *(a_condition(chance, columns, depth - 1) for _ in range(form.count("{}")))
        )
    name = chance.choice(columns)
    column = chance.choice((name, name, f"({name})", f"t.{name}", f"`{name}`", name.upper()))
    one, other, last = (chance.choice(LITERALS[name]) for _ in range(3))
    return chance.choice((
        f"{column} {chance.choice(SIGNS)} {one}",
        f"{column} {chance.choice(SIGNS)} {one}",
        f"{one} {chance.choice(SIGNS)} {column}",
        f"{column} IN ({one}, {other}, {last})",
        f"{column} NOT IN ({one}, {other})",
        f"{column} BETWEEN {one} AND {other}",
        f"{column} NOT BETWEEN {one} AND {other}",
        f"{column} IS NULL",
        f"{column} IS NOT NULL",
        f"{column} IS DISTINCT FROM {one}",
        f"{column} = {name}",
        f"{column} LIKE 'a%'",
    ))  # fmt: skip


def filled(legacy: Legacy, spark: SparkSession) -> tuple[Shape, int]:
    """Make the table at both sides; return its shape there, and the number of rows."""
    chance, types = random.Random(2), TYPES[spelled_as(legacy.name)]
    columns = ", ".join(f"{name} {type}{legacy.null}" for name, type in types.items())
    legacy.run(f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, {columns})")
    rows = [
        (number, *(chance.choice((*VALUES[name], None)) for name in types))
        for number in range(ROWS)
    ]
    legacy.insert("t", [_typed(row, [*types]) for row in rows])
    with session_of(legacy) as session:
        shape = session.describe(TABLE)
        whole = [decoded(row, shape) for row in flat(session.scan(shape, ordered=True))]
    names = ", ".join(f"`{column.name}`" for column in shape.recipe.columns)
    casts = (f"CAST(`{c.name}` AS {carrier(c.type)}) AS `{c.name}`" for c in shape.recipe.columns)
    listed = ", ".join(f"({', '.join(map(_literal, row))})" for row in whole)
    text = f"SELECT {', '.join(casts)} FROM VALUES {listed} AS v({names})"
    spark.sql(text).createOrReplaceTempView("r")
    return shape, len(whole)


def _literal(text: str | None) -> str:
    return "NULL" if text is None else f"'{text}'"


def _typed(row: tuple[object, ...], names: list[str]) -> tuple[object, ...]:
    """Integers as such: a column of SQLite takes what it is given."""
    is_whole = [False, *(name in WHOLE for name in names)]
    return tuple(
        int(str(value)) if whole and value is not None else value
        for value, whole in zip(row, is_whole, strict=True)
    )


def pushed_of(text: str, shape: Shape) -> tuple[Predicate | None, bool]:
    """What the source evaluates of a condition, and if that is all of it."""
    query = read_query(f"SELECT t.id FROM erp.t t WHERE {text}", where="v")
    columns = {
        c.name: ComparedColumn(c, shape.comparable_by_name[c.name]) for c in shape.recipe.columns
    }
    found = [pushed(one.condition, columns) for one in wish_of("v", query, 0).conjuncts]
    parts = tuple(one.predicate for one in found if one.predicate is not None)
    is_whole = len(parts) == len(found) and not any(one.why for one in found)
    return AndPredicate(parts) if len(parts) > 1 else next(iter(parts), None), is_whole


@pytest.mark.parametrize("count", [300, pytest.param(7000, marks=pytest.mark.soak)])
def test_random_conditions(legacy: Legacy, count: int, spark: SparkSession) -> None:
    own, chance = spark_session_of(spark), random.Random(3)
    logging.getLogger("SQLQueryContextLogger").disabled = True  # of conditions that fail
    own.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    shape, rows = filled(legacy, own)
    texts = [a_condition(chance, [*TYPES[spelled_as(legacy.name)]], 2) for _ in range(count)]
    chosen: list[tuple[str, Predicate, bool]] = []
    for text in texts:
        try:
            predicate, is_whole = pushed_of(text, shape)
        except ConfigurationError:
            continue  # a view has no such query
        if predicate is not None:
            chosen.append((text, predicate, is_whole))
    values = evaluated(own, [text.replace("t.", "") for text, _, _ in chosen])
    wrong, compared, whole = [], 0, 0
    with session_of(legacy) as session:
        for (text, predicate, is_whole), marks in zip(chosen, values, strict=True):
            if marks is None:
                continue  # an expression that fails on a row
            try:
                kept = {int(key) for key in derived_keys(session, shape, predicate)}
            except LimitExceeded:
                continue
            needed = {number for number, mark in enumerate(marks) if mark}
            if needed - kept or (is_whole and kept - needed):
                wrong.append((text, sorted(needed - kept), sorted(kept - needed)))
            compared, whole = compared + 1, whole + is_whole
    print(f"{legacy.name}: {compared} conditions, {whole} evaluated whole at the source")
    assert wrong == []
    assert whole > count // 20
    assert rows == ROWS
