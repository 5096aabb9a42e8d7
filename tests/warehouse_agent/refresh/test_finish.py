"""What was proven is a value: it may wait, be dropped or be overtaken before it is committed.

Both agents run, without a command around them: the steps of a refresh are called one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import Locked, ProofFailed, WarehouseUnavailable
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair, expect_equal
from tests.harness.staged import any_frame
from tests.samples.exchanges import ORDERS
from warehouse_agent.config import select
from warehouse_agent.history.notes import Notes
from warehouse_agent.refresh import finish
from warehouse_agent.refresh.commit import commit
from warehouse_agent.refresh.finish import ProvenEqual, ProvenVersion, write_and_prove
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.refresh.prepare import Prepared, PreparedWhole, prepare
from warehouse_agent.refresh.whole import ComparisonResult, exchange
from warehouse_agent.report import Report
from warehouse_agent.storage.store import Store
from warehouse_agent.transport.channel import SourceChannel

ROWS = 600
NAME = "orders"


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    """SQLite, loaded once."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status INT, note TEXT)")
    rows = [(i, i % 7, f"note {i}") for i in range(ROWS)]
    legacy.many("INSERT INTO orders VALUES (?, ?, ?)", rows)
    with Pair(spark, legacy, tmp_path / "pair", {NAME: 'table = "orders"'}) as made:
        made.refresh(NAME)
        yield made
    legacy.close()


def edit(pair: Pair, text: str = "edited") -> None:
    pair.legacy.execute("UPDATE orders SET note = ? WHERE status = 3", text)
    pair.legacy.execute("DELETE FROM orders WHERE status = 5 AND id < 100")


def job_of(pair: Pair) -> Job:
    """An attempt of an agent of its own; it holds no lock, as on an object store."""
    config = pair.config()
    (fragment,) = select(config, [NAME], False)
    store = Store(config.path)
    notes = Notes.read(store, NAME)
    return Job(pair.steps, store, fragment, Options(), Report(NAME), notes)


def prepared(job: Job) -> Prepared:
    with SourceChannel(job.fragment.source) as link:
        return prepare(job, link.describe)


def compared(job: Job, p: Prepared) -> tuple[ComparisonResult, int]:
    """What the exchange found, and how many bytes came."""
    assert isinstance(p, PreparedWhole)
    with SourceChannel(job.fragment.source) as link, link.stream() as stream:
        found = exchange(job, p, stream)
        return found, link.bytes_received


def contents(pair: Pair) -> dict[str, bytes]:
    """Every file of the warehouse, by its path."""
    files = (file for file in pair.warehouse.rglob("*") if file.is_file())
    return {str(file.relative_to(pair.warehouse)): file.read_bytes() for file in files}


def data_folders(pair: Pair) -> set[str]:
    return {folder.name for folder in (pair.warehouse / NAME).glob("data-*")}


def staged(pair: Pair) -> list[str]:
    return Store(str(pair.warehouse)).folders("_driftline", "staging", NAME)


def test_a_proven_version_may_be_dropped(pair: Pair) -> None:
    job, folders = job_of(pair), data_folders(pair)
    edit(pair)
    found, received = compared(job, prepared(job))
    before = contents(pair)
    proven = write_and_prove(job, found)
    assert isinstance(proven, ProvenVersion)
    after = contents(pair)
    assert {path: after.get(path) for path in before} == before, "table, notes, staging, runs"
    added = {path for path in after if path not in before}
    assert {re.split("/", path)[0] for path in added} == {NAME, "_driftline"}
    assert all(path.startswith((f"{NAME}/data-", "_driftline/changes/")) for path in added)
    assert staged(pair)
    job.discard()
    assert data_folders(pair) == folders
    report = pair.refresh(NAME)  # takes up what is staged
    assert (report.version, report.rows_updated, report.rows_deleted) == (1, 86, 14)
    assert report.bytes_received < received / 2
    pair.check(NAME)
    pair.check_feed(NAME, 1)


