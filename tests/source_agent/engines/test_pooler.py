"""PostgreSQL behind PgBouncer: what is read is right, and other clients of the pool notice nothing.

Clients of one login and one database share the server's sessions, so what one leaves behind the
next one meets. With a pool of one session each test knows which one that is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
)
from driftline.rows.key_order import KeyRange

from source_agent.engines.conformance.reads import (
    flat,
    key_hashes,
    markers_of,
    read,
    rows_between,
    rows_by_keys,
    rows_of,
)
from source_agent.engines.interface import Limits
from source_agent.engines.postgresql import settings, sql
from source_agent.engines.postgresql.session import PostgresqlSession
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Relation
from source_agent.enrolment import enroll
from tests.harness.legacies import OfPostgreSQL
from tests.harness.pgbouncer import PgBouncer, Pooler
from tests.harness.servers import PostgreSQL
from tests.harness.source_commands import source_command

pytestmark = pytest.mark.starts

T = Relation("t", table="t")
V = Relation("v", table="v", key=("id",))
VIEW = """CREATE VIEW v AS SELECT id, at::text AS at, since::text AS since, bytes::text AS bytes,
  number::text AS number, at::date AS day, to_char(1234.5, '9G999D99') AS local,
  NULLIF(current_setting('app.tenant', true), '') AS tenant, (SELECT min(n) FROM named) AS named,
  ('01/02/2' || '003')::date AS first, CURRENT_USER::text AS who FROM t"""
# What clients leave behind in a session of the server, also in one that pools by transaction.
LEFT_BEHIND = (
    "SET DateStyle = 'German, DMY'",
    "SET TimeZone = 'Asia/Kolkata'",
    "SET IntervalStyle = 'iso_8601'",
    "SET bytea_output = 'escape'",
    "SET extra_float_digits = -10",
    "SET search_path = other, public",
    "SET app.tenant = 'a'",
    "SET statement_timeout = '9s'",
    "SET row_security = off",
    "SET default_transaction_isolation = 'serializable'",
    "CREATE TEMP TABLE t AS SELECT 1 AS id",
    "PREPARE kept AS SELECT 1",
    "SET ROLE other",
)
# But what PgBouncer itself sets for each client, and what comes with a language's first function.
SESSION = """SELECT pg_backend_pid(), current_setting('role'), current_setting('app.tenant', true),
  NULLIF(current_setting('app.other', true), ''),
  (SELECT string_agg(concat(name, '=', setting, ' ', source), E'\\n' ORDER BY name)
   FROM pg_settings WHERE name NOT IN ('DateStyle', 'TimeZone') AND name !~ '^plpgsql'),
  (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors),
  (SELECT count(*) FROM pg_listening_channels()), to_regclass('pg_temp.t') IS NOT NULL,
  (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')"""
ANSWERS = (
    SESSION.replace("pg_backend_pid(), ", "", 1),  # also whether one may write, and for how long
    "SELECT v.* FROM v WHERE id = 7",
    "INSERT INTO journal VALUES (DEFAULT) RETURNING 'written'",
    "SELECT '01/02/2003'::date::text, '1 mon -1 s'::interval::text, 0.1::float8 * 3",
)


@pytest.fixture
def pg(postgresql: PostgreSQL, pgbouncer: None) -> Iterator[OfPostgreSQL]:
    del pgbouncer  # it is there
    made = OfPostgreSQL(postgresql)
    made.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz, since interval, bytes bytea,"
        " number float8, note text)",
        "INSERT INTO t SELECT n, '2024-02-03 20:00+00'::timestamptz + n * interval '1 h',"
        " interval '-1 mon 2 days -3.5 s' * n, decode(lpad(to_hex(n), 8, '0'), 'hex'), n / 7e0,"
        " 'note ' || n FROM generate_series(1, 500) n",
        "CREATE SCHEMA other",
        "CREATE TABLE other.named AS SELECT -1 AS n",
        "CREATE TABLE named AS SELECT 1 AS n",
        VIEW,
        "CREATE TABLE journal (id bigserial)",
    )
    with suppress(psycopg.errors.DuplicateObject):
        made.run("CREATE ROLE other")
    made.run("GRANT ALL ON ALL TABLES IN SCHEMA public, other TO other")
    made.run("GRANT USAGE ON SCHEMA public, other TO other")
    yield made
    made.close()


