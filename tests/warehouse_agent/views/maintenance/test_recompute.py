"""Views recomputed by Spark: rows, lineage, feeds, and what is refused.

The oracle is DuckDB, which reads the rows of the inputs' files and evaluates the same query.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from driftline.errors import ConfigurationError, ProofFailed, RecipeChanged, ViewFailed
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import NewViewVersion, VersionRecord, ViewSnapshot
from warehouse_agent.views.evaluate import PinnedInput
from warehouse_agent.views.maintenance.next_version import Computed, NextVersion, UnchangedView
from warehouse_agent.views.maintenance.recompute import recompute, verified
from warehouse_agent.views.maintenance.view_job import ViewAt
from warehouse_agent.views.query import read_query

pytestmark = pytest.mark.spark

TABLES = {
    "orders": "(id INTEGER PRIMARY KEY, customer INT, amount REAL, note TEXT)",
    "customer": "(code TEXT PRIMARY KEY, id INT, name TEXT)",
}
JOIN = (
    "SELECT o.id, o.amount, upper(c.name) AS name FROM orders o "
    "JOIN customer c ON c.id = o.customer WHERE o.amount >= 0"
)


class Loaded:
    """Two fragments of SQLite, and a view over them."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.store, self.spark = pair, pair.store, pair.spark

    def inputs(self, text: str) -> list[PinnedInput]:
        query = read_query(text, where="v")
        found = []
        for occurrence in query.occurrences:
            name = occurrence.reference[-1]
            view = formats.view_head(self.store, name) if name == "v" else None
            head = view or formats.head(self.store, name)
            assert head is not None
            found.append(PinnedInput.published(name, head))
        return found

    def recompute(
        self, text: str = JOIN, *, name: str = "v", accept_schema: bool = False
    ) -> Computed:
        base = formats.view_head(self.store, name)
        view = ViewAt(name, read_query(text, where="v"), self.inputs(text), base)
        return recompute(self.spark, self.store, view, accept_schema=accept_schema)

    def publish(self, text: str = JOIN, **options: Any) -> ViewSnapshot:
        name = options.get("name", "v")
        made = self.recompute(text, **options)
        assert isinstance(made, NextVersion)
        now = datetime.now(UTC).isoformat()
        record = VersionRecord(
            as_of=now,
            checked_at=now,
            consistency="exact",
            proof="total",
            rows=made.rows,
            published_at=now,
            changes=made.changes.folder,
            changes_files=made.changes.files,
            inputs={i.name: i.version for i in self.inputs(text)},
            checked="total",
        )
        removed = made.base.files if made.base else ()
        new = NewViewVersion(made.base, made.layout, made.added, removed, record)
        formats.commit(self.store, name, new)
        found = formats.view_head(self.store, name)
        assert found is not None
        return found

    def rows(self, files: Any) -> list[tuple[Any, ...]]:
        tables = [pq.read_table(f.uri.removeprefix("file://")) for f in files]
        rows = [tuple(r.values()) for t in tables for r in t.to_pylist()]
        return sorted(rows, key=repr)

    def expected(self, text: str = JOIN) -> list[tuple[Any, ...]]:
        """What DuckDB makes of the newest rows of the source, without lineage."""
        with duckdb.connect() as db:
            for name, columns in TABLES.items():
                db.execute(f"CREATE TABLE {name} {columns}")
                if found := self.pair.legacy.rows(name):
                    marks = ", ".join("?" * len(found[0]))
                    db.executemany(f"INSERT INTO {name} VALUES ({marks})", found)
            return sorted(db.execute(text.replace("`", '"')).fetchall(), key=repr)

    def check(self, published: ViewSnapshot, text: str = JOIN) -> None:
        width = len(published.layout.columns)
        rows = [row[:width] for row in self.rows(published.files)]
        assert sorted(rows, key=repr) == self.expected(text)


@pytest.fixture
def loaded(spark: SparkSession, tmp_path: Path) -> Iterator[Loaded]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for name, columns in TABLES.items():
        legacy.execute(f"CREATE TABLE {name} {columns}")
    legacy.many(
        "INSERT INTO orders VALUES (?, ?, ?, ?)",
        [(i, i % 7 if i % 5 else None, i / 4 - 2, f"n{i % 3}") for i in range(60)],
    )
    legacy.many(
        "INSERT INTO customer VALUES (?, ?, ?)",
        [(f"c{i}", i % 5 if i % 4 else None, f"name {i % 3}") for i in range(12)],
    )
    relations = {name: f'table = "{name}"' for name in TABLES}
    with Pair(spark, legacy, tmp_path / "pair", relations) as pair:
        for name in TABLES:
            pair.refresh(name)
        yield Loaded(pair)
    legacy.close()


def folders(store: Store, name: str = "v") -> list[str]:
    return [f for f in store.folders(name) if f.startswith("data-")]


