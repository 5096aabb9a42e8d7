"""MariaDB and MySQL: what tells one from the other, as a value that the shared modules take.

Each product is a module beside this one, with one `Product`; nothing else asks which server it is.
A product is told by what the server does, not by the version that it names, which its owner or a
proxy may set: MariaDB alone executes a comment that begins with `/*M!`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

# One row whatever `sql_select_limit` the owner has set: 2 on MariaDB, 1 on MySQL.
TOLD_APART: Final = "SELECT 1 /*M! + 1 */, VERSION() LIMIT 1"


@dataclass(frozen=True, slots=True)
class SessionVariable:
    """A session variable of one product, since a release, on which what is read depends.

    `value` is what it is set to, as SQL; empty: it stays. `is_watched`: it is compared after each
    read.
    """

    name: str
    since: int
    value: str
    is_watched: bool = True


@dataclass(frozen=True, slots=True)
class Product:
    """A server that speaks MySQL's protocol.

    Attributes:
        name: for people, such as `MariaDB`.
        scheme: of its URLs, and the engine's name.
        comment: what follows `/*` where only it executes a comment, before a release.
        variables: those that it alone has.
        statement_timeout: the statement that tightens the limit of time of a SELECT.
        units_per_s: of that limit.
        grants_timeout: the option of CREATE USER for it, followed by seconds; empty: none.
        server: the name, for people, of the variable that tells a server from another one, and SQL.
        number: the read expression of a FLOAT or DOUBLE, from a quoted column.
        number_text: that of its text.
        ended_at_once: what follows LIMIT to end a statement at its first row; empty: nothing does.
        fields: types of result metadata that it alone has.
        grants_of_all: what `grants` says of rights that every account has.
        refused_logins: errors of its own that refuse a login.
        plans_by_running: it runs parts of a view or query to plan a SELECT of them, under EXPLAIN
            and LIMIT 0 as well.
        catalogue_opens: reading its catalogue opens InnoDB's snapshot, and shows that of then.
    """

    name: str
    scheme: str
    comment: str
    variables: tuple[SessionVariable, ...]
    statement_timeout: str
    units_per_s: int
    grants_timeout: str
    server: tuple[str, str]
    number: Callable[[str], str]
    number_text: Callable[[str], str]
    ended_at_once: str
    fields: Mapping[int, str]
    grants_of_all: tuple[str, ...]
    refused_logins: frozenset[int]
    plans_by_running: bool
    catalogue_opens: bool

    @property
    def pinning(self) -> str:
        """The statement that sets its variables."""
        own = (self._own(v, f"{v.name} = {v.value},") for v in self.variables if v.value)
        return f"SET SESSION {' '.join(own)} sql_auto_is_null = 0"

    @property
    def watched(self) -> Mapping[str, str]:
        """The expressions of variables that are compared after each read, by name."""
        own = (v for v in self.variables if v.is_watched)
        return {v.name: f"COALESCE({self._own(v, f'@@SESSION.{v.name},')} '')" for v in own}

    @property
    def identity(self) -> Mapping[str, str]:
        """The expressions that tell this server from another one, by names for people."""
        name, variable = self.server
        return {
            "host": "@@hostname",
            "port": "@@port",
            name: variable,
            "data directory": "@@datadir",
            "database": "DATABASE()",
        }

    def _own(self, variable: SessionVariable, sql: str) -> str:
        return f"/*{self.comment}{variable.since} {sql} */"


def identity_sql(product: Product) -> str:
    """Return the SELECT of a server's identity."""
    return f"SELECT {', '.join(product.identity.values())}"
