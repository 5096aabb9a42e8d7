"""What a table holds, in a form that says whether two are equal: rows, and an order-free hash.

PostgreSQL computes it of the source by its own SQL, DuckDB of the files that a tool wrote: MD5 of
each row's text, whose first 60 bits are added up. What a type does not mean is left out of the
text: the blanks that fill a `char(n)`, and digits after a `numeric`'s scale that are zero. A NULL
is told from any text, and a number with other digits than zeros there from the number without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import duckdb
import psycopg
import pyarrow.dataset as arrow

_NULL = r"'\N'"
_DIGITS = 15  # hexadecimal, of 60 bits: they fit a bigint with its sign


class UnequalError(Exception):
    """What a tool wrote is not what the source holds."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows of a table, and the sum of their hashes."""

    rows: int
    hashes: int


def of_source(connection: psycopg.Connection[Any], table: str) -> Contents:
    """Return what a table of PostgreSQL holds."""
    texts = [f"coalesce({name}::text, {_NULL})" for name in columns(connection, table)]
    first = f"substr(md5(concat_ws('|', {', '.join(texts)})), 1, {_DIGITS})"
    found = connection.execute(
        f"SELECT count(*), coalesce(sum(('x' || {first})::bit(60)::bigint), 0) FROM {table}"
    ).fetchone()
    assert found is not None
    return Contents(int(found[0]), int(found[1]))


def of_files(files: arrow.Dataset, types: dict[str, str]) -> Contents:
    """Return what files hold in the columns of `types`, which may have others besides."""
    texts = [f"coalesce({_text(name, kind)}, {_NULL})" for name, kind in types.items()]
    first = f"substr(md5(concat_ws('|', {', '.join(texts)})), 1, {_DIGITS})"
    with duckdb.connect() as database:
        database.register("files", files)
        found = database.execute(
            f"SELECT count(*), coalesce(sum(CAST('0x' || {first} AS BIGINT)), 0) FROM files"
        ).fetchone()
    assert found is not None
    return Contents(int(found[0]), int(found[1]))


def columns(connection: psycopg.Connection[Any], table: str) -> dict[str, str]:
    """Return the types of a table's columns, in its order."""
    found = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table,),
    ).fetchall()
    return {str(name): str(kind) for name, kind in found}


def compare(what: str, written: Contents, source: Contents) -> None:
    """Refuse what is not equal.

    Raises:
        UnequalError: it is not.
    """
    if written != source:
        raise UnequalError(
            f"{what} wrote {written.rows:,} rows with hash {written.hashes:x},"
            f" the source has {source.rows:,} with hash {source.hashes:x}"
        )


def _text(name: str, kind: str) -> str:
    """Return the SQL of DuckDB for the text that PostgreSQL gives of a column."""
    if decimal := re.fullmatch(r"numeric(\(\d+,\d+\))", kind):
        cast = f"CAST({name} AS DECIMAL{decimal[1]})"
        return f"CASE WHEN {cast} = {name} THEN CAST({cast} AS VARCHAR) ELSE 'inexact' END"
    if kind.startswith("character("):
        return f"rtrim(CAST({name} AS VARCHAR), ' ')"
    assert kind in ("bigint", "integer", "date") or kind.startswith("character varying"), kind
    return f"CAST({name} AS VARCHAR)"
