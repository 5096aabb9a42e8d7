"""MariaDB and MySQL: the statements of a session, and the reads of a relation. No I/O, no values.

The driver formats values into a statement itself, escaped, wherever it has `%s`: in texts that take
values, every other percent sign is doubled here, so that a DBA's LIKE '%…' stays what it is.

Rejected: server-side prepared statements, which PyMySQL does not have.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.interface import Shape
from source_agent.engines.relations import plan_of, quote, select_sql

MARK: Final = "`"
RANGES_PER_SELECT: Final = 200  # beyond it, planning grows faster than reading
ROWS_MAX: Final = 2**63 - 1  # of a SELECT that has no limit

# What text forms and the meaning of a DBA's query depend on.
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
# Limits of time: one that the server or the account has is never lifted.
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
BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
KILL = "KILL QUERY %s"  # of the agent's own session, when its client has left
# PyMySQL's own, when it connects.
DRIVER: Final = ("SET NAMES utf8mb4", "SET AUTOCOMMIT = 1")
STATEMENTS: Final = (
    *DRIVER,
    *SETTINGS,
    *TIMEOUTS,
    *STATEMENT_TIMEOUTS.values(),
    TIME_LIMITS,
    VERSION,
    AS_OF,
    BEGIN,
    KILL,
)


def empty_sql(source: str) -> str:
    return f"SELECT * FROM {source} LIMIT 0"


def probe_sql(shape: Shape) -> str:
    return select_sql(shape, tail="\nLIMIT 0")


def explain_sql(sql: str) -> str:
    return f"EXPLAIN {sql}"


def range_sql(shape: Shape) -> str:
    key = quote(shape.recipe.columns[0].name, MARK).replace("%", "%%")
    ranges = " OR ".join([f"{key} BETWEEN %s AND %s"] * RANGES_PER_SELECT)
    # The driver formats the values in: what is not a placeholder keeps its percent signs.
    return _placed(select_sql(shape, "\0", tail="\nLIMIT \0"), f"({ranges})", "%s")


def page_sql(shape: Shape, *, is_first: bool) -> str:
    pages = [quote(name, MARK) for name in plan_of(shape).pages]
    order = ", ".join(pages)
    tail = f"\nORDER BY {order}\nLIMIT \0"
    if is_first:
        return _placed(select_sql(shape, tail=tail), "%s")
    doubled = [name.replace("%", "%%") for name in pages]
    equal = [" AND ".join([f"{n} = %s" for n in doubled[:i]]) for i in range(len(doubled))]
    steps = [
        f"({e} AND {n} > %s)" if e else f"{n} > %s" for e, n in zip(equal, doubled, strict=True)
    ]
    text = select_sql(shape, "\0", tail=tail)
    return _placed(text, f"({' OR '.join(steps)})", "%s")


def _placed(sql: str, *parts: str) -> str:
    """`sql` with its percent signs kept from the driver, and each zero byte replaced by a part."""
    pieces = sql.replace("%", "%%").split("\0")
    return pieces[0] + "".join(p + piece for p, piece in zip(parts, pieces[1:], strict=True))
