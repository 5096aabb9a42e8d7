"""The database engines that a URL may name, and the way from the DBA's URL to one of them.

An engine is a package with a function `from_url`, and one line in `KINDS`; it implements
`interface`, and `tests/conformance` tests it. It is imported when a URL names it, because its
driver may not be installed. What is not in `KINDS` may be an engine of another package
(`plug_ins`). SQLAlchemy only parses the URL.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from ipaddress import ip_address
from typing import Final

from driftline.errors import ConfigurationError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from source_agent.engines import plug_ins
from source_agent.engines.interface import Engine, Limits
from source_agent.engines.passwords import CurrentPassword

_WHERE = "database.url"


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A database engine that a URL may name; its scheme is also the name of pip's extra.

    `opens` is the module that has `from_url(url, password, limits) -> Engine`. `driver` is the
    package that it needs, which may stand behind `+` in a URL; empty: none. `has_dialect`: the
    engine itself reads what stands there. `is_file`: the URL names a file or a folder, no host and
    no login. `has_files`: relations are files of a folder, not tables. `may_rest`: it is a server
    whose writers never wait for readers.
    """

    opens: str
    driver: str = ""
    is_file: bool = False
    has_files: bool = False
    has_dialect: bool = False
    may_rest: bool = False


_FAMILY = "source_agent.engines.mysql_family.engine"
KINDS: dict[str, EngineKind] = {  # by the scheme of a URL
    "postgresql": EngineKind("source_agent.engines.postgresql.engine", "psycopg", may_rest=True),
    "mariadb": EngineKind(_FAMILY, "pymysql", may_rest=True),
    "mysql": EngineKind(_FAMILY, "pymysql", may_rest=True),
    "sqlite": EngineKind("source_agent.engines.sqlite.engine", is_file=True),
    "firebird": EngineKind("source_agent.engines.firebird.engine", "firebird.driver"),
    "generic": EngineKind("source_agent.engines.generic.engine", has_dialect=True),
    "dump": EngineKind("source_agent.engines.dump.engine", is_file=True, has_files=True),
}

# The servers that the project's own tests run.
# By product; the beginning of a release. SQLite's library comes with Python, or the machine.
TESTED: Final = {
    "PostgreSQL": ("14", "15", "16", "17", "18"),
    "MariaDB": ("10.11", "11.8"),
    "MySQL": ("9.7",),
    "Firebird": ("3.0", "4.0", "5.0"),
}

_ELSEWHERE = ("PGHOST", "PGHOSTADDR", "PGSERVICE")  # of libpq


def is_file(url: URL) -> bool:
    """Return True if a URL names an engine whose databases are files."""
    kind = KINDS.get(url.get_backend_name())
    return kind is not None and kind.is_file


def has_files(url: URL) -> bool:
    """Return True if a URL names an engine whose relations are files of a folder."""
    kind = KINDS.get(url.get_backend_name())
    return kind is not None and kind.has_files


def is_beside(url: str) -> bool:
    """Return True if a URL names a server on this machine, whose writers never wait for readers.

    Only if nothing else could: not if a driver may take the host from elsewhere.
    """
    parsed = make_url(url)
    kind = KINDS.get(parsed.get_backend_name())
    if kind is None or not kind.may_rest:
        return False
    query = parsed.normalized_query
    if "service" in query or any(name in os.environ for name in _ELSEWHERE):
        return False
    named = [*query.get("host", ()), *query.get("hostaddr", ()), parsed.host or ""]
    return all(map(_is_local, filter(None, ",".join(named).split(","))))


def _is_local(host: str) -> bool:
    if host.startswith(("/", "@")) or host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def untested(release: str) -> str:
    """Return a note on a server, such as `MySQL 8.0.36`, that no test runs; empty: one does."""
    product, _, number = release.partition(" ")
    known = TESTED.get(product, ())
    if not known or any(f"{number}.".startswith(f"{one}.") for one in known):
        return ""
    return (
        f"{release} was never run by the tests of this project, which run "
        f"{product} {', '.join(known)}: compare what is read with `check --reads`"
    )


def connect_anew(
    url: str, password: Callable[[], str | None], limits: Limits, *, pooler: bool = False
) -> Engine:
    """Return what `connect` does, with a password that is read at each connection."""
    return CurrentPassword(lambda secret: connect(url, secret, limits, pooler=pooler), password)


def connect(url: str, password: str | None, limits: Limits, *, pooler: bool = False) -> Engine:
    """Return the engine that a URL names; nothing is contacted yet.

    Args:
        url: the DBA's `database.url`.
        password: used instead of the URL's; None leaves it to the URL and the driver's own files.
        limits: for the sessions of the engine.
        pooler: a connection pooler of PostgreSQL is declared to be in front of the database.

    Raises:
        ConfigurationError: not a URL, an unknown database or driver, a driver not installed, or an
            engine of another package that cannot be used.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "It is not a URL.",  # which is not shown: it may hold a password
            remedy="Write it as postgresql://user@host/database or sqlite:////path/to/file.",
            where=_WHERE,
        ) from None
    scheme, _, driver = parsed.drivername.partition("+")
    kind = KINDS.get(scheme)
    if kind is None:
        if (plugged := plug_ins.connect(scheme, parsed, password, limits)) is not None:
            return plugged
        *others, last = [*KINDS, *plug_ins.schemes()]
        raise ConfigurationError(
            f"The database {scheme!r} is not supported.",
            remedy=f"Use {', '.join(others)} or {last}.",
            where=_WHERE,
        )
    if driver not in {"", kind.driver} and not kind.has_dialect:
        named = f"{scheme}+{kind.driver}, or only {scheme}" if kind.driver else scheme
        raise ConfigurationError(
            f"The driver {driver!r} is not supported.", remedy=f"Write {named}.", where=_WHERE
        )
    if kind.driver:
        _import_driver(scheme, kind.driver)
    declared = {"pooler": True} if pooler else {}  # for PostgreSQL only, as `config` checks
    engine: Engine = import_module(kind.opens).from_url(parsed, password, limits, **declared)
    return engine


def _import_driver(scheme: str, driver: str) -> None:
    try:
        import_module(driver)
    except ImportError as error:
        raise ConfigurationError(
            f"The driver {driver} cannot be imported: {error}.",
            remedy=f"pip install 'driftline[{scheme}]'",
            where=_WHERE,
        ) from None
