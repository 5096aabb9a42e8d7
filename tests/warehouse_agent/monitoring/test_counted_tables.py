"""Counters are what the histories give, from their newest lines on, however few are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.history import refresh_history
from warehouse_agent.history.history_lines import parse
from warehouse_agent.monitoring import counted_tables
from warehouse_agent.monitoring.counted_tables import counted
from warehouse_agent.monitoring.table_counters import OTHER, TableCounters
from warehouse_agent.report import Report
from warehouse_agent.storage.store import PRIVATE, Store

START = datetime(2024, 1, 1, tzinfo=UTC)
NAMES = ("a", "b", "c")
PLACE = (PRIVATE, "metrics.json")


def line(name: str, minute: int, code: str = "", *, put_off: bool = False) -> str:
    """Return the line of a refresh, which failed if there is a code."""
    at = (START + timedelta(minutes=minute)).isoformat()
    report = Report(
        name,
        run=f"{minute:012x}",
        version=minute,
        previous_version=max(minute - 1, 0),
        rows_updated=minute % 5,
        rows_total=10 + minute,
        bytes_sent=100,
        bytes_received=7 * minute,
        held_back_s=0.125,
        seconds={"exchange": 0.25, "apply": 0.5},
        consistency="exact" if minute % 3 else "fuzzy",
    )
    if code:
        report.error = {"code": code, "exit_code": 6}
        report.failed_at, report.put_off_until = at, at if put_off else None
    else:
        report.checked_at, report.as_of = at, at
    return report.to_json()


def append(store: Store, name: str, text: str, bytes_max: int = 1 << 20) -> None:
    place = (PRIVATE, "runs", f"{name}.jsonl")
    store.append_line(text, *place, bytes_max=bytes_max, shorten=refresh_history.shortened)


def whole(store: Store, name: str) -> TableCounters:
    return TableCounters.of(refresh_history.read(store, name))


def check(found: TableCounters, known: TableCounters) -> None:
    """Check counters by those of a whole history, which has lost old failures and successes."""
    assert found.totals.to_json() == known.totals.to_json()
    for name in ("attempted", "succeeded", "as_of", "exact_as_of", "rows"):
        assert getattr(known, name) in (None, getattr(found, name)), name
    assert (found.failures, found.code) >= (known.failures, known.code)
    if known.succeeded is not None:
        assert (found.failures, found.code) == (known.failures, known.code)
    body = found.to_json()
    assert TableCounters.from_json(json.loads(json.dumps(body))).to_json() == body


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ours", "others", "ours and others", "lost", "tell"]),
        st.sampled_from(NAMES),
        st.sampled_from(["", "", "", "SHRANK", "NOT_NOW", "of a newer release"]),
    ),
    max_size=12,
)


@given(STEPS)
def test_they_are_what_whole_histories_give(steps: Sequence[tuple[str, str, str]]) -> None:
    """Whoever appends, whatever is lost, and however short histories are kept."""
    with (
        TemporaryDirectory() as folder,
        mock.patch.object(refresh_history, "KEPT_BYTES", 3000),
        mock.patch.object(counted_tables, "_first_lines", return_value=None),  # all lines
    ):
        store = Store(folder)
        for minute, (kind, name, code) in enumerate(steps, 1):
            ours = dict[str, str]()
            if kind in ("others", "ours and others"):
                append(store, name, line(name, 100 + minute, code), 5000)
            if kind in ("ours", "ours and others"):
                ours[name] = line(name, minute, code, put_off=code == "NOT_NOW")
                append(store, name, ours[name], 5000)
            if kind == "lost":
                store.remove_file(*PLACE)
            found = counted(store, NAMES, ours)
            existing = [one for one in NAMES if store.read(PRIVATE, "runs", f"{one}.jsonl")]
            assert set(found) == set(existing)
            for one in existing:
                check(found[one], whole(store, one))


def test_what_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    store, read = Store(str(tmp_path)), list[str]()

    def reading(store: Store, name: str, *rest: object) -> refresh_history.RefreshHistory:
        read.append(name)
        return real(store, name, *rest)  # type: ignore[arg-type]

    real = refresh_history.read
    for name in NAMES:
        append(store, name, line(name, 1))
    with mock.patch.object(refresh_history, "read", reading):
        counted(store, NAMES, {})
        assert sorted(read) == list(NAMES)
        read.clear()
        append(store, "b", text := line("b", 2))
        counted(store, NAMES, {"b": text})
        counted(store, NAMES, {"b": text})  # it was counted, and is not again
        assert not read
        append(store, "c", line("c", 3))  # by another command
        found = counted(store, NAMES, {})
        assert read == ["c"]
    assert [found[name].totals.refreshes for name in NAMES] == [1, 2, 2]


def test_a_table_that_is_not_known_is_counted_from_its_newest_line_on(tmp_path: Path) -> None:
    """And by each new line from there, also after many that nobody told of."""
    store = Store(str(tmp_path))
    for minute in range(1, 62):
        append(store, "a", line("a", minute))
    first = counted(store, ["a"], {})["a"]
    assert first.totals.refreshes == 1
    check(replace(first, totals=(known := whole(store, "a")).totals), known)
    for minute in range(62, 102):  # by commands that tell nobody
        append(store, "a", line("a", minute, "SHRANK"))
    later = counted(store, ["a"], {})["a"]
    assert (later.totals.refreshes, later.totals.failed) == (1, {"SHRANK": 40})
    assert (later.failures, later.succeeded) == (40, first.succeeded)
    store.remove_file(PRIVATE, "runs", "a.jsonl")  # another table of the name
    append(store, "a", text := line("a", 103))
    again = counted(store, ["a"], {"a": text})["a"]
    assert (again.totals.refreshes, again.failures) == (2, 0)
    store.remove_file(*PLACE)
    assert counted(store, ["a"], {})["a"] == whole(store, "a")


def test_at_first_it_is_read_to_an_exact_refresh_and_to_one_that_went_well(tmp_path: Path) -> None:
    store, start = Store(str(tmp_path)), START.timestamp()
    append(store, "a", line("a", 2))  # exact
    append(store, "a", line("a", 3))  # fuzzy
    append(store, "a", line("a", 4, "SHRANK"))
    found = counted(store, ["a"], {})["a"]
    assert (found.exact_as_of, found.succeeded) == (start + 120, start + 180)
    assert found.failures == 1
    for minute in range(0, 300, 3):
        append(store, "b", line("b", minute))  # never exact
    found = counted(store, ["b"], {})["b"]
    assert (found.totals.refreshes, found.exact_as_of) == (counted_tables.INEXACT_MAX, None)
    append(store, "c", line("c", 1))
    for minute in range(2, 42):
        append(store, "c", line("c", minute, "SHRANK"))
    assert counted(store, ["c"], {})["c"].succeeded == start + 60
    for minute in range(44, 300):
        append(store, "d", line("d", minute, "SHRANK"))
    assert counted(store, ["d"], {})["d"].failures == counted_tables.FAILED_MAX


def test_a_failure_that_no_history_can_take_is_told_by_its_command(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    append(store, "a", line("a", 1))
    well = counted(store, ["a"], {})["a"]
    lost = line("a", 2, "WAREHOUSE")
    found = counted(store, ["a"], {"a": lost})["a"]
    assert (found.failures, found.code, found.totals.failed) == (1, "WAREHOUSE", {"WAREHOUSE": 1})
    assert counted(store, ["a"], {})["a"] == well
    append(store, "a", lost)
    assert counted(store, ["a"], {"a": lost})["a"].totals.failed == {"WAREHOUSE": 1}
    assert counted(store, ["a"], {"a": line("a", 3, "SHRANK")})["a"].code == "WAREHOUSE"


def test_tables_that_are_not_configured_any_more_are_forgotten(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for name in NAMES:
        append(store, name, line(name, 1))
    assert set(counted(store, NAMES, {})) == set(NAMES)
    assert set(counted(store, ["a", "new"], {})) == {"a"}
    assert set(json.loads(store.read(*PLACE) or b"")["tables"]) == {"a"}
    store.remove_file(PRIVATE, "runs", "a.jsonl")
    assert not counted(store, ["a"], {})


@pytest.mark.parametrize("damaged", [b"", b"7", b"{", b'{"format": 1, "tables": {"a": 3}}'])
def test_a_damaged_file_is_as_one_that_is_lost(tmp_path: Path, damaged: bytes) -> None:
    store = Store(str(tmp_path))
    append(store, "a", line("a", 1, "SHRANK"))
    store.write(damaged, *PLACE)
    assert counted(store, ["a"], {})["a"] == whole(store, "a")


def test_a_command_stops_reading_in_time_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """The tables of the command itself come first; what was known stays."""
    store, now = Store(str(tmp_path)), 0.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now - 1

    for name in NAMES:
        append(store, name, line(name, 1))
    first = counted(store, NAMES, {"c": ""}, read_s=2, clock=clock)
    assert set(first) == {"c"}
    append(store, "c", line("c", 2))
    second = counted(store, NAMES, {}, read_s=2, clock=clock)
    assert set(second) == {"a", "c"}
    assert second["c"].totals.refreshes == 1
    third = counted(store, NAMES, {})
    for name in NAMES:
        check(third[name], whole(store, name))


def test_codes_that_nobody_knows_are_one_label() -> None:
    counters = TableCounters()
    for minute, code in enumerate(["SHRANK", "one", "two"]):
        parsed = parse(line("a", minute, code).encode())
        assert parsed is not None
        counters = counters.plus([parsed])
    assert counters.totals.failed == {"SHRANK": 1, OTHER: 2}
    assert (counters.failures, counters.code) == (3, OTHER)


def test_a_refresh_that_was_put_off_is_no_failure_and_clears_none() -> None:
    texts = [line("a", 1, "SHRANK"), line("a", 2, "NOT_NOW", put_off=True)]
    parsed = [one for text in texts if (one := parse(text.encode())) is not None]
    counters = TableCounters().plus(parsed)
    assert (counters.failures, counters.code, counters.totals.put_off) == (1, "SHRANK", 1)
    assert counters.attempted == (START + timedelta(minutes=2)).timestamp()
    assert counters.succeeded is None


def test_exact_is_the_last_refresh_of_one_snapshot() -> None:
    parsed = [parse(line("a", minute).encode()) for minute in (2, 3)]
    counters = TableCounters().plus(one for one in parsed if one is not None)
    assert counters.exact_as_of == (START + timedelta(minutes=2)).timestamp()
    assert counters.as_of == counters.succeeded == (START + timedelta(minutes=3)).timestamp()
    assert replace(counters, mark=None) == replace(
        TableCounters.from_json(counters.to_json()), mark=None
    )
    assert counted_tables.READ_S < 2  # of all that is told of a command
