"""Generic: what is known of a dialect beyond SQLAlchemy, each entry proven by the suite.

A dialect without an entry is read statement by statement, so a session is FUZZY: nothing here is
guessed from a name. An entry that names a snapshot statement is only added together with a run of
the conformance suite over a real server (`tests/source_agent/engines/test_generic.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class DialectEntry:
    """One dialect.

    `snapshot`: the first statement of a transaction, which makes all of its reads one snapshot;
    empty: none is known. `settings`: statements behind it, for what text forms depend on.
    `float_text`: a format of the SQL that writes a float with 17 digits; empty: floats are refused.
    `arguments` are the driver's.
    """

    snapshot: str = ""
    settings: tuple[str, ...] = ()
    float_text: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


ENTRIES: Final[dict[str, DialectEntry]] = {  # by the name of SQLAlchemy's dialect
    "postgresql": DialectEntry(
        snapshot="SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        settings=("SET LOCAL extra_float_digits = 3",),  # a server's own may round
        float_text="CAST({column} AS TEXT)",
    ),
    # A session moves between threads, one at a time.
    "sqlite": DialectEntry(arguments={"check_same_thread": False}),
}


def entry_of(dialect: str) -> DialectEntry:
    """Return the entry of a dialect; that of an unknown one promises nothing."""
    return ENTRIES.get(dialect, DialectEntry())
