"""MariaDB and MySQL: one read-only snapshot, read unbuffered as the text that the server writes.

The driver decodes nothing (`use_unicode=False`, no converters): it would make floats and datetimes
of values, which rounds some and refuses others. `rows` makes the row bytes.

Invariants: the session's default and the transaction itself are READ ONLY; everything that a text
form depends on is pinned. InnoDB tables are read in one consistent snapshot. Other engines have no
snapshots and block their writers while a result is unread: such a table is read in pages by a
unique key or, if it has none, spooled; the session is then FUZZY.

Rejected: SQL_BUFFER_RESULT. MariaDB 10.11 still blocks writers of a MyISAM table under it.
Rejected: joining a derived table of key bounds. It is a quarter faster than `OR`s of BETWEEN
(0.33 s against 0.44 s for 7,000 ranges of 11 keys in 1.5 M TPC-H orders), but the optimizer may
fall back to a full scan for *each* range; with ORs it makes one scan at worst.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pymysql
from driftline.arrays import Positions
from driftline.errors import OPEN, DatabaseRefused, DatabaseUnavailable, DriftlineError
from driftline.relations.activity import Activity, UnknownActivity
from driftline.relations.references import Reference
from driftline.rows.key_order import Key, KeyRange
from pymysql.cursors import Cursor, SSCursor

from source_agent.engines.encoding import rows
from source_agent.engines.interface import (
    Capabilities,
    KeysRead,
    Limits,
    MarkedRead,
    Rows,
    ServerFacts,
    SnapshotState,
    TimeLimit,
)
from source_agent.engines.mysql_family import (
    access,
    activity,
    innodb,
    settings,
    types,
    warnings,
)
from source_agent.engines.mysql_family.access import translate
from source_agent.engines.mysql_family.innodb import LockOutcome
from source_agent.engines.mysql_family.product import Product, identity_sql
from source_agent.engines.mysql_family.sql import (
    AS_OF,
    EXPLAIN,
    KEYS_PER_SELECT,
    MARK,
    PAGE_ROWS,
    RANGES_PER_SELECT,
    ROWS_MAX,
    between_sql,
    bound_sql,
    bound_values,
    greatest_sql,
    key_index_sql,
    keys_sql,
    later_sql,
    marked_sql,
    null_in_key_sql,
    page_sql,
    range_sql,
    source_of,
)
from source_agent.engines.mysql_family.values import (
    BINDERS,
    ENCODERS,
    bound,
    bound_value,
    compare,
    within,
)
from source_agent.engines.mysql_family.waits import (
    ANSWER_S,
    DRIVER,
    FamilyConnector,
    limit,
    prepared_fields,
)
from source_agent.engines.relations.markers import ORDERED, Mark, bounds, future, latest, mark_of
from source_agent.engines.relations.select import null_key_sql, null_places, plan_of, scan_sql
from source_agent.engines.relations.shapes import Consistency, Relation, Shape
from source_agent.engines.sessions import SnapshotSession, driven, end_quietly, foreseen

_HOLDS_BACK: Final = "the purge of old row versions (history list)"
LEFT_ROWS_MAX: Final = 1024  # of a scan that is given up: as cheap to read as to end it


class FamilySession(SnapshotSession):
    """Implement `interface.Session` and `interface.MarkerReads`."""

    def __init__(
        self,
        product: Product,
        connection: pymysql.Connection[Cursor],
        limits: Limits,
        connect: FamilyConnector,
        probed: Sequence[Relation] = (),
        named: Sequence[Relation] = (),
        release: str = "",
    ) -> None:
        super().__init__()
        self.product = product
        self.server = ServerFacts(release=release, holds_back=_HOLDS_BACK)
        self._connection, self._connect = connection, connect
        self._silence_s, self._answer_s = limits.silence_s, ANSWER_S + limits.lock_s
        self._open_cursor: SSCursor | None = None
        self._shown = settings.pin(self.ask, product, limits)
        self.activities = self._probe(probed)
        begun = innodb.begin(self.ask, named, catalogue_opens=product.catalogue_opens)
        self.snapshot, self._unlocked = SnapshotState(begun.as_of), begun.unlocked

    def _probe(self, probed: Sequence[Relation]) -> Mapping[str, Activity]:
        """Return the activity of relations; it is a hint, so a failure is only told."""
        try:
            return activity.activities(self.ask, probed)
        except DriftlineError as error:
            return {relation.name: UnknownActivity(error.message_abroad) for relation in probed}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            activities=self.activities,
            markers=self,
            read_between=self.read_between,
            read_keys=self.read_keys,
            references=self.references,
            compare=compare,
            within=within,
        )

    @property
    def time_limits(self) -> list[TimeLimit]:
        return settings.time_limits(self.ask)

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._connect.interrupt(self._connection)

    def answers(self, within_s: float) -> bool:
        return self._connect.answers(within_s)

    def close(self) -> None:
        if self._open_cursor is not None:
            _forget(self._open_cursor)
            self._open_cursor = None
        end_quietly(self._connection.close)

    def ask(self, sql: str, *values: object) -> list[tuple[str | None, ...]]:
        cursor = self._execute(self._connection.cursor(Cursor), sql, values, None)
        fetched = self._fetched(cursor, None)
        with foreseen(DRIVER):
            return [
                tuple(v.decode() if isinstance(v, bytes) else v for v in row) for row in fetched
            ]

    def fields(self, sql: str) -> Sequence[types.ResultField]:
        # The driver's public description leaves out flags and character set.
        if self.product.plans_by_running:
            return cast("Sequence[types.ResultField]", self._prepared(sql))
        cursor = self._execute(self._connection.cursor(Cursor), sql, (), None)
        return cast("Sequence[types.ResultField]", cursor._result.fields)

    def _prepared(self, sql: str) -> Sequence[object]:
        self._end_abandoned()
        self.refuse_interrupted()
        limit(self._connection, self._answer_s)
        try:
            with foreseen(DRIVER, pymysql.Error):
                return prepared_fields(self._connection, sql)
        except pymysql.Error as error:
            raise self._failed(error, None) from error

    def find_lost(self, sql: str) -> tuple[list[tuple[bytes | None, ...]], int]:
        cursor = self._connection.cursor(Cursor)
        limit(self._connection, self._silence_s)
        try:
            with foreseen(DRIVER, pymysql.Error):
                cursor.execute(sql)
        except pymysql.Error as error:
            raise self._failed(error, None) from error
        return self._fetched(cursor, None), _warnings(cursor)

    def is_own(self, shape: Shape) -> bool:
        return types.reads_plainly(self, shape.relation)

    def describe(self, relation: Relation) -> Shape:
        before = self._unlocked.get(source := source_of(relation))
        if before is LockOutcome.HELD:
            raise DatabaseUnavailable(
                "Another session had locked a table that it reads for longer than lock_timeout_s "
                "when the snapshot was to begin.",
                where=relation.name,
                remedy="Try again later.",
                abroad=OPEN,
            )
        if before is not None and innodb.lock(self.ask, source) is LockOutcome.TAKEN:
            raise types.replaced(self.product, relation)  # it could not be read then, and can now
        try:
            return types.describe(self, relation)
        except pymysql.Error as error:
            raise translate(self.product, error, relation) from error

    def references(self, shape: Shape, published: Sequence[Relation]) -> tuple[Reference, ...]:
        try:
            return types.foreign_keys(self, shape, published)
        except pymysql.Error as error:
            raise translate(self.product, error, shape.relation) from error

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        self.note_consistency(shape)
        plan = plan_of(shape)
        if plan.pages and set(plan.pages) <= {c.name for c in shape.recipe.columns}:
            encode = rows.row_encoder(shape, ENCODERS)
            batches = rows.batches(self._pages(shape), encode, block_rows=PAGE_ROWS)
            return self._settled(batches, shape.relation)
        batches = self._settled(
            self._stream(shape, bound_sql(shape, scan_sql(shape, ordered=ordered)), ()),
            shape.relation,
        )
        return batches if plan.consistency is Consistency.EXACT else rows.spooled(batches, shape)

    def _settled(self, batches: Iterator[Rows], relation: Relation) -> Iterator[Rows]:
        """Yield the batches, then refuse changed settings; below a spool, whose reader may be slow
        enough for the server to end the idle session."""
        yield from batches
        settings.refuse_changed(self.ask, self.product, self._shown, relation)

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        assert shape.recipe.integer_key, "only an integer key has ranges"
        self.note_consistency(shape)
        if shape.may_be_null_in(first):
            yield from self._read(shape, bound_sql(shape, null_key_sql(shape, MARK)), ())
        # The server must not read more than is wanted: the driver reads every result to its end.
        left = ROWS_MAX if rows_max is None else rows_max + 1
        for start in range(0, len(first), RANGES_PER_SELECT):
            bounds = np.stack((first, last), axis=1)[start : start + RANGES_PER_SELECT]
            # Always the same statement: the last range is repeated, which an OR does not mind.
            values = bounds.ravel().tolist()
            values += values[-2:] * (RANGES_PER_SELECT - len(bounds))
            for batch in self._read(shape, range_sql(shape), [*values, left]):
                left -= len(batch)
                yield batch
        settings.refuse_changed(self.ask, self.product, self._shown, shape.relation)

    def read_between(
        self, shape: Shape, within: KeyRange, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        self.note_consistency(shape)
        for sql, values in _between(shape, within, ROWS_MAX if rows_max is None else rows_max + 1):
            yield from self._read(shape, sql, values)
        settings.refuse_changed(self.ask, self.product, self._shown, shape.relation)

    def identity(self) -> Mapping[str, str]:
        identity = self.product.identity
        facts = zip(identity, self.ask(identity_sql(self.product))[0], strict=True)
        return {name: str(value) for name, value in facts if value is not None}

    def mark(self, shape: Shape) -> Mark:
        marked = shape.marker
        assert marked is not None, "a relation without a marker has no mark"
        source = ":".join(self.identity().values())

        def greatest(name: str) -> str | None:
            value = self._value(shape, greatest_sql(shape, name))
            return None if value is None else value.decode()

        # The session's own time zone is UTC, and none is written.
        definition = types.definition(self, shape.relation)
        return mark_of(
            source, marked, self.snapshot.as_of, greatest, definition=definition, zone=""
        )

    def read_marked(self, shape: Shape, mark: Mark) -> Iterator[Rows]:
        assert shape.marker is not None, "a relation without a marker has no mark"
        self.note_consistency(shape)
        yield from self._read(shape, marked_sql(shape), bounds(shape.marker, mark))
        settings.refuse_changed(self.ask, self.product, self._shown, shape.relation)

    def count_future(self, shape: Shape) -> int:
        assert shape.marker is not None, "a relation without a marker has no times"
        bound = future(shape.marker, self.snapshot.as_of).removesuffix("+00")
        return int(self._value(shape, later_sql(shape), bound) or 0)

    def _value(self, shape: Shape, sql: str, *values: object) -> bytes | None:
        """Return the one value of a SELECT over a whole relation."""
        cursor = self._connection.cursor(Cursor)
        bound = (*plan_of(shape).values, *values)
        self._execute(cursor, sql, bound, shape.relation)
        value: bytes | None = self._fetched(cursor, shape.relation)[0][0]
        warnings.refuse(self, shape, _warnings(cursor))
        return value

    def marked_read(self, shape: Shape) -> MarkedRead | None:
        marked = shape.marker
        assert marked is not None, "a relation without a marker has no mark"
        if marked.kind not in ORDERED:
            return None
        if self.product.plans_by_running and not innodb.is_stored(self.ask, shape.relation):
            return None
        bound = latest(marked, self.snapshot.as_of).removesuffix("+00")
        try:
            plan = self.ask(EXPLAIN + marked_sql(shape), *plan_of(shape).values, bound)
        except DatabaseRefused as error:
            access.refuse_unhidden(error)
            return None
        return access.marked_read(plan)

    def keys_read(self, shape: Shape) -> KeysRead | None:
        if self.product.plans_by_running and not innodb.is_stored(self.ask, shape.relation):
            return None
        plan = self.ask(
            EXPLAIN + bound_sql(shape, scan_sql(shape.narrow())), *plan_of(shape).values
        )
        if access.is_index_only(plan):
            return KeysRead(MarkedRead.COVERING)
        relation = shape.relation
        if relation.table is None or relation.where:
            return KeysRead(MarkedRead.SCAN)
        return KeysRead(MarkedRead.SCAN, key_index_sql(shape))

    def read_keys(
        self, shape: Shape, keys: Sequence[Key], *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        self.note_consistency(shape)
        left = ROWS_MAX if rows_max is None else rows_max + 1
        for start in range(0, len(keys), KEYS_PER_SELECT):
            sql, values = _named(shape, keys[start : start + KEYS_PER_SELECT])
            for batch in self._read(shape, sql, [*values, left]):
                left -= len(batch)
                yield batch
        settings.refuse_changed(self.ask, self.product, self._shown, shape.relation)

    def _read(self, shape: Shape, sql: str, values: Sequence[object]) -> Iterator[Rows]:
        """Return the batches of a statement; spooled if its table's writers wait for it."""
        stream = self._stream(shape, sql, values)
        return (
            stream
            if plan_of(shape).consistency is Consistency.EXACT
            else rows.spooled(stream, shape)
        )

    def _stream(self, shape: Shape, sql: str, values: Sequence[object]) -> Iterator[Rows]:
        cursor = self._connection.cursor(SSCursor)
        self._execute(cursor, sql, (*plan_of(shape).values, *values), shape.relation)
        self._open_cursor = cursor
        try:
            sent = driven(iter(cursor.read_next, None), DRIVER, pymysql.Error)
            fetch = rows.timely(sent, self.pulse)
            yield from rows.batches(fetch, rows.row_encoder(shape, ENCODERS))
        except pymysql.Error as error:
            raise self._failed(error, shape.relation) from error
        self._open_cursor = None
        warnings.refuse(self, shape, _warnings(cursor))

    def _pages(self, shape: Shape) -> Callable[[int], Sequence[tuple[Any, ...]]]:
        """Return a `fetchmany` that issues a statement for each block, after the last key."""
        plan = plan_of(shape)
        names = [c.name for c in shape.recipe.columns]
        places = [names.index(page) for page in plan.pages]
        bind = [BINDERS[plan.forms[place]] for place in places]
        after: list[object] = []

        def fetch(count: int) -> Sequence[tuple[Any, ...]]:
            values = [v for i in range(len(after)) for v in after[: i + 1]]
            sql = page_sql(shape, is_first=not after)
            cursor = self._connection.cursor(Cursor)
            bindings = (*plan.values, *values, count)
            self._execute(cursor, sql, bindings, shape.relation)
            block = self._fetched(cursor, shape.relation)
            warnings.refuse(self, shape, _warnings(cursor))
            if block:
                after[:] = [b(block[-1][p]) for b, p in zip(bind, places, strict=True)]
            return block

        return fetch

    def _end_abandoned(self) -> None:
        """End a scan whose rows are not wanted any more; the driver reads what was sent of it."""
        if (cursor := self._open_cursor) is None:
            return
        self._open_cursor = None
        with contextlib.suppress(Exception):  # of any class: the scan is ended, then
            if any(cursor.read_next() is None for _ in range(LEFT_ROWS_MAX)):
                return
        self._connect.kill(self._connection)
        end_quietly(cursor.close)
        # If the scan had ended, the server may end the next statement instead.
        with contextlib.suppress(DriftlineError):
            self.ask(AS_OF)

    def _failed(self, error: pymysql.Error, relation: Relation | None) -> DriftlineError:
        """Translate an error; end the statement if the driver has given up reading its result."""
        if access.is_silence(error):
            self._connect.interrupt(self._connection)
        return translate(self.product, error, relation)

    def _rows(
        self, sql: str, values: Sequence[object], relation: Relation
    ) -> list[tuple[Any, ...]]:
        """Return all rows of a statement about a relation."""
        cursor = self._connection.cursor(Cursor)
        return self._fetched(self._execute(cursor, sql, values, relation), relation)

    def _fetched(self, cursor: Any, relation: Relation | None) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        try:
            with foreseen(DRIVER, pymysql.Error):
                return list(cursor.fetchall())
        except pymysql.Error as error:
            raise self._failed(error, relation) from error

    def _execute(
        self, cursor: Any, sql: str, values: Sequence[object], relation: Relation | None
    ) -> Any:
        self._end_abandoned()
        self.refuse_interrupted()
        limit(self._connection, self._answer_s if relation is None else self._silence_s)
        try:
            with foreseen(DRIVER, pymysql.Error):
                cursor.execute(sql, tuple(values) or None)
        except pymysql.Error as error:
            raise self._failed(error, relation) from error
        self.pulse.beat()
        return cursor


