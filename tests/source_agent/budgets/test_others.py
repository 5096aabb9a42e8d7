"""Others on the machine: whose processor time a read rests for, and whose it does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from source_agent.budgets import crowding, others
from source_agent.budgets.crowding import Crowding
from source_agent.budgets.others import OtherProcesses
from source_agent.engines.interface import DatabaseTime
from source_agent.scan.processors import ProcessorUsage, ProcessUsage, machine, usage, used_since

AGENT, BACKEND, WAREHOUSE, JAVA, STRANGER = os.getpid(), 101, 102, 103, 104
PARENTS = {AGENT: 1, BACKEND: 1, WAREHOUSE: 1, JAVA: WAREHOUSE, STRANGER: 1}
NAMES = {BACKEND: "postgres", STRANGER: "postgres", JAVA: "java"}


class Machine:
    """Two processors, and a clock."""

    def __init__(self) -> None:
        self.now, self.used = 0.0, dict.fromkeys(PARENTS, 0.0)
        self.hidden: set[int] = set()
        self.looks = 0

    def look(self) -> ProcessorUsage:
        self.looks += 1
        shown = {
            one: ProcessUsage(PARENTS[one], NAMES.get(one, "python3"), used)
            for one, used in self.used.items()
            if one not in self.hidden
        }
        return ProcessorUsage(2, sum(self.used.values()), shown)

    def spend(self, seconds: float, shares: Mapping[int, float]) -> None:
        """Let time pass; each process uses a share of one processor."""
        self.now += seconds
        for one, share in shares.items():
            self.used[one] += seconds * share


@pytest.fixture
def box() -> Machine:
    return Machine()


def weighed(
    box: Machine, found: OtherProcesses, shares: Mapping[int, float], waited: float = 0.0
) -> float:
    """The weight after a second in which processes used these shares."""
    found.weight(0.0)
    box.spend(others.LOOK_S, shares)
    return found.weight(waited)


BUSY = {AGENT: 0.6, BACKEND: 0.4, WAREHOUSE: 0.1, JAVA: 0.9}


def test_a_refresh_on_one_machine_does_not_rest_for_itself(box: Machine) -> None:
    found = OtherProcesses(lambda: box.now, box.look)
    found.add_backend(BACKEND)
    with found.with_warehouse(WAREHOUSE):
        assert weighed(box, found, BUSY) == 0
        assert weighed(box, found, BUSY | {STRANGER: 0.1}) == 0, "housekeeping"
        assert 0 < weighed(box, found, BUSY | {STRANGER: 0.3}) < 1
        assert weighed(box, found, BUSY | {STRANGER: 0.6}) == 1
    assert weighed(box, found, BUSY) == 1, "the warehouse has hung up: its Java is anybody's"
    found.drop_backend(BACKEND)
    assert weighed(box, found, {AGENT: 0.2, BACKEND: 1.0}) == 1


def test_a_child_that_ends_adds_nothing_that_it_had_used_before() -> None:
    """A Python worker of Spark is reaped by its parent, whose time then has the worker's life."""
    alive = {
        7: ProcessUsage(1, "java", 5.0),
        8: ProcessUsage(7, "python3", 90.0),
        9: ProcessUsage(1, "x", 4.0),
    }
    ended = {7: ProcessUsage(1, "java", 96.0), 9: ProcessUsage(1, "x", 5.0)}
    before, now = ProcessorUsage(2, 99.0, alive), ProcessorUsage(2, 101.0, ended)
    assert used_since(before, now, [7]) == 1.0
    assert (
        used_since(
            now, ProcessorUsage(2, 102.0, ended | {10: ProcessUsage(7, "python3", 1.0)}), [7]
        )
        == 1.0
    )
    assert used_since(before, ProcessorUsage(2, 101.0, {9: alive[9]}), [7]) == 0.0, "all have ended"
    left = ended | {8: ProcessUsage(1, "python3", 91.0), 7: ProcessUsage(1, "java", 6.0)}
    assert used_since(before, ProcessorUsage(2, 102.0, left), [7]) == 1.0, "a daemon left the tree"


