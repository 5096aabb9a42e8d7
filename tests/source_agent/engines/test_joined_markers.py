"""Markers of the tables of a query: a change in any of them is found, whenever it commits.

Writers set times themselves, so histories with late commits need no sleep. The oracle is the scan
of each snapshot.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from source_agent.engines.conformance.reads import decoded, flat, markers_of
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Mark, MarkedBy, Marker, time_mark
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfPostgreSQL
from tests.harness.servers import PostgreSQL

LATE_S = 30.0
QUERY = """
    SELECT o.id, o.v, c.name, o.changed AS o_changed, c.changed AS c_changed
    FROM orders o JOIN customers c ON c.id = o.customer WHERE o.v >= 0"""
RELATION = Relation(
    "q",
    query=QUERY,
    key=("id",),
    columns=("id", "v", "name"),
    marker=Marker(
        "",
        joined=(
            ("o", Marker("o_changed", late_s=LATE_S)),
            ("c", Marker("c_changed", late_s=LATE_S)),
        ),
    ),
)
BEGIN = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 100))]
Rows = dict[int, tuple[int, int]]


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    made.run(
        "CREATE TABLE customers (id int PRIMARY KEY, name int, changed timestamptz)",
        "CREATE TABLE orders (id int PRIMARY KEY, v int, customer int, changed timestamptz)",
        f"INSERT INTO customers SELECT i, 0, '{BEGIN}' FROM generate_series(0, 9) i",
        f"INSERT INTO orders SELECT i, 0, i % 10, '{BEGIN}' FROM generate_series(1, 60) i",
    )
    yield made
    made.close()


def seen(legacy: OfPostgreSQL, mark: Mark | None) -> tuple[MarkedBy, Rows, Rows]:
    """Return the marker, all rows, and those behind a mark; of one snapshot."""
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        shape = session.describe(RELATION)
        found = [] if mark is None else flat(markers_of(session).read_marked(shape, mark))
        every = flat(session.scan(shape))

        def values(rows: list[bytes]) -> Rows:
            read = (decoded(row, shape) for row in rows)
            return {int(row[0] or 0): (int(row[1] or 0), int(row[2] or 0)) for row in read}

        assert shape.marker is not None
        return shape.marker, values(every), values(found)


def mark_at(marked: MarkedBy, now: datetime) -> Mark:
    """Return the mark of a snapshot that is taken at this time."""
    times = [f'"{time_mark(one, now.isoformat())}"' for one in marked.each]
    return Mark("", f"[{', '.join(times)}]")


class History:
    """Transactions that begin, write, commit and roll back in any order."""

    def __init__(self, legacy: OfPostgreSQL, seed: int, longest_s: float) -> None:
        self.rng, self.longest_s, self.now = random.Random(seed), longest_s, BEGIN
        self.writers = [legacy.server.superuser(legacy.database) for _ in range(4)]
        for writer in self.writers:
            writer.autocommit = False
        self.since: list[datetime | None] = [None] * len(self.writers)
        self.held: list[set[str]] = [set() for _ in self.writers]
        self.numbers, self.orders = itertools.count(1), list(range(1, 61))

    def end_some(self) -> None:
        for i, writer in enumerate(self.writers):
            since = self.since[i]
            if since is None:
                continue
            if (self.now - since).total_seconds() > self.longest_s - 4 or self.rng.random() < 0.15:
                writer.commit() if self.rng.random() < 0.8 else writer.rollback()
                self.since[i], self.held[i] = None, set()

    def write(self) -> None:
        """Write one row that no open transaction has written."""
        i, number = self.rng.randrange(len(self.writers)), next(self.numbers)
        order, customer = self.rng.choice(self.orders), self.rng.randrange(10)
        what = self.rng.choice(["value", "move", "hide", "delete", "insert", "name", "name"])
        name = f"c{customer}" if what == "name" else f"o{order}"
        if what == "insert":
            order = 1000 + number
            self.orders.append(order)
        elif any(name in held for held in self.held):
            return
        self.held[i].add(name)
        self.since[i] = self.since[i] or self.now
        sql = {
            "value": "UPDATE orders SET v = %(n)s, changed = %(at)s WHERE id = %(o)s",
            "move": "UPDATE orders SET customer = %(c)s, changed = %(at)s WHERE id = %(o)s",
            "hide": "UPDATE orders SET v = -1, changed = %(at)s WHERE id = %(o)s",
            "delete": "DELETE FROM orders WHERE id = %(o)s",
            "insert": "INSERT INTO orders VALUES (%(o)s, %(n)s, %(c)s, %(at)s)",
            "name": "UPDATE customers SET name = %(n)s, changed = %(at)s WHERE id = %(c)s",
        }[what]
        values = {"n": number, "at": self.now, "o": order, "c": customer}
        self.writers[i].execute(sql, values)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


def missed(legacy: OfPostgreSQL, seed: int, longest_s: float) -> tuple[int, int]:
    """Return how many changed rows a copy lacks that takes the rows behind each mark, and the keys;
    and how many rows changed."""
    history = History(legacy, seed, longest_s)
    try:
        marked, copy, _ = seen(legacy, None)
        mark, lacking, changed = mark_at(marked, history.now), 0, 0
        for _ in range(40):
            for _ in range(history.rng.randrange(8)):
                history.now += timedelta(seconds=history.rng.uniform(0.1, 4.0))
                history.end_some()
                history.write()
            marked, rows, behind = seen(legacy, mark)
            mark = mark_at(marked, history.now)
            changed += sum(copy.get(key) != row for key, row in rows.items())
            assert behind.items() <= rows.items()
            copy = {key: row for key, row in rows.items() if key not in copy} | copy | behind
            lacking += sum(copy[key] != row for key, row in rows.items())
            copy = dict(rows)
        return lacking, changed
    finally:
        history.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_change_in_any_table_is_found(legacy: OfPostgreSQL, seed: int) -> None:
    lacking, changed = missed(legacy, seed, LATE_S)
    assert (lacking, changed > 100) == (0, True)


def test_transactions_beyond_late_are_missed(legacy: OfPostgreSQL) -> None:
    assert missed(legacy, 1, 20 * LATE_S)[0] > 0


def test_each_version_has_a_mark_of_its_own(legacy: OfPostgreSQL) -> None:
    query = QUERY.replace("o.changed", "o.v").replace("c.changed", "c.name")
    query = query.replace("o.v, c.name,", "o.v, c.name, o.customer,")
    joined = (("o", Marker("o_changed")), ("c", Marker("c_changed")))
    relation = Relation("q", query=query, key=("id",), marker=Marker("", joined=joined))
    legacy.run(
        "UPDATE orders SET v = 7 WHERE id = 3", "UPDATE customers SET name = 70 WHERE id = 5"
    )
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        shape = session.describe(relation)
        assert str(shape.marker) == "the version column o_changed or the version column c_changed"
        mark = markers_of(session).mark(shape)
        assert mark.at == '["7", "70"]'
        found = [
            decoded(row, shape)[0] for row in flat(markers_of(session).read_marked(shape, mark))
        ]
        assert sorted(int(id or 0) for id in found) == [3, 5, 15, 25, 35, 45, 55]
