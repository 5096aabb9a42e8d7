"""Generic: one session, through SQLAlchemy's connection and the driver's own values.

Invariants: values are bound, in the driver's own style of placeholders; no result passes through
SQLAlchemy's types, which round some. Relations are described on a connection of their own, because
an error may end a transaction.

What it cannot do: a dialect without a snapshot statement is read FUZZY; no statement has a limit
of time; `interrupt` closes the connection under the reading thread; nothing keeps the connection
from writing but the login. The time of the snapshot is that of the agent's clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from driftline.arrays import Positions
from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
)
from sqlalchemy import Connection, Engine, exc, inspect
from sqlalchemy.engine.interfaces import ReflectedColumn

from source_agent.engines import sockets
from source_agent.engines.encoding import rows
from source_agent.engines.encoding.driver_values import ENCODERS
from source_agent.engines.generic import types
from source_agent.engines.generic.dialects import DialectEntry, entry_of
from source_agent.engines.interface import Rows
from source_agent.engines.relations.select import select_sql
from source_agent.engines.relations.shapes import Consistency, Relation, Shape
from source_agent.engines.sessions import (
    SnapshotSession,
    answers,
    by_own_clock,
    driven,
    end_quietly,
    foreseen,
)

RANGES_PER_SELECT: Final = 100
_STREAMED: Final = {"stream_results": True, "max_row_buffer": rows.BLOCK_ROWS}
_FORMATTED: Final = frozenset({"format", "pyformat"})


def message_of(error: Exception) -> str:
    """Return what the database says; SQLAlchemy would add the statement and its values."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def _driver(engine: Engine) -> str:
    return f"The driver {engine.dialect.driver}"


