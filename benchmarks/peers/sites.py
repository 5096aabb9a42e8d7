"""Two sites with a link between: database servers inside the two network namespaces.

    source namespace                                warehouse namespace
    PostgreSQL, MariaDB on 10.91.0.1   ── link ──   PostgreSQL, MariaDB on 10.91.0.2

Peers compare two databases, so the warehouse's site has one, too, with what the source held before
the change. Driftline keeps a Delta table there and needs no second database. The harness itself is
at neither site; it loads and changes tables by the servers' sockets, which do not cross the link.

All tools for PostgreSQL face the same server: Debian's where pg_comparator's extension is installed
(it fits no other), else the wheel's. Vacuum runs after every load and change and never by itself,
or whoever reads first after a change would pay for all.

Logins over the network need no password, which favours nobody: `reader` may SELECT and nothing
else, in read-only sessions; `writer` may also make temporary tables; `postgres` and `root` are the
superusers that tools use at the warehouse.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import psycopg

from benchmarks.peers.changes import ChangeSet, Table
from tests.harness.servers import MariaDB, PostgreSQL
from tests.wan.link import SOURCE_ADDRESS, WAREHOUSE_ADDRESS, Link

DATABASE = "bench"
READER, WRITER = "reader", "writer"
LINES_PER_WRITE = 10_000
DEBIAN = Path("/usr/lib/postgresql")
LOAD = "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY ''"


class Side(Enum):
    SOURCE = "source"
    WAREHOUSE = "warehouse"


class Engine(Enum):
    POSTGRESQL = "PostgreSQL"
    MARIADB = "MariaDB"


class Database(Protocol):
    """A server at a site, with the benchmark's tables."""

    host: str
    port: int

    @property
    def pid(self) -> int: ...
    def load(self, table: Table, lines: Sequence[bytes]) -> None:
        """Drop what there is and create the table anew."""

    def apply(self, changes: ChangeSet) -> None: ...
    def statements(self) -> int | None:
        """So many were executed since the server began; None where it does not count."""

    def version(self) -> str: ...
    def close(self) -> None: ...


class Sites:
    """The servers of one benchmark, each started when first asked for. Closed by `stack`.

    `settings` are PostgreSQL's own.
    """

    def __init__(self, stack: ExitStack, link: Link, folder: Path, **settings: str) -> None:
        self.link, self.folder = link, folder
        self._stack, self._settings = stack, settings
        self._databases: dict[tuple[Engine, Side], Database] = {}

    def database(self, engine: Engine, side: Side) -> Database:
        database = self._databases.get((engine, side))
        if database is None:
            enter = self.link.enter[0 if side is Side.SOURCE else 1]
            host = SOURCE_ADDRESS if side is Side.SOURCE else WAREHOUSE_ADDRESS
            if engine is Engine.POSTGRESQL:
                database = PlacedPostgreSQL(enter, host, **self._settings)
            else:
                database = PlacedMariaDB(enter, host)
            self._databases[engine, side] = database
            self._stack.callback(database.close)
        return database

    def postgresql(self, side: Side) -> PlacedPostgreSQL:
        database = self.database(Engine.POSTGRESQL, side)
        assert isinstance(database, PlacedPostgreSQL)
        return database


@cache
def debian_server() -> Path | None:
    """The programs of the newest PostgreSQL that pg_comparator's extension is installed for."""
    libraries = sorted(DEBIAN.glob("*/lib/pgcmp.so"), key=lambda file: int(file.parts[-3]))
    return libraries[-1].parent.parent / "bin" if libraries else None


def drop_rights(user: str | None, signal: str) -> list[str]:
    """The words before a server's command in a namespace: entering took rights that a server must
    not have; and giving them up undoes what was said of the parent's death, so it is said here."""
    words = ["setpriv", "--pdeathsig", signal]
    if user is not None:
        words += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return words


