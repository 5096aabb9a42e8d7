"""Charts are drawn from any past: none, one refresh, damaged lines, huge numbers, totals alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.harness.past_refreshes import Past
from warehouse_agent.history.history_lines import parse
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.history.totals import OlderTotals
from warehouse_agent.monitoring.report import axes
from warehouse_agent.monitoring.report.charts import Chart, charts_of
from warehouse_agent.monitoring.report.refresh_series import PARTS, TableSeries, series_of
from warehouse_agent.report import bytes_text
from warehouse_agent.tasks import changed_places

NOW = datetime(2026, 11, 30, 6, tzinfo=UTC)
ALL = {"freshness", "changes", "bytes", "seconds", "load", "predicted", "columns", "keys", "days"}


def history(*bodies: Mapping[str, Any]) -> RefreshHistory:
    """A history of reports, the oldest first."""
    lines = (parse(json.dumps(body).encode()) for body in reversed(bodies))
    return RefreshHistory(tuple(line for line in lines if line is not None))


def past(**changes: Any) -> list[dict[str, Any]]:
    made = Past("orders", **{"refreshes": 40, "newest": NOW, **changes})
    return [json.loads(report.to_json()) for report in made.reports()]


def drawn(series: TableSeries) -> dict[str, Chart]:
    """The charts of a past, each checked: it is XML with its text, and all of it is in place."""
    charts = charts_of(series, NOW.timestamp(), 7200.0)
    for chart in charts:
        root = ElementTree.fromstring(str(chart.drawing))
        title, description = root[0], root[1]
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert (title.text, description.text) == (chart.title, chart.description)
        for path in root.iter("path"):
            numbers = path.get("d", "")
            assert "nan" not in numbers
            assert "inf" not in numbers
        for at, label in (*chart.across, *chart.along):
            assert -1e-9 <= at <= 1 + 1e-9, (chart.name, label)
        assert chart.rows, "the table behind it"
        assert {len(row) for row in chart.rows} == {len(chart.headings)}
    return {chart.name: chart for chart in charts}


def test_a_past_is_drawn() -> None:
    charts = drawn(series_of(history(*past(altered=20))))
    assert charts.keys() == ALL
    assert charts["changes"].headings[-1] == "forecast"
    assert len(charts["keys"].headings) == 1 + PARTS == 1 + changed_places.PARTS
    assert charts["columns"].rows[0][0] == "customer"


def test_nothing_is_drawn_of_no_past() -> None:
    assert drawn(TableSeries()) == {}
    assert drawn(series_of(RefreshHistory())) == {}


def test_one_refresh_is_drawn() -> None:
    charts = drawn(series_of(history(past(refreshes=1)[0])))
    assert charts.keys() == {"freshness", "bytes", "seconds", "load", "predicted", "days"}


def test_failures_alone_are_days() -> None:
    series = series_of(history(*past(refreshes=5, lost=5)))
    assert drawn(series).keys() == {"days"}
    assert [(one.times, one.code) for one in series.failed] == [(5, "UNREACHABLE")]


def test_totals_alone_are_drawn() -> None:
    folded = OlderTotals()
    for line in history(*past(every=timedelta(hours=20), refreshes=200)).lines:
        folded = folded.plus(line)
    charts = drawn(series_of(RefreshHistory(folded=folded.bounded())))
    assert charts.keys() == {"columns", "keys", "days"}
    assert charts["days"].rows[-1][0] < charts["days"].rows[0][0]


def test_the_age_of_data_falls_with_a_refresh() -> None:
    bodies = past(refreshes=2, seed=3)
    for body, hour in zip(bodies, (1, 4), strict=True):
        body |= {"as_of": f"2026-11-30T0{hour}:00:00Z", "checked_at": f"2026-11-30T0{hour}:10:00Z"}
    first, second = series_of(history(*bodies)).points
    assert (first.age_before_s, first.age_s) == (None, 600)
    assert (second.age_before_s, second.age_s) == (3 * 3600 + 600, 600)
    chart = drawn(series_of(history(*bodies)))["freshness"]
    assert chart.description.startswith("Now 2 h old, at most 3.2 h since 2026-11-30 01:10.")


@pytest.mark.parametrize("back_s", [1, 3600, 7200, 90_000])
def test_a_clock_that_went_back_is_drawn_in_order(back_s: int) -> None:
    bodies = past(refreshes=3)
    newest = datetime.fromisoformat(bodies[0]["checked_at"]) - timedelta(seconds=back_s)
    bodies[-1] |= {"checked_at": newest.isoformat(), "as_of": newest.isoformat()}
    series = series_of(history(*bodies))
    assert [p.at for p in series.points] == sorted(p.at for p in series.points)
    drawn(series)


def test_changed_rows_alone_cost_their_share_of_a_copy() -> None:
    body = past()[-1] | {
        "rows_inserted": 10, "rows_updated": 20, "rows_deleted": 5, "rows_total": 1000,
        "copy_bytes": 50_000,
    }  # fmt: skip
    assert series_of(history(body)).points[-1].floor == 30 * 50


ANY = st.one_of(
    st.none(), st.integers(-5, 10**16), st.floats(), st.text(max_size=5), st.just([1, 2, 3]),
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**15), max_size=3),
    st.sampled_from(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-11-30T05:00:00Z"]),
)  # fmt: skip


@pytest.mark.property
@given(st.data())
def test_damaged_lines_are_drawn_or_left_out(data: st.DataObject) -> None:
    bodies = past(refreshes=4, lost=1)
    keys = st.sampled_from(sorted(bodies[0]))
    damaged = [body | data.draw(st.dictionaries(keys, ANY, max_size=6)) for body in bodies]
    drawn(series_of(history(*damaged)))


@pytest.mark.property
@example([5e-324])
@given(st.lists(st.floats(0, 1e15), min_size=1, max_size=5))
def test_axes_hold_any_amount(values: list[float]) -> None:
    most = max(values)
    made = (
        axes.counts(most, axes.count_text),
        axes.spans(most),
        axes.logarithmic(values, bytes_text),
        axes.logarithmic(values, axes.count_text, zero=True),
        axes.ratios(values),
        axes.moments(min(values), most),
    )
    for axis in made:
        assert all(0 <= axis.at(value) <= 1 for value in values)
        assert all(math.isfinite(at) and 0 <= at <= 1 + 1e-9 for at, _ in axis.ticks)
        assert [*axis.ticks] == sorted(axis.ticks, key=lambda tick: tick[0])
        assert len(axis.ticks) <= 8
    assert axes.counts(most, axes.count_text).at(most) > 0.4 or most < 1


@pytest.mark.parametrize(
    ("words", "value", "text"),
    [
        (bytes_text, 0, "0 B"),
        (bytes_text, 999, "999 B"),
        (bytes_text, 1234, "1.2 kB"),
        (bytes_text, 999_600, "1.0 MB"),
        (bytes_text, 5e18, "5,000 PB"),
        (axes.count_text, 1, "1"),
        (axes.count_text, 12_345, "12.3 k"),
        (axes.span_text, 0.04, "0.04 s"),
        (axes.span_text, 90, "90 s"),
        (axes.span_text, 150, "2.5 min"),
        (axes.span_text, 5400, "1.5 h"),
        (axes.span_text, 10 * 86_400, "10 d"),
        (axes.moment_text, 0, "1970-01-01 00:00"),
        (axes.moment_text, 1e15, ""),
    ],
)
def test_amounts_in_words(words: axes.Words, value: float, text: str) -> None:
    assert words(value) == text


def test_moments_have_ticks_at_round_times() -> None:
    begin = datetime(2026, 11, 25, 7, 13, tzinfo=UTC).timestamp()
    days = axes.moments(begin, begin + 5 * 86_400)
    assert [label for _, label in days.ticks] == ["26 Nov", "27 Nov", "28 Nov", "29 Nov", "30 Nov"]
    hours = axes.moments(begin, begin + 10 * 3600)
    assert [label for _, label in hours.ticks] == ["08:00", "10:00", "12:00", "14:00", "16:00"]


def test_a_day_is_named_at_its_first_bar() -> None:
    days = ["1 May"] * 3 + ["2 May"] * 24 + ["3 May"] * 23
    ticks = axes.slots(days).ticks
    assert [(round(at * len(days) - 0.5), label) for at, label in ticks] == [
        (0, "1 May"), (27, "3 May"),
    ]  # fmt: skip
    assert len(axes.slots([f"{n}" for n in range(100)]).ticks) <= 7
    assert [label for _, label in axes.slots(["a", "b"]).ticks] == ["a", "b"]
