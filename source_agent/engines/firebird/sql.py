"""Firebird: the statements of a session, and the SELECTs of a relation. No I/O, no values.

Names of the catalogue are CHAR(31), padded with blanks; whoever reads them strips these.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.firebird import settings
from source_agent.engines.relations.select import quote, select_sql
from source_agent.engines.relations.shapes import Shape
from source_agent.engines.rights import firebird as rights

RANGES_PER_SELECT: Final = 100  # the last is repeated, so the text is always the same

TABLES: Final = """SELECT RDB$RELATION_NAME, RDB$EXTERNAL_FILE, IIF(RDB$VIEW_BLR IS NULL, 0, 1)
FROM RDB$RELATIONS
WHERE COALESCE(RDB$SYSTEM_FLAG, 0) = 0 ORDER BY 1"""
COLUMNS: Final = """SELECT r.RDB$FIELD_NAME, f.RDB$FIELD_TYPE, COALESCE(f.RDB$FIELD_SUB_TYPE, 0),
    f.RDB$FIELD_PRECISION, COALESCE(f.RDB$FIELD_SCALE, 0), COALESCE(f.RDB$CHARACTER_LENGTH, 0),
    COALESCE(f.RDB$CHARACTER_SET_ID, 0), COALESCE(r.RDB$NULL_FLAG, f.RDB$NULL_FLAG, 0),
    f.RDB$DIMENSIONS
FROM RDB$RELATION_FIELDS r JOIN RDB$FIELDS f ON f.RDB$FIELD_NAME = r.RDB$FIELD_SOURCE
WHERE r.RDB$RELATION_NAME = ? ORDER BY r.RDB$FIELD_POSITION"""
PRIMARY: Final = """SELECT s.RDB$FIELD_NAME FROM RDB$RELATION_CONSTRAINTS c
JOIN RDB$INDEX_SEGMENTS s ON s.RDB$INDEX_NAME = c.RDB$INDEX_NAME
WHERE c.RDB$RELATION_NAME = ? AND c.RDB$CONSTRAINT_TYPE = 'PRIMARY KEY'
ORDER BY s.RDB$FIELD_POSITION"""
STATEMENTS: Final = (*settings.STATEMENTS, TABLES, COLUMNS, PRIMARY, *rights.STATEMENTS)


def ordered_sql(shape: Shape) -> str:
    """Return the SELECT of all rows by the integer key, sorted: an index over BIGINT is in a wrong
    order (see `session`)."""
    return select_sql(shape, tail=f"\nORDER BY {quote(shape.recipe.columns[0].name)} + 0")


def null_sql(shape: Shape) -> str:
    """Return the SELECT of one row whose key, of one column, is NULL."""
    return select_sql(shape, f"{quote(shape.recipe.columns[0].name)} IS NULL", tail="\nROWS 1")


def range_sql(shape: Shape) -> str:
    """Return the SELECT of the rows in RANGES_PER_SELECT ranges of keys, and of so many at most."""
    one = f"{quote(shape.recipe.columns[0].name)} BETWEEN ? AND ?"
    return select_sql(shape, f"({' OR '.join([one] * RANGES_PER_SELECT)})", tail="\nROWS ?")


def described_sql(shape: Shape) -> str:
    """Return a SELECT of no row, which compiles `where` and whatever a view calls."""
    return select_sql(shape, "1 = 0")


def templates(shape: Shape) -> list[str]:
    """Return the SQL texts about one relation, for `Engine.templates`."""
    source = f"SELECT * FROM {shape.plan.source if shape.plan else ''} WHERE 1 = 0"
    texts = [select_sql(shape), described_sql(shape), source]
    if shape.recipe.integer_key:
        texts += [ordered_sql(shape), null_sql(shape), range_sql(shape)]
    return texts
