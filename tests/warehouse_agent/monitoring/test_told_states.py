"""What is told of a table: each state once, and none is lost, whatever happens to deliveries."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.monitoring.told_states import (
    CLAIM_S,
    WAITING_MAX,
    Event,
    TableState,
    Told,
    ToldKind,
    WaitingEvent,
)

TABLES = ("orders", "lines")
FAILED, STALE, WELL = ToldKind.FAILED, ToldKind.STALE, ToldKind.RECOVERED
DOWN, REFUSED = "UNREACHABLE", "DATABASE_REFUSED"


def seen(kind: ToldKind, at: float = 100.0, code: str = "", table: str = "orders") -> Event:
    return Event(kind, table, at, "erp", code)


def told_of(*events: Event) -> list[tuple[ToldKind, str]]:
    """What waits after events of one table."""
    told = Told().seeing(events, TABLES)
    return [(one.event.kind, one.event.code) for one in told.waiting]


def test_a_state_is_told_once_and_its_end_once() -> None:
    down, well = seen(FAILED, code=DOWN), seen(WELL)
    assert told_of(well, well) == []
    assert told_of(down, down, down) == [(FAILED, DOWN)]
    assert told_of(down, well, well) == [(FAILED, DOWN), (WELL, "")]
    assert told_of(down, well, down) == [(FAILED, DOWN), (WELL, ""), (FAILED, DOWN)]
    assert told_of(seen(STALE), seen(STALE), down, well) == [
        (STALE, ""),
        (FAILED, DOWN),
        (WELL, ""),
    ]


def test_failures_that_take_turns_are_told_once_each() -> None:
    one, other = seen(FAILED, code=DOWN), seen(FAILED, code=REFUSED)
    assert told_of(one, other, one, other) == [(FAILED, DOWN), (FAILED, REFUSED)]


def test_a_schema_that_was_accepted_is_no_state() -> None:
    kind = ToldKind.SCHEMA_CHANGED
    refused = replace(seen(kind, code="RECIPE"), changes=("column a was dropped",))
    accepted = replace(refused, code="", version=7)
    assert told_of(refused, refused) == [(kind, "RECIPE")]
    assert told_of(refused, seen(WELL), accepted) == [(kind, "RECIPE"), (WELL, ""), (kind, "")]


def test_a_table_that_is_gone_from_the_configuration_is_forgotten() -> None:
    told = Told().seeing([seen(FAILED, code=DOWN)], TABLES).seeing([], ["lines"])
    assert not told.tables
    assert len(told.waiting) == 1, "what waits is still told"
    assert not Told().seeing([seen(FAILED, code=DOWN)], ["lines"]).waiting


def test_a_claim_ends() -> None:
    told = Told().seeing([seen(FAILED, code=DOWN)], TABLES)
    told, mine = told.claimed(50.0)
    assert len(mine) == 1
    assert not told.claimed(50.0 + CLAIM_S / 2)[1]
    assert told.claimed(50.0 + CLAIM_S)[1]
    assert told.claimed(49.0)[1], "the clock of the other command was wrong"
    assert told.released(mine).claimed(50.0)[1]
    assert not told.delivered(mine, 0).waiting


def test_what_waits_is_bounded_and_the_rest_is_counted() -> None:
    told = Told()
    for number in range(WAITING_MAX // 2 + 3):
        told = told.seeing([seen(FAILED, number, DOWN), seen(WELL, number)], TABLES)
    assert (len(told.waiting), told.left_out) == (WAITING_MAX, 6)
    assert told.waiting[-1].number == WAITING_MAX + 5
    assert Told.of_json(told.to_json()) == told
    assert told.delivered(told.waiting, told.left_out).left_out == 0


TEXTS = st.text(max_size=5)
EVENTS = st.builds(
    Event,
    st.sampled_from(ToldKind),
    st.text(min_size=1, max_size=5),
    st.integers(0, 2**40).map(lambda ms: ms / 1000),
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    st.lists(TEXTS, max_size=2).map(tuple),
    st.none() | st.integers(0, 9),
    TEXTS,
    st.dictionaries(TEXTS, TEXTS, max_size=2),
)
STATES = st.builds(TableState, st.none() | st.floats(1, 2e9).map(lambda s: round(s, 3)),
                   st.lists(TEXTS, max_size=3).map(tuple))  # fmt: skip


@given(st.dictionaries(TEXTS, STATES, max_size=3), st.lists(EVENTS, max_size=4), st.integers(0, 9))
def test_the_file_says_all_again(
    tables: dict[str, TableState], events: list[Event], left_out: int
) -> None:
    waiting = tuple(
        WaitingEvent(number, one, number * 1.5 if number % 2 else None)
        for number, one in enumerate(events)
    )
    told = Told(tables, waiting, len(events), left_out)
    assert Told.of_json(told.to_json()) == told


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({"tables": JSON, "waiting": JSON, "next_number": JSON}) | JSON)
def test_a_damaged_file_is_read_as_far_as_it_goes(body: object) -> None:
    told = Told.of_json(json.dumps(body).encode()).seeing([seen(FAILED, code=DOWN)], TABLES)
    assert told.claimed(0.0)[1]
    assert told.to_json()


@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b"[]", b'{"tables": {"a": [1, "X"]}'])
def test_no_file_is_an_empty_one(data: bytes) -> None:
    assert Told.of_json(data) == Told()


# A command sees something, claims and sends; deliveries end well, fail, or the command is killed
# before or after its message arrived. Two commands work at once.
SEEN = st.sampled_from([(WELL, ""), (FAILED, DOWN), (FAILED, REFUSED), (STALE, "")])
BEGIN = st.tuples(st.sampled_from([0, 1]), st.sampled_from(TABLES), SEEN)
END = st.tuples(
    st.sampled_from([0, 1]), st.sampled_from(["arrives", "fails", "killed", "arrives, killed"])
)
PASSES = st.sampled_from([0.1, CLAIM_S + 1])


@given(st.lists(BEGIN | END | PASSES, max_size=40))
def test_each_transition_arrives_and_once_where_nobody_is_killed(steps: list) -> None:
    file, now = Told().to_json(), 1000.0
    marks: dict[str, set[str]] = {name: set() for name in TABLES}  # of the oracle
    expected: list[tuple[str, ToldKind, str]] = []
    arrived, again = Counter[int](), set[int]()
    events: dict[int, tuple[str, ToldKind, str]] = {}
    sending: dict[int, list[WaitingEvent]] = {}

    def begin(worker: int) -> None:
        nonlocal file
        told, mine = Told.of_json(file).claimed(now)
        file, sending[worker] = told.to_json(), list(mine)

    def end(worker: int, how: str) -> None:
        nonlocal file
        mine = sending.pop(worker, [])
        if how.startswith("arrives"):
            arrived.update(one.number for one in mine)
            events.update(
                (one.number, (one.event.table, one.event.kind, one.event.code)) for one in mine
            )
        if "killed" in how:
            again.update(one.number for one in mine)
            return
        told = Told.of_json(file)
        told = told.delivered(mine, 0) if how == "arrives" else told.released(mine)
        file = told.to_json()

    for step in steps:
        match step:
            case float():
                now += step
                if step > CLAIM_S:  # deliveries are shorter than a claim
                    for worker in list(sending):
                        end(worker, "killed")
            case worker, str(how):
                end(worker, how)
            case worker, table, (kind, code):
                if worker in sending:
                    continue
                now += 0.001
                if kind is WELL:
                    if marks[table]:
                        expected.append((table, kind, ""))
                    marks[table].clear()
                elif (mark := code or "stale") not in marks[table]:
                    marks[table].add(mark)
                    expected.append((table, kind, code))
                file = Told.of_json(file).seeing([seen(kind, now, code, table)], TABLES).to_json()
                begin(worker)
    for worker in list(sending):
        end(worker, "fails")
    now += CLAIM_S + 1
    begin(0)
    end(0, "arrives")
    assert [events[number] for number in sorted(events)] == expected, "all, in their order"
    assert not Told.of_json(file).waiting
    assert all(times == 1 for number, times in arrived.items() if number not in again)
