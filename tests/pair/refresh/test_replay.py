"""Real tables, commit by commit: after each the published table equals the source.

The histories are those of `../shared/data`; a replay applies one commit's inserts, updates and
deletes at the source, refreshes, and compares everything. Five successive commits by default, one
of them in bulk, as a sample, each history on two engines; several hundred on three under
`./tests/run --soak`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.harness import histories
from tests.harness.family import FAMILY
from tests.harness.histories import DATA, Commit, History
from tests.harness.legacy import LEGACIES, Legacy
from tests.harness.pair import Pair
from warehouse_agent.refresh.job import Options

RUNWAYS, FOOTBALL = "ourairports_runways", "intl_football_results"
TYPES = {
    "sqlite": {"INTEGER": "INTEGER", "DOUBLE": "REAL", "VARCHAR": "TEXT"},
    "postgresql": {"INTEGER": "integer", "DOUBLE": "double precision", "VARCHAR": "text"},
    "mariadb": {
        "INTEGER": "INT",
        "DOUBLE": "DOUBLE",
        "VARCHAR": "VARCHAR(120) COLLATE utf8mb4_nopad_bin",
    },
}

pytestmark = pytest.mark.skipif(
    not (histories.available(RUNWAYS) and histories.available(FOOTBALL)),
    reason=f"NO REAL TABLES, NOT TESTED: {DATA} is not there",
)


@pytest.fixture(params=["sqlite", "postgresql", *FAMILY])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = LEGACIES[request.param](request, tmp_path)
    yield made
    made.close()


def on_sqlite_and(engine: str) -> pytest.MarkDecorator:
    """Run a test on SQLite and on another engine; on the third one in the soak."""
    engines = [
        pytest.param(name, marks=() if name in {"sqlite", engine} else pytest.mark.soak)
        for name in (*TYPES, "mysql")
    ]
    return pytest.mark.parametrize("legacy", engines, indirect=True)


class Table:
    """The table `t` at the source, kept at one commit of a history."""

    def __init__(self, legacy: Legacy, history: History) -> None:
        self._legacy, self._history = legacy, history
        self._quote = "`" if legacy.engine == "mariadb" else '"'
        kinds = TYPES[legacy.engine]
        columns = [
            f"{self._name(name)} {kinds[kind]}{' NOT NULL' if name in history.key else ''}"
            for name, kind in zip(history.columns, history.types, strict=True)
        ]
        key = ", ".join(map(self._name, history.key))
        legacy.execute(f"CREATE TABLE t ({', '.join(columns)}, PRIMARY KEY ({key}))")
        self._where = " AND ".join(f"{self._name(name)} = ?" for name in history.key)

    def load(self, rows: list[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(self._history.columns))
        self._legacy.many(f"INSERT INTO t VALUES ({marks})", rows)

    def edit(self, commit: Commit) -> None:
        history = self._history
        if commit.deletes:
            self._legacy.many(f"DELETE FROM t WHERE {self._where}", commit.deletes)
        if commit.updates:
            settings = ", ".join(f"{self._name(name)} = ?" for name in history.columns)
            self._legacy.many(
                f"UPDATE t SET {settings} WHERE {self._where}",
                [(*row, *history.key_of(row)) for row in commit.updates],
            )
        if commit.inserts:
            self.load(commit.inserts)

    def _name(self, name: str) -> str:
        return f"{self._quote}{name}{self._quote}"


def replay(
    spark: SparkSession, legacy: Legacy, folder: Path, name: str, first: int, last: int
) -> None:
    history = History(name)
    expected = history.rows_at(first)
    table = Table(legacy, history)
    table.load(list(expected.values()))
    with Pair(spark, legacy, folder, {"t": 'table = "t"'}) as pair:
        pair.refresh("t")
        version = 0
        for commit in history.commits(first, last):
            table.edit(commit)
            histories.apply(commit, expected, history)
            report = pair.refresh("t", options=Options(allow_shrink=True))
            where = f"{name}, commit {commit.number}"
            version += 1 if len(commit) else 0
            assert report.version == version, where
            found = (report.rows_inserted, report.rows_updated, report.rows_deleted)
            assert found == tuple(map(len, (commit.inserts, commit.updates, commit.deletes))), where
            source = Counter(legacy.rows("t"))
            assert source == Counter(pair.published("t")), where
            if commit.number == last:
                assert source == Counter(expected.values()), where


@on_sqlite_and("postgresql")
def test_integer_key(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> None:
    """A sample with commit 116: a third of the table re-exported through float32."""
    replay(spark, legacy, tmp_path / "pair", RUNWAYS, 114, 118)


@on_sqlite_and("mariadb")
def test_composite_text_key(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> None:
    """A sample with commit 9: countries renamed, so that a quarter of the keys is new."""
    replay(spark, legacy, tmp_path / "pair", FOOTBALL, 7, 11)


@pytest.mark.soak
@pytest.mark.timeout(86_400)
@pytest.mark.parametrize(("first", "last"), [(100, 120), (1000, 1475)])
def test_integer_key_for_hours(
    spark: SparkSession, legacy: Legacy, tmp_path: Path, first: int, last: int
) -> None:
    replay(spark, legacy, tmp_path / "pair", RUNWAYS, first, last)


@pytest.mark.soak
@pytest.mark.timeout(86_400)
def test_composite_text_key_for_hours(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> None:
    replay(spark, legacy, tmp_path / "pair", FOOTBALL, 0, 269)


@pytest.mark.parametrize(("name", "last"), [(RUNWAYS, 1475), (FOOTBALL, 269)])
def test_the_last_commit_is_the_last_snapshot(name: str, last: int) -> None:
    """The log, materialised, is the file that the curators wrote beside it."""
    history = History(name)
    snapshot = pq.read_table(DATA / name / "v039.parquet").select(history.columns)
    rows = zip(*(column.to_pylist() for column in snapshot.columns), strict=True)
    assert Counter(history.rows_at(last).values()) == Counter(rows)
