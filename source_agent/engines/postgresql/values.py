"""PostgreSQL: how each type is read, and how a derivation compares it.

A type that the protocol declares is read in its own binary send form, at no cost; every other type
as text, by its own output function.

Invariants: the read expression of a type is lossless under `settings.SETTINGS`; floats keep one
NaN, and `money` becomes the numeric that it is in this session. No expression uses a cast
that a user can create and that may round (docs/types.md#objects-that-the-sources-owner-can-create).
All names are in pg_catalog, where only a superuser can create objects.

A literal is the value of a setting, because COPY takes no parameters. A subquery reads it once for
a statement, not once for a row. Text is compared under the collation "C", by its bytes: so are
columns whose collation is not deterministic, or sorts by a language's rules.

Rejected: arrays, composites and ranges in binary. Their bytes hold OIDs, which differ between two
databases with the same content. `format('%s', c)`, which looks up the output function for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from driftline.errors import OPEN, ConfigurationError
from driftline.relations.derivations import ColumnPredicate, Comparable, Operator
from driftline.values.types import Column, DeclaredType

from source_agent.engines.interface import Ask
from source_agent.engines.postgresql import settings
from source_agent.engines.relations.select import ReadColumn, quote
from source_agent.engines.relations.shapes import Condition, Relation

# OIDs of pg_type.dat, which never change, and the declared kind of each.
NATIVE: Final = {
    16: "bool",
    17: "bytea",
    19: "text",  # name
    20: "int8",
    21: "int2",
    23: "int4",
    25: "text",
    26: "oid",
    114: "text",  # json: kept as it was written
    1042: "text",  # bpchar, padding included
    1043: "text",  # varchar
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamptz",
    1186: "interval",
    1266: "timetz",
    2950: "uuid",
    3802: "jsonb",
}
FLOATS: Final = {700: "float4", 701: "float8"}
_AMBIGUOUS: Final = (24, 2203)  # regproc, regoper: one text for several values
_NUMERIC, _MONEY = 1700, 790
# Types with a built-in cast to text, which the server refuses to drop or replace. The cast's text
# differs from that of the output function: bool 'true', inet with its mask, xml with declaration.
_PINNED_CASTS: Final = {16, 142, 650, 869}  # bool, xml, cidr, inet
# The text of a type's output function. `concat` calls it and nothing else, but turns NULL into an
# empty text. `num_nulls`, unlike `IS NULL`, is 0 for a composite whose fields are all NULL.
OUTPUT_TEXT: Final = (
    "CASE WHEN pg_catalog.num_nulls({0}) OPERATOR(pg_catalog.=) 0 THEN pg_catalog.concat({0}) END"
)
# Sent as text, but not by a cast to text, which removes padding or may be the owner's own.
_FORMS: Final = {114: "json", 1042: "bpchar"}
_COMPARED: Final = {20, 21, 23, 25, 1043, 1082, 1114}  # by OID; and numeric(p,s)
_DATED: Final = {"date", "timestamp", "timestamptz"}
_MONEY_DIGITS: Final = 19  # of an int64
_FIRST_OWN_OID: Final = 16_384  # FirstNormalObjectId: of what a database adds to its catalogue
TYPES = """
SELECT t.oid, t.typtype::pg_catalog.text, pg_catalog.format_type(t.oid, NULL)
FROM pg_catalog.pg_type t WHERE t.oid = ANY(%s::pg_catalog.oid[])"""
# Types of columns that are, or hold, one of some types: as domain, element, field or bound.
HOLDING = """
WITH RECURSIVE part(given, oid) AS (
  SELECT given.oid, given.oid FROM pg_catalog.unnest(%s::pg_catalog.oid[]) AS given(oid)
  UNION
  SELECT part.given, inside.oid FROM part
  JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) part.oid
  CROSS JOIN LATERAL (
    SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL
    SELECT a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid OPERATOR(pg_catalog.=) t.typrelid AND a.attnum OPERATOR(pg_catalog.>) 0
    UNION ALL
    SELECT r.rngsubtype FROM pg_catalog.pg_range r
    WHERE t.oid OPERATOR(pg_catalog.=) r.rngtypid
       OR t.oid::pg_catalog.text OPERATOR(pg_catalog.=)
            (pg_catalog.to_jsonb(r) OPERATOR(pg_catalog.->>) 'rngmultitypid')  -- PostgreSQL 14
  ) AS inside(oid))
