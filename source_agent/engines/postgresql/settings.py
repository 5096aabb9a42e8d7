"""PostgreSQL: the settings of a session on which text forms depend, and the check that they hold.

They are set when the session opens. A function that a view, a policy or a query calls runs in the
same session and may change them by a `SET` in its body, which lasts beyond the call, unlike the
`SET` of its definition. So they are compared after every read; what was read under other settings
is refused, and the savepoint around the read undoes the change.

Not found: a function that changes a setting and restores it before the same row is finished.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.interface import Ask
from source_agent.engines.relations import changed_setting
from source_agent.engines.shapes import Relation

# Text forms must not depend on server, database or role. IntervalStyle `postgres` prints intervals
# losslessly (sql_standard is ambiguous with mixed signs). One backend per scan, and no JIT, whose
# compilation costs more than reading a few ranges.
SETTINGS: Final = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "xmlbinary": "base64",
    "xmloption": "content",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "row_security": "on",
    "application_name": "driftline-source",
}
# The search_path is not set, because the DBA's queries rely on it, but must not change either.
_WATCHED: Final = [*SETTINGS, "search_path"]

SHOWN: Final = """
SELECT ARRAY(SELECT pg_catalog.current_setting(s.name, true)
             FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY s(name, place)
             ORDER BY s.place)"""


def shown(ask: Ask) -> list[str | None]:
    """Return the values of the settings that must not change; None: the server lacks it."""
    values: list[str | None] = ask(SHOWN, _WATCHED)[0][0]
    return values


def refuse_changed(ask: Ask, before: list[str | None], relation: Relation) -> None:
    """Raise DatabaseRefused if a setting has changed since the session opened."""
    changed = [
        name for name, was, now in zip(_WATCHED, before, shown(ask), strict=True) if now != was
    ]
    if changed:
        raise changed_setting(relation, changed)
