"""One scan, several processes: the same sums, and nobody left behind."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from driftline import errors
from driftline.reconciliation.ranges import uniform
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from source_agent.budgets import feedback
from source_agent.budgets.budget import ExchangeStopped, GovernedSession, GovernedSplit, Governor
from source_agent.checks.configuration import check
from source_agent.checks.grants import grants
from source_agent.checks.statements import explain
from source_agent.config.file import Budget, load
from source_agent.engines.conformance.reads import split_of
from source_agent.engines.interface import DatabaseTime, Limits, Rows, Session, Split
from source_agent.engines.postgresql import session as postgresql_session
from source_agent.engines.postgresql import split as postgresql_split
from source_agent.engines.postgresql.engine import PostgresqlEngine
from source_agent.engines.postgresql.split import BLOCKS_MIN, PART_BLOCKS, BlockRanges, cut
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from source_agent.scan import workers
from source_agent.scan.accumulators import HashedRows
from source_agent.scan.reader import ReadAgain, ReadCounts, Reader
from source_agent.scan.worker_process import PartFailed, PartRead, ScanDone, ScanJob
from source_agent.scan.workers import SharedScan, WorkerPool, WorkerProcess
from source_agent.server.service import start
from tests.harness.agents import FRAGMENT_KEY, SALT, Peer, channel, opening
from tests.harness.legacies import OfPostgreSQL
from tests.harness.servers import PostgreSQL
from tests.source_agent.scan.test_accumulators import Filled, assert_equal

GONE_S_MAX = 5.0
ITEMS = Relation("items", table="items", key=("id",))


# The cut, without a database


@given(
    st.integers(0, 1 << 32),
    st.none() | st.floats(0, 300),
    st.none() | st.integers(1, 1 << 20),
)
def test_parts_cover_every_place_once(
    blocks: int, density: float | None, rows_max: int | None
) -> None:
    found = cut(blocks, rows_per_block=density, rows_max=rows_max)
    if blocks < BLOCKS_MIN:
        assert found is None
        return
    assert found is not None
    assert 1 <= found.step <= PART_BLOCKS, "what waits for its end does not grow with the table"
    if rows_max is not None and density is not None:
        assert found.step == 1 or found.step * density <= rows_max
    shown = [0, *range(max(found.parts - 3, 0), found.parts)]
    bounds = [found.bounds(part) for part in shown]
    assert bounds[0][0] == "(0,0)"
    assert bounds[-1][1] == "(4294967295,0)"
    for (_, end), (first, _) in pairwise(bounds[1:]):
        assert end == first
    assert (found.parts - 1) * found.step < blocks, "the last part holds a block of today"


# Against PostgreSQL


@pytest.fixture
def pg(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[OfPostgreSQL]:
    """A database in which the smallest table is worth sharing, four blocks at a time."""
    monkeypatch.setattr(postgresql_split, "BLOCKS_MIN", 0)
    monkeypatch.setattr(postgresql_split, "PART_BLOCKS", 4)
    made = OfPostgreSQL(postgresql)
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(2)
    yield made
    made.close()


def fill_items(pg: OfPostgreSQL, rows: int, name: str = "items") -> None:
    pg.run(
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, name text)",
        f"INSERT INTO {name} SELECT g, repeat('x', 200) FROM generate_series(1, {rows}) g",
        f"ANALYZE {name}",
    )


@contextmanager
def session_of(pg: OfPostgreSQL, limits: Limits | None = None) -> Iterator[Session]:
    with closing(connect(pg.url, None, limits or Limits()).open()) as session:
        yield session


def scanned(
    session: Session,
    pool: WorkerPool | None,
    relation: Relation = ITEMS,
    wrap: Callable[[Split], Any] = lambda split: split,
) -> tuple[Filled, ReadCounts]:
    """One scan with a sketch; `wrap` may get between."""
    tally = ReadCounts()
    shape = session.describe(relation)
    reader = Reader(session, shape, fragment_key=FRAGMENT_KEY, salt=SALT, tally=tally)
    split = reader.split

    def wrapped(again: ReadAgain | None = None) -> Split | None:
        found = split(again)
        return None if found is None else wrap(found)

    reader.split = wrapped  # type: ignore[method-assign]
    filled = Filled(uniform(64))
    workers.fill(reader, filled.both, pool)
    return filled, tally


def others(pg: OfPostgreSQL) -> int:
    """Sessions of agents in this database."""
    with pg.server.superuser("postgres") as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        row = connection.execute(sql, (pg.database,)).fetchone()
    return int(row[0]) if row else 0


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + GONE_S_MAX
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("rows", [0, 1, 100, 5000])
def test_a_shared_scan_is_the_scan(
    pg: OfPostgreSQL, pool: WorkerPool, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    fill_items(pg, rows)
    with session_of(pg) as session:
        alone, _ = scanned(session, None)
        assert alone.sums.total.count == rows
        for _ in range(3):  # the same processes again
            found, tally = scanned(session, pool)
            assert_equal(found, alone)
            assert (tally.scans, tally.rows_read) == (1, rows)
        assert bool(pool._idle) == (rows == 5000), "two parts each were given to them at once"
    assert "lost" not in caplog.text
    until(lambda: others(pg) == 0, "a connection is left")


EDITS = st.one_of(
    st.tuples(st.just("insert"), st.integers(1, 400), st.integers(1, 3000)),
    st.tuples(st.just("update"), st.integers(2, 50), st.integers(0, 49)),
    st.tuples(st.just("delete"), st.integers(1, 3000), st.integers(1, 3000)),
    st.tuples(st.just("vacuum"), st.just(0), st.just(0)),
)
EDIT_SQL = {
    "insert": "INSERT INTO items SELECT n + g, repeat('i', g) FROM generate_series(1, {0}) g,"
    " (SELECT coalesce(max(id), 0) AS n FROM items) m",
    "update": "UPDATE items SET name = name || repeat('u', 40) WHERE id % {0} = {1} % {0}",
    "delete": "DELETE FROM items WHERE id BETWEEN {0} AND {0} + {1}",
    "vacuum": "VACUUM items",
}


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDITS, max_size=8), step=st.integers(1, 9))
def test_whatever_was_done_to_the_table(
    pg: OfPostgreSQL, pool: WorkerPool, edits: list[tuple[str, int, int]], step: int
) -> None:
    """Holes, dead and moved rows, empty blocks at the end: what SQL reads is what is added up."""
    pg.run("DROP TABLE IF EXISTS items")
    fill_items(pg, 1500)
    postgresql_split.PART_BLOCKS = step  # type: ignore[misc]
    with session_of(pg) as session:
        for number, (kind, one, two) in enumerate(edits):
            pg.run(EDIT_SQL[kind].format(one, two))
            if number == len(edits) // 2:
                assert_equal(scanned(session, pool)[0], scanned(session, None)[0])
    with session_of(pg) as session, pg.server.superuser(pg.database) as connection:
        found, tally = scanned(session, pool)
        rows = connection.execute("SELECT count(*) FROM items").fetchone()
        assert rows is not None
        assert tally.rows_read == found.sums.total.count == rows[0]
        assert_equal(found, scanned(session, None)[0])


def test_writers_change_nothing_of_a_snapshot(pg: OfPostgreSQL, pool: WorkerPool) -> None:
    fill_items(pg, 8000)
    stop = threading.Event()

    def write() -> None:
        with pg.server.superuser(pg.database) as connection:
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute(
                    "UPDATE items SET name = name || 'y' WHERE id %% 7 = %s", (number % 7,)
                )
                connection.execute("DELETE FROM items WHERE id %% 1000 = %s", (number,))
                connection.execute(
                    "INSERT INTO items SELECT g, 'new' FROM generate_series(%s::int, %s::int) g",
                    (10_000 * number, 10_000 * number + 300),
                )
                connection.execute("VACUUM items")

    writer = threading.Thread(target=write)
    with session_of(pg) as session:
        alone, _ = scanned(session, None)
        writer.start()
        try:
            for _ in range(4):
                found, _ = scanned(session, pool)
                assert_equal(found, alone)
        finally:
            stop.set()
            writer.join()
        assert_equal(scanned(session, None)[0], alone)


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE heir () INHERITS (items)", "INSERT INTO heir SELECT -id FROM items"),
        (
            "ALTER TABLE items RENAME TO old",
            "CREATE TABLE items (id bigint PRIMARY KEY, name text) PARTITION BY HASH (id)",
            "CREATE TABLE p0 PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "CREATE TABLE p1 PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
            "INSERT INTO items SELECT * FROM old",
        ),
        ("ALTER TABLE items RENAME TO old", "CREATE VIEW items AS SELECT * FROM old"),
        ("ALTER TABLE items ENABLE ROW LEVEL SECURITY",),
    ],
    ids=["heirs", "partitions", "view", "row security"],
)
def test_what_has_no_places_of_its_own_is_read_by_one(
    pg: OfPostgreSQL, pool: WorkerPool, statements: tuple[str, ...]
) -> None:
    fill_items(pg, 2000)
    with session_of(pg) as session:
        assert split_of(session, session.describe(ITEMS)) is not None
    pg.run(*statements)
    with session_of(pg) as session:
        assert split_of(session, session.describe(ITEMS)) is None
        found, _ = scanned(session, pool)
        assert found.sums.total.count in {2000, 4000}
    assert not pool._idle


def test_a_table_that_is_replaced_between_two_parts(pg: OfPostgreSQL, pool: WorkerPool) -> None:
    """Under its name stands another one, which readers that begin later would read."""
    fill_items(pg, 2000)
    pg.run("CREATE SCHEMA staging", "CREATE TABLE staging.items (id bigint PRIMARY KEY, name text)")

    class Swapped:
        def __init__(self, split: Split) -> None:
            self._split, self._is_done = split, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._split, name)

        def read(self, part: int) -> Iterator[Rows]:
            yield from self._split.read(part)
            if not self._is_done:
                self._is_done = True
                pg.run("ALTER SCHEMA public RENAME TO old", "ALTER SCHEMA staging RENAME TO public")

    with session_of(pg) as session, pytest.raises(errors.SnapshotLost, match="items"):
        scanned(session, pool, wrap=Swapped)


def test_conditions_and_queries_are_read_by_one(pg: OfPostgreSQL) -> None:
    fill_items(pg, 2000)
    filtered = Relation("items", table="items", where="id < 1500 OR name = now()::text")
    query = Relation("items", query="SELECT * FROM items", key=("id",))
    with session_of(pg) as session:
        for relation in (filtered, query):
            assert split_of(session, session.describe(relation)) is None


def test_column_grants_do_not_cover_places(pg: OfPostgreSQL) -> None:
    fill_items(pg, 2000)
    login = f"l{pg.database}"
    password = pg.server.create_login(login)
    pg.run(f"GRANT SELECT (id, name) ON items TO {login}")
    try:
        url = pg.server.tcp_url(login, pg.database)
        with closing(connect(url, password, Limits()).open()) as session:
            shape = session.describe(ITEMS)
            assert split_of(session, shape) is None
            assert sum(map(len, session.scan(shape))) == 2000
            pg.run(f"GRANT SELECT ON items TO {login}")
            assert split_of(session, shape) is not None
    finally:
        pg.run(f"DROP OWNED BY {login}", f"DROP ROLE {login}")


def test_the_planner_must_agree(pg: OfPostgreSQL) -> None:
    fill_items(pg, 2000)
    pg.run(f"ALTER DATABASE {pg.database} SET enable_tidscan = off")
    with session_of(pg) as session:
        assert split_of(session, session.describe(ITEMS)) is None


def test_every_statement_is_a_template(pg: OfPostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_items(pg, 2000)
    issued: list[str] = []
    execute = psycopg.Cursor.execute

    def record(self: Any, query: Any, *rest: Any, **options: Any) -> Any:
        issued.append(query)
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", record)
    engine = connect(pg.url, None, Limits())
    with closing(engine.open()) as session:
        shape = session.describe(ITEMS)
        split = split_of(session, shape)
        assert split is not None
        other = split.join()
        with closing(other.session):
            rows = sum(len(b) for p in range(other.parts) for b in other.read(p))
        assert rows == 2000
        assert isinstance(engine, PostgresqlEngine)
        name, _ = session._exported  # type: ignore[attr-defined]
    known = set(engine.templates([shape]))
    for sql in issued:
        assert sql.replace(name, "…") in known, sql
    assert "COPY" in "".join(k for k in known if "tid" in k)


def test_a_reader_cannot_write(pg: OfPostgreSQL) -> None:
    fill_items(pg, 2000)
    with session_of(pg) as session:
        split = split_of(session, session.describe(ITEMS))
        assert split is not None
        with closing(split.join().session) as other:
            for sql in ("SHOW transaction_read_only", "SHOW default_transaction_read_only"):
                assert other._connection.execute(sql).fetchone() == ("on",)  # type: ignore[attr-defined]
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                other._connection.execute("DELETE FROM items")  # type: ignore[attr-defined]


# A reader process, spoken to by hand


def job_of(session: Session, relation: Relation = ITEMS) -> ScanJob:
    shape = session.describe(relation)
    split = split_of(session, shape)
    assert split is not None
    return ScanJob(split.join, shape, FRAGMENT_KEY, SALT)


def of_a_part(reader: WorkerProcess) -> tuple[list[HashedRows], PartRead]:
    """What a reader says of its next part."""
    found = []
    while not isinstance(said := reader.pipe.recv(), PartRead):
        assert isinstance(said, HashedRows), said
        found.append(said)
    return found, said


@contextmanager
def process() -> Iterator[WorkerProcess]:
    made = WorkerProcess()
    try:
        yield made
    finally:
        made.end()
        assert is_gone(made.pid)


def test_null_keys_come_back_with_their_samples(pg: OfPostgreSQL) -> None:
    pg.run(
        "CREATE TABLE items (id bigint, name text)",
        "INSERT INTO items SELECT NULLIF(g, 77), 'n' || g FROM generate_series(1, 5000) g",
        "ANALYZE items",
    )
    with session_of(pg) as session, process() as reader:
        reader.pipe.send(job_of(session))
        reader.give(0)
        said = reader.pipe.recv()
        assert isinstance(said, PartFailed)
        assert isinstance(said.error, errors.NullKey)
        assert said.error.details["sample 1"] == "id=NULL"
        pool = WorkerPool(1)
        with pytest.raises(errors.NullKey):
            scanned(session, pool)
        pool.close()
    until(lambda: others(pg) == 0, "a connection is left")


def test_nothing_secret_is_in_arguments_or_environment(
    pg: OfPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_items(pg, 2000)
    monkeypatch.setenv("DRIFTLINE_PASSWORD_DATABASE", "hunter2")
    with session_of(pg) as session, process() as reader:
        job = job_of(session)
        reader.pipe.send(job)
        reader.give(0)
        of_a_part(reader)
        folder = Path(f"/proc/{reader.pid}")
        seen = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        assert b"PYTHONPATH" in seen
        for secret in (b"hunter2", FRAGMENT_KEY, FRAGMENT_KEY.hex().encode()):
            assert secret not in seen
        assert FRAGMENT_KEY.hex() not in repr(job)
        assert repr(FRAGMENT_KEY) not in repr(job)


def test_a_reader_ignores_signals_and_ends_with_its_pipe(pg: OfPostgreSQL) -> None:
    fill_items(pg, 2000)
    with session_of(pg) as session:
        with process() as reader:
            reader.pipe.send(job_of(session))
            reader.give(0)
            of_a_part(reader)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(reader.pid, number)
            reader.give(1)
            of_a_part(reader)
            assert others(pg) == 2
        until(lambda: others(pg) == 1, "the reader's connection is left")


# Something goes wrong in the middle


def test_a_killed_reader_costs_nothing_but_time(pg: OfPostgreSQL) -> None:
    fill_items(pg, 5000)
    pool = WorkerPool(1)
    with session_of(pg) as session:
        alone, _ = scanned(session, None)
        scanned(session, pool)
        (reader,) = pool._idle

        def kill() -> None:
            os.kill(reader.pid, signal.SIGKILL)

        found, tally = scanned(session, pool, wrap=lambda split: Killing(split, kill))
        assert_equal(found, alone)
        assert 5000 <= tally.rows_read < 6000, "what it had read to the end is not read again"
        assert not pool._idle
        assert_equal(scanned(session, pool)[0], alone)  # with a new one
    pool.close()
    until(lambda: others(pg) == 0, "a connection is left")


def test_what_came_of_a_part_without_its_end_does_not_count(
    pg: OfPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of a part, of which some batches had come."""
    monkeypatch.setattr(postgresql_split, "PART_BLOCKS", 128)
    pg.run(
        "CREATE TABLE items (id bigint PRIMARY KEY, name text)",
        "INSERT INTO items SELECT g, 'n' || g FROM generate_series(1, 100000) g",
        "ANALYZE items",
    )
    pool = WorkerPool(1)
    came: list[int] = []
    take = SharedScan._take

    def spy(self: SharedScan, process: WorkerProcess, said: object) -> None:
        take(self, process, said)
        if isinstance(said, HashedRows):
            came.append(len(said.positions))  # some more may be on the way
            os.kill(process.pid, signal.SIGKILL)
            until(lambda: is_gone(process.pid), "it lives on")

    with session_of(pg) as session:
        alone, _ = scanned(session, None)
        monkeypatch.setattr(SharedScan, "_take", spy)
        found, tally = scanned(session, pool)
    assert_equal(found, alone)
    assert 0 < sum(came) < 20_000, "the part did not come to its end"
    assert tally.rows_read == 100_000 + sum(came)
    assert not pool._idle


