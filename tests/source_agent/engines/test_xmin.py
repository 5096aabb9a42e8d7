"""PostgreSQL's xmin as a marker: no change is missed, whenever its transaction commits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from source_agent.engines.conformance.reads import decoded, flat, markers_of
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Mark, Marker
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfPostgreSQL
from tests.harness.servers import PostgreSQL

RELATION = Relation("t", table="t", marker=Marker(""))
Rows = dict[int, int]


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    made.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    made.run("INSERT INTO t SELECT i, 0 FROM generate_series(1, 50) i")
    yield made
    made.close()


def seen(legacy: OfPostgreSQL, mark: Mark | None) -> tuple[Mark, Rows, Rows]:
    """Return the next mark, all rows, and those behind a mark; of one snapshot."""
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        shape = session.describe(RELATION)
        now = markers_of(session).mark(shape)
        found = [] if mark is None else flat(markers_of(session).read_marked(shape, mark))
        every = flat(session.scan(shape))

        def values(rows: list[bytes]) -> Rows:
            read = (decoded(row, shape) for row in rows)
            return {int(row[0] or 0): int(row[1] or 0) for row in read}

        return now, values(every), values(found)


def test_late_commits_are_never_missed(legacy: OfPostgreSQL) -> None:
    """Transactions begin, write and commit in any order between refreshes; a copy that takes the
    rows behind each mark has the values of every snapshot."""
    rng, number = random.Random(7), itertools.count(1)
    writers = [legacy.server.superuser(legacy.database) for _ in range(4)]
    for writer in writers:
        writer.autocommit = False
    free = set(range(1, 51))
    held: list[set[int]] = [set() for _ in writers]
    mark, copy, _ = seen(legacy, None)
    found = 0
    for _ in range(40):
        for _ in range(rng.randrange(6)):
            i = rng.randrange(len(writers))
            if rng.random() < 0.35:
                writers[i].commit() if rng.random() < 0.8 else writers[i].rollback()
                free |= held[i]
                held[i] = set()
            elif free:
                key = rng.choice(sorted(free))
                free.discard(key)
                held[i].add(key)
                writers[i].execute("UPDATE t SET v = %s WHERE id = %s", (next(number), key))
        mark, rows, behind = seen(legacy, mark)
        found += sum(copy[key] != value for key, value in rows.items())
        copy |= behind
        assert copy == rows
    for writer in writers:
        writer.close()
    assert found > 20


def test_a_prepared_transaction_is_not_over(legacy: OfPostgreSQL) -> None:
    mark, _, _ = seen(legacy, None)
    with legacy.server.superuser(legacy.database) as writer:
        writer.autocommit = False
        writer.execute("UPDATE t SET v = 5 WHERE id = 5")
        writer.execute("PREPARE TRANSACTION 'late'")
        writer.autocommit = True
        later, _, _ = seen(legacy, mark)
        writer.execute("COMMIT PREPARED 'late'")
    legacy.run("UPDATE t SET v = 6 WHERE id = 6")
    _, _, behind = seen(legacy, later)
    assert {5: 5, 6: 6}.items() <= behind.items()


def test_numbers_are_compared_modulo_their_size(legacy: OfPostgreSQL) -> None:
    """Of 2^32 numbers, those up to half of them behind a mark are younger."""
    mark, rows, _ = seen(legacy, None)
    epoch = 5 << 32
    _, _, behind = seen(legacy, Mark(mark.source, str(int(mark.at) % 2**32 + epoch - 10**6)))
    assert behind == rows
    _, _, behind = seen(legacy, Mark(mark.source, str(int(mark.at) + epoch + 1000)))
    assert behind == {}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE p ATTACH PARTITION loose FOR VALUES FROM (100) TO (200)",
        "ALTER TABLE p DETACH PARTITION p1",
        "TRUNCATE p",
        "ALTER TABLE p RENAME TO q; CREATE TABLE p (id int PRIMARY KEY, v int)",
        "ALTER TABLE p DROP COLUMN v; ALTER TABLE p ADD COLUMN v int DEFAULT 7",
    ],
)
def test_other_files_are_another_source(legacy: OfPostgreSQL, change: str) -> None:
    legacy.run(
        "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE loose (id int PRIMARY KEY, v int)",
        "INSERT INTO p VALUES (1, 1)",
        "INSERT INTO loose VALUES (150, 1)",
    )
    relation = Relation("p", table="p", marker=Marker(""))

    def source() -> str:
        with closing(connect(legacy.url, None, Limits()).open()) as session:
            return markers_of(session).mark(session.describe(relation)).source

    before = source()
    legacy.run("UPDATE p SET v = 2", "VACUUM p")
    assert source() == before
    legacy.run(*change.split("; "))
    assert source() != before


def test_the_login_needs_no_more_than_select(legacy: OfPostgreSQL) -> None:
    login = "reader_of_xmin"
    password = legacy.server.create_login(login)
    legacy.run(f"GRANT SELECT ON t TO {login}")
    url = legacy.server.tcp_url(login, legacy.database)
    with closing(connect(url, password, Limits()).open()) as session:
        assert int(markers_of(session).mark(session.describe(RELATION)).at) > 0
    uri = url.replace("+psycopg", "")
    with psycopg.connect(uri, password=password) as reader, pytest.raises(psycopg.Error):
        reader.execute("UPDATE t SET v = 1")


def test_grants_name_what_the_marker_reads(legacy: OfPostgreSQL) -> None:
    """The script of grants suffices where columns are granted one by one."""
    relation = Relation("t", table="t", key=("id",), columns=("id",), marker=Marker(""))
    login = "reader_of_columns"
    script = connect(legacy.url, None, Limits()).grants([relation], login=login, connections=2)
    grant = next(line for line in script.splitlines() if line.startswith("GRANT SELECT"))
    assert grant == f'GRANT SELECT ("id", "xmin", "ctid", "tableoid") ON "t" TO "{login}";'
    password = legacy.server.create_login(login)
    legacy.run(grant)
    url = legacy.server.tcp_url(login, legacy.database)
    with closing(connect(url, password, Limits()).open()) as session:
        shape = session.describe(relation)
        assert flat(markers_of(session).read_marked(shape, markers_of(session).mark(shape))) == []
