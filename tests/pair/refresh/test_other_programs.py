"""Other programs maintain a published table, or write to it: a refresh goes on, or says why not.

delta-rs does what it can. What Spark writes of the same is made by hand, as the Delta protocol
describes it. After each the source changes, and what is published is compared with it.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Field, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType
from driftline.errors import WarehouseUnavailable
from pyspark.sql import SparkSession

from tests.harness.legacy import Legacy
from tests.harness.pair import Pair, expect_equal
from tests.harness.pair_template import PairTemplate
from tests.harness.places import Table, move, write_parquet
from warehouse_agent.inspection.published_state import fragment_state
from warehouse_agent.refresh.job import Options
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.table_maintenance.garbage import unreferenced
from warehouse_agent.table_maintenance.verification import damaged, verified
from warehouse_agent.tasks import file_damage

Rows = list[tuple[Any, ...]]
ROWS = 600
TABLES = {
    "orders": "id INTEGER PRIMARY KEY, status INT, price DECIMAL(12,2), note TEXT, seen TEXT",
    "items": "code TEXT NOT NULL, line INT NOT NULL, sum REAL, note BLOB, PRIMARY KEY (code, line)",
}
RELATIONS = {
    "orders": 'table = "orders"\ntypes = { seen = "timestamp" }',
    "items": 'table = "items"',
}
ACCEPT = Options(accept_restored=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> PairTemplate:
    """Two tables of three files each."""
    loaded = PairTemplate(tmp_path_factory.mktemp("loaded"), TABLES, RELATIONS)
    with loaded.made() as made:
        for batch in range(3):
            fill(made.legacy, batch * ROWS, ROWS)
            for name in TABLES:
                made.refresh(name)
    return loaded


@pytest.fixture
def pair(loaded: PairTemplate, tmp_path: Path) -> Iterator[Pair]:
    with loaded.copied(tmp_path) as made:
        yield made


def fill(legacy: Legacy, first: int, rows: int) -> None:
    numbers = range(first, first + rows)
    seen = ("1583-01-01 00:00:00.000000", "2024-10-27 02:30:00.123456", None)
    legacy.many(
        "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
        [(i, i % 7, f"{i * 37 % 9999}.{i % 100:02d}", f"note {i}", seen[i % 3]) for i in numbers],
    )
    items = [(f"Ä{i % 70:04d}", i // 70, i / 7, None if i % 11 else b"\0x") for i in numbers]
    legacy.many("INSERT INTO items VALUES (?, ?, ?, ?)", items)


def check(pair: Pair, name: str, version: int | None = None, rows: Rows | None = None) -> None:
    """Published == source, row for row; SQLite has moments as text."""
    found = [
        tuple(v.isoformat(" ", "microseconds") if isinstance(v, datetime) else v for v in row)
        for row in pair.published(name, version)
    ]
    expect_equal(found, pair.legacy.rows(name) if rows is None else rows)


def table(pair: Pair, name: str) -> Table:
    return pair.delta(name)


def compact(found: Table) -> None:
    assert found.optimize.compact()["numFilesRemoved"] >= 2


def z_order(found: Table) -> None:
    found.optimize.z_order(["note"])


def vacuum(found: Table) -> None:
    found.vacuum(0, dry_run=False, enforce_retention_duration=False)


def compact_and_vacuum(found: Table) -> None:
    compact(found)
    vacuum(found)


def compact_and_restore(found: Table) -> None:
    """The remedy that Driftline named, when it refused each of these."""
    compact(found)
    found.restore(2)


def checkpoint(found: Table) -> None:
    compact(found)
    found.create_checkpoint()
    found.cleanup_metadata()


def properties(found: Table) -> None:
    found.alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    found.alter.set_table_description("what a catalogue says")
    found.alter.add_feature(
        TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
    )


def as_spark(found: Table, change: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> None:
    """OPTIMIZE as Spark commits it: one file at the root, moments as INT96, and all of its keys."""
    root, name = found.root, f"part-00000-{uuid.uuid4()}-c000"
    rows = change(found.to_pyarrow_table())
    path, now = f"{name}.snappy.parquet", int(time.time() * 1000)
    options = {"use_deprecated_int96_timestamps": True, "row_group_size": 500}
    size = write_parquet(rows, root / path, **options)
    stats = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
    add = {
        "path": path, "partitionValues": {}, "size": size,
        "modificationTime": now, "dataChange": False, "stats": json.dumps(stats),
        "tags": {"INSERTION_TIME": "1", "OPTIMIZE_TARGET_SIZE": "268435456"},
    }  # fmt: skip
    actions: list[dict[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": now, "operation": "OPTIMIZE", "readVersion": found.version(),
                "operationParameters": {"predicate": "[]", "auto": False},
                "isolationLevel": "SnapshotIsolation", "isBlindAppend": False,
                "operationMetrics": {"numRemovedFiles": "3", "numAddedFiles": "1"},
                "engineInfo": "Apache-Spark/4.0.0 Delta-Lake/4.0.0", "txnId": str(uuid.uuid4()),
            }
        },
        {"add": add},
    ]  # fmt: skip
    for gone in found.get_add_actions().column("path").to_pylist():
        remove = {"path": gone, "deletionTimestamp": now, "dataChange": False}
        actions.append({"remove": remove | {"extendedFileMetadata": True, "partitionValues": {}}})
    entry = "".join(json.dumps(action) + "\n" for action in actions)
    (root / "_delta_log" / f"{found.version() + 1:020d}.json").write_text(entry)


def vacuum_as_spark(found: Table) -> None:
    """Two entries that say what was done."""
    log = found.root / "_delta_log"
    for number, what in enumerate(("VACUUM START", "VACUUM END"), found.version() + 1):
        info = {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": what}}
        (log / f"{number:020d}.json").write_text(json.dumps(info) + "\n")


MAINTENANCE = [
    compact, z_order, vacuum, compact_and_vacuum, compact_and_restore, checkpoint, properties,
    as_spark, vacuum_as_spark,
]  # fmt: skip


@pytest.mark.parametrize("work", MAINTENANCE, ids=lambda work: work.__name__)
@pytest.mark.parametrize("name", TABLES)
def test_a_refresh_goes_on_after(pair: Pair, name: str, work: Callable[[Table], None]) -> None:
    before, rows = formats.head(pair.store, name), pair.legacy.rows(name)
    assert before is not None
    work(table(pair, name))
    maintained = table(pair, name).version()
    head = formats.head(pair.store, name)
    assert head == before, "what readers of Driftline are given"
    assert (head.other is None) == (maintained == 2)
    told = fragment_state(pair.store, name).other
    assert (told is None) == (maintained == 2)
    said = restored.same_rows(pair.steps, pair.store, name, head)
    assert said.endswith("with the same rows") == (maintained > 2)
    pair.legacy.execute(f"DELETE FROM {name} WHERE {'id' if name == 'orders' else 'line'} % 5 = 1")
    fill(pair.legacy, 3 * ROWS, 10)
    report = pair.refresh(name)
    assert report.version == maintained + (2 if maintained > 2 else 1)
    assert report.rows_updated == 0
    assert report.rows_total == len(pair.legacy.rows(name)) < len(rows)
    check(pair, name)
    adopted = formats.head(pair.store, name, version=maintained + 1)
    if maintained > 2:
        assert adopted is not None
        assert (adopted.record.adopted, adopted.rows) == (2, len(rows))
        check(pair, name, maintained + 1, rows)
        assert all(file.path.startswith("data-") for file in adopted.files)
    value = "x'6c61746572'" if name == "items" else "'later'"
    pair.legacy.execute(f"UPDATE {name} SET note = {value}")
    pair.refresh(name)
    check(pair, name)
    now = formats.head(pair.store, name)
    assert now is not None
    assert not damaged(pair.steps, pair.store, name, now)
    assert verified(pair.store, name, now, {}) == now.rows


def update(found: Table) -> None:
    """It carries the fingerprints along."""
    found.update(updates={"note": "CAST('by hand' AS STRING)"}, predicate="status = 3")


def delete(found: Table) -> None:
    found.delete("status = 3")


def delete_and_insert(found: Table) -> None:
    """As many rows as before, with fingerprints that occur."""
    rows = found.to_pyarrow_table()
    status = rows["status"].to_pylist()
    some = rows.filter(pa.array([one == 4 for one in status])).slice(0, status.count(3) - 9)
    found.delete("status = 3")
    write_deltalake(found, pa.concat_tables([some, some.slice(0, 9)]), mode="append")


def swap(rows: pa.Table) -> pa.Table:
    """Exchange a value of two rows, beside which the fingerprints stay."""
    at = rows.schema.get_field_index("note")
    values = rows["note"].to_pylist()
    values[3], values[900] = values[900], values[3]
    return rows.set_column(at, rows.schema.field(at), pa.array(values, rows["note"].type))


def optimize_wrongly(found: Table) -> None:
    as_spark(found, swap)


def restore_an_older_one(found: Table) -> None:
    found.restore(1)


def add_a_column(found: Table) -> None:
    found.alter.add_columns([Field("mine", PrimitiveType("long"))])


def write_over(found: Table) -> None:
    write_deltalake(found, pa.table({"a": [1]}), mode="overwrite", schema_mode="overwrite")


WRITES: dict[Callable[[Table], None], str] = {
    update: "UPDATE.*of as many rows, 1,800, some have other values",
    delete: "DELETE.*there are 1,543 rows instead of 1,800",
    delete_and_insert: "DELETE, WRITE.*of as many rows",
    optimize_wrongly: "OPTIMIZE.*of as many rows",
    restore_an_older_one: "RESTORE.*there are 1,200 rows instead of 1,800",
    add_a_column: "ADD COLUMN.*its columns are others",
    write_over: "WRITE.*its columns are others",
}


@pytest.mark.parametrize("work", WRITES, ids=lambda work: work.__name__)
@pytest.mark.parametrize("is_vacuumed", [False, True], ids=["", "and its old files are removed"])
def test_other_rows_are_told_and_not_adopted(
    pair: Pair, work: Callable[[Table], None], is_vacuumed: bool
) -> None:
    work(table(pair, "orders"))
    if is_vacuumed:
        vacuum(table(pair, "orders"))
    written = table(pair, "orders").version()
    fill(pair.legacy, 3 * ROWS, 10)
    error = pair.error("orders")
    assert error["code"] == "WAREHOUSE"
    message = f"Version {written} was written by another program ("
    assert error["message"].startswith(message), error["message"]
    assert re.search(WRITES[work], error["message"]), error["message"]
    assert "the last that Driftline published" in error["message"]
    assert "driftline refresh orders --accept-restored" in error["remedy"]
    assert table(pair, "orders").version() == written
    ours = formats.head(pair.store, "orders")
    assert ours is not None
    with pytest.raises(WarehouseUnavailable, match=re.escape(error["message"])):
        restored.same_rows(pair.steps, pair.store, "orders", ours)
    (report,) = pair.reports("orders", options=ACCEPT)
    if report.error is not None:  # what is said of missing files is a remedy as well
        assert is_vacuumed
        assert "driftline verify orders --repair" in report.error["remedy"]
        report = pair.refresh("orders", options=Options(repair=True))
    assert report.rows_total == 3 * ROWS + 10
    assert report.version == written + 2
    check(pair, "orders")
    if not is_vacuumed:
        assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == (10, 0, 0)
        pair.check_feed("orders", written + 2)
    pair.legacy.execute("UPDATE orders SET note = 'later' WHERE status = 2")
    pair.refresh("orders")
    check(pair, "orders")


def test_what_an_older_release_published_is_compared_with_its_files(pair: Pair) -> None:
    """It noted no total. Without its files nobody can compare, and that is said."""
    for file in (pair.root / "orders" / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if "commitInfo" in line:
                body = json.loads(line["commitInfo"]["driftline"])
                assert body.pop("total")["rows"] == body["rows"]
                line["commitInfo"]["driftline"] = json.dumps(body)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    compact(table(pair, "orders"))
    pair.refresh("orders")
    check(pair, "orders")
    head = formats.head(pair.store, "orders")
    assert head is not None
    assert (head.version, head.record.adopted) == (4, 2)
    compact_again = table(pair, "orders")
    compact_again.optimize.z_order(["note"])
    vacuum(table(pair, "orders"))
    assert "nobody can compare" in pair.error("orders")["message"]
    pair.reports("orders", options=ACCEPT)
    pair.refresh("orders", options=Options(repair=True))
    check(pair, "orders")


def test_deletion_vectors_are_refused_by_name(pair: Pair) -> None:
    table(pair, "orders").alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    error = pair.error("orders")
    assert "deletionVectors" in error["message"]
    assert "Move the table's folder away" in error["remedy"]
    move(pair.root / "orders", pair.folder / "away")
    pair.refresh("orders", options=ACCEPT)
    check(pair, "orders")


def test_it_may_happen_while_a_refresh_runs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is refused, and the next attempt of the same command goes on."""
    known, done = formats.commit, list[str]()

    def after_compaction(store: Store, name: str, new: Any) -> int:
        if not done:
            done.append(name)
            compact(table(pair, name))
        return known(store, name, new)

    monkeypatch.setattr(formats, "commit", after_compaction)
    fill(pair.legacy, 3 * ROWS, 10)
    report = pair.refresh("orders", attempts=2)
    assert (report.attempts, report.version, report.rows_inserted) == (2, 5, 10)
    assert [error["code"] for error in report.retried] == ["LOCKED"]
    check(pair, "orders")


