"""PostgreSQL: the engine, made from a URL; it opens sessions and answers the DBA's commands.

Invariants: a connection is read-only from its first packet on (`default_transaction_read_only`),
unless a pooler keeps this from the server; a first one, which looks for a pooler, asks for nothing
else. A pooler that was met once is expected from then on. The operating system closes a connection
whose server is gone. Each of the DBA's commands opens
a session of its own and closes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from psycopg import Error
from sqlalchemy.engine import URL

from source_agent.engines import sockets
from source_agent.engines.interface import Ask, Limits, Listed, Privilege
from source_agent.engines.own_values.postgresql import PostgresqlValues
from source_agent.engines.postgresql import access, sql, types
from source_agent.engines.postgresql.session import PostgresqlSession
from source_agent.engines.postgresql.waits import READ_ONLY, ServerPath
from source_agent.engines.relations.column_warnings import column_warnings, spark_warning
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sessions import attempted


class PostgresqlEngine:
    """Implement `interface.Engine`. `parameters` are libpq's, the password among them.

    `pooler`: the URL leads to a connection pooler, whose server sessions are other clients' too.
    """

    name = "postgresql"

    def __init__(self, parameters: dict[str, str], limits: Limits, *, pooler: bool = False) -> None:
        self._limits, self._way = limits, ServerPath.DECLARED if pooler else ServerPath.UNKNOWN
        options = parameters.get("options", "")
        self._parameters = {
            "connect_timeout": str(max(2, round(limits.connect_s))),  # libpq's least is 2
            "keepalives_idle": str(sockets.KEEPALIVE_IDLE_S),
            "keepalives_interval": str(sockets.KEEPALIVE_INTERVAL_S),
            "keepalives_count": str(sockets.KEEPALIVE_COUNT),
            "tcp_user_timeout": str(sockets.UNACKNOWLEDGED_MS_MAX),
            **parameters,
            "application_name": "",  # set later: a pooler would leave it to its next client
            "client_encoding": "UTF8",  # from the start: not every server's encoding is Python's
            "options": f"{options} {READ_ONLY}".strip(),
        }

    def open(
        self,
        probed: Sequence[Relation] = (),
        named: Sequence[Relation] = (),  # noqa: ARG002
    ) -> PostgresqlSession:
        session = PostgresqlSession(self._parameters, self._limits, probed=probed, way=self._way)
        self._way = ServerPath.POOLED if session.server.pooler else ServerPath.DIRECT
        return session

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Ask]:
        """Open a session for a question of the DBA's. Raises DriftlineError."""
        with contextlib.closing(self.open()) as session:
            try:
                yield session.ask
            except Error as error:
                raise access.translate(error) from error

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:
        with self._asked() as ask:
            return access.privileges(ask, relations)

    def scan_cost(self, shape: Shape) -> str:
        with self._asked() as ask:
            return access.scan_cost(ask, shape)

    def warnings(self, shape: Shape) -> list[str]:
        return column_warnings(shape, lambda c, form: spark_warning(c, has_nan=form != "money"))

    def grants(self, relations: Sequence[Relation], *, login: str, connections: int) -> str:
        database = self._parameters.get("dbname") or login
        return access.grants(relations, login, database, self._limits, connections=connections)

    def listed(self) -> list[Listed]:
        with self._asked() as ask:
            return access.listed(ask)

    def attempts(self, relation: Relation) -> list[str]:
        with contextlib.closing(self.open()) as session:
            return attempted(types.describe, session, relation, Error)

    def own_values(self, session: PostgresqlSession) -> PostgresqlValues:
        """Return what `own_values_of` asks for."""
        together = {"synchronize_seqscans": "off"}
        return PostgresqlValues(
            session.read_keys,
            session._connection,
            session._reading,
            session.limits.silence_s,
            lambda: session._set(sql.KEY_BOUNDS, together),
        )

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        return access.templates(shapes)


def from_url(
    url: URL, password: str | None, limits: Limits, *, pooler: bool = False
) -> PostgresqlEngine:
    """Return the engine that a URL names, for `registry.connect`."""
    named = {
        "host": url.host,
        "port": str(url.port) if url.port else None,
        "user": url.username,
        "dbname": url.database,
        "password": password or (str(url.password) if url.password else None),
    }
    given = {name: value for name, value in named.items() if value}
    # A repeated parameter is a list, separated by commas as libpq reads it.
    parameters = {name: ",".join(values) for name, values in url.normalized_query.items()}
    return PostgresqlEngine(parameters | given, limits, pooler=pooler)
