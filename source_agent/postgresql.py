"""PostgreSQL: one read-only snapshot, read by COPY in binary.

COPY's binary tuple *is* the row bytes of the protocol (section 3), one message per row. They are
taken from libpq as they come and copied once each: 0.4 µs a row of TPC-H orders.

Invariants: the connection is read-only from its first packet on (`default_transaction_read_only`)
and the transaction is READ ONLY; statements go through the extended protocol, which takes one
statement at a time; a read that fails or is abandoned is rolled back to its savepoint, so that the
snapshot outlives it. Key bounds travel as the values of two settings of this transaction, because
COPY takes no parameters.

Rejected: keeping libpq's memoryviews without copying. They hold one allocation of libpq each, and
scan, hash and join together took 1.7–1.9 s instead of 1.4 s (1.5 M TPC-H orders). Server-side
cursors: each FETCH is a round trip, and its rows are decoded one value a time.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from driftline.errors import DatabaseUnavailable
from driftline.limits import ROW_BYTES_MAX
from psycopg import Connection, Error, pq

from source_agent import postgresql_access, postgresql_hashes, postgresql_split, postgresql_types
from source_agent.engine import (
    BATCH_BYTES,
    BATCH_ROWS,
    Consistency,
    Limits,
    Privilege,
    Relation,
    Rows,
    Session,
    Shape,
    Split,
)
from source_agent.postgresql_access import connect_error, translate
from source_agent.postgresql_split import PostgresqlJoin, PostgresqlSplit, import_sql, part_sql
from source_agent.postgresql_sql import (
    AS_OF,
    BEGIN,
    BOUNDS,
    EXPORT,
    PIN,
    RELEASE,
    ROLLBACK_TO,
    SAVEPOINT,
    copy_of,
    timeouts,
)
from source_agent.postgresql_types import SETTINGS, range_sql, scan_sql
from source_agent.printable import printable_row
from source_agent.relations import plan_of
from source_agent.rows import too_large

CANCEL_S: Final = 5.0
RANGES_PER_COPY: Final = 4096  # two settings of some 80 kB each

_COPY_HEADER_BYTES: Final = 19  # signature, flags, no extension; in front of the first tuple
_COPY_TRAILER: Final = b"\xff\xff"


class PostgresqlSession:
    """Fills `engine.Session`."""

    def __init__(
        self,
        connection: Connection[tuple[Any, ...]],
        limits: Limits,
        engine: PostgresqlEngine,
        snapshot: str | None = None,
    ) -> None:
        """`snapshot`: one that another session has exported; None takes a new one."""
        self._connection, self._engine = connection, engine
        self._interrupted = False
        self._exported: tuple[str, str] | None = None  # its name, and what it sees
        settings = SETTINGS | timeouts(limits)
        try:
            connection.execute(PIN, (list(settings), list(settings.values())))
            connection.execute(BEGIN)
            if snapshot is not None:
                connection.execute(import_sql(snapshot))  # it takes no parameters
            self._as_of = str(self.ask(AS_OF)[0][0])  # the first read takes the snapshot
        except Error as error:
            raise translate(error) from error

    @property
    def consistency(self) -> Consistency:
        return Consistency.EXACT

    @property
    def as_of(self) -> str:
        return self._as_of

    @property
    def generation(self) -> int:
        return 0

    def pause(self) -> None:
        """Readers block nobody here."""

    def interrupt(self) -> None:
        self._interrupted = True
        try:
            self._connection.cancel_safe(timeout=CANCEL_S)
        except Error:  # the server does not answer; neither will it answer who waits for it
            with contextlib.suppress(Error, OSError):
                _shut(self._connection.pgconn.socket)

    def close(self) -> None:
        self._connection.close()

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        # Binary results need the extended protocol, which refuses a second statement.
        return self._connection.execute(sql, values or None, binary=True).fetchall()

    def row_description(self, sql: str) -> list[tuple[str, int, int]]:
        """See `postgresql_types.Asks`. Prepared, never run."""
        pgconn = self._connection.pgconn
        for result in (pgconn.prepare(b"", sql.encode()), pgconn.describe_prepared(b"")):
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise translate(postgresql_access.error_of(result))
        return [
            ((result.fname(i) or b"").decode(), result.ftype(i), result.fmod(i))
            for i in range(result.nfields)
        ]

    def describe(self, relation: Relation) -> Shape:
        with self._reading(relation):
            return postgresql_types.describe(self, relation)

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        with self._reading(shape.relation):
            yield from self._copy(shape, scan_sql(shape, ordered=ordered))

    def split(self, shape: Shape, *, rows_max: int | None = None) -> Split | None:
        with self._reading(shape.relation):
            cut = postgresql_split.choose(self, shape, rows_max)
        if cut is None:
            return None
        if self._exported is None:  # never below a savepoint, which PostgreSQL refuses
            try:
                ((name, sees),) = self.ask(EXPORT)
                self._exported = str(name), str(sees)
            except Error as error:
                raise translate(error, shape.relation) from error
        return PostgresqlSplit(self, PostgresqlJoin(self._engine, *self._exported, shape, cut))

    def keep(self, relation: Relation) -> None:
        """Statements, so that the server does not take this session for idle."""
        with self._reading(relation):
            pass

    def read_part(self, shape: Shape, first: str, last: str) -> Iterator[Rows]:
        """The rows at places from `first` on and before `last`."""
        with self._reading(shape.relation):
            self.ask(BOUNDS, first, last)
            yield from self._copy(shape, part_sql(shape))

    def read_ranges(
        self,
        shape: Shape,
        first: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
        *,
        rows_max: int | None = None,
    ) -> Iterator[Rows]:
        assert shape.recipe.integer_key, "only an integer key has ranges"
        sql = range_sql(shape)
        with self._reading(shape.relation):
            # `rows_max` is for drivers that read on: a COPY that nobody reads is cancelled.
            for start in range(0, len(first), RANGES_PER_COPY):
                bounds = (a[start : start + RANGES_PER_COPY] for a in (first, last))
                self.ask(BOUNDS, *("{" + ",".join(map(str, b.tolist())) + "}" for b in bounds))
                yield from self._copy(shape, sql)

    @contextlib.contextmanager
    def _reading(self, relation: Relation) -> Iterator[None]:
        """A savepoint around a read, so that its failure does not cost the snapshot."""
        self.refuse_interrupted()
        try:
            self._connection.execute(SAVEPOINT)
            yield
            self._connection.execute(RELEASE)
        except BaseException as error:
            self._abandon()
            if isinstance(error, Error):
                raise translate(error, relation) from error
            raise

    def _abandon(self) -> None:
        """Cancel what still runs, and return to the savepoint; a broken connection stays broken."""
        pgconn = self._connection.pgconn
        with contextlib.suppress(Error):
            if pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                pgconn.get_cancel().cancel()
                self._drain()
            self._connection.execute(ROLLBACK_TO)
            self._connection.execute(RELEASE)

    def refuse_interrupted(self) -> None:
        """Raises DatabaseUnavailable once `interrupt` was called."""
        if self._interrupted:
            raise DatabaseUnavailable("The read was interrupted.")

    def _drain(self) -> None:
        """Read to the end of the statement, whatever becomes of it."""
        pgconn = self._connection.pgconn
        while (result := pgconn.get_result()) is not None:
            if result.status == pq.ExecStatus.COPY_OUT:
                with contextlib.suppress(Error):
                    while pgconn.get_copy_data(0)[0] > 0:
                        pass

    def _copy(self, shape: Shape, select_sql: str) -> Iterator[Rows]:
        """The tuples of a SELECT. The driver's connection is used below its own methods here."""
        pgconn = self._connection.pgconn
        if (seed := plan_of(shape).seed) is not None:
            self.ask(postgresql_hashes.SEED, str(seed))
        poller = select.poll()
        poller.register(pgconn.socket, select.POLLIN)
        pgconn.send_query_params(copy_of(select_sql).encode(), None)
        while pgconn.flush():
            select.select([], [pgconn.socket], [])
        self.refuse_interrupted()  # before the statement began there was nothing to cancel
        while pgconn.is_busy():
            poller.poll()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            while pgconn.get_result() is not None:
                pass
            raise postgresql_access.error_of(result)
        yield from self._tuples(shape, poller)
        while (result := pgconn.get_result()) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise postgresql_access.error_of(result)

    def _tuples(self, shape: Shape, poller: select.poll) -> Iterator[Rows]:
        """The hot loop: nothing in it that is not needed for every row."""
        pgconn = self._connection.pgconn
        get, consume, poll = pgconn.get_copy_data, pgconn.consume_input, poller.poll
        is_first = True
        length = 1
        while length > 0:
            rows: Rows = []
            append = rows.append
            size = 0
            for _ in repeat(None, BATCH_ROWS):
                length, data = get(1)
                while length == 0:
                    poll()
                    consume()
                    length, data = get(1)
                if length < 0:
                    break
                append(bytes(data))
                size += length
                if size >= BATCH_BYTES:
                    break
            if is_first and rows:
                rows[0] = rows[0][_COPY_HEADER_BYTES:]
                is_first = False
            if rows and rows[-1] == _COPY_TRAILER:
                rows.pop()
            if size > ROW_BYTES_MAX:
                _check_size(shape, rows)
            if rows:
                yield rows