Pool = Callable[..., Pooler]


@pytest.fixture
def pool(pg: OfPostgreSQL) -> Iterator[Pool]:
    """Start a pooler of one session; arguments are those of `PgBouncer`."""
    started: list[PgBouncer] = []

    def start(mode: str = "transaction", **options: Any) -> PgBouncer:
        started.append(PgBouncer(pg.server, mode, **{"default_pool_size": 1, **options}))
        return started[-1]

    yield start
    for one in started:
        one.close()


def engine_of(pooler: Pooler, pg: OfPostgreSQL, **limits: Any) -> Any:
    return connect(pooler.url("postgres", pg.database), None, Limits(**limits))


def wait_until_counted(pg: OfPostgreSQL, changes: int) -> None:
    """Wait for the counts of `t`: before PostgreSQL 15 another process writes them down later."""
    deadline = time.monotonic() + 10
    counted = "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 't'"
    with pg.server.superuser(pg.database) as owner:
        while owner.execute(counted).fetchone() != (changes,):
            assert time.monotonic() < deadline, "nothing is counted"
            time.sleep(0.05)


def logged(pooler: Pooler) -> str:
    return (pooler.folder / "log").read_text()


@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("hidden", [{}, PgBouncer.TOLERANT], ids=["refuses", "ignores"])
def test_a_pooler_is_recognised_once(
    pg: OfPostgreSQL, pool: Pool, mode: str, hidden: dict[str, str]
) -> None:
    """By another process number, before it is sent options that it would refuse or ignore."""
    wait_until_counted(pg, 500)
    pooler = pool(mode, **hidden)
    engine = engine_of(pooler, pg)
    for _ in range(3):
        with closing(engine.open(probed=[T])) as session:
            assert session.server.pooler
            assert session.capabilities.activities["t"].changes == 500
            assert len(read(session, T)) == 500
            assert session.capabilities.split is None
    assert "unsupported startup parameter" not in logged(pooler)


def test_a_declared_pooler_is_never_sent_options(
    pg: OfPostgreSQL, pool: Pool, tmp_path: Path
) -> None:
    pooler = pool(default_pool_size=2)
    file = tmp_path / "source.toml"
    file.write_text(
        f'[database]\nurl = "{pooler.url("postgres", pg.database)}"\npooler = true\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n[limits]\nreaders = 2\n'
        '[relations.t]\ntable = "t"\n[relations.v]\ntable = "v"\nkey = ["id"]\n'
    )
    done = source_command(file, "check", "--verbose")
    assert "unsupported" not in logged(pooler)
    assert done.exit_code == 0, done.output
    assert f"  note     {settings.POOLED}" in done.stdout
    assert "one process reads it" in done.stdout


def test_a_direct_connection_is_no_pooler(pg: OfPostgreSQL) -> None:
    engine: Any = connect(pg.url, None, Limits())
    with closing(engine.open()) as session:
        assert isinstance(session, PostgresqlSession)
        assert session.server.pooler == ""
        ((read_only, source),) = session.ask(
            "SELECT setting, source FROM pg_settings WHERE name = 'default_transaction_read_only'"
        )
        assert (read_only, source) == ("on", "client")
    assert {sql.BEGIN_POOLED, sql.BACKEND, sql.SERVER} <= set(engine.templates([]))


