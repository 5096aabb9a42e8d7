"""What other readers of a published table see: the source's columns, in its order, and no others.

Tables of releases that declared bookkeeping columns are in `tests.harness.older_tables`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from driftline.errors import WarehouseUnavailable
from pyspark.sql import SparkSession

from tests.harness.legacy import Legacy
from tests.harness.older_tables import declare, declaring_bookkeeping
from tests.harness.pair import Pair, expect_equal, rows_of
from tests.harness.pair_template import PairTemplate
from tests.harness.places import Table, parquet
from warehouse_agent import changes, read
from warehouse_agent.columns.layout import CHANGED, FIRST, RESERVED, UPDATES
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.table_maintenance.verification import damaged, verified

ROWS = 300
# An integer key, a hashed one, a table that is nothing but its key; a key need not come first.
TABLES = {
    "orders": "status INT, id INTEGER PRIMARY KEY, price DECIMAL(12,2), note TEXT",
    "items": "note BLOB, code TEXT NOT NULL, line INT NOT NULL, PRIMARY KEY (code, line)",
    "tags": "tag TEXT NOT NULL PRIMARY KEY",
}
COLUMNS = {
    "orders": ["status", "id", "price", "note"],
    "items": ["note", "code", "line"],
    "tags": ["tag"],
}
RELATIONS = {name: f'table = "{name}"' for name in TABLES}


@pytest.fixture(scope="module", params=["undeclared", "declared"])
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> PairTemplate:
    """Three tables of two versions each, as this release leaves them, or as one that declared
    bookkeeping columns."""
    loaded = PairTemplate(tmp_path_factory.mktemp(request.param), TABLES, RELATIONS)
    with loaded.made() as pair:
        for batch in range(2):
            fill(pair.legacy, batch * ROWS, ROWS)
            with declaring_bookkeeping() if request.param == "declared" else nullcontext():
                pair.reports()
    (loaded.folder / "kind").write_text(request.param)
    return loaded


@pytest.fixture
def pair(loaded: PairTemplate, tmp_path: Path) -> Iterator[Pair]:
    with loaded.copied(tmp_path) as pair:
        yield pair


@pytest.fixture
def is_declared(loaded: PairTemplate) -> bool:
    return (loaded.folder / "kind").read_text() == "declared"


def fill(legacy: Legacy, first: int, rows: int) -> None:
    numbers = range(first, first + rows)
    orders = [(i % 7, i, f"{i * 37 % 9999}.{i % 100:02d}", f"note {i}") for i in numbers]
    legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)
    items = [(None if i % 11 else b"\0x", f"Ä{i % 70:04d}", i // 70) for i in numbers]
    legacy.many("INSERT INTO items VALUES (?, ?, ?)", items)
    legacy.many("INSERT INTO tags VALUES (?)", [(f"tag {i}",) for i in numbers])


def table(pair: Pair, name: str, version: int | None = None) -> Table:
    return pair.delta(name, version)


def seen(found: DeltaTable) -> list[str]:
    return [field.name for field in found.schema().fields]


def ours(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(RESERVED)]


def data_files(pair: Pair, name: str) -> dict[str, bytes]:
    folder = pair.root / name
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*.parquet")}


def check(pair: Pair, name: str) -> None:
    """Readers that know nothing of us find the source's rows and columns, and so does ours."""
    found, rows = table(pair, name), pair.legacy.rows(name)
    by_arrow = found.to_pyarrow_table()
    query = QueryBuilder().register("t", found).execute("SELECT * FROM t")
    by_query = pa.table(query if isinstance(query, pa.Table) else query.read_all())
    for one in (by_arrow, by_query):
        assert one.column_names == COLUMNS[name]
        expect_equal([tuple(row) for row in rows_of(one)], rows)
    for file in found.file_uris():
        footer = parquet(pair.place(file)).metadata
        names = footer.schema.names
        assert names[: len(COLUMNS[name])] == COLUMNS[name]
        assert f"{RESERVED}hi" in names, "the next refresh reads them"
        columns = [footer.row_group(0).column(i) for i in range(footer.num_columns)]
        bounded = [one.path_in_schema for one in columns if one.is_stats_set]
        assert {*COLUMNS[name]} <= {*bounded}
        assert {*ours(bounded)} == {FIRST, UPDATES, CHANGED}
    head = formats.head(pair.store, name)
    assert head is not None
    assert not damaged(pair.steps, pair.store, name, head)
    assert verified(pair.store, name, head, {}) == head.rows == len(rows)


