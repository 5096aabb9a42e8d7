"""MariaDB and MySQL: connections, and waits that end, whatever becomes of the server.

Every read of a socket has a limit: `connect_s` during the login, `ANSWER_S` for a statement about
catalogues or settings, `silence_s` while rows are read. The driver counts each read by itself, so
a result that takes long but keeps coming is no silence.

Not possible here: the server looks at its client only when it writes. A statement that computes for
an hour before its first row does so although the agent was killed, unless max_statement_time ends
it; an agent that lives kills it (`interrupt`).
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pymysql
from pymysql.converters import conversions
from pymysql.cursors import Cursor

from source_agent.engines.mariadb.access import is_said_by_server
from source_agent.engines.mariadb.sql import KILL
from source_agent.engines.sockets import keep_alive, shut

ANSWER_S: Final = 60.0  # of a statement that reads catalogues or settings, lock_timeout_s apart
KILL_S: Final = 5


class Connector:
    """Makes connections to one server, as the same user."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """`arguments` are the driver's, its limits of time apart."""
        self._arguments = arguments

    def __call__(self, within_s: float) -> pymysql.Connection[Cursor]:
        """A connection on which no single wait is longer than this, in seconds.

        Raises:
            pymysql.Error.
        """
        seconds = max(1, round(within_s))
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
        """See `engine.Session.answers`. By a login: who hangs up before it is soon refused by the
        server (max_connect_errors)."""
        try:
            self(within_s).close()
        except pymysql.Error as error:
            return is_said_by_server(error)
        except OSError:
            return False
        return True

    def interrupt(self, connection: pymysql.Connection[Cursor]) -> None:
        """End what runs on a connection, and the connection under whoever reads it."""
        with (
            contextlib.suppress(pymysql.Error, OSError),
            contextlib.closing(self(KILL_S)) as other,
            other.cursor() as cursor,
        ):
            cursor.execute(KILL, (connection.thread_id(),))  # type: ignore[no-untyped-call]
        # Also where the server was not reached: nobody here waits any longer.
        sock = connection._sock  # type: ignore[attr-defined]
        if sock is not None:
            with contextlib.suppress(OSError):
                shut(sock.fileno())


def limit(connection: pymysql.Connection[Cursor], seconds: float) -> None:
    """Set the longest silence, in seconds, for the reads that follow."""
    connection._read_timeout = seconds  # type: ignore[attr-defined]
