"""SQLite: bare columns as Python's sqlite3 returns them, by the storage class of each value."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from driftline.limits import COLUMNS_MAX
from driftline.rows.key_order import Key

from source_agent.engines.interface import Rows
from source_agent.engines.own_values.reading import DriverKey, NotComparable, OwnValues, beside_key
from source_agent.engines.relations.select import plan_of, quote, split_name
from source_agent.engines.relations.shapes import Shape
from source_agent.engines.sessions import foreseen

INDEX_LIST: Final = "PRAGMA main.index_list({name})"
INDEX_INFO: Final = "PRAGMA main.index_xinfo({name})"
_TAGS: Final = {int: "i:", float: "r:", str: "t:"}


def _text(data: bytes) -> str:
    """Return a text as sqlite3 decodes it; bytes that are no UTF-8 are kept, not refused."""
    return data.decode("utf-8", "surrogateescape")


class SqliteValues(OwnValues):
    """Read as sqlite3 does.

    Args:
        connection: of the session.
        begin: begins a transaction if none is open.
        errors: translates errors.
        read: executes SELECTs of a shape as the session's reads do.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        begin: Callable[[], None],
        errors: Callable[..., AbstractContextManager[None]],
        read: Callable[[Shape, Iterator[tuple[str, Sequence[object]]]], Iterator[Rows]],
    ) -> None:
        self._connection, self._begin, self._errors = connection, begin, errors
        self._read = read

    def quote(self, name: str) -> str:
        return quote(name, "`")

    def fetch(self, shape: Shape, sql: str, values: Sequence[object], most: int) -> list[DriverKey]:
        self._begin()
        connection, factory = self._connection, self._connection.text_factory
        connection.text_factory = _text
        try:
            with self._errors(shape.relation), foreseen("sqlite3", sqlite3.Error):
                return connection.execute(sql, tuple(values)).fetchmany(most)
        finally:
            connection.text_factory = factory

    def read(
        self, shape: Shape, keys: Sequence[DriverKey], published: Sequence[Key]
    ) -> Iterator[Rows]:
        del published
        statements: Iterable[tuple[str, Sequence[object]]] = [
            (self.read_sql(shape), self.bound(keys))
        ]
        return self._read(shape, iter(statements))

    def indexed(self, shape: Shape) -> list[str]:
        if shape.relation.table is None:
            return []
        *_, table = split_name(shape.relation.table)
        listed = self.fetch(shape, INDEX_LIST.format(name=self.quote(table)), (), COLUMNS_MAX)
        names = []
        for _, index, _, _, partial in listed:
            if not partial:
                info = INDEX_INFO.format(name=self.quote(index))
                names += [(row[2],) for row in self.fetch(shape, info, (), 1)]
        return beside_key(shape, names)

    def plain(self, shape: Shape, number: int, value: Any, published: str | None) -> Any:
        is_text = isinstance(value, str)
        if plan_of(shape).forms[number] != "tagged":
            return value
        if is_text and (data := value.encode("utf-8", "surrogateescape")) and not _is_utf8(data):
            return f"x:{data.hex()}"
        if is_text and published is not None and published.startswith("x:"):
            raise NotComparable("SQLite gives other bytes than it stores")
        if isinstance(value, bytes):
            return f"b:{value.hex()}"
        return _TAGS[type(value)] + (value if is_text else repr(value))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
