"""One suite for three engines, against real servers: what `engines.interface` promises.

The oracle is what was inserted, as text; row bytes are taken apart with the contract's own decoder.
Types have their own table: literals that differ must become bytes that differ, and read as written.
"""

from __future__ import annotations

import math
import sqlite3
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pymysql
import pytest
from driftline import errors, limits
from driftline.types import parse_type
from driftline.values import decode_string, string_encoder
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines import rows
from source_agent.engines.interface import (
    BATCH_ROWS,
    Consistency,
    Engine,
    Limits,
    Relation,
    Rows,
    Session,
    Shape,
)
from source_agent.engines.mariadb import sql as mariadb_sql
from source_agent.engines.postgresql import copy
from source_agent.engines.postgresql import session as postgresql
from source_agent.engines.postgresql import sql as postgresql_sql
from source_agent.engines.postgresql import types as postgresql_types
from source_agent.engines.registry import connect
from source_agent.engines.rows import decimal_encoder, short_decimals
from source_agent.engines.sqlite import session as sqlite
from source_agent.engines.sqlite import types as sqlite_types
from tests.harness.legacies import Legacy, OfMariaDB, OfPostgreSQL, OfSQLite

ENGINES = ("postgresql", "mariadb", "sqlite")
ITEMS = """CREATE TABLE items (
    label VARCHAR(40), id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100), amount DECIMAL(12,2))"""
Read = list[str | None]


@pytest.fixture
def legacies(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[str], OfPostgreSQL | OfMariaDB | OfSQLite]]:
    opened: list[OfPostgreSQL | OfMariaDB | OfSQLite] = []

    def open_one(name: str) -> OfPostgreSQL | OfMariaDB | OfSQLite:
        made: OfPostgreSQL | OfMariaDB | OfSQLite
        if name == "sqlite":
            made = OfSQLite(tmp_path / "legacy.sqlite")
        elif name == "mariadb":
            made = OfMariaDB(request.getfixturevalue("mariadb"))
        else:
            made = OfPostgreSQL(request.getfixturevalue("postgresql"))
        opened.append(made)
        return made

    yield open_one
    for legacy in opened:
        legacy.close()


@pytest.fixture(params=ENGINES)
def legacy(request: pytest.FixtureRequest, legacies: Callable[[str], Legacy]) -> Legacy:
    return legacies(request.param)


@pytest.fixture
def pg(legacies: Callable[[str], Any]) -> OfPostgreSQL:
    found: OfPostgreSQL = legacies("postgresql")
    return found


@pytest.fixture
def maria(legacies: Callable[[str], Any]) -> OfMariaDB:
    found: OfMariaDB = legacies("mariadb")
    return found


@pytest.fixture
def lite(legacies: Callable[[str], Any]) -> OfSQLite:
    found: OfSQLite = legacies("sqlite")
    return found


def engine_of(legacy: Legacy, **budgets: float) -> Engine:
    return connect(legacy.url, None, Limits(**budgets))


def session_of(legacy: Legacy, **budgets: float) -> Any:
    return closing(engine_of(legacy, **budgets).open())


def decoded(row: bytes, shape: Shape) -> Read:
    (count,) = struct.unpack_from(">h", row)
    assert count == len(shape.recipe.columns)
    values: Read = []
    place = 2
    for column in shape.recipe.columns:
        (length,) = struct.unpack_from(">i", row, place)
        place += 4
        if length < 0:
            values.append(None)
        else:
            values.append(decode_string(column.type, row[place : place + length]))
            place += length
    assert place == len(row)
    return values


def flat(batches: Iterator[Rows]) -> Rows:
    return [row for batch in batches for row in batch]


def read(session: Session, relation: Relation) -> list[Read]:
    shape = session.describe(relation)
    return [decoded(row, shape) for row in flat(session.scan(shape))]


def filled(legacy: Legacy, count: int = 1000) -> list[Read]:
    """A table of items. Returns its rows in tuple order, as text."""
    rows: list[tuple[Any, ...]] = [
        (None if i % 7 == 0 else f"l{i}", i * 3, f"näme {i}", f"{i * 0.25 - 17:.2f}")
        for i in range(count)
    ]
    legacy.run(ITEMS)
    if rows:
        legacy.insert("items", [(*row[:3], as_number(legacy, row[3])) for row in rows])
    return [[str(i), label, name, amount] for label, i, name, amount in rows]


def as_number(legacy: Legacy, text: str) -> object:
    return float(text) if legacy.name == "sqlite" else Decimal(text)


def multiset(rows: list[Read]) -> Counter[tuple[str | None, ...]]:
    return Counter(map(tuple, rows))


# What a relation is.
def test_a_table_is_described_key_first(legacy: Legacy) -> None:
    filled(legacy)
    with session_of(legacy) as session:
        shape = session.describe(Relation("items", table="items"))
    columns = [(c.name, str(c.type), c.ordinal) for c in shape.recipe.columns]
    assert columns == [
        ("id", "int8", 1),
        ("label", "text", 0),
        ("name", "text", 2),
        ("amount", "numeric(12,2)", 3),
    ]
    assert shape.recipe.key_columns == 1
    assert shape.vouched
    assert shape.indexed
    assert not shape.recipe.key[0].nullable


def test_columns_key_and_where_of_the_file(legacy: Legacy) -> None:
    expected = filled(legacy)
    relation = Relation(
        "i", table="items", key=("name",), columns=("amount", "label"), where="id >= 30 -- as text"
    )
    with session_of(legacy) as session:
        shape = session.describe(relation)
        rows = [decoded(r, shape) for r in flat(session.scan(shape))]
    assert [c.name for c in shape.recipe.columns] == ["name", "label", "amount"]
    assert not shape.vouched
    wanted = [[r[2], r[1], r[3]] for r in expected if int(r[0] or 0) >= 30]
    assert multiset(rows) == multiset(wanted)


def test_a_query_is_a_relation(legacy: Legacy) -> None:
    expected = filled(legacy)
    relation = Relation(
        "q",
        query="SELECT id AS k, name FROM items WHERE id % 2 = 0 -- even; ones\n ; ",
        key=("k",),
    )
    with session_of(legacy) as session:
        rows = read(session, relation)
    wanted = [[r[0], r[2]] for r in expected if int(r[0] or 0) % 2 == 0]
    assert multiset(rows) == multiset(wanted)


def test_a_view_is_a_table(legacy: Legacy) -> None:
    expected = filled(legacy)
    legacy.run("CREATE VIEW seen AS SELECT id, name FROM items")
    with session_of(legacy) as session:
        shape = session.describe(Relation("seen", table="seen", key=("id",)))
        rows = [decoded(r, shape) for r in flat(session.scan(shape))]
    assert not shape.vouched
    assert multiset(rows) == multiset([[r[0], r[2]] for r in expected])


def test_odd_names_are_quoted(legacy: Legacy) -> None:
    mark = "`" if legacy.name == "mariadb" else '"'
    table, column = 'se"le;ct %s `` ?', 'or"der %d by'
    if mark == '"':
        table, column = table.replace('"', '""'), column.replace('"', '""')
    table, column = mark + table + mark, mark + column + mark
    legacy.run(
        f"CREATE TABLE {table} ({mark}key{mark} int NOT NULL PRIMARY KEY, {column} varchar(9))",
        f"INSERT INTO {table} VALUES (1, 'x')",
    )
    with session_of(legacy) as session:
        shape = session.describe(Relation("odd", table=table))
        one = np.array([1], np.int64)
        rows = flat(session.scan(shape)) + flat(session.read_ranges(shape, one, one))
    assert [c.name for c in shape.recipe.columns][1] == 'or"der %d by'
    assert [decoded(r, shape) for r in rows] == [["1", "x"]] * 2


