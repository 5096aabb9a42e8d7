"""The DBA's database URL, in parts: `scheme[+driver]://[user[:password]@][host][:port][/database]
[?parameter=value&…]`.

User, password and database may be percent-encoded; a parameter may be repeated. The syntax is that
of SQLAlchemy's URLs, which DBAs know, and the tests compare each part with its parser. Rejected:
SQLAlchemy itself, which takes 0.15 s to import and was used for nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, quote_plus, unquote

PORT_MAX = 65_535
_URL = re.compile(
    r"""
    (?P<scheme>[\w+]+)://
    (?:(?P<username>[^:/]*)(?::(?P<password>[^@]*))?@)?
    (?:\[(?P<ipv6>[^/?]+)\]|(?P<host>[^/:?]+))?
    (?::(?P<port>[^/?]*))?
    (?:/(?P<database>[^?]*))?
    (?:\?(?P<query>.*))?
    """,
    re.X,
)


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A database URL in parts; None: the part is absent.

    `scheme` names the database and `driver` its driver, if the URL does. `query` has the values of
    each parameter in their order.
    """

    scheme: str
    driver: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    host: str | None = None
    port: int | None = None
    database: str | None = None
    query: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({}), repr=False
    )

    @classmethod
    def parse(cls, text: str) -> DatabaseUrl:
        """Read a URL. Raises ValueError, without the text, which may hold a password."""
        found = _URL.fullmatch(text)
        if found is None:
            raise ValueError("not a database URL")
        scheme, _, driver = found["scheme"].partition("+")
        query: dict[str, tuple[str, ...]] = {}
        for name, value in parse_qsl(found["query"] or ""):
            query[name] = (*query.get(name, ()), value)
        return cls(
            scheme,
            driver,
            _decoded(found["username"]),
            _decoded(found["password"]),
            found["ipv6"] or found["host"],
            _port(found["port"]),
            _decoded(found["database"]),
            MappingProxyType(query),
        )

    def text(self) -> str:
        """Return the URL, with its password."""
        parts = [self.scheme, f"+{self.driver}" if self.driver else "", "://"]
        if self.username is not None:
            parts.append(quote(self.username, safe=" +"))
            parts += [":", quote(self.password, safe=" +")] if self.password is not None else []
            parts.append("@")
        if self.host is not None:
            parts.append(f"[{self.host}]" if ":" in self.host else self.host)
        parts.append(f":{self.port}" if self.port is not None else "")
        parts.append(f"/{quote(self.database, safe=' +/')}" if self.database is not None else "")
        pairs = [(name, value) for name in sorted(self.query) for value in self.query[name]]
        query = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in pairs)
        return "".join((*parts, f"?{query}" if query else ""))


def _decoded(part: str | None) -> str | None:
    return None if part is None else unquote(part)


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= PORT_MAX):
        raise ValueError("not a port")
    return int(text)
