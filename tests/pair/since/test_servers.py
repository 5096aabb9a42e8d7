"""Refreshes by a marker of PostgreSQL servers that are restored, crash, or follow another one.

Each test has servers of its own. Both agents run in this process and no step needs Spark.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from driftline.errors import DriftlineError

from source_agent.engines.conformance.reads import markers_of
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacy import PostgresLegacy
from tests.harness.servers import PostgreSQL
from tests.harness.standby import Standby
from tests.pair.since.rig import XMIN, Stock, counts, used

SEEN_S_MAX = 30.0
BY_XMIN = Relation("t", table="t", marker=Marker(""))
BY_TIME = Relation("t", table="t", marker=Marker("at", late_s=0.0))


@pytest.fixture
def primary() -> Iterator[PostgreSQL]:
    with PostgreSQL() as server:
        yield server


def await_row(server: PostgreSQL, database: str, sql: str) -> None:
    """Wait until a SELECT has a row."""
    deadline = time.monotonic() + SEEN_S_MAX
    with server.superuser(database) as connection:
        while connection.execute(sql).fetchone() is None:
            assert time.monotonic() < deadline, sql
            time.sleep(0.05)


def test_a_volume_that_is_put_back_compares_all_rows(primary: PostgreSQL, tmp_path: Path) -> None:
    """System identifier, time line and files are the same, and numbers come twice."""
    legacy = PostgresLegacy(primary)
    stock = Stock(legacy, tmp_path / "pair", XMIN)
    stock.refresh()
    data, saved = primary.folder / "data", primary.folder / "saved"

    def restart(move: str) -> None:
        stock.pair.stop()
        with primary.superuser() as owner:
            owner.execute("CHECKPOINT")
        primary.crash()
        if move == "save":
            subprocess.run(["cp", "-a", str(data), str(saved)], check=True)
        else:
            shutil.rmtree(data)
            saved.rename(data)
        (data / "postmaster.pid").unlink(missing_ok=True)
        primary.start()
        legacy.reconnect()
        stock.pair.serve()

    restart("save")
    legacy.execute("UPDATE stock SET amount = -7 WHERE id < 30")
    stock.refresh()
    by_marker = stock.refresh()
    assert by_marker.proof == "keys"
    restart("put back")
    for amount in range(100, 120):  # until the mark is no longer ahead of the server
        legacy.execute("UPDATE stock SET amount = ? WHERE id = 300", amount)
    found = stock.refresh()
    assert (found.proof, counts(found)) == ("total", (0, 11, 0))
    assert "before a restart, a restore" in str(used(found)["why"])
    stock.check()
    assert used(stock.refresh())["used"] is True
    stock.pair.stop()


def source(server: PostgreSQL) -> str:
    """Return what tells the table `t` from another one, in a mark."""
    with closing(connect(server.url("postgres", "postgres"), None, Limits()).open()) as session:
        return markers_of(session).mark(session.describe(BY_XMIN)).source


def test_a_server_whose_process_crashed_is_another_source(primary: PostgreSQL) -> None:
    """Commits that were not on disk are lost, though the server was not started again."""
    with primary.superuser() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
        owner.execute("CHECKPOINT")
    before = source(primary)
    assert source(primary) == before
    with contextlib.suppress(psycopg.OperationalError), primary.superuser() as victim:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        victim.execute("SELECT 1")
    deadline, after = time.monotonic() + SEEN_S_MAX, before
    while after == before:  # until the server has noticed, and recovered
        assert time.monotonic() < deadline
        with contextlib.suppress(DriftlineError):
            after = source(primary)


def test_a_standby_is_as_old_as_what_it_has_replayed(primary: PostgreSQL) -> None:
    """Its own clock says nothing of that; a mark beyond it would hide what is replayed later."""
    with primary.superuser() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, at timestamptz)")
        owner.execute("INSERT INTO t VALUES (1, now())")
        with Standby(primary) as standby:
            url = standby.url("postgres", "postgres")

            def seen() -> tuple[datetime, datetime, int]:
                """Return as-of, mark and the number of rows."""
                with closing(connect(url, None, Limits()).open()) as session:
                    shape = session.describe(BY_TIME)
                    times = (session.snapshot.as_of, markers_of(session).mark(shape).at)
                    rows = sum(map(len, session.scan(shape)))
                as_of, mark = map(datetime.fromisoformat, times)
                return as_of, mark, rows

            def clock() -> datetime:
                with primary.superuser() as connection:
                    row = connection.execute("SELECT clock_timestamp()").fetchone()
                assert row is not None
                return datetime.fromisoformat(str(row[0]))

            before = clock()
            assert seen()[0] < before  # nothing was committed behind the checkpoint
            # A fail-over: the time line is another one only after a promoted server's checkpoint.
            assert source(standby) != source(primary)
            with primary.superuser() as writer:
                writer.execute("INSERT INTO t VALUES (2, now())")
            await_row(standby, "postgres", "SELECT 1 FROM t WHERE id = 2")
            with standby.superuser() as owner_there:
                owner_there.execute("SELECT pg_wal_replay_pause()")
            paused = "SELECT 1 WHERE pg_get_wal_replay_pause_state() = 'paused'"
            await_row(standby, "postgres", paused)
            after = clock()
            with primary.superuser() as writer:
                writer.execute("INSERT INTO t VALUES (3, now())")
            as_of, mark, rows = seen()
            assert rows == 2
            assert before < as_of < after
            assert mark <= as_of
