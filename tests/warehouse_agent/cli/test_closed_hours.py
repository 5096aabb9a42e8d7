"""Scheduled refreshes while hours of a source are closed, and while warehouse.toml is edited."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.warehouse_agent.change_models.weeks import every, remembered
from warehouse_agent.change_models.week import HOURS
from warehouse_agent.cli import commands
from warehouse_agent.cli.main import cli
from warehouse_agent.cli.schedule import LoopPrinter
from warehouse_agent.config import WarehouseConfig
from warehouse_agent.events import Event, RefreshCommitted
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history import change_memory
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.scheduler import due as due_now
from warehouse_agent.scheduler.configuration import Configuration
from warehouse_agent.scheduler.loop import ScheduleLoop
from warehouse_agent.scheduler.loop import run as run_loop
from warehouse_agent.storage.formats import head
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.timetable.retry import RETRY_S
from warehouse_agent.views.inputs import load
from warehouse_agent.views.selection import TableSelection, select

pytestmark = pytest.mark.starts

NAMES = ("items", "orders")
SCHEDULED = Options(is_scheduled=True)
MORE = "ahead = 1"  # each fragment is a run of its own


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    for table in NAMES:
        legacy.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, note TEXT)")
        legacy.execute(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    relations = {name: f'table = "{name}"' for name in NAMES}
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
        made.small_bytes = 32 << 20
        made.fragment_lines = dict.fromkeys(NAMES, 'interval_max = "1d"')
        yield made
    legacy.close()


def run(pair: Pair, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--config", str(pair.warehouse_toml()), *words])


def close(pair: Pair, hours: str = "") -> datetime:
    """Let the source be quiet from an hour ago to an hour from now; return when that ends."""
    local = datetime.now().astimezone().replace(second=0, microsecond=0)
    begin, end = local - timedelta(hours=1), local + timedelta(hours=1)
    pair.limits = f'quiet_hours = ["{hours or f"{begin:%H:%M}-{end:%H:%M}"}"]'
    pair.restart()
    return end.astimezone(UTC)


def test_a_quiet_hour_is_no_failure_and_the_fragment_is_due_when_it_ends(pair: Pair) -> None:
    pair.reports()
    end = close(pair)
    refused = run(pair, "refresh", "orders", "--json")
    assert refused.exit_code == 75
    report = json.loads(refused.stdout)
    assert report["error"]["code"] == "NOT_NOW"
    assert report["attempts"] == 1, "tried again before the hour that the source named"
    assert datetime.fromisoformat(report["put_off_until"]) == end
    config = pair.config()
    chosen = select(config, ["orders"], False)
    soon = end - timedelta(days=3)  # long before the day after the last refresh, too
    for now, is_due in ((soon, False), (end - timedelta(seconds=1), False), (end, False)):
        assert (due_now.look(config, chosen, now).due == ["orders"]) == is_due
    pair.fragment_lines["orders"] = 'interval_max = "1m"'
    config = pair.config()
    chosen = select(config, ["orders"], False)
    found = due_now.look(config, chosen, end - timedelta(seconds=1))
    assert found.due == []
    assert found.later[0].decision.at == end.timestamp()
    assert "its source reads nothing before then" in found.later[0].decision.why
    assert due_now.look(config, chosen, end).due == ["orders"]


def test_a_scheduled_refresh_that_meets_a_quiet_hour_ends_with_0(pair: Pair) -> None:
    """Once: afterwards the history says until when, and the source is not even asked."""
    end = close(pair)
    first = run(pair, "refresh", "--due", "--json")
    assert first.exit_code == 0, first.output
    assert [json.loads(line)["error"]["code"] for line in first.stdout.splitlines()] == [
        "NOT_NOW",
        "NOT_NOW",
    ]
    asked = len((pair.folder / "audit.jsonl").read_text().splitlines())
    again = run(pair, "refresh", "--due", "--json")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "its source reads nothing before then" in again.stderr
    assert f"not before {end:%Y-%m-%dT%H:%M:%SZ}" in again.stderr
    assert len((pair.folder / "audit.jsonl").read_text().splitlines()) == asked
    pair.limits = ""  # the DBA opens it earlier, and somebody refreshes by hand
    pair.restart()
    assert run(pair, "refresh").exit_code == 0
    assert due_now.scheduled(
        pair.config(), pair.store, pair.config().fragments["orders"], end.timestamp(), None
    ).decision.why.startswith("every 24 h")


def test_run_waits_for_the_end_of_a_quiet_hour_and_no_longer(pair: Pair) -> None:
    """The loop on a real source and store, in virtual time: no back-off, and no wait beyond it."""
    pair.fragment_lines["orders"] = 'interval_max = "1m"'
    end = close(pair)
    now, codes = [datetime.now(UTC).timestamp()], list[int]()

    def refresh(names: Sequence[str]) -> list[int]:
        config = pair.config()
        chosen = select(config, names, False)
        codes.extend(commands.refresh(config, chosen, SCHEDULED, as_json=True))
        return codes[-1:]

    def look(at: float) -> tuple[list[str], list[tuple[str, float]]]:
        config, moment = pair.config(), datetime.fromtimestamp(at, UTC)
        found = due_now.look(config, select(config, ["orders"], False), moment)
        return found.due, [(one.name, one.decision.at) for one in found.later]

    loop = ScheduleLoop(look, refresh, lambda: now[0], lambda _: True)
    waits = list[float]()
    while now[0] < end.timestamp() and len(waits) < 20:
        waits.append(loop.turn())
        now[0] += waits[-1]
    assert codes == [0], "asked once, and it was no failure"
    assert loop.failed == {}
    assert now[0] == pytest.approx(end.timestamp(), abs=1e-3)
    pair.limits = ""
    pair.restart()
    loop.turn()
    assert codes == [0, 0]
    assert pair.version("orders") == 0


def test_hours_that_never_end_name_no_moment(pair: Pair) -> None:
    close(pair, '00:00-12:00", "12:00-24:00')
    refused = run(pair, "refresh", "--due", "orders", "--json")
    assert refused.exit_code == 75
    assert json.loads(refused.stdout)["put_off_until"] is None


def test_nothing_begins_after_refresh_hours_have_ended(pair: Pair) -> None:
    """The first run began in time and is published; the second one waits for the next hours."""
    pair.source_lines = (
        f'address = "{pair.address}"\ninsecure = true\ntime_zone = "Europe/Vienna"\n'
        'refresh_hours = ["20:00-06:00"]'
    )
    config = load(pair.warehouse_toml(MORE))
    inside, outside = (
        datetime.fromisoformat(f"2026-03-04T0{hour}+01:00").timestamp()
        for hour in ("5:59:59", "6:00:00")
    )
    moments = iter([inside, outside])
    runner = Runner(NoSpark(), config, clock=lambda: next(moments))
    first, second = runner.refresh(select(config, [], True), Options(is_scheduled=True))
    assert (first.error, first.version, first.put_off_until) == (None, 0, None)
    assert second.not_started is not None
    assert (
        "`refresh_hours` of its source have ended; the next begin Wed 20:00" in second.not_started
    )
    assert second.put_off_until == "2026-03-04T19:00:00Z"
    assert second.is_put_off(outside)
    assert not second.is_put_off(outside + 14 * 3600)
    assert head(pair.store, "orders") is None
    # Whoever asks for a refresh by name gets it.
    by_hand = Runner(NoSpark(), config, clock=lambda: outside)
    (report,) = by_hand.refresh(select(config, ["orders"], False), Options())
    assert (report.error, report.version) == (None, 0)


def test_what_is_asked_to_end_begins_no_other_run(pair: Pair) -> None:
    """A first SIGTERM: the run at work is published, and the other fragment is left as it is."""
    config = load(pair.warehouse_toml(MORE))
    asked = iter([False, True])
    runner = Runner(NoSpark(), config)
    options = Options(is_ending=lambda: next(asked))
    first, second = runner.refresh(select(config, [], True), options)
    assert (first.error, first.version) == (None, 0)
    assert second.not_started == "The command was asked to end."
    assert head(pair.store, "orders") is None
    assert pair.refresh("orders").version == 0


def edit_when(
    monkeypatch: pytest.MonkeyPatch, point: WarehouseFailpoint, edit: Callable[[], object]
) -> list[WarehouseFailpoint]:
    """Edit something when a refresh reaches a point for the first time."""
    reached = list[WarehouseFailpoint]()

    def reach(self: WarehouseFailpoint) -> None:
        if self is point and not reached:
            reached.append(self)
            edit()

    monkeypatch.setattr(WarehouseFailpoint, "reach", reach)
    return reached


def without_orders(pair: Pair) -> str:
    """The file of `items` alone."""
    head_, _, _ = pair.warehouse_toml().read_text().partition("[fragments.orders]")
    assert "[fragments.items]" in head_
    return head_


def test_a_fragment_that_is_deleted_from_the_file_while_it_is_refreshed_when_due(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends as it began: published, proven and told; the next command knows nothing of it."""
    file, left = pair.warehouse_toml(), without_orders(pair)
    edited = edit_when(monkeypatch, WarehouseFailpoint.COMPARED, lambda: file.write_text(left))
    said = CliRunner().invoke(cli, ["--config", str(file), "refresh", "--due", "--json"])
    assert said.exit_code == 0, said.output
    assert edited
    reports = [json.loads(line) for line in said.stdout.splitlines()]
    assert [(one["name"], one["proof"]) for one in reports] == [
        ("items", "total"),
        ("orders", "total"),
    ]
    assert pair.version("orders") == 0
    again = CliRunner().invoke(cli, ["--config", str(file), "schedule", "--json"])
    assert [json.loads(line)["name"] for line in again.stdout.splitlines()] == ["items"]


