"""The limits of time that a DBA has set for the agent's login are tightened and never lifted.

Real roles with real settings; a limit that holds is one that ends a statement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline import errors

from source_agent.engines.conformance.reads import split_of
from source_agent.engines.interface import Engine, Limits, Session
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.family import FAMILY
from tests.harness.mysql_server import MySQL
from tests.harness.servers import FamilyServer, PostgreSQL
from tests.harness.source_commands import source_command

ROLE_LIMITS_MS = {
    "statement_timeout": 700,
    "lock_timeout": 900,
    "idle_in_transaction_session_timeout": 1_000,
    "idle_session_timeout": 9_000,
    "transaction_timeout": 8_000,
}
SLOW = Relation("slow", query="SELECT 1 AS id, pg_sleep(11)::text AS x", key=("id",))


@pytest.fixture
def strict_role(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a login whose DBA has set every limit of time that the server has."""
    if postgresql.release < 17:
        monkeypatch.delitem(ROLE_LIMITS_MS, "transaction_timeout")
    postgresql.create_login("strict")
    with postgresql.superuser() as connection:
        for name, ms in ROLE_LIMITS_MS.items():
            connection.execute(f"ALTER ROLE strict SET {name} = {ms}")
    yield postgresql.url("strict", "postgres")
    with postgresql.superuser() as connection:
        connection.execute("DROP ROLE strict")


def engine(url: str, **limits: Any) -> Engine:
    return connect(url, None, Limits(**limits))


def in_force(session: Session) -> dict[str, float]:
    return {limit.name: limit.seconds for limit in session.time_limits}


def test_limits_of_a_role_are_not_lifted(strict_role: str) -> None:
    with closing(engine(strict_role).open()) as session:
        assert in_force(session) == {n: ms / 1000 for n, ms in ROLE_LIMITS_MS.items()}
    with closing(engine(strict_role, statement_s=3600, lock_s=3600, idle_s=3600).open()) as session:
        assert in_force(session) == {n: ms / 1000 for n, ms in ROLE_LIMITS_MS.items()}


def test_limits_of_a_role_are_tightened(strict_role: str) -> None:
    with closing(engine(strict_role, statement_s=0.2, lock_s=0.3, idle_s=0.4).open()) as session:
        assert in_force(session) == {n: ms / 1000 for n, ms in ROLE_LIMITS_MS.items()} | {
            "statement_timeout": 0.2,
            "lock_timeout": 0.3,
            "idle_in_transaction_session_timeout": 0.4,
        }


def test_a_role_without_limits_has_those_of_the_file(postgresql: PostgreSQL) -> None:
    url = postgresql.url("postgres", "postgres")
    with closing(engine(url, statement_s=60).open()) as session:
        assert in_force(session) == {
            "statement_timeout": 60,
            "lock_timeout": Limits().lock_s,
            "idle_in_transaction_session_timeout": Limits().idle_s,
        }
    with closing(engine(url).open()) as session:
        assert "statement_timeout" not in in_force(session)


def test_the_statement_timeout_of_a_role_ends_a_scan(strict_role: str) -> None:
    with closing(engine(strict_role).open()) as session:
        shape = session.describe(SLOW)
        began = time.monotonic()
        with pytest.raises(errors.DatabaseRefused, match="statement timeout") as caught:
            list(session.scan(shape))
        assert time.monotonic() - began < 5
        assert "of the role" in caught.value.remedy


def test_a_reader_process_keeps_the_limits_of_the_role(
    postgresql: PostgreSQL, strict_role: str
) -> None:
    with postgresql.superuser() as connection:
        connection.execute(
            "CREATE TABLE wide AS SELECT i, repeat('x', 900) t FROM generate_series(1, 20000) i"
        )
        connection.execute("ALTER TABLE wide ADD PRIMARY KEY (i)")
        connection.execute("GRANT SELECT ON wide TO strict")
    try:
        with closing(engine(strict_role).open()) as session:
            split = split_of(session, session.describe(Relation("wide", table="wide")))
            assert split is not None
            joined = split.join()
            with closing(joined.session) as other:
                assert in_force(other) == {n: ms / 1000 for n, ms in ROLE_LIMITS_MS.items()}
                # While other processes read, this session is kept within the role's idle limit.
                ends_at = time.monotonic() + 1.5
                while time.monotonic() < ends_at:
                    split.wait()
                    time.sleep(0.25)  # as `share.LOOK_S`: nothing else happens here
    finally:
        with postgresql.superuser() as connection:
            connection.execute("DROP TABLE wide")


