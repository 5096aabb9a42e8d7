"""PostgreSQL: the statements of a session, the SELECTs of a relation, and COPY around them.

Only text: no I/O, no values. The statements of descriptions are in `types`, of parts in `split`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from driftline.rows.key_order import Key, KeyRange

from source_agent.engines.postgresql.settings import SETTINGS
from source_agent.engines.postgresql.values import array_of, bound, literal, named
from source_agent.engines.relations.markers import MarkedBy, Marker, MarkerKind, behind, behind_any
from source_agent.engines.relations.select import (
    beside_key,
    plan_of,
    quote,
    scan_sql,
    select_sql,
)
from source_agent.engines.relations.shapes import Shape

# Bytes and their encoding in a message of any language.
_BYTES: Final = r"(?P<bytes>(?:0x[0-9a-f]{2} ?)+)"
_ENCODING: Final = '["»«„“] ?(?P<encoding>\\w+) ?["»«“”]'
_NO_EQUIVALENT: Final = re.compile(f"{_BYTES}.*?{_ENCODING}")
_NO_CHARACTER: Final = re.compile(f"{_ENCODING}.*?{_BYTES}")
_BACKSLASH: Final = "pg_catalog.chr(92)"  # whatever `standard_conforming_strings` says
CHECKED: Final = ("EUC_CN", "EUC_KR")  # whose texts the server checks when it sends them
_EUC: Final = "^([0-7].|((a[1-9a-f])|([b-e].)|(f[0-9a-e])){2})*$"  # a text, in hexadecimal digits
ONLY: Final = "ONLY "  # before the name of a plain table in FROM
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
ISOLATION: Final = "repeatable read"  # as a transaction shows it
# Behind a pooler. One message, so no statement of another client comes between; nothing in it takes
# a snapshot. RESET ALL also resets an owner's own settings (`app.tenant`), which policies read.
BEGIN_POOLED = ";\n".join(
    (
        BEGIN,
        "SET LOCAL SESSION AUTHORIZATION DEFAULT",
        "SET LOCAL role TO DEFAULT",
        "RESET ALL",
        *(f"SET LOCAL {name} TO '{value}'" for name, value in SETTINGS.items()),
    )
)
ROLLBACK = "ROLLBACK"
# By them a pooler is recognised, and that it leads to one server.
BACKEND = """SELECT pg_catalog.pg_backend_pid(),
       pg_catalog.current_setting('default_transaction_read_only'),
       pg_catalog.inet_client_port(), pg_catalog.current_setting('port')::pg_catalog.int4"""
SERVER = """SELECT pg_catalog.pg_postmaster_start_time()::pg_catalog.text,
       pg_catalog.pg_backend_pid(), pg_catalog.current_setting('transaction_isolation')"""
PGPOOL = "SHOW pool_version"  # which Pgpool-II answers itself
_AS_TEXT: Final = """pg_catalog.to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
# A standby shows what it has replayed, up to a commit, whose time is by the primary's clock; NULL
# if that is none since its start, and then up to a checkpoint.
_CLOCK: Final = """CASE WHEN pg_catalog.pg_is_in_recovery()
  THEN pg_catalog.pg_last_xact_replay_timestamp() ELSE pg_catalog.statement_timestamp() END"""
