"""Ranges of keys on real servers: rows between two keys, by an index of the whole key.

The oracle is Python's order of what was inserted. What an engine cannot sort by bytes is refused by
name.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import DriftlineError
from driftline.rows.key_order import Key, KeyRange

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    decoded,
    engine_of,
    flat,
    rows_between,
    session_of,
)
from source_agent.engines.mysql_family import session as mariadb
from source_agent.engines.postgresql import sql as postgresql
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sqlite import session as sqlite
from tests.harness.family import FAMILY, as_mariadb, spelled_as
from tests.harness.legacies import KINDS, MARIADB_PLAN

TEXT = {"postgresql": 'varchar(40) COLLATE "C"', "mariadb": "varchar(40) COLLATE utf8mb4_bin"}
BYTES = {"postgresql": "bytea", "mariadb": "varbinary(16)", "sqlite": "blob"}
ROWS = 400
Rows = list[tuple[Any, ...]]


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


def text_of(legacy: Legacy) -> str:
    return TEXT.get(spelled_as(legacy.name), "text")


def drawn(seed: int = 1) -> Rows:
    """Keys with few values in each column, and texts whose order is that of no language."""
    chosen = random.Random(seed)
    texts = ["", "A", "Z", "a", "a b", "aa", "b", "é", "z", "~", "\U0001f600", "00", "1"]
    keys = {
        (chosen.choice(texts), f"20{chosen.randrange(60):02d}-0{chosen.randrange(1, 9)}-11", n % 7)
        for n in range(ROWS)
    }
    return [(*key, f"row {n}") for n, key in enumerate(sorted(keys))]


def composite(legacy: Legacy, rows: Rows, *, null: bool = False) -> None:
    """A table with the key (a, d, n)."""
    kind, rule = text_of(legacy), "" if null else " NOT NULL"
    unique = "UNIQUE" if null else "PRIMARY KEY"
    legacy.run(
        f"CREATE TABLE t (n int{rule}, a {kind}{rule}, d date{rule}, v varchar(40), "
        f"{unique} (a, d, n))"
    )
    legacy.insert("t", [(n, a, d, v) for a, d, n, v in rows])
    legacy.analyze("t")


RELATION = Relation("t", table="t", key=("a", "d", "n"))


def shape_of(legacy: Legacy, relation: Relation) -> Shape:
    with session_of(legacy) as session:
        return session.describe(relation)


def text(row: tuple[Any, ...]) -> Key:
    return (row[0], row[1], str(row[2]))


def read_between(session: Any, shape: Shape, lower: Key | None, upper: Key | None) -> Any:
    rows = flat(rows_between(session, shape, KeyRange(lower, upper)))
    return [tuple(decoded(row, shape)[: shape.recipe.key_columns]) for row in rows]


def test_ranges_that_follow_each_other_are_all_rows(legacy: Legacy) -> None:
    """Each row in exactly the range that it belongs to, by Python's order."""
    rows = drawn()
    composite(legacy, rows)
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        assert shape.unordered == ""
        chosen = random.Random(2)
        for count in (0, 1, 2, 9):
            bounds = sorted(chosen.sample(rows, count))
            edges: list[Any] = [None, *bounds, None]
            for lower, upper in itertools.pairwise(edges):
                found = read_between(session, shape, lower and text(lower), upper and text(upper))
                expected = [
                    text(row)
                    for row in rows
                    if (lower is None or row[:3] >= lower[:3])
                    and (upper is None or row[:3] < upper[:3])
                ]
                assert sorted(found) == sorted(expected)


def test_a_range_of_keys_may_end_early(legacy: Legacy) -> None:
    """One row more than wanted comes, or on PostgreSQL a batch; then the session reads on."""
    rows = drawn()
    composite(legacy, rows)
    bounds = sorted(rows)[10], sorted(rows)[-10]
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        for within in (KeyRange(), KeyRange(*map(text, bounds))):
            every = flat(rows_between(session, shape, within))
            some = flat(rows_between(session, shape, within, rows_max=20))
            assert len(some) == (len(every) if legacy.name == "postgresql" else 21)
            assert set(some) <= set(every)
            found = rows_between(session, shape, within, rows_max=len(every))
            assert sorted(flat(found)) == sorted(every)


