"""Lines that break while a load comes: what is said of it, and that it ends.

Each frame is a staged file of its own here, so that small tables have many.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Self

import pytest
from driftline.errors import SparkLost
from pyspark.sql import SparkSession

from source_agent.config.file import load
from source_agent.engines.encoding import rows
from source_agent.scan import frame_builder
from source_agent.server.service import start
from tests.harness.legacy import LEGACIES, PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.relay import Ending, Relay
from tests.harness.servers import PostgreSQL
from warehouse_agent.events import RowsRead
from warehouse_agent.refresh.finish import Proven
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.whole import ComparisonResult
from warehouse_agent.report import Report
from warehouse_agent.runs import attempt
from warehouse_agent.runs.batch import ATTEMPTS
from warehouse_agent.storage.staged_files import StagedRows, staged_of_load
from warehouse_agent.tasks import staging

ROWS = 20_000
LOAD_BYTES = 725_000  # of frames, about
SOAK_ROWS, SOAK_CUT_S = 10_000_000, 30.0


@pytest.fixture(params=["sqlite"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    monkeypatch.setattr(staging, "FILE_BYTES", 20_000)
    monkeypatch.setattr(frame_builder, "FRAME_BODY_BYTES_TARGET", 10_000)
    random = Random(5)
    with closing(LEGACIES[request.param](request, tmp_path)) as legacy:
        legacy.execute("CREATE TABLE t (code VARCHAR(9) PRIMARY KEY, note TEXT, n INTEGER)")
        every = [(f"k{i * 7919 % ROWS}", random.randbytes(30).hex(), i) for i in range(ROWS)]
        legacy.many("INSERT INTO t VALUES (?, ?, ?)", every)
        legacy.execute("CREATE TABLE u (n INTEGER PRIMARY KEY, note TEXT)")
        legacy.execute("INSERT INTO u SELECT n, note FROM t")
        legacy.execute("ANALYZE")
        relations = {name: f'table = "{name}"' for name in "tu"}
        with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
            made.small_bytes = 64 << 20
            yield made


@pytest.fixture
def relay(pair: Pair) -> Iterator[Relay]:
    with Relay(pair.address) as made:
        pair.address = made.address
        yield made


def staged(pair: Pair) -> StagedRows:
    found = staged_of_load(pair.store, "t")
    assert found is not None
    return found


@pytest.mark.parametrize("pair", ["sqlite", "postgresql"], indirect=True)
def test_a_load_that_was_cut_is_said_to_go_on(pair: Pair, relay: Relay) -> None:
    """`status`, `plan`, `gc` and the progress of the next attempt say how far it is."""
    relay.cut_after(down=LOAD_BYTES // 2)
    assert pair.error("t")["code"] == "UNREACHABLE"
    found = staged(pair)
    assert found.rows is not None
    assert 0.2 * ROWS < found.rows < 0.8 * ROWS
    (line,) = pair.said("status", "t", "--json").splitlines()
    assert json.loads(line)["staged"] == {
        "rows": found.rows,
        "rows_expected": found.rows_expected,
        "bytes": found.bytes,
        "at": found.at,
        "exchanges": 1,
    }
    share = f"{found.rows:,} rows" if found.rows_expected is None else f"{found.rows / ROWS:.0%}"
    said = f"t: first load, {share} staged, last tried just now"
    assert said in pair.said("status", "t").splitlines()
    planned = f"{found.rows:,} rows ({found.bytes:,} bytes) of earlier attempts are staged"
    assert f"  {planned}" in pair.said("plan", "t")
    kept = f"  {found.bytes:,} bytes are staged, and kept until"
    assert kept in pair.said("gc", "t", "--keep-hours", "0", "--yes")
    heard = pair.heard("t")
    read = [event for event in heard.events if isinstance(event, RowsRead)]
    assert read[0].rows == read[0].rows_before == found.rows, "it begins where it stood"
    assert {event.rows_before for event in read if event.phase == "ship"} == {found.rows}
    pair.check("t")
    (line,) = pair.said("status", "t", "--json").splitlines()
    assert json.loads(line)["staged"] is None


def test_files_of_an_older_release_go_on(pair: Pair, relay: Relay) -> None:
    """Their names tell no rows, and their note no estimate."""
    relay.cut_after(down=LOAD_BYTES // 2)
    pair.error("t")
    place = pair.root / "_driftline" / "staging" / "t"
    for file in list(place.rglob("*.frames")):
        file.rename(file.with_name(f"{file.name.partition('-')[0]}.frames"))
    (note,) = place.rglob("exchange.json")
    body = json.loads(note.read_text())
    del body["rows_expected"]
    note.write_text(json.dumps(body))
    found = staged(pair)
    assert (found.rows, found.rows_expected) == (None, None)
    assert f"first load, {found.bytes:,} bytes staged" in pair.said("status", "t")
    received = relay.down_bytes
    heard = pair.heard("t")
    assert all(not e.rows_before for e in heard.events if isinstance(e, RowsRead))
    assert relay.down_bytes - received < 0.9 * LOAD_BYTES, "what was staged did not come again"
    pair.check("t")


@pytest.mark.parametrize("name", ["t", "u"])
def test_a_load_ends_over_a_line_that_breaks_again_and_again(
    pair: Pair, relay: Relay, name: str
) -> None:
    """In one command: an attempt that staged more than there was does not count."""
    relay.end_each(down=LOAD_BYTES // 6, ending=Ending.FIN)
    report = pair.refresh(name, attempts=4)
    assert report.attempts > 5
    assert {error["code"] for error in report.retried} == {"UNREACHABLE"}
    assert relay.cuts >= len(report.retried) == report.attempts - 1
    assert relay.down_bytes < 2 * LOAD_BYTES
    pair.check(name)


def test_one_attempt_is_one_however_far_it_comes(pair: Pair, relay: Relay) -> None:
    relay.end_each(down=LOAD_BYTES // 6, ending=Ending.FIN)
    (report,) = pair.reports("u", attempts=1)
    assert report.attempts == 1
    assert report.error is not None


def test_an_attempt_whose_rows_all_came_counts(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed behind the exchange is not mended by more rows."""

    def unproven(job: Job, _done: ComparisonResult) -> Proven:
        raise SparkLost("It was killed.", where=job.name)

    monkeypatch.setattr(attempt, "write_and_prove", unproven)
    (report,) = pair.reports("u", attempts=3)
    assert report.attempts == 3


