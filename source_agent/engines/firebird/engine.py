"""Firebird: the engine, made from a URL; it opens sessions and answers the DBA's commands.

`firebird://user@host:3050//path/to/file.fdb` asks a server; `firebird:////path/to/file.fdb` opens
the file in this process (embedded), which needs the rights of the operating system alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from driftline.errors import ConfigurationError
from driftline.relations.activity import UnknownActivity
from firebird.driver import DatabaseError
from sqlalchemy.engine import URL

from source_agent.engines.firebird import access, sql, types
from source_agent.engines.firebird.session import FirebirdConnector, FirebirdSession
from source_agent.engines.interface import Ask, Limits, Listed, Privilege
from source_agent.engines.own_values.firebird import FirebirdValues
from source_agent.engines.relations.column_warnings import column_warnings
from source_agent.engines.relations.select import join_name
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sessions import attempted

_NO_COUNTERS = UnknownActivity("Firebird counts no changes of a table")


class FirebirdEngine:
    """Implement `interface.Engine`."""

    name = "firebird"

    def __init__(self, connect: FirebirdConnector, limits: Limits) -> None:
        self._connect, self._limits = connect, limits

    def open(
        self,
        probed: Sequence[Relation] = (),
        named: Sequence[Relation] = (),  # noqa: ARG002
    ) -> FirebirdSession:
        session = FirebirdSession(self._connect, self._limits)
        session.activities = {relation.name: _NO_COUNTERS for relation in probed}
        return session

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Ask]:
        """Open a session for a question of the DBA's. Raises DriftlineError."""
        with contextlib.closing(self.open()) as session:
            try:
                yield session.ask
            except DatabaseError as error:
                raise access.translate(error) from error

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:
        with self._asked() as ask:
            return access.privileges(ask, relations)

    def scan_cost(self, shape: Shape) -> str:
        return f"rows unknown: Firebird keeps no count; {shape.relation.name} is read whole"

    def warnings(self, shape: Shape) -> list[str]:
        return column_warnings(shape, lambda column, _: _warning(column.type.kind))

    def grants(self, relations: Sequence[Relation], *, login: str, connections: int) -> str:
        return access.grants(relations, login, connections)

    def listed(self) -> list[Listed]:
        with self._asked() as ask:
            names = [str(row[0]).rstrip() for row in ask(sql.TABLES)]
        return [Listed("", name, join_name([name])) for name in names]

    def attempts(self, relation: Relation) -> list[str]:
        with contextlib.closing(self.open()) as session:
            return attempted(types.describe, session, relation, DatabaseError)

    def own_values(self, session: FirebirdSession) -> FirebirdValues:
        """Return what `own_values_of` asks for."""
        return FirebirdValues(session._asked, session._read)

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        texts = [text for shape in shapes for text in sql.templates(shape)]
        return list(dict.fromkeys((*sql.STATEMENTS, *texts)))


def _warning(kind: str) -> str:
    return "a value with more digits than its type declares is refused" if kind == "numeric" else ""


def from_url(url: URL, password: str | None, limits: Limits) -> FirebirdEngine:
    """Return the engine that a URL names. Raises ConfigurationError if it names no database."""
    if not url.database:
        raise ConfigurationError(
            "The URL names no database.",
            remedy="Write it as firebird://user@host//path/to/file.fdb.",
            where="database.url",
        )
    place = url.database
    if url.host:
        port = f"/{url.port}" if url.port else ""
        place = f"{url.host}{port}:{place}"
    secret = password or str(url.password or "")
    return FirebirdEngine(FirebirdConnector(place, url.username or "SYSDBA", secret), limits)