def test_versions_of_a_view(loaded: Loaded) -> None:
    first = loaded.publish()
    loaded.check(first)
    assert (first.version, first.layout.lineage_names) == (0, ("_driftline_k1", "_driftline_k2"))
    assert [c.type for c in first.layout.lineage] == ["bigint", "binary"]
    assert len({row[-2:] for row in loaded.rows(first.files)}) == first.rows
    assert isinstance(loaded.recompute(), UnchangedView)
    assert len(folders(loaded.store)) == 1
    assert not loaded.store.walk(PRIVATE, "changes", "v")
    legacy = loaded.pair.legacy
    legacy.execute("UPDATE orders SET amount = amount + 1 WHERE id % 9 = 1")
    legacy.execute("DELETE FROM orders WHERE id % 11 = 3")
    legacy.execute("UPDATE customer SET name = 'other' WHERE code = 'c3'")
    legacy.execute("INSERT INTO orders VALUES (100, 2, 5.0, 'new')")
    for name in TABLES:
        loaded.pair.refresh(name)
    before = {row[-2:]: row for row in loaded.rows(first.files)}
    second = loaded.publish()
    loaded.check(second)
    after = {row[-2:]: row for row in loaded.rows(second.files)}
    folder = (PRIVATE, "changes", "v", *str(second.record.changes).split("/"))
    feed = [
        tuple(row.values())
        for file in second.record.changes_files
        for row in pq.read_table(str(loaded.pair.warehouse.joinpath(*folder, file))).to_pylist()
    ]
    wanted = [("delete", *before[k]) for k in before.keys() - after.keys()]
    wanted += [("insert", *after[k]) for k in after.keys() - before.keys()]
    for key in (k for k in before.keys() & after.keys() if before[k] != after[k]):
        wanted += [("update_before", *before[key]), ("update_after", *after[key])]
    assert sorted(feed, key=repr) == sorted(wanted, key=repr)
    query = read_query(JOIN, where="v")
    assert verified(loaded.spark, "v", query, loaded.inputs(JOIN), second) == second.rows
    with pytest.raises(ProofFailed, match="missing") as caught:
        verified(loaded.spark, "v", query, loaded.inputs(JOIN), first)
    assert caught.value.details["lineage"]


def test_views_over_views_and_self_joins(loaded: Loaded) -> None:
    loaded.publish()
    text = "SELECT a.name, b.name AS other FROM v a JOIN v b ON a.id = b.id AND a.amount < 5"
    made = loaded.recompute(text, name="w")
    assert isinstance(made, NextVersion)
    assert len(made.layout.lineage) == 4
    assert made.rows == len({row[-4:] for row in loaded.rows(made.added)}) > 0


def test_another_query_is_refused_until_it_is_accepted(loaded: Loaded) -> None:
    first = loaded.publish()
    other = JOIN.replace("upper", "lower")
    with pytest.raises(RecipeChanged, match="has changed: the query") as caught:
        loaded.recompute(other)
    assert "driftline refresh v --accept-schema" in caught.value.remedy
    assert len(folders(loaded.store)) == 1
    second = loaded.publish(other, accept_schema=True)
    assert (second.version, second.record.changes) == (first.version + 1, None)
    loaded.check(second, other)


def test_settings_of_the_session_do_not_matter(loaded: Loaded) -> None:
    text = (
        "SELECT id, '${spark.app.name}' AS a, concat(binary(note), binary(note)) AS b,"
        " elt(1, binary(note), binary(note)) AS c, upper('ß') AS d,"
        " base64(repeat('x', 90)) AS e FROM orders"
    )
    first = loaded.publish(text)
    assert loaded.rows(first.files)[0][1] == "${spark.app.name}"
    conf = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.variable.substitute": "true",
        "spark.sql.function.concatBinaryAsString": "true",
        "spark.sql.function.eltOutputAsString": "true",
        "spark.sql.icu.caseMappings.enabled": "false",
        "spark.sql.chunkBase64String.enabled": "false",
    }
    before = {key: str(loaded.spark.conf.get(key)) for key in conf}
    try:
        for key, value in conf.items():
            loaded.spark.conf.set(key, value)
        assert isinstance(loaded.recompute(text), UnchangedView)
    finally:
        for key, value in before.items():
            loaded.spark.conf.set(key, value)


@pytest.mark.parametrize(
    ("text", "condition", "remedy"),
    [
        ("SELECT id, 1 / (amount - 3) AS x FROM orders", "DIVIDE_BY_ZERO", "fails on no row"),
        ("SELECT id, CAST(note AS INT) AS x FROM orders", "CAST_INVALID_INPUT", "fails on no row"),
        ("SELECT id, CAST(id + 100 AS TINYINT) AS x FROM orders", "CAST_OVERFLOW", "on no row"),
        ("SELECT id, amount + INTERVAL 1 DAY AS x FROM orders", "DATATYPE_MISMATCH", "Correct the"),
    ],
)
def test_an_expression_that_raises(loaded: Loaded, text: str, condition: str, remedy: str) -> None:
    with pytest.raises(ViewFailed) as caught:
        loaded.recompute(text)
    assert condition in caught.value.details["condition"]
    assert remedy in caught.value.remedy
    assert caught.value.where == "v"
    assert folders(loaded.store) == []


def test_what_a_view_cannot_have(loaded: Loaded) -> None:
    with pytest.raises(ConfigurationError, match="has the type void"):
        loaded.recompute("SELECT id, NULL AS x FROM orders")
    with pytest.raises(ConfigurationError, match="no column 'nope'"):
        loaded.recompute("SELECT nope FROM orders")


def test_types(loaded: Loaded) -> None:
    text = (
        "SELECT id, CAST(amount AS DECIMAL(12, 3)) AS d, CAST('2020-02-29' AS DATE) AS e, "
        "TIMESTAMP '2020-02-29 01:02:03.456789' AS f, CAST(note AS BINARY) AS g, id > 3 AS h, "
        "CAST(-0.0 AS FLOAT) AS i, to_timestamp_ntz('2020-02-29 01:02:03') AS j FROM orders"
    )
    first = loaded.publish(text)
    found = loaded.rows(first.files)[0]
    assert found[3] == datetime(2020, 2, 29, 1, 2, 3, 456789, tzinfo=UTC)
    assert [str(t.type) for t in first.layout.columns] == [
        "bigint", "decimal(12,3)", "date", "timestamp", "binary", "boolean", "float",
        "timestamp_ntz",
    ]  # fmt: skip
    assert isinstance(loaded.recompute(text), UnchangedView)
