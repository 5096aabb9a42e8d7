"""What the history of refreshes tells: only refreshes that went well, since the last load."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from warehouse_agent.change_models.operational_time import changes_expected
from warehouse_agent.history import history_lines as lines_
from warehouse_agent.history.refresh_history import RefreshHistory, read
from warehouse_agent.planning.change_forecast import (
    EarlierRefresh,
    needed_spark,
    outcomes,
    reduces_first,
)
from warehouse_agent.report import Report
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.timetable.retry import COUNTED, FailureStreak

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def said(**facts: object) -> str:
    report = Report(
        "orders",
        version=1,
        previous_version=0,
        rows_total=10,
        method="range",
        checked_at="2026-01-02T03:04:05Z",
    )
    return dataclasses.replace(report, **facts).to_json()  # type: ignore[arg-type]


def parse(body: bytes) -> list[EarlierRefresh]:
    """The refreshes of a history, the oldest line first."""
    return history(*body.split(b"\n")).earlier


def history(*lines: bytes) -> RefreshHistory:
    found = (lines_.parse(line) for line in reversed(lines))
    return RefreshHistory(tuple(line for line in found if line is not None))


@pytest.mark.parametrize(
    ("reduces", "rows", "scan_s", "is_first"),
    [
        ([4.0], 10, 8.0, True),
        ([4.0], 10, 5.0, False),  # the source would wait
        ([4.0], 20, 8.0, False),  # for twice the rows
        ([0.4], 10, 8.0, False),  # no gain
        ([], 10, 8.0, False),  # nothing is known
        ([None, None], 10, 8.0, False),
        ([7.0, 4.0, 4.0, 4.0], 10, 8.0, True),  # the last ones count
        ([4.0, 7.0, 4.0, 4.0], 10, 8.0, False),
    ],
)
def test_whether_our_sums_are_there_before_a_scan_ends(
    reduces: list[float | None], rows: int, scan_s: float, is_first: bool
) -> None:
    lines = [said(previous_version=None, seconds={"reduce": 900.0})]
    lines += [said(seconds={} if one is None else {"reduce": one}) for one in reduces]
    assert reduces_first(parse("\n".join(lines).encode()), rows, scan_s) is is_first


def test_only_refreshes_that_went_well_count() -> None:
    lines = [
        said(previous_version=None),
        said(error={"code": "UNREACHABLE"}),
        said(command="verify"),
        '{"torn": ',
        "[]",
        "{}",
        said(rows_total=None),
        said(rows_left=5),
        said(checked_at=None),
        said(checked_at="yesterday"),
        said(rows_inserted=1, rows_updated=2, rows_deleted=3, seconds={"a": 1.0, "b": 0.5}),
        said(checked_at="2026-01-03T03:04:05Z", schema_changed=True),
        said(checked_at="2026-01-03T04:04:05Z", rows_updated=1),
    ]
    found = parse("\n".join(lines).encode())
    assert [(one.changed, one.rows, one.is_load, one.seconds) for one in found] == [
        (0, 10, True, 0),
        (6, 10, False, 1.5),
        (0, 10, False, 0),
        (1, 10, False, 0),
    ]
    # What came with other columns does not count as nothing, and its time does.
    assert [(past.elapsed_s, past.updated) for past in outcomes(found)] == [(0, 2), (3600, 1)]
    assert found[1].at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "damaged",
    [
        {"rows_updated": -5}, {"rows_total": -1}, {"rows_inserted": math.inf},
        {"rows_deleted": math.nan}, {"rows_updated": 10**400}, {"rows_updated": "many"},
        {"seconds": {"a": math.nan}}, {"seconds": {"a": -1.0}}, {"seconds": [1.0]},
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_is_passed_over(damaged: dict[str, object]) -> None:
    lines = [said(previous_version=None), said(rows_updated=1), said(**damaged)]
    assert [one.changed for one in parse("\n".join([*lines, "[" * 100_000]).encode())] == [0, 1]


def test_when_a_fragment_was_last_refreshed(tmp_path: Path) -> None:
    """Failures, other commands and damaged lines do not count; a part does."""
    store = Store(str(tmp_path))
    assert read(store, "orders").refreshed_at is None
    lines = [
        said(checked_at="2026-01-01T00:00:00Z"),
        said(checked_at="2026-01-02T00:00:00Z", rows_left=7),
        said(checked_at="2026-01-03T00:00:00Z", error={"code": "VALUE"}),
        said(checked_at="2026-01-04T00:00:00Z", command="verify"),
        said(checked_at="soon"), said(checked_at=None), "{cut off", "7",
    ]  # fmt: skip
    store.write("\n".join(lines).encode(), PRIVATE, "runs", "orders.jsonl")
    assert read(store, "orders").refreshed_at == datetime(2026, 1, 2, tzinfo=UTC)
    store.write("\n".join(lines[2:]).encode(), PRIVATE, "runs", "orders.jsonl")
    assert read(store, "orders").refreshed_at is None


def test_failures_since_a_refresh_that_went_well(tmp_path: Path) -> None:
    """Other commands and damaged lines do not count; what a source put off is no failure."""
    store, at = Store(str(tmp_path)), datetime(2026, 1, 5, tzinfo=UTC).timestamp()
    assert read(store, "orders").failed is None
    failure = {"code": "SHRANK", "exit_code": 6}
    newest = said(error=failure, failed_at="2026-01-05T00:00:00Z")
    older = said(error={"code": "VALUE", "exit_code": 1}, failed_at="2026-01-04T00:00:00Z")
    none = said(error=failure)  # by an older release, which told no time
    skipped = [said(error=failure, command="verify"), none, "{cut off", "7"]
    for lines, found in (
        ([said()], None),
        ([said(), none], None),
        ([newest, said()], None),
        ([said(), *skipped, newest, *skipped], FailureStreak(1, at, "SHRANK", 6)),
        ([said(), older, *skipped, older, newest], FailureStreak(3, at, "SHRANK", 6)),
        ([older, said(error=failure, put_off_until="2026-01-06T00:00:00Z")], None),
        ([older] * 20 + [newest], FailureStreak(COUNTED, at, "SHRANK", 6)),
    ):
        store.write("\n".join(lines).encode(), PRIVATE, "runs", "orders.jsonl")
        assert read(store, "orders").failed == found


# Histories, the oldest line first: (previous version, version, checked at); None: a failure.
HISTORIES: dict[str, tuple[bool, list[tuple[int | None, int, int] | None]]] = {
    "no line": (True, []),
    "only failures": (True, [None, None]),
    "written": (False, [(None, 0, 1), (4, 5, 9)]),
    "written, then failures": (False, [(4, 5, 9), None, None]),
    "written, then nothing changed": (False, [(3, 4, 8), (4, 5, 9), (5, 5, 10), None]),
    "missing": (True, [(None, 0, 1), (3, 4, 8)]),
    "missing, failures": (True, [(3, 4, 8), (4, 4, 8), None]),
    "only unchanged ones are kept": (False, [None, (5, 5, 10), (5, 5, 11)]),
    "lost by an older release": (False, [(3, 4, 8), (5, 5, 10)]),
    "of an earlier table": (True, [(3, 4, 1), (4, 5, 2)]),
    "of an earlier table, and nothing changed": (True, [(4, 5, 2), (5, 5, 3)]),
    "of an earlier table that went on": (True, [(4, 5, 2), (5, 5, 3), (5, 6, 4)]),
    "a table restored without its notes": (False, [(4, 5, 9), (5, 6, 10), (6, 6, 11)]),
    "a wrong clock": (False, [(4, 5, 9), (5, 5, 2)]),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_whether_the_line_of_a_version_is_missing(case: str) -> None:
    def at(moment: int) -> dict[str, str]:
        return {"checked_at": f"2026-01-{moment:02}T00:00:00Z", "as_of": f"2026-01-{moment:02}"}

    lines = [
        said(error={"code": "LOCKED"}, version=5, previous_version=5)
        if told is None
        else said(previous_version=told[0], version=told[1], **at(told[2]))
        for told in HISTORIES[case][1]
    ]
    report = json.loads(said(previous_version=4, version=5, **at(9)))
    known = history(*(line.encode() for line in lines), b'{"torn": ', b"")
    version = lines_.of_report(report)
    assert isinstance(version, lines_.SuccessLine)
    assert known.lacks(version) is HISTORIES[case][0]


def test_how_long_refreshes_took(tmp_path: Path) -> None:
    """The newest first; parts count, failures and what was before a load do not."""
    store = Store(str(tmp_path))
    assert read(store, "orders").durations_s(5) == []

    def took(seconds: float, **facts: object) -> str:
        return said(seconds={"reduce": 1.0, "apply": seconds - 1.0}, **facts)

    def keep(*lines: str) -> None:
        store.write("\n".join(lines).encode(), PRIVATE, "runs", "orders.jsonl")

    load = took(60, previous_version=None)
    keep(took(9), load)
    assert read(store, "orders").durations_s(5) == [60]
    later = [took(2), took(3, error={}), said(seconds={"a": -1}), took(4, rows_left=9), "{"]
    keep(took(9), load, *later)
    assert read(store, "orders").durations_s(5) == [4, 2]
    assert read(store, "orders").durations_s(1) == [4]


def test_how_many_rows_a_refresh_left(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert read(store, "orders").rows_total == 0
    lines = [said(rows_total=7), said(rows_total=-1), said(rows_total=9, error={}), "{"]
    store.write("\n".join(lines).encode(), PRIVATE, "runs", "orders.jsonl")
    assert read(store, "orders").rows_total == 7


def test_a_new_load_begins_a_new_history() -> None:
    lines = [said(previous_version=None), said(), said(previous_version=None), said()]
    assert [one.is_load for one in parse("\n".join(lines).encode())] == [True, False]


def test_what_is_expected_follows_from_the_history() -> None:
    load = parse(said(previous_version=None, checked_at="2026-01-01T00:00:00Z").encode())
    assert changes_expected([], 10, NOW) is None
    assert changes_expected(load, 10, NOW) is None
    start = datetime(2026, 1, 1, tzinfo=UTC)
    earlier = [
        dataclasses.replace(load[0], at=start + timedelta(days=day), updated=50 * (day > 0))
        for day in range(20)
    ]
    expected = changes_expected(earlier, 10_000, start + timedelta(days=20))
    assert expected is not None
    assert expected.low <= 50 <= expected.high
    assert expected.unchanged < 0.1


def test_the_refresh_whose_changes_were_most_alike_tells_if_spark_is_needed() -> None:
    """A bulk change needed it, and small ones since then do not."""

    def refreshed(*updated: int) -> list[EarlierRefresh]:
        lines = [said(previous_version=None, checked_at="2026-01-01T00:00:00Z")]
        for day, rows in enumerate(updated):
            at, place = f"2026-01-{day + 2:02}T00:00:00Z", "spark" if rows > 1000 else "driver"
            places = {"apply": place, "reduce": "driver"} if rows else {"reduce": "driver"}
            lines.append(said(checked_at=at, rows_updated=rows, places=places))
        return parse("\n".join(lines).encode())

    def needed(*updated: int) -> bool:
        found = refreshed(*updated)
        next_day = found[-1].at + timedelta(days=1)
        return needed_spark(found, changes_expected(found, 100_000, next_day))

    assert not needed()
    assert not needed(0, 0, 0)
    assert not needed(30, 40, 30)
    assert needed(9000, 10_000, 11_000)
    assert not needed(30, 40_000, 35, 30, 30)
    assert not needed(9000, 0, 0, 0, 0, 0)
    assert needed(30, 30, 9000, 10_000, 9500, 11_000, 9000, 9000)
    assert not needed_spark(refreshed(9000), None)


def test_a_step_that_a_session_drew_to_spark_did_not_need_it() -> None:
    """Or each refresh would start what the one before had started."""

    def on_spark(**facts: object) -> bool:
        return parse(said(**facts).encode())[0].on_spark

    spark = {"apply": "spark", "prove": "driver"}
    drawn, needed = ({"needs_spark": needs} for needs in (False, True))
    assert on_spark(places=spark), "an older release says where alone"
    assert on_spark(places=spark, places_why={})
    assert not on_spark(places=spark, places_why={"apply": drawn, "prove": drawn})
    assert on_spark(places=spark, places_why={"apply": needed, "prove": drawn})
    assert not on_spark(places=spark, places_why={"apply": 7, "prove": {"needs_spark": 1}})
