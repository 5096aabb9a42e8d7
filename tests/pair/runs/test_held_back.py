"""A refresh whose reads the source holds back: equal all the same, and everybody says for how long.

With windows of no length and a threshold of zero each batch after the second is slow, so the test
needs no database that is really slow. `tests/source_agent/budgets/test_feedback.py` has the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from source_agent.budgets import feedback
from source_agent.budgets.others import OtherProcesses
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from warehouse_agent.events import RowsRead
from warehouse_agent.inspection.refresh_prediction import forecast

ROWS = 40_000


@contextmanager
def orders(
    spark: SparkSession,
    folder: Path,
    note: Callable[[int], object] = lambda n: f"note {n}",
    type: str = "TEXT",
) -> Iterator[Pair]:
    """A pair over one table of SQLite, whose second column is what `note` makes of a number."""
    legacy = SqliteLegacy(folder / "erp.db")
    legacy.execute(f"CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note {type})")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(n, note(n)) for n in range(ROWS)])
    with Pair(spark, legacy, folder / "pair", {"orders": 'table = "orders"'}) as pair:
        yield pair
    legacy.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each batch after the second be slow."""
    monkeypatch.setattr(feedback, "WINDOW_S", 0.0)
    monkeypatch.setattr(feedback, "WINDOWS_MIN", 1)
    monkeypatch.setattr(feedback, "SLOWER", 0.0)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("is_on", [True, False])
def test_report_history_and_audit_say_it(
    spark: SparkSession,
    tmp_path: Path,
    is_on: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with orders(spark, tmp_path) as pair:
        pair.limits = f"feedback = {str(is_on).lower()}"
        pair.restart()
        monkeypatch.setattr("warehouse_agent.report.HELD_BACK_SHOWN_S", 1e-9)
        heard = pair.heard()
        report = heard.report
        pair.check("orders")
        assert report.error is None
        assert (report.held_back_s > 0) == is_on
        assert report.snapshot_s is not None
        assert report.snapshot_s >= report.held_back_s
        line = json.loads((pair.folder / "audit.jsonl").read_text().splitlines()[-1])
        assert line.get("held_back_s", 0) == round(report.held_back_s, 3)
        assert 0 < line["snapshot_s"] <= report.snapshot_s
        run = pair.store.read("_driftline", "runs", "orders.jsonl")
        assert run is not None
        assert json.loads(run)["held_back_s"] == report.held_back_s
        assert ("held back for" in heard.out) == is_on
        assert ("held back for" in pair.said("history", "orders")) == is_on
        told = json.loads(pair.said("history", "orders", "--json"))
        assert told["held_back_s"] == report.held_back_s


def test_a_source_on_this_machine_knows_its_warehouse(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it starts is no other, for whom reads would rest; a source elsewhere is told nothing."""
    known = list[int | None]()
    with_warehouse = OtherProcesses.with_warehouse

    def seen(self: OtherProcesses, process: int | None) -> AbstractContextManager[None]:
        known.append(process)
        return with_warehouse(self, process)

    monkeypatch.setattr(OtherProcesses, "with_warehouse", seen)
    with orders(spark, tmp_path) as pair:
        pair.refresh("orders")
        monkeypatch.setattr("source_agent.server.handlers.machine", lambda: "another machine")
        pair.refresh("orders")
    assert known == [os.getpid(), None]


@pytest.mark.usefixtures("slow")
def test_while_it_reads_a_source_says_that_it_is_held_back(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before rows, so that the line is not taken to be slow; and `plan` says it afterwards."""
    monkeypatch.setattr("source_agent.server.conversation.HELD_NEWS_S", 1e-9)
    monkeypatch.setattr("warehouse_agent.report.HELD_BACK_SHOWN_S", 1e-9)
    with orders(spark, tmp_path, lambda _: os.urandom(100), "BLOB") as pair:
        pair.limits = ""
        pair.restart()
        monkeypatch.setattr("warehouse_agent.cli.progress.LINE_EVERY_S", 0.0)
        heard = pair.heard()
        assert heard.report.error is None
        told = [event.held_back_s for event in heard.events if isinstance(event, RowsRead)]
        assert 0 < max(told) <= heard.report.held_back_s
        assert told == sorted(told)
        assert "held back by the source for" in heard.err
        found = forecast(pair.store, pair.config().fragments["orders"])
        assert found.held_back_s == heard.report.held_back_s
        assert "the source held the last refresh back for" in pair.said("plan")
