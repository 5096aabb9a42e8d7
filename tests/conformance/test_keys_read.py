"""Rows read by their keys on real servers, where a key is not one integer: each by an index.

The oracle is what was inserted. What is issued is a template, and no plan reads the whole table.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline.rows.key_order import Key, KeyRange

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    decoded,
    engine_of,
    flat,
    rows_between,
    rows_by_keys,
    session_of,
)
from source_agent.engines.mysql_family import session as mariadb
from source_agent.engines.postgresql import sql as postgresql
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sqlite import session as sqlite
from tests.conformance.test_key_ranges import BYTES, RELATION, composite, drawn, text, text_of
from tests.harness.family import FAMILY, as_mariadb, spelled_as
from tests.harness.legacies import KINDS, MARIADB_PLAN, OfPostgreSQL
from tests.harness.servers import PostgreSQL


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


def read_keys(session: Any, shape: Shape, keys: list[Any], **limit: int) -> list[Any]:
    rows = flat(rows_by_keys(session, shape, keys, **limit))
    return [tuple(decoded(row, shape)[: shape.recipe.key_columns]) for row in rows]


def test_named_rows_come_once_and_no_others(legacy: Legacy) -> None:
    """Also texts that no SQL may take for its own, more keys than one statement has, and none."""
    rows = drawn()
    odd = [("it's; --", "2024-01-01", n, "x") for n in range(3)]
    odd += [('{"a",b}', "2024-01-01", 1, "x"), ("back\\slash", "2024-01-01", 1, "x")]
    odd += [("100%s", "2024-01-01", 1, "x"), ("NULL", "2024-01-01", 1, "x")]
    composite(legacy, [*rows, *odd])
    chosen = random.Random(4)
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        assert (shape.unordered, shape.vouched) == ("", True)
        for count in (0, 1, 7, 250, len(rows)):
            some = chosen.sample(rows, count) + odd
            keys = [text(row) for row in some]
            gone = [("no", "2024-01-01", "1"), ("a", "1999-01-01", "3")]
            assert sorted(read_keys(session, shape, [*gone, *keys])) == sorted(keys)
        assert read_keys(session, shape, []) == []


def test_more_named_rows_than_wanted_show(legacy: Legacy) -> None:
    """One row more than wanted comes, or on PostgreSQL all: as many would look like the end."""
    rows = drawn()
    composite(legacy, rows)
    keys = [text(row) for row in rows]
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        for wanted in (20, len(keys) - 1):
            some = flat(rows_by_keys(session, shape, keys, rows_max=wanted))
            assert len(some) == (len(keys) if legacy.name == "postgresql" else wanted + 1)
        assert len(flat(rows_by_keys(session, shape, keys, rows_max=len(keys)))) == len(keys)


@pytest.mark.parametrize("kind", ["uuid", "bytes", "date", "decimal", "stamp"])
def test_keys_of_other_types(legacy: Legacy, kind: str) -> None:
    is_text = legacy.name == "sqlite"
    types: dict[str, tuple[str, Any]] = {
        "uuid": (
            "uuid" if legacy.name == "postgresql" else text_of(legacy),
            lambda n: f"0000000{n % 10}-0000-4000-8000-{n:012d}",
        ),
        "bytes": (BYTES[spelled_as(legacy.name)], lambda n: bytes([n, 92, 39, 0])),
        "date": ("text" if is_text else "date", lambda n: f"20{n:02d}-03-01"),
        "decimal": ("decimal(9,2)", lambda n: legacy.number(f"{n * 7.25 - 300:.2f}")),
        "stamp": (
            {"sqlite": "text", "mariadb": "datetime(6)"}.get(spelled_as(legacy.name), "timestamp"),
            lambda n: f"2024-03-01 10:00:{n % 60:02d}.{n:06d}",
        ),
    }
    type, value = types[kind]
    legacy.run(f"CREATE TABLE one (k {type} NOT NULL PRIMARY KEY, v varchar(9))")
    legacy.insert("one", [(value(n), "x") for n in range(90)])
    with session_of(legacy) as session:
        shape = session.describe(Relation("one", table="one"))
        assert shape.unordered == ""
        every = [tuple(decoded(row, shape)[:1]) for row in flat(session.scan(shape))]
        assert len(every) == 90
        some = random.Random(5).sample(every, 31)
        assert sorted(read_keys(session, shape, some)) == sorted(some)


@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("date", ["0044-03-15 BC", "0001-12-31 BC", "0001-01-01", "4714-11-24 BC"]),
        ("timestamp", ["0044-03-15 10:00:00.5 BC", "0001-02-29 00:00:00 BC"]),
        ("timestamptz", ["0044-03-15 10:00:00+00 BC", "0001-02-29 00:00:00.000001+00 BC"]),
    ],
)
def test_years_before_the_first(postgresql: PostgreSQL, type: str, values: list[str]) -> None:
    """PostgreSQL writes them in another way than the protocol."""
    legacy = OfPostgreSQL(postgresql)
    legacy.run(f"CREATE TABLE one (k {type} NOT NULL PRIMARY KEY, v varchar(9))")
    values = [*values, "10000-01-01", "infinity", "-infinity"]
    legacy.insert("one", [(value, "x") for value in values])
    with session_of(legacy) as session:
        shape = session.describe(Relation("one", table="one"))
        rows = flat(session.scan(shape, ordered=True))
        every = [(str(decoded(row, shape)[0]),) for row in rows]
        assert len(every) == len(values)
        for place, key in enumerate(every):
            assert read_keys(session, shape, [key]) == [key]
            for within in (KeyRange(key, None), KeyRange(None, key)):
                found = flat(rows_between(session, shape, within))
                assert len(found) == (place if within.lower is None else len(every) - place)
    legacy.close()


def plans(legacy: Legacy, session: Any, shape: Shape, keys: list[Key]) -> list[Any]:
    """The engine's plan of the statement that reads these keys."""
    if legacy.name == "sqlite":
        sql, values = next(iter(sqlite._named(shape, keys)))
        return [tuple(row) for row in session.ask("EXPLAIN QUERY PLAN " + sql, *values)]
    if legacy.name in FAMILY:
        sql, bound = mariadb._named(shape, keys)
        return [as_mariadb(row) for row in session.ask(MARIADB_PLAN + sql, *bound, 1000)]
    settings = postgresql.named_keys(shape, keys) | {"enable_seqscan": "off"}
    session.ask(postgresql.KEY_BOUNDS, list(settings), list(settings.values()))
    return [tuple(row) for row in session.ask("EXPLAIN " + postgresql.keys_sql(shape))]


