"""PostgreSQL: how each type is read.

What the protocol declares is read in its own binary send format, at no cost; everything else as
text, by the type's own output function.

Invariants: the read expression of a type is lossless under `postgresql_settings.SETTINGS`. Two of
them change a value: floats have one NaN left, `money` becomes the numeric that it prints as. No
expression uses a cast that somebody can create: `::text` of a type may be a function of its
owner's, which may round (docs/types.md, "Objects that the source's owner can create"). What is
named is in pg_catalog, where only a superuser can create anything.

Rejected: reading arrays, composites and ranges in binary. Their bytes hold OIDs, which differ
between two databases with the same content, and after every dump and restore.
Rejected: `format('%s', c)`. It calls the output function as well, but looks it up for each row.
"""

from __future__ import annotations

from typing import Final

from driftline.types import DeclaredType

from source_agent.engines.relations import ReadColumn, quote

# OIDs of pg_type.dat, fixed since each type exists. Values: declared kind.
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
_NUMERIC, _MONEY = 1700, 790
# Casts to text of PostgreSQL's own, which the server refuses to drop or to replace. Their text is
# not that of the output function: bool 'true', inet with its mask, xml with its declaration.
_PINNED_CASTS: Final = {16, 142, 650, 869}  # bool, xml, cidr, inet
# The text that a type's output function makes. `concat` calls it and nothing else, but makes an
# empty text of NULL; a composite whose fields are all NULL is no NULL, though it `IS NULL`.
OUTPUT_TEXT: Final = (
    "CASE WHEN pg_catalog.num_nulls({0}) OPERATOR(pg_catalog.=) 0 THEN pg_catalog.concat({0}) END"
)
# Sent as text, but not by way of a cast to it, which cuts off padding or may be the owner's own.
_FORMS: Final = {114: "json", 1042: "bpchar"}
_MONEY_TYPE: Final = DeclaredType("numeric", 19, 2)  # all of int64, with the 2 decimals of C


def column(name: str, oid: int, modifier: int, kind: tuple[str, str], as_text: bool) -> ReadColumn:
    """Return a column with its read expression.

    Args:
        oid, modifier: of its type, domains resolved.
        kind: `typtype` and name of the type, where it is not native.
        as_text: the DBA asks for text.
    """
    quoted = quote(name)
    text = DeclaredType("text")
    if oid in NATIVE and (NATIVE[oid] == "text" or not as_text):
        return ReadColumn(name, DeclaredType(NATIVE[oid]), quoted, _FORMS.get(oid, ""))
    if kind[0] == "e":
        return ReadColumn(name, text, quoted, "enum")  # whose binary form is its label
    if oid in FLOATS:
        declared = FLOATS[oid]
        nan = f"'NaN'::pg_catalog.{declared}"
        read = f"CASE WHEN {quoted} OPERATOR(pg_catalog.=) {nan} THEN {nan} ELSE {quoted} END"
        if not as_text:
            return ReadColumn(name, DeclaredType(declared), read)
    if oid == _NUMERIC and not as_text:
        return ReadColumn(name, _numeric(modifier), quoted)
    if oid == _MONEY and not as_text:
        return ReadColumn(name, _MONEY_TYPE, f"{quoted}::pg_catalog.numeric(19,2)", "money")
    note = "" if as_text else f"of type {kind[1]}, read as PostgreSQL's text"
    read = f"{quoted}::pg_catalog.text" if oid in _PINNED_CASTS else OUTPUT_TEXT.format(quoted)
    return ReadColumn(name, text, read, note=note)


def _numeric(modifier: int) -> DeclaredType:
    """numeric.c: ((precision << 16) | (scale & 0x7ff)) + 4, the scale signed in 11 bits."""
    if modifier >= 4:
        precision = (modifier - 4) >> 16 & 0xFFFF
        scale = ((modifier - 4 & 0x7FF) ^ 1024) - 1024
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return DeclaredType("numeric", precision, scale)
    return DeclaredType("numeric")