AS_OF = f"SELECT {_AS_TEXT.format(f'({_CLOCK})')}"
REPLAYED = f"SELECT {_AS_TEXT.format('checkpoint_time')} FROM pg_catalog.pg_control_checkpoint()"
FIRST_READ = "SELECT 1"  # takes the snapshot
BOUNDS = (  # of a read, kept in settings because COPY takes no parameters
    "SELECT pg_catalog.set_config('driftline.first', %s, true), "
    "pg_catalog.set_config('driftline.last', %s, true)"
)
VALUES = (  # of a derivation, as text: driftline.value1, driftline.value2 …
    "SELECT pg_catalog.set_config(pg_catalog.concat('driftline.value', p.number), p.value, true)\n"
    "FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS p(value, number)"
)
# Bounds of keys, and that they are looked up by index: the planner takes the comparisons with two
# bounds for independent, and would rather read the whole table.
KEY_BOUNDS = (
    "SELECT pg_catalog.set_config(p.name, p.value, true)\n"
    "FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]), "
    "pg_catalog.unnest(%s::pg_catalog.text[])) AS p(name, value)"
)
SEQUENTIAL = "enable_seqscan"
SHOW_SEQUENTIAL = "SELECT pg_catalog.current_setting('enable_seqscan')"
EXPORT = "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::pg_catalog.text"
EXPLAIN = "EXPLAIN (FORMAT JSON) "
SAVEPOINT = "SAVEPOINT driftline_read"
ROLLBACK_TO = "ROLLBACK TO SAVEPOINT driftline_read"
RELEASE = "RELEASE SAVEPOINT driftline_read"
# What tells this database from a copy, a restored one, and one after a fail-over.
# A name as UTF-8, also one whose bytes are no text in the encoding that the database declares.
_NAME_BYTES: Final = f"""\
CASE WHEN pg_catalog.current_setting('server_encoding') IN ('UTF8', 'SQL_ASCII')
     THEN pg_catalog.decode(pg_catalog.replace({{name}}::pg_catalog.text, {_BACKSLASH},
                            pg_catalog.repeat({_BACKSLASH}, 2)), 'escape')
     ELSE pg_catalog.convert_to({{name}}::pg_catalog.text, 'UTF8') END"""
LISTED: Final = f"""
SELECT {_NAME_BYTES.format(name="n.nspname")}, {_NAME_BYTES.format(name="c.relname")},
       CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = c.oid AND indisprimary)
       THEN NULL ELSE (
         SELECT ARRAY(SELECT {_NAME_BYTES.format(name="a.attname")}
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
IDENTITY = """SELECT s.system_identifier::pg_catalog.text, c.timeline_id::pg_catalog.text,
       d.oid::pg_catalog.text
FROM pg_catalog.pg_control_system() s, pg_catalog.pg_control_checkpoint() c,
     pg_catalog.pg_database d
WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"""
# Where a relation is now: the mark of a snapshot, and the files of a table and what is below it.
# A server that starts again may give numbers twice: commits that were not on disk are gone, or its
# files are an older copy. If one process crashes, all others begin anew, and lose their statistics.
RUNNING = """SELECT pg_catalog.pg_snapshot_xmin(s)::pg_catalog.text,
       pg_catalog.pg_snapshot_xmax(s)::pg_catalog.text
FROM pg_catalog.pg_current_snapshot() s"""
XMIN = """SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.text,
       pg_catalog.concat_ws(':',
         pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()),
         pg_catalog.date_part('epoch', pg_catalog.pg_stat_get_bgwriter_stat_reset_time()))"""
# `relnatts` counts each column that a table ever had: a new one's default is in no row.
LEAVES = """
WITH RECURSIVE tree(oid) AS (
  SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid
  UNION
  SELECT below.inhrelid FROM tree
  JOIN pg_catalog.pg_inherits below ON below.inhparent OPERATOR(pg_catalog.=) tree.oid
)
SELECT c.oid::pg_catalog.text, c.relkind::pg_catalog.text,
       pg_catalog.concat_ws(':', c.relfilenode, c.relnatts)
