"""MariaDB and MySQL: how InnoDB's snapshot begins, and whether all that a relation reads is in it.

A snapshot has rows, not definitions: a table that is renamed, exchanged or loses a partition after
it is read as it is now, without an error. So the definitions of the relations that a session is to
read are locked first (`lock_sql`), which opens no snapshot, and the first row opens it. MySQL's
catalogue is in InnoDB and opens it as well, so there it is not asked before; MariaDB's is not. What
is locked stays so until the end of the transaction.

Not closed: MariaDB answers MIN and MAX of an index while it plans, so a view or query of these
alone may open the snapshot when it is locked. Its own tables are locked by then, and so are all
plain tables; those of a query that is locked after it are not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from driftline.errors import ConfigurationError, DatabaseRefused, DriftlineError, SnapshotLost
from pymysql.constants import ER

from source_agent.engines.interface import Ask
from source_agent.engines.mysql_family.sql import (
    AS_OF,
    BEGIN,
    BEGIN_LATER,
    EXPLAIN,
    MARK,
    first_row_sql,
    lock_sql,
    source_of,
)
from source_agent.engines.relations.select import split_name
from source_agent.engines.relations.shapes import Relation

_READABLE: Final = """
SELECT table_name, engine, table_type FROM information_schema.tables
WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')"""
_VIEWS: Final = "SELECT table_name, view_definition FROM information_schema.views"
_FUNCTIONS: Final = """
SELECT routine_name FROM information_schema.routines WHERE routine_type <> 'PROCEDURE'"""
VERSIONED: Final = "SYSTEM VERSIONED"  # the type of a table WITH SYSTEM VERSIONING
STORED: Final = {"BASE TABLE", VERSIONED}
_KIND: Final = """
SELECT engine, table_type FROM information_schema.tables
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"""
CATALOGUE: Final = (_READABLE, _VIEWS, _FUNCTIONS, _KIND)
_BEGINNINGS_MAX: Final = 3  # of a snapshot whose locks were in another session's way
# The server's own tables, and a stored function as the text of a view calls it.
_OF_SERVER: Final = re.compile(r"\b(mysql|information_schema|performance_schema)`?\s*\.", re.I)
_CALLED: Final = re.compile(r"`\(")


class LockOutcome(Enum):
    """The outcome of a lock. No error is kept: its traceback would keep the session."""

    TAKEN = "taken"
    REFUSED = "refused"  # the relation cannot be read
    HELD = "held"  # by somebody else, for too long


@dataclass(frozen=True, slots=True)
class InnodbSnapshot:
    """A snapshot that has begun: its time, and what was not locked before it, by its SQL."""

    as_of: str
    unlocked: Mapping[str, LockOutcome] = field(default_factory=dict)


def begin(ask: Ask, named: Sequence[Relation], *, catalogue_opens: bool) -> InnodbSnapshot:
    """Begin a snapshot in which relations are read as they are defined when it begins.

    A relation that cannot be locked stops none of the others: describing it says why.

    Args:
        ask: a session's.
        named: the relations to lock; none: nothing is locked.
        catalogue_opens: reading the catalogue opens the snapshot.

    Raises:
        SnapshotLost: other sessions and this one waited for each other again and again.
    """
    if not named:
        as_of = str(ask(AS_OF)[0][0])
        ask(BEGIN)
        return InnodbSnapshot(as_of)
    for left in reversed(range(_BEGINNINGS_MAX)):
        try:
            return _begin(ask, named, catalogue_opens=catalogue_opens)
        except SnapshotLost as error:
            if not left or number_of(error) != ER.LOCK_DEADLOCK:
                raise
    raise AssertionError("the last attempt returns or raises")


def _begin(ask: Ask, named: Sequence[Relation], *, catalogue_opens: bool) -> InnodbSnapshot:
    ask(BEGIN_LATER)  # ends the transaction of an attempt before, with its locks
    # In the order in which the server locks the tables of one statement.
    tables = {source_of(r): r for r in sorted(named, key=lambda r: r.table or "") if r.table}
    stored = [] if catalogue_opens else [s for s, r in tables.items() if _is_table(ask, r)]
    # Nobody plans the subquery of a lock in MySQL. MariaDB may open the snapshot by doing so.
    first = [*tables] if catalogue_opens else stored
    locks = {source: lock(ask, source) for source in first}
    as_of = str(ask(AS_OF)[0][0])
    others = [source_of(relation) for relation in named if relation.table is None]
    locks |= {source: lock(ask, source) for source in [*tables, *others] if source not in locks}
    unlocked = {
        source: became for source, became in locks.items() if became is not LockOutcome.TAKEN
    }
    for source in first:
        # Without such a table MariaDB's snapshot begins with the first row of a query.
        if source not in unlocked and (source in stored or _is_table(ask, tables[source])):
            with contextlib.suppress(DatabaseRefused):  # as in `_is_table`
                ask(first_row_sql(source))
                break
    return InnodbSnapshot(as_of, unlocked)


def lock(ask: Ask, source: str) -> LockOutcome:
    """Lock the tables behind a relation until the transaction ends, if that can be done.

    Raises:
        DatabaseUnavailable, SnapshotLost: the session itself is lost.
    """
    try:
        ask(lock_sql(source))
    except DriftlineError as error:
        if number_of(error) == ER.LOCK_WAIT_TIMEOUT:
            return LockOutcome.HELD
        if isinstance(error, (DatabaseRefused, ConfigurationError)):
            return LockOutcome.REFUSED
        raise
    return LockOutcome.TAKEN


def number_of(error: DriftlineError) -> int:
    """Return the server's number of an error; 0: it has none."""
    cause = error.__cause__
    number = cause.args[0] if cause is not None and cause.args else 0
    return number if isinstance(number, int) else 0


def is_stored(ask: Ask, relation: Relation) -> bool:
    """Return True if a relation is a table, not a view or a query."""
    return any(kind in STORED for _, kind in _kinds(ask, relation))


def _kinds(ask: Ask, relation: Relation) -> list[tuple[str | None, ...]]:
    """Return engine and type of a relation's table; of several that differ in case: all."""
    if relation.table is None:
        return []
    parts = split_name(relation.table, MARK)
    return ask(_KIND, parts[0] if len(parts) > 1 else None, parts[-1])


def _is_table(ask: Ask, relation: Relation) -> bool:
    """Return True if a relation is a table of InnoDB, and the login may know."""
    kinds: list[tuple[str | None, ...]] = []
    with contextlib.suppress(DatabaseRefused):  # a limit of the owner's, such as of rows
        kinds = _kinds(ask, relation)
    return bool(kinds) and all(is_innodb(*kind) and kind[1] in STORED for kind in kinds)


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
        ask(EXPLAIN + lock_sql(source))
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
        definitions = [made for name, made in views if _names_it(text, name) and made not in texts]
        if any(_CALLED.search(made) for made in definitions):
            return False
        texts += definitions
    return True


def _names_it(text: str, name: str) -> bool:
    """Return True if a text may hold a name as an identifier, quoted or not."""
    plain = re.escape(name.replace(MARK, MARK * 2))
    return re.search(rf"(?<![\w$]){plain}(?![\w$])", text, re.IGNORECASE) is not None
