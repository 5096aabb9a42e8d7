"""MariaDB and MySQL: warnings that the server raises while it reads values, and what they mean.

A function whose result is larger than `max_allowed_packet` is NULL, and the server says so only in
a warning. Each result carries the number of its warnings in its last packet, so it is known before
the end of a read is passed on. If it is not zero, the warnings are listed.

Invariants: while a plain table is read, every expression is the agent's own, and each warning is an
error. Where the owner wrote an expression (a query, a view, a `where`, a virtual column), warnings
in `LOST` are errors: the value depends on a limit, or is not the one that is stored. Others belong
to the meaning of the expression, such as 1292, a text compared with a number. More warnings than
the server lists are an error, because one of `LOST` could be among those. Notes are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from driftline.errors import DatabaseRefused, DriftlineError, ValueDoesNotFit
from driftline.relations.derivations import comparisons

from source_agent.engines.encoding.rows import printable_value
from source_agent.engines.mysql_family.product import Product
from source_agent.engines.mysql_family.sql import MARK, lost_sql
from source_agent.engines.mysql_family.values import as_bytes
from source_agent.engines.relations.predicates import COLUMNS
from source_agent.engines.relations.select import plan_of, quote
from source_agent.engines.relations.shapes import Shape

LISTED_MAX: Final = 65_535  # max_error_count as pinned, and the most that a packet can count
WARNINGS: Final = "SHOW WARNINGS"
# Names of mysqld_error.h, and what happened to the value.
LOST: Final = {
    1030: "ER_GET_ERRNO: the storage engine failed",
    1139: "ER_REGEXP_ERROR: a regular expression met a limit of the server",
    1260: "ER_CUT_VALUE_GROUP_CONCAT: cut at group_concat_max_len",
    1264: "ER_WARN_DATA_OUT_OF_RANGE: a variable or temporary table holds its nearest limit",
    1265: "WARN_DATA_TRUNCATED: a variable or temporary table holds a part",
    1296: "ER_GET_ERRMSG: the storage engine failed",
    1297: "ER_GET_TEMPORARY_ERRMSG: the storage engine failed",
    1300: "ER_INVALID_CHARACTER_STRING: bytes that are no character",
    1301: "ER_WARN_ALLOWED_PACKET_OVERFLOWED: NULL above max_allowed_packet",
    1366: "ER_TRUNCATED_WRONG_VALUE_FOR_FIELD: a variable or temporary table holds a part",
    1406: "ER_DATA_TOO_LONG: a variable or temporary table holds a part",
    1918: "ER_BAD_DATA: a value that cannot be converted",
    1931: "ER_QUERY_RESULT_INCOMPLETE: rows are left out",
    1977: "ER_CANNOT_CONVERT_CHARACTER: a character became ?",
}
_SHOWN: Final = 3  # warnings in an error
_TOO_LARGE: Final = 1301
Warned = tuple[int, str]  # the number of a warning and its text


class WarningSession(Protocol):
    """The part of a session that lists warnings and searches for their rows."""

    @property
    def product(self) -> Product:
        """The product that the server is."""

    def ask(self, sql: str, *values: object) -> list[tuple[str | None, ...]]:
        """Return the rows of a statement about the session or the catalogue, as text."""

    def find_lost(self, sql: str) -> tuple[list[tuple[bytes | None, ...]], int]:
        """Return the rows of a search, and the number of its warnings."""

    def is_own(self, shape: Shape) -> bool:
        """Return True if every expression that a relation reads is the agent's."""


def refuse(session: WarningSession, shape: Shape, count: int) -> None:
    """Raise an error if a read of a relation, with this number of warnings, lost a value.

    Raises:
        ValueDoesNotFit: a value was lost; it names column and key if a second search finds them.
        DatabaseRefused: there are more warnings than the server lists.
    """
    if not count:
        return
    listed = [
        (int(number or 0), text or "")
        for level, number, text in session.ask(WARNINGS)
        if level != "Note"
    ]
    name, is_own = session.product.name, session.is_own(shape)
    lost = [(number, text) for number, text in listed if is_own or number in LOST]
    if lost:
        raise _lost(session, shape, lost)
    if count > len(listed) or count >= LISTED_MAX:
        raise DatabaseRefused(
            f"{name} raised {count:,} warnings or more while it read values, and lists "
            f"{len(listed):,} of them, so that one about a lost value may be hidden: "
            f"{_shown(listed) or 'none'}.",
            where=shape.relation.name,
            remedy="Write the query, view or `where` so that it raises none, with CAST.",
            abroad=f"{name} raised more warnings than it lists while it read values.",
        )


def text_of(listed: list[tuple[str | None, ...]]) -> str:
    """Return the warnings of a plan, for which constants are evaluated, as text for `check`."""
    found = [(int(n or 0), text or "") for level, n, text in listed if level != "Note"]
    return f"the server warns: {_shown(found)}" if found else ""


def searches(shape: Shape) -> list[str]:
    """Return the SELECTs that look for a lost value, one for each expression that can lose one."""
    return [sql for _, sql in _searches(shape)]


def _searches(shape: Shape) -> Iterator[tuple[str, str]]:
    """Yield columns, and the search of each: for what is read, and for what may be compared."""
    plan, seen = plan_of(shape), set[str]()
    names = [column.name for column in shape.recipe.columns]
    chosen = [] if plan.chosen is None else [c.column for c in comparisons(plan.chosen)]
    compared = [c.name for c in shape.recipe.columns if shape.comparable_by_name[c.name].value]
    pairs = list(zip(names, plan.reads, strict=False))
    pairs += [(name, as_bytes(quote(name, MARK))) for name in (*chosen, *compared)]
    for name, read in pairs:
        quoted = quote(name, MARK)
        if read not in {quoted, COLUMNS} and (sql := lost_sql(shape, quoted, read)) not in seen:
            seen.add(sql)
            yield name, sql


def _lost(session: WarningSession, shape: Shape, lost: list[Warned]) -> DriftlineError:
    """Return the error for lost values; it names the first one that a search finds."""
    name = session.product.name
    column, key = _place(session, shape)
    of = f"the column {column}" if column else "a column"
    row = f", in the row with key {key}" if key else ""
    numbers = ", ".join(str(number) for number in dict.fromkeys(number for number, _ in lost))
    larger = "Raise max_allowed_packet of the server, or leave" if _is_large(lost) else "Leave"
    return ValueDoesNotFit(
        f"{name} lost a value of {of}{row}: {_shown(lost)}.",
        remedy=f"{larger} the column out with `columns`, or the row with `where`.",
        where=f"{shape.relation.name}.{column}" if column else shape.relation.name,
        details={"key": key} if key else {},
        abroad=f"{name} lost a value of {of}{row} (errors {numbers}).",
    )


def _is_large(lost: list[Warned]) -> bool:
    return any(number == _TOO_LARGE for number, _ in lost)


def _place(session: WarningSession, shape: Shape) -> tuple[str, str]:
    """Return column and key of a lost value, as far as a search finds them."""
    for name, sql in _searches(shape):
        try:
            rows, count = session.find_lost(sql)
        except DriftlineError:  # such as its limit of time: the error has no place then
            return "", ""
        if rows:
            return name, ", ".join(map(printable_value, rows[0]))
        if count:
            return name, ""
    return "", ""


def _shown(warned: list[Warned]) -> str:
    distinct = list(dict.fromkeys(warned))
    more = "; …" if len(distinct) > _SHOWN else ""
    return "; ".join(f"{text} ({number})" for number, text in distinct[:_SHOWN]) + more
