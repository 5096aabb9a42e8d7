"""Parts of tables whose keys are not one integer, from end to end, on three engines.

The oracle is the owner's own connection. What was read is theirs, the rest is as it was; no scan is
made, by the server's own counters.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driftline.wire import negotiation

from tests.harness.family import FAMILY
from tests.harness.legacy import LEGACIES, PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, plain
from tests.pair.parts.test_key_tiles import KEYS, ROWS, Orders
from warehouse_agent.methods.groups import key_parts

BUDGET = 1000
IN_TURN = 250  # of them, a quarter
HOT = range(500, 540)
PART = 'require = "fuzzy"\nproof = "part"'
NEVER = f'table = "orders"\nscan = "never"\nrows_by_key = {BUDGET}'
ENGINES = ["sqlite", *FAMILY, "postgresql"]
Rows = dict[tuple[Any, ...], tuple[Any, ...]]


class Site:
    """A source that must not be scanned any more, and its copy."""

    def __init__(self, orders: Orders, pair: Pair) -> None:
        self.orders, self.pair, self.legacy = orders, pair, orders.legacy
        if self.legacy.engine == "postgresql":
            self.legacy.execute("ANALYZE orders")
        pair.fragment_lines["orders"] = PART
        assert pair.refresh("orders").proof == "total"
        pair.publish("orders", NEVER)
        self.before = self.ours()

    def ours(self) -> Rows:
        table = self.pair.delta("orders").to_pyarrow_table()
        rows = table.select(["note", *self.orders.key]).to_pylist()
        return self._by_key(map(plain, row.values()) for row in rows)

    def theirs(self) -> Rows:
        rows = self.legacy.rows("orders")
        return self._by_key(
            (str(v) if isinstance(v, uuid.UUID) else plain(v) for v in row) for row in rows
        )

    def _by_key(self, rows: Any) -> Rows:
        found = [tuple(row) for row in rows]
        return {row[1:]: row for row in found}

    def update(self, numbers: range, text: str) -> None:
        """Update rows, after what was published until now."""
        self.before = self.ours()
        self.orders.update(numbers, text)

    def refresh(self) -> Any:
        """Refresh a part, and check what must hold of every one."""
        scans = self.full_scans()
        report = self.pair.refresh("orders")
        assert (report.proof, report.consistency, report.method) == ("part", "fuzzy", "group")
        assert report.source_scans == 0
        assert report.source_rows_read <= BUDGET
        assert self.full_scans() == scans
        ours, theirs = self.ours(), self.theirs()
        # Every row is as it is at the source, or as it was here.
        for key in ours.keys() | theirs.keys() | self.before.keys():
            assert ours.get(key) in (theirs.get(key), self.before.get(key)), key
        return report

    def full_scans(self) -> int | None:
        """Scans of the whole table so far, by the server; None: it counts none."""
        if not isinstance(self.legacy, PostgresLegacy):
            return None
        return self.legacy.sequential_scans("orders")


@contextlib.contextmanager
def site_of(request: pytest.FixtureRequest, folder: Path, engine: str, kind: str) -> Iterator[Site]:
    legacy = LEGACIES[engine](request, folder)
    with contextlib.closing(legacy):
        orders = Orders(legacy, kind, has_snapshots=True)
        with Pair(NoSpark(), legacy, folder / "pair", {"orders": 'table = "orders"'}) as pair:
            yield Site(orders, pair)


# Each engine and each kind of key; all pairs of them in the soak.
SAMPLE = {("sqlite", "text"), ("mariadb", "uuid"), ("postgresql", "date")}
PAIRS = [
    pytest.param(engine, kind, marks=() if is_sample else pytest.mark.soak)
    for engine in ENGINES
    for kind in KEYS
    for is_sample in [kind == "composite" or (engine, kind) in SAMPLE]
]


@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_parts_find_every_change_in_turn(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, kind: str
) -> None:
    """Updates, deletions and insertions, also between old keys, within two rounds of turns."""
    with site_of(request, tmp_path, engine, kind) as site:
        site.orders.edit("first", 1)
        site.orders.update(HOT, "hot")
        first = site.refresh()
        assert 0 < first.rows_left < ROWS
        turns = 1
        while site.ours() != site.theirs():
            assert turns <= 2 * ROWS / IN_TURN
            site.refresh()
            turns += 1
        # What parts have learnt: the rows that changed are likely to change again.
        site.update(HOT, "hotter")
        assert site.refresh().rows_updated == len(HOT)
        site.pair.publish("orders", 'table = "orders"')
        site.pair.fragment_lines.clear()
        last = site.pair.refresh("orders")
        assert (last.rows_changed, last.proof) == (0, "total")


def test_turns_begin_with_the_key_after_the_last(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again at the least one: every key has its turn, whatever a note was replaced by."""
    windows = []
    choose = key_parts.window_of

    def chosen(*given: Any) -> Any:
        windows.append(choose(*given).ranges)
        return choose(*given)

    monkeypatch.setattr(key_parts, "window_of", chosen)
    with site_of(request, tmp_path, "sqlite", "composite") as site:
        while len(windows) < 3 or windows[-1][0].lower is not None:
            site.update(range(100, 110), f"turn {len(windows)}")
            site.refresh()
        *round_, _ = windows
        assert 6 <= len(round_) <= 8
        assert [after[0].lower for after in round_[1:]] == [
            ranges[0].upper for ranges in round_[:-1]
        ]
        assert round_[-1][-1].upper is None
        place = site.pair.root / "_driftline" / "fragments" / "orders.json"
        noted = json.loads(place.read_text())
        for broken in (
            ["a"],
            ["a", "2020-01-01", "no number"],
            [1],
            "a",
            None,
            ["\U0010ffff", "2030-01-01", "9"],
        ):
            place.write_text(json.dumps(noted | {"turn_from_key": broken}))
            site.update(range(100, 110), f"broken {broken}")
            site.refresh()
            assert windows[-1][0].lower is None


def test_an_older_source_is_asked_for_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the feature by name, and the warehouse says so."""
    with site_of(request, tmp_path, "sqlite", "text") as site:
        older = {name: what for name, what in negotiation.FEATURES.items() if name != "keys"}
        monkeypatch.setattr(negotiation.check_features, "__defaults__", (older,))
        error = site.pair.error("orders")
        assert error["code"] == "VERSION"
        assert "keys" in error["message"]
