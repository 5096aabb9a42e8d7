"""Damaged and missing data files, and tables that went back in time: mended, or refused by name.

Small tables of several data files over SQLite; what is published is compared with what the owner's
connection reads. `test_random_damage` is the gate: whatever happens to files, the rows are right
again, and what moved is what the files held.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from driftline.errors import NotFound, WarehouseUnavailable
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import SMALL_BYTES, Pair
from tests.harness.places import Place, copy, move, remove
from warehouse_agent import changes
from warehouse_agent.history.notes import Notes, note_damage
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.refresh.recovery import repair
from warehouse_agent.report import Report
from warehouse_agent.spark import session
from warehouse_agent.spark.executors import KeyFile, meaning
from warehouse_agent.storage import formats
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.table_maintenance import verification
from warehouse_agent.table_maintenance.garbage import unreferenced
from warehouse_agent.table_maintenance.verification import damaged, verified
from warehouse_agent.tasks import file_damage

ROWS, BATCHES = 900, 3  # files: one of the load, and one of each batch that followed
BYTES_TIMES, BYTES_MORE = 1.2, 10_000  # of what lost rows held, and beside it
SEED = 20_260_713


def insert(legacy: SqliteLegacy, first: int, rows: int, rng: random.Random) -> None:
    found = [(first + i, i % 7, rng.randbytes(rng.randrange(20, 60)).hex()) for i in range(rows)]
    legacy.many("INSERT INTO orders VALUES (?, ?, ?)", found)


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files, of rows that came one batch after the other: a folder to copy."""
    folder, rng = tmp_path_factory.mktemp("loaded"), random.Random(SEED)
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status INT, note TEXT)")
    with Pair(spark, legacy, folder, {"orders": 'table = "orders"'}) as made:
        for batch in range(1 + BATCHES):
            insert(legacy, 1 + batch * ROWS, ROWS, rng)
            made.refresh("orders")
    legacy.close()
    return folder


@pytest.fixture
def pair(
    request: pytest.FixtureRequest, spark: SparkSession, loaded: Path, tmp_path: Path
) -> Iterator[Pair]:
    """A copy of its own of the loaded table and its source; with a parameter, its `small_bytes`."""
    for one in loaded.glob("erp.db*"):
        shutil.copyfile(one, tmp_path / one.name)
    legacy = SqliteLegacy(tmp_path / "erp.db")
    relations = {"orders": 'table = "orders"'}
    with Pair(spark, legacy, tmp_path / "pair", relations, template=loaded) as made:
        made.small_bytes = getattr(request, "param", made.small_bytes)
        # Tests bound the bytes, which a fast line may spend to save time.
        made.source_lines = f'address = "{made.address}"\ninsecure = true\nobjective = "bytes"'
        yield made
    legacy.close()


# Steps on Spark, too, where they meet damage.
ALSO_ON_SPARK = pytest.mark.parametrize(
    "pair", [SMALL_BYTES, 0], indirect=True, ids=["here", "all on Spark"]
)


def store(pair: Pair) -> Store:
    return pair.store


def head(pair: Pair) -> Snapshot:
    found = formats.head(store(pair), "orders")
    assert found is not None
    return found


def place(pair: Pair, file: DataFile) -> Place:
    return pair.place(file.uri)


def flip(pair: Pair, file: DataFile, at: float, bit: int = 4) -> None:
    """One bit, so far into the file."""
    data = bytearray(place(pair, file).read_bytes())
    data[int(at * len(data))] ^= 1 << bit
    place(pair, file).write_bytes(data)


def mended(pair: Pair, report: Report, lost: list[DataFile]) -> None:
    """These files are out of the table, their rows are in it, and little else moved."""
    assert report.error is None, report.error
    held = sum(f.size for f in lost)
    assert (report.repaired_files, report.repaired_rows) == (len(lost), sum(f.rows for f in lost))
    moved = report.bytes_sent + report.bytes_received
    assert moved <= BYTES_TIMES * held + BYTES_MORE, f"{moved} bytes for {held}"
    now = head(pair)
    assert now.version == report.version
    assert not {f.path for f in now.files} & {f.path for f in lost}
    assert not damaged(pair.steps, store(pair), "orders", now)
    pair.check("orders")


