"""SQLite: one read-only snapshot of a file, through Python's own sqlite3.

Invariants: the file is opened with `mode=ro`, the connection is `query_only`, and an authorizer
allows reading and nothing else; each of the three alone would do. In WAL mode the snapshot is held
from the first read to `close`. In the other journal modes a reader blocks the writers: there no
statement is open while the caller has the rows, so that `pause` can end the transaction at any
time, and `generation` says whether the data changed before the next one began.

Text comes as `bytearray` and blobs as `bytes` (`text_factory`): it is the fastest way to see the
storage class of a value, and it lets text that is not UTF-8 through to where its key can be named.

What cannot be paged outside WAL, views and queries, is spooled before it is handed out, and so are
the rows of ranges. The transaction ends when the last of them is in the file.

Rejected: one statement left open outside WAL, with `pause` ending the transaction under it. SQLite
lets go of the file only when the last statement is over, and the rest would be of another instant.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote as quote_url

from driftline.arrays import Positions
from driftline.errors import ConfigurationError
from driftline.limits import ROW_BYTES_MAX
from driftline.ranges import POSITION_MAX, POSITION_MIN
from sqlalchemy.engine import URL

from source_agent.engines import rows
from source_agent.engines.column_warnings import column_warnings, spark_warning
from source_agent.engines.interface import (
    Consistency,
    Limits,
    Listed,
    Privilege,
    Relation,
    Rows,
    Shape,
    TimeLimit,
)
from source_agent.engines.relations import null_key_sql, plan_of, scan_sql
from source_agent.engines.sessions import SnapshotSession, attempted
from source_agent.engines.sqlite import access, types
from source_agent.engines.sqlite.access import translate
from source_agent.engines.sqlite.types import MARK, page_sql, range_sql, view_sql
from source_agent.engines.sqlite.values import ENCODERS

PAGE_ROWS: Final = 1024  # 4096 took a third longer
_ANY_CLASS: Final = (
    "SQLite holds no column to its declaration, unless the table is STRICT: a value of another "
    "class is refused by name; as_text takes every value"
)
_INSTRUCTIONS_PER_TICK: Final = 100_000  # of SQLite's machine: about a millisecond

QUERY_ONLY = "PRAGMA query_only = 1"
JOURNAL_MODE = "PRAGMA main.journal_mode"
DATA_VERSION = "PRAGMA main.data_version"
BEGIN = "BEGIN"
COMMIT = "COMMIT"
FIRST_READ = "SELECT count(*) FROM main.sqlite_master"
AS_OF = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
STATEMENTS: Final = (
    QUERY_ONLY,
    JOURNAL_MODE,
    DATA_VERSION,
    AS_OF,
    BEGIN,
    FIRST_READ,
    COMMIT,
    types.TABLES,
    types.STATISTICS,
)

_PRAGMAS: Final = {"data_version", "table_xinfo", "index_list", "index_xinfo"}
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
        connection = sqlite3.connect(
            f"file:{quote_url(str(path))}?mode=ro",
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
    """Implement `interface.Session`."""

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__()
        self._path, self._limits = path, limits
        self._version: int | None = None
        self._deadline = math.inf
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()
        self._connection = _connect(path, limits.lock_s)
        try:
            self.ask(QUERY_ONLY)
            self.is_wal = str(self.ask(JOURNAL_MODE)[0][0]).lower() == "wal"
            self._connection.set_authorizer(_authorize)
            self._connection.set_progress_handler(self._is_over, _INSTRUCTIONS_PER_TICK)
            self.as_of = str(self.ask(AS_OF)[0][0])
            self._begin()
        except BaseException:
            self._connection.close()
            raise

    @property
    def time_limits(self) -> list[TimeLimit]:
        """Return the limits of source.toml; a file has none of its own."""
        limits = self._limits
        found = [TimeLimit("lock_timeout_s", limits.lock_s, False)]
        if limits.statement_s is not None:
            found.append(TimeLimit("statement_timeout_s", limits.statement_s, False))
        return found

    def answers(self, within_s: float) -> bool:  # noqa: ARG002 - there is no server
        return True

    def pause(self) -> None:
        if self.is_wal:
            return
        # The file stays locked until the last statement is over, also of a read that failed.
        for cursor in list(self._cursors):
            cursor.close()
        if self._connection.in_transaction:
            self.ask(COMMIT)

    def interrupt(self) -> None:
        self._is_interrupted = True  # also ends a statement that has not begun yet
        with contextlib.suppress(sqlite3.Error):
            self._connection.interrupt()

    def close(self) -> None:
        # A statement that was not read to its end, kept alive by an error, would keep its lock.
        for cursor in list(self._cursors):
            cursor.close()
        self._connection.close()

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a small result, with text as str."""
        with self._errors():
            found = self._execute(sql, values).fetchall()
        return [tuple(v.decode() if isinstance(v, bytearray) else v for v in row) for row in found]

    def query_columns(self, query: str) -> list[tuple[Any, ...]]:
        """See `types.SqliteCatalogue`. A view of its own, on a connection of its own: this one may
        create nothing. The file is as read-only there as here."""
        with contextlib.closing(_connect(self._path, self._limits.lock_s)) as connection:
            connection.text_factory = str
            with self._errors():
                view, columns = view_sql(query)
                connection.execute(view)
                return connection.execute(columns).fetchall()

    def describe(self, relation: Relation) -> Shape:
        self._begin()
        with self._errors(relation):
            shape = types.describe(self, relation)
            self._execute(f"EXPLAIN {scan_sql(shape)}", ())  # compiles it: `where`, functions
        return shape

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        pages = plan_of(shape).pages
        if self.is_wal:
            return self._read(shape, iter([(scan_sql(shape, ordered=ordered), ())]))
        if pages and (shape.ordered or not ordered):
            return self._paged(shape)
        found = self._read(shape, iter([(scan_sql(shape, ordered=ordered), ())]))
        return rows.spooled(found, then=self.pause)

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        assert shape.recipe.integer_key, "only an integer key has ranges"
        found = self._read(shape, _in_ranges(shape, first, last), rows_max=rows_max)
        return found if self.is_wal else rows.spooled(found, then=self.pause)

    def _read(
        self,
        shape: Shape,
        statements: Iterator[tuple[str, Sequence[object]]],
        *,
        rows_max: int | None = None,
    ) -> Iterator[Rows]:
        """The rows of each statement, one after the other."""
        self._begin()
        every = chain.from_iterable(self._execute(sql, values) for sql, values in statements)
        found = islice(every, None if rows_max is None else rows_max + 1)
        with self._errors(shape.relation):
            yield from rows.batches(
                rows.timely(found, self.pulse), rows.row_encoder(shape, ENCODERS)
            )

    def _paged(self, shape: Shape) -> Iterator[Rows]:
        """Pages in stored order, each a statement that is over before its rows are handed out."""
        width = len(plan_of(shape).pages)
        after: tuple[Any, ...] = ()

        def fetch(count: int) -> Sequence[tuple[Any, ...]]:
            nonlocal after
            self._begin()
            sql = page_sql(shape, is_first=not after)
            block = self._execute(sql, (*after, count)).fetchall()
            if block:
                # Text must be bound as text: a bytearray would be bound as a blob.
                last = block[-1][-width:]
                after = tuple(v.decode() if isinstance(v, bytearray) else v for v in last)
            return [row[:-width] for row in block]

        with self._errors(shape.relation):
            yield from rows.batches(fetch, rows.row_encoder(shape, ENCODERS), block_rows=PAGE_ROWS)

    def _begin(self) -> None:
        """A transaction, if none is open, with its first read, which takes the snapshot."""
        if self._connection.in_transaction:
            return
        self.ask(BEGIN)
        self.ask(FIRST_READ)
        version = self.ask(DATA_VERSION)[0][0]
        if self._version is not None and version != self._version:
            self.generation += 1
            self.consistency = Consistency.FUZZY
        self._version = version

    def _execute(self, sql: str, values: Sequence[object]) -> sqlite3.Cursor:
        if self._limits.statement_s is not None:
            self._deadline = time.monotonic() + self._limits.statement_s
        cursor = self._connection.execute(sql, values)
        self._cursors.add(cursor)
        self.pulse.beat()
        return cursor

    def _is_over(self) -> bool:
        return self._is_interrupted or time.monotonic() > self._deadline

    @contextlib.contextmanager
    def _errors(self, relation: Relation | None = None) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self._path, relation) from error


