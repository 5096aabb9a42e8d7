"""PostgreSQL: connections, and waits that end even if the server never answers.

A server whose processes are stopped, or that is behind a network which drops everything, neither
answers nor closes its connections. So every wait has a limit: `ANSWER_S` for a statement,
`silence_s` for rows, `CANCEL_S` for a cancellation.

Rejected: libpq's own blocking calls (`PQping`, `PQcancel`, `PQgetResult`). They have no limit, and
the first blocks the whole interpreter.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any, Final, TypeVar

from driftline.errors import DatabaseUnavailable
from psycopg import Connection, Error, OperationalError, pq
from psycopg.abc import PQGen

from source_agent.engines.interface import Pulse
from source_agent.engines.postgresql.access import connect_error, error_of
from source_agent.engines.sockets import shut

ANSWER_S: Final = 60.0  # for a statement that reads catalogues or settings, plus lock_timeout_s
CANCEL_S: Final = 5.0
_INTERVAL_S: Final = 0.1  # psycopg's own
_SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")  # answered by one byte, before any login

Result = TypeVar("Result")


class BoundedConnection(Connection[tuple[Any, ...]]):
    """A connection whose statements end after `answer_s`; `pulse` notes when one ended."""

    answer_s = ANSWER_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.pulse = Pulse()

    def wait(
        self, gen: PQGen[Result], interval: float = _INTERVAL_S, timeout: float | None = None
    ) -> Result:
        limit_s = self.answer_s if timeout is None else min(timeout, self.answer_s)
        found = super().wait(_bounded(gen, limit_s), interval)
        self.pulse.beat()
        return found


def _bounded(gen: PQGen[Result], limit_s: float) -> PQGen[Result]:
    """Delegate to a generator for at most `limit_s`. Raises DatabaseUnavailable."""
    ends_at = time.monotonic() + limit_s
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > ends_at:
                raise _silence_error(limit_s)
            state = gen.send(ready)
    except StopIteration as end:
        result: Result = end.value
        return result


def connect(parameters: dict[str, str]) -> BoundedConnection:
    """Open a connection, with libpq's parameters.

    Raises:
        DatabaseUnavailable: the server does not answer.
        DatabaseRefused: it refuses the login.
    """
    try:
        return BoundedConnection.connect(
            **parameters,  # type: ignore[arg-type]  # libpq's own are all strings
            autocommit=True,
            prepare_threshold=None,
        )
    except Error as error:
        raise connect_error(error, parameters) from error


class ResultSocket:
    """The socket of a connection from which libpq's results are read.

    Args:
        silence_s: how long nothing at all may come.
        pulse: beats whenever something came.
    """

    def __init__(self, pgconn: pq.abc.PGconn, silence_s: float, pulse: Pulse) -> None:
        self.pgconn, self.pulse = pgconn, pulse
        self._silence_s = silence_s
        self._poller = select.poll()
        self._poller.register(pgconn.socket, select.POLLIN)

    def take(self, within_s: float | None = None) -> bool:
        """Wait for bytes and pass them to libpq. Returns False if none came within `within_s`.

        Raises:
            DatabaseUnavailable: without `within_s`, if nothing came for `silence_s`.
        """
        limit_s = self._silence_s if within_s is None else within_s
        if not self._poller.poll(limit_s * 1000):
            if within_s is None:
                raise _silence_error(limit_s)
            return False
        self.pgconn.consume_input()
        self.pulse.beat()
        return True

    def next_result(self) -> pq.abc.PGresult | None:
        """Return the next result of a command; None at its end. Raises DatabaseUnavailable."""
        while self.pgconn.is_busy():
            self.take()
        return self.pgconn.get_result()

    def only_result(self) -> pq.abc.PGresult:
        """Return the result of a sent command without rows. Raises DatabaseUnavailable, Error."""
        self.flush()
        result = self.next_result()
        while self.next_result() is not None:
            pass
        if result is None or result.status != pq.ExecStatus.COMMAND_OK:
            raise error_of(result)
        return result

    def flush(self) -> None:
        """Send what libpq holds. Raises DatabaseUnavailable."""
        while self.pgconn.flush():
            if not select.select([], [self.pgconn.socket], [], self._silence_s)[1]:
                raise _silence_error(self._silence_s)


def _silence_error(seconds: float) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"PostgreSQL has sent nothing for {seconds:g} s, though a statement runs.",
        remedy="Find out what the agent's session waits for. Raise database.silence_timeout_s where"
        " a statement needs longer before its first row.",
    )


def cancel(connection: Connection[Any]) -> bool:
    """Ask the server to cancel the statement. Returns False if it does not accept this in time."""
    accepted = threading.Event()

    def request() -> None:
        with contextlib.suppress(Error, OSError):
            connection.cancel_safe(timeout=CANCEL_S)
            accepted.set()

    # libpq before 17 has no time limit of its own: then the thread is left behind.
    thread = threading.Thread(target=request, name="cancel", daemon=True)
    thread.start()
    thread.join(CANCEL_S + 1)
    return accepted.is_set()


def drain(pgconn: pq.abc.PGconn, within_s: float = CANCEL_S) -> None:
    """Read to the end of a statement that was cancelled.

    Raises:
        psycopg.Error: the connection is lost, or the end did not come in time.
    """
    ends_at = time.monotonic() + within_s
    results = ResultSocket(pgconn, within_s, Pulse())

    def take() -> None:
        if not results.take(max(ends_at - time.monotonic(), 0)):
            raise OperationalError("the server did not end the statement")

    while True:
        while pgconn.is_busy():
            take()
        result = pgconn.get_result()
        if result is None:
            return
        if result.status == pq.ExecStatus.COPY_OUT:
            with contextlib.suppress(Error):
                while (length := pgconn.get_copy_data(1)[0]) >= 0:
                    if length == 0:
                        take()


def end(connection: Connection[Any]) -> None:
    """End a connection, and with it any wait of another thread for it."""
    with contextlib.suppress(Error):
        shut(connection.pgconn.socket)


def answers(pgconn: pq.abc.PGconn, within_s: float) -> bool:
    """Return whether the server of a connection accepts a new one and sends something there.

    The request asks for TLS only. It needs no login and leaves nothing in the server's log.
    """
    try:
        host, port = pgconn.host.decode(), int(pgconn.port)
        address = pgconn.hostaddr.decode() or host
    except Error:  # the connection is closed
        return False
    try:
        if not address.startswith(("/", "@")):
            with socket.create_connection((address, port), within_s) as sock:
                return _replies(sock)
        path = f"{address}/.s.PGSQL.{port}"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(within_s)
            sock.connect("\0" + path[1:] if address.startswith("@") else path)
            return _replies(sock)
    except OSError:
        return False


def _replies(sock: socket.socket) -> bool:
    sock.sendall(_SSL_REQUEST)
    return bool(sock.recv(1))
