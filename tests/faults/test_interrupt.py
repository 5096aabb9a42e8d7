"""A client that leaves takes its statement with it: nothing runs on in anybody's database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline import errors
from driftline import wire_pb2 as pb
from driftline.wire_pb2_grpc import SourceStub

from source_agent.config.file import load
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.interface import Limits
from source_agent.engines.mysql_family.session import FamilySession
from source_agent.engines.mysql_family.waits import FamilyConnector
from source_agent.engines.postgresql.session import PostgresqlSession
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from source_agent.server.service import start
from tests.harness.agents import Peer, Recorded, channel, opening
from tests.harness.family import FAMILY
from tests.harness.legacies import OfMariaDB, OfPostgreSQL, OfSQLite, of_family

pytestmark = pytest.mark.slow  # waits for statements to end

ENDED_S_MAX = 2.0
ASLEEP = "SELECT a.id + SLEEP(3600) AS id FROM items AS a"
JOINING = (
    "SELECT COUNT(*) AS id FROM items AS a JOIN items AS b JOIN items AS c"
    " JOIN items AS d JOIN items AS e WHERE a.id + b.id + c.id + d.id + e.id > 7"
)
SLOW = {  # hours, each
    "postgresql": "SELECT g AS id, (pg_sleep(3600) IS NULL) AS slept"
    " FROM generate_series(1, 9) AS g",
    **dict.fromkeys(FAMILY, ASLEEP),
    **{f"{engine}, joining": JOINING for engine in FAMILY},
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e15)"
    " SELECT max(i) AS id FROM n",
}
TYPES = {"sqlite": (("id", "int8"),)}


@pytest.fixture(params=SLOW)
def slow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Legacy, str]]:
    """A database, and which of SLOW to ask it."""
    kind: str = request.param
    name = kind.partition(",")[0]
    made: OfPostgreSQL | OfMariaDB | OfSQLite
    if name == "sqlite":
        made = OfSQLite(tmp_path / "legacy.sqlite")
    elif name in FAMILY:
        made = of_family(request.getfixturevalue(name))
    else:
        made = OfPostgreSQL(request.getfixturevalue("postgresql"))
    made.run("CREATE TABLE items (id BIGINT NOT NULL PRIMARY KEY)")
    made.insert("items", [(i,) for i in range(500)])
    yield made, kind
    made.close()


def relation_of(kind: str) -> Relation:
    return Relation("slow", query=SLOW[kind], key=("id",), types=TYPES.get(kind, ()))


def running(legacy: Any) -> int:
    """Statements that run in the database, other than this one; SQLite has no such list."""
    if legacy.name == "postgresql":
        sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND datname = %s"
        with legacy.server.superuser("postgres") as connection:
            return int(connection.execute(sql, (legacy.database,)).fetchone()[0])
    if legacy.name in FAMILY:
        sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE info IS NOT NULL AND db=%s"
        with legacy.server.admin() as connection, connection.cursor() as cursor:
            cursor.execute(sql, (legacy.database,))
            return int(cursor.fetchone()[0])
    return 0


def until(is_so: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_client_that_leaves_ends_its_statement(slow: tuple[Legacy, str], tmp_path: Path) -> None:
    legacy, kind = slow
    types = "".join(f'types = {{ {n} = "{t}" }}\n' for n, t in TYPES.get(kind, ()))
    path = tmp_path / "source.toml"
    path.write_text(
        f'[database]\nurl = "{legacy.url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        f'[relations.slow]\nquery = "{SLOW[kind]}"\nkey = ["id"]\n{types}'
    )
    config = load(path)
    engine = Recorded(config)
    server = start(config, engine=engine, heartbeat_s=0.05)
    try:
        with channel(server.port, None) as over:
            request = pb.DescribeRequest(protocol=1, relation="slow")
            found = SourceStub(over).Describe(request, timeout=20).description
            assert engine.closed.acquire(timeout=5)
            with Peer(over) as peer:
                peer.send(opening(recipe_id(legacy, kind), relation="slow"))
                while peer.reply(progress=True).progress.phase != "ship":
                    pass
                assert found.columns
                if legacy.name != "sqlite":
                    until(lambda: running(legacy) == 1, 10, "the statement does not run")
                left = time.monotonic()
                peer.call.cancel()
                assert engine.closed.acquire(timeout=ENDED_S_MAX), "the session lives on"
                until(
                    lambda: running(legacy) == 0,
                    left + ENDED_S_MAX - time.monotonic(),
                    "the statement runs on",
                )
    finally:
        server.stop()


def recipe_id(legacy: Legacy, kind: str) -> bytes:
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        return session.describe(relation_of(kind)).recipe.id


def scan_in_thread(session: Any, kind: str) -> tuple[threading.Thread, list[BaseException]]:
    shape = session.describe(relation_of(kind))
    raised: list[BaseException] = []

    def scan() -> None:
        try:
            list(session.scan(shape))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=scan, daemon=True)
    return thread, raised


def test_interrupt_ends_the_scan_and_what_would_follow(slow: tuple[Legacy, str]) -> None:
    legacy, kind = slow
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        thread, raised = scan_in_thread(session, kind)
        thread.start()
        if legacy.name != "sqlite":
            until(lambda: running(legacy) == 1, 10, "the statement does not run")
        session.interrupt()
        thread.join(ENDED_S_MAX)
        assert not thread.is_alive()
        assert isinstance(raised[0], errors.DriftlineError)
        with pytest.raises(errors.DriftlineError):
            list(session.scan(session.describe(relation_of(kind))))
    until(lambda: running(legacy) == 0, ENDED_S_MAX, "the statement runs on")


def test_interrupt_before_the_scan_ends_it_too(slow: tuple[Legacy, str]) -> None:
    legacy, kind = slow
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        thread, raised = scan_in_thread(session, kind)
        session.interrupt()
        thread.start()
        thread.join(ENDED_S_MAX)
        assert not thread.is_alive()
        assert isinstance(raised[0], errors.DriftlineError)


def test_a_server_that_takes_no_cancellation_keeps_nobody_waiting(
    slow: tuple[Legacy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy, kind = slow
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        if isinstance(session, PostgresqlSession):

            def refuse(**_: object) -> None:
                import psycopg

                raise psycopg.errors.CancellationTimeout

            monkeypatch.setattr(session._connection, "cancel_safe", refuse)
        elif isinstance(session, FamilySession):

            def nobody(*_: object) -> Any:
                raise OSError

            monkeypatch.setattr(FamilyConnector, "__call__", nobody)
        else:
            pytest.skip("an interrupt of SQLite cannot fail")
        thread, raised = scan_in_thread(session, kind)
        thread.start()
        until(lambda: running(legacy) == 1, 10, "the statement does not run")
        session.interrupt()
        thread.join(ENDED_S_MAX)
        assert not thread.is_alive()
        assert isinstance(raised[0], errors.DriftlineError)
    if legacy.name in FAMILY:
        legacy.run(*(f"KILL QUERY {i}" for i in statements(legacy)))


def statements(legacy: Any) -> list[int]:
    sql = "SELECT id FROM information_schema.processlist WHERE info IS NOT NULL AND db = %s"
    with legacy.server.admin() as connection, connection.cursor() as cursor:
        cursor.execute(sql, (legacy.database,))
        return [int(row[0]) for row in cursor.fetchall()]
