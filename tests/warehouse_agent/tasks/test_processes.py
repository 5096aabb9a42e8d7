"""Shares of a step that are read in processes beside this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from driftline.errors import InternalError, ProofFailed, WarehouseUnavailable

from tests import ROOT
from tests.harness.processes import is_alive
from warehouse_agent.storage.backends.interface import StoreError
from warehouse_agent.tasks.processes import ReadingProcesses

pytestmark = pytest.mark.starts
SCHEMA = pa.schema([("n", pa.int64()), ("pid", pa.int64())])


def doubled(items: Iterator[int]) -> Iterator[pa.RecordBatch]:
    for n in items:
        yield pa.RecordBatch.from_pylist([{"n": 2 * n, "pid": os.getpid()}], SCHEMA)


@pytest.fixture
def processes() -> Iterator[ReadingProcesses]:
    made = ReadingProcesses(2)
    yield made
    made.close()


def numbers(rows: list[list[pa.RecordBatch]], name: str = "n") -> list[list[int]]:
    return [[n for batch in one for n in batch[name].to_pylist()] for one in rows]


def test_rows_come_in_the_order_of_the_shares(processes: ReadingProcesses) -> None:
    shares = [[n, n + 1] for n in range(0, 14, 2)]
    found = processes.read(doubled, shares, 2)
    assert numbers(found) == [[2 * n for n in share] for share in shares]
    # A process may start, find every share taken, and read first in a later step.
    steps = [found, *(processes.read(doubled, shares, 2) for _ in range(4))]
    pids = {pid for step in steps for one in numbers(step, "pid") for pid in one}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2, "processes are kept"
    assert numbers(processes.read(doubled, [[3]], 2)) == [[6]]
    assert processes.read(doubled, [], 2) == []


def test_a_function_comes_with_what_it_was_made_of(processes: ReadingProcesses) -> None:
    def adding(more: int) -> Callable[[Iterator[int]], Iterator[pa.RecordBatch]]:
        def function(items: Iterator[int]) -> Iterator[pa.RecordBatch]:
            yield from doubled(n + more for n in items)

        return function

    for more in (1, 10):
        found = numbers(processes.read(adding(more), [[1, 2], [3]], 2))
        assert found == [[2 + 2 * more, 4 + 2 * more], [6 + 2 * more]]


def failing(error: Exception) -> Callable[[Iterator[int]], Iterator[pa.RecordBatch]]:
    def function(items: Iterator[int]) -> Iterator[pa.RecordBatch]:
        if 1 in items:
            raise error
        yield from doubled(iter([5]))

    return function


class StrangeError(Exception):
    """It holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("strange")
        self.lock = threading.Lock()


def test_an_error_is_that_of_the_share(processes: ReadingProcesses) -> None:
    proof = ProofFailed("It differs.", where="t", remedy="Look.", details={"a": "b"})
    with pytest.raises(ProofFailed) as caught:
        processes.read(failing(proof), [[0], [1], [2]], 2)
    assert (caught.value.message, caught.value.where) == ("It differs.", "t")
    assert (caught.value.remedy, caught.value.details) == ("Look.", {"a": "b"})
    with pytest.raises(MemoryError):
        processes.read(failing(MemoryError()), [[1]], 2)
    with pytest.raises(InternalError, match="ValueError: no number"):
        processes.read(failing(ValueError("no number")), [[1]], 2)
    assert numbers(processes.read(doubled, [[1], [2]], 2)) == [[2], [4]]


def test_an_error_of_a_store_keeps_its_remedy(processes: ReadingProcesses) -> None:
    def fails(items: Iterator[int]) -> Iterator[pa.RecordBatch]:
        raise StoreError(f"AccessDenied: no {next(items)}", "Give it the rights.")

    with pytest.raises(WarehouseUnavailable, match="AccessDenied: no 1") as raised:
        processes.read(fails, [[1]], 1)
    assert raised.value.remedy == "Give it the rights."