@pytest.mark.parametrize("kind", ["uuid", "bytes", "date", "decimal", "text"])
def test_keys_of_one_column(legacy: Legacy, kind: str) -> None:
    chosen = random.Random(3)
    ids = [uuid.UUID(int=chosen.getrandbits(128)) for _ in range(90)]
    key: dict[str, tuple[str, list[Any], list[str]]] = {
        "uuid": (
            "uuid" if legacy.name == "postgresql" else text_of(legacy),
            [str(i) for i in ids],
            [str(i) for i in ids],
        ),
        "bytes": (
            BYTES[spelled_as(legacy.name)],
            [i.bytes[:9] for i in ids],
            [i.hex[:18] for i in ids],
        ),
        "date": (
            "date",
            [f"20{n:02d}-03-01" for n in range(90)],
            [f"20{n:02d}-03-01" for n in range(90)],
        ),
        "decimal": (
            "decimal(9,2)",
            [legacy.number(f"{n * 7.25 - 300:.2f}") for n in range(90)],
            [f"{n * 7.25 - 300:.2f}" for n in range(90)],
        ),
        "text": (text_of(legacy), [f"k~{n}é" for n in range(90)], [f"k~{n}é" for n in range(90)]),
    }
    type, values, texts = key[kind]
    legacy.run(f"CREATE TABLE one (k {type} NOT NULL PRIMARY KEY, v varchar(9))")
    legacy.insert("one", [(value, "x") for value in values])
    order = sorted(texts, key=float if kind == "decimal" else str)
    with session_of(legacy) as session:
        shape = session.describe(Relation("one", table="one"))
        assert shape.unordered == ""
        for first, last in ((0, 30), (30, 31), (31, 90)):
            upper = (order[last],) if last < 90 else None
            found = read_between(session, shape, (order[first],), upper)
            assert sorted(found) == sorted((k,) for k in order[first:last])


def plans(legacy: Legacy, session: Any, shape: Shape, within: KeyRange) -> list[Any]:
    """The engine's plan of each statement that reads a range."""
    if legacy.name == "sqlite":
        sqls = sqlite._between(shape, within)
        return [session.ask("EXPLAIN QUERY PLAN " + sql, *values) for sql, values in sqls]
    if legacy.name in FAMILY:
        return [
            [as_mariadb(row) for row in session.ask(MARIADB_PLAN + sql, *values)]
            for sql, values in mariadb._between(shape, within)
        ]
    settings = postgresql.key_bounds(shape, within) | {"enable_seqscan": "off"}
    session.ask(postgresql.KEY_BOUNDS, list(settings), list(settings.values()))
    return [session.ask("EXPLAIN " + postgresql.between_sql(shape, within))]


def test_explain_shows_a_range_of_the_whole_key(legacy: Legacy) -> None:
    rows = drawn()
    composite(legacy, rows)
    within = KeyRange(text(rows[100]), text(rows[140]))
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        (plan,) = plans(legacy, session, shape, within)
    shown = " ".join(str(value) for row in plan for value in row)
    if legacy.name == "sqlite":
        assert "((a,d,n)>(?,?,?) AND (a,d,n)<(?,?,?))" in shown
    elif legacy.name in FAMILY:
        assert plan[0][3] == "range"
        assert plan[0][6] == str(40 * 4 + 2 + 3 + 4)  # key_len: text, date and integer
    else:
        assert "Seq Scan" not in shown
        condition = shown[shown.index("Index Cond") :]
        assert ", d, n) >= ROW" in condition
        assert ", d, n) < ROW" in condition


def test_a_tile_changes_no_plan_of_later_reads(legacy: Legacy) -> None:
    """What PostgreSQL is told for a tile ends with it."""
    if legacy.name != "postgresql":
        pytest.skip("a setting of PostgreSQL")
    composite(legacy, drawn())
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        read_between(session, shape, None, None)
        assert session.ask(postgresql.SHOW_SEQUENTIAL) == [("on",)]
        found: Any = rows_between(session, shape, KeyRange())
        next(found)
        found.close()  # abandoned
        assert session.ask(postgresql.SHOW_SEQUENTIAL) == [("on",)]


