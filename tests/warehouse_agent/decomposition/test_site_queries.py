"""Queries of one site in its own dialect, and joins that a DBA could publish."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    DerivablePart,
    NotPredicate,
    Operator,
    OrPredicate,
)
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.decomposition.site_queries import (
    JoinedOccurrence,
    dialect_of,
    predicate_text,
    proposed,
    share_query,
)
from warehouse_agent.decomposition.view_needs import DerivationOffer, united
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.query import Query, read_query

TYPES = {"id": "int4", "d": "date", "m": "timestamp", "t": "text", "n": "numeric(8,2)"}
COLUMNS = tuple(Column(n, parse_type(t), ordinal=i) for i, (n, t) in enumerate(TYPES.items()))
RECIPE = Recipe(COLUMNS, 1)
PREDICATE = AndPredicate((
    OrPredicate((
        ColumnPredicate("d", Operator.LESS, ("2020-01-01",)),
        NotPredicate(ColumnPredicate("t", Operator.IN, ("it's", "back\\slash"))),
    )),
    ColumnPredicate("m", Operator.IS_NULL),
    ColumnPredicate("n", Operator.EQUAL, ("-1.50",)),
))  # fmt: skip


@pytest.mark.parametrize(
    ("database", "text"),
    [
        (
            "postgresql",
            (
                "(\"d\" < DATE '2020-01-01'"
                " OR NOT (\"t\" COLLATE \"C\" IN ('it''s', 'back\\slash')))"
                ' AND "m" IS NULL AND "n" = -1.50'
            ),
        ),
        (
            "mariadb",
            (
                "(`d` < DATE '2020-01-01' OR NOT"
                " (CAST(CONVERT(`t` USING utf8mb4) AS BINARY) IN ('it''s', 'back\\\\slash')))"
                " AND `m` IS NULL AND `n` = -1.50"
            ),
        ),
    ],
)
def test_predicates(database: str, text: str) -> None:
    assert predicate_text(PREDICATE, RECIPE.columns, dialect_of(database)) == text


def test_shares() -> None:
    ours = dialect_of("sqlite")
    assert share_query("r", Recipe(COLUMNS[:2], 1), None, ours) == 'SELECT "id", "d" FROM r'
    rows = ColumnPredicate("m", Operator.EQUAL, ("2020-01-01 00:00:00",))
    expected = 'SELECT "id", "d", "m" FROM r WHERE "m" = TIMESTAMP \'2020-01-01 00:00:00\''
    assert share_query("r", Recipe(COLUMNS[:3], 1), rows, ours) == expected


def joined(query: Query, kinds: Mapping[str, Comparable] | None = None) -> list[JoinedOccurrence]:
    found = []
    every = dict.fromkeys(TYPES, Comparable.ORDER)
    offer = DerivationOffer(
        RECIPE, tuple(TYPES), every if kinds is None else kinds, frozenset(DerivablePart)
    )
    for number, occurrence in enumerate(query.occurrences):
        share = united([wish_of("v", query, number)], offer).shares[0]
        found.append(JoinedOccurrence(occurrence.reference[-1], offer, share))
    return found


def proposal(
    text: str, kinds: Mapping[str, Comparable] | None = None, database: str = "postgresql"
) -> str | None:
    query = read_query(text, where="v")
    pairs = [
        ((a.qualifier or "", a.name), (b.qualifier or "", b.name)) for a, b in query.equalities
    ]
    return proposed("v_erp", joined(query, kinds), pairs, dialect_of(database))


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
        ' AND "a"."n" = 1.00 AND "b"."t" COLLATE "C" < \'x\''
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


def test_what_is_pushed_stays_together() -> None:
    """OR binds weaker than the AND between the conditions of a proposal."""
    found = proposal("SELECT a.t FROM e.r a JOIN e.s b ON b.id = a.id WHERE a.n = 1 OR a.n = 2")
    assert found is not None
    assert 'AND ("a"."n" = 1.00 OR "a"."n" = 2.00)"""' in found


def test_names_of_a_proposal_differ() -> None:
    found = proposal("SELECT a.t FROM e.r a, e.s id, e.u b WHERE id.t = a.t AND b.id = a.id")
    assert found is not None
    assert tomllib.loads(found)["relations"]["v_erp"]["key"] == ["id", "id_id", "b_id"]
    columns = (Column("k", parse_type("int4")), Column("b_k", parse_type("int4"), ordinal=1))
    offer = DerivationOffer(
        Recipe(columns, 2), ("k", "b_k"), dict.fromkeys(("k", "b_k"), Comparable.ORDER)
    )
    query = read_query("SELECT a.k, b.b_k AS x FROM e.r a, e.s b WHERE a.k = b.k", where="v")
    each = [
        JoinedOccurrence(
            one.reference[-1], offer, united([wish_of("v", query, i)], offer).shares[0]
        )
        for i, one in enumerate(query.occurrences)
    ]
    pairs = [(("a", "k"), ("b", "k"))]
    served = proposed("v_erp", each, pairs, dialect_of("sqlite"))
    assert served is not None
    key = tomllib.loads(served)["relations"]["v_erp"]["key"]
    assert key == ["k", "b_k", "b_k_2", "b_b_k"]


def test_a_proposal_is_toml() -> None:
    columns = (Column("k", parse_type("int4")), Column('a\\"', parse_type("int4"), ordinal=1))
    names = tuple(column.name for column in columns)
    offer = DerivationOffer(Recipe(columns, 2), names, dict.fromkeys(names, Comparable.ORDER))
    query = read_query("SELECT a.k FROM e.r a, e.s b WHERE a.k = b.k", where="v")
    each = [
        JoinedOccurrence(
            one.reference[-1], offer, united([wish_of("v", query, i)], offer).shares[0]
        )
        for i, one in enumerate(query.occurrences)
    ]
    found = proposed("v_erp", each, [(("a", "k"), ("b", "k"))], dialect_of("sqlite"))
    assert found is not None
    served = tomllib.loads(found)["relations"]["v_erp"]
    assert served["key"] == ["k", 'a\\"', "b_k", 'b_a\\"']
    assert 'SELECT "a"."k",\n' in served["query"]
    assert '"a"."a\\""",' in served["query"]


def test_no_join_where_texts_cannot_be_compared_by_bytes() -> None:
    text = "SELECT a.t FROM e.r a JOIN e.s b ON b.id = a.id"
    assert proposal(text) is not None
    assert proposal(text, database="another") is None
