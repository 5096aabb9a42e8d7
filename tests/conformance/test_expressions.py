"""Spark's meaning and SQL's: random expressions that both evaluate differ where docs/views.md says
so, and nowhere else."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from source_agent.engines.conformance.legacy import Legacy
from tests.conformance.expression_differences import KNOWN, Release, to_be_seen
from tests.conformance.expression_search import (
    Node,
    Values,
    nodes,
    of_spark,
    search,
    table_of,
    view_of_spark,
)
from tests.harness.family import spelled_as
from tests.harness.legacies import KINDS, OfMariaDB, OfPostgreSQL, OfSQLite
from tests.harness.legacy_firebird import OfFirebird
from warehouse_agent.views.evaluate import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES = [*KINDS, "firebird"]
SOAK = 6500  # more than 20,000 for all engines together
COUNTS = [pytest.param(250, id="some"), pytest.param(SOAK, id="all", marks=pytest.mark.soak)]
Asked = Callable[[str], list[Any]]


@pytest.fixture
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    if request.param == "firebird":
        made: Legacy = OfFirebird(tmp_path, request.getfixturevalue("firebird"))
    else:
        made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


@contextmanager
def asking(legacy: Legacy) -> Iterator[Asked]:
    """Give the values of an expression over `r`, by row."""
    match legacy:
        case OfPostgreSQL():
            opened: Any = legacy.server.superuser(legacy.database)
        case OfMariaDB():
            opened = legacy.server.admin(legacy.database)
        case OfSQLite():
            opened = closing(sqlite3.connect(legacy.path))
        case OfFirebird():
            opened = closing(legacy._owner)

    def ask(text: str) -> list[Any]:
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"SELECT id, ({text}) FROM r")
            return [row[1] for row in sorted(cursor.fetchall(), key=lambda row: row[0])]

    with opened as connection:
        yield ask


def release(legacy: Legacy) -> Release:
    """Return the number of the server's release."""
    if legacy.name == "sqlite":
        return sqlite3.sqlite_version_info
    with closing(legacy.connect().open()) as session:
        return tuple(map(int, session.server.release.split()[1].split(".")))


@pytest.fixture(scope="module")
def in_spark(spark: SparkSession) -> Callable[[int], tuple[list[Node], dict[str, Values]]]:
    """The expressions, and Spark's values of them."""
    made: dict[int, tuple[list[Node], dict[str, Values]]] = {}

    def values(count: int) -> tuple[list[Node], dict[str, Values]]:
        if count not in made:
            own = session_of(spark)
            own.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")  # a second for each query
            logging.getLogger("SQLQueryContextLogger").disabled = True  # of expressions that fail
            view_of_spark(own)
            given = nodes(random.Random(1), count)
            made[count] = given, of_spark(own, given)
        return made[count]

    return values


@pytest.mark.spark
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("legacy", ENGINES, indirect=True)
def test_differences(legacy: Legacy, count: int, in_spark: Any) -> None:
    legacy.run(*table_of(spelled_as(legacy.name)))
    given, values = in_spark(count)
    with asking(legacy) as ask:
        found = search(spelled_as(legacy.name), given, values, ask)
    print(f"{legacy.name}: {found.compared} expressions compared")
    engine = spelled_as(legacy.name)
    wanted = to_be_seen(legacy.name, engine, release(legacy), found.forms)
    new = {name: why for name, why in found.differences.items() if name not in wanted}
    assert new == {}, "mend it, or say it in docs/views.md"
    if count == SOAK:
        assert wanted - found.differences.keys() == set(), "say it in docs/views.md no more"
    assert found.compared > count // 3


def test_each_difference_is_said() -> None:
    page = (Path(__file__).parents[2] / "docs" / "views.md").read_text(encoding="utf-8")
    said = {line.split(" | ")[0].removeprefix("| ") for line in page.splitlines()}
    assert set(KNOWN) <= said
