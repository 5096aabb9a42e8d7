"""PostgreSQL: privileges of the login, cost of a scan, script of grants, meaning of errors.

Here is what the DBA's commands print. Nothing is tried out: privileges come from the catalogue
(`rights`), costs from the catalogue and EXPLAIN.

Rejected: finding out what the login may write by writing and rolling back. The server's log would
show a DBA an INSERT by an agent that promises to read only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from driftline.errors import (
    OPEN,
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
    LimitExceeded,
    SnapshotLost,
    ValueDoesNotFit,
)
from psycopg import Error, OperationalError, errors, pq
from psycopg.conninfo import make_conninfo

from source_agent.engines.encoding.rows import printable_value
from source_agent.engines.interface import Ask, Limits, Listed, Privilege
from source_agent.engines.postgresql import (
    hashes,
    locators,
    policies,
    replaced,
    settings,
    split,
    types,
)
from source_agent.engines.postgresql.activity import ACTIVITY
from source_agent.engines.postgresql.sql import (
    BOUNDS,
    CHECKED,
    EXPLAIN,
    LISTED,
    RESOLVED,
    STATEMENTS,
    between_sql,
    bytes_of,
    copy_of,
    finding,
    greatest_sql,
    key_hashes_sql,
    keys_sql,
    keys_statement,
    later_sql,
    marked_sql,
    no_character_sql,
    null_in_key_sql,
    range_sql,
)
from source_agent.engines.relations.markers import ORDERED
from source_agent.engines.relations.select import (
    PRESENCE,
    granted_columns,
    join_name,
    null_key_sql,
    plan_of,
    quote,
    scan_sql,
    split_name,
)
from source_agent.engines.relations.shapes import Fingerprint, Relation, Shape
from source_agent.engines.rights import postgresql as rights
from source_agent.printable import counted

SIZE = """
SELECT reltuples::pg_catalog.float8, pg_catalog.pg_relation_size(oid)
FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%s)::pg_catalog.oid"""
CATALOGUE: Final = (*rights.STATEMENTS, LISTED, RESOLVED, SIZE)

_ENDED: Final = "server closed the connection unexpectedly"  # libpq
_UNCONVERTED: Final = "MULE_INTERNAL"
# In English, as most servers answer: what is denied, and its name.
_DENIED: Final = re.compile(r"permission denied for ([a-z][a-z -]*[a-z]) (.+)$")
_GRANTED: Final = {  # by what is denied
    "schema": "USAGE ON SCHEMA {name}",
    "type": "USAGE ON TYPE {name}",
    "language": "USAGE ON LANGUAGE {name}",
    "foreign server": "USAGE ON FOREIGN SERVER {name}",
    "foreign-data wrapper": "USAGE ON FOREIGN DATA WRAPPER {name}",
    "function": "EXECUTE ON FUNCTION {name}",
    "procedure": "EXECUTE ON PROCEDURE {name}",
    "aggregate": "EXECUTE ON FUNCTION {name}",
    "sequence": "SELECT ON SEQUENCE {name}",
}
# The logins that have a right by PUBLIC alone.
_LOSERS: Final = """\
SELECT r.rolname FROM pg_roles r CROSS JOIN {table} o
WHERE r.rolcanlogin AND NOT r.rolsuper
  AND EXISTS (SELECT FROM aclexplode(COALESCE(o.{acl}, acldefault('{code}', o.{owner}))) a
              WHERE a.privilege_type = '{what}' AND a.grantee = 0)
  AND NOT EXISTS (SELECT FROM aclexplode(COALESCE(o.{acl}, acldefault('{code}', o.{owner}))) a
                  WHERE a.privilege_type = '{what}' AND a.grantee <> 0
                    AND pg_has_role(r.oid, a.grantee, 'USAGE'))"""
_DATABASE: Final = {
    "table": "pg_database", "name": "datname", "acl": "datacl", "owner": "datdba", "code": "d",
}  # fmt: skip
_SCHEMA: Final = {
    "table": "pg_namespace", "name": "nspname", "acl": "nspacl", "owner": "nspowner", "code": "n",
}  # fmt: skip
_PING_S: Final = 2  # libpq's least
_BUSY_WORDS: Final = (
    "too many", "reserved for", "starting up", "shutting down", "recovery",
    "cannot connect to server", "no more connections", "query_wait_timeout",  # of PgBouncer
)  # fmt: skip
UNSUPPORTED: Final = "unsupported startup parameter"  # of PgBouncer
_BY_STATEMENT: Final = "statement pooling mode"  # of PgBouncer
_CONFLICT: Final = "40001"  # serialization_failure; on a standby, a conflict with recovery
_NO_EQUIVALENT: Final = "22P05"  # of a character, in UTF-8
_NO_CHARACTERS: Final = (_NO_EQUIVALENT, "22021")
# SQLSTATEs, or what they begin with; the error; its remedy. The first that matches counts. 08 is
# the class of connections, 53 of resources, 57P of shutdowns.
_MEANINGS: Final[tuple[tuple[tuple[str, ...], type[DriftlineError], str], ...]] = (
    ((_CONFLICT, "40P01", "25P03", "25P04", "72000"), SnapshotLost, ""),
    (("53100",), DatabaseUnavailable, "Free space on the database server, then try again."),
    (("08", "53", "57P"), DatabaseUnavailable, "Try again later."),
    (("55P03",), DatabaseUnavailable, "Someone holds a lock on it; try again later."),
    (("42501",), DatabaseRefused, "{grant}"),
    (
        ("42P01", "42703", "3F000", "42601", "42P10", "42883", "42702"),
        ConfigurationError,
        "Correct the table or the query in the file.",
    ),
    (
        _NO_CHARACTERS,
        ValueDoesNotFit,
        "{found}Correct the text at the source, or publish a query that reads it as bytes.",
    ),
    (("54000",), LimitExceeded, ""),
    (
        ("55000",),  # of what a SELECT can meet, a materialized view that was never filled
        DatabaseRefused,
        "As the owner of a materialized view that was never filled: REFRESH MATERIALIZED VIEW.",
    ),
)
# The same for a warehouse, which may read no name of the database.
_IN_BRIEF: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    ((_CONFLICT,), "The read was cancelled, as a standby does in favour of recovery. "),
    (("57P01",), "An administrator ended the connection. "),
    (("53100",), "The database server's disk is full. "),
    (("55P03",), "Someone holds a lock on a table that it reads. "),
    (("42501",), "The source's login lacks a right that it needs, such as SELECT or USAGE. "),
    (("42P01", "42703", "3F000"), "A table or a column that it reads does not exist. "),
    (("55000",), "A materialized view that it reads was never filled. "),
)


def error_of(result: pq.abc.PGresult | None) -> Error:
    """Return the driver's error for a result that is no success; None is a lost connection."""
    if result is None:
        return OperationalError("the connection was lost")
    return errors.error_from_result(result)


