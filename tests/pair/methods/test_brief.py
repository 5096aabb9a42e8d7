"""Refreshes that leave out what is not needed, where the source names that it can.

Both agents over SQLite, without Spark. What is published is compared with the owner's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.wire import negotiation
from driftline.wire.negotiation import BRIEF

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.report import Report
from warehouse_agent.transport.channel import Stream

pytestmark = pytest.mark.starts

ROWS = 400


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    legacy.many("INSERT INTO orders VALUES (?, ?)", [(k, f"note {k * k}") for k in range(ROWS)])
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        made.refresh("orders")
        yield made
    legacy.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[pb.Open]:
    """The openings of the warehouse."""
    openings, send = list[pb.Open](), Stream.send

    def noted(self: Stream, request: pb.Request) -> None:
        if request.HasField("open"):
            openings.append(request.open)
        send(self, request)

    monkeypatch.setattr(Stream, "send", noted)
    return openings


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is of a release before the feature."""
    names = {name: what for name, what in negotiation.FEATURES.items() if name != BRIEF}
    monkeypatch.setattr("source_agent.server.service.FEATURES", names)
    monkeypatch.setattr(negotiation.check_features, "__defaults__", (names,))


def changed(pair: Pair, note: str, rows: int = 5) -> Report:
    pair.legacy.execute(f"UPDATE orders SET note = '{note}' WHERE id < {rows}")
    report = pair.refresh("orders")
    assert report.rows_changed == rows
    pair.check("orders")
    return report


def test_a_source_that_names_it_is_asked_for_it(pair: Pair, sent: list[pb.Open]) -> None:
    for note in "abc":
        report = changed(pair, note)
    assert report.round_trips == 1
    assert all(BRIEF in one.features for one in sent)
    assert not sent[-1].strata


@pytest.mark.usefixtures("older")
def test_an_older_source_is_asked_for_nothing(pair: Pair, sent: list[pb.Open]) -> None:
    changed(pair, "a")
    assert not any(BRIEF in one.features for one in sent)
    assert sent[-1].strata
