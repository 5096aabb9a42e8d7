"""Rows of a load become data files while others still come, and what is published is the source's.

Each frame is a staged file of its own here, so that small tables have many.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from driftline.errors import SourceUnreachable, WarehouseUnavailable

from source_agent.scan import frame_builder
from tests import ROOT
from tests.harness.forks import run
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment
from tests.harness.places import parquet
from warehouse_agent.refresh import whole
from warehouse_agent.storage.formats import head
from warehouse_agent.table_maintenance.garbage import unreferenced
from warehouse_agent.tasks import staging, write, written_ahead
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.written_ahead import FilesAhead

ROWS = 4000
WAIT_S_MAX = 30.0
# A refresh that is killed when the first data file of its load is whole.
KILLED = """
import os, signal
from warehouse_agent.cli.main import main
from warehouse_agent.tasks import staging, written_ahead
staging.FILE_BYTES, finish = 1000, written_ahead.FilesAhead._finish
def killed(*arguments):
    finish(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
written_ahead.FilesAhead._finish = killed
main()
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(staging, "FILE_BYTES", 1000)
    monkeypatch.setattr(frame_builder, "FRAME_BODY_BYTES_TARGET", 20_000)
    with closing(SqliteLegacy(tmp_path / "erp.db")) as legacy:
        legacy.execute("CREATE TABLE t (code TEXT PRIMARY KEY, note TEXT, n INTEGER)")
        rows = [(f"k{i * 7919 % ROWS}", f"row {i * i}" * (i % 9), i) for i in range(ROWS)]
        legacy.many("INSERT INTO t VALUES (?, ?, ?)", rows)
        with Pair(NoSpark(), legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
            made.small_bytes = 64 << 20
            yield made


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[FilesAhead]:
    """What wrote ahead, of each exchange; it is given the time to write all that it takes."""
    made: list[FilesAhead] = []

    class Patient(FilesAhead):
        def take(self, staged: str) -> None:
            if not made or made[-1] is not self:
                made.append(self)
            super().take(staged)
            for task in self._tasks:
                task.exception(WAIT_S_MAX)

    monkeypatch.setattr(whole, "FilesAhead", Patient)
    return made


def data_files(pair: Pair) -> list[str]:
    return sorted(str(one.relative_to(pair.root)) for one in pair.root.rglob("*.parquet"))


def check(pair: Pair) -> None:
    """Published == source, and no data file is there that no version names."""
    pair.check("t")
    snapshot = head(pair.store, "t")
    assert snapshot is not None
    assert data_files(pair) == sorted(f"t/{file.path}" for file in snapshot.files)


def test_a_load_is_written_while_it_comes(
    pair: Pair, ahead: list[FilesAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but what came last; a data file ends when it is large; a refresh writes as ever."""
    monkeypatch.setattr(written_ahead, "FILE_BYTES", 100_000)
    loaded = pair.refresh("t")
    (one,) = ahead
    assert len(one.done) > 4
    assert len(one.files) > 2
    assert sum(file.rows for file in one.files) >= 0.9 * ROWS
    assert loaded.places == {"apply": "driver", "prove": "driver"}
    assert loaded.rows_inserted == ROWS
    check(pair)
    pair.legacy.execute("UPDATE t SET note = 'new' WHERE n % 3 = 0")
    pair.refresh("t")
    pair.check("t")
    assert not ahead[1].done, "a refresh compares"


def test_statistics_are_those_of_a_load(pair: Pair, ahead: list[FilesAhead]) -> None:
    pair.refresh("t")
    assert ahead[0].files
    names = ["_driftline_first", "_driftline_updates", "_driftline_changed", "_driftline_rate"]
    tables = [parquet(pair.root / file).read(names) for file in data_files(pair)]
    found = pa.concat_tables(tables).group_by(names).aggregate([([], "count_all")]).to_pylist()
    assert found == [dict(zip(names, [0, 0, 0, 0.0], strict=True)) | {"count_all": ROWS}]


@pytest.mark.parametrize("at", [1, 5])
def test_a_load_that_is_cut_leaves_no_data_file(
    pair: Pair, ahead: list[FilesAhead], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The next attempt begins with what was staged, and all is right."""
    add, count = staging.FrameWriter.add, 0

    def cut(writer: staging.FrameWriter, frame: bytes) -> None:
        nonlocal count
        add(writer, frame)
        count += 1
        if count == at:
            raise SourceUnreachable("The line is cut.")

    with monkeypatch.context() as patch:
        patch.setattr(staging.FrameWriter, "add", cut)
        assert pair.error("t")["code"] == "UNREACHABLE"
    assert ahead[0].done
    assert data_files(pair) == []
    pair.refresh("t")
    pair.check("t")


def test_what_a_killed_load_has_written_is_found_by_gc(pair: Pair) -> None:
    """Nothing names it: readers and the next load do as if it were not there."""
    words = ["--config", str(pair.warehouse_toml()), "refresh", "t"]
    with (pair.folder / "log").open("w") as log:
        done = run(["-c", KILLED, *words], cwd=ROOT, env=environment(), stdout=log, stderr=log)
    assert done.returncode == -signal.SIGKILL, (pair.folder / "log").read_text()
    assert (left := data_files(pair))
    assert pair.version("t") is None
    pair.end_leases()
    pair.refresh("t")
    pair.check("t")
    assert set(left) < set(data_files(pair))
    now = datetime.now(UTC)
    assert not unreferenced(pair.store, "t", keep_hours=1, now=now).places, "it may be written now"
    found = unreferenced(pair.store, "t", keep_hours=1, now=now + timedelta(hours=2))
    assert {*left} <= {"/".join(place) for place in found.places}
    for place in found.places:
        pair.store.remove_file(*place)
    check(pair)
    pair.check("t")


@pytest.mark.usefixtures("ahead")
def test_rows_that_cannot_be_written(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of a step; nothing is left; a later load is right."""

    def full(*_: object) -> None:
        raise WarehouseUnavailable("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(write.Sink, "add", full)
        error = pair.error("t")
    assert (error["code"], error["message"]) == ("WAREHOUSE", "The disk is full.")
    assert data_files(pair) == []
    pair.refresh("t")
    pair.check("t")


@pytest.mark.parametrize(("most", "is_begun"), [(-1, False), (200_000, True)])
def test_what_does_not_fit_is_left_to_the_step(
    pair: Pair,
    ahead: list[FilesAhead],
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    *,
    is_begun: bool,
) -> None:
    """From the start, or where more comes than the source expected."""
    monkeypatch.setattr(Steps, "fits_here", lambda _, size: size <= most)
    pair.refresh("t")
    assert bool(ahead[0].done) == is_begun
    assert len(ahead[0].done) < 10
    check(pair)
