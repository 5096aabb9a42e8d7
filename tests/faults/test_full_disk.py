"""The warehouse's disk is full at every write of a command, one after the other.

Only so many pages of a real file system are free: none, one, two, until the command passes. So each
write is once the first that finds no room, whoever makes it: Python, Arrow or delta-rs.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.disk import Mount
from tests.harness.fault_rig import Rig, expect
from tests.harness.legacy import LEGACIES
from tests.warehouse_agent.cli.test_main import command
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage import store
from warehouse_agent.storage.formats import head
from warehouse_agent.visible_versions import warehouse_versions

pytestmark = pytest.mark.slow
PAGE = 4096
PAGES_MAX = 160
# What could not be written is said with both amounts, also where the reserve would be touched.
NEEDED = re.compile(
    r"[\d,]+ bytes are needed,(?: a reserve of [\d,]+ among them,)? and [\d,]+ are free"
)
ROWS = 40  # fewer pages
OLD = timedelta(days=40)  # of entries of a log that `gc` removes
PAGES_ON_SPARK = 12  # that a refresh needs there
TILES = 'method = "range"\nrequire = "fuzzy"\nincremental = { rows = 25, pause_s = 0.01 }'


@dataclass(frozen=True, slots=True)
class Case:
    """A command, and words that the errors of its sweep have: the writes that found no room.

    `what`: as `Rig.prepare` has it; `refreshes`: after so many what is published is the source.
    """

    what: str
    places: tuple[str, ...]
    lines: str = 'method = "sketch"'
    refreshes: int = 1


STAGED, DATA, LOGGED = "staging/t/", "/t/data-", "could not be committed"
CASES = {
    "load": Case("load", (STAGED, DATA, "/_delta_log/")),
    "change": Case("change", (STAGED, DATA, "changes/t/", LOGGED)),
    "flip": Case("flip", ("_driftline/warehouse",)),
    # A pass that goes on finds no change behind it: the next one does.
    "tiles": Case("change", ("staging/t/pass/", DATA, LOGGED), TILES, refreshes=2),
    "gc": Case("gc", ()),
}


class FullDisk:
    """A rig whose warehouse is on a small disk."""

    def __init__(self, rig: Rig, disk: Path, case: Case) -> None:
        rig.pair.disk = disk / "warehouse"
        rig.pair.fragment_lines["t"] = case.lines
        rig.legacy.execute("DELETE FROM t WHERE id >= ?", ROWS)
        rig.refreshes = case.refreshes
        self.rig, self.case, self._filler = rig, case, disk / "filler"

    def run(self, pages: int) -> dict[str, Any] | None:
        """Run the command with so many free pages, check what it left, and return its error.

        Raises:
            Violation: a promise does not hold.
        """
        rig = self.rig
        rig.prepare(self.case.what)
        if self.case.what == "gc":
            self._leave_garbage()
        before = rig.pair.version("t"), rig.published()
        with self._filled(pages):
            error = self._collect() if self.case.what == "gc" else self._refresh()
        if self.case.what == "flip":
            self._check_flip(before[0])
        rig.check(before)
        if self.case.what == "flip":
            self._check_flip(rig.pair.version("t"))
        return error

    def _refresh(self) -> dict[str, Any] | None:
        (report,) = self.rig.pair.reports("t", options=Options(allow_shrink=True))
        return report.error

    def _leave_garbage(self) -> None:
        """Leave files of an earlier version, and old entries in its log."""
        pair = self.rig.pair
        self.rig.converge()
        for file in (pair.warehouse / "t" / "_delta_log").iterdir():
            at = file.stat().st_mtime - OLD.total_seconds()
            os.utime(file, (at, at))
        self.rig.edit("change")
        self.rig.converge()

    def _collect(self) -> dict[str, Any] | None:
        """Run `gc`; it only removes, so it needs no room."""
        toml = self.rig.pair.warehouse_toml()
        done = command("gc", "t", "--keep-hours", "0", "--yes", config=toml)
        expect(done.code == 0, f"gc: {done}")
        expect(re.search(r"t: removed [1-9]", done.out) is not None, f"gc: {done}")
        return None

    def _check_flip(self, version: int | None) -> None:
        """Check what readers of the table of versions are given: this version, or the next one."""
        found, newest = (
            warehouse_versions.newest(self.rig.pair.store),
            head(self.rig.pair.store, "t"),
        )
        assert found is not None
        assert newest is not None
        given = found.members["t"].version
        expect(given in {version, newest.version}, f"version {given} of t, not {version}")

    @contextmanager
    def _filled(self, pages: int) -> Iterator[None]:
        """Leave so many pages of the disk free: from now on, or from the flip on.

        What is staged is removed behind the commit, and makes room for a flip.
        """
        flip = warehouse_versions.flip

        def filling(*arguments: Any) -> Any:
            self._fill(pages)
            return flip(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            if self.case.what == "flip":
                patch.setattr(warehouse_versions, "flip", filling)
            else:
                self._fill(pages)
            yield
        self._filler.unlink()

    def _fill(self, pages: int) -> None:
        """Leave so many pages of the disk free."""
        disk = os.statvfs(self._filler.parent)
        self._filler.write_bytes(bytes(disk.f_bavail * disk.f_frsize - pages * PAGE))

    def sweep(self) -> list[dict[str, Any]]:
        """Run with more and more free pages until the command passes; return the errors."""
        failures: list[dict[str, Any]] = []
        for pages in range(PAGES_MAX):
            if (error := self.run(pages)) is not None:
                failures.append(error)
            if pages > len(failures) + 3:  # what is lost without an error, like notes, has its turn
                return failures
        pytest.fail("the command never passed")


@pytest.fixture(autouse=True)
def unreserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RESERVE_BYTES", 0)  # it would end the refresh before most writes


@pytest.fixture
def full(request: pytest.FixtureRequest, tmp_path: Path, small_disk: Mount) -> Iterator[FullDisk]:
    """By the name of an engine, and that of a case."""
    engine, name = request.param
    with Rig(LEGACIES[engine](request, tmp_path), tmp_path / "pair") as rig:
        yield FullDisk(rig, small_disk(2), CASES[name])


@pytest.fixture
def on_spark(
    spark: SparkSession, tmp_path: Path, small_disk: Mount, request: pytest.FixtureRequest
) -> Iterator[FullDisk]:
    """A rig whose every step runs in Spark's tasks."""
    with Rig(LEGACIES["sqlite"](request, tmp_path), tmp_path / "pair", spark=spark) as rig:
        yield FullDisk(rig, small_disk(2), CASES["change"])


