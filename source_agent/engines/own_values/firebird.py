"""Firebird: bare columns as firebird-driver returns them, with the server's own conversion of text.

An index is read in its own direction alone, so the last keys are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from driftline.key_order import Key

from source_agent.engines.interface import Rows
from source_agent.engines.own_values.reading import PLACE, DriverKey, NotComparable, OwnValues
from source_agent.engines.relations import plan_of
from source_agent.engines.shapes import Shape

Fetch = Callable[[Shape, str, Sequence[object], int], list[tuple[Any, ...]]]


class FirebirdValues(OwnValues):
    """Read as firebird-driver does.

    Args:
        fetch: executes a statement of the session; returns some of its rows.
        read: executes a SELECT of a shape as the session's reads do.
    """

    limit = f"\nROWS {PLACE}"
    reads_backwards = False

    def __init__(
        self,
        fetch: Fetch,
        read: Callable[[Shape, str, Sequence[object]], Iterator[Rows]],
    ) -> None:
        self._fetch, self._read = fetch, read

    def fetch(self, shape: Shape, sql: str, values: Sequence[object], most: int) -> list[DriverKey]:
        return self._fetch(shape, sql, values, most)

    def read(
        self, shape: Shape, keys: Sequence[DriverKey], published: Sequence[Key]
    ) -> Iterator[Rows]:
        del published
        return self._read(shape, self.read_sql(shape), self.bound(keys))

    def plain(self, shape: Shape, number: int, value: Any, published: str | None) -> Any:
        del published
        plan = plan_of(shape)
        is_cast = plan.reads[number] != self.column(shape, number)
        if isinstance(value, str) and plan.forms[number] == "shown" and is_cast:
            raise NotComparable("it is read as the digits of its bytes, and the driver decodes it")
        return value