def connect_error(error: Error, parameters: dict[str, str]) -> DriftlineError:
    """Return the error for a connection that was not made.

    An error before the login has no SQLSTATE, so a server that answers a ping has refused us. A
    server that did not answer the login is not pinged, because a ping blocks the interpreter.
    """
    text = " ".join(str(error).split())
    where = parameters.get("host", "the default socket")
    if _UNCONVERTED in text:
        return DatabaseRefused(
            f"The database at {where} has the encoding {_UNCONVERTED}, which PostgreSQL does not"
            " convert to UTF-8.",
            remedy="Restore a dump of it, made with `pg_dump --encoding`, into a database of"
            " another encoding.",
            abroad=f"The database has the encoding {_UNCONVERTED}, which cannot be read.",
        )
    if UNSUPPORTED in text:
        return DatabaseRefused(
            f"A connection pooler at {where} refused the connection: {text}.",
            remedy="Remove the parameter from database.url and from the environment (PG…), or have"
            " it added to the pooler's ignore_startup_parameters.",
            abroad="A connection pooler refused the connection.",
        )
    address = {k: v for k, v in parameters.items() if k in {"host", "hostaddr", "port", "dbname"}}
    conninfo = make_conninfo(**address, connect_timeout=_PING_S)
    is_silent = isinstance(error, errors.ConnectionTimeout)
    has_answered = not is_silent and pq.PGconn.ping(conninfo.encode()) == pq.Ping.OK
    if not has_answered or any(word in text for word in _BUSY_WORDS):
        return DatabaseUnavailable(
            f"PostgreSQL at {where} cannot be reached: {text}.",
            remedy="Check that it runs and that database.url is right, then try again.",
            abroad="PostgreSQL cannot be reached.",
        )
    return DatabaseRefused(
        f"PostgreSQL at {where} refused the login: {text}.",
        remedy="Check the user, the password and the database's name in database.url, and"
        " pg_hba.conf.",
        abroad="PostgreSQL refused the login.",
    )