SELECT part.given, part.oid FROM part
WHERE part.oid OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.oid[])"""
CATALOGUE: Final = (TYPES, HOLDING)


def read_columns(
    ask: Ask,
    relation: Relation,
    described: Sequence[tuple[str, int, int]],
    decimals_as: Callable[[str], int | None],
) -> list[ReadColumn]:
    """Return the columns of a relation with their read expressions.

    Args:
        described: name, type OID and modifier of each, with domains resolved.
        decimals_as: see `settings.decimals`.

    Raises:
        ConfigurationError: the value of a column cannot be told.
    """
    others = [oid for _, oid, _ in described if oid not in NATIVE and oid not in FLOATS]
    kinds = {oid: (kind, name) for oid, kind, name in ask(TYPES, others)} if others else {}
    held = ask(HOLDING, others, [_MONEY, *_AMBIGUOUS]) if others else []
    _refuse_ambiguous(relation, described, {given for given, oid in held if oid != _MONEY})
    decimals, note = 2, ""
    if any(oid == _MONEY for _, oid in held):
        decimals, note = settings.decimals(ask, relation, decimals_as)
    columns = [
        column(name, oid, modifier, kinds.get(oid, ("b", "?")), name in relation.as_text, decimals)
        for name, oid, modifier in described
    ]
    return [replace(f, note=note) if f.form == "money" else f for f in columns]


def _refuse_ambiguous(
    relation: Relation, described: Sequence[tuple[str, int, int]], oids: set[int]
) -> None:
    """Raise ConfigurationError for columns of types whose text has one name for several values."""
    if names := [name for name, oid, _ in described if oid in oids]:
        raise ConfigurationError(
            f"{', '.join(names)}: regproc and regoper show one name for functions and operators"
            " that differ in their arguments.",
            remedy="Leave them out with `columns`, or publish a query: col::regprocedure,"
            " col::regoperator.",
            where=relation.name,
            abroad=OPEN,
        )


def column(
    name: str, oid: int, modifier: int, kind: tuple[str, str], as_text: bool, decimals: int = 2
) -> ReadColumn:
    """Return a column with its read expression, and how it may be compared.

    Args:
        oid, modifier: of its type, with domains resolved.
        kind: `typtype` and name of a type that is not native.
        as_text: the DBA wants it as text.
        decimals: of a money.
    """
    reading = _read(name, oid, modifier, kind, as_text)
    if oid == _MONEY and not as_text:
        type = DeclaredType("numeric", _MONEY_DIGITS, decimals)
        read = f"{quote(name)}::pg_catalog.numeric({_MONEY_DIGITS},{decimals})"
        return ReadColumn(name, type, read, "money")
    is_number = oid == _NUMERIC and reading.type.precision is not None
    if reading.read == quote(name) and (oid in _COMPARED or is_number):
        return replace(reading, comparable=Comparable.ORDER)
    return reading


def _read(name: str, oid: int, modifier: int, kind: tuple[str, str], as_text: bool) -> ReadColumn:
    quoted = quote(name)
    text = DeclaredType("text")
    if oid in NATIVE and (NATIVE[oid] == "text" or not as_text):
        return ReadColumn(name, DeclaredType(NATIVE[oid]), quoted, _FORMS.get(oid, ""))
    if kind[0] == "e":
        return ReadColumn(name, text, quoted, "enum")  # its binary form is its label
    if oid in FLOATS:
        declared = FLOATS[oid]
        nan = f"'NaN'::pg_catalog.{declared}"
        read = f"CASE WHEN {quoted} OPERATOR(pg_catalog.=) {nan} THEN {nan} ELSE {quoted} END"
        if not as_text:
            return ReadColumn(name, DeclaredType(declared), read)
    if oid == _NUMERIC and not as_text:
        return ReadColumn(name, _numeric(modifier), quoted)
    note = "" if as_text else f"of type {kind[1]}, read as PostgreSQL's text"
    is_own = oid >= _FIRST_OWN_OID  # the name of a type may be that of a table or a schema
    read = f"{quoted}::pg_catalog.text" if oid in _PINNED_CASTS else OUTPUT_TEXT.format(quoted)
    return ReadColumn(
        name,
        text,
        read,
        note="" if is_own else note,
        note_local=note if is_own else "",
    )


def is_output(reading: ReadColumn) -> bool:
    """Return True if a column is read by an output function, which may show two values alike.

    An index that tells such values apart does not vouch for the key that is read.
    """
    return reading.read == OUTPUT_TEXT.format(quote(reading.name))


def _numeric(modifier: int) -> DeclaredType:
    """Decode ((precision << 16) | (scale & 0x7ff)) + 4 of numeric.c; the scale is signed."""
    if modifier >= 4:
        precision = (modifier - 4) >> 16 & 0xFFFF
        scale = ((modifier - 4 & 0x7FF) ^ 1024) - 1024
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return DeclaredType("numeric", precision, scale)
    return DeclaredType("numeric")


def sorting(reading: ReadColumn, collation: tuple[str, str, str] | None, encoding: str) -> str:
    """Return how the database sorts a column if not as the protocol does.

    Args:
        reading: a column of a table.
        collation: name, provider and locale of its collation, if it has one.
        encoding: of the database.
    """
    if reading.read != quote(reading.name) or reading.form in {"json", "enum"}:
        return "as a type that is read as text"
    if reading.type.kind != "text":
        return ""
    if collation is None or encoding != "UTF8":
        return f"by the bytes of {encoding}"
    name, provider, locale = collation
    is_bytes = provider == "b" or (provider == "c" and locale in {"C", "POSIX"})
    return "" if is_bytes else f'by the collation "{name}" ({locale}), not by bytes'


def bound(column: Column, form: str, setting: str) -> str:
    """Return the value of a setting as a bound of a key column.

    The planner evaluates it to estimate the rows of a range, unlike a subquery.
    """
    read = f"pg_catalog.current_setting('{setting}')"
    if column.type.kind == "bytea":
        return f"pg_catalog.decode({read}, 'hex')"
    kind = form if form == "bpchar" else column.type.kind
    return f"{read}::pg_catalog.{kind}"


def named(column: Column, form: str, setting: str) -> str:
    """Return the value of a setting, an array's text, as rows of values of a key column."""
    kind = form if form == "bpchar" else column.type.kind
    return f"pg_catalog.unnest(pg_catalog.current_setting('{setting}')::pg_catalog.{kind}[])"


