"""Maintenance by affected keys gives what recomputation gives, lineage included.

    V' = { v in V : no kᵢ(v) in Cᵢ } ∪ { q in Q(R'₁ … R'ₙ) : some kᵢ(q) in Cᵢ }

kᵢ is the key of the row of occurrence i that a row was made of; Cᵢ any superset of the keys that
were inserted, updated or deleted in its relation since V; R' the new state. Views, rows and edits
are random; an embedded database evaluates the text that Spark gets.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator

import pytest

from warehouse_agent.columns.view_layout import LINEAGE
from warehouse_agent.views.query import Query, read_query

RELATIONS = ("r", "s", "t")
COLUMNS = ("a", "b", "c")
VALUES = (None, 0, 1, 1, 2, 3)
STEPS = 3
Rows = dict[int, tuple[int | None, ...]]  # by key


def random_view(rng: random.Random) -> tuple[str, list[str]]:
    """The text of a query, and the relation of each occurrence."""
    tables = [rng.choice(RELATIONS) for _ in range(rng.randint(2, 5))]
    aliases = [f"o{i}" for i in range(len(tables))]

    def column(upto: int) -> str:
        return f"{rng.choice(aliases[: upto + 1])}.{rng.choice(('k', *COLUMNS))}"

    def predicate(upto: int) -> str:
        left, right = column(upto), column(upto)
        return rng.choice(
            [
                f"{left} = {right}",
                f"{left} = {right}",
                f"{left} IS NOT DISTINCT FROM {right}",
                f"{left} <= {right}",
                f"({left} = {right} OR {left} = {rng.randint(0, 3)})",
                f"{left} IS NULL",
                f"NOT ({left} = {right})",
            ]
        )

    text = f"FROM {tables[0]} {aliases[0]}"
    for i in range(1, len(tables)):
        if rng.random() < 0.15:
            text += f" CROSS JOIN {tables[i]} {aliases[i]}"
        else:
            own = f"{aliases[i]}.{rng.choice(COLUMNS)} = {column(i - 1)}"
            also = f" AND {predicate(i)}" if rng.random() < 0.3 else ""
            text += f" JOIN {tables[i]} AS {aliases[i]} ON {own}{also}"
    where = " AND ".join(predicate(len(tables) - 1) for _ in range(rng.randint(0, 2)))
    outputs = [f"{column(len(tables) - 1)} AS x{i}" for i in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        outputs.append(f"coalesce({column(len(tables) - 1)}, 7) + 1 AS y")
    return f"SELECT {', '.join(outputs)} {text}" + (f" WHERE {where}" if where else ""), tables


def random_row(rng: random.Random) -> tuple[int | None, ...]:
    return tuple(rng.choice(VALUES) for _ in COLUMNS)


def edit(rng: random.Random, rows: Rows) -> set[int]:
    """Several edits, some of one key; return a superset of the keys that changed."""
    changed = set()
    for _ in range(rng.randint(0, 4)):
        key = rng.choice([*rows, max(rows, default=0) + 1, 1])
        changed.add(key)
        if key in rows and rng.random() < 0.4:
            del rows[key]
        else:
            rows[key] = random_row(rng)
    if rng.random() < 0.3:
        changed |= {rng.randint(1, 9)}
    return changed


def fill(db: sqlite3.Connection, name: str, rows: Rows) -> None:
    db.execute(f"DELETE FROM {name}")
    if rows:
        db.executemany(
            f"INSERT INTO {name} VALUES (?, ?, ?, ?)", [(k, *v) for k, v in rows.items()]
        )


def evaluated(db: sqlite3.Connection, query: Query, tables: list[str]) -> list[tuple[int, ...]]:
    text = query.spliced(tables, [["k"]] * len(tables))
    return sorted(db.execute(text).fetchall(), key=repr)


def check(db: sqlite3.Connection, seed: int) -> None:
    rng = random.Random(seed)
    text, tables = random_view(rng)
    query, n = read_query(text, where="v"), len(tables)
    state: dict[str, Rows] = {
        name: {k: random_row(rng) for k in range(1, rng.randint(1, 6))} for name in RELATIONS
    }
    for name in RELATIONS:
        fill(db, name, state[name])
    view = evaluated(db, query, tables)
    assert len({row[-n:] for row in view}) == len(view), "a lineage occurs once"
    for _ in range(STEPS):
        changed = {name: edit(rng, state[name]) for name in RELATIONS}
        for name in RELATIONS:
            fill(db, name, state[name])

        def affected(row: tuple[int, ...], changed: dict[str, set[int]] = changed) -> bool:
            return any(k in changed[t] for k, t in zip(row[-n:], tables, strict=True))

        new = evaluated(db, query, tables)
        kept = [row for row in view if not affected(row)]
        view = sorted([*kept, *(row for row in new if affected(row))], key=repr)
        assert view == new, f"seed {seed}: {text}"


@pytest.fixture(scope="module")
def db() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    for name in RELATIONS:
        made.execute(f"CREATE TABLE {name} (k INT, a INT, b INT, c INT)")
    yield made
    made.close()


def test_random_views(db: sqlite3.Connection) -> None:
    for seed in range(200):
        check(db, seed)


@pytest.mark.slow
def test_ten_thousand_views(db: sqlite3.Connection) -> None:
    for seed in range(200, 10_200):
        check(db, seed)


def test_columns_of_lineage() -> None:
    query = read_query("SELECT a FROM r", where="v")
    assert f"{LINEAGE}1" in query.spliced(["r"], [["k"]])
