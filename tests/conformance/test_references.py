"""Foreign keys of every engine: what is published is named, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline.relations.references import OnDelete, Reference

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import engine_of, session_of
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import CLASSES, KINDS

TABLES = (
    "CREATE TABLE regions (id INT NOT NULL PRIMARY KEY, place INT NOT NULL, UNIQUE (id, place))",
    (
        "CREATE TABLE customers (id INT NOT NULL PRIMARY KEY, region INT,"
        " FOREIGN KEY (region) REFERENCES regions (id) ON DELETE SET NULL)"
    ),
    "CREATE TABLE secrets (id INT NOT NULL PRIMARY KEY)",
    (
        "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, customer INT NOT NULL, place INT,"
        " secret INT, FOREIGN KEY (customer) REFERENCES customers (id) ON DELETE CASCADE"
        ", FOREIGN KEY (customer, place) REFERENCES regions (id, place) ON DELETE CASCADE"
        ", FOREIGN KEY (secret) REFERENCES secrets (id) ON DELETE CASCADE)"
    ),
)
ORDERS, CUSTOMERS = Relation("orders", table="orders"), Relation("buyers", table="customers")
REGIONS = Relation("regions", table="regions")
TO_BUYERS = Reference(("customer",), "buyers", ("id",), OnDelete.CASCADE)
TO_REGIONS = Reference(("customer", "place"), "regions", ("id", "place"), OnDelete.CASCADE)
WITH_LOGINS = [kind.name for kind in CLASSES if Capability.LOGINS not in kind.lacks]


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    made.run(*TABLES)
    yield made
    made.close()


def found(legacy: Legacy, relation: Relation, *published: Relation) -> set[Reference]:
    with session_of(legacy) as session:
        shape = session.describe(relation)
        references = session.capabilities.references(shape, published)
    assert len(set(references)) == len(references)
    return set(references)


def test_foreign_keys_name_what_is_published(legacy: Legacy) -> None:
    assert found(legacy, ORDERS, ORDERS, CUSTOMERS, REGIONS) == {TO_BUYERS, TO_REGIONS}
    assert found(legacy, ORDERS, ORDERS, CUSTOMERS) == {TO_BUYERS}
    assert found(legacy, ORDERS, ORDERS) == set()
    assert found(legacy, REGIONS, ORDERS, CUSTOMERS, REGIONS) == set()
    to_regions = Reference(("region",), "regions", ("id",), OnDelete.SET_NULL)
    assert found(legacy, CUSTOMERS, CUSTOMERS, REGIONS) == {to_regions}


def test_columns_that_are_not_published_are_not_named(legacy: Legacy) -> None:
    without = Relation("orders", table="orders", columns=("id", "customer"))
    assert found(legacy, without, CUSTOMERS, REGIONS) == {TO_BUYERS}
    narrow = Relation("regions", table="regions", columns=("id",))
    assert found(legacy, ORDERS, CUSTOMERS, narrow) == {TO_BUYERS}


def test_the_whole_of_several_relations_over_a_table_is_named(legacy: Legacy) -> None:
    some = Relation("few", table="customers", where="id > 3")
    every = Relation("all", table="customers")
    query = Relation("q", query="SELECT id, region FROM customers", key=("id",))
    named = Reference(("customer",), "all", ("id",), OnDelete.CASCADE)
    assert found(legacy, ORDERS, query, some, every, CUSTOMERS) == {named}
    assert found(legacy, query, CUSTOMERS, REGIONS) == set()


def test_every_statement_is_explained(legacy: Legacy, monkeypatch: pytest.MonkeyPatch) -> None:
    issued: list[str] = []
    legacy.record(monkeypatch, issued)
    with session_of(legacy) as session:
        shape = session.describe(ORDERS)
        described = len(issued)
        session.capabilities.references(shape, (ORDERS, CUSTOMERS, REGIONS))
    monkeypatch.undo()
    assert len(issued) > described
    engine = engine_of(legacy)
    with closing(engine.open()) as session:
        shapes = [session.describe(one) for one in (ORDERS, CUSTOMERS, REGIONS)]
    known = {legacy.general(sql) for sql in engine.templates(shapes)}
    assert {legacy.general(sql) for sql in issued} <= known


@pytest.mark.parametrize("legacy", WITH_LOGINS, indirect=True)
def test_select_alone_is_enough(legacy: Any) -> None:
    login = f"l{legacy.database}"
    script = engine_of(legacy).grants([ORDERS, CUSTOMERS], login=login, connections=6)
    engine = connect(legacy.granted(script, login), "pw", Limits())
    try:
        with closing(engine.open()) as session:
            shape = session.describe(ORDERS)
            assert session.capabilities.references is not None
            assert session.capabilities.references(shape, (ORDERS, CUSTOMERS)) == (TO_BUYERS,)
    finally:
        legacy.drop_login(login)
