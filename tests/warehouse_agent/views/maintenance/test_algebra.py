"""Maintenance by affected keys gives what recomputation gives, lineage included.

    V' = { v in V : no kᵢ(v) in Cᵢ } ∪ { q in Q(R'₁ … R'ₙ) : some kᵢ(q) in Cᵢ }

kᵢ is the key of the row of occurrence i that a row was made of; Cᵢ any superset of the keys that
were inserted, updated or deleted in its relation since V; R' the new state. The query is evaluated
over all rows, and over those alone that the product's `join_graph.reduction` selects. Views, rows,
edits and types of columns are random; an embedded database evaluates the text that Spark gets.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from warehouse_agent.columns.view_layout import LINEAGE
from warehouse_agent.views.maintenance import join_graph
from warehouse_agent.views.maintenance.join_graph import (
    ChangesStep,
    EdgeMessage,
    OccurrenceFacts,
    ProbeStep,
    SelectionStep,
)
from warehouse_agent.views.query import Query, read_query, resolve

RELATIONS = ("r", "s", "t")
COLUMNS = ("a", "b", "c")
VALUES = (None, 0, 1, 1, 2, 3)
STEPS = 3
Rows = dict[int, tuple[int | None, ...]]  # by key


def random_view(rng: random.Random) -> tuple[str, list[str]]:
    """The text of a query, and the relation of each occurrence."""
    tables = [rng.choice(RELATIONS) for _ in range(rng.randint(2, 6))]
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


@dataclass
class Reduced:
    """Carries out a `Reduction` over rows in memory."""

    tables: Sequence[str]
    state: dict[str, Rows]
    changed: dict[str, set[int]]

    def __post_init__(self) -> None:
        self.sent: dict[EdgeMessage, set[tuple[int, ...]]] = {}

    def run(self, reduction: join_graph.Reduction) -> list[set[int]]:
        """Return the keys of the rows of each occurrence that the query gets."""
        keys = [set(self.state[t]) if i in reduction.whole else set[int]()
                for i, t in enumerate(self.tables)]  # fmt: skip
        for step in reduction.steps:
            match step:
                case ChangesStep(sends):
                    self.send(sends, self.rows_changed(sends.sender))
                case ProbeStep(messages, sends, has_changes):
                    rows = self.matched(sends.sender, messages)
                    self.send(
                        sends, rows | (self.rows_changed(sends.sender) if has_changes else set())
                    )
                case SelectionStep(end, messages, _, sent):
                    keys[end] = self.rows_changed(end) | self.matched(end, messages)
                    for one in sent:
                        others = [m for m in messages if m.edge is not one.edge]
                        self.send(one, self.rows_changed(end) | self.matched(end, others))
        return keys

    def rows_changed(self, end: int) -> set[int]:
        return self.changed[self.tables[end]] & self.state[self.tables[end]].keys()

    def matched(self, end: int, messages: Sequence[EdgeMessage]) -> set[int]:
        return {
            key
            for message in messages
            for key in self.state[self.tables[end]]
            if self.values(end, key, message.edge.of(end)) in self.sent[message]
        }

    def send(self, message: EdgeMessage, keys: set[int]) -> None:
        columns = message.edge.of(message.sender)
        found = {self.values(message.sender, key, columns) for key in keys}
        self.sent[message] = {values for values in found if values is not None}

    def values(self, end: int, key: int, columns: Sequence[str]) -> tuple[int, ...] | None:
        row = dict(zip(("k", *COLUMNS), (key, *self.state[self.tables[end]][key]), strict=True))
        found = tuple(value for name in columns if (value := row[name]) is not None)
        return found if len(found) == len(columns) else None


def affected_rows(
    db: sqlite3.Connection,
    query: Query,
    tables: list[str],
    types: dict[str, dict[str, str]],
    state: dict[str, Rows],
    changed: dict[str, set[int]],
) -> list[tuple[int, ...]]:
    """What was made of a changed row, by the rows that the reduction selects alone."""
    resolved = resolve(query, [("k", *COLUMNS)] * len(tables), where="v")
    occurrences = [OccurrenceFacts(types[t], "k", len(state[t]), bool(changed[t])) for t in tables]
    if not any(one.is_changed for one in occurrences):
        return []
    edges = join_graph.edges(resolved.equalities, occurrences)
    keys = Reduced(tables, state, changed).run(join_graph.reduction(edges, occurrences))
    for number, (table, some) in enumerate(zip(tables, keys, strict=True)):
        db.execute(f"DELETE FROM reduced{number}")
        rows = [(k, *state[table][k], k in changed[table]) for k in sorted(some)]
        db.executemany(f"INSERT INTO reduced{number} VALUES (?, ?, ?, ?, ?)", rows)
    names = [f"reduced{number}" for number in range(len(tables))]
    n = len(query.columns)
    found = db.execute(query.spliced(names, [["k", "changed"]] * len(tables))).fetchall()
    return [(*row[:n], *row[n::2]) for row in found if any(row[n + 1 :: 2])]


def check(db: sqlite3.Connection, seed: int) -> None:
    rng = random.Random(seed)
    text, tables = random_view(rng)
    query, n = read_query(text, where="v"), len(tables)
    kinds = ["bigint", "bigint", "int", "double"]  # of doubles there is no edge
    types = {t: {c: rng.choice(kinds) for c in ("k", *COLUMNS)} for t in RELATIONS}
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
        reduced = affected_rows(db, query, tables, types, state, changed)
        assert sorted([*kept, *reduced], key=repr) == new, f"seed {seed}, reduced: {text}"


@pytest.fixture(scope="module")
def db() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    for name in RELATIONS:
        made.execute(f"CREATE TABLE {name} (k INT, a INT, b INT, c INT)")
    for number in range(6):
        made.execute(f"CREATE TABLE reduced{number} (k INT, a INT, b INT, c INT, changed INT)")
    yield made
    made.close()


@pytest.mark.slow
def test_random_views(db: sqlite3.Connection) -> None:
    for seed in range(200):
        check(db, seed)


@pytest.mark.slow
@pytest.mark.parametrize("upto", [2_500, pytest.param(10_200, marks=pytest.mark.soak)])
def test_more_random_views(db: sqlite3.Connection, upto: int) -> None:
    for seed in range(200, upto):
        check(db, seed)


def test_columns_of_lineage() -> None:
    query = read_query("SELECT a FROM r", where="v")
    assert f"{LINEAGE}1" in query.spliced(["r"], [["k"]])