def test_a_scan_that_outlasts_the_line_is_said(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source reads slowly, so each connection ends before a row came."""
    monkeypatch.setattr(rows, "BATCH_ROWS", 500)
    monkeypatch.setattr(frame_builder, "FRAME_BODY_BYTES_TARGET", 1 << 20)
    pair.stop()
    pair.limits = "rows_per_second = 5000"
    server = start(load(pair.source_toml()), heartbeat_s=0.02)
    try:
        with Relay(f"127.0.0.1:{server.port}") as relay:
            pair.address = relay.address
            relay.end_each(down=2500, ending=Ending.FIN)
            (report,) = pair.reports("u", attempts=3)
    finally:
        server.stop()
    assert report.attempts == 3
    assert report.error is not None
    assert report.error["code"] == "UNREACHABLE"
    assert "was lost" in report.error["details"]["cause"]
    assert report.error["message"].startswith("The line broke 3 times in turn before a new row")
    held_s, takes_s = re.findall(r"([\d,]+) s\b", report.error["message"])
    assert int(held_s) <= int(takes_s) <= 60
    assert "`limits.readers`" in report.error["remedy"]
    assert "`incremental`" not in report.error["remedy"], "that is for published versions"


class Cutter:
    """Cuts every connection of a relay at regular times; a context manager."""

    def __init__(self, relay: Relay, every_s: float) -> None:
        self.cuts = 0
        self._relay, self._every_s, self._ended = relay, every_s, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._relay.refuse()
            self._relay.heal()
            self.cuts += 1


@pytest.mark.soak
@pytest.mark.parametrize("key", ["a", "a, b", "b, a", "c"])
def test_ten_million_rows_over_a_line_that_is_cut_every_half_minute(
    spark: SparkSession, postgresql: PostgreSQL, tmp_path: Path, key: str
) -> None:
    """At most two commands load it. Some 66 s where nothing cuts, on two cores."""
    with closing(PostgresLegacy(postgresql)) as legacy:
        legacy.execute("CREATE TABLE t (a bigint, b int NOT NULL, c uuid NOT NULL, note text)")
        legacy.execute(
            "INSERT INTO t SELECT i, i % 1009, md5(i::text)::uuid, repeat(md5(i::text), 2)"
            f" FROM generate_series(1, {SOAK_ROWS}) i"
        )
        legacy.execute(f"ALTER TABLE t ADD PRIMARY KEY ({key})")
        legacy.execute("ANALYZE t")
        with (
            Pair(spark, legacy, tmp_path / "pair", {"t": 'table = "t"'}) as pair,
            Relay(pair.address) as relay,
            Cutter(relay, SOAK_CUT_S) as cutter,
        ):
            pair.address, pair.small_bytes = relay.address, None
            reports = list[Report]()
            while len(reports) < 2 and (not reports or reports[-1].error is not None):
                reports += pair.reports("t", attempts=ATTEMPTS)
            print(
                f"{key}: {cutter.cuts} cuts, {[one.attempts for one in reports]} attempts,"
                f" {relay.down_bytes:,} bytes, {[sum(r.seconds.values()) for r in reports]} s"
            )
            assert (reports[-1].error, reports[-1].rows_total) == (None, SOAK_ROWS)
            assert reports[-1].proof == "total"
