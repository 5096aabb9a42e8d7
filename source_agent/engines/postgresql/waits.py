"""PostgreSQL: waits that end, whatever becomes of the server.

A server whose processes are stopped, or that is behind a line which swallows everything, neither
answers nor closes its connections. So nothing here waits without a limit: statements for
`ANSWER_S`, rows for `silence_s`, a cancellation for `CANCEL_S`.

Rejected: libpq's own blocking calls (`PQping`, `PQcancel`, `PQgetResult`), which have no limit, and
the first of which keeps the whole interpreter waiting.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from driftline.errors import DatabaseUnavailable
from psycopg import Connection, Error, OperationalError, pq
from psycopg.abc import PQGen

from source_agent.engines.interface import Pulse
from source_agent.engines.postgresql.access import connect_error, error_of
from source_agent.engines.sockets import shut

ANSWER_S: Final = 60.0  # of a statement that reads catalogues or settings, lock_timeout_s apart
CANCEL_S: Final = 5.0
_INTERVAL_S: Final = 0.1  # psycopg's own
_SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")  # answered by one byte, before any login

Result = TypeVar("Result")


class BoundedConnection(Connection[tuple[Any, ...]]):
    """A connection whose statements end after `answer_s`, and which notes that they ended."""

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
    """The same generator, given up when it is not done in time. Raises DatabaseUnavailable."""
    ends_at = time.monotonic() + limit_s
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > ends_at:
                raise silent(limit_s)
            state = gen.send(ready)
    except StopIteration as end:
        result: Result = end.value
        return result


@dataclass(frozen=True, slots=True)
class Login:
    """What connections to one server are made from. Can be pickled.

    `parameters` are libpq's, the password among them, so they are not shown.
    """

    parameters: dict[str, str] = field(repr=False)

    def connect(self) -> BoundedConnection:
        """Open a connection.

        Raises:
            DatabaseUnavailable: the server does not answer.
            DatabaseRefused: it refuses the login.
        """
        try:
            return BoundedConnection.connect(
                **self.parameters,  # type: ignore[arg-type]  # libpq's own are all strings
                autocommit=True,
                prepare_threshold=None,
            )
        except Error as error:
            raise connect_error(error, self.parameters) from error


class CopySocket:
    """The socket of a session while a COPY runs on it.

    Args:
        silence_s: how long nothing at all may come.
        pulse: beats as often as something came.
    """

    def __init__(self, pgconn: pq.abc.PGconn, silence_s: float, pulse: Pulse) -> None:
        self.pgconn, self.pulse = pgconn, pulse
        self._silence_s = silence_s
        self._poller = select.poll()
        self._poller.register(pgconn.socket, select.POLLIN)

    def take(self, within_s: float | None = None) -> bool:
        """Wait for more and let libpq have it. Returns False if none came within `within_s`.

        Raises:
            DatabaseUnavailable: without `within_s`, if nothing came for `silence_s`.
        """
        limit_s = self._silence_s if within_s is None else within_s
        if not self._poller.poll(limit_s * 1000):
            if within_s is None:
                raise silent(limit_s)
            return False
        self.pgconn.consume_input()
        self.pulse.beat()
        return True

    def result(self) -> pq.abc.PGresult | None:
        """The next result of what runs; None at its end. Raises DatabaseUnavailable."""
        while self.pgconn.is_busy():
            self.take()
        return self.pgconn.get_result()

    def only_result(self) -> pq.abc.PGresult:
        """The result of a command that was sent and returns no rows.

        Raises:
            DatabaseUnavailable; psycopg.Error: the server refused it.
        """
        self.flush()
        result = self.result()
        while self.result() is not None:
            pass
        if result is None or result.status != pq.ExecStatus.COMMAND_OK:
            raise error_of(result)
        return result

    def flush(self) -> None:
        """Send what libpq holds. Raises DatabaseUnavailable."""
        while self.pgconn.flush():
            if not select.select([], [self.pgconn.socket], [], self._silence_s)[1]:
                raise silent(self._silence_s)


def silent(seconds: float) -> DatabaseUnavailable:
    """The error for a server from which nothing came."""
    return DatabaseUnavailable(
        f"PostgreSQL has sent nothing for {seconds:g} s, though a statement runs.",
        remedy="Find out what the agent's session waits for. Raise database.silence_timeout_s where"
        " a statement needs longer before its first row.",
    )


def cancel(connection: Connection[Any]) -> bool:
    """Ask the server to cancel what runs. Returns False if it does not take the request in time."""
    done = threading.Event()
    taken = []

    def work() -> None:
        try:
            with contextlib.suppress(Error, OSError):
                connection.cancel_safe(timeout=CANCEL_S)
                taken.append(True)
        finally:
            done.set()

    # libpq before 17 knows no limit of its own: the thread is left behind, not waited for.
    threading.Thread(target=work, name="cancel", daemon=True).start()
    return done.wait(CANCEL_S + 1) and bool(taken)


def drain(pgconn: pq.abc.PGconn, within_s: float = CANCEL_S) -> None:
    """Read to the end of a statement that was cancelled.

    Raises:
        psycopg.Error: the connection is lost, or the end did not come in time.
    """
    ends_at = time.monotonic() + within_s
    line = CopySocket(pgconn, within_s, Pulse())

    def more() -> None:
        if not line.take(max(ends_at - time.monotonic(), 0)):
            raise OperationalError("the server did not end the statement")

    while True:
        while pgconn.is_busy():
            more()
        result = pgconn.get_result()
        if result is None:
            return
        if result.status == pq.ExecStatus.COPY_OUT:
            with contextlib.suppress(Error):
                while (length := pgconn.get_copy_data(1)[0]) >= 0:
                    if length == 0:
                        more()


def end(connection: Connection[Any]) -> None:
    """End a connection under whoever waits for it."""
    with contextlib.suppress(Error):
        shut(connection.pgconn.socket)


def answers(pgconn: pq.abc.PGconn, within_s: float) -> bool:
    """Return whether the server of a connection takes a new one and says something there.

    It is asked whether it speaks TLS, which needs no login and leaves nothing in its log.
    """
    try:
        host, port = pgconn.host.decode(), int(pgconn.port)
        address = pgconn.hostaddr.decode() or host
    except Error:  # it is closed
        return False
    try:
        with _connected(address, port, within_s) as sock:
            sock.sendall(_SSL_REQUEST)
            return bool(sock.recv(1))
    except OSError:
        return False


def _connected(address: str, port: int, within_s: float) -> socket.socket:
    if not address.startswith(("/", "@")):
        sock = socket.create_connection((address, port), within_s)
        sock.settimeout(within_s)
        return sock
    path = f"{address}/.s.PGSQL.{port}"
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(within_s)
        sock.connect("\0" + path[1:] if address.startswith("@") else path)
    except BaseException:
        sock.close()
        raise
    return sock
