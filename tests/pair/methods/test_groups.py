"""Groups from end to end: of everything, and of the part that a budget allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import WarehouseUnavailable
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from pyspark.sql import SparkSession

from tests.harness.family import FAMILY
from tests.harness.legacy import Legacy
from tests.harness.pair import ON_SPARK, Pair, legacy_of, plain
from tests.pair.refresh.test_every_engine import ITEMS, ORDERS, TYPES, edit, fill, order
from warehouse_agent.inspection.published_state import fragment_state
from warehouse_agent.methods.groups import opening
from warehouse_agent.planning.update_probability import ChangeOutlook
from warehouse_agent.refresh import finish, prepare
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.storage import formats

BUDGET = 1000
SQLITE = pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
ALSO_ON_SPARK = pytest.mark.parametrize("legacy", ["sqlite", ON_SPARK], indirect=True)
PART = f'read_at_most = {BUDGET}\nrequire = "fuzzy"'


# Two engines are a sample: what an engine promises is tested by its conformance suite.
@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("sqlite-journal", marks=pytest.mark.soak),
        pytest.param("postgresql", marks=pytest.mark.soak),
        *FAMILY,
    ]
)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = legacy_of(request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def pair(spark: SparkSession, legacy: Legacy, tmp_path: Path) -> Iterator[Pair]:
    for table in (ORDERS, ITEMS):
        legacy.execute(table.format(**TYPES[legacy.engine]))
    fill(legacy, 3000)
    relations = {"orders": 'table = "orders"', "items": 'table = "items"'}
    with Pair(spark, legacy, tmp_path / "pair", relations) as made:
        yield made


REFINED_S, WHOLE_S = 0.0, 10.0  # round trips with which groups are refined, or come whole


@pytest.mark.parametrize(
    ("legacy", "round_trip_s"),
    [
        pytest.param("sqlite", REFINED_S, id="sqlite-refined"),
        pytest.param("sqlite", WHOLE_S, id="sqlite-whole"),
        pytest.param("mariadb", REFINED_S, id="mariadb-refined"),
        pytest.param(ON_SPARK, REFINED_S, id=f"{ON_SPARK}-refined"),
        *(
            pytest.param(engine, round_trip_s, marks=pytest.mark.soak)
            for engine in ("sqlite-journal", "postgresql", *FAMILY)
            for round_trip_s in (REFINED_S, WHOLE_S)
            if (engine, round_trip_s) != ("mariadb", REFINED_S)
        ),
    ],
    indirect=["legacy"],
)
def test_by_groups(pair: Pair, monkeypatch: pytest.MonkeyPatch, round_trip_s: float) -> None:
    from warehouse_agent.history import line_notes
    from warehouse_agent.planning.network import Line

    monkeypatch.setattr(line_notes, "line", lambda *_: Line(rtt_s=round_trip_s))
    pair.fragment_lines = dict.fromkeys(("orders", "items"), 'method = "group"')
    pair.reports()
    for seed in (1, 2):
        counts = edit(pair.legacy, seed)
        pair.legacy.execute("UPDATE items SET note = 'x' WHERE line = ?", seed)
        pair.legacy.execute("DELETE FROM items WHERE code = ?", f"Ä{seed:04d}")
        orders, items = pair.reports()
        for report in (orders, items):
            assert report.error is None, report.error
            assert report.method == "group"
            assert report.proof == "total"
            pair.check(report.name)
        assert orders.round_trips == (2 if round_trip_s == REFINED_S else 1)
        assert (orders.rows_inserted, orders.rows_updated, orders.rows_deleted) == counts
        pair.check_feed("orders", seed)
    quiet = pair.refresh("orders")
    assert (quiet.version, quiet.round_trips, quiet.rows_changed) == (2, 1, 0)


@pytest.mark.parametrize(
    "legacy",
    ["sqlite", *(pytest.param(e, marks=pytest.mark.soak) for e in ("postgresql", *FAMILY))],
    indirect=True,
)
def test_a_part_of_a_table(pair: Pair) -> None:
    """What was compared is theirs, the rest as it was, and in some refreshes everything is."""
    pair.refresh("orders")
    pair.fragment_lines["orders"] = f'read_at_most = {BUDGET}\nrequire = "fuzzy"'
    before = {row[0]: tuple(map(plain, row)) for row in pair.published("orders")}
    edit(pair.legacy, 1)
    # New rows past the largest key, and one in a gap.
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(10**6), order(6)])
    compared = 0
    for turn in range(20):
        report = pair.refresh("orders")
        assert report.source_rows_read <= 3 * BUDGET
        assert report.source_scans == 0
        assert (report.proof, report.consistency, report.method) == ("part", "fuzzy", "group")
        assert report.rows_left is not None
        assert report.rows_left >= 3000 - BUDGET - 10
        theirs = {row[0]: tuple(map(plain, row)) for row in pair.legacy.rows("orders")}
        ours = {row[0]: tuple(map(plain, row)) for row in pair.published("orders")}
        # Every row is as it is at the source, or as it was here.
        for key in ours.keys() | theirs.keys() | before.keys():
            assert ours.get(key) in (theirs.get(key), before.get(key)), key
        if turn == 0:
            assert 10**6 in ours
        compared = sum(ours.get(k) == theirs.get(k) for k in theirs)
        if ours == theirs:
            break
    assert compared == len(theirs)
    assert 0 < turn < 14
    pair.check("orders")
    # A whole refresh after it finds nothing to do.
    pair.fragment_lines.clear()
    last = pair.refresh("orders")
    assert (last.rows_changed, last.proof) == (0, "total")


@ALSO_ON_SPARK
def test_a_part_compares_what_is_likely_to_have_changed(pair: Pair) -> None:
    """Also where parts alone have told what that is."""
    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    hot = [row[0] for row in sorted(pair.published("orders"))[:40]]  # the first window has them
    for turn in range(3):
        pair.legacy.many("UPDATE orders SET note = ? WHERE id = ?", [(f"{turn}", i) for i in hot])
        report = pair.refresh("orders")
        # By chance it would be one in four of them.
        assert report.rows_updated == len(hot)
    pair.check("orders")


@SQLITE
def test_rows_before_the_least_key_have_their_turn(pair: Pair) -> None:
    """A part as large as the table leaves nothing, wherever its turns begin and end."""
    last = sorted(row[0] for row in pair.legacy.rows("orders"))[200]
    pair.legacy.execute("DELETE FROM orders WHERE id > ?", last)
    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    for key in (-1, -7, -100):
        pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(key)])
        assert pair.refresh("orders").rows_inserted == 1
        pair.check("orders")


def windows_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What parts from here on have in turn: first and last position."""
    windows: list[tuple[int, int]] = []
    choose = opening._window

    def chosen(*given: Any) -> tuple[tuple[int, int], int]:
        window, following = choose(*given)
        windows.append(window)
        return window, following

    monkeypatch.setattr(opening, "_window", chosen)
    return windows