def test_a_where_is_not_formatted(legacy: Legacy) -> None:
    expected = filled(legacy, 10)
    relation = Relation("items", table="items", where=legacy.hostile_where)
    with session_of(legacy) as session:
        shape = session.describe(relation)
        first, last = np.array([0], np.int64), np.array([100], np.int64)
        rows = flat(session.read_ranges(shape, first, last))
        assert multiset([decoded(r, shape) for r in rows]) == multiset(expected)
        assert multiset(read(session, relation)) == multiset(expected)


WRONG = [
    (Relation("x", table="itemz"), "items"),
    (Relation("x", table="items", key=("Id_",)), "id"),
    (Relation("x", table="items", columns=("nmae",)), "name"),
    (Relation("x", table="items", as_text=("labe",)), "label"),
    (Relation("x", table="items", types=(("amuont", "int8"),)), ""),
    (Relation("x", query="SELECT id FROM items"), "key"),
    (Relation("x", query="SELECT id, id FROM items", key=("id",)), ""),
    (Relation("x", query="SELECT 1 FROM", key=("id",)), ""),
    (Relation("x", query="SELECT id FROM items) AS a; DROP TABLE items; --", key=("id",)), ""),
    (Relation("x", table="items", where="nmae = 1"), ""),
    (Relation("x", table="a.b.c.d"), ""),
]


@pytest.mark.parametrize(("relation", "hint"), WRONG)
def test_a_wrong_file_is_refused_with_what_was_meant(
    legacy: Legacy, relation: Relation, hint: str
) -> None:
    filled(legacy, 3)
    with session_of(legacy) as session:
        with pytest.raises(errors.ConfigurationError) as caught:
            session.describe(relation)
        assert hint in str(caught.value)
        assert len(read(session, Relation("items", table="items"))) == 3, "the session lives on"


def test_a_table_without_a_key_is_refused(legacy: Legacy) -> None:
    legacy.run("CREATE TABLE bare (a int)")
    with session_of(legacy) as session, pytest.raises(errors.ConfigurationError, match="key"):
        session.describe(Relation("bare", table="bare"))


# Reading.
@pytest.mark.parametrize("count", [0, 1, 1000, BATCH_ROWS * 2 + 5])
def test_a_scan_is_what_was_written(legacy: Legacy, count: int) -> None:
    expected = filled(legacy, count)
    with session_of(legacy) as session:
        shape = session.describe(Relation("items", table="items"))
        batches = list(session.scan(shape))
        assert all(0 < len(batch) <= BATCH_ROWS for batch in batches)
        rows = [decoded(r, shape) for batch in batches for r in batch]
        assert multiset(rows) == multiset(expected)
        in_order = [decoded(r, shape) for r in flat(session.scan(shape, ordered=True))]
        assert in_order == expected


def test_ranges_may_end_early(legacy: Legacy) -> None:
    """Where only so many rows are wanted; then the session reads on as if nothing had been."""
    filled(legacy, 5000)
    keys = np.arange(0, 15_000, 3, dtype=np.int64)
    everything = np.array([-(2**63)], np.int64), np.array([2**63 - 1], np.int64)
    with session_of(legacy) as session:
        shape = session.describe(Relation("items", table="items"))
        for first, last in (everything, (keys, keys)):
            all_rows = flat(session.read_ranges(shape, first, last))
            some: list[bytes] = []
            for batch in session.read_ranges(shape, first, last, rows_max=1000):
                some += batch
                if len(some) > 1000:
                    break
            assert 1000 < len(some) <= 1000 + BATCH_ROWS
            assert set(some) <= set(all_rows)
            whole = flat(session.read_ranges(shape, first, last, rows_max=len(all_rows)))
            assert sorted(whole) == sorted(all_rows)


def test_ranges_are_what_a_scan_has_there(legacy: Legacy) -> None:
    expected = filled(legacy, 5000)
    first = np.concatenate(([-(2**63)], np.arange(60, 14000, 10))).astype(np.int64)
    last = first + 4
    last[0] = 30
    first, last = np.append(first, 14990), np.append(last, 2**63 - 1)
    with session_of(legacy) as session:
        shape = session.describe(Relation("items", table="items"))
        rows = [decoded(r, shape) for r in flat(session.read_ranges(shape, first, last))]
        assert flat(session.read_ranges(shape, first[:0], last[:0])) == []
    bounds = list(zip(first.tolist(), last.tolist(), strict=True))
    wanted = [r for r in expected if any(a <= int(r[0] or 0) <= b for a, b in bounds)]
    assert multiset(rows) == multiset(wanted)


ENDS = np.array([-(2**63), 8], np.int64), np.array([7, 2**63 - 1], np.int64)
LOOSE = (
    Relation("loose", table="loose", key=("id",)),
    Relation("loose", table="loose", key=("id",), where="n > 0 AND n < 100 OR n = 100"),
    Relation("loose", table="seen", key=("id",)),
    Relation("loose", query="SELECT id, n FROM loose WHERE n > 0", key=("id",)),
)


@pytest.mark.parametrize("relation", LOOSE, ids=["table", "where", "view", "query"])
def test_a_row_without_a_key_comes_with_the_first_range(legacy: Legacy, relation: Relation) -> None:
    """It is for the caller to refuse it, as after a scan."""
    legacy.run(
        "CREATE TABLE loose (id BIGINT, n INT)",
        "CREATE INDEX by_id ON loose (id)",
        "CREATE VIEW seen AS SELECT id, n FROM loose",
    )
    legacy.insert("loose", [(k, 5) for k in (-3, 7, 8, 9)])

    def keys(first: Any, last: Any) -> list[str | None]:
        with session_of(legacy) as session:
            shape = session.describe(relation)
            assert not shape.vouched
            return [decoded(r, shape)[0] for r in flat(session.read_ranges(shape, first, last))]

    assert keys(*ENDS) == ["-3", "7", "8", "9"]
    legacy.insert("loose", [(None, -1)])
    filtered = relation.query is not None or relation.where is not None
    assert keys(*ENDS).count(None) == (0 if filtered else 1)
    legacy.insert("loose", [(None, 5), (None, 6)])
    assert keys(*ENDS).count(None) == 1
    assert keys(*(end[:1] for end in ENDS)).count(None) == 1
    assert keys(*(end[1:] for end in ENDS)) == ["8", "9"]


def test_a_missing_key_is_looked_for_by_index(legacy: Legacy) -> None:
    legacy.run("CREATE TABLE loose (id BIGINT, n INT)", "CREATE INDEX by_id ON loose (id)")
    legacy.insert("loose", [(k, k % 7) for k in range(20_000)])
    if legacy.name != "sqlite":
        legacy.run({"mariadb": "ANALYZE TABLE loose", "postgresql": "ANALYZE loose"}[legacy.name])
    with session_of(legacy) as session:
        shape = session.describe(LOOSE[0])
        found = session.ask(
            {
                "sqlite": "EXPLAIN QUERY PLAN " + sqlite_types.null_key_sql(shape),
                "mariadb": "EXPLAIN " + mariadb_sql.null_key_sql(shape),
                "postgresql": "EXPLAIN " + postgresql_sql.null_key_sql(shape),
            }[legacy.name]
        )
        assert "by_id" in str(found)
        if legacy.name == "sqlite":
            for is_open, values in ((False, (-math.inf, 7)), (True, (7,)), (True, (-math.inf,))):
                sql = sqlite_types.range_sql(shape, is_open=is_open)
                assert "by_id" in str(session.ask("EXPLAIN QUERY PLAN " + sql, *values))


