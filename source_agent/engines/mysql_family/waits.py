"""MariaDB and MySQL: connections, and waits that end even if the server is dead.

Every read of a socket has a limit: `connect_s` during the login, `ANSWER_S` for a statement about
catalogues or settings, `silence_s` while rows are read. The driver counts each read by itself, so
a long result that keeps coming is no silence.

Not possible here: the server looks at its client only when it writes. If the agent was killed, a
statement that computes for an hour before its first row runs on until max_statement_time ends it.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any, Final

import pymysql
from driftline.errors import OPEN, ConfigurationError, DriftlineError
from pymysql.constants import COMMAND
from pymysql.converters import conversions
from pymysql.cursors import Cursor
from pymysql.protocol import FieldDescriptorPacket

from source_agent.engines.mysql_family.access import is_said_by_server
from source_agent.engines.mysql_family.sql import KILL
from source_agent.engines.sessions import end_quietly, foreseen
from source_agent.engines.sockets import keep_alive, shut

ANSWER_S: Final = 60.0  # for a statement about catalogues or settings, plus lock_timeout_s
KILL_S: Final = 5
DRIVER: Final = "PyMySQL"
_PACKAGE: Final = "cryptography"
_PREPARED: Final = struct.Struct("<xIHH")  # COM_STMT_PREPARE_OK: statement, columns, parameters


class FamilyConnector:
    """Connect to one server, always as the same user.

    `arguments` are the driver's, without its limits of time.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    def __call__(self, within_s: float) -> pymysql.Connection[Cursor]:
        """Return a connection whose single waits last at most `within_s`. Raises pymysql.Error,
        and DriftlineError for what the driver raises beside it."""
        seconds = max(1, round(within_s))
        with foreseen(DRIVER, pymysql.Error), _named_package():
            connection = pymysql.connect(
                connect_timeout=seconds,
                read_timeout=seconds,
                write_timeout=seconds,
                charset="utf8mb4",
                use_unicode=False,
                autocommit=True,
                local_infile=False,
                conv={k: v for k, v in conversions.items() if not isinstance(k, int)},
                **self._arguments,
            )
            keep_alive(connection._sock.fileno())  # type: ignore[attr-defined]
        return connection

    def answers(self, within_s: float) -> bool:
        """Return what `Session.answers` returns.

        It logs in: a client that hangs up before is soon refused (max_connect_errors).
        """
        try:
            end_quietly(self(within_s).close)
        except pymysql.Error as error:
            return is_said_by_server(error)
        except DriftlineError:  # of a socket, or of the driver
            return False
        return True

    def kill(self, connection: pymysql.Connection[Cursor]) -> None:
        """End the statement that runs on a connection, if the server can be reached."""
        with (
            contextlib.suppress(Exception),
            contextlib.closing(self(KILL_S)) as other,
            other.cursor() as cursor,
        ):
            cursor.execute(KILL, (connection.thread_id(),))  # type: ignore[no-untyped-call]

    def interrupt(self, connection: pymysql.Connection[Cursor]) -> None:
        """End the statement that runs on a connection, and the connection while it is read."""
        self.kill(connection)
        # Also if the server was not reached: the reading thread must not wait any longer.
        sock = connection._sock  # type: ignore[attr-defined]
        if sock is not None:
            with contextlib.suppress(OSError):
                shut(sock.fileno())


@contextlib.contextmanager
def _named_package() -> Iterator[None]:
    """Name the package that the driver lacks for a way to log in."""
    try:
        yield
    except RuntimeError as error:
        if _PACKAGE not in str(error):
            raise
        raise ConfigurationError(
            f"The account logs in by caching_sha2_password or sha256_password, and without TLS the "
            f"driver needs the package {_PACKAGE} for it, which is not installed.",
            remedy="pip install 'driftline[mysql]', or connect with TLS (`ssl_ca` in the URL).",
            where="database.url",
            abroad=OPEN,
        ) from error


def limit(connection: pymysql.Connection[Cursor], seconds: float) -> None:
    """Set the longest silence, in seconds, for the reads that follow."""
    connection._read_timeout = seconds  # type: ignore[attr-defined]


def prepared_fields(
    connection: pymysql.Connection[Cursor], sql: str
) -> list[FieldDescriptorPacket]:
    """Return the columns of a SELECT that is not run: the server prepares it and forgets it.

    The driver has no method for prepared statements. Raises pymysql.Error.
    """
    driver: Any = connection
    driver._execute_command(COMMAND.COM_STMT_PREPARE, sql)
    statement, columns, parameters = _PREPARED.unpack_from(driver._read_packet().get_all_data())
    if parameters:
        for _ in range(parameters + 1):  # and their end
            driver._read_packet()
    fields = [driver._read_packet(FieldDescriptorPacket) for _ in range(columns)]
    if columns:
        driver._read_packet()
    driver._execute_command(COMMAND.COM_STMT_CLOSE, struct.pack("<I", statement))  # no answer
    return fields
