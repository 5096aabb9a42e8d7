"""PostgreSQL: bare columns in the text of their output functions, decoded by psycopg.

A scan takes the binary form of the read expressions, by COPY; here the server writes the text of
the columns themselves, so the two agree only if both are right. psycopg loads integers, floats,
decimals and bytes; dates, times and intervals stay the server's text, because Python's classes hold
neither `infinity` nor the years before 1 and after 9999, nor the parts of an interval.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any, Final

import psycopg
from driftline.limits import COLUMNS_MAX
from driftline.rows.key_order import Key
from psycopg import postgres
from psycopg.types.string import TextLoader

from source_agent.engines.interface import ReadKeys, Rows
from source_agent.engines.own_values.reading import DriverKey, NotComparable, OwnValues, beside_key
from source_agent.engines.relations.select import plan_of, quote
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sessions import foreseen

INDEXED = """
SELECT DISTINCT a.attname::pg_catalog.text FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) i.indrelid
 AND a.attnum OPERATOR(pg_catalog.=) i.indkey[0]
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) c.relam
WHERE i.indrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)::pg_catalog.oid
  AND i.indisvalid AND i.indpred IS NULL
  AND m.amname OPERATOR(pg_catalog.=) 'btree'"""
_LOADED: Final = frozenset(
    ("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bytea", "uuid")
)
_MOMENT: Final = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d:\d\d:\d\d(?:\.\d+)?))?([+-]\d\d(?::\d\d){0,2})?( BC)?"
)
_INTERVAL: Final = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)((?:\.\d+)?))?"
)
_ERA_YEARS: Final = 400  # after which the calendar repeats itself, days of the week included
_PINNED_CAST: Final = "::pg_catalog.text"  # differs from the output function (postgresql/values)
_DECLARATION: Final = re.compile(r"<\?xml[^>]*\?>")


class PostgresqlValues(OwnValues):
    """Read as psycopg does.

    Args:
        read_keys: that of the session.
        connection: its connection.
        reading: puts a savepoint around a read, and translates errors.
        silence_s: how long a statement may be silent.
        prepare: lets two scans begin at the same place.
    """

    place = "%s"
    equals = "OPERATOR(pg_catalog.=)"
    at_least = "OPERATOR(pg_catalog.>=)"

    def __init__(
        self,
        read_keys: ReadKeys,
        connection: Any,
        reading: Callable[[Relation], AbstractContextManager[None]],
        silence_s: float,
        prepare: Callable[[], None],
    ) -> None:
        self._read_keys, self._connection, self._reading = read_keys, connection, reading
        self._silence_s, self._prepare = silence_s, prepare

    def prepare(self) -> None:
        self._prepare()

    def can_name(self, shape: Shape) -> bool:
        plan = plan_of(shape)
        plain = zip(shape.recipe.key, plan.reads, plan.forms, strict=False)
        return all(
            read == quote(c.name) and form not in {"json", "enum"} for c, read, form in plain
        )

    def text(self, sql: str) -> str:
        return super().text(sql.replace("%", "%%"))

    def fetch(self, shape: Shape, sql: str, values: Sequence[object], most: int) -> list[DriverKey]:
        connection, answer_s = self._connection, self._connection.answer_s
        with self._reading(shape.relation), foreseen("psycopg", psycopg.Error):
            cursor = connection.cursor()
            for info in postgres.types:
                for oid in (info.oid, info.array_oid):
                    if oid and not (info.name in _LOADED and oid == info.oid):
                        cursor.adapters.register_loader(oid, TextLoader)
            connection.answer_s = max(answer_s, self._silence_s)
            try:
                return list(cursor.execute(sql, tuple(values)).fetchmany(most))
            finally:
                connection.answer_s = answer_s

    def read(
        self, shape: Shape, keys: Sequence[DriverKey], published: Sequence[Key]
    ) -> Iterator[Rows]:
        del keys
        return self._read_keys(shape, published)

    def indexed(self, shape: Shape) -> list[str]:
        if shape.relation.table is None:
            return []
        table = plan_of(shape).source.removeprefix("ONLY ")
        return beside_key(shape, self.fetch(shape, INDEXED, [table], COLUMNS_MAX))

    def statements(self, shape: Shape) -> list[str]:
        return [INDEXED, *super().statements(shape)]

    def bindable(self, value: Any) -> Any:
        # As text without a type, which becomes a value of the column's.
        return value if isinstance(value, bytes) else str(value)

    def plain(self, shape: Shape, number: int, value: Any, published: str | None) -> Any:
        plan, kind = plan_of(shape), shape.recipe.columns[number].type.kind
        if plan.forms[number] == "money":
            return _money(value, shape.recipe.columns[number].type.scale or 0)
        if kind in {"date", "timestamp", "timestamptz"}:
            return _moment(value)
        if kind == "timetz":
            return _zoned(value)
        if kind == "interval":
            return _interval(value)
        if kind == "bool":
            return value == "t"
        if plan.reads[number].endswith(_PINNED_CAST) and published is not None:
            return _as_cast(value, published)
        return value


def _as_cast(value: str, published: str) -> str:
    """Return the text of an output function as a cast to text writes the same value."""
    if published in {"true", "false"}:
        return {"t": "true", "f": "false"}.get(value, value)
    if published in {f"{value}/32", f"{value}/128"} and "/" not in value:
        return published
    if _DECLARATION.sub("", published, count=1) == value:
        return published
    return value


def _money(text: str, decimals: int) -> Decimal:
    digits = int("".join(filter(str.isdecimal, text)))
    return Decimal(-digits if "-" in text or "(" in text else digits).scaleb(-decimals)


def _moment(text: str) -> str:
    """Return a date or a time of day of it with the year as the protocol has it, in UTC."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return text  # infinity
    year, month, day, clock, zone, before = match.groups()
    number = 1 - int(year) if before else int(year)
    if zone is None:
        return f"{_year(number)}-{month}-{day}" + (f" {clock}" if clock else "")
    near = number % _ERA_YEARS + 5 * _ERA_YEARS
    offset = zone + ":00" * (zone.count(":") == 0)
    local = dt.datetime.fromisoformat(f"{near:04d}-{month}-{day} {clock}{offset}")
    utc = local.astimezone(dt.UTC).replace(tzinfo=None)
    rest = utc.isoformat(sep=" ")[4:]
    return f"{_year(number + utc.year - near)}{rest}+00"


def _year(number: int) -> str:
    return f"{'-' if number < 0 else ''}{abs(number):04d}"


def _zoned(text: str) -> str:
    """Return a time of day with the minutes of its zone."""
    at = max(text.rfind("+"), text.rfind("-"))
    zone = text[at:]
    return text[:at] + (zone if ":" in zone else f"{zone}:00")


def _interval(text: str) -> str:
    if text in {"infinity", "-infinity"}:
        return text
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise NotComparable("an interval in a form that is not known here")
    years, months, days, sign, hours, minutes, seconds, fraction = match.groups()
    whole = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    minus = "-" if sign == "-" else ""
    total = int(years or 0) * 12 + int(months or 0)
    return f"P{total}M{int(days or 0)}DT{minus}{whole}{fraction or ''}S"