def actions(pair: Pair, name: str, version: int) -> list[dict[str, Any]]:
    log = pair.root / name / "_delta_log" / f"{version:020d}.json"
    return [json.loads(line) for line in log.read_text().splitlines()]


def edit(pair: Pair) -> None:
    pair.legacy.execute("UPDATE orders SET note = 'edited' WHERE id % 50 = 3")
    pair.legacy.execute("UPDATE items SET note = x'65' WHERE line = 2")
    pair.legacy.execute("DELETE FROM tags WHERE tag LIKE '%7'")
    fill(pair.legacy, 2 * ROWS, 10)


@pytest.mark.parametrize("name", TABLES)
def test_a_refresh_leaves_the_columns_of_the_source_alone(
    pair: Pair, name: str, is_declared: bool
) -> None:
    before = data_files(pair, name)
    assert bool(ours(seen(table(pair, name)))) == is_declared
    edit(pair)
    report = pair.refresh(name)
    assert report.version == 2, "what is declared changes in the same entry"
    assert data_files(pair, name).items() >= before.items()
    check(pair, name)
    pair.check_feed(name, 2)
    assert any("metaData" in action for action in actions(pair, name, 2)) == is_declared
    assert table(pair, name).metadata().id == table(pair, name, 0).metadata().id
    edit_again = "UPDATE orders SET note = 'again' WHERE id < 9"
    pair.legacy.execute(edit_again)
    assert pair.refresh(name).version == (3 if name == "orders" else 2)
    check(pair, name)


@pytest.mark.parametrize("name", TABLES)
def test_a_refresh_that_finds_nothing_writes_no_byte_of_data(
    pair: Pair, name: str, is_declared: bool
) -> None:
    before = data_files(pair, name)
    files = sorted(table(pair, name).file_uris())
    report = pair.refresh(name)
    assert report.version is not None
    assert (report.previous_version, report.version) == (1, 2 if is_declared else 1)
    assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == (0, 0, 0)
    assert report.source_scans == 1
    assert data_files(pair, name) == before
    assert sorted(table(pair, name).file_uris()) == files
    check(pair, name)
    if is_declared:
        assert {key for one in actions(pair, name, 2) for key in one} == {
            "commitInfo", "metaData", "txn",
        }  # fmt: skip
        head = formats.head(pair.store, name)
        assert head is not None
        assert (head.record.adopted, head.rows) == (1, 2 * ROWS)
        assert ours(seen(table(pair, name, 1))), "older versions stay as they were published"
    assert pair.refresh(name).version == report.version, "once"
    edit(pair)
    following = 3 if is_declared else 2
    assert pair.refresh(name).version == following
    check(pair, name)
    pair.check_feed(name, following)


@pytest.mark.parametrize("finds", ["nothing", "changes"])
def test_the_newest_version_may_have_a_checkpoint(
    pair: Pair, is_declared: bool, finds: str
) -> None:
    table(pair, "orders").create_checkpoint()
    if finds == "changes":
        edit(pair)
    version = 2 if is_declared or finds == "changes" else 1
    assert pair.refresh("orders").version == version
    check(pair, "orders")