def _shut(number: int) -> None:
    """End the connection of a socket under whoever reads it; the descriptor stays theirs."""
    with socket.socket(fileno=os.dup(number)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def _check_size(shape: Shape, rows: Rows) -> None:
    row = max(rows, key=len)
    if len(row) > ROW_BYTES_MAX:
        raise too_large(shape, printable_row(row, shape.recipe), len(row))


class PostgresqlEngine:
    """Fills `engine.Engine`. `parameters` are libpq's, the password among them."""

    name = "postgresql"

    def __init__(self, parameters: dict[str, str], limits: Limits) -> None:
        self._limits = limits
        self._parameters = {
            "connect_timeout": str(max(2, round(limits.connect_s))),  # libpq's least is 2
            "keepalives_idle": "30",
            "keepalives_interval": "10",
            "keepalives_count": "3",
            **parameters,
            "application_name": "driftline-source",
            "options": (
                parameters.get("options", "") + " -c default_transaction_read_only=on"
            ).strip(),
        }

    def open(self) -> Session:
        return self._open()

    def join(self, snapshot: str) -> PostgresqlSession:
        """A session over a snapshot that another session has exported and still holds."""
        return self._open(snapshot)

    def _open(self, snapshot: str | None = None) -> PostgresqlSession:
        try:
            connection = Connection.connect(
                **self._parameters,  # type: ignore[arg-type]  # libpq's own are all strings
                autocommit=True,
                prepare_threshold=None,
            )
        except Error as error:
            raise connect_error(error, self._parameters) from error
        try:
            return PostgresqlSession(connection, self._limits, self, snapshot)
        except BaseException:
            connection.close()
            raise

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:
        with contextlib.closing(self._open()) as session:
            return postgresql_access.privileges(session.ask, relations)

    def scan_cost(self, shape: Shape) -> str:
        with contextlib.closing(self._open()) as session:
            return postgresql_access.scan_cost(session.ask, shape)

    def grants(self, relations: Sequence[Relation], *, login: str, connections: int = 4) -> str:
        database = self._parameters.get("dbname") or login
        return postgresql_access.grants(
            relations, login, database, self._limits, connections=connections
        )

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        return postgresql_access.templates(shapes)