FROM tree JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) tree.oid ORDER BY c.oid"""
# What a mark keeps of tables, columns, expressions, labels and functions: each entry's own number
# and the transaction that wrote it, so any change counts. Of a query, which does not tell what it
# reads, the roots are all relations that the login may read.
DEFINITION = """
WITH RECURSIVE tree(oid) AS (
  SELECT c.oid FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
  WHERE CASE WHEN %s::pg_catalog.text IS NOT NULL
    THEN c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)::pg_catalog.oid
    ELSE c.relkind::pg_catalog.text OPERATOR(pg_catalog.=)
        ANY ('{r,p,v,m,f}'::pg_catalog.text[])
      AND n.nspname::pg_catalog.text OPERATOR(pg_catalog.!~) '^pg_|^information_schema$'
      AND (pg_catalog.has_table_privilege(c.oid, 'SELECT')
        OR pg_catalog.has_any_column_privilege(c.oid, 'SELECT')) END
  UNION
  SELECT next.oid FROM tree CROSS JOIN LATERAL (
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i
    WHERE i.inhparent OPERATOR(pg_catalog.=) tree.oid
    UNION ALL
    SELECT d.refobjid FROM pg_catalog.pg_rewrite r
    JOIN pg_catalog.pg_depend d ON d.objid OPERATOR(pg_catalog.=) r.oid
      AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_rewrite'::pg_catalog.regclass
      AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
    WHERE r.ev_class OPERATOR(pg_catalog.=) tree.oid) next(oid)
), attribute AS (
  SELECT a.attrelid, a.attnum, a.atttypid, a.xmin FROM tree
  JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) tree.oid
  WHERE a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
), expression AS (
  SELECT d.oid, d.xmin, 'pg_catalog.pg_attrdef'::pg_catalog.regclass::pg_catalog.oid AS class
  FROM tree JOIN pg_catalog.pg_attrdef d ON d.adrelid OPERATOR(pg_catalog.=) tree.oid
  UNION ALL
  SELECT r.oid, r.xmin, 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid
  FROM tree JOIN pg_catalog.pg_rewrite r ON r.ev_class OPERATOR(pg_catalog.=) tree.oid
), entry(kind, one, two, written) AS (
  SELECT 'column', attrelid, attnum::pg_catalog.oid, xmin FROM attribute
  UNION ALL SELECT 'expression', class, oid, xmin FROM expression
  UNION ALL
  SELECT 'label', e.enumtypid, e.oid, e.xmin
  FROM (SELECT DISTINCT atttypid FROM attribute) a
  JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
  JOIN pg_catalog.pg_enum e ON e.enumtypid OPERATOR(pg_catalog.=)
    ANY (ARRAY[t.oid, t.typelem, t.typbasetype])
  UNION ALL
  SELECT 'function', p.oid, e.oid, p.xmin FROM expression e
  JOIN pg_catalog.pg_depend d ON d.objid OPERATOR(pg_catalog.=) e.oid
    AND d.classid OPERATOR(pg_catalog.=) e.class
    AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
  JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.refobjid
)
SELECT pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.string_agg(
  pg_catalog.concat_ws(' ', kind, one, two, written), ',' ORDER BY kind, one, two,
    written::pg_catalog.text
), 'UTF8')), 'hex') FROM entry"""
# Modulo 2^32: a number is as old as the mark, or younger, if it is less than half of that above it.
_BEHIND_XMIN: Final = (
    "((xmin::pg_catalog.text::pg_catalog.int8 OPERATOR(pg_catalog.-)"
    " pg_catalog.current_setting('driftline.first')::pg_catalog.int8)"
    " OPERATOR(pg_catalog.&) 4294967295) OPERATOR(pg_catalog.<) 2147483648"
)
_CASTS: Final = {"int2": "int8", "int4": "int8", "oid": "int8"}
_OF_READ: Final = (SAVEPOINT, ROLLBACK_TO, RELEASE)
_OF_KEYS: Final = (KEY_BOUNDS, SHOW_SEQUENTIAL)
_OF_SESSION: Final = (
    BEGIN,
    BEGIN_POOLED,
    BACKEND,
    SERVER,
    PGPOOL,
    ROLLBACK,
    AS_OF,
    REPLAYED,
    FIRST_READ,
    BOUNDS,
    VALUES,
    EXPORT,
    IDENTITY,
    RUNNING,
    XMIN,
    LEAVES,
    DEFINITION,
)
STATEMENTS: Final = (*_OF_SESSION, *_OF_KEYS, *_OF_READ)


def copy_of(select_sql: str) -> str:
    """Return the COPY statement that sends the rows of a SELECT in binary."""
    return f"COPY (\n{select_sql}\n) TO STDOUT (FORMAT binary)"


def name_of(shape: Shape) -> str:
    """Return the name of a relation that is a table, quoted as in FROM; of another, its SELECT."""
    return plan_of(shape).source.removeprefix(ONLY)


def range_sql(shape: Shape, *, literal: bool = False) -> str:
    """Return the SELECT of `read_ranges`: one index scan per range. OFFSET 0 keeps a nested loop.

    With `literal`, one range of one key replaces the settings: EXPLAIN runs before they are set.
    """
    plan = plan_of(shape)
    key = quote(shape.recipe.columns[0].name)
    bounds = (
        "(SELECT 1::pg_catalog.int8, 1::pg_catalog.int8)"
        if literal
        else "ROWS FROM (\n"
        "  pg_catalog.unnest(pg_catalog.current_setting('driftline.first')::pg_catalog.int8[]),\n"
        "  pg_catalog.unnest(pg_catalog.current_setting('driftline.last')::pg_catalog.int8[]))"
    )
    reads = ", ".join(f"{read} AS c{i}" for i, read in enumerate(plan.reads))
    where = f"{plan.where} AND " if plan.where else ""
    return (
        f"SELECT driftline_row.*\nFROM {bounds} AS driftline_range(first_key, last_key)\n"
        f"CROSS JOIN LATERAL (\n  SELECT {reads}\n  FROM {plan.source}\n  WHERE {where}"
        f"{key} OPERATOR(pg_catalog.>=) driftline_range.first_key"
        f" AND {key} OPERATOR(pg_catalog.<=) driftline_range.last_key\n"
        "  OFFSET 0) AS driftline_row"
    )


def marked_sql(shape: Shape) -> str:
    """Return the SELECT of the rows behind the mark in a setting."""
    marked = shape.marker
    assert marked is not None, "a relation without a marker has no mark"
    if marked.kind is MarkerKind.XMIN:
        return select_sql(shape, _BEHIND_XMIN)

    def one(each: MarkedBy, place: int) -> str:
        bound = _mark_bound(each, place if marked.joined else None)
        return behind(quote(each.marker.column), bound, each, "OPERATOR(pg_catalog.>=)")

    return select_sql(shape, behind_any(marked, one))


def _mark_bound(marked: MarkedBy, place: int | None = None) -> str:
    """Return the SQL of a mark; place: among those of a query's tables, None: it has one alone."""
    # No subquery: the planner must see the value.
    text = "pg_catalog.current_setting('driftline.first')"
    if place is not None:
        text = f"({text}::pg_catalog.json OPERATOR(pg_catalog.->>) {place})"
    return f"{text}::pg_catalog.{_CASTS.get(marked.type, marked.type)}"


