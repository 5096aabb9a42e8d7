"""Pages of a report: the words, what is hidden, and that no text becomes markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.past_refreshes import Past
from tests.warehouse_agent.monitoring.report.test_charts import history, past
from warehouse_agent.history.alarms import MonitoringState
from warehouse_agent.history.command_records import DONE, FAILED, CommandRecord, FragmentWork
from warehouse_agent.history.failures import Failure, recovered
from warehouse_agent.history.totals import Totals
from warehouse_agent.inspection.published_state import PublishedState
from warehouse_agent.monitoring.report import pages
from warehouse_agent.monitoring.report.index_rows import (
    VALUE_FREE,
    IndexRow,
    commands_of,
    row_of,
    troubles,
)
from warehouse_agent.monitoring.report.pages import ReportScope, SchemaChange
from warehouse_agent.monitoring.report.refresh_series import TableSeries, series_of

NOW = datetime(2026, 11, 30, 6, tzinfo=UTC)
SCOPE = ReportScope("warehouse.toml", NOW)
VOID = {"meta", "link", "path", "img", "input", "br"}
OPTIONAL = {"td", "th", "tr", "li", "p", "html", "body", "head", "thead", "tbody", "dt", "dd"}
SECRET = "Alice Miller"
VALUE = Failure(
    3, "2026-11-29T22:00:00Z", "2026-11-30T01:00:00Z", 4, "VALUE",
    f"The value {SECRET!r} does not fit.", "prices.amount", "Set `carriers` of the column.",
    False, 1, {"key": SECRET},
)  # fmt: skip
LOST = replace(VALUE, code="UNREACHABLE", message="Nothing answers at erp:1.", safe_to_retry=True)


class Seen(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(page: str) -> Seen:
    """A page that runs nothing and asks for nothing, whatever it shows."""
    seen = Seen(page)
    tags = {tag for tag, _ in seen.tags}
    assert not tags & {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "form",
        "audio",
    }
    for tag, attributes in seen.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert not attributes.keys() & {"src", "srcset", "data", "action", "xlink:href"}
        if (target := attributes.get("href")) is not None:
            assert re.fullmatch(r"(\.\./index|tables/[A-Za-z0-9_.-]+)\.html|#[a-z-]+", target)
            assert target[0] != "#" or [a.get("id") for _, a in seen.tags].count(target[1:]) == 1
    assert page.count("<script") == 0
    return seen


def published(name: str = "orders", **changes: object) -> PublishedState:
    state = PublishedState(
        name, version=12, rows_total=1_204_118, as_of="2026-11-30T05:20:00Z",
        checked_at="2026-11-30T05:21:00Z", consistency="exact", proof="total",
        miss_probability=6e-37, state=MonitoringState.OK,
    )  # fmt: skip
    return replace(state, **changes)  # type: ignore[arg-type]


def failing(name: str, failure: Failure) -> PublishedState:
    return published(name, failed=failure, state=MonitoringState.CRITICAL)


def rows_of(
    *states: PublishedState,
    series: TableSeries | None = None,
    recovered: Sequence[Failure] = (),
) -> list[IndexRow]:
    one = series or TableSeries()
    return [row_of(state, one, NOW, "2026-11-30 08:00", recovered) for state in states]


def indexed(rows: Sequence[IndexRow], scope: ReportScope = SCOPE) -> str:
    return pages.index(scope, rows, [Totals()], [])


def test_the_failing_come_first_with_what_to_do() -> None:
    late = published(
        "late", late_s=7200.0, late_after_s=3600.0, tried_at="2026-11-30T04:00:00Z",
        state=MonitoringState.WARNING,
    )  # fmt: skip
    rows = rows_of(published("b"), late, failing("prices", LOST))
    seen = harmless(indexed(rows))
    text = " ".join(seen.text.split())
    assert "2 of 3 tables need a look: ▲1 failed: prices ◆1 late: late" in text
    assert "3 times since 2026-11-29 22:00 UTC, last 2026-11-30 01:00 UTC, 5 hours ago" in text
    assert "whyNothing answers at erp:1. what to doSet carriers of the column." in text
    assert text.index("prices: failed 3×: UNREACHABLE") < text.index("late: late:")
    assert (
        "none for 2 hours; the limit is 1 hour; last tried 2026-11-30 04:00 UTC, 2 hours ago"
        in text
    )
    assert text.index("late: 2 h, limit 1 h") < text.index("ok12")


def test_a_table_that_failed_and_is_late_is_both_and_names_its_source() -> None:
    both = replace(failing("prices", LOST), late_s=7200.0, late_after_s=3600.0)
    row = row_of(both, TableSeries(), NOW, "2026-11-30 08:00", source="erp")
    text = " ".join(harmless(indexed([row])).text.split())
    assert "prices: failed 3×, late: UNREACHABLE" in text
    assert "none for 2 hours; the limit is 1 hour" in text
    assert "See why it failed." in text
    assert "prices of erp" in text


def test_tables_with_one_cause_are_told_together() -> None:
    states = [failing(f"t{n}", replace(LOST, remedy=f"driftline refresh t{n}")) for n in range(30)]
    [one] = troubles(rows_of(*states), NOW, values=False)
    assert (one.names[0], len(one.names), one.more) == ("t0", 8, 22)
    assert one.cause is not None
    assert one.cause.why == LOST.message


def test_each_table_of_a_cause_has_its_times() -> None:
    twice = replace(LOST, times=2, since="2026-11-29T23:00:00Z")
    [same] = troubles(rows_of(failing("a", LOST), failing("b", LOST)), NOW, values=False)
    assert same.when == "3 times since 2026-11-29 22:00 UTC, last 2026-11-30 01:00 UTC, 5 hours ago"
    [one] = troubles(rows_of(failing("a", LOST), failing("b", twice)), NOW, values=False)
    assert one.when.startswith("a: 3 times since 2026-11-29 22:00 UTC, last ")
    assert "; b: 2 times since 2026-11-29 23:00 UTC, last " in one.when


def test_tables_with_one_cause_and_other_messages_are_told_its_meaning() -> None:
    states = [failing(f"t{n}", replace(LOST, message=f"Nothing answers at {n}.")) for n in range(2)]
    [one] = troubles(rows_of(*states), NOW, values=False)
    assert one.cause is not None
    assert one.cause.why == "Nothing answers at the source's address."


def test_why_a_view_is_behind_may_hold_values() -> None:
    behind = published("ratios", kind="view", stale=f"the value {SECRET!r} cannot be cast")
    behind = replace(behind, state=MonitoringState.WARNING)
    page = indexed(rows_of(behind))
    assert SECRET not in page
    assert "1 of 1 table needs a look: ◆1 behind: ratios" in " ".join(Seen(page).text.split())


def test_values_are_shown_on_asking_alone() -> None:
    [row] = rows_of(failing("prices", VALUE))
    series = series_of(history(*past(refreshes=3)))
    series = replace(series, failed=(VALUE,))
    for scope in (SCOPE, replace(SCOPE, values=True)):
        shown = pages.table(scope, row, published(), series, None, ())
        for page in (indexed([row], scope), shown):
            assert (SECRET in page) is scope.values
            assert "VALUE" in page
            assert "prices.amount" in page
    told = "A value does not fit the type that its column has, at the source or in the warehouse."
    assert f"{told} The message may name values of rows" in indexed([row])


def test_codes_about_rows_are_not_free_of_values() -> None:
    about_rows = {"NULL_KEY", "DUPLICATE_KEY", "VALUE", "PROOF", "VIEW_FAILED", "INTERNAL", "LIMIT"}
    assert not VALUE_FREE & about_rows


def test_failures_of_the_last_day_are_told_whether_they_are_over_or_not() -> None:
    night = past(refreshes=3, lost=1, newest=NOW - timedelta(hours=5))
    again = past(refreshes=1, newest=NOW - timedelta(hours=1))
    over = recovered(history(*night, *again), NOW)
    well = rows_of(published(), recovered=over)
    failed = rows_of(failing("prices", VALUE), recovered=over)
    text = " ".join(harmless(indexed([*well, *failed])).text.split())
    told = text.partition("Failed in the last 24 hours")[2].partition("All tables")[0]
    gone = "UNREACHABLE (source does not answer), 2026-11-30 01:00 UTC, 5 hours ago; a later"
    assert told.startswith(" 1 fail still, 2 well again afterwards ▲prices: VALUE (a value does")
    assert "last 2026-11-30 01:00 UTC, 5 hours ago; fails still ●prices: " in told
    assert told.count(gone) == 2
    older = past(refreshes=3, lost=1, newest=NOW - timedelta(hours=30))
    assert not recovered(history(*older, *again), NOW)
    [row] = rows_of(failing("old", replace(VALUE, at="2026-11-28T01:00:00Z")))
    assert "Failed in the last 24 hours" not in indexed([row])


def test_what_the_source_read_is_told_in_reads_of_the_whole_table() -> None:
    series = series_of(history(*past(refreshes=3)))
    [row] = rows_of(published(), series=series)
    assert row.read is not None
    assert row.reads == 1
    assert row.all_reads == series.whole.rows_read / 1_204_118
    text = " ".join(harmless(pages.index(SCOPE, [row], [series.whole], [])).text.split())
    assert (
        f"{row.all_reads / 3:.1f} reads of the whole table a refresh, where a copy takes one;"
        " since " in text
    )
    assert " k (1.0×)" in text
    shown = pages.table(SCOPE, row, published(), series, None, ())
    assert "1.0 reads of the whole table, in the median" in shown


def test_a_well_table_says_its_clock_and_its_limit() -> None:
    state = published(late_after_s=10_800.0)
    [row] = rows_of(state)
    text = " ".join(Seen(pages.table(SCOPE, row, state, TableSeries(), 7200.0, ())).text.split())
    assert "ok: the source had these rows at 2026-11-30 05:20 UTC, by its clock; they are" in text
    assert "late 3 h after one that went well" in text
    assert indexed([row]).count("<td>3 h\n") == 1


def test_commands_that_run_and_those_that_were_killed() -> None:
    works = {"a": FragmentWork(DONE), "b": FragmentWork(FAILED, code="VALUE")}
    began = NOW.timestamp() - 600
    record = CommandRecord("r", began, "process <7>", ("a", "b", "c"), began + 60, works, True)
    runs, killed = commands_of([replace(record, is_running=False), record])
    assert runs.text == "1 of 3 tables done, 1 failed"
    assert killed.text == "was killed after 2026-11-30 05:51 UTC, 1 of 3 tables done, 1 failed"
    shown = pages.index(SCOPE, [], [], [runs, killed])
    assert "process &lt;7&gt;, begun 2026-11-30 05:50 UTC: runs, 1 of 3" in shown


def test_totals_say_what_was_saved() -> None:
    totals = [Totals(refreshes=3, moved_beside=2_000_000, copied=400_000_000, failed={"LOCKED": 2})]
    text = " ".join(harmless(pages.index(SCOPE, rows_of(published()), totals, [])).text.split())
    assert (
        "Bytes saved, beside copies of all rows99.5 %398 MB less: moved 2 MB of the 400 MB that"
        in text
    )
    assert "Refreshes that went well32 failed" in text
    dear = [Totals(refreshes=1, moved_beside=3, copied=2)]
    assert "<b>nothing</b>" in pages.index(SCOPE, [], dear, [])


def test_a_table_without_anything() -> None:
    [row] = rows_of(PublishedState("orders", state=MonitoringState.UNKNOWN))
    seen = harmless(pages.table(SCOPE, row, PublishedState("orders"), TableSeries(), None, ()))
    assert "No refresh is known yet" in seen.text


HOSTILE = st.text(
    st.sampled_from("<>&\"'`{}%/=\\ \u202e\x00\x1b\ud800éa1") | st.characters(), max_size=40
)


@pytest.mark.property
@given(HOSTILE, HOSTILE)
def test_texts_are_never_markup(one: str, other: str) -> None:
    bad = f'"><img src=x onerror=alert(1)>{one}'
    failure = replace(LOST, message=bad, where=bad, remedy=f"`{bad}`", details={bad: bad}, at=bad)
    state = replace(failing("orders", failure), proof=bad, as_of=bad, inputs={bad: 1})
    body = past(refreshes=2)[-1]
    body |= {"method": bad, "method_why": other, "retried": [{"code": bad}]}
    body["changed"] = {"compared": 9, "columns": {bad: 3, other: 1}, "parts": [1] * 32}
    body["predicted"] = {"what": bad, "bytes": 3, "seconds": 2}
    series = replace(series_of(history(body)), failed=(failure,))
    [row] = rows_of(state, series=series)
    scope = ReportScope(bad, NOW, values=True)
    command = CommandRecord("r", 1.0, bad, (bad,), 2.0, {}, False)
    schemas = [SchemaChange(1.0, 3, (bad, other))]
    page = pages.table(scope, row, state, series, 3600.0, schemas)
    for shown in (page, pages.index(scope, [row], [series.whole], commands_of([command]))):
        harmless(shown)
        assert "<img" not in shown
        assert shown.encode("utf-8")
        assert "\u202e" not in shown


def test_an_index_of_many_is_small() -> None:
    series = series_of(history(*past()))
    names = [f"erp_sales_{'orders' * (n % 4)}_{n}" for n in range(500)]
    for states in (
        [published(name) for name in names],
        [
            failing(name, replace(LOST, message=f"{name} {'x' * 300}", code=f"C{n}"))
            for n, name in enumerate(names)
        ],
    ):
        rows = rows_of(*states, series=series)
        assert len(indexed(rows).encode()) <= 200_000


def test_the_past_of_the_harness_is_as_asked() -> None:
    made = [*Past("t", 50, NOW, lost=3).reports()]
    assert [report.error is not None for report in made[-4:]] == [False, True, True, True]
    assert made[0].previous_version is None
