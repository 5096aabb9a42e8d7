"""A message names what a person needs, in a bounded size, in the forms of chat programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.receiver import check_slack, check_teams
from warehouse_agent.config.settings import MessageFormat
from warehouse_agent.monitoring.messages import GROUPS_MAX, NAMED_MAX, Message, grouped
from warehouse_agent.monitoring.told_states import Event, ToldKind

DOWN = Event(ToldKind.FAILED, "t", 0.0, "erp", "UNREACHABLE", remedy="Start the agent.")
SHRANK = Event(
    ToldKind.SHRANK, "orders", 0.0, "erp", "SHRANK",
    remedy="If that is right: driftline refresh orders --allow-shrink",
)  # fmt: skip
HOSTILE = "<!channel> [a](https://b.example) *b* & \\u202e"
FORMS: list[tuple[MessageFormat, Callable[[dict[str, Any]], str]]] = [
    (MessageFormat.SLACK, check_slack),
    (MessageFormat.TEAMS, check_teams),
]


def named(event: Event, name: str, **more: Any) -> Event:
    values = {one: getattr(event, one) for one in Event.__slots__}
    return Event(**{**values, "table": name, **more})


def message(*events: Event) -> Message:
    return Message("/srv/warehouse", 0.0, grouped(events))


def body(told: Message) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(told.body(MessageFormat.JSON))
    return made


def test_a_source_that_is_down_is_one_event_of_all_its_tables() -> None:
    names = [f"t{number:03}" for number in range(500)]
    told = message(*(named(DOWN, name) for name in names))
    (event,) = body(told)["events"]
    assert (event["event"], event["count"]) == ("failed", 500)
    assert event["tables"] == names[:NAMED_MAX]
    assert (event["code"], event["source"]) == ("UNREACHABLE", "erp")
    assert body(told)["title"] == "Driftline: 500 failed in /srv/warehouse"
    (line, do) = told.lines
    assert line == (
        f"failed: {', '.join(names[:10])} and 490 more: UNREACHABLE: Nothing answers at the"
        " source's address. Start the agent."
    )
    assert do == "What to do: driftline status"


def test_remedies_that_differ_by_the_name_alone_are_one_cause() -> None:
    other = named(SHRANK, "lines", remedy=SHRANK.remedy.replace("orders", "lines"))
    assert [group.tables for group in grouped([SHRANK, other])] == [("orders", "lines")]
    assert len(grouped([SHRANK, named(SHRANK, "lines", source="crm")])) == 2


def test_what_is_urgent_comes_first() -> None:
    recovered = Event(ToldKind.RECOVERED, "a", 0.0)
    stale = Event(ToldKind.STALE, "b", 0.0, "erp")
    kinds = [group.first.kind.value for group in grouped([recovered, stale, SHRANK, DOWN])]
    assert kinds == ["failed", "shrank", "stale", "recovered"]


def test_changed_columns_are_named() -> None:
    changes = ("column note (text) was added", "column a was int4 and is int8")
    refused = Event(ToldKind.SCHEMA_CHANGED, "t", 0.0, "erp", "RECIPE", changes=changes)
    accepted = named(refused, "t", code="", version=7)
    (first, second, _) = message(refused, accepted).lines
    assert first.startswith("schema changed at the source: t: RECIPE: ")
    assert second == f"schema changed, now version 7: t: {'; '.join(changes)}."
    assert [event["changes"] for event in body(message(refused))["events"]] == [list(changes)]


def test_many_causes_are_counted() -> None:
    many = [named(DOWN, f"t{number}", code="VALUE", column=str(number)) for number in range(25)]
    told = body(message(*many))
    assert (len(told["events"]), told["left_out"]) == (GROUPS_MAX, 5)
    assert "And 5 other causes." in told["text"]
    assert "Column: 3." in told["text"]


def test_what_was_left_out_before_is_counted() -> None:
    told = Message("/w", 0.0, grouped([DOWN]), left_out=3)
    assert "And 3 earlier events, not told in time." in told.lines
    assert body(told)["left_out"] == 3


@pytest.mark.parametrize(("form", "check"), FORMS)
def test_a_chat_program_shows_every_line_as_it_is(
    form: MessageFormat, check: Callable[[dict[str, Any]], str]
) -> None:
    told = message(named(DOWN, "orders", column=HOSTILE), SHRANK)
    shown = check(json.loads(told.body(form)))
    assert shown == "\n".join([told.title, *told.lines])
    assert HOSTILE in shown


@pytest.mark.parametrize(("form", "check"), FORMS)
def test_the_largest_message_fits(
    form: MessageFormat, check: Callable[[dict[str, Any]], str]
) -> None:
    long = "x" * 200
    changes = tuple(f"column {'y' * 63}{number} was dropped" for number in range(1000))
    many = [
        named(DOWN, f"{long}{group}_{number}", code="RECIPE", remedy=f"{long} {group}",
              changes=changes, column=long)
        for group in range(30) for number in range(12)
    ]  # fmt: skip
    assert check(json.loads(message(*many).body(form)))


@pytest.mark.parametrize("form", MessageFormat)
def test_a_message_that_tests_says_so(form: MessageFormat) -> None:
    told = Message("/w", 0.0, [], is_test=True)
    assert b"test message" in told.body(form)
