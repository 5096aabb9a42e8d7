"""PostgreSQL: where a row of a snapshot lies, and the SELECT of rows that lie at some places.

A row of a snapshot has one place in its table (`ctid`). An update writes another version elsewhere,
and neither VACUUM nor HOT pruning takes a version away that an open snapshot sees; what moves rows
(VACUUM FULL, CLUSTER, an ALTER that rewrites, TRUNCATE) waits for the lock of the scan, which is
held until the transaction ends. So a place that a scan told has the same row until then, and a TID
scan reads it without an index of the key.

A locator is the place in 48 bits, behind the number of the table in 16 where a relation has several
(partitions, children): their rows may lie at the same places. One statement then reads a place in
all of them, and the rows of others are left out here: each statement plans and opens all tables, so
one for each table would take longer than a scan.

The place stands before the columns, and between them their number, as an int2: what follows its
length is byte by byte a tuple of the columns alone, which begins with their number. So a tuple is
cut once, and the places of a batch are taken from it together. Rejected: the place behind the
columns. Each row was cut twice and joined once, which took 0.13 µs more.

Invariants: tables whose storage is a heap alone, no view, query or foreign table; the login may
read `ctid` and, of several tables, `tableoid`; the planner reads every table by a TID scan.
Otherwise a relation has no locators.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

import numpy as np
from driftline.arrays import U64
from driftline.errors import SnapshotLost

from source_agent.engines.interface import Ask, LocatedRows, Rows, Unlocated
from source_agent.engines.postgresql import split
from source_agent.engines.postgresql.replaced import replaced
from source_agent.engines.postgresql.sql import BOUNDS, EXPLAIN, ONLY, copy_of, name_of
from source_agent.engines.relations.predicates import ANY, COLUMNS
from source_agent.engines.relations.select import plan_of, scan_sql, select_sql
from source_agent.engines.relations.shapes import Shape

LOCATORS_PER_COPY: Final = 20_000  # of one setting: some 300 kB as text
GRANTED: Final = ("ctid", "tableoid")  # columns that a grant of columns must name

TREE = """
WITH RECURSIVE tree(oid) AS (
  SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid
  UNION
  SELECT below.inhrelid FROM tree
  JOIN pg_catalog.pg_inherits below ON below.inhparent OPERATOR(pg_catalog.=) tree.oid
)
SELECT c.oid::pg_catalog.int8, c.relkind::pg_catalog.text, a.amname::pg_catalog.text
FROM tree JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) tree.oid
LEFT JOIN pg_catalog.pg_am a ON a.oid OPERATOR(pg_catalog.=) c.relam ORDER BY c.oid"""
# Of the table that is named alone, as the server checks it.
READABLE = """
SELECT pg_catalog.has_column_privilege(named.oid, 'ctid', 'SELECT'),
       pg_catalog.has_column_privilege(named.oid, 'tableoid', 'SELECT')
