"""A history remembers within a bound: newest lines whole, all others in totals, each line once."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from driftline.failpoints import arm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import ROOT
from tests.harness import forks
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history import refresh_history
from warehouse_agent.history.history_lines import FailureLine, SuccessLine, parse
from warehouse_agent.history.refresh_history import (
    EARLIER_MAX,
    Histories,
    append,
    for_forecast,
    read,
    shortened,
)
from warehouse_agent.history.totals import (
    BIN,
    DAYS_MAX,
    MONTHS_MAX,
    OLDER,
    TOTALS_BYTES_MAX,
    Bins,
    OlderTotals,
    Totals,
)
from warehouse_agent.inspection.published_state import RefreshTotals
from warehouse_agent.report import Report
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot

START = datetime(2024, 1, 1, tzinfo=UTC)
PLACE = (PRIVATE, "runs", "orders.jsonl")
DAMAGE = ['{"torn": ', "[]", "{}", "7", '{"folded": {"2024-01-01": 3}}', "\u2028", ""]


def refreshed(minute: float, changed: int = 3, /, **facts: Any) -> str:
    report = Report(
        "orders",
        version=1,
        previous_version=0,
        rows_updated=changed,
        rows_total=10,
        method="range",
        checked_at=(START + timedelta(minutes=minute)).isoformat(),
        seconds={"exchange": 0.25, "apply": 0.5},
        bytes_sent=100,
        bytes_received=7 * changed,
        held_back_s=0.125,
    )
    return dataclasses.replace(report, **facts).to_json()


def failed(minute: float, code: str = "RECIPE", **facts: Any) -> str:
    at = (START + timedelta(minutes=minute)).isoformat()
    error = {"code": code, "exit_code": 6}
    return refreshed(0, 0, checked_at=None, failed_at=at, error=error, **facts)


def totals(lines: Sequence[str]) -> Totals:
    """The totals of lines, one after the other."""
    found = (parse(line.encode()) for line in lines)
    return reduce(Totals.plus, (Totals.of(line) for line in found if line), Totals())


def split(body: bytes) -> tuple[Totals, list[str]]:
    """Totals and lines of a file."""
    lines = body.decode(errors="replace").split("\n")
    folded = [found for line in lines if (found := OlderTotals.from_line(line.encode()))]
    whole = reduce(Totals.plus, (one.whole for one in folded), Totals())
    return whole, [line for line in lines if parse(line.encode())]


@contextmanager
def small(kept: int, most: int) -> Iterator[Store]:
    patched = mock.patch.multiple(refresh_history, KEPT_BYTES=kept, LINES_BYTES_MAX=most)
    with TemporaryDirectory() as folder, patched:
        yield Store(folder)


LINES = st.one_of(
    st.builds(refreshed, st.integers(0, 10**6), st.integers(0, 10**6)),
    st.builds(refreshed, st.just(0), previous_version=st.none(), rows_inserted=st.integers(0, 9)),
    st.builds(failed, st.integers(0, 99), st.sampled_from(["RECIPE", "LOCKED"])),
    st.builds(failed, st.integers(0, 99), put_off_until=st.just("2026-01-01T00:00:00Z")),
    st.sampled_from([failed(0), *DAMAGE]),
)
STEPS = (
    WarehouseFailpoint.SMALL_FILE_WRITING,
    WarehouseFailpoint.SMALL_FILE_WRITTEN,
    WarehouseFailpoint.SMALL_FILE_NAMED,
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(LINES, st.sampled_from([*STEPS, "cut", None, None, None])), max_size=30),
    st.integers(1, 9000),
    st.integers(0, 6000),
)
def test_each_line_is_kept_or_counted_once(
    lines: list[tuple[str, WarehouseFailpoint | str | None]], kept: int, more: int
) -> None:
    """Wherever lines are added up, a write ends, or a line is cut."""
    written: list[str] = []
    longest = max((len(line) + 1 for line, _ in lines), default=0)
    with small(kept, kept + more) as store:
        for line, step in lines:
            before = store.read(*PLACE)
            arm(f"{step.value}:raise" if isinstance(step, WarehouseFailpoint) else None)
            try:
                append(store, "orders", line)
            except RuntimeError:
                assert step in STEPS
            arm(None)
            body = store.read(*PLACE) or b""
            if step == "cut":
                store.write(body[: -1 - len(line.encode()) // 2], *PLACE)
            elif body != before and parse(line.encode()):
                written.append(line)
            counted, newest = split(store.read(*PLACE) or b"")
            assert newest == written[len(written) - len(newest) :]
            assert counted.plus(totals(newest)) == totals(written)
            assert sum(len(one) + 1 for one in newest) <= kept + more + longest


WRITER = """
import sys
from tests.warehouse_agent.history.test_refresh_history import failed
from warehouse_agent.history import refresh_history
from warehouse_agent.storage.store import Store

