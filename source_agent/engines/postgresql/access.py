"""PostgreSQL: what the login may do, what a scan costs, what to grant, and what its errors mean.

The DBA's side of the engine. Nothing here tries anything: privileges come from the privilege
functions, costs from the catalogue and EXPLAIN.

Rejected: finding out what the login may write by writing and rolling back. A DBA who sees one
INSERT in her log, rolled back or not, has been lied to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from driftline.errors import (
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
    LimitExceeded,
    SnapshotLost,
    ValueDoesNotFit,
)
from psycopg import Error, OperationalError, errors, pq

from source_agent.engines.interface import (
    Ask,
    Fingerprint,
    Limits,
    Listed,
    Privilege,
    Relation,
    Shape,
)
from source_agent.engines.postgresql import hashes, policies, replaced, settings, split, types
from source_agent.engines.postgresql.sql import EXPLAIN, STATEMENTS, copy_of, range_sql
from source_agent.engines.relations import join_name, null_key_sql, quote, scan_sql, split_name
from source_agent.printable import counted

ROLE = """
SELECT rolname::pg_catalog.text, rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMP'),
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
       pg_catalog.current_database()::pg_catalog.text
FROM pg_catalog.pg_roles WHERE rolname = CURRENT_USER"""
SCHEMAS = """
SELECT nspname::pg_catalog.text FROM pg_catalog.pg_namespace
WHERE nspname !~ '^pg_' AND pg_catalog.has_schema_privilege(oid, 'CREATE') ORDER BY 1"""
WRITES = """
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), p.name
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN pg_catalog.unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p(name)
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_|^information_schema$'
  AND CASE WHEN p.name IN ('INSERT', 'UPDATE')
           THEN pg_catalog.has_any_column_privilege(c.oid, p.name)
           ELSE pg_catalog.has_table_privilege(c.oid, p.name) END
ORDER BY 1, 2"""
READS = """
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_|^information_schema$'
  AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT') ORDER BY 2"""
LISTED = """
SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text,
       CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = c.oid AND indisprimary)
       THEN NULL ELSE (
         SELECT ARRAY(SELECT a.attname::pg_catalog.text
                      FROM pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY k(n, at)
                      JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n
                      WHERE k.at <= i.indnkeyatts ORDER BY k.at)
         FROM pg_catalog.pg_index i
         WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
           AND i.indpred IS NULL AND i.indexprs IS NULL
           AND NOT EXISTS (SELECT FROM pg_catalog.unnest(i.indkey::pg_catalog.int2[])
                             WITH ORDINALITY k(n, at)
                           JOIN pg_catalog.pg_attribute a
                             ON a.attrelid = i.indrelid AND a.attnum = k.n
                           WHERE k.at <= i.indnkeyatts AND NOT a.attnotnull)
         ORDER BY i.indnkeyatts, i.indexrelid LIMIT 1) END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
  AND n.nspname !~ '^pg_|^information_schema$' ORDER BY 1, 2"""
RESOLVED = "SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid"
SIZE = """
SELECT reltuples::pg_catalog.float8, pg_catalog.pg_relation_size(oid)
FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%s)::pg_catalog.oid"""
CATALOGUE: Final = (ROLE, SCHEMAS, WRITES, READS, LISTED, RESOLVED, SIZE)

_ENDED: Final = "server closed the connection unexpectedly"  # libpq
PING_S: Final = 2  # libpq's least
_UNAVAILABLE: Final = ("08", "53", "57P")  # connection, resources, shutdown
_CONFLICT: Final = "40001"  # serialization_failure; of a standby, a conflict with recovery
_SNAPSHOT_LOST: Final = {_CONFLICT, "40P01", "25P03", "25P04", "72000"}
_BUSY_WORDS: Final = ("too many", "reserved for", "starting up", "shutting down", "recovery")


def error_of(result: pq.abc.PGresult | None) -> Error:
    """The driver's error for a result that should have been a success."""
    if result is None:
        return OperationalError("the connection was lost")
    return errors.error_from_result(result)


