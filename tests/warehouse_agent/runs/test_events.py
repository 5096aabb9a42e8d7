"""What a command emits while it refreshes, and that listeners cannot harm it.

A listener is a function of one event: `Metrics` below is one, and touches no file of the product.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests import ROOT
from tests.harness.forks import run
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair, SourceProcess, environment
from warehouse_agent.config import select
from warehouse_agent.events import (
    Event,
    Listener,
    PhaseStarted,
    RefreshCommitted,
    RefreshFailed,
    RefreshStarted,
    RowsRead,
)
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.storage.store import PRIVATE, Store

ROWS = 400
RELATIONS = {name: f'table = "{name}"' for name in ("a", "b")}


@dataclass
class Metrics:
    """A minimal exporter of metrics: counters that a monitoring system would read."""

    counts: Counter[str] = field(default_factory=Counter)
    phases: list[tuple[str, str]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        match event:
            case RefreshStarted():
                self.counts["attempts"] += 1
            case PhaseStarted(name, phase):
                self.phases.append((name, phase))
            case RowsRead(rows=rows):
                self.counts["rows_read"] = max(self.counts["rows_read"], rows)
            case RefreshCommitted(report):
                self.counts["rows_changed"] += report.rows_changed
                self.reports.append(report)
            case RefreshFailed(report):
                self.counts["failed"] += 1
                self.reports.append(report)


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for name in RELATIONS:
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
        legacy.many(f"INSERT INTO {name} VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
    with Pair(spark, legacy, tmp_path / "pair", RELATIONS) as made:
        yield made
    legacy.close()


def refreshed(pair: Pair, *names: str, listener: Listener) -> list[Report]:
    config = pair.config()
    runner = Runner(pair.spark, config, (listener,), sleep=lambda seconds: None)
    return runner.refresh(select(config, names, not names), Options())


def kept(pair: Pair, name: str) -> list[str]:
    """The lines of the fragment's history of refreshes."""
    found = Store(str(pair.warehouse)).read(PRIVATE, "runs", f"{name}.jsonl") or b""
    return found.decode().splitlines()


def test_a_metrics_listener_sees_every_step(pair: Pair) -> None:
    load = Metrics()
    reports = refreshed(pair, listener=load)
    assert load.reports == reports
    assert load.counts == {"attempts": 2, "rows_read": ROWS, "rows_changed": 2 * ROWS}
    steps = ("apply", "prove", "publish")
    assert load.phases == [
        *((name, phase) for phase in ("reduce", "exchange") for name in RELATIONS),
        *((name, phase) for name in RELATIONS for phase in steps),
    ], "all are compared in one snapshot, then each is published"
    again = Metrics()
    (equal,) = refreshed(pair, "a", listener=again)
    assert again.reports == [equal]
    assert equal.version == equal.previous_version == 0
    assert again.phases == [("a", "reduce"), ("a", "exchange")], "nothing is to be written"
    assert again.counts["rows_changed"] == 0


def test_a_report_is_kept_before_listeners_are_told(pair: Pair) -> None:
    found: list[tuple[str, list[str]]] = []

    def look(event: Event) -> None:
        if isinstance(event, RefreshCommitted):
            assert pair.version(event.report.name) == 0
            found.append((event.report.to_json(), kept(pair, event.report.name)))
            if event.report.name == "a":
                assert pair.version("b") is None, "the next fragment is not applied yet"

    refreshed(pair, listener=look)
    assert [lines for _, lines in found] == [[line] for line, _ in found]
    assert len(found) == 2


def test_a_fragment_that_is_locked_only_fails(pair: Pair) -> None:
    events: list[Event] = []
    with Store(str(pair.warehouse)).lock("a"):
        (report,) = refreshed(pair, "a", listener=events.append)
    assert events == [RefreshFailed(report)]
    assert report.error is not None
    assert report.error["code"] == "LOCKED"
    assert kept(pair, "a") == [report.to_json()]


def test_a_listener_that_fails_does_not_fail_the_refresh(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_event: Event) -> None:
        raise OSError("the monitoring system is gone")

    with caplog.at_level("DEBUG", logger="driftline"):
        reports = refreshed(pair, listener=broken)
    assert [(report.error, report.version) for report in reports] == [(None, 0)] * 2
    assert "a listener failed on RefreshCommitted" in caplog.text
    for name in RELATIONS:
        pair.check(name)
        assert len(kept(pair, name)) == 1


def test_answers_that_nobody_reads_end_the_command(pair: Pair) -> None:
    def unread(event: Event) -> None:
        if isinstance(event, RefreshCommitted):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        refreshed(pair, listener=unread)
    assert (pair.version("a"), pair.version("b")) == (0, None)
    assert len(kept(pair, "a")) == 1
    for name in RELATIONS:  # no lock is left behind
        assert pair.refresh(name).version == 0
        pair.check(name)


KILLED = """
import os, signal
from warehouse_agent.cli.main import main
from warehouse_agent.storage import formats
commit, calls = formats.commit, []
def counted(*args, **kwargs):
    calls.append(args)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(*args, **kwargs)
formats.commit = counted
main()
"""


def test_reports_of_a_command_that_is_killed(pair: Pair, tmp_path: Path) -> None:
    """A report is printed and kept as soon as its fragment is committed, not at the end."""
    pair.legacy.execute("CREATE TABLE c (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    pair.legacy.many("INSERT INTO c VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
    pair.publish("c", 'table = "c"')
    out, err = tmp_path / "out", tmp_path / "err"
    with SourceProcess(pair.source_toml(), is_forked=True) as source:
        pair.address = source.address
        config = pair.warehouse_toml(more='[spark]\n"spark.master" = "local[1]"')
        words = ["--config", str(config), "refresh", "--all", "--json"]
        # Not through pipes, which would be open as long as its JVM takes to notice.
        with out.open("w") as stdout, err.open("w") as stderr:
            killed = run(
                ["-c", KILLED, *words], cwd=ROOT, env=environment(), stdout=stdout, stderr=stderr
            )
        assert killed.returncode == -signal.SIGKILL, err.read_text()
        lines = out.read_text().splitlines()
        reports = [json.loads(line) for line in lines]
        assert [(r["name"], r["version"], r["proof"]) for r in reports] == [
            ("a", 0, "total"),
            ("b", 0, "total"),
        ]
        assert [kept(pair, name) for name in "abc"] == [[lines[0]], [lines[1]], []]
        assert [pair.version(name) for name in "abc"] == [0, 0, None]
        for name in "abc":
            assert pair.refresh(name).version == 0
            pair.check(name)