refresh_history.KEPT_BYTES, refresh_history.LINES_BYTES_MAX = 5_000, 10_000
for number in range(int(sys.argv[2])):
    refresh_history.append(Store(sys.argv[1]), "orders", failed(number, sys.argv[3]))
    print(number, flush=True)
"""


@pytest.mark.starts
def test_two_commands_at_once_lose_no_line_and_count_none_twice(tmp_path: Path) -> None:
    """One that does not have the lock of a fragment says so in its history, too."""
    both = [
        forks.Fork(["-c", WRITER, tmp_path, "80", code], cwd=ROOT, stdout=subprocess.PIPE)
        for code in ("LOCKED", "RECIPE")
    ]
    assert [one.communicate()[0].count("\n") for one in both] == [80, 80]
    counted, newest = split(Store(str(tmp_path)).read(*PLACE) or b"")
    assert counted.plus(totals(newest)).failed == {"LOCKED": 80, "RECIPE": 80}
    assert counted.attempts > 100


@pytest.mark.starts
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("nth", [1, 3])
def test_a_command_that_is_killed_loses_its_own_line_at_most(
    tmp_path: Path, step: WarehouseFailpoint, nth: int
) -> None:
    more = {**os.environ, "DRIFTLINE_FAILPOINT": f"{step.value}:kill:{nth}"}
    ended = forks.run(["-c", WRITER, tmp_path, "40", "RECIPE"], cwd=ROOT, env=more)
    assert ended.returncode == -signal.SIGKILL
    told = ended.stdout.count("\n")
    counted, newest = split(Store(str(tmp_path)).read(*PLACE) or b"")
    is_named = step is WarehouseFailpoint.SMALL_FILE_NAMED
    assert counted.attempts + len(newest) == told + is_named
    append(Store(str(tmp_path)), "orders", failed(0))
    counted, newest = split(Store(str(tmp_path)).read(*PLACE) or b"")
    assert counted.attempts + len(newest) == told + is_named + 1


def test_a_history_of_four_mebibytes_is_added_up_without_loss(tmp_path: Path) -> None:
    """As earlier releases left it; they would remove its older half now."""
    store = Store(str(tmp_path))
    lines = [refreshed(60 * n, n % 50) if n % 9 else failed(60 * n) for n in range(4000)]
    store.write("".join(f"{line}\n" for line in lines).encode(), *PLACE)
    assert store.files(PRIVATE, "runs")[0][1] > 4 << 20
    append(store, "orders", refreshed(60 * 4000))
    counted, newest = split(store.read(*PLACE) or b"")
    assert newest == [*lines, refreshed(60 * 4000)][-len(newest) :]
    assert 250 < len(newest) < 500
    assert counted.plus(totals(newest)) == totals([*lines, refreshed(60 * 4000)])
    assert store.files(PRIVATE, "runs")[0][1] < refresh_history.LINES_BYTES_MAX
    assert counted.changed.quantile(0.5) == pytest.approx(25, rel=BIN**0.5 - 1 + 0.05)
    assert counted.took_s.quantile(0.99) == pytest.approx(0.75, rel=BIN**0.5 - 1)


def test_totals_keep_what_a_report_shows() -> None:
    def line(changed: int, columns: dict[str, int]) -> str:
        return refreshed(
            60.0 * changed,
            changed,
            changes_expected=[5, 9, 20],
            copy_bytes=1_000,
            bytes_sent=10,
            bytes_received=30,
            seconds={"exchange": 1.5, "apply": 0.25},
            changed={"compared": 3, "columns": columns, "parts": [0, 2, *[0] * 30]},
        )

    found = totals([line(9, {"note": 3}), line(19, {"note": 1, "price": 2}), line(99, {"note": 3})])
    assert (found.foretold, found.in_band) == (3, 2)
    assert found.error.quantile(0.5) == pytest.approx(2.0, rel=0.1)
    assert found.error.quantile(1.0) == pytest.approx(10.0, rel=0.1)
    assert (found.copied, found.moved_beside) == (3_000, 120)
    assert found.phases == {"exchange": 4.5, "apply": 0.75}
    assert (found.compared, found.columns, found.parts) == (9, {"note": 7, "price": 2}, {"1": 6})
    many = totals([line(9, {f"c{i}": i + 1 for i in range(40)})])
    assert many.columns == {f"c{i}": i + 1 for i in range(24, 40)}
    for one in (found, many):
        assert Totals.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    "damage",
    [
        {"changes_expected": [1, 2]},
        {"changes_expected": [1, 2, "3"]},
        {"changed": []},
        {"changed": {"compared": -1}},
        {"changed": {"compared": 1, "columns": 3, "parts": {}}},
        {"changed": {"compared": 1, "columns": {"a": "x"}, "parts": ["x", -3]}},
        {"copy_bytes": "all"},
        {"run": 7},
    ],
)
def test_damaged_fields_of_a_line_cost_themselves_alone(damage: dict[str, Any]) -> None:
    found = totals([refreshed(60.0, 3, **damage)])
    assert (found.refreshes, found.foretold, found.copied) == (1, 0, 0)
    assert not found.columns
    assert not found.parts


def test_totals_are_bounded_whatever_the_lines_say() -> None:
    """Hours of a hundred years, of a wrong clock, and amounts of all sizes."""
    folded = OlderTotals()
    for n in range(1500):
        spent = {"seconds": {"a": 1.2 ** (n % 150)}, "bytes_sent": int(1.3 ** (n % 100))}
        folded = folded.plus(parse(refreshed(n * 34_000.0, n * n, **spent).encode()))  # type: ignore[arg-type]
        if n % 100 == 99:
            whole, folded = folded.whole, folded.bounded()
            assert replace(folded.whole, seconds=0, phases={}) == replace(
                whole, seconds=0, phases={}
            )
            assert folded.whole.seconds == pytest.approx(whole.seconds)
    by = Counter(len(name) for name in folded.by if name != OLDER)
    assert by[len("2026-01-31")] <= DAYS_MAX
    assert by[len("2026-01")] <= MONTHS_MAX
    assert len(folded.to_line()) <= TOTALS_BYTES_MAX
    again = OlderTotals.from_line(folded.to_line())
    assert again is not None
    assert again.whole.changed == folded.whole.changed
    assert again.whole.attempts == 1500


@pytest.mark.parametrize(
    "damage",
    [
        b'{"folded": {"2024-01-01": {"refreshes": -1}}}', b'{"folded": {"x": {}}}',
        b'{"folded": {"older": {"took_s": {"a": 1}}}}', b'{"folded": [1]}', b"{", b"\xff",
        b'{"folded": {"older": {"seconds": NaN}}}', b'{"folded": {"older": {"failed": 7}}}',
        b'{"folded": {"older": {"loads": 1.5}}}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_damaged_totals_cost_themselves_alone(damage: bytes) -> None:
    lines = [refreshed(n, n) for n in range(5)]
    body = damage + b"\n" + "".join(f"{line}\n" for line in lines).encode()
    with mock.patch.object(refresh_history, "KEPT_BYTES", 3000):
        counted, newest = split(shortened(body))
    assert counted.plus(totals(newest)) == totals(lines)


def test_two_histories_in_one_file_are_added_up() -> None:
    lines = [refreshed(n, n) for n in range(20)]
    with mock.patch.object(refresh_history, "KEPT_BYTES", 3000):
        body = shortened("".join(f"{line}\n" for line in lines).encode())
        counted, newest = split(shortened(body + body))
    assert counted.plus(totals(newest)) == totals(lines + lines)


@given(st.lists(st.floats(0, 1e12), min_size=1), st.floats(0.01, 1))
def test_quantiles_err_by_nine_percent(amounts: list[float], share: float) -> None:
    found = reduce(Bins.plus, map(Bins.of, amounts), Bins()).quantile(share)
    exact = sorted(amounts)[math.ceil(round(share * len(amounts), 9)) - 1]
    assert found == pytest.approx(exact, rel=BIN**0.5 - 1 + 1e-9, abs=0)


def test_an_attempt_after_another_writes_no_line_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is locked, another command may publish, and write its line, in between."""
    monkeypatch.setattr(Store, "has_locks", False)
    store, ours = Store(str(tmp_path)), Histories()
    append(store, "orders", refreshed(0, version=0, previous_version=None))
    assert len(ours.of(store, "orders").lines) == 1
    theirs = refreshed(1, version=1, previous_version=0)
    append(store, "orders", theirs)
    record = SimpleNamespace(report=json.loads(theirs))
    newest = cast(Snapshot, SimpleNamespace(version=1, record=record))
    ours.begin(store, "orders")
    known = ours.completed(store, "orders", newest)
    assert [line.version for line in known.successes] == [1, 0]
    assert [line.version for line in read(store, "orders").successes] == [1, 0]