@SQLITE
def test_turns_follow_each_other(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every window begins behind the last one whose end was noted: a crash between a commit and its
    note repeats one, and none is left out; behind the largest key they begin again at the least."""
    windows = windows_of(monkeypatch)

    def lost(_job: Job) -> None:
        raise WarehouseUnavailable("The note is lost.")

    def turn(key: int) -> None:
        pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(key)])
        assert pair.refresh("orders").rows_inserted == 1

    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    turn(10**6)
    turn(10**6 + 1)
    with monkeypatch.context() as patch:
        patch.setattr(Job, "write_notes", lost)
        turn(10**6 + 2)
    turn(10**6 + 3)
    turn(10**6 + 4)
    first, second, third, again, next_one = windows
    assert first[0] == POSITION_MIN
    assert second[0] == first[1] + 1
    assert third[0] == again[0] == second[1] + 1
    assert next_one[0] == again[1] + 1
    place = pair.root / "_driftline" / "fragments" / "orders.json"
    noted = json.loads(place.read_text())
    assert noted["turn_from"] == next_one[1] + 1
    # The keys at the end may have been deleted since.
    for key, beyond in ((-1, 10**6 + 5), (-2, POSITION_MAX)):
        place.write_text(json.dumps(noted | {"turn_from": beyond}))
        turn(key)
        assert windows[-1][0] == POSITION_MIN


@SQLITE
def test_a_turn_ends_at_the_largest_key(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one after it begins with what lies below the least."""
    windows = windows_of(monkeypatch)
    last = max(row[0] for row in pair.legacy.rows("orders"))
    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    while len(windows) < 2 or windows[-1][0] != POSITION_MIN:
        pair.refresh("orders")
    *round_, _ = windows
    assert len(round_) == 12
    assert [first for first, _ in round_[1:]] == [end + 1 for _, end in round_[:-1]]
    assert round_[-1][1] == last


@SQLITE
def test_a_part_of_what_is_gone_is_refused(pair: Pair) -> None:
    """Long before the table has half of its rows."""
    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    pair.legacy.execute("DELETE FROM orders")
    error = pair.error("orders")
    assert error["code"] == "SHRANK"
    assert "of those that were compared" in error["message"]
    report = pair.refresh("orders", options=Options(allow_shrink=True))
    assert BUDGET / 2 < report.rows_deleted <= BUDGET


@SQLITE
def test_a_part_that_is_not_proven_says_what_broke(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(10**6), order(10**6 + 1)])
    real = finish._apply
    monkeypatch.setattr(finish, "_apply", lambda *given: replace(real(*given), shipped=()))
    error = pair.error("orders")
    assert (error["code"], error["details"]["cause"]) == (
        "PROOF",
        "rows that came were not written as they came",
    )
    monkeypatch.undo()
    assert pair.refresh("orders").rows_inserted == 2