def test_a_process_that_is_killed_ends_the_step(processes: ReadingProcesses) -> None:
    def killed(items: Iterator[int]) -> Iterator[pa.RecordBatch]:
        if 1 in items:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        yield from ()

    began = time.monotonic()
    with pytest.raises(WarehouseUnavailable, match="was killed") as caught:
        processes.read(killed, [[0], [1]], 2)
    assert "driver_share" in caught.value.remedy
    assert time.monotonic() - began < 30, "the other one is not waited for"
    assert numbers(processes.read(doubled, [[1], [2]], 2)) == [[2], [4]]


def test_one_that_ended_while_it_was_idle_is_replaced(processes: ReadingProcesses) -> None:
    (first,) = {pid for one in numbers(processes.read(doubled, [[1]], 1), "pid") for pid in one}
    os.kill(first, signal.SIGKILL)
    (second,) = {pid for one in numbers(processes.read(doubled, [[1]], 1), "pid") for pid in one}
    assert second != first
    os.kill(second, signal.SIGTERM)  # of a service manager, to the whole group
    os.kill(second, signal.SIGINT)
    assert numbers(processes.read(doubled, [[1]], 1), "pid") == [[second]]


def test_started_ones_are_used(processes: ReadingProcesses) -> None:
    processes.start(2)
    processes.start(2)
    found = numbers(processes.read(doubled, [[n] for n in range(20)], 3), "pid")
    assert len({pid for one in found for pid in one}) <= 3


def test_steps_at_once_share_the_processes(processes: ReadingProcesses) -> None:
    """Two, however many steps there are; one that fails disturbs no other."""

    def slowly(items: Iterator[int]) -> Iterator[pa.RecordBatch]:
        time.sleep(0.02)
        yield from doubled(items)

    def one(turn: int) -> set[int]:
        if turn % 3 == 2:
            with pytest.raises(ProofFailed):
                processes.read(failing(ProofFailed("It differs.")), [[1], [0], [0]], 2)
            return set()
        found = processes.read(slowly, [[n, turn] for n in range(4)], 2)
        assert numbers(found) == [[2 * n, 2 * turn] for n in range(4)]
        return {pid for share in numbers(found, "pid") for pid in share}

    with ThreadPoolExecutor(6) as pool:
        assert any(pool.map(one, range(30)))
    found = numbers(processes.read(slowly, [[n] for n in range(9)], 9), "pid")
    pids = {pid for share in found for pid in share}
    assert 1 <= len(pids) <= 2


def test_a_fork_leaves_them_to_its_parent(processes: ReadingProcesses) -> None:
    ours = numbers(processes.read(doubled, [[1]], 1), "pid")
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, repr(numbers(processes.read(doubled, [[1]], 1), "pid")).encode())
        processes.close()
        os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 100).decode() not in ("", repr(ours))
    os.close(read)
    assert numbers(processes.read(doubled, [[1]], 1), "pid") == ours


PARENT = """
import sys, time
from warehouse_agent.tasks.processes import PROCESSES
def function(items):
    import os, pyarrow as pa
    print(os.getpid(), file=sys.stderr, flush=True)
    time.sleep(120)
    yield pa.RecordBatch.from_pylist([{"n": 1}])
PROCESSES.read(function, [[1], [2]], 2)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_none_is_left_of_a_command_that_ended(tmp_path: Path, number: signal.Signals) -> None:
    """Also in the midst of a share."""
    said = tmp_path / "said"
    with said.open("wb") as out:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.DEVNULL, stderr=out, cwd=ROOT
        )

    def begun() -> list[int]:
        return [int(word) for word in said.read_text().split() if word.isdigit()]

    try:
        until(lambda: len(begun()) == 2, 60)
        parent.send_signal(number)
        parent.wait(30)
        pids = begun()[:2]
        until(lambda: not any(map(is_alive, pids)), 30)
    finally:
        parent.kill()
        parent.wait()


def until(is_so: Callable[[], bool], within_s: float) -> None:
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)
