"""Random expressions that Spark and a database both evaluate, and where their values differ.

An expression is a tree of forms; every node of it is evaluated on both sides, over one table. A
node is compared in the rows in which both sides agree about all of its arguments, so that a
difference is of its own form.
"""

from __future__ import annotations

import bisect
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from tests.conformance.expression_forms import COLUMNS, FB, FORMS, LITE, MY, PADDED, PG, ROWS, Form

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 100  # expressions of a query of Spark
CARRIERS = {
    "int": "INT", "dec": "DECIMAL", "dbl": "DOUBLE", "text": "STRING", "digits": "STRING",
    "char": "STRING", "date": "DATE", "ts": "TIMESTAMP_NTZ", "count": "INT", "least": "INT",
}  # fmt: skip
DECIMALS = {"d": "DECIMAL(7,2)", "e": "DECIMAL(9,4)"}
NUMBERS = {"int", "dec", "dbl", "count", "least"}
TIMESTAMPS = {PG: "timestamp", MY: "datetime(6)", LITE: "text", FB: "timestamp"}
_POSITION = re.compile(r"\b(?:position|line 1 pos) (\d+)")  # of what failed, in Spark's message
_EXACT = 1e-12  # relative: digits in which two libraries for doubles differ
Values = list[Any] | None  # of all rows; None: the expression fails


@dataclass(frozen=True)
class Node:
    """An expression: a column, or a form with its arguments."""

    type: str
    column: str = ""
    form: Form | None = None
    parts: tuple[Node, ...] = ()

    def sql(self, engine: str | None = None) -> str:
        """Return its text for an engine; None: for Spark."""
        if self.form is None:
            return self.column
        text = self.form.spark if engine is None else self.form.sql(engine)
        assert text is not None
        parts = [one.sql(engine) for one in self.parts]
        return text.format(
            *(p if one.form is None else f"({p})" for one, p in zip(self.parts, parts, strict=True))
        )

    def _operand(self, engine: str | None) -> str:
        text = self.sql(engine)
        return text if self.form is None else f"({text})"

    def walk(self) -> Iterator[Node]:
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass
class Found:
    """What a search found.

    Attributes:
        compared: expressions that both sides evaluated.
        forms: those that both sides evaluated in a row with arguments of which they agree.
        differences: by form, an example: Spark's text, the row, Spark's value, the database's.
    """

    compared: int = 0
    by_spark_alone: int = 0
    by_database_alone: int = 0
    forms: set[str] = field(default_factory=set)
    differences: dict[str, tuple[str, int, Any, Any]] = field(default_factory=dict)


def nodes(chance: random.Random, count: int) -> list[Node]:
    """Return different expressions, each behind its parts."""
    by_type: dict[str, list[Form]] = {}
    for form in FORMS:
        by_type.setdefault(form.result, []).append(form)

    def made(type: str, depth: int) -> Node:
        if type not in by_type or (type in COLUMNS and (depth == 0 or chance.random() < 0.4)):
            return Node(type, chance.choice([*COLUMNS[type]]))
        return applied(chance.choice(by_type[type]), depth)

    def applied(form: Form, depth: int) -> Node:
        parts = tuple(made(type, max(depth - 1, 0)) for type in form.args)
        return Node(form.result, form=form, parts=parts)

    found: dict[str, Node] = {}  # by Spark's text
    trees = (applied(form, 0) for form in FORMS)  # each of them with columns, at least
    while len(found) < count:
        tree = next(trees, None) or applied(chance.choice(FORMS), 2)
        for one in reversed([*tree.walk()]):
            found.setdefault(one.sql(), one)
    return list(found.values())


def of_engine(given: Sequence[Node], engine: str) -> list[Node]:
    """Return the expressions that an engine may be asked."""

    def can(node: Node) -> bool:
        if node.form is None:
            return node.type != "char" or node.column == PADDED[engine]
        return node.form.sql(engine) is not None

    return [node for node in given if all(map(can, node.walk()))]


def search(
    engine: str,
    given: Sequence[Node],
    in_spark: Mapping[str, Values],
    ask: Callable[[str], list[Any]],
) -> Found:
    """Evaluate expressions at a database, and compare with Spark's values (`of_spark`).

    Args:
        ask: returns the values of an expression of the engine, by row; raises what its driver does.
    """
    agreed: dict[str, list[bool]] = {}
    found = Found()
    for node in of_engine(given, engine):
        text, theirs = node.sql(), _asked(ask, node.sql(engine))
        ours = in_spark[text]
        if ours is None or theirs is None:
            agreed[text] = [False] * ROWS
            found.by_spark_alone += ours is not None
            found.by_database_alone += theirs is not None
            continue
        found.compared += node.form is not None
        agreed[text] = [_equal(node.type, a, b) for a, b in zip(ours, theirs, strict=True)]
        name = node.column if node.form is None else node.form.name
        for row in range(ROWS):
            if not all(agreed[part.sql()][row] for part in node.parts):
                continue
            found.forms.add(name)
            if not agreed[text][row]:
                found.differences.setdefault(name, (text, row, ours[row], theirs[row]))
    return found