def test_a_fragment_that_is_deleted_from_the_file_while_run_refreshes_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of `run`: the refresh ends, the next look leaves it out, and the others go on."""
    pair.fragment_lines = dict.fromkeys(NAMES, 'interval_max = "1m"')
    file, left = pair.warehouse_toml(), without_orders(pair)
    pair.warehouse_toml()
    edit_when(monkeypatch, WarehouseFailpoint.COMPARED, lambda: file.write_text(left))
    current = Configuration(["orders", "i*"], load(file), LoopPrinter("warehouse.toml"))
    refreshed = list[list[str]]()
    now = [datetime.now(UTC).timestamp()]

    def look(at: float) -> tuple[list[str], list[tuple[str, float]]]:
        current.renew()
        moment = datetime.fromtimestamp(at, UTC)
        found = due_now.look(current.config, current.chosen, moment)
        return found.due, [(one.name, one.decision.at) for one in found.later]

    def refresh(names: Sequence[str]) -> list[int]:
        refreshed.append(list(names))
        chosen = select(current.config, names, False)
        return commands.refresh(current.config, chosen, SCHEDULED, as_json=True)

    loop = ScheduleLoop(look, refresh, lambda: now[0], lambda _: True)
    loop.turn()
    assert [sorted(names) for names in refreshed] == [["items", "orders"]]
    assert pair.version("orders") == 0
    now[0] += 120
    loop.turn()
    assert refreshed[1:] == [["items"]]
    assert "'orders'" in capsys.readouterr().err, "that its pattern means nothing any more"
    now[0] += 120
    loop.turn()
    assert refreshed[2:] == [["items"]]
    assert "'orders'" not in capsys.readouterr().err, "said once"


def test_what_cannot_be_decided_is_not_refreshed_without_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is due at each look, and its refreshes go well: it waits as long as one that fails."""
    decided, refreshed, waits = due_now.scheduled, list[list[str]](), list[float]()

    def scheduled(*given: Any, **others: Any) -> due_now.FragmentDecision:
        if given[2].name == "orders":
            raise ValueError("year 10000 is out of range")
        return decided(*given, **others)

    def refresh(config: WarehouseConfig, chosen: TableSelection, *_: object) -> list[int]:
        refreshed.append([fragment.name for fragment in chosen.fragments])
        return commands.refresh(config, chosen, SCHEDULED, as_json=True)

    def turns(self: ScheduleLoop) -> None:
        waits.extend(self.turn() for _ in range(2))

    monkeypatch.setattr(due_now, "scheduled", scheduled)
    monkeypatch.setattr(ScheduleLoop, "run", turns)
    run_loop(load(pair.warehouse_toml()), [], refresh, LoopPrinter("warehouse.toml"))
    assert [sorted(names) for names in refreshed] == [["items", "orders"]]
    assert RETRY_S - 10 < waits[1] <= RETRY_S
    assert "year 10000 is out of range" in capsys.readouterr().err