@ALSO_ON_SPARK
def test_a_missing_file(pair: Pair) -> None:
    """Noticed without a read, pulled again by the same refresh, and nobody is told that its rows
    are new."""
    before = head(pair)
    lost = before.files[1]
    place(pair, lost).unlink()
    report = pair.refresh("orders")
    mended(pair, report, [lost])
    assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == (0, 0, 0)
    assert report.rows_total == before.rows
    with pytest.raises(NotFound, match=r"900 rows of damaged files were pulled again"):
        changes(pair.spark, str(pair.root), "orders", since=before.version, storage=pair.storage)
    pair.legacy.execute("UPDATE orders SET note = 'new' WHERE status = 3")
    assert pair.refresh("orders").repaired_files == 0
    pair.check_feed("orders", before.version + 2)


def test_a_missing_file_of_rows_that_are_gone(pair: Pair) -> None:
    """Nothing is to be pulled; the version that says so is smaller, and not as if by a mistake."""
    lost = head(pair).files
    gone = [f for f in lost if f.bounds is not None and f.bounds[0] > ROWS]
    for file in gone[:2]:
        place(pair, file).unlink()
        pair.legacy.execute(
            f"DELETE FROM orders WHERE id BETWEEN {file.bounds[0]} AND {file.bounds[1]}"  # type: ignore[index]
        )
    report = pair.refresh("orders")
    mended(pair, report, gone[:2])
    assert (report.rows_inserted, report.rows_deleted) == (0, 2 * ROWS)


@ALSO_ON_SPARK
def test_a_page_that_cannot_be_read(pair: Pair) -> None:
    """Found by the read that fails on it, which names the file; the next attempt mends it."""
    before = head(pair)
    lost = before.files[0]
    flip(pair, lost, 0.1)
    ends = lost.bounds
    assert ends is not None
    pair.legacy.execute("UPDATE orders SET note = 'new' WHERE id BETWEEN ? AND ?", *ends)
    error = pair.error("orders")
    assert error["code"] == "WAREHOUSE"
    assert lost.path in error["details"]["file 1"]
    assert "next refresh" in error["remedy"]
    mended(pair, pair.refresh("orders"), [lost])


def test_a_command_mends_what_it_meets(pair: Pair) -> None:
    lost = next(f for f in head(pair).files if f.bounds == (2 * ROWS + 1, 3 * ROWS))
    flip(pair, lost, 0.1)
    assert lost.bounds is not None
    pair.legacy.execute("UPDATE orders SET note = 'new' WHERE id BETWEEN ? AND ?", *lost.bounds)
    report = pair.refresh("orders", attempts=2)
    assert [error["code"] for error in report.retried] == ["WAREHOUSE"]
    mended(pair, report, [lost])


@ALSO_ON_SPARK
def test_damage_that_verify_found_and_that_was_restored(pair: Pair) -> None:
    """A note is no verdict: what is noted is read again, and stays where it is whole."""
    before = head(pair)
    lost = before.files[1]
    copy = place(pair, lost).read_bytes()
    flip(pair, lost, 0.3)
    assert set(damaged(pair.steps, store(pair), "orders", before)) == {lost.path}
    place(pair, lost).write_bytes(copy)
    report = pair.refresh("orders")
    assert (report.version, report.repaired_files) == (before.version, 0)
    assert not store(pair).read_json("_driftline", "fragments", "orders.json").get("damaged")


def test_damage_that_verify_found_in_an_older_version(pair: Pair) -> None:
    """A refresh published while `verify` read: the file is in the next version as well."""
    before = head(pair)
    lost = before.files[1]
    flip(pair, lost, 0.3)
    pair.legacy.execute("INSERT INTO orders VALUES (?, 1, 'new')", 10 * ROWS)
    assert pair.refresh("orders").version == before.version + 1
    assert set(damaged(pair.steps, store(pair), "orders", before)) == {lost.path}
    mended(pair, pair.refresh("orders"), [lost])
    assert not store(pair).read_json("_driftline", "fragments", "orders.json").get("damaged")


