"""Every way to read a derived relation has the chosen rows and columns, at every engine.

That a predicate means what it means in Spark is tested in `test_derivations`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline import errors
from driftline.limits import DERIVATION_COMPARISONS_MAX, DERIVATION_DEPTH_MAX
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
    comparisons,
)

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    decoded,
    engine_of,
    flat,
    multiset,
    session_of,
    split_of,
)
from source_agent.engines.postgresql import split
from source_agent.engines.relations.predicates import comparison_forms, slotted
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Fingerprint, Relation
from tests.conformance.derived_reads import TABLE, derived_keys, kept_raw
from tests.harness.legacies import KINDS, OfMariaDB, OfPostgreSQL, OfSQLite
from tests.harness.slots import fills
from tests.reference.predicates import keeps


@pytest.fixture(scope="module", params=KINDS)
def legacy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path_factory.mktemp(request.param))
    yield made
    made.close()


# Every way to read

ROWS = 3000
ITEMS = (
    "CREATE TABLE items (label {text}, id bigint NOT NULL PRIMARY KEY, n int, day {day})",
    "CREATE TABLE loose (id bigint, n int, note {text})",
)
CHOICE = AndPredicate(
    (
        ColumnPredicate("n", Operator.IN, ("1", "2", "3", "7")),
        OrPredicate(
            (
                ColumnPredicate("label", Operator.NOT_EQUAL, ("l'5",)),
                NotPredicate(ColumnPredicate("n", Operator.GREATER, ("2",))),
                ColumnPredicate("label", Operator.IS_NULL),
            )
        ),
    )
)


def label_of(i: int) -> str | None:
    return None if i % 13 == 0 else f"l'{i % 7}"


def chosen(i: int) -> bool:
    n, label = i % 10, label_of(i)
    return n in {1, 2, 3, 7} and (label is None or label != "l'5" or n <= 2)


@pytest.fixture(scope="module")
def items(legacy: Legacy) -> Legacy:
    """Tables that tests read; none writes."""
    text = "varchar(20)"
    for sql in ITEMS:
        legacy.run(sql.format(text=text, day="date"))
    days = [f"20{i % 80 + 10:02d}-01-01" for i in range(ROWS)]
    legacy.insert("items", [(label_of(i), i, i % 10, days[i]) for i in range(ROWS)])
    legacy.insert("loose", [(None, 1, "a"), (None, 2, "b"), (5, 1, "c"), (6, 2, "d")])
    return legacy


RELATIONS = [
    Relation("items", table="items"),
    Relation("items", table="items", where="id >= 100 OR label LIKE '%5%' -- and no more"),
    Relation("items", table="items", key=("label", "id")),
]


@pytest.mark.parametrize("relation", RELATIONS, ids=["table", "where", "text-key"])
def test_every_read_has_the_chosen_rows(items: Legacy, relation: Relation) -> None:
    derivation = Derivation(("n",), CHOICE)
    all_keys = [np.array([v], np.int64) for v in (-(2**63), 2**63 - 1)]
    with session_of(items) as session:
        shape = session.describe(relation)
        made = session.derive(shape, derivation)
        names = [c.name for c in made.recipe.columns]
        assert set(names) == {"id", "label", "n"}, "the key, what was asked for, what is compared"
        assert [c.name for c in shape.recipe.columns if c.name in names] == names
        assert {c.name: c.ordinal for c in made.recipe.columns} == {"label": 0, "id": 1, "n": 2}
        assert made.recipe.rows.startswith('("label" IS NULL) OR') or "AND" in made.recipe.rows
        hidden = relation.where is not None
        wanted = {str(i) for i in range(ROWS) if chosen(i) and (not hidden or i >= 100
                  or "5" in (label_of(i) or ""))}  # fmt: skip
        place = names.index("id")

        def keys(batches: Any) -> list[str]:
            return [str(decoded(row, made)[place]) for row in flat(batches)]

        assert sorted(keys(session.scan(made))) == sorted(wanted)
        if not made.recipe.integer_key:
            return
        assert keys(session.scan(made, ordered=True)) == sorted(wanted, key=int)
        assert sorted(keys(session.read_ranges(made, *all_keys))) == sorted(wanted)
        first = np.arange(0, ROWS, 100, dtype=np.int64)
        found = keys(session.read_ranges(made, first, first + 9))
        assert sorted(found) == sorted(k for k in wanted if int(k) % 100 < 10)
        some = keys(session.read_ranges(made, *all_keys, rows_max=10))
        assert set(some) <= wanted
        assert flat(session.read_ranges(made, first[:0], first[:0])) == []
        whole = flat(session.scan(shape))
        assert len(whole) > len(wanted), "the session goes on with whole relations"


def random_predicate(draw: random.Random, levels: int) -> Predicate:
    kind = draw.choice(["compare", "compare", "not", "and", "or"]) if levels > 1 else "compare"
    if kind == "not":
        return NotPredicate(random_predicate(draw, levels - 1))
    if kind != "compare":
        count = draw.randint(1, 3)
        parts = tuple(random_predicate(draw, levels - 1) for _ in range(count))
        return AndPredicate(parts) if kind == "and" else OrPredicate(parts)
    column = draw.choice(["id", "n", "label"])
    operator = draw.choice(list(Operator))
    if operator is Operator.IS_NULL:
        return ColumnPredicate(column, operator)
    literals = {"id": ["-1", "17", "1500", "2999"], "n": ["0", "3", "9"],
                "label": ["", "l'0", "l'5", "L'5", "l'5 ", "x"]}[column]  # fmt: skip
    count = draw.randint(1, 3) if operator is Operator.IN else 1
    return ColumnPredicate(column, operator, tuple(draw.choices(literals, k=count)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))]
)
def test_random_predicates_keep_what_the_reference_keeps(items: Legacy, seed: int) -> None:
    draw = random.Random(seed)
    with session_of(items) as session:
        shape = session.describe(RELATIONS[0])
        types = {c.name: c.type for c in shape.recipe.columns}
        rows = [
            {
                "id": i,
                "n": i % 10,
                "label": None if (text := label_of(i)) is None else text.encode(),
            }
            for i in range(ROWS)
        ]
        for _ in range(15):
            predicate = random_predicate(draw, DERIVATION_DEPTH_MAX)
            if len(list(comparisons(predicate))) > DERIVATION_COMPARISONS_MAX:
                continue
            wanted = [str(row["id"]) for row in rows if keeps(predicate, row, types)]
            assert derived_keys(session, shape, predicate) == wanted, predicate


def test_a_row_without_a_key_is_found_only_if_it_is_chosen(items: Legacy) -> None:
    all_keys = [np.array([v], np.int64) for v in (-(2**63), 2**63 - 1)]
    with session_of(items) as session:
        shape = session.describe(Relation("loose", table="loose", key=("id",)))
        for value, wanted in (("1", [None, "5"]), ("2", [None, "6"]), ("3", [])):
            made = session.derive(
                shape, Derivation(None, ColumnPredicate("n", Operator.EQUAL, (value,)))
            )
            rows = [decoded(row, made)[0] for row in flat(session.read_ranges(made, *all_keys))]
            assert sorted(rows, key=str) == sorted(wanted, key=str)


def test_a_query_chooses_columns(items: Legacy) -> None:
    relation = Relation("q", query="SELECT id, n, label FROM items WHERE n < 5", key=("id",))
    with session_of(items) as session:
        shape = session.describe(relation)
        made = session.derive(shape, Derivation(("n",)))
        rows = [decoded(row, made) for row in flat(session.scan(made))]
    assert multiset(rows) == multiset([[str(i), str(i % 10)] for i in range(ROWS) if i % 10 < 5])


def test_what_is_compared_of_a_query(items: Legacy) -> None:
    """Only what the database itself says of an expression's type: much, integers or nothing."""
    query = "SELECT id, n + 1 AS m, label, n / 3 AS third FROM items"
    with session_of(items) as session:
        shape = session.describe(Relation("q", query=query, key=("id",)))
        found = shape.comparable_by_name
        order, nothing = Comparable.ORDER, Comparable.NOTHING
        integers = nothing if items.name == "sqlite" else order
        assert (found["id"], found["m"]) == (integers, integers)
        assert found["label"] is (order if items.name == "postgresql" else nothing)
        if integers is order:
            predicate = ColumnPredicate("m", Operator.LESS_EQUAL, ("2",))
            made = session.derive(shape, Derivation(("m",), predicate))
            assert len(flat(session.scan(made))) == ROWS / 5


