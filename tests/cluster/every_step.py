"""A driver that takes each step to the executors of a cluster; it runs in a process of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tests.conformance.test_step_places import TABLES, run
from tests.harness.views import Sites
from warehouse_agent.spark import session
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.table_maintenance.verification import VerifiedTable, verify
from warehouse_agent.tasks.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 40
SITES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, customer INT, note VARCHAR",
        "line": "id INTEGER PRIMARY KEY, part INT",
    },
    "crm": {
        "customer": "code INTEGER PRIMARY KEY, name VARCHAR",
        "part": "code INTEGER PRIMARY KEY, name VARCHAR",
    },
}
# A chain of four: what a changed end means for the other side is looked up in the middle.
VIEW = """SELECT o.id, c.name, o.note, p.name AS part FROM erp.orders o
JOIN crm.customer c ON c.code = o.customer
JOIN erp.line l ON l.id = o.id JOIN crm.part p ON p.code = l.part"""
_sessions: list[SparkSession] = []


def spark_on(settings: dict[str, str]) -> SparkSession:
    """Return the session of this process, with `[spark]` settings of a cluster."""
    if not _sessions:
        _sessions.append(session.start(settings))
    return _sessions[0]


def found_on(settings: dict[str, str], folder: Path, name: str) -> dict[str, str]:
    """Return, as text, what the steps of refreshes find and write for a table by its name."""
    steps = Steps(spark_on(settings), small_bytes=0)
    return {what: repr(found) for what, found in run(steps, folder, TABLES[name]).items()}


def follow_view(settings: dict[str, str], folder: Path) -> set[tuple[str, str]]:
    """Load, change, maintain and verify a view; return the functions that this process called:
    module's file and name."""
    called: set[tuple[str, str]] = set()
    with Sites(spark_on(settings), folder, SITES, {"v": VIEW}) as sites, noting(called):
        sites.small_bytes = 0
        sites.view_lines["v"] = 'maintain = "incremental"'
        for key in range(ROWS):
            sites.sql("erp", "INSERT INTO orders VALUES (?, ?, ?)", key, key % 7, f"note {key}")
            sites.sql("erp", "INSERT INTO line VALUES (?, ?)", key, key % 3)
        for code in range(5):
            sites.sql("crm", "INSERT INTO customer VALUES (?, ?)", code, f"name {code}")
            sites.sql("crm", "INSERT INTO part VALUES (?, ?)", code, f"part {code}")
        sites.well()
        sites.check()
        sites.sql("erp", "UPDATE orders SET note = 'new' WHERE id < 9")
        sites.sql("erp", "DELETE FROM orders WHERE id > 30")
        sites.sql("crm", "UPDATE customer SET name = 'other' WHERE code = 2")
        sites.sql("crm", "UPDATE part SET name = 'other' WHERE code = 1")
        reports = sites.well()
        assert {report.places[phase] for report in reports.values() for phase in report.places} == {
            "spark"
        }
        sites.check()
        config = sites.config()
        done = verify(
            config, sites.store, DeferredSession(settings), config.views["v"], repair=False
        )
        assert isinstance(done, VerifiedTable), done
    return called


@contextmanager
def noting(called: set[tuple[str, str]]) -> Iterator[None]:
    """Add the functions that are called meanwhile, in any thread that starts or is this one."""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