def test_a_line_that_does_not_say_what_was_before_is_no_load() -> None:
    body = json.loads(refreshed(0))
    del body["previous_version"]
    found = parse(json.dumps(body).encode())
    assert isinstance(found, SuccessLine)
    assert not found.is_load


def parsed(lines: list[str]) -> list[SuccessLine | FailureLine]:
    return [one for one in (parse(line.encode()) for line in lines) if one is not None]


def test_totals_of_days_are_read_after_a_pause(tmp_path: Path) -> None:
    """With the newest lines in one read; else reading ends where a forecast has enough."""
    store, days = Store(str(tmp_path)), 14
    older = [refreshed(60 * n, 5) for n in range(24 * days)]
    newer = [refreshed(60 * 24 * days + 10 * n, 2) for n in range(EARLIER_MAX + 40)]
    known = reduce(OlderTotals.plus, parsed(older), OlderTotals())
    store.write(known.to_line() + b"\n" + "".join(f"{one}\n" for one in newer).encode(), *PLACE)
    last = START + timedelta(days=days, minutes=10 * (EARLIER_MAX + 39))
    found = read(store, "orders", for_forecast(last + timedelta(days=2)))
    assert found.is_whole
    assert [one.inserted + one.updated + one.deleted for one in found.days[:days]] == [120] * days
    assert found.days[0].day == START.date()
    assert sum(one.updated for one in found.days[days:]) == 2 * (EARLIER_MAX + 40)
    for moment in (last + timedelta(minutes=10), last + timedelta(hours=20)):
        soon = read(store, "orders", for_forecast(moment))
        assert len(soon.earlier) == EARLIER_MAX
        assert soon.days == []
    append(store, "orders", refreshed(60 * 24 * 40, previous_version=None))
    loaded = read(store, "orders", for_forecast(START + timedelta(days=90)))
    assert (len(loaded.lines), loaded.days) == (1, [])


