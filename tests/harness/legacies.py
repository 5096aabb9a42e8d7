"""Our engines as the conformance suite sees them: a `Legacy` for each, and its line in `KINDS`."""

from __future__ import annotations

import math
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pymysql
import pytest

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.encoding import rows
from source_agent.engines.mysql_family import sql as mariadb_sql
from source_agent.engines.postgresql import copy
from source_agent.engines.relations.select import null_key_sql
from source_agent.engines.relations.shapes import Shape
from source_agent.engines.sqlite import session as sqlite_session
from source_agent.engines.sqlite import sql as sqlite_sql
from source_agent.engines.sqlite import values as sqlite_values
from tests.conformance import engine_types
from tests.harness.family import LONG_SEQUENCES, of_mysql
from tests.harness.mysql_server import MySQL
from tests.harness.servers import FamilyServer, PostgreSQL

MARIADB_PLAN = "EXPLAIN FORMAT=TRADITIONAL "  # MySQL has another format for people


def _granted(legacy: OfMariaDB, script: str, login: str) -> str:
    """Execute the script as it says: then its last line, with a password."""
    script = script.replace("-- ALTER USER", "ALTER USER").replace("'…'", "'pw'")
    text = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
    legacy.run(*(s for s in text.split(";") if s.strip()))
    return legacy.server.url(login, legacy.database)


class OfPostgreSQL(Legacy):
    name = "postgresql"
    text_key = "text"
    hostile_where = "name IS DISTINCT FROM '%s' -- a comment"
    blob = "bytea"
    types = engine_types.POSTGRESQL
    prelude: Sequence[str] = (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE TYPE pair AS (a int, b text)",
    )
    row_limits: Sequence[ModuleType] = (copy, rows)
    write_errors = (psycopg.Error,)

    def __init__(self, server: PostgreSQL) -> None:
        self.server = server
        self.database = server.create_database(f"c{uuid.uuid4().hex[:12]}")
        self.url = server.url("postgres", self.database)
        with server.superuser() as connection:
            release = connection.info.server_version // 10_000
        self.types = [c for c in self.types if engine_types.SINCE.get(c[0], 0) <= release]

    def run(self, *statements: str) -> None:
        with self.server.superuser(self.database) as connection:
            for sql in statements:
                connection.execute(sql)

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        marks = ", ".join(["%s"] * len(rows[0]))
        with self.server.superuser(self.database) as connection, connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def raw_write(self, session: Any, sql: str) -> None:
        session._connection.execute("ROLLBACK")
        session._connection.execute(sql)

    def record(self, monkeypatch: pytest.MonkeyPatch, issued: list[str]) -> None:
        execute = psycopg.Cursor.execute

        def recorded(self: Any, query: Any, *rest: Any, **options: Any) -> Any:
            issued.append(query)
            return execute(self, query, *rest, **options)

        monkeypatch.setattr(psycopg.Cursor, "execute", recorded)

    def analyze(self, table: str) -> None:
        self.run(f"ANALYZE {table}")

    def index_plans(self, session: Any, shape: Shape) -> list[str]:
        return [str(session.ask("EXPLAIN " + null_key_sql(shape)))]

    def granted(self, script: str, login: str) -> str:
        self.run(script)  # as psql does: the server splits it
        return self.server.url(login, self.database)

    def drop_login(self, login: str) -> None:
        self.run(f"DROP OWNED BY {login}", f"DROP ROLE {login}")

    def close(self) -> None:
        self.server.drop_database(self.database)


