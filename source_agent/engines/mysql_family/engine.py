"""MariaDB and MySQL: the engine that a URL names, opened by what the server is.

The URL says which product the DBA takes the server for. Each session looks (`product`), so a URL
that is wrong about it, or a server that calls itself something else, changes nothing but words; the
engine has the product of the last session, and its templates are of that one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import pymysql
from driftline.errors import ConfigurationError
from pymysql.cursors import Cursor
from sqlalchemy.engine import URL

from source_agent.engines.interface import Limits, Listed, Privilege
from source_agent.engines.mysql_family import access, types
from source_agent.engines.mysql_family.mariadb import MARIADB
from source_agent.engines.mysql_family.mysql import MYSQL
from source_agent.engines.mysql_family.product import TOLD_APART, Product
from source_agent.engines.mysql_family.session import FamilySession
from source_agent.engines.mysql_family.sql import first_row_sql, source_of
from source_agent.engines.mysql_family.waits import DRIVER, FamilyConnector
from source_agent.engines.own_values.mysql_family import FamilyValues
from source_agent.engines.relations.column_warnings import DATES, READ_AS_TEXT, column_warnings
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sessions import attempted, end_quietly, foreseen

_ZERO_DATES: Final = "can hold a date that no calendar has, such as '0000-00-00', which is refused"
_PRODUCTS: Final = {product.scheme: product for product in (MARIADB, MYSQL)}


class FamilyEngine:
    """Implement `interface.Engine`."""

    def __init__(self, url: URL, password: str | None, limits: Limits) -> None:
        self._product = _PRODUCTS[url.get_backend_name()]
        parameters = {name: ",".join(values) for name, values in url.normalized_query.items()}
        host, port = url.host or "localhost", url.port or 3306
        self._limits, self._database = limits, url.database or ""
        self._where = parameters.get("unix_socket") or f"{host}:{port}"
        arguments = {
            "host": host,
            "port": port,
            "user": url.username or "",
            "password": password or str(url.password or ""),
            "database": self._database,
        }
        self._connect = FamilyConnector(arguments | access.driver_arguments(parameters))

    @property
    def name(self) -> str:
        return self._product.scheme

    def open(
        self, probed: Sequence[Relation] = (), named: Sequence[Relation] = ()
    ) -> FamilySession:
        try:
            connection = self._connect(self._limits.connect_s)
        except pymysql.Error as error:
            raise access.connect_error(self._product, error, self._where) from error
        try:
            self._product, release = self._server(connection)
            release = f"{self._product.name} {release.partition('-')[0]}"
            return FamilySession(
                self._product, connection, self._limits, self._connect, probed, named, release
            )
        except BaseException:
            end_quietly(connection.close)
            raise

    def _server(self, connection: pymysql.Connection[Cursor]) -> tuple[Product, str]:
        """Return what the server is, and its release; a proxy may take the comment out."""
        try:
            with foreseen(DRIVER, pymysql.Error), connection.cursor() as cursor:
                cursor.execute(TOLD_APART)
                ((told, version),) = cursor.fetchall()
        except pymysql.Error as error:
            raise access.translate(self._product, error) from error
        is_mariadb = int(told) > 1 or b"mariadb" in version.lower()
        return MARIADB if is_mariadb else MYSQL, version.decode(errors="replace")

    def privileges(self, relations: Sequence[Relation]) -> list[Privilege]:
        with contextlib.closing(self.open()) as session:
            return access.privileges(session.ask, relations, self._database)

    def scan_cost(self, shape: Shape) -> str:
        with contextlib.closing(self.open()) as session:
            return access.scan_cost(session.product, session.ask, shape)

    def warnings(self, shape: Shape) -> list[str]:
        note = f"{_ZERO_DATES}; {READ_AS_TEXT}"
        return column_warnings(shape, lambda c, _: note if c.type.kind in DATES else "")

    def grants(self, relations: Sequence[Relation], *, login: str, connections: int) -> str:
        return access.grants(
            self._product, relations, login, self._database, self._limits, connections=connections
        )

    def listed(self) -> list[Listed]:
        with contextlib.closing(self.open()) as session:
            return access.listed(session.ask)

    def attempts(self, relation: Relation) -> list[str]:
        with contextlib.closing(self.open()) as session:
            described = attempted(types.describe, session, relation, pymysql.Error)
        rows = [] if relation.table is None else [first_row_sql(source_of(relation))]
        return [*described, *rows]

    def own_values(self, session: FamilySession) -> FamilyValues:
        """Return what `own_values_of` asks for."""
        return FamilyValues(
            session._connection,
            session._rows,
            session._read,
            has_unknown=bool(session.product.fields),
        )

    def templates(self, shapes: Sequence[Shape]) -> list[str]:
        return access.templates(self._product, shapes)


def from_url(url: URL, password: str | None, limits: Limits) -> FamilyEngine:
    """Return the engine that a URL names.

    Raises:
        ConfigurationError: no database in the URL, or an unknown parameter.
    """
    if not url.database:
        raise ConfigurationError(
            "The URL names no database.",
            remedy=f"Write it as {url.get_backend_name()}://user@host/database.",
            where="database.url",
        )
    return FamilyEngine(url, password, limits)
