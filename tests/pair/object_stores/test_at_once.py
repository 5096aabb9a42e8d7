"""Commands at once on one table in a bucket, and holders of its lock that were stopped.

Nothing is lost, no row is an update that was none, and who comes second ends with 0 or 75.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from driftline.errors import Locked
from driftline.failpoints import VARIABLE

from tests import ROOT
from tests.harness.careless_proxy import careless
from tests.harness.counted_requests import RequestCounter
from tests.harness.forks import Fork
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_locks import without_locks
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Bucket, Moto, ObjectStore, SeaweedFS
from tests.harness.pair import Pair, environment, rows_of
from tests.harness.processes import is_alive, is_stopped
from warehouse_agent import config as configure
from warehouse_agent.failpoints import WarehouseFailpoint as Point
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.storage import delta_log, formats, log_entry
from warehouse_agent.storage.backends.lease import Lease
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.table_maintenance import garbage
from warehouse_agent.table_maintenance.garbage import collector, unreferenced

ROWS = 400
PAIRS, PAIRS_SOAK = 4, 100  # for each server
STOPPED_S_MAX = 120.0
# A command whose leases end soon, and whose `gc` removes what is young: also within the second in
# whole seconds of which stores tell the time.
STOPPED = """
from datetime import UTC, datetime
from warehouse_agent.storage.backends import lease
from warehouse_agent.table_maintenance import garbage
lease.LEASE_S, lease.RENEW_S, garbage.KEEP_HOURS_MIN_REMOTE = 1.0, 0.2, 0
lease.Lease.stored_at = lambda _: datetime.now(UTC)
from warehouse_agent.cli.main import main
main()
"""
POINTS = (
    *(Point.KEY_WRITTEN, Point.PREPARED, Point.STAGING_BEGUN, Point.FRAMES_STAGED, Point.COMPARED),
    *(Point.FILE_WRITTEN, Point.PROVEN, Point.COMMITTING, Point.COMMITTED, Point.NOTES_WRITTEN),
)
OFTEN = {
    ("load", Point.FRAMES_STAGED),
    ("refresh", Point.COMMITTING),
    ("gc", Point.GARBAGE_REMOVED),
}


class Rig:
    """A source, and its table in a new bucket as often as one is wanted."""

    def __init__(self, folder: Path, server: ObjectStore, seed: int) -> None:
        self.server, self.random = server, random.Random(seed)
        self.legacy = SqliteLegacy(folder / "legacy.db")
        self.legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, note TEXT)")
        rows = [(i, 0, f"note {i}") for i in range(ROWS)]
        self.legacy.many("INSERT INTO t VALUES (?, ?, ?)", rows)
        self.pair = Pair(NoSpark(), self.legacy, folder / "pair", {"t": 'table = "t"'})
        self.pair.small_bytes = 256 << 20
        self.changed = 0  # rows, by all edits since the first load

    def begin(self) -> None:
        """Let the warehouse be an empty bucket."""
        self.pair.bucket, self.changed = self.server.bucket(), 0

    def edit(self) -> None:
        """Update some rows at the source."""
        some = self.random.randrange(1, ROWS // 4)
        self.legacy.execute("UPDATE t SET n = n + 1 WHERE id < ?", some)
        self.changed += some

    def refresh(self, config: configure.WarehouseConfig | None = None) -> Report:
        config = config or self.pair.config()
        runner = Runner(NoSpark(), config, attempts=2, sleep=lambda seconds: None)
        (report,) = runner.refresh(configure.select(config, ["t"], False), Options())
        return report

    def check(self) -> None:
        """Check rows, versions and history."""
        bucket, store = self.bucket, self.pair.store
        table = DeltaTable(f"{bucket.root}/t", storage_options=bucket.delta_options)
        found = Counter(rows_of(table.to_pyarrow_table()))
        assert found == Counter(map(tuple, self.legacy.rows("t")))
        records = [entry.record for entry in formats.entries(store, "t")]
        assert sum(record.rows_inserted for record in records if record) == ROWS
        assert sum(record.rows_updated for record in records if record) == self.changed
        assert not any(record.rows_deleted for record in records if record)
        assert len(store.files(PRIVATE, "keys")) == 1
        assert store.read(PRIVATE, "locks", "t") is None

    @property
    def bucket(self) -> Bucket:
        assert self.pair.bucket is not None
        return self.pair.bucket


@pytest.fixture
def rig(object_store: ObjectStore, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, object_store, 7)
    yield made
    made.pair.stop()
    made.legacy.close()


def ended(report: Report) -> str:
    """Return how a command ended; its exit code is 0 or 75."""
    assert report.error is None or report.error["code"] == "LOCKED", report.error
    return "published or equal" if report.error is None else "locked"


def at_once(rig: Rig, *, locks: bool) -> list[str]:
    """Begin two commands within a moment; return how they ended."""
    config, begin = rig.pair.config(), threading.Barrier(2)
    pauses = [0.0, rig.random.choice([0.0, 0.02, 0.1, 0.3])]

    def run(pause_s: float) -> str:
        begin.wait()
        time.sleep(pause_s)
        return ended(rig.refresh(config))

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        if not locks:
            without_locks(patch)
        return list(pool.map(run, pauses))


@pytest.mark.parametrize(
    "pairs", [PAIRS, pytest.param(PAIRS_SOAK, marks=pytest.mark.soak)], ids=["sample", "all"]
)
def test_two_commands_at_once(rig: Rig, pairs: int) -> None:
    """With the courtesy of locks, and as if it failed: first loads and refreshes."""
    ends = Counter[str]()
    for number in range(pairs):
        if number % 4 in (0, 1):
            rig.begin()
        else:
            rig.edit()
        ends.update(at_once(rig, locks=number % 2 == 0))
        report = rig.refresh()
        assert report.error is None, report.error
        rig.check()
    print(f"{pairs} pairs: {dict(ends)}")
    assert ends["published or equal"] >= pairs


@pytest.fixture
def on_moto(moto: Moto, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, moto, 7)
    made.begin()
    yield made
    made.pair.stop()
    made.legacy.close()


def test_an_attempt_that_is_too_old_publishes_nothing(
    on_moto: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first load and changed rows: each is put in place by its own way."""
    for edit in (lambda: None, on_moto.edit):
        edit()
        with monkeypatch.context() as patch:
            patch.setattr(log_entry, "ATTEMPT_S_MAX", -1.0)
            report = on_moto.refresh()
        assert ended(report) == "locked"
        assert report.error is not None
        assert "began more than" in report.error["message"]
        assert on_moto.refresh().error is None
        on_moto.check()


