"""PostgreSQL: the settings of a session on which values and text forms depend, and their check.

Two kinds. Settings that only change how a value is written are *pinned*: text forms do not depend
on server, database or role. Settings that also decide what the source's own expressions mean (a
view's `t::date`, the `where` of a DBA, the amount that a `money` is) stay as the server, the
database or the role of the login have them, as any client of this database sees them, and are
*held*: set to the value that they have, so that a reload of the server's file does not change them.

A function that a view, a policy or a query calls runs in the same session and may change a setting
by a `SET` in its body, which lasts beyond the call, unlike the `SET` of its definition. So they are
compared after every read; what was read under other settings is refused, and the savepoint around
the read undoes the change.

Behind a pooler (`waits`) a session of the server is shared with other clients, transaction by
transaction. All settings are then those of one transaction, which is rolled back; what others have
left behind does not count in it, and is there again after it; only a setting of an owner's own that
a session has ever had is empty in it, not NULL.

Not found: a function that changes a setting and restores it before the same row is finished.

Rejected: to pin all. Under another `TimeZone` a view's day is another day; under another
`lc_monetary` 1000 yen are 10.00.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from driftline.errors import OPEN, ConfigurationError, DatabaseRefused
from psycopg import Error

from source_agent.engines.interface import Ask, Limits
from source_agent.engines.relations.select import changed_setting
from source_agent.engines.relations.shapes import Relation

# DateStyle keeps its order of day and month, by which the DBA's literals are read. IntervalStyle
# `postgres` prints intervals losslessly (sql_standard is ambiguous with mixed signs). A limit of
# GIN indexes returns some of the rows. One backend per scan, and no JIT, whose compilation costs
# more than reading a few ranges.
SETTINGS: Final = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    "gin_fuzzy_search_limit": "0",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "row_security": "on",
    "application_name": "driftline-source",
}
POOLED: Final = (
    "a connection pooler is in front: settings are those of a transaction that is rolled back, and"
    " one process reads a scan, whatever limits.readers is"
)
# What the source's own texts and expressions mean.
HELD: Final = (
    "search_path",
    "TimeZone",
    "timezone_abbreviations",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
    "xmlbinary",
    "xmloption",
    "array_nulls",
    "backslash_quote",
    "standard_conforming_strings",
    "transform_null_equals",
    "default_text_search_config",
)
_SET: Final = (
    "SELECT pg_catalog.set_config(s.name, p.value, {is_local})\n"
    "FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]), "
    "pg_catalog.unnest(%s::pg_catalog.text[])) AS p(name, value)\n"
)
_PIN: Final = (
    f"{_SET.format(is_local='false')}"
    "JOIN pg_catalog.pg_settings s ON pg_catalog.lower(s.name) = pg_catalog.lower(p.name)"
)
_HOLD: Final = """
SELECT pg_catalog.set_config(s.name, pg_catalog.current_setting(s.name), {is_local})
FROM pg_catalog.unnest(%s::pg_catalog.text[]) AS p(name)
JOIN pg_catalog.pg_settings s ON pg_catalog.lower(s.name) = pg_catalog.lower(p.name)"""
_TIGHTEN: Final = (  # time limits: never lifts one that the server or the role has set
    f"{_SET}JOIN pg_catalog.pg_settings s ON s.name OPERATOR(pg_catalog.=) p.name\n"
    "WHERE CASE WHEN s.vartype OPERATOR(pg_catalog.=) 'integer'\n"  # evaluated before the cast
    "           THEN s.setting::pg_catalog.int8 OPERATOR(pg_catalog.=) 0\n"
    "             OR s.setting::pg_catalog.int8 OPERATOR(pg_catalog.>) p.value::pg_catalog.int8 END"
)
HOLD, TIGHTEN = (s.format(is_local="false") for s in (_HOLD, _TIGHTEN))
_HOLD_LOCAL, _TIGHTEN_LOCAL = (s.format(is_local="true") for s in (_HOLD, _TIGHTEN))
# A temporary table that another client left behind would otherwise hide one of its name.
_TEMPORARY_LAST: Final = (
    "SELECT pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ', "
    "NULLIF(pg_catalog.current_setting('search_path'), ''), 'pg_temp'), true)"
)
TIME_LIMITS = """SELECT s.name, s.setting::pg_catalog.float8 OPERATOR(pg_catalog./) 1000,
       pg_catalog.strpos(s.name, 'idle') OPERATOR(pg_catalog.>) 0