def translate(error: Error, relation: Relation | None = None) -> DriftlineError:
    """Return the error that a user sees for an error of psycopg."""
    state = error.sqlstate or ""
    text = " ".join((error.diag.message_primary or str(error)).split()).rstrip(".")
    where = relation.name if relation else ""
    message, brief = f"PostgreSQL says: {text}.", _brief(error, state, text)
    if state == _CONFLICT and error.diag.message_detail:  # on a standby: which conflict it was
        message = f"PostgreSQL says: {text} ({error.diag.message_detail.strip().rstrip('.')})."
    if _BY_STATEMENT in text:
        return no_transactions()
    if "transaction timeout" in text:
        return SnapshotLost(message, where=where, abroad=brief)
    if not state and isinstance(error, OperationalError):
        if _ENDED in text:  # a server cannot send a reason behind rows that nobody has read
            message = "PostgreSQL ended the connection without giving a reason."
        return DatabaseUnavailable(
            message,
            where=where,
            remedy="Try again later; its log says whether it was restarted or the session ended.",
            abroad=brief,
        )
    if state == "57014":
        return DatabaseRefused(message, where=where, remedy=_cancelled(text), abroad=brief)
    for states, kind, remedy in _MEANINGS:
        if state.startswith(states):
            said = remedy.replace("{grant}", _missing_grant(text, relation))
            said = said.replace("{found}", _finding(error))
            return kind(message, where=where, remedy=said, abroad=brief)
    return DatabaseRefused(f"{message} (SQLSTATE {state})", where=where, abroad=brief)


def _brief(error: Error, state: str, text: str) -> str:
    """Return what a warehouse may read of an error: how PostgreSQL calls it, and no name in it."""
    if not state:
        return "PostgreSQL ended the connection."
    if state == "57014" and "statement timeout" in text:
        return "A statement timeout of the file (statement_timeout_s) or of the role was reached."
    if state == "57014" and "user request" in text:
        return "Somebody at the source cancelled the statement."
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    meaning = next((said for states, said in _IN_BRIEF if state.startswith(states)), "")
    return f"{meaning}PostgreSQL says: {words} (SQLSTATE {state})."


def no_transactions() -> DatabaseRefused:
    """Return the error for a pooler that has no transactions."""
    return DatabaseRefused(
        "The connection pooler of database.url passes each statement on by itself (statement"
        " pooling), so no two of them see one snapshot.",
        remedy="Name the server itself in database.url, or have the pooler pool by transaction or"
        " by session (pool_mode of PgBouncer).",
        abroad="A connection pooler passes each statement on by itself, without a snapshot.",
    )


def several_servers(what: str) -> DatabaseUnavailable:
    """Return the error for connections of which each may reach another server."""
    return DatabaseUnavailable(
        what,
        remedy="Have `database.url` name one server, not a list or a balancer of several.",
        abroad=OPEN,
    )


def no_character(error: Error) -> tuple[str, str] | None:
    """Return the bytes that are no character, in hexadecimal digits, and their encoding."""
    is_character = error.sqlstate == _NO_EQUIVALENT
    text = " ".join((error.diag.message_primary or "").split())
    return bytes_of(text, is_character=is_character) if error.sqlstate in _NO_CHARACTERS else None


def placed(ask: Ask, failure: DriftlineError, error: Error, shape: Shape) -> DriftlineError:
    """Return the error for bytes that are no character, with the first row that has them."""
    form, is_character = no_character(error), error.sqlstate == _NO_EQUIVALENT
    search = no_character_sql(shape, is_character=is_character)
    if form is None or not search or not (is_character or form[1] in CHECKED):
        return failure
    ask(BOUNDS, *form)
    rows = ask(search)
    if not rows:
        return failure
    *key, place = rows[0]
    texts = [c.name for c in shape.recipe.columns if c.type.kind == "text"]
    shown = ", ".join(map(printable_value, key))
    return ValueDoesNotFit(
        f"{failure.message} It is in the column {texts[place]}, in the row with key {shown}.",
        remedy=failure.remedy,
        where=f"{shape.relation.name}.{texts[place]}",
        details={"key": shown},
    )