@pytest.mark.parametrize("name", FAMILY)
def test_limits_of_an_account_are_not_lifted(request: pytest.FixtureRequest, name: str) -> None:
    """Those of a MySQL are the server's: its accounts have none of time."""
    server: FamilyServer = request.getfixturevalue(name)
    server.create_login("strict")
    is_mysql = isinstance(server, MySQL)
    statement = "max_execution_time" if is_mysql else "max_statement_time"
    tight: dict[str, float] = {
        "lock_wait_timeout": 2,
        "innodb_lock_wait_timeout": 3,
        "wait_timeout": 7,
        "net_write_timeout": 13,
    }
    if not is_mysql:
        tight |= {"idle_transaction_timeout": 11, "idle_readonly_transaction_timeout": 12}
    with closing(server.admin()) as admin, admin.cursor() as cursor:

        def globally(limit: str) -> Any:
            cursor.execute(f"SELECT @@GLOBAL.{limit}")
            return cursor.fetchone()[0]

        before = {limit: globally(limit) for limit in tight}
        try:
            for limit, seconds in tight.items():
                cursor.execute(f"SET GLOBAL {limit} = {seconds:g}")
            limited = "ALTER USER strict@'%' WITH MAX_STATEMENT_TIME 0.7"
            cursor.execute("SET GLOBAL max_execution_time = 700" if is_mysql else limited)
            cursor.execute("ALTER USER strict@'%' IDENTIFIED BY ''")
            url = server.url("strict", "information_schema")
            with closing(engine(url).open()) as session:
                assert in_force(session) == {**tight, statement: 0.7}
            with closing(engine(url, statement_s=60, lock_s=60, idle_s=600).open()) as session:
                assert in_force(session) == {**tight, statement: 0.7}
            with closing(engine(url, statement_s=0.5, lock_s=1, idle_s=5).open()) as session:
                assert in_force(session) == tight | {
                    statement: 0.5,
                    "lock_wait_timeout": 1,
                    "innodb_lock_wait_timeout": 1,
                    "wait_timeout": 5,
                }
        finally:
            for limit, seconds in before.items():
                cursor.execute(f"SET GLOBAL {limit} = {seconds}")
            if is_mysql:
                cursor.execute("SET GLOBAL max_execution_time = DEFAULT")
            cursor.execute("DROP USER strict@'%'")
    with closing(engine(server.url("root", "mysql"), statement_s=60).open()) as session:
        found = in_force(session)
        assert found[statement] == 60
        assert found["lock_wait_timeout"] == found["innodb_lock_wait_timeout"] == Limits().lock_s
        assert found["wait_timeout"] == min(Limits().idle_s, before["wait_timeout"])
        assert found["net_write_timeout"] == before["net_write_timeout"]


def test_check_shows_the_limits_in_force(
    postgresql: PostgreSQL, strict_role: str, tmp_path: Path
) -> None:
    with postgresql.superuser() as connection:
        connection.execute("CREATE TABLE few AS SELECT 1 AS id")
        connection.execute("GRANT SELECT ON few TO strict")
    file = tmp_path / "source.toml"
    file.write_text(
        f'[database]\nurl = "{strict_role}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        '[relations.few]\ntable = "few"\nkey = ["id"]\n'
    )
    try:
        text = source_command(file, "check", "--verbose").stdout
    finally:
        with postgresql.superuser() as connection:
            connection.execute("DROP TABLE few")
    assert "statement_timeout 0.7 s" in text
    assert "idle_in_transaction_session_timeout is shorter than the 30 s" in text


def test_an_idle_session_that_the_role_ends_is_a_lost_snapshot(strict_role: str) -> None:
    with closing(engine(strict_role, idle_s=0.2).open()) as session:
        time.sleep(0.6)
        with pytest.raises(errors.SnapshotLost, match="idle-in-transaction"):
            session.describe(SLOW)
