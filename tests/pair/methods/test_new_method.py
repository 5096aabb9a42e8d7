"""A minimal new method through both agents: comparison by the total alone.

It is one class and one entry of the registry on either side (the source's class is that of
`tests/conformance/test_new_method`): runner, preparation, price, report and finish know it by the
interface. A product method has three types where this one is its own plan and its own side.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from driftline.rows.digests import Digest
from pyspark.sql import SparkSession

from source_agent.methods import registry as source_registry
from tests import ROOT
from tests.conformance.test_new_method import TotalCompared
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from tests.pair.refresh.test_every_engine import ITEMS, ORDERS, TYPES, edit, fill
from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods import registry
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.interface import Offers, Step, WorkingCopy
from warehouse_agent.planning.candidates import Candidate, load
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import Method, everything
from warehouse_agent.planning.plan_inputs import PlanInputs, Whole
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import AllRows
from warehouse_agent.transport.waiting import Requests


class ByTotal:
    """Our total goes up; where it is not the source's, every row comes."""

    method, stalls = Method.FULL, False
    compared = rest = Digest()
    updates_left = 0.0
    turn: ClassVar[NextPartNote] = NextPartNote()

    def supports(self, known: PlanInputs) -> bool:
        return bool(known.rows) and isinstance(known.scope, Whole)

    @property
    def rows(self) -> int:
        return self.compared.count

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> tuple[tuple[Candidate, ...], str]:
        found = load(known)
        return (found, found), found.what

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> ByTotal:
        return self

    def reduce(self, copy: WorkingCopy) -> ByTotal:
        self.compared = digests.total(copy.steps, copy.files, copy.layout, copy.salt)
        return self

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        yield terms.opening(self.compared, everything())
        return terms.finished((yield None), self.compared, AllRows(), self.method)


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for table in (ORDERS, ITEMS):
        legacy.execute(table.format(**TYPES["sqlite"]))
    fill(legacy, 500)
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        yield made
    legacy.close()


# What methods are made of, and asked through.
SHARED = {"conversation", "interface", "registry"}


def test_a_method_by_total(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.refresh("orders")
    ours = (registry.OPENINGS[0], ByTotal(), *registry.OPENINGS[1:])
    monkeypatch.setattr(registry, "OPENINGS", ours)
    answers = (TotalCompared, *source_registry.ANSWERS)
    monkeypatch.setattr(source_registry, "ANSWERS", answers)
    quiet = pair.refresh("orders")
    assert (quiet.version, quiet.round_trips, quiet.rows_changed) == (0, 1, 0)
    counts = edit(pair.legacy, 1)
    found = pair.refresh("orders")
    assert (found.rows_inserted, found.rows_updated, found.rows_deleted) == counts
    assert (found.version, found.method, found.round_trips, found.proof) == (1, "full", 1, "total")
    pair.check("orders")


def test_nothing_outside_methods_knows_a_method_of_the_warehouse() -> None:
    """But for tiles, whose auxiliary table holds range sums, and what is said beside methods."""
    room, knowing = ROOT / "warehouse_agent/methods", set()
    methods = {path.stem for path in room.iterdir()} - {"__init__", "__pycache__", *SHARED}
    assert {"full_copy", "groups", "ranges", "since", "sketch"} <= methods
    known = tuple(f"warehouse_agent.methods.{method}" for method in methods)
    for path in (ROOT / "warehouse_agent").rglob("*.py"):
        if path.is_relative_to(room):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                if any(f"{name}.".startswith(f"{one}.") for name in names for one in known):
                    knowing.add(str(path.relative_to(ROOT)))
    assert knowing == {
        "warehouse_agent/inspection/part_prediction.py",  # parts, which one method compares
        "warehouse_agent/refresh/marker_audit.py",  # the sums of keys that an audit compares
        "warehouse_agent/refresh/reporting.py",  # what a refresh by a marker says of it
        "warehouse_agent/refresh/tiled.py",
    }