FROM pg_catalog.pg_settings s
WHERE s.name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout',
                 'idle_in_transaction_session_timeout', 'idle_session_timeout')
  AND s.setting OPERATOR(pg_catalog.<>) '0'
ORDER BY s.name"""
# With these settings a server notices within a minute that the agent's machine is gone, and with
# the first (PostgreSQL 14) that the agent has ended during a statement. tcp_user_timeout is not
# among them: by it, Linux ends the connection of a slow reader, and a warehouse may be slow.
DEAD_CLIENTS: Final = {
    "client_connection_check_interval": "5000",
    "tcp_keepalives_idle": "20",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

# With these a server shows damaged pages as empty, or as they are. Only a superuser can set them.
_HIDING: Final = ("zero_damaged_pages", "ignore_checksum_failure")
_WATCHED: Final = [*SETTINGS, *HELD, *_HIDING, "role"]

SHOWN: Final = """
SELECT ARRAY(SELECT pg_catalog.current_setting(s.name, true)
             FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY s(name, place)
             ORDER BY s.place)"""

# A scale is decided while the statement runs: 0 has it in every locale.
DECIMALS: Final = """
SELECT pg_catalog.scale('0'::pg_catalog.money::pg_catalog.numeric),
       pg_catalog.current_setting('lc_monetary')"""
# Roles that log in with a setting of their own; whether the agent's is one.
ROLES: Final = """
SELECT pg_catalog.substr(entry.line, 13), pg_catalog.min(r.rolname::pg_catalog.text),
       pg_catalog.bool_or(r.rolname OPERATOR(pg_catalog.=) SESSION_USER)
FROM pg_catalog.pg_db_role_setting s
JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) s.setrole
CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) AS entry(line)
WHERE pg_catalog.substr(entry.line, 1, 12) OPERATOR(pg_catalog.=) 'lc_monetary='
  AND r.rolcanlogin
  AND (s.setdatabase OPERATOR(pg_catalog.=) 0 OR s.setdatabase OPERATOR(pg_catalog.=) (
    SELECT d.oid FROM pg_catalog.pg_database d
    WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()))
