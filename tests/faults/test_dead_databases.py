"""A database that stops answering in the middle of a scan is given up, and leaves nothing behind.

Servers of these tests alone, stopped by signals as a hung machine would be: the kernel goes on to
take connections and nobody answers them. The agent is the real one, over gRPC.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from driftline import errors
from driftline import wire_pb2 as pb

from source_agent.budgets import watch
from source_agent.config.file import load
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from source_agent.server.service import Server, start
from tests.harness.agents import Peer, channel, opening
from tests.harness.family import FAMILY
from tests.harness.mysql_server import own_server
from tests.harness.relay import Relay
from tests.harness.servers import FamilyServer, PostgreSQL

pytestmark = pytest.mark.slow  # waits for deadlines of stopped servers

PROBE_AFTER_S = 0.6
GIVEN_UP_S_MAX = 20.0  # of a busy machine; the limits set here add up to some 4 s
SLOW = {
    "postgresql": "SELECT g AS id, pg_sleep(0.005)::text AS x FROM generate_series(1, 100000) g",
    "mariadb": "SELECT id, SLEEP(0.005) AS x FROM numbers",
}
SILENT = {
    "postgresql": "SELECT 1 AS id, pg_sleep(3600)::text AS x",
    "mariadb": "SELECT id, SLEEP(3600) AS x FROM numbers",
}


@pytest.fixture(scope="module")
def own(request: pytest.FixtureRequest) -> Iterator[PostgreSQL | FamilyServer]:
    """A server that may be stopped: nobody else uses it."""
    if request.param in FAMILY:
        request.getfixturevalue(request.param)  # says so where there is none
        made = own_server(request.param)
        with closing(made.admin()) as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE erp")
            cursor.execute("CREATE TABLE erp.numbers (id INT PRIMARY KEY)")
            cursor.executemany("INSERT INTO erp.numbers VALUES (%s)", [(n,) for n in range(9000)])
        server: PostgreSQL | FamilyServer = made
    else:
        server = PostgreSQL()
    with server:
        yield server


def database_of(server: PostgreSQL | FamilyServer) -> str:
    return "erp" if isinstance(server, FamilyServer) else "postgres"


def kind_of(server: PostgreSQL | FamilyServer) -> str:
    return "mariadb" if isinstance(server, FamilyServer) else "postgresql"


def user_of(server: PostgreSQL | FamilyServer) -> str:
    return "root" if isinstance(server, FamilyServer) else "postgres"


SOAK = pytest.mark.soak  # as good as the others, and longer
BOTH = pytest.mark.parametrize("own", ["postgresql", *FAMILY], indirect=True)
ONLY_POSTGRESQL = pytest.mark.parametrize("own", ["postgresql"], indirect=True)


@contextmanager
def stopped(server: PostgreSQL | FamilyServer) -> Iterator[None]:
    """All processes of a server take no step."""
    assert server._process is not None
    parent = server._process.pid
    os.kill(parent, signal.SIGSTOP)  # first: it starts no more of them
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    every = [parent, *map(int, children)]
    _signal(every, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(every, signal.SIGCONT)


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # a session that has just ended
            os.kill(process, number)


@contextmanager
def serving(folder: Path, url: str, query: str, *, more: str = "") -> Iterator[Server]:
    path = folder / "source.toml"
    path.write_text(
        f'[database]\nurl = "{url}"\nconnect_timeout_s = 2\n{more}\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        f'[relations.slow]\nquery = "{query}"\nkey = ["id"]\n'
    )
    server = start(load(path), heartbeat_s=0.3)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PROBE_AFTER_S", PROBE_AFTER_S)
    monkeypatch.setattr(watch, "PROBE_S", 1.0)


def relation(query: str) -> Relation:
    return Relation("slow", query=query, key=("id",))


def url_of(server: PostgreSQL | FamilyServer, address: str | None = None) -> str:
    """Over the socket, or over TCP as somebody who needs no password there."""
    if address is None:
        return server.url(user_of(server), database_of(server))
    scheme = "mysql+pymysql" if isinstance(server, FamilyServer) else "postgresql+psycopg"
    return f"{scheme}://{user_of(server)}@{address}/{database_of(server)}"


def recipe_of(server: PostgreSQL | FamilyServer, query: str) -> bytes:
    with closing(connect(url_of(server), None, Limits()).open()) as session:
        return session.describe(relation(query)).recipe.id


def sessions(server: PostgreSQL | FamilyServer) -> int:
    """The agent's sessions at the server."""
    if isinstance(server, FamilyServer):
        sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'erp'"
        with closing(server.admin()) as admin, admin.cursor() as cursor:
            cursor.execute(sql)
            return int(cursor.fetchone()[0])
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'driftline-source'"
    with server.superuser() as connection:
        row = connection.execute(sql).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def scanning(server: Server, recipe: bytes) -> Iterator[Peer]:
    """An exchange whose statement runs: its first rows have come, or it computes."""
    with channel(server.port, None) as over, Peer(over) as peer:
        peer.send(opening(recipe, relation="slow"))
        reply = peer.reply(progress=True)
        while reply.progress.phase != "ship":
            reply = peer.reply(progress=True)
        yield peer


def refused(peer: Peer) -> tuple[pb.Refused, float]:
    """What ended the exchange, and after how long."""
    began = time.monotonic()
    return peer.reply().refused, time.monotonic() - began


