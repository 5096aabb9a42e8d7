"""MariaDB and MySQL: the SELECTs of a relation, and the statements around them. No I/O, no values.

The driver itself formats values into a statement, escaped, in place of `%s`. In texts that take
values, every other percent sign is doubled here, so that a DBA's LIKE '%…' stays as it is. A zero
byte marks the place of a value until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from driftline.rows.key_order import KeyRange

from source_agent.engines.relations.markers import MarkedBy, MarkerKind, behind, behind_any
from source_agent.engines.relations.select import (
    beside_key,
    derived_table,
    null_key_sql,
    plan_of,
    quote,
    scan_sql,
    select_sql,
    split_name,
)
from source_agent.engines.relations.shapes import Relation, Shape

MARK: Final = "`"
RANGES_PER_SELECT: Final = 200  # beyond it, planning grows faster than reading
KEYS_PER_SELECT: Final = 200  # as for ranges
PAGE_ROWS: Final = 1024
ROWS_MAX: Final = 2**63 - 1  # for a SELECT without a limit

AS_OF = "SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ')"
EXPLAIN = "EXPLAIN FORMAT=TRADITIONAL "  # MySQL may be set to another one
BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
BEGIN_LATER = "START TRANSACTION READ ONLY"  # the first row that is read opens the snapshot
KILL = "KILL QUERY %s"  # of the agent's own session, when its client has left
STATEMENTS: Final = (AS_OF, BEGIN, BEGIN_LATER, KILL)


def source_of(relation: Relation) -> str:
    """Return a relation as SQL after FROM; a name with an empty part is refused by the server."""
    if relation.table is None:
        return derived_table(relation, MARK)
    return ".".join(quote(part, MARK) for part in split_name(relation.table, MARK))


def lock_sql(source: str) -> str:
    """Return a SELECT that locks the definition of every table behind a relation until the end of
    the transaction, and evaluates none of it: MySQL runs an aggregate in FROM to plan around it,
    under LIMIT 0 as well, but plans no subquery of a SELECT without rows."""
    return f"SELECT EXISTS (SELECT 1 FROM {source} LIMIT 0) LIMIT 0"


def first_row_sql(source: str) -> str:
    """Return the SELECT of one row of a table, for which InnoDB opens the snapshot."""
    return f"SELECT 1 FROM {source} LIMIT 1"


def empty_sql(source: str) -> str:
    """Return a SELECT of all columns and no row."""
    return f"SELECT * FROM {source} LIMIT 0"


def bound_sql(shape: Shape, sql: str) -> str:
    """Return a text without values of its own as it is executed with those of a derivation."""
    return _placed(shape, sql) if plan_of(shape).values else sql


def probe_sql(shape: Shape) -> str:
    """Return the SELECT of a scan that reads no row."""
    return select_sql(shape, tail="\nLIMIT 0")


def lost_sql(shape: Shape, column: str, read: str) -> str:
    """Return the SELECT of the key of a row in which an expression turns a column into NULL."""
    plan, where = plan_of(shape), shape.relation.where
    key = ", ".join(plan.reads[: shape.recipe.key_columns])
    own = f"(\n{where}\n) AND " if where else ""
    lost = f"{own}{column} IS NOT NULL AND ({read}) IS NULL"
    return f"SELECT {key}\nFROM {plan.source}\nWHERE {lost}\nLIMIT 1"


def range_sql(shape: Shape) -> str:
    """Return the SELECT of RANGES_PER_SELECT ranges of keys."""
    key = quote(shape.recipe.columns[0].name, MARK).replace("%", "%%")
    ranges = " OR ".join([f"{key} BETWEEN %s AND %s"] * RANGES_PER_SELECT)
    return _placed(shape, select_sql(shape, "\0", tail="\nLIMIT \0"), f"({ranges})", "%s")


def marked_sql(shape: Shape) -> str:
    """Return the SELECT of the rows behind a mark."""
    assert shape.marker is not None, "a relation without a marker has no mark"
    if shape.marker.kind is MarkerKind.CHECKSUM:  # without values
        column = quote(shape.marker.marker.column, MARK)
        return bound_sql(shape, select_sql(shape, behind(column, "", shape.marker)))

    def one(marked: MarkedBy, place: int) -> str:
        del place
        return behind(quote(marked.marker.column, MARK).replace("%", "%%"), "%s", marked)

    return _placed(shape, select_sql(shape, "\0"), behind_any(shape.marker, one))


def later_sql(shape: Shape) -> str:
    """Return the SELECT of the number of rows whose marker is greater than a value."""
    assert shape.marker is not None, "a relation without a marker has no mark"
    plan, column = plan_of(shape), quote(shape.marker.marker.column, MARK).replace("%", "%%")
    where = f"{plan.where} AND " if plan.where else ""
    sql = f"SELECT COUNT(*) FROM {plan.source}\nWHERE {where}\0"
    return _placed(shape, sql, f"{column} > %s")


def key_index_sql(shape: Shape) -> str:
    """Return the statement that makes an index by which the keys of all rows are read alone."""
    names = [*beside_key(shape), *(column.name for column in shape.recipe.key)]
    columns = ", ".join(quote(name, MARK) for name in names)
    return f"CREATE INDEX driftline_keys ON {plan_of(shape).source} ({columns})"


def greatest_sql(shape: Shape, name: str) -> str:
    """Return the SELECT of the greatest version in a column of a relation."""
    plan = plan_of(shape)
    where = f"\nWHERE {plan.where}" if plan.where else ""
    return bound_sql(shape, f"SELECT MAX({quote(name, MARK)}) FROM {plan.source}{where}")


def page_sql(shape: Shape, *, is_first: bool) -> str:
    """Return the SELECT of one page, ordered by the plan's `pages`, after a position in them."""
    pages = [quote(name, MARK) for name in plan_of(shape).pages]
    tail = f"\nORDER BY {', '.join(pages)}\nLIMIT \0"
    if is_first:
        return _placed(shape, select_sql(shape, tail=tail), "%s")
    # (a, b, c) > (x, y, z), written out so that the index is used.
    names = [name.replace("%", "%%") for name in pages]
    steps = []
    for i, name in enumerate(names):
        terms = [*(f"{equal} = %s" for equal in names[:i]), f"{name} > %s"]
        steps.append(f"({' AND '.join(terms)})" if i else terms[0])
    return _placed(shape, select_sql(shape, "\0", tail=tail), f"({' OR '.join(steps)})", "%s")


