"""MariaDB and MySQL: what the login may do, what a scan costs, what to grant, what errors mean.

The DBA's side of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
    SnapshotLost,
)
from pymysql import Error, OperationalError
from pymysql.constants import CR, ER

from source_agent.engines.interface import Ask, Limits, Listed, MarkedRead, Privilege
from source_agent.engines.mysql_family import settings, types, warnings
from source_agent.engines.mysql_family.activity import ACTIVITY
from source_agent.engines.mysql_family.innodb import is_stored
from source_agent.engines.mysql_family.product import TOLD_APART, Product, identity_sql
from source_agent.engines.mysql_family.sql import (
    EXPLAIN,
    MARK,
    PAGE_ROWS,
    STATEMENTS,
    between_sql,
    bound_sql,
    empty_sql,
    first_row_sql,
    greatest_sql,
    keys_sql,
    later_sql,
    limited_sql,
    lock_sql,
    marked_sql,
    null_in_key_sql,
    page_sql,
    probe_sql,
    range_sql,
)
from source_agent.engines.mysql_family.values import bound
from source_agent.engines.relations.markers import ORDERED
from source_agent.engines.relations.select import (
    PRESENCE,
    granted_columns,
    join_name,
    null_key_sql,
    plan_of,
    quote,
    scan_sql,
    split_name,
)
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.rights import mysql_family as rights
from source_agent.printable import counted

LISTED = """
SELECT table_schema, table_name, table_schema = DATABASE() FROM information_schema.tables
WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
ORDER BY table_schema, table_name"""
UNIQUE = """
SELECT table_schema, table_name, index_name, column_name, nullable
FROM information_schema.statistics
WHERE non_unique = 0 AND table_schema NOT IN ('information_schema', 'mysql', 'performance_schema',
                                              'sys')
ORDER BY table_schema, table_name, index_name, seq_in_index"""
SIZE = """
SELECT table_rows, data_length FROM information_schema.tables
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"""
BIG_SELECTS = "SELECT @@SESSION.sql_big_selects"
CATALOGUE: Final = (*rights.STATEMENTS, LISTED, UNIQUE, SIZE, BIG_SELECTS)

# Server and client error numbers: mysqld_error.h, errmsg.h.
_REFUSED_LOGIN: Final = {1044, 1045, 1049, 1130, 1184, 1251, 1698, 1862, 2054, 2059, 2061}
_NOT_GRANTED: Final = {1142, 1143, 1227, 1345, 1370}
# MariaDB writes the table as SQL does; MySQL its name alone, as both do for a column.
_DENIED: Final = re.compile(r"(?:for|in) table (?:((?:`(?:[^`]|``)+`\.)?`(?:[^`]|``)+`)|'(.+)'$)")
_BEYOND: Final = "(error 1104)"
_PLAN_HIDDEN: Final = "(error 1345)"  # of a view, to a login without SELECT on its tables
_NOT_FOUND: Final = {1054, 1052, 1060, 1064, 1146, 1356, 1109, 1247, 1305}
CLIENT_ERRORS: Final = 2000
_LOST_CONNECTION: Final = 2013
_NAMES: Final = {
    number: name
    for module in (ER, CR)
    for name, number in vars(module).items()
    if name.isupper() and not name.startswith("ERROR_") and isinstance(number, int)
}
_UNAVAILABLE: Final = {
    *(1040, 1053, 1077, 1080, 1152, 1158, 1159, 1160, 1161, 1203, 1226, 1317, 1927, 4031),
    *range(2000, 2049),
}
_TRY_LATER: Final = "Try again later."
_TIMED_OUT: Final = (
    "Raise statement_timeout_s of the file or the account's own limit, whichever is shorter, or "
    "publish less of it."
)
_TOO_BIG: Final = (
    "sql_big_selects is 0, and max_join_size is less than what the read examines: the owner's "
    "limit, which the agent keeps. Raise max_join_size, or set sql_big_selects = 1 for the agent's "
    "login (init_connect) or the server."
)
_TOO_MANY_PREPARED: Final = (
    "Raise max_prepared_stmt_count of the server, or find out which client closes none of its "
    "prepared statements: the agent prepares one for the columns of each relation, and closes it "
    "at once."
)
_ERRORS: Final[tuple[tuple[set[int], type[DriftlineError], str], ...]] = (
    (_NOT_FOUND, ConfigurationError, "Correct the table or the query in the file."),
    ({1969, 3024}, DatabaseRefused, _TIMED_OUT),
    ({1104}, DatabaseRefused, _TOO_BIG),
    ({1461}, DatabaseUnavailable, _TOO_MANY_PREPARED),
    ({1205}, DatabaseUnavailable, "Someone holds a lock on it; try again later."),
    ({1213, 1412, 1020, 1033}, SnapshotLost, ""),
    (_UNAVAILABLE, DatabaseUnavailable, _TRY_LATER),
)


def driver_arguments(parameters: dict[str, str]) -> dict[str, Any]:
    """Return the URL's parameters as PyMySQL's keyword arguments.

    Raises:
        ConfigurationError: a parameter is not known.
    """
    texts = {"unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "bind_address"}
    flags = {"ssl_disabled", "ssl_verify_cert", "ssl_verify_identity"}
    if unknown := parameters.keys() - texts - flags - {"charset"}:  # which is always utf8mb4
        raise ConfigurationError(
            f"The URL's parameter {min(unknown)!r} is not known.",
            remedy=f"Known are: {', '.join(sorted(texts | flags))}.",
            where="database.url",
        )
    on = {"1", "true", "yes", "on"}
    given = {name: value for name, value in parameters.items() if name in texts}
    return given | {n: v.lower() in on for n, v in parameters.items() if n in flags}


def _parts(error: Error) -> tuple[int, str]:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[-1]) if error.args else type(error).__name__
    return number, text.strip().rstrip(".")


def error_name(number: int) -> str:
    """Return the name of an error of the server or the driver, such as TABLEACCESS_DENIED_ERROR."""
    return _NAMES.get(number, "not known by name")


def is_said_by_server(error: Error) -> bool:
    """Return True if the server itself refused; the driver's own numbers begin at 2000."""
    return 0 < _parts(error)[0] < CLIENT_ERRORS