def test_a_warehouse_elsewhere_changes_nothing(box: Machine) -> None:
    found = OtherProcesses(lambda: box.now, box.look)
    with found.with_warehouse(None):
        assert weighed(box, found, BUSY) == 1


def test_a_backend_that_is_not_seen_works_while_a_read_waits_for_it(box: Machine) -> None:
    """A thread of MariaDB, or a process that a sandbox hides."""
    found = OtherProcesses(lambda: box.now, box.look)
    assert weighed(box, found, {AGENT: 0.6, STRANGER: 0.4}, waited=0.4) == 0
    assert weighed(box, found, {AGENT: 0.6, STRANGER: 1.0}, waited=0.4) == 1
    found.add_backend(BACKEND)
    box.hidden.add(BACKEND)
    assert weighed(box, found, {AGENT: 0.6, BACKEND: 0.4}, waited=0.4) == 0
    found.add_backend(JAVA)  # a pooler's number, which another process has here
    assert weighed(box, found, {AGENT: 0.1, JAVA: 1.0}, waited=0.1) == 1


def test_a_machine_that_does_not_tell_is_judged_by_our_own_wait(box: Machine) -> None:
    found = OtherProcesses(lambda: box.now, lambda: None)
    assert weighed(box, found, {}) == 1


def test_it_looks_once_a_second_and_knows_nothing_before(box: Machine) -> None:
    found = OtherProcesses(lambda: box.now, box.look)
    assert found.weight(0.0) == 0
    for _ in range(30):
        box.spend(0.1, {STRANGER: 1.0})
        found.weight(0.0)
    assert 3 <= box.looks <= 4
    assert found.weight(0.0) == 1
    box.spend(others.STALE_S + 1, {})
    assert found.weight(0.0) == 0, "what was a minute ago says nothing"


def test_rests_follow_the_processor_time_of_others(box: Machine) -> None:
    found = OtherProcesses(lambda: box.now, box.look)
    found.add_backend(BACKEND)
    crowd = Crowding(lambda: box.now, found)

    def rests(shares: Mapping[int, float]) -> float:
        times = 0.0
        for _ in range(400):  # batches of 10 ms, half of which the agent had no processor
            box.spend(0.01, shares)
            times = crowd.note(DatabaseTime(0.003, 0.0035, 0.0035))
        return times

    with found.with_warehouse(WAREHOUSE):
        assert rests(BUSY) == 0
        assert rests(BUSY | {STRANGER: 0.5}) == crowding.TIMES_MAX
        assert rests(BUSY) == 0


@pytest.mark.starts
@pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux's")
def test_linux_says_who_uses_the_processors() -> None:
    before = usage()
    if before is None:
        pytest.skip("this system does not show the use of its processors")
    spin = "import time\nwhile time.process_time() < 0.3: pass\ninput()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    child = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        used, now = 0.0, before
        while used < 0.3 and time.monotonic() < deadline:
            time.sleep(0.1)
            now = usage() or now
            tree = now.tree([child.pid])
            used = sum(now.processes[one].used_s for one in tree)
    finally:
        child.communicate(b"\n")
    assert len(tree) == 2, "also what a child started"
    assert used >= 0.3
    assert now.worked_s - before.worked_s >= 0.2
    assert tree < now.tree([os.getpid()])
    assert now.tree([2**22 + 1]) == set()
    assert machine() == machine() != ""


def test_a_system_without_these_files(tmp_path: Path) -> None:
    assert usage(tmp_path) is None
    assert machine(tmp_path) == ""
    (tmp_path / "stat").write_text("cpu  0 0 0 0\ncpu0 0 0 0 0\n")
    assert usage(tmp_path) is None, "zeros of a sandbox"
    (tmp_path / "stat").write_text("cpu  100 0 0 9 9 0 0 5\ncpu0 100 0 0 9 9 0 0 5\nintr 7\n")
    for name, line in {
        "7": "7 (a) (b) S 1 " + "0 " * 9 + "10 20 30 40 0\n",
        "8": "8 (cut",
        "9": "",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "stat").write_text(line)
    found = usage(tmp_path)
    assert found == ProcessorUsage(1, 1.0, {7: ProcessUsage(1, "a) (b", 1.0)})