def later_sql(shape: Shape) -> str:
    """Return the SELECT of the number of rows whose marker is greater than a setting."""
    marked, plan = shape.marker, plan_of(shape)
    assert marked is not None, "a relation without a marker has no mark"
    later = f"{quote(marked.marker.column)} OPERATOR(pg_catalog.>) {_mark_bound(marked)}"
    where = " AND ".join(filter(None, (plan.where, later)))
    return f"SELECT pg_catalog.count(*) FROM {plan.source}\nWHERE {where}"


def kept_sql(marker: Marker | None) -> str:
    """Return the condition of rows that the flag of a marker does not delete; NULL deletes none."""
    if marker is None or marker.deleted is None:
        return ""
    flag = f"({quote(marker.deleted)})::pg_catalog.int4"  # of truth values and of integers
    return f"(COALESCE({flag}, 0) OPERATOR(pg_catalog.=) 0)"


def misflagged_sql(marker: Marker | None) -> str:
    """Return the condition of rows whose flag is NULL, or neither 0 nor 1; empty: no flag."""
    if marker is None or marker.deleted is None:
        return ""
    flag = quote(marker.deleted)
    number = f"({flag})::pg_catalog.int4"
    among = f"{number} OPERATOR(pg_catalog.<) 0 OR {number} OPERATOR(pg_catalog.>) 1"
    return f"({flag} IS NULL OR {among})"


def greatest_sql(shape: Shape, name: str) -> str:
    """Return the SELECT of the greatest version in a column of a relation, as text."""
    plan = plan_of(shape)
    where = f"\nWHERE {plan.where}" if plan.where else ""
    return f"SELECT pg_catalog.max({quote(name)})::pg_catalog.text FROM {plan.source}{where}"