def is_silence(error: Error) -> bool:
    """Return True if the driver gave up a read of its socket, of which the server is unaware."""
    number, text = _parts(error)
    return number == _LOST_CONNECTION and "timed out" in text


def connect_error(product: Product, error: Error, where: str) -> DriftlineError:
    """Return the error that a user sees if a connection to `where` fails."""
    number, text = _parts(error)
    if number in _REFUSED_LOGIN | product.refused_logins:
        return DatabaseRefused(
            f"{product.name} at {where} refused the login: {text}.",
            remedy="Check the user, the password and the database's name in database.url.",
            abroad=f"{product.name} refused the login.",
        )
    return DatabaseUnavailable(
        f"{product.name} at {where} cannot be reached: {text}.",
        remedy="Check that it runs and that database.url is right, then try again.",
        abroad=f"{product.name} cannot be reached.",
    )


def translate(product: Product, error: Error, relation: Relation | None = None) -> DriftlineError:
    """Return the error that a user sees for one of PyMySQL's."""
    number, text = _parts(error)
    where = relation.name if relation else ""
    message = f"{product.name} says: {text} (error {number})."
    brief = f"{product.name} says: error {number}, {error_name(number)}."
    if number in _NOT_GRANTED:
        remedy = f"As an administrator: GRANT SELECT ON {_denied(text, relation)} TO the agent."
        return DatabaseRefused(
            message,
            where=where,
            remedy=remedy,
            abroad=f"SELECT is not granted to the agent (error {number}).",
        )
    if is_silence(error):
        return DatabaseUnavailable(
            f"{product.name} has sent nothing for too long: {text}.",
            where=where,
            remedy="Find out what the agent's session waits for. Raise database.silence_timeout_s"
            " if a statement needs longer before its first row.",
            abroad=f"{product.name} has sent nothing for too long (silence_timeout_s).",
        )
    for numbers, kind, remedy in _ERRORS:
        if number in numbers:
            return kind(
                message,
                where=where,
                remedy=remedy,
                abroad=brief,
            )
    if not number and isinstance(error, OperationalError):
        return DatabaseUnavailable(
            message,
            where=where,
            remedy=_TRY_LATER,
            abroad=brief,
        )
    return DatabaseRefused(message, where=where, abroad=brief)


def _denied(text: str, relation: Relation | None) -> str:
    """Return the table, as SQL, of which an error says that the login may not read it."""
    table = relation.table if relation else None
    if (named := _DENIED.search(text)) is None:
        return table or "every table it reads"
    if named[1]:
        return named[1]
    is_its = table is not None and split_name(table, MARK)[-1] == named[2]
    return table if table and is_its else quote(named[2], MARK)


def privileges(ask: Ask, relations: Sequence[Relation], database: str) -> list[Privilege]:
    """Return what `Engine.privileges` returns; `database` is the one that the URL names."""
    tables = [split_name(r.table, MARK) for r in relations if r.table is not None]
    published = {(parts[0] if len(parts) == 2 else database, parts[-1]) for parts in tables}
    return rights.privileges(ask, published, has_queries=any(r.query for r in relations))