def test_a_primary_serves_who_asks_for_a_session_that_is_read_only(pg: OfPostgreSQL) -> None:
    """The first connection has no options yet, so it is not: the second one is."""
    engine = connect(f"{pg.url}&target_session_attrs=read-only", None, Limits())
    with closing(engine.open()) as session:
        assert isinstance(session, PostgresqlSession)
        ((is_read_only,),) = session.ask("SHOW transaction_read_only")
    assert is_read_only == "on"


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_what_others_left_behind_does_not_count(pg: OfPostgreSQL, pool: Pool, mode: str) -> None:
    """And is there again afterwards."""
    with closing(connect(pg.url, None, Limits()).open()) as session:
        expected = read(session, T), read(session, V)
    # In session mode too, if the DBA has switched off what resets a session.
    pooler = pool(mode, server_reset_query="")
    with pooler.client("postgres", pg.database) as other:
        for statement in LEFT_BEHIND:
            other.execute(statement)
        before = other.execute(SESSION).fetchone()
    assert before is not None
    assert before[2] == "a"
    for _ in range(2):
        with closing(engine_of(pooler, pg).open(probed=[T])) as session:
            assert (read(session, T), read(session, V)) == expected
            assert {limit.name for limit in session.time_limits} == {
                "lock_timeout",
                "idle_in_transaction_session_timeout",
            }
    with pooler.client("postgres", pg.database) as other:
        assert other.execute(SESSION).fetchone() == before


def _scanned(session: PostgresqlSession) -> None:
    flat(session.scan(session.describe(T), ordered=True))


def _by_key(session: PostgresqlSession) -> None:
    shape = session.describe(T)
    flat(rows_between(session, shape, KeyRange(("3",), ("90",))))
    flat(rows_by_keys(session, shape, [("5",), ("6",)]))
    flat(session.read_ranges(shape, np.array([1, 9], np.int64), np.array([4, 20], np.int64)))


def _marked(session: PostgresqlSession) -> None:
    shape = session.describe(Relation("t", table="t", marker=Marker("")))
    flat(markers_of(session).read_marked(shape, markers_of(session).mark(shape)))
    assert session.capabilities.running is not None
    session.capabilities.running()
    key_hashes(session, shape, 7)


def _abandoned(session: PostgresqlSession) -> None:
    slow = Relation("s", query="SELECT n AS id FROM generate_series(1, 5000000) n", key=("id",))
    rows = session.scan(session.describe(slow))
    next(iter(rows))
    rows.close()  # type: ignore[attr-defined]
    assert len(rows_of(session, session.describe(T))) == 500


def _failed(session: PostgresqlSession) -> None:
    bad = Relation("b", query="SELECT id, 1 / (id - 400) AS n FROM t", key=("id",))
    shape = session.describe(bad)
    with pytest.raises(DriftlineError):
        flat(session.scan(shape))
    assert len(rows_of(session, session.describe(T))) == 500


def _set_by_a_function(session: PostgresqlSession) -> None:
    shape = session.describe(Relation("f", query="SELECT id, leave(id) AS n FROM t", key=("id",)))
    with pytest.raises(DatabaseRefused):
        flat(session.scan(shape))


def _interrupted(session: PostgresqlSession) -> None:
    slow = Relation("s", query="SELECT 1 AS id, pg_sleep(60)::text AS s", key=("id",))
    shape = session.describe(slow)
    timer = threading.Timer(0.3, session.interrupt)
    timer.start()
    with pytest.raises(DriftlineError):
        flat(session.scan(shape))
    timer.join()


USES = (_scanned, _by_key, _marked, _abandoned, _failed, _set_by_a_function)


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_nothing_is_left_behind(pg: OfPostgreSQL, pool: Pool, mode: str) -> None:
    """Whatever a session did, the session of the server is the one that it was."""
    pg.run(
        "CREATE FUNCTION leave(bigint) RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN SET app.other = 'x'; SET TimeZone = 'Asia/Tokyo'; RETURN 1; END $$"
    )
    pooler = pool(mode, server_reset_query="")
    with pooler.client("postgres", pg.database) as other:
        other.execute("SELECT 1")
        before = other.execute(SESSION).fetchone()
    engine = engine_of(pooler, pg)
    for use in USES:
        with closing(engine.open(probed=[T])) as session:
            use(session)
        with pooler.client("postgres", pg.database) as other:
            assert other.execute(SESSION).fetchone() == before, use.__name__