class OfMariaDB(Legacy):
    name = "mariadb"
    text_key = "varchar(100) COLLATE utf8mb4_bin"
    hostile_where = "NOT (name <=> '%s') -- a comment"
    blob = "longblob"
    mark = "`"
    null = " NULL"
    types = engine_types.MARIADB
    refused = engine_types.REFUSED_BY_MARIADB
    write_errors = (pymysql.Error,)

    def __init__(self, server: FamilyServer) -> None:
        self.server = server
        self.database = server.create_database(f"c{uuid.uuid4().hex[:12]}")
        self.url = server.url("root", self.database)

    def run(self, *statements: str) -> None:
        with self.server.admin(self.database) as connection, connection.cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        marks = ", ".join(["%s"] * len(rows[0]))
        with self.server.admin(self.database) as connection, connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def raw_write(self, session: Any, sql: str) -> None:
        session._connection.rollback()
        with session._connection.cursor() as cursor:
            cursor.execute(sql)

    def record(self, monkeypatch: pytest.MonkeyPatch, issued: list[str]) -> None:
        execute = pymysql.cursors.Cursor.execute

        def recorded(self: Any, query: Any, args: Any = None) -> Any:
            issued.append(query)
            return execute(self, query, args)

        monkeypatch.setattr(pymysql.cursors.Cursor, "execute", recorded)

    def insert_unchecked(self, table: str, *rows: str) -> None:
        self.run("SET sql_mode = ''", *(f"INSERT INTO {table} VALUES ({row})" for row in rows))

    def analyze(self, table: str) -> None:
        self.run(f"ANALYZE TABLE {table}")

    def index_plans(self, session: Any, shape: Shape) -> list[str]:
        return [str(session.ask(MARIADB_PLAN + null_key_sql(shape, mariadb_sql.MARK)))]

    def granted(self, script: str, login: str) -> str:
        return _granted(self, script, login)

    def drop_login(self, login: str) -> None:
        self.run(f"DROP USER {login}")

    def close(self) -> None:
        self.server.drop_database(self.database)


class OfMySQL(OfMariaDB):
    """As MariaDB, whose SQL, driver and scripts it has; not its types."""

    name = "mysql"
    types = engine_types.MYSQL

    def run(self, *statements: str) -> None:
        super().run(LONG_SEQUENCES, *map(of_mysql, statements))


def of_family(server: FamilyServer) -> OfMariaDB:
    """Return a new database of a server, whichever it is."""
    return OfMySQL(server) if isinstance(server, MySQL) else OfMariaDB(server)


class OfSQLite(Legacy):
    name = "sqlite"
    text_key = "text"
    hostile_where = "name IS NOT '%s?' -- a comment"
    blob = "blob"
    types = engine_types.SQLITE
    refused = engine_types.REFUSED_BY_SQLITE
    row_limits: Sequence[ModuleType] = (sqlite_session, rows)
    names_wide_rows = False
    write_errors = (sqlite3.Error,)
    lacks = frozenset({Capability.LOGINS})

    def __init__(self, path: Path, *, journal: str = "wal") -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.run(f"PRAGMA journal_mode = {journal}")

    def run(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path, timeout=0.2, isolation_level=None)) as connection:
            for sql in statements:
                connection.execute(sql)

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(rows[0]))
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            connection.commit()

    def raw_write(self, session: Any, sql: str) -> None:
        connection = session._connection
        connection.set_authorizer(None)
        connection.execute("ROLLBACK")
        connection.execute("PRAGMA query_only = 0")
        connection.execute(sql)

    def record(self, monkeypatch: pytest.MonkeyPatch, issued: list[str]) -> None:
        connect = sqlite3.connect

        class Recorded(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> Any:
                issued.append(sql)
                return super().execute(sql, *values)

        monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Recorded, **k))

    def index_plans(self, session: Any, shape: Shape) -> list[str]:
        found = [str(session.ask("EXPLAIN QUERY PLAN " + null_key_sql(shape, sqlite_values.MARK)))]
        for is_open, values in ((False, (-math.inf, 7)), (True, (7,)), (True, (-math.inf,))):
            sql = sqlite_sql.range_sql(shape, is_open=is_open)
            found.append(str(session.ask("EXPLAIN QUERY PLAN " + sql, *values)))
        return found

    def number(self, text: str) -> object:
        return float(text)

    def general(self, sql: str) -> str:
        if sql.startswith("PRAGMA main.index_xinfo"):
            return "PRAGMA main.index_xinfo"
        return super().general(sql)


KINDS: dict[str, Callable[[pytest.FixtureRequest, Path], Legacy]] = {
    "postgresql": lambda request, _: OfPostgreSQL(request.getfixturevalue("postgresql")),
    "mariadb": lambda request, _: of_family(request.getfixturevalue("mariadb")),
    "mysql": lambda request, _: OfMySQL(request.getfixturevalue("mysql")),
    "sqlite": lambda _, folder: OfSQLite(folder / "legacy.sqlite"),
}
CLASSES: tuple[type[Legacy], ...] = (OfPostgreSQL, OfMariaDB, OfMySQL, OfSQLite)
