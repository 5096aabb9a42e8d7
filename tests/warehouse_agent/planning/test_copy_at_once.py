"""Which refreshes ask for every row at once: tables of lines, histories and shares that change.

Seconds are those of the prices. Beside them stands what a compressed copy by other means takes on a
slow line; on a fast one nothing that also writes and proves is faster than our own copy.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from warehouse_agent.change_models.operational_time import changes_expected
from warehouse_agent.history.forecast_inputs import forecasts
from warehouse_agent.inspection.refresh_prediction import predict
from warehouse_agent.methods.full_copy import CopyAtOnce
from warehouse_agent.methods.registry import (
    COPY_AT_ONCE,
    goes_on,
    offers,
    opening_for,
    predicted,
    refreshes,
    seconds,
)
from warehouse_agent.methods.resumed_load import ResumedLoad
from warehouse_agent.planning.change_forecast import (
    DayOfChanges,
    EarlierRefresh,
)
from warehouse_agent.planning.choice import NAMES, Method, partition_for
from warehouse_agent.planning.network import LOAD_LEVEL, REFRESH_LEVEL, Line, Objective
from warehouse_agent.planning.plan_inputs import CopyReason, PlanInputs, Unstaged
from warehouse_agent.planning.prices import Prices

ROWS, ROW_BYTES = 3_000_000, 28.0  # lineitem of TPC-H at scale 0.5, and our frames of it
CSV_ROW_BYTES = 43.0  # of `COPY (FORMAT csv)` under zstd -3
WRITTEN_ROW_S = 1.9e-6  # to write and prove a row, whichever way it came
NOW = datetime(2026, 11, 29, tzinfo=UTC)
WAN = Line(0.1, 1.2e6, rows_per_s=6e5)  # 100 ms and 10 Mbit/s
LAN = Line(0.0005, 1e8, rows_per_s=6e5)
KNOWS = 8  # refreshes of as many changes


def known(line: Line, *shares: float, rows: int = ROWS, **facts: Any) -> PlanInputs:
    """Return what a refresh knows a day after the last of daily ones that found these shares."""
    at = [NOW - timedelta(days=len(shares) - i + 1) for i in range(len(shares) + 1)]
    earlier = [EarlierRefresh(at[0], rows, 0, 0, rows, True, "full", 1, 60.0)]
    earlier += [
        EarlierRefresh(day, 0, round(share * rows), 0, rows, False, "sketch", 2, 60.0)
        for day, share in zip(at[1:], shares, strict=True)
    ]
    said: dict[str, Any] = {
        "name": "lineitem",
        "version": len(shares),
        "rows": rows,
        "rows_expected": None,
        "prices": Prices(ROW_BYTES, ROW_BYTES, ROW_BYTES, rows),
        "partition": partition_for([], rows, integer_key=False),
        "integer_key": False,
        "bounds": None,
        "line": line,
        "now": NOW,
        "forced": None,
        "read_at_most": None,
        "earlier": tuple(earlier),
    }
    return PlanInputs(**(said | facts))


def is_copied(at: PlanInputs) -> bool:
    expected = changes_expected(list(at.earlier), at.ours, at.now)
    return isinstance(opening_for(at, expected), CopyAtOnce)


def taken_s(at: PlanInputs, share: float) -> tuple[str, float]:
    """Return the way that a refresh goes which finds this share changed, and its seconds."""
    changed = round(share * ROWS)
    expected = changes_expected(list(at.earlier), at.ours, at.now)
    candidates, chosen = refreshes(at, expected, changed, with_rivals=False)
    way = next(one for one in candidates if one.what == chosen)
    come = ROWS if chosen == NAMES[Method.FULL] else changed
    return chosen, seconds(at, way, come) + ROWS * WRITTEN_ROW_S


def copy_s(at: PlanInputs) -> float:
    """Return the seconds of a compressed copy; on a fast line, of our own."""
    if at.line == WAN:
        return ROWS * CSV_ROW_BYTES / at.line.bytes_per_s
    (_, copy), _ = COPY_AT_ONCE.price(at, None, ROWS, offers)
    return seconds(at, copy, ROWS) + ROWS * WRITTEN_ROW_S


@pytest.mark.parametrize("line", [WAN, LAN], ids=["wan", "lan"])
@pytest.mark.parametrize(
    ("share", "at_once"),
    [(0.001, False), (0.01, False), (0.1, False), (0.25, False), (0.8, True), (1.0, True)],
)
def test_a_copy_is_asked_for_where_the_forecast_knows(
    line: Line, share: float, at_once: bool
) -> None:
    assert is_copied(known(line, *[share] * KNOWS)) is at_once


@pytest.mark.parametrize("line", [WAN, LAN], ids=["wan", "lan"])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(
    ("history", "most"), [((), 1.3), ("same", 1.05)], ids=["at first", "when forecast"]
)
def test_no_refresh_takes_much_longer_than_a_copy(
    line: Line, share: float, history: Any, most: float
) -> None:
    at = known(line, *([share] * KNOWS if history else ()))
    chosen, took = taken_s(at, share)
    assert took <= most * copy_s(at), (chosen, took, copy_s(at))
    if share <= 0.1:
        assert chosen == "by sketch"


def test_a_wrong_forecast_of_a_copy_costs_no_more_than_one() -> None:
    at = known(WAN, *[1.0] * KNOWS)
    assert is_copied(at)
    for share in (1e-6, 0.1, 1.0):
        assert taken_s(at, share)[1] <= 1.05 * copy_s(at)


def test_what_is_known_to_change_seldom_is_compared() -> None:
    """A month in which all rows changed once, or half of the times."""
    assert not is_copied(known(WAN, *[0.001] * 12, 1.0, *[0.001] * 12))
    assert not is_copied(known(WAN, *[0.001, 1.0] * 6))
    assert not is_copied(known(WAN))


def test_rows_that_change_every_hour_are_not_copied_after_a_weekend() -> None:
    """The totals of days count each of them as often as it changed: more than all rows."""
    last, each = NOW - timedelta(hours=60), ROWS // 100
    at = [last - timedelta(hours=200 - i) for i in range(201)]
    earlier = [EarlierRefresh(at[0], ROWS, 0, 0, ROWS, True, "full", 1, 60.0)]
    earlier += [EarlierRefresh(one, 0, each, 0, ROWS, False, "sketch", 2, 60.0) for one in at[1:]]
    days = [last.date() - timedelta(days=60 - i) for i in range(61)]
    totals = tuple(DayOfChanges(day, 0, 24 * each, 0) for day in days)
    after = known(WAN, earlier=tuple(earlier), days=totals)
    expected, _ = forecasts(after)
    assert expected is not None
    assert expected.low > 0.5 * ROWS
    assert not isinstance(opening_for(after, expected), CopyAtOnce)


@pytest.mark.parametrize(
    "facts",
    [
        {"forced": Method.SKETCH},
        {"forced": Method.RANGE},
        {"line": replace(WAN, objective=Objective.BYTES)},
        {"is_resumed": True},
        {"rows_lost": 10},
        {"read_at_most": 5000},
        {"prices": Prices(ROW_BYTES, ROW_BYTES, ROW_BYTES, guessed=True)},
        {"rows": 5_000},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_what_else_decides(facts: dict[str, Any]) -> None:
    """The configuration, the bytes, rows that are staged or lost, a part, no price, few rows."""
    rows = facts.get("rows", ROWS)
    said = {"line": WAN} | {name: fact for name, fact in facts.items() if name != "rows"}
    line = said.pop("line")
    assert is_copied(known(WAN, *[1.0] * KNOWS))
    assert not is_copied(known(line, *[1.0] * KNOWS, rows=rows, **said))


def test_the_plan_names_it_once_beside_the_others() -> None:
    at = known(WAN, *[1.0] * KNOWS)
    expected = changes_expected(list(at.earlier), at.ours, at.now)
    candidates, chosen = refreshes(at, expected, ROWS)
    names = [way.what for way in candidates]
    assert chosen == "full copy"
    assert names.count("full copy") == 1
    assert {"nothing changed", "by ranges"} < set(names)
    assert predict(at).why.endswith("less than by ranges over 100 ms and 9.6 Mbit/s")
    # Where half of the rows change, a sketch may take less on this line, and more in the mean.
    fast = known(replace(WAN, bytes_per_s=1.2e7), 0.5, 0.7, 0.5, 0.8)
    assert is_copied(fast)
    copy = predicted(at, expected)
    assert (copy.what, copy.round_trips, copy.source_scans) == ("full copy", 1, 1)
    assert copy.source_rows == ROWS


def test_a_copy_at_once_is_packed_as_fast_as_the_line_carries() -> None:
    assert WAN.level(ROWS, at_once=True) == WAN.level(ROWS) == REFRESH_LEVEL
    assert LAN.level(ROWS) == REFRESH_LEVEL
    assert LAN.level(ROWS, at_once=True) == LOAD_LEVEL
    (_, slow), _ = COPY_AT_ONCE.price(known(WAN), None, ROWS, offers)
    (_, fast), _ = COPY_AT_ONCE.price(known(LAN), None, ROWS, offers)
    assert slow.bytes is not None
    assert fast.bytes is not None
    assert 1.1 < fast.bytes / slow.bytes < 1.2


def goes_on_at(
    share_staged: float, at: PlanInputs, *, changed: float = 0.0, reason: str = "forecast"
) -> bool:
    """Return True if a copy goes on of which so much is staged, and of that so much changed."""
    rows = round(share_staged * ROWS)
    staged = Unstaged(rows, round(rows * ROW_BYTES), changed * rows, CopyReason(reason))
    return goes_on(at, forecasts(at)[1], staged)


@pytest.mark.parametrize("line", [WAN, LAN], ids=["wan", "lan"])
@pytest.mark.parametrize("share", [0.8, 1.0])
@pytest.mark.parametrize("staged", [0.0, 0.02, 0.3, 0.9, 1.0])
def test_a_copy_that_was_cut_goes_on(line: Line, share: float, staged: float) -> None:
    assert goes_on_at(staged, known(line, *[share] * KNOWS))


def test_a_copy_is_compared_where_that_takes_less_now() -> None:
    """It was begun when another line, or other changes, were expected."""
    few, many = known(WAN, *[0.01] * KNOWS), known(WAN, *[1.0] * KNOWS)
    assert not goes_on_at(0.1, few)
    assert goes_on_at(0.1, few, reason="verdict"), "the source said that more had changed"
    assert goes_on_at(0.1, replace(few, forced=Method.FULL))
    assert not goes_on_at(0.1, replace(many, forced=Method.SKETCH))
    assert goes_on_at(0.1, known(WAN)), "nothing is known"
    metered = replace(WAN, objective=Objective.BYTES)
    assert goes_on_at(0.5, known(metered, *[1.0] * KNOWS))
    assert not goes_on_at(0.5, known(metered, *[0.3] * KNOWS))


def test_rows_that_change_all_over_are_not_listed_by_chunks() -> None:
    """Of a table whose rows all change in a day, a hundredth has changed in a quarter of an hour:
    that is few chunks if these are short, and all of them if it is a half."""
    at = known(WAN, *[1.0] * KNOWS)
    assert goes_on_at(0.9, at, changed=0.001)
    assert not goes_on_at(0.9, at, changed=0.3)
    staged = Unstaged(ROWS // 2, round(ROWS / 2 * ROW_BYTES), 0.001 * ROWS / 2)
    assert ROWS / 2 < staged.rows_to_come(ROWS) < 0.6 * ROWS
    assert replace(staged, changed=ROWS / 4).rows_to_come(ROWS) > 0.97 * ROWS
    assert replace(staged, changed=0.0).rows_to_come(ROWS) == ROWS / 2


def test_the_rest_of_a_copy_is_priced_by_what_is_left() -> None:
    at = known(WAN, *[1.0] * KNOWS)
    (_, copy), _ = COPY_AT_ONCE.price(at, None, ROWS, offers)
    cut = replace(at, unstaged=Unstaged(3 * ROWS // 4))
    assert isinstance(opening_for(cut, forecasts(cut)[1]), ResumedLoad)
    rest = predicted(cut, forecasts(cut)[1])
    assert copy.bytes is not None
    assert rest.bytes == pytest.approx(copy.bytes / 4, rel=0.1)
    assert rest.source_rows == copy.source_rows == ROWS
    assert (rest.exchange_seconds or 0) > ROWS / WAN.rows_per_s