def of_spark(spark: SparkSession, given: Sequence[Node]) -> dict[str, Values]:
    """Return the values of each expression; one of which a part fails is not tried."""
    found: dict[str, Values] = {}
    left = list(given)
    while left:
        ready = [n for n in left if all(part.sql() in found for part in n.parts)]
        whole = [n.sql() for n in ready if all(found[p.sql()] is not None for p in n.parts)]
        found |= dict.fromkeys((n.sql() for n in ready), None)
        found |= dict(zip(whole, evaluated(spark, whole), strict=True))
        left = [n for n in left if n.sql() not in found]
    return found


def evaluated(spark: SparkSession, texts: Sequence[str]) -> list[Values]:
    """Evaluate expressions over the view `r`, many in a query; None for each that fails."""
    found: list[Values] = [None] * len(texts)
    left = list(range(len(texts)))
    while left:
        places, left = left[:BATCH], left[BATCH:]
        starts, query = list[int](), "SELECT "
        for place in places:
            starts.append(len(query) + 1)  # positions are counted from 1
            query += f"({texts[place]}) AS x{place}, "
        try:
            rows = spark.sql(f"{query}id FROM r").collect()  # without ORDER BY there is no job
        except PySparkException as problem:
            match, middle = _POSITION.search(str(problem)), len(places) // 2
            if match is not None:
                del places[bisect.bisect(starts, int(match[1])) - 1]
                left = places + left
            elif middle:  # Spark does not say where
                for half in (places[:middle], places[middle:]):
                    values = evaluated(spark, [texts[place] for place in half])
                    for place, one in zip(half, values, strict=True):
                        found[place] = one
            continue
        rows.sort(key=lambda row: row.id)
        for i, place in enumerate(places):
            found[place] = [row[i] for row in rows]
    return found


def view_of_spark(spark: SparkSession) -> None:
    """Make the view `r`."""
    names = [(type, name) for type, columns in COLUMNS.items() for name in columns]
    rows = []
    for row in range(ROWS):
        values = [COLUMNS[type][name][row] for type, name in names]
        rows.append(f"({row}, {', '.join('NULL' if v is None else quoted(v) for v in values)})")
    casts = ", ".join(f"CAST({name} AS {carrier(type, name)}) AS {name}" for type, name in names)
    casts = casts.replace("CAST(p AS STRING)", "rpad(p, 3, ' ')")
    listed = ", ".join(name for _, name in names)
    text = f"SELECT id, {casts} FROM VALUES {', '.join(rows)} AS v(id, {listed})"
    spark.sql(text).createOrReplaceTempView("r")


def table_of(engine: str) -> list[str]:
    """Return the statements that make the table `r` of a database."""
    types = {"int": "int", "dbl": "double precision", "char": "char(3)", "date": "date"}
    types |= {"ts": TIMESTAMPS[engine], "count": "int", "least": "int"}
    names = [(type, name) for type, columns in COLUMNS.items() for name in columns]
    listed = (f"{n} {DECIMALS.get(n) or types.get(type, 'varchar(20)')}" for type, n in names)
    found = [f"CREATE TABLE r (id int, {', '.join(listed)})"]
    for row in range(ROWS):
        values = ((type, COLUMNS[type][name][row]) for type, name in names)
        texts = (v if v is None or type in NUMBERS else quoted(v) for type, v in values)
        found.append(f"INSERT INTO r VALUES ({row}, {', '.join(v or 'NULL' for v in texts)})")
    return found


def carrier(type: str, name: str) -> str:
    return DECIMALS.get(name, CARRIERS[type])


def quoted(text: str) -> str:
    return "'" + text + "'"


def _asked(ask: Callable[[str], list[Any]], text: str) -> Values:
    try:
        return ask(text)
    except Exception:  # any of a driver: the database refuses the expression, or a value
        return None


def _equal(type: str, ours: Any, theirs: Any) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    if type == "bool":
        return bool(ours) is bool(theirs)
    if type in NUMBERS:
        return _same_number(ours, theirs)
    return _text(type, ours) == _text(type, theirs)


def _same_number(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, int | float | Decimal):
        return False
    if isinstance(ours, float) or isinstance(theirs, float):
        one, other = float(ours), float(theirs)
        return one == other or math.isclose(one, other, rel_tol=_EXACT, abs_tol=1e-12)
    return Decimal(ours) == Decimal(theirs)


def _text(type: str, value: Any) -> str:
    text = value.decode() if isinstance(value, bytes) else str(value)
    if type == "ts":
        text = text.replace("+00:00", "")
        text = f"{text} 00:00:00" if len(text) == len("2024-02-29") else text
        return text.rstrip("0").rstrip(".") if "." in text else text
    return text
