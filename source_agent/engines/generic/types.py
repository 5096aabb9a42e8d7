"""Generic: from a relation and SQLAlchemy's inspector to a `Shape`; what each type is read as.

Taken are types whose values SQLAlchemy's dialects give without loss: integers, decimals of known
scale, text, bytes, dates, truth values, and timestamps to the microsecond. All others are refused
by name; `as_text` reads what the driver shows.

The inspector knows no types of a query, so the DBA declares them (`types`). All integers are int8:
the classes of SQLAlchemy do not say how wide a dialect's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from driftline.values.types import DeclaredType
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql
from sqlalchemy.engine.interfaces import ReflectedColumn

from source_agent.engines.generic.dialects import DialectEntry
from source_agent.engines.relations.select import (
    ALIAS,
    Access,
    ReadColumn,
    arrange,
    declared,
    each_column,
    refused_type,
    select_sql,
    shape,
    split_name,
    unknown_table,
)
from source_agent.engines.relations.shapes import Consistency, Relation, Shape

NUMERIC_DIGITS_MAX: Final = 38
MICROSECONDS: Final = 6  # digits of a second that the protocol holds
_FINER: Final = frozenset({"DATETIME2", "DATETIMEOFFSET"})  # 7 digits, unless they say otherwise
_FORMS: Final = {
    "int2": "integer",
    "int4": "integer",
    "int8": "integer",
    "numeric": "decimal",
    "text": "text",
    "bytea": "bytes",
    "bool": "bool",
    "date": "date",
    "timestamp": "timestamp",
}


@dataclass(frozen=True, slots=True)
class InspectedColumn:
    """A column: what the inspector says, and the driver's precision and scale, if it has any."""

    name: str
    type: sql.TypeEngine[Any] | None
    precision: int | None = None
    scale: int | None = None


