"""PostgreSQL: the statements of a session, and COPY around a SELECT. No I/O, no values.

The SELECTs of a relation are beside the types they read (`postgresql_types`) and the parts they are
cut into (`postgresql_split`).
"""

from __future__ import annotations

from typing import Final

from source_agent.engine import Limits

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
PIN = (
    "SELECT pg_catalog.set_config(s.name, p.value, false)\n"
    "FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]), "
    "pg_catalog.unnest(%s::pg_catalog.text[])) AS p(name, value)\n"
    "JOIN pg_catalog.pg_settings s ON pg_catalog.lower(s.name) = pg_catalog.lower(p.name)"
)
AS_OF = (
    "SELECT pg_catalog.to_char(pg_catalog.statement_timestamp() AT TIME ZONE 'UTC', "
    '\'YYYY-MM-DD"T"HH24:MI:SS.US"Z"\')'
)
BOUNDS = (  # of what is read, as settings: COPY takes no parameters
    "SELECT pg_catalog.set_config('driftline.first', %s, true), "
    "pg_catalog.set_config('driftline.last', %s, true)"
)
EXPORT = "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::pg_catalog.text"
SAVEPOINT = "SAVEPOINT driftline_read"
ROLLBACK_TO = "ROLLBACK TO SAVEPOINT driftline_read"
RELEASE = "RELEASE SAVEPOINT driftline_read"
STATEMENTS: Final = (PIN, BEGIN, AS_OF, BOUNDS, EXPORT, SAVEPOINT, ROLLBACK_TO, RELEASE)


def timeouts(limits: Limits) -> dict[str, str]:
    """The settings that bound a session's statements, its waits for locks and its silence."""
    return {
        "statement_timeout": _ms(limits.statement_s),
        "lock_timeout": _ms(limits.lock_s),
        "idle_in_transaction_session_timeout": _ms(limits.idle_s),
    }


def _ms(seconds: float | None) -> str:
    return "0" if seconds is None else str(max(1, round(seconds * 1000)))


def copy_of(select_sql: str) -> str:
    return f"COPY (\n{select_sql}\n) TO STDOUT (FORMAT binary)"
