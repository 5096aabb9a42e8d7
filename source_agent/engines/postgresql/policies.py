"""PostgreSQL: the row security policies that decide what the login sees of a relation.

The server itself says whether any policy does: under `row_security = off` it refuses to plan a
statement whose rows a policy would hide, also behind a view. Only then are the policies read, by
a further, short session after the relation's tables are locked: the catalogue of the snapshot may
be older than the policies in force, and the locks prevent further changes.

A view reads its tables as its owner, or with `security_invoker` as its reader; a policy reads the
tables of its condition as the reader of its own table. The tables of a query are not known, so for
a query the policies of everything that the login may read count. (The tables in a plan would not
do: a table that a policy hides completely is not in it.)

Not found: new bodies and tables of functions that a view or a policy calls; changed rows of a
table that a policy's condition reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import blake3
from psycopg import Error

from source_agent.engines.interface import Ask
from source_agent.engines.postgresql.sql import EXPLAIN
from source_agent.engines.relations.row_security import Policy, RowSecurity
from source_agent.engines.relations.shapes import Shape

PROBE: Final = "SAVEPOINT driftline_probe"
PROBED: Final = "ROLLBACK TO SAVEPOINT driftline_probe"
OFF: Final = "SELECT pg_catalog.set_config('row_security', 'off', true)"
# Conditions then name everything but pg_catalog with its schema, whatever the role's path is, and
# have one text for one constant.
PLAIN: Final = """
SELECT pg_catalog.set_config('search_path', 'pg_catalog', true),
       pg_catalog.set_config('TimeZone', 'UTC', true),
       pg_catalog.set_config('lc_monetary', 'C', true)"""
POLICIES: Final = """
WITH RECURSIVE edges(reader, read) AS (
  SELECT w.ev_class, d.refobjid FROM pg_catalog.pg_rewrite w
  JOIN pg_catalog.pg_depend d ON d.objid = w.oid
    AND d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass
  WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid <> w.ev_class
  UNION
  SELECT p.polrelid, d.refobjid FROM pg_catalog.pg_policy p
  JOIN pg_catalog.pg_depend d ON d.objid = p.oid
    AND d.classid = 'pg_catalog.pg_policy'::pg_catalog.regclass
  WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid <> p.polrelid
), asked(relation) AS (
  SELECT %s::pg_catalog.oid
), reads(relation, role) AS (
  SELECT c.oid, r.oid FROM asked JOIN pg_catalog.pg_class c
    ON c.oid = asked.relation OR asked.relation IS NULL AND c.relkind IN ('r', 'p', 'v')
      AND c.oid >= 16384 AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT')
  JOIN pg_catalog.pg_roles r ON r.rolname = CURRENT_USER
  UNION
  SELECT e.read, CASE WHEN c.relkind = 'v' AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_options_to_table(c.reloptions)
      WHERE option_name = 'security_invoker' AND option_value::pg_catalog.bool)
    THEN c.relowner ELSE reads.role END
  FROM reads JOIN pg_catalog.pg_class c ON c.oid = reads.relation
  JOIN edges e ON e.reader = reads.relation
)
SELECT DISTINCT pg_catalog.format('%%I.%%I', n.nspname, c.relname), p.polname::pg_catalog.text,
       p.polpermissive, pg_catalog.pg_get_expr(p.polqual, p.polrelid),
       c.oid IS NOT DISTINCT FROM (SELECT asked.relation FROM asked)
FROM reads JOIN pg_catalog.pg_class c ON c.oid = reads.relation
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_roles r ON r.oid = reads.role
LEFT JOIN pg_catalog.pg_policy p ON p.polrelid = c.oid AND p.polcmd IN ('r', '*')
  AND (0 = ANY (p.polroles) OR EXISTS (
    SELECT FROM pg_catalog.unnest(p.polroles) member(oid)
    WHERE pg_catalog.pg_has_role(reads.role, member.oid, 'USAGE')))
WHERE c.relrowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls
  AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(reads.role, c.relowner, 'USAGE'))
ORDER BY 1, 2, 3, 4"""
STATEMENTS: Final = (PROBE, PROBED, OFF, PLAIN, POLICIES)

NOTHING_HIDDEN: Final = RowSecurity(())
NOTE: Final = "row security: the relation is what the login may see"
_UNKNOWN: Final = Policy("a table that is not known", "", b"")  # the server says that there is one


def hides(ask: Ask, execute: Callable[[str], object], select_sql: str) -> bool:
    """Return True if a policy hides rows of a SELECT. Raises psycopg.Error."""
    execute(PROBE)
    try:
        ask(OFF)
        ask(EXPLAIN + select_sql)
        return False
    except Error as error:
        if error.sqlstate != "42501":  # insufficient_privilege
            raise
    finally:
        execute(PROBED)
    ask(EXPLAIN + select_sql)  # raises if no policy was the reason
    return True


def policies(ask: Ask, relation: int | None) -> RowSecurity:
    """Return the policies in force for the login.

    Args:
        ask: method of a session that began after the tables were locked.
        relation: OID of a table or view; None: everything that the login may read.
    """
    ask(PLAIN)
    in_force = []
    for table, name, is_permissive, condition, is_own in ask(POLICIES, relation):
        text = "\0".join((table, name or "", str(is_permissive), condition or ""))
        digest = blake3.blake3(text.encode()).digest(length=8)
        in_force.append(Policy(table, name or "", digest, is_own=is_own))
    return RowSecurity(tuple(in_force) or (_UNKNOWN,))


def noted(shape: Shape, found: RowSecurity, *, is_query: bool) -> Shape:
    """Return the shape of a relation whose rows policies hide, with a note which ones."""
    tables = dict.fromkeys(policy.table for policy in found.policies)
    names = [f"{policy.name} of {policy.table}" for policy in found.policies if policy.name]
    by = f"policies that apply: {', '.join(names)}" if names else "no policy lets it see a row"
    of = f"; every table with policies counts: {', '.join(tables)}" if is_query else ""
    named = f"{NOTE} ({by}{of})"
    if all(policy.is_own for policy in found.policies):
        return replace(shape, row_security=found, notes=(*shape.notes, named))
    local = (*shape.notes_local, named)
    return replace(shape, row_security=found, notes=(*shape.notes, NOTE), notes_local=local)
