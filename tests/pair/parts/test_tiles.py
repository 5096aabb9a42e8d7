"""Passes in tiles, on real engines: right afterwards whoever writes meanwhile, and resumable.

The oracle is the owner's own connection, as everywhere (`Pair.check`). What is read at the source
is counted by the DBA's audit file, which knows nothing of passes.
"""

from __future__ import annotations

import contextlib
import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import SourceUnreachable, WarehouseUnavailable
from driftline.limits import MESSAGE_BYTES_MAX
from pyspark.sql import SparkSession

from source_agent.engines.sqlite.session import SqliteSession
from source_agent.scan import tile
from tests.fixtures.clock import Daily
from tests.harness.family import FAMILY
from tests.harness.legacy import LEGACIES, Legacy, MariaLegacy, PostgresLegacy, SqliteLegacy
from tests.harness.pair import Pair, expect_equal
from tests.harness.places import Place, copy, parquet, remove, write_parquet
from tests.harness.relay import Relay
from warehouse_agent.inspection.published_state import PublishedState, fragment_state
from warehouse_agent.inspection.refresh_prediction import forecast
from warehouse_agent.methods import conversation
from warehouse_agent.planning.choice import Method
from warehouse_agent.refresh import auxiliary_table, commit, finish, tiled
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.storage import formats
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.table_maintenance.garbage import unreferenced
from warehouse_agent.tasks import staging
from warehouse_agent.tasks.rewrites.replaced_rows import RowsInTiles
from warehouse_agent.tasks.staging import Staging
from warehouse_agent.transport import waiting

pytestmark = pytest.mark.spark

ROWS = 2000
TILE = 250
TILES = ROWS // TILE
ORDERS = "CREATE TABLE orders (id BIGINT PRIMARY KEY, code VARCHAR(20), status INT, note TEXT)"
FREE = f'require = "fuzzy"\nincremental = {{ rows = {TILE}, pause_s = 0.01 }}'
IN_TILES = f'method = "range"\n{FREE}'  # tiles this small would be shipped whole


def fill(legacy: Legacy, rows: int = ROWS) -> None:
    found = [(i * 3, f"c{i:05d}", i % 7, f"note {i}") for i in range(rows)]
    legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?)", found)


def edit(legacy: Legacy, text: str) -> None:
    """In most tiles something, before the first key and behind the last one, too."""
    legacy.execute(f"UPDATE orders SET note = '{text}' WHERE id % 501 = 6")
    legacy.execute("DELETE FROM orders WHERE id % 999 = 12")
    new = max(row[0] for row in legacy.rows("orders")) + 5
    old = min(row[0] for row in legacy.rows("orders")) - 5
    legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?)", [(k, "n", 1, text) for k in (old, new)])


