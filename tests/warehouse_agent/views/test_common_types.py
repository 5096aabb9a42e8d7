"""What Spark would round is refused: found in the query, and checked against Spark's plan."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import pytest
from driftline.errors import ViewFailed
from driftline.values.types import Column, Recipe, parse_type
from pyspark.errors import AnalysisException, ArithmeticException

from warehouse_agent.columns.layout import lay_out
from warehouse_agent.views.common_types import DOUBLE_DIGITS, rounded
from warehouse_agent.views.evaluate import (
    PinnedInput,
    evaluated_over,
    lineage_names,
    recipe_of,
    session_of,
)
from warehouse_agent.views.query import read_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Names of columns and their types, declared and in Spark.
TYPES = {
    "id": "int4", "i2": "int2", "i4": "int4", "i8": "int8", "t": "text", "f8": "float8",
    "whole": "numeric(38,0)", "cents": "numeric(10,2)", "money": "numeric(19,4)",
    "wide": "numeric(38,10)", "fine": "numeric(38,38)", "half": "numeric(38,18)",
    "unsigned": "numeric(20,0)",
}  # fmt: skip
SPARK_TYPES = {"int2": "smallint", "int4": "int", "int8": "bigint", "text": "string"}
SPARK_TYPES |= {"float8": "double"}
LITERALS = ["0", "1", "-1", "12345", "1.10", "0.5", "'1.10'", "2e0", "9999999999"]
COMPARED = [
    "{} = {}", "{} <> {}", "{} < {}", "{} <=> {}", "{} IN ({}, {})", "{} BETWEEN {} AND {}",
    "NOT {} IN ({})", "nullif({}, {}) IS NULL", "{} IS DISTINCT FROM {}",
]  # fmt: skip
VALUED = [
    "coalesce({}, {})", "nvl({}, {})", "ifnull({}, {})", "greatest({}, {}, {})", "least({}, {})",
    "CASE WHEN i4 = 1 THEN {} ELSE {} END", "CASE {} WHEN {} THEN {} WHEN {} THEN {} END",
    "if(i4 = 1, {}, {})", "nvl2(i4, {}, {})", "decode({}, {}, {}, {})",
    "decode({}, {}, {}, {}, {}, {})",
    "{} + {}", "{} - {}", "{} * {}", "try_add({}, {})", "try_subtract({}, {})",
    "try_multiply({}, {})", "nullifzero({})", "zeroifnull({})", "{} % {}", "-({})", "({})",
    "mod({}, {})", "pmod({}, {})", "try_mod({}, {})", "abs({})", "round({}, 2)",
]  # fmt: skip


def carrier(name: str) -> str:
    declared = TYPES[name]
    return SPARK_TYPES.get(declared, declared.replace("numeric", "decimal"))


def an_expression(chance: random.Random, depth: int) -> str:
    if depth == 0 or chance.random() < 0.4:
        return chance.choice([*TYPES, *LITERALS])
    form = chance.choice(VALUED if depth < 3 or chance.random() < 0.4 else COMPARED)
    return form.format(*(an_expression(chance, depth - 1) for _ in range(form.count("{}"))))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "whole = cents",
            "Spark would round DECIMAL(38,0) and DECIMAL(10,2): their common type needs 40 digits",
        ),
        ("cents <=> (whole)", "Spark would round"),
        ("i8 IN (1, fine)", "Spark would round"),
        ("i4 BETWEEN 1 AND fine", "Spark would round INT and DECIMAL(38,38)"),
        ("coalesce(fine, 0)", "Spark would round"),
        ("nullifzero(fine)", "Spark would round"),
        ("wide * money", "Spark would round"),
        (
            "money * money",
            "Spark would round DECIMAL(19,4): their product needs 39 digits, and a decimal has 38",
        ),
        ("fine + cents", "Spark would round DECIMAL(38,38) and DECIMAL(10,2): their sum needs 47"),
        ("i8 = half", None),
        ("money * cents", None),
        ("whole + whole", None),  # too great a number is an error
        ("whole = 12345", None),
        ("wide = f8", None),  # doubles, as in SQL
        ("unsigned = t", "Spark would round DECIMAL(20,0) and STRING"),
        ("cents = t", None),
        ("t IN (1, cents)", "Spark would round STRING and DECIMAL(10,2)"),
        ("CASE i4 WHEN 1 THEN 1 ELSE if(i4 = 1, whole, cents) END", "Spark would round"),
        ("whole / cents", None),
        ("pmod(wide, t)", "Spark would round"),
        ("i8 = t", None),
    ],
)
def test_columns_and_literals(text: str, why: str | None) -> None:
    found = refused(text)
    assert found is None if why is None else str(found).startswith(why)


# The fault: x = {1, 2} joined 1 with 1.10 and 1.49, and 2 with 1.50 and 2.00.
@pytest.mark.spark
@pytest.mark.parametrize(
    ("condition", "place"),
    [
        ("a.x = b.y", "line 1, column 46"),
        ("a.x - 1 <= b.y", "line 1, column 46"),  # Spark says what type the difference has
        ("CAST(a.x AS DECIMAL(36,2)) = b.y", None),
    ],
)
def test_a_join_of_decimals(spark: SparkSession, condition: str, place: str | None) -> None:
    own = session_of(spark)
    inputs, rows = [], []
    for name, type, values in (("x", "numeric(38,0)", "1 2"), ("y", "numeric(10,2)", "1.1 1.49 2")):
        columns = (Column("id", parse_type("int4")), Column(name, parse_type(type), ordinal=1))
        layout = lay_out(Recipe(columns, 1), {}, where="r")
        inputs.append(PinnedInput(f"erp.{name}", 0, layout, ()))
        listed = ", ".join(f"({i}, {value}, {i}L)" for i, value in enumerate(values.split()))
        cast = f"CAST(v AS {type.replace('numeric', 'DECIMAL')}) AS {name}"
        key = f"k AS {lineage_names(inputs[-1])[0]}"
        rows.append(own.sql(f"SELECT id, {cast}, {key} FROM VALUES {listed} AS t(id, v, k)"))
    query = read_query(f"SELECT a.x, b.y FROM erp.x a JOIN erp.y b ON {condition}", where="v")
    recipe = recipe_of(own, "v", query, inputs)
    if place is None:
        found, _ = evaluated_over(own, "v", query, recipe, inputs, rows)
        assert [(str(row.x), str(row.y)) for row in found.collect()] == [("2", "2.00")]
        return
    with pytest.raises(ViewFailed, match="Spark would round DECIMAL") as raised:
        evaluated_over(own, "v", query, recipe, inputs, rows)
    assert raised.value.where == f"views.v.query, {place}"
    assert "CAST the operands" in str(raised.value.remedy)


@pytest.mark.spark
@pytest.mark.parametrize("product", ["money * money", "try_multiply(money, money)"])
def test_a_product_of_amounts_is_exact_as_the_remedy_says(
    spark: SparkSession, product: str
) -> None:
    """One operand of one digit less is enough, and what it does not hold is an error."""
    own = session_of(spark)
    narrowed = product.replace("money", "CAST(money AS DECIMAL(18,4))", 1)
    for value, fits in (
        ("99999999999999.9999", True),
        ("-0.0001", True),
        ("999999999999999.9999", False),
    ):
        own.sql(f"SELECT CAST('{value}' AS DECIMAL(19,4)) AS money").createOrReplaceTempView("t")
        assert refused(product, own) is not None
        assert refused(narrowed, own) is None
        found = own.sql(f"SELECT {narrowed} AS x FROM t")
        if fits:
            exact = Context(prec=60).multiply(Decimal(value), Decimal(value))
            assert found.collect()[0].x == exact
        else:
            with pytest.raises(ArithmeticException):
                found.collect()


@pytest.mark.spark
@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.soak)])
def test_what_is_refused_is_what_spark_would_round(spark: SparkSession, count: int) -> None:
    """Random expressions: Spark's plan of one has a cast that loses digits if it is refused."""
    own, chance = session_of(spark), random.Random(1)
    columns = ", ".join(f"CAST(1 AS {carrier(name)}) AS {name}" for name in TYPES)
    own.sql(f"SELECT {columns}").createOrReplaceTempView("t")
    seen, wrong = {True: 0, False: 0}, []
    while sum(seen.values()) < count:
        text = an_expression(chance, 3)
        try:
            plan: Any = own.sql(f"SELECT {text} AS x FROM t")
        except AnalysisException:
            continue  # such as a text and a number in CASE
        expected = rounds(plan._jdf.queryExecution().analyzed().expressions().apply(0))
        if (refused(text, own) is not None) is not expected:
            wrong.append(text)
        seen[expected] += 1
    assert wrong == [], len(wrong)
    assert all(seen.values())


