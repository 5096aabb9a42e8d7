"""MariaDB's system-versioned tables as a marker: what is behind a mark, and what is refused.

Writers set the clock of their session (`timestamp`), which is what the server takes for the start
of a row, so histories with late commits need no sleep. The oracle is the scan of each snapshot.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from driftline.errors import ConfigurationError

from source_agent.engines.conformance.reads import decoded, flat, markers_of
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Mark, MarkedBy, Marker, MarkerKind, time_mark
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Consistency, Relation, Shape
from tests.harness.legacies import OfMariaDB
from tests.harness.servers import MariaDB

VERSIONED = Marker("", late_s=30.0, versioned=True)
RELATION = Relation("t", table="t", marker=VERSIONED)
NAMED = """
    from_at TIMESTAMP(6) GENERATED ALWAYS AS ROW START,
    to_at TIMESTAMP(6) GENERATED ALWAYS AS ROW END,
    PERIOD FOR SYSTEM_TIME(from_at, to_at)"""
NUMBERED = NAMED.replace("TIMESTAMP(6)", "BIGINT UNSIGNED")
BEGIN = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
Rows = dict[int, int]


pytestmark = pytest.mark.mariadb_alone  # MySQL keeps no versions of rows


@pytest.fixture
def legacy(mariadb: MariaDB) -> Iterator[OfMariaDB]:
    made = OfMariaDB(mariadb)
    yield made
    made.close()


def described(legacy: OfMariaDB, relation: Relation = RELATION) -> Shape:
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        return session.describe(relation)


def seen(legacy: OfMariaDB, mark: str | None) -> tuple[MarkedBy, Rows, Rows]:
    """Return the marker, all rows, and those behind a mark; of one snapshot."""
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        shape = session.describe(RELATION)
        found = [] if mark is None else flat(markers_of(session).read_marked(shape, Mark("", mark)))
        every = flat(session.scan(shape))

        def values(rows: list[bytes]) -> Rows:
            read = (decoded(row, shape) for row in rows)
            return {int(row[0] or 0): int(row[1] or 0) for row in read}

        assert shape.marker is not None
        return shape.marker, values(every), values(found)


class Writer:
    """A transaction whose statements run at times that the test decides."""

    def __init__(self, legacy: OfMariaDB) -> None:
        self.connection = legacy.server.admin(legacy.database)
        self.connection.autocommit(False)
        with self.connection.cursor() as cursor:  # without locks on the gaps between keys
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 5")
        self.since: datetime | None = None  # its first statement
        self.keys: set[int] = set()

    def run(self, at: datetime, sql: str, *values: object) -> None:
        self.since = self.since or at
        with self.connection.cursor() as cursor:
            cursor.execute("SET timestamp = %s", (at.timestamp(),))
            cursor.execute(sql, values)

    def end(self, *, keeps: bool) -> set[int]:
        self.connection.commit() if keeps else self.connection.rollback()
        ended, self.keys, self.since = self.keys, set(), None
        return ended


def mark_at(marked: MarkedBy, now: datetime) -> str:
    """Return the mark of a snapshot as the engine writes it: the session's zone is UTC."""
    return time_mark(marked, now.isoformat()).removesuffix("+00")


def history(legacy: OfMariaDB, seed: int, longest_s: float) -> int:
    """Return how many changed rows were missed in a random history (`_history`)."""
    legacy.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING",
        f"SET timestamp = {BEGIN.timestamp()}",
        "INSERT INTO t SELECT seq, 0 FROM seq_1_to_40",
    )
    writers = [Writer(legacy) for _ in range(4)]
    try:
        return _history(legacy, writers, seed, longest_s)
    finally:
        for writer in writers:
            writer.connection.close()


def _history(legacy: OfMariaDB, writers: list[Writer], seed: int, longest_s: float) -> int:
    """Return how many rows a copy lacks that takes the rows behind each mark and the keys.

    Transactions last `longest_s` at most. Between two snapshots they begin, insert, update, delete,
    commit and roll back in any order.
    """
    rng, number, now = random.Random(seed), itertools.count(1), BEGIN
    free, new = set(range(1, 41)), itertools.count(100)
    marked, copy, _ = seen(legacy, None)
    mark, missed = mark_at(marked, now), 0
    for _ in range(40):
        for _ in range(rng.randrange(8)):
            now += timedelta(seconds=rng.uniform(0.1, 4.0))
            for writer in writers:
                is_old = writer.since and (now - writer.since).total_seconds() > longest_s - 4
                if is_old or (writer.keys and rng.random() < 0.15):
                    free |= writer.end(keeps=rng.random() < 0.8)
            writer, what = rng.choice(writers), rng.random()
            if what < 0.15:
                key = next(new)
                writer.keys.add(key)
                writer.run(now, "INSERT INTO t VALUES (%s, %s)", key, next(number))
            elif free:
                key = rng.choice(sorted(free))
                free.discard(key)
                writer.keys.add(key)
                if what < 0.25:
                    writer.run(now, "DELETE FROM t WHERE id = %s", key)
                else:
                    writer.run(now, "UPDATE t SET v = %s WHERE id = %s", next(number), key)
        marked, rows, behind = seen(legacy, mark)
        mark = mark_at(marked, now)
        copy = {key: value for key, value in (copy | behind).items() if key in rows}
        missed += sum(copy.get(key) != value for key, value in rows.items())
        copy = dict(rows)
    return missed


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 60))]
)
def test_commits_within_late_are_never_missed(legacy: OfMariaDB, seed: int) -> None:
    assert history(legacy, seed, longest_s=30.0) == 0


