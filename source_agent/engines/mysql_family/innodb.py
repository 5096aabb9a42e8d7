"""MariaDB and MySQL: whether all that a query or view reads is in InnoDB, so in one snapshot."""

from __future__ import annotations

import re
from typing import Final

from driftline.errors import DatabaseRefused

from source_agent.engines.interface import Ask
from source_agent.engines.mysql_family.sql import EXPLAIN, MARK, empty_sql

_READABLE: Final = """
SELECT table_name, engine, table_type FROM information_schema.tables
WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')"""
_VIEWS: Final = "SELECT table_name, view_definition FROM information_schema.views"
_FUNCTIONS: Final = """
SELECT routine_name FROM information_schema.routines WHERE routine_type <> 'PROCEDURE'"""
VERSIONED: Final = "SYSTEM VERSIONED"  # the type of a table WITH SYSTEM VERSIONING
STORED: Final = {"BASE TABLE", VERSIONED}
CATALOGUE: Final = (_READABLE, _VIEWS, _FUNCTIONS)
# The server's own tables, and a stored function as the text of a view calls it.
_OF_SERVER: Final = re.compile(r"\b(mysql|information_schema|performance_schema)`?\s*\.", re.I)
_CALLED: Final = re.compile(r"`\(")


def is_innodb(engine: str | None, kind: str | None) -> bool:
    """Return True for an engine, and a type of a table, whose reads see one snapshot."""
    return (engine or "").lower() == "innodb" and kind != "VIEW"


def reads_only_innodb(ask: Ask, source: str) -> bool:
    """Return True if every table behind a query or view is known to be InnoDB.

    A login that may EXPLAIN the query may read all of its tables, and sees every table that it may
    read in the catalogue. So if all tables there are InnoDB, those of the query are. Of others it
    is enough that no text names one: neither the query, nor the view that it reads. That is not
    known of a text that is hidden, calls a stored function, or is not ASCII, in which the server
    may take other characters for those of a name.
    """
    try:
        ask(EXPLAIN + empty_sql(source))
    except DatabaseRefused:
        return False
    others = [
        str(name)
        for name, engine, kind in ask(_READABLE)
        if kind in STORED and not is_innodb(engine, kind)
    ]
    if not others:
        return _OF_SERVER.search(source) is None
    unwanted = [*others, *(str(name) for (name,) in ask(_FUNCTIONS))]
    views = [(str(name), text or "") for name, text in ask(_VIEWS)]
    texts = [source]
    for text in texts:
        if not (text and text.isascii()) or _OF_SERVER.search(text):
            return False
        if any(_names_it(text, name) for name in unwanted):
            return False
        found = [made for name, made in views if _names_it(text, name) and made not in texts]
        if any(_CALLED.search(made) for made in found):
            return False
        texts += found
    return True


def _names_it(text: str, name: str) -> bool:
    """Return True if a text may hold a name as an identifier, quoted or not."""
    plain = re.escape(name.replace(MARK, MARK * 2))
    return re.search(rf"(?<![\w$]){plain}(?![\w$])", text, re.IGNORECASE) is not None
