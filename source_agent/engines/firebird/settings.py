"""Firebird: the settings of a session on which values depend, and whether they still hold.

Firebird 4.0 brought binds (`SET BIND`, which show a type as another one), a time zone and the
arithmetic of DECFLOAT. Triggers of the owner on connecting or on starting a transaction, and the
server's DataTypeCompatibility, may set them, and so may a function that a view or a query calls.

A bind decides what a statement shows when it is prepared, and the newest one counts. So all are set
before each read, and no bind of an earlier statement is in force. The others decide while the
statement runs: they are compared after each read, and rows read under others are refused. Not
found: a function that changes one and restores it within the same row; the traps of DECFLOAT in
Firebird 4.0, which shows them nowhere.

The role is not set: it is the login's. Firebird 3.0 has no other such setting: its sessions have
the zone of the server's machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from source_agent.engines.interface import Ask
from source_agent.engines.relations.select import changed_setting
from source_agent.engines.relations.shapes import Relation

Shown = tuple[object, ...]

PINNED_SINCE: Final = 4.0
_BOUND: Final = (
    "SMALLINT", "INTEGER", "BIGINT", "INT128", "FLOAT", "DOUBLE PRECISION", "NUMERIC", "DECIMAL",
    "DECFLOAT", "BOOLEAN", "DATE", "TIME", "TIMESTAMP", "TIME WITH TIME ZONE",
    "TIMESTAMP WITH TIME ZONE", "CHAR", "VARCHAR", "BLOB SUB_TYPE TEXT", "BLOB SUB_TYPE BINARY",
)  # fmt: skip
_SETTINGS: Final = (
    *(f"SET BIND OF {kind} TO NATIVE" for kind in _BOUND),
    "SET TIME ZONE 'UTC'",
    "SET DECFLOAT ROUND HALF_UP",
    "SET DECFLOAT TRAPS TO DIVISION_BY_ZERO, INVALID_OPERATION, OVERFLOW",
)
PIN: Final = f"EXECUTE BLOCK AS BEGIN {'; '.join(_SETTINGS)}; END"  # in one round trip
_ROUNDED: Final = ("1.1", "1.9", "2.5", "5.1", "-1.1", "-2.5")  # each mode rounds one by itself
# What is watched: the setting, the release that has it, and the expression that shows it.
_WATCHED: Final = (
    ("ROLE", 3.0, "CURRENT_ROLE"),
    ("TIME ZONE", 4.0, "RDB$GET_CONTEXT('SYSTEM', 'SESSION_TIMEZONE')"),
    (
        "DECFLOAT ROUND",
        4.0,
        " || ' ' || ".join(f"QUANTIZE(CAST('{n}' AS DECFLOAT(16)), 1)" for n in _ROUNDED),
    ),
    ("DECFLOAT TRAPS", 5.0, "RDB$GET_CONTEXT('SYSTEM', 'DECFLOAT_TRAPS')"),
)


def _shown_sql(names: Iterable[str]) -> str:
    expressions = [sql for name, _, sql in _WATCHED if name in names]
    return f"SELECT {', '.join(expressions)} FROM RDB$DATABASE"


def _watched(version: float) -> tuple[str, ...]:
    """Return the settings that a release has."""
    return tuple(name for name, since, _ in _WATCHED if since <= version)


STATEMENTS: Final = (PIN, *(_shown_sql(_watched(version)) for version in (3.0, 4.0, 5.0)))


def pin(execute: Callable[[str], object], version: float) -> None:
    """Set what values depend on, whatever a trigger, the server or a function has set."""
    if version >= PINNED_SINCE:
        execute(PIN)


def shown(ask: Ask, version: float) -> Shown:
    """Return the values of the settings that must not change during a read."""
    return ask(_shown_sql(_watched(version)))[0]


def refuse_changed(ask: Ask, version: float, before: Shown, relation: Relation) -> None:
    """Raise DatabaseRefused if a setting has another value than when the session opened."""
    pairs = zip(_watched(version), before, shown(ask, version), strict=True)
    if changed := [name for name, was, now in pairs if was != now]:
        raise changed_setting(relation, changed)
