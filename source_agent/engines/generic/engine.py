"""Generic: the engine, made from `generic+<URL of SQLAlchemy>`; it says what it does not know.

`generic+oracle+oracledb://user@host/?service_name=x` is SQLAlchemy's URL behind `generic+`. The
explicit form is the DBA's consent to its limits (docs/types.md, docs/guarantees.md); an engine of
Driftline's own always keeps its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from driftline.errors import ConfigurationError, DatabaseUnavailable, DriftlineError
from sqlalchemy import Engine as Connector
from sqlalchemy import create_engine, event, exc
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from source_agent.engines.generic.dialects import entry_of
from source_agent.engines.generic.session import GenericSession, message_of
from source_agent.engines.interface import Limits, Listed, Privilege
from source_agent.engines.own_values.generic import GenericValues
from source_agent.engines.relations.select import join_name, scan_sql
from source_agent.engines.relations.shapes import Relation, Shape

UNKNOWN = "the generic engine cannot read privileges; read-only rests on this login alone"
NOT_LISTED = "-- SQLAlchemy's dialect also reads the catalogue when it connects and describes."


class GenericEngine:
    """Implement `interface.Engine`."""

    name = "generic"

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def open(
        self,
        probed: Sequence[Relation] = (),  # noqa: ARG002
        named: Sequence[Relation] = (),  # noqa: ARG002
    ) -> GenericSession:
        try:
            return GenericSession(self._connector)
        except exc.SQLAlchemyError as error:
            raise DatabaseUnavailable(
                f"The database cannot be opened: {message_of(error)}.", where="database.url"
            ) from error

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:  # noqa: ARG002
        self.open().close()
        return [Privilege(UNKNOWN, excess=False, is_unknown=True)]

    def scan_cost(self, shape: Shape) -> str:
        dialect = self._connector.dialect
        return f"rows unknown; {shape.relation.name} is read by {dialect.name}+{dialect.driver}"

    def warnings(self, shape: Shape) -> list[str]:  # noqa: ARG002
        return ["rows are equal to what the driver shows: what it rounds is never seen to change"]

    def grants(
        self,
        relations: Sequence[Relation],
        *,
        login: str,
        connections: int,
    ) -> str:
        tables = [relation.table or f"what {relation.name} reads" for relation in relations]
        return "\n".join(
            (
                "-- The generic engine does not know this database's GRANT. Read-only rests on the",
                f"-- login alone: create {login!r}, allow it {connections} connections, and grant",
                "-- it SELECT on these and nothing else:",
                *(f"--   {table}" for table in tables),
                "",
            )
        )

    def listed(self) -> list[Listed]:
        with contextlib.closing(self.open()) as session:
            schema, names = session.listed()
        return [Listed(schema, name, join_name([name])) for name in names]

    def attempts(self, relation: Relation) -> list[str]:
        issued: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            issued.append(statement)

        event.listen(self._connector, "before_cursor_execute", note)
        try:
            # A refusal the caller has met and shown.
            with contextlib.closing(self.open()) as session, contextlib.suppress(DriftlineError):
                session.describe(relation)
        finally:
            event.remove(self._connector, "before_cursor_execute", note)
        return list(dict.fromkeys(issued))

    def own_values(self, session: GenericSession) -> GenericValues:
        """Return what `own_values_of` asks for."""
        dialect = self._connector.dialect
        quote = dialect.identifier_preparer.quote
        return GenericValues(session.fetch, session._read, quote, dialect.paramstyle)

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        entry = entry_of(self._connector.dialect.name)
        templates = [NOT_LISTED, *([entry.snapshot] if entry.snapshot else []), *entry.settings]
        with contextlib.closing(self.open()) as session:
            for shape in shapes:
                templates += self.attempts(shape.relation)
                templates.append(scan_sql(shape))
                if shape.recipe.integer_key:
                    templates += session.key_sqls(shape)
        return list(dict.fromkeys(templates))


def from_url(url: URL, password: str | None, limits: Limits) -> GenericEngine:  # noqa: ARG001
    """Return the engine that a URL names; nothing is contacted yet.

    Raises:
        ConfigurationError: no dialect of this name, or its driver is not installed.
    """
    _, _, dialect = url.drivername.partition("+")
    if not dialect:
        raise ConfigurationError(
            "The URL names no dialect.",
            remedy="Write SQLAlchemy's URL behind it: generic+oracle+oracledb://user@host/…",
            where="database.url",
        )
    named = url.set(drivername=dialect)
    if password is not None:
        named = named.set(password=password)
    arguments = dict(entry_of(named.get_backend_name()).arguments)
    try:
        return GenericEngine(create_engine(named, poolclass=NullPool, connect_args=arguments))
    except (exc.ArgumentError, ImportError, ValueError) as error:
        raise ConfigurationError(
            f"SQLAlchemy cannot use {dialect!r}: {error}.",
            remedy="Install the package of the dialect and its driver.",
            where="database.url",
        ) from None
