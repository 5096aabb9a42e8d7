"""Random views over three sites on three engines equal what DuckDB computes, refresh by refresh.

They are maintained by affected keys; values and lineage are compared, and each change feed must
lead from the version before to the next. Join values are NULL and occur several times; keys are
integers, texts and of two columns. Each group of views has a warehouse of its own and three
refreshes after the load. Every second one reads only the columns and rows that its views need, as
does that of every run, which has two.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.legacy import LEGACIES
from tests.harness.lineage_oracle import LineageOracle
from tests.harness.views import Sites
from warehouse_agent.planning.view_cost import ViewMethod
from warehouse_agent.storage.formats import view_head

pytestmark = [pytest.mark.spark, pytest.mark.postgresql, pytest.mark.mariadb, pytest.mark.slow]

ENGINES = {"one": "sqlite", "two": "postgresql", "three": "mariadb"}
TABLES = {
    "one": {"r": "k INTEGER PRIMARY KEY, a INT, b INT, t VARCHAR(20)"},
    "two": {"s": "k VARCHAR(20) NOT NULL PRIMARY KEY, a INT, b INT, t VARCHAR(20)"},
    "three": {
        "u": "k INT NOT NULL, m INT NOT NULL, a INT, b INT, t VARCHAR(20), PRIMARY KEY (k, m)"
    },
}
NAMES = [f"{source}.{name}" for source, tables in TABLES.items() for name in tables]
ROWS = 25
TEXTS = ("x", "y", "Ä", "", "x ", "null")


def random_view(rng: random.Random) -> str:
    tables = [rng.choice(NAMES) for _ in range(rng.choice([1, 2, 2, 3, 3, 4]))]
    aliases = [f"o{i}" for i in range(len(tables))]

    def number(upto: int) -> str:
        return f"{rng.choice(aliases[: upto + 1])}.{rng.choice('ab')}"

    def predicate(upto: int) -> str:
        left, right = number(upto), number(upto)
        text = f"{rng.choice(aliases[: upto + 1])}.t"
        return rng.choice(
            [
                f"{left} = {right}",
                f"{left} <= {right}",
                f"{left} IS NOT DISTINCT FROM {right}",
                f"({left} = {right} OR {left} IS NULL)",
                f"{left} IN (1, 2, {rng.randint(3, 9)})",
                f"{text} = '{rng.choice(TEXTS)}'",
                f"NOT ({text} < 'x')",
                f"{left} BETWEEN 0 AND 3",
            ]
        )

    text = f"FROM {tables[0]} o0"
    for i in range(1, len(tables)):
        own = rng.choice([f"o{i}.a = {number(i - 1)}", f"o{i}.t = o{rng.randrange(i)}.t"])
        more = f" AND {predicate(i)}" if rng.random() < 0.3 else ""
        text += f" JOIN {tables[i]} AS o{i} ON {own}{more}"
    last = len(tables) - 1
    where = " AND ".join(predicate(last) for _ in range(rng.randint(0, 2)))
    outputs = [f"{number(last)} AS x", f"coalesce({number(last)}, -1) * 2 AS y", f"o{last}.t"]
    outputs.append(f"CASE WHEN {number(last)} > 2 THEN upper(o0.t) ELSE o0.t || '!' END AS z")
    return f"SELECT {', '.join(outputs)} {text}" + (f" WHERE {where}" if where else "")


def random_row(rng: random.Random, source: str, key: int) -> tuple[object, ...]:
    keys = {"one": (key,), "two": (f"key {key}",), "three": (key % 7, key)}[source]
    values = (
        rng.choice([None, 0, 1, 2, 3]),
        rng.choice([None, 1, 1, 5]),
        rng.choice([None, *TEXTS]),
    )
    return (*keys, *values)


def edit(rng: random.Random, sites: Sites) -> None:
    """Delete, insert and update some rows of some sites; sometimes of none."""
    for source, tables in TABLES.items():
        if rng.random() < 0.3:
            continue
        (name,) = tables
        legacy = sites.pairs[source].legacy
        column = "m" if source == "three" else "k"
        for key in rng.sample(range(2 * ROWS), rng.randint(1, 6)):
            old = f"key {key}" if source == "two" else key
            legacy.execute(f"DELETE FROM {name} WHERE {column} = ?", old)
            if rng.random() < 0.7:
                row = random_row(rng, source, key)
                marks = ", ".join("?" * len(row))
                legacy.execute(f"INSERT INTO {name} VALUES ({marks})", *row)


def check_given(sites: Sites) -> None:
    """Readers are given the versions that the oracle saw."""
    newest, store = sites.newest(), sites.store
    assert newest is not None
    for name in sites.views:
        head, member = view_head(store, name), newest.members[name]
        assert head is not None
        assert (member.version, member.stale) == (head.version, None)


@pytest.mark.parametrize(
    ("seed", "count", "refreshes"),
    [(1, 5, 2), *(pytest.param(s, 10, 3, marks=pytest.mark.soak) for s in range(30))],
)
def test_random_views(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    seed: int,
    count: int,
    refreshes: int,
) -> None:
    rng = random.Random(seed)
    views = {f"v{i}": random_view(rng) for i in range(count)}
    derive = ("columns", "rows") if seed % 2 else ()
    legacies = {}
    for source, engine in ENGINES.items():
        (tmp_path / engine).mkdir()
        legacies[source] = LEGACIES[engine](request, tmp_path / engine)
    try:
        with Sites(spark, tmp_path / "sites", TABLES, dict(views), legacies, derive) as sites:
            for source, tables in TABLES.items():
                rows = [random_row(rng, source, key) for key in range(ROWS)]
                marks = ", ".join("?" * len(rows[0]))
                for name in tables:
                    legacies[source].many(f"INSERT INTO {name} VALUES ({marks})", rows)
            sites.view_lines = dict.fromkeys(views, 'maintain = "incremental"')
            oracle = LineageOracle(sites)
            sites.well()
            oracle.check()
            for _ in range(refreshes):
                edit(rng, sites)
                reports = sites.well()
                for report in (reports[name] for name in views):
                    assert report.method in (None, ViewMethod.INCREMENTAL), report.method_why
                oracle.check()
                check_given(sites)
            sites.check()
    finally:
        for legacy in legacies.values():
            legacy.close()
