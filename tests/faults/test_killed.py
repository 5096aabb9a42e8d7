"""A command that is killed between its commit and the line of its history loses no report.

The next command writes the line from the commit, exactly once.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.harness.forks import run
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment
from warehouse_agent.config import select
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE

ROWS = 300
KILLED = """
import os, signal
from warehouse_agent.cli.main import main
from warehouse_agent.{module} import {owner}
whole = {owner}.{function}
def killed(*args, **more):
    {calls}
    os.kill(os.getpid(), signal.SIGKILL)
{owner}.{function} = killed
main()
"""
# The commit was made and nothing after it; or all but the line.
PLACES = {
    "after the commit": KILLED.format(
        module="storage", owner="formats", function="commit", calls="whole(*args)"
    ),
    "before the line": KILLED.format(
        module="history", owner="refresh_history", function="append", calls="pass"
    ),
}
BEFORE = KILLED.format(module="storage", owner="formats", function="commit", calls="pass")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE a (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many("INSERT INTO a VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"a": 'table = "a"'}) as made:
        made.small_bytes = 32 << 20
        yield made
    legacy.close()


def kill(pair: Pair, place: str) -> None:
    """Run a refresh as a process that is killed there."""
    words = ["--config", str(pair.warehouse_toml()), "refresh", "a"]
    done = run(["-c", PLACES.get(place, place), *words], cwd=ROOT, env=environment())
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == ""


def answers(pair: Pair, *words: str) -> list[dict[str, Any]]:
    """Run a command; return what it prints."""
    return [json.loads(line) for line in pair.said(*words, "--json").splitlines()]


def kept(pair: Pair) -> list[dict[str, Any]]:
    """The lines of the history."""
    found = pair.store.read(PRIVATE, "runs", "a.jsonl") or b""
    return [json.loads(line) for line in found.splitlines()]


def steps(pair: Pair) -> list[tuple[int | None, int | None, bool]]:
    """The versions before and after each line, and whether it is of a failure."""
    return [(x["previous_version"], x["version"], x["error"] is not None) for x in kept(pair)]


def check(pair: Pair) -> None:
    table = pair.delta("a").to_pyarrow_table()
    ours = zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True)
    assert sorted(ours) == sorted(pair.legacy.rows("a"))


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_the_next_command_writes_the_line(pair: Pair, place: str) -> None:
    kill(pair, place)
    assert (pair.version("a"), kept(pair)) == (0, [])
    for _ in range(2):
        assert pair.refresh("a").version == 0
    assert steps(pair) == [(None, 0, False), (0, 0, False), (0, 0, False)]
    load, same, _ = kept(pair)
    assert [*load] == [*same]
    assert (load["rows_inserted"], load["rows_total"], load["proof"]) == (ROWS, ROWS, "total")
    assert load["bytes_received"] > 0
    pair.legacy.execute("UPDATE a SET note = 'x' WHERE id < 3")
    kill(pair, place)
    pair.legacy.execute("DELETE FROM a WHERE id = 7")
    assert pair.refresh("a").rows_changed == 1
    assert steps(pair)[3:] == [(0, 1, False), (1, 2, False)]
    assert [x["rows_updated"] for x in kept(pair)[3:]] == [3, 0]
    check(pair)


@pytest.mark.slow
def test_a_command_that_was_killed_is_told(pair: Pair) -> None:
    """By `status` at once, which writes nothing, and by the next command in the history."""
    kill(pair, BEFORE)
    for _ in range(2):
        (told,) = answers(pair, "status")
        assert (told["failed"]["code"], told["failed"]["times"]) == ("KILLED", 1)
        assert told["state"] == "warning"
    assert kept(pair) == []
    assert pair.store.files(PRIVATE, "commands") != []
    kill(pair, BEFORE)  # the first is written by the second
    assert [line["error"]["code"] for line in kept(pair)] == ["KILLED"]
    (told,) = answers(pair, "status")
    assert told["failed"]["times"] == 2
    (report,) = answers(pair, "refresh", "a")
    assert report["error"] is None
    assert [line["error"] and line["error"]["code"] for line in kept(pair)] == ["KILLED"] * 2 + [
        None
    ]
    assert pair.store.files(PRIVATE, "commands") == []
    assert not [name for name, _ in pair.store.files(PRIVATE, "locks") if name.startswith("run-")]
    (told,) = answers(pair, "status")
    assert (told["failed"], told["state"]) == (None, "ok")
    assert report["source_release"].startswith("driftline")
    assert report["run"] == kept(pair)[-1]["run"] != kept(pair)[0]["run"]
    check(pair)


@pytest.mark.slow
def test_what_a_killed_command_had_ended_is_no_failure(pair: Pair) -> None:
    kill(pair, "after the commit")
    (told,) = answers(pair, "status")
    assert (told["failed"], told["version"]) == (None, 0)
    answers(pair, "refresh", "a")
    assert steps(pair) == [(None, 0, False), (0, 0, False)]


def test_a_commit_holds_the_report_of_its_command(pair: Pair) -> None:
    for change in ("UPDATE a SET note = 'x' WHERE id < 3", "DELETE FROM a WHERE id = 7", ""):
        report = json.loads(pair.reports("a")[0].to_json())
        head = formats.head(pair.store, "a")
        assert head is not None
        del report["seconds"]["publish"]  # which has not ended
        assert head.record.report == report
        pair.legacy.execute(change)
    assert len(kept(pair)) == 3


def test_a_source_that_cannot_be_reached_delays_no_line(pair: Pair) -> None:
    kill(pair, "before the line")
    pair.stop()
    (report,) = pair.reports("a")
    assert report.error is not None
    assert steps(pair) == [(None, 0, False), (0, 0, True)]


def test_only_the_holder_of_the_lock_writes_the_line(pair: Pair) -> None:
    kill(pair, "before the line")
    with pair.store.lock("a"):
        pair.reports("a")
        assert steps(pair) == [(0, 0, True)]
    config = pair.config()
    runner = Runner(NoSpark(), config, attempts=1)
    chosen = (select(config, ["a"], False), Options())
    threads = [threading.Thread(target=runner.refresh, args=chosen) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps(pair).count((None, 0, False)) == 1
    assert pair.refresh("a").version == 0
    assert steps(pair).count((None, 0, False)) == 1
    assert len(kept(pair)) == 9
    check(pair)


def test_a_line_that_was_cut_is_written_again(pair: Pair) -> None:
    pair.refresh("a")
    whole = pair.store.read(PRIVATE, "runs", "a.jsonl") or b""
    pair.store.write(whole[:500], PRIVATE, "runs", "a.jsonl")
    pair.refresh("a")
    first, again, same = (pair.store.read(PRIVATE, "runs", "a.jsonl") or b"").splitlines()
    assert first == whole[:500]
    assert [json.loads(line)["previous_version"] for line in (again, same)] == [None, 0]


def test_a_table_that_began_anew(pair: Pair) -> None:
    """Its version has the number of a version of the table before it."""
    for _ in range(2):
        pair.refresh("a")
    (pair.warehouse / "a").rename(pair.warehouse / "moved")
    kill(pair, "after the commit")
    pair.refresh("a")
    assert steps(pair) == [(None, 0, False), (0, 0, False)] * 2
