"""SQLite: the engine, made from a URL; it opens sessions and answers the DBA's commands."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from driftline.errors import ConfigurationError
from sqlalchemy.engine import URL

from source_agent.engines.interface import Limits, Listed, Privilege
from source_agent.engines.own_values.sqlite import SqliteValues
from source_agent.engines.relations.column_warnings import column_warnings, spark_warning
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sessions import attempted
from source_agent.engines.sqlite import access, types
from source_agent.engines.sqlite.activity import DatabaseHeader
from source_agent.engines.sqlite.session import STATEMENTS, SqliteSession
from source_agent.engines.sqlite.sql import view_sql

_ANY_CLASS: Final = (
    "SQLite holds no column to its declaration, unless the table is STRICT: a value of another "
    "class is refused by name; as_text takes every value"
)


class SqliteEngine:
    """Implement `interface.Engine`."""

    name = "sqlite"

    def __init__(self, path: str, limits: Limits) -> None:
        self._path = Path(path)
        self._limits = limits
        self._header = DatabaseHeader(self._path)

    def open(
        self,
        probed: Sequence[Relation] = (),
        named: Sequence[Relation] = (),  # noqa: ARG002
    ) -> SqliteSession:
        return SqliteSession(self._path, self._limits, self._header, probed)

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:  # noqa: ARG002
        is_wal = False
        with contextlib.suppress(OSError):
            is_wal = self._header.is_wal()
        return access.privileges(self._path, is_wal=is_wal)

    def scan_cost(self, shape: Shape) -> str:
        with contextlib.closing(self.open()) as session:
            return access.scan_cost(session.ask, shape, self._path, is_wal=session.is_wal)

    def warnings(self, shape: Shape) -> list[str]:
        # SQLite's numbers are never NaN, but its text may be.
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

    def own_values(self, session: SqliteSession) -> SqliteValues:
        """Return what `own_values_of` asks for."""
        return SqliteValues(session._connection, session._begin, session._errors, session._read)

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        texts = [text for shape in shapes for text in access.templates(shape)]
        return list(dict.fromkeys((*STATEMENTS, *texts)))


def from_url(url: URL, _password: str | None, limits: Limits) -> SqliteEngine:
    """Return the engine that a URL names. Raises ConfigurationError if it names no file."""
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            "The URL names no file.",
            remedy="Write it as sqlite:////path/to/file.",
            where="database.url",
        )
    return SqliteEngine(url.database, limits)