def test_a_commit_whose_answer_is_lost_is_published(
    on_moto: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = log_entry.write

    assert on_moto.refresh().error is None
    for problem in (CommitFailedError("it is there"), DeltaError("HTTP error 500"), OSError("?")):
        on_moto.edit()

        def lost(*arguments: Any, problem: Exception = problem) -> None:
            whole(*arguments)
            raise problem

        with monkeypatch.context() as patch:
            patch.setattr(delta_log, "write", lost)
            report = on_moto.refresh()
        assert report.error is None, report.error
        on_moto.check()


def test_a_commit_that_another_command_overtook_is_locked(
    on_moto: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever delta-rs says then."""
    whole, config = log_entry.write, on_moto.pair.config()
    assert on_moto.refresh().error is None
    for problem in (CommitFailedError("it is there"), DeltaError("HTTP error 409"), OSError("?")):
        on_moto.edit()
        with monkeypatch.context() as patch:
            without_locks(patch)

            def overtaken(*_: Any, problem: Exception = problem) -> None:
                with monkeypatch.context() as inner:
                    inner.setattr(delta_log, "write", whole)
                    assert on_moto.refresh(config).error is None
                raise problem

            patch.setattr(delta_log, "write", overtaken)
            runner = Runner(NoSpark(), config, attempts=1)
            (report,) = runner.refresh(configure.select(config, ["t"], False), Options())
        assert ended(report) == "locked"
        on_moto.check()


def test_gc_takes_the_time_from_the_store(on_moto: Rig) -> None:
    """A clock of ours that is a year fast finds nothing that the store's would not."""
    for _ in range(3):
        assert on_moto.refresh().error is None
        on_moto.edit()
    store, fragment = on_moto.pair.store, on_moto.pair.config().fragments["t"]
    fast = datetime.now(UTC) + timedelta(days=365)
    assert unreferenced(store, "t", keep_hours=24, now=fast).places
    assert not collector(store, 24, fast, removes=True)(fragment).places


def test_gc_lists_no_emptied_folder_again(
    seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SeaweedFS keeps them: the next run asks for no more than this one."""
    monkeypatch.setattr(garbage, "KEEP_HOURS_MIN_REMOTE", 0)
    monkeypatch.setattr(Lease, "stored_at", lambda _: datetime.now(UTC))
    rig = Rig(tmp_path, seaweedfs, 7)
    with RequestCounter(seaweedfs) as counter:
        rig.pair.bucket = bucket = counter.bucket()
        store, fragment = rig.pair.store, rig.pair.config().fragments["t"]
        lists = list[int]()
        for _ in range(2):
            for _ in range(3):
                assert rig.refresh().error is None
                rig.edit()
            assert collector(store, 0, datetime.now(UTC), removes=True)(fragment).places
            with counter.counted(bucket) as asked:
                assert not collector(store, 0, datetime.now(UTC), removes=True)(fragment).places
            lists.append(sum(one.startswith("list ") for one in asked.places))
        assert lists[0] == lists[1]
    rig.pair.stop()
    rig.legacy.close()


def test_gc_that_lost_its_lock_removes_nothing(
    on_moto: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "KEEP_HOURS_MIN_REMOTE", 0)
    monkeypatch.setattr(Lease, "stored_at", lambda _: datetime.now(UTC))
    for _ in range(3):
        assert on_moto.refresh().error is None
        on_moto.edit()
    store, fragment = on_moto.pair.store, on_moto.pair.config().fragments["t"]
    there = store.walk("t")

    def is_lost(_: Lease) -> None:
        raise Locked("Another command has it.")

    with monkeypatch.context() as patch:
        patch.setattr(Lease, "check", is_lost)
        with pytest.raises(Locked):
            collector(store, 0, datetime.now(UTC), removes=True)(fragment)
    assert store.walk("t") == there
    assert collector(store, 0, datetime.now(UTC), removes=True)(fragment).places
    assert store.walk("t") != there


@contextmanager
def stopped(rig: Rig, point: Point, *words: str) -> Iterator[Callable[[], tuple[int, str]]]:
    """Run a command until it stops at a point; give a function that lets it go on to its end."""
    env = environment(**{VARIABLE: f"{point.value}:stop"})
    all_ = ["-c", STOPPED, "--config", str(rig.pair.warehouse_toml()), *words]
    err = rig.pair.folder / "stopped.err"
    with err.open("w") as log, Fork(all_, cwd=ROOT, env=env, stdout=log, stderr=log) as holder:

        def go_on() -> tuple[int, str]:
            os.kill(holder.pid, signal.SIGCONT)
            return holder.wait(STOPPED_S_MAX), err.read_text()

        try:
            until = time.monotonic() + STOPPED_S_MAX
            while not is_stopped(holder.pid):
                assert is_alive(holder.pid), err.read_text()
                assert time.monotonic() < until
                time.sleep(0.02)
            yield go_on
        finally:
            holder.kill()


def cases() -> Iterator[object]:
    """Each point of a load and of a refresh, and gc, twice; a few in every run."""
    for what, points in (
        ("load", POINTS),
        ("refresh", POINTS[1:]),
        ("gc", [Point.GARBAGE_REMOVED]),
    ):
        for number, point in enumerate([*points, *points]):
            is_sample = (what, point) in OFTEN and number < len(points)
            marks = [] if is_sample else [pytest.mark.soak]
            yield pytest.param(what, point, marks=marks, id=f"{what}, {point.value}, {number}")


@pytest.mark.parametrize(("what", "point"), [*cases()])
def test_a_holder_that_was_stopped_past_its_lease(rig: Rig, what: str, point: Point) -> None:
    rig.begin()
    words = ["refresh", "t"]
    if what != "load":
        assert rig.refresh().error is None
        rig.edit()
    if what == "gc":
        for _ in range(2):
            assert rig.refresh().error is None
            rig.edit()
        words = ["gc", "t", "--yes", "--keep-hours", "0"]
    with stopped(rig, point, *words) as go_on:
        time.sleep(1.2)  # its lease ends
        report = rig.refresh()
        assert report.error is None, report.error
        rig.check()
        code, said = go_on()
    assert code in (0, 75), said
    report = rig.refresh()
    assert report.error is None, report.error
    rig.edit()
    assert rig.refresh().error is None
    rig.check()


def test_a_store_that_lets_two_commands_succeed_is_refused(on_moto: Rig) -> None:
    """By the first refresh, before anything is read or published."""
    rig = on_moto
    with careless(rig.bucket, "if-none-match") as rig.pair.bucket:
        report = rig.refresh()
        assert report.error is not None
        assert report.error["code"] == "WAREHOUSE"
        assert "two writers of one file succeed" in report.error["message"]
        assert not rig.pair.store.files(PRIVATE, "keys")
        assert not formats.has_log(rig.pair.store, "t")