def refused(text: str, spark: SparkSession | None = None) -> str | None:
    """Why an expression over `t`, a temporary view, is refused; None: it is not."""

    def asked(texts: Sequence[str]) -> list[str]:
        if spark is None:
            return ["int"] * len(texts)
        named = ", ".join(f"{one} AS c{i}" for i, one in enumerate(texts))
        return [f.dataType.simpleString() for f in spark.sql(f"SELECT {named} FROM t").schema]

    query = read_query(f"SELECT {text} AS x FROM erp.t", where="v")
    found = rounded(query.select, lambda column: carrier(column.name.lower()), asked)
    return None if found is None else found.why


def rounds(node: Any) -> bool:
    """True if an expression of Spark's plan, or a part of it, loses digits; none has a cast that
    was written."""
    parts = [node.children().apply(i) for i in range(node.children().size())]
    kind, own = node.getClass().getSimpleName(), _digits(node)
    inner = [_digits(part) for part in parts]
    if kind == "Cast" and own and _type(parts[0]) == "string":
        return True
    if kind == "Cast" and own and inner[0] and inner[0][1] > own[1]:
        return True
    if kind in ("Add", "Subtract", "Multiply") and own and all(inner):
        fractions = [digits[1] for digits in inner if digits]
        if own[1] < (sum(fractions) if kind == "Multiply" else max(fractions)):
            return True
    doubles = [_uncast(part) for part in parts if _type(part) == "double"]
    kinds = {_type(one) for one in doubles}
    if "string" in kinds and "double" not in kinds:
        if any(sum(_digits(one) or ()) > DOUBLE_DIGITS for one in doubles):
            return True
        if any(map(_digits, doubles)) and kinds & {"tinyint", "smallint", "int", "bigint"}:
            return True
    return any(rounds(part) for part in parts)


def _uncast(node: Any) -> Any:
    return node.children().apply(0) if node.getClass().getSimpleName() == "Cast" else node


def _type(node: Any) -> str:
    return str(node.dataType().simpleString())


def _digits(node: Any) -> tuple[int, int] | None:
    """Digits before and behind the point of a decimal."""
    match = re.fullmatch(r"decimal\((\d+),(\d+)\)", _type(node))
    return None if match is None else (int(match[1]) - int(match[2]), int(match[2]))
