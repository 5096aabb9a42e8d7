"""`status` for people: a table that behaves on any terminal, and ages in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.cli.status import HEADINGS, NEVER, text_of
from warehouse_agent.history.failures import Failure
from warehouse_agent.inspection.published_state import PublishedState
from warehouse_agent.report import age
from warehouse_agent.storage.staged_files import StagedRows

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
FAILURE = Failure(1, None, None, None, "UNREACHABLE", "cut.", "erp", "", True, 4, {})


def at(**ago: float) -> str:
    return (NOW - timedelta(**ago)).isoformat().replace("+00:00", "Z")


def published(name: str, proof: str = "total", missed: float | None = 6e-37) -> PublishedState:
    return PublishedState(
        name,
        version=12,
        rows_total=1_204_118,
        as_of=at(hours=3, minutes=40),
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
        (at(minutes=59, seconds=59), "59 minutes ago"),
        (at(hours=1), "1 hour ago"),
        (at(hours=47.9), "47 hours ago"),
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
    shown = [published("orders"), PublishedState("items"), published("ledger", "part", None)]
    assert text_of(shown, NOW, None) == [
        "fragment  version       rows  equal to the source  checked       consistency  proof",
        "orders         12  1,204,118  3 hours ago          1 minute ago  exact        total",
        "items     nothing published yet",
        "ledger         12  1,204,118  3 hours ago          1 minute ago  exact        part",
        "part: only some rows were compared since the last full comparison",
        "probability of a missed change: 6e-37 per refresh",
    ]


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
    said = f"first load, {amount} staged, last tried"
    assert text_of([published("orders"), cut], NOW, None)[2] == f"items     {said} 9 minutes ago"
    assert text_of([cut], NOW, 20)[1:] == [f"  {said} 9 minutes ago"]
    tried = replace(cut, failed=replace(FAILURE, at=at(minutes=2)))
    assert text_of([tried], NOW, None)[1] == f"items     {said} 2 minutes ago"


def test_the_odds_are_said_once_and_are_the_worst() -> None:
    lines = text_of([published("a"), published("b", missed=1e-15), published("c")], NOW, None)
    assert [line for line in lines if "missed" in line] == [
        "probability of a missed change: at most 1e-15 per refresh"
    ]


def test_nothing_was_published() -> None:
    assert text_of([PublishedState("orders")], NOW, 80) == [
        "fragment",
        "orders    nothing published yet",
    ]


@given(
    st.lists(st.tuples(st.integers(1, 128), st.booleans()), min_size=1, max_size=4),
    st.integers(10, 250),
)
def test_any_names_on_any_terminal(names: list[tuple[int, bool]], width: int) -> None:
    shown = []
    for number, (length, is_published) in enumerate(names):
        name = f"{number}{'x' * (length - 1)}"
        shown.append(published(name) if is_published else PublishedState(name))
    lines = text_of(shown, NOW, width)
    if lines[0].split("  ")[0] == HEADINGS[0]:  # a table
        rows = lines[: len(names) + 1]
        assert max(map(len, rows)) <= width
        starts = {row.index("exact") for row in rows[1:] if NEVER not in row}
        assert len(starts) <= 1, "columns are aligned"
    else:
        assert [s.name for s in shown] == [x for x in lines if x[0] != " "][: len(shown)]
        assert sum("consistency: exact" in line for line in lines) == sum(p for _, p in names)