def _cancelled(text: str) -> str:
    """Return the remedy for a statement that was cancelled; `text` may be in any language."""
    by_hand = "Somebody at the source cancelled it: ask the DBA."
    by_limit = (
        "Raise statement_timeout_s of the file or the statement_timeout of the role, whichever is"
        " shorter, or publish less of it."
    )
    if "user request" in text:
        return by_hand
    return by_limit if "timeout" in text else f"If it took long: {by_limit} If not: {by_hand}"


def _finding(error: Error) -> str:
    """Return how the owner finds the rows with bytes that are no character; empty: not known."""
    damage = no_character(error)
    return finding(*damage, is_character=error.sqlstate == _NO_EQUIVALENT) if damage else ""


def _missing_grant(text: str, relation: Relation | None) -> str:
    """Return the remedy for a privilege that is missing, by the server's message.

    The message names an object without its schema. Another object than the relation's own table is
    read by a query, or by a view with the rights of its owner.
    """
    table = relation.table if relation else None
    match = _DENIED.search(text)
    what, name = match.groups() if match else ("", "")
    if what in _GRANTED:
        owner = "" if table is None else " (if a view reads it, to its owner)"
        reader = f"the agent's role{owner}"
        return f"As its owner: GRANT {_GRANTED[what].format(name=quote(name))} TO {reader}."
    if table is not None and (not match or split_name(table)[-1] == name):
        return f"As its owner: GRANT SELECT ON {table} TO the agent's role."
    if match:
        return f"As its owner: GRANT SELECT ON {name} TO the role that reads it."
    return "As their owner: GRANT SELECT ON every table it reads TO the agent's role."


def _identifier(table: str) -> str:
    return ".".join(map(quote, split_name(table)))


def privileges(ask: Ask, relations: Sequence[Relation]) -> list[Privilege]:
    """List what the login may do, for `Engine.privileges`."""
    tables = [_identifier(r.table) for r in relations if r.table]
    return rights.privileges(ask, tables, has_queries=any(r.query for r in relations))


def listed(ask: Ask) -> list[Listed]:
    """List tables and views for `Engine.listed`; partitions are read with their parent."""
    tables = []
    for schema, name, key in ask(LISTED):
        parts = (schema, name)
        bad = [part for part in (*parts, *(key or ())) if not _is_text(part)]
        texts = [part.decode(errors="backslashreplace") for part in parts]
        columns = () if bad else tuple(column.decode() for column in key or ())
        unread = f"A name of it is not in UTF-8: {bad[0]!r}. ALTER … RENAME." if bad else ""
        tables.append(Listed(texts[0], texts[1], join_name(texts), columns, unread))
    return tables


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def scan_cost(ask: Ask, shape: Shape) -> str:
    """Describe the cost of a full scan, for `Engine.scan_cost`."""
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
    """Return the script of grants, for `Engine.grants`."""
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
        if names := granted_columns(relation, hidden="xmin"):
            columns = f" ({', '.join(map(quote, (*names, *locators.GRANTED)))})"
        selects.append(f"GRANT SELECT{columns} ON {_identifier(relation.table)} TO {role};")
    lines = [
        "-- Least privilege for driftline-source. Run as the owner of the database and its tables,",
        "-- who may create roles, or as a superuser. It is one transaction, and can be run again.",
        "-- The role has no password: where pg_hba.conf asks for one, nobody can log in yet.",
        "BEGIN;",
        *_role(role, login, limits, connections),
        f"GRANT CONNECT ON DATABASE {place} TO {role};",
        *(f"GRANT USAGE ON SCHEMA {s} TO {role};" for s in schemas),
        *selects,
        "COMMIT;",
        "-- Then, in psql, with a password of your own, the same as in the agent's password_file:",
        f"-- \\password {role}",
        *_of_public(login, place, list(schemas)),
    ]
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _role(role: str, login: str, limits: Limits, connections: int) -> list[str]:
    """Return the statement that makes the role; one that exists may be somebody else's as well."""
    tag = "$driftline$"
    while tag in login:
        tag = f"{tag[:-1]}_$"
    return [
        f"DO {tag}",
        "BEGIN",
        f"  IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {_literal(login)}) THEN",
        f"    RAISE NOTICE 'role % keeps its attributes and settings', {_literal(login)};",
        "  ELSE",
        f"    CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION",
        f"      CONNECTION LIMIT {connections};",
        f"    ALTER ROLE {role} SET default_transaction_read_only = on;",
        *(
            f"    ALTER ROLE {role} SET {name} = '{ms}ms';"
            for name, ms in settings.timeouts(limits).items()
        ),
        "  END IF;",
        "END",
        f"{tag};",
    ]


