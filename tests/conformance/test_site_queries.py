"""What `explain` shows of a site means there what it means in Spark: texts compare by their bytes.

A database runs the texts as they are shown, over columns whose collations ignore case, accents
or trailing blanks, or sort by a language's rules.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.relations.derivations import DerivablePart, Operator

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import Read, read, session_of
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import KINDS
from tests.reference.predicates import keeps
from warehouse_agent.decomposition.site_queries import (
    JoinedOccurrence,
    dialect_of,
    proposed,
    share_query,
)
from warehouse_agent.decomposition.view_needs import DerivationOffer, united
from warehouse_agent.views.conditions import wish_of
from warehouse_agent.views.query import read_query

COLLATED = {
    "postgresql": ["text", "varchar(20)", 'text COLLATE "ucs_basic"'],
    "mariadb": [
        "varchar(20)",
        "varchar(20) COLLATE utf8mb4_bin",
        "varchar(20) COLLATE utf8mb4_unicode_ci",
        "varchar(20) CHARACTER SET latin1",
    ],
    "mysql": ["varchar(20) COLLATE utf8mb4_0900_ai_ci", "varchar(20) COLLATE utf8mb4_0900_bin"],
    "sqlite": ["TEXT", "TEXT COLLATE NOCASE", "TEXT COLLATE RTRIM"],
}
TEXTS = ["", " ", "a", "a ", "A", "ä", "b", "B", "ss", "ß", "Z"]


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("legacy", "declared"),
    [(engine, declared) for engine, each in COLLATED.items() for declared in each],
    indirect=["legacy"],
)
def test_texts_compare_by_their_bytes(legacy: Legacy, declared: str) -> None:
    for table in "rs":
        legacy.run(f"CREATE TABLE {table} (k int NOT NULL PRIMARY KEY, t {declared}{legacy.null})")
        legacy.insert(table, [*enumerate(TEXTS), (99, None)])
    conditions = [f"a.t {operator.value} 'a'" for operator in Operator if operator.value in "<>="]
    conditions += ["a.t IN ('a', 'B')", "a.t = 'A' OR a.t = 'ss'"]
    with session_of(legacy) as session:
        shapes = {name: session.describe(Relation(name, table=name)) for name in "rs"}
        offers = {
            name: DerivationOffer(
                shape.recipe,
                tuple(column.name for column in shape.recipe.columns),
                shape.comparable_by_name,
                frozenset(DerivablePart),
            )
            for name, shape in shapes.items()
        }
        types = {column.name: column.type for column in shapes["r"].recipe.columns}
        dialect = dialect_of(legacy.name)
        for condition in conditions:
            text = f"SELECT a.k, a.t, b.k AS l FROM e.r a JOIN e.s b ON a.t = b.t WHERE {condition}"
            query = read_query(text, where="v")
            shares = [
                united([wish_of("v", query, i)], offers[name]).shares[0]
                for i, name in enumerate("rs")
            ]
            rows = shares[0].rows
            assert rows is not None
            kept = [text for text in TEXTS if keeps(rows, {"t": text.encode()}, types)]
            sent = share_query("r", offers["r"].recipe, rows, dialect)
            assert texts(read(session, Relation("q", query=sent, key=("k",)))) == kept
            each = [
                JoinedOccurrence(name, offers[name], share)
                for name, share in zip("rs", shares, strict=True)
            ]
            lines = proposed("v_e", each, [(("a", "t"), ("b", "t"))], dialect)
            assert lines is not None
            served = tomllib.loads(lines)["relations"]["v_e"]
            relation = Relation("v_e", query=served["query"], key=tuple(served["key"]))
            assert texts(read(session, relation)) == kept, "each text joins with itself alone"


def texts(rows: list[Read]) -> list[str]:
    """The texts of rows that a query returned, in the order of their keys."""
    return [
        next(v for v in row[1:] if v in TEXTS) for row in sorted(rows, key=lambda r: int(r[0] or 0))
    ]
