"""Firebird: one read-only snapshot, read through firebird-driver.

Invariants: every transaction of a connection is READ ONLY by its parameters, also one that begins
by itself; the session's is one SNAPSHOT, which lasts from `open` to `close` and blocks nobody. The
driver's decimals, dates and bytes are exact; blobs are read whole.

A statement is ended by `cancel_operation`, by a timer (Firebird 3.0 has no limit of its own) or by
`interrupt`. The time of the snapshot is that of the agent's clock: Firebird 3.0 says no zone.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from driftline.arrays import Positions
from driftline.errors import DatabaseUnavailable, ValueDoesNotFit
from driftline.limits import ROW_BYTES_MAX
from driftline.reconciliation.ranges import POSITION_MIN
from driftline.values.types import INTEGER_WIDTHS
from firebird.driver import (
    CancelType,
    Connection,
    DatabaseError,
    Isolation,
    TraAccessMode,
    connect,
    tpb,
)

from source_agent.engines.encoding import rows
from source_agent.engines.firebird import settings, types
from source_agent.engines.firebird.access import begin_error, connect_error, translate
from source_agent.engines.firebird.charsets import ENCODERS
from source_agent.engines.firebird.sql import (
    RANGES_PER_SELECT,
    null_sql,
    ordered_sql,
    range_sql,
)
from source_agent.engines.interface import Limits, Rows, ServerFacts, TimeLimit
from source_agent.engines.relations.select import select_sql
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sessions import (
    SnapshotSession,
    answers,
    by_own_clock,
    driven,
    end_quietly,
    foreseen,
)

DRIVER: Final = "firebird-driver"
ROWS_MAX: Final = 2**62
READ_ONLY: Final = tpb(Isolation.SNAPSHOT, access_mode=TraAccessMode.READ)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_ACTION_BYTES: Final = 1024  # more than a `struct sigaction` of any system has

_Actions: TypeAlias = "tuple[ctypes.Array[ctypes.c_char], ...]"


class FirebirdConnector:
    """Connect to one database, always as the same user.

    With the first attachment of a process, also one that fails, the client library puts its own
    handler in the place of SIGINT's and SIGTERM's, which ends every connection of the process
    before the agent hears of the signal. An agent that is asked to end gives its exchanges time
    first, so what was there is put back.

    Rejected: `signal.signal`, which only the main thread may call; sessions open in others.
    """

    def __init__(self, database: str, user: str, password: str) -> None:
        self.database = database
        self._arguments = {"user": user, "password": password, "charset": "UTF8"}
        self._signals: _Actions | None = _actions()  # until the first attachment

    def __call__(self) -> Connection:
        """Return a connection that can only read. Raises DatabaseUnavailable or DatabaseRefused."""
        try:
            connection = connect(self.database, **self._arguments)
        except DatabaseError as error:
            raise connect_error(error, self.database) from error
        except Exception as error:
            if type(error) is not Exception:  # the driver's, where it finds no client library
                with foreseen(DRIVER):
                    raise
            raise DatabaseUnavailable(
                f"Firebird's client library cannot be used: {error}.",
                remedy="Install libfbclient2.",
                abroad="Firebird's client library cannot be used.",
            ) from error
        finally:
            before, self._signals = self._signals, None
            if before is not None:
                _put_back(before)
        connection.main_transaction.default_tpb = READ_ONLY  # it begins by itself
        return connection


def _actions() -> _Actions:
    """Return what this process does on its signals, as sigaction(2) tells it."""
    actions = tuple(ctypes.create_string_buffer(_ACTION_BYTES) for _ in _SIGNALS)
    for number, action in zip(_SIGNALS, actions, strict=True):
        ctypes.CDLL(None).sigaction(int(number), None, action)
    return actions


def _put_back(before: _Actions) -> None:
    """Let the process do what it did before; a thread of any kind may call this."""
    for number, action in zip(_SIGNALS, before, strict=True):
        ctypes.CDLL(None).sigaction(int(number), action, None)


class FirebirdSession(SnapshotSession):
    """Implement `interface.Session`."""

    def __init__(self, connect: FirebirdConnector, limits: Limits) -> None:
        super().__init__()
        self._connect, self._limits = connect, limits
        self.snapshot = by_own_clock()
        self._connection = connect()
        try:
            with foreseen(DRIVER, DatabaseError):
                self._transaction = self._connection.transaction_manager(READ_ONLY)
                self._begin()
        except BaseException:
            end_quietly(self._connection.close)
            raise
        try:
            self._version = float(self._connection.info.engine_version)
            self._pin()  # after the owner's triggers on connecting and on this transaction
            self.server = ServerFacts(release=f"Firebird {self._version:.1f}")
            self._shown = settings.shown(self.ask, self._version)
        except DatabaseError as error:
            self.close()
            raise connect_error(error, connect.database) from error

    def _begin(self) -> None:
        try:
            self._transaction.begin()
        except DatabaseError as error:  # a trigger of the owner ON TRANSACTION START
            raise begin_error(error) from error

    def _pin(self) -> None:
        settings.pin(self._transaction.execute_immediate, self._version)

    @property
    def time_limits(self) -> Sequence[TimeLimit]:
        return self._limits.of_statements

    def answers(self, within_s: float) -> bool:
        return answers(self._connect, within_s)

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a statement in the snapshot; return its rows."""
        with self._cursor(sql, values) as cursor, foreseen(DRIVER, DatabaseError):
            return [tuple(row) for row in cursor.fetchall()]

    def _asked(
        self, shape: Shape, sql: str, values: Sequence[object], most: int
    ) -> list[tuple[Any, ...]]:
        """Return `most` rows of a statement about a relation at most, as the driver has them."""
        try:
            with (
                self._cursor(sql, values) as cursor,
                foreseen(DRIVER, DatabaseError),
            ):
                return [tuple(row) for row in cursor.fetchmany(most)]
        except DatabaseError as error:
            raise translate(error, shape.relation) from error

    def row_description(self, sql: str) -> Sequence[Any]:
        # The driver's public description leaves out character sets, and asks the catalogue.
        with self._cursor(sql, ()) as cursor, foreseen(DRIVER, DatabaseError):
            return list(cursor._stmt._out_desc)

    def describe(self, relation: Relation) -> Shape:
        try:
            self._pin()
            return types.describe(self, relation)
        except DatabaseError as error:
            raise translate(error, relation, is_description=True) from error

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        yield from self._read(shape, ordered_sql(shape) if ordered else select_sql(shape), ())

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        assert shape.recipe.integer_key, "only an integer key has ranges"
        if shape.may_be_null_in(first):
            yield from self._read(shape, null_sql(shape), ())
        left = ROWS_MAX if rows_max is None else rows_max + 1
        bounds = _bounds(shape.recipe.columns[0].type.kind, first, last)
        for start in range(0, len(bounds), RANGES_PER_SELECT):
            some = bounds[start : start + RANGES_PER_SELECT]
            some += some[-1:] * (RANGES_PER_SELECT - len(some))
            values = [bound for pair in some for bound in pair]
            for batch in self._read(shape, range_sql(shape), (*values, left)):
                left -= len(batch)
                yield batch
            if left <= 0:
                return

    def _read(self, shape: Shape, sql: str, values: Sequence[object]) -> Iterator[Rows]:
        self.note_consistency(shape)
        encode = rows.row_encoder(shape, ENCODERS)
        try:
            self._pin()
            with self._cursor(sql, values) as cursor:
                sent = driven(iter(cursor.fetchone, None), DRIVER, DatabaseError, UnicodeError)
                fetch = rows.timely(sent, self.pulse)
                yield from rows.batches(fetch, encode)
            settings.refuse_changed(self.ask, self._version, self._shown, shape.relation)
        except DatabaseError as error:
            self.refuse_interrupted()
            raise translate(error, shape.relation) from error
        except UnicodeError as error:
            raise ValueDoesNotFit(
                f"A text is not in the character set that its column declares: {error}.",
                where=shape.relation.name,
                remedy="Set as_text for it in source.toml, or cast it to OCTETS in a query.",
                abroad="A text is not in the character set that its column declares.",
            ) from error

    @contextlib.contextmanager
    def _cursor(self, sql: str, values: Sequence[object]) -> Iterator[Any]:
        """Execute a statement; cancel it if it takes longer than the file allows."""
        self.refuse_interrupted()
        with foreseen(DRIVER, DatabaseError):
            cursor = self._transaction.cursor()
        cursor.stream_blob_threshold = ROW_BYTES_MAX
        watch = _Watch(self._connection, self._limits.statement_s)
        try:
            with foreseen(DRIVER, DatabaseError):
                cursor.execute(sql, tuple(values) or None)
            self.pulse.beat()
            yield cursor
        finally:
            watch.stop()
            end_quietly(cursor.close)

    def interrupt(self) -> None:
        self._is_interrupted = True
        _cancel(self._connection)

    def close(self) -> None:
        end_quietly(self._transaction.rollback, self._connection.close)


def _bounds(kind: str, first: Positions, last: Positions) -> list[tuple[int, int]]:
    """Return ranges of keys, of two int64 [n], that an index of Firebird reads rightly.

    The driver binds nothing beyond the column's type. An index over BIGINT has -2**63 in a wrong
    place: a range that begins there misses every negative key, and no other range finds it. Its
    equality is right, so it becomes a range of its own.
    """
    half = 8 * INTEGER_WIDTHS[kind] - 1
    low, high = -(2**half), 2**half - 1
    ranges = []
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        begin, end = max(a, low), min(b, high)
        if begin == POSITION_MIN:
            ranges.append((begin, begin))
            begin += 1
        if begin <= end:
            ranges.append((begin, end))
    return ranges


class _Watch:
    """A timer that cancels what a connection executes; `stop` waits for it, so it hits no other."""

    def __init__(self, connection: Connection, seconds: float | None) -> None:
        self._timer = None
        if seconds is not None:
            self._timer = threading.Timer(seconds, _cancel, (connection,))
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


def _cancel(connection: Connection) -> None:
    with contextlib.suppress(Exception):  # nothing is running, or the connection is closed
        connection._att.cancel_operation(CancelType.RAISE)