def test_wide_rows_come_in_small_batches(legacy: Legacy) -> None:
    kind = {"postgresql": "bytea", "mariadb": "longblob", "sqlite": "blob"}[legacy.name]
    legacy.run(f"CREATE TABLE wide (id int NOT NULL PRIMARY KEY, b {kind})")
    legacy.insert("wide", [(i, b"x" * 1_000_000) for i in range(24)])
    with session_of(legacy) as session:
        shape = session.describe(Relation("wide", table="wide"))
        sizes = [sum(map(len, batch)) for batch in session.scan(shape)]
    assert sum(sizes) > 24_000_000
    assert max(sizes) < 17_000_000


def test_a_row_above_the_limit_is_refused(legacy: Legacy, monkeypatch: pytest.MonkeyPatch) -> None:
    legacy.run("CREATE TABLE wide (id int NOT NULL PRIMARY KEY, a varchar(5000))")
    legacy.insert("wide", [(1, "x"), (77, "y" * 3000)])
    for module in (copy, sqlite, rows):
        if hasattr(module, "ROW_BYTES_MAX"):
            monkeypatch.setattr(module, "ROW_BYTES_MAX", 2000)
    with session_of(legacy) as session, pytest.raises(errors.LimitExceeded) as caught:
        flat(session.scan(session.describe(Relation("wide", table="wide"))))
    assert legacy.name == "sqlite" or "77" in str(caught.value)
    assert limits.ROW_BYTES_MAX == 64 << 20


def test_a_scan_may_be_abandoned(legacy: Legacy) -> None:
    filled(legacy, BATCH_ROWS * 3)
    with session_of(legacy) as session:
        shape = session.describe(Relation("items", table="items"))
        batches = session.scan(shape)
        next(batches)
        if hasattr(batches, "close"):
            batches.close()
        assert len(flat(session.scan(shape))) == BATCH_ROWS * 3
        unfinished = session.scan(shape)
        next(unfinished)


def test_null_keys_and_duplicates_are_passed_on(legacy: Legacy) -> None:
    legacy.run("CREATE TABLE loose (k int, v varchar(9))")
    legacy.insert("loose", [(None, "a"), (None, "b"), (1, "c"), (1, "c"), (-5, "")])
    with session_of(legacy) as session:
        shape = session.describe(Relation("loose", table="loose", key=("k",)))
        rows = [decoded(r, shape) for r in flat(session.scan(shape))]
    assert not shape.vouched
    assert not shape.indexed
    assert multiset(rows) == multiset(
        [[None, "a"], [None, "b"], ["1", "c"], ["1", "c"], ["-5", ""]]
    )


def test_composite_text_keys(legacy: Legacy) -> None:
    legacy.run(
        f"CREATE TABLE pairs (v int, b int NOT NULL, a {legacy.text_key} NOT NULL,"
        " PRIMARY KEY (a, b))"
    )
    keys = [("1", 11), ("11", 1), ("", 0), ("a b ", 1), ("É", 1), ("😀", -1), ("E\u0301", 1)]
    legacy.insert("pairs", [(i, b, a) for i, (a, b) in enumerate(keys)])
    with session_of(legacy) as session:
        shape = session.describe(Relation("pairs", table="pairs"))
        rows = [decoded(r, shape) for r in flat(session.scan(shape))]
    assert [c.name for c in shape.recipe.key] == ["a", "b"]
    assert shape.vouched
    assert not shape.recipe.integer_key
    assert multiset(rows) == multiset([[a, str(b), str(i)] for i, (a, b) in enumerate(keys)])


# One instant, and read only.
def test_a_snapshot_stays_while_a_writer_writes(legacy: Legacy) -> None:
    expected = filled(legacy, BATCH_ROWS + 100)
    with session_of(legacy) as session:
        shape = session.describe(Relation("items", table="items"))
        batches = session.scan(shape)
        rows = next(batches)
        legacy.run(
            "DELETE FROM items WHERE id < 3000",
            "UPDATE items SET name = 'changed'",
            "INSERT INTO items VALUES ('new', -1, 'new', 0)",
        )
        session.pause()
        rows = rows + flat(batches)
        assert multiset([decoded(r, shape) for r in rows]) == multiset(expected)
        bounds = np.array([-9], np.int64), np.array([2999], np.int64)
        assert len(flat(session.read_ranges(shape, *bounds))) == 1000
        assert session.consistency is Consistency.EXACT
        assert session.generation == 0
        assert session.as_of.startswith("20")
        assert session.as_of.endswith("Z")
    with session_of(legacy) as session:
        assert len(read(session, Relation("items", table="items"))) == BATCH_ROWS + 100 - 999


def test_sqlite_snapshots_cover_tables_too(lite: OfSQLite) -> None:
    expected = filled(lite, 100)
    lite.run("CREATE TABLE staged AS SELECT * FROM items WHERE id < 9")
    with session_of(lite) as session:
        session.describe(Relation("s", table="staged", key=("id",)))  # the snapshot is taken
        lite.run("DROP TABLE items", "ALTER TABLE staged RENAME TO items")
        assert multiset(read(session, Relation("items", table="items"))) == multiset(expected)
    with session_of(lite) as session:
        assert len(read(session, Relation("items", table="items", key=("id",)))) == 3


WRITES = (
    "INSERT INTO items VALUES ('x', -7, 'x', 0)",
    "UPDATE items SET name = 'x'",
    "DELETE FROM items",
    "DROP TABLE items",
    "CREATE TABLE more (a int)",
)


@pytest.mark.parametrize("write", WRITES)
def test_the_session_cannot_write(legacy: Legacy, write: str) -> None:
    expected = filled(legacy, 3)
    with session_of(legacy) as session:
        failures = (psycopg.Error, pymysql.Error, sqlite3.Error, errors.DriftlineError)
        with pytest.raises(failures) as caught:
            session.ask(write)
        text = str(caught.value).lower()
        assert any(w in text for w in ("read-only", "read only", "readonly", "not authorized"))
    # Outside the transaction, on the connection as the driver was told to open it.
    with session_of(legacy) as session:
        connection = session._connection
        if isinstance(connection, sqlite3.Connection):
            connection.set_authorizer(None)
            connection.execute("ROLLBACK")
            connection.execute("PRAGMA query_only = 0")
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute(write)
        else:
            if isinstance(connection, pymysql.Connection):
                connection.rollback()
            else:
                connection.execute("ROLLBACK")
            with connection.cursor() as cursor, pytest.raises((psycopg.Error, pymysql.Error)):
                cursor.execute(write)
    with session_of(legacy) as session:
        assert multiset(read(session, Relation("items", table="items"))) == multiset(expected)


