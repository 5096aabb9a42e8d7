"""Faults and bad input, one by one: a clear error, readers untouched, the next refresh converges.

`Pair.error` runs a refresh that must fail and checks that no reader could notice; `check` compares
what is published with what the owner's connection reads. What the error says is part of the
contract: its code, exit code, whether running again is safe, and the remedy.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import WarehouseUnavailable
from driftline.limits import MESSAGE_BYTES_MAX
from driftline.reconciliation.sketches import elements
from driftline.rows.digests import Salt, mix
from driftline.rows.fingerprints import fingerprints
from driftline.values.send_format import string_encoder
from pyspark.sql import SparkSession

from source_agent.config import file as source_configure
from source_agent.enrolment import enroll
from source_agent.server.service import start
from tests import ROOT
from tests.harness.family import FAMILY
from tests.harness.forks import WAREHOUSE, run
from tests.harness.legacy import Legacy, MariaLegacy, PostgresLegacy, SqliteLegacy, of_family
from tests.harness.no_locks import without_locks
from tests.harness.pair import Pair, SourceProcess, environment, expect_equal
from tests.harness.relay import Relay
from tests.harness.servers import PostgreSQL
from tests.reference.rows import row_bytes
from warehouse_agent import config as configure
from warehouse_agent import read
from warehouse_agent.columns.layout import Layout
from warehouse_agent.events import Event, RefreshCommitted, RefreshRetried, RefreshStarted
from warehouse_agent.refresh import finish, whole
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.tasks import staged_rows, staging
from warehouse_agent.transport import channel as link_module
from warehouse_agent.transport.channel import Stream

ROWS = 600
ORDERS = "CREATE TABLE orders (id BIGINT PRIMARY KEY, code VARCHAR(20), status INT, note TEXT)"
COMPARISON_BYTES = 300_000  # generous for every table here: digests, row hashes, set-up


def fill(legacy: Legacy, table: str = "orders", rows: int = ROWS) -> None:
    found = [(i * 3, f"c{i:05d}", i % 7, f"note {i}") for i in range(rows)]
    legacy.many(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", found)


def edit(legacy: Legacy, text: str = "edited") -> None:
    legacy.execute("UPDATE orders SET note = ? WHERE status = 3", text)
    legacy.execute("DELETE FROM orders WHERE status = 5 AND id < 900")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteLegacy]:
    made = SqliteLegacy(tmp_path / "erp.db")
    made.execute(ORDERS.replace("BIGINT", "INTEGER"))
    fill(made)
    yield made
    made.close()


@pytest.fixture
def postgres(postgresql: PostgreSQL) -> Iterator[PostgresLegacy]:
    made = PostgresLegacy(postgresql)
    made.execute(ORDERS)
    fill(made)
    yield made
    made.close()


@pytest.fixture(params=FAMILY)
def maria(request: pytest.FixtureRequest) -> Iterator[MariaLegacy]:
    made = of_family(request.getfixturevalue(request.param))
    yield made
    made.close()


@pytest.fixture
def pair(spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path) -> Iterator[Pair]:
    """SQLite, loaded once."""
    with Pair(spark, sqlite, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        made.refresh("orders")
        yield made


def converges(pair: Pair, name: str = "orders", options: Options | None = None) -> None:
    """The next refresh publishes the next version, equal to the source."""
    before = pair.version(name)
    report = pair.refresh(name, options=options)
    assert report.version == (0 if before is None else before + 1)
    pair.check(name, "orders" if name == "orders" else None)


# The source


def test_source_down(pair: Pair) -> None:
    edit(pair.legacy)
    pair.stop()
    error = pair.error("orders")
    assert (error["code"], error["exit_code"], error["safe_to_retry"]) == ("UNREACHABLE", 4, True)
    assert pair.address in error["message"]
    assert "driftline-source serve" in error["remedy"]
    pair.serve()
    converges(pair)


def test_source_killed_while_it_ships(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL to the source agent's process; the next one goes on where it stopped.

    A reset drops what gRPC holds and the agent has not read, so the kill waits for its reader.
    """
    kept, is_read = [0], threading.Event()
    add = staging.FrameWriter.add

    def counted(writer: staging.FrameWriter, frame: bytes) -> None:
        add(writer, frame)
        kept[0] += len(frame)
        if kept[0] > 1_100_000:
            is_read.set()

    monkeypatch.setattr(staging.FrameWriter, "add", counted)
    legacy = big_table(tmp_path, rows=8000)
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        with (
            SourceProcess(pair.source_toml(), is_forked=True) as source,
            Relay(source.address) as relay,
        ):
            pair.address = relay.address

            def kill() -> None:
                assert is_read.wait(30)
                source.kill()

            relay.cut_after(down=2_500_000, then=kill)
            error = pair.error("orders")
            assert is_read.is_set()
            assert relay.cuts == 1
            assert (error["code"], error["safe_to_retry"]) == ("UNREACHABLE", True)
        with SourceProcess(pair.source_toml(), is_forked=True) as source:
            pair.address = source.address
            report = pair.refresh("orders")
            assert report.bytes_received < 8000 * 512 - 1_000_000  # a part was staged
            pair.check("orders")
    legacy.close()


