"""PostgreSQL: how many rows of each relation were changed, by the statistics of its tables.

A transaction reports its counts after it has ended, so they follow what a snapshot shows and never
precede it; a busy session reports once a second, one that goes on in a transaction after it. They
are the server's own: every login may read them. In a transaction they are cached, so the statement
runs before it.

TRUNCATE counts nothing, but makes a new file, as any rewrite does; so the files are part of the
identity, and with them the columns and what says that counting began anew: the start of the server,
a crash (which discards all statistics, and sets the time of the background writer's), a reset.

Not seen: changes by sessions whose superuser has switched track_counts off, and what changes the
text of values without writing a row, such as another name for the label of an enum.

Rejected: pg_stat_all_tables, which adds up the indexes of every table of the database first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from driftline.relations.activity import Activity, CountedActivity, UnknownActivity

from source_agent.engines.interface import Ask
from source_agent.engines.probes import NO_TABLE, VIEW, never_probed, opaque
from source_agent.engines.relations.select import quote, split_name
from source_agent.engines.relations.shapes import Relation

# The tables below a table are its partitions, or inherit from it. Statistics are reported after a
# transaction has ended; what still runs has counted nothing.
ACTIVITY: Final = """
WITH RECURSIVE asked AS (
  SELECT named.place, pg_catalog.to_regclass(named.name)::pg_catalog.oid AS oid
  FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS named(name, place)
), tree(place, oid) AS (
  SELECT place, oid FROM asked
  UNION
  SELECT tree.place, below.inhrelid
  FROM tree JOIN pg_catalog.pg_inherits below ON below.inhparent = tree.oid
), counted AS (
  SELECT tree.place, pg_catalog.bool_or(c.relkind = 'f') AS is_foreign,
         pg_catalog.sum(pg_catalog.pg_stat_get_tuples_inserted(c.oid)
                      + pg_catalog.pg_stat_get_tuples_updated(c.oid)
                      + pg_catalog.pg_stat_get_tuples_deleted(c.oid))::pg_catalog.int8 AS changes,
         pg_catalog.string_agg(pg_catalog.concat_ws(':', c.oid,
           pg_catalog.pg_relation_filenode(c.oid)), ',' ORDER BY c.oid) AS files
  FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid GROUP BY tree.place
)
SELECT asked.place, root.relkind::pg_catalog.text, counted.is_foreign,
       pg_catalog.row_security_active(root.oid), counted.changes,
       pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('track_counts')::pg_catalog.bool,
       pg_catalog.concat_ws(' ', d.oid, pg_catalog.pg_postmaster_start_time(),
         pg_catalog.pg_stat_get_bgwriter_stat_reset_time(),
         pg_catalog.pg_stat_get_db_stat_reset_time(d.oid), counted.files,
         (SELECT pg_catalog.string_agg(a.xmin::pg_catalog.text, ',' ORDER BY a.attnum)
          FROM pg_catalog.pg_attribute a WHERE a.attrelid = root.oid AND a.attnum > 0))
FROM asked
JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
LEFT JOIN pg_catalog.pg_class root ON root.oid = asked.oid
LEFT JOIN counted ON counted.place = asked.place
ORDER BY asked.place"""

_FOREIGN: Final = UnknownActivity("it reads a foreign table, which has no counters here")
_POLICIES: Final = UnknownActivity("row security decides what the login sees of it")
_STANDBY: Final = UnknownActivity("the database is a standby, which counts nothing")
_OFF: Final = UnknownActivity("the database counts nothing (track_counts = off)")


def activities(ask: Ask, relations: Sequence[Relation]) -> dict[str, Activity]:
    """Return the activity of relations by their names, from one statement.

    Args:
        ask: method of a session that is in no transaction.

    Raises:
        psycopg.Error: the statement failed.
    """
    by_name: dict[str, Activity] = {r.name: never_probed(r) or NO_TABLE for r in relations}
    asked = [r for r in relations if never_probed(r) is None and _name(r)]
    if not asked:
        return by_name
    rows = ask(ACTIVITY, [_name(relation) for relation in asked])
    for relation, (_, kind, is_foreign, is_hidden, changes, is_standby, counts, facts) in zip(
        asked, rows, strict=True
    ):
        whys = {
            VIEW: kind == "v",
            _FOREIGN: is_foreign,
            NO_TABLE: kind not in {"r", "p", "m"},
            _STANDBY: is_standby,
            _OFF: not counts,
            _POLICIES: is_hidden,
        }
        why = next((why for why, is_so in whys.items() if is_so), None)
        by_name[relation.name] = why or CountedActivity(opaque([facts]), int(changes))
    return by_name


def _name(relation: Relation) -> str:
    """Return the name of a relation's table, quoted; empty if it can be none."""
    parts = split_name(relation.table or "")
    return ".".join(map(quote, parts)) if len(parts) <= 2 and all(parts) else ""