def test_a_repair_is_told_what_verify_found(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours may pass between both, with refreshes that read nothing of what is damaged."""
    lost = head(pair).files[1]
    flip(pair, lost, 0.3)
    notes = pair.root / "_driftline" / "fragments" / "orders.json"
    old = notes.read_bytes()

    def found(*args: Any, **kwargs: Any) -> dict[str, str]:
        wrong = damaged(*args, **kwargs)
        notes.write_bytes(old)
        pair.legacy.execute("INSERT INTO orders VALUES (?, 1, 'new')", 10 * ROWS)
        assert pair.refresh("orders").repaired_files == 0
        return wrong

    monkeypatch.setattr(verification, "damaged", found)
    monkeypatch.setattr(session, "start", lambda *_: pair.spark)
    said = pair.said("verify", "orders", "--repair", "--json")
    assert json.loads(said)["repaired_files"] == 1
    assert lost.path not in {f.path for f in head(pair).files}
    pair.check("orders")


def test_damage_that_is_found_while_a_refresh_runs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note waits for the lock; where that takes too long, `verify` says so."""
    before = head(pair)
    lost = before.files[1]
    flip(pair, lost, 0.3)
    with contextlib.ExitStack() as refresh:
        refresh.enter_context(store(pair).lock("orders"))
        with monkeypatch.context() as patched:
            patched.setattr(verification, "NOTE_WAIT_S", 0.0)
            with pytest.raises(WarehouseUnavailable, match="is damaged") as caught:
                damaged(pair.steps, store(pair), "orders", before)
        assert "This could not be noted: " in caught.value.remedy
        assert "driftline verify orders --repair" in caught.value.remedy
        assert lost.path in caught.value.details["file 1"]
        monkeypatch.setattr(time, "sleep", lambda seconds: refresh.close())
        assert set(damaged(pair.steps, store(pair), "orders", before)) == {lost.path}
    monkeypatch.undo()
    mended(pair, pair.refresh("orders"), [lost])


def test_a_note_that_is_made_while_a_refresh_runs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where storage has no locks: what this refresh did not read again is left to the next."""
    before = head(pair)
    lost = before.files[1]
    flip(pair, lost, 0.3)
    published = repair.published

    def noted_then(job: Job) -> Snapshot | None:
        base = published(job)
        note_damage(job.store, job.name, {lost.path: "damaged", "data-gone/0.parquet": "damaged"})
        return base

    with monkeypatch.context() as patched:
        patched.setattr(repair, "published", noted_then)
        patched.setattr(Store, "has_locks", False)
        assert pair.refresh("orders").repaired_files == 0
    noted = Notes.read(store(pair), "orders").damaged
    assert noted == {lost.path: "damaged", "data-gone/0.parquet": "damaged"}
    mended(pair, pair.refresh("orders"), [lost])
    assert not Notes.read(store(pair), "orders").damaged


@pytest.mark.parametrize("error", [OSError("Input/output error"), MemoryError()])
def test_a_failure_that_passes_is_no_damage(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A file is decoded twice before it counts as damaged; here as Spark's tasks do it."""
    version = head(pair)
    open_ = pq.ParquetFile
    failed: list[Exception] = []

    def once(*args: Any, **kwargs: Any) -> pq.ParquetFile:
        if not failed:
            failed.append(error)
            raise error
        return open_(*args, **kwargs)

    key = KeyFile(store(pair).uri("_driftline", "keys", "orders.key"))
    known = {f.uri: f for f in version.files}
    run = file_damage._examine(version.layout, key, known)
    monkeypatch.setattr(pq, "ParquetFile", once)
    assert not list(run(iter(known)))
    assert failed
    flip(pair, version.files[1], 0.3)
    (batch,) = run(iter(known))
    assert batch.column("path").to_pylist() == [version.files[1].path]


def test_most_files_are_missing(pair: Pair) -> None:
    """That is rather a disk that is not there: nothing is pulled until somebody says so."""
    lost = list(head(pair).files[:3])
    for file in lost:
        place(pair, file).unlink()
    error = pair.error("orders")
    assert (error["code"], error["exit_code"]) == ("WAREHOUSE", 1)
    assert "3 of 4 data files" in error["message"]
    assert "driftline verify orders --repair" in error["remedy"]
    mended(pair, pair.refresh("orders", options=Options(repair=True)), lost)


def test_all_files_are_missing(pair: Pair) -> None:
    lost = list(head(pair).files)
    for file in lost:
        place(pair, file).unlink()
    assert pair.error("orders")["code"] == "WAREHOUSE"
    mended(pair, pair.refresh("orders", options=Options(repair=True)), lost)


@pytest.mark.parametrize("options", [Options(), Options(repair=True)])
def test_a_storage_that_does_not_answer_is_no_damage(pair: Pair, options: Options) -> None:
    """A folder that cannot be listed, and a file that cannot be read, are not lost."""
    before = head(pair)
    folder = (pair.warehouse / "orders" / before.files[0].path).parent
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.symlink_to(folder.name)  # whoever opens it, root as well, gets ELOOP
    error = pair.error("orders", options=options)
    assert error["code"] == "WAREHOUSE"
    assert "cannot be listed" in error["message"]
    folder.unlink()
    aside.rename(folder)
    assert pair.refresh("orders").version == before.version


def test_older_versions_and_gc(pair: Pair) -> None:
    """A version that has the lost file stays damaged, and gc gets by without it."""
    before = head(pair)
    place(pair, before.files[1]).unlink()
    place(pair, before.files[2]).write_bytes(b"")
    pair.refresh("orders")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's
        pair.read("orders", before.version)
    said = str(meaning(caught.value) if pair.bucket else caught.value)  # there it is a task's
    assert re.search(r"(?i)not exist|not found|FAILED_READ_FILE|No such file", said), said
    now = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    garbage = unreferenced(store(pair), "orders", keep_hours=0, now=now)
    for one in garbage.places:
        store(pair).remove_file(*one)
    assert not place(pair, before.files[2]).exists()
    pair.check("orders")
    assert pair.refresh("orders").repaired_files == 0


@ALSO_ON_SPARK
def test_other_columns(pair: Pair) -> None:
    """A schema that is accepted while files are lost."""
    lost = head(pair).files[1]
    place(pair, lost).unlink()
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN more INT")
    pair.legacy.execute("UPDATE orders SET more = id WHERE status = 2")
    report = pair.refresh("orders", options=Options(accept_schema=True))
    assert report.repaired_files == 1
    pair.check("orders")


def test_in_parts(pair: Pair) -> None:
    """What is not compared would stay lost, so all of it is compared this time."""
    pair.fragment_lines["orders"] = 'read_at_most = 1000\nrequire = "fuzzy"'
    lost = head(pair).files[1]
    place(pair, lost).unlink()
    report = pair.refresh("orders")
    mended(pair, report, [lost])
    assert report.proof == "total"


def test_in_tiles(pair: Pair) -> None:
    """Rows of a lost file are in tiles, too; a pass that began before the loss begins anew."""
    pair.fragment_lines["orders"] = 'incremental = {rows = 400, pause_s = 0.001}\nrequire = "fuzzy"'
    lost = head(pair).files[1]
    place(pair, lost).unlink()
    report = pair.refresh("orders")
    assert report.tiles == 11  # 9 of its rows, and 2 for as many new ones as came before
    mended(pair, report, [lost])
    flipped = head(pair).files[0]
    flip(pair, flipped, 0.1)
    assert flipped.bounds is not None
    pair.legacy.execute("UPDATE orders SET note = 'new' WHERE id = ?", flipped.bounds[0])
    report = pair.refresh("orders", attempts=2)
    assert report.error is None
    assert report.repaired_files == 1
    pair.check("orders")


# Tables that went back in time


def log_entry(pair: Pair, version: int) -> Place:
    return pair.root / "orders" / "_delta_log" / f"{version:020d}.json"


def test_a_newest_log_entry_that_was_removed(pair: Pair) -> None:
    """Refused, by `verify` too, until it is accepted; and the number that was given out stands for
    no other rows afterwards."""
    newest = head(pair).version
    seen = pair.published("orders")
    log_entry(pair, newest).unlink()
    error = pair.error("orders")
    assert error["code"] == "WAREHOUSE"
    assert f"version {newest} was published" in error["message"]
    assert "driftline refresh orders --accept-restored" in error["remedy"]
    with pytest.raises(WarehouseUnavailable, match="was published"):
        verified(store(pair), "orders", head(pair), {})
    with pytest.raises(WarehouseUnavailable, match="was published"):  # as an entry may come back
        unreferenced(store(pair), "orders", keep_hours=0, now=dt.datetime.now(dt.UTC))
    pair.legacy.execute("DELETE FROM orders WHERE status = 1")
    report = pair.refresh("orders", options=Options(accept_restored=True))
    assert (report.previous_version, report.version) == (newest + 1, newest + 2)
    pair.check("orders")
    pair.check_feed("orders", newest + 2)
    assert len(pair.published("orders", newest)) == len(seen) - ROWS  # as before the last batch
    # Who followed the feed up to the version that is gone is not led on from what it was not.
    for since in (newest - 1, newest):
        with pytest.raises(NotFound, match=f"version {newest - 1} was restored"):
            changes(
                pair.spark, str(pair.root), "orders", since=since, storage=pair.storage
            ).collect()
    pair.legacy.execute("UPDATE orders SET note = 'later' WHERE status = 2")
    assert pair.refresh("orders").version == newest + 3
    pair.check_feed("orders", newest + 3)


def test_a_table_restored_from_a_backup(pair: Pair) -> None:
    """Several versions back, with what an unfinished exchange had staged since."""
    table = pair.root / "orders"
    copy(table, pair.folder / "backup")
    before = head(pair).version
    for number in range(3):
        pair.legacy.execute("UPDATE orders SET note = ? WHERE status = ?", str(number), number)
        pair.refresh("orders")
    remove(table)
    copy(pair.folder / "backup", table)
    assert pair.error("orders")["code"] == "WAREHOUSE"
    report = pair.refresh("orders", options=Options(accept_restored=True))
    assert report.version == before + 5
    pair.check("orders")
    assert pair.refresh("orders").version == before + 5


def test_accepting_is_cut_off(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of the numbers that are given out again: it is as it was, and goes on."""
    before = head(pair).version
    log_entry(pair, before).unlink()
    log_entry(pair, before - 1).unlink()
    commit, calls = formats.commit, []

    def once(*args: Any, **kwargs: Any) -> int:
        calls.append(1)
        if len(calls) > 1:
            raise WarehouseUnavailable("The disk is full.")
        return commit(*args, **kwargs)

    monkeypatch.setattr(formats, "commit", once)
    (report,) = pair.reports("orders", options=Options(accept_restored=True))
    assert report.error is not None
    monkeypatch.undo()
    assert head(pair).version == before - 1
    assert pair.error("orders")["code"] == "WAREHOUSE"
    assert pair.refresh("orders", options=Options(accept_restored=True)).version == before + 2
    pair.check("orders")


def test_no_false_alarm(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash behind a commit, a note that is lost, a table moved away whose first load is cut."""
    notes = pair.root / "_driftline" / "fragments" / "orders.json"
    old = notes.read_bytes()
    pair.legacy.execute("UPDATE orders SET note = 'x' WHERE status = 1")
    version = pair.refresh("orders").version
    notes.write_bytes(old)  # the note of the version before
    assert pair.refresh("orders").version == version
    notes.unlink()
    assert pair.refresh("orders").version == version
    move(pair.root / "orders", pair.folder / "aside")
    with monkeypatch.context() as patched:
        patched.setattr(formats, "commit", lambda *args, **kwargs: 1 / 0)
        patched.setattr(Job, "discard", lambda job: None)  # killed, not failed
        (report,) = pair.reports("orders")
        assert report.error is not None
    assert list((pair.root / "orders").rglob("*.parquet"))
    assert pair.refresh("orders").version == 0
    pair.check("orders")


def test_a_log_that_is_gone(pair: Pair) -> None:
    """With the data files still there it was removed, and not moved away."""
    remove(pair.root / "orders" / "_delta_log")
    error = pair.error("orders")
    assert error["code"] == "WAREHOUSE"
    assert "log is missing" in error["message"]
    assert pair.refresh("orders", options=Options(accept_restored=True)).version == 0
    pair.check("orders")


# The random gate


def _truncate(pair: Pair, file: DataFile, _files: list[DataFile], rng: random.Random) -> None:
    data = place(pair, file).read_bytes()
    place(pair, file).write_bytes(data[: rng.randrange(1, len(data))])


def _replace(pair: Pair, file: DataFile, files: list[DataFile], rng: random.Random) -> None:
    other = rng.choice([f for f in files if f is not file])
    copy(place(pair, other), place(pair, file))


DAMAGES: dict[str, Callable[[Pair, DataFile, list[DataFile], random.Random], object]] = {
    "deleted": lambda pair, file, files, rng: place(pair, file).unlink(),
    "truncated": _truncate,
    "flipped": lambda pair, file, files, rng: flip(pair, file, rng.random(), rng.randrange(8)),
    "replaced": _replace,
    "emptied": lambda pair, file, files, rng: place(pair, file).write_bytes(b""),
}


def damage_at_random(spark: SparkSession, folder: Path, seed: int) -> tuple[int, int]:
    """One case; returns bytes on the line, and bytes that the lost files held."""
    rng = random.Random(seed)
    legacy = SqliteLegacy(folder / "erp.db")
    key = rng.choice(["id INTEGER PRIMARY KEY", "id TEXT PRIMARY KEY"])
    legacy.execute(f"CREATE TABLE orders ({key}, status INT, note TEXT)")
    with Pair(spark, legacy, folder / "pair", {"orders": 'table = "orders"'}) as pair:
        rows = rng.randrange(50, 1500)
        for batch in range(rng.randrange(3, 5)):
            insert(legacy, 1 + batch * rows, rows, rng)
            if batch > 1:
                legacy.execute("UPDATE orders SET note = note || '!' WHERE status = 3")
            pair.refresh("orders")
        before = head(pair)
        files = sorted(before.files, key=lambda f: (f.rows, f.size))  # their names are random
        hurt = rng.sample(files, rng.randint(1, max(len(files) // 2, 1)))
        for file in hurt:
            kinds = [kind for kind in DAMAGES if kind != "replaced" or len(files) > 1]
            DAMAGES[rng.choice(kinds)](pair, file, files, rng)
        if rng.random() < 0.3:
            legacy.execute("UPDATE orders SET note = 'edited' WHERE status = 5 AND length(id) < 3")
        moved = 0
        for _ in range(2):  # once as it is, and once more with what only a full read finds
            # A table of one file is missing as a whole.
            options = Options(repair=len(files) == 1)
            report = pair.refresh("orders", attempts=3, options=options)
            is_equal = report.version == report.previous_version
            moved += 0 if is_equal else report.bytes_sent + report.bytes_received
            damaged(pair.steps, store(pair), "orders", head(pair))
        now = head(pair)
        assert not damaged(pair.steps, store(pair), "orders", now)
        verified(store(pair), "orders", now, {})
        pair.check("orders")
        stay = {f.path for f in now.files}
        lost = [f for f in hurt if f.path not in stay]
    legacy.close()
    return moved, sum(f.size for f in lost)


@pytest.mark.parametrize(
    ("seed", "small_bytes"),
    [
        pytest.param(1, SMALL_BYTES, id="1"),
        pytest.param(2, SMALL_BYTES, id="2"),
        pytest.param(2, 0, id="2, all on Spark"),
    ],
)
def test_random_damage(
    spark: SparkSession,
    tmp_path: Path,
    seed: int,
    small_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.harness.pair.SMALL_BYTES", small_bytes)
    moved, held = damage_at_random(spark, tmp_path, seed)
    assert moved <= BYTES_TIMES * held + BYTES_MORE, f"{moved} bytes for {held}"


@pytest.mark.soak
def test_fifty_random_damages(spark: SparkSession, tmp_path: Path) -> None:
    ratios = []
    for seed in range(50):
        folder = tmp_path / str(seed)
        folder.mkdir()
        moved, held = damage_at_random(spark, folder, seed)
        ratios.append((moved / (BYTES_TIMES * held + BYTES_MORE), moved, held, seed))
        print(f"seed {seed}: {moved:,} bytes for {held:,}")
    assert max(ratios)[0] <= 1, max(ratios)
