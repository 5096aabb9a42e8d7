"""The engines as the conformance suite sees them: an empty database to write to, and its URL.

A `Legacy` is one empty database. `run` executes statements as somebody who may do anything and
commits; `url` is what the agent would find in the DBA's file. What engines write differently, and
what a test must do below the agent's own code, is an attribute or a method here, so that the suite
names no engine. A new engine is one more class and its line in `KINDS`.
"""

from __future__ import annotations

import math
import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pymysql
import pytest

from source_agent.engines import rows
from source_agent.engines.interface import Shape
from source_agent.engines.mariadb import sql as mariadb_sql
from source_agent.engines.postgresql import copy
from source_agent.engines.relations import null_key_sql
from source_agent.engines.sqlite import session as sqlite_session
from source_agent.engines.sqlite import types as sqlite_types
from source_agent.engines.sqlite import values as sqlite_values
from tests.conformance import engine_types
from tests.conformance.engine_types import Case, Refusal
from tests.harness.servers import MariaDB, PostgreSQL


class Legacy(ABC):
    """One empty database of one engine."""

    name: str
    url: str
    text_key: str  # a type for text that can be a key
    hostile_where: str  # always true, and a trap for whoever formats SQL
    blob: str  # a type for many bytes
    mark: str = '"'  # around a name
    null: str = ""  # behind a type whose column may be NULL
    types: Sequence[Case]
    prelude: Sequence[str] = ()  # statements that make the types of `types`
    refused: Sequence[Refusal] = ()  # values that a column holds and its declared type does not
    row_limits: Sequence[ModuleType] = (rows,)  # the modules that apply ROW_BYTES_MAX
    names_wide_rows: bool = True  # the error for a row above the limit contains its key
    write_errors: tuple[type[Exception], ...]  # of the driver, for a statement that writes

    @abstractmethod
    def run(self, *statements: str) -> None:
        """Execute statements as the owner, and commit."""

    @abstractmethod
    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows as the owner, and commit."""

    @abstractmethod
    def raw_write(self, session: Any, sql: str) -> None:
        """Execute a statement on a session's connection, outside its transaction and without the
        limits that the agent sets after it has connected."""

    @abstractmethod
    def record(self, monkeypatch: pytest.MonkeyPatch, issued: list[str]) -> None:
        """Append each statement that reaches the driver to `issued`."""

    def insert_unchecked(self, table: str, values: str) -> None:
        """Insert values that the engine takes only when it is told not to check them."""
        self.run(f"INSERT INTO {table} VALUES {values}")

    def analyze(self, table: str) -> None:  # noqa: B027 - not every engine needs it
        """Let the engine know how many rows a table has."""

    def index_plans(self, session: Any, shape: Shape) -> list[str]:
        """Return the engine's plans of looking for a key that is NULL."""
        raise NotImplementedError(f"{self.name} shows no plans")

    def number(self, text: str) -> object:
        """Return the value that the owner's driver inserts for a decimal number."""
        return Decimal(text)

    def general(self, sql: str) -> str:
        """Return a statement in the form in which `Engine.templates` has it."""
        return " ".join(sql.split())

    def close(self) -> None:  # noqa: B027 - a file goes with its folder
        """Drop the database."""


class OfPostgreSQL(Legacy):
    name = "postgresql"
    text_key = "text"
    hostile_where = "name IS DISTINCT FROM '%s' -- a comment"
    blob = "bytea"
    types = engine_types.POSTGRESQL
    prelude = (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE TYPE pair AS (a int, b text)",
    )
    row_limits = (copy, rows)
    write_errors = (psycopg.Error,)

    def __init__(self, server: PostgreSQL) -> None:
        self.server = server
        self.database = server.create_database(f"c{uuid.uuid4().hex[:12]}")
        self.url = server.url("postgres", self.database)

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

    def __init__(self, server: MariaDB) -> None:
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

    def insert_unchecked(self, table: str, values: str) -> None:
        self.run("SET sql_mode = ''", f"INSERT INTO {table} VALUES {values}")

    def analyze(self, table: str) -> None:
        self.run(f"ANALYZE TABLE {table}")

    def index_plans(self, session: Any, shape: Shape) -> list[str]:
        return [str(session.ask("EXPLAIN " + null_key_sql(shape, mariadb_sql.MARK)))]

    def drop_login(self, login: str) -> None:
        self.run(f"DROP USER {login}")

    def close(self) -> None:
        self.server.drop_database(self.database)


class OfSQLite(Legacy):
    name = "sqlite"
    text_key = "text"
    hostile_where = "name IS NOT '%s?' -- a comment"
    blob = "blob"
    types = engine_types.SQLITE
    refused = engine_types.REFUSED_BY_SQLITE
    row_limits = (sqlite_session, rows)
    names_wide_rows = False
    write_errors = (sqlite3.Error,)

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
            sql = sqlite_types.range_sql(shape, is_open=is_open)
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
    "mariadb": lambda request, _: OfMariaDB(request.getfixturevalue("mariadb")),
    "sqlite": lambda _, folder: OfSQLite(folder / "legacy.sqlite"),
}
CLASSES: tuple[type[Legacy], ...] = (OfPostgreSQL, OfMariaDB, OfSQLite)
