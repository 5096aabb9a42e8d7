"""The engines that speak the protocol of MySQL, and whose SQL tests write alike.

A test of one is a test of all: it has `*FAMILY` among its parameters. What MySQL has not (system
versioning, sequences, `uuid`, `inet6`, Aria, KILL of a user) is tested with `"mariadb"` alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

FAMILY: Final = ("mariadb", "mysql")
# Without padding: of the bytes, and of the letters.
_COLLATIONS: Final = {
    "utf8mb4_nopad_bin": "utf8mb4_0900_bin",
    "utf8mb4_unicode_nopad_ci": "utf8mb4_0900_ai_ci",
}
_SEQUENCE: Final = re.compile(r"\bseq_(\d+)_to_(\d+)\b")  # a table of MariaDB's, of numbers
LONG_SEQUENCES: Final = "SET SESSION cte_max_recursion_depth = 4294967295"  # what they need


def spelled_as(engine: str) -> str:
    """Return the engine whose SQL, types and driver a test uses for an engine."""
    return "mariadb" if engine in FAMILY else engine


def of_mysql(sql: str) -> str:
    """Return a statement written for MariaDB as MySQL knows it: names of collations, sequences."""
    for theirs, ours in _COLLATIONS.items():
        sql = sql.replace(theirs, ours)
    return _SEQUENCE.sub(_counted, sql)


def as_mariadb(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row of EXPLAIN without two columns that MySQL's has: partitions, and filtered."""
    return (*row[:3], *row[4:-2], row[-1]) if len(row) == 12 else tuple(row)


def _counted(name: re.Match[str]) -> str:
    first, last = name.groups()
    more = f"SELECT seq + 1 FROM counted WHERE seq < {last}"
    rows = f"WITH RECURSIVE counted (seq) AS (SELECT {first} UNION ALL {more})"
    return f"({rows} SELECT seq FROM counted) AS {name[0]}"