def test_a_row_shows_the_time_of_its_statement_and_not_of_its_commit(legacy: OfMariaDB) -> None:
    """So `late` is needed: transactions of ten minutes are missed with one of thirty seconds."""
    assert history(legacy, 1, longest_s=600.0) > 0


@pytest.mark.parametrize(
    ("period", "parts"),
    [
        ("", ""),
        (NAMED, ""),
        ("", " PARTITION BY SYSTEM_TIME (PARTITION p HISTORY, PARTITION c CURRENT)"),
    ],
)
def test_columns_with_and_without_names(legacy: OfMariaDB, period: str, parts: str) -> None:
    columns = ", ".join(filter(None, ("id int PRIMARY KEY, v int", period)))
    legacy.run(f"CREATE TABLE t ({columns}) WITH SYSTEM VERSIONING{parts}")
    legacy.run("INSERT INTO t (id, v) VALUES (1, 10), (2, 20)", "UPDATE t SET v = 11 WHERE id = 1")
    legacy.run("DELETE FROM t WHERE id = 2")
    shape = described(legacy)
    marked = shape.marker
    assert marked is not None
    assert marked.kind is MarkerKind.VERSIONED
    assert marked.marker.column == ("from_at" if period else "row_start")
    assert shape.vouched
    assert [column.name for column in shape.recipe.key] == ["id"]
    assert plan_of(shape).consistency is Consistency.EXACT
    _, every, behind = seen(legacy, "2001-01-01 00:00:00")
    assert every == behind == {1: 11}
    assert seen(legacy, "2037-01-01 00:00:00")[2] == {}


@pytest.mark.parametrize(
    ("table", "relation", "why"),
    [
        ("(id int PRIMARY KEY, v int)", RELATION, "no table WITH SYSTEM VERSIONING"),
        (f"(id int PRIMARY KEY, v int, {NUMBERED}) WITH SYSTEM VERSIONING", RELATION, "'from_at'"),
        (
            "(id int PRIMARY KEY, v int WITHOUT SYSTEM VERSIONING, w int) WITH SYSTEM VERSIONING",
            RELATION,
            "'v'",
        ),
        (
            (
                "(id int PRIMARY KEY, v int WITHOUT SYSTEM VERSIONING, w int AS (v + 1))"
                " WITH SYSTEM VERSIONING"
            ),
            Relation("t", table="t", columns=("id", "w"), marker=VERSIONED),
            "'w'",
        ),
        (
            "(id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING",
            Relation("t", query="SELECT id, v FROM t", key=("id",), marker=VERSIONED),
            "no table",
        ),
    ],
)
def test_what_is_not_versioned_by_time_is_refused(
    legacy: OfMariaDB, table: str, relation: Relation, why: str
) -> None:
    legacy.run(f"CREATE TABLE t {table}")
    with pytest.raises(ConfigurationError) as refused:
        described(legacy, relation)
    assert refused.value.where == "t: marker.versioned"
    assert why in refused.value.message
    assert refused.value.remedy


def test_columns_without_versions_may_stay_out(legacy: OfMariaDB) -> None:
    legacy.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int, w int WITHOUT SYSTEM VERSIONING)"
        " WITH SYSTEM VERSIONING"
    )
    relation = Relation("t", table="t", columns=("id", "v"), marker=VERSIONED)
    assert str(described(legacy, relation).marker) == "system versioning (row_start)"


def test_versions_without_late_are_refused(legacy: OfMariaDB) -> None:
    legacy.run("CREATE TABLE t (id int PRIMARY KEY) WITH SYSTEM VERSIONING")
    marker = Marker("", versioned=True)
    with pytest.raises(ConfigurationError) as refused:
        described(legacy, Relation("t", table="t", marker=marker))
    assert refused.value.where == "t: marker.late"


def test_a_query_may_select_the_start_of_rows(legacy: OfMariaDB) -> None:
    legacy.run("CREATE TABLE t (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING")
    query = "SELECT id, v, row_start AS changed FROM t"
    marker = Marker("changed", late_s=60.0)
    relation = Relation("t", query=query, key=("id",), columns=("id", "v"), marker=marker)
    marked = described(legacy, relation).marker
    assert marked is not None
    assert marked.kind is MarkerKind.TIME


def test_tables_with_versions_and_without_snapshots_are_told(legacy: OfMariaDB) -> None:
    """A query reads only InnoDB if all tables that the login sees are, those with versions too."""
    legacy.run(
        "CREATE TABLE t (id int PRIMARY KEY) WITH SYSTEM VERSIONING",
        "CREATE TABLE a (id int PRIMARY KEY) ENGINE = Aria WITH SYSTEM VERSIONING",
    )
    query = Relation("q", query="SELECT id FROM a", key=("id",))
    assert plan_of(described(legacy, query)).consistency is Consistency.FUZZY


def test_grants_name_what_the_marker_reads(legacy: OfMariaDB) -> None:
    """The script of grants suffices where columns are granted one by one."""
    legacy.run("CREATE TABLE t (id int PRIMARY KEY, v int, w int) WITH SYSTEM VERSIONING")
    relation = Relation("t", table="t", key=("id",), columns=("id", "v"), marker=VERSIONED)
    login = "reader_of_versions"
    script = connect(legacy.url, None, Limits()).grants([relation], login=login, connections=2)
    grant = next(line for line in script.splitlines() if line.startswith("GRANT SELECT"))
    password = legacy.server.create_login(login)
    legacy.run(grant)
    url = legacy.server.url(login, legacy.database)
    with closing(connect(url, password, Limits()).open()) as session:
        shape = session.describe(relation)
        assert flat(markers_of(session).read_marked(shape, markers_of(session).mark(shape))) == []