def listed(ask: Ask) -> list[Listed]:
    """Return what `Engine.listed` returns."""
    indexes: dict[tuple[str, str], dict[str, list[tuple[str, bool]]]] = {}
    for schema, table, index, column, nullable in ask(UNIQUE):
        of_table = indexes.setdefault((schema or "", table or ""), {})
        of_table.setdefault(index or "", []).append((column or "", nullable == "YES"))
    tables = []
    for schema, name, is_here in ask(LISTED):
        parts = (schema or "", name or "")
        of_table = indexes.get(parts, {})
        sound = [
            tuple(column for column, _ in columns)
            for columns in of_table.values()
            if all(column and not is_nullable for column, is_nullable in columns)
        ]
        key = () if "PRIMARY" in of_table else min(sound, key=len, default=())
        table = join_name(parts[1:] if is_here == "1" else parts, MARK)
        tables.append(Listed(*parts, table, key))
    return tables


def scan_cost(product: Product, ask: Ask, shape: Shape) -> str:
    """Return what `Engine.scan_cost` returns."""
    plan = []
    if not product.plans_by_running or is_stored(ask, shape.relation):
        try:
            plan = [row for row in ask(EXPLAIN + scan_sql(shape)) if row[2] is not None]
        except DatabaseRefused as error:
            refuse_unhidden(error)
    warned = warnings.text_of(ask(warnings.WARNINGS)) if plan else ""
    warned = "; ".join(filter(None, (warned, _refuse_too_big(product, ask, shape))))
    # EXPLAIN: id, select_type, table, then in MySQL partitions, type; MySQL has 12 columns.
    shown = ", ".join(f"{row[2]}: {row[4 if len(row) > 10 else 3]}" for row in plan)
    access = shown or "the server does not show how it is read"
    rows, size = shape.rows_expected, None
    if shape.relation.table is not None:
        parts = split_name(shape.relation.table, MARK)
        for count, length in ask(SIZE, parts[0] if len(parts) == 2 else None, parts[-1]):
            rows, size = int(count or 0), int(length or 0)
    on_disk = f", {size / 2**20:,.1f} MiB on disk" if size else ""
    cost = f"about {counted(rows, 'row')}{on_disk}; {access}"
    return f"{cost} ({plan_of(shape).consistency.value}){warned and f'; {warned}'}"


def _refuse_too_big(product: Product, ask: Ask, shape: Shape) -> str:
    """Return what the owner's limit of rows may refuse; empty: nothing.

    Raises DatabaseRefused: it refuses the scan.
    """
    ((allows_big,),) = ask(BIG_SELECTS)
    if allows_big == "1":
        return ""
    if not product.ended_at_once:
        return "sql_big_selects is 0: a read that examines more than max_join_size rows is refused"
    pages = plan_of(shape).pages
    try:
        ask(
            limited_sql(shape, product.ended_at_once),
            *((*plan_of(shape).values, PAGE_ROWS) if pages else ()),
        )
    except DatabaseRefused as error:
        if _BEYOND in error.message:  # not a sort that was ended at its first row
            raise
    return ""


def refuse_unhidden(error: DatabaseRefused) -> None:
    """Raise an error again unless it says that EXPLAIN alone is refused: a view can be read by a
    login that may not read its tables."""
    if _PLAN_HIDDEN not in error.message:
        raise error


def marked_read(plan: Sequence[tuple[str | None, ...]]) -> MarkedRead:
    """Return how the rows behind a mark are found, by the rows of EXPLAIN."""
    ways = list(MarkedRead)
    reads = []
    for row in plan:
        if row[2] is None:  # no table: the bound excludes every row, or a note
            continue
        access = 4 if len(row) > 10 else 3  # MySQL has partitions before it
        extra = {part.strip() for part in (row[-1] or "").split(";")}
        if row[access] in {"ALL", "index"} or row[access + 2] is None:
            reads.append(MarkedRead.SCAN)
        else:
            reads.append(MarkedRead.COVERING if "Using index" in extra else MarkedRead.INDEX)
    return max(reads, key=ways.index, default=MarkedRead.SCAN)


def is_index_only(plan: Sequence[tuple[str | None, ...]]) -> bool:
    """Return True if a table is read by indexes alone, by the rows of EXPLAIN. The primary key of
    InnoDB is the table itself."""
    reads = [row for row in plan if row[2] is not None]
    place = 6 if reads and len(reads[0]) > 10 else 5  # of the index; MySQL has partitions before it
    return bool(reads) and all(
        "Using index" in {part.strip() for part in (row[-1] or "").split(";")}
        and row[place] not in {None, "PRIMARY"}
        for row in reads
    )


