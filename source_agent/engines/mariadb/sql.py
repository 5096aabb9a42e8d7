"""MariaDB and MySQL: the SELECTs of a relation, and the statements around them. No I/O, no values.

The driver itself formats values into a statement, escaped, in place of `%s`. In texts that take
values, every other percent sign is doubled here, so that a DBA's LIKE '%…' stays as it is. A zero
byte marks the place of a value until then.
"""

from __future__ import annotations

from typing import Final

from source_agent.engines.interface import Shape
from source_agent.engines.relations import plan_of, quote, select_sql

MARK: Final = "`"
RANGES_PER_SELECT: Final = 200  # beyond it, planning grows faster than reading
ROWS_MAX: Final = 2**63 - 1  # for a SELECT without a limit

AS_OF = "SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ')"
EXPLAIN = "EXPLAIN "
BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
KILL = "KILL QUERY %s"  # of the agent's own session, when its client has left
STATEMENTS: Final = (AS_OF, BEGIN, KILL)


def empty_sql(source: str) -> str:
    """Return a SELECT of all columns and no row."""
    return f"SELECT * FROM {source} LIMIT 0"


def bound_sql(shape: Shape, sql: str) -> str:
    """Return a text without values of its own as it is executed with those of a derivation."""
    return _placed(shape, sql) if plan_of(shape).values else sql


def probe_sql(shape: Shape) -> str:
    """Return the SELECT of a scan that reads no row."""
    return select_sql(shape, tail="\nLIMIT 0")


def range_sql(shape: Shape) -> str:
    """Return the SELECT of RANGES_PER_SELECT ranges of keys."""
    key = quote(shape.recipe.columns[0].name, MARK).replace("%", "%%")
    ranges = " OR ".join([f"{key} BETWEEN %s AND %s"] * RANGES_PER_SELECT)
    return _placed(shape, select_sql(shape, "\0", tail="\nLIMIT \0"), f"({ranges})", "%s")


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


def _placed(shape: Shape, sql: str, *parts: str) -> str:
    """Return `sql` with its percent signs doubled, and each zero byte replaced.

    The first are those of the derivation's values, then come `parts`.
    """
    parts = ("%s",) * len(plan_of(shape).values) + parts
    pieces = sql.replace("%", "%%").split("\0")
    return pieces[0] + "".join(p + piece for p, piece in zip(parts, pieces[1:], strict=True))
