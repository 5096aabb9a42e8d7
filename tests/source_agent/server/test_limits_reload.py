"""[limits] count when source.toml has changed, without a signal; a bad file changes nothing."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from source_agent.budgets.audit import AuditLog, recent_snapshots
from source_agent.budgets.budget import Governor
from source_agent.config.file import Budget, SourceConfig, load
from source_agent.engines.registry import connect
from source_agent.server import service
from source_agent.server.catalogue import AgentState
from source_agent.server.service import SETTLE_S, FileWatch, start
from tests.harness.agents import configuration, make_orders

LOOK_S_MAX = 20.0
AUDIT = "audit.jsonl"


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., SourceConfig]:
    make_orders(tmp_path / "erp.db", [(1, "one")])

    def write(limits: str = "", relation: str = "orders") -> SourceConfig:
        return configuration(
            tmp_path,
            tmp_path / "erp.db",
            certs=None,
            more=f"[limits]\n{limits}\n",
            relations=f'[relations.{relation}]\ntable = "orders"\n',
        )

    return write


@pytest.fixture
def state(written: Callable[..., SourceConfig], tmp_path: Path) -> Iterator[AgentState]:
    config = written("rows_per_second = 5")
    engine = connect(config.database.url, None, config.database.limits)
    governor = Governor(config.budget)
    yield AgentState(config, engine, governor, AuditLog(tmp_path / AUDIT), 1.0)
    governor.pool.close()


def audited(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / AUDIT).read_text().splitlines()]


def test_a_change_counts_once_when_it_has_settled(tmp_path: Path) -> None:
    now, path = [0.0], tmp_path / "source.toml"
    path.write_text("one")
    watch = FileWatch(path, lambda: now[0])

    def found_at(at: float) -> bool:
        now[0] = at
        return watch.changed()

    assert not any(map(found_at, (0.5, 10.0)))
    path.write_text("half")
    assert not found_at(11.0)
    path.write_text("the whole")
    assert not found_at(11.0 + SETTLE_S - 0.1), "it was still being written"
    assert not found_at(13.0)
    assert found_at(13.0 + SETTLE_S)
    assert not found_at(100.0)
    other = tmp_path / "other"
    other.write_text("the whole")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)  # the same size and time, as of a deployment
    assert not found_at(101.0)
    assert found_at(101.0 + SETTLE_S)
    path.unlink()
    assert not found_at(200.0)
    assert found_at(200.0 + SETTLE_S), "also that it is gone is told"


def test_limits_are_adopted_and_all_else_is_named(
    state: AgentState,
    written: Callable[..., SourceConfig],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "driftline.source")
    written("rows_per_second = 7\nfeedback = false", relation="others")
    text = (tmp_path / "source.toml").read_text()
    (tmp_path / "source.toml").write_text(
        text.replace("[database]\n", "[database]\nidle_timeout_s = 7\n")
    )
    state.reload_limits()
    assert (state.governor.budget.rows_per_second, state.governor.budget.feedback) == (7.0, False)
    assert list(state.config.relations) == ["orders"], "whoever may have what changes by SIGHUP"
    assert "[database] of" in caplog.text
    assert "[relations] of" in caplog.text
    assert "SIGHUP" in caplog.text
    state.reload()
    assert list(state.config.relations) == ["others"]
    assert [line["outcome"] for line in audited(tmp_path)] == ["reloaded", "reloaded"]


@pytest.mark.slow
def test_a_signal_while_limits_are_adopted_is_not_undone(
    state: AgentState, written: Callable[..., SourceConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relations that the DBA takes away would come back, and clients that she locks out."""
    adopt, is_adopting, signalled = state.governor.adopt, threading.Event(), threading.Event()

    def slow(budget: Budget) -> None:
        if threading.current_thread() is watch:
            is_adopting.set()
            assert not signalled.wait(0.5), "the signal waits"
        adopt(budget)

    def reload() -> None:
        assert is_adopting.wait(10)
        state.reload()
        signalled.set()

    monkeypatch.setattr(state.governor, "adopt", slow)
    written("rows_per_second = 7", relation="others")
    watch = threading.Thread(target=state.reload_limits)
    by_signal = threading.Thread(target=reload)
    for thread in (watch, by_signal):
        thread.start()
    for thread in (watch, by_signal):
        thread.join()
    assert list(state.config.relations) == ["others"]


@pytest.mark.parametrize("text", ["", "[limits]\nrows = 3\n", None])
def test_a_wrong_file_keeps_the_limits_and_says_so(
    state: AgentState, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    if text is None:
        (tmp_path / "source.toml").unlink()
    else:
        (tmp_path / "source.toml").write_text(text)
    state.reload_limits()
    assert state.governor.budget.rows_per_second == 5.0
    assert "the previous settings stay in use" in caplog.text
    assert [line["outcome"] for line in audited(tmp_path)] == ["not_reloaded"]


@pytest.mark.starts
def test_an_agent_that_runs_notices(
    written: Callable[..., SourceConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SETTLE_S", 0.0)
    config = written("rows_per_second = 5")
    governor = Governor(config.budget)
    server = start(config, governor=governor)
    try:
        ends_at = time.monotonic() + LOOK_S_MAX
        # Again and again: the watch may not have seen the first file yet.
        while governor.budget.rows_per_second == 5.0:
            assert time.monotonic() < ends_at
            written(f"rows_per_second = {7 + time.monotonic():.3f}")
            time.sleep(0.1)
        assert load(config.path).budget.rows_per_second != 5.0
    finally:
        server.stop()


def test_snapshots_of_an_audit_file(tmp_path: Path) -> None:
    path = tmp_path / AUDIT
    assert recent_snapshots(None) == recent_snapshots(path) == []
    path.write_text('{"snapshot_s": 2.5}\nnonsense\n[]\n{"seconds": 1}\n{"snapshot_s": 0.25}\n')
    assert recent_snapshots(path) == [2.5, 0.25]
