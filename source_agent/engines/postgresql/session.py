"""PostgreSQL: one read-only snapshot, read by COPY in binary, by one session or by several.

A binary tuple of COPY *is* the row bytes of the protocol (section 3). To split a scan, a session
exports its snapshot, further sessions import it, and each reads some of the parts (`split`).

Invariants: the connection is read-only from its first packet on (`default_transaction_read_only`),
unless a pooler is in front, and the transaction is READ ONLY. Statements go through the extended
protocol, which takes one at a time. A read that fails or is abandoned is rolled back to its
savepoint, so the snapshot outlives it. Key bounds and literals are values of settings, because COPY
takes no parameters. Every description and read, except of parts, whose table the exporting session
keeps locked, is followed by a check for changes that the snapshot does not cover (`replaced`).

Rejected: server-side cursors. Each FETCH is a round trip, and its rows are decoded value by value.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from driftline.arrays import U64, Positions
from driftline.errors import DatabaseRefused, DriftlineError
from driftline.relations.activity import UnknownActivity
from driftline.relations.derivations import Derivation
from driftline.relations.references import Reference
from driftline.rows.digests import MASK64
from driftline.rows.key_order import Key, KeyRange
from psycopg import Error, errors, pq

from source_agent.engines.interface import (
    Capabilities,
    DatabaseTime,
    KeysRead,
    Limits,
    MarkedRead,
    Rows,
    SnapshotState,
    TimeLimit,
    Unlocated,
)
from source_agent.engines.postgresql import (
    access,
    activity,
    hashes,
    locators,
    policies,
    settings,
    sql,
    types,
    waits,
)
from source_agent.engines.postgresql.access import translate
from source_agent.engines.postgresql.copy import copy_rows
from source_agent.engines.postgresql.replaced import read_by, refuse_replaced
from source_agent.engines.postgresql.settings import refuse_changed
from source_agent.engines.postgresql.split import SEES, BlockRanges, choose, import_sql, part_sql
from source_agent.engines.postgresql.values import compare, within
from source_agent.engines.postgresql.waits import ResultSocket
from source_agent.engines.relations.markers import (
    ORDERED,
    Mark,
    MarkerKind,
    RunningTransactions,
    future,
    latest,
    mark_of,
)
from source_agent.engines.relations.predicates import JoinedRelation
from source_agent.engines.relations.select import null_key_sql, null_places, plan_of, scan_sql
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sessions import SnapshotSession, end_quietly

KEEP_S: Final = 1.0  # between two statements of a session that waits, so that it is not idle
KEEP_SHARE: Final = 0.25  # of the server's limit for idle sessions, where that is shorter
RANGES_PER_COPY: Final = 4096  # two settings of some 80 kB each


class PostgresqlSession(SnapshotSession):
    """Implement `interface.Session`, `interface.MarkerReads` and `interface.LocatorReads`."""

    def __init__(
        self,
        parameters: dict[str, str],
        limits: Limits,
        snapshot: str | None = None,
        probed: Sequence[Relation] = (),
        held: Mapping[str, str] | None = None,
        way: waits.ServerPath = waits.ServerPath.DIRECT,
    ) -> None:
        """Open a session.

        Args:
            parameters: libpq's, the password among them.
            snapshot: one that another session has exported and still holds; None takes a new one.
            held: settings to have like that session, by name.
            probed: relations whose activity is read before that.
            way: what is known of the way to the server; a pooler's sessions are others' too.

        Raises DatabaseUnavailable, DatabaseRefused.
        """
        super().__init__()
        self._parameters, self._described = parameters, dict[str, Shape]()
        self._exported: tuple[str, str] | None = None  # the snapshot's name and transactions
        self.limits, self._connection = limits, waits.connect(parameters, way)
        self.pulse, self.server = self._connection.pulse, self._connection.facts
        try:
            self._begin(snapshot, probed, held or {})
        except BaseException:
            self.close()
            raise

    def _begin(
        self, snapshot: str | None, probed: Sequence[Relation], held: Mapping[str, str]
    ) -> None:
        """Set the session's limits and settings, and take or import a snapshot."""
        connection, limits = self._connection, self.limits
        connection.answer_s = waits.ANSWER_S + limits.lock_s
        self._copy_results = ResultSocket(connection.pgconn, limits.silence_s, self.pulse)
        self._command_results = ResultSocket(connection.pgconn, connection.answer_s, self.pulse)
        try:
            if connection.is_pooled:
                self._begin_pooled(probed)
                return
            self._shown = settings.pin(self.ask, limits, held)
            self._look_before(probed)
            connection.execute(sql.BEGIN)
            if snapshot is not None:
                connection.execute(import_sql(snapshot))  # it takes no parameters
            self.ask(sql.FIRST_READ)
        except Error as error:
            raise translate(error) from error

    def _begin_pooled(self, probed: Sequence[Relation]) -> None:
        """Begin a transaction for what precedes the snapshot, and then the snapshot's."""

        def begin() -> object:
            waits.begin_pooled(self._connection)
            self._shown = settings.pin_pooled(self.ask, self.limits)
            return waits.server_of(self._connection)

        server = begin()
        self._look_before(probed)
        self._connection.execute(sql.ROLLBACK)
        if begin() != server:
            raise access.several_servers("Two transactions of a session reached different servers.")

    def _look_before(self, probed: Sequence[Relation]) -> None:
        """Read what must be older than the snapshot: a standby replays meanwhile."""
        now = self.ask(sql.AS_OF)[0][0] or self.ask(sql.REPLAYED)[0][0]
        self.snapshot = SnapshotState(str(now))
        try:
            self.activities = activity.activities(self.ask, probed)
        except Error as error:  # activity is a hint, so a failure is only told
            why = UnknownActivity(translate(error).message_abroad)
            self.activities = {relation.name: why for relation in probed}

    def _set(self, statement: str, values: dict[str, str]) -> None:
        self._connection.execute(statement, (list(values), list(values.values())))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            activities=self.activities,
            markers=self,
            running=self.running,
            read_between=self.read_between,
            read_keys=self.read_keys,
            hash_keys=self.hash_keys,
            split=None if self.server.pooler else self.split,  # readers would wait for its places
            references=self.references,
            compare=compare,
            within=within,
            locators=self,
        )

    @property
    def time_limits(self) -> list[TimeLimit]:
        try:
            limits = self.ask(settings.TIME_LIMITS)
        except Error as error:
            raise translate(error) from error
        return [TimeLimit(str(name), float(s), bool(idle)) for name, s, idle in limits]

    def answers(self, within_s: float) -> bool:
        return waits.answers(self._connection.pgconn, within_s)

    def interrupt(self) -> None:
        self._is_interrupted = True
        waits.cancel(self._connection)
        waits.end(self._connection)  # a server that answers nothing must not keep a thread waiting

    def close(self) -> None:
        if self._connection.is_pooled:
            waits.hand_back(self._connection)
        end_quietly(self._connection.close)

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        # Binary results need the extended protocol, which refuses a second statement.
        return self._connection.rows(statement, values or None, binary=True)

    def row_description(self, select_sql: str) -> list[tuple[str, int, int]]:
        with waits.driven():
            return self._command_results.fields(select_sql)

    def decimals_as(self, lc_monetary: str) -> int | None:
        """Return the decimals of a money under another setting; None: the server lacks it."""
        self._connection.execute(sql.SAVEPOINT)
        try:
            self.ask(settings.LIKE_ROLE, lc_monetary)
            return int(self.ask(settings.DECIMALS)[0][0])
        except errors.InvalidParameterValue:
            return None
        finally:
            self._connection.execute(sql.ROLLBACK_TO)
            self._connection.execute(sql.RELEASE)

    def describe(self, relation: Relation) -> Shape:
        with self._reading(relation):
            self._described[relation.name] = shape = types.describe(self, relation)
            self._refuse_changed(relation)
            return self._secured(shape)

    def references(self, shape: Shape, published: Sequence[Relation]) -> tuple[Reference, ...]:
        with self._reading(shape.relation):
            return types.foreign_keys(self, shape, published)

    def _secured(self, shape: Shape) -> Shape:
        """Return the shape with the policies in force. Its tables must be locked."""
        if not policies.hides(self.ask, self._connection.execute, scan_sql(shape)):
            return replace(shape, row_security=policies.NOTHING_HIDDEN)
        source, is_query = sql.name_of(shape), shape.relation.table is None
        relation = None if is_query else self.ask(sql.RESOLVED, source)[0][0]
        given, way = (self._parameters, self.limits), self._connection.way
        with contextlib.closing(PostgresqlSession(*given, way=way)) as session:
            security = policies.policies(session.ask, relation)
        return policies.noted(shape, security, is_query=is_query)

    def derive(
        self, shape: Shape, derivation: Derivation, joins: Sequence[JoinedRelation] = ()
    ) -> Shape:
        made = super().derive(shape, derivation, joins)
        if derivation.rows is None:
            return made
        with self._reading(shape.relation):
            self._bind(made)
            plan = self.ask(sql.EXPLAIN + scan_sql(made))[0][0][0]["Plan"]
        return replace(made, rows_expected=int(plan["Plan Rows"]))

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        self.note_consistency(shape)
        with self._reading(shape.relation):
            yield from self._copy(shape, scan_sql(shape, ordered=ordered))
            self._refuse_changed(shape.relation)

    def split(self, shape: Shape, *, rows_max: int | None = None) -> PostgresqlSplit | None:
        with self._reading(shape.relation):
            self._bind(shape)
            cut = choose(self.ask, shape, rows_max)
        if cut is None:
            return None
        if self._exported is None:  # outside of any savepoint, where PostgreSQL refuses to export
            try:
                ((name, sees),) = self.ask(sql.EXPORT)
            except Error as error:
                raise translate(error, shape.relation) from error
            self._exported = str(name), str(sees)
        held = settings.held(self._shown)
        join = PostgresqlJoin(self._parameters, self.limits, *self._exported, held, shape, cut)
        return PostgresqlSplit(self, join)

    def keep(self, relation: Relation) -> None:
        """Issue statements, so that the server does not take the session for idle."""
        with self._reading(relation):
            pass

    def refuse_changed(self, relation: Relation) -> None:
        """Raise SnapshotLost if a table that this session has locked differs from its snapshot."""
        with self._reading(relation):
            self._refuse_changed(relation)

    def read_part(self, shape: Shape, first: str, last: str) -> Iterator[Rows]:
        """Read the rows at places from `first` on and before `last`. Raises as `scan`."""
        with self._reading(shape.relation):
            self.ask(sql.BOUNDS, first, last)
            yield from self._copy(shape, part_sql(shape))

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        del rows_max  # for drivers that read on: a COPY that nobody reads is cancelled
        assert shape.recipe.integer_key, "only an integer key has ranges"
        self.note_consistency(shape)
        ranges_sql = sql.range_sql(shape)
        with self._reading(shape.relation):
            if shape.may_be_null_in(first):
                yield from self._copy(shape, null_key_sql(shape))
            for start in range(0, len(first), RANGES_PER_COPY):
                bounds = (a[start : start + RANGES_PER_COPY] for a in (first, last))
                self.ask(sql.BOUNDS, *("{" + ",".join(map(str, b.tolist())) + "}" for b in bounds))
                yield from self._copy(shape, ranges_sql)
            self._refuse_changed(shape.relation)

    def locate(self, shape: Shape) -> Shape | Unlocated:
        try:
            with self._reading(shape.relation), self._by_index():
                self._bind(shape)
                return locators.locate(self.ask, shape)
        except DatabaseRefused:  # such as an extension that knows no places: a scan needs none
            return Unlocated("the database refuses to read rows by their places")

    def read_located(self, shape: Shape, at: U64) -> Iterator[Rows]:
        read, read_sql = locators.read_again(shape), locators.located_sql(shape)
        with self._reading(shape.relation), self._by_index():
            for places in locators.settings_of(at):
                self.ask(sql.BOUNDS, places, "")
                yield from locators.at(self._copy(read, read_sql), at)
            self._refuse_changed(shape.relation)

    def read_between(
        self, shape: Shape, within: KeyRange, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        del rows_max  # as in `read_ranges`
        self.note_consistency(shape)
        with self._reading(shape.relation), self._by_index():
            self._set(sql.KEY_BOUNDS, sql.key_bounds(shape, within))
            for place in null_places(shape, within):
                yield from self._copy(shape, sql.null_in_key_sql(shape, place))
            yield from self._copy(shape, sql.between_sql(shape, within))
            self._refuse_changed(shape.relation)

    def identity(self) -> Mapping[str, str]:
        try:
            facts = self.ask(sql.IDENTITY)[0]
        except Error as error:
            raise translate(error) from error
        return dict(zip(("system identifier", "timeline", "database"), facts, strict=True))

    def mark(self, shape: Shape) -> Mark:
        marked = shape.marker
        assert marked is not None, "a relation without a marker has no mark"
        with self._reading(shape.relation):
            self._bind(shape)
            server, tables, definition = read_by(self.ask, shape, self.snapshot.as_of)
            if marked.kind is MarkerKind.XMIN:
                at, started = self.ask(sql.XMIN)[0]
                return Mark(" ".join([server, started, *tables]), at, definition)
            source = " ".join([server, *tables])

            def greatest(name: str) -> str | None:
                # By COPY: without an index on the column, all rows are read.
                ((row,),) = self._copy(shape, sql.greatest_sql(shape, name))
                return row[6:].decode() or None  # a count, a length, the text

            return mark_of(source, marked, self.snapshot.as_of, greatest, definition=definition)

    def read_marked(self, shape: Shape, mark: Mark) -> Iterator[Rows]:
        self.note_consistency(shape)
        with self._reading(shape.relation):
            self.ask(sql.BOUNDS, mark.at, "")
            yield from self._copy(shape, sql.marked_sql(shape))
            self._refuse_changed(shape.relation)

    def marked_read(self, shape: Shape) -> MarkedRead | None:
        marked = shape.marker
        assert marked is not None, "a relation without a marker has no mark"
        if marked.kind not in ORDERED:
            return MarkedRead.SCAN if marked.kind is MarkerKind.XMIN else None
        with self._reading(shape.relation), self._by_index():
            self._bind(shape)
            self.ask(sql.BOUNDS, latest(marked, self.snapshot.as_of), "")
            plan = self.ask(sql.EXPLAIN + sql.marked_sql(shape))[0][0][0]["Plan"]
            return types.marked_read(plan, marked.marker.column)

    def keys_read(self, shape: Shape) -> KeysRead | None:
        statement = sql.EXPLAIN + sql.keys_statement(shape)
        with self._reading(shape.relation):
            self._bind(shape)
            self.ask(hashes.SEED, "0")
            if types.is_index_only(self.ask(statement)[0][0][0]["Plan"]):
                return KeysRead(MarkedRead.COVERING)
        relation = shape.relation
        if relation.table is None or relation.where:
            return KeysRead(MarkedRead.SCAN)
        return KeysRead(MarkedRead.SCAN, sql.key_index_sql(shape))

    def count_future(self, shape: Shape) -> int:
        assert shape.marker is not None, "a relation without a marker has no times"
        with self._reading(shape.relation):
            self.ask(sql.BOUNDS, future(shape.marker, self.snapshot.as_of), "")
            # By COPY: without an index it takes as long as a scan.
            ((row,),) = self._copy(shape, sql.later_sql(shape))
        return int(struct.unpack(">hiq", row)[2])

    def running(self) -> RunningTransactions:
        try:
            oldest, next_one = self.ask(sql.RUNNING)[0]
        except Error as error:
            raise translate(error) from error
        return RunningTransactions(int(oldest), int(next_one))

    def hash_keys(self, shape: Shape, seed: int) -> tuple[int, int]:
        with self._reading(shape.relation):
            self.ask(hashes.SEED, str(seed))
            # By COPY: an aggregate over all rows may take as long as a scan.
            copied = self._copy(shape, sql.key_hashes_sql(shape))
            ((row,),) = copied
            self._refuse_changed(shape.relation)
        _, _, rows, _, low, _, high = struct.unpack(">hiqiqiq", row)
        return rows, (low + (high << 32)) & MASK64

    def read_keys(
        self, shape: Shape, keys: Sequence[Key], *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        del rows_max  # as in `read_ranges`
        self.note_consistency(shape)
        with self._reading(shape.relation), self._by_index():
            for start in range(0, len(keys), RANGES_PER_COPY):
                some = keys[start : start + RANGES_PER_COPY]
                self._set(sql.KEY_BOUNDS, sql.named_keys(shape, some))
                yield from self._copy(shape, sql.keys_sql(shape))
            self._refuse_changed(shape.relation)

    @contextlib.contextmanager
    def _by_index(self) -> Iterator[None]:
        """Have the planner look up keys by index; the failure of a read undoes it."""
        before = str(self.ask(sql.SHOW_SEQUENTIAL)[0][0])
        self._set(sql.KEY_BOUNDS, {sql.SEQUENTIAL: "off"})
        yield
        self._set(sql.KEY_BOUNDS, {sql.SEQUENTIAL: before})

    def _refuse_changed(self, relation: Relation) -> None:
        """Raise SnapshotLost or DatabaseRefused if a table or a setting has changed."""
        refuse_replaced(self.ask, relation)
        refuse_changed(self.ask, self._shown, relation)

    @contextlib.contextmanager
    def _reading(self, relation: Relation) -> Iterator[None]:
        """Put a savepoint around a read, so that the snapshot survives its failure."""
        self.refuse_interrupted()
        try:
            self._connection.execute(sql.SAVEPOINT)
            yield
            self._connection.execute(sql.RELEASE)
        except BaseException as error:
            self._abandon()
            if isinstance(error, Error):
                raise self._placed(translate(error, relation), error, relation) from error
            raise

    def _placed(self, failure: DriftlineError, error: Error, relation: Relation) -> DriftlineError:
        """Return the error with column and key, if bytes are no character and a search has them."""
        if access.no_character(error) is None or relation.name not in self._described:
            return failure
        try:
            self._connection.execute(sql.SAVEPOINT)
            failure = access.placed(self.ask, failure, error, self._described[relation.name])
            self._connection.execute(sql.RELEASE)
        except Exception:  # such as a key with the same bytes
            self._abandon()
        return failure

    def _abandon(self) -> None:
        """Cancel a running statement and return to the savepoint; end a broken connection."""
        pgconn = self._connection.pgconn
        try:
            if pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                if not waits.cancel(self._connection):
                    waits.end(self._connection)
                waits.drain(pgconn)
            self._connection.execute(sql.ROLLBACK_TO)
            self._connection.execute(sql.RELEASE)
        except Exception:  # of any class: another error is being handled
            waits.end(self._connection)

    def _bind(self, shape: Shape) -> None:
        """Set what the condition of a derivation reads."""
        if values := plan_of(shape).values:
            self.ask(sql.VALUES, list(values))

    def _copy(self, shape: Shape, select_sql: str) -> Iterator[Rows]:
        self._bind(shape)
        if (seed := plan_of(shape).seed) is not None:
            self.ask(hashes.SEED, str(seed))
        return copy_rows(self._copy_results, shape, select_sql, on_sent=self.refuse_interrupted)


@dataclass(frozen=True, slots=True)
class PostgresqlJoin:
    """Make the same split in another process, over the snapshot that a session exported and holds.

    `parameters` contain the password: it is pickled into a pipe and nowhere else. `sees` names the
    transactions that the snapshot includes, `held` the settings of that session.
    """

    parameters: dict[str, str] = field(repr=False)
    limits: Limits
    snapshot: str
    sees: str
    held: dict[str, str]
    shape: Shape
    cut: BlockRanges

    def __call__(self) -> PostgresqlSplit:
        """Import the snapshot. Raises DatabaseUnavailable, DatabaseRefused."""
        session = PostgresqlSession(self.parameters, self.limits, self.snapshot, held=self.held)
        if session.ask(SEES)[0][0] != self.sees:
            session.close()
            raise access.several_servers(
                "A reader's connection sees another snapshot than the one it was to share."
            )
        return PostgresqlSplit(session, self)


class PostgresqlSplit:
    """Implement `interface.Split`."""

    def __init__(self, session: PostgresqlSession, join: PostgresqlJoin) -> None:
        self.session, self.join, self.parts = session, join, join.cut.parts
        self._kept_at = time.monotonic()
        idle_s = [limit.seconds for limit in session.time_limits if limit.is_idle]
        self._keep_s = min([KEEP_S, *(s * KEEP_SHARE for s in idle_s)])

    def read(self, part: int) -> Iterator[Rows]:
        return self.session.read_part(self.join.shape, *self.join.cut.bounds(part))

    def note(self, rows: int) -> None:  # noqa: ARG002 - the governor counts them
        self.session.refuse_interrupted()

    def spent(self, time: DatabaseTime) -> None:
        """Do nothing: the governor decides by it."""

    def finish(self) -> None:
        self.session.refuse_changed(self.join.shape.relation)

    def wait(self) -> None:
        self.session.refuse_interrupted()
        if time.monotonic() - self._kept_at > self._keep_s:
            self.session.keep(self.join.shape.relation)
            self._kept_at = time.monotonic()