class GenericCatalogue(Protocol):
    """The part of a session that describing asks."""

    entry: DialectEntry

    def tables(self, schema: str | None) -> list[str]:
        """Return the names of tables and views."""

    def columns(self, name: str, schema: str | None) -> list[ReflectedColumn]:
        """Return the columns of a table."""

    def primary_key(self, name: str, schema: str | None) -> list[str]:
        """Return the columns of the primary key."""

    def quote(self, name: str) -> str:
        """Return a name as the inspector gave it, quoted for the database."""

    def escape(self, text: str) -> str:
        """Return the DBA's SQL with what the driver would take for a placeholder escaped."""

    def row_description(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return the driver's description of a statement's columns."""


def describe(catalogue: GenericCatalogue, relation: Relation) -> Shape:
    """Return the shape of a relation.

    Raises:
        ConfigurationError: see `Session.describe`.
    """
    primary: Sequence[str] = ()
    reflected: dict[str, ReflectedColumn] = {}
    if relation.table is None:
        query = catalogue.escape((relation.query or "").strip().rstrip(";").rstrip())
        source = f"(\n{query}\n) {ALIAS}"
    else:
        *schemas, name = split_name(relation.table)
        schema = schemas[0] if schemas else None
        known = catalogue.tables(schema) if len(schemas) < 2 else []
        if name not in known:
            raise unknown_table(relation, known)
        source = ".".join(map(catalogue.quote, [*schemas, name]))
        reflected = {column["name"]: column for column in catalogue.columns(name, schema)}
        primary = catalogue.primary_key(name, schema)
    described = _columns(catalogue, source, reflected)
    names = [column.name for column in described]
    order = arrange(relation, names, primary)
    by_name = {column.name: column for column in described}

    def read(relation: Relation, column: InspectedColumn) -> ReadColumn:
        return _read(relation, column, catalogue)

    columns = each_column(relation, [by_name[name] for name in order.names], read)
    is_key = bool(primary) and set(primary) <= set(order.key)
    exactness = Consistency.EXACT if catalogue.entry.snapshot else Consistency.FUZZY
    access = Access(
        source, vouched=is_key, indexed=is_key and len(order.key) == 1, consistency=exactness
    )
    made = shape(_escaped(relation, catalogue), names, order, columns, access)
    catalogue.row_description(select_sql(made, "1 = 0"))  # binds `where`
    return made


def _escaped(relation: Relation, catalogue: GenericCatalogue) -> Relation:
    return replace(relation, where=catalogue.escape(relation.where)) if relation.where else relation


def _columns(
    catalogue: GenericCatalogue, source: str, reflected: dict[str, ReflectedColumn]
) -> list[InspectedColumn]:
    """Return the columns as the catalogue and the driver describe them."""
    wanted = ", ".join(map(catalogue.quote, reflected)) or "*"
    said = catalogue.row_description(f"SELECT {wanted}\nFROM {source}\nWHERE 1 = 0")
    if not reflected:
        return [InspectedColumn(str(column[0]), None) for column in said]
    return [
        InspectedColumn(name, column["type"], shown[4], shown[5])
        for (name, column), shown in zip(reflected.items(), said, strict=True)
    ]


def _read(relation: Relation, column: InspectedColumn, catalogue: GenericCatalogue) -> ReadColumn:
    """Return how a column is read; it is nullable: a dialect tells what is declared, and not what
    its database enforces."""
    expression = catalogue.quote(column.name)
    if why := _zone(column.type):
        remedy = "Publish a view that casts it to text in UTC."
        raise refused_type(relation, column.name, f"has the type {column.type!r}{why}", remedy)
    if getattr(column.type, "__visit_name__", "").upper() == "INTERVAL":
        what = f"has the type {column.type!r}, whose months a driver may show as days"
        raise refused_type(relation, column.name, what, "Publish a view that casts it to text.")
    if column.name in relation.as_text:
        return ReadColumn(column.name, DeclaredType("text"), expression, "shown")
    remedy = f'Set as_text = ["{column.name}"], or publish a view that casts it.'
    if (given := declared(relation, column.name)) is not None:
        if column.type is not None:
            what = "has a type that the database knows; `types` is for queries"
            raise refused_type(relation, column.name, what, "Remove it from `types`.")
        form = _FORMS.get(given.kind, "")
        if not form or (given.kind == "numeric" and given.precision is None):
            what = f"cannot be declared as {given}: a driver may not give it without loss"
            raise refused_type(relation, column.name, what, remedy)
        return ReadColumn(column.name, given, expression, form)
    if column.type is None:
        what = "is of a query, whose types nobody knows"
        where = f'Declare it: types = {{"{column.name}" = "…"}}, or {remedy[0].lower()}{remedy[1:]}'
        raise refused_type(relation, column.name, what, where)
    if isinstance(column.type, sql.Float) and catalogue.entry.float_text:
        text = catalogue.entry.float_text.format(column=expression)
        return ReadColumn(column.name, DeclaredType("float8"), text, "float text")
    type, why = _declared(column)
    if type is None:
        raise refused_type(relation, column.name, f"has the type {column.type!r}{why}", remedy)
    return ReadColumn(column.name, type, expression, _FORMS[type.kind])


def _declared(column: InspectedColumn) -> tuple[DeclaredType | None, str]:
    """Return the declared type of a column; or None, and why it has none."""
    match column.type:
        case sql.Boolean():
            return DeclaredType("bool"), ""
        case sql.Integer():
            return DeclaredType("int8"), ""
        case sql.Float():
            return None, ", whose text of 17 digits is not known"
        case sql.Numeric():
            return _decimal(column, column.type)
        case sql.JSON():
            return None, ""
        case sql.String():
            return DeclaredType("text"), ""
        case sql.LargeBinary() | sql.BINARY() | sql.VARBINARY():
            return DeclaredType("bytea"), ""
        case sql.DateTime():
            return _timestamp(column.type)
        case sql.Date():
            return DeclaredType("date"), ""
    return None, ""


def _decimal(column: InspectedColumn, type: sql.Numeric[Any]) -> tuple[DeclaredType | None, str]:
    """Return a decimal type; the driver's description completes or contradicts the catalogue."""
    scale = type.scale if type.scale is not None else column.scale
    precision = type.precision if type.precision is not None else column.precision
    if precision is None or scale is None:
        return None, " without precision and scale"
    if column.scale is not None and abs(column.scale) != abs(scale):
        return None, f", and the driver says that its scale is {abs(column.scale)}, not {scale}"
    scale = abs(scale)  # some drivers give it as a power of ten
    if not 1 <= precision <= NUMERIC_DIGITS_MAX or scale > precision:
        return None, f", beyond {NUMERIC_DIGITS_MAX} digits"
    return DeclaredType("numeric", precision, scale), ""


def _zone(type: sql.TypeEngine[Any] | None) -> str:
    """Return why what a driver shows of a time may not tell two instants apart; empty: it does."""
    if not isinstance(type, sql.DateTime | sql.Time):
        return ""
    if type.timezone or type.__visit_name__.upper() == "DATETIMEOFFSET":
        return " with a zone, which a driver may lose"
    if isinstance(type, mysql.TIMESTAMP) or getattr(type, "local_timezone", False):
        return ", shown in the zone of the session, where an hour comes twice in autumn"
    return ""


def _timestamp(type: sql.DateTime) -> tuple[DeclaredType | None, str]:
    digits = getattr(type, "precision", None)
    if digits is None:
        digits = getattr(type, "fsp", None)
    name = type.__visit_name__.upper()
    if (digits if digits is not None else MICROSECONDS + (name in _FINER)) > MICROSECONDS:
        return None, ", finer than a microsecond"
    return DeclaredType("timestamp"), ""
