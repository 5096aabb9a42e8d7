"""The three engines as the conformance suite sees them: a database to write to, and its URL.

Each adapter is one empty database. `run` executes statements as somebody who may do anything and
commits; `url` is what the agent would find in the DBA's file.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from tests.harness.servers import MariaDB, PostgreSQL


class Legacy(Protocol):
    name: str
    url: str
    text_key: str  # a type for text that can be a key
    hostile_where: str  # always true, and a trap for whoever formats SQL

    def run(self, *statements: str) -> None: ...

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None: ...


class OfPostgreSQL:
    name = "postgresql"
    text_key = "text"
    hostile_where = "name IS DISTINCT FROM '%s' -- a comment"

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

    def close(self) -> None:
        self.server.drop_database(self.database)


class OfMariaDB:
    name = "mariadb"
    text_key = "varchar(100) COLLATE utf8mb4_bin"
    hostile_where = "NOT (name <=> '%s') -- a comment"

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

    def close(self) -> None:
        self.server.drop_database(self.database)


class OfSQLite:
    name = "sqlite"
    text_key = "text"
    hostile_where = "name IS NOT '%s?' -- a comment"

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

    def close(self) -> None:
        """The folder goes with the test."""
