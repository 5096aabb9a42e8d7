"""One suite for every engine, against real servers: what `engines.interface` promises.

The oracle is what was inserted, as text; row bytes are taken apart with the contract's own decoder.
Types have their own table: literals that differ must become bytes that differ, and read as written.
No engine is named here: what they write differently is in `legacies`, and what one engine alone
promises is tested in `tests/source_agent/engines`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline import errors, limits
from sqlalchemy.engine import make_url

from source_agent.engines.interface import BATCH_ROWS, Consistency, Limits, Relation
from source_agent.engines.registry import connect, is_file
from tests.conformance.engine_reads import (
    ALL_KEYS,
    decoded,
    engine_of,
    filled,
    flat,
    multiset,
    read,
    session_of,
)
from tests.harness.legacies import CLASSES, KINDS, Legacy

WITH_LOGINS = [kind.name for kind in CLASSES if hasattr(kind, "drop_login")]


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


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

    assert keys(*ALL_KEYS) == ["-3", "7", "8", "9"]
    legacy.insert("loose", [(None, -1)])
    filtered = relation.query is not None or relation.where is not None
    assert keys(*ALL_KEYS).count(None) == (0 if filtered else 1)
    legacy.insert("loose", [(None, 5), (None, 6)])
    assert keys(*ALL_KEYS).count(None) == 1
    assert keys(*(end[:1] for end in ALL_KEYS)).count(None) == 1
    assert keys(*(end[1:] for end in ALL_KEYS)) == ["8", "9"]


def test_a_missing_key_is_looked_for_by_index(legacy: Legacy) -> None:
    legacy.run("CREATE TABLE loose (id BIGINT, n INT)", "CREATE INDEX by_id ON loose (id)")
    legacy.insert("loose", [(k, k % 7) for k in range(20_000)])
    legacy.analyze("loose")
    with session_of(legacy) as session:
        plans = legacy.index_plans(session, session.describe(LOOSE[0]))
    assert plans
    assert all("by_id" in plan for plan in plans), plans


def test_wide_rows_come_in_small_batches(legacy: Legacy) -> None:
    legacy.run(f"CREATE TABLE wide (id int NOT NULL PRIMARY KEY, b {legacy.blob})")
    legacy.insert("wide", [(i, b"x" * 1_000_000) for i in range(24)])
    with session_of(legacy) as session:
        shape = session.describe(Relation("wide", table="wide"))
        sizes = [sum(map(len, batch)) for batch in session.scan(shape)]
    assert sum(sizes) > 24_000_000
    assert max(sizes) < 17_000_000


def test_a_row_above_the_limit_is_refused(legacy: Legacy, monkeypatch: pytest.MonkeyPatch) -> None:
    legacy.run("CREATE TABLE wide (id int NOT NULL PRIMARY KEY, a varchar(5000))")
    legacy.insert("wide", [(1, "x"), (77, "y" * 3000)])
    for module in legacy.row_limits:
        monkeypatch.setattr(module, "ROW_BYTES_MAX", 2000)
    with session_of(legacy) as session, pytest.raises(errors.LimitExceeded) as caught:
        flat(session.scan(session.describe(Relation("wide", table="wide"))))
    assert "77" in str(caught.value) or not legacy.names_wide_rows
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
        with pytest.raises((*legacy.write_errors, errors.DriftlineError)) as caught:
            session.ask(write)
        text = str(caught.value).lower()
        assert any(w in text for w in ("read-only", "read only", "readonly", "not authorized"))
    with session_of(legacy) as session:
        assert multiset(read(session, Relation("items", table="items"))) == multiset(expected)


@pytest.mark.parametrize("write", WRITES)
def test_the_connection_cannot_write(legacy: Legacy, write: str) -> None:
    """Outside the transaction, on the connection as the driver was told to open it."""
    expected = filled(legacy, 3)
    with (
        session_of(legacy) as session,
        pytest.raises(legacy.write_errors, match=r"(?i)read.?only"),
    ):
        legacy.raw_write(session, write)
    with session_of(legacy) as session:
        assert multiset(read(session, Relation("items", table="items"))) == multiset(expected)


def test_the_templates_cover_what_is_issued(
    legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(legacy, 50)
    legacy.run("CREATE TABLE loose (id BIGINT, n INT)")
    issued: list[str] = []
    legacy.record(monkeypatch, issued)
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
            flat(session.read_ranges(shape, *ALL_KEYS))
        session.pause()
    for shape in shapes:
        engine.scan_cost(shape)
    engine.privileges(relations)
    known = {legacy.general(sql) for sql in engine.templates(shapes)}
    assert len(issued) > 10
    for sql in issued:
        assert legacy.general(sql) in known, sql


# The DBA's commands.
def test_grants_scan_cost_and_privileges(legacy: Legacy) -> None:
    filled(legacy, 100)
    engine = engine_of(legacy)
    relation = Relation("items", table="items", key=("id",), columns=("name",))
    with closing(engine.open()) as session:
        shape = session.describe(relation)
    script = engine.grants([relation], login="drift'line", connections=6)
    assert "items" in script or is_file(make_url(legacy.url))
    assert "INSERT" not in script
    assert "\n" not in engine.scan_cost(shape)
    assert "rows" in engine.scan_cost(shape)
    assert any(p.excess for p in engine.privileges([relation])), "a superuser has too much"


@pytest.mark.parametrize("legacy", WITH_LOGINS, indirect=True)
def test_a_granted_login_reads_and_has_no_excess(legacy: Any) -> None:
    relation = Relation("items", table="items", key=("id",), columns=("name",))
    filled(legacy, 5)
    login = f"l{legacy.database}"
    script = engine_of(legacy).grants([relation], login=login, connections=6)
    # As the script says: then its last line, with a password.
    script = script.replace("-- ALTER USER", "ALTER USER").replace("'…'", "'pw'")
    text = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
    legacy.run(*(s for s in text.split(";") if s.strip()))
    engine = connect(legacy.server.url(login, legacy.database), "pw", Limits())
    with closing(engine.open()) as session:
        assert len(read(session, relation)) == 5
        with pytest.raises(errors.DatabaseRefused, match="GRANT SELECT"):
            read(session, Relation("all", query="SELECT label, id FROM items", key=("id",)))
    assert [p.what for p in engine.privileges([relation]) if p.excess] == []
    with pytest.raises(errors.DatabaseRefused) as caught:
        connect(legacy.server.tcp_url(login, legacy.database), "wrong", Limits()).open()
    assert "wrong" not in str(caught.value)
    legacy.drop_login(login)


def test_a_statement_may_take_its_time_and_no_longer(legacy: Legacy) -> None:
    filled(legacy, 3000)
    slow = "SELECT count(*) AS n FROM items a, items b, items c WHERE a.amount + b.id = c.id"
    with session_of(legacy, statement_s=0.2) as session:
        with pytest.raises(errors.DatabaseRefused, match="statement_timeout_s"):
            read(session, Relation("slow", query=slow, key=("n",)))
        assert len(read(session, Relation("items", table="items"))) == 3000


def test_every_type(legacy: Legacy) -> None:
    legacy.run(*legacy.prelude)
    failures = []
    for number, (declaration, declared, literals, texts) in enumerate(legacy.types):
        column = f"v {declaration}{legacy.null}"
        legacy.run(f"CREATE TABLE t{number} (id int NOT NULL PRIMARY KEY, {column})")
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


REFUSED = [(kind.name, *refusal) for kind in CLASSES for refusal in kind.refused]


@pytest.mark.parametrize(
    ("legacy", "declaration", "literal", "shown"), REFUSED, indirect=["legacy"]
)
def test_a_value_that_does_not_fit_is_named(
    legacy: Legacy, declaration: str, literal: str, shown: str
) -> None:
    legacy.run(f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {declaration}{legacy.null})")
    legacy.insert_unchecked("t", f"(1, NULL), (4711, {literal})")
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