@pytest.fixture(params=["sqlite-journal", *FAMILY, "postgresql"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    """Two whose readers block writers, and one with snapshots."""
    made = LEGACIES[request.param](request, tmp_path)
    tail = " ENGINE=MyISAM" if request.param in FAMILY else ""
    made.execute(ORDERS.replace("BIGINT", "INTEGER") + tail)
    fill(made)
    yield made
    made.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteLegacy]:
    made = SqliteLegacy(tmp_path / "erp.db", wal=False)
    made.execute(ORDERS.replace("BIGINT", "INTEGER"))
    fill(made)
    yield made
    made.close()


@contextlib.contextmanager
def loaded(spark: SparkSession, legacy: Legacy, folder: Path) -> Iterator[Pair]:
    """A first load, as an exchange; from here on in tiles."""
    with Pair(spark, legacy, folder / "pair", {"orders": 'table = "orders"'}) as made:
        made.fragment_lines["orders"] = IN_TILES
        report = made.refresh("orders")
        assert (report.version, report.tiles, report.tiles_done) == (0, None, None)
        yield made


@pytest.fixture
def pair(spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path) -> Iterator[Pair]:
    with loaded(spark, sqlite, tmp_path) as made:
        yield made


def audit(pair: Pair) -> list[dict[str, Any]]:
    """The lines of what was read; a description reads no row."""
    lines = map(json.loads, (pair.folder / "audit.jsonl").read_text().splitlines())
    return [line for line in lines if line["outcome"] != "described"]


def rows_read(pair: Pair) -> int:
    """Since the load, by the DBA's audit."""
    return sum(line["rows_read"] for line in audit(pair)[1:])


def staged(pair: Pair) -> Place:
    return pair.root / PRIVATE / "staging" / "orders"


@contextlib.contextmanager
def broken(kind: type, name: str, when: Callable[[int], bool], *, after: bool) -> Iterator[None]:
    """Ctrl-C at the nth call, before or after it is done."""
    calls, real = 0, getattr(kind, name)

    def method(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if when(calls) and not after:
            raise KeyboardInterrupt
        done = real(*args, **options)
        if when(calls):
            raise KeyboardInterrupt
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, method)
        yield


def cut(pair: Pair, nth: int = 1, *, after: bool = True) -> None:
    """A command that ends when it has compared so many more tiles."""
    with (
        broken(Pass, "finish", lambda call: call == nth, after=after),
        pytest.raises(KeyboardInterrupt),
    ):
        pair.reports("orders")


# Right


def test_a_quiet_pass(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> None:
    """The copy equals the source; each row is read once, no scan is made, by streams of their
    own."""
    with loaded(spark, legacy, tmp_path) as pair:
        edit(legacy, "first")
        before = len(audit(pair))
        report = pair.refresh("orders")
        assert (report.version, report.consistency, report.method) == (1, "fuzzy", "range")
        assert (report.tiles, report.tiles_done, report.resumed_at) == (TILES, TILES, 0)
        assert (report.source_scans, report.source_rows_read) == (0, len(legacy.rows("orders")))
        assert len(audit(pair)) == before + TILES
        assert report.proof == "total"
        pair.check("orders")
        pair.check_feed("orders", 1)
        assert not staged(pair).exists()
        report = pair.refresh("orders")
        assert (report.version, report.round_trips) == (1, report.tiles)
        assert report.bytes_received < 300 * TILES
        edit(legacy, "second")
        legacy.execute("DELETE FROM orders WHERE id BETWEEN 700 AND 3100")  # whole tiles
        report = pair.refresh("orders")
        assert report.version == 2
        pair.check("orders")
        pair.check_feed("orders", 2)


class Writer(threading.Thread):
    """Edits rows until it is stopped; notes which, and how long it had to wait for each."""

    def __init__(self, write: Callable[[int, str], None]) -> None:
        super().__init__(daemon=True)
        self._write, self._stop_now = write, threading.Event()
        self.touched: set[int] = set()
        self.waits: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        number = 0
        while not self._stop_now.is_set():
            number += 1
            key = number * 7919 % ROWS * 3 + 3 * ROWS * (number % 5 == 0)
            self.touched.add(key)
            began = time.monotonic()
            try:
                self._write(key, f"written {number}")
            except BaseException as error:
                self.error = error
                return
            self.waits.append(time.monotonic() - began)
            self._stop_now.wait(0.002)

    def stop(self) -> None:
        self._stop_now.set()
        self.join()


def write_with(legacy: Legacy) -> Callable[[int, str], None]:
    """One more edit: an update, a deletion, or a row that was not there."""

    def write(key: int, text: str) -> None:
        number = int(text.rsplit(" ", 1)[-1])
        if key >= 3 * ROWS:
            legacy.execute("DELETE FROM orders WHERE id = ?", key)
            legacy.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", key, "w", 1, text)
        elif number % 11 == 0:
            legacy.execute("DELETE FROM orders WHERE id = ?", key)
        else:
            legacy.execute("UPDATE orders SET note = ? WHERE id = ?", text, key)

    return write


def second_connection(legacy: Legacy) -> Legacy:
    """Another of the owner's; SQLite's waits for locks for a minute."""
    if isinstance(legacy, SqliteLegacy):
        made = SqliteLegacy.__new__(SqliteLegacy)
        import sqlite3

        path = legacy.url.removeprefix("sqlite:///")
        made._connection = sqlite3.connect(path, timeout=60, check_same_thread=False)
        made._connection.execute("PRAGMA synchronous = OFF")
        return made
    if isinstance(legacy, PostgresLegacy):
        other = PostgresLegacy.__new__(PostgresLegacy)
        other._connection = legacy._server.superuser(legacy.database)
        return other
    assert isinstance(legacy, MariaLegacy)
    third = MariaLegacy.__new__(MariaLegacy)
    third._connection = legacy._server.admin(legacy.database)
    third._connection.autocommit(True)
    return third


def test_a_pass_among_writers(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> None:
    """What nobody touched is exactly right, whatever was written meanwhile; nobody waited longer
    than for a tile; and the pass after it, a quiet one, is exact."""
    with loaded(spark, legacy, tmp_path) as pair:
        edit(legacy, "before")
        other = second_connection(legacy)
        writer = Writer(write_with(other))
        before = len(audit(pair))
        writer.start()
        try:
            report = pair.refresh("orders")
        finally:
            writer.stop()
        assert writer.error is None
        assert (report.version, report.tiles_done) == (1, report.tiles)
        assert len(writer.waits) > 20
        touched = writer.touched
        at_rest = [
            [row for row in rows if row[0] not in touched]
            for rows in (pair.published("orders"), legacy.rows("orders"))
        ]
        assert len(at_rest[0]) > ROWS // 2 - len(touched)
        expect_equal(*at_rest)
        tiles = [line["seconds"] for line in audit(pair)[before:]]
        assert max(writer.waits) <= max(tiles) + 1.0
        pair.refresh("orders")
        pair.check("orders")
        other._connection.close()  # type: ignore[attr-defined]


# Resumed


def test_cut_after_every_tile(pair: Pair) -> None:
    """As many commands as tiles; nothing is reduced or read twice."""
    edit(pair.legacy, "once")
    rows = len(pair.legacy.rows("orders"))
    begun: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        begin = auxiliary_table.begin
        patch.setattr(auxiliary_table, "begin", lambda *args: begun.append(args) or begin(*args))  # type: ignore[func-returns-value]
        for _ in range(TILES):
            cut(pair)
        report = pair.refresh("orders")
    assert len(begun) == 1
    assert (report.resumed_at, report.tiles, report.source_rows_read) == (TILES, TILES, 0)
    assert rows_read(pair) == rows
    assert report.version == 1
    pair.check("orders")


@pytest.mark.parametrize("nth", [1, 4, TILES])
def test_cut_in_a_tile(pair: Pair, nth: int) -> None:
    """The tile that was not finished is compared once more, and no other."""
    edit(pair.legacy, "once")
    rows = len(pair.legacy.rows("orders"))
    cut(pair, nth, after=False)
    report = pair.refresh("orders")
    assert (report.resumed_at, report.tiles_done) == (nth - 1, TILES)
    assert rows < rows_read(pair) <= rows + 1.2 * TILE
    pair.check("orders")


def test_a_clock_that_is_set_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of before say a later time than those after them: they are compared again, or their
    rows would be older than the version says."""
    edit(pair.legacy, "once")
    cut(pair, 3)
    pair.legacy.execute("DELETE FROM orders WHERE id % 33 = 0")
    rows, read = len(pair.legacy.rows("orders")), rows_read(pair)
    yesterday = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 day')"
    monkeypatch.setattr("source_agent.engines.sqlite.session.AS_OF", yesterday)
    report = pair.refresh("orders")
    assert (report.resumed_at, report.tiles_done, report.consistency) == (3, TILES, "fuzzy")
    assert rows_read(pair) - read == rows
    assert report.as_of is not None
    assert datetime.fromisoformat(report.as_of) < datetime.now(UTC) - timedelta(hours=23)
    pair.check("orders")


def test_lines_that_break(pair: Pair) -> None:
    """Whatever byte it breaks at, and again, a command goes on where the last one stopped; and
    while it gets on, it needs no other."""
    pair.legacy.execute("UPDATE orders SET note = 'changed ' || id WHERE id % 5 = 0")
    with Relay(pair.address) as relay:
        pair.address = relay.address

        def again(after: int) -> None:
            relay.cut_after(down=after, then=lambda: again(after + 450))

        again(300)
        resumed: list[int | None] = []
        for _ in range(40):
            (report,) = pair.reports("orders")
            resumed.append(report.resumed_at)
            if report.error is None:
                break
            assert report.error["code"] == "UNREACHABLE"
        assert report.version == 1
        assert relay.cuts >= 4
        assert len(resumed) <= relay.cuts
        assert resumed == sorted(resumed, key=lambda at: at or 0)
    pair.check("orders")
    assert rows_read(pair) <= ROWS + relay.cuts * 1.2 * TILE


def test_retries_within_a_command(pair: Pair) -> None:
    edit(pair.legacy, "once")
    with Relay(pair.address) as relay:
        pair.address = relay.address
        relay.cut_after(down=100)  # in the first tile
        report = pair.refresh("orders", attempts=2)
        assert (report.attempts, report.resumed_at, report.tiles_done) == (2, 0, TILES)
    pair.check("orders")


def test_rows_of_a_tile_that_failed_do_not_stay(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing goes on with them, and where storage gives no locks the next attempt leaves what
    others may be writing."""
    pair.legacy.execute("UPDATE orders SET note = 'changed ' || id")
    real = vars(tiled)["converse"]

    def failing(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        assert list((staged(pair) / "pass").glob("*/*.frames"))
        raise SourceUnreachable("The answer was lost.", where="erp")

    with monkeypatch.context() as patch:
        patch.setattr(tiled, "converse", failing)
        assert pair.error("orders")["code"] == "UNREACHABLE"
    assert not list((staged(pair) / "pass").glob("*/*.frames"))
    pair.refresh("orders")
    pair.check("orders")


def test_all_tiles_are_there(pair: Pair) -> None:
    """A crash before the commit: the next command asks the source nothing."""
    edit(pair.legacy, "once")
    with (
        broken(formats, "commit", lambda call: True, after=False),  # type: ignore[arg-type]
        pytest.raises(KeyboardInterrupt),
    ):
        pair.reports("orders")
    pair.stop()
    report = pair.refresh("orders")
    assert (report.version, report.resumed_at, report.bytes_sent) == (1, TILES, 0)
    pair.check("orders")


def test_changes_behind_the_pass_are_found_by_the_next(pair: Pair) -> None:
    edit(pair.legacy, "once")
    cut(pair, 4)
    pair.legacy.execute("UPDATE orders SET note = 'late' WHERE id IN (3, 5400)")
    pair.refresh("orders")
    late = {row[0] for row in pair.published("orders") if row[3] == "late"}
    assert late == {5400}
    pair.refresh("orders")
    pair.check("orders")


# Begun again


def test_another_version_ends_a_pass(pair: Pair) -> None:
    """An ordinary refresh in between: its version, or what it staged, is not what was compared."""
    edit(pair.legacy, "once")
    cut(pair, 3)
    pair.fragment_lines["orders"] = 'require = "fuzzy"'
    assert pair.refresh("orders").version == 1
    pair.fragment_lines["orders"] = IN_TILES
    edit(pair.legacy, "twice")
    report = pair.refresh("orders")
    assert (report.version, report.resumed_at) == (2, 0)
    pair.check("orders")
    cut(pair, 3)
    pair.fragment_lines["orders"] = 'require = "fuzzy"'
    assert pair.refresh("orders").version == 2  # nothing changed, and nothing is left of the pass
    assert not staged(pair).exists()


@pytest.mark.parametrize("corrected", ["relation", "address"])
@pytest.mark.parametrize("how", [IN_TILES, 'read_at_most = 1000\nrequire = "fuzzy"'])
def test_another_source_or_relation_is_compared_anew(
    spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path, how: str, corrected: str
) -> None:
    """Of what came from the wrong place nothing is published."""
    sqlite.execute(ORDERS.replace("orders", "trial"))
    sqlite.execute("INSERT INTO trial SELECT id, code, 99, 'for tests' FROM orders")
    relations = {"orders": 'table = "orders"', "trial": 'table = "trial"'}
    with Pair(spark, sqlite, tmp_path / "pair", relations) as pair:
        pair.refresh("orders")
        pair.fragment_lines["orders"] = how
        if corrected == "relation":
            pair.fragment_lines["orders"] += '\nrelation = "trial"'
        else:
            pair.publish("orders", 'table = "trial"')  # an agent of its own, at another port
        with broken(formats, "commit", lambda call: True, after=False):  # type: ignore[arg-type]
            if "incremental" in how:
                cut(pair, 3)
            else:
                with pytest.raises(KeyboardInterrupt):
                    pair.reports("orders")
        assert list(staged(pair).rglob("*.frames"))
        pair.fragment_lines["orders"] = how
        if corrected == "address":
            pair.publish("orders", 'table = "orders"')
        report = pair.refresh("orders")
        assert (report.version, report.rows_changed, report.resumed_at or 0) == (0, 0, 0)
        pair.check("orders")


def test_other_columns_end_a_pass(pair: Pair) -> None:
    edit(pair.legacy, "once")
    cut(pair, 3)
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN extra TEXT")
    error = pair.error("orders")
    assert error["code"] == "RECIPE"
    assert "extra" in error["message"]
    report = pair.refresh("orders", options=Options(accept_schema=True))
    assert (report.version, report.tiles) == (1, None)
    pair.check("orders")
    edit_wide = "UPDATE orders SET extra = 'x' WHERE id % 501 = 6"
    pair.legacy.execute(edit_wide)
    report = pair.refresh("orders")
    assert (report.version, report.resumed_at) == (2, 0)
    pair.check("orders")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("pass.json", "short"),
        ("sums.bin", "short"),
        ("sums.bin", "gone"),
        ("exchange.json", "noise"),
        ("000001.npz", "short"),
        ("000001.npz", "noise"),
    ],
)
def test_a_damaged_table(pair: Pair, name: str, how: str) -> None:
    """It is begun again, or a tile is compared again; what is published is right."""
    edit(pair.legacy, "once")
    cut(pair, 3)
    file = staged(pair) / "pass" / name
    data = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(data[: len(data) // 2] if how == "short" else b"\x7f" * len(data))
    report = pair.refresh("orders")
    assert (report.version, report.attempts) == (1, 1)
    assert report.resumed_at == (2 if name == "000001.npz" else 0)
    pair.check("orders")


def test_a_damaged_frame(pair: Pair) -> None:
    """Found when it is decoded; the pass is of no use any more, and the next one is."""
    edit(pair.legacy, "once")
    cut(pair, 5)
    frames = sorted((staged(pair) / "pass").glob("*/*.frames"))
    data = bytearray(frames[0].read_bytes())
    data[len(data) // 2] ^= 1
    frames[0].write_bytes(data)
    error = pair.error("orders")
    assert (error["code"], error["safe_to_retry"]) == ("DAMAGED", True)
    report = pair.refresh("orders")
    assert (report.version, report.resumed_at) == (1, 0)
    pair.check("orders")


def test_a_tile_whose_frames_are_gone_is_compared_again(pair: Pair) -> None:
    edit(pair.legacy, "once")
    cut(pair, 5)
    finished = len(list((staged(pair) / "pass").glob("*.npz")))
    next((staged(pair) / "pass").glob("*/*.frames")).unlink()
    assert pair.refresh("orders").resumed_at == finished - 1
    pair.check("orders")


def test_data_files_that_lost_rows(pair: Pair) -> None:
    """Noticed before the source is asked, by its size: the walk is along what is left."""
    first = min(file.uri for file in files(pair))
    place = pair.place(first)
    write_parquet(parquet(place).read().slice(1), place)
    report = pair.refresh("orders", options=Options(repair=True))
    assert report.repaired_files == 1
    assert not (staged(pair) / "pass" / "exchange.json").exists()
    pair.check("orders")


# What it keeps, and says


def test_what_is_kept_is_private(pair: Pair) -> None:
    """The salt stands in the table and in every frame, and lives as long as the pass."""
    edit(pair.legacy, "once")
    cut(pair, 4)
    files = [path for path in staged(pair).rglob("*") if "." in path.name]
    assert {path.name.rpartition(".")[2] for path in files} == {"json", "bin", "npz", "frames"}
    for path in files if pair.bucket is None else ():
        assert isinstance(path, Path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    garbage = unreferenced(pair.store, "orders", keep_hours=0, now=datetime.now(UTC))
    assert not any("staging" in place for place in garbage.places)
    kept = json.loads((staged(pair) / "pass" / "pass.json").read_text())
    assert kept["salt"] not in (pair.root / PRIVATE / "runs" / "orders.jsonl").read_text()
    pair.refresh("orders")
    cut(pair)
    again = json.loads((staged(pair) / "pass" / "pass.json").read_text())
    assert again["salt"] != kept["salt"]


def status(pair: Pair) -> PublishedState:
    return fragment_state(pair.store, "orders")


def test_status_says_how_it_was_found_equal(pair: Pair) -> None:
    """As of an instant at which nobody saw all rows together, it is not exact; then again it is."""
    assert status(pair).consistency == "exact"
    report = pair.refresh("orders")
    found = status(pair)
    assert (found.version, report.rows_changed) == (0, 0)
    assert (found.as_of, found.consistency) == (report.as_of, "fuzzy")
    pair.fragment_lines.clear()
    report = pair.refresh("orders")
    found = status(pair)
    assert (found.version, found.as_of, found.consistency) == (0, report.as_of, "exact")


@pytest.mark.parametrize("changed", [False, True])
def test_a_resumed_pass_was_checked_when_its_last_tile_was(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """Not when it was settled, which may be days later."""
    if changed:
        edit(pair.legacy, "once")
    cut(pair, TILES)
    later = "2099-01-01T00:00:00Z"
    for module in (commit, conversation):
        monkeypatch.setattr(module, "utc_now", lambda: later)
    report = pair.refresh("orders")
    found = status(pair)
    assert (report.version, report.resumed_at) == (int(changed), TILES)
    assert report.checked_at == found.checked_at
    assert (report.checked_at or later) < later
    assert (found.published_at == later) is changed


def test_notes_of_another_version_say_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A table that was restored, and a crash between a commit and its note."""
    pair.fragment_lines.clear()
    table, loaded = pair.root / "orders", status(pair)
    copy(table, tmp_path / "kept")
    edit(pair.legacy, "once")
    pair.refresh("orders")
    edit(pair.legacy, "twice")

    def lost(_job: Job) -> None:
        raise WarehouseUnavailable("The note is lost.")

    with monkeypatch.context() as patch:
        patch.setattr(Job, "write_notes", lost)
        report = pair.refresh("orders")
    found = status(pair)
    assert (found.version, found.as_of) == (2, report.as_of)
    assert found.checked_at == report.checked_at
    remove(table)
    copy(tmp_path / "kept", table)
    assert status(pair) == loaded


def test_pauses_between_tiles(pair: Pair) -> None:
    """As long as was asked for, after each tile but the last; and none before the first."""
    from warehouse_agent.config import select
    from warehouse_agent.runs.batch import Runner

    slept: list[float] = []
    config = pair.config()
    runner = Runner(pair.spark, config, attempts=1, sleep=slept.append)
    (report,) = runner.refresh(select(config, ["orders"], False), Options())
    assert report.error is None
    assert slept == [0.01] * (TILES - 1)


def test_pauses_while_the_database_is_slow(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer after each slow answer, and shorter again afterwards."""
    from warehouse_agent.config import select
    from warehouse_agent.runs.batch import Runner

    clock, tiles, slept = [0.0], [0], list[float]()
    real = SqliteSession.read_ranges

    def read_ranges(self: Any, *given: Any, **options: Any) -> Any:
        clock[0] += 9.0 if tiles[0] in {4, 5} else 1.0
        tiles[0] += 1
        return real(self, *given, **options)

    monkeypatch.setattr(SqliteSession, "read_ranges", read_ranges)
    monkeypatch.setattr(waiting, "monotonic", lambda: clock[0])
    pair.fragment_lines["orders"] = IN_TILES.replace("0.01", '"auto"')
    config = pair.config()
    runner = Runner(pair.spark, config, attempts=1, sleep=slept.append)
    (report,) = runner.refresh(select(config, ["orders"], False), Options())
    assert report.error is None
    assert slept == [0.5, 0.5, 0.5, 0.5, 1.0, 2.0, 1.0]


def test_plan_tells_of_tiles(daily_clock: type[Daily], pair: Pair) -> None:
    daily_clock.days += 1
    edit(pair.legacy, "once")
    pair.refresh("orders")
    daily_clock.days += 1
    edit(pair.legacy, "twice")
    store, fragment = pair.store, pair.config().fragments["orders"]
    found = forecast(store, fragment)
    assert found.chosen == f"in {TILES} tiles"
    assert (found.tiles, found.tiles_done) == (TILES, 0)
    assert f"in {TILES} tiles" in pair.said("plan", "orders")
    cut(pair, 3)
    found = forecast(store, fragment)
    assert (found.tiles, found.tiles_done) == (TILES, 3)
    assert "3 of 8 tiles are done" in pair.said("plan", "orders")
    report = pair.refresh("orders")
    chosen = next(c for c in found.candidates if c.what == found.chosen)
    assert report.predicted is not None
    assert report.modelled is not None
    for said in (report.predicted, report.modelled):
        assert said["what"] == found.chosen
        assert said["bytes"] == pytest.approx(chosen.bytes, rel=0.2)
    assert chosen.bytes is not None
    assert chosen.source_scans == 0
    assert 0.3 < (report.bytes_sent + report.bytes_received) / (chosen.bytes * 5 / TILES) < 3


# Bad input


def test_a_key_that_has_no_tiles(spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path) -> None:
    sqlite.execute("CREATE TABLE sizes (size REAL NOT NULL PRIMARY KEY, n INT)")
    sqlite.execute("INSERT INTO sizes VALUES (0.5, 1), (1.5, 2)")
    sqlite.execute("CREATE TABLE loose (id INTEGER, n INT)")
    sqlite.execute("INSERT INTO loose VALUES (1, 1), (2, 2)")
    relations = {"sizes": 'table = "sizes"', "loose": 'table = "loose"\nkey = ["id"]'}
    with Pair(spark, sqlite, tmp_path / "pair", relations) as pair:
        pair.fragment_lines |= {"sizes": IN_TILES, "loose": IN_TILES}
        error = pair.error("sizes")
        assert (error["code"], error["exit_code"]) == ("CONFIGURATION", 2)
        assert "size" in error["message"]
        pair.refresh("loose")  # the load is one exchange
        before = rows_read(pair)
        error = pair.error("loose")
        assert (error["code"], error["exit_code"]) == ("CONFIGURATION", 2)
        assert "index" in error["message"]
        assert rows_read(pair) == before
        sqlite.execute("CREATE INDEX by_id ON loose (id)")
        sqlite.execute("UPDATE loose SET n = 3 WHERE id = 2")
        assert pair.refresh("loose").tiles == 1
        pair.check("loose")
        sqlite.execute("INSERT INTO loose VALUES (2, 9)")
        assert pair.error("loose")["code"] == "DUPLICATE_KEY"
        sqlite.execute("DELETE FROM loose WHERE n = 3")
        pair.refresh("loose")
        pair.check("loose")


@pytest.mark.parametrize(
    "how", ["incremental = { rows = 50, pause_s = 0.01 }", "read_at_most = 1000"]
)
def test_keys_that_are_no_integers(
    spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path, how: str
) -> None:
    """A table that declares no more of its key than INTEGER: what is refused by a scan is refused
    in tiles and in parts, wherever it would stand between them."""
    sqlite.execute("CREATE TABLE loose (id INTEGER, n INT)")
    sqlite.execute("CREATE INDEX by_id ON loose (id)")
    sqlite.many("INSERT INTO loose VALUES (?, ?)", [(key, 1) for key in range(200)])
    relations = {"loose": 'table = "loose"\nkey = ["id"]'}
    with Pair(spark, sqlite, tmp_path / "pair", relations) as pair:
        pair.refresh("loose")
        pair.fragment_lines["loose"] = f'{how}\nrequire = "fuzzy"'
        for key, code in (
            (None, "NULL_KEY"),
            ("A17", "VALUE"),
            (49.5, "VALUE"),
            (-1e300, "VALUE"),
        ):
            sqlite.execute("INSERT INTO loose VALUES (?, 5)", key)
            for _ in range(2):
                assert pair.error("loose")["code"] == code, key
            sqlite.execute("DELETE FROM loose WHERE n = 5")
            report = pair.refresh("loose")
            assert (report.version, report.rows_changed) == (0, 0)


def test_a_source_that_knows_no_tiles(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer for the whole relation: noticed at the first tile."""
    edit(pair.legacy, "once")
    monkeypatch.setattr(tile, "tile_of", lambda opening, shape: None)
    error = pair.error("orders")
    assert (error["code"], error["safe_to_retry"]) == ("VERSION", False)
    monkeypatch.undo()
    assert pair.refresh("orders").resumed_at == 0
    pair.check("orders")


def test_a_table_that_shrank(pair: Pair) -> None:
    """Refused when all is known. It is asked again, allowed or not: an outage that is over is not
    published."""
    before = pair.legacy.rows("orders")
    for allowed in (False, True):
        pair.legacy.execute("DELETE FROM orders")
        assert pair.error("orders")["code"] == "SHRANK"
        pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?)", before)
        report = pair.refresh("orders", options=Options(allow_shrink=allowed))
        assert (report.version, report.rows_changed, report.resumed_at) == (0, 0, 0)
    pair.legacy.execute("DELETE FROM orders WHERE id > 900")
    assert pair.error("orders")["code"] == "SHRANK"
    report = pair.refresh("orders", options=Options(allow_shrink=True))
    assert (report.version, report.resumed_at) == (1, 0)
    pair.check("orders")
    pair.legacy.execute("DELETE FROM orders")
    report = pair.refresh("orders", options=Options(allow_shrink=True))
    assert (report.version, report.rows_total) == (2, 0)
    fill(pair.legacy)
    assert pair.refresh("orders").tiles is None
    pair.check("orders")


def files(pair: Pair) -> list[DataFile]:
    """Of the newest version."""
    found = formats.head(pair.store, "orders")
    assert found is not None
    return list(found.files)


def test_all_rows_changed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile comes as it is; then some of them, which are emptied and not listed."""
    pair.fragment_lines["orders"] = FREE
    pair.legacy.execute("UPDATE orders SET note = 'all ' || id")
    report = pair.refresh("orders")
    assert (report.version, report.method) == (1, Method.FULL.value)
    pair.check("orders")
    pair.legacy.execute("UPDATE orders SET note = 'some ' || id WHERE id < 1600")
    pair.legacy.execute("UPDATE orders SET note = 'and a few' WHERE id IN (3000, 5001)")
    removals: list[tuple[Any, list[DataFile]]] = []
    real = finish._removal

    def noted(*given: Any) -> Any:
        removals.append(real(*given))
        return removals[-1]

    monkeypatch.setattr(finish, "_removal", noted)
    assert pair.refresh("orders").method == Method.RANGE.value
    pair.check("orders")
    pair.check_feed("orders", 2)
    ((removal, _),) = removals
    assert isinstance(removal, RowsInTiles)
    assert removal.emptied.rows > TILE
    assert len(removal.listed.hashes) < TILE
    # A file around the emptied tiles that has no row in them stays as it is.
    ends = [min(row[0] for row in pair.published("orders")), 10**6]
    pair.legacy.execute("UPDATE orders SET note = 'end' WHERE id = ?", ends[0])
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?)", [(ends[1], "n", 1, "end")])
    pair.fragment_lines.clear()
    pair.refresh("orders")
    pair.fragment_lines["orders"] = FREE
    around = [f for f in files(pair) if f.bounds == tuple(ends)]
    assert len(around) == 1
    pair.legacy.execute("UPDATE orders SET note = 'middle ' || id WHERE id BETWEEN 1500 AND 4500")
    pair.refresh("orders")
    assert isinstance(removals[-1][0], RowsInTiles)
    assert around[0] not in removals[-1][1]
    assert around[0] in files(pair)
    pair.check("orders")
    pair.check_feed("orders", 4)


def test_others_do_not_wait_for_a_pass(
    spark: SparkSession, sqlite: SqliteLegacy, tmp_path: Path
) -> None:
    """Fragments of one source in one command: those in tiles are by themselves, and last."""
    relations = {"orders": 'table = "orders"', "again": 'table = "orders"'}
    with Pair(spark, sqlite, tmp_path / "pair", relations) as pair:
        pair.fragment_lines["orders"] = IN_TILES
        pair.reports()
        edit(sqlite, "both")
        interrupted = pytest.raises(KeyboardInterrupt)
        with broken(Pass, "finish", lambda call: call == 3, after=True), interrupted:
            pair.reports("orders", "again")
        assert (pair.version("orders"), pair.version("again")) == (0, 1)
        pair.stop()
        pair.serve(int(pair.address.rpartition(":")[2]))  # where it was: it is the same source
        reports = {r.name: r for r in pair.reports()}
        assert reports["orders"].resumed_at == 3
        for name in relations:
            pair.check(name, "orders")


@pytest.mark.parametrize("lines", [IN_TILES, 'method = "range"'], ids=["a tile", "all"])
def test_what_goes_beyond_the_room_leaves_nothing(
    lines: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two frames and more of changed rows, of which one has room."""
    monkeypatch.setattr(staging, "FILE_BYTES", 1000)
    pair.fragment_lines["orders"] = f"{lines}\nstaging_at_most = {MESSAGE_BYTES_MAX}"
    pair.legacy.execute(f"UPDATE orders SET note = hex(randomblob(9000)) WHERE id < {3 * TILE}")
    error = pair.error("orders")
    assert (error["code"], "staging_at_most" in error["message"]) == ("LIMIT", True), error
    assert Staging(pair.store, "orders").frame_bytes() == 0
    pair.fragment_lines["orders"] = lines
    assert pair.refresh("orders").rows_updated == TILE
    expect_equal(pair.published("orders"), pair.legacy.rows("orders"))
