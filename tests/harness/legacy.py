"""A legacy system for a test: one database of one engine, written by its owner, read by us.

The owner's connection edits the tables and is the oracle: `rows` reads them with the driver's own
conversions, independently of everything that the agent does. The agent gets a login of its own that
may SELECT and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pymysql
import pytest

from tests.harness.family import of_mysql
from tests.harness.mysql_server import MySQL
from tests.harness.servers import FamilyServer, PostgreSQL

_NUMBERS = itertools.count(1)
RECOVERY_S_MAX = 30.0
SESSION_END_S_MAX = 10.0


class Legacy(Protocol):
    """What a test does with its legacy system."""

    engine: str  # whose SQL a test writes for it
    url: str
    password: str | None

    def execute(self, sql: str, *parameters: Any) -> None:
        """One statement of the owner's, committed; parameters are written `?`."""

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...

    def rows(self, table: str) -> list[tuple[Any, ...]]: ...

    def close(self) -> None: ...


class ServedLegacy(Legacy, Protocol):
    """A legacy system whose sessions can be counted."""

    def sessions(self) -> int:
        """Return how many sessions the agent's login has."""


class SqliteLegacy:
    """A file; `wal` decides whether readers block writers."""

    engine = "sqlite"
    password: str | None = None

    def __init__(self, path: Path, *, wal: bool = True) -> None:
        self._connection = sqlite3.connect(path)
        self._connection.execute(f"PRAGMA journal_mode={'wal' if wal else 'delete'}")
        self._connection.execute("PRAGMA synchronous=OFF")  # no test cuts the power
        self.url = f"sqlite:///{path}"

    def execute(self, sql: str, *parameters: Any) -> None:
        self._connection.execute(sql, parameters)
        self._connection.commit()

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)
        self._connection.commit()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(f'SELECT * FROM "{table}"').fetchall()

    def sessions(self) -> int:
        return 0  # of a file

    def close(self) -> None:
        self._connection.close()


class PostgresLegacy:
    """A database of its own on the session's server."""

    engine = "postgresql"

    def __init__(self, server: PostgreSQL) -> None:
        self._server = server
        self.watched: PostgreSQL | None = None  # another server that the agent reads
        number = next(_NUMBERS)
        self.database = f"legacy{number}"
        self.login = login = f"reader{number}"
        server.create_database(self.database)
        self.password: str | None = server.create_login(login)
        self.url = server.tcp_url(login, self.database)
        self._connection = server.superuser(self.database)
        for grant in (
            "REVOKE TEMPORARY ON DATABASE {d} FROM PUBLIC",
            "GRANT USAGE ON SCHEMA public TO {r}",
            "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {r}",
        ):
            self.execute(grant.format(d=self.database, r=login))

    def await_writable(self) -> None:
        """Wait until the server has ended its recovery."""
        deadline = time.monotonic() + RECOVERY_S_MAX
        while self._connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            assert time.monotonic() < deadline, "it recovers"
            time.sleep(0.05)

    def execute(self, sql: str, *parameters: Any) -> None:
        self._connection.execute(_percent(sql, parameters), parameters or None)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s"), rows)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(f'SELECT * FROM "{table}"').fetchall()

    def sessions(self) -> int:
        sql = "SELECT 1 FROM pg_stat_activity WHERE usename = %s"
        if self.watched is None:
            return len(self._connection.execute(sql, (self.login,)).fetchall())
        with self.watched.superuser(self.database) as connection:
            return len(connection.execute(sql, (self.login,)).fetchall())

    def is_asleep(self) -> bool:
        """Return True if a statement of the agent's is in pg_sleep, on the server it reads."""
        with (self.watched or self._server).superuser(self.database) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE usename = %s AND wait_event = 'PgSleep'",
                (self.login,),
            ).fetchone()
        return found == (1,)

    def sequential_scans(self, table: str) -> int:
        """Return how often the table was read from end to end, by the server's own counter.

        The counts of a session are added when it ends, so the sessions of the agent must have.
        """
        deadline = time.monotonic() + SESSION_END_S_MAX
        while self.sessions():
            assert time.monotonic() < deadline, "the agent still has a session"
            time.sleep(0.01)
        self.execute("SELECT pg_stat_force_next_flush()")
        query = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = %s"
        (found,) = self._connection.execute(query, (table,)).fetchone() or (0,)
        return int(found)

    def signal(self, what: str) -> None:
        """Cancel or terminate the agent's sessions, as the DBA does."""
        self.execute(
            f"SELECT pg_{what}_backend(pid) FROM pg_stat_activity WHERE usename = '{self.login}'"
        )

    def reconnect(self) -> None:
        """After the server was restarted."""
        self._connection.close()
        self._connection = self._server.superuser(self.database)

    def close(self) -> None:
        self._connection.close()
        self._server.drop_database(self.database)