def _between(
    shape: Shape, within: KeyRange, rows: int = ROWS_MAX
) -> Iterator[tuple[str, list[object]]]:
    """Yield the statements that read `rows` rows of a range of keys at most, with their values."""
    key = shape.recipe.key
    bounds = [bound(column) for column in key]
    lower, upper = (
        [bound_value(c, text) for c, text in zip(key, texts or (), strict=False)]
        for texts in (within.lower, within.upper)
    )
    for place in null_places(shape, within):
        yield null_in_key_sql(shape, bounds[:place]), lower[:place]
    yield between_sql(shape, bounds, within), [*bound_values(lower), *bound_values(upper), rows]


def _named(shape: Shape, keys: Sequence[Key]) -> tuple[str, list[object]]:
    """Return the statement that reads rows by KEYS_PER_SELECT keys at most, with their values.

    It is always the same: the last key is repeated, which an OR does not mind.
    """
    key = shape.recipe.key
    every = [*keys, *[keys[-1]] * (KEYS_PER_SELECT - len(keys))]
    values = [bound_value(c, text) for one in every for c, text in zip(key, one, strict=True)]
    return keys_sql(shape, [bound(column) for column in key]), values


def _warnings(cursor: Any) -> int:
    """Return the number of warnings of a result that was read to its end."""
    return int(cursor._result.warning_count) & 0xFFFF  # the driver reads it with a sign


def _forget(cursor: SSCursor) -> None:
    """Close the connection under an unread result, which the driver would read to its end."""
    result = cursor._result  # type: ignore[attr-defined]
    if result is not None:
        result.unbuffered_active = False
        result.connection = None
    cursor.connection._force_close()  # type: ignore[attr-defined]
