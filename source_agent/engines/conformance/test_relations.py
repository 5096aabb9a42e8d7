"""A relation of the DBA's file is described as the database has it, or refused by name."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from driftline import errors

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.lacking import needs
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    decoded,
    filled,
    flat,
    multiset,
    rows_of,
    session_of,
)
from source_agent.engines.relations.shapes import Relation


def test_a_table_is_described_key_first(legacy: Legacy) -> None:
    """Check names, types and order of columns, and that NULLs are ruled out where they are."""
    filled(legacy)
    with session_of(legacy) as session:
        shape = legacy.described(session, Relation("items", table="items", key=("id",)))
    columns = [(c.name, str(c.type), c.ordinal) for c in shape.recipe.columns]
    assert columns == [
        ("id", "int8", 1),
        ("label", "text", 0),
        ("name", "text", 2),
        ("amount", "numeric(12,2)", 3),
    ]
    assert shape.recipe.key_columns == 1


@needs(Capability.KEYS, Capability.ORDER)
def test_a_primary_key_is_found(legacy: Legacy) -> None:
    """Check that a table's own key is used, vouches for itself, and has an index."""
    filled(legacy)
    with session_of(legacy) as session:
        shape = legacy.described(session, Relation("items", table="items"))
    assert [column.name for column in shape.recipe.key] == ["id"]
    assert shape.vouched
    assert shape.indexed


@needs(Capability.NOT_NULL)
def test_not_null_is_told_where_it_is_enforced(legacy: Legacy) -> None:
    """Check that columns of a table are not nullable as declared, and those of a view all are."""
    columns = '"id" BIGINT NOT NULL PRIMARY KEY, "kept" VARCHAR(9) NOT NULL, "more" VARCHAR(9)'
    legacy.run(legacy.sql(f'CREATE TABLE "held" ({columns})'))
    legacy.run(legacy.sql('CREATE VIEW "shown" AS SELECT * FROM "held"'))
    query = legacy.sql('SELECT * FROM "held"')
    with session_of(legacy) as session:
        described = [
            session.describe(relation)
            for relation in (
                Relation("held", table="held", key=("id",)),
                Relation("shown", table="shown", key=("id",)),
                Relation("query", query=query, key=("id",)),
            )
        ]
    found = [{c.name for c in shape.recipe.columns if not c.nullable} for shape in described]
    assert found == [{"id", "kept"}, set(), set()]


@needs(Capability.SQL, Capability.KEYS)
def test_part_of_a_primary_key_is_not_vouched(legacy: Legacy) -> None:
    """Check that only a key which holds all of the table's own is taken for unique."""
    columns = '"a" INT NOT NULL, "b" INT NOT NULL, "c" INT NOT NULL'
    legacy.run(legacy.sql(f'CREATE TABLE "pairs" ({columns}, PRIMARY KEY ("a", "b"))'))
    for row in ("1, 1, 1", "1, 2, 1", "2, 1, 1"):
        legacy.run(legacy.sql(f'INSERT INTO "pairs" VALUES ({row})'))
    vouched = {("a",): False, ("b",): False, ("a", "c"): False, ("a", "b"): True, ("b", "a"): True}
    with session_of(legacy) as session:
        for key, is_vouched in vouched.items():
            shape = legacy.described(session, Relation("pairs", table="pairs", key=key))
            assert shape.vouched is is_vouched, key


@needs(Capability.SQL)
def test_columns_key_and_where_of_the_file(legacy: Legacy) -> None:
    """Check that the DBA's choice of key, columns and rows is what is read."""
    expected = filled(legacy)
    where = legacy.sql('"id" >= 30 -- as text')
    chosen = ("amount", "label")
    relation = Relation("i", table="items", key=("name",), columns=chosen, where=where)
    with session_of(legacy) as session:
        shape = legacy.described(session, relation)
        rows = rows_of(session, shape)
    assert [c.name for c in shape.recipe.columns] == ["name", "label", "amount"]
    assert not shape.vouched
    wanted = [[r[2], r[1], r[3]] for r in expected if int(r[0] or 0) >= 30]
    assert multiset(rows) == multiset(wanted)


@needs(Capability.QUERIES)
def test_a_query_is_a_relation(legacy: Legacy) -> None:
    """Check a query that ends in a comment, a semicolon and space."""
    expected = filled(legacy)
    query = 'SELECT "id" AS "k", "name" FROM "items" WHERE "id" < 300 -- few; not all\n ; '
    relation = Relation("q", query=legacy.sql(query), key=("k",))
    with session_of(legacy) as session:
        rows = rows_of(session, legacy.described(session, relation))
    wanted = [[r[0], r[2]] for r in expected if int(r[0] or 0) < 300]
    assert multiset(rows) == multiset(wanted)


