"""Anything may happen in any order, and readers notice nothing but new, proven versions.

A state machine edits the source, changes its schema, refreshes, restarts the source agent, cuts
the exchange, and kills the warehouse agent before and after its commit: in this process by an
exception that nobody expects, and once for real, in a process of its own. One warm Spark session
serves all of it.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import SourceUnreachable
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql import DataFrame, SparkSession

from tests import ROOT
from tests.harness.forks import run
from tests.harness.legacy import Legacy, PostgresLegacy, SqliteLegacy
from tests.harness.pair import Pair, SourceProcess, environment, expect_equal
from tests.harness.servers import PostgreSQL
from warehouse_agent import read
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.transport.channel import Stream

SOAK_EXAMPLES = 500
ROWS = 300  # at the beginning
TYPES = {"sqlite": "INTEGER", "postgresql": "BIGINT"}


class Killed(BaseException):
    """The warehouse agent is gone at this very moment; nothing of it may tidy up."""


class Machine(RuleBasedStateMachine):
    """The pair, its legacy system, and what a reader must see."""

    spark: ClassVar[SparkSession]
    make: Callable[[Path], Legacy]  # of the class, too

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="driftline-machine-"))
        self.legacy = Machine.make(self.folder)
        kind = TYPES[self.legacy.engine]
        self.legacy.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, a TEXT, b TEXT)")
        self.pair = Pair(Machine.spark, self.legacy, self.folder / "pair", {"t": 'table = "t"'})
        self.version: int | None = None
        self.seen: list[tuple[Any, ...]] = []  # of this version
        self.columns = ["a", "b"]
        self.published_columns = list(self.columns)
        self.names = itertools.count()
        self.edits = itertools.count()
        self.pinned: list[tuple[DataFrame, list[tuple[Any, ...]]]] = []
        self.must_look = False

    def teardown(self) -> None:
        try:
            for frame, rows in self.pinned:
                expect_equal([tuple(row) for row in frame.collect()], rows)
        finally:
            self.pair.stop()
            self.legacy.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # The source

    @initialize()
    def begin(self) -> None:
        rows = [(i * 3, f"a{i}", None if i % 5 else "b") for i in range(ROWS)]
        self.legacy.many("INSERT INTO t VALUES (?, ?, ?)", rows)

    @rule(start=st.integers(-(1 << 63), (1 << 63) - 100), count=st.integers(1, 30))
    def insert(self, start: int, count: int) -> None:
        present = {row[0] for row in self.legacy.rows("t")}
        rows = [(k, f"new {next(self.edits)}") for k in range(start, start + count)]
        rows = [row for row in rows if row[0] not in present]
        if rows:
            column = self.columns[0]
            self.legacy.many(f"INSERT INTO t (id, {column}) VALUES (?, ?)", rows)

    @rule(step=st.integers(1, 50), column=st.integers(0, 9), null=st.booleans())
    def update(self, step: int, column: int, null: bool) -> None:
        name = self.columns[column % len(self.columns)]
        value = None if null else f"edit {next(self.edits)}"
        keys = sorted(row[0] for row in self.legacy.rows("t"))[::step]
        if keys:
            self.legacy.many(f"UPDATE t SET {name} = ? WHERE id = ?", [(value, k) for k in keys])

    @rule(step=st.integers(3, 40), offset=st.integers(0, 2))
    def delete(self, step: int, offset: int) -> None:
        keys = sorted(row[0] for row in self.legacy.rows("t"))[offset::step]
        if keys:
            self.legacy.many("DELETE FROM t WHERE id = ?", [(k,) for k in keys])

    @rule()
    def update_all(self) -> None:
        self.legacy.execute(f"UPDATE t SET {self.columns[0]} = 'all {next(self.edits)}'")

    @rule()
    def move_keys(self) -> None:
        """A key that changes is a deleted and an inserted row."""
        self.legacy.execute("UPDATE t SET id = id + 1 WHERE id BETWEEN 30 AND 31")

    @precondition(lambda self: self.version is not None)
    @rule()
    def empty(self) -> None:
        self.legacy.execute("DELETE FROM t")

    @rule()
    def add_column(self) -> None:
        name = f"c{next(self.names)}"
        self.legacy.execute(f"ALTER TABLE t ADD COLUMN {name} TEXT")
        self.legacy.execute(f"UPDATE t SET {name} = 'x' WHERE id BETWEEN 0 AND 60")
        self.columns.append(name)

    @precondition(lambda self: len(self.columns) > 2)
    @rule()
    def drop_column(self) -> None:
        self.legacy.execute(f"ALTER TABLE t DROP COLUMN {self.columns.pop()}")

    @rule()
    def restart_source(self) -> None:
        self.pair.restart()

    # The warehouse

    @rule()
    def refresh(self) -> None:
        self._refresh()

    def _refresh(self) -> None:
        """What a user does: run it, read why it refused, run what it says."""
        before, columns = self.version, self.published_columns
        (report,) = self.pair.reports("t", attempts=3)
        changed = before is not None and columns != self.columns
        if report.error is not None and report.error["code"] == "RECIPE":
            assert changed, report.error
            self._unaffected()
            (report,) = self.pair.reports("t", options=Options(accept_schema=True))
        else:
            assert not changed, "a changed schema was not noticed"
        if report.error is not None and report.error["code"] == "SHRANK":
            rows = len(self.legacy.rows("t"))
            assert rows * 2 < len(self.seen), (rows, len(self.seen))
            self._unaffected()
            allow = Options(allow_shrink=True, accept_schema=True)
            (report,) = self.pair.reports("t", options=allow)
        assert report.error is None, report.error
        self._converged(report.version)

    def _converged(self, version: int | None) -> None:
        assert version is not None
        rows = self.pair.published("t")
        expect_equal(rows, self.legacy.rows("t"))
        if version == self.version:
            expect_equal(rows, self.seen)
        else:
            assert version == (0 if self.version is None else self.version + 1)
            if version > 0 and self.columns == self.published_columns:
                self.pair.check_feed("t", version)
        self.version, self.seen = version, rows
        self.published_columns = list(self.columns)
        self.must_look = False

    @rule(replies=st.integers(0, 5))
    def cut_and_refresh(self, replies: int) -> None:
        """The line breaks after so many replies; nothing is seen of it; the next try converges."""
        with cut_after(replies) as was_cut:
            (report,) = self.pair.reports("t")
        if was_cut:
            assert report.error is not None
            assert report.error["code"] == "UNREACHABLE"
            self._unaffected()
        elif report.error is None:
            self._converged(report.version)
            return
        self._refresh()

    @rule(replies=st.integers(1, 4), times=st.integers(1, 2))
    def cut_edit_refresh(self, replies: int, times: int) -> None:
        """What was staged is of a source that has changed since."""
        for number in range(times):
            with cut_after(replies):
                (report,) = self.pair.reports("t")
            if report.error is None:
                self._converged(report.version)
            self.update(step=7 + number, column=number, null=False)
            self.delete(step=11, offset=number)
        self._refresh()

    @rule(committed=st.booleans())
    def kill_and_refresh(self, committed: bool) -> None:
        """The warehouse agent dies just before or just after its commit."""
        commit = formats.commit

        def dies(*args: Any, **kwargs: Any) -> int:
            if committed:
                commit(*args, **kwargs)
            raise Killed

        killed = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(formats, "commit", dies)
            try:
                (report,) = self.pair.reports("t")
            except Killed:
                killed = True
        if not killed:
            if report.error is None:  # nothing to commit
                self._converged(report.version)
            return
        if not committed:
            self._unaffected()
            self._refresh()
            return
        # Published, and nobody was told: the next refresh finds nothing to do.
        self._converged(self.pair.version("t"))
        (report,) = self.pair.reports("t")
        assert report.error is None, report.error
        assert (report.version, report.rows_changed) == (self.version, 0)

    @precondition(lambda self: self.version is not None and len(self.pinned) < 2)
    @rule()
    def pin(self) -> None:
        """A reader opens the version that there is and takes its time."""
        self.pinned.append(
            (read(self.spark, str(self.pair.root), "t", storage=self.pair.storage), self.seen)
        )

    @invariant()
    def only_a_refresh_changes_the_version(self) -> None:
        assert self.pair.version("t") == self.version

    def _unaffected(self) -> None:
        """A reader sees what it saw."""
        assert self.pair.version("t") == self.version
        if self.version is not None:
            expect_equal(self.pair.published("t"), self.seen)


class cut_after:
    """The line breaks after so many replies have been received. Truthy once it has."""

    def __init__(self, replies: int) -> None:
        self._left = replies
        self._was_cut = False
        self._patch = pytest.MonkeyPatch()

    def __bool__(self) -> bool:
        return self._was_cut

    def __enter__(self) -> cut_after:
        receive = Stream.receive

        def broken(stream: Stream) -> pb.Reply:
            if self._left == 0:
                self._was_cut = True
                raise SourceUnreachable("The line was cut by the test.")
            self._left -= 1
            return receive(stream)

        self._patch.setattr(Stream, "receive", broken)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def on_sqlite(folder: Path) -> Legacy:
    return SqliteLegacy(folder / "erp.db")


def chosen_settings(examples: int, steps: int, *, soak: int = 200) -> settings:
    """Return settings for `examples` runs of `steps`, in the soak for `soak` runs of 40."""
    if settings.default is not None and settings.default.max_examples >= SOAK_EXAMPLES:
        return settings(max_examples=soak, stateful_step_count=40)
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )


def test_anything_in_any_order(spark: SparkSession) -> None:
    Machine.spark = spark
    Machine.make = staticmethod(on_sqlite)
    run_state_machine_as_test(Machine, settings=chosen_settings(9, 10))


def test_anything_in_any_order_on_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is Spark's, as in tables that are large."""
    monkeypatch.setattr("tests.harness.pair.SMALL_BYTES", 0)
    Machine.spark = spark
    Machine.make = staticmethod(on_sqlite)
    run_state_machine_as_test(Machine, settings=chosen_settings(2, 8, soak=20))


