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
class Product:
    """A server that speaks MySQL's protocol.

    Attributes:
        name: for people, such as `MariaDB`.
        scheme: of its URLs, and the engine's name.
        settings: statements that pin what text forms and the meaning of a query depend on.
        watched: the expressions of variables of it alone that are compared after each read.
        statement_timeout: the statement that tightens the limit of time of a SELECT.
        units_per_s: of that limit.
        grants_timeout: the option of CREATE USER for it, followed by seconds; empty: none.
        identity: the expressions that tell this server from another one, by names for people.
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
    settings: tuple[str, ...]
    watched: Mapping[str, str]
    statement_timeout: str
    units_per_s: int
    grants_timeout: str
    identity: Mapping[str, str]
    number: Callable[[str], str]
    number_text: Callable[[str], str]
    ended_at_once: str
    fields: Mapping[int, str]
    grants_of_all: tuple[str, ...]
    refused_logins: frozenset[int]
    plans_by_running: bool
    catalogue_opens: bool


def identity_sql(product: Product) -> str:
    """Return the SELECT of a server's identity."""
    return f"SELECT {', '.join(product.identity.values())}"
