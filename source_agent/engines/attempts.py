"""Record what describing a relation asks of a database, though it be refused: for `explain`.

A relation that cannot be described has no templates, because these are made of its columns. What
the attempt itself issues stands in the server's log all the same, so it is recorded here as it is
asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from driftline.errors import DriftlineError

from source_agent.engines.interface import Relation, Shape

_ASKING = frozenset({"ask", "row_description", "fields"})  # each takes the SQL text first


class _Recorded:
    """A session that notes what it is asked; everything else is the session's own."""

    def __init__(self, session: object, issued: list[str]) -> None:
        self._session, self._issued = session, issued

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if name not in _ASKING:
            return found

        def recorded(sql: str, *values: object) -> Any:
            self._issued.append(sql)
            return found(sql, *values)

        return recorded


def attempted(
    describe: Callable[[Any, Relation], Shape],
    session: object,
    relation: Relation,
    refusals: type[Exception],
) -> list[str]:
    """Return what `describe` asks of the session about a relation, until it is done or refused.

    Args:
        describe: the engine's own function, which takes a session and a relation.
        refusals: the driver's error, where the session does not translate it.
    """
    issued: list[str] = []
    with contextlib.suppress(DriftlineError, refusals):  # the caller has met it, and says so
        describe(_Recorded(session, issued), relation)
    return list(dict.fromkeys(issued))