def connect_error(error: Error, parameters: dict[str, str]) -> DriftlineError:
    """Before the login there is no SQLSTATE: a server that answers a ping has refused us.

    The ping, which keeps the interpreter waiting, is for who has answered something.
    """
    text = " ".join(str(error).split())
    where = parameters.get("host", "the default socket")
    shown = {k: v for k, v in parameters.items() if k in {"host", "hostaddr", "port", "dbname"}}
    conninfo = " ".join(f"{k}='{_escaped(v)}'" for k, v in shown.items())
    conninfo += f" connect_timeout={PING_S}"
    is_silent = isinstance(error, errors.ConnectionTimeout)
    has_answered = not is_silent and pq.PGconn.ping(conninfo.encode()) == pq.Ping.OK
    if not has_answered or any(word in text for word in _BUSY_WORDS):
        return DatabaseUnavailable(
            f"PostgreSQL at {where} cannot be reached: {text}.",
            remedy="Check that it runs and that database.url is right, then try again.",
        )
    return DatabaseRefused(
        f"PostgreSQL at {where} refused the login: {text}.",
        remedy="Check the user, the password and the database's name in database.url, and"
        " pg_hba.conf.",
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def translate(error: Error, relation: Relation | None = None) -> DriftlineError:
    """The error that a user sees for one of psycopg's."""
    state = error.sqlstate or ""
    text = " ".join((error.diag.message_primary or str(error)).split()).rstrip(".")
    where = relation.name if relation else ""
    message = f"PostgreSQL says: {text}."
    if state == _CONFLICT and error.diag.message_detail:  # of a standby: which conflict it was
        message = f"PostgreSQL says: {text} ({error.diag.message_detail.strip().rstrip('.')})."
    if state in _SNAPSHOT_LOST or "transaction timeout" in text:
        return SnapshotLost(message, where=where)
    if state == "53100":
        return DatabaseUnavailable(
            message, where=where, remedy="Free space on the database server, then try again."
        )
    if not state and isinstance(error, OperationalError):
        if _ENDED in text:  # a server cannot give a reason behind rows that nobody has read
            message = "PostgreSQL ended the connection without giving a reason."
        return DatabaseUnavailable(
            message,
            where=where,
            remedy="Try again later; its log says whether it was restarted or the session ended.",
        )
    if state.startswith(_UNAVAILABLE):
        return DatabaseUnavailable(message, where=where, remedy="Try again later.")
    if state == "55P03":
        return DatabaseUnavailable(
            message, where=where, remedy="Someone holds a lock on it; try again later."
        )
    if state == "57014" and "user request" in text:
        return DatabaseRefused(
            message, where=where, remedy="Somebody at the source cancelled it: ask the DBA."
        )
    if state == "57014":
        return DatabaseRefused(
            message,
            where=where,
            remedy="Raise statement_timeout_s of the file or the statement_timeout of the role, "
            "whichever is shorter, or publish less of it.",
        )
    if state == "42501":
        what = relation.table if relation and relation.table else "every table it reads"
        return DatabaseRefused(
            message,
            where=where,
            remedy=f"As its owner: GRANT SELECT ON {what} TO the agent's role.",
        )
    if state in {"42P01", "42703", "3F000", "42601", "42P10", "42883", "42702"}:
        return ConfigurationError(
            message, where=where, remedy="Correct the table or the query in the file."
        )
    if state in {"22P05", "22021"}:
        return ValueDoesNotFit(
            message,
            where=where,
            remedy="Correct the text at the source, or publish a query that reads it as bytes.",
        )
    if state == "54000":
        return LimitExceeded(message, where=where)
    return DatabaseRefused(f"{message} (SQLSTATE {state})", where=where)


def _identifier(table: str) -> str:
    return ".".join(quote(part) for part in split_name(table))


def privileges(ask: Ask, relations: Sequence[Relation]) -> list[Privilege]:
    """See `Engine.privileges`."""
    name, superuser, createdb, createrole, replication, bypass, temporary, create, database = ask(
        ROLE
    )[0]
    found = [
        Privilege(f"{name} {what}", excess=True)
        for has, what in (
            (superuser, "is SUPERUSER: nothing is refused to it"),
            (createdb, "has CREATEDB"),
            (createrole, "has CREATEROLE"),
            (replication, "has REPLICATION"),
            (bypass, "has BYPASSRLS"),
            (temporary, f"may create temporary tables in {database}"),
            (create, f"may create schemas in {database}"),
        )
        if has
    ]
    found += [Privilege(f"CREATE in schema {s}", excess=True) for (s,) in ask(SCHEMAS)]
    found += [Privilege(f"{what} on {table}", excess=True) for table, what in ask(WRITES)]
    published = set()
    with contextlib.suppress(Error):
        published = {ask(RESOLVED, _identifier(r.table))[0][0] for r in relations if r.table}
    has_queries = any(r.query for r in relations)
    found += [
        Privilege(f"SELECT on {table}", excess=oid not in published and not has_queries)
        for oid, table in ask(READS)
    ]
    return found


def listed(ask: Ask) -> list[Listed]:
    """See `Engine.listed`. Partitions are read with the table that they are of."""
    return [
        Listed(schema, name, join_name((schema, name)), tuple(key or ()))
        for schema, name, key in ask(LISTED)
    ]


def scan_cost(ask: Ask, shape: Shape) -> str:
    """See `Engine.scan_cost`."""
    plan = ask(EXPLAIN + scan_sql(shape))[0][0][0]["Plan"]
    rows, size = int(plan["Plan Rows"]), int(plan["Plan Rows"]) * int(plan["Plan Width"])
    what = "estimated"
    if shape.relation.table and (sizes := ask(SIZE, _identifier(shape.relation.table))):
        tuples, heap = sizes[0]
        if tuples >= 0 and heap and not shape.relation.where:
            rows, size, what = int(tuples), int(heap), "on disk"
    return (
        f"about {counted(rows, 'row')}, {size / 2**20:,.1f} MiB {what}; "
        f"{plan['Node Type']}, cost {plan['Total Cost']:,.0f}"
    )


def grants(
    relations: Sequence[Relation], login: str, database: str, limits: Limits, *, connections: int
) -> str:
    """See `Engine.grants`."""
    role, place = quote(login), quote(database)
    schemas: dict[str, None] = {}
    selects = []
    for relation in relations:
        if relation.table is None:
            selects.append(f"-- {relation.name}: GRANT SELECT on every table that its query reads")
            continue
        parts = split_name(relation.table)
        schemas[quote(parts[0]) if len(parts) > 1 else "public"] = None
        columns = ""
        if relation.columns is not None and relation.key is not None:
            names = dict.fromkeys(relation.key + relation.columns)
            columns = f" ({', '.join(map(quote, names))})"
        selects.append(f"GRANT SELECT{columns} ON {_identifier(relation.table)} TO {role};")
    timeouts = {
        "lock_timeout": limits.lock_s,
        "idle_in_transaction_session_timeout": limits.idle_s,
        "statement_timeout": limits.statement_s,
    }
    lines = [
        "-- Least privilege for driftline-source. Run as the owner of the database.",
        "-- The role has no password: where pg_hba.conf asks for one, nobody can log in yet.",
        f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION",
        f"  CONNECTION LIMIT {connections};",
        f"ALTER ROLE {role} SET default_transaction_read_only = on;",
        *(
            f"ALTER ROLE {role} SET {name} = '{round(seconds * 1000)}ms';"
            for name, seconds in timeouts.items()
            if seconds is not None
        ),
        f"REVOKE TEMPORARY, CREATE ON DATABASE {place} FROM PUBLIC, {role};",
        f"GRANT CONNECT ON DATABASE {place} TO {role};",
        *(f"REVOKE CREATE ON SCHEMA {s} FROM PUBLIC, {role};" for s in schemas),
        *(f"GRANT USAGE ON SCHEMA {s} TO {role};" for s in schemas),
        *selects,
        "-- Then, in psql, with a password of your own, the same as in the agent's password_file:",
        f"-- \\password {role}",
    ]
    return "\n".join(lines) + "\n"


def templates(shapes: Sequence[Shape]) -> list[str]:
    """See `Engine.templates`."""
    reads = []
    for shape in shapes:
        reads += [*types.describing_sql(shape), copy_of(scan_sql(shape))]
        reads += split.templates(shape)
        if shape.recipe.integer_key:
            reads += [copy_of(scan_sql(shape, ordered=True)), copy_of(range_sql(shape))]
            reads += [copy_of(null_key_sql(shape))]
        if shape.relation.fingerprint is Fingerprint.DATABASE:
            reads += [hashes.SEED, copy_of(scan_sql(shape.hashed(seed=0)))]
    catalogue = (*types.CATALOGUE, *hashes.CATALOGUE, *CATALOGUE)
    more = (
        settings.SHOWN,
        *policies.STATEMENTS,
        *split.STATEMENTS,
        *replaced.CATALOGUE,
    )
    texts = [*STATEMENTS, *more, *catalogue, *reads]
    return list(dict.fromkeys(texts))