class InspectedCatalogue:
    """Implement `types.GenericCatalogue` over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.entry = entry_of(connection.dialect.name)
        self._inspector = inspect(connection)

    def tables(self, schema: str | None) -> list[str]:
        names = self._inspector.get_table_names(schema), self._inspector.get_view_names(schema)
        return sorted({name for some in names for name in some})

    def columns(self, name: str, schema: str | None) -> list[ReflectedColumn]:
        return self._inspector.get_columns(name, schema)

    def primary_key(self, name: str, schema: str | None) -> list[str]:
        return list(self._inspector.get_pk_constraint(name, schema)["constrained_columns"] or ())

    def quote(self, name: str) -> str:
        return self._connection.dialect.identifier_preparer.quote(name)

    def escape(self, text: str) -> str:
        is_formatted = self._connection.dialect.paramstyle in _FORMATTED
        return text.replace("%", "%%") if is_formatted else text

    def row_description(self, sql: str) -> Sequence[Sequence[Any]]:
        result = self._connection.exec_driver_sql(sql, ())
        with contextlib.closing(result):
            return list(result.cursor.description) if result.cursor is not None else []


class GenericSession(SnapshotSession):
    """Implement `interface.Session`."""

    def __init__(self, engine: Engine) -> None:
        """Open a session. Raises sqlalchemy.exc.DBAPIError."""
        super().__init__()
        self._engine = engine
        self.snapshot = by_own_clock()
        with foreseen(_driver(engine), exc.SQLAlchemyError):
            self._connection = engine.connect()
        self._entry: DialectEntry = entry_of(engine.dialect.name)
        if not self._entry.snapshot:
            self.snapshot = replace(self.snapshot, consistency=Consistency.FUZZY)
        try:
            for statement in (self._entry.snapshot, *self._entry.settings):
                if statement:
                    self.ask(statement)
        except BaseException:
            self.close()
            raise

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a statement; return its rows, if it has any."""
        with self._errors(None), foreseen(_driver(self._engine), exc.SQLAlchemyError):
            result = self._connection.exec_driver_sql(sql, tuple(values))
            return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    def answers(self, within_s: float) -> bool:
        return answers(self._engine.connect, within_s)

    def listed(self) -> tuple[str, list[str]]:
        """Return the schema of the login, and the names of its tables and views."""
        driver = foreseen(_driver(self._engine), exc.SQLAlchemyError)
        with self._errors(None), driver, self._engine.connect() as apart:
            return apart.dialect.default_schema_name or "", InspectedCatalogue(apart).tables(None)

    def describe(self, relation: Relation) -> Shape:
        self.refuse_interrupted()
        try:
            driver = foreseen(_driver(self._engine), exc.SQLAlchemyError)
            with driver, self._engine.connect() as apart:
                return types.describe(InspectedCatalogue(apart), relation)
        except exc.SQLAlchemyError as error:
            if getattr(error, "connection_invalidated", False):
                raise DatabaseUnavailable(f"The database says: {message_of(error)}.") from error
            raise ConfigurationError(
                f"The database says: {message_of(error)}.",
                where=relation.name,
                remedy="Correct the relation in the file, or grant SELECT on what it reads.",
            ) from error

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        return self._read(shape, self._ordered_sql(shape) if ordered else select_sql(shape), ())

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        assert shape.recipe.integer_key, "only an integer key has ranges"
        if shape.may_be_null_in(first):
            yield from self._read(shape, self._null_sql(shape), (), rows_max=0)
        left = rows_max
        for start in range(0, len(first), RANGES_PER_SELECT):
            bounds = [
                int(bound)
                for pair in zip(first[start:], last[start:], strict=True)
                for bound in pair
            ][: 2 * RANGES_PER_SELECT]
            sql = self._range_sql(shape, len(bounds) // 2)
            for batch in self._read(shape, sql, bounds, rows_max=left):
                left = None if left is None else left - len(batch)
                yield batch
            if left is not None and left < 0:
                return

    def _key(self, shape: Shape) -> str:
        return self._engine.dialect.identifier_preparer.quote(shape.recipe.columns[0].name)

    def key_sqls(self, shape: Shape) -> list[str]:
        """Return the SELECTs by an integer key, for `Engine.templates`; that of ranges for one."""
        return [self._ordered_sql(shape), self._null_sql(shape), self._range_sql(shape, 1)]

    def _ordered_sql(self, shape: Shape) -> str:
        return select_sql(shape, tail=f"\nORDER BY {self._key(shape)}")

    def _null_sql(self, shape: Shape) -> str:
        return select_sql(shape, f"{self._key(shape)} IS NULL")

    def _range_sql(self, shape: Shape, count: int) -> str:
        """Return the SELECT of the rows in `count` ranges of keys."""
        style = self._engine.dialect.paramstyle
        marks = {"qmark": "?", "numeric": ":{}", "numeric_dollar": "${}"}.get(style, "%s")
        places = [marks.format(place + 1) for place in range(2 * count)]
        key = self._key(shape)
        ranges = [f"{key} BETWEEN {a} AND {b}" for a, b in zip(*[iter(places)] * 2, strict=True)]
        return select_sql(shape, f"({' OR '.join(ranges)})")

    def _read(
        self, shape: Shape, sql: str, values: Sequence[object], *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        """Yield the rows of a statement, at most one more than `rows_max`."""
        self.refuse_interrupted()
        self.note_consistency(shape)
        encode = rows.row_encoder(shape, ENCODERS)
        with self._errors(shape.relation):
            driver = _driver(self._engine)
            with foreseen(driver, exc.SQLAlchemyError):
                result = self._connection.exec_driver_sql(
                    sql, tuple(values), execution_options=_STREAMED
                )
            self.pulse.beat()
            with contextlib.closing(result):
                sent = driven(result, driver, exc.SQLAlchemyError)
                wanted = islice(sent, None if rows_max is None else rows_max + 1)
                fetched = rows.timely((tuple(row) for row in wanted), self.pulse)
                for batch in rows.batches(fetched, encode):
                    self.refuse_interrupted()
                    yield batch

    def fetch(
        self, shape: Shape, sql: str, values: Sequence[object], most: int
    ) -> list[tuple[Any, ...]]:
        """Return `most` rows of a statement about a relation at most, as the driver has them."""
        self.refuse_interrupted()
        with (
            self._errors(shape.relation),
            foreseen(_driver(self._engine), exc.SQLAlchemyError),
            contextlib.closing(
                self._connection.exec_driver_sql(sql, tuple(values), execution_options=_STREAMED)
            ) as result,
        ):
            return [tuple(row) for row in result.fetchmany(most)]

    @contextlib.contextmanager
    def _errors(self, relation: Relation | None) -> Iterator[None]:
        try:
            yield
        except exc.SQLAlchemyError as error:
            raise self._translated(error, relation) from error

    def _translated(self, error: exc.SQLAlchemyError, relation: Relation | None) -> DriftlineError:
        self.refuse_interrupted()
        where = relation.name if relation else ""
        lost = getattr(error, "connection_invalidated", False)
        kind = DatabaseUnavailable if lost else DatabaseRefused
        return kind(f"The database says: {message_of(error)}.", where=where)

    def interrupt(self) -> None:
        self._is_interrupted = True
        with contextlib.suppress(Exception):  # a driver's own, of any class
            driver: Any = self._connection.connection.driver_connection
            if hasattr(driver, "fileno"):  # the reading thread meets the end of the socket
                sockets.shut(driver.fileno())
            else:
                driver.close()

    def close(self) -> None:
        end_quietly(self._connection.close)