def _in_ranges(
    shape: Shape, first: Positions, last: Positions
) -> Iterator[tuple[str, Sequence[object]]]:
    """Statements and values, perhaps millions. A key of SQLite may be of any class and between two
    integers: no range leaves a gap to the next one, nor at the ends."""
    if shape.may_be_null_in(first):
        yield null_key_sql(shape, MARK), ()
    closed, open_ = range_sql(shape), range_sql(shape, is_open=True)
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        begin = -math.inf if a == POSITION_MIN else a
        yield (open_, (begin,)) if b == POSITION_MAX else (closed, (begin, b + 1))


class SqliteEngine:
    """Implement `interface.Engine`."""

    name = "sqlite"

    def __init__(self, path: str, limits: Limits) -> None:
        self._path = Path(path)
        self._limits = limits

    def open(self) -> SqliteSession:
        return SqliteSession(self._path, self._limits)

    def privileges(
        self,
        relations: Sequence[Relation],  # noqa: ARG002 - privileges are those of the file
    ) -> list[Privilege]:
        return access.privileges(self._path)

    def scan_cost(self, shape: Shape) -> str:
        with contextlib.closing(self.open()) as session:
            return access.scan_cost(session, shape, self._path)

    def warnings(self, shape: Shape) -> list[str]:
        # SQLite's numbers are never NaN, but in TEXT everything is allowed that the type can say.
        notes = column_warnings(shape, lambda c, f: spark_warning(c, has_nan=f == "string"))
        return [*notes, _ANY_CLASS]

    def grants(
        self,
        relations: Sequence[Relation],  # noqa: ARG002 - grants are those of the file
        *,
        login: str,
        connections: int,  # noqa: ARG002
    ) -> str:
        return access.grants(self._path, login)

    def listed(self) -> list[Listed]:
        with contextlib.closing(self.open()) as session:
            return types.listed(session)

    def attempts(self, relation: Relation) -> list[str]:
        with contextlib.closing(self.open()) as session:
            issued = attempted(types.describe, session, relation, sqlite3.Error)
        return [*issued, *(view_sql(relation.query) if relation.query is not None else ())]

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        texts = list(STATEMENTS)
        for shape in shapes:
            texts += access.templates(shape)
        return list(dict.fromkeys(texts))


def from_url(url: URL, _password: str | None, limits: Limits) -> SqliteEngine:
    """Return the engine that a URL names. See `registry.connect`."""
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            "The URL names no file.",
            remedy="Write it as sqlite:////path/to/file.",
            where="database.url",
        )
    return SqliteEngine(url.database, limits)