def test_no_null_is_missed(legacy: Legacy) -> None:
    """Wherever it is, a row with a NULL in its key comes with a range, also between equal keys."""
    rows = [("b", "2024-01-01", n, "x") for n in range(4)] + [("c", "2024-01-01", 1, "x")]
    for null in (
        (None, "2024-01-01", 1),
        ("b", None, 1),
        ("b", "2024-01-01", None),
        ("c", None, None),
    ):
        composite(legacy, [*rows, (*null, "null")], null=True)
        bounds = [None, *(text(row) for row in rows), None]
        with session_of(legacy) as session:
            shape = session.describe(RELATION)
            assert (shape.unordered, shape.vouched) == ("", False)
            found = [
                key
                for lower, upper in itertools.pairwise(bounds)
                for key in read_between(session, shape, lower, upper)
            ]
        assert null[0] in {key[0] for key in found if None in key}
        assert [key for key in found if None not in key] == [text(row) for row in rows]
        legacy.run("DROP TABLE t")


def test_keys_without_an_order_say_why(legacy: Legacy) -> None:
    other = {
        "postgresql": ("varchar(9) COLLATE loose", "loose"),
        "mariadb": ("varchar(9) COLLATE utf8mb4_general_ci", "utf8mb4_general_ci"),
        "sqlite": ("text COLLATE NOCASE", "NOCASE"),
    }
    type, named = other[spelled_as(legacy.name)]
    if legacy.name == "postgresql":
        legacy.run("CREATE COLLATION loose (provider = libc, locale = 'C.UTF-8')")
    legacy.run(
        f"CREATE TABLE loose_key (k {type} NOT NULL PRIMARY KEY, a int NOT NULL, b int NOT NULL)",
        "CREATE INDEX other_order ON loose_key (b, a)",
        "CREATE TABLE real_key (k double precision NOT NULL PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT * FROM loose_key",
    )
    shapes = {
        "collation": shape_of(legacy, Relation("r", table="loose_key")),
        "index": shape_of(legacy, Relation("r", table="loose_key", key=("a", "b"))),
        "type": shape_of(legacy, Relation("r", table="real_key")),
        "view": shape_of(legacy, Relation("r", table="seen", key=("a", "b"))),
    }
    assert f"column k by the collation {named}" in shapes["collation"].unordered.replace('"', "")
    assert "index" in shapes["index"].unordered
    assert "float8" in shapes["type"].unordered
    assert shapes["view"].unordered


@pytest.mark.parametrize("null", [False, True])
def test_what_a_tile_issues_is_a_template(
    legacy: Legacy, monkeypatch: pytest.MonkeyPatch, null: bool
) -> None:
    rows = drawn()
    composite(legacy, rows, null=null)
    issued: list[str] = []
    engine = engine_of(legacy)
    with monkeypatch.context() as patch:
        legacy.record(patch, issued)
        with closing(engine.open()) as session:
            shape = session.describe(RELATION)
            before = len(issued)
            for lower, upper in (
                (None, rows[5]),
                (rows[5], rows[9]),
                (rows[9], None),
                (None, None),
            ):
                read_between(session, shape, lower and text(lower), upper and text(upper))
    assert len(issued) > before
    templates = {legacy.general(sql) for sql in engine.templates([shape])}
    assert {legacy.general(sql) for sql in issued[before:]} <= templates


def test_a_bound_that_the_database_cannot_hold(legacy: Legacy) -> None:
    """A text with a zero byte: another answer than rows is an error of ours, and the session
    survives it."""
    composite(legacy, drawn())
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        with contextlib.suppress(DriftlineError):
            assert (
                read_between(session, shape, ("\0a", "2024-01-01", "1"), ("\0b", "2024-01-01", "1"))
                == []
            )
        assert read_between(session, shape, None, None)