class PlacedPostgreSQL(PostgreSQL):
    """In a namespace; trusts whoever reaches it."""

    def __init__(self, enter: Sequence[str], host: str, **settings: str) -> None:
        self._enter = list(enter)
        self.host = host
        super().__init__(**settings)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def programs(self) -> Path:
        return Path(self._binary).parent

    def _start(self) -> None:
        programs = debian_server()
        if programs is None:
            return super()._start()
        self._binary = str(programs / "postgres")
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        command = [str(programs / "initdb"), f"--pgdata={self.folder / 'data'}"]
        options = [
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        subprocess.run(
            [*command, *options], user=self._user, cwd=self.folder, check=True, capture_output=True
        )
        return self.start()

    def start(self) -> None:
        """Starts the server; also after `crash`."""
        (self.folder / "data" / "pg_hba.conf").write_text(
            "local all all trust\n"
            "host all all 10.91.0.0/30 trust\n"
            "host all all 127.0.0.1/32 trust\n"
        )
        super().start()

    def _launch(self, command: list[str], *args: Any, **options: Any) -> None:
        user: str | None = options.pop("user")
        more = ["-c", "autovacuum=off"]
        if self._counts():
            more += ["-c", "shared_preload_libraries=pg_stat_statements"]
        rights = drop_rights(user, self.crash_signal.name.removeprefix("SIG"))
        super()._launch([*self._enter, *rights, *command, *more], *args, **options)

    def _counts(self) -> bool:
        return (self.programs.parent / "lib" / "pg_stat_statements.so").exists()

    def create_database(self, name: str, *, encoding: str = "UTF8") -> str:
        """A database, empty unless it is there already. Returns its name."""
        with self.superuser() as connection:
            cursor = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is None:
                super().create_database(name, encoding=encoding)
        return name

    def ensure_database(self) -> None:
        """The database and who may use it, unless they are there."""
        with self.superuser() as connection:
            role = connection.execute(
                "SELECT true FROM pg_roles WHERE rolname = %s", (READER,)
            ).fetchone()
            if role is not None:
                return
            self.create_database(DATABASE)
            connection.execute(f"CREATE ROLE {READER} LOGIN")
            connection.execute(f"ALTER ROLE {READER} SET default_transaction_read_only = on")
            connection.execute(f"CREATE ROLE {WRITER} LOGIN")
            connection.execute(f"REVOKE TEMPORARY ON DATABASE {DATABASE} FROM public")
            connection.execute(f"GRANT TEMPORARY ON DATABASE {DATABASE} TO {WRITER}")
        with self.superuser(DATABASE) as connection:
            if self._counts():
                connection.execute("CREATE EXTENSION pg_stat_statements")
            if debian_server() is not None:
                connection.execute("CREATE EXTENSION pgcmp")

    def load(self, table: Table, lines: Sequence[bytes]) -> None:
        self.ensure_database()
        with self.superuser(DATABASE) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {table.name}")
            connection.execute(table.postgresql)
            connection.execute(f"GRANT SELECT ON {table.name} TO {READER}, {WRITER}")
            _copy(connection, table.name, lines)
            connection.execute(f"VACUUM (ANALYZE) {table.name}")

    def apply(self, changes: ChangeSet) -> None:
        with self.superuser(DATABASE) as connection:
            write_changes(connection, changes)

    def statements(self) -> int | None:
        if not self._counts():
            return None
        with self.superuser(DATABASE) as connection:
            row = connection.execute(
                "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements"
                " JOIN pg_roles ON oid = userid WHERE rolname IN (%s, %s)",
                (READER, WRITER),
            ).fetchone()
        assert row is not None
        return int(row[0])

    def version(self) -> str:
        with self.superuser() as connection:
            return f"PostgreSQL {connection.info.server_version // 10_000}"


def write_changes(connection: psycopg.Connection[Any], changes: ChangeSet) -> None:
    """In one transaction: updates as updates, not as pairs of others."""
    table, key = changes.table, ", ".join(changes.table.key)
    with connection.transaction():
        connection.execute(f"CREATE TEMP TABLE gone AS SELECT {key} FROM {table.name} LIMIT 0")
        connection.execute(f"CREATE TEMP TABLE come (LIKE {table.name})")
        _copy(connection, "gone", changes.deleted_keys)
        _copy(connection, "come", [*changes.updated, *changes.inserted])
        connection.execute("ANALYZE gone")
        connection.execute("ANALYZE come")
        connection.execute(
            f"DELETE FROM {table.name} AS t USING gone AS g"
            f" WHERE {' AND '.join(f't.{k} = g.{k}' for k in table.key)}"
        )
        names = connection.execute(
            "SELECT string_agg(attname || ' = excluded.' || attname, ', ')"
            " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND attname <> ALL(%s)",
            (table.name, list(table.key)),
        ).fetchone()
        assert names is not None
        connection.execute(
            f"INSERT INTO {table.name} SELECT * FROM come"
            f" ON CONFLICT ({key}) DO UPDATE SET {names[0]}"
        )
        connection.execute("DROP TABLE gone, come")
    connection.execute(f"VACUUM (ANALYZE) {table.name}")


class PlacedMariaDB(MariaDB):
    """In a namespace; its accounts have no passwords."""

    def __init__(self, enter: Sequence[str], host: str) -> None:
        self._enter = list(enter)
        self.host = host
        super().__init__()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _launch(self, command: list[str], *args: Any, **options: Any) -> None:
        super()._launch([*self._enter, *drop_rights(None, "KILL"), *command], *args, **options)
        with closing(self.admin()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            cursor.execute(f"CREATE USER IF NOT EXISTS '{READER}'@'%'")
            cursor.execute(f"GRANT SELECT ON {DATABASE}.* TO '{READER}'@'%'")
            cursor.execute("SET GLOBAL userstat = 1")  # for `statements`
            cursor.execute("CREATE USER IF NOT EXISTS root@'%'")
            cursor.execute("GRANT ALL ON *.* TO root@'%'")

    def load(self, table: Table, lines: Sequence[bytes]) -> None:
        with closing(self.admin(DATABASE)) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {table.name}")
            cursor.execute(table.mariadb)
            self._write(cursor, "INTO", table.name, lines)
            cursor.execute(f"ANALYZE TABLE {table.name}")

    def apply(self, changes: ChangeSet) -> None:
        table, key = changes.table, ", ".join(changes.table.key)
        with closing(self.admin(DATABASE)) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TEMPORARY TABLE gone AS SELECT {key} FROM {table.name} LIMIT 0")
            cursor.execute(f"ALTER TABLE gone ADD PRIMARY KEY ({key})")
            self._write(cursor, "INTO", "gone", changes.deleted_keys)
            cursor.execute("BEGIN")
            cursor.execute(f"DELETE t FROM gone STRAIGHT_JOIN {table.name} AS t USING ({key})")
            self._write(cursor, "REPLACE INTO", table.name, [*changes.updated, *changes.inserted])
            cursor.execute("COMMIT")
            cursor.execute(f"ANALYZE TABLE {table.name}")

    def _write(self, cursor: Any, into: str, table: str, lines: Iterable[bytes]) -> None:
        file = self.folder / "lines.csv"
        with file.open("wb") as out:
            out.writelines(lines)
        cursor.execute(f"LOAD DATA INFILE '{file}' {into} TABLE {table} {LOAD}")
        file.unlink()

    def statements(self) -> int | None:
        with closing(self.admin()) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT select_commands + update_commands + other_commands"
                " FROM information_schema.user_statistics WHERE user = %s",
                (READER,),
            )
            row = cursor.fetchone()
        return int(row[0]) if row else 0

    def version(self) -> str:
        with closing(self.admin()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT version()")
            return f"MariaDB {str(cursor.fetchone()[0]).partition('-')[0]}"


def _copy(connection: psycopg.Connection[Any], table: str, lines: Sequence[bytes]) -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)") as out:
        for start in range(0, len(lines), LINES_PER_WRITE):
            out.write(b"".join(lines[start : start + LINES_PER_WRITE]))
