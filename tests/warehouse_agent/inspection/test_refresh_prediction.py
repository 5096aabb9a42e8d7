"""What a refresh is predicted to do: pure cases, and against what a refresh then takes."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from driftline.errors import ConfigurationError, NotFound
from driftline.limits import GROUPED_KEYS_MAX
from driftline.reconciliation.ranges import uniform
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.fixtures.clock import Daily
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from tests.samples.prices import flat
from tests.warehouse_agent.change_models.weeks import THREE, every, remembered
from warehouse_agent.change_models import operational_time
from warehouse_agent.change_models.fit import fit
from warehouse_agent.change_models.memory import Interval, Memory
from warehouse_agent.config import load, select
from warehouse_agent.history import line_notes
from warehouse_agent.history.refresh_history import read
from warehouse_agent.inspection.refresh_prediction import (
    Forecast,
    ForecastFacts,
    forecast,
    know,
    predict,
    row_hours,
    rows_forecast,
)
from warehouse_agent.methods.registry import modelled
from warehouse_agent.planning import prices
from warehouse_agent.planning.candidates import expected_slots
from warehouse_agent.planning.change_forecast import (
    ChangeForecast,
    DayOfChanges,
    EarlierRefresh,
)
from warehouse_agent.planning.choice import CHANGE_SHARE, Method, partition_for
from warehouse_agent.planning.group_selection import GroupSizes
from warehouse_agent.planning.network import LOAD_LEVEL, Line, Objective
from warehouse_agent.planning.plan_inputs import ChangeKinds, PlanInputs
from warehouse_agent.planning.prices import LearntPrices
from warehouse_agent.storage.store import Store

ROWS = 100_000
LOADED = datetime(2026, 1, 1, tzinfo=UTC)
KNOWN = PlanInputs(
    name="orders",
    version=3,
    rows=ROWS,
    rows_expected=ROWS,
    prices=flat(40.0),
    partition=partition_for([], ROWS, integer_key=False),
    integer_key=True,
    bounds=(1, 4 * ROWS),
    line=Line(),
    now=LOADED,
    forced=None,
    read_at_most=None,
    earlier=(),
)


def known(**facts: object) -> PlanInputs:
    """Asked a day after the last refresh."""
    found = dataclasses.replace(KNOWN, **facts)  # type: ignore[arg-type]
    last = found.earlier[-1].at if found.earlier else LOADED
    return dataclasses.replace(found, now=last + timedelta(days=1))


def run(
    changed: int, *, day: int = 0, seconds: float = 5.0, method: str = "sketch"
) -> EarlierRefresh:
    """The load (day 0), or the refresh of a day after it."""
    at = LOADED + timedelta(days=day)
    return EarlierRefresh(at, 0, changed, 0, ROWS, day == 0, method, 1, seconds)


def daily(*changed: int, **facts: object) -> tuple[EarlierRefresh, ...]:
    """The load, and a refresh a day."""
    refreshes = (run(d, day=i + 1, **facts) for i, d in enumerate(changed))  # type: ignore[arg-type]
    return (run(0), *refreshes)


def by_name(found: Forecast) -> dict[str, int | None]:
    return {c.what: c.bytes for c in found.candidates}


def test_a_first_load() -> None:
    found = predict(known(version=None, rows=None, partition=uniform(2)))
    assert found.first_load
    assert list(by_name(found)) == ["full copy"] == [found.chosen]
    size = by_name(found)["full copy"]
    assert size is not None
    assert 40 * ROWS < size < 41 * ROWS


def test_a_first_load_of_unknown_size() -> None:
    found = predict(
        known(version=None, rows=None, rows_expected=None),
        ForecastFacts(source_error="Nothing answers."),
    )
    assert by_name(found) == {"full copy": None}


def test_before_anything_was_shipped_no_bytes_are_told() -> None:
    """Guessed from columns and rows they were wrong by a thousand, once each way."""
    guess = prices.from_notes(LearntPrices(), 9, level=LOAD_LEVEL)
    found = predict(known(version=None, rows=None, partition=uniform(2), prices=guess))
    (candidate,) = found.candidates
    assert (candidate.bytes, candidate.exchange_seconds, candidate.source_rows) == (
        None,
        None,
        ROWS,
    )
    later = predict(known(prices=guess, earlier=daily(1000)))
    assert later.floor_bytes is None
    assert {what for what, size in by_name(later).items() if size is not None} == {
        "nothing changed"
    }
    assert later.chosen in by_name(later)
    told = prices.from_notes(LearntPrices(copied_row_bytes=31.0), 9, level=LOAD_LEVEL)
    (candidate,) = predict(known(version=None, rows=None, prices=told)).candidates
    assert candidate.bytes == pytest.approx(31 * ROWS, rel=0.01)


def test_a_first_refresh_assumes_a_share() -> None:
    found = predict(KNOWN)
    sizes = by_name(found)
    assert list(sizes) == [
        "nothing changed", "by sketch", "by ranges", "by groups", "full copy",
    ]  # fmt: skip
    assert found.chosen == "by sketch"
    assert found.change_share == CHANGE_SHARE
    assert found.change_share_from == "assumed"
    assert found.changes_expected is None
    nothing, sketch, ranges, groups, full = (size or 0 for size in sizes.values())
    assert sketch < groups < full
    assert found.floor_bytes is not None
    assert nothing < 3000 < found.floor_bytes < sketch < ranges < full
    assert sketch < 1.6 * found.floor_bytes
    # Nothing was predicted, so nothing goes up before the verdict.
    assert [c.round_trips for c in found.candidates] == [1, 2, 3, 2, 2]
    assert [c.seconds for c in found.candidates] == [None] * 5


def test_a_steady_table_needs_one_round_trip() -> None:
    found = predict(known(earlier=daily(*[1000] * 10)))
    assert found.changes_expected is not None
    low, median, high = found.changes_expected
    assert low <= median <= high
    assert median == pytest.approx(1000, rel=0.05)
    assert found.change_share == pytest.approx(0.01, rel=0.05)
    assert found.change_share_from == "after the last 10 refreshes"
    assert {c.what: c.round_trips for c in found.candidates}["by sketch"] == 1


def test_so_many_changes_that_everything_is_cheaper() -> None:
    found = predict(known(earlier=daily(*[ROWS * 9 // 10] * 5)))
    assert found.chosen == "full copy"
    assert found.change_share == pytest.approx(0.9, rel=0.1)


@pytest.mark.parametrize(
    ("forced", "chosen"),
    [(Method.RANGE, "by ranges"), (Method.FULL, "full copy"), (Method.SKETCH, "by sketch")],
)
def test_the_configuration_decides(forced: Method, chosen: str) -> None:
    for changed in (1, ROWS // 2):
        found = predict(known(forced=forced, earlier=daily(changed)))
        assert found.chosen == chosen
        assert ("by sketch" in by_name(found)) == (forced is Method.SKETCH)


@pytest.mark.parametrize("earlier", [(), daily(*[1000] * 10)], ids=["first", "steady"])
@pytest.mark.parametrize("is_hashed", [False, True])
def test_more_rows_at_the_source_cost_more(
    earlier: tuple[EarlierRefresh, ...], is_hashed: bool
) -> None:
    keys = {"bounds": None, "integer_key": False} if is_hashed else {}
    now = by_name(predict(known(earlier=earlier, **keys)))
    then = by_name(predict(known(earlier=earlier, rows_expected=ROWS * 3 // 2, **keys)))
    assert then["nothing changed"] == now["nothing changed"]
    for name in ("by sketch", "by ranges", "full copy"):
        before, after = now[name], then[name]
        assert before is not None
        assert after is not None
        assert after > before + 40 * ROWS // 3


@pytest.mark.parametrize("is_hashed", [False, True])
def test_new_rows_are_not_counted_twice(is_hashed: bool) -> None:
    """A thousand rows a day, and the catalogue has a thousand more."""
    keys = {"bounds": None, "integer_key": False} if is_hashed else {}
    earlier = daily(*[1000] * 10)
    now = by_name(predict(known(earlier=earlier, **keys)))
    then = by_name(predict(known(earlier=earlier, rows_expected=ROWS + 1000, **keys)))
    for name in ("by sketch", "by ranges"):
        assert then[name] == pytest.approx(now[name], rel=0.01)


@pytest.mark.parametrize("method", [Method.FULL, Method.RANGE])
def test_what_is_modelled_is_of_the_rows_that_were_found(method: Method) -> None:
    small = known(rows=1000, rows_expected=None, bounds=(1, 4000))
    found = modelled(small, None, 999_000, method, 1_000_000)
    assert found is not None
    assert found.bytes == pytest.approx(40e6, rel=0.01)
    assert found.source_rows is not None
    assert found.source_rows >= 1_000_000


def test_time_is_that_of_earlier_refreshes() -> None:
    earlier = (
        run(0),
        run(0, day=1, seconds=3.0),
        run(9, day=2, seconds=7.0, method="range"),
        run(9, day=3, seconds=9.0, method="range"),
        run(9, day=4, seconds=4.0),
    )
    found = {c.what: c.seconds for c in predict(known(earlier=earlier)).candidates}
    assert found == {
        "nothing changed": 3.0, "by sketch": 4.0, "by ranges": 8.0, "by groups": None,
        "full copy": None,
    }  # fmt: skip


def test_hashed_keys_cost_a_second_scan() -> None:
    assert [c.source_scans for c in predict(KNOWN).candidates] == [1, 1, 1, 1, 2]
    hashed = predict(known(integer_key=False, bounds=None))
    assert [c.source_scans for c in hashed.candidates] == [1, 2, 2, 2, 2]
    found = predict(known(integer_key=False, bounds=None, earlier=daily(9)))
    by_sketch = {c.what: c for c in found.candidates}["by sketch"]
    assert by_sketch.source_scans == 1
    assert by_sketch.source_rows is not None
    assert ROWS < by_sketch.source_rows < 1.02 * ROWS


@pytest.mark.parametrize("last", [run(0, day=2), run(9, day=2, method="range")])
def test_places_are_expected_after_a_sketch_that_found_changes(last: EarlierRefresh) -> None:
    """A scan after a comparison that found nothing keeps none."""
    earlier = (*daily(9), last)
    found = predict(known(integer_key=False, bounds=None, earlier=earlier))
    assert [c.source_scans for c in found.candidates] == [1, 2, 2, 2, 2]


def test_a_twentieth_of_the_rows_is_read_by_place_and_a_fifth_by_a_scan() -> None:
    for share, scans in ((0.05, 1), (0.2, 2)):
        facts = known(integer_key=False, bounds=None, earlier=daily(9))
        found = modelled(facts, None, round(share * ROWS), Method.SKETCH, ROWS)
        assert found is not None
        assert found.source_scans == scans


@given(st.integers(1, 1 << 18), st.integers(0, 1 << 20))
def test_changed_rows_in_ranges(ranges: int, changed: int) -> None:
    found = expected_slots(ranges, changed)
    assert 0 <= found <= min(ranges, changed) + 1e-6


def test_changed_rows_in_ranges_against_dice() -> None:
    dice = random.Random(7)
    thrown = [len({dice.randrange(1000) for _ in range(700)}) for _ in range(200)]
    assert expected_slots(1000, 700) == pytest.approx(sum(thrown) / 200, rel=0.01)


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=True)
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    dice = random.Random(1)
    rows = [(i * 3, dice.randbytes(12).hex()) for i in range(4000)]
    legacy.many("INSERT INTO orders VALUES (?, ?)", rows)
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as made:
        yield made
    legacy.close()


def predicted(pair: Pair) -> Forecast:
    return forecast(Store(str(pair.warehouse)), select(pair.config(), ["orders"], False)[0])


def test_the_forecast_comes_true(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first = predicted(pair)
    assert first.first_load
    assert by_name(first) == {"full copy": None}
    load = pair.refresh()
    assert load.predicted is not None
    assert load.predicted["bytes"] is None
    before = predicted(pair)
    whole = by_name(before)["full copy"]
    assert whole is not None
    assert load.bytes_received / 2 <= whole <= 2 * load.bytes_received
    assert (before.version, before.rows_published, before.source_error) == (0, 4000, None)
    # One row in a hundred, as is assumed before the first refresh.
    pair.legacy.execute("UPDATE orders SET note = hex(randomblob(12)) WHERE id % 300 = 0")
    report = pair.refresh()
    sizes = by_name(before)
    moved = report.bytes_sent + report.bytes_received
    assert report.method == "sketch"
    assert before.chosen == "by sketch"
    assert moved == pytest.approx(sizes["by sketch"], rel=0.35)
    assert report.round_trips == 2
    # As far from this refresh as it was from the load.
    fragment, store = select(pair.config(), ["orders"], False)[0], Store(str(pair.warehouse))
    earlier, last = (run.at for run in read(store, "orders").earlier)
    known_now, _ = know(store, fragment, read(store, "orders"), None)
    then = dataclasses.replace(known_now, now=last + (last - earlier))
    after = predict(then)
    assert after.changes_expected is not None
    assert after.changes_expected[0] <= 40 <= after.changes_expected[2]
    assert after.change_share_from == "after the last refresh"
    # More changes are expected the longer ago the last refresh: predict at the refresh's moment.
    asked, changes_expected = [], operational_time.changes_expected

    def noted(
        earlier: Sequence[EarlierRefresh],
        rows: int,
        now: datetime,
        days: Sequence[DayOfChanges] = (),
        *,
        zone: str = "UTC",
    ) -> ChangeForecast | None:
        asked.append(now)
        return changes_expected(earlier, rows, now, days, zone=zone)

    monkeypatch.setattr(operational_time, "changes_expected", noted)
    known, _ = know(store, fragment, read(store, "orders"), None)
    quiet = pair.refresh()
    now = predict(dataclasses.replace(known, now=asked[0]))
    moved = quiet.bytes_sent + quiet.bytes_received
    assert now.changes_expected == quiet.changes_expected
    assert moved == pytest.approx(by_name(now)["nothing changed"], rel=0.25)
    assert quiet.changes_expected is not None
    assert predicted(pair).candidates[0].seconds is not None


# `since` needs a marker, and a fragment that takes its claims: tests/pair/since/test_refreshes.py.
@pytest.mark.parametrize("method", [None, *(m for m in Method if m is not Method.SINCE)])
def test_what_is_found_is_what_was_modelled(
    pair: Pair, daily_clock: type[Daily], method: Method | None
) -> None:
    """Predicted before it, and of what was found, and what it took stand in every report."""
    if method is not None:
        pair.fragment_lines["orders"] = f'method = "{method.value}"'
    for turn in range(4):  # a load, and three refreshes
        pair.legacy.execute(
            f"UPDATE orders SET note = lower(hex(randomblob(12))) WHERE id % 90 = {3 * turn}"
        )
        foretold = predicted(pair)
        report = pair.refresh()
        daily_clock.days += 1
        assert report.predicted is not None
        assert report.predicted["what"] == foretold.chosen
    found, moved = report.modelled, report.bytes_sent + report.bytes_received
    assert found is not None
    assert moved == pytest.approx(found["bytes"], rel=0.15)
    # Cells may do though they are fewer than are nearly always enough.
    assert abs(report.round_trips - found["round_trips"]) <= (method in (None, Method.SKETCH))
    if method is Method.GROUP:  # a quarter of the rows are in groups that differ, or some more
        assert report.source_scans in (1, 2)
    else:
        assert report.source_scans == found["source_scans"]
        assert report.source_rows_read == pytest.approx(found["source_rows"], rel=0.05)
    assert report.bytes_rewritten == pytest.approx(found["bytes_rewritten"], rel=0.15)
    quiet = pair.refresh()
    found, moved = quiet.modelled, quiet.bytes_sent + quiet.bytes_received
    assert found is not None
    assert found["what"] == "nothing changed"
    assert moved == pytest.approx(found["bytes"], rel=0.2)
    assert quiet.bytes_rewritten == 0


def test_a_source_that_is_away_is_said(pair: Pair) -> None:
    pair.refresh()
    pair.stop()
    found = predicted(pair)
    assert found.source_error is not None
    assert "Nothing answers" in found.source_error
    assert found.rows_expected is None
    assert found.chosen == "by sketch"


def test_a_plan_and_a_refresh_keep_to_what_the_dba_allows(pair: Pair) -> None:
    """Refreshes know it from a load, and from a plan since."""
    for limit in (90_000, 80_000):
        pair.limits = f"rows_per_second = {limit}"
        pair.restart()
        if limit == 90_000:
            pair.refresh()
        else:
            predicted(pair)
        fragment, store = select(pair.config(), ["orders"], False)[0], Store(str(pair.warehouse))
        assert line_notes.line(store, fragment.source, None).rows_per_s == limit
        found, _ = know(store, fragment, read(store, "orders"), None)
        assert found.line.rows_per_s == limit


def test_a_refusal_is_an_error(pair: Pair) -> None:
    pair.fragment_lines["orders"] = 'relation = "secret"'
    with pytest.raises(NotFound):
        predicted(pair)


def test_a_changed_schema_is_foretold(pair: Pair) -> None:
    pair.refresh()
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN extra TEXT")
    assert predicted(pair).schema_changes == ("column extra (text) was added",)


def test_groups_are_a_candidate_and_can_be_forced() -> None:
    found = predict(known(forced=Method.GROUP))
    (by_groups,) = [c for c in found.candidates if c.what == "by groups"]
    assert found.chosen == "by groups"
    assert found.floor_bytes is not None
    assert by_groups.bytes is not None
    assert found.floor_bytes < by_groups.bytes < 40 * ROWS / 2
    assert (by_groups.round_trips, by_groups.source_scans) == (2, 1)  # refined


def test_deleted_rows_are_not_shipped_by_groups() -> None:
    """Their keys and the hashes of their groups are."""
    quiet, deleting = (
        [
            dataclasses.replace(run(1000, day=day), updated=1000 - gone, deleted=gone)
            for day in (0, 1, 2)
        ]
        for gone in (0, 900)
    )
    sizes = []
    for earlier in (quiet, deleting):
        found = by_name(predict(known(forced=Method.GROUP, earlier=tuple(earlier))))["by groups"]
        assert found is not None
        sizes.append(found)
    updated, deleted = sizes
    assert updated - deleted > 900 * 40 / 2


def test_what_groups_took_is_learnt() -> None:
    """Of as many rows, named in the same way; else all rows are taken to be equally likely."""
    guess = by_name(predict(known(forced=Method.GROUP)))["by groups"]
    one = GroupSizes(ROWS // 2, groups=200, alone=0, key_bytes=0.05)
    for noted, is_used in (
        (one, True),
        (replace(one, compared=ROWS // 2 - 1), False),
        (replace(one, is_named=True), False),
    ):
        found = predict(known(forced=Method.GROUP, groups=noted))
        assert (by_name(found)["by groups"] != guess) == is_used
    nothing = by_name(predict(known(forced=Method.GROUP, groups=one)))["nothing changed"]
    assert nothing == pytest.approx(ROWS * 0.05 + 400 * 8, abs=500)
    alone = replace(one, alone=100)  # come, changed or not
    more = by_name(predict(known(forced=Method.GROUP, groups=alone)))["nothing changed"]
    assert more is not None
    assert nothing is not None
    assert more - nothing == 200 * 40


def test_rows_that_were_inserted_are_in_no_group() -> None:
    sizes = GroupSizes(ROWS, groups=1000, alone=0, key_bytes=0.05)
    facts = known(forced=Method.GROUP, groups=sizes, line=Line(rtt_s=0.001))
    updated, inserted, deleted = (
        modelled(facts, None, 10, Method.GROUP, ROWS + more, kinds=kinds)
        for more, kinds in (
            (0, ChangeKinds()),
            (10, ChangeKinds(inserted=1.0)),
            (-10, ChangeKinds(deleted=1.0)),
        )
    )
    assert updated is not None
    assert inserted is not None
    assert deleted is not None
    opening = ROWS * 0.05 + 8 * 1000
    assert inserted.bytes == pytest.approx(opening + 10 * 40, abs=500)
    assert updated.bytes == pytest.approx(opening + 10 * 40 + 8 * 10 * ROWS / 1000, abs=700)
    assert (inserted.round_trips, updated.round_trips) == (1, 2)
    assert deleted.bytes == pytest.approx(opening, abs=500), "a key, and a hash of its group"


@pytest.mark.parametrize("more", [0, 1])
def test_groups_are_a_candidate_of_as_many_rows_as_they_may_name(more: int) -> None:
    rows = GROUPED_KEYS_MAX + more
    found = predict(known(rows=rows, rows_expected=rows))
    assert ("by groups" in by_name(found)) == (not more)


def test_a_part_is_what_is_done() -> None:
    found = predict(known(read_at_most=5000))
    (part,) = [c for c in found.candidates if c.what == found.chosen]
    assert part.what == "5,000 rows of it, by groups"
    assert part.bytes is not None
    assert part.bytes < 5000 * 40 / 2
    assert part.source_scans == 0


def test_more_rows_than_groups_can_name_are_refused_as_a_refresh_would() -> None:
    with pytest.raises(ConfigurationError, match="1,048,576 rows"):
        predict(known(rows=GROUPED_KEYS_MAX + 1, forced=Method.GROUP))


@pytest.mark.parametrize(("forced", "read_at_most"), [*product([None, *Method], [None]), (None, 9)])
@pytest.mark.parametrize("rows_expected", [0, 5000])
def test_an_empty_table_has_a_plan(
    forced: Method | None, read_at_most: int | None, rows_expected: int
) -> None:
    """All of it is compared, whatever may be read: the parts of no rows tell nothing."""
    found = predict(
        known(rows=0, rows_expected=rows_expected, forced=forced, read_at_most=read_at_most)
    )
    size = by_name(found)[found.chosen]
    assert size is not None
    assert 40 * rows_expected <= size < 42 * rows_expected + 20_000
    assert "read_at_most" not in found.why
    assert forced is None or found.why == f'method = "{forced.value}"'


def test_what_the_line_and_the_dba_allow() -> None:
    """Scan, round trips and bytes, one after the other, at the slower of what was measured and
    what is allowed."""
    line = Line(rtt_s=0.5, bytes_per_s=1e5, rows_per_s=1e5)
    free = {c.what: c for c in predict(known(line=line)).candidates}
    ranges = free["by ranges"]
    assert ranges.bytes is not None
    assert ranges.source_rows is not None
    again = ranges.source_rows - ROWS  # by index: all rows of the ranges that differ
    assert ROWS // 100 < again < ROWS // 5
    scan = ranges.source_rows / 1e5
    assert ranges.exchange_seconds == pytest.approx(scan + 1.5 + ranges.bytes / 1e5, abs=0.02)
    tight = dataclasses.replace(line, bytes_per_s=5e4, rows_per_s=1e4)
    limited = {c.what: c for c in predict(known(line=tight)).candidates}["by ranges"]
    slow = 10 * scan + 1.5 + ranges.bytes / 5e4
    assert limited.exchange_seconds == pytest.approx(slow, abs=0.02)


def test_files_that_are_written_again() -> None:
    files = ((ROWS // 2, 1_000_000), (ROWS // 2 - 10, 900_000), (10, 5_000))
    found = {c.what: c.bytes_rewritten for c in predict(known(files=files)).candidates}
    # A thousand scattered changes touch the two large files and hardly ever the small one.
    assert found["by sketch"] == pytest.approx(1_900_000, rel=0.001)
    assert found["nothing changed"] == 0
    assert found["full copy"] == pytest.approx(1_905_000, rel=0.001)


def test_why_it_wins() -> None:
    assert "s less than by" in predict(KNOWN).why
    assert "over 100 ms and 10.0 Mbit/s" in predict(KNOWN).why
    metered = Line(objective=Objective.BYTES)
    assert 'objective = "bytes"' in predict(known(line=metered)).why
    assert predict(known(forced=Method.RANGE)).why == 'method = "range"'
    # Ranges would take a scan less, and nothing that decodes asks for them any more.
    earlier = tuple(dataclasses.replace(one, scans=2) for one in daily(*[1000] * 10))
    slow = known(earlier=earlier, bounds=None, line=Line(0.02, 12.5e6, rows_per_s=1e5))
    ranges = {c.what: c for c in predict(slow).candidates}["by ranges"]
    assert ranges.bytes is not None
    assert ranges.bytes < 40 * ROWS / 10
    assert predict(slow).chosen == "by sketch"
    assert predict(slow).why == (
        "the initial sketch is expected to suffice, although by ranges would take less"
    )
    assert predict(known(read_at_most=2000)).why == "read_at_most = 2000"
    assert "nothing to compare" in predict(known(version=None, rows=None)).why


def test_the_row_hours_that_a_refresh_ends(tmp_path: Path) -> None:
    """Of the changes since the last one, by the weights of their kinds."""
    file = tmp_path / "warehouse.toml"
    text = (
        '[warehouse]\npath = "w"\n[sources.erp]\naddress = "localhost:1"\ninsecure = true\n'
        '[fragments.orders]\nsource = "erp"\n'
    )
    at = (np.arange(31) * 86_400.0).tolist()
    days = tuple(Interval(a, b, 0, 24, 0, 1e6) for a, b in pairwise(at))
    last = datetime.fromtimestamp(at[-1], UTC)
    memory = Memory(days, until=at[-1], line=(last.isoformat(), last.isoformat()), taken=at[-1])
    found = []
    for asked in ("", "refreshes_per_day = 1\n", "weights_by_change = { update = 0.5 }\n"):
        text += asked
        file.write_text(text)
        fragment = load(file).fragments["orders"]
        found.append(row_hours(memory, fragment.timing, last + timedelta(hours=12)))
    assert found == [None, pytest.approx(72, rel=0.01), pytest.approx(36, rel=0.01)]


def test_the_expected_number_of_rows() -> None:
    """Proposition 2, from what refreshes found: insertions alone, then with deletions."""
    known = remembered(THREE, every(6), np.random.default_rng(1))
    assert known.until is not None
    last = datetime.fromtimestamp(known.until, UTC)
    later = last + timedelta(hours=48)
    assert rows_forecast(Memory(), "UTC", 1000, later) is None
    for deaths in (0.0, 0.001):
        recent = tuple(
            replace(one, rows=1e5, deleted=1e5 * -math.expm1(-deaths * one.hours))
            for one in known.recent
        )
        memory = replace(known, recent=recent, line=(last.isoformat(), last.isoformat()))
        model = fit(memory, "UTC")
        assert model is not None
        found = rows_forecast(memory, "UTC", 1000, later)
        inserted = model.hourly[:48].sum() * model.shares[0]
        if not deaths:
            assert found == pytest.approx(1000 + inserted)
        else:
            survive = math.exp(-model.deleted_per_row * 48)
            assert 1000 * survive + inserted * survive < (found or 0) < 1000 * survive + inserted
        assert rows_forecast(memory, "UTC", None, later) is None
    # As many rows come as go, half of them a day: refreshes see those alone that survive till then.
    stays = tuple(Interval(a, a + 86_400, 500, 0, 500, 1000) for a in np.arange(30) * 86_400.0)
    memory = replace(known, recent=stays, line=(last.isoformat(), last.isoformat()))
    assert rows_forecast(memory, "UTC", 1000, later) == pytest.approx(1000, rel=0.01)
