"""The table of states is that of the page, and a message that it lacks is refused."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.wire.exchange_states import TABLE, ExchangeState, StateTracker, name_of

from tests import ROOT

REQUESTS = {field.name for field in pb.Request.DESCRIPTOR.fields}
REPLIES = {field.name for field in pb.Reply.DESCRIPTOR.fields}
M = TypeVar("M", pb.Request, pb.Reply)
BESIDE = {"progress", "refused", "piece"}  # of the table
MARK = pb.Since(mark=b"m", keys=pb.Sketch(fold=2))
FOLD = pb.Sketch(fold=2)


def on_the_page() -> dict[str, tuple[str, dict[str, str]]]:
    """By state, whose turn it is, and the states after messages, by the names of the code."""
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = text.partition("### States\n")[2].partition("\n### ")[0]
    found = {}
    for line in section.splitlines():
        if not line.startswith("|") or line.startswith(("| state", "|---")):
            continue
        state, sender, messages = (cell.strip() for cell in line.strip("|").split("|"))
        following = {}
        for one in messages.split("; "):
            message, _, after = one.partition(" → ")
            name, of = re.fullmatch(r"`(\w+)`(?: ([\w+]+))?", message).groups()  # type: ignore[union-attr]
            word = re.sub(r"(?<=.)(?=[A-Z])", "_", name).lower()
            following[f"{word} {of}" if of else word] = after
        found[state] = (sender, following)
    return found


def empty(message: M, name: str) -> M:
    getattr(message, name).SetInParent()
    return message


def refusal_of(message: pb.Request | pb.Reply, at: StateTracker) -> str:
    """With what a side that waits refuses a message."""

    def waits() -> Generator[Any, Any, None]:
        yield None

    with pytest.raises(MalformedMessage) as error:
        next(at.run(waits(), lambda _: message))
    return str(error.value)


def test_the_page_has_the_same_table() -> None:
    page = on_the_page()
    assert [*page] == [state.value for state in ExchangeState] == [state.value for state in TABLE]
    for state, row in TABLE.items():
        sender, following = page[state.value]
        assert following == {name: after.value for name, after in row.items()}
        assert [*following] == [*row], "in the same order: the last one is named in a refusal"
        kinds = {name.split()[0] for name in row}
        assert kinds <= (REQUESTS if sender == "warehouse" else REPLIES)


def test_every_message_and_state_is_in_the_table() -> None:
    kinds = {name.split()[0] for row in TABLE.values() for name in row}
    assert kinds == REQUESTS | REPLIES - BESIDE
    reached = {after for state, row in TABLE.items() for after in row.values() if after != state}
    assert reached == set(ExchangeState)


@pytest.mark.parametrize("state", ExchangeState)
def test_what_the_table_lacks_is_refused(state: ExchangeState) -> None:
    """Without a move, and with an error that names a message which may come."""
    messages: list[pb.Request | pb.Reply] = [
        *(empty(pb.Request(), name) for name in sorted(REQUESTS)),
        *(empty(pb.Reply(), name) for name in sorted(REPLIES - {"progress", "rows"})),
        pb.Request(),
    ]
    for message in messages:
        at = StateTracker()
        at.state = state
        if name_of(message, state) not in TABLE[state]:
            assert "expected" in refusal_of(message, at)
            assert at.state is state


@pytest.mark.parametrize(
    ("opening", "name"),
    [
        (pb.Open(count=4), "open"),
        (pb.Open(since=pb.Since(audited=b"m")), "open"),
        (pb.Open(grouping=pb.Grouping()), "open grouping"),
        (pb.Open(sketch=pb.Sketch()), "open sketch"),
        (pb.Open(sketch=FOLD), "open sketch+cells"),
        (pb.Open(sketch=pb.Sketch(), later=True), "open later"),
        (pb.Open(sketch=FOLD, later=True), "open later+cells"),
        (pb.Open(since=pb.Since(mark=b"m")), "open mark"),
        (pb.Open(since=MARK), "open mark+cells"),
    ],
)
def test_the_opening_decides(opening: pb.Open, name: str) -> None:
    assert name_of(pb.Request(open=opening), ExchangeState.IDLE) == name


def test_a_message_in_pieces_counts_once_and_nothing_comes_between() -> None:
    at = StateTracker()
    assert at.follow(pb.Request(open=pb.Open(sketch=FOLD)))
    assert at.follow(pb.Request(cells=pb.Cells()))
    assert at.state.value == "cells follow"
    assert at.follow(pb.Request(cells=pb.Cells(last=True)))
    assert at.follow(pb.Reply(verdict=pb.Verdict()))
    assert at.follow(pb.Request(digests=pb.Digests()))
    assert refusal_of(pb.Request(whole=pb.Whole()), at) == "A message of digests was expected."
    assert at.follow(pb.Request(digests=pb.Digests(last=True)))
    assert at.follow(pb.Reply(mismatch=pb.Mismatch()))
    assert (
        refusal_of(pb.Reply(row_hashes=pb.RowHashes()), at) == "The differing ranges were expected."
    )
    assert at.state.value == "digests sent"


def test_the_same_message_has_a_property_only_where_it_decides() -> None:
    said = pb.Reply(verdict=pb.Verdict(unmarked=True))
    assert name_of(said, ExchangeState.MARK) == "verdict unmarked"
    assert name_of(said, ExchangeState.CELLS) == "verdict"
