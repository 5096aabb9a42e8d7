"""MariaDB and MySQL: the settings of a session, its limits of time, and whether they still hold.

A stored function that a view or a query calls may change a variable of the session for good. So
the variables on which text forms depend are compared after every read, and rows read under others
are refused. Not found: a function that changes a variable and restores it within the same row.

Not pinned: `sql_big_selects`, `max_join_size` and `max_recursive_iterations`. They are the owner's
limits, and a read beyond one is refused (errors 1104 and 1931) and never has another value.
"""

from __future__ import annotations

import contextlib
from typing import Final

from driftline.errors import DatabaseRefused

from source_agent.engines.interface import Ask, Limits, TimeLimit
from source_agent.engines.mysql_family.product import Product
from source_agent.engines.relations.select import changed_setting
from source_agent.engines.relations.shapes import Relation

Shown = tuple[str | None, ...]

# Text forms and the meaning of a DBA's query depend on these, and on those of the product.
SETTINGS: Final = (
    "SET SESSION sql_mode = ''",
    # The collation of literals; servers and releases have other defaults.
    "SET NAMES utf8mb4 COLLATE utf8mb4_general_ci",
    "SET SESSION sql_auto_is_null = 0",
    "SET SESSION default_week_format = 0",
    "SET SESSION max_sort_length = 4096",  # more bytes than a key can have: pages follow its order
    "SET SESSION div_precision_increment = 4",
    "SET SESSION sql_notes = 0",  # notes are not counted
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION lc_time_names = 'en_US'",
    "SET SESSION group_concat_max_len = 67108864",
    "SET SESSION sql_select_limit = 18446744073709551615",  # else SELECT may leave rows out
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION READ ONLY",
)
# What not every server lets a login set: then the owner's value stays.
ATTEMPTED: Final = (
    "SET SESSION timestamp = DEFAULT",  # NOW() is then the time; not with secure_timestamp
    "SET SESSION max_error_count = 65535",  # all warnings are listed (`warnings`); not on MySQL
)
# Limits of time: those of the server or the account are only tightened.
TIMEOUTS: Final = tuple(
    f"SET SESSION {name} = CAST(LEAST(@@SESSION.{name}, %s) AS UNSIGNED)"
    for name in ("lock_wait_timeout", "innodb_lock_wait_timeout", "wait_timeout")
)
# SHOW answers in text: a name, and seconds (milliseconds for max_execution_time).
TIME_LIMITS = (
    "SHOW SESSION VARIABLES WHERE Variable_name IN ('max_statement_time', 'max_execution_time', "
    "'lock_wait_timeout', 'innodb_lock_wait_timeout', 'wait_timeout', 'idle_transaction_timeout', "
    "'idle_readonly_transaction_timeout', 'net_write_timeout')"
)
DRIVER: Final = ("SET NAMES utf8mb4", "SET AUTOCOMMIT = 1")  # PyMySQL issues them to connect

WATCHED: Final = (
    "time_zone",
    "lc_time_names",
    "div_precision_increment",
    "group_concat_max_len",
    "sql_select_limit",
    "max_sort_length",
    "sql_mode",
    "sql_auto_is_null",
    "default_week_format",
    "max_error_count",
    "sql_notes",
    "character_set_client",
    "character_set_connection",
    "collation_connection",
    "character_set_results",
)
_CLOCK: Final = "timestamp"
_CLOCK_S: Final = 60  # a clock that is set differs by more; one that is not, by microseconds

_IDLE: Final = {"wait_timeout", "idle_transaction_timeout", "idle_readonly_transaction_timeout"}
_ZERO_IS_AT_ONCE: Final = {"lock_wait_timeout", "innodb_lock_wait_timeout"}


def shown_sql(product: Product) -> str:
    """Return the SELECT of all that is watched, and of whether the session's clock is set."""
    names = (f"@@SESSION.{name}" for name in WATCHED)
    clock = f"ABS(@@SESSION.{_CLOCK} - UNIX_TIMESTAMP(SYSDATE(6))) > {_CLOCK_S}"
    # One row whatever `sql_select_limit` has become.
    return f"SELECT {', '.join([*names, *product.watched.values(), clock])} LIMIT 1"


def statements(product: Product) -> tuple[str, ...]:
    """Return the SQL texts of this module."""
    pinning = (
        *DRIVER,
        *SETTINGS,
        product.pinning,
        *ATTEMPTED,
        *TIMEOUTS,
        product.statement_timeout,
    )
    return (*pinning, TIME_LIMITS, shown_sql(product))


def pin(ask: Ask, product: Product, limits: Limits) -> Shown:
    """Set what text forms depend on, tighten the limits of time, and return what is watched."""
    _set(ask, product)
    lock_s = max(1, round(limits.lock_s))
    for sql, seconds in zip(TIMEOUTS, (lock_s, lock_s, max(1, round(limits.idle_s))), strict=True):
        ask(sql, seconds)
    if limits.statement_s is not None:
        budget = limits.statement_s * product.units_per_s
        ask(product.statement_timeout, *[budget if product.units_per_s == 1 else round(budget)] * 2)
    return ask(shown_sql(product))[0]


def _set(ask: Ask, product: Product) -> None:
    for sql in (*SETTINGS, product.pinning):
        ask(sql)
    for sql in ATTEMPTED:
        with contextlib.suppress(DatabaseRefused):
            ask(sql)


def time_limits(ask: Ask) -> list[TimeLimit]:
    """Return what `Session.time_limits` returns."""
    limits = []
    for name, text in ask(TIME_LIMITS):
        seconds = float(text or 0) / (1000 if name == "max_execution_time" else 1)
        if seconds or name in _ZERO_IS_AT_ONCE:
            limits.append(TimeLimit(str(name), seconds, name in _IDLE))
    return limits


def _changed(ask: Ask, product: Product, before: Shown) -> list[str]:
    names = (*WATCHED, *product.watched, _CLOCK)
    pairs = zip(names, before, ask(shown_sql(product))[0], strict=True)
    return [name for name, was, now in pairs if was != now]


def refuse_changed(ask: Ask, product: Product, before: Shown, relation: Relation) -> None:
    """Raise DatabaseRefused if a variable has another value than when the session opened."""
    changed = _changed(ask, product, before)
    if changed == [_CLOCK]:  # the server's clock was put on between two looks at it, or is set
        changed = _changed(ask, product, before)
    if changed:
        _set(ask, product)  # for the relations that follow in this session
        raise changed_setting(relation, changed)
