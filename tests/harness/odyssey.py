"""Odyssey, another connection pooler in front of a test's PostgreSQL, from a release of Debian."""

from __future__ import annotations

from collections.abc import Sequence

from tests.harness.pgbouncer import Pooler
from tests.harness.server_versions import loaded, obtain
from tests.harness.servers import PostgreSQL, system_user


class Odyssey(Pooler):
    """A pooler of one server that trusts every login, made as `PgBouncer` is.

    Of the settings of PgBouncer it knows the size of a pool and `server_reset_query`.
    """

    def __init__(
        self, server: PostgreSQL, mode: str, *, users: Sequence[str] = (), **settings: object
    ) -> None:
        del users  # all are trusted
        self.server, self.mode, self._settings = server, mode, settings
        super().__init__("odyssey")

    def _start(self) -> None:
        is_kept = self._settings.get("server_reset_query") == "" or self.mode != "session"
        file = self.folder / "odyssey.conf"
        file.write_text(f"""
            daemonize no
            log_format "%p %t %l [%i %s] (%c) %m\\n"
            log_to_stdout yes
            log_debug no
            workers 1
            unix_socket_dir "{self.server.folder}"
            unix_socket_mode "0644"
            listen {{ host "{self.host}" port {self.port} }}
            storage "server" {{ type "remote" port {self.server.port} }}
            database default {{ user default {{
                authentication "none"
                storage "server"
                pool "{self.mode}"
                pool_size {self._settings.get("default_pool_size", 3)}
                pool_timeout 20000
                pool_discard {"no" if is_kept else "yes"}
                pool_reserve_prepared_statement no
            }} }}
        """)
        self.folder.chmod(0o777)  # of a trusted test server: nothing in it is secret
        self._launch(
            [*loaded(obtain("odyssey", "1.5"), "usr/bin/odyssey"), str(file)],
            lambda: self.client("postgres", "postgres").close(),
            user=system_user(),
            cwd=self.folder,
        )