def key_hashes_sql(shape: Shape) -> str:
    """Return the SELECT of the number of rows, and the sums of both halves of the hashes of their
    keys. OFFSET 0 keeps each hash from being made twice."""
    plan = plan_of(shape)
    where = f"\n  WHERE {plan.where}" if plan.where else ""
    halves = (
        "h OPERATOR(pg_catalog.&) 4294967295",
        "(h OPERATOR(pg_catalog.>>) 32) OPERATOR(pg_catalog.&) 4294967295",
    )
    sums = ", ".join(f"COALESCE(pg_catalog.sum({h}), 0)::pg_catalog.int8" for h in halves)
    return (
        f"SELECT pg_catalog.count(*), {sums}\nFROM (\n  SELECT {plan.key_hash} AS h\n"
        f"  FROM {plan.source}{where}\n  OFFSET 0) AS driftline_key"
    )


def keys_statement(shape: Shape) -> str:
    """Return the statement by which the keys of all rows are read, or their hashes added up."""
    return key_hashes_sql(shape) if plan_of(shape).key_hash else scan_sql(shape.narrow())


def key_index_sql(shape: Shape) -> str:
    """Return the statements after which the keys of all rows are read by an index alone: the pages
    of the table are looked at where VACUUM has not been."""
    table, beside = plan_of(shape).source.removeprefix(ONLY), beside_key(shape)
    vacuum = f"VACUUM {table}"
    if shape.vouched and not beside:
        return vacuum
    key = ", ".join(quote(column.name) for column in shape.recipe.key)
    include = f" INCLUDE ({', '.join(map(quote, beside))})" if beside else ""
    return f"CREATE INDEX ON {table} ({key}){include}; {vacuum}"


def key_bounds(shape: Shape, within: KeyRange) -> dict[str, str]:
    """Return the settings that hold the bounds of a range of keys."""
    bounds = {"lower": within.lower, "upper": within.upper}
    return {
        _setting(which, i): literal(column, text)
        for which, key in bounds.items()
        for i, (column, text) in enumerate(zip(shape.recipe.key, key or (), strict=False))
    }


def between_sql(shape: Shape, within: KeyRange) -> str:
    """Return the SELECT of the keys in a range, of which only the presence of bounds matters.

    A comparison of rows is a range of an index. That of the first column alone, which it implies,
    is for the planner: it takes two of them for one range.
    """
    conditions = []
    if within.lower is not None:
        conditions += _comparisons(shape, "lower", ">=", ">=")
    if within.upper is not None:
        conditions += _comparisons(shape, "upper", "<", "<=")
    return select_sql(shape, *conditions)


def keys_sql(shape: Shape) -> str:
    """Return the SELECT of `read_keys`: one index scan per key. OFFSET 0 keeps a nested loop."""
    plan, key = plan_of(shape), shape.recipe.key
    values = ",\n".join(
        f"  {named(column, form, _setting('key', i))}"
        for i, (column, form) in enumerate(zip(key, plan.forms, strict=False))
    )
    names = ", ".join(f"k{i}" for i in range(len(key)))
    reads = ", ".join(f"{read} AS c{i}" for i, read in enumerate(plan.reads))
    equal = [
        f"{quote(column.name)} OPERATOR(pg_catalog.=) driftline_key.k{i}"
        for i, column in enumerate(key)
    ]
    where = " AND ".join(filter(None, (plan.where, *equal)))
    return (
        f"SELECT driftline_row.*\nFROM ROWS FROM (\n{values}) AS driftline_key({names})\n"
        f"CROSS JOIN LATERAL (\n  SELECT {reads}\n  FROM {plan.source}\n  WHERE {where}\n"
        "  OFFSET 0) AS driftline_row"
    )


def named_keys(shape: Shape, keys: Sequence[Key]) -> dict[str, str]:
    """Return the settings that hold keys, an array for each column."""
    columns = zip(shape.recipe.key, zip(*keys, strict=True), strict=True)
    return {_setting("key", i): array_of(column, v) for i, (column, v) in enumerate(columns)}