def test_an_attempt_that_ends_before_the_commit_leaves_garbage_that_is_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact(table(pair, "orders"))

    def full(*_: object) -> int:
        raise WarehouseUnavailable("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(formats, "commit", full)
        assert pair.reports("orders")[0].error is not None
    later = datetime.now(UTC) + timedelta(hours=1)
    garbage = unreferenced(pair.store, "orders", keep_hours=0, now=later)
    assert [p for p in garbage.places if p[0] == "orders" and p[1].endswith("-adopted")]
    for place in garbage.places:
        pair.store.remove_file(*place)
    pair.refresh("orders")
    check(pair, "orders")


@pytest.mark.spark
@pytest.mark.parametrize("work", [compact_and_vacuum, update], ids=["maintained", "written to"])
def test_where_all_steps_are_spark_s(
    spark: SparkSession, pair: Pair, work: Callable[[Table], None]
) -> None:
    with Pair(spark, pair.legacy, pair.folder, dict(RELATIONS)) as on_spark:
        on_spark.bucket, on_spark.small_bytes = pair.bucket, 0
        work(table(pair, "orders"))
        fill(pair.legacy, 3 * ROWS, 10)
        if work in WRITES:
            assert "some have other values" in on_spark.error("orders")["message"]
        report = on_spark.refresh("orders", options=ACCEPT)
        assert report.rows_inserted == 10
        check(on_spark, "orders")


def test_gc_keeps_what_another_program_s_version_needs(pair: Pair) -> None:
    table(pair, "orders").restore(0)
    later = datetime.now(UTC) + timedelta(days=900)
    garbage = unreferenced(pair.store, "orders", keep_hours=0, now=later)
    for place in garbage.places:
        pair.store.remove_file(*place)
    newest = table(pair, "orders")
    assert len(newest.to_pyarrow_table()) == ROWS
    ours = formats.head(pair.store, "orders")
    assert ours is not None
    assert not file_damage.absent(pair.store, "orders", ours.files)
    pair.refresh("orders", options=ACCEPT)
    check(pair, "orders")
