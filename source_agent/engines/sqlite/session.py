"""SQLite: one read-only snapshot of a file, through Python's own sqlite3.

Invariants: the file is opened with `mode=ro`, the connection is `query_only`, and an authorizer
allows reading alone; each of the three would be enough. In WAL mode the snapshot is held from the
first read to `close`. In the other journal modes a reader blocks the writers: no statement is open
while the caller has the rows, so that `pause` can end the transaction at any time, and `generation`
says if the data changed before the next one began. A table is then read in pages; views, queries
and ranges are spooled first.

Text comes as `bytearray` and blobs as `bytes` (`text_factory`): it is the fastest way to see the
storage class of a value, and text that is not UTF-8 gets as far as the error that names its key.

Rejected: one statement left open outside WAL, with `pause` ending the transaction under it. SQLite
releases the file only when the last statement has ended, and later rows would be of another time.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote as quote_url

import numpy as np
from driftline.arrays import U64, Positions
from driftline.errors import DriftlineError
from driftline.limits import ROW_BYTES_MAX
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from driftline.relations.activity import Activity, UnknownActivity
from driftline.relations.derivations import DerivablePart, Derivation
from driftline.relations.references import Reference
from driftline.rows.key_order import Key, KeyRange

from source_agent.engines.encoding import rows
from source_agent.engines.interface import (
    Capabilities,
    KeysRead,
    Limits,
    LocatedRows,
    MarkedRead,
    Rows,
    SnapshotState,
    TimeLimit,
    Unlocated,
)
from source_agent.engines.relations.markers import (
    ORDERED,
    Mark,
    bounds,
    definition_of,
    future,
    latest,
    mark_of,
)
from source_agent.engines.relations.predicates import JoinedRelation
from source_agent.engines.relations.select import null_key_sql, null_places, plan_of, scan_sql
from source_agent.engines.relations.shapes import Consistency, Relation, Shape
from source_agent.engines.sessions import SnapshotSession, driven, end_quietly, foreseen
from source_agent.engines.sqlite import access, activity, sql, types
from source_agent.engines.sqlite.access import translate
from source_agent.engines.sqlite.activity import DatabaseHeader
from source_agent.engines.sqlite.sql import (
    EXPLAIN_PLAN,
    between_sql,
    greatest_sql,
    key_sql,
    later_sql,
    marked_sql,
    null_in_key_sql,
    page_places,
    page_sql,
    range_sql,
    view_sql,
)
from source_agent.engines.sqlite.values import (
    ENCODERS,
    MARK,
    bound_value,
    compare,
    restored,
    within,
)

PAGE_ROWS: Final = 1024  # 4096 took a third longer
_INSTRUCTIONS_PER_TICK: Final = 100_000  # of SQLite's machine: about a millisecond
Statement = tuple[str, Sequence[object]]  # with its values

QUERY_ONLY = "PRAGMA query_only = 1"
JOURNAL_MODE = "PRAGMA main.journal_mode"
DATA_VERSION = "PRAGMA main.data_version"
ENCODING = "PRAGMA main.encoding"
BEGIN = "BEGIN"
COMMIT = "COMMIT"
FIRST_READ = "SELECT count(*) FROM main.sqlite_master"
AS_OF = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
OPENING: Final = (
    QUERY_ONLY,
    JOURNAL_MODE,
    ENCODING,
    DATA_VERSION,
    AS_OF,
    BEGIN,
    FIRST_READ,
    COMMIT,
)
STATEMENTS: Final = (*OPENING, sql.TABLES, sql.STATISTICS, sql.SCHEMA_VERSION, sql.SCHEMA)

DRIVER: Final = "sqlite3"
_PRAGMAS: Final = {
    "data_version",
    "schema_version",
    "table_xinfo",
    "index_list",
    "index_xinfo",
    "foreign_key_list",
}
_FORBIDDEN_FUNCTIONS: Final = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, _: Any
) -> int:
    if action in {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_RECURSIVE}:
        is_allowed = True
    elif action == sqlite3.SQLITE_READ:
        is_allowed = database in {"main", None}
    elif action == sqlite3.SQLITE_FUNCTION:
        is_allowed = (second or "").lower() not in _FORBIDDEN_FUNCTIONS
    elif action == sqlite3.SQLITE_PRAGMA:
        is_allowed = (first or "").lower() in _PRAGMAS
    else:
        is_allowed = False
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _connect(path: Path, lock_s: float) -> sqlite3.Connection:
    if not path.is_file():
        raise access.missing(path)
    try:
        with foreseen(DRIVER, sqlite3.Error):
            connection = sqlite3.connect(
                # With an empty authority: else the first of two slashes would begin one.
                f"file://{quote_url(str(path.absolute()))}?mode=ro",
                uri=True,
                timeout=lock_s,
                isolation_level=None,
                check_same_thread=False,  # a session moves between threads, one at a time
                cached_statements=256,
            )
    except sqlite3.Error as error:
        raise translate(error, path) from error
    connection.text_factory = bytearray
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROW_BYTES_MAX)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


class SqliteSession(SnapshotSession):
    """Implement `interface.Session`, `interface.MarkerReads` and `interface.LocatorReads`."""

    def __init__(
        self,
        path: Path,
        limits: Limits,
        header: DatabaseHeader | None = None,
        probed: Sequence[Relation] = (),
    ) -> None:
        """Open a session; `header` is that of the file. Raises DriftlineError."""
        super().__init__()
        self._path, self._limits = path, limits
        self._version: int | None = None
        self._deadline = math.inf
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()
        self._connection = _connect(path, limits.lock_s)
        try:
            self.ask(QUERY_ONLY)
            self.is_wal = str(self.ask(JOURNAL_MODE)[0][0]).lower() == "wal"
            self.encoding = str(self.ask(ENCODING)[0][0])
            self._connection.set_authorizer(_authorize)
            self._connection.set_progress_handler(self._is_over, _INSTRUCTIONS_PER_TICK)
            self.snapshot = SnapshotState(str(self.ask(AS_OF)[0][0]))
            self._begin()
            if header is not None and probed:
                self.activities = self._probe(header, probed)
        except BaseException:
            end_quietly(self._connection.close)
            raise

    def _probe(self, header: DatabaseHeader, probed: Sequence[Relation]) -> Mapping[str, Activity]:
        """Return the activity of relations, of the snapshot itself: it holds the file's lock."""
        try:
            flag = activity.WAL if self.is_wal else header.read()
            return activity.activities(self.ask, probed, flag, self.encoding)
        except (OSError, DriftlineError) as error:
            said = error.strerror if isinstance(error, OSError) else error.message_abroad
            why = UnknownActivity(f"the file's header cannot be read: {said}")
            return {relation.name: why for relation in probed}

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
            locators=self,
        )

    @property
    def time_limits(self) -> list[TimeLimit]:  # those of source.toml; a file has none
        lock = TimeLimit("lock_timeout_s", self._limits.lock_s, is_idle=False)
        return [lock, *self._limits.of_statements]

    def answers(self, within_s: float) -> bool:  # noqa: ARG002 - there is no server
        return True

    def pause(self) -> None:
        if self.is_wal:
            return
        self._end_statements()
        if self._connection.in_transaction:
            self.ask(COMMIT)

    def interrupt(self) -> None:
        self._is_interrupted = True  # also ends a statement that has not begun yet
        with contextlib.suppress(sqlite3.Error):
            self._connection.interrupt()

    def close(self) -> None:
        end_quietly(self._end_statements, self._connection.close)

    def _end_statements(self) -> None:
        # A statement that was not read to its end, kept alive by an error, keeps the file locked.
        for cursor in list(self._cursors):
            cursor.close()

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._errors(), foreseen(DRIVER, sqlite3.Error):
            fetched = self._execute(sql, values).fetchall()
            return [
                tuple(v.decode() if isinstance(v, bytearray) else v for v in row) for row in fetched
            ]

    def query_columns(self, query: str) -> list[tuple[Any, ...]]:
        # A connection of its own creates the view in memory: this one may create nothing.
        connection = _connect(self._path, self._limits.lock_s)
        connection.text_factory = str
        try:
            with self._errors(), foreseen(DRIVER, sqlite3.Error):
                view, columns = view_sql(query)
                connection.execute(view)
                return connection.execute(columns).fetchall()
        finally:
            end_quietly(connection.close)

    def describe(self, relation: Relation) -> Shape:
        self._begin()
        with self._errors(relation):
            shape = types.describe(self, relation)
            self._execute(f"EXPLAIN {scan_sql(shape)}", ())  # compiles it: `where`, functions
        return shape

    def derive(
        self, shape: Shape, derivation: Derivation, joins: Sequence[JoinedRelation] = ()
    ) -> Shape:
        made = super().derive(shape, derivation, joins)
        if DerivablePart.JOINS not in derivation.parts:
            return made
        # Each statement reads the other relations anew: one by key would cost as much as a scan.
        why = "its rows are chosen by those of other relations"
        return replace(made, indexed=False, unordered=why, is_joined=True)

    def references(self, shape: Shape, published: Sequence[Relation]) -> tuple[Reference, ...]:
        self._begin()
        with self._errors(shape.relation):
            return types.foreign_keys(self, shape, published)

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        if not self.is_wal and plan_of(shape).pages and (shape.ordered or not ordered):
            return self._paged(shape)
        return self._read(shape, iter([(scan_sql(shape, ordered=ordered), ())]))

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        assert shape.recipe.integer_key, "only an integer key has ranges"
        return self._read(shape, _in_ranges(shape, first, last), rows_max)

    def read_between(
        self, shape: Shape, within: KeyRange, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        return self._read(shape, _between(shape, within), rows_max)

    def locate(self, shape: Shape) -> Shape | Unlocated:
        if shape.is_joined:
            return Unlocated(shape.unordered)
        self._begin()
        with self._errors(shape.relation):
            return types.located(self, shape)

    def read_located(self, shape: Shape, locators: U64) -> Iterator[Rows]:
        (rowid,) = plan_of(shape).locators
        bare = shape.located(())
        read, rowids = sql.located_sql(bare, rowid), locators.view(np.int64)
        return self._read(bare, ((read, (int(one),)) for one in rowids))

    def identity(self) -> Mapping[str, str]:
        try:
            file = self._path.stat()
        except OSError as error:
            raise access.missing(self._path) from error
        return {"device": str(file.st_dev), "inode": str(file.st_ino)}

    def mark(self, shape: Shape) -> Mark:
        marked = shape.marker
        assert marked is not None, "a relation without a marker has no mark"
        source = ":".join(self.identity().values())

        def greatest(name: str) -> str | None:
            value = self._value(shape, greatest_sql(shape, name))
            return str(value) if isinstance(value, int) else None

        self._begin()
        definition = definition_of([*self.ask(sql.SCHEMA_VERSION), *self.ask(sql.SCHEMA)])
        return mark_of(source, marked, self.snapshot.as_of, greatest, definition=definition)

    def read_marked(self, shape: Shape, mark: Mark) -> Iterator[Rows]:
        assert shape.marker is not None, "a relation without a marker has no mark"
        values = bounds(shape.marker, mark)
        return self._read(shape, iter([(marked_sql(shape), values)]))

    def _value(self, shape: Shape, statement: str, *values: object) -> object:
        """Return the one value of a SELECT over a whole relation."""
        self._begin()
        with self._errors(shape.relation):
            bound = (*plan_of(shape).values, *values)
            return self._fetched(statement, bound)[0][0]

    def count_future(self, shape: Shape) -> int:
        assert shape.marker is not None, "a relation without a marker has no times"
        count = self._value(shape, later_sql(shape), future(shape.marker, self.snapshot.as_of))
        return count if isinstance(count, int) else 0

    def marked_read(self, shape: Shape) -> MarkedRead | None:
        marked = shape.marker
        assert marked is not None, "a relation without a marker has no mark"
        if marked.kind not in ORDERED:
            return None
        bound = latest(marked, self.snapshot.as_of)
        values = (*plan_of(shape).values, bound if marked.is_time else int(bound))
        steps = [str(row[3]) for row in self.ask(EXPLAIN_PLAN + marked_sql(shape), *values)]
        return access.marked_read(steps, marked.marker.column)

    def keys_read(self, shape: Shape) -> KeysRead | None:
        del shape  # SQLite tells no pages that could be compared
        return None

    def read_keys(
        self, shape: Shape, keys: Sequence[Key], *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        return self._read(shape, _named(shape, keys), rows_max)

    def _read(
        self, shape: Shape, statements: Iterator[Statement], rows_max: int | None = None
    ) -> Iterator[Rows]:
        """Return the batches of some statements; spooled if writers wait for them."""
        stream = self._stream(shape, statements, rows_max)
        return stream if self.is_wal else rows.spooled(stream, shape, then=self.pause)

    def _stream(
        self, shape: Shape, statements: Iterator[Statement], rows_max: int | None
    ) -> Iterator[Rows]:
        self._begin()
        plan = plan_of(shape)
        raw = chain.from_iterable(
            self._execute(sql, (*plan.values, *values)) for sql, values in statements
        )
        sent = driven(raw, DRIVER, sqlite3.Error)
        every = iter(restored(sent, plan.forms, self.encoding))
        fetched = islice(every, None if rows_max is None else rows_max + 1)
        with self._errors(shape.relation):
            yield from _batches(shape, rows.timely(fetched, self.pulse))

    def _paged(self, shape: Shape) -> Iterator[Rows]:
        """Yield pages in stored order; each is a statement that ends before its rows are used."""
        plan, places = plan_of(shape), page_places(shape)
        last: list[Any] = []

        def fetch(count: int) -> Sequence[tuple[Any, ...]]:
            self._begin()
            sql = page_sql(shape, is_first=not last)
            # Text must be bound as text: a bytearray would be bound as a blob. It is UTF-8, or the
            # rows of the block before would have been refused.
            after = [v.decode() if isinstance(v, bytearray) else v for v in last]
            block = self._fetched(sql, (*plan.values, *after, count))
            if block:
                last[:] = [block[-1][place] for place in places]
            return list(restored(block, plan.forms, self.encoding))

        with self._errors(shape.relation):
            yield from _batches(shape, fetch, block_rows=PAGE_ROWS)

    def _begin(self) -> None:
        """Begin a transaction, if none is open, and take the snapshot by its first read."""
        if self._connection.in_transaction:
            return
        now = str(self.ask(AS_OF)[0][0])  # not later than the snapshot
        self.ask(BEGIN)
        self.ask(FIRST_READ)
        version = self.ask(DATA_VERSION)[0][0]
        if self._version is not None and version != self._version:
            generation = self.snapshot.generation + 1
            self.snapshot = SnapshotState(now, Consistency.FUZZY, generation)
        self._version = version

    def _execute(self, sql: str, values: Sequence[object]) -> sqlite3.Cursor:
        if self._limits.statement_s is not None:
            self._deadline = time.monotonic() + self._limits.statement_s
        with foreseen(DRIVER, sqlite3.Error):
            cursor = self._connection.execute(sql, values)
        self._cursors.add(cursor)
        self.pulse.beat()
        return cursor

    def _fetched(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        cursor = self._execute(sql, values)
        with foreseen(DRIVER, sqlite3.Error):
            return cursor.fetchall()

    def _is_over(self) -> bool:
        return self._is_interrupted or time.monotonic() > self._deadline

    @contextlib.contextmanager
    def _errors(self, relation: Relation | None = None) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self._path, relation) from error


def _batches(
    shape: Shape,
    fetch: Callable[[int], Sequence[tuple[Any, ...]]],
    *,
    block_rows: int = rows.BLOCK_ROWS,
) -> Iterator[Rows]:
    """Yield batches of row bytes, as `rows.batches`; of a shape with locators, `LocatedRows`."""
    encode = rows.row_encoder(shape, ENCODERS)
    if not plan_of(shape).locators:
        yield from rows.batches(fetch, encode, block_rows=block_rows)
        return
    place, rowids = len(plan_of(shape).reads), list[int]()

    def noted(block: Sequence[tuple[Any, ...]]) -> Rows:
        rowids.extend([row[place] for row in block])
        return encode(block)

    for batch in rows.batches(fetch, noted, block_rows=block_rows):
        yield LocatedRows(batch, np.array(rowids, np.int64).view(np.uint64))
        rowids.clear()


def _in_ranges(shape: Shape, first: Positions, last: Positions) -> Iterator[Statement]:
    """Yield statements, perhaps millions, that read the ranges without gaps between neighbours.

    A key of SQLite may have any class and lie between two integers.
    """
    if shape.may_be_null_in(first):
        yield null_key_sql(shape, MARK), ()
    closed, open_ = range_sql(shape), range_sql(shape, is_open=True)
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        begin = -math.inf if a == POSITION_MIN else a
        yield (open_, (begin,)) if b == POSITION_MAX else (closed, (begin, b + 1))


def _between(shape: Shape, within: KeyRange) -> Iterator[Statement]:
    """Yield the statements that read a range of keys."""
    forms = plan_of(shape).forms
    lower, upper = (
        [bound_value(form, text) for form, text in zip(forms, key or (), strict=False)]
        for key in (within.lower, within.upper)
    )
    for place in null_places(shape, within):
        yield null_in_key_sql(shape, place), lower[:place]
    yield between_sql(shape, within), (*lower, *upper)


def _named(shape: Shape, keys: Sequence[Key]) -> Iterator[Statement]:
    """Yield the statements that read rows by their keys."""
    sql, forms = key_sql(shape), plan_of(shape).forms
    for key in keys:
        yield sql, [bound_value(form, text) for form, text in zip(forms, key, strict=False)]
