"""PostgreSQL: connections, also through a pooler, and waits that end even if no server answers.

A pooler, such as PgBouncer, lends a session of the server to one client after the other. It tells a
client another process number than the server's own: by that it is recognised, on a first connection
without `options`, because Odyssey would set these in the server's session and leave them to the
next client. Then only statements within transactions that are rolled back follow (`begin_pooled`),
whichever mode the pooler has.

Pgpool-II is refused. It reads the SQL itself, may send it to one of several servers, and its
process does not survive a scan in its usual mode (4.3 to 4.6). It passes `options` on and tells the
server's process number; but the server sees another port of its client, or has another port of its
own.

A server whose processes are stopped, or that is behind a network which drops everything, neither
answers nor closes its connections. So every wait has a limit: `ANSWER_S` for a statement,
`silence_s` for rows, `CANCEL_S` for a cancellation.

Rejected: libpq's own blocking calls (`PQping`, `PQcancel`, `PQgetResult`). They have no limit, and
the first blocks the whole interpreter.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from driftline.errors import OPEN, ConfigurationError, DatabaseRefused, DatabaseUnavailable
from psycopg import Connection, Cursor, Error, OperationalError, errors, pq
from psycopg.abc import PQGen

from source_agent.engines.interface import Pulse, ServerFacts
from source_agent.engines.postgresql.access import (
    UNSUPPORTED,
    connect_error,
    error_of,
    no_transactions,
)
from source_agent.engines.postgresql.settings import POOLED
from source_agent.engines.postgresql.sql import (
    BACKEND,
    BEGIN_POOLED,
    ISOLATION,
    PGPOOL,
    ROLLBACK,
    ROLLBACK_TO,
    SAVEPOINT,
    SERVER,
)
from source_agent.engines.sessions import end_quietly, foreseen
from source_agent.engines.sockets import port_of, shut

ANSWER_S: Final = 60.0  # for a statement that reads catalogues or settings, plus lock_timeout_s
CANCEL_S: Final = 5.0
READ_ONLY: Final = "-c default_transaction_read_only=on"  # for `options` of a connection
DRIVER: Final = "psycopg"
_SESSION_ATTRS: Final = "PGTARGETSESSIONATTRS"
_INTERVAL_S: Final = 0.1  # psycopg's own
_SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")  # answered by one byte, before any login

_IN_TRANSACTION: Final = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

_NAME_SHOWN: Final = 200  # bytes of a catalogue's text

Result = TypeVar("Result")


@contextlib.contextmanager
def driven() -> Iterator[None]:
    """Put `foreseen` around calls of the driver, and name text of the catalogue that is not UTF-8.

    Raises DatabaseRefused. Rows are not read under it: they come by COPY.
    """
    with foreseen(DRIVER, Error):
        try:
            yield
        except (
            UnicodeDecodeError,
            errors.CharacterNotInRepertoire,
            errors.UntranslatableCharacter,
        ) as error:
            text = " ".join(str(error).split())
            if isinstance(error, UnicodeDecodeError):
                text = error.object[:_NAME_SHOWN].decode(errors="backslashreplace")
            raise DatabaseRefused(
                f"A name or a definition in the database's catalogue is not in UTF-8: {text}.",
                remedy="Have its owner rename or replace it (ALTER … RENAME).",
                abroad="A name or a definition in the database's catalogue is not in UTF-8.",
            ) from error


class ServerPath(enum.Enum):
    """Tell what is known of the way to the server."""

    UNKNOWN = enum.auto()
    DIRECT = enum.auto()
    DECLARED = enum.auto()  # through a pooler, as the DBA says
    POOLED = enum.auto()  # through a pooler that was met


class BoundedConnection(Connection[tuple[Any, ...]]):
    """A connection whose statements end after `answer_s`; `pulse` notes when one ended.

    `way`: what was known of it when it was opened, or was found then.
    """

    answer_s = ANSWER_S
    way = ServerPath.DIRECT

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.pulse = Pulse()

    @property
    def is_pooled(self) -> bool:
        """Return True if it leads to a pooler."""
        return self.way in {ServerPath.DECLARED, ServerPath.POOLED}

    @property
    def facts(self) -> ServerFacts:
        """Facts about the server, and a pooler in front of it."""
        number = self.info.parameter_status("server_version") or ""
        return ServerFacts(
            release=f"PostgreSQL {number.partition(' ')[0]}",
            pooler=POOLED if self.is_pooled else "",
            backend=self.pgconn.backend_pid,
            holds_back="vacuum, which keeps all row versions that died since (xmin horizon)",
        )

    def execute(self, *arguments: Any, **options: Any) -> Cursor[tuple[Any, ...]]:
        with driven():
            return super().execute(*arguments, **options)

    def rows(self, *arguments: Any, **options: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        with driven():
            return self.execute(*arguments, **options).fetchall()

    def wait(
        self, gen: PQGen[Result], interval: float = _INTERVAL_S, timeout: float | None = None
    ) -> Result:
        limit_s = self.answer_s if timeout is None else min(timeout, self.answer_s)
        result = super().wait(_bounded(gen, limit_s), interval)
        self.pulse.beat()
        return result


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


def connect(parameters: dict[str, str], way: ServerPath = ServerPath.UNKNOWN) -> BoundedConnection:
    """Open a connection, with libpq's parameters.

    Raises:
        DatabaseUnavailable: the server does not answer.
        DatabaseRefused: it refuses the login; Pgpool-II is in front.
        ConfigurationError: there is a pooler, and options that would not pass it.
    """
    bare = parameters | {"options": ""}  # nor those of the environment
    try:
        if way is ServerPath.UNKNOWN:
            # A session without options is not read-only yet, which would refuse every primary.
            wanted = parameters.get("target_session_attrs", os.environ.get(_SESSION_ATTRS))
            any_server = {"target_session_attrs": "any"} if wanted == "read-only" else {}
            connection = _connect(bare | any_server)
            try:
                way = _way_of(connection)
            finally:
                end_quietly(connection.close)
        if way is ServerPath.DIRECT:
            try:
                connection = _connect(parameters)
            except Error as error:
                if UNSUPPORTED not in str(error):
                    raise
            else:
                if _has_options(connection):
                    return connection
                end_quietly(connection.close)
        _refuse_options(parameters)
        connection = _connect(bare)
        connection.way = ServerPath.DECLARED if way is ServerPath.DECLARED else ServerPath.POOLED
        return connection
    except Error as error:
        raise connect_error(error, parameters) from error


def _connect(parameters: dict[str, str]) -> BoundedConnection:
    with foreseen(DRIVER, Error):
        return BoundedConnection.connect(
            **parameters,  # type: ignore[arg-type]  # libpq's own are all strings
            autocommit=True,
            prepare_threshold=None,
        )


def _way_of(connection: BoundedConnection) -> ServerPath:
    """Return the way of a connection without options, of which a pooler would keep what it can set.

    Raises DatabaseRefused: it leads to Pgpool-II.
    """
    ((backend, _, *ports),) = connection.rows(BACKEND)
    if backend != connection.pgconn.backend_pid:
        return ServerPath.POOLED
    if _is_passed_on(connection, *ports):
        _refuse_pgpool(connection)
    return ServerPath.DIRECT


def _has_options(connection: BoundedConnection) -> bool:
    """Return True if the process of the login answers, with the options of the connection."""
    try:
        ((backend, read_only, *_),) = connection.rows(BACKEND)
    except BaseException:
        end_quietly(connection.close)
        raise
    return bool((backend, read_only) == (connection.pgconn.backend_pid, "on"))


def _is_passed_on(connection: BoundedConnection, seen: int | None, servers: int) -> bool:
    """Return True if the server sees another connection than this one.

    Args:
        seen: its client's port, as it sees it; None over a socket of the file system.
        servers: the port of the server itself, of which such a socket has its name.
    """
    port = port_of(connection.pgconn.socket)
    return seen != port or (port is None and servers != connection.info.port)


def server_of(connection: BoundedConnection) -> str:
    """Return what tells the server behind a pooler from another one; within a transaction.

    Raises DatabaseRefused: the pooler is Pgpool-II, or has ended the transaction already.
    """
    ((started, backend, isolation),) = connection.rows(SERVER)
    if isolation != ISOLATION:
        raise no_transactions()
    if connection.way is ServerPath.DECLARED and backend == connection.pgconn.backend_pid:
        connection.execute(SAVEPOINT)
        _refuse_pgpool(connection)
        connection.execute(ROLLBACK_TO)
    return str(started)


def _refuse_pgpool(connection: BoundedConnection) -> None:
    """Raise DatabaseRefused if Pgpool-II answers; a server knows no such setting."""
    with contextlib.suppress(errors.ProgrammingError):
        connection.execute(PGPOOL)
        raise DatabaseRefused(
            "database.url leads to Pgpool-II, which reads statements itself: it may send them to"
            " several servers, and its process ends when rows are copied.",
            remedy="Name the server itself in database.url, or a pooler that passes statements on"
            " as they are, such as PgBouncer.",
            abroad="Its database is behind Pgpool-II, which cannot be read through.",
        )


def _refuse_options(parameters: dict[str, str]) -> None:
    if parameters.get("options", "").removesuffix(READ_ONLY).strip():
        raise ConfigurationError(
            "It leads to a connection pooler, which passes no `options` on to the server.",
            where="database.url",
            remedy="Remove `options` from the URL, and have the DBA give the agent's role the same"
            " settings: ALTER ROLE the agent's role SET …",
            abroad="Its database is behind a connection pooler, which passes no `options` on.",
        )


def begin_pooled(connection: BoundedConnection) -> None:
    """Begin a transaction behind a pooler.

    Raises:
        DatabaseRefused: it has no transactions.
        DatabaseUnavailable: it had no session of the server for it.
    """
    try:
        connection.execute(BEGIN_POOLED)
    except DatabaseUnavailable as silence:
        raise DatabaseUnavailable(
            f"The connection pooler had no session of the server for {connection.answer_s:g} s.",
            remedy="Try again later, or let the agent's login have a pool of its own (pool_size of"
            " PgBouncer) with as many sessions as `driftline-source grants` allows it connections.",
            abroad="A connection pooler had no session of the server.",
        ) from silence
    if connection.pgconn.transaction_status != pq.TransactionStatus.INTRANS:
        raise no_transactions()


def hand_back(connection: BoundedConnection) -> None:
    """End the transaction, so that a pooler can lend the session of the server to others.

    It closes the session of a client that leaves within a transaction.
    """
    if connection.pgconn.transaction_status in _IN_TRANSACTION:
        connection.answer_s = CANCEL_S
        end_quietly(lambda: connection.execute(ROLLBACK))


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

    def fields(self, select_sql: str) -> list[tuple[str, int, int]]:
        """Return names, types and their modifiers of a SELECT. Raises as `only_result`."""
        self.pgconn.send_prepare(b"", select_sql.encode())
        self.only_result()
        self.pgconn.send_describe_prepared(b"")
        result = self.only_result()
        return [
            ((result.fname(i) or b"").decode(), result.ftype(i), result.fmod(i))
            for i in range(result.nfields)
        ]

    def flush(self) -> None:
        """Send what libpq holds. Raises DatabaseUnavailable."""
        while self.pgconn.flush():
            if not select.select([], [self.pgconn.socket], [], self._silence_s)[1]:
                raise _silence_error(self._silence_s)


def _silence_error(seconds: float) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"PostgreSQL has sent nothing for {seconds:g} s, though a statement runs.",
        remedy="Find out what the agent's session waits for. Raise database.silence_timeout_s if a"
        " statement needs longer before its first row.",
        abroad=OPEN,
    )


def cancel(connection: Connection[Any]) -> bool:
    """Ask the server to cancel the statement. Returns False if it does not answer this in time.

    Odyssey closes the connection of a request that it has taken, in a way that libpq takes for a
    failure.
    """
    answered = threading.Event()

    def request() -> None:
        with contextlib.suppress(Exception):  # of any class
            try:
                connection.cancel_safe(timeout=CANCEL_S)
            except errors.CancellationTimeout:
                return
        answered.set()

    # libpq before 17 has no time limit of its own: then the thread is left behind.
    thread = threading.Thread(target=request, name="cancel", daemon=True)
    thread.start()
    thread.join(CANCEL_S + 1)
    return answered.is_set()


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
    with contextlib.suppress(Exception):
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
