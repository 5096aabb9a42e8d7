"""The record of a command that runs: for other terminals, and for who comes after a killed one."""

from __future__ import annotations

import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from driftline.errors import WarehouseUnavailable
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.harness.forks import run
from tests.harness.no_locks import without_locks
from tests.harness.pair import environment
from warehouse_agent.events import (
    Event,
    PhasesExpected,
    PhaseStarted,
    RefreshCommitted,
    RefreshFailed,
    RefreshStarted,
    RowsRead,
)
from warehouse_agent.history import command_records, refresh_history
from warehouse_agent.history.command_records import (
    BEAT_S,
    DONE,
    FAILED,
    SILENT_S_MAX,
    WORKING,
    CommandJournal,
    FragmentWork,
    current,
    killed_text,
    settle,
)
from warehouse_agent.report import Report
from warehouse_agent.storage.store import PRIVATE, Store

NAMES = ("orders", "items", "ledger")
KILLED = f"""
import os, signal, sys
from warehouse_agent.history.command_records import CommandJournal
from warehouse_agent.storage.store import Store
with CommandJournal(Store(sys.argv[1]), "0123456789ab", {NAMES!r}):
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def lines(store: Store, run: str = "r") -> list[dict[str, object]]:
    body = store.read(PRIVATE, "commands", f"{run}.jsonl") or b""
    return [json.loads(line) for line in body.splitlines()]


def test_at_most_one_line_in_ten_seconds(store: Store) -> None:
    clock = Clock()
    with CommandJournal(store, "r", NAMES, clock) as journal:
        for second in range(61):
            clock.now = Clock.now + second
            journal(RowsRead("orders", "scan", 100 * second, 9_000, 0.5))
        assert len(lines(store)) == 1 + 60 / BEAT_S
        (record,) = current(store, clock())
    assert record.is_running
    assert (record.names, record.said - record.began) == (NAMES, 60.0)
    assert record.works == {
        "orders": FragmentWork(WORKING, "", Clock.now, "scan", 6_000, 9_000, 0.5)
    }
    assert current(store, clock()) == []
    assert store.files(PRIVATE, "locks") == []


def test_it_says_how_long_a_fragment_will_still_take(store: Store) -> None:
    clock, said = Clock(), list[float | None]()
    events: list[Event] = [
        PhaseStarted("orders", "reduce"),
        PhasesExpected("orders", {"reduce": 60.0, "exchange": 40.0, "apply": 30.0}),
        PhaseStarted("orders", "exchange"),
        RowsRead("orders", "scan", 500, 1_000),
        PhaseStarted("orders", "apply"),
        PhaseStarted("orders", "prove"),
    ]
    with CommandJournal(store, "r", NAMES, clock) as journal:
        for number, event in enumerate(events):
            clock.now = Clock.now + BEAT_S * (number + 1)
            journal(event)
            (record,) = current(store, clock())
            said.append(record.works["orders"].left_s)
    assert said == [None, 120.0, 70.0, 40.0, 30.0, 0.0]


def test_what_a_record_says_of_each_fragment(store: Store) -> None:
    clock, broken = Clock(), Report("items", error={"code": "UNREACHABLE"})
    with CommandJournal(store, "r", NAMES, clock) as journal:
        journal(RefreshStarted("ledger", 1))
        journal(PhaseStarted("ledger", "exchange"))
        journal(RowsRead("ledger", "scan", 5, 10))
        journal(RefreshCommitted(Report("orders")))
        journal(RefreshFailed(broken))
        clock.now += BEAT_S
        journal(PhaseStarted("ledger", "apply"))
        (record,) = current(store, clock())
    assert record.works == {
        "orders": FragmentWork(DONE, since=Clock.now),
        "items": FragmentWork(FAILED, since=Clock.now, code="UNREACHABLE"),
        "ledger": FragmentWork(WORKING, "apply", clock.now),
    }


@pytest.mark.starts
def test_a_killed_process_is_told_from_one_that_runs(store: Store) -> None:
    done = run(["-c", KILLED, store.root], cwd=ROOT, env=environment())
    assert done.returncode == -signal.SIGKILL, done.stderr
    with CommandJournal(store, "r", NAMES):
        killed, running = current(store, Clock.now)
        assert (killed.run, killed.is_running, running.is_running) == ("0123456789ab", False, True)
        refresh_history.append(store, "items", Report("items", run=killed.run).to_json())
        ((told, left),) = settle(store, Clock.now)
        assert (told.run, left) == (killed.run, ["orders", "ledger"])
        assert settle(store, Clock.now) == []
        assert [one.run for one in current(store, Clock.now)] == ["r"]
    (line,) = refresh_history.read(store, "orders").lines
    (failure,) = refresh_history.read(store, "orders").lines
    assert failure == line
    assert (getattr(line, "code", ""), line.run) == ("KILLED", killed.run)
    text = killed_text(told, left, datetime.fromtimestamp(told.began, UTC))
    assert text.endswith("was killed before these had ended: orders, ledger.")


@pytest.mark.starts
def test_a_later_success_is_not_spoilt(store: Store) -> None:
    """By another command, which ran beside the one that was killed."""
    run(["-c", KILLED, store.root], cwd=ROOT, env=environment())
    good = Report("orders", version=1, previous_version=0, checked_at="2100-01-01T00:00:00Z")
    refresh_history.append(store, "orders", good.to_json())
    ((_, left),) = settle(store, Clock.now)
    assert left == ["items", "ledger"]


def test_an_interrupted_command_was_not_killed(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), CommandJournal(store, "r", NAMES):
        raise KeyboardInterrupt
    assert current(store, Clock.now) == []


def test_without_locks_silence_tells(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    monkeypatch.setattr(Store, "has_locks", False)
    clock = Clock()
    with CommandJournal(store, "r", NAMES, clock):
        assert [one.is_running for one in current(store, clock() + SILENT_S_MAX - 1)] == [True]
        assert [one.is_running for one in current(store, clock() + SILENT_S_MAX)] == [False]


def test_a_refresh_does_not_depend_on_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise WarehouseUnavailable("The disk is full.")

    monkeypatch.setattr(Store, "append_line", full)
    monkeypatch.setattr(Store, "remove_file", full)
    with CommandJournal(store, "r", NAMES) as journal:
        journal(PhaseStarted("orders", "apply"))
        journal._said = 0.0
        with pytest.raises(WarehouseUnavailable):  # which the announcer drops
            journal(PhaseStarted("orders", "prove"))


def test_a_long_record_stays_short(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_records, "LINES_BYTES_MAX", 2000)
    clock = Clock()
    with CommandJournal(store, "r", NAMES, clock) as journal:
        for _ in range(200):
            clock.now += BEAT_S
            journal(RowsRead("orders", "scan", 1, 2))
        (record,) = current(store, clock())
        assert record.names == NAMES
        assert record.said == clock.now
        assert store.files(PRIVATE, "commands")[0][1] < 4000


@given(st.binary(max_size=200) | st.lists(st.sampled_from([
    b'{"said": 1, "names": [], "began": 0, "who": "x"}', b"[]", b"{}", b'{"said": "x"}',
    b'{"said": 2, "works": {"a": 1}}', b'{"said": 2, "works": []}', b'{"names": 3}', b"\xff",
])).map(b"\n".join))  # fmt: skip
def test_any_bytes(body: bytes) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        store = Store(folder)
        store.write(body, PRIVATE, "commands", "r.jsonl")
        assert len(current(store, 9.0)) <= 1
        assert len(settle(store, 9.0)) <= 1
    assert sys.executable
