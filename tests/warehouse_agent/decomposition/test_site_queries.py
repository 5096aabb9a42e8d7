"""Queries of one site in its own dialect, and joins that a DBA could publish."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest
from driftline.derivations import Comparable, Comparison, Every, Negated, Operator, Part, Some
from driftline.types import Column, Recipe, parse_type

from warehouse_agent.decomposition.site_queries import (
    Joined,
    dialect_of,
    predicate_text,
    proposed,
    share_query,
)
from warehouse_agent.decomposition.wishes import Offer, united
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.query import Query, read_query

TYPES = {"id": "int4", "d": "date", "m": "timestamp", "t": "text", "n": "numeric(8,2)"}
COLUMNS = tuple(Column(n, parse_type(t), ordinal=i) for i, (n, t) in enumerate(TYPES.items()))
RECIPE = Recipe(COLUMNS, 1)
PREDICATE = Every((
    Some((
        Comparison("d", Operator.LESS, ("2020-01-01",)),
        Negated(Comparison("t", Operator.IN, ("it's", "back\\slash"))),
    )),
    Comparison("m", Operator.IS_NULL),
    Comparison("n", Operator.EQUAL, ("-1.50",)),
))  # fmt: skip


@pytest.mark.parametrize(
    ("database", "text"),
    [
        (
            "PostgreSQL 16.4",
            (
                "(\"d\" < DATE '2020-01-01' OR NOT (\"t\" IN ('it''s', 'back\\slash')))"
                ' AND "m" IS NULL AND "n" = -1.50'
            ),
        ),
        (
            "MariaDB 10.11",
            (
                "(`d` < DATE '2020-01-01' OR NOT (`t` IN ('it''s', 'back\\\\slash')))"
                " AND `m` IS NULL AND `n` = -1.50"
            ),
        ),
    ],
)
def test_predicates(database: str, text: str) -> None:
    assert predicate_text(PREDICATE, RECIPE, dialect_of(database)) == text


def test_shares() -> None:
    ours = dialect_of("SQLite 3.40")
    assert share_query("r", Recipe(COLUMNS[:2], 1), None, ours) == 'SELECT "id", "d" FROM r'
    rows = Comparison("m", Operator.EQUAL, ("2020-01-01 00:00:00",))
    expected = 'SELECT "id", "d", "m" FROM r WHERE "m" = TIMESTAMP \'2020-01-01 00:00:00\''
    assert share_query("r", Recipe(COLUMNS[:3], 1), rows, ours) == expected


def joined(query: Query, kinds: Mapping[str, Comparable] | None = None) -> list[Joined]:
    found = []
    every = dict.fromkeys(TYPES, Comparable.ORDER)
    offer = Offer(RECIPE, tuple(TYPES), every if kinds is None else kinds, frozenset(Part))
    for number, occurrence in enumerate(query.occurrences):
        share = united([wish_of("v", query, number)], offer).shares[0]
        found.append(Joined(occurrence.reference[-1], offer, share))
    return found


def proposal(text: str, kinds: Mapping[str, Comparable] | None = None) -> str | None:
    query = read_query(text, where="v")
    pairs = [
        ((a.qualifier or "", a.name), (b.qualifier or "", b.name)) for a, b in query.equalities
    ]
    return proposed("v_erp", joined(query, kinds), pairs, dialect_of("PostgreSQL"))


def test_a_join_to_publish() -> None:
    found = proposal(
        "SELECT a.t, b.n FROM e.r a JOIN e.s b ON b.id = a.id AND a.n = 1 WHERE b.t < 'x'"
        " AND upper(b.t) = 'Y'"
    )
    assert found is not None
    served = tomllib.loads(found)["relations"]["v_erp"]
    assert served["key"] == ["id", "b_id"]
    assert " ".join(served["query"].split()) == (
        'SELECT "a"."id", "a"."t", "a"."n", "b"."id" AS "b_id", "b"."t" AS "b_t",'
        ' "b"."n" AS "b_n" FROM r AS "a", s AS "b" WHERE "b"."id" = "a"."id"'
        ' AND "a"."n" = 1.00 AND "b"."t" < \'x\''
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.t FROM e.r a, e.s b",
        "SELECT a.t FROM e.r a, e.s b WHERE a.id < b.id",
        "SELECT a.t FROM e.r a, e.s b WHERE a.id = b.n",
        "SELECT a.t FROM e.r a, e.s b WHERE a.id = b.id OR a.n = 1",
        "SELECT a.t FROM e.r a, e.s b WHERE a.id = a.id",
        "SELECT a.t FROM e.r a, e.s b WHERE id = b.id",
    ],
)
def test_no_join(text: str) -> None:
    assert proposal(text) is None


def test_no_join_on_text_that_compares_otherwise() -> None:
    text = "SELECT a.n FROM e.r a, e.s b WHERE a.t = b.t"
    assert proposal(text) is not None
    assert proposal(text, {"t": Comparable.NOTHING}) is None


def test_only_relations_that_join_are_proposed() -> None:
    found = proposal("SELECT a.n FROM e.r a, e.s b, e.u c WHERE a.t = c.t AND b.n = 3")
    assert found is not None
    assert 'FROM r AS "a", u AS "c"' in found
