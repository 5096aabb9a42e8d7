"""`status` for people: a table that behaves on any terminal, and ages in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import click
import pytest
from driftline.errors import BY_CODE
from driftline.text_tables import shortened
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.cli.status import IS_RUNNING, remarks_on, summary_of, table_of
from warehouse_agent.history.alarms import MonitoringState, late_text
from warehouse_agent.history.failures import Failure
from warehouse_agent.inspection.published_state import PublishedState
from warehouse_agent.report import age
from warehouse_agent.storage.staged_files import StagedRows

WHY = "UNREACHABLE: erp: cut. It is tried again by itself, or run it again."
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
FAILURE = Failure(1, None, None, None, "UNREACHABLE", "cut.", "erp", "", True, 4, {})


def at(**ago: float) -> str:
    return (NOW - timedelta(**ago)).isoformat().replace("+00:00", "Z")


def published(name: str, proof: str = "total", missed: float | None = 6e-37) -> PublishedState:
    return PublishedState(
        name,
        version=12,
        rows_total=1_204_118,
        as_of=at(hours=3, minutes=20),
        checked_at=at(minutes=1),
        consistency="exact",
        proof=proof,
        miss_probability=missed,
        years_until_a_change_is_missed=None if missed is None else 1e-3 / missed,
    )


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (at(), "just now"),
        (at(seconds=59), "just now"),
        (at(seconds=60), "1 minute ago"),
        (at(seconds=104), "2 minutes ago"),
        (at(minutes=59, seconds=29), "59 minutes ago"),
        (at(hours=1), "1 hour ago"),
        (at(hours=2.6), "3 hours ago"),
        (at(hours=47.4), "47 hours ago"),
        (at(days=2), "2 days ago"),
        (at(days=730), "730 days ago"),
        (at(days=731), "2 years ago"),
        (at(seconds=-30), "just now"),
        (at(hours=-2), "in 2 hours"),
        ("2026-11-23T11:00:00", "2026-11-23T11:00:00"),
        ("yesterday", "yesterday"),
        (None, "unknown"),
    ],
)
def test_ages(moment: str | None, words: str) -> None:
    assert age(moment, NOW) == words


def test_a_table() -> None:
    failing = replace(
        published("invoices"), state=MonitoringState.CRITICAL, failed=replace(FAILURE, times=3),
        alarms=["failed"],
    )  # fmt: skip
    late = replace(
        published("sites"), state=MonitoringState.WARNING, late_s=7200.0, late_after_s=600.0,
        tried_at=at(hours=2), alarms=["late"],
    )  # fmt: skip
    new = PublishedState("items", state=MonitoringState.UNKNOWN, alarms=["nothing published yet"])
    fuzzy = replace(published("ledger", "part", None), consistency="fuzzy")
    shown = [published("orders"), new, fuzzy, late, failing]
    assert table_of(shown, NOW, 80) == [
        "table     version       rows  as of        proof        state",
        "invoices       12  1,204,118  3 hours ago  whole        failed 3×: UNREACHABLE",
        "sites          12  1,204,118  3 hours ago  whole        late: 2 h, limit 10 min",
        "items                                                   nothing published yet",
        "orders         12  1,204,118  3 hours ago  whole        ok",
        "ledger         12  1,204,118  3 hours ago  part, fuzzy  ok",
    ]
    assert remarks_on(shown, NOW) == [
        f"invoices: the last 3 refreshes failed: {WHY} If it goes on: `driftline doctor`.",
        f"sites: {late_text(7200.0, 600.0)}, last tried 2 hours ago; {IS_RUNNING}",
        "items: nothing published yet; driftline refresh items",
        "part: only some rows were compared since the last full comparison",
        "probability of a missed change: at most 6e-37 per refresh",
        "late 10 minutes after the last refresh that went well: sites",
    ]
    assert summary_of(shown, NOW) == [
        "3 of 5 tables need a look. Why, and what to do:",
        "  1 failed: UNREACHABLE (source does not answer): driftline status invoices",
        "  1 never loaded: driftline refresh items",
        "  1 late, last tried 2 hours ago: does `driftline run` or a timer still run?",
        "  all: driftline status --verbose",
    ]
    assert not summary_of([published("orders")], NOW)


def test_a_table_that_failed_and_is_late_is_both() -> None:
    both = replace(
        published("sites"), state=MonitoringState.CRITICAL, failed=FAILURE, alarms=["failed"],
        late_s=7200.0, late_after_s=600.0, tried_at=at(minutes=5),
    )  # fmt: skip
    assert table_of([both], NOW, 80)[1].endswith("failed, late: UNREACHABLE")
    assert f"sites: {late_text(7200.0, 600.0)}" in remarks_on([both], NOW)
    assert "  1 failed, 1 late: UNREACHABLE (source does not answer): driftline status sites" in (
        summary_of([both, replace(both, name="gone", failed=None), published("b")], NOW)
    )


def test_a_well_table_says_whose_clock_tells_its_age_and_when_it_would_be_late() -> None:
    well = replace(published("orders"), late_after_s=10_800.0)
    assert remarks_on([well], NOW)[-2:] == [
        "orders: as of 2026-11-23T08:40:00Z, by the clock of its source",
        "late 3 hours after the last refresh that went well: orders",
    ]
    many = [replace(well, name=f"t{n}", late_after_s=60.0) for n in range(7)]
    assert remarks_on([*many, well], NOW)[-2:] == [
        "late 1 minute after the last refresh that went well: t0 t1 t2 t3 t4 and 2 more",
        "late 3 hours after the last refresh that went well: orders",
    ]


def test_no_code_is_cut() -> None:
    codes = sorted(BY_CODE)
    shown = [
        replace(
            published(f"a_table_{n}"),
            rows_total=10**11,
            version=10**6,
            failed=replace(FAILURE, code=code, times=200),
        )
        for n, code in enumerate(codes)
    ]
    for width in (20, 40, 60, 80, 120):
        lines = table_of(shown, NOW, width)[1:]
        assert all(line.endswith(code) for line, code in zip(lines, codes, strict=True))
    assert all(len(line) <= 100 for line in lines)


def test_what_readers_see_and_who_is_behind() -> None:
    states = [
        replace(published("a"), visible_version=11),
        replace(published("b"), stale="no version of c"),
        replace(published("c"), damaged=2),
        replace(published("d"), put_off_until=at(hours=-3)),
    ]
    words = [line.split("  ")[-1] for line in table_of(states, NOW, 80)[1:]]
    assert words == ["ok, readers: 11", "behind its inputs", "2 files damaged", "ok, put off"]


def test_colours_are_of_states_alone() -> None:
    failing = replace(published("b"), state=MonitoringState.CRITICAL, failed=FAILURE)
    shown = [published("a"), failing]
    plain, coloured = table_of(shown, NOW, 80), table_of(shown, NOW, 80, colours=True)
    assert coloured[1].endswith("\x1b[31mfailed: UNREACHABLE\x1b[0m")
    assert coloured[2].endswith("\x1b[32mok\x1b[0m")
    assert [click.unstyle(line) for line in coloured] == plain


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("orders", 6, "orders"),
        ("orders", 5, "or…rs"),
        ("orders", 4, "or…s"),
        ("orders", 2, "o…"),
        ("prod_erp_sales_orders_2026", 12, "prod_e…_2026"),
    ],
)
def test_long_names(name: str, width: int, shown: str) -> None:
    assert shortened(name, width) == shown


@pytest.mark.parametrize(
    ("rows", "expected", "exchanges", "amount"),
    [
        (6_200, 10_000, 1, "62%"),
        (0, 10_000, 1, "0%"),
        (12_000, 10_000, 1, "99%"),
        (6_200, None, 1, "6,200 rows"),
        (6_200, 10_000, 2, "up to 62%"),
        (6_200, None, 3, "up to 6,200 rows"),
        (None, 10_000, 2, "140,000 bytes"),
    ],
)
def test_a_first_load_that_was_cut(
    rows: int | None, expected: int | None, exchanges: int, amount: str
) -> None:
    """An older release said no rows; an estimate may be too low, and no version is published. Rows
    of several exchanges may be the same."""
    staged = StagedRows(rows, expected, 140_000, at(minutes=9), exchanges)
    cut = PublishedState("items", staged=staged)
    said = f"first load, {amount} staged"
    assert table_of([published("orders"), cut], NOW, 120)[2].split("  ")[-1].strip() == said
    assert remarks_on([cut], NOW) == [f"items: {said}, last tried 9 minutes ago"]
    tried = replace(cut, failed=replace(FAILURE, at=at(minutes=2)))
    assert remarks_on([tried], NOW)[0] == f"items: {said}, last tried 2 minutes ago"


def test_lateness_is_said_in_words_of_its_size() -> None:
    assert late_text(450.0, 300.0) == (
        "late: no refresh went well for 8 minutes; the limit is 5 minutes"
    )


def test_the_odds_are_said_once_and_are_the_worst() -> None:
    lines = remarks_on([published("a"), published("b", missed=1e-15), published("c")], NOW)
    assert [line for line in lines if "missed" in line] == [
        "probability of a missed change: at most 1e-15 per refresh"
    ]


def test_nothing_was_published() -> None:
    assert table_of([PublishedState("orders")], NOW, 80) == [
        "table   version  rows  as of  proof  state",
        "orders                               nothing published yet",
    ]


@given(
    st.lists(
        st.tuples(st.integers(1, 128), st.sampled_from(MonitoringState)), min_size=1, max_size=5
    ),
    st.integers(10, 250),
)
def test_any_names_on_any_terminal(names: list[tuple[int, MonitoringState]], width: int) -> None:
    shown = [
        replace(published(f"{number}{'x' * (length - 1)}"), state=state)
        for number, (length, state) in enumerate(names)
    ]
    lines = table_of(shown, NOW, width)
    assert len(lines) == len(names) + 1
    assert max(map(len, lines)) <= width
    if width >= 80:
        assert all("3 hours ago" in line and line.endswith("ok") for line in lines[1:])
        assert len({line.index("3 hours ago") for line in lines[1:]}) == 1, "columns are aligned"
    urgent = [MonitoringState.CRITICAL, MonitoringState.WARNING, MonitoringState.UNKNOWN]
    ranks = [names[int(line[0])][1] for line in lines[1:]]
    assert ranks == sorted(ranks, key=[*urgent, MonitoringState.OK].index)


def test_five_hundred_tables_in_eighty_columns() -> None:
    shown = [
        published(f"production_of_plant_{number}_orders_and_their_lines") for number in range(500)
    ]
    shown[77] = replace(
        shown[77], state=MonitoringState.WARNING, failed=replace(FAILURE, times=12), version=10_000,
        rows_total=10**10,
    )  # fmt: skip
    lines = table_of(shown, NOW, 80)
    assert (len(lines), max(map(len, lines)) <= 80) == (501, True)
    assert lines[1].startswith("produ")
    assert lines[1].endswith("failed 12×: UNREACHABLE")