def test_a_reader_says_every_row_of_its_parts_and_then_that_it_is_done(pg: OfPostgreSQL) -> None:
    fill_items(pg, 2000)
    with session_of(pg) as session, process() as reader:
        split = split_of(session, session.describe(ITEMS))
        assert split is not None
        reader.pipe.send(job_of(session))
        rows = 0
        for part in range(split.parts):
            reader.give(part)
            found, read = of_a_part(reader)
            assert read.part == part
            assert read.rows == sum(f.digest.count for f in found)
            assert all(len(f.positions) == len(f.row_hashes) == f.digest.count for f in found)
            rows += read.rows
        assert rows == 2000
        reader.give(None)
        assert isinstance(reader.pipe.recv(), ScanDone)
        until(lambda: others(pg) == 1, "its connection is left")


class Killing:
    """A split whose reader is killed once it has reported a part; until then we do not read."""

    def __init__(self, split: Split, kill: Callable[[], None]) -> None:
        self._split, self._kill = split, kill
        self._has_killed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._split, name)

    def note(self, rows: int) -> None:
        self._split.note(rows)
        if rows and not self._has_killed:
            self._has_killed = True
            self._kill()


def test_a_reader_that_cannot_connect_is_done_without(
    pg: OfPostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    fill_items(pg, 5000)
    login = f"l{pg.database}"
    password = pg.server.create_login(login)
    pg.run(f"GRANT SELECT ON items TO {login}", f"ALTER ROLE {login} CONNECTION LIMIT 1")
    pool = WorkerPool(1)
    try:
        url = pg.server.tcp_url(login, pg.database)
        with closing(connect(url, password, Limits()).open()) as session:
            shape = session.describe(ITEMS)
            alone = sum(map(len, session.scan(shape)))
            found, _ = scanned(session, pool, wrap=slowed(0.02))
            assert found.sums.total.count == alone == 5000
        assert "too many connections" in caplog.text
        assert password not in caplog.text
    finally:
        pool.close()
        pg.run(f"DROP OWNED BY {login}", f"DROP ROLE {login}")


def slowed(seconds: float) -> Callable[[Split], Any]:
    """We read each part slowly, so that others get to read as well."""

    class Slowed:
        def __init__(self, split: Split) -> None:
            self._split = split

        def __getattr__(self, name: str) -> Any:
            return getattr(self._split, name)

        def read(self, part: int) -> Iterator[list[bytes]]:
            time.sleep(seconds)
            return self._split.read(part)

    return Slowed


def test_a_lock_that_others_queue_for_is_not_waited_for_long(
    pg: OfPostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    """ALTER TABLE waits for us, a reader waits behind it: we have the lock and read on."""
    fill_items(pg, 5000)
    pool = WorkerPool(1)
    with session_of(pg, Limits(lock_s=0.5)) as session:
        alone, _ = scanned(session, None)
        with pg.server.superuser(pg.database) as connection:
            alter = threading.Thread(
                target=lambda: connection.execute("ALTER TABLE items ADD COLUMN more text")
            )
            alter.start()
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            with pg.server.superuser(pg.database) as other:
                until(lambda: other.execute(waiting).fetchone() == (1,), "it does not wait")
            found, _ = scanned(session, pool)
            session.close()
            alter.join()
    assert_equal(found, alone)
    assert "lock timeout" in caplog.text
    pool.close()


def test_a_client_that_leaves_takes_the_readers_along(pg: OfPostgreSQL) -> None:
    fill_items(pg, 5000)
    pool, stop = WorkerPool(2), threading.Event()
    with session_of(pg) as session:
        scanned(session, pool)
        pids = [process.pid for process in pool._idle]
        assert len(pids) == 2
        governed = GovernedSession(session, Governor(Budget()), stop)
        with pytest.raises(ExchangeStopped):
            scanned(governed, pool, wrap=lambda split: Killing(split, stop.set))
        assert not pool._idle
        assert all(map(is_gone, pids))
        until(lambda: others(pg) == 1, "a reader's connection is left")
        assert len(list(session.scan(session.describe(ITEMS)))) > 0, "the snapshot is still ours"


PARENT = """
import sys, time
from source_agent.engines.postgresql import split as postgresql_split
from tests.source_agent.scan.test_workers import *
postgresql_split.BLOCKS_MIN, postgresql_split.PART_BLOCKS = 0, 4
class There:
    url = sys.argv[1]
pool = WorkerPool(1)
with session_of(There) as session:
    scanned(session, pool)
    print(pool._idle[0].pid, flush=True)
    scanned(session, pool, wrap=lambda split: Killing(split, lambda: time.sleep(600)))
"""


def test_a_killed_agent_leaves_neither_process_nor_connection(pg: OfPostgreSQL) -> None:
    fill_items(pg, 5000)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PARENT, pg.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        reader = int(parent.stdout.readline())
        until(lambda: others(pg) == 2, "the scan is not shared")
        parent.kill()
    until(lambda: is_gone(reader), "the reader outlives the agent")
    until(lambda: others(pg) == 0, "a connection is left")


def test_an_heir_in_the_middle_is_not_read(pg: OfPostgreSQL, pool: WorkerPool) -> None:
    """A part is a statement, and would see an heir that the parts before it did not."""
    fill_items(pg, 5000)
    pg.run("CREATE TABLE old AS SELECT -id AS id, name FROM items")

    class Inheriting:
        def __init__(self, split: Split) -> None:
            self._split, self._reads = split, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._split, name)

        def read(self, part: int) -> Iterator[list[bytes]]:
            self._reads += 1
            if self._reads == 3:
                pg.run("ALTER TABLE old ALTER id SET NOT NULL", "ALTER TABLE old INHERIT items")
            return self._split.read(part)

    with session_of(pg) as session:
        alone, _ = scanned(session, None)
        assert alone.sums.total.count == 5000
        found, _ = scanned(session, pool, wrap=Inheriting)
    assert_equal(found, alone)
    with session_of(pg) as session:
        assert scanned(session, None)[0].sums.total.count == 10_000


def test_another_snapshot_of_that_name_is_refused(pg: OfPostgreSQL) -> None:
    fill_items(pg, 2000)
    with session_of(pg) as session:
        split = split_of(session, session.describe(ITEMS))
        assert split is not None
        other = replace(split.join, sees="1:1:")  # type: ignore[type-var]
        with pytest.raises(errors.DatabaseUnavailable, match="another snapshot"):
            other()
        until(lambda: others(pg) == 1, "its connection is left")


def test_a_session_that_waits_for_others_is_not_idle(
    pg: OfPostgreSQL, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last part takes another process longer than the server lets a session be silent."""
    monkeypatch.setattr(postgresql_session, "KEEP_S", 0.1)
    fill_items(pg, 5000)
    with session_of(pg) as session:
        alone, _ = scanned(session, None)
    with session_of(pg, Limits(idle_s=0.5)) as session:
        receive, left = SharedScan._receive, [8]

        def slow(self: SharedScan, timeout_s: float) -> None:
            if timeout_s and left[0]:  # nothing is left to read here
                left[0] -= 1
                time.sleep(0.2)
            else:
                receive(self, timeout_s)

        monkeypatch.setattr(SharedScan, "_receive", slow)
        assert_equal(scanned(session, pool)[0], alone)
        assert left == [0]
        assert len(list(session.scan(session.describe(ITEMS)))) > 0


@pytest.mark.starts
def test_what_an_agent_of_another_release_says_ends_a_reader() -> None:
    with process() as reader:
        reader.pipe.send_bytes(pickle.dumps(ScanJob).replace(b"ScanJob", b"ScanJab"))
        until(lambda: is_gone(reader.pid), "it waits for ever")
    assert reader.exit_code == 0


def test_what_a_reader_of_another_release_says_loses_it(
    pg: OfPostgreSQL, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill_items(pg, 5000)
    monkeypatch.setattr(workers, "_PROGRAM", workers._PROGRAM.replace("import main;", STRANGER))
    pool = WorkerPool(1)
    with session_of(pg) as session:
        alone, _ = scanned(session, None)
        assert_equal(scanned(session, pool)[0], alone)
    assert "was lost (Can't get attribute 'Newer'" in caplog.text
    assert not pool._idle
    pool.close()


STRANGER = (
    "import main; import source_agent.scan.worker_process as a;"
    "a.Newer = type('Newer', (a.ScanDone,), {'__module__': a.__name__});"
    "a.PartRead = lambda *_: a.Newer();"
)


# Within the agent


def test_every_row_is_within_the_budget(pg: OfPostgreSQL, pool: WorkerPool) -> None:
    fill_items(pg, 5000)
    governor = Governor(Budget(rows_per_second=1e6))
    noted: list[int] = []
    governor.wait_rows = lambda rows, stop: noted.append(rows)  # type: ignore[method-assign]
    with session_of(pg) as session:
        governed = GovernedSession(session, governor, threading.Event())
        scanned(governed, pool)
    assert sum(noted) == 5000
    assert postgresql_split.cut(10_000, rows_per_block=100.0, rows_max=250) == BlockRanges(5000, 2)
    assert postgresql_split.cut(10_000, rows_per_block=None, rows_max=250) == BlockRanges(5000, 2)


def test_what_other_processes_wait_for_the_database_holds_all_back(
    pg: OfPostgreSQL, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All windows are slow: the first begins to hold back whoever gives out the parts."""
    monkeypatch.setattr(feedback, "WINDOW_S", 0.0)
    monkeypatch.setattr(feedback, "WINDOWS_MIN", 1)
    monkeypatch.setattr(feedback, "SLOWER", 0.0)
    fill_items(pg, 5000)
    spent: list[DatabaseTime] = []
    held: list[float] = []

    class Noting:
        def __init__(self, split: Split) -> None:
            assert isinstance(split, GovernedSplit)
            self._split = split

        def __getattr__(self, name: str) -> Any:
            return getattr(self._split, name)

        def spent(self, time: DatabaseTime) -> None:
            spent.append(time)
            self._split.spent(time)

    with session_of(pg) as session:
        alone, _ = scanned(session, None)
        governed = GovernedSession(
            session, Governor(Budget()), threading.Event(), on_held=held.append
        )
        found, _ = scanned(governed, pool, wrap=Noting)
    assert_equal(found, alone)
    assert spent
    assert all(time.waited_s >= 0 and time.worked_s > 0 for time in spent)
    assert sum(held) > 0


def test_two_scans_share_one_crew(pg: OfPostgreSQL) -> None:
    pool = WorkerPool(1)
    with pool.lent(4) as first, pool.lent(4) as second:
        assert (len(first), len(second)) == (1, 0)
        fill_items(pg, 5000)
        with session_of(pg) as session:  # reads alone, and as it would without a pool
            never = scanned(session, pool, wrap=lambda split: None)
            assert_equal(scanned(session, pool)[0], never[0])
    with pool.lent(4) as again:
        assert len(again) == 1
    pool.close()


def test_an_exchange_with_readers(pg: OfPostgreSQL, tmp_path: Path) -> None:
    fill_items(pg, 5000)
    with session_of(pg) as session:
        alone, _ = scanned(session, None)
        recipe = session.describe(ITEMS).recipe.id
    path = tmp_path / "source.toml"
    path.write_text(
        f'[database]\nurl = "{pg.url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        'audit_file = "audit.jsonl"\n[limits]\nreaders = 2\n[relations.items]\ntable = "items"\n'
    )
    config = load(path)
    governor = Governor(config.budget)
    server = start(config, governor=governor)
    try:
        with channel(server.port, None) as over, Peer(over) as peer:
            for _ in range(2):
                peer.send(opening(recipe, relation="items", ours=alone.sums.total))
                finished = peer.until("finished")[-1].finished
                assert finished.equal
                assert (finished.scans, finished.rows_read) == (1, 5000)
            assert len(governor.pool._idle) == 1
    finally:
        server.stop()
    assert not governor.pool._idle
    audited = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(a["outcome"], a["rows_read"], a["scans"]) for a in audited] == [("equal", 5000, 1)] * 2


def test_what_the_dba_is_told(pg: OfPostgreSQL, tmp_path: Path) -> None:
    fill_items(pg, 2000)
    path = tmp_path / "source.toml"
    path.write_text(
        f'[database]\nurl = "{pg.url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        '[limits]\nreaders = 5\n[relations.items]\ntable = "items"\n'
        '[relations.some]\ntable = "items"\nwhere = "id > 7"\n'
    )
    config = load(path)
    engine = connect(config.database.url, None, config.database.limits)
    assert "CONNECTION LIMIT 12;" in grants(config, engine, login="driftline")
    items, some = check(config, engine).relations
    assert items.scan_cost.endswith("; 5 processes read it")
    assert some.scan_cost.endswith("; one process reads it")
    statements = [sql for section in explain(config, engine) for sql in section.statements]
    assert any("WHERE ctid" in sql for sql in statements)
