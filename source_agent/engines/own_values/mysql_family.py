"""MariaDB and MySQL: bare columns with PyMySQL's own converters, which the session leaves out.

FLOAT is cast to DOUBLE: its own text has six digits. So is a DOUBLE of a query, whose text some
servers cut. The text of a negative zero has no sign on most servers: a zero without a sign is taken
for either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from driftline.limits import COLUMNS_MAX
from driftline.rows.key_order import Key
from pymysql.converters import decoders

from source_agent.engines.interface import Rows
from source_agent.engines.own_values.reading import DriverKey, NotComparable, OwnValues, beside_key
from source_agent.engines.relations.select import plan_of, quote, split_name
from source_agent.engines.relations.shapes import Relation, Shape

INDEXED: Final = """
SELECT DISTINCT column_name FROM information_schema.statistics
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
  AND seq_in_index = 1 AND index_type = 'BTREE' AND sub_part IS NULL"""
_MARK: Final = "`"
_DIGITS, _FLOAT = "HEX(", "* 1e0"  # in read expressions, also those of `as_text`
_NEGATIVE_ZEROS: Final = frozenset({"-0.0", "-0"})
Execute = Callable[[str, Sequence[object], Relation], list[tuple[Any, ...]]]
Read = Callable[[Shape, str, Sequence[object]], Iterator[Rows]]


class FamilyValues(OwnValues):
    """Read as PyMySQL does.

    Args:
        connection: of the session.
        execute: executes a statement of the session; returns its rows.
        read: executes a SELECT of a shape as the session's reads do.
        has_unknown: the server has types of bytes that the driver takes for ASCII.
    """

    place = "%s"

    def __init__(self, connection: Any, execute: Execute, read: Read, *, has_unknown: bool) -> None:
        self._connection, self._execute, self._read = connection, execute, read
        self._has_unknown = has_unknown

    def quote(self, name: str) -> str:
        return quote(name, _MARK)

    def column(self, shape: Shape, number: int) -> str:
        column, name = shape.recipe.columns[number], super().column(shape, number)
        is_cut = column.type.kind != "float8" or shape.relation.table is None
        plan = plan_of(shape)
        is_bytes = plan.forms[number] == "bytes" or plan.reads[number].startswith(_DIGITS)
        if self._has_unknown and is_bytes:
            return f"CAST({name} AS BINARY)"
        is_float = plan.forms[number] == "float" or _FLOAT in plan.reads[number]
        return f"CAST({name} AS DOUBLE)" if is_float and is_cut else name

    def text(self, sql: str) -> str:
        return super().text(sql.replace("%", "%%"))

    def fetch(self, shape: Shape, sql: str, values: Sequence[object], most: int) -> list[DriverKey]:
        connection = self._connection
        kept = connection.decoders, connection.use_unicode
        connection.decoders, connection.use_unicode = decoders, True
        try:
            return self._execute(sql, values, shape.relation)[:most]
        finally:
            connection.decoders, connection.use_unicode = kept

    def read(
        self, shape: Shape, keys: Sequence[DriverKey], published: Sequence[Key]
    ) -> Iterator[Rows]:
        del published
        return self._read(shape, self.read_sql(shape), self.bound(keys))

    def indexed(self, shape: Shape) -> list[str]:
        if shape.relation.table is None:
            return []
        *schema, table = split_name(shape.relation.table, _MARK)
        named = [schema[0] if schema else None, table]
        return beside_key(shape, self.fetch(shape, INDEXED, named, COLUMNS_MAX))

    def statements(self, shape: Shape) -> list[str]:
        return [INDEXED, *super().statements(shape)]

    def plain(self, shape: Shape, number: int, value: Any, published: str | None) -> Any:
        read, form = plan_of(shape).reads[number], plan_of(shape).forms[number]
        if isinstance(value, float) and value == 0 and published in _NEGATIVE_ZEROS:
            return -0.0
        if isinstance(value, str) and form == "text" and _DIGITS in read:
            raise NotComparable("it is read as the digits of its bytes, and the driver decodes it")
        if isinstance(value, bytes) and form != "bytes" and _DIGITS not in read:  # BIT
            return int.from_bytes(value, "big")
        return value
