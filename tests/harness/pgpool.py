"""Pgpool-II in front of a test's PostgreSQL: a pooler that reads the statements that it passes on.

It trusts every login. Nothing may be copied through it in its usual mode by the extended protocol:
its process would end.
"""

from __future__ import annotations

import signal

import psycopg

from tests.harness.servers import PostgreSQL, Server, find_program, free_port, system_user


class Pgpool(Server):
    """A pooler of one server, reached over TCP; `mode` is its `backend_clustering_mode`."""

    crash_signal = signal.SIGINT  # its processes would outlive a kill

    def __init__(self, server: PostgreSQL, mode: str) -> None:
        self.server, self.mode = server, mode
        super().__init__("pgpool")

    def url(self, user: str, database: str) -> str:
        """SQLAlchemy URL over TCP: no password asked."""
        return f"postgresql+psycopg://{user}@{self.host}:{self.port}/{database}"

    def client(self, user: str, database: str) -> psycopg.Connection:
        where = f"host={self.host} port={self.port} user={user} dbname={database}"
        return psycopg.connect(where, autocommit=True)

    def _start(self) -> None:
        settings = {
            "backend_clustering_mode": self.mode,
            "listen_addresses": self.host,
            "port": self.port,
            "socket_dir": self.folder,
            "pcp_port": free_port(),
            "pcp_socket_dir": self.folder,
            "backend_hostname0": self.server.folder,
            "backend_port0": self.server.port,
            "backend_flag0": "ALWAYS_PRIMARY|DISALLOW_TO_FAILOVER",
            "pid_file_name": self.folder / "pid",
            "logdir": self.folder,
            "num_init_children": 4,
            "sr_check_period": 0,
            "pool_passwd": "",
        }
        files = {"pgpool": "".join(f"{name} = '{value}'\n" for name, value in settings.items())}
        for name in ("pgpool", "pcp", "pool_hba"):
            (self.folder / f"{name}.conf").write_text(files.get(name, ""))
        self.folder.chmod(0o777)  # of a trusted test server: nothing in it is secret
        program = find_program("pgpool") or "pgpool"
        own = ("-f", "pgpool.conf", "-F", "pcp.conf", "-a", "pool_hba.conf")
        self._launch(
            [program, "-n", *own],
            lambda: self.client("postgres", "postgres").close(),
            user=system_user(),
            cwd=self.folder,
        )
