"""Faults of a store and of the line to it, at each request of a refresh.

What is published is right, or the command ends with an error that says what to do; the next one
then goes well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.careless_proxy import Asked, Fault, proxied
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Bucket, Moto
from tests.harness.pair import Pair
from warehouse_agent.report import Report
from warehouse_agent.storage.backends.s3 import PART_BYTES, S3
from warehouse_agent.storage.store import PRIVATE

ROWS = 400
REQUESTS = 90  # of a refresh that changes rows, roughly
SAMPLE = 31


@pytest.fixture
def pair(moto: Moto, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, v INTEGER, note TEXT)")
    legacy.many("INSERT INTO t VALUES (?, ?, ?)", [(i, i, f"note {i}") for i in range(ROWS)])
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
        made.bucket = moto.bucket()
        yield made
    legacy.close()


def edit(pair: Pair, number: int) -> None:
    pair.legacy.execute(f"UPDATE t SET v = v + 1 WHERE id % 40 = {number % 40}")
    pair.legacy.execute(f"DELETE FROM t WHERE id = {number * 3}")


def tried(pair: Pair, choose: Callable[[Asked], Fault | None]) -> Report:
    """Refresh through a proxy, then without it, which must go well; return the first report."""
    bucket = pair.bucket
    assert bucket is not None
    with proxied(bucket, choose) as pair.bucket:
        (report,) = pair.reports("t")
    pair.bucket = bucket
    if report.error is None:
        pair.check("t")
    else:
        assert report.error["code"] in ("WAREHOUSE", "LOCKED"), report.error
        assert report.error["remedy"], report.error
    pair.store.remove(PRIVATE, "locks")  # it would end in a minute, if it was not given back
    pair.refresh("t")
    pair.check("t")
    return report


def test_every_answer_to_a_conditional_write_is_lost(pair: Pair) -> None:
    """The write is repeated, and finds its own: nobody else has won."""
    lost = set[str]()

    def choose(asked: Asked) -> Fault | None:
        once = f"{asked.path} {asked.number // 1000}"
        if asked.operation != "write" or not asked.is_conditional or once in lost:
            return None
        lost.add(once)
        return Fault.LOST

    for number in range(3):
        edit(pair, number)
        assert tried(pair, choose).error is None
        assert any("_delta_log" in path for path in lost)
        lost.clear()


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.RESET, Fault.BUSY])
def test_each_first_request_for_a_path_fails(pair: Pair, fault: Fault) -> None:
    seen = set[tuple[str, str]]()

    def choose(asked: Asked) -> Fault | None:
        if (asked.method, asked.path) in seen:
            return None
        seen.add((asked.method, asked.path))
        return fault

    pair.refresh("t")
    edit(pair, 1)
    assert tried(pair, choose).error is None


@pytest.mark.parametrize(
    "every", [SAMPLE, pytest.param(1, marks=pytest.mark.soak)], ids=["sample", "all"]
)
@pytest.mark.parametrize("fault", [Fault.EXPIRED, Fault.LOST])
def test_a_fault_from_one_request_on(pair: Pair, fault: Fault, every: int) -> None:
    """Keys expire in the middle of a refresh. Of lost answers a single one is met."""
    pair.refresh("t")
    for first in range(0, REQUESTS, every):
        edit(pair, first)

        def choose(asked: Asked, first: int = first) -> Fault | None:
            is_met = asked.number >= first if fault is Fault.EXPIRED else asked.number == first
            return fault if is_met else None

        report = tried(pair, choose)
        if fault is Fault.LOST:
            assert report.error is None, (first, report.error)
        elif report.error is not None:
            assert "ExpiredToken" in report.error["message"], (first, report.error)
            assert "with the profile 'default' of " in report.error["message"], report.error
            assert report.error["remedy"].startswith("Correct the keys there"), report.error


def test_a_store_that_is_busy_for_long(pair: Pair) -> None:
    """At the commit: the remedy is to run it again, and nothing is published."""
    pair.refresh("t")
    edit(pair, 1)

    def choose(asked: Asked) -> Fault | None:
        is_commit = asked.operation == "write" and "/t/_delta_log/" in asked.path
        return Fault.BUSY if is_commit else None

    report = tried(pair, choose)
    assert report.error is not None
    assert "SlowDown" in report.error["message"]
    assert report.error["remedy"].startswith("Run the command again when the store is well")


def test_lists_that_are_behind(pair: Pair) -> None:
    """They have nothing that was written since the last refresh ended."""
    pair.refresh("t")
    bucket = pair.bucket
    assert bucket is not None
    for number in range(3):
        edit(pair, number)
        hidden = set[str]()

        def choose(asked: Asked, hidden: set[str] = hidden) -> Fault | None:
            if asked.operation == "write":
                hidden.add(asked.path.removeprefix(f"/{bucket.name}/"))
            return None

        with proxied(bucket, choose, hidden=hidden) as pair.bucket:
            reports = pair.reports("t") + pair.reports("t")
        pair.bucket = bucket
        for report in reports:
            if report.error is not None:
                assert report.error["code"] in ("LOCKED", "WAREHOUSE"), report.error
        pair.refresh("t")
        pair.check("t")


@pytest.fixture
def place(moto: Moto) -> Bucket:
    return moto.bucket()


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.LOST, Fault.BUSY])
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_an_upload_in_parts_that_fails_once(place: Bucket, fault: Fault, method: str) -> None:
    """A part, the beginning or the completion."""
    seen = set[tuple[str, str]]()

    def choose(asked: Asked) -> Fault | None:
        one = asked.method, asked.path
        if asked.method != method or one in seen:
            return None
        seen.add(one)
        return fault

    data = hashlib.shake_128(b"").digest(2 * PART_BYTES + 5)
    with proxied(place, choose) as bucket:
        backend, path = S3(bucket.name, bucket.settings), f"{bucket.name}/lake/a"
        file = backend.begun(path)
        file.out.write(data)
        assert file.finish() == len(data)
        assert backend.read(path) == data


def test_the_answer_to_a_completed_upload_is_lost(place: Bucket) -> None:
    """It is completed again, and there is no such upload; the object is there."""
    posts = list[int]()

    def choose(asked: Asked) -> Fault | None:
        if asked.method == "POST":
            posts.append(asked.number)
        return Fault.LOST if asked.method == "POST" and len(posts) == 2 else None

    data = hashlib.shake_128(b"").digest(2 * PART_BYTES + 5)
    with proxied(place, choose) as bucket:
        backend, path = S3(bucket.name, bucket.settings), f"{bucket.name}/lake/a"
        file = backend.begun(path)
        file.out.write(data)
        assert file.finish() == len(data)
        assert backend.read(path) == data
    assert len(posts) > 2
