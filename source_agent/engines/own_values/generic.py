"""Generic: bare columns as the driver behind SQLAlchemy returns them.

The engine's own values are the driver's, too, so what the driver rounds is not found here: only the
expressions for floats, and the encoders. Not every dialect has LIMIT, so a statement is fetched in
part: the database may sort all keys for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from source_agent.engines.own_values.reading import PLACE, Fetch, Read, SessionValues

_MARKS: Final = {"qmark": "?", "numeric": ":{}", "numeric_dollar": "${}"}


class GenericValues(SessionValues):
    """Read as the driver does.

    Args:
        fetch: executes a statement of the session; returns some of its rows.
        read: executes a SELECT of a shape as the session's reads do.
        quote_name: the dialect's.
        style: `paramstyle` of the dialect.
    """

    limit = ""
    cost = "the dialect's LIMIT is not known, so the database may have sorted every key"

    def __init__(
        self,
        fetch: Fetch,
        read: Read,
        quote_name: Callable[[str], str],
        style: str,
    ) -> None:
        super().__init__(fetch, read)
        self._quote, self._style = quote_name, style

    def quote(self, name: str) -> str:
        return self._quote(name)

    def text(self, sql: str) -> str:
        mark, (first, *rest) = _MARKS.get(self._style, "%s"), sql.split(PLACE)
        return first + "".join(mark.format(n) + piece for n, piece in enumerate(rest, 1))
