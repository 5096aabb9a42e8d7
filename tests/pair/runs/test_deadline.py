"""`refresh --deadline`: what would end too late is not started, and the command says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.warehouse_agent.cli.test_main import REPORT, Ended, command
from warehouse_agent.history.refresh_history import append
from warehouse_agent.storage.store import PRIVATE

NAMES = ("long", "longer", "new", "short")
MORE = 'ahead = "all"'
HOUR = 3600.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Four tables; three were loaded, and their histories say that refreshes take hours."""
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for name in NAMES:
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, mark INTEGER)")
        legacy.many(f"INSERT INTO {name} VALUES (?, 0)", [(key,) for key in range(50)])
    relations = {name: f'table = "{name}"' for name in NAMES}
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
        made.small_bytes = 32 << 20
        for name, hours in (("long", 4.0), ("longer", 5.0), ("short", 1.0)):
            made.refresh(name)
            report = json.loads(made.reports(name)[0].to_json())
            append(made.store, name, json.dumps(report | {"seconds": {"apply": hours * HOUR}}))
        for name in NAMES:
            legacy.execute(f"UPDATE {name} SET mark = 1")
        yield made
    legacy.close()


def refresh(pair: Pair, *words: str, more: str = MORE) -> Ended:
    return command("refresh", *words, config=pair.warehouse_toml(more))


def marks(pair: Pair) -> dict[str, set[int]]:
    """The marks of each published table."""
    return {name: marks_of(pair, name) for name in NAMES}


@pytest.mark.slow
def test_what_would_end_too_late_is_not_started(pair: Pair) -> None:
    asked = (pair.folder / "audit.jsonl").read_text().count('"long')
    kept = pair.store.read(PRIVATE, "runs", "long.jsonl")
    ended = refresh(pair, "--deadline", "3h", "--json")
    assert ended.code == 3
    assert "none failed, 2 not started (long, longer)" in ended.err
    reports = {line["name"]: line for line in ended.lines}
    assert all(list(report) == REPORT for report in reports.values())
    assert reports.keys() == {*NAMES}
    for name in ("long", "longer"):
        report = reports[name]
        assert report["not_started"].startswith(f"By its history it takes {report_s(name)} s, and ")
        assert (report["error"], report["version"], report["previous_version"]) == (None, 0, 0)
        assert (report["rows_total"], report["proof"], report["attempts"]) == (50, "none", 0)
    for name in ("new", "short"):
        assert (reports[name]["not_started"], reports[name]["proof"]) == (None, "total")
    assert marks(pair) == {"long": {0}, "longer": {0}, "new": {1}, "short": {1}}
    assert (pair.folder / "audit.jsonl").read_text().count('"long') == asked
    assert pair.store.read(PRIVATE, "runs", "long.jsonl") == kept, "nothing was refreshed"
    assert refresh(pair).code == 0
    assert set.union(*marks(pair).values()) == {1}


def report_s(name: str) -> str:
    """The median of two refreshes, in seconds."""
    return {"long": "14,400", "longer": "18,000"}[name]


def test_none_is_started(pair: Pair) -> None:
    ended = refresh(pair, "long*", "--deadline", "1s")
    assert (ended.code, ended.err.count("2 not started (long, longer)")) == (3, 1)
    assert [line[:20] for line in ended.out.splitlines()] == [
        "long: not started. B",
        "longer: not started.",
    ]
    assert marks_of(pair, "long") == {0}


def marks_of(pair: Pair, name: str) -> set[int]:
    return set(pair.delta(name).to_pyarrow_table()["mark"].to_pylist())


def test_a_failure_beside_it(pair: Pair) -> None:
    """All were not refreshed, for different reasons: the exit code says that some are to come."""
    pair.legacy.execute("DROP TABLE short")
    ended = refresh(pair, "long", "short", "--deadline", "2h")
    assert ended.code == 3
    assert "1 failed (short), 1 not started (long)" in ended.err


def test_one_that_is_worked_on_fails_as_always(pair: Pair) -> None:
    with pair.store.lock("short"):
        ended = refresh(pair, "short", "--deadline", "1d")
    assert ended.code == 75


def test_a_run_that_is_done_needs_no_more_time(pair: Pair) -> None:
    """Runs that fit only one after the other follow each other, however long they should take."""
    assert refresh(pair, "--deadline", "6h", more="ahead = 1").code == 0
    assert set.union(*marks(pair).values()) == {1}