GROUP BY 1 ORDER BY 2"""
LIKE_ROLE: Final = "SELECT pg_catalog.set_config('lc_monetary', %s, true)"
MONEY: Final = (DECIMALS, ROLES, LIKE_ROLE)
STATEMENTS: Final = (
    _PIN,
    HOLD,
    TIGHTEN,
    _HOLD_LOCAL,
    _TIGHTEN_LOCAL,
    _TEMPORARY_LAST,
    TIME_LIMITS,
    SHOWN,
)


def timeouts(limits: Limits) -> dict[str, str]:
    """Return the time limits of a session, in milliseconds, by the names of PostgreSQL's settings.

    A limit that source.toml leaves open is not named: the role's own limit stays.
    """
    seconds = {
        "lock_timeout": limits.lock_s,
        "idle_in_transaction_session_timeout": limits.idle_s,
        "statement_timeout": limits.statement_s,
    }
    return {name: str(max(1, round(s * 1000))) for name, s in seconds.items() if s is not None}


def pin(ask: Ask, limits: Limits, held: Mapping[str, str]) -> list[str | None]:
    """Set what a session needs before its transaction, and return what must not change.

    Args:
        held: settings to have like another session, by name.

    Raises DatabaseRefused, psycopg.Error.
    """
    with contextlib.suppress(Error):  # without them the server notices a dead client later
        _set(ask, TIGHTEN, DEAD_CLIENTS)
    _set(ask, _PIN, SETTINGS | dict(held))
    ask(HOLD, list(HELD))
    _set(ask, TIGHTEN, timeouts(limits))
    return _accepted(ask)


def pin_pooled(ask: Ask, limits: Limits) -> list[str | None]:
    """Do the same for a transaction behind a pooler, once it has SETTINGS (`sql.BEGIN_POOLED`).

    Raises DatabaseRefused, psycopg.Error.
    """
    ask(_TEMPORARY_LAST)
    ask(_HOLD_LOCAL, list(HELD))
    _set(ask, _TIGHTEN_LOCAL, timeouts(limits))
    return _accepted(ask)


def _set(ask: Ask, statement: str, values: Mapping[str, str]) -> None:
    ask(statement, list(values), list(values.values()))


def _accepted(ask: Ask) -> list[str | None]:
    values = shown(ask)
    refuse_hiding(values)
    return values


def shown(ask: Ask) -> list[str | None]:
    """Return the values of the settings that must not change; None: the server lacks it."""
    values: list[str | None] = ask(SHOWN, _WATCHED)[0][0]
    return values


def held(values: Sequence[str | None]) -> dict[str, str]:
    """Return the settings that another session of the same read must have, as `shown` found."""
    return {
        name: value
        for name, value in zip(_WATCHED, values, strict=True)
        if name in HELD and value is not None
    }


def refuse_hiding(values: Sequence[str | None]) -> None:
    """Raise DatabaseRefused if the server may hide damage from this session, by `shown`."""
    for name, value in zip(_WATCHED, values, strict=True):
        if name in _HIDING and value == "on":
            raise DatabaseRefused(
                f"{name} is on: PostgreSQL may leave out rows of damaged pages, or show wrong ones,"
                " without an error.",
                remedy=f"As a superuser: ALTER ROLE the agent's role SET {name} = off.",
                abroad=OPEN,
            )


def refuse_changed(ask: Ask, before: list[str | None], relation: Relation) -> None:
    """Raise DatabaseRefused if a setting has changed since the session opened."""
    changed = [
        name for name, was, now in zip(_WATCHED, before, shown(ask), strict=True) if now != was
    ]
    if changed:
        raise changed_setting(relation, changed)


def decimals(
    ask: Ask, relation: Relation, decimals_as: Callable[[str], int | None]
) -> tuple[int, str]:
    """Return the decimals of a money in this session, and a note on them if they are unusual.

    A money is an integer; `lc_monetary` decides what it counts: with two decimals 1000 is 10.00,
    with those of Japan, which has none, it is 1000. So the amount that an owner means is known only
    if the settings of all who write have the same decimals. The agent's session has what server and
    database say, as anyone has whose role says nothing else; a setting of the agent's own role is
    the DBA's word. Not found: a writer that sets `lc_monetary` in its session.

    Args:
        relation: one that holds a money.
        decimals_as: reads the decimals under another `lc_monetary`; None: the server has it not.

    Raises:
        ConfigurationError: another role has a setting with other decimals.
    """
    own, setting = ask(DECIMALS)[0]
    roles = ask(ROLES)
    if any(is_own for _, _, is_own in roles):
        roles = []
    for locale, role, _ in roles:
        if decimals_as(locale) not in {own, None}:
            raise ConfigurationError(
                f"It has money, whose decimals depend on lc_monetary: {own} by {setting!r} as the"
                f" agent's login has it, others by {locale!r} as the role {role} has it.",
                where=relation.name,
                remedy="Give the agent's role the setting of those who write the amounts:"
                f" ALTER ROLE the agent's role SET lc_monetary = '{setting}' or '{locale}'.",
                abroad="The agent's role has another lc_monetary than those who write its money.",
            )
    note = "" if own == 2 else f"of {own} decimals, by lc_monetary {setting!r}"
    return int(own), note