def test_a_part_of_too_much_is_refused(pair: Pair) -> None:
    pair.refresh("orders")
    pair.fragment_lines["orders"] = f'read_at_most = {BUDGET}\nrequire = "fuzzy"'
    rows = [order(10**6 + key) for key in range(2 * BUDGET)]
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
    error = pair.error("orders")
    assert error["code"] == "LIMIT"
    assert "read_at_most" in error["remedy"]
    # What follows in the stream is answered as ever.
    refused, items = pair.reports()
    assert refused.error is not None
    assert items.error is None, items.error
    pair.check("items")
    pair.fragment_lines.clear()
    assert pair.refresh("orders").rows_inserted == 2 * BUDGET
    pair.check("orders")


def interrupted(pair: Pair) -> None:
    """A refresh of orders that ends before its commit: what came is staged."""

    def interrupt(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pair.reports("orders")


@SQLITE
def test_a_first_load_that_was_cut_is_no_part(pair: Pair) -> None:
    """What is staged of it is not taken for a published version."""
    rows = [tuple(r) for r in pair.legacy.rows("orders") if r[0] % 20 == 12]
    assert rows
    pair.legacy.execute("DELETE FROM orders WHERE id % 20 = 12")
    pair.fragment_lines["orders"] = PART
    interrupted(pair)
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
    report = pair.refresh("orders")
    assert (report.version, report.proof, report.rows_left) == (0, "total", None)
    pair.check("orders")


@SQLITE
def test_a_refresh_of_an_empty_version_that_was_cut_is_no_part(pair: Pair) -> None:
    """Nor is what is staged of it: the source may have as many rows again, and more."""
    pair.legacy.execute("DELETE FROM orders")
    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    some, more = ([order(key) for key in range(at, at + 3 * BUDGET)] for at in (0, 3 * BUDGET))
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", some)
    interrupted(pair)
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", more)
    report = pair.refresh("orders")
    assert (report.version, report.proof, report.rows_left) == (1, "total", None)
    pair.check("orders")


@SQLITE
def test_a_changed_schema_is_compared_whole(pair: Pair) -> None:
    """Rows that are left would have no values in the new column."""
    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN remark VARCHAR(20)")
    pair.legacy.execute("UPDATE orders SET remark = 'x'")
    report = pair.refresh("orders", options=Options(accept_schema=True))
    assert report.proof == "total"
    pair.check("orders")


@ALSO_ON_SPARK
def test_rows_in_no_unit_are_not_published_twice(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are shipped before the totals are known to be equal."""
    certain = partial(ChangeOutlook, share=1e3, now_s=1e9, elapsed_s=1e12)
    monkeypatch.setattr(prepare, "outlook_of", lambda _base, _changes, stamp: certain(stamp.clock))
    pair.fragment_lines["orders"] = 'method = "group"'
    pair.refresh("orders")
    pair.legacy.execute("UPDATE orders SET note = 'later' WHERE id < 100")
    interrupted(pair)
    report = pair.refresh("orders")
    assert (report.version, report.method) == (1, "group")
    pair.check("orders")
    pair.check_feed("orders", 1)


@SQLITE
def test_a_part_is_as_old_as_the_last_refresh_of_everything(pair: Pair) -> None:
    """Also where that had found nothing to publish, and its note is lost."""
    pair.refresh("orders")
    whole = pair.refresh("orders")
    assert whole.version == 0
    pair.fragment_lines["orders"] = PART
    for key in (10**6, 10**6 + 1):
        pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(key)])
        report = pair.refresh("orders")
        (pair.root / "_driftline" / "fragments" / "orders.json").unlink()
        found = fragment_state(pair.store, "orders")
        assert (found.version, found.proof) == (report.version, "part")
        assert (found.as_of, found.checked_at) == (whole.as_of, whole.checked_at)
        assert found.as_of != report.as_of
        assert found.consistency == "fuzzy"


@SQLITE
def test_a_whole_refresh_after_a_part_says_that_all_is_proven(pair: Pair) -> None:
    pair.refresh("orders")
    pair.fragment_lines["orders"] = PART
    pair.legacy.many("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", [order(10**6)])
    assert pair.refresh("orders").proof == "part"
    pair.fragment_lines.clear()
    report = pair.refresh("orders")
    assert (report.version, report.rows_changed, report.proof) == (2, 0, "total")
    found = fragment_state(pair.store, "orders")
    assert (found.proof, found.consistency) == ("total", "exact")
    pair.check("orders")
    pair.check_feed("orders", 2)
    # And no version more, as long as nothing changes.
    assert pair.refresh("orders").version == 2


def test_a_part_by_texts_needs_the_order_of_bytes(pair: Pair) -> None:
    """SQLite sorts texts by their bytes, the others here by the rules of a language."""
    pair.refresh("items")
    pair.fragment_lines["items"] = f'read_at_most = {BUDGET}\nrequire = "fuzzy"'
    pair.legacy.execute("UPDATE items SET note = 'x' WHERE line = 1")
    if pair.legacy.engine == "sqlite":
        assert pair.refresh("items").proof == "part"
        return
    error = pair.error("items")
    assert error["code"] == "CONFIGURATION"
    assert "by the collation" in error["message"]