def test_a_read_that_is_interrupted_ends_at_the_server(pg: OfPostgreSQL, pool: Pool) -> None:
    pooler = pool()
    with closing(engine_of(pooler, pg).open()) as session:
        _interrupted(session)
    deadline = time.monotonic() + 10
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s"
    with pg.server.superuser(pg.database) as owner:
        while owner.execute(asleep, ("COPY%pg_sleep(60)%",)).fetchone() != (0,):
            assert time.monotonic() < deadline, "the statement runs on"
            time.sleep(0.05)
    with pooler.client("postgres", pg.database) as other:
        assert other.execute("SHOW TimeZone").fetchone() is not None


@dataclass
class Neighbour:
    """A client that asks the same questions again and again, and counts changed answers."""

    pooler: Pooler
    database: str
    asked: int = 0
    changed: int = 0

    def run(self, is_over: threading.Event) -> None:
        with self.pooler.client("postgres", self.database) as client:
            usual: dict[str, object] = {}
            while not is_over.is_set():
                for question in ANSWERS:
                    answer: object
                    try:
                        answer = client.execute(question).fetchone()
                    except psycopg.Error as error:
                        answer = str(error)
                    self.changed += answer != usual.setdefault(question, answer)
                    self.asked += 1


def beside(
    pooler: Pooler, pg: OfPostgreSQL, *, clients: int, refreshes: int
) -> tuple[int, int, int]:
    """Read as refreshes do beside other clients. Returns answers, changed ones, and sessions."""
    with closing(connect(pg.url, None, Limits()).open()) as session:
        expected = read(session, T), read(session, V)
    is_over = threading.Event()
    neighbours = [Neighbour(pooler, pg.database) for _ in range(clients)]
    threads = [threading.Thread(target=n.run, args=(is_over,)) for n in neighbours]
    for thread in threads:
        thread.start()
    try:
        while any(n.asked < 2 * len(ANSWERS) for n in neighbours):  # they know the usual answers
            assert all(thread.is_alive() for thread in threads)
            time.sleep(0.01)
        engine = engine_of(pooler, pg)
        for number in range(refreshes):
            with closing(engine.open(probed=[T])) as session:
                assert (read(session, T), read(session, V)) == expected
                USES[number % 5](session)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    asked = sum(n.asked for n in neighbours)
    return asked, sum(n.changed for n in neighbours), refreshes


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_answers_of_other_clients_do_not_change(pg: OfPostgreSQL, pool: Pool, mode: str) -> None:
    size = 2 if mode == "transaction" else 4
    pooler = pool(mode, default_pool_size=size, **PgBouncer.TOLERANT)
    asked, changed, _ = beside(pooler, pg, clients=2, refreshes=5)
    assert asked > 16
    assert changed == 0


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("hidden", [{}, PgBouncer.TOLERANT], ids=["refuses", "ignores"])
def test_answers_of_many_clients_do_not_change(
    pg: OfPostgreSQL, pool: Pool, mode: str, hidden: dict[str, str]
) -> None:
    size = 5 if mode == "transaction" else 22
    asked, changed, refreshes = beside(
        pool(mode, default_pool_size=size, **hidden), pg, clients=20, refreshes=200
    )
    print(f"{mode}: {changed} of {asked} answers changed beside {refreshes} sessions")
    assert asked > 8_000
    assert changed == 0