def test_a_file_that_cannot_be_used_changes_nothing(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pair.warehouse_toml()
    sound = file.read_text()
    current = Configuration([], load(file), LoopPrinter("warehouse.toml"))
    before = current.config
    file.write_text(sound + "[fragments.orders\n")
    current.renew()
    assert current.config is before
    assert "was read before still counts" in capsys.readouterr().err
    current.renew()
    assert capsys.readouterr().err == ""
    file.unlink()
    current.renew()
    assert [fragment.name for fragment in current.chosen.fragments] == [*NAMES]
    assert capsys.readouterr().err
    file.write_text(without_orders(pair))
    current.renew()
    assert [fragment.name for fragment in current.chosen.fragments] == ["items"]


def test_what_is_due_comes_by_what_a_second_of_it_saves(pair: Pair) -> None:
    """Both have the same history but for their rates and durations."""
    pair.reports()
    now = datetime.now(UTC).timestamp()
    for name, rows, seconds in (("items", 5.0, 9.0), ("orders", 4.0, 2.0)):
        memory = remembered(np.full(HOURS, rows), every(24), np.random.default_rng(1))
        kept = replace(change_memory.remembered(pair.store, name, "UTC"), recent=memory.recent)
        pair.store.write(json.dumps(kept.to_json()).encode(), PRIVATE, "schedule", f"{name}.json")
        report = json.loads(pair.store.read(PRIVATE, "runs", f"{name}.jsonl") or b"")
        line = json.dumps(report | {"seconds": {"exchange": seconds}})
        pair.store.write(line.encode() + b"\n", PRIVATE, "runs", f"{name}.jsonl")
    config = pair.config()
    found = due_now.gains(config, NAMES, now + 86_400)
    assert found["orders"] / found["items"] == pytest.approx(4 / 5 * 9 / 2, rel=0.2)
    assert due_now.gains(config, ["orders"], now) == {}, "alone, its place does not matter"
    order = list[str]()

    def note(event: Event) -> None:
        if isinstance(event, RefreshCommitted):
            order.append(event.report.name)

    runner = Runner(NoSpark(), config, listeners=[note])
    runner.refresh(select(config, [], True), Options(gains=found))
    assert order == ["orders", "items"]