@pytest.mark.parametrize("count", [1, 3, 200])
def test_explain_shows_a_search_of_the_whole_key(legacy: Legacy, count: int) -> None:
    """However few rows the table has."""
    rows = drawn()
    composite(legacy, rows)
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        plan = plans(legacy, session, shape, [text(row) for row in rows[:count]])
    shown = " ".join(str(value) for row in plan for value in row)
    if legacy.name == "sqlite":
        assert "SEARCH" in shown
        assert "(a=? AND d=? AND n=?)" in shown
    elif legacy.name in FAMILY:
        assert plan[0][3] in {"range", "const"}
        assert plan[0][6] == str(40 * 4 + 2 + 3 + 4)  # key_len: text, date and integer
    else:
        assert "Seq Scan" not in shown
        condition = shown[shown.index("Index Cond") :]
        assert all(f" = driftline_key.k{i}" in condition for i in range(3))


def test_reading_keys_changes_no_plan_of_later_reads(legacy: Legacy) -> None:
    if legacy.name != "postgresql":
        pytest.skip("a setting of PostgreSQL")
    rows = drawn()
    composite(legacy, rows)
    with session_of(legacy) as session:
        shape = session.describe(RELATION)
        read_keys(session, shape, [text(rows[0])])
        assert session.ask(postgresql.SHOW_SEQUENTIAL) == [("on",)]


def test_what_reading_keys_issues_is_a_template(
    legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = drawn()
    composite(legacy, rows)
    issued: list[str] = []
    engine = engine_of(legacy)
    with monkeypatch.context() as patch:
        legacy.record(patch, issued)
        with closing(engine.open()) as session:
            shape = session.describe(RELATION)
            before = len(issued)
            read_keys(session, shape, [text(row) for row in rows[:300]])
    assert len(issued) > before
    templates = {legacy.general(sql) for sql in engine.templates([shape])}
    assert {legacy.general(sql) for sql in issued[before:]} <= templates


def test_a_null_behind_a_unique_column_is_not_vouched_for(legacy: Legacy) -> None:
    """A NOT NULL unique index on a part of a key keeps no NULL out of its other columns."""
    legacy.run("CREATE TABLE loose (a int NOT NULL UNIQUE, b int, v varchar(9))")
    with session_of(legacy) as session:
        assert not session.describe(Relation("r", table="loose", key=("a", "b"))).vouched
        assert session.describe(Relation("r", table="loose", key=("a",))).vouched
    legacy.run("CREATE TABLE firm (a int NOT NULL UNIQUE, b int NOT NULL, v varchar(9))")
    with session_of(legacy) as session:
        assert session.describe(Relation("r", table="firm", key=("a", "b"))).vouched
