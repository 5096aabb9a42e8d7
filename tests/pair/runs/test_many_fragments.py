"""Many fragments in one command: runs that share a snapshot, and what fails in the middle of one.

Nine small tables of one source, served through a relay. Spark cannot start but in the last test.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.errors import Locked
from pyspark.sql import SparkSession

from tests.harness.nine_tables import NAMES, ROWS, Log, Phases, Served, nine_tables
from tests.harness.relay import Ending
from warehouse_agent.events import (
    Event,
    PhaseStarted,
    RefreshCommitted,
    RefreshRetried,
    RefreshStarted,
)
from warehouse_agent.report import Report


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with nine_tables(tmp_path) as made:
        yield made


def refused(report: Report) -> str:
    assert report.error is not None
    return str(report.error["code"])


@pytest.mark.parametrize(
    ("ahead", "runs"),
    [
        ("ahead = 4", [NAMES[:4], NAMES[4:8], NAMES[8:]]),
        ("", [NAMES[:4], NAMES[4:8], NAMES[8:]]),
        ("ahead = 1", [[name] for name in NAMES]),
        ('ahead = "all"', [NAMES]),
    ],
)
def test_a_run_is_one_snapshot(served: Served, ahead: str, runs: list[list[str]]) -> None:
    """The source changes whenever a fragment is about to be compared."""

    def change(event: Event) -> None:
        if isinstance(event, PhaseStarted) and event.phase == "exchange":
            served.change()

    for version in range(2):
        log = Log(change)
        reports = served.refresh(log, more=ahead)
        assert [(r.name, r.error, r.version) for r in reports] == [
            (name, None, version) for name in NAMES
        ]
        assert log.ends == NAMES
        marks = [{served.mark(name) for name in run} for run in runs]
        assert [len(found) for found in marks] == [1] * len(runs), "a run has one snapshot"
        assert len(set.union(*marks)) == len(runs), "another run has another"
        instants = {r.name: r.as_of for r in reports}
        assert all(len({instants[name] for name in run}) == 1 for run in runs)
        order = [log.phases.index((name, phase)) for run in runs for phase, name in (
            *(("reduce", name) for name in run), *(("exchange", name) for name in run)
        )]  # fmt: skip
        for run, at in zip(runs, split(order, [2 * len(run) for run in runs]), strict=True):
            assert at == sorted(at), f"all of {run} are prepared before the first is compared"


def split(found: list[int], sizes: list[int]) -> list[list[int]]:
    parts, at = [], 0
    for size in sizes:
        parts.append(found[at : at + size])
        at += size
    return parts


def test_a_report_is_kept_when_its_fragment_is_committed(served: Served) -> None:
    """Neither the end of the run nor that of the command is waited for."""

    def look(event: Event) -> None:
        if isinstance(event, RefreshCommitted):
            done = log.ends
            assert served.pair.version(event.report.name) == 0
            kept = served.pair.root / "_driftline" / "runs"
            assert sorted(p.stem for p in kept.glob("*.jsonl")) == sorted(done)

    log = Log(look)
    served.refresh(log)
    assert log.ends == NAMES


def test_a_fragment_that_fails_in_the_middle_of_a_run(served: Served) -> None:
    """It stops neither its run nor those after it; the source says no, or a step here fails."""
    served.refresh(Log())
    served.change()
    served.pair.legacy.execute("ALTER TABLE t5 ADD COLUMN extra TEXT")
    served.pair.legacy.execute("DELETE FROM t6 WHERE id > 10")
    log = Log()
    reports = {r.name: r for r in served.refresh(log)}
    assert refused(reports["t5"]) == "RECIPE"
    assert refused(reports["t6"]) == "SHRANK"
    sound = [name for name in NAMES if name not in ("t5", "t6")]
    assert [reports[name].version for name in sound] == [1] * len(sound)
    assert [reports[name].attempts for name in NAMES] == [1] * len(NAMES)
    assert (served.pair.version("t5"), served.pair.version("t6")) == (0, 0)
    assert sorted(log.ends) == NAMES
    served.check(*sound)


def test_fragments_that_failed_are_the_first_of_the_next_command(served: Served) -> None:
    served.pair.legacy.execute("INSERT INTO t7 VALUES (99, 'no number')")
    assert refused(served.refresh(Log())[7]) == "VALUE"
    served.pair.legacy.execute("DELETE FROM t7 WHERE id = 99")
    served.pair.fragment_lines["t8"] = "priority = 1"
    log = Log()
    served.refresh(log)
    assert log.ends[:2] == ["t8", "t7"]
    served.check(*NAMES)


def test_a_run_is_tried_again_where_its_line_broke(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compared before the cut is published; no run that was prepared is tried again."""
    served.refresh(Log())
    served.change()
    phases = Phases(monkeypatch)
    phases.hold(("compare", "t4", "begin"), until=("prepare", "t8", "end"))
    slept: list[float] = []

    def cut(event: Event) -> None:
        if event == PhaseStarted("t6", "exchange") and not slept:
            served.relay.refuse()

    def heal(seconds: float) -> None:
        slept.append(seconds)
        served.relay.heal()

    log = Log(cut)
    reports = {r.name: r for r in served.refresh(log, sleep=heal)}
    assert [r.error for r in reports.values()] == [None] * len(NAMES)
    assert {name: reports[name].attempts for name in NAMES} == {
        name: 2 if name in ("t6", "t7") else 1 for name in NAMES
    }
    assert len(slept) == 1
    (again,) = [e for e in log.events if isinstance(e, RefreshRetried)]
    assert (again.names, again.error.code) == (("t6", "t7"), "UNREACHABLE")
    started = [e.name for e in log.events if isinstance(e, RefreshStarted)]
    assert sorted(started) == sorted([*NAMES, "t6", "t7"])
    served.check(*NAMES)
    assert {served.mark(name) for name in NAMES} == {1}


