"""How often a command opens a table's log, and how much of it is read.

A log is listed and read on storage that may be far away, so it is opened once in a command, and
what is read does not grow with the number of versions.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.warehouse_agent.storage.test_table_formats import LAYOUT, RECORD, put
from warehouse_agent.cli import main
from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.inspection.published_state import fragment_state
from warehouse_agent.storage.delta_log import DeltaLog
from warehouse_agent.storage.opened_table import OpenedTable
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion

pytestmark = pytest.mark.slow

NAMES = ("a", "b")
Opened = Callable[..., dict[str, int]]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for name in NAMES:
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, mark INTEGER)")
        legacy.many(f"INSERT INTO {name} VALUES (?, 0)", [(key,) for key in range(50)])
    relations = {name: f'table = "{name}"' for name in NAMES}
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
        made.small_bytes = 32 << 20
        yield made
    legacy.close()


@pytest.fixture
def opened(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Run a command, which must succeed; return how often it opened each log."""

    def run(*words: str) -> dict[str, int]:
        found = Counter[str]()

        class Counted(OpenedTable):
            def __init__(self, place: str, *args: Any) -> None:
                super().__init__(place, *args)
                found[Path(place).name] += 1

        monkeypatch.setattr(
            sys, "argv", ["driftline", "--config", str(pair.warehouse_toml()), *words]
        )
        monkeypatch.setattr("warehouse_agent.storage.opened_table.OpenedTable", Counted)
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert not ended.value.code
        return dict(found)

    for check in ("_java", "_spark"):  # of `doctor`, which take long and know no table
        monkeypatch.setattr(f"warehouse_agent.inspection.readiness.{check}", lambda *_: "not asked")
    return run


def test_a_log_is_opened_once_in_a_command(
    pair: Pair, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where `receipt` writes
    once = dict.fromkeys(NAMES, 1)
    told = once | {FRESHNESS: 1}
    assert opened("refresh") == once, "of a new table, to learn its id"
    assert opened("refresh") == told
    for name in NAMES:
        pair.legacy.execute(f"UPDATE {name} SET mark = 1 WHERE id = 7")
    assert opened("refresh") == told
    assert opened("status") == {}, "a commit says what it shows"
    for command in ("plan", "verify", "doctor"):
        assert opened(command) == once, command
    for command in ("history", "receipt"):
        assert opened(command, "a") == {"a": 1}, command
    # Version 0 can still be read, and is another one.
    assert opened("gc", "--all") == {**dict.fromkeys(NAMES, 2), FRESHNESS: 1}
    assert opened("gc", "--all", "--keep-hours", "0") == once | {FRESHNESS: 1}
    assert opened("verify", "--repair") == once


def test_a_log_of_many_versions_is_read_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a refresh nor `status` reads every commit; 1,000 versions open in some 7 ms."""
    store, form, name = Store(str(tmp_path)), DeltaLog(), "orders"
    version = None
    for number in range(205):
        added = [] if version else [put(store, "data-1/a.parquet", [1, 2, 3])]
        assert form.commit(store, name, NewVersion(version, LAYOUT, added, (), RECORD)) == number
        version = form.head(store, name, None)
    log = tmp_path / name / form.log
    for number in range(1, 200):  # needed by nobody but `history` and `gc`
        (log / f"{number:020d}.json").unlink()
    head = form.head(store, name, None)
    assert head is not None
    assert (head.version, head.rows) == (204, 3)
    oldest = form.oldest(store, name)
    assert oldest is not None
    assert oldest[0] == 0
    monkeypatch.setattr(DeltaLog, "entries", None)
    assert fragment_state(store, name).version == 204
