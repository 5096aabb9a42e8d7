"""PostgreSQL: what its snapshots do not cover, found.

A snapshot says which rows are seen, of whatever the catalogue *now* says a table is. TRUNCATE and
ALTERs that rewrite leave an empty table, or one without its past, to snapshots that are older; a
name means the table that bears it now, or the column, which older rows do not have; a partition is
one if it is one now. So a reload that
commits after the snapshot was taken, and before this session locks the table, would be read as a
table without rows, or with some, and no row would tell.

Whoever has a lock on a table keeps all that away, to the end of the transaction. So locks come
first: once a statement has taken what it takes, a SELECT over the catalogue (which sees what the
snapshot sees) is compared with functions over it (which see it as it is), for what this session
has locked. Views and queries lock what they read, so nothing is known here of either.

Invariants: nobody is asked to wait for anything, and no lock is taken but on catalogues. A
savepoint that is rolled back gives back the locks taken below it: what is read without them is
asked about again. VACUUM FULL and CLUSTER move a table and keep its past; they cannot be told from
a rewrite, and cost another attempt.

Not found: an heir by INHERITS alone that leaves its parent, and a view that is replaced to read
other tables or columns of before, of which no function tells.

Rejected: locking the tables before the snapshot is taken. Relations are asked for one by one, and
a view's tables are not known; the locks of a long exchange would be on tables that it has yet to
read.
"""

from __future__ import annotations

from typing import Final

from driftline.errors import SnapshotLost

from source_agent.engines.interface import Ask, Relation

# Below 16384 are the system's own. A relation unknown to the snapshot has come after it; a name, a
# file or a column that differs, of one that is locked, was changed after it. The file of what has
# none is 0; partitions have the columns of their parents.
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
# Partitions of what is locked, as the snapshot has them and as they are; one whose detaching waits
# for its end (PostgreSQL 14) is none.
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
    """Of everything that this session has locked by now, for this relation or before.

    Raises:
        SnapshotLost: a table is not, or is not wholly, what it was in the snapshot.
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


def replaced(
    relation: Relation, table: str, *, how: str = "truncated, rewritten or replaced"
) -> SnapshotLost:
    """The error; `table` as SQL would name it."""
    return SnapshotLost(
        f"The table {table} was {how} after the snapshot was taken, and PostgreSQL cannot show "
        "what was in it.",
        where=relation.name,
    )
