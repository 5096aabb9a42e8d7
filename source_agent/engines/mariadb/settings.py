"""MariaDB and MySQL: the settings of a session, its limits of time, and whether they still hold.

A stored function that a view or a query calls may change a variable of the session for good. So
the variables on which text forms depend are compared after every read, and rows read under others
are refused. Not found: a function that changes a variable and restores it within the same row.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.interface import Ask, Limits, TimeLimit
from source_agent.engines.relations import changed_setting
from source_agent.engines.shapes import Relation

Shown = tuple[str | None, ...]

# Text forms and the meaning of a DBA's query depend on these.
SETTINGS: Final = (
    # Of MariaDB alone: rows of the past.
    "SET SESSION /*M!100300 system_versioning_asof = DEFAULT, */ sql_mode = ''",
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
VERSION = "SELECT VERSION()"
DRIVER: Final = ("SET NAMES utf8mb4", "SET AUTOCOMMIT = 1")  # PyMySQL issues them to connect

WATCHED: Final = (
    "time_zone",
    "lc_time_names",
    "div_precision_increment",
    "group_concat_max_len",
    "sql_select_limit",
    "max_sort_length",
    "sql_mode",
    "character_set_client",
    "character_set_connection",
    "collation_connection",
    "character_set_results",
)
_PAST = "system_versioning_asof"  # of MariaDB alone
SHOWN = (
    f"SELECT {', '.join(f'@@SESSION.{name}' for name in WATCHED)}, "
    f"COALESCE(/*M!100300 @@SESSION.{_PAST}, */ '')"
)
PINNING: Final = (*DRIVER, *SETTINGS, *TIMEOUTS, *STATEMENT_TIMEOUTS.values())
STATEMENTS: Final = (*PINNING, TIME_LIMITS, VERSION, SHOWN)

_IDLE: Final = {"wait_timeout", "idle_transaction_timeout", "idle_readonly_transaction_timeout"}
_ZERO_IS_AT_ONCE: Final = {"lock_wait_timeout", "innodb_lock_wait_timeout"}


def pin(ask: Ask, limits: Limits) -> Shown:
    """Set what text forms depend on, tighten the limits of time, and return what is watched."""
    is_mariadb = "mariadb" in str(ask(VERSION)[0][0]).lower()
    for sql in SETTINGS:
        ask(sql)
    lock_s = max(1, round(limits.lock_s))
    for sql, seconds in zip(TIMEOUTS, (lock_s, lock_s, max(1, round(limits.idle_s))), strict=True):
        ask(sql, seconds)
    if limits.statement_s is not None:
        budget = limits.statement_s if is_mariadb else round(limits.statement_s * 1000)
        ask(STATEMENT_TIMEOUTS[is_mariadb], budget, budget)
    return ask(SHOWN)[0]


def time_limits(ask: Ask) -> list[TimeLimit]:
    """Return what `Session.time_limits` returns."""
    found = []
    for name, text in ask(TIME_LIMITS):
        seconds = float(text or 0) / (1000 if name == "max_execution_time" else 1)
        if seconds or name in _ZERO_IS_AT_ONCE:
            found.append(TimeLimit(str(name), seconds, name in _IDLE))
    return found


def refuse_changed(ask: Ask, before: Shown, relation: Relation) -> None:
    """Raise DatabaseRefused if a variable has another value than when the session opened."""
    pairs = zip((*WATCHED, _PAST), before, ask(SHOWN)[0], strict=True)
    if changed := [name for name, was, now in pairs if was != now]:
        for sql in (DRIVER[0], *SETTINGS):  # for the relations that follow in this session
            ask(sql)
        raise changed_setting(relation, changed)
