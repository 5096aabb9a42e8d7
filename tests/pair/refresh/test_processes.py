"""Refreshes whose steps read in processes beside the command."""

from __future__ import annotations

import errno
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.planning import step_places
from warehouse_agent.tasks import scan, steps
from warehouse_agent.tasks.processes import PROCESSES, ReadingProcesses

ROWS = 3000


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was asked of processes, however small the steps and however few the cores."""
    asked: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        own = getattr(ReadingProcesses, name)

        def run(*arguments: Any) -> Any:
            asked.append(name)
            return own(*arguments)

        return run

    for name in ("start", "read"):
        monkeypatch.setattr(ReadingProcesses, name, noted(name))
    monkeypatch.setattr(step_places, "PROCESS_BYTES", 0)
    monkeypatch.setattr(step_places, "PROCESS_MEMORY", 0)
    monkeypatch.setattr(scan, "THREADS_MAX", 2)
    monkeypatch.setattr(scan, "THREAD_BYTES", 1)
    monkeypatch.setattr(steps, "STEP_THREADS", 2)
    yield asked
    PROCESSES.close()


def refused(*_: object, **__: object) -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_where_no_process_can_be_started_threads_read(
    done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=True)
    legacy.execute("CREATE TABLE items (a INTEGER PRIMARY KEY, v REAL)")
    legacy.many("INSERT INTO items VALUES (?, ?)", [(n, n / 7) for n in range(ROWS)])
    monkeypatch.setattr(subprocess, "Popen", refused)
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"items": 'table = "items"'}) as pair:
        pair.small_bytes = 1 << 30
        pair.refresh("items")
        pair.check("items")
        assert done == ["start", "read"]
    legacy.close()


def test_what_is_published_equals_the_source(done: list[str], tmp_path: Path) -> None:
    legacy, dice = SqliteLegacy(tmp_path / "erp.db", wal=True), random.Random(3)
    legacy.execute("CREATE TABLE items (a TEXT, b INTEGER, v REAL, PRIMARY KEY (a, b))")
    rows = [(f"k{n % 70}", n, dice.random()) for n in range(ROWS)]
    legacy.many("INSERT INTO items VALUES (?, ?, ?)", rows)
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"items": 'table = "items"'}) as pair:
        pair.small_bytes = 1 << 30
        pair.refresh("items")
        pair.check("items")
        assert done[0] == "start", "before the source is asked"
        assert "read" in done
        for turn in range(4):
            del done[:]
            legacy.execute(f"UPDATE items SET v = v + 1 WHERE b % 90 = {turn}")
            legacy.execute(f"DELETE FROM items WHERE b % 400 = {turn}")
            legacy.execute(f"INSERT INTO items VALUES ('n', {ROWS + turn}, NULL)")
            assert pair.refresh("items").rows_changed > ROWS // 100
            pair.check("items")
            assert "read" in done
            assert (done[0] == "start") == (turn > 0), "once changes are expected"
    legacy.close()
