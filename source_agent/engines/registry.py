"""From the DBA's URL to an engine. The drivers are imported here, and only the one that is needed.

SQLAlchemy parses the URL, and that is all it is used for; see `engine`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

if TYPE_CHECKING:
    from source_agent.engines.interface import Engine, Limits

_BACKENDS = {
    "postgresql": "postgresql",
    "mariadb": "mariadb",
    "mysql": "mariadb",
    "sqlite": "sqlite",
}
_DRIVERS = {"postgresql": "psycopg", "mariadb": "pymysql", "sqlite": ""}
_WHERE = "database.url"


def connect(url: str, password: str | None, limits: Limits) -> Engine:
    """The engine behind `url`; nothing is contacted yet.

    Args:
        password: wins over one in the URL; None leaves it to the URL and the driver's own files.

    Raises:
        ConfigurationError: not a URL, an unknown database or driver, or a driver not installed.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "It is not a URL.",  # which is not shown: it may hold a password
            remedy="Write it as postgresql://user@host/database or sqlite:////path/to/file.",
            where=_WHERE,
        ) from None
    backend, _, driver = parsed.drivername.partition("+")
    if backend not in _BACKENDS:
        raise ConfigurationError(
            f"The database {backend!r} is not supported.",
            remedy="Use postgresql, mariadb, mysql or sqlite.",
            where=_WHERE,
        )
    kind = _BACKENDS[backend]
    if driver not in {"", _DRIVERS[kind]}:
        raise ConfigurationError(
            f"The driver {driver!r} is not supported.",
            remedy=f"Write {backend}+{_DRIVERS[kind]}, or only {backend}."
            if _DRIVERS[kind]
            else f"Write {backend}.",
            where=_WHERE,
        )
    if _DRIVERS[kind]:
        _import_driver(kind)
    return _OPEN[kind](parsed, password, limits)


def _import_driver(kind: str) -> None:
    try:
        import_module(_DRIVERS[kind])
    except ImportError as error:
        raise ConfigurationError(
            f"The driver {_DRIVERS[kind]} cannot be imported: {error}.",
            remedy=f"pip install 'driftline[{kind}]'",
            where=_WHERE,
        ) from None


def _parameters(url: URL) -> dict[str, str]:
    """The part behind the question mark; a repeated name is a list, as libpq has it."""
    return {k: v if isinstance(v, str) else ",".join(v) for k, v in url.query.items()}


def _postgresql(url: URL, password: str | None, limits: Limits) -> Engine:
    from source_agent.engines.postgresql.engine import PostgresqlEngine

    named = {
        "host": url.host,
        "port": str(url.port) if url.port else None,
        "user": url.username,
        "dbname": url.database,
        "password": password or (str(url.password) if url.password else None),
    }
    given = {name: value for name, value in named.items() if value}
    return PostgresqlEngine(_parameters(url) | given, limits)


def _mariadb(url: URL, password: str | None, limits: Limits) -> Engine:
    from source_agent.engines.mariadb.session import MariadbEngine

    if not url.database:
        raise ConfigurationError(
            "The URL names no database.",
            remedy="Write it as mariadb://user@host/database.",
            where=_WHERE,
        )
    return MariadbEngine(
        host=url.host or "localhost",
        port=url.port or 3306,
        user=url.username or "",
        password=password or str(url.password or ""),
        database=url.database,
        parameters=_parameters(url),
        limits=limits,
    )


def _sqlite(url: URL, _password: str | None, limits: Limits) -> Engine:
    from source_agent.engines.sqlite.session import SqliteEngine

    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            "The URL names no file.", remedy="Write it as sqlite:////path/to/file.", where=_WHERE
        )
    return SqliteEngine(url.database, limits)


_OPEN = {"postgresql": _postgresql, "mariadb": _mariadb, "sqlite": _sqlite}