def limited_sql(shape: Shape, ended: str) -> str:
    """Return the first statement of a scan as it is planned, `ended` at its first row.

    It is refused by `max_join_size` where the scan is; EXPLAIN is not.
    """
    if plan_of(shape).pages:
        return f"{page_sql(shape, is_first=True)} {ended}"
    return f"{scan_sql(shape)}\nLIMIT {ended}"


def between_sql(shape: Shape, bounds: Sequence[str], within: KeyRange) -> str:
    """Return the SELECT of the keys in a range, of which only the presence of bounds matters, with
    a limit of rows: the driver reads every result to its end.

    `bounds` are the expressions of a bound of each key column. A comparison of rows is no range
    of an index for the optimizer: it is written out.
    """
    steps = [(">", ">=")] if within.lower is not None else []
    steps += [("<", "<")] if within.upper is not None else []
    conditions = [_keyset(shape, bounds, *operators) for operators in steps]
    source = _by_index(shape) if conditions else None
    sql = select_sql(shape, *(["\0"] * len(conditions)), source=source, tail="\nLIMIT \0")
    return _placed(shape, sql, *conditions, "%s")


def keys_sql(shape: Shape, bounds: Sequence[str]) -> str:
    """Return the SELECT of the rows with KEYS_PER_SELECT keys; `bounds` as in `between_sql`."""
    names = [quote(c.name, MARK).replace("%", "%%") for c in shape.recipe.key]
    one = " AND ".join(f"{name} = {bound}" for name, bound in zip(names, bounds, strict=True))
    some = " OR ".join([f"({one})"] * KEYS_PER_SELECT)
    sql = select_sql(shape, "\0", source=_by_index(shape), tail="\nLIMIT \0")
    return _placed(shape, sql, f"({some})", "%s")


def bound_values(key: Sequence[object]) -> list[object]:
    """Return the values of a comparison with a bound, in the order of their places."""
    return [value for i in range(len(key)) for value in key[: i + 1]]


def null_in_key_sql(shape: Shape, equal: Sequence[str]) -> str:
    """Return the SELECT of one row whose key has a NULL behind values equal to these bounds."""
    if not equal:
        return bound_sql(shape, null_key_sql(shape, MARK))
    names = [quote(c.name, MARK).replace("%", "%%") for c in shape.recipe.key[: len(equal) + 1]]
    equal = [f"{name} = {bound}" for name, bound in zip(names, equal, strict=False)]
    condition = " AND ".join([*equal, f"{names[-1]} IS NULL"])
    return _placed(shape, select_sql(shape, "\0", tail="\nLIMIT 1"), condition)


def _by_index(shape: Shape) -> str:
    """Return the relation after FROM, read by the index of its key: the optimizer would rather scan
    a table that has few more rows."""
    plan = plan_of(shape)
    return f"{plan.source} FORCE INDEX ({quote(plan.key_index, MARK)})"


def _keyset(shape: Shape, bounds: Sequence[str], before: str, last: str) -> str:
    """Return a comparison of the key with a bound; `last` is the operator of its last column."""
    names = [quote(c.name, MARK).replace("%", "%%") for c in shape.recipe.key]
    pairs = list(zip(names, bounds, strict=True))
    steps = []
    for i, (name, bound) in enumerate(pairs):
        operator = last if i == len(pairs) - 1 else before
        terms = [*(f"{n} = {b}" for n, b in pairs[:i]), f"{name} {operator} {bound}"]
        steps.append(f"({' AND '.join(terms)})" if i else terms[0])
    return f"({' OR '.join(steps)})"


def _placed(shape: Shape, sql: str, *parts: str) -> str:
    """Return `sql` with its percent signs doubled, and each zero byte replaced.

    The first are those of the derivation's values, then come `parts`.
    """
    parts = ("%s",) * len(plan_of(shape).values) + parts
    pieces = sql.replace("%", "%%").split("\0")
    return pieces[0] + "".join(p + piece for p, piece in zip(parts, pieces[1:], strict=True))