@pytest.mark.soak
@pytest.mark.timeout(86_400)
def test_anything_in_any_order_on_postgresql(spark: SparkSession, postgresql: PostgreSQL) -> None:
    def on_postgresql(_folder: Path) -> Legacy:
        return PostgresLegacy(postgresql)

    Machine.spark = spark
    Machine.make = staticmethod(on_postgresql)
    run_state_machine_as_test(Machine, settings=chosen_settings(3, 12))


KILLED = """
import os, signal
from warehouse_agent.cli.main import main
from warehouse_agent.storage import formats
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
formats.commit = die
main()
"""


def test_killed_between_apply_and_commit(spark: SparkSession, tmp_path: Path) -> None:
    """A real process with a real SIGKILL; the refresh after it finds the lock free, the staged
    frames usable, and publishes."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
    legacy.many("INSERT INTO t VALUES (?, ?)", [(i, f"a{i}") for i in range(2000)])
    with Pair(spark, legacy, tmp_path / "pair", {"t": 'table = "t"'}) as pair:
        pair.refresh("t")
        before = pair.published("t")
        legacy.execute("UPDATE t SET a = 'changed' WHERE id % 10 = 0")
        with SourceProcess(pair.source_toml(), is_forked=True) as source:
            pair.address = source.address
            config = pair.warehouse_toml(more='[spark]\n"spark.master" = "local[1]"')
            # Not through pipes, which would be open as long as its JVM takes to notice.
            with (tmp_path / "log").open("w") as log:
                killed = run(
                    ["-c", KILLED, "--config", str(config), "refresh", "t"],
                    cwd=ROOT,
                    env=environment(),
                    stdout=log,
                    stderr=log,
                )
            assert killed.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
            assert pair.version("t") == 0
            expect_equal(pair.published("t"), before)
            store = pair.store
            assert store.folders(PRIVATE, "staging", "t"), "nothing was staged"
            pair.end_leases()
            report = pair.refresh("t")
            assert (report.version, report.rows_updated) == (1, 200)
            # Equal to what was staged: only the comparison crossed the line.
            assert report.bytes_received < 1000
            pair.check("t")
            pair.check_feed("t", 1)
            assert not store.folders(PRIVATE, "staging", "t")
            runs = (store.read(PRIVATE, "runs", "t.jsonl") or b"").splitlines()
            assert [json.loads(line)["version"] for line in runs] == [0, 1]
    legacy.close()