def test_days_before_a_load_are_of_another_table() -> None:
    lines = [refreshed(60 * 24 * n, n, previous_version=None if n == 4 else 0) for n in range(8)]
    known = reduce(OlderTotals.plus, parsed(lines), OlderTotals())
    assert [one.updated for one in known.days] == [5, 6, 7]
    foreign = replace(known, by=dict(known.by) | {"not a day.": Totals(updated=9)})
    assert foreign.days == known.days


def test_totals_are_told_in_amounts_that_people_read() -> None:
    one = Totals(
        refreshes=20, failed={"LOCKED": 2}, inserted=1_000, updated=3, sent=2_000_000,
        received=810_000_000, seconds=104.0, copied=9_000_000_000, moved_beside=812_000_000,
        read_in=22, rows_read=24_000, scans=23, held_back_s=70.0,
    )  # fmt: skip
    assert one.text(26.4) == (
        "20 refreshes went well, 2 failed; rows: 1,000 inserted, 3 updated, 0 deleted;"
        " 812 MB in 2 minutes; saved 91.0 %: moved 812 MB, copies 9 GB; cost the source:"
        " 24,000 rows read in 23 scans, 1.2 reads of the whole table a refresh,"
        " held back for 1 minute"
    )
    assert "whole table" not in one.text()
    every = [RefreshTotals.of(one, "2026-01-02", 26.4), RefreshTotals.of(one, None, None)]
    assert RefreshTotals.of_all(every).whole_reads == 26.4
    assert RefreshTotals.of_all(every[1:]).whole_reads is None