def null_in_key_sql(shape: Shape, place: int) -> str:
    """Return the SELECT of one row with a NULL in this column of the key, behind equal ones."""
    names = [quote(column.name) for column in shape.recipe.key[: place + 1]]
    bounds = _bounds(shape, "lower")[:place]
    equal = [f"{n} OPERATOR(pg_catalog.=) {b}" for n, b in zip(names, bounds, strict=False)]
    return select_sql(shape, *equal, f"{names[-1]} IS NULL", tail="\nLIMIT 1")


def _comparisons(shape: Shape, which: str, operator: str, first: str) -> list[str]:
    names = [quote(column.name) for column in shape.recipe.key]
    bounds = _bounds(shape, which)
    if len(names) == 1:
        return [f"{names[0]} OPERATOR(pg_catalog.{operator}) {bounds[0]}"]
    return [
        f"{names[0]} OPERATOR(pg_catalog.{first}) {bounds[0]}",
        f"ROW({', '.join(names)}) OPERATOR(pg_catalog.{operator}) ROW({', '.join(bounds)})",
    ]


def _bounds(shape: Shape, which: str) -> list[str]:
    columns = zip(shape.recipe.key, plan_of(shape).forms, strict=False)
    return [bound(column, form, _setting(which, i)) for i, (column, form) in enumerate(columns)]


def _setting(which: str, place: int) -> str:
    return f"driftline.{which}{place + 1}"


def bytes_of(message: str, *, is_character: bool) -> tuple[str, str] | None:
    """Return the bytes of a server's message, in hexadecimal digits, and their encoding.

    `is_character`: they are one, which the other encoding lacks (22P05); else none (22021).
    """
    match = (_NO_EQUIVALENT if is_character else _NO_CHARACTER).search(message)
    return match and ("".join(match["bytes"].replace("0x", "").split()), match["encoding"])


def finding(form: str, encoding: str, *, is_character: bool) -> str:
    """Return how the owner finds the rows with these bytes in a column `col`."""
    if is_character:
        return f"Rows with it: WHERE strpos(col, convert_from('\\x{form}', '{encoding}')) > 0. "
    # `convert_to` and `convert_from` refuse such bytes.
    raw = "replace(col::text, chr(92), repeat(chr(92), 2))::bytea"
    return f"Rows with these bytes: WHERE position('\\x{form}'::bytea IN {raw}) > 0. "


def no_character_sql(shape: Shape, *, is_character: bool) -> str:
    """Return the search of a row with bytes that cannot be read: its key, and which text it is.

    A character that UTF-8 lacks is searched for: its bytes, in hexadecimal digits, and their
    encoding are bounds. Bytes that are no character may also begin in the middle of one, so there
    the whole text is checked, by the rules of the encodings CHECKED. A text is what its type's
    output function says, so no cast of an owner's is called. Empty: the relation has no text.
    """
    wanted = (
        "pg_catalog.convert_from(pg_catalog.decode(pg_catalog.current_setting('driftline.first'),"
        " 'hex'), pg_catalog.current_setting('driftline.last')::pg_catalog.name)"
    )
    conditions = []
    for column in shape.recipe.columns:
        if column.type.kind != "text":
            continue
        text = f"pg_catalog.format('%s', {quote(column.name)})"
        doubled = f"pg_catalog.replace({text}, {_BACKSLASH}, pg_catalog.repeat({_BACKSLASH}, 2))"
        if is_character:
            conditions.append(f"pg_catalog.strpos({text}, {wanted}) OPERATOR(pg_catalog.>) 0")
        else:
            digits = f"pg_catalog.encode({doubled}::pg_catalog.bytea, 'hex')"
            conditions.append(f"{digits} OPERATOR(pg_catalog.!~) '{_EUC}'")
    if not conditions:
        return ""
    which = " ".join(f"WHEN {one} THEN {place}" for place, one in enumerate(conditions))
    where = f"({' OR '.join(conditions)})"
    return select_sql(shape.keys(), where, extra=[f"CASE {which} END"], tail="\nLIMIT 1")