def _of_public(login: str, database: str, schemas: Sequence[str]) -> list[str]:
    """Return as a comment what an administrator could take from PUBLIC, and who would lose it."""
    lines = [
        "-- What PUBLIC may do stays, and the role may do it as well: `check` prints it as notes.",
        "-- Revoking it takes it from every login without a grant of its own. The SELECTs list",
        "-- these logins: ask their owners first. A new database lets PUBLIC make temporary tables",
        "-- and, before PostgreSQL 15, tables in the schema public.",
    ]
    objects = [("DATABASE", database, "TEMPORARY", _DATABASE)]
    objects += [("SCHEMA", schema, "CREATE", _SCHEMA) for schema in schemas]
    for kind, name, what, catalogue in objects:
        named = f"o.{catalogue['name']} = {_literal(split_name(name)[0])}"
        lines += [
            f"-- REVOKE {what} ON {kind} {name} FROM PUBLIC;",
            *(f"-- {line}" for line in _LOSERS.format(**catalogue, what=what).splitlines()),
            f"--   AND {named} AND r.rolname <> {_literal(login)};",
        ]
    return lines


def _marked(shape: Shape) -> list[str]:
    """List the SQL texts by which changes are found by a marker."""
    if shape.marker is None:
        return []
    keys = shape.keys()
    read = [marked_sql(shape), marked_sql(keys), scan_sql(shape.narrow())]
    read += [sql for other in shape.unmarked for sql in (marked_sql(other), scan_sql(other))]
    statements = [copy_of(sql) for sql in read]
    statements += [copy_of(greatest_sql(shape, name)) for name in shape.marker.versions]
    if shape.marker.is_time:
        statements.append(copy_of(later_sql(shape)))
    if shape.marker.kind in ORDERED:
        statements.append(EXPLAIN + marked_sql(shape))
    statements.append(EXPLAIN + keys_statement(shape))
    hashed = [copy_of(key_hashes_sql(shape))] if plan_of(shape).key_hash else []
    return [*statements, hashes.SEED, *hashed]


def templates(shapes: Sequence[Shape]) -> list[str]:
    """List the SQL texts that can be issued for these relations, for `Engine.templates`."""
    reads = []
    for shape in shapes:
        reads += [*types.describing_sql(shape), copy_of(scan_sql(shape)), *split.templates(shape)]
        reads += locators.templates(shape)
        if shape.recipe.integer_key:
            reads += [copy_of(scan_sql(shape, ordered=True)), copy_of(range_sql(shape))]
            reads += [copy_of(null_key_sql(shape))]
        if not shape.unordered:
            reads += [copy_of(between_sql(shape, within)) for within in PRESENCE]
            reads.append(copy_of(keys_sql(shape)))
            nullable = [i for i, column in enumerate(shape.recipe.key) if column.nullable]
            reads += [copy_of(null_in_key_sql(shape, place)) for place in nullable]
        searches = (no_character_sql(shape, is_character=one) for one in (True, False))
        reads += [*_marked(shape), *filter(None, searches)]
        if shape.relation.fingerprint is Fingerprint.DATABASE:
            reads += [hashes.SEED, copy_of(scan_sql(shape.hashed(seed=0)))]
    session = (*STATEMENTS, *settings.STATEMENTS, *policies.STATEMENTS, ACTIVITY)
    snapshot = (*split.STATEMENTS, *replaced.CATALOGUE)
    catalogue = (*types.CATALOGUE, *hashes.CATALOGUE, *locators.CATALOGUE, *CATALOGUE)
    return list(dict.fromkeys([*session, *snapshot, *catalogue, *reads]))
