"""Refreshes through PgBouncer, beside clients that leave settings in the sessions of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.legacy import PostgresLegacy
from tests.harness.pgbouncer import PgBouncer
from tests.harness.servers import PostgreSQL
from tests.pair.since.rig import ROWS, XMIN, Stock, counts
from warehouse_agent.timetable.probe import ProbeAnswer

LEFT_BEHIND = (
    "SET DateStyle = 'German, DMY'",
    "SET TimeZone = 'Asia/Kolkata'",
    "SET search_path = other",
    "SET enable_indexscan = off",
    "SET statement_timeout = '9s'",
)


class Pooled(PostgresLegacy):
    """Read by the agent through a pooler; its owner reaches the server itself."""

    def __init__(self, server: PostgreSQL, mode: str) -> None:
        super().__init__(server)
        self.reports_counts = server.release >= 15
        self.pooler = PgBouncer(
            server, mode, users=[self.login], default_pool_size=2, server_reset_query=""
        )
        self.url = self.pooler.url(self.login, self.database)
        self.execute("CREATE SCHEMA other CREATE TABLE other.stock (id bigint PRIMARY KEY)")

    def leave_behind(self) -> None:
        """Change settings of the server's sessions, as other clients of the login do."""
        with self.pooler.client(self.login, self.database) as client:
            for statement in LEFT_BEHIND:
                client.execute(statement)

    def report_counts(self) -> None:
        """Have the owner's session report what it changed: it would do so within ten seconds."""
        if self.reports_counts:
            self.execute("SELECT pg_stat_force_next_flush()")

    def close(self) -> None:
        self.pooler.close()
        super().close()


@pytest.fixture
def legacy(pool_mode: str, postgresql: PostgreSQL) -> Iterator[Pooled]:
    made = Pooled(postgresql, pool_mode)
    yield made
    made.close()


def test_refreshes_through_a_pooler(legacy: Pooled, tmp_path: Path) -> None:
    """A load, a comparison of all rows, a marker with its audit, and questions about activity."""
    stock = Stock(legacy, tmp_path / "pair", XMIN)
    stock.pair.limits += "\nactivity_seconds = 0.001\nreaders = 2"
    stock.pair.restart()
    legacy.report_counts()
    legacy.leave_behind()
    assert stock.refresh().rows_inserted == ROWS
    stock.check()
    legacy.leave_behind()
    stock.update([3, 30, 300], 7)
    stock.insert([1, 2])
    stock.delete([6, 9])
    legacy.report_counts()
    report = stock.refresh()
    assert counts(report) == (2, 3, 2)
    assert report.proof == "keys"
    stock.check()
    legacy.leave_behind()
    stock.update([33], 8)
    legacy.report_counts()
    assert stock.audit()["missed"] == 0
    stock.check()
    stock.pair.fragment_lines["stock"] = ""
    stock.update([36, 39], 9)
    legacy.report_counts()
    report = stock.refresh()
    assert (counts(report), report.proof) == ((0, 2, 0), "total")
    stock.check()
    asked = json.loads(stock.pair.said("status", "--ask", "--json", "stock"))["activity"]
    assert asked["state"] == ProbeAnswer.UNCHANGED.value or not legacy.reports_counts
    stock.pair.stop()