def until(is_so: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@BOTH
def test_a_server_that_stops_in_mid_scan_is_given_up(
    own: PostgreSQL | FamilyServer, tmp_path: Path
) -> None:
    query = SLOW[kind_of(own)]
    recipe = recipe_of(own, query)
    with serving(tmp_path, url_of(own), query) as server, scanning(server, recipe) as peer:
        with stopped(own):
            error, seconds = refused(peer)
        assert error.code == "DATABASE_UNAVAILABLE"
        assert "answers no new connection" in error.message
        assert seconds < GIVEN_UP_S_MAX
    until(lambda: sessions(own) == 0, 10, "a session is left")


@SOAK
@BOTH
def test_a_line_to_the_database_that_swallows_everything_is_given_up(
    own: PostgreSQL | FamilyServer, tmp_path: Path
) -> None:
    query = SLOW[kind_of(own)]
    recipe = recipe_of(own, query)
    with Relay(f"127.0.0.1:{own.port}") as relay:
        url = url_of(own, relay.address)
        with serving(tmp_path, url, query) as server, scanning(server, recipe) as peer:
            relay.swallow()
            error, seconds = refused(peer)
            assert error.code == "DATABASE_UNAVAILABLE"
            assert seconds < GIVEN_UP_S_MAX


@BOTH
def test_a_busy_database_is_waited_for_and_then_it_is_not(
    own: PostgreSQL | FamilyServer, tmp_path: Path
) -> None:
    """Its server answers: only `silence_timeout_s` ends a statement from which nothing comes."""
    query = SILENT[kind_of(own)]
    recipe = recipe_of(own, query)
    more = "silence_timeout_s = 2.5"
    with serving(tmp_path, url_of(own), query, more=more) as server:
        with scanning(server, recipe) as peer:
            error, seconds = refused(peer)
            assert error.code == "DATABASE_UNAVAILABLE"
            assert "silence_timeout_s" in error.message + error.remedy
            assert 2.0 < seconds < GIVEN_UP_S_MAX
        until(lambda: sessions(own) == 0, 10, "the statement runs on")


@SOAK
@ONLY_POSTGRESQL
def test_a_backend_that_stopped_is_given_up(own: PostgreSQL, tmp_path: Path) -> None:
    query = SLOW["postgresql"]
    recipe = recipe_of(own, query)
    more = "silence_timeout_s = 2.5"
    with (
        serving(tmp_path, url_of(own), query, more=more) as server,
        scanning(server, recipe) as peer,
        own.superuser() as admin,
    ):
        sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'driftline-source'"
        rows = admin.execute(sql).fetchall()
        for (pid,) in rows:
            os.kill(pid, signal.SIGSTOP)
        try:
            error, seconds = refused(peer)
            assert error.code == "DATABASE_UNAVAILABLE"
            assert seconds < GIVEN_UP_S_MAX
        finally:
            for (pid,) in rows:
                os.kill(pid, signal.SIGCONT)
    until(lambda: sessions(own) == 0, 10, "a session is left")


@BOTH
def test_a_stopped_server_is_not_waited_for_at_the_door(own: PostgreSQL | FamilyServer) -> None:
    engine = connect(url_of(own, f"127.0.0.1:{own.port}"), None, Limits(connect_s=2))
    with stopped(own):
        began = time.monotonic()
        with pytest.raises(errors.DatabaseUnavailable):
            engine.open()
        assert time.monotonic() - began < 10


@BOTH
def test_who_reads_outside_of_an_exchange_gives_up_too(own: PostgreSQL | FamilyServer) -> None:
    """`total`, `check` and the reader processes have nobody who watches them."""
    engine = connect(url_of(own), None, Limits(silence_s=1, connect_s=2))
    with closing(engine.open()) as session:
        shape = session.describe(relation(SILENT[kind_of(own)]))
        with pytest.raises(errors.DatabaseUnavailable):
            list(session.scan(shape))
    until(lambda: sessions(own) == 0, 10, "the statement runs on")


@BOTH
def test_rows_that_come_slowly_are_handed_out_as_they_come(own: PostgreSQL | FamilyServer) -> None:
    """Progress means rows: those of a filter that finds few are not kept for a whole batch."""
    query = {
        "postgresql": "SELECT g AS id, pg_sleep(0.4)::text || repeat('x', 9000) AS x"
        " FROM generate_series(1, 6) g",
        "mariadb": "SELECT id, SLEEP(0.4) AS x, REPEAT('x', 20000) AS y FROM numbers WHERE id < 6",
    }[kind_of(own)]
    with closing(connect(url_of(own), None, Limits()).open()) as session:
        sizes = [len(rows) for rows in session.scan(session.describe(relation(query)))]
    assert sum(sizes) == 6
    assert len(sizes) > 1


READ = """
import sys
from source_agent.engines.interface import Limits
from source_agent.engines.relations.shapes import Relation
from source_agent.engines.registry import connect
session = connect(sys.argv[1], None, Limits()).open()
shape = session.describe(Relation("slow", query=sys.argv[2], key=("id",)))
print("reads", flush=True)
list(session.scan(shape))
"""


@SOAK
@pytest.mark.parametrize(
    ("own", "queries"),
    [("postgresql", SILENT), *((engine, SLOW) for engine in FAMILY)],
    indirect=["own"],
)
def test_a_session_is_gone_soon_after_its_agent(
    own: PostgreSQL | FamilyServer, queries: dict[str, str]
) -> None:
    """Killed in the middle of a statement, it says goodbye to nobody. PostgreSQL looks at its
    client while it computes, MariaDB when it writes."""
    command = [sys.executable, "-c", READ, url_of(own), queries[kind_of(own)]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reads\n"
            until(lambda: sessions(own) == 1, 10, "nothing runs")
        finally:
            process.kill()
    until(lambda: sessions(own) == 0, 20, "the statement runs on")