def test_a_proven_version_may_wait(pair: Pair) -> None:
    job, before = job_of(pair), pair.published(NAME)
    edit(pair)
    rows = pair.legacy.rows(NAME)
    found, _ = compared(job, prepared(job))
    proven = write_and_prove(job, found)
    edit(pair, "meanwhile")
    assert pair.version(NAME) == 0
    expect_equal(pair.published(NAME), before)
    done = commit(job, proven)
    assert (done.version, done.rows, done.proof) == (1, len(rows), "total")
    assert (done.inserted, done.updated, done.deleted) == (0, 86, 14)
    expect_equal(pair.published(NAME), rows)
    assert not staged(pair)
    noted = Notes.read(job.store, NAME).checked
    assert noted is not None
    assert (noted.version, noted.said.as_of) == (1, found.found.as_of)
    assert pair.refresh(NAME).rows_updated == 86, "what changed meanwhile"
    pair.check(NAME)


def test_a_proven_version_may_be_overtaken(pair: Pair) -> None:
    edit(pair)
    jobs = job_of(pair), job_of(pair)
    both = [prepared(job) for job in jobs]  # before the other stages anything
    proven = [write_and_prove(job, compared(job, p)[0]) for job, p in zip(jobs, both, strict=True)]
    assert commit(jobs[0], proven[0]).version == 1
    before = contents(pair)
    with pytest.raises(Locked):
        commit(jobs[1], proven[1])
    after = contents(pair)
    assert after == before, "neither notes nor the log of the first"
    jobs[1].discard()
    lost = before.keys() - contents(pair).keys()
    assert lost
    assert len({path.split("/")[1].rsplit("-", 1)[0] for path in lost}) == 1, "one attempt's"
    pair.check(NAME)
    pair.check_feed(NAME, 1)
    assert pair.refresh(NAME).version == 1
    assert not staged(pair)


def test_a_version_found_equal_is_noted_by_the_commit(pair: Pair) -> None:
    job = job_of(pair)
    p = prepared(job)
    job.notes = replace(job.notes, checked=None)
    job.write_notes()
    found, _ = compared(job, p)
    before = contents(pair)
    proven = write_and_prove(job, found)
    assert isinstance(proven, ProvenEqual)
    assert contents(pair) == before
    assert not staged(pair), "an exchange without rows writes nothing"
    left = job.staging.begin(ORDERS)  # as by an attempt that was cut
    left.add(any_frame())
    left.flush()
    assert staged(pair)
    done = commit(job, proven)
    assert (done.version, done.rows, done.proof) == (0, ROWS, "total")
    assert (done.inserted, done.updated, done.deleted, done.bytes_rewritten) == (0, 0, 0, 0)
    assert pair.version(NAME) == 0
    assert not staged(pair)
    noted = Notes.read(job.store, NAME).checked
    assert noted is not None
    assert (noted.version, noted.said.as_of) == (0, found.found.as_of)


def test_a_failed_proof_clears_what_misled_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    job, real = job_of(pair), finish._apply
    edit(pair)
    found, _ = compared(job, prepared(job))
    before = Notes.read(job.store, NAME)
    monkeypatch.setattr(finish, "_apply", lambda *given: replace(real(*given), shipped=()))
    with pytest.raises(ProofFailed) as failed:
        write_and_prove(job, found)
    assert "not written as they came" in failed.value.details["cause"]
    monkeypatch.undo()
    assert not staged(pair)
    assert Notes.read(job.store, NAME) == before
    assert pair.version(NAME) == 0
    job.discard()
    assert pair.refresh(NAME).version == 1
    pair.check(NAME)


def test_a_refresh_that_fails_at_the_commit_reports_no_proof(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reported the proof and the counts of a version that does not exist."""

    def full(*_: Any, **__: Any) -> int:
        raise WarehouseUnavailable("The disk is full.")

    edit(pair)
    monkeypatch.setattr("warehouse_agent.storage.formats.commit", full)
    (report,) = pair.reports(NAME)
    monkeypatch.undo()
    assert report.error is not None
    assert (report.version, report.rows_total, report.proof) == (0, ROWS, "none")
    assert (report.rows_changed, report.fingerprint, report.miss_probability) == (0, None, None)
    (later,) = pair.reports(NAME)
    assert (later.error, later.version, later.rows_changed) == (None, 1, 100)
    pair.check(NAME)
