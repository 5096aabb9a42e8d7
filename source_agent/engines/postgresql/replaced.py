"""PostgreSQL: find the changes of tables that a snapshot does not cover.

A snapshot selects rows of what the catalogue *now* calls a table. TRUNCATE and an ALTER that
rewrites leave a table without its past to older snapshots, and names of tables and columns and the
set of partitions are those of now. If such a change commits between the snapshot and this session's
lock on the table, the rows read are wrong, and no row shows it.

A lock prevents these changes until the transaction ends. So after a statement has taken its locks,
a SELECT over the catalogue, which sees the snapshot, is compared with functions over the catalogue,
which see the present, for everything that this session has locked, also through views and queries.

Invariants: no session has to wait, and only catalogues are locked. A rollback to a savepoint
releases the locks taken below it; what is read after that is checked again.

A plain table is read with ONLY, so that none that begins to inherit from it is read with it.

Not found: a child by INHERITS alone that leaves a parent, or joins one that has others; a view that
is replaced to read other old tables or columns. Found without need: VACUUM FULL and CLUSTER look
like a rewrite.

Rejected: locking the tables before the snapshot is taken. A view's tables are not known, and a long
exchange would lock tables long before it reads them.
"""

from __future__ import annotations

from typing import Final

from driftline.errors import SnapshotLost

from source_agent.engines.interface import Ask
from source_agent.engines.postgresql import sql
from source_agent.engines.relations.markers import MarkerKind
from source_agent.engines.relations.shapes import Relation, Shape

# OIDs below 16384 are the system's. A locked relation that the snapshot does not know was created
# after it; one whose name, file or columns differ was changed after it. A relation without a file
# has file 0. Partitions have the columns of their parents.
REPLACED: Final = """
WITH held AS (
  SELECT relation AS oid FROM pg_catalog.pg_locks
  WHERE pid = pg_catalog.pg_backend_pid() AND locktype = 'relation' AND relation >= 16384)
SELECT min(now.identity) FILTER (
         WHERE (now.identity, pg_catalog.pg_relation_filenode(held.oid)) IS DISTINCT FROM (
           pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname),
           NULLIF(c.relfilenode, 0))),
       min(now.identity) FILTER (WHERE EXISTS (
         SELECT FROM pg_catalog.pg_attribute a
         CROSS JOIN LATERAL pg_catalog.pg_identify_object(
           'pg_catalog.pg_class'::pg_catalog.regclass, held.oid, a.attnum) named
         WHERE a.attrelid = held.oid AND a.attnum > 0 AND NOT a.attisdropped
           AND named.identity IS DISTINCT FROM
             now.identity || '.' || pg_catalog.quote_ident(a.attname))
         AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_inherits i JOIN held parent ON i.inhparent = parent.oid
           WHERE i.inhrelid = held.oid AND c.relispartition)),
       bool_or(c.relkind = 'p')
FROM held
CROSS JOIN LATERAL pg_catalog.pg_identify_object(
  'pg_catalog.pg_class'::pg_catalog.regclass, held.oid, 0) now
LEFT JOIN pg_catalog.pg_class c ON c.oid = held.oid
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE now.type IN ('table', 'view', 'materialized view', 'foreign table')"""
# Partitions of locked tables, in the snapshot and at present. One whose DETACH CONCURRENTLY is not
# finished (PostgreSQL 14) does not count.
PARTITIONS: Final = """
WITH held AS (
  SELECT relation AS oid FROM pg_catalog.pg_locks
  WHERE pid = pg_catalog.pg_backend_pid() AND locktype = 'relation' AND relation >= 16384)
SELECT min(pg_catalog.format('%I.%I', n.nspname, c.relname))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_inherits was ON was.inhrelid = c.oid AND c.relispartition
  AND NOT pg_catalog.to_jsonb(was) @> '{"inhdetachpending": true}'
CROSS JOIN LATERAL (
  SELECT (ARRAY(SELECT pg_catalog.pg_partition_ancestors(c.oid)::pg_catalog.oid))[2] AS parent) now
WHERE c.oid IN (SELECT oid FROM held UNION
                SELECT inhrelid FROM pg_catalog.pg_inherits JOIN held ON inhparent = held.oid)
  AND c.relkind IN ('r', 'p', 'f') AND was.inhparent IS DISTINCT FROM now.parent
  AND (was.inhparent IN (SELECT oid FROM held) OR now.parent IN (SELECT oid FROM held))"""
CATALOGUE: Final = (REPLACED, PARTITIONS)


def refuse_replaced(ask: Ask, relation: Relation) -> None:
    """Refuse the reads of a session if a table that it has locked differs from its snapshot.

    Raises:
        SnapshotLost: a table was replaced or changed; `relation` is the one read last.
    """
    ((table, altered, has_partitions),) = ask(REPLACED)
    if table is not None:
        raise replaced(relation, table)
    if altered is not None:
        raise replaced(relation, altered, how="altered in its columns")
    if has_partitions:
        ((table,),) = ask(PARTITIONS)
        if table is not None:
            raise replaced(relation, table, how="attached or detached as a partition")


def read_by(ask: Ask, shape: Shape, as_of: str) -> tuple[str, list[str], str]:
    """Return what a mark keeps of what it was made on: server, tables, and their definition.

    Raises:
        SnapshotLost: the table is no longer there.
    """
    table = None if shape.relation.table is None else sql.name_of(shape)
    server = ":".join(ask(sql.IDENTITY)[0])
    definition = ask(sql.DEFINITION, table, table)[0][0]
    if definition is None:  # it saw no table, so a change of one would not show
        definition = f"of {as_of}"
    if shape.marker is not None and shape.marker.kind is MarkerKind.XMIN:
        tables = [f"{oid}:{file}" for oid, _, file in ask(sql.LEAVES, sql.name_of(shape))]
    elif table is not None:  # else swapped by renaming another one
        tables = [str(oid) for (oid,) in ask(sql.RESOLVED, table) if oid is not None]
    else:
        return server, [], definition
    if not tables:
        raise replaced(shape.relation, sql.name_of(shape))
    return server, tables, definition


def replaced(
    relation: Relation, table: str, *, how: str = "truncated, rewritten or replaced"
) -> SnapshotLost:
    """Return the error for a table, named as in SQL, that changed after the snapshot."""
    return SnapshotLost(
        f"The table {table} was {how} after the snapshot was taken, and PostgreSQL cannot show "
        "what was in it.",
        where=relation.name,
        abroad=f"A table that it reads was {how} after the snapshot was taken.",
    )
