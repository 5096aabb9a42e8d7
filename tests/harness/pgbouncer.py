"""PgBouncer, a connection pooler in front of a test's PostgreSQL, in any of its modes.

It trusts the superuser and the `users` given, and logs into the server under the client's name, so
all clients of one login and one database share its few server sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.harness.servers import PostgreSQL, Server, find_program, system_user


class Pooler(Server):
    """What is in front of `server`, as the agent and other clients reach it."""

    server: PostgreSQL

    def url(self, user: str, database: str, **parameters: str) -> str:
        """SQLAlchemy URL over TCP: no password asked."""
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        where = f"{quote(user)}@{self.host}:{self.port}/{quote(database)}"
        return f"postgresql+psycopg://{where}?{query}".rstrip("?")

    def client(self, user: str, database: str) -> psycopg.Connection:
        """A neighbour of the agent, who prepares no statements: poolers refuse these."""
        where = f"host={self.host} port={self.port} user={user} dbname={database}"
        return psycopg.connect(where, autocommit=True, prepare_threshold=None)

    def close_sessions(self, database: str) -> None:
        """Let the server end all sessions of the pool."""
        with self.server.superuser() as connection:
            connection.execute(
                sql.SQL(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = {} AND pid <> pg_backend_pid()"
                ).format(sql.Literal(database))
            )


class PgBouncer(Pooler):
    """A pooler of one server; `settings` are PgBouncer's own."""

    # As for other clients: it then hides that start-up options have no effect.
    TOLERANT: ClassVar = {"ignore_startup_parameters": "extra_float_digits,options"}

    def __init__(
        self, server: PostgreSQL, mode: str, *, users: Sequence[str] = (), **settings: object
    ) -> None:
        self.server, self.mode, self._users = server, mode, ("postgres", *users)
        self._settings = settings
        super().__init__("pgbouncer")

    def _start(self) -> None:
        user = system_user()  # it refuses to run as root
        settings = {
            "listen_addr": self.host,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "pool_mode": self.mode,
            "auth_type": "trust",
            "auth_file": self.folder / "users",
            "admin_users": "postgres",
            "default_pool_size": 3,
            "max_client_conn": 100,
            "server_login_retry": 1,
            "query_wait_timeout": 20,
            **self._settings,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        behind = f"* = host={self.server.folder} port={self.server.port}"
        file = self.folder / "pgbouncer.ini"
        file.write_text("\n".join(["[databases]", behind, "[pgbouncer]", *lines, ""]))
        (self.folder / "users").write_text("".join(f'"{name}" ""\n' for name in self._users))
        self.folder.chmod(0o755)  # of a trusted test server: nothing in it is secret
        self._launch(
            [find_program("pgbouncer") or "pgbouncer", str(file)],
            lambda: self.client("postgres", "pgbouncer").close(),
            user=user,
            cwd=self.folder,
        )
