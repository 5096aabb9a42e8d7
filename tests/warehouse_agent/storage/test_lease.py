"""Locks of buckets: they say who holds them, end by themselves, and are taken over."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from driftline.errors import Locked

from tests.harness.object_stores import Bucket
from warehouse_agent.storage.backends import lease
from warehouse_agent.storage.backends.lease import LEASE_S, Lease, is_running
from warehouse_agent.storage.backends.s3 import S3
from warehouse_agent.storage.store import PRIVATE, Store

NOW_S = 1_800_000_000.0


class Files:
    """Small files with tags, in memory. `lost`: the answer of the next write is, but not it."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self.writes, self.lost = 0, False

    def tagged(self, path: str) -> tuple[bytes, str | None] | None:
        return self.files.get(path)

    def put_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        there = self.files.get(path)
        if (None if there is None else there[1]) != tag:
            return None
        self.writes += 1
        self.files[path] = (data, str(self.writes))
        is_lost, self.lost = self.lost, False
        return None if is_lost else str(self.writes)

    def modified(self, path: str) -> datetime | None:
        return datetime.now(UTC) if path in self.files else None

    def remove_file(self, path: str, above: int) -> None:
        self.files.pop(path, None)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that lets seconds pass, by both clocks."""
    wall, monotonic, more = time.time, time.monotonic, [0.0]
    monkeypatch.setattr(time, "time", lambda: wall() + more[0])
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + more[0])

    def passed(seconds: float) -> None:
        more[0] += seconds

    return passed


def line(until: object) -> bytes:
    return json.dumps({"until": until}).encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (line(NOW_S + 1), True),
        (line(NOW_S + LEASE_S), True),
        (line(NOW_S), False),
        (line(NOW_S - 1e9), False),
        (line(NOW_S + 86_400), False),  # by a clock that is a day ahead
        (line("soon"), False),
        (line(None), False),
        (b"{}", False),
        (b"", False),
        (b"[" * 10_000, False),
        (b"\xff", False),
        (b'{"until": NaN}', False),
    ],
)
def test_when_a_lease_runs(data: bytes, expected: bool) -> None:
    assert is_running(data, NOW_S) is expected


def test_a_lease_that_ended_is_taken_over(passed: Callable[[float], None]) -> None:
    files = Files()
    first = Lease(files, "locks/t", "t")
    with pytest.raises(Locked) as caught:
        Lease(files, "locks/t", "t")
    assert f": process {os.getpid()} of " in caught.value.message
    assert f" on {socket.gethostname()}, since 20" in caught.value.message
    passed(LEASE_S + 1)
    second = Lease(files, "locks/t", "t")
    second.check()
    with pytest.raises(Locked, match=r"Another warehouse agent works on this table: process"):
        first.check()
    first.give_back()
    with pytest.raises(Locked):
        Lease(files, "locks/t", "t")
    second.give_back()
    assert not files.files


def test_a_holder_that_slept_keeps_what_nobody_took(passed: Callable[[float], None]) -> None:
    files = Files()
    held = Lease(files, "locks/t", "t")
    held.check()
    assert files.writes == 1, "it was just written"
    passed(10 * LEASE_S)
    held.check()
    assert files.writes == 2
    with pytest.raises(Locked):
        Lease(files, "locks/t", "t")


def test_a_lease_that_was_removed_is_lost(passed: Callable[[float], None]) -> None:
    files = Files()
    held = Lease(files, "locks/t", "t")
    files.remove_file("locks/t", 0)
    passed(LEASE_S)
    with pytest.raises(Locked, match=r"works on this table\. Run"):
        held.check()


def test_a_write_whose_answer_is_lost_is_ours(passed: Callable[[float], None]) -> None:
    files = Files()
    files.lost = True
    held = Lease(files, "locks/t", "t")
    passed(LEASE_S)
    files.lost = True
    held.check()
    held.check()


def test_a_wrong_clock_costs_courtesy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder's clock that is days wrong keeps nobody away, and nobody for long."""
    wall = time.time
    for wrong_s in (-7 * 86_400.0, 7 * 86_400.0):
        files = Files()
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda wrong_s=wrong_s: wall() + wrong_s)
            Lease(files, "locks/t", "t")
        Lease(files, "locks/t", "t").check()


def test_one_of_many_takes_a_lock_of_a_bucket(bucket: Bucket) -> None:
    stores = [Store(bucket.root, storage=bucket.settings) for _ in range(8)]
    held, began = ExitStack(), threading.Barrier(len(stores))

    def take(store: Store) -> bool:
        began.wait()
        with contextlib.suppress(Locked):
            held.enter_context(store.lock("t"))
            return True
        return False

    with held, ThreadPoolExecutor(len(stores)) as pool:
        assert sum(pool.map(take, stores)) == 1
    assert stores[0].read(PRIVATE, "locks", "t") is None
    with stores[1].lock("t") as lock:
        lock.check()
        assert abs(lock.stored_at() - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_lock_of_a_bucket_is_renewed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.01)
    backend = S3(bucket.name, bucket.settings)
    path, renewed = f"{bucket.name}/lake/locks/t", threading.Event()
    written = set[bytes]()
    whole = S3.put_if

    def put_if(self: S3, path: str, data: bytes, tag: str | None) -> str | None:
        written.add(data)
        if len(written) == 3:
            renewed.set()
        return whole(self, path, data, tag)

    monkeypatch.setattr(S3, "put_if", put_if)
    with backend.lock(path, "t") as held:
        assert renewed.wait(60)
        held.check()
    assert len({json.loads(data)["id"] for data in written}) == 1
    assert backend.read(path) is None