class MariaLegacy:
    """A database of its own on the session's server."""

    engine = "mariadb"

    def __init__(self, server: FamilyServer) -> None:
        self._server = server
        number = next(_NUMBERS)
        self.database = f"legacy{number}"
        self.login = login = f"reader{number}"
        server.create_database(self.database)
        self.password: str | None = server.create_login(login)
        self.url = server.tcp_url(login, self.database)
        with closing(server.admin()) as admin, admin.cursor() as cursor:
            cursor.execute(f"GRANT SELECT ON {self.database}.* TO '{login}'@'%'")
        self._connection = server.admin(self.database)
        self._connection.autocommit(True)

    def execute(self, sql: str, *parameters: Any) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(_percent(sql, parameters), parameters or None)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.begin()
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s"), list(rows))
        self._connection.commit()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM `{table}`")
            return list(cursor.fetchall())

    def sessions(self) -> int:
        with self._connection.cursor() as cursor:
            sql = "SELECT 1 FROM information_schema.processlist WHERE user = %s"
            return int(cursor.execute(sql, (self.login,)))

    def is_asleep(self) -> bool:
        """Return True if a statement of the agent's is in SLEEP."""
        with closing(self._server.admin()) as admin, admin.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM information_schema.processlist"
                " WHERE user = %s AND state = 'User sleep'",
                (self.login,),
            )
            return cursor.fetchone() == (1,)

    def kill_readers(self) -> None:
        """End the connections of the agent's login."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"KILL CONNECTION USER '{self.login}'@'%'")

    def reconnect(self) -> None:
        """After the server was restarted."""
        self._connection.close()
        self._connection = self._server.admin(self.database)

    def close(self) -> None:
        self._connection.close()
        self._server.drop_database(self.database)


class MysqlLegacy(MariaLegacy):
    """A database of its own on the session's MySQL. Its `engine` is that whose SQL it speaks."""

    def execute(self, sql: str, *parameters: Any) -> None:
        super().execute(of_mysql(sql), *parameters)

    def kill_readers(self) -> None:
        with self._connection.cursor() as cursor:
            sql = "SELECT id FROM information_schema.processlist WHERE user = %s"
            cursor.execute(sql, (self.login,))
            for (number,) in cursor.fetchall():
                with contextlib.suppress(pymysql.OperationalError):  # it has gone by itself
                    cursor.execute(f"KILL CONNECTION {number}")


def of_family(server: FamilyServer) -> MariaLegacy:
    """Return a new database of a server, whichever it is."""
    return MysqlLegacy(server) if isinstance(server, MySQL) else MariaLegacy(server)


def _percent(sql: str, parameters: Sequence[Any]) -> str:
    return sql.replace("?", "%s") if parameters else sql


# By name, as fixtures have it in their parameters: makes a new legacy system, to be closed.
LEGACIES: dict[str, Callable[[pytest.FixtureRequest, Path], ServedLegacy]] = {
    "sqlite": lambda _, folder: SqliteLegacy(folder / "erp.db"),
    "sqlite-journal": lambda _, folder: SqliteLegacy(folder / "erp.db", wal=False),
    "postgresql": lambda request, _: PostgresLegacy(request.getfixturevalue("postgresql")),
    "mariadb": lambda request, _: of_family(request.getfixturevalue("mariadb")),
    "mysql": lambda request, _: MysqlLegacy(request.getfixturevalue("mysql")),
}
