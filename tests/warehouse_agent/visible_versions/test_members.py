"""The members of the next warehouse version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warehouse_agent.visible_versions.members import Member, MemberKind, moved, overtaken

T0, T1 = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def fragment(name: str, version: int, at: str = T0) -> Member:
    return Member(name, MemberKind.FRAGMENT, name, version, at, "exact", "total", at)


def view(name: str, version: int, **inputs: int) -> Member:
    return Member(name, MemberKind.VIEW, name, version, T0, "exact", "total", T0, "total", inputs)


BEFORE = {m.name: m for m in (fragment("a", 3), fragment("b", 1), view("v", 7, a=3, b=1))}


def test_what_did_not_move_makes_no_version() -> None:
    assert moved(BEFORE, []) is None
    assert moved(BEFORE, [replace(BEFORE["a"], moved_at=T1)]) is None


def test_fragments_and_views_move_together() -> None:
    after = moved(BEFORE, [fragment("a", 4, T1), view("v", 8, a=4, b=1)])
    assert after is not None
    assert {name: m.version for name, m in after.items()} == {"a": 4, "b": 1, "v": 8}
    assert after["b"] is BEFORE["b"]


def test_a_view_that_is_left_behind_must_be_marked() -> None:
    with pytest.raises(AssertionError, match="v: "):
        moved(BEFORE, [fragment("a", 4, T1), view("v", 8, a=3, b=1)])
    after = moved(BEFORE, [fragment("a", 4, T1), BEFORE["v"].marked("division by zero", T1)])
    assert after is not None
    assert (after["v"].version, after["v"].stale, after["v"].stale_since) == (
        7,
        "division by zero",
        T1,
    )
    again = after["v"].marked("still", "2026-02-01T00:00:00Z")
    assert (again.stale, again.stale_since) == ("still", T1)


def test_a_view_that_is_configured_no_more_is_left_out_when_its_inputs_move() -> None:
    over = view("over", 2, v=7)
    before = {**BEFORE, "over": over, "c": fragment("c", 0)}
    after = moved(before, [fragment("c", 1, T1)], ["other"])
    assert after is not None
    assert {"v", "over"} <= after.keys(), "what it was made of is still beside it"
    after = moved(before, [fragment("a", 4, T1)], ["other"])
    assert after is not None
    assert after.keys() == {"a", "b", "c"}


def test_a_view_whose_query_reads_an_input_no_more_is_marked() -> None:
    """Its member is still made of the fragment, which moves alone; views over it stay behind."""
    before = {**BEFORE, "over": view("over", 2, v=7), "c": fragment("c", 0)}
    after = moved(before, [fragment("a", 4, T1)], ["v", "over"])
    assert after is not None
    assert {name: m.version for name, m in after.items()} == {
        "a": 4,
        "b": 1,
        "c": 0,
        "v": 7,
        "over": 2,
    }
    assert after["v"].stale == "a moved, which its query does not read any more"
    assert after["over"].stale == "its input v is stale"
    assert after["v"].stale_since == after["over"].stale_since == T1
    assert moved(after, [fragment("c", 1, T1)], ["v", "over"]) == {
        **after,
        "c": fragment("c", 1, T1),
    }


def test_what_was_decided_before_another_command_moved_it_is_overtaken() -> None:
    ours, names = [fragment("a", 4), view("v", 8, a=4, b=1)], ["a", "b", "v"]
    assert overtaken(BEFORE, {**BEFORE, "c": fragment("c", 1)}, ours, names) is None
    assert overtaken(BEFORE, {**BEFORE, "b": fragment("b", 2)}, ours, names) == "b"
    stale = BEFORE["v"].marked("division by zero", T1)
    assert overtaken(BEFORE, {**BEFORE, "v": stale}, ours, names) == "v"
    assert overtaken(BEFORE, {n: m for n, m in BEFORE.items() if n != "b"}, ours, names) == "b"


def test_another_component_may_begin_the_table() -> None:
    ours, names = [fragment("a", 4), fragment("b", 1), view("v", 0, a=4, b=1)], ["a", "b", "v"]
    assert overtaken({}, {}, ours, names) is None
    assert overtaken({}, {"a": fragment("a", 3), "b": fragment("b", 1)}, ours, names) is None
    assert overtaken({}, {"a": fragment("a", 5)}, ours, names) == "a"
    assert overtaken({}, {"v": view("v", 0, a=4, b=1)}, ours, names) == "v"