@pytest.mark.parametrize("hidden", [{}, PgBouncer.TOLERANT], ids=["refuses", "ignores"])
def test_pooling_by_statement_is_refused(
    pg: OfPostgreSQL, pool: Pool, hidden: dict[str, str]
) -> None:
    with pytest.raises(DatabaseRefused, match="statement pooling") as caught:
        engine_of(pool("statement", **hidden), pg).open()
    assert "by transaction or by session" in caught.value.remedy
    for engine in (connect(pg.url, None, Limits()), engine_of(pool("session", **hidden), pg)):
        with closing(engine.open()) as session:
            assert len(read(session, T)) == 500


def test_options_that_would_not_pass_are_refused(pg: OfPostgreSQL, pool: Pool) -> None:
    for hidden in ({}, PgBouncer.TOLERANT):
        url = pool(**hidden).url("postgres", pg.database, options="-c search_path=other")
        with pytest.raises(ConfigurationError, match="passes no `options` on") as caught:
            connect(url, None, Limits()).open()
        assert "ALTER ROLE" in caught.value.remedy
    pg.run(f"ALTER ROLE postgres IN DATABASE {pg.database} SET search_path = other")
    with closing(engine_of(pool(), pg).open()) as session:
        named = Relation("named", query="SELECT n FROM named", key=("n",))
        assert read(session, named) == [["-1"]]


