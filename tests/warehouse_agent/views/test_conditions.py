"""A condition means the same in Spark and as the predicate that a source is asked for.

Awkward values of each type against every form of literal that is pushed; the reference evaluates
the predicate slowly in Python.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from driftline.relations.derivations import Comparable, DerivablePart, Predicate
from driftline.values.types import Column, Recipe, parse_type
from pyspark.sql import SparkSession

from tests.reference.predicates import keeps
from warehouse_agent.decomposition.conditions import Conjunction, Disjunction, Negation
from warehouse_agent.decomposition.view_needs import DerivationOffer, united
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.evaluate import _PINNED
from warehouse_agent.views.query import read_query

pytestmark = pytest.mark.spark

MOMENT = datetime.fromisoformat
VALUES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "i2": ("int2", pa.int16(), [0, 1, -1, 32767, -32768]),
    "i4": ("int4", pa.int32(), [0, 5, -5, 2**31 - 1, -(2**31)]),
    "i8": ("int8", pa.int64(), [0, 5, 2**63 - 1, -(2**63)]),
    "n": ("numeric(8,2)", pa.decimal128(8, 2), ["0.00", "1.50", "-1.50", "1.49", "999999.99"]),
    "w": ("numeric(38,10)", pa.decimal128(38, 10), ["0E-10", "1.5000000000", "-0.0000000001",
         "9999999999999999999999999999.9999999999"]),
    "d": ("date", pa.date32(), ["0001-01-01", "1582-10-10", "1969-12-31", "2020-02-29",
         "9999-12-31"]),
    "m": ("timestamp", pa.timestamp("us"), ["0001-01-01 00:00:00", "1883-11-18 12:03:58",
         "1969-12-31 23:59:59.999999", "2020-03-29 02:30:00", "9999-12-31 23:59:59.999999"]),
    "t": ("text", pa.string(), ["", " ", "a", "A", "a ", "ä", "a\u0308", "Z", "€", "\U0001f600",
         "null", "1", "-- x", "a_b%"]),
}  # fmt: skip
LITERALS: dict[str, list[str]] = {
    "i2": ["0", "-1", "1", "32767", "-32768", "007"],
    "i4": ["0", "-5", "2147483647", "-2147483648"],
    "i8": ["5", "9223372036854775807", "-9223372036854775808"],
    "n": ["0", "-0.00", "1.5", "1.50", "-1.5", "999999.99", ".5"],
    "w": ["0", "1.5", "-0.0000000001", "9999999999999999999999999999.9999999999"],
    "d": ["DATE '1582-10-10'", "'2020-02-29'", "CAST('1969-12-31' AS DATE)", "date('0001-01-01')",
          "'9999-12-31'"],
    "m": ["TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'", "TIMESTAMP '2020-03-29 02:30:00'",
          "TIMESTAMP '0001-01-01'", "TIMESTAMP '1883-11-18 12:03:58.000'",
          "CAST('9999-12-31 23:59:59.999999' AS TIMESTAMP_NTZ)"],
    "t": ["''", "' '", "'a'", '"a "', "'ä'", "'Z'", "'€'", "'null'", "'-- x'", "'a_b%'"],
}  # fmt: skip
COLUMNS = tuple(
    Column(name, parse_type(kind), ordinal=i)
    for i, (name, (kind, _, _)) in enumerate(VALUES.items())
)
OFFER = DerivationOffer(
    Recipe(COLUMNS, 1),
    tuple(VALUES),
    dict.fromkeys(VALUES, Comparable.ORDER),
    frozenset(DerivablePart),
)
TYPES = {column.name: column.type for column in COLUMNS}


def python(name: str, value: Any) -> Any:
    match name:
        case "n" | "w":
            return Decimal(value)
        case "d":
            return date.fromisoformat(value)
        case "m":
            return MOMENT(value)
    return value


def conditions(name: str) -> list[str]:
    one, two = LITERALS[name][:2], LITERALS[name][-2:]
    found = [f"{name} {op} {x}" for op in ("=", "<>", "<", "<=", ">", ">=") for x in LITERALS[name]]
    found += [f"{x} < {name}" for x in LITERALS[name]]
    found += [f"{name} IN ({', '.join(LITERALS[name])})", f"{name} NOT IN ({', '.join(one)})"]
    found += [f"{name} BETWEEN {a} AND {b}" for a, b in (one, two, two[::-1])]
    found += [f"NOT ({name} < {one[0]} OR {name} = {two[1]})", f"{name} IS NULL"]
    return [*found, f"{name} IS NOT NULL AND NOT ({name} IN ({two[0]}))"]


def pushed(condition: str) -> Predicate | None:
    query = read_query(f"SELECT i2 FROM r WHERE {condition}", where="v")
    found = united([wish_of("v", query, 0)], OFFER)
    assert not found.shares[0].conjuncts[0][1].why, condition
    return None if found.derivation is None else found.derivation.rows


@pytest.mark.parametrize("name", VALUES)
def test_conditions_mean_the_same(spark: SparkSession, name: str) -> None:
    own = spark.newSession()
    for key, value in _PINNED.items():
        own.conf.set(key, value)
    values = [*(python(name, value) for value in VALUES[name][2]), None]
    table = pa.table({
        "row": pa.array(range(len(values)), pa.int32()), name: pa.array(values, VALUES[name][1]),
    })  # fmt: skip
    own.createDataFrame(table).createOrReplaceTempView("r")
    texts = conditions(name)
    marks = ", ".join(f"coalesce({text}, false) AS c{i}" for i, text in enumerate(texts))
    found = own.sql(f"SELECT row, {marks} FROM r ORDER BY row").collect()
    for i, text in enumerate(texts):
        predicate = pushed(text)
        assert predicate is not None, text
        seen = [value.encode() if isinstance(value, str) else value for value in values]
        expected = [keeps(predicate, {name: value}, TYPES) for value in seen]
        assert [row[f"c{i}"] for row in found] == expected, text


@pytest.mark.parametrize("word", ["AND", "OR"])
def test_long_chains(word: str) -> None:
    text = f" {word} ".join(f"(i2 = {i})" for i in range(3_000))
    (conjunct, *_) = wish_of(
        "v", read_query(f"SELECT i2 FROM r WHERE NOT ({text})", where="v"), 0
    ).conjuncts
    assert isinstance(conjunct.condition, Negation)
    assert isinstance(conjunct.condition.part, Conjunction | Disjunction)
    assert len(conjunct.condition.part.parts) == 3_000