@pytest.mark.parametrize(
    "full",
    [
        *(pytest.param(("sqlite", name), id=name) for name in CASES),
        pytest.param(("postgresql", "change"), id="postgresql", marks=pytest.mark.soak),
    ],
    indirect=True,
)
def test_full_at_every_write(full: FullDisk) -> None:
    """The version stays, or is the next one; with room, the next refresh converges."""
    failures = full.sweep()
    print(f"{len(failures)} errors")
    expect_said(failures, full)
    said = "\n".join(error["message"] for error in failures)
    for place in full.case.places:
        assert place in said, said


@pytest.mark.spark
def test_full_at_some_write_on_spark(on_spark: FullDisk) -> None:
    """A page by a seed, which may be another one; the soak takes them all."""
    seed = os.environ.get("DISK_SEED", str(datetime.now(UTC).date()))
    pages = random.Random(seed).randrange(PAGES_ON_SPARK)
    print(f"DISK_SEED={seed}: {pages} pages")
    if (error := on_spark.run(pages)) is not None:
        expect_said([error], on_spark)


@pytest.mark.spark
@pytest.mark.soak
def test_full_at_every_write_on_spark(on_spark: FullDisk) -> None:
    failures = on_spark.sweep()
    print(f"{len(failures)} errors")
    expect_said(failures, on_spark)


def expect_said(failures: Iterable[dict[str, Any]], full: FullDisk) -> None:
    """Check that each error has path, needed and free bytes."""
    for error in failures:
        assert error["code"] == "WAREHOUSE", error
        message = error["message"]
        assert str(full.rig.pair.warehouse) in message, error
        assert NEEDED.search(message), error
