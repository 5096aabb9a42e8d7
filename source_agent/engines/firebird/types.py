"""Firebird: from a relation and the catalogue (`RDB$FIELDS`) to a `Shape`.

The types of a table are those of the catalogue, those of a query those of its description, which
has no precision of decimals.

CHAR(n) is text of n characters, with its blanks, CHAR(n) CHARACTER SET OCTETS n bytes, with its
zeros: the database cannot tell them from shorter ones. Text of character set NONE is read as bytes
and must be UTF-8; text of any other set than UTF8 is decoded here (`charsets`). A DECIMAL may hold
more digits than it declares: such a value is refused. INT128 is a decimal of 38 digits. Times with
a zone and DECFLOAT are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from driftline.values.types import DeclaredType

from source_agent.engines.firebird import charsets
from source_agent.engines.firebird.charsets import CODECS, NONE, OCTETS, UTF8
from source_agent.engines.firebird.sql import COLUMNS, PRIMARY, TABLES, described_sql
from source_agent.engines.relations.select import (
    Access,
    ReadColumn,
    arrange,
    derived_table,
    each_column,
    quote,
    refuse_types,
    refused_type,
    shape,
    split_name,
    unknown_table,
)
from source_agent.engines.relations.shapes import Consistency, Relation, Shape

# Numbers of RDB$FIELD_TYPE: the integer, and the digits that it holds.
_INTEGERS: Final = {
    7: ("int2", 5),
    8: ("int4", 10),
    16: ("int8", 19),
    26: ("", 38),  # INT128: there is no such type, so it is a decimal
}
_DOUBLE: Final = 27
_CHAR, _VARCHAR, _BLOB, _TEXT_BLOB = 14, 37, 261, 1
_BINARY: Final = "BLOB SUB_TYPE BINARY"
_ZONED: Final = frozenset({28, 29, 30, 31})  # TIME and TIMESTAMP, and their extended forms
_NAMES: Final[Mapping[int, str]] = {24: "DECFLOAT(16)", 25: "DECFLOAT(34)"}  # of refused types
_PLAIN: Final[Mapping[int, tuple[str, str]]] = {
    10: ("float4", "single"),
    _DOUBLE: ("float8", "double"),
    12: ("date", "date"),
    13: ("time", "time"),
    35: ("timestamp", "timestamp"),
    23: ("bool", "bool"),
}
_CHARACTER_BYTES: Final = {UTF8: 4} | {number: size for number, (_, size) in CODECS.items()}
_BY_DATATYPE: Final = {
    "SHORT": 7, "LONG": 8, "INT64": 16, "INT128": 26, "FLOAT": 10, "DOUBLE": _DOUBLE, "DEC16": 24,
    "DEC34": 25, "DATE": 12, "TIME": 13, "TIMESTAMP": 35, "BOOLEAN": 23, "TIME_TZ": 28,
    "TIMESTAMP_TZ": 29, "TIME_TZ_EX": 30, "TIMESTAMP_TZ_EX": 31, "TEXT": _CHAR,
    "VARYING": _VARCHAR, "BLOB": _BLOB,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FirebirdColumn:
    """A column as the catalogue has it; `characters` and `charset` are those of text."""

    name: str
    type: int
    sub_type: int = 0
    precision: int = 0
    scale: int = 0
    characters: int = 0
    charset: int = -1
    not_null: bool = False
    is_array: bool = False


class FirebirdCatalogue(Protocol):
    """The part of a session that describing asks."""

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""

    def row_description(self, sql: str) -> Sequence[Any]:
        """Return the driver's description of a statement's columns."""


def describe(session: FirebirdCatalogue, relation: Relation) -> Shape:
    """Return the shape of a relation. Raises ConfigurationError; see `Session.describe`."""
    refuse_types(relation, "Firebird")
    primary: list[str] = []
    exactness = Consistency.EXACT
    if relation.table is None:
        source = derived_table(relation)
        said = session.row_description(f"SELECT * FROM {source} WHERE 1 = 0")
        fields = [_of_description(column) for column in said]
    else:
        parts = split_name(relation.table)
        known = {name.rstrip(): more for name, *more in session.ask(TABLES)}
        if len(parts) != 1 or parts[0] not in known:
            raise unknown_table(relation, list(known))
        source = quote(parts[0])
        file, is_view = known[parts[0]]
        if file is not None:
            exactness = Consistency.FUZZY  # the rows of an external table are a file
        is_stored = file is None and not is_view
        rows = session.ask(COLUMNS, parts[0])
        fields = [_of_catalogue(row, is_stored=is_stored) for row in rows]
        primary = [name.rstrip() for (name,) in session.ask(PRIMARY, parts[0])]
    names = [field.name for field in fields]
    order = arrange(relation, names, primary)
    by_name = {field.name: field for field in fields}
    columns = each_column(relation, [by_name[name] for name in order.names], _column)
    is_key = bool(primary) and set(primary) <= set(order.key)
    access = Access(
        source, vouched=is_key, indexed=is_key and len(order.key) == 1, consistency=exactness
    )
    made = shape(relation, names, order, columns, access)
    session.row_description(described_sql(made))
    return made


def _of_catalogue(row: tuple[Any, ...], *, is_stored: bool) -> FirebirdColumn:
    """Return a column of a table or a view, whose outer join makes NULLs of any column."""
    name, type_, sub_type, precision, scale, characters, charset, null_flag, dimensions = row
    return FirebirdColumn(
        name.rstrip(),
        type_,
        sub_type,
        precision or 0,
        scale,
        characters,
        charset,
        not_null=bool(null_flag) and is_stored,
        is_array=bool(dimensions),
    )


def _of_description(column: Any) -> FirebirdColumn:
    """Return a column of a query, from the driver's metadata of the statement (ItemMetadata).

    It has no precision: a decimal gets the digits that its storage holds.
    """
    kind = _BY_DATATYPE.get(column.datatype.name, 0)
    is_text = kind in {_CHAR, _VARCHAR}
    width = _CHARACTER_BYTES.get(column.charset, 1) if is_text else 1
    return FirebirdColumn(
        column.alias or column.field,
        kind,
        0 if is_text else column.subtype,
        scale=column.scale if kind in _INTEGERS or kind == _DOUBLE else 0,
        characters=column.length // width,
        charset=column.charset,
        is_array=column.datatype.name == "ARRAY",
    )


def _column(relation: Relation, field: FirebirdColumn) -> ReadColumn:
    name, what = quote(field.name), ""
    if _is_text(field) and field.charset not in {OCTETS, UTF8}:
        # The driver would decode it as the connection's character set, and the server lose bytes.
        size = field.characters * _CHARACTER_BYTES.get(field.charset, 1)
        octets = f"VARCHAR({size}) CHARACTER SET OCTETS"
        name = f"CAST({name} AS {_BINARY if field.type == _BLOB else octets})"
        if field.type == _BLOB and field.charset != NONE:
            # A new value, whose length is that of the bytes which are sent.
            name = f"{name} || CAST('' AS {_BINARY})"
        if field.charset not in {NONE, *CODECS}:
            what = "is text in a character set that is not decoded here"
    if field.type in _ZONED:
        what = "has a time zone, which the driver loses"
        remedy = (
            "Publish a query that casts it twice: CAST(… AS VARCHAR(60)) shows the zone, "
            "CAST(… AT TIME ZONE 'UTC' AS VARCHAR(60)) the instant."
        )
        raise refused_type(relation, field.name, what, remedy)
    if field.is_array:
        remedy = f"Publish a query that selects its elements, such as {name}[1]."
        raise refused_type(relation, field.name, "is an array", remedy)
    if field.name in relation.as_text:
        return ReadColumn(field.name, DeclaredType("text"), name, "shown", not field.not_null)
    type, form = _read(field)
    if what or not form:
        what = what or f"has {_refused(field)}, whose values are not read without loss"
        remedy = f'Set as_text = ["{field.name}"], or publish a query with CAST.'
        raise refused_type(relation, field.name, what, remedy)
    return ReadColumn(field.name, type, name, form, nullable=not field.not_null)


def _refused(field: FirebirdColumn) -> str:
    """Return the name of a type that is not read."""
    if field.type == _BLOB:
        return f"the type BLOB SUB_TYPE {field.sub_type}"
    if field.type == _DOUBLE:
        return "decimals of dialect 1, which are rounded doubles"
    return f"the type {_NAMES.get(field.type, f'number {field.type} of Firebird')}"


def _is_text(field: FirebirdColumn) -> bool:
    return field.type in {_CHAR, _VARCHAR} or (field.type == _BLOB and field.sub_type == _TEXT_BLOB)


def _text_form(field: FirebirdColumn) -> str:
    if field.charset == NONE:
        return "utf-8"
    return charsets.form(field.charset) if field.charset in CODECS else "text"


def _read(field: FirebirdColumn) -> tuple[DeclaredType, str]:
    """Return the declared type of a column and its form; an empty form: it is not read."""
    if field.type in _INTEGERS:
        kind, digits = _INTEGERS[field.type]
        if field.scale or field.sub_type or not kind:
            precision = field.precision or digits
            return DeclaredType("numeric", precision, -field.scale), "decimal"
        return DeclaredType(kind), "integer"
    if field.type in _PLAIN:
        kind, form = _PLAIN[field.type]
        is_old_decimal = field.type == _DOUBLE and field.scale  # of dialect 1: a rounded double
        return DeclaredType(kind), "" if is_old_decimal else form
    if field.type in {_CHAR, _VARCHAR}:
        if field.charset == OCTETS:
            return DeclaredType("bytea"), "bytes"
        return DeclaredType("text"), _text_form(field)
    if field.type == _BLOB and field.sub_type in {0, _TEXT_BLOB}:
        if field.sub_type == _TEXT_BLOB:
            return DeclaredType("text"), _text_form(field)
        return DeclaredType("bytea"), "bytes"
    return DeclaredType("text"), ""
