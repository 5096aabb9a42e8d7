"""Views over what their sources are asked for give what they give over whole relations.

Views, rows and what the DBA and the engine allow are random. DuckDB has the whole relations, and
beside them the relations that the derivation gives, and evaluates each view over both.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from driftline.limits import DERIVATION_COMPARISONS_MAX
from driftline.relations.derivation_json import from_json, to_json
from driftline.relations.derivation_messages import from_message, to_message
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    DerivablePart,
    Derivation,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    ReferencePredicate,
    canonical,
    comparisons,
    text_of,
)
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.decomposition.view_needs import (
    DerivationOffer,
    OccurrenceNeed,
    implies,
    lacks,
    united,
    wish_id,
)
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.query import Query, read_query

TYPES = {
    "k": "int8",
    "a": "int4",
    "c": "numeric(8,2)",
    "d": "date",
    "m": "timestamp",
    "t": "text",
}
SQL = {
    "int8": "BIGINT", "int4": "INTEGER", "numeric(8,2)": "DECIMAL(8,2)", "date": "DATE",
    "timestamp": "TIMESTAMP", "text": "VARCHAR",
}  # fmt: skip
COLUMNS = tuple(Column(n, parse_type(t), ordinal=i) for i, (n, t) in enumerate(TYPES.items()))
RECIPE = Recipe(COLUMNS, 1)
ALL = DerivationOffer(
    RECIPE, tuple(TYPES), dict.fromkeys(TYPES, Comparable.ORDER), frozenset(DerivablePart)
)
DAY = date(2020, 1, 1)


def query(text: str) -> Query:
    return read_query(text, where="views.v.query")


def wishes(*texts: str, relation: str = "r") -> list[OccurrenceNeed]:
    found = []
    for text in texts:
        one = query(text)
        for number, occurrence in enumerate(one.occurrences):
            if occurrence.reference[-1] == relation:
                found.append(wish_of("v", one, number))
    return found


def rows_of(*texts: str, offer: DerivationOffer = ALL) -> str | None:
    derivation = united(wishes(*texts), offer).derivation
    return None if derivation is None or derivation.rows is None else text_of(derivation.rows)


@pytest.mark.parametrize(
    ("where", "pushed"),
    [
        ("a = 5", "\"a\" = '5'"),
        ("5 > r.a", "\"a\" < '5'"),
        ("(a) <> (-5)", "\"a\" <> '-5'"),
        ("a BETWEEN 1 AND 3", "(\"a\" <= '3') AND (\"a\" >= '1')"),
        ("a NOT IN (3, 1, 1)", "NOT (\"a\" IN ('1', '3'))"),
        ("a IS NOT NULL", 'NOT ("a" IS NULL)'),
        ("NOT (a = 1 OR t = 'x')", "NOT ((\"a\" = '1') OR (\"t\" = 'x'))"),
        ("c <= 1.5", "\"c\" <= '1.50'"),
        ("c IN (1, -0.00)", "\"c\" IN ('0.00', '1.00')"),
        ("d = DATE '2020-02-29'", "\"d\" = '2020-02-29'"),
        ("d < '2020-02-29'", "\"d\" < '2020-02-29'"),
        ("m >= TIMESTAMP_NTZ '2020-02-29 01:02:03.500'", "\"m\" >= '2020-02-29 01:02:03.5'"),
        ("m >= TIMESTAMP '2020-02-29'", "\"m\" >= '2020-02-29 00:00:00'"),
        ("t = 'x'", "\"t\" = 'x'"),
        # A part of a condition is enough where both sides of AND are.
        ("(a = 1 AND upper(t) = 'X') OR (a = 2 AND t LIKE 'y')", "(\"a\" = '1') OR (\"a\" = '2')"),
        ("a = 1 AND a + 1 = 2", "\"a\" = '1'"),
        ("a = 1 AND (a = 2 OR a < c)", "\"a\" = '1'"),
    ],
)  # fmt: skip
def test_conditions_that_are_pushed(where: str, pushed: str) -> None:
    assert rows_of(f"SELECT r.a FROM e.r WHERE {where}") == pushed


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("a = 1.0", "a number (1.0) against a, int4"),
        ("a = 9999999999", "against a, int4"),
        ("a = '1'", "text (1) against a, int4"),
        ("t = 1", "a number (1) against t, text"),
        ("c = 1.234", "a number (1.234) against c, numeric(8,2)"),
        ("c = 1e2", "a number (1e2) against c"),
        ("c = 1234567.0", "against c"),
        ("d = '2020-2-3'", "text (2020-2-3) against d, date"),
        ("d = DATE '2020-02-30'", "against d"),
        ("d = TIMESTAMP '2020-02-03'", "a timestamp"),
        ("m = '2020-02-03 00:00:00'", "text ("),
        ("m = DATE '2020-02-03'", "a date"),
        ("m = TIMESTAMP '2020-02-03 00:00:00+01:00'", "a timestamp"),
        ("t = 'a\\nb'", "an escape, a quote or `$`"),
        ("t = 'a' AND a = 1 AND t <> '\\\\'", ""),
        ("t = 'it''s'", "has the function concat"),
        ("t = '${env:HOME}'", "an escape, a quote or `$`"),
        ("t = r'x'", "has RAWSTRING"),
        ("t LIKE 'x%'", "has a pattern"),
        ("a + 0 = 1", "has arithmetic"),
        ("-a = 1", "has arithmetic"),
        ("upper(t) = 'X'", "has the function upper"),
        ("CAST(a AS STRING) = '1'", "has a cast"),
        ("a <=> 1", "compares null-safely"),
        ("a = NULL", "compares with NULL"),
        ("a IN (1, NULL)", "compares with NULL"),
        ("a = k", "compares two columns"),
        ("a = 1 OR c > 1e0", "a number (1e0)"),
        ("NOT (a = 1 AND upper(t) = 'X')", "has the function upper"),
        ("CASE WHEN a = 1 THEN true ELSE false END", "has CASE"),
    ],
)
def test_conditions_that_stay(where: str, why: str) -> None:
    text = f"SELECT r.a FROM e.r WHERE {where}"
    share = united(wishes(text), ALL).shares[0]
    assert why in "; ".join(reason for _, found in share.conjuncts for reason in found.why)
    if " AND a = 1 AND " not in where:  # the other conjunct of the query
        assert rows_of(text) is None


@pytest.mark.parametrize("word", ["OR", "AND"])
def test_long_chains_are_read(word: str) -> None:
    """What is too large stays here: never an error, and other conditions are pushed."""
    short = f" {word} ".join(f"a <> {n}" for n in range(30))
    long = f" {word} ".join(f"a <> {n}" for n in range(800))
    for chain, is_pushed in ((short, True), (long, False)):
        (wish,) = wishes(f"SELECT r.a FROM e.r WHERE ({chain}) AND t = 'x'")
        assert wish_id([wish])
        derivation = united([wish], ALL).derivation
        assert derivation is not None
        rows = derivation.rows
        if rows is None:  # conjuncts that fit each, and not together
            assert (word, is_pushed) == ("AND", False)
        else:
            assert len(list(comparisons(rows))) == (31 if is_pushed else 1)
    deep = "a = 1"
    for n in range(10):
        deep = f"(a <> {n} OR (a <> {n} AND {deep}))"
    (wish,) = wishes(f"SELECT r.a FROM e.r WHERE {deep} AND t = 'x'")
    assert wish_id([wish])
    assert rows_of(f"SELECT r.a FROM e.r WHERE {deep} AND t = 'x'") == "\"t\" = 'x'"


def test_operators_without_one_meaning_stay() -> None:
    offer = DerivationOffer(
        RECIPE, tuple(TYPES), {"t": Comparable.EQUALITY}, frozenset(DerivablePart)
    )
    assert rows_of("SELECT a FROM e.r WHERE t = 'x'", offer=offer) == "\"t\" = 'x'"
    for where in ("t < 'x'", "a = 1", "t BETWEEN 'a' AND 'b'", "a IS NULL"):
        assert rows_of(f"SELECT a FROM e.r WHERE {where}", offer=offer) is None


def test_conditions_on_other_tables_stay() -> None:
    text = "SELECT r.a FROM e.r JOIN e.s ON s.a = r.a AND s.c = 1 WHERE r.t = 'x' AND s.t = 'y'"
    assert rows_of(text) == "\"t\" = 'x'"
    found = united(wishes(text, relation="s"), ALL).derivation
    assert found is not None
    assert found.columns == ("k", "a", "c", "t")
    assert text_of(found.rows or OrPredicate(())) == "(\"c\" = '1.00') AND (\"t\" = 'y')"
    # Two occurrences of a relation: each has its own condition.
    twice = "SELECT x.a FROM e.r x, e.r y WHERE x.a = 1 AND y.a = 2 AND x.d IS NULL"
    assert rows_of(twice) == '("a" = \'2\') OR (("a" = \'1\') AND ("d" IS NULL))'


def test_names_without_an_alias_may_be_of_any_table() -> None:
    text = "SELECT x, zz FROM e.r JOIN e.s ON s.k = r.k WHERE a = 1 AND zz = 2 AND T = 'x'"
    found = united(wishes(text), ALL)
    assert found.derivation == Derivation(
        ("k", "a", "t"),
        canonical(AndPredicate((
            ColumnPredicate("a", Operator.EQUAL, ("1",)),
            ColumnPredicate("t", Operator.EQUAL, ("x",)),
        ))),
    )  # fmt: skip
    why = [reason for _, one in found.shares[0].conjuncts for reason in one.why]
    assert "zz is a column of another table" in why


def test_wishes_are_united() -> None:
    small, large = "SELECT a FROM e.r WHERE a = 1", "SELECT c FROM e.r WHERE d < '2020-01-01'"
    found = united(wishes(small, large), ALL).derivation
    assert found is not None
    assert found.columns == ("k", "a", "c", "d")
    assert rows_of(small, large) == "(\"a\" = '1') OR (\"d\" < '2020-01-01')"
    # A weaker condition covers a stronger one; without any all rows are needed.
    assert rows_of(small, "SELECT t FROM e.r WHERE a = 1 AND t = 'x'") == "\"a\" = '1'"
    assert rows_of(small, small) == "\"a\" = '1'"
    every = united(wishes(small, "SELECT a FROM e.r"), ALL)
    assert every.derivation == Derivation(("k", "a"), None)
    assert "v needs every row of r" in every.why[DerivablePart.ROWS]
    # All columns are no choice.
    assert united(wishes("SELECT k, a, c, d, m, t FROM e.r"), ALL).derivation is None
    # Lineage alone is the key.
    assert united(wishes("SELECT s.a FROM e.s, e.r"), ALL).derivation == Derivation(("k",))


def test_what_the_dba_does_not_allow_is_not_chosen() -> None:
    text = "SELECT a FROM e.r WHERE a = 1"
    compared = ALL.comparable
    none = DerivationOffer(RECIPE, tuple(TYPES), compared)
    assert united(wishes(text), none).derivation is None
    assert {*united(wishes(text), none).why} == {DerivablePart.COLUMNS, DerivablePart.ROWS}
    columns = DerivationOffer(RECIPE, tuple(TYPES), compared, frozenset({DerivablePart.COLUMNS}))
    assert united(wishes(text), columns).derivation == Derivation(("k", "a"))
    rows = DerivationOffer(RECIPE, tuple(TYPES), compared, frozenset({DerivablePart.ROWS}))
    assert united(wishes(text), rows).derivation == Derivation(
        None, ColumnPredicate("a", Operator.EQUAL, ("1",))
    )


def test_too_much_is_not_pushed() -> None:
    many = [f"SELECT a FROM e.r WHERE a = {i}" for i in range(DERIVATION_COMPARISONS_MAX + 1)]
    found = united(wishes(*many), ALL)
    assert found.derivation == Derivation(("k", "a"))
    assert "too large" in found.why[DerivablePart.ROWS]
    lists = [", ".join(f"'{n}{i:085d}'" for i in range(400)) for n in (1, 2)]  # 64 KiB in all
    texts = [f"SELECT a FROM e.r WHERE t IN ({values})" for values in lists]
    assert rows_of(texts[0]) is not None
    assert rows_of(*texts) is None
    nested = "a = 1"
    for i in range(9):
        nested = f"(t = '{i}' AND (c = {i} OR {nested}))"
    assert rows_of(f"SELECT a FROM e.r WHERE {nested}") == "\"t\" = '8'", "the other conjunct"


def test_a_wish_is_known_by_what_it_needs() -> None:
    text = "SELECT a FROM e.r WHERE a = 1 AND t = 'x'"
    same = [
        "SELECT r.a FROM e.r WHERE r.t = 'x' AND r.a = 1",
        "select A from e.r r2 where a=1 AND t='x'",
    ]
    for other in same:
        assert wish_id(wishes(other)) == wish_id(wishes(text, text)), other
    for other in (
        "SELECT a FROM e.r WHERE a = 2 AND t = 'x'",
        "SELECT c FROM e.r WHERE a = 1 AND t = 'x'",
    ):
        assert wish_id(wishes(other)) != wish_id(wishes(text)), other


@pytest.mark.parametrize(
    ("where", "noted"),
    [
        ("", "c2d09d6294e05da111ed687e592dd473"),
        ("WHERE a = 1", "8122a1471fb8f3496acbd6b924f67b5f"),
        ("WHERE a = 1 OR t = 'x'", "91d497d95e8bb42ddef91c0f648502a8"),
        (
            "WHERE NOT (a > 2 AND c < 3.50) AND d >= DATE '2020-01-02'",
            "85f216c2b4482a2c8efd1c5401fdfe69",
        ),
        ("WHERE a = 1 OR (c = 2 AND t LIKE 'x%')", "690413404361abf27b4d291a09782e43"),
        ("WHERE upper(t) = 'X'", "ef3bc4aab4deb662f02f08199a460fc2"),
        ("WHERE a IN (1, 2, 3) AND t IS NOT NULL", "e8fa93e31988bd6fbf8f69f0f28b6c1b"),
    ],
)
def test_notes_of_older_releases_mean_the_same(where: str, noted: str) -> None:
    """The text is on disk: another one has each kept relation described again."""
    assert wish_id(wishes(f"SELECT a FROM e.r {where}")) == noted


def test_a_version_that_lacks_something() -> None:
    stored = united(wishes("SELECT a FROM e.r WHERE a = 1 AND t = 'x'"), ALL).derivation
    assert stored is not None
    names = ("k", "a", "t")
    offer = DerivationOffer(Recipe(tuple(c for c in COLUMNS if c.name in names), 1), names)

    def missing(text: str) -> str | None:
        (wish,) = wishes(text)
        return lacks(wish, stored, offer)

    assert missing("SELECT k FROM e.r WHERE a = 1 AND t = 'x' AND k > 3") is None
    assert missing("SELECT c FROM e.r WHERE a = 1 AND t = 'x'") == "lacks the column c"
    for where in ("a = 1", "a = 2 AND t = 'x'", "a = 1 OR t = 'x'", "upper(t) = 'x'"):
        assert "has only the rows where" in (missing(f"SELECT a FROM e.r WHERE {where}") or "")
    assert "has only the rows" in (missing("SELECT a FROM e.r") or "")


# Random views.


def literal(rng: random.Random, column: str) -> str:
    return {
        "k": str(rng.randint(0, 40)),
        "a": str(rng.randint(-1, 3)),
        "c": rng.choice(["0", "1.5", "-2.25", "7"]),
        "d": f"DATE '{DAY + timedelta(rng.randint(0, 4))}'",
        "m": f"TIMESTAMP '{DAY + timedelta(rng.randint(0, 2))} 12:00:00'",
        "t": rng.choice(["'x'", "'y '", "'Ä'", "''"]),
    }[column]


def condition(rng: random.Random, aliases: list[str], depth: int = 0) -> str:
    roll = rng.random()
    if depth < 3 and roll < 0.35:
        word = rng.choice(["AND", "OR"])
        parts = [condition(rng, aliases, depth + 1) for _ in range(2)]
        return f"({f' {word} '.join(parts)})"
    if depth < 3 and roll < 0.45:
        return f"NOT ({condition(rng, aliases, depth + 1)})"
    column = rng.choice(list(TYPES))
    name, other = f"{rng.choice(aliases)}.{column}", f"{rng.choice(aliases)}.{column}"
    one, two = literal(rng, column), literal(rng, column)
    compared = rng.choice(["=", "<>", "<", "<=", ">", ">="])
    return rng.choice([
        f"{name} {compared} {one}",
        f"{one} {compared} {name}",
        f"{name} IN ({one}, {two})",
        f"{name} NOT IN ({one}, {two})",
        f"{name} BETWEEN {one} AND {two}",
        f"{name} IS NULL",
        f"{name} IS NOT NULL",
        f"{name} = {other}",
        f"length({name}::string) > 1",
        f"coalesce({name}, {one}) = {two}",
    ])  # fmt: skip


def random_view(rng: random.Random) -> str:
    tables = [rng.choice("rs") for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    aliases = [f"o{i}" for i in range(len(tables))]
    text = f"FROM {tables[0]} o0"
    for i in range(1, len(tables)):
        more = f" AND {condition(rng, aliases[: i + 1])}" if rng.random() < 0.4 else ""
        text += f" JOIN {tables[i]} o{i} ON o{i}.a = o{i - 1}.a{more}"
    outputs = [f"{rng.choice(aliases)}.{rng.choice(list(TYPES))} AS x{i}" for i in range(2)]
    where = [condition(rng, aliases) for _ in range(rng.randint(0, 3))]
    return f"SELECT {', '.join(outputs)} {text}" + (
        f" WHERE {' AND '.join(where)}" if where else ""
    )


def random_row(rng: random.Random, key: int) -> tuple[object, ...]:
    values = (
        rng.choice([None, -1, 0, 1, 2, 3]),
        rng.choice([None, Decimal("0.00"), Decimal("1.50"), Decimal("-2.25"), Decimal(7)]),
        rng.choice([None, *(DAY + timedelta(i) for i in range(5))]),
        rng.choice([None, *(datetime.fromisoformat(f"2020-01-0{i}T12:00:00") for i in (1, 2, 3))]),
        rng.choice([None, "x", "y ", "Ä", "", "z"]),
    )
    return (key, *values)


def as_sql(predicate: Predicate) -> str:
    assert not isinstance(predicate, ReferencePredicate), "one relation joins nothing"
    match predicate:
        case ColumnPredicate(column, Operator.IS_NULL, _):
            return f"{column} IS NULL"
        case ColumnPredicate(column, operator, values):
            typed = [f"CAST('{v}' AS {SQL[TYPES[column]]})" for v in values]
            right = f"({', '.join(typed)})" if operator is Operator.IN else typed[0]
            return f"{column} {operator.value} {right}"
        case NotPredicate(part):
            return f"NOT ({as_sql(part)})"
        case AndPredicate(parts):
            return " AND ".join(f"({as_sql(p)})" for p in parts)
        case OrPredicate(parts):
            return " OR ".join(f"({as_sql(p)})" for p in parts)


def evaluated(db: duckdb.DuckDBPyConnection, text: str, schema: str) -> Counter[Any]:
    db.execute(f"SET schema = '{schema}'")
    return Counter(db.execute(text.replace("::string", "::varchar")).fetchall())


def random_offer(rng: random.Random) -> DerivationOffer:
    allowed = frozenset(part for part in DerivablePart if rng.random() < 0.85)
    kinds = {name: rng.choice([*Comparable, Comparable.ORDER, Comparable.ORDER]) for name in TYPES}
    return DerivationOffer(RECIPE, tuple(TYPES), kinds, allowed)


def of_relation(views: Iterable[str], name: str) -> list[OccurrenceNeed]:
    found = []
    for text in views:
        one = query(text)
        found += [
            wish_of(text, one, i) for i, o in enumerate(one.occurrences) if o.reference == (name,)
        ]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(50), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(50, 150))]
)
def test_random_views_over_derived_relations(seed: int) -> None:
    rng = random.Random(seed)
    views = [random_view(rng) for _ in range(rng.randint(1, 3))]
    others = [random_view(rng) for _ in range(6)]
    with duckdb.connect() as db:
        db.execute("CREATE SCHEMA whole; CREATE SCHEMA part")
        held: dict[str, tuple[Derivation, DerivationOffer]] = {}
        for name in "rs":
            ddl = ", ".join(f"{c} {SQL[t]}" for c, t in TYPES.items())
            db.execute(f"CREATE TABLE whole.{name} ({ddl})")
            rows = [random_row(rng, key) for key in range(40)]
            db.executemany(f"INSERT INTO whole.{name} VALUES (?, ?, ?, ?, ?, ?)", rows)
            found = united(of_relation(views, name), random_offer(rng)).derivation
            derivation = found or Derivation()
            assert from_json(to_json(derivation)) == derivation
            assert from_message(to_message(derivation)) == derivation
            names = derivation.names
            kept = [c for c in COLUMNS if names is None or c.name in {*names, "k"}]
            held[name] = (
                derivation,
                DerivationOffer(Recipe(tuple(kept), 1), tuple(c.name for c in kept)),
            )
            where = "" if derivation.rows is None else f" WHERE {as_sql(derivation.rows)}"
            chosen = ", ".join(c.name for c in kept)
            db.execute(f"CREATE VIEW part.{name} AS SELECT {chosen} FROM whole.{name}{where}")
        for text in (*views, *others):
            one = query(text)
            missing = [
                lacks(wish_of("v", one, i), *held[o.reference[0]])
                for i, o in enumerate(one.occurrences)
            ]
            assert text not in views or not any(missing), (text, missing)
            if not any(missing):  # also of a view that the relations were not derived for
                assert evaluated(db, text, "part") == evaluated(db, text, "whole"), text


@pytest.mark.slow
def test_implication_is_right() -> None:
    rng = random.Random(7)
    proven = 0
    with duckdb.connect() as db:
        ddl = ", ".join(f"{c} {SQL[t]}" for c, t in TYPES.items())
        db.execute(f"CREATE TABLE r ({ddl})")
        rows = [random_row(rng, key) for key in range(300)]
        db.executemany("INSERT INTO r VALUES (?, ?, ?, ?, ?, ?)", rows)
        found = []
        for _ in range(120):
            text = f"SELECT a FROM r o0 WHERE {condition(rng, ['o0'])}"
            derivation = united(of_relation([text], "r"), ALL).derivation
            if derivation is not None and derivation.rows is not None:
                found.append(derivation.rows)
        found += [canonical(AndPredicate(tuple(rng.sample(found, 2)))) for _ in range(40)]
        found += [canonical(OrPredicate(tuple(rng.sample(found, 2)))) for _ in range(40)]
        for strong in found:
            for weak in found:
                if strong != weak and implies(strong, weak):
                    proven += 1
                    also = f"coalesce(({as_sql(weak)}), false)"
                    wrong = f"SELECT count(*) FROM r WHERE ({as_sql(strong)}) AND NOT {also}"
                    assert db.execute(wrong).fetchone() == (0,)
    assert proven > 50
