"""MariaDB and MySQL: the settings of a session, its limits of time, and whether they still hold.

A stored function that a view or a query calls may change a variable of the session for good. So
the variables on which text forms depend are compared after every read, and rows read under others
are refused. Not found: a function that changes a variable and restores it within the same row.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.interface import Ask, Limits, Relation, TimeLimit
from source_agent.engines.mariadb.sql import (
    DRIVER,
    SETTINGS,
    STATEMENT_TIMEOUTS,
    TIME_LIMITS,
    TIMEOUTS,
    VERSION,
)
from source_agent.engines.relations import changed_setting

Shown = tuple[str | None, ...]

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
SHOWN = f"SELECT {', '.join(f'@@SESSION.{name}' for name in WATCHED)}"

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
    pairs = zip(WATCHED, before, ask(SHOWN)[0], strict=True)
    if changed := [name for name, was, now in pairs if was != now]:
        for sql in (DRIVER[0], *SETTINGS):  # for the relations that follow in this session
            ask(sql)
        raise changed_setting(relation, changed)