@needs(Capability.SQL)
def test_a_view_is_a_table(legacy: Legacy) -> None:
    """Check that a view is and that nothing vouches for its key."""
    expected = filled(legacy)
    legacy.run(legacy.sql('CREATE VIEW "seen" AS SELECT "id", "name" FROM "items"'))
    with session_of(legacy) as session:
        shape = legacy.described(session, Relation("seen", table="seen", key=("id",)))
        rows = rows_of(session, shape)
    assert not shape.vouched
    assert multiset(rows) == multiset([[r[0], r[2]] for r in expected])


@needs(Capability.SQL)
def test_odd_names_are_quoted(legacy: Legacy) -> None:
    """Check marks, placeholders and semicolons in names."""
    mark = legacy.mark
    table, column = 'se"le;ct %s `` ?', 'or"der %d by'
    if mark == '"':
        table, column = table.replace('"', '""'), column.replace('"', '""')
    table, column = mark + table + mark, mark + column + mark
    legacy.run(
        f"CREATE TABLE {table} ({mark}key{mark} int NOT NULL PRIMARY KEY, {column} varchar(9))",
        f"INSERT INTO {table} VALUES (1, 'x')",
    )
    with session_of(legacy) as session:
        shape = legacy.described(session, Relation("odd", table=table))
        one = np.array([1], np.int64)
        rows = flat(session.scan(shape)) + flat(session.read_ranges(shape, one, one))
    assert [c.name for c in shape.recipe.columns][1] == 'or"der %d by'
    assert [decoded(r, shape) for r in rows] == [["1", "x"]] * 2


@needs(Capability.SQL)
def test_a_where_is_not_formatted(legacy: Legacy) -> None:
    """Check that what looks like a placeholder is none, with and without bound values."""
    expected = filled(legacy, 10)
    relation = Relation("items", table="items", where=legacy.hostile_where)
    with session_of(legacy) as session:
        shape = legacy.described(session, relation)
        first, last = np.array([0], np.int64), np.array([100], np.int64)
        rows = flat(session.read_ranges(shape, first, last))
        assert multiset([decoded(r, shape) for r in rows]) == multiset(expected)
        assert multiset(rows_of(session, legacy.described(session, relation))) == multiset(expected)


WRONG: Final = [
    (Relation("x", table="itemz"), "items"),
    (Relation("x", table="items", key=("Id_",)), "id"),
    (Relation("x", table="items", columns=("nmae",)), "name"),
    (Relation("x", table="items", as_text=("labe",)), "label"),
    (Relation("x", table="items", types=(("amuont", "int8"),)), ""),
    (Relation("x", query='SELECT "id" FROM "items"'), "key"),
    (Relation("x", query='SELECT "id", "id" FROM "items"', key=("id",)), ""),
    (Relation("x", query="SELECT 1 FROM", key=("id",)), ""),
    (
        Relation("x", query='SELECT "id" FROM "items") AS a; DROP TABLE "items"; --', key=("id",)),
        "",
    ),
    (Relation("x", table="items", where="nmae = 1"), ""),
    (Relation("x", table="a.b.c.d"), ""),
]


@pytest.mark.parametrize(("relation", "hint"), WRONG)
@needs(Capability.SQL)
def test_a_wrong_file_is_refused_with_what_was_meant(
    legacy: Legacy, relation: Relation, hint: str
) -> None:
    """Check that a mistake in the DBA's file is a ConfigurationError, and ends no session."""
    filled(legacy, 3)
    if relation.query is not None:
        relation = Relation("x", query=legacy.sql(relation.query), key=relation.key)
    with session_of(legacy) as session:
        with pytest.raises(errors.ConfigurationError) as caught:
            legacy.described(session, relation)
        assert hint in str(caught.value)
        rows = rows_of(session, legacy.described(session, Relation("items", table="items")))
        assert len(rows) == 3, "the session lives on"


def test_a_table_without_a_key_is_refused(legacy: Legacy) -> None:
    """Check that no key is guessed."""
    legacy.run(legacy.sql('CREATE TABLE "bare" ("a" INT)'))
    with session_of(legacy) as session, pytest.raises(errors.ConfigurationError, match="key"):
        legacy.described(session, Relation("bare", table="bare"))