def test_source_silent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A middlebox that acknowledges everything and forwards nothing."""
    monkeypatch.setattr(link_module, "NO_PROGRESS_S", 2.0)
    monkeypatch.setattr(link_module, "CONTROL_S", 2.0)
    edit(pair.legacy)
    with Relay(pair.address) as relay:
        pair.address = relay.address
        with after_verdict(relay.swallow):
            error = pair.error("orders")
        assert (error["code"], error["safe_to_retry"]) == ("UNREACHABLE", True)
        relay.heal()
        converges(pair)


def test_line_reset_anywhere(pair: Pair) -> None:
    """Whatever byte it breaks at, the command's own retries get through, and the bytes of a cut
    attempt are all that it costs."""
    rng = random.Random(4)
    with Relay(pair.address) as relay:
        pair.address = relay.address
        for number in range(4):
            edit(pair.legacy, f"edit {number}")
            up = rng.random() < 0.3
            at = rng.randrange(40, 800)  # less than the shortest exchange has in either direction
            relay.cut_after(up=at if up else None, down=None if up else at)
            report = pair.refresh("orders", attempts=3)
            where = f"{number}: cut at {at} {'up' if up else 'down'}, {relay.cuts} cuts"
            assert (report.version, relay.cuts) == (number + 1, number + 1), where
            pair.check("orders")


def test_database_crashes_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    """Before a refresh and in the middle of one."""
    with PostgreSQL() as server:
        legacy = PostgresLegacy(server)
        legacy.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note bytea)")
        rng = random.Random(1)
        legacy.many(
            "INSERT INTO orders VALUES (?, ?)", [(i, rng.randbytes(512)) for i in range(20_000)]
        )
        legacy.execute("CHECKPOINT")  # the test's server does not promise to keep a commit
        with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
            server.crash()
            error = pair.error("orders")
            found = (error["code"], error["exit_code"], error["safe_to_retry"])
            assert found == ("DATABASE_UNAVAILABLE", 4, True)
            server.start()
            with Relay(pair.address) as relay:
                pair.address = relay.address
                relay.cut_after(down=1_500_000, then=server.crash, reset=False)
                error = pair.error("orders")
                assert relay.cuts == 1
                assert (error["code"], error["safe_to_retry"]) == ("DATABASE_UNAVAILABLE", True)
            server.start()
            legacy.reconnect()
            pair.restart()
            converges(pair)
        legacy.close()


def test_wrong_password(spark: SparkSession, postgres: PostgresLegacy, tmp_path: Path) -> None:
    right = postgres.password
    postgres.password = "not-it"
    with Pair(spark, postgres, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        error = pair.error("orders")
        assert (error["code"], error["exit_code"]) == ("DATABASE_REFUSED", 1)
        assert error["safe_to_retry"] is False
        assert "refused the login" in error["message"]
        assert "not-it" not in str(error)
        postgres.password = right
        pair.restart()
        converges(pair)


def test_unpublished_is_as_if_it_did_not_exist(pair: Pair) -> None:
    """No oracle for what else the database holds."""
    pair.legacy.execute("CREATE TABLE private (id INTEGER PRIMARY KEY)")
    texts = []
    for name in ("private", "nonsense"):
        pair.fragment_lines["orders"] = f'relation = "{name}"'
        error = pair.error("orders")
        assert error["code"] == "NOT_FOUND"
        texts.append(str(error).replace(name, "X"))
    assert texts[0] == texts[1]


def test_published_table_that_is_not_there(pair: Pair) -> None:
    pair.publish("orders", 'table = "ordes"')
    error = pair.error("orders")
    assert error["code"] == "CONFIGURATION"
    assert "orders" not in error["message"] + error["remedy"], "the name of another table"
    pair.publish("orders", 'table = "orders"\nkey = ["nummer"]')
    error = pair.error("orders")
    assert (error["code"], error["exit_code"]) == ("CONFIGURATION", 2)
    assert "nummer" in error["message"]
    pair.publish("orders", 'table = "orders"')
    edit(pair.legacy)
    converges(pair)


# Keys and values


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_null_keys(
    engine: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    legacy = request.getfixturevalue(engine)
    legacy.execute("UPDATE orders SET code = NULL WHERE status IN (2, 3)")
    relations = {"orders": 'table = "orders"\nkey = ["code"]'}
    with Pair(spark, legacy, tmp_path / "pair", relations) as pair:
        error = pair.error("orders")
        assert (error["code"], error["safe_to_retry"]) == ("NULL_KEY", False)
        assert 1 <= len(error["details"]) <= 10
        assert "code" in error["message"]
        assert "where" in error["remedy"]
        nothing_written(pair)
        pair.publish("orders", 'table = "orders"\nkey = ["code"]\nwhere = "code IS NOT NULL"')
        report = pair.refresh("orders")
        expected = [row for row in legacy.rows("orders") if row[1] is not None]
        assert report.rows_total == len(expected)
        expect_equal(pair.published("orders"), expected)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_duplicate_keys(
    engine: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    legacy = request.getfixturevalue(engine)
    legacy.execute("UPDATE orders SET code = 'twice' WHERE id IN (3, 30)")
    legacy.execute("UPDATE orders SET code = 'many' || (id % 20) WHERE id > 900")
    relations = {"orders": 'table = "orders"\nkey = ["code"]'}
    with Pair(spark, legacy, tmp_path / "pair", relations) as pair:
        error = pair.error("orders")
        assert (error["code"], error["safe_to_retry"]) == ("DUPLICATE_KEY", False)
        assert 1 <= len(error["details"]) <= 10
        assert "code" in error["message"]
        nothing_written(pair)
        legacy.execute("UPDATE orders SET code = 'once' || id")
        converges(pair)
        legacy.execute("UPDATE orders SET code = 'again' WHERE id IN (9, 12)")
        error = pair.error("orders")
        assert error["code"] == "DUPLICATE_KEY"
        assert "again" in str(error["details"])
        legacy.execute("UPDATE orders SET code = 'no more' WHERE id = 9")
        converges(pair)


def nothing_written(pair: Pair, name: str = "orders") -> None:
    """No version, and no data file of an attempt."""
    assert pair.version(name) is None
    assert not list((pair.warehouse / name).rglob("*.parquet"))


@pytest.mark.parametrize("way_out", ["carrier", "source"])
def test_value_that_does_not_fit(
    way_out: str, spark: SparkSession, postgres: PostgresLegacy, tmp_path: Path
) -> None:
    """Refused by name; then either way out of it works at once."""
    postgres.execute("CREATE TABLE terms (id int PRIMARY KEY, until timestamp)")
    postgres.execute("INSERT INTO terms SELECT i, '2024-02-29 12:00' FROM generate_series(1, 50) i")
    postgres.execute("UPDATE terms SET until = 'infinity' WHERE id = 7")
    with Pair(spark, postgres, tmp_path / "pair", {"terms": 'table = "terms"'}) as pair:
        error = pair.error("terms")
        assert (error["code"], error["safe_to_retry"]) == ("VALUE", False)
        assert "until" in error["message"] + error["where"]
        assert "infinity" in error["message"]
        assert "carriers" in error["remedy"]
        nothing_written(pair, "terms")
        if way_out == "carrier":
            pair.fragment_lines["terms"] = 'carriers = {until = "string"}'
            assert pair.refresh("terms").version == 0
            published = dict(pair.published("terms"))
            assert published[7] == "infinity"
            assert published[8] == "2024-02-29 12:00:00"
        else:
            postgres.execute("UPDATE terms SET until = NULL WHERE id = 7")
            assert pair.refresh("terms").version == 0
            pair.check("terms")


# The warehouse


@pytest.mark.parametrize("full_at", ["staging", "apply", "commit"])
def test_disk_full(
    full_at: str,
    spark: SparkSession,
    sqlite: SqliteLegacy,
    tmp_path: Path,
    small_disk: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Pair(spark, sqlite, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        pair.disk = small_disk(6) / "warehouse"
        pair.refresh("orders")
        before = pair.published("orders")
        rng = random.Random(2)
        size = {"staging": 16_000, "apply": 7_000, "commit": 100}[full_at]
        sqlite.many(
            "INSERT INTO orders VALUES (?, ?, ?, ?)",
            [(10_000 + i, f"n{i}", 1, rng.randbytes(size).hex()) for i in range(600)],
        )
        if full_at == "commit":
            commit = formats.commit

            def on_a_full_disk(*args: Any, **kwargs: Any) -> int:
                with (
                    contextlib.suppress(OSError),
                    (pair.warehouse / "filler").open("wb", buffering=0) as filler,
                ):
                    while True:
                        filler.write(bytes(4096))
                return commit(*args, **kwargs)

            monkeypatch.setattr(formats, "commit", on_a_full_disk)
        error = pair.error("orders", options=Options(allow_shrink=True))
        monkeypatch.undo()
        assert error["code"] == "WAREHOUSE", error
        assert "space" in (error["message"] + error["remedy"]).lower()
        expect_equal(pair.published("orders"), before)
        small_disk(200)
        converges(pair)
        pair.check_feed("orders", 1)


def test_second_agent_on_a_fragment(pair: Pair) -> None:
    edit(pair.legacy)
    with pair.store.lock("orders"):
        error = pair.error("orders")
        assert (error["code"], error["exit_code"]) == ("LOCKED", 75)
        assert error["safe_to_retry"] is True
    converges(pair)


@pytest.mark.parametrize(("module", "step"), [(formats, "commit"), (finish, "_changes")])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_commit_race_without_the_lock(
    is_loaded: bool,
    module: ModuleType,
    step: str,
    spark: SparkSession,
    sqlite: SqliteLegacy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on an object store, where only the log's put-if-absent decides: one wins, whose feed stays
    as it is, whether the other began with its own before or after."""
    with Pair(spark, sqlite, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        if is_loaded:
            pair.refresh("orders")
            edit(sqlite)

        real = getattr(module, step)
        winner: list[Any] = []

        def late(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr(module, step, real)
            winner.append(pair.refresh("orders"))
            return real(*args, **kwargs)

        without_locks(monkeypatch)
        monkeypatch.setattr(module, step, late)
        (report,) = pair.reports("orders")
        monkeypatch.undo()
        assert winner[0].version == int(is_loaded)
        assert report.error is not None
        assert (report.error["code"], report.error["exit_code"]) == ("LOCKED", 75)
        assert pair.version("orders") == int(is_loaded)
        pair.check("orders")
        if is_loaded:
            pair.check_feed("orders", 1)
        edit(sqlite, "afterwards")
        converges(pair)


def test_damaged_value_is_not_published(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One carrier conversion is wrong: the proof notices, and nothing of it is built upon."""
    made = staged_rows._write_decoded

    def tampered(*args: Any) -> Any:
        right = made(*args)

        def run(staged: Any) -> Iterator[pa.RecordBatch]:
            convert = Layout.batch

            def wrong(*args: Any, **kwargs: Any) -> pa.RecordBatch:
                batch = convert(*args, **kwargs)
                index = batch.schema.get_field_index("note")
                changed = pc.utf8_upper(batch.column(index))
                return batch.set_column(index, batch.schema.field(index), changed)

            Layout.batch = wrong  # type: ignore[method-assign]  # in the process of the task
            try:
                yield from right(staged)
            finally:
                Layout.batch = convert  # type: ignore[method-assign]

        return run

    edit(pair.legacy)
    monkeypatch.setattr(staged_rows, "_write_decoded", tampered)
    error = pair.error("orders")
    assert (error["code"], error["exit_code"], error["safe_to_retry"]) == ("PROOF", 75, True)
    assert "the values in the files" in error["details"]["cause"]
    monkeypatch.undo()
    converges(pair)


@pytest.mark.parametrize(
    ("lost", "cause"),
    [("shipped", "not written as they came"), ("rewritten", "their files were written again")],
)
def test_rows_lost_on_their_way(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, lost: str, cause: str
) -> None:
    """One attempt loses a file of rows; the next publishes, and the report keeps what happened."""
    real, calls = finish._apply, []

    def losing(*args: Any) -> Any:
        applied = real(*args)
        calls.append(lost)
        return replace(applied, **{lost: ()}) if len(calls) == 1 else applied

    edit(pair.legacy)
    pair.fragment_lines["orders"] = 'method = "sketch"'  # a copy would leave nothing of ours
    monkeypatch.setattr(finish, "_apply", losing)
    events: list[Event] = []
    config = pair.config()
    runner = Runner(pair.spark, config, (events.append,), sleep=lambda seconds: None)
    (report,) = runner.refresh(configure.select(config, ["orders"], False), Options())
    assert (report.error, report.version, report.attempts) == (None, 1, 2)
    (before,) = report.retried
    assert before["code"] == "PROOF"
    assert cause in before["details"]["cause"]
    (retried,) = [event for event in events if isinstance(event, RefreshRetried)]
    assert cause in retried.text
    assert [e.attempt for e in events if isinstance(e, RefreshStarted)] == [1, 2]
    assert events[-1] == RefreshCommitted(report), "the events of both attempts, then the end"
    assert len(calls) == 2
    pair.check("orders")


def alike(pair: Pair, salt: Salt, make: Callable[[str], list[str]]) -> tuple[str, str]:
    """Two notes of which rows, made as text in tuple order, have one element in a sketch."""
    store = pair.store
    snapshot, key = formats.head(store, "orders"), store.read(PRIVATE, "keys", "orders.key")
    assert snapshot is not None
    assert key is not None
    recipe = snapshot.layout.recipe
    encoders = [string_encoder(column.type) for column in recipe.columns]
    notes = [f"version {n}" for n in range(400_000)]
    rows = (
        row_bytes([encode(text) for encode, text in zip(encoders, make(note), strict=True)])
        for note in notes
    )
    found = elements(mix(salt, *fingerprints(key, recipe)(rows)).m0)
    order = np.argsort(found)
    (at, *_) = np.flatnonzero(np.diff(found[order]) == 0)
    return notes[order[at]], notes[order[at + 1]]


@pytest.mark.parametrize("data", [b"", b"x" * 31, None])
def test_a_fragment_key_that_is_damaged_or_gone(pair: Pair, data: bytes | None) -> None:
    edit(pair.legacy)
    place = (PRIVATE, "keys", "orders.key")
    key, store = pair.store.read(*place), pair.store
    assert key is not None
    if data is None:
        store.remove_file(*place)
    else:
        store.write(data, *place)
    error = pair.error("orders")
    assert error["code"] == "WAREHOUSE"
    said = "gone" if data is None else f"damaged: {len(data)} bytes, not 32"
    assert f"The fragment key is {said}" in error["message"]
    assert store.uri(*place) in error["remedy"]
    store.write(key, *place, private=True)
    converges(pair)


def test_an_update_that_no_cell_shows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two values of a row with one element the cells tell nothing: the proof does. What came
    was right and is kept; the next attempt, under another salt, finds the row."""
    salts = [Salt(1, 2)]
    before, after = alike(pair, salts[0], lambda note: ["9", "c00003", "3", note])
    (row,) = [row for row in pair.published("orders") if row[0] == 9]
    assert row[1:3] == ("c00003", 3)
    pair.legacy.execute("UPDATE orders SET note = ? WHERE id = 9", before)
    pair.fragment_lines["orders"] = 'method = "sketch"'
    pair.refresh("orders")
    pair.legacy.execute("UPDATE orders SET note = ? WHERE id = 9", after)
    pair.legacy.execute("UPDATE orders SET note = 'edited' WHERE status = 4")
    pair.legacy.execute("DELETE FROM orders WHERE status = 5 AND id < 900")
    fresh = Salt.fresh
    monkeypatch.setattr(Salt, "fresh", lambda: salts.pop() if salts else fresh())
    config = pair.config()
    runner = Runner(pair.spark, config, sleep=lambda seconds: None)
    shipped, real = [], finish._apply

    def noted(*args: Any) -> Any:
        applied = real(*args)
        shipped.append(sum(f.rows for f in applied.shipped))
        return applied

    monkeypatch.setattr(finish, "_apply", noted)
    (report,) = runner.refresh(configure.select(config, ["orders"], False), Options())
    assert (report.error, report.version, report.attempts) == (None, 2, 2)
    (failed,) = report.retried
    assert failed["code"] == "PROOF"
    assert "one changed row was taken for an unchanged one" in failed["details"]["cause"]
    assert shipped[0] > 50
    assert shipped[1] == 1
    pair.check("orders")
    pair.check_feed("orders", 2)


def test_damaged_staged_frames(pair: Pair) -> None:
    """A bit rots in what a cut refresh had staged: it is asked for again, not built upon."""
    pair.legacy.execute("UPDATE orders SET note = note || ' later'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "commit", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.reports("orders")
    (frames,) = (pair.warehouse / PRIVATE / "staging" / "orders").rglob("*.frames")
    data = bytearray(frames.read_bytes())
    data[len(data) // 2] ^= 1
    frames.write_bytes(data)
    converges(pair)


def test_head_of_somebody_else(pair: Pair) -> None:
    before = pair.published("orders")
    pair.delta("orders").delete("id = 3")
    edit(pair.legacy)
    (report,) = pair.reports("orders")
    assert report.error is not None
    assert report.error["code"] == "WAREHOUSE"
    assert "written by another program (DELETE)" in report.error["message"]
    expect_equal(pair.published("orders", version=0), before)
    expect_equal(pair.read("orders"), before)
    assert pair.refresh("orders", options=Options(accept_restored=True)).version == 3
    pair.check("orders")
    edit(pair.legacy, "again")
    converges(pair)


def test_readers_pinned_to_a_version(pair: Pair, spark: SparkSession) -> None:
    """Each keeps reading what it opened, while and after versions are published."""
    readers = []
    for number in range(3):
        frame = read(spark, pair.warehouse, "orders")
        readers.append((frame, pair.legacy.rows("orders")))
        edit(pair.legacy, f"edit {number}")
        converges(pair)
        for opened, expected in readers:
            expect_equal([tuple(row) for row in opened.collect()], expected)
    for version, (_, expected) in enumerate(readers):
        expect_equal(pair.published("orders", version=version), expected)


# Cut and resumed


BIG_ROWS = 16_000


def big_table(folder: Path, rows: int = BIG_ROWS) -> SqliteLegacy:
    """Rows of half a kilobyte that do not compress."""
    legacy = SqliteLegacy(folder / "big.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note BLOB)")
    rng = random.Random(3)
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(i, rng.randbytes(512)) for i in range(rows)])
    return legacy


def test_cut_load_and_cut_refresh_are_resumed(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing that was staged is sent again: two fragments of one table, one of them cut.

    A cut may cost the message that was on the line.
    """
    legacy = big_table(tmp_path)
    names = {"orders": 'table = "orders"', "twin": 'table = "orders"'}
    with (
        Pair(spark, legacy, tmp_path / "pair", names) as pair,
        Relay(pair.address) as relay,
    ):
        pair.address = relay.address

        def costs(name: str, *, cut: float = 0, uncut: int = 0) -> int:
            start = relay.total_bytes
            if cut:
                relay.cut_after(down=int(cut * uncut))
                error = pair.error(name)
                assert (error["code"], error["safe_to_retry"]) == ("UNREACHABLE", True)
            pair.refresh(name)
            return relay.total_bytes - start

        uncut = costs("twin")
        assert uncut > BIG_ROWS * 512
        resumed = costs("orders", cut=0.5, uncut=uncut)
        assert resumed <= 1.1 * uncut + COMPARISON_BYTES + MESSAGE_BYTES_MAX, (resumed, uncut)
        pair.check("orders")

        # In one place: were every range hit, a full copy would seem as cheap.
        rng = random.Random(5)
        legacy.many(
            "UPDATE orders SET note = ? WHERE id = ?",
            [(rng.randbytes(512), i) for i in range(BIG_ROWS // 3)],
        )
        legacy.execute("DELETE FROM orders WHERE id % 100 = 1")
        uncut = costs("twin")
        resumed = costs("orders", cut=0.5, uncut=uncut)
        assert resumed <= 1.1 * uncut + COMPARISON_BYTES + MESSAGE_BYTES_MAX, (resumed, uncut)
        pair.check("orders")
        pair.check_feed("orders", 1)
        assert relay.cuts == 2
    legacy.close()


# A source that changes while it is read


@contextlib.contextmanager
def after_verdict(action: Callable[[], None]) -> Iterator[None]:
    """Something happens at the source between its scan and its second look, once."""
    receive = Stream.receive
    done = False

    def receiving(stream: Stream) -> pb.Reply:
        nonlocal done
        reply = receive(stream)
        if reply.WhichOneof("message") == "verdict" and not done:
            done = True
            action()
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "receive", receiving)
        yield
    assert done


def test_changes_during_a_refresh_without_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    """SQLite with a rollback journal: writers are not blocked while the source waits for us, so
    the change is noticed, and a second try converges."""
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=False)
    legacy.execute(ORDERS)
    fill(legacy)
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        pair.refresh("orders")
        edit(legacy)
        with after_verdict(lambda: edit(legacy, "in between")):
            error = pair.error("orders")
        found = (error["code"], error["exit_code"], error["safe_to_retry"])
        assert found == ("SNAPSHOT_LOST", 75, True)
        with after_verdict(lambda: edit(legacy, "again")):
            report = pair.refresh("orders", attempts=2)
        assert (report.attempts, report.version, report.consistency) == (2, 1, "exact")
        pair.check("orders")
    legacy.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_snapshot_stays_what_it_was(
    engine: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    legacy = request.getfixturevalue(engine)
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        pair.refresh("orders")
        edit(legacy)
        then = legacy.rows("orders")
        with after_verdict(lambda: edit(legacy, "in between")):
            report = pair.refresh("orders")
        assert (report.version, report.consistency) == (1, "exact")
        expect_equal(pair.published("orders"), then)
        converges(pair)


def test_table_without_snapshots_on_mariadb(
    spark: SparkSession, maria: MariaLegacy, tmp_path: Path
) -> None:
    maria.execute(f"{ORDERS} ENGINE=MyISAM")
    fill(maria)
    with Pair(spark, maria, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        error = pair.error("orders")
        assert (error["code"], error["safe_to_retry"]) == ("CONFIGURATION", False)
        assert 'require = "fuzzy"' in error["remedy"]
        pair.fragment_lines["orders"] = 'require = "fuzzy"'
        assert pair.refresh("orders").consistency == "fuzzy"
        pair.check("orders")
        edit(maria)
        with after_verdict(lambda: edit(maria, "in between")):
            report = pair.refresh("orders", attempts=3)
        assert (report.version, report.consistency) == (1, "fuzzy")
        pair.check("orders")


# Columns


def test_schema_changes(spark: SparkSession, postgres: PostgresLegacy, tmp_path: Path) -> None:
    """Each kind is refused by name with the command that goes on, and goes on with it."""
    accept = Options(accept_schema=True)
    changes = [
        ("note", "was dropped", "ALTER TABLE orders DROP COLUMN note"),
        ("status", "int4", "ALTER TABLE orders ALTER COLUMN status TYPE bigint"),
        ("code", "was dropped", "ALTER TABLE orders RENAME COLUMN code TO label"),
        ("id", "int8", "ALTER TABLE orders ALTER COLUMN id TYPE text"),
    ]
    with Pair(spark, postgres, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        pair.refresh("orders")
        for version, (column, says, sql) in enumerate(changes, start=1):
            postgres.execute(sql)
            error = pair.error("orders")
            found = (error["code"], error["exit_code"], error["safe_to_retry"])
            assert found == ("RECIPE", 6, False)
            assert column in error["message"], error
            assert says in error["message"], error
            assert "driftline refresh orders --accept-schema" in error["remedy"]
            converges(pair, options=accept)
            assert pair.version("orders") == version
        pair.publish("orders", 'table = "orders"\nkey = ["label"]')
        error = pair.error("orders")
        assert error["code"] == "RECIPE"
        assert "key" in error["message"]
        converges(pair, options=accept)
        postgres.execute("UPDATE orders SET status = 0 WHERE label LIKE '%1'")
        converges(pair)


def test_columns_change_and_the_source_goes_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says which columns changed any more: that is the error, and it is retryable."""
    pair.refresh("orders")
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN extra TEXT")
    exchange = whole.exchange

    def and_gone(*given: Any) -> Any:
        try:
            return exchange(*given)
        finally:
            pair.stop()

    with monkeypatch.context() as patch:
        patch.setattr(whole, "exchange", and_gone)
        error = pair.error("orders")
    assert (error["code"], error["safe_to_retry"]) == ("UNREACHABLE", True), error
    pair.restart()
    error = pair.error("orders")
    assert error["code"] == "RECIPE"
    assert "column extra (text) was added" in error["message"]


def test_schema_change_beside_an_awkward_name(
    spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path
) -> None:
    """Published rows are put under the new columns, whatever those are called."""
    sqlite.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, "a.b" TEXT, "a`c" TEXT)')
    sqlite.many("INSERT INTO t VALUES (?, ?, ?)", [(i, f"b{i}", f"c{i}") for i in range(50)])
    with Pair(spark, sqlite, tmp_path / "pair", {"t": 'table = "t"'}) as pair:
        pair.refresh("t")
        sqlite.execute("ALTER TABLE t ADD COLUMN d TEXT")
        assert pair.error("t")["code"] == "RECIPE"
        converges(pair, "t", options=Options(accept_schema=True))


def test_schema_change_of_an_empty_table(pair: Pair) -> None:
    pair.legacy.execute("DELETE FROM orders")
    converges(pair, options=Options(allow_shrink=True))
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN extra TEXT")
    assert pair.error("orders")["code"] == "RECIPE"
    converges(pair, options=Options(accept_schema=True))
    assert pair.refresh("orders").version == 2
    fill_five = [(i, "c", 1, "n", "e") for i in range(5)]
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", fill_five)
    converges(pair)


@pytest.mark.parametrize(
    "names",
    [
        ("a.b", "gone", "a`c"),
        ("_position", "_hash", "_paired"),
        ("_rows", "_0", "c1"),
        ("id", "_op", "_version"),
        ("id", "_metadata", "b"),
    ],
)
def test_columns_named_like_our_own(
    names: tuple[str, str, str], spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path
) -> None:
    """Names that the machinery might use for itself are anybody's."""
    key, *others = (f'"{name}"' for name in names)
    sqlite.execute(f"CREATE TABLE t ({key} INTEGER PRIMARY KEY, {others[0]} TEXT, {others[1]} INT)")
    sqlite.many("INSERT INTO t VALUES (?, ?, ?)", [(i, f"t{i}", i) for i in range(50)])
    relations = {"t": f"table = \"t\"\nkey = ['{names[0]}']"}
    with Pair(spark, sqlite, tmp_path / "pair", relations) as pair:
        pair.refresh("t")
        sqlite.execute(f"UPDATE t SET {others[0]} = 'new' WHERE {key} < 10")
        sqlite.execute(f"DELETE FROM t WHERE {key} = 20")
        with pytest.MonkeyPatch.context() as patch:  # what was staged is merged by key
            patch.setattr(formats, "commit", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                pair.reports("t")
        sqlite.execute(f"UPDATE t SET {others[1]} = -1 WHERE {key} BETWEEN 5 AND 15")
        assert pair.refresh("t").version == 1
        pair.check("t")
        sqlite.execute(f"UPDATE t SET {others[1]} = -2 WHERE {key} BETWEEN 5 AND 15")
        assert pair.refresh("t").version == 2
        pair.check("t")
        feed = pair.store.folders(PRIVATE, "changes", "t")
        assert feed == ["_version=1", "_version=2"]
        pair.check_feed("t", 2)


def _interrupted(*_: Any, **__: Any) -> int:
    raise KeyboardInterrupt


# Configuration and certificates


def test_certificates(pair: Pair, tmp_path: Path) -> None:
    """Somebody else's authority, a file that is not there; then the right ones."""
    for folder in ("ours", "theirs"):
        enroll(tmp_path / folder, source_names=["127.0.0.1"])
    pair.stop()
    ours = tmp_path / "ours"
    served = start(
        source_configure.load(
            pair.source_toml(
                f'listen = "127.0.0.1:0"\ncertificate = "{ours}/source.pem"\n'
                f'key = "{ours}/source.key"\nclient_ca = "{ours}/ca.pem"'
            )
        )
    )

    def client(ca: Path, own: Path, key: str = "warehouse.key") -> str:
        return (
            f'address = "127.0.0.1:{served.port}"\nca = "{ca}/ca.pem"\n'
            f'certificate = "{own}/warehouse.pem"\nkey = "{own}/{key}"'
        )

    theirs = tmp_path / "theirs"
    edit(pair.legacy)
    try:
        for lines, code, exit_code in (
            (client(theirs, theirs), "UNAUTHENTICATED", 5),
            (client(ours, theirs), "UNAUTHENTICATED", 5),
            (client(ours, ours, "absent.key"), "CONFIGURATION", 2),
        ):
            pair.source_lines = lines
            error = pair.error("orders")
            assert (error["code"], error["exit_code"]) == (code, exit_code), error
            assert error["safe_to_retry"] is False
            assert error["remedy"]
        pair.source_lines = client(ours, ours)
        converges(pair)
    finally:
        served.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (None, "There is no file"),
        ('[warehouse]\npath = "w"\nformat = "delta"', "format"),
        ('[warehouse]\npath = "w"\n[fragments.a]\nsource = "erp"', "erp"),
        ("[warehouse", "not TOML"),
        ("[warehouse]\npath = " + "[" * 5000, "nested too deep"),
    ],
)
def test_configuration(lines: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "warehouse.toml"
    if lines is not None:
        file.write_text(lines)
    words = [*WAREHOUSE, "--config", str(file), "refresh", "a"]
    done = run(words, cwd=ROOT, env=environment())
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "error CONFIGURATION" in done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_commit_that_fails_after_it_was_made(
    spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path
) -> None:
    """Its files belong to a version that readers see: none of them may be removed."""
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT)")
    sqlite.many("INSERT INTO t VALUES (?, ?)", [(i, f"n{i}") for i in range(100)])
    commit = formats.commit

    def made_then_failed(*args: Any, **kwargs: Any) -> int:
        commit(*args, **kwargs)
        raise WarehouseUnavailable("No space left for the checkpoint.", where="t")

    with Pair(spark, sqlite, tmp_path / "pair", {"t": 'table = "t"'}) as pair:
        pair.refresh("t")
        sqlite.execute("UPDATE t SET note = 'new' WHERE id < 10")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(formats, "commit", made_then_failed)
            (report,) = pair.reports("t")
        assert report.error is not None
        assert report.error["code"] == "WAREHOUSE"
        pair.check("t")
        assert pair.refresh("t").version == 1
        pair.check("t")


def test_a_commit_that_fails_after_it_was_made_and_is_followed(
    spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks another agent publishes at once, and needs none of its files: those who pinned
    the version, or read its feed, still do."""
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT)")
    sqlite.many("INSERT INTO t VALUES (?, ?)", [(i, f"n{i}") for i in range(100)])
    commit = formats.commit
    without_locks(monkeypatch)
    with Pair(spark, sqlite, tmp_path / "pair", {"t": 'table = "t"'}) as pair:
        pair.refresh("t")
        sqlite.execute("UPDATE t SET note = 'ours'")

        def made_then_failed(*args: Any, **kwargs: Any) -> int:
            monkeypatch.setattr(formats, "commit", commit)
            commit(*args, **kwargs)
            sqlite.execute("UPDATE t SET note = 'theirs'")
            pair.refresh("t")
            raise WarehouseUnavailable("The answer was lost.", where="t")

        monkeypatch.setattr(formats, "commit", made_then_failed)
        (report,) = pair.reports("t")
        assert report.error is not None
        assert report.error["code"] == "WAREHOUSE"
        for version, note in ((1, "ours"), (2, "theirs")):
            expect_equal(pair.published("t", version=version), [(i, note) for i in range(100)])
        pair.check_feed("t", 1)
        pair.check("t")