def test_a_refused_parameter_is_not_a_wrong_password(
    pg: OfPostgreSQL, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(pool(), pg)
    monkeypatch.setenv("PGGEQO", "off")  # libpq sends it, too
    with pytest.raises(DatabaseRefused, match="unsupported startup parameter: geqo") as caught:
        engine.open()
    assert "ignore_startup_parameters" in caught.value.remedy
    monkeypatch.setenv("PGOPTIONS", "-c search_path=other")  # not sent, as without a pooler
    monkeypatch.delenv("PGGEQO")
    with closing(engine.open()) as session:
        assert len(read(session, T)) == 500


def test_a_pooler_whose_server_is_gone_is_unavailable(pg: OfPostgreSQL, pool: Pool) -> None:
    pooler = pool()
    engine = engine_of(pooler, pg, connect_s=2)
    file = pooler.folder / "pgbouncer.ini"
    file.write_text(file.read_text().replace(str(pg.server.folder), "/nowhere"))
    with pooler.client("postgres", "pgbouncer") as admin:
        admin.execute("RELOAD")
    with pytest.raises(DatabaseUnavailable):
        engine.open()


def test_a_session_that_the_server_ended_is_unavailable(pg: OfPostgreSQL, pool: Pool) -> None:
    pooler = pool()
    engine = engine_of(pooler, pg)
    with closing(engine.open()) as session:
        shape = session.describe(T)
        pooler.close_sessions(pg.database)
        with pytest.raises(DatabaseUnavailable):
            flat(session.scan(shape))
    with closing(engine.open()) as session:
        assert len(read(session, T)) == 500


def test_limits_hold_behind_a_pooler(pg: OfPostgreSQL, pool: Pool) -> None:
    with closing(engine_of(pool(), pg, statement_s=0.2).open()) as session:
        slow = Relation("s", query="SELECT 1 AS id, pg_sleep(9)::text AS s", key=("id",))
        shape = session.describe(slow)
        with pytest.raises(DatabaseRefused, match="statement timeout"):
            flat(session.scan(shape))


def test_the_generic_engine_leaves_no_prepared_statement(pg: OfPostgreSQL, pool: Pool) -> None:
    pooler = pool(default_pool_size=2)  # it describes on a connection of its own
    engine = connect(f"generic+{pooler.url('postgres', pg.database)}", None, Limits())
    with closing(engine.open()) as session:
        types = ("id", "int8"), ("note", "text")
        relation = Relation("k", query="SELECT id, note FROM t", key=("id",), types=types)
        shape = session.describe(relation)
        for _ in range(8):  # the driver would prepare what comes often
            assert len(rows_of(session, shape)) == 500
            for low in range(3):
                bounds = np.array([low], np.int64), np.array([low + 9], np.int64)
                flat(session.read_ranges(shape, *bounds))
    one, two = (pooler.client("postgres", pg.database) for _ in range(2))
    with one, two, one.transaction(), two.transaction():
        for other in (one, two):
            assert other.execute("SELECT name FROM pg_prepared_statements").fetchall() == []


def test_row_security_by_a_setting_of_another_client(pg: OfPostgreSQL, pool: Pool) -> None:
    """The rows of nobody's tenant are those that a new session sees; a second session is needed."""
    login = f"reader{pg.database}"
    pg.run(
        f"CREATE ROLE {login} LOGIN",
        f"GRANT SELECT ON t TO {login}",
        "CREATE POLICY own ON t USING (id % 3 = 0 AND id % 2 ="
        " COALESCE(NULLIF(current_setting('app.tenant', true), ''), '0')::int)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
    )
    pooler = pool(users=[login], default_pool_size=2)
    with pooler.client(login, pg.database) as one, pooler.client(login, pg.database) as two:
        with one.transaction(), two.transaction():  # both sessions of the pool
            for other in (one, two):
                other.execute("SET app.tenant = '1'")
        with closing(connect(pooler.url(login, pg.database), None, Limits()).open()) as session:
            shape = session.describe(T)
            assert shape.row_security is not None
            assert shape.row_security.policies
            assert {int(str(row[0])) % 6 for row in rows_of(session, shape)} == {0}
        assert {other.execute("SHOW app.tenant").fetchone() for other in (one, two)} == {("1",)}
    pg.run(f"DROP OWNED BY {login}", f"DROP ROLE {login}")


class OnPort(PostgreSQL):
    """A second server, on a port that is given."""

    host = "127.0.0.2"

    def __init__(self, port: int) -> None:
        self._given = port
        super().__init__()

    def _start(self) -> None:
        self.port = self._given
        super()._start()


@pytest.mark.soak
def test_a_pooler_of_several_servers_is_unavailable(pg: OfPostgreSQL, pool: Pool) -> None:
    with OnPort(pg.server.port) as second:
        with second.superuser() as connection:
            connection.execute(f"CREATE DATABASE {pg.database}")
        pooler = pool(default_pool_size=2, server_round_robin=1)
        file = pooler.folder / "pgbouncer.ini"
        both = f"{pg.server.folder},{second.folder}"
        file.write_text(file.read_text().replace(str(pg.server.folder), both))
        with pooler.client("postgres", "pgbouncer") as admin:
            admin.execute("RELOAD")
        one, two = (pooler.client("postgres", pg.database) for _ in range(2))
        with one, two, one.transaction(), two.transaction():
            started = "SELECT pg_postmaster_start_time()"
            assert one.execute(started).fetchone() != two.execute(started).fetchone()
        with pytest.raises(DatabaseUnavailable, match="different servers"):
            engine_of(pooler, pg).open()


def test_tls_to_the_pooler(pg: OfPostgreSQL, pool: Pool, tmp_path: Path) -> None:
    enroll(tmp_path, source_names=["127.0.0.1"])
    folder = Path(pg.server.folder)
    for name in ("source.pem", "source.key"):
        (folder / name).write_bytes((tmp_path / name).read_bytes())
        (folder / name).chmod(0o644)
    pooler = pool(
        client_tls_sslmode="require",
        client_tls_cert_file=folder / "source.pem",
        client_tls_key_file=folder / "source.key",
    )
    trusted = {"sslmode": "verify-full", "sslrootcert": str(tmp_path / "ca.pem")}
    with closing(
        connect(pooler.url("postgres", pg.database, **trusted), None, Limits()).open()
    ) as session:
        assert session.server.pooler
        assert len(read(session, T)) == 500
    assert "tls=TLS" in logged(pooler)