FROM (SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid AS oid) named"""
CATALOGUE: Final = (TREE, READABLE)

_ONE: Final = ("ctid",)
_SEVERAL: Final = ("tableoid", "ctid")
# How a tuple begins, up to the number of its columns: the number of all fields, then each behind
# its length.
_PLACED: Final = [("six", ">i4"), ("block", ">u4"), ("offset", ">u2")]
_COUNTED: Final = [("two", ">i4"), ("columns", ">u2")]
_OF_ONE: Final = np.dtype([("fields", ">u2"), *_PLACED, *_COUNTED])
_OF_SEVERAL: Final = np.dtype(
    [("fields", ">u2"), ("four", ">i4"), ("table", ">u4"), *_PLACED, *_COUNTED]
)
_COUNT_BYTES: Final = 2  # also the first of the row
_TABLES_MAX: Final = 1 << 16
_PLACE: Final = np.uint64((1 << 48) - 1)
_BLOCK: Final = np.uint64(16)
_TABLE: Final = np.uint64(48)
_NO_PLACE: Final = "the rows of a view, a query or a foreign table have no place"
_NOT_GRANTED: Final = "the login may not read ctid, which tells where a row lies"


def locate(ask: Ask, shape: Shape) -> Shape | Unlocated:
    """Return what `LocatorReads.locate` returns; the planner must prefer indexes."""
    if shape.relation.table is None:
        return Unlocated(_NO_PLACE)
    name = name_of(shape)
    tree = ask(TREE, name)
    if not tree or not {kind for _, kind, _ in tree} <= {"r", "p", "m"}:
        return Unlocated(_NO_PLACE)
    tables = [(oid, method) for oid, kind, method in tree if kind != "p"]
    if {method for _, method in tables} - {"heap"} or len(tables) > _TABLES_MAX:
        return Unlocated("not all of its rows are stored in heap tables")
    expressions = _expressions(shape)
    ((may_place, may_table),) = ask(READABLE, name)
    if not may_place or (expressions == _SEVERAL and not may_table):
        names = ", ".join(expressions)
        return Unlocated(_NOT_GRANTED, f"GRANT SELECT ({names}) on the table to the login.")
    several = tuple(oid for oid, _ in tables) if expressions == _SEVERAL else ()
    located = _located(shape, several)
    ask(BOUNDS, "{}", "")
    if not _by_place(ask(EXPLAIN + located_sql(located))[0][0][0]["Plan"]):
        return Unlocated("the planner would not read rows by their places")
    return located


def located_sql(shape: Shape) -> str:
    """Return the SELECT of the rows at places, which are in a setting; of several tables, of the
    rows of each of them (`at`)."""
    places = "ctid OPERATOR(pg_catalog.=) ANY (pg_catalog.current_setting('driftline.first')"
    return select_sql(read_again(shape), f"{places}::pg_catalog.tid[])")


def read_again(shape: Shape) -> Shape:
    """Return the shape by which `located_sql` reads: with locators where there are several
    tables."""
    return shape if _is_of_several(shape) else shape.located(())


def settings_of(locators: U64) -> Iterator[str]:
    """Yield the values of a setting by which these locators, uint64 [n], are read."""
    places = np.unique(locators & _PLACE)
    for start in range(0, len(places), LOCATORS_PER_COPY):
        some = places[start : start + LOCATORS_PER_COPY]
        pairs = zip((some >> _BLOCK).tolist(), (some & np.uint64(0xFFFF)).tolist(), strict=True)
        listed = ",".join([f'"({block},{offset})"' for block, offset in pairs])
        yield f"{{{listed}}}"


def at(batches: Iterator[Rows], locators: U64) -> Iterator[Rows]:
    """Yield the rows that lie at these locators, uint64 [n] ascending, and no others."""
    for batch in batches:
        if not isinstance(batch, LocatedRows):
            yield batch
            continue
        place = np.minimum(np.searchsorted(locators, batch.locators), len(locators) - 1)
        is_at = locators[place] == batch.locators
        if is_at.any():
            yield [row for row, is_kept in zip(batch, is_at.tolist(), strict=True) if is_kept]


def parted(shape: Shape, tuples: Rows) -> LocatedRows:
    """Return the rows of binary tuples with locators.

    Raises SnapshotLost for a row of a table that was not among those of the relation.
    """
    plan = plan_of(shape)
    begin = _OF_SEVERAL if _is_of_several(shape) else _OF_ONE
    # An array of strings keeps of each what fits.
    begins = np.fromiter(tuples, f"S{begin.itemsize}", len(tuples)).view(begin)
    assert (begins["six"] == 6).all(), "a place has six bytes"
    assert (begins["two"] == _COUNT_BYTES).all(), "an int2 has two bytes"
    assert (begins["columns"] == len(shape.recipe.columns)).all(), "the columns were counted"
    places: U64 = (begins["block"].astype(np.uint64) << _BLOCK) | begins["offset"]
    if plan.tables:
        tables = np.array(plan.tables, np.uint64)
        oids = begins["table"].astype(np.uint64)
        numbers = np.minimum(np.searchsorted(tables, oids), len(tables) - 1)
        if (tables[numbers] != oids).any():
            raise _another_table(shape)
        places |= numbers.astype(np.uint64) << _TABLE
    row = itemgetter(slice(begin.itemsize - _COUNT_BYTES, None))
    return LocatedRows(list(map(row, tuples)), places)


def templates(shape: Shape) -> list[str]:
    """List the SQL texts by which rows are located, beyond CATALOGUE."""
    if shape.relation.table is None or shape.indexed:
        return []
    located = _located(shape, ())
    read = located_sql(located)
    return [EXPLAIN + read, copy_of(read), copy_of(scan_sql(located)), *split.templates(located)]


def _expressions(shape: Shape) -> tuple[str, ...]:
    return _ONE if plan_of(shape).source.startswith(ONLY) else _SEVERAL


def _located(shape: Shape, tables: tuple[int, ...]) -> Shape:
    reads = plan_of(shape).reads
    count = ANY if COLUMNS in reads else len(reads)
    locators = (*_expressions(shape), f"{count}::pg_catalog.int2")
    return shape.located(locators, tables, first=True)


def _is_of_several(shape: Shape) -> bool:
    return plan_of(shape).locators[: len(_SEVERAL)] == _SEVERAL


def _by_place(plan: dict[str, Any]) -> bool:
    """Return True if a plan reads every table by places."""
    parts = plan.get("Plans", [])
    return all(map(_by_place, parts)) if parts else plan["Node Type"] == "Tid Scan"


def _another_table(shape: Shape) -> SnapshotLost:
    return replaced(shape.relation, name_of(shape), how="given another partition or child")
