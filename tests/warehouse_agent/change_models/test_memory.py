"""What is remembered of reports: intervals between snapshots, parts added, nothing twice."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warehouse_agent.change_models.weeks import MONDAY
from warehouse_agent.change_models.memory import (
    INTERVAL_DAYS_MAX,
    RECENT_MAX,
    Distance,
    Interval,
    LearnedMemories,
    MeanSquare,
    Memory,
    RefreshObservation,
    from_json,
)
from warehouse_agent.history.change_memory import observation
from warehouse_agent.history.history_lines import SuccessLine, parse

DAY_S = 86_400.0


def text(day: float) -> str:
    return datetime.fromtimestamp(MONDAY + day * DAY_S, UTC).isoformat()


def report(day: float, changed: int = 0, /, **facts: Any) -> RefreshObservation:
    """The report of a refresh whose snapshot is `day` days after MONDAY; checked an hour later."""
    body = {
        "command": "refresh",
        "error": None,
        "as_of": text(day),
        "checked_at": text(day + 1 / 24),
        "previous_version": 1,
        "rows_inserted": 0,
        "rows_updated": changed,
        "rows_deleted": 0,
        "rows_total": 1000,
        **facts,
    }
    line = parse(json.dumps(body).encode())
    assert isinstance(line, SuccessLine)
    return observation(line)


LOAD = report(0, previous_version=None)


def changed(memory: Memory) -> list[tuple[float, float]]:
    """Days and changed rows of each interval."""
    return [(one.hours / 24, one.changed) for one in memory.recent]


def test_an_interval_lasts_from_snapshot_to_snapshot() -> None:
    found = Memory().after([LOAD, report(1, 5), report(3, 0), report(3.5, 7)])
    assert changed(found) == [(1, 5), (2, 0), (0.5, 7)]
    assert found.recent[0] == Interval(MONDAY, MONDAY + DAY_S, 0, 5, 0, 1000)


def test_parts_are_added_to_the_refresh_that_follows() -> None:
    reports = [LOAD, report(1, 90, rows_left=800), report(1.5, 3, rows_left=900), report(2, 10)]
    found = Memory().after(reports)
    assert changed(found) == [(2, 103)]
    assert changed(found.after([report(3, 1)])) == [(2, 103), (1, 1)]


@pytest.mark.parametrize("facts", [{"schema_changed": True}, {"repaired_files": 2}])
def test_counts_that_are_no_changes(facts: dict[str, Any]) -> None:
    found = Memory().after([LOAD, report(1, 5), report(2, 400, **facts), report(3, 6)])
    assert changed(found) == [(1, 5), (1, 6)]


def test_a_reload_ends_an_interval_and_forgets_none() -> None:
    again = report(5, previous_version=None)
    found = Memory().after([LOAD, report(1, 5), report(2, 9, rows_left=1), again, report(6, 2)])
    assert changed(found) == [(1, 5), (1, 2)]


def test_the_same_state_twice_is_no_interval() -> None:
    """A standby of a primary that rests: no clock was set."""
    found = Memory().after([LOAD, report(1, 5), report(1, 2, checked_at=text(1.5)), report(2, 3)])
    assert found.dropped == 0
    assert changed(found) == [(1, 5), (1, 5)]


@pytest.mark.parametrize(
    "facts", [{"previous_version": None}, {"schema_changed": True}, {"repaired_files": 2}]
)
def test_the_same_state_loaded_or_repaired_is_no_change(facts: dict[str, Any]) -> None:
    again = report(1, 1000, checked_at=text(1.5), **facts)
    found = Memory().after([LOAD, report(1, 5), again, report(2, 3)])
    assert (found.dropped, changed(found)) == (0, [(1, 5), (1, 3)])


@pytest.mark.parametrize("part", [{}, {"rows_left": 3}])
@pytest.mark.parametrize(
    ("as_of", "more", "taken", "behind"),
    [
        (1.0, {}, 1.0, 0),  # within the refresh: the source knows
        (1.0 - 1 / 48, {"seconds": {"exchange": 2700.0, "proof": 900.0}}, 1, 1 / 48),
        (0.5, {}, 1, 0.5),  # a standby, or a clock behind
        (9.0, {}, 1 + 1 / 24, 0),  # a clock ahead
        (0.5, {"resumed_at": 4}, 0.5, 0),  # its first tile was read by an earlier command
        (0.5, {"seconds": None}, 0.5, 0),
        (0.5, {"checked_at": "x"}, 0.5, 0),
    ],
)
def test_when_a_snapshot_was_taken(
    as_of: float, more: dict[str, Any], taken: float, behind: float, part: dict[str, Any]
) -> None:
    """By the clock of the warehouse: from an hour before it was compared until then."""
    facts = {"checked_at": text(1 + 1 / 24), "seconds": {"exchange": 3600.0}, **more, **part}
    found = Memory().after([report(0), report(as_of, **facts)])
    again = from_json(json.loads(json.dumps(found.to_json())))
    assert again.taken == found.taken == pytest.approx(MONDAY + taken * DAY_S)
    assert again.behind_s == found.behind_s == pytest.approx(behind * DAY_S)


@pytest.mark.parametrize("day", [-1, 0.9, INTERVAL_DAYS_MAX + 2])
def test_a_clock_that_was_set_is_counted(day: float) -> None:
    found = Memory().after([LOAD, report(1, 5), report(day, 9), report(day + 1, 2)])
    assert found.dropped == 1
    assert changed(found) == [(1, 5), (1, 2)]


def test_a_pass_over_tiles_ends_in_the_middle_of_its_reading() -> None:
    pass_ = report(1, 5, tiles=3, seconds={"exchange": DAY_S})
    assert changed(Memory().after([LOAD, pass_])) == [(1.5, 5)]


@pytest.mark.parametrize("key", ["as_of", "checked_at", "rows_updated", "rows_total"])
@pytest.mark.parametrize("damage", [None, "x", -1, [], 1e300])
def test_damaged_reports_tell_nothing(key: str, damage: object) -> None:
    body = report(1, 5, **{key: damage})
    found = Memory().after([LOAD, body, report(2, 3)])
    assert changed(found)[-1][1] in {3, 8}  # checked_at is but a name
    assert sum(hours for hours, _ in changed(found)) == 2


@given(st.lists(st.integers(0, 50), max_size=12), st.lists(st.integers(0, 12), max_size=4))
def test_nothing_counts_twice(counts: list[int], cuts: list[int]) -> None:
    """However often the history is read, and where its older half is removed between readings."""
    reports = [LOAD, *(report(day + 1, n) for day, n in enumerate(counts))]
    whole = Memory().after(reports)
    memory = Memory()
    for cut in sorted(cuts):
        memory = memory.after(reports[: cut + 1])
        memory = from_json(json.loads(json.dumps(memory.to_json())))
        memory = memory.after(reports[max(cut - 2, 0) : cut + 1])
    memory = memory.after(reports[max([*cuts, 0]) :])
    assert memory.recent == whole.recent
    assert (memory.until, memory.line) == (whole.until, whole.line)


def test_a_memory_is_bounded_and_reads_back() -> None:
    memory = Memory()
    for day in range(RECENT_MAX + 300):
        memory = memory.after([report(day, day % 7)])
    body = json.dumps(memory.to_json())
    assert len(body) < 40_000
    again = from_json(json.loads(body))
    assert again.recent == memory.recent
    assert again.folded.intervals == memory.folded.intervals == 299
    assert again.folded.rows == pytest.approx(memory.folded.rows, abs=1e-3)
    assert again.folded.hours.sum() == pytest.approx(299 * 24)
    assert again.folded.rows.sum() == pytest.approx(sum(d % 7 for d in range(1, 300)), rel=0.01)
    assert np.all(memory.in_zone("Asia/Tokyo").folded.hours == 0)


@pytest.mark.parametrize("key", list(Memory().to_json()))
@pytest.mark.parametrize("damage", [None, "x", -1, [[2, 1, 0, 0, 0, 0]], {"hours": [1]}])
def test_a_damaged_memory_is_an_empty_one(key: str, damage: object) -> None:
    memory = Memory().after([LOAD, report(1, 5)])
    body = json.loads(json.dumps(memory.to_json())) | {key: damage}
    found = from_json(body)
    assert found.recent in {(), memory.recent}
    found.after([LOAD, report(1, 5), report(2, 3)])


def test_a_model_is_kept_until_a_quarter_more_is_known() -> None:
    learned, memory = LearnedMemories(), Memory().after([report(day, day % 7) for day in range(41)])
    first = learned.of("orders", memory)
    assert first is memory
    for day in range(41, 50):
        memory = memory.after([report(day)])
        assert learned.of("orders", memory) is first
    memory = memory.after([report(50)])
    assert learned.of("orders", memory) is memory
    assert learned.of("items", first) is first
    assert learned.of("orders", first) is first  # its history was lost
    assert learned.of("orders", in_tokyo := first.in_zone("Asia/Tokyo")) is in_tokyo


def moved(
    day: float, rows: int, square: float, measured: int | None = None, column: str = "price"
) -> RefreshObservation:
    """The report of a refresh that found `rows` updated ones, and measured some of their moves."""
    moves = {"column": column, "rows": rows if measured is None else measured, "square": square}
    places = {"compared": rows, "columns": {}, "parts": None, "moves": moves}
    return report(day, rows, changed=places)


PRICE = Distance("price", 2.0)
ONES = (1.0, 1.0, 1.0)


def test_updates_weigh_by_the_square_of_their_moves() -> None:
    reports = [
        LOAD,
        report(1, 30),  # before the column was measured
        moved(2, 10, 16.0),
        moved(3, 10, 0.0),
        moved(4, 8, 4.0, measured=2),
        moved(5, 9, 99.0, column="weight"),
        report(6, 0),
    ]
    memory = Memory().after(reports)
    told = [one.changed for one in memory.weighed(ONES, PRICE).recent]
    usual = (10 * 4 + 10 * 0 + 8 * (0.25 * 1 + 0.75)) / 28
    assert told == pytest.approx([30 * usual, 40, 0, 8, 9 * usual, 0])
    assert memory.mean_distance(PRICE) == pytest.approx(usual)
    halved = memory.weighed((1.0, 0.5, 1.0), PRICE)
    assert [one.changed for one in halved.recent] == pytest.approx([each / 2 for each in told])
    assert memory.weighed(ONES) is memory
    unknown = memory.weighed(ONES, Distance("colour"))
    assert [one.changed for one in unknown.recent] == [one.changed for one in memory.recent]


def test_inserted_and_deleted_rows_have_no_distance() -> None:
    found = Memory().after([LOAD, report(1, 0, rows_inserted=4, rows_deleted=3)])
    (one,) = found.weighed(ONES, PRICE).recent
    assert (one.inserted, one.updated, one.deleted) == (4, 0, 3)


def test_moves_are_kept() -> None:
    memory = Memory().after([LOAD, report(1, 3), moved(2, 10, 1e290), moved(3, 4, 0.25, 1)])
    again = from_json(json.loads(json.dumps(memory.to_json())))
    assert again.recent == memory.recent
    assert [one.moves for one in again.recent] == [
        None,
        MeanSquare("price", 1e290, 1.0),
        MeanSquare("price", 0.25, 0.25),
    ]


@pytest.mark.parametrize(
    "moves",
    [
        3,
        [1, 2],
        ["price"],
        ["price", -1, 1],
        ["price", "x", 1],
        ["price", 1, -1],
        ["price", None, 1],
    ],
)
def test_damaged_moves(moves: Any) -> None:
    body = json.loads(json.dumps(Memory().after([LOAD, moved(1, 3, 4.0)]).to_json()))
    assert from_json(body | {"moves": [moves]}).recent == ()


@pytest.mark.parametrize("moves", [None, [], [None], [["price", 1.0, 1.0]] * 5])
def test_moves_of_other_intervals_are_not_used(moves: Any) -> None:
    """A release that knows none has written the intervals."""
    body = json.loads(json.dumps(Memory().after([LOAD, moved(1, 3, 4.0)]).to_json()))
    (one,) = from_json(body | {"moves": moves}).recent
    assert (one.changed, one.moves) == (3, None)


@pytest.mark.parametrize(
    "moves",
    [
        7,
        {},
        {"column": "price"},
        {"column": 3, "rows": 1, "square": 1},
        {"column": "price", "rows": -1, "square": 1},
        {"column": "price", "rows": 1, "square": -1.0},
        {"column": "price", "rows": 1, "square": "1"},
    ],
)
def test_a_line_with_damaged_moves_counts_without(moves: Any) -> None:
    places = {"compared": 5, "columns": {}, "parts": None, "moves": moves}
    (one,) = Memory().after([LOAD, report(1, 5, changed=places)]).recent
    assert (one.changed, one.moves) == (5, None)


@pytest.mark.parametrize("days", [1, 4, 16])
@pytest.mark.parametrize("deviation", [0.5, 3.0])
def test_a_random_walk_is_as_far_as_prop_7_says_whenever_it_is_looked_at(
    days: int, deviation: float
) -> None:
    """Γσ² for each row, in the squared error of Eq. 14; here by simulation, net of what came back
    and with rows that moved several times."""
    rng, rows, per_day = np.random.default_rng(days), 4000, 0.3
    reports = [LOAD]
    for number in range(1, 9):
        steps = rng.poisson(per_day * days, rows)
        net = rng.normal(0.0, deviation * np.sqrt(steps))
        updated = steps > 0
        square = float(np.mean(net[updated] ** 2))
        reports.append(moved(number * days, int(updated.sum()), square))
    weighed = Memory().after(reports).weighed(ONES, Distance("price", 2.0))
    told = sum(one.changed for one in weighed.recent) / (8 * days)
    assert told == pytest.approx(rows * per_day * deviation**2 / 2.0**2, rel=0.05)
