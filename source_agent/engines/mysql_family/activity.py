"""MariaDB and MySQL: when InnoDB last changed a table, as a flag; and when it made it.

`update_time` has whole seconds. In 10.11 it is the *start* of the transaction that committed last.
So while its second lasts the flag is unlike any other, and a change is missed if two transactions
began in the same second and the one that committed last did so after the flag was read. The
estimated number of rows belongs to the flag: TRUNCATE leaves update_time as it was. A server that
has started, or has closed the table since, knows no update_time.

Nothing is said of partitioned tables, whose greatest update_time hides that of others, of other
engines. MySQL would answer from statistics up to a day old; the session's settings forbid it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from driftline.relations.activity import Activity, FlaggedActivity, UnknownActivity

from source_agent.engines.interface import Ask
from source_agent.engines.mysql_family.sql import MARK
from source_agent.engines.probes import NO_TABLE, VIEW, never_probed, opaque
from source_agent.engines.relations.select import split_name
from source_agent.engines.relations.shapes import Relation

# Hex names, so that a list of any length is one value; a table that is not listed is not opened.
# The first list has names of the session's database, the second of others.
ACTIVITY: Final = """
SELECT table_schema, table_name, table_type, engine, create_options, table_schema = DATABASE(),
       update_time, table_rows, update_time >= NOW(), NOW(6),
       CONCAT_WS(' ', @@hostname, @@port, @@server_id, create_time)
FROM information_schema.tables
WHERE table_schema = DATABASE() AND FIND_IN_SET(HEX(LOWER(table_name)), %s)
   OR FIND_IN_SET(CONCAT(HEX(LOWER(table_schema)), '.', HEX(LOWER(table_name))), %s)"""

_NOT_INNODB: Final = UnknownActivity("its engine is not InnoDB")
_PARTITIONED: Final = UnknownActivity("it is partitioned")
_NO_TIME: Final = UnknownActivity("the server has not changed it since it opened the table")
_Row = tuple[str | None, ...]


def activities(ask: Ask, relations: Sequence[Relation]) -> dict[str, Activity]:
    """Return the activity of relations by their names, from one statement.

    Raises:
        DriftlineError: the statement failed.
    """
    by_name: dict[str, Activity] = {r.name: never_probed(r) or NO_TABLE for r in relations}
    named = {
        relation.name: split_name(relation.table or "", MARK)
        for relation in relations
        if never_probed(relation) is None
    }
    named = {name: parts for name, parts in named.items() if len(parts) <= 2}
    lists = (",".join(_hex(p) for p in named.values() if len(p) == count) for count in (1, 2))
    if not named:
        return by_name
    rows = ask(ACTIVITY, *lists)
    for name, parts in named.items():
        if (row := _row_of(parts, rows)) is not None:
            by_name[name] = _activity(row)
    return by_name


def _hex(parts: tuple[str, ...]) -> str:
    return ".".join(part.lower().encode().hex().upper() for part in parts)


def _row_of(parts: tuple[str, ...], rows: Sequence[_Row]) -> _Row | None:
    """Return the row of a table; of several that differ in case the one as it is written."""
    schema = parts[0] if len(parts) == 2 else None  # None: the session's
    like = [
        row
        for row in rows
        if _is_like(row[1], parts[-1])
        and (row[5] == "1" if schema is None else _is_like(row[0], schema))
    ]
    exact = [row for row in like if row[1] == parts[-1]]
    return exact[0] if exact else like[0] if len(like) == 1 else None


def _is_like(name: str | None, wanted: str) -> bool:
    return (name or "").lower() == wanted.lower()


def _activity(row: _Row) -> Activity:
    _, _, kind, engine, options, _, at, count, is_this_second, now, facts = row
    whys = {
        VIEW: kind == "VIEW",
        _NOT_INNODB: (engine or "").lower() != "innodb",
        _PARTITIONED: "partitioned" in (options or ""),
        _NO_TIME: at is None,
    }
    why = next((why for why, is_so in whys.items() if is_so), None)
    unsettled = now if is_this_second == "1" else ""
    return why or FlaggedActivity(opaque([facts]), opaque([at, count, unsettled]))


def is_created_after(as_of: str, rows: list[tuple[str | None, ...]]) -> bool:
    """Return True unless the catalogue has one table, made until the second of the snapshot.

    A time that is still to come is none: the clock was put back, and what is made now is older.
    """
    if len(rows) != 1 or rows[0][0] is None:
        return True
    ((at, is_to_come),) = rows
    return is_to_come != "1" and str(at) > as_of[:19].replace("T", " ")
