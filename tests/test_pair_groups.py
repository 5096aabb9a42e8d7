"""Groups from end to end: of everything, and of the part that a budget allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.legacy import Legacy, legacy_of
from tests.pair import Pair, plain
from tests.test_pair import ITEMS, ORDERS, TYPES, edit, fill, order

BUDGET = 1000


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = legacy_of(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def pair(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> Iterator[Pair]:
    for table in (ORDERS, ITEMS):
        legacy.execute(table.format(**TYPES[legacy.engine]))
    fill(legacy, 3000)
    relations = {"orders": 'table = "orders"', "items": 'table = "items"'}
    with Pair(spark, legacy, tmp_path / "pair", relations) as made:
        yield made


@pytest.mark.parametrize("round_trip_s", [0.0, 10.0], ids=["refined", "whole"])
def test_by_groups(pair: Pair, monkeypatch: pytest.MonkeyPatch, round_trip_s: float) -> None:
    from warehouse_agent import remember
    from warehouse_agent.plan import Line

    monkeypatch.setattr(remember, "line", lambda *_: Line(rtt_s=round_trip_s))
    pair.fragment_lines = dict.fromkeys(("orders", "items"), 'method = "group"')
    pair.reports()
    for seed in (1, 2):
        counts = edit(pair.legacy, seed)
        pair.legacy.execute("UPDATE items SET note = 'x' WHERE line = ?", seed)
        pair.legacy.execute("DELETE FROM items WHERE code = ?", f"Ä{seed:04d}")
        orders, items = pair.reports()
        for report in (orders, items):
            assert report.error is None, report.error
            assert report.method == "group"
            assert report.proof == "total"
            pair.check(report.name)
        assert orders.round_trips == (2 if round_trip_s == 0 else 1)
        assert (orders.rows_inserted, orders.rows_updated, orders.rows_deleted) == counts
        pair.check_feed("orders", seed)
    quiet = pair.refresh("orders")
    assert (quiet.version, quiet.round_trips, quiet.rows_changed) == (2, 1, 0)


def test_a_part_of_a_table(pair: Pair) -> None:
    """What was compared is theirs, the rest as it was, and in some refreshes everything is."""
    pair.refresh("orders")
    pair.fragment_lines["orders"] = f'read_at_most = {BUDGET}\nrequire = "fuzzy"'
    before = {row[0]: tuple(map(plain, row)) for row in pair.published("orders")}
    edit(pair.legacy, 1)
    # New rows past the largest key, and one in a gap.
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(10**6), order(6)])
    compared = 0
    for turn in range(20):
        report = pair.refresh("orders")
        assert report.source_rows_read <= 3 * BUDGET
        assert report.source_scans == 0
        assert (report.proof, report.consistency, report.method) == ("part", "fuzzy", "group")
        assert report.rows_left is not None
        assert report.rows_left >= 3000 - BUDGET - 10
        theirs = {row[0]: tuple(map(plain, row)) for row in pair.legacy.rows("orders")}
        ours = {row[0]: tuple(map(plain, row)) for row in pair.published("orders")}
        # Every row is as it is at the source, or as it was here.
        for key in ours.keys() | theirs.keys() | before.keys():
            assert ours.get(key) in (theirs.get(key), before.get(key)), key
        if turn == 0:
            assert 10**6 in ours
        compared = sum(ours.get(k) == theirs.get(k) for k in theirs)
        if ours == theirs:
            break
    assert compared == len(theirs)
    assert 0 < turn < 14
    pair.check("orders")
    # A whole refresh after it finds nothing to do.
    pair.fragment_lines.clear()
    last = pair.refresh("orders")
    assert (last.rows_changed, last.proof) == (0, "total")


def test_a_part_of_too_much_is_refused(pair: Pair) -> None:
    pair.refresh("orders")
    pair.fragment_lines["orders"] = f'read_at_most = {BUDGET}\nrequire = "fuzzy"'
    rows = [order(10**6 + key) for key in range(2 * BUDGET)]
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
    error = pair.error("orders")
    assert error["code"] == "LIMIT"
    assert "read_at_most" in error["remedy"]
    pair.fragment_lines.clear()
    assert pair.refresh("orders").rows_inserted == 2 * BUDGET
    pair.check("orders")


def test_a_part_needs_an_integer_key(pair: Pair) -> None:
    pair.refresh("items")
    pair.fragment_lines["items"] = f'read_at_most = {BUDGET}\nrequire = "fuzzy"'
    pair.legacy.execute("UPDATE items SET note = 'x' WHERE line = 1")
    error = pair.error("items")
    assert error["code"] == "CONFIGURATION"