def array_of(column: Column, values: Sequence[str]) -> str:
    """Return values of a key column, in string form, as the text of an array."""
    mark = "\\x" if column.type.kind == "bytea" else ""
    return "{" + ",".join(_element(mark + literal(column, value)) for value in values) + "}"


def literal(column: Column, value: str) -> str:
    """Return a value in string form as PostgreSQL reads it: years before 1 AD have no sign there,
    and there is no year 0."""
    if column.type.kind not in _DATED or not (value[:1] == "-" or value[:4] == "0000"):
        return value
    year, sign, rest = value.removeprefix("-").partition("-")
    return value if not sign else f"{int(year) + 1:04d}-{rest} BC"


def compare(comparison: ColumnPredicate, column: Column, place: str) -> Condition:
    """Return a comparison whose literals are the value of the setting `place`; see `sql.VALUES`."""
    operand, kind, values = _operand(column), column.type.kind, comparison.values
    if comparison.operator is Operator.IS_NULL:
        return Condition(f"{quote(column.name)} IS NULL")
    many = comparison.operator is Operator.IN
    type = f"pg_catalog.{kind}{'[]' if many else ''}"
    read = f"(SELECT pg_catalog.current_setting('driftline.value{place}')::{type})"
    if many:
        array = "{" + ",".join(map(_element, values)) + "}"
        return Condition(f"{operand} OPERATOR(pg_catalog.=) ANY ({read}::{type})", (array,))
    return Condition(f"{operand} OPERATOR(pg_catalog.{comparison.operator.value}) {read}", values)


def within(own: Sequence[Column], other: Sequence[Column], source: str) -> str:
    """Return columns that equal those of a row of a SELECT of others."""
    left, right = (", ".join(map(_operand, columns)) for columns in (own, other))
    row = f"ROW({left})" if len(own) > 1 else f"({left})"
    return f"{row} OPERATOR(pg_catalog.=) ANY (SELECT {right} {source})"


def _operand(column: Column) -> str:
    """Return a column as an operand; text is compared by its bytes."""
    name = quote(column.name)
    is_text = column.type.kind == "text"
    return f'{name}::pg_catalog.text COLLATE pg_catalog."C"' if is_text else name


def _element(value: str) -> str:
    """Return a text as an element of the text of an array."""
    return '"' + value.replace("\\", r"\\").replace('"', r"\"") + '"'
