"""A MySQL server for tests and benchmarks, of another release of Debian, with MariaDB's face.

Its data are a copy of those that `server_versions` made once, so that it starts in 2 s. Logins use
MySQL's own way (`caching_sha2_password`) and TLS is offered, with a certificate that the server
made for itself; over TCP a client takes it unless it says otherwise.

The performance schema is off: it costs 250 MB of memory a server, and the agent does not read it. A
test that looks into it (metadata locks, data locks) passes `--performance-schema=ON`. What is not
off with it: `information_schema.processlist`, SHOW PROCESSLIST, SHOW STATUS.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.harness.server_versions import mysql_command, mysql_root
from tests.harness.servers import FamilyServer, MariaDB


class MySQL(FamilyServer):
    """MySQL with a data directory of our own; superuser `root`, without a password."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Raises NotToBeHad."""
        self.options = options  # for its next start as well
        self._root = mysql_root()
        super().__init__("mysql")

    @property
    def certificate(self) -> Path:
        """The certificate of the authority that the server made for itself."""
        return self.folder / "data/ca.pem"

    @property
    def release(self) -> tuple[int, ...]:
        """The version, as (9, 7, 4)."""
        with closing(self.admin()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT version()")
            (version,) = cursor.fetchone() or ("0",)
        return tuple(int(part) for part in version.partition("-")[0].split("."))

    def create_login(self, name: str, *, attributes: str = "") -> str:
        """An account that may log in and nothing else, with attributes as `REQUIRE SSL`. Returns
        its password, which the server has not seen before: the first login is a full one."""
        password = secrets.token_urlsafe(12)
        with closing(self.admin()) as connection, connection.cursor() as cursor:
            sql = f"CREATE USER %s@'%%' IDENTIFIED BY %s {attributes}"
            cursor.execute(sql, (name, password))
        return password

    def _start(self) -> None:
        (self.folder / "tmp").mkdir()
        # Its tablespaces and logs are mostly holes.
        copied = ["cp", "--archive", "--sparse=always", str(self._root / "data"), str(self.folder)]
        subprocess.run(copied, check=True)
        self.start()

    def start(self) -> None:
        """Starts the server; also after `crash`."""
        command = [
            *mysql_command(self._root, self.folder / "data"),
            f"--tmpdir={self.folder / 'tmp'}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            "--mysqlx=OFF",
            "--performance-schema=OFF",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--innodb-flush-method=nosync",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=128M",
            "--innodb-log-buffer-size=2M",
            "--innodb-redo-log-capacity=64M",
            "--sync-binlog=0",
            "--max-allowed-packet=128M",
            "--table-open-cache=400",
            *self.options,
        ]
        self._launch(command, lambda: self.admin().close(), cwd=self.folder)


def own_server(engine: str, options: Sequence[str] = ()) -> FamilyServer:
    """Return a new server of one of the `FAMILY`, with options of its own."""
    return MySQL(options) if engine == "mysql" else MariaDB(options)