def test_a_source_that_is_lost_is_not_asked_by_later_runs(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost in the second of five runs; the third is prepared by then, no other is."""
    served.refresh(Log())
    served.change()
    slept: list[float] = []
    Phases(monkeypatch).hold(("compare", "t2", "begin"), until=("prepare", "t4", "end"))

    def cut(event: Event) -> None:
        if event == PhaseStarted("t3", "exchange"):
            served.relay.refuse()

    log = Log(cut)
    reports = {r.name: r for r in served.refresh(log, more="ahead = 2", sleep=slept.append)}
    assert [reports[name].version for name in NAMES[:3]] == [1] * 3
    lost = NAMES[3:]
    assert {refused(reports[name]) for name in lost} == {"UNREACHABLE"}
    assert [(reports[n].version, reports[n].previous_version) for n in lost] == [(0, 0)] * 6
    assert [reports[n].attempts for n in lost] == [4, 1, 1, 0, 0, 0]
    assert log.ends == NAMES
    assert len(slept) == 3
    served.relay.heal()
    served.refresh(Log())
    served.check(*NAMES)


def test_a_locked_fragment(served: Served) -> None:
    """It is refused; its run and the others go on."""
    log = Log()
    with served.pair.store.lock("t5"):
        reports = {r.name: r for r in served.refresh(log)}
    assert refused(reports["t5"]) == "LOCKED"
    assert reports["t5"].attempts == 0
    others = [name for name in NAMES if name != "t5"]
    assert sorted(log.ends) == NAMES
    served.check(*others)


def test_locks_are_taken_when_the_turn_of_a_run_comes(served: Served) -> None:
    """A later run's fragment can be worked on by another agent meanwhile; one of this run not."""
    found: dict[str, bool] = {}
    held = contextlib.ExitStack()
    held.enter_context(served.pair.store.lock("t8"))

    def look(event: Event) -> None:
        if event == PhaseStarted("t1", "exchange"):
            for name in ("t0", "t3", "t8"):
                try:
                    with served.pair.store.lock(name):
                        found[name] = True
                except Locked:
                    found[name] = False
            held.close()

    reports = served.refresh(Log(look))
    assert found == {"t0": False, "t3": False, "t8": False}
    assert [r.error for r in reports] == [None] * len(NAMES), "t8 was free when its turn came"
    for name in NAMES:
        with served.pair.store.lock(name):
            pass


def test_answers_that_nobody_reads_end_the_command(served: Served, spark: SparkSession) -> None:
    def unread(event: Event) -> None:
        if isinstance(event, RefreshCommitted) and event.report.name == "t5":
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        served.refresh(Log(unread))
    versions = [served.pair.version(name) for name in NAMES]
    assert versions == [0] * 6 + [None] * 3
    # Spark takes up what was compared in the same run and not yet published.
    assert [r.error for r in served.refresh(Log(), spark=spark)] == [None] * len(NAMES)
    served.check(*NAMES)


@pytest.mark.spark
@pytest.mark.parametrize("ahead", ["ahead = 4", "ahead = 1"])
def test_a_relation_that_breaks_every_stream_stops_no_other(
    served: Served, spark: SparkSession, ahead: str
) -> None:
    """It is the first of its run, and never gets through; a retry begins with the others."""
    rng = random.Random(7)
    rows = [(key, rng.getrandbits(62)) for key in range(ROWS, 150_000)]
    served.pair.legacy.many("INSERT INTO t0 VALUES (?, ?)", rows)
    served.relay.end_each(down=100_000, ending=Ending.RST)
    log = Log()
    reports = served.refresh(log, more=ahead, spark=spark)
    assert refused(reports[0]) == "UNREACHABLE"
    assert reports[0].attempts == 4
    assert [(r.name, r.error, r.version) for r in reports[1:]] == [
        (name, None, 0) for name in NAMES[1:]
    ]
    assert sorted(log.ends) == NAMES
    served.check(*NAMES[1:])
