"""What `plan` predicts: pure cases, and against what a refresh then takes."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.errors import NotFound
from driftline.ranges import uniform
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.legacy import SqliteLegacy
from tests.pair import Pair
from warehouse_agent.configure import select
from warehouse_agent.forecast import (
    CHANGE_SHARE,
    RUNS_MAX,
    Forecast,
    Known,
    Run,
    earlier,
    expected_ranges,
    forecast,
    predict,
)
from warehouse_agent.plan import Method, partition_for
from warehouse_agent.report import Report
from warehouse_agent.store import Store

ROWS = 100_000
KNOWN = Known(
    name="orders",
    version=3,
    rows=ROWS,
    rows_expected=ROWS,
    row_bytes=40.0,
    partition=partition_for([], ROWS, integer_key=False),
    integer_key=True,
    forced=None,
    runs=(),
)
FIELDS = [
    "name", "command", "version", "rows_published", "rows_expected", "first_load", "change_share",
    "change_share_from", "candidates", "chosen", "staged_bytes", "source_error", "schema_changes",
    "error",
]  # fmt: skip


def known(**facts: object) -> Known:
    return dataclasses.replace(KNOWN, **facts)  # type: ignore[arg-type]


def run(changed: int, *, rows: int = ROWS, seconds: float = 5.0, scans: int = 1) -> Run:
    return Run(changed, rows, False, "range", scans, seconds)


def by_name(found: Forecast) -> dict[str, int | None]:
    return {c.what: c.bytes for c in found.candidates}


def test_a_first_load() -> None:
    found = predict(known(version=None, rows=None, partition=uniform(2)))
    assert found.first_load
    assert list(by_name(found)) == ["full copy"] == [found.chosen]
    size = by_name(found)["full copy"]
    assert size is not None
    assert 40 * ROWS < size < 41 * ROWS
    assert "first load, about 100,000 rows" in found.text()


def test_a_first_load_of_unknown_size() -> None:
    found = predict(
        known(version=None, rows=None, rows_expected=None, source_error="Nothing answers.")
    )
    assert by_name(found) == {"full copy": None}
    assert "unknown bytes" in found.text()
    assert "the source was not asked: Nothing answers." in found.text()


def test_a_refresh_of_few_changes_goes_by_ranges() -> None:
    found = predict(KNOWN)
    sizes = by_name(found)
    assert list(sizes) == ["nothing changed", "by ranges", "full copy"]
    assert found.chosen == "by ranges"
    assert found.change_share == CHANGE_SHARE
    assert found.change_share_from == "assumed"
    nothing, ranges, full = sizes.values()
    assert nothing is not None
    assert ranges is not None
    assert full is not None
    assert nothing < 3000 < ranges < full / 4
    assert [c.round_trips for c in found.candidates] == [1, 3, 2]
    assert [c.seconds for c in found.candidates] == [None, None, None]


def test_so_many_changes_that_everything_is_cheaper() -> None:
    """Of narrow rows, that is: their hashes cost as much as what a comparison saves."""
    found = predict(known(runs=(run(ROWS * 9 // 10),), row_bytes=12.0))
    assert found.chosen == "full copy"
    assert found.change_share == pytest.approx(0.9)
    assert found.change_share_from == "as in the last refresh"


@pytest.mark.parametrize(
    ("forced", "chosen"), [(Method.RANGE, "by ranges"), (Method.FULL, "full copy")]
)
def test_the_configuration_decides(forced: Method, chosen: str) -> None:
    for changed in (1, ROWS):
        assert predict(known(forced=forced, runs=(run(changed),))).chosen == chosen


def test_more_rows_at_the_source_cost_more() -> None:
    now, then = by_name(predict(KNOWN)), by_name(predict(known(rows_expected=ROWS * 3 // 2)))
    assert then["nothing changed"] == now["nothing changed"]
    for name in ("by ranges", "full copy"):
        before, after = now[name], then[name]
        assert before is not None
        assert after is not None
        assert after > before + 40 * ROWS // 3


def test_time_and_scans_are_those_of_earlier_refreshes() -> None:
    runs = (run(0, seconds=3.0), run(9, seconds=7.0, scans=2), run(9, seconds=9.0, scans=2))
    found = predict(known(runs=runs))
    assert [c.seconds for c in found.candidates] == [3.0, 8.0, None]
    assert [c.source_scans for c in found.candidates] == [1, 2, 2]
    assert predict(KNOWN).candidates[1].source_scans == 1
    assert predict(known(integer_key=False)).candidates[1].source_scans == 2


def test_what_is_said_of_leftovers_and_columns() -> None:
    found = predict(known(staged_bytes=12_345, schema_changes=("column b was dropped",)))
    assert "12,345 bytes of an earlier attempt need not come again" in found.text()
    assert "refused without --accept-schema: column b was dropped" in found.text()


def test_fields_are_stable() -> None:
    for case in (KNOWN, known(version=None, rows=None)):
        body = json.loads(predict(case).to_json())
        assert list(body) == FIELDS
        assert list(body["candidates"][0]) == [
            "what", "bytes", "round_trips", "source_scans", "seconds",
        ]  # fmt: skip


@given(st.integers(1, 1 << 18), st.integers(0, 1 << 20))
def test_changed_rows_in_ranges(ranges: int, changed: int) -> None:
    found = expected_ranges(ranges, changed)
    assert 0 <= found <= min(ranges, changed) + 1e-6


def test_changed_rows_in_ranges_against_dice() -> None:
    dice = random.Random(7)
    thrown = [len({dice.randrange(1000) for _ in range(700)}) for _ in range(200)]
    assert expected_ranges(1000, 700) == pytest.approx(sum(thrown) / 200, rel=0.01)


def test_earlier_runs_skip_what_is_no_refresh() -> None:
    def line(**facts: object) -> str:
        report = Report("orders", version=1, previous_version=0, rows_total=10, method="range")
        return dataclasses.replace(report, **facts).to_json()  # type: ignore[arg-type]

    lines = [
        line(previous_version=None),
        line(error={"code": "UNREACHABLE"}),
        line(command="verify"),
        '{"torn": ',
        "[]",
        "{}",
        line(rows_total=None),
        line(rows_inserted=1, rows_updated=2, rows_deleted=3, seconds={"a": 1.0, "b": 0.5}),
    ]
    found = earlier("\n".join(lines).encode())
    assert found == [
        Run(0, 10, True, "range", 0, 0),
        Run(6, 10, False, "range", 0, 1.5),
    ]
    assert len(earlier("\n".join([line()] * 3 * RUNS_MAX).encode())) == RUNS_MAX


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


def test_the_forecast_comes_true(pair: Pair) -> None:
    first = predicted(pair)
    assert first.first_load
    pair.refresh()
    before = predicted(pair)
    assert (before.version, before.rows_published, before.source_error) == (0, 4000, None)
    # One row in a hundred, as is assumed before the first refresh.
    pair.legacy.execute("UPDATE orders SET note = hex(randomblob(12)) WHERE id % 300 = 0")
    report = pair.refresh()
    sizes = by_name(before)
    moved = report.bytes_sent + report.bytes_received
    assert report.method == "range"
    assert before.chosen == "by ranges"
    assert moved == pytest.approx(sizes["by ranges"], rel=0.35)
    assert report.round_trips == 3
    quiet = pair.refresh()
    moved = quiet.bytes_sent + quiet.bytes_received
    assert moved == pytest.approx(by_name(predicted(pair))["nothing changed"], rel=0.25)
    after = predicted(pair)
    assert after.change_share == pytest.approx(0.005, rel=0.02)  # 1 % and nothing
    assert after.change_share_from == "as in the last 2 refreshes"
    assert after.candidates[0].seconds is not None


def test_a_source_that_is_away_is_said(pair: Pair) -> None:
    pair.refresh()
    pair.stop()
    found = predicted(pair)
    assert found.source_error is not None
    assert "Nothing answers" in found.source_error
    assert found.rows_expected is None
    assert found.chosen == "by ranges"


def test_a_refusal_is_an_error(pair: Pair) -> None:
    pair.fragment_lines["orders"] = 'relation = "secret"'
    with pytest.raises(NotFound):
        predicted(pair)


def test_a_changed_schema_is_foretold(pair: Pair) -> None:
    pair.refresh()
    pair.legacy.execute("ALTER TABLE orders ADD COLUMN extra TEXT")
    assert predicted(pair).schema_changes == ("column extra (text) was added",)
