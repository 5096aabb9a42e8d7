"""Which equalities carry messages, and in which order the rows of a view are found."""

from __future__ import annotations

import pytest

from warehouse_agent.views.maintenance.join_graph import (
    ChangesStep,
    EdgeMessage,
    JoinEdge,
    OccurrenceFacts,
    ProbeStep,
    SelectionStep,
    edges,
    reduction,
)


def relation(rows: int, changed: bool, key: str | None = None, **types: str) -> OccurrenceFacts:
    return OccurrenceFacts(types, key, rows, changed)


CUSTOMER = relation(100, True, "ck", ck="bigint")
ORDERS = relation(1000, True, "ok", ok="bigint", o_ck="int")
LINES = relation(4000, True, l_ok="bigint")
CHAIN = [((0, "ck"), (1, "o_ck")), ((2, "l_ok"), (1, "ok"))]


@pytest.mark.parametrize(
    ("left", "right", "is_edge"),
    [
        ("bigint", "bigint", True),
        ("bigint", "smallint", True),
        ("string", "string", True),
        ("date", "date", True),
        ("timestamp", "timestamp", True),
        ("boolean", "boolean", True),
        ("decimal(10,2)", "decimal(10,2)", True),
        ("decimal(10,2)", "decimal(10,3)", False),  # 1.10 = 1.100
        ("int", "string", False),  # 1 = '01'
        ("int", "decimal(10,0)", False),
        ("date", "timestamp", False),
        ("timestamp", "timestamp_ntz", False),
        ("double", "double", False),  # 0.0 = -0.0
        ("float", "double", False),
    ],
)
def test_only_equality_of_values_is_an_edge(left: str, right: str, is_edge: bool) -> None:
    found = edges([((0, "a"), (1, "b"))], [relation(1, True, a=left), relation(1, True, b=right)])
    assert bool(found) is is_edge


def test_equalities_of_two_occurrences_are_one_edge() -> None:
    both = [relation(1, True, a="int", b="string"), relation(1, True, a="int", b="string")]
    pairs = [((1, "a"), (0, "a")), ((0, "b"), (1, "b")), ((0, "a"), (1, "a")), ((0, "a"), (0, "b"))]
    assert edges(pairs, both) == (JoinEdge((0, 1), (("a", "b"), ("a", "b"))),)


def test_a_chain_reads_each_relation_once() -> None:
    occurrences = [CUSTOMER, ORDERS, LINES]
    found = edges(CHAIN, occurrences)
    customer, lines = found
    plan = reduction(found, occurrences)
    up = (EdgeMessage(0, customer), EdgeMessage(2, lines))
    assert plan.steps == (
        ChangesStep(up[0]),
        ChangesStep(up[1]),
        SelectionStep(1, up, True, (EdgeMessage(1, customer), EdgeMessage(1, lines))),
        SelectionStep(0, (EdgeMessage(1, customer),), True, ()),
        SelectionStep(2, (EdgeMessage(1, lines),), True, ()),
    )
    assert plan.whole == frozenset()


def test_who_did_not_change_sends_only_what_came() -> None:
    occurrences = [CUSTOMER, relation(1000, False, "ok", ok="bigint", o_ck="int"),
                   relation(4000, False, l_ok="bigint")]  # fmt: skip
    found = edges(CHAIN, occurrences)
    plan = reduction(found, occurrences)
    assert plan.steps == (
        ChangesStep(EdgeMessage(0, found[0])),
        SelectionStep(1, (EdgeMessage(0, found[0]),), False, (EdgeMessage(1, found[1]),)),
        SelectionStep(0, (), True, ()),
        SelectionStep(2, (EdgeMessage(1, found[1]),), False, ()),
    )


def test_a_longer_chain_probes_on_the_way_up() -> None:
    """a – b – c – d: the root is c, the largest inside; b is read for the partners of a."""
    occurrences = [
        relation(10, True, x="int"),
        relation(20, False, x="int", y="int"),
        relation(90, False, y="int", z="int"),
        relation(30, False, z="int"),
    ]
    found = edges([((0, "x"), (1, "x")), ((1, "y"), (2, "y")), ((2, "z"), (3, "z"))], occurrences)
    plan = reduction(found, occurrences)
    assert ProbeStep((EdgeMessage(0, found[0]),), EdgeMessage(1, found[1]), False) in plan.steps
    assert [s.occurrence for s in plan.steps if isinstance(s, SelectionStep)] == [2, 1, 0, 3]


def test_a_cycle_prefers_keys() -> None:
    """Few rows have the key of a supplier, many his nation."""
    occurrences = [
        relation(100, True, "c", c="int", nation="int"),
        relation(900, True, "o", o="int", c="int", s="int"),
        relation(10, False, "s", s="int", nation="int"),
    ]
    pairs = [((0, "nation"), (2, "nation")), ((0, "c"), (1, "c")), ((1, "s"), (2, "s"))]
    plan = reduction(edges(pairs, occurrences), occurrences)
    used = {m.edge.columns for s in plan.steps if isinstance(s, SelectionStep) for m in s.messages}
    assert used == {(("c",), ("c",)), (("s",), ("s",))}


def test_what_no_edge_reaches_is_whole() -> None:
    occurrences = [CUSTOMER, relation(5, False, n="double"), relation(5, False, n="double")]
    plan = reduction(edges([((1, "n"), (2, "n"))], occurrences), occurrences)
    assert plan.whole == {1, 2}
    assert plan.steps == (SelectionStep(0, (), True, ()),)
    both = [CUSTOMER, relation(5, True, n="double")]
    assert reduction((), both).whole == {0, 1}