@pytest.fixture
def rolled(tmp_path: Path) -> OfSQLite:
    """SQLite without WAL: tables are read in pages, all others are spooled."""
    legacy = OfSQLite(tmp_path / "rolled.sqlite", journal="delete")
    legacy.run(
        "CREATE TABLE items (a TEXT NOT NULL, b INT NOT NULL, n INT, label TEXT,"
        " PRIMARY KEY (a, b)) WITHOUT ROWID",
        "CREATE TABLE others (n INT, label TEXT, id INTEGER PRIMARY KEY NOT NULL, k INT)",
    )
    legacy.insert("items", [(f"a{i % 50}", i, i % 10, label_of(i)) for i in range(ROWS)])
    legacy.insert("others", [(i % 10, label_of(i), i, -i) for i in range(ROWS)])
    return legacy


@pytest.mark.parametrize(
    "relation",
    [
        Relation("i", table="items"),
        Relation("i", table="items", key=("n", "b", "a")),
        Relation("i", table="items", key=("label", "b")),
        Relation("o", table="others"),
        Relation("o", table="others", key=("k",)),
    ],
)
def test_pages_of_a_derivation(
    rolled: OfSQLite, relation: Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued: list[str] = []
    rolled.record(monkeypatch, issued)
    engine = engine_of(rolled)
    with closing(engine.open()) as session:
        shape = session.describe(relation)
        forms = comparison_forms(shape, session.capabilities.compare)
        texts = engine.templates([slotted(shape, (DerivablePart.COLUMNS, DerivablePart.ROWS))])
        number = "b" if relation.table == "items" else "id"
        for columns in (("n",), (number, "label"), None):
            made = session.derive(shape, Derivation(columns, CHOICE))
            issued.clear()
            names = [c.name for c in made.recipe.columns]
            rows = [decoded(row, made) for row in flat(session.scan(made))]
            assert len(rows) == sum(map(chosen, range(ROWS)))
            if number in names:
                found = {int(row[names.index(number)] or 0) for row in rows}
                assert found == set(filter(chosen, range(ROWS)))
            pages = [sql for sql in issued if "LIMIT ?" in sql]
            assert pages
            if columns is not None:
                reads = list(plan_of(shape).reads)
                assert all(any(fills(p, t, reads=reads, forms=forms) for t in texts) for p in pages)


def test_what_is_issued_fills_the_slots_of_templates(
    items: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued: list[str] = []
    items.record(monkeypatch, issued)
    engine = engine_of(items)
    both = (DerivablePart.COLUMNS, DerivablePart.ROWS)
    derivations = [
        Derivation(("n",), CHOICE),
        Derivation(("label", "day")),
        Derivation(("id",)),
        Derivation(None, ColumnPredicate("id", Operator.LESS, ("7",))),
        Derivation(
            ("n",), NotPredicate(ColumnPredicate("label", Operator.IN, ("a", "'; --", "\\")))
        ),
    ]
    all_keys = [np.array([v], np.int64) for v in (-(2**63), 2**63 - 1)]
    known: list[tuple[str, list[str], list[str]]] = []
    with closing(engine.open()) as session:
        for relation in RELATIONS[:2]:
            shape = session.describe(relation)
            forms = comparison_forms(shape, session.capabilities.compare)
            reads = list(plan_of(shape).reads)
            for parts in (both[:1], both[1:], both):
                known += [(t, reads, forms) for t in engine.templates([slotted(shape, parts)])]
            known += [(template, [], []) for template in engine.templates([shape])]
            for derivation in derivations:
                made = session.derive(shape, derivation)
                flat(session.scan(made))
                flat(session.scan(made, ordered=True))
                flat(session.read_ranges(made, *all_keys))
                split_of(session, made)
    # MariaDB's driver takes a percent sign twice in a text with values, and sends it once.
    issued = [items.general(sql).replace("%%", "%") for sql in issued]
    known = [(items.general(t).replace("%%", "%"), r, f) for t, r, f in known]
    strangers = [
        sql for sql in issued
        if not any(fills(sql, t, reads=r, forms=f)
                   for t, r, f in known)
    ]  # fmt: skip
    assert strangers == []
    assert sum("driftline.value" in sql or "IN (" in sql for sql in issued) > 4
    mixed = next(t for t in known if "{rows}" in t[0] and "{columns}" in t[0])
    for bad in ("1 = 1", '"n" = 1) OR (1 = 1', "id IN (SELECT 1)", "label = '' OR ''=''"):
        filled = mixed[0].replace("{rows}", bad).replace("{columns}", mixed[1][-1])
        assert not fills(filled, mixed[0], reads=mixed[1], forms=mixed[2]), bad


# Values that no carrier holds


def test_nan_is_greater_than_every_number_and_refused_where_it_is_kept(postgresql: Any) -> None:
    """As among Spark's doubles. A row with NaN that is not kept does not stop a refresh."""
    with closing(OfPostgreSQL(postgresql)) as legacy:
        legacy.run(
            "CREATE TABLE t (id int PRIMARY KEY, v numeric(5,2), d date)",
            "INSERT INTO t VALUES (1, 'NaN', 'infinity'), (2, 1, '2020-01-01'),"
            " (3, NULL, '-infinity')",
        )
        with session_of(legacy) as session:
            shape = session.describe(TABLE)
            for operator, keys in (
                (Operator.LESS, ["2"]), (Operator.GREATER, ["1"]), (Operator.EQUAL, []),
                (Operator.NOT_EQUAL, ["1", "2"]),
            ):  # fmt: skip
                assert (
                    derived_keys(session, shape, ColumnPredicate("v", operator, ("7.00",))) == keys
                )
            least = ColumnPredicate("d", Operator.GREATER, ("0001-01-01",))
            assert derived_keys(session, shape, least) == ["1", "2"]


def test_a_zero_date_is_refused_where_it_is_kept(mariadb: Any) -> None:
    with closing(OfMariaDB(mariadb)) as legacy:
        legacy.run("CREATE TABLE t (id int NOT NULL PRIMARY KEY, v date)")
        legacy.insert_unchecked("t", "1, '0000-00-00'", "2, '2020-01-01'", "3, '2020-00-01'")
        with session_of(legacy) as session:
            shape = session.describe(TABLE)
            later = ColumnPredicate("v", Operator.GREATER, ("2020-01-01",))
            assert derived_keys(session, shape, later) == []
            from_then = ColumnPredicate("v", Operator.GREATER_EQUAL, ("2020-01-01",))
            assert derived_keys(session, shape, from_then) == ["2"]
            with pytest.raises(errors.ValueDoesNotFit, match="0000-00-00"):
                derived_keys(session, shape, NotPredicate(from_then))


def test_a_value_of_another_class_in_sqlite_is_refused_where_it_is_kept(tmp_path: Path) -> None:
    legacy = OfSQLite(tmp_path / "legacy.sqlite")
    legacy.run(
        "CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, v INTEGER, w TEXT)",
        "INSERT INTO t VALUES (1, 'abc', 'a'), (2, 5, x'61'), (3, 7.5, NULL), (4, '7', 'a')",
    )
    with session_of(legacy) as session:
        shape = session.describe(TABLE)
        made = session.derive(
            shape, Derivation(("v",), ColumnPredicate("v", Operator.LESS, ("7",)))
        )
        assert [decoded(row, made)[0] for row in flat(session.scan(made))] == ["2"]
        made = session.derive(
            shape, Derivation(("v",), ColumnPredicate("v", Operator.EQUAL, ("7",)))
        )
        assert [decoded(row, made)[0] for row in flat(session.scan(made))] == ["4"]
        text = session.derive(
            shape, Derivation(("w",), ColumnPredicate("w", Operator.EQUAL, ("a",)))
        )
        assert [decoded(row, text)[0] for row in flat(session.scan(text))] == ["1", "4"]
        greater = Derivation(("v",), ColumnPredicate("v", Operator.GREATER, ("7",)))
        with pytest.raises(errors.ValueDoesNotFit, match=r"abc|7\.5"):
            flat(session.scan(session.derive(shape, greater)))


def test_text_in_utf_16_is_only_equal_or_not(tmp_path: Path) -> None:
    legacy = OfSQLite(tmp_path / "legacy.sqlite", journal="delete")
    legacy.path.unlink()
    legacy.run(
        "PRAGMA encoding = 'UTF-16le'",
        "CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, v TEXT)",
        "INSERT INTO t VALUES (1, 'ā'), (2, 'b'), (3, '😀')",
    )
    with session_of(legacy) as session:
        shape = session.describe(TABLE)
        assert shape.comparable_by_name["v"] is Comparable.EQUALITY
        assert derived_keys(session, shape, ColumnPredicate("v", Operator.EQUAL, ("😀",))) == ["3"]
        with pytest.raises(errors.DerivationRefused, match="< does not mean"):
            session.derive(shape, Derivation(None, ColumnPredicate("v", Operator.LESS, ("b",))))
    # Why: by their bytes, ā (01 01) and 😀 (3d d8 …) come before b (62 00).
    assert kept_raw(legacy, "v < 'b'") == ["1", "3"]


# Columns and their database's fingerprints


def test_hashes_of_the_database_cover_chosen_rows_and_all_columns(postgresql: Any) -> None:
    with closing(OfPostgreSQL(postgresql)) as legacy:
        legacy.run(
            "CREATE TABLE t (id int PRIMARY KEY, v text, w text)",
            "INSERT INTO t SELECT n, 'v' || n % 3, 'w' FROM generate_series(1, 99) n",
        )
        with session_of(legacy) as session:
            hashed = Relation("t", table="t", fingerprint=Fingerprint.DATABASE)
            shape = session.describe(hashed)
            some = Derivation(None, ColumnPredicate("v", Operator.EQUAL, ("v1",)))
            made = session.derive(shape, some)
            assert len(flat(session.scan(made.hashed(seed=7)))) == 33
            whole = set(flat(session.scan(shape.hashed(seed=7))))
            assert set(flat(session.scan(made.hashed(seed=7)))) < whole
            with pytest.raises(errors.DerivationRefused, match="over all of its columns"):
                session.derive(shape, Derivation(("v",)))


def test_postgresql_splits_a_derived_table(
    postgresql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "BLOCKS_MIN", 4)
    monkeypatch.setattr(split, "PART_BLOCKS", 8)
    with closing(OfPostgreSQL(postgresql)) as legacy:
        legacy.run(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t SELECT n, 'v' || n % 3 FROM generate_series(1, 30000) n",
            "ANALYZE t",
        )
        with session_of(legacy) as session:
            shape = session.describe(TABLE)
            equal = ColumnPredicate("v", Operator.EQUAL, ("v1",))
            made = session.derive(shape, Derivation(None, equal))
            assert 8_000 < made.rows_expected < 12_000, "by the planner"
            cut = split_of(session, made)
            assert cut is not None
            assert cut.parts > 1
            rows = [row for part in range(cut.parts) for row in flat(cut.read(part))]
            assert sorted(rows) == sorted(flat(session.scan(made)))
            assert len(rows) == 10_000
            again = cut.join()  # as another process reads it
            with closing(again.session):
                assert sorted(r for p in range(again.parts) for r in flat(again.read(p))) == sorted(
                    rows
                )


def test_a_database_with_another_encoding_does_not_compare_text(postgresql: Any) -> None:
    name = "latin_derivations"
    with postgresql.superuser() as connection:
        connection.autocommit = True
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")
    with closing(OfPostgreSQL(postgresql)) as legacy:
        postgresql.drop_database(legacy.database)
        legacy.database, legacy.url = name, postgresql.url("postgres", name)
        legacy.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with session_of(legacy) as session:
            assert session.describe(TABLE).comparable_by_name == {
                "id": Comparable.ORDER,
                "v": Comparable.NOTHING,
            }
