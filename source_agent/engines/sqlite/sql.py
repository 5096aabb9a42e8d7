"""SQLite: the statements about a database, and the SELECTs of a relation. No I/O, no values."""

from __future__ import annotations

from collections.abc import Sequence

from driftline.rows.key_order import KeyRange

from source_agent.engines.relations.markers import MarkedBy, Marker, behind, behind_any
from source_agent.engines.relations.select import plan_of, quote, select_sql
from source_agent.engines.relations.shapes import Shape
from source_agent.engines.sqlite.values import MARK

# As bytes: the text of one that is no UTF-8 would end the reading of all.
TABLES = """
SELECT CAST(name AS BLOB), type, CAST(sql AS BLOB) FROM main.sqlite_master
WHERE type IN ('table', 'view')"""
UNREAD = "Its name {!r} is not in {}. Rename it at the source."
EXPLAIN_PLAN = "EXPLAIN QUERY PLAN "
VIEW = "CREATE TEMP VIEW driftline_relation AS {query}"
XINFO = "PRAGMA {schema}.table_xinfo({name})"
INDEX_LIST = "PRAGMA main.index_list({name})"
INDEX_XINFO = "PRAGMA main.index_xinfo({name})"
FOREIGN_KEYS = "PRAGMA main.foreign_key_list({name})"
# Counts each change of the schema; the texts tell a file from a restored one with the same count.
SCHEMA_VERSION = "PRAGMA main.schema_version"
SCHEMA = "SELECT type, name, rootpage, sql FROM main.sqlite_master ORDER BY rowid"
STATISTICS = "SELECT stat FROM main.sqlite_stat1 WHERE tbl = ?"


def named(row: tuple[bytes | None, str, bytes | None], encoding: str) -> tuple[str, str, str, str]:
    """Return a row of TABLES, in a file of this encoding, as name, kind, definition, and why the
    name is none; empty: it is one."""
    name, kind, sql = row
    known, definition = name or b"", sql or b""
    shown = known.decode(encoding, errors="backslashreplace")
    why = "" if shown.encode(encoding) == known else UNREAD.format(known, encoding)
    return shown, kind, definition.decode(encoding, errors="backslashreplace"), why


def view_sql(query: str) -> tuple[str, str]:
    """Return the statements that make a view of a query, in memory, and describe its columns."""
    columns = XINFO.format(schema="temp", name="driftline_relation")
    return VIEW.format(query=query.strip().rstrip(";")), columns


def kept_sql(marker: Marker | None) -> str:
    """Return the condition of rows that the flag of a marker does not delete; NULL deletes none."""
    flag = None if marker is None else marker.deleted
    return "" if flag is None else f"({quote(flag, MARK)} IS NOT TRUE)"


def misflagged_sql(marker: Marker | None) -> str:
    """Return the condition of rows whose flag is NULL, or neither 0 nor 1; empty: no flag."""
    if marker is None or marker.deleted is None:
        return ""
    flag = quote(marker.deleted, MARK)
    return f"({flag} IS NULL OR {flag} NOT IN (0, 1))"


def marked_sql(shape: Shape) -> str:
    """Return the SELECT of the rows behind a mark.

    Numbers in a column of times are less than every text; what they mean is not known, so they
    count as changed.
    """
    assert shape.marker is not None, "a relation without a marker has no mark"

    def one(marked: MarkedBy, place: int) -> str:
        del place
        column = quote(marked.marker.column, MARK)
        condition = behind(column, "?", marked)
        return f"({condition} OR {column} < '')" if marked.is_time else condition

    return select_sql(shape, behind_any(shape.marker, one))


def later_sql(shape: Shape) -> str:
    """Return the SELECT of the number of rows whose marker is greater than a value."""
    assert shape.marker is not None, "a relation without a marker has no mark"
    plan, column = plan_of(shape), quote(shape.marker.marker.column, MARK)
    where = f"{plan.where} AND " if plan.where else ""
    return f"SELECT count(*) FROM {plan.source}\nWHERE {where}{column} > ?"


def greatest_sql(shape: Shape, name: str) -> str:
    """Return the SELECT of the greatest version in a column of a relation."""
    plan = plan_of(shape)
    where = f"\nWHERE {plan.where}" if plan.where else ""
    return f"SELECT max({quote(name, MARK)}) FROM {plan.source}{where}"


def range_sql(shape: Shape, *, is_open: bool = False) -> str:
    """Return the SELECT of the keys from one on and before another; `is_open`: without an end.

    Text and blobs are greater than all numbers: only an open range includes them.
    """
    key = quote(shape.recipe.columns[0].name, MARK)
    return select_sql(shape, f"{key} >= ?", "" if is_open else f"{key} < ?")


def between_sql(shape: Shape, within: KeyRange) -> str:
    """Return the SELECT of the keys in a range, of which only the presence of bounds matters."""
    names = [quote(column.name, MARK) for column in shape.recipe.key]
    key, bound = ", ".join(names), ", ".join("?" * len(names))
    if len(names) > 1:
        key, bound = f"({key})", f"({bound})"
    lower = f"{key} >= {bound}" if within.lower is not None else ""
    return select_sql(shape, lower, f"{key} < {bound}" if within.upper is not None else "")


def key_sql(shape: Shape) -> str:
    """Return the SELECT of the row with one key."""
    return select_sql(shape, *(f"{quote(c.name, MARK)} = ?" for c in shape.recipe.key))


def located_sql(shape: Shape, rowid: str) -> str:
    """Return the SELECT of the row with one rowid, whose name this is."""
    return select_sql(shape, f"{rowid} = ?")


def null_in_key_sql(shape: Shape, place: int) -> str:
    """Return the SELECT of one row with a NULL in this column of the key, behind equal ones."""
    names = [quote(column.name, MARK) for column in shape.recipe.key[: place + 1]]
    equal = [f"{name} = ?" for name in names[:place]]
    return select_sql(shape, *equal, f"{names[-1]} IS NULL", tail="\nLIMIT 1")


def page_sql(shape: Shape, *, is_first: bool, behind: Sequence[str] | None = None) -> str:
    """Return the SELECT of one page in stored order.

    Columns of its position that are not read anyway come last; `behind` are others in their place,
    for templates.
    """
    plan = plan_of(shape)
    names = ", ".join(plan.pages)
    tail = f"\nORDER BY {names}\nLIMIT ?"
    after = [] if is_first else [f"({names}) > ({', '.join('?' * len(plan.pages))})"]
    extra = pages_behind(shape) if behind is None else behind
    return select_sql(shape, *after, extra=extra, tail=tail)


def page_places(shape: Shape) -> list[int]:
    """Return where the columns of a page's position are in its rows."""
    plan = plan_of(shape)
    columns = (*plan.reads, *plan.locators, *pages_behind(shape))
    return [columns.index(page) for page in plan.pages]


def pages_behind(shape: Shape) -> list[str]:
    """Return the columns of a page's position that are not read anyway."""
    plan = plan_of(shape)
    return [page for page in plan.pages if page not in (*plan.reads, *plan.locators)]
