"""PostgreSQL: one read-only snapshot, read by COPY in binary.

COPY's binary tuple *is* the row bytes of the protocol (section 3); `postgresql_copy` takes them
from libpq.

Invariants: the connection is read-only from its first packet on (`default_transaction_read_only`)
and the transaction is READ ONLY; statements go through the extended protocol, which takes one
statement at a time; a read that fails or is abandoned is rolled back to its savepoint, so that the
snapshot outlives it. Key bounds travel as the values of two settings of this transaction, because
COPY takes no parameters. What a snapshot does not cover is looked for once the locks are there that
keep it away (`postgresql_replaced`): where a relation was described, and where one was read. A
further session of the same snapshot looks for nothing: it reads parts of a table that the first has
described and keeps locked.

Rejected: server-side cursors. Each FETCH is a round trip, and its rows are decoded one value a
time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from driftline.arrays import Positions
from driftline.errors import DatabaseUnavailable
from psycopg import Error, pq

from source_agent.engines.interface import (
    Limits,
    Relation,
    Rows,
    Shape,
    Split,
    TimeLimit,
)
from source_agent.engines.postgresql import access, hashes, policies, types
from source_agent.engines.postgresql import split as postgresql_split
from source_agent.engines.postgresql.access import translate
from source_agent.engines.postgresql.copy import copied
from source_agent.engines.postgresql.replaced import refuse_replaced
from source_agent.engines.postgresql.settings import SETTINGS, refuse_changed, shown
from source_agent.engines.postgresql.split import (
    PostgresqlJoin,
    PostgresqlSplit,
    import_sql,
    part_sql,
)
from source_agent.engines.postgresql.sql import (
    AS_OF,
    BEGIN,
    BOUNDS,
    DEAD_CLIENTS,
    EXPORT,
    PIN,
    RELEASE,
    ROLLBACK_TO,
    SAVEPOINT,
    TIGHTEN,
    TIME_LIMITS,
    range_sql,
    timeouts,
)
from source_agent.engines.postgresql.waits import (
    ANSWER_S,
    CopySocket,
    Login,
    answers,
    cancel,
    drain,
    end,
)
from source_agent.engines.relations import null_key_sql, plan_of, scan_sql
from source_agent.engines.sessions import SnapshotSession

RANGES_PER_COPY: Final = 4096  # two settings of some 80 kB each


class PostgresqlSession(SnapshotSession):
    """Implement `interface.Session`."""

    def __init__(self, login: Login, limits: Limits, snapshot: str | None = None) -> None:
        """Open a session.

        Args:
            snapshot: the name of one that another session has exported and still holds; None takes
                a new one, over what is committed by now.

        Raises:
            DatabaseUnavailable, DatabaseRefused.
        """
        super().__init__()
        self._login, self._limits = login, limits
        self._exported: tuple[str, str] | None = None  # its name, and what it sees
        self._connection = login.connect()
        self.pulse = self._connection.pulse
        try:
            self._begin(snapshot)
        except BaseException:
            self._connection.close()
            raise

    def _begin(self, snapshot: str | None) -> None:
        """Set the session's limits and settings, and take or join a snapshot."""
        connection, limits = self._connection, self._limits
        connection.answer_s = ANSWER_S + limits.lock_s
        self._line = CopySocket(connection.pgconn, limits.silence_s, connection.pulse)
        self._asking = CopySocket(connection.pgconn, connection.answer_s, connection.pulse)
        with contextlib.suppress(Error):  # a server that cannot is one that notices later
            connection.execute(TIGHTEN, (list(DEAD_CLIENTS), list(DEAD_CLIENTS.values())))
        try:
            for sql, settings in ((PIN, SETTINGS), (TIGHTEN, timeouts(limits))):
                connection.execute(sql, (list(settings), list(settings.values())))
            self._shown = shown(self.ask)
            connection.execute(BEGIN)
            if snapshot is not None:
                connection.execute(import_sql(snapshot))  # it takes no parameters
            self.as_of = str(self.ask(AS_OF)[0][0])  # the first read takes the snapshot
        except Error as error:
            raise translate(error) from error

    @property
    def time_limits(self) -> list[TimeLimit]:
        try:
            found = self.ask(TIME_LIMITS)
        except Error as error:
            raise translate(error) from error
        return [TimeLimit(str(name), float(s), bool(idle)) for name, s, idle in found]

    def answers(self, within_s: float) -> bool:
        return answers(self._connection.pgconn, within_s)

    def interrupt(self) -> None:
        self._is_interrupted = True
        cancel(self._connection)
        end(self._connection)  # if the server does not answer, nor will it answer who waits for it

    def close(self) -> None:
        self._connection.close()

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        # Binary results need the extended protocol, which refuses a second statement.
        return self._connection.execute(sql, values or None, binary=True).fetchall()

    def row_description(self, sql: str) -> list[tuple[str, int, int]]:
        """See `types.PostgresqlCatalogue`. Prepared, never run."""
        pgconn, line = self._connection.pgconn, self._asking
        pgconn.send_prepare(b"", sql.encode())
        line.only_result()
        pgconn.send_describe_prepared(b"")
        result = line.only_result()
        return [
            ((result.fname(i) or b"").decode(), result.ftype(i), result.fmod(i))
            for i in range(result.nfields)
        ]

    def describe(self, relation: Relation) -> Shape:
        with self._reading(relation):
            shape = types.describe(self, relation)
            self._refuse_changed(relation)
            return self._secured(shape)

    def _secured(self, shape: Shape) -> Shape:
        """Return the shape with the policies that are in force. Its tables are locked by now."""
        execute = self._connection.execute
        if not policies.hides(self.ask, execute, scan_sql(shape)):
            return replace(shape, row_security=policies.NOTHING_HIDDEN)
        source, is_query = plan_of(shape).source, shape.relation.table is None
        relation = None if is_query else self.ask(access.RESOLVED, source)[0][0]
        with contextlib.closing(PostgresqlSession(self._login, self._limits)) as session:
            found = policies.policies(session.ask, relation)
        notes = (*shape.notes, policies.note(found, is_query=is_query))
        return replace(shape, row_security=found, notes=notes)

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        self.note_consistency(shape)
        with self._reading(shape.relation):
            yield from self._copy(shape, scan_sql(shape, ordered=ordered))
            self._refuse_changed(shape.relation)

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
        snapshot, sees = self._exported
        join = partial(PostgresqlSession, self._login, self._limits, snapshot)
        return PostgresqlSplit(self, PostgresqlJoin(join, sees, shape, cut))

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
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        del rows_max  # for drivers that read on: a COPY that nobody reads is cancelled
        assert shape.recipe.integer_key, "only an integer key has ranges"
        self.note_consistency(shape)
        sql = range_sql(shape)
        with self._reading(shape.relation):
            if shape.may_be_null_in(first):
                yield from self._copy(shape, null_key_sql(shape))
            for start in range(0, len(first), RANGES_PER_COPY):
                bounds = (a[start : start + RANGES_PER_COPY] for a in (first, last))
                self.ask(BOUNDS, *("{" + ",".join(map(str, b.tolist())) + "}" for b in bounds))
                yield from self._copy(shape, sql)
            self._refuse_changed(shape.relation)

    def _refuse_changed(self, relation: Relation) -> None:
        """Raise SnapshotLost or DatabaseRefused if what was read is not what it seems to be."""
        refuse_replaced(self.ask, relation)
        refuse_changed(self.ask, self._shown, relation)

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
        try:
            if pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                if not cancel(self._connection):
                    end(self._connection)
                drain(pgconn)
            self._connection.execute(ROLLBACK_TO)
            self._connection.execute(RELEASE)
        except (Error, DatabaseUnavailable):
            end(self._connection)

    def _copy(self, shape: Shape, select_sql: str) -> Iterator[Rows]:
        if (seed := plan_of(shape).seed) is not None:
            self.ask(hashes.SEED, str(seed))
        return copied(self._line, shape, select_sql, begun=self.refuse_interrupted)