def test_the_templates_cover_what_is_issued(
    legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(legacy, 50)
    legacy.run("CREATE TABLE loose (id BIGINT, n INT)")
    issued: list[str] = []
    _record(monkeypatch, issued)
    engine = engine_of(legacy, statement_s=60)
    relations = [
        Relation("items", table="items", where="id > -1"),
        Relation("q", query="SELECT name AS k, id FROM items", key=("k",)),
        Relation("r", query="SELECT id AS k, name FROM items", key=("k",)),
        LOOSE[1],
    ]
    with closing(engine.open()) as session:
        shapes = [session.describe(relation) for relation in relations]
        for shape in shapes:
            flat(session.scan(shape))
        flat(session.scan(shapes[0], ordered=True))
        bound = np.array([3], np.int64)
        flat(session.read_ranges(shapes[0], bound, bound))
        for shape in shapes[2:]:
            assert not shape.vouched
            flat(session.read_ranges(shape, *ENDS))
        session.pause()
    for shape in shapes:
        engine.scan_cost(shape)
    engine.privileges(relations)
    known = set(engine.templates(shapes))
    assert len(issued) > 10
    for sql in issued:
        assert _general(sql) in {_general(k) for k in known}, sql


def _general(sql: str) -> str:
    if sql.startswith("PRAGMA main.index_xinfo"):
        return "PRAGMA main.index_xinfo"
    return " ".join(sql.split())


def _record(monkeypatch: pytest.MonkeyPatch, issued: list[str]) -> None:
    """Below our own code: what reaches each driver."""
    execute = psycopg.Cursor.execute

    def pg_execute(self: Any, query: Any, *rest: Any, **options: Any) -> Any:
        issued.append(query)
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", pg_execute)
    my_execute = pymysql.cursors.Cursor.execute

    def maria_execute(self: Any, query: Any, args: Any = None) -> Any:
        issued.append(query)
        return my_execute(self, query, args)

    monkeypatch.setattr(pymysql.cursors.Cursor, "execute", maria_execute)
    connect_lite = sqlite3.connect

    class Recorded(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> Any:
            issued.append(sql)
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect_lite(*a, factory=Recorded, **k))


# The DBA's commands.
def test_grants_scan_cost_and_privileges(legacy: Legacy) -> None:
    filled(legacy, 100)
    engine = engine_of(legacy)
    relation = Relation("items", table="items", key=("id",), columns=("name",))
    with closing(engine.open()) as session:
        shape = session.describe(relation)
    script = engine.grants([relation], login="drift'line", connections=6)
    assert "items" in script or legacy.name == "sqlite"
    assert "INSERT" not in script
    assert "\n" not in engine.scan_cost(shape)
    assert "rows" in engine.scan_cost(shape)
    assert any(p.excess for p in engine.privileges([relation])), "a superuser has too much"


def test_a_granted_login_reads_and_has_no_excess(pg: OfPostgreSQL, maria: OfMariaDB) -> None:
    relation = Relation("items", table="items", key=("id",), columns=("name",))
    for legacy in (pg, maria):
        filled(legacy, 5)
        login = f"l{legacy.database}"
        script = engine_of(legacy).grants([relation], login=login, connections=6)
        # As the script says: then its last line, with a password.
        script = script.replace("-- ALTER USER", "ALTER USER").replace("'…'", "'pw'")
        text = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
        legacy.run(*(s for s in text.split(";") if s.strip()))
        server: Any = legacy.server
        url = server.url(login, legacy.database)
        engine = connect(url, "pw", Limits())
        with closing(engine.open()) as session:
            assert len(read(session, relation)) == 5
            with pytest.raises(errors.DatabaseRefused, match="GRANT SELECT"):
                read(session, Relation("all", query="SELECT label, id FROM items", key=("id",)))
        assert [p.what for p in engine.privileges([relation]) if p.excess] == []
        with pytest.raises(errors.DatabaseRefused) as caught:
            connect(server.tcp_url(login, legacy.database), "wrong", Limits()).open()
        assert "wrong" not in str(caught.value)
        if legacy is pg:
            pg.run(f"DROP OWNED BY {login}", f"DROP ROLE {login}")
        else:
            maria.run(f"DROP USER {login}")


def test_databases_that_are_not_there(tmp_path: Path) -> None:
    for url in (
        "postgresql://u@127.0.0.1:1/d",
        "mariadb://u@127.0.0.1:1/d",
        f"sqlite:///{tmp_path}/none.sqlite",
    ):
        with pytest.raises(errors.DatabaseUnavailable) as caught:
            connect(url, "secret", Limits(connect_s=2)).open()
        assert "secret" not in str(caught.value)


def test_urls() -> None:
    for url in ("oracle://u@h/d", "nonsense", "sqlite://", "mariadb://h", "mysql+mysqldb://u@h/d"):
        with pytest.raises(errors.ConfigurationError):
            connect(url, None, Limits())
    names = {"postgresql": "postgresql", "mysql+pymysql": "mariadb", "mysql": "mariadb"}
    for scheme, name in names.items():
        assert connect(f"{scheme}://u@h/d", None, Limits()).name == name


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(errors.ConfigurationError, match=r"pip install 'driftline\[postgresql\]'"):
        connect("postgresql://u@h/d", None, Limits())


def test_a_statement_may_take_its_time_and_no_longer(legacy: Legacy) -> None:
    filled(legacy, 3000)
    slow = "SELECT count(*) AS n FROM items a, items b, items c WHERE a.amount + b.id = c.id"
    with session_of(legacy, statement_s=0.2) as session:
        with pytest.raises(errors.DatabaseRefused, match="statement_timeout_s"):
            read(session, Relation("slow", query=slow, key=("n",)))
        assert len(read(session, Relation("items", table="items"))) == 3000


# Types: (declaration, declared type, literals, what they read as). Every literal is another value.
Case = tuple[str, str, list[str], list[str]]
EDGES = [
    "''",
    "' '",
    "'a'",
    "'A'",
    "'a '",
    "'NULL'",
    "'\u00a0'",
    "'é'",
    "'e\u0301'",
    "'😀'",
    "'\\n'",
]
BOTH: list[Case] = [
    ("smallint", "int2", ["-32768", "-1", "0", "32767"], ["-32768", "-1", "0", "32767"]),
    ("bigint", "int8", ["-9223372036854775808", "12345678901234", "12345678901235"], []),
    ("decimal(15,2)", "numeric(15,2)",
     ["-0.01", "0", "0.1", "9999999999999.99", "10000", "20000.5"],
     ["-0.01", "0.00", "0.10", "9999999999999.99", "10000.00", "20000.50"]),
    ("decimal(38,10)", "numeric(38,10)", ["1.0000000001", "1.0000000002",
     "9999999999999999999999999999.9999999999"],
     ["1.0000000001", "1.0000000002", "9999999999999999999999999999.9999999999"]),
    ("decimal(5,0)", "numeric(5,0)", ["-99999", "0", "10"], ["-99999", "0", "10"]),
    ("date", "date", ["'0001-01-01'", "'1999-12-31'", "'2000-01-01'", "'9999-12-31'"],
     ["0001-01-01", "1999-12-31", "2000-01-01", "9999-12-31"]),
    ("timestamp(6)", "", ["'1999-12-31 23:59:59.999999'", "'2024-10-27 02:30:00'",
     "'2024-10-27 02:30:00.000001'"], []),
    ("varchar(20)", "text", [*EDGES[:3], "'\u00a0'", "'é'", "'😀'"], []),
]  # fmt: skip
TYPES: dict[str, list[Case]] = {
    "postgresql": [
        *BOTH,
        ("boolean", "bool", ["true", "false"], ["true", "false"]),
        ("integer", "int4", ["-2147483648", "2147483647"], []),
        ("oid", "oid", ["0", "4294967295"], ["0", "4294967295"]),
        ("real", "float4", ["1234567", "1234567.125", "'-0'", "0", "'NaN'", "'inf'", "'-inf'"],
         ["1234567.0", "1234567.1", "-0.0", "0.0", "NaN", "Infinity", "-Infinity"]),
        ("double precision", "float8", ["0.1", "0.30000000000000004", "0.3", "'-0'", "0", "1e-320"],
         []),
        ("numeric", "numeric", ["1.0", "1.00", "1e-26", "'NaN'", "'Infinity'", "10.3"],
         ["1.0", "1.00", "0." + "0" * 25 + "1", "NaN", "Infinity", "10.3"]),
        ("numeric(50,2)", "numeric", ["1", "2"], ["1.00", "2.00"]),
        ("numeric(3,-2)", "numeric", ["12300", "12400"], ["12300", "12400"]),
        ("numeric(2,5)", "numeric", ["0.00012", "0.00013"], ["0.00012", "0.00013"]),
        ("money", "numeric(19,2)", ["-92233720368547758.08", "0.01", "92233720368547758.07"],
         ["-92233720368547758.08", "0.01", "92233720368547758.07"]),
        ("text", "text", EDGES, []),
        ("char(3)", "text", ["'a'", "'b'"], ["a  ", "b  "]),
        ("name", "text", ["'a'", "'b'"], []),
        ("json", "text", ["'{\"a\":1.10}'", "'{\"a\":1.1}'", "'{ \"a\":1.1}'"], []),
        ("jsonb", "jsonb", ["'{\"a\":1.10}'", "'{\"a\":1.1}'"], ['{"a": 1.10}', '{"a": 1.1}']),
        ("bytea", "bytea", ["'\\x00'", "'\\x0000'", "''"], ["00", "0000", ""]),
        ("date", "date", ["'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'"],
         ["infinity", "-infinity", "-0043-03-15", "5874897-12-31"]),
        ("timestamp", "timestamp", ["'infinity'", "'2020-01-01 00:00:00.000001'", "'2020-01-01'"],
         ["infinity", "2020-01-01 00:00:00.000001", "2020-01-01 00:00:00"]),
        ("timestamptz", "timestamptz", ["'2024-10-27 02:30+02'", "'2024-10-27 02:30+01'"],
         ["2024-10-27 00:30:00+00", "2024-10-27 01:30:00+00"]),
        ("time", "time", ["'00:00'", "'24:00'"], ["00:00:00", "24:00:00"]),
        ("timetz", "timetz", ["'12:00+02'", "'10:00+00'"], ["12:00:00+02:00", "10:00:00+00:00"]),
        ("interval", "interval", ["'1 month'", "'30 days'", "'720 hours'", "'-1 s'"], []),
        ("uuid", "uuid", ["'00000000-0000-0000-0000-000000000001'"], []),
        ("mood", "text", ["'sad'", "'ok'"], ["sad", "ok"]),
        ("positive", "int4", ["1", "2"], ["1", "2"]),
        ("int[]", "text", ["'{{1,2},{3,4}}'", "'{1,2,3,4}'", "'{}'", "'{NULL}'"],
         ["{{1,2},{3,4}}", "{1,2,3,4}", "{}", "{NULL}"]),
        ("text[]", "text", ["'{NULL}'", "'{\"NULL\"}'", "'{\"a,b\"}'", "'{a,b}'"], []),
        ("float8[]", "text", ["'{0.1}'", "'{0.10000000000000002}'"], []),
        ("pair", "text", ["'(1,a)'", "'(1,)'", "'(1,\"\")'"], []),
        ("int4range", "text", ["'[1,3)'", "'empty'", "'(,)'"], []),
        ("inet", "text", ["'10.0.0.1'", "'10.0.0.1/8'", "'::1'"], []),
        ("cidr", "text", ["'10.0.0.0/8'", "'10.0.0.0/16'"], []),
        ("macaddr", "text", ["'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'"], []),
        ("bit(4)", "text", ["B'1010'", "B'0101'"], ["1010", "0101"]),
        ("varbit", "text", ["B'1'", "B'10'", "B''"], ["1", "10", ""]),
        ("point", "text", ["'(0.1,2)'", "'(0.10000000000000002,2)'"], []),
        ("tsvector", "text", ["'a:1'", "'a:2'"], []),
        ('"char"', "text", ["'a'", "'b'"], ["a", "b"]),
        ("pg_lsn", "text", ["'0/1'", "'0/2'"], ["0/1", "0/2"]),
        ("regclass", "text", ["'pg_class'", "'pg_type'"], ["pg_class", "pg_type"]),
        ("xid", "text", ["'1'", "'4294967295'"], ["1", "4294967295"]),
    ],
    "mariadb": [
        *BOTH,
        ("tinyint(1)", "int2", ["0", "1", "-128"], ["0", "1", "-128"]),
        ("tinyint unsigned", "int2", ["255"], ["255"]),
        ("smallint unsigned", "int4", ["65535"], ["65535"]),
        ("mediumint", "int4", ["-8388608"], ["-8388608"]),
        ("mediumint unsigned", "int4", ["16777215"], ["16777215"]),
        ("int", "int4", ["-2147483648"], ["-2147483648"]),
        ("int(8) unsigned zerofill", "int8", ["42", "4294967295"], ["42", "4294967295"]),
        ("bigint unsigned", "numeric(20,0)", ["18446744073709551615", "0"],
         ["18446744073709551615", "0"]),
        ("decimal(6,2) zerofill", "numeric(6,2)", ["1.5", "0.25"], ["1.50", "0.25"]),
        ("decimal(65,30)", "numeric", ["1e-30", "2"],
         ["0." + "0" * 29 + "1", "2." + "0" * 30]),
        ("float", "float4", ["1234567", "1234567.125", "1.1", "3.4028234e38"],
         ["1234567.0", "1234567.1", "1.1", "3.4028235e+38"]),
        ("double", "float8",
         ["0.1", "0.30000000000000004", "0.3", "5e-324", "1.7976931348623157e308"],
         ["0.1", "0.30000000000000004", "0.3", "5e-324", "1.7976931348623157e+308"]),
        ("double(10,3)", "float8", ["0.125", "1234567.891"], ["0.125", "1234567.891"]),
        ("char(5)", "text", ["'a'", "'b'"], ["a", "b"]),
        ("varchar(9) character set latin1", "text", ["'é'", "'€'"], ["é", "€"]),
        ("varchar(9) character set utf16", "text", ["'é'", "'😀'"], ["é", "😀"]),
        ("longtext", "text", ["'a'", "'A'", "'a '", "'\\0'", "'\\\\'", "'%s'"], []),
        ("enum('sad','ok')", "text", ["'sad'", "'ok'"], ["sad", "ok"]),
        ("set('a','b')", "text", ["''", "'a'", "'b,a'"], ["", "a", "a,b"]),
        ("json", "text", ["'{\"a\":1.10}'", "'{\"a\":1.1}'"], []),
        ("binary(3)", "bytea", ["'a'"], ["610000"]),
        ("varbinary(9)", "bytea", ["''", "x'00'", "x'0000'", "x'ff27'"],
         ["", "00", "0000", "ff27"]),
        ("longblob", "bytea", ["x'c328'"], ["c328"]),
        ("bit(1)", "int8", ["b'0'", "b'1'"], ["0", "1"]),
        ("bit(63)", "int8", ["9223372036854775807"], ["9223372036854775807"]),
        ("bit(64)", "numeric(20,0)", ["18446744073709551615"], ["18446744073709551615"]),
        ("datetime(6)", "timestamp", ["'0001-01-01'", "'9999-12-31 23:59:59.999999'"],
         ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"]),
        ("datetime", "timestamp", ["'2024-10-27 02:30:00'"], ["2024-10-27 02:30:00"]),
        ("time(6)", "text", ["'-838:59:59'", "'838:59:59'", "'00:00:00.000001'"],
         ["-838:59:59.000000", "838:59:59.000000", "00:00:00.000001"]),
        ("year", "int2", ["0", "1901", "2155"], ["0", "1901", "2155"]),
        ("uuid", "text", ["'123e4567-e89b-12d3-a456-426655440000'"],
         ["123e4567-e89b-12d3-a456-426655440000"]),
        ("inet6", "text", ["'::1'", "'::2'"], ["::1", "::2"]),
        ("inet4", "text", ["'10.0.0.1'"], ["10.0.0.1"]),
        ("point", "bytea", ["point(1,2)"],
         ["000000000101000000000000000000f03f0000000000000040"]),
    ],
    "sqlite": [
        ("integer", "int8", ["-9223372036854775808", "0", "1"], []),
        ("real", "float8", ["1", "0.1", "0.30000000000000004", "9e999", "-9e999"],
         ["1.0", "0.1", "0.30000000000000004", "Infinity", "-Infinity"]),
        ("varchar(9)", "text", EDGES, []),
        ("blob", "bytea", ["x''", "x'00'", "x'c328'"], ["", "00", "c328"]),
        ("boolean", "int8", ["0", "1", "2"], ["0", "1", "2"]),
        ("decimal(10,2)", "numeric(10,2)", ["1", "1.5", "0.07", "-12345678.91", "100000"],
         ["1.00", "1.50", "0.07", "-12345678.91", "100000.00"]),
        ("numeric(15)", "numeric(15,0)", ["999999999999999", "-1"], ["999999999999999", "-1"]),
        ("datetime", "text", ["'2020-01-01'", "'0000-00-00'"], ["2020-01-01", "0000-00-00"]),
        ("numeric", "text", ["1", "1.5", "'a'", "x'61'", "''", "x''", "cast(x'c328' as text)"],
         ["i:1", "r:1.5", "t:a", "b:61", "t:", "b:", "x:c328"]),
        ("", "text", ["1", "1.0", "'1'", "x'31'", "-0.0"],
         ["i:1", "r:1.0", "t:1", "b:31", "r:-0.0"]),
        ("decimal(20,2)", "text", ["1", "0.07"], ["i:1", "r:0.07"]),
        ("blobby", "text", ["1", "x'00'"], ["i:1", "b:00"]),
    ],
}  # fmt: skip
PRELUDE = {
    "postgresql": (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE TYPE pair AS (a int, b text)",
    ),
    "mariadb": (),
    "sqlite": (),
}


@pytest.mark.parametrize("name", ENGINES)
def test_every_type(name: str, legacies: Callable[[str], Legacy]) -> None:
    legacy = legacies(name)
    legacy.run(*PRELUDE[name])
    failures = []
    for number, (declaration, declared, literals, texts) in enumerate(TYPES[name]):
        null = " NULL" if name == "mariadb" else ""
        legacy.run(f"CREATE TABLE t{number} (id int NOT NULL PRIMARY KEY, v {declaration}{null})")
        values = ", ".join(f"({i}, {literal})" for i, literal in enumerate([*literals, "NULL"]))
        legacy.run(f"INSERT INTO t{number} VALUES {values}")
        with session_of(legacy) as session:
            shape = session.describe(Relation("t", table=f"t{number}"))
            found = [decoded(r, shape)[1] for r in flat(session.scan(shape, ordered=True))]
            as_text = session.describe(Relation("t", table=f"t{number}", as_text=("v",)))
            spelled = [decoded(r, as_text)[1] for r in flat(session.scan(as_text, ordered=True))]
            query = Relation("t", query=f"SELECT id, v FROM t{number}", key=("id",))
            through = session.describe(query)
            again = flat(session.scan(through))
        written = str(shape.recipe.columns[1].type)
        if declared and written != declared:
            failures.append(f"{declaration}: declared {written}, not {declared}")
        if found[-1] is not None or spelled[-1] is not None:
            failures.append(f"{declaration}: NULL is {found[-1]!r} and {spelled[-1]!r}")
        if len(set(found)) != len(found) or len(set(spelled)) != len(spelled):
            failures.append(f"{declaration}: not all different: {found} {spelled}")
        if texts and found[:-1] != texts:
            failures.append(f"{declaration}: {found[:-1]}, not {texts}")
        if as_text.recipe.columns[1].type.kind != "text":
            failures.append(f"{declaration}: as_text is {as_text.recipe.columns[1].type}")
        if len({row[6 + 4 :] for row in again}) != len(found):
            failures.append(f"{declaration}: a query does not tell the values apart")
    assert failures == []


REFUSED = [
    ("mariadb", "date", "'0000-00-00'", "0000-00-00"),
    ("mariadb", "date", "'2020-00-01'", "2020-00-01"),
    ("mariadb", "datetime", "'0000-00-00'", "0000-00-00"),
    ("mariadb", "timestamp", "0", "0000-00-00"),
    ("sqlite", "integer", "'abc'", "abc"),
    ("sqlite", "integer", "1.5", "1.5"),
    ("sqlite", "real", "'abc'", "abc"),
    ("sqlite", "text", "x'00'", "x00"),
    ("sqlite", "text", "cast(x'c328' as text)", "c328"),
    ("sqlite", "blob", "'abc'", "abc"),
    ("sqlite", "date", "20200101", "20200101"),
    ("sqlite", "decimal(5,2)", "1.005", "1.005"),
    ("sqlite", "decimal(5,2)", "1000", "1000"),
    ("sqlite", "decimal(5,2)", "9e999", "inf"),
    ("sqlite", "boolean", "'true'", "true"),
]


@pytest.mark.parametrize(("name", "declaration", "literal", "shown"), REFUSED)
def test_a_value_that_does_not_fit_is_named(
    name: str, declaration: str, literal: str, shown: str, legacies: Callable[[str], Legacy]
) -> None:
    legacy = legacies(name)
    null = " NULL" if name == "mariadb" else ""
    legacy.run(f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {declaration}{null})")
    if isinstance(legacy, OfMariaDB):
        with legacy.server.admin(legacy.database) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            cursor.execute(f"INSERT INTO t VALUES (1, NULL), (4711, {literal})")
    else:
        legacy.run(f"INSERT INTO t VALUES (1, NULL), (4711, {literal})")
    with session_of(legacy) as session:
        with pytest.raises(errors.ValueDoesNotFit) as caught:
            read(session, Relation("things", table="t"))
        text = str(caught.value)
        assert "things.v" in text
        assert "4711" in text
        assert 'as_text = ["v"]' in text
        assert shown.replace("x00", "\\x00") in text
        rows = read(session, Relation("things", table="t", as_text=("v",)))
        assert len(rows) == 2


# PostgreSQL alone.
def test_postgresql_vouches_only_for_what_cannot_be_null_or_twice(pg: OfPostgreSQL) -> None:
    pg.run(
        "CREATE TABLE a (k int NOT NULL, v int, u int NOT NULL)",
        "CREATE UNIQUE INDEX ON a (k) WHERE v > 0",
        "ALTER TABLE a ADD UNIQUE (u) DEFERRABLE INITIALLY DEFERRED",
        "CREATE UNIQUE INDEX ON a (v)",
        "CREATE UNIQUE INDEX ON a ((k + 1))",
        "CREATE TABLE parent (k int PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE parted (k int PRIMARY KEY, v int) PARTITION BY RANGE (k)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "INSERT INTO parted VALUES (1, 2)",
        "INSERT INTO child VALUES (1), (1)",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM parted",
        "CREATE UNIQUE INDEX ON m (k)",
    )
    with session_of(pg) as session:
        for key in ("k", "u", "v"):
            assert not session.describe(Relation("a", table="a", key=(key,))).vouched
        assert not session.describe(Relation("p", table="parent", key=("k",))).vouched
        parted = session.describe(Relation("p", table="public.parted", key=("k",)))
        assert parted.vouched
        assert parted.indexed
        assert len(flat(session.scan(parted))) == 1
        seen = session.describe(Relation("m", table="m", key=("k",)))
        assert not seen.vouched
        assert len(flat(session.scan(seen))) == 1
        both = session.describe(Relation("p", table="parted", key=("v", "k")))
        assert both.vouched


@pytest.mark.parametrize("name", ["leaf", "tree", "view", "query"])
def test_postgresql_has_no_snapshot_of_foreign_tables(
    pg: OfPostgreSQL, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' server has no wrapper: a plan of it says Foreign Scan where it scans `leaf`."""
    pg.run(
        "CREATE TABLE tree (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE near (id int PRIMARY KEY)",
        "CREATE VIEW view AS SELECT l.id FROM leaf l JOIN near USING (id)",
        "INSERT INTO tree VALUES (1, 'a')",
        "INSERT INTO near VALUES (1)",
        "ANALYZE",
    )
    ask = postgresql.PostgresqlSession.ask

    def asked(self: Any, sql: str, *values: object) -> Any:
        def foreign(node: dict[str, Any]) -> None:
            if node.get("Relation Name") == "leaf":
                node["Node Type"] = "Foreign Scan"
            for child in node.get("Plans", []):
                foreign(child)

        found = ask(self, sql, *values)
        if sql == postgresql_types.TABLE and found[0][2] == "leaf":
            found = [(*found[0][:3], "f", *found[0][4:])]
        if sql.startswith("EXPLAIN"):
            foreign(found[0][0][0]["Plan"])
        return found

    monkeypatch.setattr(postgresql.PostgresqlSession, "ask", asked)
    text = "SELECT id FROM (SELECT id FROM leaf UNION ALL SELECT id FROM near) q"
    relation = Relation("r", table=None if name == "query" else name, key=("id",))
    if name == "query":
        relation = Relation("r", query=text, key=("id",))
    with session_of(pg) as session:
        near = session.describe(Relation("near", table="near"))
        flat(session.scan(near))
        assert not near.notes
        assert session.consistency.value == "exact"
        shape = session.describe(relation)
        assert shape.notes == ("read without a snapshot: a foreign table",)
        flat(session.scan(shape))
        assert session.consistency is Consistency.FUZZY


def test_postgresql_of_no_known_encoding_is_refused(pg: OfPostgreSQL) -> None:
    name = pg.server.create_database(pg.database + "a", encoding="SQL_ASCII")
    try:
        with pg.server.superuser(name) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        engine = connect(pg.server.url("postgres", name), None, Limits())
        with closing(engine.open()) as session:
            with pytest.raises(errors.ConfigurationError, match="SQL_ASCII"):
                session.describe(Relation("t", table="t"))
            assert session.describe(Relation("t", table="t", columns=("id",))).vouched
    finally:
        pg.server.drop_database(name)


def test_postgresql_nan_has_one_encoding(pg: OfPostgreSQL) -> None:
    pg.run(
        "CREATE TABLE f (id int PRIMARY KEY, a float8, b float4)",
        "INSERT INTO f VALUES (1, 'NaN', 'NaN'), (2, 'inf'::float8 - 'inf'::float8, 'NaN')",
    )
    with session_of(pg) as session:
        rows = flat(session.scan(session.describe(Relation("f", table="f"))))
    assert len({row[10:] for row in rows}) == 1
    assert all(bytes.fromhex("7ff8000000000000") in row for row in rows)


def test_postgresql_search_path_cannot_stand_in(pg: OfPostgreSQL) -> None:
    pg.run(
        "CREATE SCHEMA evil",
        "CREATE FUNCTION evil.eq(float8, float8) RETURNS bool LANGUAGE sql AS 'SELECT true'",
        "CREATE OPERATOR evil.= (LEFTARG = float8, RIGHTARG = float8, FUNCTION = evil.eq)",
        "CREATE TABLE f (id int PRIMARY KEY, a float8)",
        "INSERT INTO f VALUES (1, 0.5)",
        f"ALTER DATABASE {pg.database} SET search_path = evil, public, pg_catalog",
    )
    with session_of(pg) as session:
        assert read(session, Relation("f", table="f")) == [["1", "0.5"]]


# MariaDB alone.
@pytest.mark.parametrize("key", ["id int", "id varchar(20)", "id double"])
def test_tables_without_snapshots_are_fuzzy_and_let_writers_in(maria: OfMariaDB, key: str) -> None:
    maria.run(f"CREATE TABLE m ({key} NOT NULL PRIMARY KEY, v varchar(2000)) ENGINE=MyISAM")
    maria.insert("m", [(i, "v" * 2000) for i in range(9000)])
    with session_of(maria) as session:
        assert session.consistency.value == "exact"
        shape = session.describe(Relation("m", table="m"))
        assert shape.notes
        batches = session.scan(shape)
        rows = next(batches)
        maria.run("SET lock_wait_timeout = 1", "UPDATE m SET v = 'x' WHERE id = 1")
        rows += flat(batches)
        assert len(rows) == len({decoded(r, shape)[0] for r in rows}) == 9000
        assert session.consistency is Consistency.FUZZY
        if shape.recipe.integer_key:
            bounds = np.array([5], np.int64), np.array([9], np.int64)
            assert len(flat(session.read_ranges(shape, *bounds))) == 5


SWAP = (
    "INSERT INTO staged SELECT seq, 'new' FROM seq_0_to_99",
    "RENAME TABLE t TO gone, staged TO t",
)
DROPPED = ("ALTER TABLE t DROP PARTITION p1",)


@pytest.mark.parametrize(
    "reload",
    [
        ("TRUNCATE t", "INSERT INTO t SELECT seq, 'new' FROM seq_0_to_99"),
        ("ALTER TABLE t ADD COLUMN b double DEFAULT rand(), ALGORITHM = COPY",),
        ("CREATE TABLE other AS SELECT * FROM t", "RENAME TABLE t TO gone, other TO t"),
        ("DROP TABLE t", "CREATE TABLE t AS SELECT 1 AS k, 'a' AS a"),
        ("ALTER TABLE t TRUNCATE PARTITION p1",),
        DROPPED,
        SWAP,
    ],
)
def test_mariadb_reads_no_table_that_was_replaced(
    maria: OfMariaDB, reload: tuple[str, ...]
) -> None:
    """InnoDB says so itself, but of an older table under a new name, and of partitions."""
    maria.run(
        "CREATE TABLE t (k int PRIMARY KEY, a varchar(9)) PARTITION BY RANGE (k) "
        "(PARTITION p0 VALUES LESS THAN (50), PARTITION p1 VALUES LESS THAN (100))"
        if "PARTITION" in reload[0]
        else "CREATE TABLE t (k int PRIMARY KEY, a varchar(9))",
        "CREATE TABLE staged (k int PRIMARY KEY, a varchar(9))",
        "INSERT INTO t SELECT seq, 'old' FROM seq_0_to_99",
    )
    relation = Relation("t", table="t", key=("k",))
    with session_of(maria) as session:
        if reload in {SWAP, DROPPED}:  # which only the catalogue tells, and it knows seconds
            time.sleep(1.1)
        maria.run(*reload)
        with pytest.raises(errors.SnapshotLost):
            read(session, relation)
    with session_of(maria) as session:
        read(session, relation)
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            maria.run("SET lock_wait_timeout = 1", "TRUNCATE t")


def test_mariadb_reads_a_table_that_was_renamed_before(maria: OfMariaDB) -> None:
    maria.run("CREATE TABLE staged (k int PRIMARY KEY)", "RENAME TABLE staged TO t")
    with session_of(maria) as session:
        assert read(session, Relation("t", table="t")) == []


def test_mariadb_character_sets_that_unicode_does_not_hold(maria: OfMariaDB) -> None:
    maria.run("CREATE TABLE j (id int PRIMARY KEY, v varchar(9) CHARACTER SET cp932)")
    maria.run("INSERT INTO j VALUES (1, 'ア')")
    with session_of(maria) as session:
        with pytest.raises(errors.ConfigurationError, match="cp932"):
            session.describe(Relation("j", table="j"))
        assert read(session, Relation("j", table="j", as_text=("v",))) == [["1", "8341"]]


# SQLite alone.
def test_sqlite_without_wal_lets_writers_in_while_paused(tmp_path: Path) -> None:
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    expected = filled(lite, BATCH_ROWS * 2)
    for how in ("table", "query"):
        relation = Relation("items", table="items")
        if how == "query":
            relation = Relation("items", query="SELECT id, label FROM items", key=("id",))
        with session_of(lite) as session:
            shape = session.describe(relation)
            batches = session.scan(shape)
            rows = next(batches)
            session.pause()
            lite.run("UPDATE items SET name = name || 1 WHERE id = 3")
            rows += flat(batches)
            assert len(rows) == len(expected)
            flat(session.scan(shape, ordered=True))
            assert session.generation == 1
            assert session.consistency is Consistency.FUZZY
            bounds = np.array([0], np.int64), np.array([2**40], np.int64)
            for batch in session.read_ranges(shape, *bounds):
                assert batch
                session.pause()
                lite.run("UPDATE items SET name = name || 1 WHERE id = 3")


@pytest.mark.parametrize("how", ["query", "ranges", "ranges of at most two rows"])
def test_sqlite_without_wal_lets_go_of_what_is_copied(tmp_path: Path, how: str) -> None:
    """What is in the temporary file needs no lock, though nobody has paused the session."""
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    expected = filled(lite, BATCH_ROWS * 2)
    relation = Relation("items", query="SELECT id, label FROM items", key=("id",))
    with session_of(lite) as session:
        if how == "query":
            batches = session.scan(session.describe(relation))
        else:
            shape = session.describe(Relation("items", table="items"))
            batches = session.read_ranges(shape, *ENDS, rows_max=None if how == "ranges" else 1)
        rows = next(batches)
        lite.run("UPDATE items SET name = name || 1 WHERE id = 3")
        rows += flat(batches)
        assert len(rows) == (2 if "two" in how else len(expected))
        assert session.consistency.value == "exact", "one statement read it all"
        session.describe(relation)
        assert session.consistency is Consistency.FUZZY


@pytest.mark.parametrize("journal", ["wal", "delete"])
@pytest.mark.parametrize(
    "key", ["A17", "", b"", b"\xff\xff", 7.5, -1e300, 1e300, math.inf, -math.inf]
)
def test_sqlite_ranges_leave_no_gap(tmp_path: Path, key: object, journal: str) -> None:
    """A column that is declared INT holds whatever it is given; a scan refuses that, and so do
    ranges that cover every integer."""
    lite = OfSQLite(tmp_path / "loose.sqlite", journal=journal)
    lite.run("CREATE TABLE loose (id INT PRIMARY KEY, n INT)")
    lite.insert("loose", [(k, 5) for k in (-(2**63), 0, 7, 8, 2**63 - 1)])
    with session_of(lite) as session:
        shape = session.describe(Relation("loose", table="loose"))
        assert len(flat(session.read_ranges(shape, *ENDS))) == 5
        assert len(flat(session.read_ranges(shape, ENDS[0][:1], ENDS[1][1:]))) == 5
    lite.insert("loose", [(key, 5)])
    with session_of(lite) as session:
        for read_all in (session.scan, lambda shape: session.read_ranges(shape, *ENDS)):
            with pytest.raises(errors.ValueDoesNotFit):
                flat(read_all(session.describe(Relation("loose", table="loose"))))


def test_sqlite_lets_go_of_a_read_that_failed(tmp_path: Path) -> None:
    """Also while the error, and with it the frames that it came through, is still alive."""
    lite = OfSQLite(tmp_path / "loose.sqlite", journal="delete")
    lite.run("CREATE TABLE loose (id INT PRIMARY KEY, n INT)")
    lite.insert("loose", [(k, 5) for k in (-1e300, *range(5000))])
    with pytest.raises(errors.ValueDoesNotFit) as caught, session_of(lite) as session:
        flat(session.read_ranges(session.describe(Relation("loose", table="loose")), *ENDS))
    lite.run("DELETE FROM loose WHERE id = 7")
    assert caught.value.details["key"] == "-1e+300"


def test_sqlite_keys_that_may_be_null_are_not_vouched(lite: OfSQLite) -> None:
    lite.run(
        "CREATE TABLE a (k text PRIMARY KEY, v)",
        "CREATE TABLE b (k text PRIMARY KEY, v) WITHOUT ROWID",
        "CREATE TABLE c (k integer PRIMARY KEY, v generated always as (k + 1))",
        "CREATE TABLE d (k integer PRIMARY KEY DESC, v)",
        "CREATE TABLE e (rowid text, oid text, _rowid_ text, k integer PRIMARY KEY)",
        "INSERT INTO a VALUES (NULL, 1), (NULL, 2)",
        "INSERT INTO b VALUES ('x', 1)",
        "INSERT INTO c VALUES (1)",
        "INSERT INTO d VALUES (NULL, 1)",
        "INSERT INTO e VALUES ('a', 'b', 'c', 7)",
    )
    with session_of(lite) as session:
        shapes = {t: session.describe(Relation(t, table=t)) for t in "abcde"}
        rows = {t: [decoded(r, s) for r in flat(session.scan(s))] for t, s in shapes.items()}
    assert [t for t, s in shapes.items() if s.vouched] == ["b", "c"]
    assert rows["a"] == [[None, "i:1"], [None, "i:2"]]
    assert rows["c"] == [["1", "i:2"]]
    assert rows["e"] == [["7", "a", "b", "c"]]


def test_sqlite_types_of_the_file(lite: OfSQLite) -> None:
    lite.run(
        "CREATE TABLE t (id integer PRIMARY KEY, a, b, c, d, e)",
        "INSERT INTO t VALUES (1, 5, '2020-01-01', 1, 0.5, 'ab')",
    )
    types = (
        ("a", "int2"),
        ("b", "date"),
        ("c", "bool"),
        ("d", "float4"),
        ("e", "text"),
    )
    with session_of(lite) as session:
        relation = Relation("t", table="t", types=types)
        assert read(session, relation) == [["1", "5", "2020-01-01", "true", "0.5", "ab"]]
        for column, value in (("a", "40000"), ("b", "'x'"), ("c", "2"), ("d", "0.1"), ("e", "1")):
            lite.run(f"UPDATE t SET {column} = {value}")
            with session_of(lite) as later, pytest.raises(errors.ValueDoesNotFit, match=column):
                read(later, relation)
            lite.run("DELETE FROM t", "INSERT INTO t VALUES (1, 5, '2020-01-01', 1, 0.5, 'ab')")
        with pytest.raises(errors.ConfigurationError, match="integer"):
            session.describe(Relation("t", table="t", types=(("a", "integer"),)))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, load_extension('x') AS v FROM t",
        "SELECT name AS k FROM temp.sqlite_master",
        "SELECT k, (SELECT 1 FROM other.t) AS v FROM t",
    ],
)
def test_sqlite_reads_its_file_and_nothing_else(lite: OfSQLite, query: str) -> None:
    lite.run("CREATE TABLE t (k integer PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with (
        session_of(lite) as session,
        pytest.raises((errors.DatabaseRefused, errors.ConfigurationError)),
    ):
        read(session, Relation("q", query=query, key=("k",)))


@given(
    st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
    st.integers(-(10**38) + 1, 10**38 - 1),
)
def test_decimals_are_encoded_as_defined(size: tuple[int, int], number: int) -> None:
    precision, scale = size
    number = number % 10**precision * (1 if number > 0 else -1)
    type = parse_type(f"numeric({precision},{scale})")
    digits = f"{abs(number):0{scale + 1}d}"
    point = len(digits) - scale
    text = "-" * (number < 0) + (f"{digits[:point]}.{digits[point:]}" if scale else digits)
    expected = string_encoder(type)(text)
    assert decimal_encoder(type)(text.encode()) == expected
    if precision <= 15:
        piece = len(expected).to_bytes(4, "big") + expected
        raws = [text.encode(), float(text), None]
        assert short_decimals(type)(raws) == [piece, piece, b"\xff\xff\xff\xff"]


@given(st.floats(allow_nan=False))
def test_a_double_with_more_decimals_is_refused(value: float) -> None:
    type = parse_type("numeric(15,4)")
    try:
        piece = string_encoder(type)(format(Decimal(repr(value)), "f"))
    except (errors.ValueDoesNotFit, ArithmeticError):
        with pytest.raises(errors.ValueDoesNotFit):
            short_decimals(type)([value])
    else:
        assert short_decimals(type)([value]) == [len(piece).to_bytes(4, "big") + piece]
