"""What a prediction depends on: `plan` has what the refresh after it then has, on real tables, and
`schedule` knows the same refreshes.

The one that a refresh has is taken from inside of it. What differs is named: when it was made, and
what only one of the two asks the source for (`history.forecast_inputs`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from driftline.errors import WarehouseUnavailable

from tests.harness.legacy import LEGACIES, Legacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.pair.since.rig import BY_VERSION
from warehouse_agent.config import Fragment
from warehouse_agent.history import forecast_inputs as history_known
from warehouse_agent.history.change_memory import remembered
from warehouse_agent.history.forecast_inputs import even_knots, forecasts
from warehouse_agent.history.refresh_history import EARLIER_MAX, read
from warehouse_agent.inspection import refresh_prediction
from warehouse_agent.inspection.part_prediction import part_expected
from warehouse_agent.methods.registry import opening_for, predicted
from warehouse_agent.planning.choice import partition_for
from warehouse_agent.planning.network import Objective
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.refresh.job import Options
from warehouse_agent.refresh.prepare import PreparedWhole, prepare
from warehouse_agent.runs import attempt
from warehouse_agent.scheduler.due import FragmentDecision, scheduled
from warehouse_agent.storage.formats import head
from warehouse_agent.tasks.steps import Steps

ROWS = 2000
# Of the moment, or asked for by one of the two alone.
ONE_ALONE = {"now", "rows_expected", "allowance"}
PART = 'require = "fuzzy"\nread_at_most = 1000'
TILES = 'require = "fuzzy"\nincremental = { rows = 300, pause_s = 0.001 }'
KEYS = 'proof = "keys"'
GROUPS = 'method = "group"'
PARTS = 'require = "fuzzy"\nproof = "part"'


@dataclass
class Orders:
    """A pair over the table `orders`, and what its refreshes knew."""

    pair: Pair
    legacy: Legacy
    used: list[PlanInputs]
    prepared: list[PreparedWhole]

    @property
    def fragment(self) -> Fragment:
        return self.pair.config().fragments["orders"]

    def lines(self, text: str) -> None:
        self.pair.fragment_lines["orders"] = f'interval_max = "1h"\n{text}'

    def foretold(self) -> PlanInputs:
        reply, error = refresh_prediction._describe(self.fragment)
        assert reply is not None, error
        history = read(self.pair.store, "orders")
        known, _ = refresh_prediction.know(self.pair.store, self.fragment, history, reply)
        return known

    def refreshed(self, options: Options | None = None) -> PlanInputs:
        self.pair.refresh("orders", options=options)
        return self.used[-1]

    def scheduled(self) -> FragmentDecision:
        now = time.time()
        return scheduled(self.pair.config(), self.pair.store, self.fragment, now, None)

    def change(self, first: int, count: int) -> None:
        """Update some rows honestly, and insert as many behind the last one."""
        keys = [row[0] for row in self.legacy.rows("orders")]
        version = max(row[2] for row in self.legacy.rows("orders")) + 1
        wanted = sorted(keys)[first : first + count]
        self.legacy.many(
            "UPDATE orders SET note = ?, version = ? WHERE id = ?",
            [(f"changed {version} {key}", version, key) for key in wanted],
        )
        top = max(keys)
        self.legacy.many(
            "INSERT INTO orders VALUES (?, ?, ?)",
            [(top + 3 * (i + 1), f"new {i}", version) for i in range(count)],
        )


@pytest.fixture(params=["sqlite", "postgresql"])
def orders(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Orders]:
    legacy = LEGACIES[request.param](request, tmp_path)
    legacy.execute(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, note TEXT, version BIGINT NOT NULL)"
        if request.param == "postgresql"
        else "CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, version INTEGER NOT NULL)"
    )
    legacy.many(
        "INSERT INTO orders VALUES (?, ?, ?)", [(3 * i, f"note {i * i}", i) for i in range(ROWS)]
    )
    used, prepared = list[PlanInputs](), list[PreparedWhole]()

    def noted(*args: Any, **options: Any) -> Any:
        found = prepare(*args, **options)
        used.append(found.known)
        if isinstance(found, PreparedWhole):
            prepared.append(found)
        return found

    monkeypatch.setattr(attempt, "prepare", noted)
    published = {"orders": f'table = "orders"\nmarker = {BY_VERSION}'}
    with Pair(NoSpark(), legacy, tmp_path / "pair", published) as pair:
        made = Orders(pair, legacy, used, prepared)
        made.lines("")
        yield made
    legacy.close()


def same(foretold: PlanInputs, used: PlanInputs, *but: str) -> None:
    """All that both know is the same, and so is what follows from it."""
    for field in fields(PlanInputs):
        if field.name not in ONE_ALONE.union(but):
            assert getattr(foretold, field.name) == getattr(used, field.name), field.name
    assert foretold.now < used.now
    assert used.allowance in (None, foretold.allowance)
    assert foretold.scope == used.scope
    openings = [opening_for(one, forecasts(one)[1]) for one in (foretold, used)]
    assert openings[0] is openings[1]


def test_a_first_load(orders: Orders) -> None:
    foretold, used = orders.foretold(), orders.refreshed()
    same(foretold, used)
    assert used.rows is None
    assert foretold.rows_expected == used.rows_expected


@pytest.mark.parametrize(
    "lines", ["", PART, TILES, KEYS, GROUPS, 'method = "range"', 'method = "full"']
)
def test_later_refreshes(orders: Orders, lines: str) -> None:
    """The first one computes quantiles; then they are noted, and the next plan has them."""
    orders.lines(lines)
    orders.refreshed()
    orders.change(7, 20)
    foretold, used = orders.foretold(), orders.refreshed()
    same(foretold, used, "partition")
    even = partition_for(even_knots(foretold.bounds), ROWS, integer_key=True)
    assert foretold.partition == even
    orders.change(40, 10)
    foretold, used = orders.foretold(), orders.refreshed()
    same(foretold, used, *(["partition"] if lines == TILES else []))
    assert used.earlier
    assert (used.tiled is not None) == (lines == TILES)
    assert (used.read_at_most is not None) == (lines == PART)
    assert (used.groups is not None) == (lines in (PART, GROUPS))
    assert (used.marker is not None) == (lines == KEYS)


@pytest.mark.parametrize("lines", ["", PARTS])
def test_all_rows_by_their_keys(orders: Orders, lines: str) -> None:
    orders.refreshed()
    orders.change(7, 20)
    allowed = 'scan = "never"\nrows_by_key = 3000'
    orders.pair.publish("orders", f'table = "orders"\nmarker = {BY_VERSION}\n{allowed}')
    orders.lines(lines)
    foretold, used = orders.foretold(), orders.refreshed()
    same(foretold, used, "partition")
    assert used.by_key
    assert used.in_shards
    assert used.read_at_most is None
    orders.pair.check("orders")


def test_a_part_finds_what_plan_says(orders: Orders) -> None:
    """Without settings it is offered; with them the refresh has the price, and leaves the rows."""
    for first in (7, 7, 40):
        orders.refreshed()
        orders.change(first, 20)
    allowed = 'scan = "never"\nrows_by_key = 1000'
    orders.pair.publish("orders", f'table = "orders"\nmarker = {BY_VERSION}\n{allowed}')
    reply, error = refresh_prediction._describe(orders.fragment)
    assert reply is not None, error
    history = read(orders.pair.store, "orders")
    known, beside = refresh_prediction.know(orders.pair.store, orders.fragment, history, reply)
    assert known.refusal is not None
    assert beside.situation is not None
    orders.lines(PARTS)
    used = orders.refreshed()
    at = replace(beside.situation, now=used.now)
    steps = Steps(NoSpark(), 64 << 20)
    part = part_expected(replace(known, now=used.now), at, steps)
    assert part is not None
    assert part.by_statistics
    assert used.read_at_most == 1000
    assert part.way == predicted(used, forecasts(used)[1])
    left = orders.prepared[-1].ours.updates_left
    # The rows in turn have some of the likeliest among them, which the forecast does not know.
    assert part.changed - part.found == pytest.approx(left, rel=0.15)
    evenly = part_expected(replace(known, now=used.now), at, None)
    assert evenly is not None
    assert not evenly.by_statistics
    assert evenly.found / evenly.changed < part.found / part.changed
    assert evenly.finds_all < part.finds_all < 1


def test_quantiles_that_a_refresh_computes_anew_are_not_foretold_by(orders: Orders) -> None:
    orders.refreshed()
    orders.refreshed()
    noted = orders.foretold().partition
    top = 3 * ROWS
    orders.legacy.many(
        "INSERT INTO orders VALUES (?, ?, ?)",
        [(top + 3 * i, "bulk", ROWS + i) for i in range(ROWS)],
    )
    orders.refreshed()
    foretold = orders.foretold()
    assert foretold.partition != noted
    even = partition_for(even_knots(foretold.bounds), 2 * ROWS, integer_key=True)
    assert foretold.partition == even
    same(foretold, orders.refreshed(), "partition")


@pytest.mark.parametrize("lines", ["", PART, TILES, KEYS])
def test_a_version_that_lost_a_file(orders: Orders, lines: str) -> None:
    """Both pull the lost rows, and as few others as possible."""
    orders.lines(lines)
    orders.refreshed()
    orders.change(100, 30)
    orders.refreshed()
    base = head(orders.pair.store, "orders")
    assert base is not None
    assert len(base.files) > 1
    smallest = min(base.files, key=lambda file: file.rows)
    (orders.pair.root / "orders" / smallest.path).unlink()
    foretold, used = orders.foretold(), orders.refreshed()
    same(foretold, used, "partition")
    assert used.line.objective is Objective.BYTES
    assert used.read_at_most is None
    assert used.rows == base.rows - smallest.rows
    assert (used.rows_lost > 0) == (lines != TILES), "a pass prices all rows"
    orders.pair.check("orders")


def test_a_version_that_lost_most_files_is_refused_by_both(orders: Orders) -> None:
    orders.refreshed()
    base = head(orders.pair.store, "orders")
    assert base is not None
    for file in base.files:
        (orders.pair.root / "orders" / file.path).unlink()
    with pytest.raises(WarehouseUnavailable) as refused:
        orders.foretold()
    assert orders.pair.error("orders")["message"] == refused.value.message


def test_rows_that_a_cut_exchange_staged_withdraw_the_mark(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.lines(KEYS)
    orders.refreshed()
    orders.change(5, 5)
    orders.refreshed()
    assert orders.foretold().marker is not None
    staged = orders.pair.root / "_driftline" / "staging" / "orders" / "exchange-1"
    staged.mkdir(parents=True)
    (staged / "000000.frames").write_bytes(b"frames")
    monkeypatch.setattr(history_known, "AGAIN_BYTES", 0)
    foretold, used = orders.foretold(), orders.refreshed()
    same(foretold, used)
    assert used.marker is not None
    assert not used.marker.mark
    assert used.marker.why == "rows that a cut exchange staged are compared again"


def test_a_command_that_was_killed_before_it_wrote_its_line(orders: Orders) -> None:
    """The commit holds the line, so all three know of the refresh."""
    for first in (5, 30, 60):
        orders.change(first, 4)
        orders.refreshed()
    private = orders.pair.root / "_driftline"
    (private / "schedule" / "orders.json").unlink()
    lines = private / "runs" / "orders.jsonl"
    kept = lines.read_bytes().splitlines(keepends=True)
    lines.write_bytes(b"".join(kept[:-1]))
    foretold, decided = orders.foretold(), orders.scheduled()
    assert lines.read_bytes() == b"".join(kept[:-1]), "neither of the two writes it"
    same(foretold, orders.refreshed(), "partition")
    assert [one.changed for one in foretold.earlier[1:]] == [8, 8]
    assert decided.refresh_s == median(one.seconds for one in foretold.earlier[1:])


def test_the_scheduler_knows_the_same_refreshes(orders: Orders) -> None:
    """It makes no forecast of one, and has its own memory of their changes."""
    assert orders.scheduled().decision.why == "never refreshed"
    assert orders.foretold().version is None
    orders.refreshed()
    for first in (3, 40):
        orders.change(first, 6)
        orders.refreshed()
    foretold, used, decided = orders.foretold(), orders.refreshed(), orders.scheduled()
    assert foretold.earlier == used.earlier
    memory = remembered(orders.pair.store, "orders", orders.fragment.time_zone)
    assert [one.changed for one in memory.recent] == [one.changed for one in used.earlier[1:]] + [0]
    earlier = orders.foretold().earlier
    assert decided.refresh_s == median(one.seconds for one in earlier[1:])
    assert decided.decision.why != "never refreshed"


def test_after_a_pause_both_have_the_totals_of_days(orders: Orders) -> None:
    """Of a history that is made older by three days, behind two weeks of totals."""
    for first in (5, 30, 60):
        orders.change(first, 4)
        orders.refreshed()
    lines = orders.pair.root / "_driftline" / "runs" / "orders.jsonl"
    shift, now, found = timedelta(days=3), datetime.now(UTC), list[str]()
    for n, line in enumerate(lines.read_text().splitlines()[1:] * (EARLIER_MAX // 3 + 1)):
        body = json.loads(line)
        at = now - shift - timedelta(minutes=10 * (EARLIER_MAX + 5 - n))
        equal = {"version": 2, "previous_version": 2}  # to the newest, so its own line was written
        found.append(json.dumps(body | equal | {"refreshed_at": at.isoformat()}))
    day = {"refreshes": 144, "updated": 2000}
    dates = [(now - timedelta(days=n)).date().isoformat() for n in range(6, 20)]
    folded = json.dumps({"folded": dict.fromkeys(dates, day)})
    lines.write_text("\n".join([folded, *found, ""]))
    foretold, used = orders.foretold(), orders.refreshed()
    assert foretold.days == used.days
    assert [one.updated for one in used.days[:13]] == [2000] * 13
    changes, _ = forecasts(used)
    assert changes is not None
    assert changes.median > 3000, "three days; each of the lines found 8 at most"


def test_an_estimate_counts_where_columns_are_accepted(orders: Orders) -> None:
    """The source is asked then, so its estimate is known to the refresh as well."""
    orders.refreshed()
    used = orders.refreshed(Options(accept_schema=True))
    assert used.rows_expected == orders.foretold().rows_expected
    assert used.rows == ROWS