def grants(
    product: Product,
    relations: Sequence[Relation],
    login: str,
    database: str,
    limits: Limits,
    *,
    connections: int,
) -> str:
    """Return what `Engine.grants` returns."""
    account = "'" + login.replace("\\", "\\\\").replace("'", "''") + "'@'%'"
    has_budget = limits.statement_s and product.grants_timeout
    budget = f" {product.grants_timeout} {limits.statement_s:g}" if has_budget else ""
    lines = [
        "-- Least privilege for driftline-source. Run as an administrator. It can be run again: an",
        "-- account that exists already keeps its limits. Each statement is committed.",
        "-- The account is locked until it has a password; write the agent's host in place of %.",
        f"CREATE USER IF NOT EXISTS {account}",
        f"  WITH MAX_USER_CONNECTIONS {connections}{budget} ACCOUNT LOCK;",
    ]
    for relation in relations:
        if relation.table is None:
            lines.append(f"-- {relation.name}: GRANT SELECT on every table that its query reads")
            continue
        parts = split_name(relation.table, MARK)
        schema = parts[0] if len(parts) == 2 else database
        table = f"{quote(schema, MARK)}.{quote(parts[-1], MARK)}"
        columns = ""
        if names := granted_columns(relation, hidden="row_start"):
            columns = f" ({', '.join(quote(n, MARK) for n in names)})"
        lines.append(f"GRANT SELECT{columns} ON {table} TO {account};")
    lines += [
        "-- Then, with a password of your own, the same as in the agent's password_file:",
        f"-- ALTER USER {account} IDENTIFIED BY '…' ACCOUNT UNLOCK;",
        *product.grants_of_all,
    ]
    return "\n".join(lines) + "\n"


def templates(product: Product, shapes: Sequence[Shape]) -> list[str]:
    """Return what `Engine.templates` returns."""
    reads = []
    for shape in shapes:
        plan = plan_of(shape)
        empty = empty_sql(plan.source)
        locked = lock_sql(plan.source)
        reads += [locked, EXPLAIN + locked, empty, probe_sql(shape), EXPLAIN + scan_sql(shape)]
        if shape.relation.table is not None:
            reads += [first_row_sql(plan.source), types.CREATION.format(table=plan.source)]
        if product.ended_at_once:
            reads.append(limited_sql(shape, product.ended_at_once))
        if plan.pages:
            reads += [page_sql(shape, is_first=first) for first in (True, False)]
        else:
            reads.append(scan_sql(shape))
        if shape.recipe.integer_key:
            reads += [range_sql(shape), null_key_sql(shape, MARK)]
            reads += [] if plan.pages else [scan_sql(shape, ordered=True)]
        reads += [*_tiles(shape), *_marked(shape), *warnings.searches(shape)]
    pinning = (TOLD_APART, *settings.statements(product), identity_sql(product))
    session = (*pinning, *STATEMENTS, warnings.WARNINGS, ACTIVITY)
    issued = (*session, *types.CATALOGUE, *CATALOGUE, *reads)
    return list(dict.fromkeys(issued))


def _marked(shape: Shape) -> list[str]:
    """List the SQL texts by which changes are found by a marker."""
    if shape.marker is None:
        return []
    narrow, others = shape.narrow(), shape.unmarked
    pages = [page_sql(one, is_first=it) for one in (narrow, *others) for it in (True, False)]
    statements = [
        marked_sql(shape),
        marked_sql(shape.keys()),
        scan_sql(narrow),
        *(sql for other in others for sql in (marked_sql(other), scan_sql(other))),
        *(pages if plan_of(shape).pages else ()),
    ]
    statements += [EXPLAIN + marked_sql(shape)] if shape.marker.kind in ORDERED else []
    statements.append(EXPLAIN + bound_sql(shape, scan_sql(narrow)))
    statements += [later_sql(shape)] if shape.marker.is_time else []
    return [*statements, *(greatest_sql(shape, name) for name in shape.marker.versions)]


def _tiles(shape: Shape) -> list[str]:
    """Return the SELECTs of ranges of keys, and of keys."""
    if shape.unordered:
        return []
    bounds = [bound(column) for column in shape.recipe.key]
    nulls = [bounds[:i] for i, column in enumerate(shape.recipe.key) if column.nullable]
    return [
        *(null_in_key_sql(shape, equal) for equal in nulls),
        *(between_sql(shape, bounds, within) for within in PRESENCE),
        keys_sql(shape, bounds),
    ]