def test_one_of_two_commands_undeclares(
    pair: Pair, is_declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another agent, which has no lock of ours, commits between: what was found equal is so."""
    known, done = formats.commit, list[int]()

    def after_another(store: Store, name: str, new: Any) -> int:
        if not done:
            done.append(known(store, name, new))
        return known(store, name, new)

    monkeypatch.setattr(formats, "commit", after_another)
    report = pair.refresh("orders")
    assert (report.version, report.attempts, done) == (1, 1, [2] if is_declared else [])
    check(pair, "orders")
    assert pair.refresh("orders").version == (2 if is_declared else 1)
    check(pair, "orders")


def test_what_cannot_be_committed_is_left_to_a_later_refresh(
    pair: Pair, is_declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise WarehouseUnavailable("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(formats, "commit", full)
        assert pair.refresh("items").version == 1
    assert bool(ours(seen(table(pair, "items")))) == is_declared
    assert pair.refresh("items").version == (2 if is_declared else 1)
    check(pair, "items")


@pytest.mark.parametrize("name", TABLES)
def test_files_that_another_program_wrote_without_them_are_not_pulled(
    pair: Pair, name: str, is_declared: bool
) -> None:
    """What delta-rs compacts has the declared columns alone: fingerprints are made from values."""
    pair.refresh(name)
    table(pair, name).optimize.compact()
    (file,) = table(pair, name).file_uris()
    assert parquet(pair.place(file)).schema_arrow.names == COLUMNS[name]
    maintained = 3 if is_declared else 2
    report = pair.refresh(name)
    assert report.version == maintained + 1
    assert report.bytes_received < 1500
    assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == (0, 0, 0)
    check(pair, name)
    edit(pair)
    assert pair.refresh(name).version == maintained + 2
    check(pair, name)
    pair.check_feed(name, maintained + 2)


def rename(found: Table) -> None:
    """By an entry that names the column of the same files in another way."""
    log = found.root / "_delta_log"
    schema = json.loads(found.schema().to_json())
    schema["fields"][-1]["name"] = "renamed"
    metadata = found.metadata()
    action = {
        "metaData": {
            "id": str(metadata.id), "name": metadata.name, "partitionColumns": [],
            "format": {"provider": "parquet", "options": {}}, "configuration": {},
            "schemaString": json.dumps(schema), "createdTime": metadata.created_time,
        }
    }  # fmt: skip
    info = {"commitInfo": {"timestamp": 0, "operation": "RENAME COLUMN"}}
    text = "".join(json.dumps(one) + "\n" for one in (info, action))
    (log / f"{found.version() + 1:020d}.json").write_text(text)


def append_with_a_name_of_ours(found: DeltaTable) -> None:
    """The column revives what the other files have under this name."""
    rows = pa.table({**{name: [None] for name in seen(found)}, f"{RESERVED}hi": [1]})
    rows = rows.set_column(1, "id", pa.array([10**6], pa.int64()))
    kept = [field.name for field in rows.schema if not pa.types.is_null(field.type)]
    write_deltalake(found, rows.select(kept), mode="append", schema_mode="merge")


@pytest.mark.parametrize("work", [rename, append_with_a_name_of_ours], ids=lambda w: w.__name__)
def test_other_columns_are_refused_by_name(pair: Pair, work: Callable[[Table], None]) -> None:
    pair.legacy.execute("UPDATE orders SET note = 'edited' WHERE id = 5")
    pair.refresh("orders")
    work(table(pair, "orders"))
    written = seen(table(pair, "orders"))
    assert written != COLUMNS["orders"]
    error = pair.error("orders")
    assert error["code"] == "WAREHOUSE"
    assert "its columns are others" in error["message"]
    assert "driftline refresh orders --accept-restored" in error["remedy"]
    (report,) = pair.reports("orders", options=Options(accept_restored=True))
    assert report.error is None, report.error
    check(pair, "orders")


@pytest.mark.spark
def test_readers_by_spark(spark: SparkSession, pair: Pair) -> None:
    """The product's own, at every version; and files by the schema that the table declares."""
    edit(pair)
    for name in TABLES:
        pair.refresh(name)
        for version in range(3):
            assert (
                read(spark, str(pair.root), name, version, storage=pair.storage).columns
                == COLUMNS[name]
            )
        feed = changes(spark, str(pair.root), name, since=0, storage=pair.storage)
        assert feed.columns == ["_version", "_op", *COLUMNS[name]]
        assert feed.count() > ROWS
        fields = table(pair, name).schema().fields
        ddl = ", ".join(f"`{f.name}` {_spark_type(f.type.type)}" for f in fields)
        if pair.bucket is not None:
            continue  # Spark's own reader has no file system for it
        rows = spark.read.schema(ddl).parquet(*table(pair, name).file_uris())
        assert rows.columns == COLUMNS[name]
        expect_equal(rows_of(rows.toArrow()), pair.legacy.rows(name))


def _spark_type(name: str) -> str:
    return {"long": "bigint", "integer": "int"}.get(name, name)


def test_a_table_of_an_older_release_may_come_back(pair: Pair) -> None:
    """An older release that goes on from ours declares the columns again, and keeps every file."""
    assert pair.refresh("items").error is None
    before = data_files(pair, "items")
    version = declare(pair.store, "items")
    assert ours(seen(table(pair, "items")))
    assert data_files(pair, "items") == before
    assert pair.refresh("items").version == version + 1
    check(pair, "items")
    assert data_files(pair, "items") == before
