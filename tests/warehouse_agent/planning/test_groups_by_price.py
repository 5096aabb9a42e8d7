"""Groups of all rows are taken where they cost least: tables of lines, shares, and hot rows.

A sketch takes some 10 bytes for each changed row. Groups take a fraction of a byte for each row,
and 8 bytes a group, but a row that nearly always changes comes without either. So groups can win
only where rows differ in how likely they are to change, and enough of them do.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from driftline.limits import GROUPED_KEYS_MAX

from warehouse_agent.history.forecast_inputs import forecasts
from warehouse_agent.inspection.refresh_prediction import predict
from warehouse_agent.methods.registry import GROUPS, opening_for, weigh_groups
from warehouse_agent.planning.candidates import GROUPED_AFTER, GROUPED_ROWS_MIN, groups_may_pay
from warehouse_agent.planning.change_forecast import EarlierRefresh
from warehouse_agent.planning.choice import Method, partition_for
from warehouse_agent.planning.group_selection import SURE, Histogram
from warehouse_agent.planning.marker_state import MarkerState
from warehouse_agent.planning.network import Line, Objective
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.planning.prices import Prices

NOW = datetime(2026, 11, 30, tzinfo=UTC)
WAN, LAN = Line(0.1, 1.25e6, is_brief=True), Line(0.0005, 1e8, is_brief=True)
METERED = replace(WAN, objective=Objective.BYTES)
DAYS = 12
COLD_SHARE = 0.02  # of the changes fall on rows that are not hot


def known(rows: int, share: float, line: Line, **facts: Any) -> PlanInputs:
    """Return what is known after days on each of which a share of the rows was updated."""
    at = [NOW - timedelta(days=DAYS - day) for day in range(DAYS)]
    earlier = [EarlierRefresh(at[0], rows, 0, 0, rows, True, "full", 1, 9.0)]
    earlier += [
        EarlierRefresh(day, 0, round(share * rows), 0, rows, False, "sketch", 1, 9.0)
        for day in at[1:]
    ]
    row_bytes = facts.pop("row_bytes", 30.0)
    said: dict[str, Any] = {
        "name": "prices",
        "version": DAYS,
        "rows": rows,
        "rows_expected": rows,
        "prices": Prices(row_bytes, row_bytes, row_bytes, rows),
        "partition": partition_for([], rows, integer_key=False),
        "integer_key": True,
        "bounds": (1, rows),
        "line": line,
        "now": NOW,
        "forced": None,
        "read_at_most": None,
        "earlier": tuple(earlier),
    }
    return PlanInputs(**said | facts)


def weighed(facts: PlanInputs, hot: float | None) -> PlanInputs:
    """Return what is known after the statistics were read: nearly all changes fall on `hot` rows
    for each changed one; None: on all rows alike."""
    rows = facts.ours
    changed = facts.earlier[-1].updated
    likely = Histogram.even(rows, changed / rows)
    if hot is not None:
        few = round(hot * changed)
        inside = min((1 - COLD_SHARE) * changed / few, SURE)
        likely = Histogram.even(few, inside)
        likely += Histogram.even(rows - few, COLD_SHARE * changed / (rows - few))
    return weigh_groups(facts, forecasts(facts)[1], likely)


@pytest.mark.parametrize("line", [WAN, LAN, METERED], ids=["wan", "lan", "metered"])
def test_rows_that_are_equally_likely_to_change_are_never_grouped(line: Line) -> None:
    """They cost less by some parts in a thousand at most, where half of the rows change."""
    for rows, share, row_bytes in product((20_000, 1_000_000), (0.002, 0.05, 0.5), (20.0, 100.0)):
        facts = known(rows, share, line, row_bytes=row_bytes)
        if groups_may_pay(facts, forecasts(facts)[1]):
            assert not weighed(facts, None).in_groups, (rows, share, row_bytes)


@pytest.mark.parametrize(
    ("line", "rows", "share", "hot", "is_grouped"),
    [
        (WAN, 20_000, 0.2, 1.05, True),
        (WAN, 20_000, 0.2, 2.0, True),
        (WAN, 200_000, 0.2, 1.05, True),
        (METERED, 200_000, 0.2, 1.05, True),
        (METERED, 1_000_000, 0.2, 1.05, True),
        (METERED, 1_000_000, 0.05, 1.05, False),  # fewer hot rows: hashes of the others cost more
        (WAN, 200_000, 0.05, 10.0, False),  # a tenth of the hot rows change
    ],
)
def test_hot_rows_are_grouped_where_that_costs_less(
    line: Line, rows: int, share: float, hot: float, is_grouped: bool
) -> None:
    facts = known(rows, share, line)
    assert groups_may_pay(facts, forecasts(facts)[1])
    found = weighed(facts, hot)
    expected = forecasts(found)[1]
    assert found.in_groups == is_grouped
    assert (opening_for(found, expected) is GROUPS) == is_grouped
    said = predict(found)
    assert (said.chosen == "by groups") == is_grouped
    by_name = {way.what: way for way in said.candidates}
    cost = "bytes" if line.objective is Objective.BYTES else "exchange_seconds"
    groups, sketch = (getattr(by_name[name], cost) for name in ("by groups", "by sketch"))
    assert (groups < sketch) == is_grouped
    if is_grouped:
        assert "less than by" in said.why or "fewer than by" in said.why


def test_statistics_are_read_only_where_groups_may_pay() -> None:
    """Where the cells of a sketch take more bytes than all keys, and nothing else is asked for."""
    facts = known(100_000, 0.2, WAN)
    expected = forecasts(facts)[1]
    assert groups_may_pay(facts, expected)
    few = known(100_000, 0.01, WAN)
    assert not groups_may_pay(few, forecasts(few)[1])
    assert not groups_may_pay(facts, None)
    for other in (
        {"forced": Method.SKETCH},
        {"is_resumed": True},
        {"by_key": True},
        {"is_load": True},
        {"rows_lost": 1},
        {"marker": MarkerState(b"", "", False, None, 1.0, False)},
        {"read_at_most": 9},
        {"prices": replace(facts.prices, guessed=True)},
        {"earlier": facts.earlier[-GROUPED_AFTER:]},
        {"rows": GROUPED_ROWS_MIN - 1},
        {"rows": GROUPED_KEYS_MAX + 1},
    ):
        assert not groups_may_pay(replace(facts, **other), expected), other
    assert weigh_groups(facts, expected, None) is facts


def test_a_row_that_always_changes_is_as_likely_as_it_was_seen() -> None:
    """Independent events say 0.63 of it; the number of updates that are expected says more."""
    seen = Histogram.even(200, 0.63) + Histogram.even(1000, 0.01)
    made = seen.calibrated(206.0)
    assert made.counts.tolist() == seen.counts.tolist()
    assert made.means.max() == pytest.approx(0.95, abs=0.02)
    assert seen.calibrated(1e9).means.max() == pytest.approx(SURE)
    assert Histogram.even(9, 0.0).calibrated(5.0).updates.sum() == 0.0
