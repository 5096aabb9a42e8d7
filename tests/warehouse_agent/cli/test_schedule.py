"""`schedule`, `refresh --due` and `fit`: on a real source and a real table, in virtual time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result
from driftline.errors import TableShrank
from driftline.settings.hours import DAYS
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.warehouse_agent.change_models.weeks import OFFICE, THREE, every, remembered
from warehouse_agent.change_models.fit import fit
from warehouse_agent.cli.fit import spans
from warehouse_agent.cli.fit_plot import svg
from warehouse_agent.cli.main import cli
from warehouse_agent.cli.schedule import NAMES_SHOWN, never_due
from warehouse_agent.history.refresh_history import append
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import PARTIAL
from warehouse_agent.scheduler import due as due_now
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.timetable.decision import NEVER, Decision
from warehouse_agent.timetable.retry import COUNTED, RETRY_S, RETRY_S_MAX, wait_s
from warehouse_agent.timetable.timing import Timing
from warehouse_agent.views.inputs import load
from warehouse_agent.views.selection import select
from warehouse_agent.views.timings import timings_of

SETTINGS = 'refreshes_per_day = 4\n[views.report]\nquery = "SELECT id FROM orders"\n'

GOAL = 'freshness = "1h"\n'
DAILY = 'interval_max = "1d"'


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=False)  # WAL counts no changes
    for table in ("orders", "items"):
        legacy.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, note TEXT)")
        legacy.execute(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    relations = {"items": 'table = "items"', "orders": 'table = "orders"'}
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
        made.small_bytes = 32 << 20
        made.fragment_lines = dict.fromkeys(relations, DAILY)
        made.limits = "activity_seconds = 0.001"
        made.restart()
        yield made
    legacy.close()


def run(pair: Pair, *words: str, more: str = "") -> Result:
    file = pair.warehouse_toml()
    file.write_text(file.read_text() + more)
    return CliRunner().invoke(cli, ["--config", str(file), *words])


def at(pair: Pair, name: str, hours: float) -> due_now.FragmentDecision:
    config, now = pair.config(), datetime.now(UTC) + timedelta(hours=hours)
    return due_now.scheduled(config, pair.store, config.fragments[name], now.timestamp(), None)


@pytest.mark.starts
def test_a_fragment_is_due_a_day_after_its_refresh(pair: Pair) -> None:
    assert at(pair, "orders", 0).decision.why == "never refreshed"
    pair.refresh("orders")
    for hours, is_due in ((0, False), (23, False), (24.1, True), (100, True)):
        found = at(pair, "orders", hours).decision
        assert found.due == is_due
        assert found.why.startswith("every 24 h")
    assert at(pair, "items", 0).decision.due


@pytest.mark.starts
def test_on_the_first_day_a_schedule_says_what_it_does_not_know_yet(pair: Pair) -> None:
    pair.refresh("orders")
    for note in "cdef":
        pair.legacy.execute(f"UPDATE orders SET note = '{note}'")
        pair.refresh("orders")
    said = run(pair, "schedule", "orders").stdout
    assert "what to expect of 24 h is not known yet: changes were counted 4 times, over 0 " in said
    assert "row-hours" not in said
    body = json.loads(run(pair, "schedule", "orders", "--json").stdout)
    assert (body["rows"], body["row_hours"], body["stale_hours"]) == (None, None, None)
    assert body["untold"] in said


@pytest.mark.starts
def test_without_a_goal_a_fragment_is_never_due(pair: Pair) -> None:
    """Settings that only shape a schedule make none."""
    pair.fragment_lines["items"] = 'time_zone = "Europe/Vienna"\npolicy = "fixed"'
    assert not at(pair, "items", 10_000).decision.due
    pair.refresh("orders")
    again = run(pair, "refresh", "--due")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "Next: orders: not before 20" in again.stderr
    assert "Never due: items. warehouse.toml gives no goal" in again.stderr, "it is never silent"
    told = run(pair, "schedule", "items").stdout
    assert told.startswith("items: never due: it has no `freshness`, ")
    assert json.loads(run(pair, "schedule", "items", "--json").stdout)["at"] is None
    pair.fragment_lines["orders"] = ""
    alone = run(pair, "refresh", "--due")
    assert (alone.exit_code, alone.stdout) == (0, "")
    assert "Never due: items, orders. " in alone.stderr
    assert "Nothing is due" not in alone.stderr, "there is no next moment"
    assert pair.refresh("items").rows_total == 2


@pytest.mark.starts
def test_what_is_never_due_is_named_beside_what_is_due(pair: Pair) -> None:
    pair.fragment_lines["items"] = ""
    first = run(pair, "refresh", "--due", "--json")
    assert [json.loads(line)["name"] for line in first.stdout.splitlines()] == ["orders"]
    assert "Never due: items. " in first.stderr
    by_view = '[views.report]\nquery = "SELECT id FROM items"\ninterval_max = "1h"\n'
    assert "Never due" not in run(pair, "refresh", "--due", more=by_view).stderr


def test_few_names_of_many_that_are_never_due() -> None:
    names = [f"table_{n}" for n in range(NAMES_SHOWN + 1_204)]
    later = [due_now.FragmentDecision(name, Decision(False, NEVER, "no goal")) for name in names]
    decisions = due_now.SelectionDecision([], [], later)
    assert decisions.never_due == names
    said = never_due(decisions.never_due, "warehouse.toml")
    assert f"table_{NAMES_SHOWN - 1} and 1,204 more. warehouse.toml" in said


@pytest.mark.starts
def test_refresh_of_what_is_due(pair: Pair) -> None:
    pair.refresh("items")
    first = run(pair, "refresh", "--due", "--json")
    assert first.exit_code == 0, first.output
    assert [json.loads(line)["name"] for line in first.stdout.splitlines()] == ["orders"]
    again = run(pair, "refresh", "--due", "--json")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "Nothing is due. Next: items: not before 20" in again.stderr
    config = pair.config()
    tomorrow = datetime.now(UTC) + timedelta(days=1, minutes=1)
    chosen, decisions = due_now.due(config, select(config, [], True), (), tomorrow)
    assert [fragment.name for fragment in chosen.fragments] == ["items", "orders"]
    assert decisions.held == []


@pytest.mark.starts
def test_what_failed_is_told_each_time_and_tried_again_later(pair: Pair) -> None:
    """Commands of a timer know of each other by the history: a table that somebody has to look at
    is not scanned at each look. Whoever asks for it by name gets it."""
    pair.reports("items", "orders")
    pair.legacy.execute("DELETE FROM orders")
    pair.fragment_lines["orders"] = 'interval_max = "1s"'
    time.sleep(1.1)
    shrank = run(pair, "refresh", "--due", "--json")
    assert shrank.exit_code == TableShrank.exit_code
    report = json.loads(shrank.stdout)
    assert (report["name"], report["error"]["code"]) == ("orders", "SHRANK")
    failed_at = datetime.fromisoformat(report["failed_at"])

    scans = (pair.folder / "audit.jsonl").read_text()
    held = run(pair, "refresh", "--due", "--json")
    assert (held.exit_code, held.stdout) == (TableShrank.exit_code, "")
    assert held.stderr.startswith("Still fails: orders: not before ")
    assert "its last refresh failed (SHRANK), so it is tried again then" in held.stderr
    assert "Nothing is due" not in held.stderr
    assert (pair.folder / "audit.jsonl").read_text() == scans, "the source was asked"
    pair.fragment_lines["items"] = 'interval_max = "1s"'
    beside = run(pair, "refresh", "--due", "--json")
    assert beside.exit_code == PARTIAL
    assert json.loads(beside.stdout)["name"] == "items"

    for times in range(1, COUNTED + 2):
        assert look_at(pair, failed_at + timedelta(seconds=wait_s(times) - 1.1)) == []
        assert look_at(pair, failed_at + timedelta(seconds=wait_s(times) + 1.1)) == ["orders"]
        failed_at = datetime.fromisoformat(pair.reports("orders")[0].failed_at or "")
    assert pair.refresh("orders", options=Options(allow_shrink=True)).rows_total == 0
    time.sleep(1.1)
    assert look_at(pair, datetime.now(UTC)) == ["orders"]


def look_at(pair: Pair, now: datetime) -> list[str]:
    """Return whether `orders` is due at a moment."""
    config = pair.config()
    return due_now.look(config, select(config, ["orders"], False), now).due


@given(st.integers(1, 100))
def test_waits_after_failures_double_up_to_an_hour(times: int) -> None:
    assert RETRY_S <= wait_s(times) <= wait_s(times + 1) <= min(2 * wait_s(times), RETRY_S_MAX)
    assert wait_s(COUNTED) == RETRY_S_MAX


def due(pair: Pair, days: float) -> list[str]:
    time.sleep(0.002)  # the least time between two questions
    config, now = pair.config(), datetime.now(UTC) + timedelta(days=days)
    chosen, decisions = due_now.due(config, select(config, [], True), (), now)
    assert decisions.held == []
    return [fragment.name for fragment in chosen.fragments]


@pytest.mark.starts
def test_the_source_is_asked_what_changed(pair: Pair) -> None:
    """SQLite has one flag for the whole file: after a change of a table both may have changed."""
    pair.fragment_lines = {
        "orders": 'refreshes_per_day = 1\ninterval_max = "7d"',
        "items": 'policy = "fixed"\ninterval_max = "7d"',
    }
    pair.reports()
    assert due(pair, 2) == []
    assert due(pair, 7.1) == ["items", "orders"]
    said = run(pair, "schedule", "--ask").stdout
    assert "orders: not before" in said
    assert "its source says that nothing changed; the longest interval is 7.0 days" in said
    pair.legacy.execute("UPDATE orders SET note = 'c' WHERE id = 1")
    assert due(pair, 0.01) == ["orders"]
    pair.reports()
    assert due(pair, 2) == []


@pytest.mark.starts
def test_a_source_that_was_asked_a_moment_ago_is_asked_later(pair: Pair) -> None:
    """Not refreshed instead, though the last refresh is long ago: its source may be at rest."""
    pair.fragment_lines = {"orders": 'refreshes_per_day = 24\ninterval_max = "7d"', "items": DAILY}
    pair.reports()
    pair.limits = ""  # a question a minute
    pair.restart()
    assert "unchanged since" in run(pair, "status", "--ask").stdout
    config, now = pair.config(), datetime.now(UTC) + timedelta(hours=20)
    seen = due_now.look(config, select(config, [], True), now)
    assert seen.due + seen.undecided == []
    (found,) = (one.decision for one in seen.later if one.name == "orders")
    assert 0 < found.at - now.timestamp() <= 60
    assert "lets a warehouse ask about activity once in 60 s" in found.why


@pytest.mark.starts
def test_a_source_that_is_away_decides_nothing(pair: Pair) -> None:
    pair.reports()
    pair.stop()
    assert due(pair, 0.9) == []
    assert due(pair, 1.1) == ["items", "orders"]


@pytest.mark.starts
def test_schedule_says_when_and_why(pair: Pair) -> None:
    pair.refresh("orders")
    said = run(pair, "schedule", more="refreshes_per_day = 4\n")
    assert said.exit_code == 0, said.output
    items, orders = said.stdout.splitlines()
    assert items == "items: due now: never refreshed"
    assert orders.startswith("orders: not before 20")
    assert orders.endswith("Z (in 6 hours): every 6 h")
    body = json.loads(run(pair, "schedule", "orders", "--json", more=SETTINGS).stdout)
    assert (body["name"], body["due"], body["policy"]) == ("orders", False, "fixed")
    assert datetime.fromisoformat(body["at"]) > datetime.now(UTC)


@pytest.mark.starts
def test_a_refresh_that_changes_rows_teaches(pair: Pair) -> None:
    pair.refresh("orders")
    pair.legacy.execute("UPDATE orders SET note = 'c' WHERE id = 1")
    memory = pair.warehouse / PRIVATE / "schedule" / "orders.json"
    # The snapshots of two refreshes have different milliseconds of the source's clock.
    assert pair.refresh("orders").rows_updated == 1
    kept = json.loads(memory.read_text())
    assert len(kept["recent"]) + kept["dropped"] == 1
    said = run(pair, "fit", "orders")
    assert said.exit_code == 0, said.output


def test_the_goal_of_a_view_passes_to_what_it_reads(tmp_path: Path) -> None:
    file = tmp_path / "warehouse.toml"
    file.write_text(
        '[warehouse]\npath = "w"\n[sources.erp]\naddress = "localhost:1"\ninsecure = true\n'
        'time_zone = "Europe/Vienna"\n[fragments.orders]\nsource = "erp"\nrefreshes_per_day = 2\n'
        '[fragments.items]\nsource = "erp"\n[fragments.alone]\nsource = "erp"\n'
        '[views.lines]\nquery = "SELECT id FROM items"\n'
        '[views.report]\nquery = "SELECT o.id FROM orders o JOIN lines l ON o.id = l.id"\n'
        'freshness = "1h"\n'
    )
    config = load(file)
    zone = "Europe/Vienna"
    found = {n: timings_of(config, f) for n, f in config.fragments.items()}
    report = Timing("report", freshness_s=3600, zone=zone)
    assert found == {
        "orders": [Timing("orders", refreshes_per_day=2, zone=zone), report],
        "items": [report],
        "alone": [],
    }


def fitted(tmp_path: Path, *words: str, hours: float) -> str:
    file = tmp_path / "warehouse.toml"
    file.write_text(
        '[warehouse]\npath = "w"\n[sources.erp]\naddress = "localhost:1"\ninsecure = true\n'
        '[fragments.orders]\nsource = "erp"\n'
    )
    memory = replace(remembered(THREE, every(hours), np.random.default_rng(1)), dropped=2)
    body = json.dumps(memory.to_json()).encode()
    Store(str(tmp_path / "w")).write(body, PRIVATE, "schedule", "orders.json")
    said = CliRunner().invoke(cli, ["--config", str(file), "fit", "orders", *words])
    assert said.exit_code == 0, said.output
    return said.stdout


def test_fit_says_what_is_known_and_what_is_not(tmp_path: Path) -> None:
    said = fitted(tmp_path, hours=24)
    assert "changed rows an hour, from 84 intervals" in said
    assert "hours of the day are not known: all 84 refreshes were at about the same hour" in said
    assert "  Mon-Fri: " in said
    assert "dropped, because the clock of the source was set: 2" in said
    assert "goodness of fit: not contradicted" in said
    body = json.loads(fitted(tmp_path, "--json", hours=6))
    assert body["not_known"] == []
    assert body["rows_per_hour"] == pytest.approx(THREE.mean(), rel=0.1)
    assert all(s["low"] <= s["rows_per_hour"] <= s["high"] for s in body["segments"])


def test_a_picture_of_a_fit(tmp_path: Path) -> None:
    """Well-formed, with a step for each hour inside of its interval, whatever the name is."""
    fitted(tmp_path, "--plot", str(tmp_path / "fit.svg"), hours=6)
    root = ElementTree.fromstring((tmp_path / "fit.svg").read_text())
    shapes = {s.get("class"): s.get("points", "").split() for s in root.iter() if s.get("class")}
    assert {*shapes} == {"interval", "rate", "fit"}
    rate, band = (np.array([p.split(",") for p in shapes[k]], float) for k in ("rate", "interval"))
    assert len(rate) == 2 * 168
    assert (np.diff(rate[:, 0]) >= 0).all()
    high, low = band[: 2 * 168, 1], band[2 * 168 :, 1][::-1]
    assert (high <= rate[:, 1]).all()  # y grows downwards
    assert (rate[:, 1] <= low).all()
    office = rate[::2][OFFICE, 1].mean()
    assert office < rate[::2][~OFFICE, 1].mean()
    words = " ".join(text.text or "" for text in root.iter() if text.text)
    assert "goodness of fit: not contradicted" in words
    assert "Mon" in words
    memory = remembered(THREE, every(6), np.random.default_rng(1))
    model = fit(memory, "UTC")
    assert model is not None
    ElementTree.fromstring(svg('<b a="1">&\x1b', model, np.zeros(0), "<&>"))


@pytest.mark.starts
def test_fit_of_nothing(pair: Pair) -> None:
    said = run(pair, "fit", "orders")
    assert said.stdout == ("orders: no interval between two complete refreshes is known yet\n")
    assert json.loads(run(pair, "fit", "orders", "--json").stdout)["model"] is None
    assert run(pair, "fit", "ordrs").exit_code != 0


def test_hours_in_words() -> None:
    assert spans(OFFICE) == "Mon-Fri 09:00-18:00"
    assert spans(OFFICE < 2) == "all hours"
    assert spans(np.arange(168) % 24 == 23) == "Mon-Sun 23:00-24:00"


@given(st.lists(st.booleans(), min_size=168, max_size=168))
def test_hours_in_words_are_those_hours(chosen: list[bool]) -> None:
    found = np.zeros((7, 24), np.bool_)
    text = spans(np.array(chosen))
    for part in text.split(", ") if text != "all hours" and text else []:
        days, *hours = part.split(" ")
        first, _, last = days.partition("-")
        for day in range(DAYS.index(first), DAYS.index(last or first) + 1):
            for span in hours or ["00:00-24:00"]:
                found[day, int(span[:2]) : int(span[6:8])] = True
    assert (found if text != "all hours" else ~found).reshape(-1).tolist() == chosen


@pytest.mark.starts
def test_the_views_over_a_fragment_are_priced_with_it(pair: Pair) -> None:
    """A row is fresh when the views show it, so a refresh begins earlier by what they take."""
    pair.refresh("orders")
    file = pair.warehouse_toml()
    file.write_text(file.read_text() + SETTINGS.replace("refreshes_per_day = 4", "") + GOAL)
    config = load(file)

    def moment() -> float:
        now = datetime.now(UTC).timestamp()
        fragment = config.fragments["orders"]
        return due_now.scheduled(config, pair.store, fragment, now, None).decision.at

    alone = moment()
    phases = [{"rows": 0, "seconds": 300.0, "at": f"2026-01-0{n}T00:00:00Z"} for n in (1, 2, 3)]
    line = {"command": "refresh", "error": None, "view_phases": phases}
    append(pair.store, "report", json.dumps(line))
    assert moment() == pytest.approx(alone - 300, abs=1)
