"""MariaDB and MySQL: the statements of a session, and the reads of a relation. No I/O, no values.

The driver itself formats values into a statement, escaped, in place of `%s`. In texts that take
values, every other percent sign is doubled here, so that a DBA's LIKE '%…' stays as it is.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.interface import Shape
from source_agent.engines.relations import plan_of, quote, select_sql

MARK: Final = "`"
RANGES_PER_SELECT: Final = 200  # beyond it, planning grows faster than reading
ROWS_MAX: Final = 2**63 - 1  # for a SELECT without a limit

# Text forms and the meaning of a DBA's query depend on these.
SETTINGS: Final = (
    "SET SESSION sql_mode = ''",
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION lc_time_names = 'en_US'",
    "SET SESSION div_precision_increment = 4",
    "SET SESSION group_concat_max_len = 67108864",
    "SET SESSION sql_select_limit = 18446744073709551615",  # else SELECT may leave rows out
    "SET SESSION max_sort_length = 4096",  # more than a key can have: pages follow its order
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION READ ONLY",
)
# Limits of time: those of the server or the account are only tightened.
TIMEOUTS: Final = tuple(
    f"SET SESSION {name} = CAST(LEAST(@@SESSION.{name}, %s) AS UNSIGNED)"
    for name in ("lock_wait_timeout", "innodb_lock_wait_timeout", "wait_timeout")
)
STATEMENT_TIMEOUTS: Final = {  # by whether it is MariaDB: seconds there, milliseconds in MySQL
    True: "SET SESSION max_statement_time = "
    "LEAST(COALESCE(NULLIF(@@SESSION.max_statement_time, 0), %s), %s)",
    False: "SET SESSION max_execution_time = "
    "CAST(LEAST(COALESCE(NULLIF(@@SESSION.max_execution_time, 0), %s), %s) AS UNSIGNED)",
}
# SHOW answers in text: a name, and seconds (milliseconds for max_execution_time).
TIME_LIMITS = (
    "SHOW SESSION VARIABLES WHERE Variable_name IN ('max_statement_time', 'max_execution_time', "
    "'lock_wait_timeout', 'innodb_lock_wait_timeout', 'wait_timeout', 'idle_transaction_timeout', "
    "'idle_readonly_transaction_timeout', 'net_write_timeout')"
)
AS_OF = "SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ')"
VERSION = "SELECT VERSION()"
EXPLAIN = "EXPLAIN "
BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
KILL = "KILL QUERY %s"  # of the agent's own session, when its client has left
DRIVER: Final = ("SET NAMES utf8mb4", "SET AUTOCOMMIT = 1")  # PyMySQL issues them to connect
PINNING: Final = (*DRIVER, *SETTINGS, *TIMEOUTS, *STATEMENT_TIMEOUTS.values())
STATEMENTS: Final = (*PINNING, TIME_LIMITS, VERSION, AS_OF, BEGIN, KILL)


def empty_sql(source: str) -> str:
    """Return a SELECT of all columns and no row."""
    return f"SELECT * FROM {source} LIMIT 0"


def probe_sql(shape: Shape) -> str:
    """Return the SELECT of a scan that reads no row."""
    return select_sql(shape, tail="\nLIMIT 0")


def range_sql(shape: Shape) -> str:
    """Return the SELECT of RANGES_PER_SELECT ranges of keys."""
    key = quote(shape.recipe.columns[0].name, MARK).replace("%", "%%")
    ranges = " OR ".join([f"{key} BETWEEN %s AND %s"] * RANGES_PER_SELECT)
    return _placed(select_sql(shape, "\0", tail="\nLIMIT \0"), f"({ranges})", "%s")


def page_sql(shape: Shape, *, is_first: bool) -> str:
    """Return the SELECT of one page, ordered by the plan's `pages`, after a position in them."""
    pages = [quote(name, MARK) for name in plan_of(shape).pages]
    tail = f"\nORDER BY {', '.join(pages)}\nLIMIT \0"
    if is_first:
        return _placed(select_sql(shape, tail=tail), "%s")
    # (a, b, c) > (x, y, z), written out so that the index is used.
    names = [name.replace("%", "%%") for name in pages]
    steps = []
    for i, name in enumerate(names):
        terms = [*(f"{equal} = %s" for equal in names[:i]), f"{name} > %s"]
        steps.append(f"({' AND '.join(terms)})" if i else terms[0])
    return _placed(select_sql(shape, "\0", tail=tail), f"({' OR '.join(steps)})", "%s")


def _placed(sql: str, *parts: str) -> str:
    """Return `sql` with its percent signs doubled, and each zero byte replaced by a part."""
    pieces = sql.replace("%", "%%").split("\0")
    return pieces[0] + "".join(p + piece for p, piece in zip(parts, pieces[1:], strict=True))
