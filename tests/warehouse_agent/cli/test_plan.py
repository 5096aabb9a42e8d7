"""How `plan` shows a forecast: lines for people, and stable fields of JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from datetime import timedelta

import pytest
from driftline.reconciliation.ranges import uniform
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import given
from hypothesis import strategies as st

from tests.warehouse_agent.inspection.test_refresh_prediction import (
    KNOWN,
    LOADED,
    ROWS,
    by_name,
    daily,
    known,
)
from tests.warehouse_agent.planning.test_allowance import LATER
from tests.warehouse_agent.transport.test_reply_validation import HOSTILE
from warehouse_agent.cli.plan import json_of, line_of, text_of
from warehouse_agent.config import Source
from warehouse_agent.history import line_notes
from warehouse_agent.history.forecast_inputs import even_knots
from warehouse_agent.history.history_lines import parse
from warehouse_agent.history.notes import Notes
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.inspection.refresh_prediction import ForecastFacts, predict
from warehouse_agent.planning import prices
from warehouse_agent.planning.choice import Method, partition_for
from warehouse_agent.planning.network import LOAD_LEVEL
from warehouse_agent.planning.prices import LearntPrices
from warehouse_agent.refresh import schema_change
from warehouse_agent.report import Report
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.transport import reply_validation

FIELDS = [
    "name", "command", "version", "rows_published", "rows_expected", "first_load",
    "changes_expected", "change_share", "change_share_from", "floor_bytes", "candidates", "chosen",
    "why", "staged_bytes", "source_error", "schema_changes", "tiles", "tiles_done", "refused",
    "marker", "rows_forecast", "row_hours", "held_back_s", "last_s", "places_expected",
    "staged_rows", "staged_listed", "requests_expected", "part_expected", "schema", "error",
]  # fmt: skip


def test_a_first_load() -> None:
    found = predict(known(version=None, rows=None, partition=uniform(2)))
    assert "first load, about 100,000 rows" in text_of(found)


def test_a_line_of_each() -> None:
    load = predict(known(version=None, rows=None, partition=uniform(2)))
    assert line_of(load).startswith("orders: first load, full copy, ")
    (cost,) = [one.bytes for one in load.candidates if one.what == load.chosen]
    assert f", {cost:,} bytes, " in line_of(load)
    later = predict(known())
    assert f", {later.chosen}, " in f", {line_of(later).partition(': ')[2]}"
    broken = predict(known(), ForecastFacts(source_error="Nothing answers."))
    assert line_of(broken) == "orders: the source could not be asked: Nothing answers."
    other = predict(known(), ForecastFacts(schema_changes=("a is gone", "b is new")))
    assert line_of(other).endswith("refused without --accept-schema: 2 changes of columns")
    for one in (load, later, broken, other):
        assert "\n" not in line_of(one)


def test_a_first_load_of_unknown_size() -> None:
    found = predict(
        known(version=None, rows=None, rows_expected=None),
        ForecastFacts(source_error="Nothing answers."),
    )
    assert "bytes not known" in text_of(found)
    assert "the source could not be asked: Nothing answers." in text_of(found)


def test_before_anything_was_shipped_no_bytes_are_told() -> None:
    guess = prices.from_notes(LearntPrices(), 9, level=LOAD_LEVEL)
    found = predict(known(version=None, rows=None, partition=uniform(2), prices=guess))
    assert "full copy: bytes not known, 2 round trips, 1 scan" in text_of(found)
    assert json.loads(json_of(found))["candidates"][0]["bytes"] is None


def test_an_interval_of_changed_rows() -> None:
    found = predict(known(earlier=daily(*[1000] * 10)))
    assert found.changes_expected is not None
    low, _, high = found.changes_expected
    assert f"{low:,} to {high:,} rows" in text_of(found)
    assert "the changed rows alone would take about" in text_of(found)


def test_the_chosen_candidate_is_named_with_its_reason() -> None:
    assert "by sketch: " in text_of(predict(KNOWN))


def test_a_refusal_of_the_source_is_said() -> None:
    found = predict(known(allowance=LATER))
    assert f"  a refresh will be refused now: {found.refused}" in text_of(found).splitlines()


def test_hostile_names_of_columns_are_shown_escaped() -> None:
    """A name is compared, so it stays; what a person is shown of it acts on no terminal."""
    old = Recipe((Column("id", parse_type("int8"), False, 1),), 1)
    names = (HOSTILE, f"b{HOSTILE * 1000}")
    new = Recipe(
        tuple(Column(name, parse_type("int8"), False, n) for n, name in enumerate(names)), 1
    )
    changes = tuple(schema_change.column_changes(old, new))
    assert HOSTILE in changes[0]
    lines = text_of(predict(known(), ForecastFacts(schema_changes=changes))).splitlines()
    assert all(line.isprintable() for line in lines)
    assert len([line for line in lines if "--accept-schema" in line]) == len(changes)
    assert max(map(len, lines)) < reply_validation.LINE_CHARACTERS_MAX + 100


def test_what_is_said_of_leftovers_and_columns() -> None:
    found = predict(known(), ForecastFacts(12_345, schema_changes=("column b was dropped",)))
    assert "12,345 bytes of an earlier attempt are staged" in text_of(found)
    assert "refused without --accept-schema: column b was dropped" in text_of(found)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "12,345 bytes of an earlier attempt are staged and are not sent again"),
        (
            60_000,
            (
                "60,000 rows (12,345 bytes) of earlier attempts are staged; about 40,000 rows"
                " (8,230 bytes) are left"
            ),
        ),
        (100_001, "100,001 rows (12,345 bytes) of earlier attempts are staged"),
    ],
)
def test_how_much_of_a_load_is_staged(rows: int | None, said: str) -> None:
    """Of 100,000 rows; an older release did not say how many rows its files have."""
    load = known(version=None, rows=None, partition=uniform(2))
    found = predict(load, ForecastFacts(12_345, rows))
    assert f"  {said}" in text_of(found).splitlines()
    assert json.loads(json_of(found))["staged_rows"] == rows


def test_fields_are_stable() -> None:
    for case in (KNOWN, known(version=None, rows=None)):
        body = json.loads(json_of(predict(case)))
        assert list(body) == FIELDS
        assert list(body["candidates"][0]) == [
            "what", "bytes", "round_trips", "source_scans", "source_rows", "exchange_seconds",
            "bytes_rewritten", "seconds",
        ]  # fmt: skip


DAMAGED: st.SearchStrategy[object] = (
    st.sampled_from([0, -1, 1, 3, 64, 1e-300, 1e-9, 1e15, 1e300, 10**400, math.nan, math.inf, True])
    | st.floats()
    | st.sampled_from([None, "12", "", [], {}, [None], [3, 2], [1, 2.5], [1 << 70], [1, 5, 9]])
)
NOTES = [
    "row_bytes", "row_count", "copied_row_bytes", "copied_rows", "copied_level", "few_bytes",
    "few_rows", "rows_per_s", "quantiles", "key",
]  # fmt: skip
LINE_NOTES = ["rtt_s", "bytes_per_s", "rtt_at", "rows_per_s_max", "bytes_per_s_max"]
RUN_FACTS = [
    "rows_inserted", "rows_updated", "rows_deleted", "rows_total", "source_scans", "seconds",
    "checked_at", "method",
]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(NOTES), DAMAGED),
    st.dictionaries(st.sampled_from(LINE_NOTES), DAMAGED),
    st.lists(st.dictionaries(st.sampled_from(RUN_FACTS), DAMAGED), max_size=5),
    st.sampled_from([None, *Method]),
    st.none() | st.just(2000),
)
def test_whatever_notes_say_a_plan_comes_out(
    remembered: dict[str, object],
    noted: dict[str, object],
    refreshes: list[dict[str, object]],
    forced: Method | None,
    read_at_most: int | None,
) -> None:
    at = LOADED.isoformat()
    load = Report("orders", version=0, rows_total=ROWS, checked_at=at, method="full")
    earlier = [json.loads(load.to_json())]
    good = dataclasses.replace(load, version=1, previous_version=0, rows_updated=7)
    earlier += [json.loads(good.to_json()) | facts for facts in refreshes]
    with tempfile.TemporaryDirectory() as folder:
        store, source = Store(folder), Source("erp", "erp:1")
        noted["address"] = source.address
        store.write(json.dumps(noted).encode(), PRIVATE, "sources", "erp.json")
        notes = Notes.from_json(remembered)
        line = line_notes.line(store, source, notes.rows_per_s)
    noted_knots = notes.quantiles.positions if notes.quantiles else even_knots((1, 4 * ROWS))
    parsed = (parse(json.dumps(body).encode()) for body in earlier)
    lines = [one for one in parsed if one is not None]
    told = dataclasses.replace(
        KNOWN,
        prices=prices.from_notes(notes.prices, 9, level=line.level(ROWS)),
        partition=partition_for([*noted_knots], ROWS, integer_key=True),
        line=line,
        earlier=tuple(RefreshHistory(tuple(lines[::-1])).earlier),
        forced=forced,
        read_at_most=read_at_most,
        now=LOADED + timedelta(days=1),
    )
    for case in (told, dataclasses.replace(told, rows=None, version=None)):
        found = predict(case)
        assert found.chosen in by_name(found)
        assert math.isfinite(sum(c.exchange_seconds or 0.0 for c in found.candidates))
        json.loads(json_of(found), parse_constant=pytest.fail)
        assert text_of(found)
