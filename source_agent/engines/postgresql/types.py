"""PostgreSQL: from a relation and the catalogue to a `Shape`.

A statement that is prepared and never run describes a relation: its row description gives type and
modifier of each column, with domains resolved to their base types (`values` reads them).

Invariants: types and operators are named with their schema, so that nothing in the login's
search_path can replace them. The search_path stays, because the DBA's own queries rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from driftline.errors import OPEN, ConfigurationError
from driftline.relations.derivations import Comparable
from driftline.relations.references import OnDelete, Reference

from source_agent.engines.interface import MarkedRead
from source_agent.engines.postgresql import hashes, settings, values
from source_agent.engines.postgresql.replaced import replaced
from source_agent.engines.postgresql.sql import (
    EXPLAIN,
    LEAVES,
    ONLY,
    kept_sql,
    misflagged_sql,
    range_sql,
)
from source_agent.engines.postgresql.values import NATIVE, is_output, read_columns, sorting
from source_agent.engines.relations import select
from source_agent.engines.relations.foreign_keys import ForeignKey, references
from source_agent.engines.relations.markers import Column as MarkingColumn
from source_agent.engines.relations.markers import MarkedBy, Marker, MarkerKind, marked_by
from source_agent.engines.relations.select import plan_of, quote, scan_sql
from source_agent.engines.relations.shapes import Consistency, Fingerprint, Relation, Shape

SMALL_PAGES: Final = 1024  # 8 MiB: below it sorting costs nothing
CORRELATION_MIN: Final = 0.95
_LOSSY_ENCODINGS: Final = {  # why their text is not read
    "SQL_ASCII": "so that its text has no known encoding",
    **dict.fromkeys(
        ("EUC_JP", "EUC_JIS_2004", "EUC_TW"),
        "which has two codes for some characters: a change from one to the other is not seen",
    ),
}
_OTHER: Final = "of another type"  # than a marker or a flag can have

# The name is resolved at present, the rest in the snapshot: NULL for a table created after it.
TABLE = """
SELECT c.oid, n.nspname, c.relname, c.relkind::pg_catalog.text, c.relhassubclass,
       c.reltuples::pg_catalog.float8, c.relpages
FROM (SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid AS oid) named
LEFT JOIN pg_catalog.pg_class c ON c.oid = named.oid
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE named.oid IS NOT NULL AND COALESCE(c.relkind IN ('r', 'p', 'v', 'm', 'f'), true)"""
TABLES = """
SELECT CASE WHEN pg_catalog.pg_table_is_visible(c.oid) THEN c.relname::pg_catalog.text
            ELSE n.nspname || '.' || c.relname END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_|^information_schema$'
ORDER BY 1"""
COLUMNS = """
SELECT attname::pg_catalog.text, attnotnull AND NOT EXISTS (  -- PostgreSQL 18: NOT VALID
         SELECT FROM pg_catalog.pg_constraint
         WHERE conrelid = attrelid AND contype = 'n' AND NOT convalidated AND conkey[1] = attnum),
       atttypid
FROM pg_catalog.pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
INDEXES = """
SELECT i.indisprimary,
       i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
         AND 16384::pg_catalog.oid OPERATOR(pg_catalog.>) ALL (i.indclass::pg_catalog.oid[]),
       i.indpred IS NULL AND m.amname = 'btree',
       ARRAY(SELECT a.attname::pg_catalog.text
             FROM pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY k(number, place)
             LEFT JOIN pg_catalog.pg_attribute a
               ON a.attrelid = i.indrelid AND a.attnum = k.number AND k.number > 0
             WHERE k.place <= pg_catalog.array_length(i.indclass::pg_catalog.oid[], 1)
             ORDER BY k.place)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = c.relam
WHERE i.indrelid = %s AND i.indisvalid ORDER BY i.indexrelid"""
CORRELATION = """
SELECT correlation::pg_catalog.float8 FROM pg_catalog.pg_stats
WHERE schemaname = %s AND tablename = %s AND attname = %s AND NOT inherited"""
# Of a key: may an index read its ranges? All columns ascend, or all descend.
KEY_INDEX = """
SELECT 1 FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) c.relam
WHERE i.indrelid OPERATOR(pg_catalog.=) %s AND i.indisvalid AND i.indpred IS NULL
  AND m.amname OPERATOR(pg_catalog.=) 'btree'
  AND (SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY k.place)
                OPERATOR(pg_catalog.=) %s::pg_catalog.text[]
          AND pg_catalog.count(DISTINCT k.options::pg_catalog.int4 OPERATOR(pg_catalog.&) 1)
                OPERATOR(pg_catalog.=) 1
          AND pg_catalog.bool_and(o.opcdefault
                AND k.collated OPERATOR(pg_catalog.=) a.attcollation)
       FROM ROWS FROM (pg_catalog.unnest(i.indkey::pg_catalog.int2[]),
                       pg_catalog.unnest(i.indclass::pg_catalog.oid[]),
                       pg_catalog.unnest(i.indcollation::pg_catalog.oid[]),
                       pg_catalog.unnest(i.indoption::pg_catalog.int2[]))
            WITH ORDINALITY k(number, opclass, collated, options, place)
       LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) i.indrelid
         AND a.attnum OPERATOR(pg_catalog.=) k.number AND k.number OPERATOR(pg_catalog.>) 0
       LEFT JOIN pg_catalog.pg_opclass o ON o.oid OPERATOR(pg_catalog.=) k.opclass
       WHERE k.place OPERATOR(pg_catalog.<=) pg_catalog.cardinality(%s::pg_catalog.text[]))
LIMIT 1"""
# Columns of text, and the collation by which they are sorted: its name, provider and locale.
COLLATIONS = """
SELECT a.attname::pg_catalog.text, l.collname::pg_catalog.text,
       CASE WHEN l.collprovider OPERATOR(pg_catalog.=) 'd'
            THEN COALESCE(pg_catalog.to_jsonb(d) OPERATOR(pg_catalog.->>) 'datlocprovider', 'c')
            ELSE l.collprovider::pg_catalog.text END,
       CASE WHEN l.collprovider OPERATOR(pg_catalog.=) 'd' THEN d.datcollate::pg_catalog.text
            ELSE l.collcollate::pg_catalog.text END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_collation l ON l.oid OPERATOR(pg_catalog.=) a.attcollation
JOIN pg_catalog.pg_database d ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
WHERE a.attrelid OPERATOR(pg_catalog.=) %s
  AND a.attname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.text[])"""
# Foreign keys of a table to some tables; those that partitions inherit are not counted again.
FOREIGN_KEYS = """
SELECT named.place::pg_catalog.int4,
       (SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY k.place)
        FROM pg_catalog.unnest(f.conkey) WITH ORDINALITY AS k(number, place)
        JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) f.conrelid
          AND a.attnum OPERATOR(pg_catalog.=) k.number),
       (SELECT pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY k.place)
        FROM pg_catalog.unnest(f.confkey) WITH ORDINALITY AS k(number, place)
        JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) f.confrelid
          AND a.attnum OPERATOR(pg_catalog.=) k.number),
       f.confdeltype::pg_catalog.text
FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS named(name, place)
JOIN pg_catalog.pg_constraint f ON f.confrelid
  OPERATOR(pg_catalog.=) pg_catalog.to_regclass(named.name)::pg_catalog.oid
WHERE f.contype OPERATOR(pg_catalog.=) 'f' AND f.conparentid OPERATOR(pg_catalog.=) 0
  AND f.conrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%s)::pg_catalog.oid
ORDER BY f.conname, named.place"""
ENCODING = "SELECT pg_catalog.current_setting('server_encoding')"

CATALOGUE: Final = (
    TABLE,
    TABLES,
    COLUMNS,
    INDEXES,
    CORRELATION,
    ENCODING,
    KEY_INDEX,
    COLLATIONS,
    FOREIGN_KEYS,
    *values.CATALOGUE,
    *settings.MONEY,
)
_ON_DELETE: Final = {
    "a": OnDelete.NO_ACTION,
    "r": OnDelete.RESTRICT,
    "c": OnDelete.CASCADE,
    "n": OnDelete.SET_NULL,
    "d": OnDelete.SET_DEFAULT,
}


class PostgresqlCatalogue(Protocol):
    """The part of a session by which a relation is described."""

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a catalogue query. Raises psycopg.Error."""

    def decimals_as(self, lc_monetary: str) -> int | None:
        """Return the decimals of a money under another setting; None: the server lacks it."""

    def row_description(self, select_sql: str) -> list[tuple[str, int, int]]:
        """Return name, type OID and type modifier of each column of a SELECT that is not run."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A table with its entries of the catalogue, or a query, of which only the columns are known.

    `indexes` are as INDEXES returns them. An operator class that is not PostgreSQL's own may treat
    two values as equal, so its index does not vouch for a key.
    """

    sql: str
    columns: tuple[str, ...]
    not_null: frozenset[str] = frozenset()
    is_plain: bool = False
    is_heap: bool = False
    indexes: tuple[tuple[bool, bool, bool, list[str | None]], ...] = ()
    rows: int = 0
    pages: int = -1
    name: tuple[str, str] = ("", "")
    table: str = ""  # its name, quoted as in SQL; of a query empty
    oid: int | None = None  # of a table that is no view
    types: Mapping[str, int] = field(default_factory=dict)

    @property
    def primary(self) -> tuple[str, ...]:
        return next((tuple(filter(None, i[3])) for i in self.indexes if i[0]), ())

    @property
    def marking(self) -> dict[str, MarkingColumn]:
        """All columns as `markers` sees them; domains are of another type."""
        return {
            name: (NATIVE.get(oid, _OTHER), name not in self.not_null)
            for name, oid in self.types.items()
        }

    def vouches(self, key: tuple[str, ...]) -> bool:
        return (
            self.is_plain
            and self.not_null.issuperset(key)
            and any(unique and set(columns) <= set(key) for _, unique, _, columns in self.indexes)
        )

    def leads(self, column: str) -> bool:
        return any(is_btree and columns[0] == column for _, _, is_btree, columns in self.indexes)


def foreign_keys(
    session: PostgresqlCatalogue, shape: Shape, published: Sequence[Relation]
) -> tuple[Reference, ...]:
    """Return what `Capabilities.references` returns."""
    tables = {relation.name: name for relation in published if (name := _name_sql(relation))}
    if shape.relation.table is None or not tables:
        return ()
    names = list(dict.fromkeys(tables.values()))
    keys = [
        ForeignKey(tuple(columns), names[place - 1], tuple(referenced), _ON_DELETE[rule])
        for place, columns, referenced, rule in session.ask(
            FOREIGN_KEYS, names, _name_sql(shape.relation)
        )
    ]
    return references(shape, keys, published, lambda relation: tables.get(relation.name))


def _name_sql(relation: Relation) -> str:
    """Return the name of a relation's table, quoted; empty if it can be none."""
    parts = select.split_name(relation.table or "")
    return ".".join(map(quote, parts)) if len(parts) <= 2 and all(parts) else ""


def describe(session: PostgresqlCatalogue, relation: Relation) -> Shape:
    """Describe a relation, for `Session.describe`."""
    select.refuse_types(relation, "PostgreSQL")
    source = _table(session, relation) if relation.table is not None else _query(session, relation)
    order = select.arrange(relation, source.columns, source.primary)
    columns = _columns(session, relation, source, order)
    row_hash = None
    if relation.fingerprint is Fingerprint.DATABASE:
        row_hash = hashes.row_hash(session.ask, relation, columns)
    marked = _marked(session, relation, source)
    access = select.Access(
        source.sql,
        vouched=source.vouches(order.key) and not any(map(is_output, columns[: len(order.key)])),
        ordered=_is_ordered(session, source, order.key[0]),
        indexed=source.leads(order.key[0]),
        key_indexed=_key_indexed(session, source, order.key),
        rows_expected=source.rows,
        row_hash=row_hash,
        key_hash=hashes.key_hash(session.ask, columns[: len(order.key)]) if _counts(marked) else "",
        kept=kept_sql(relation.marker),
        misflagged=_misflagged(relation, source),
        marker=marked,
        marking=source.marking,
    )
    made = select.shape(relation, source.columns, order, columns, access)
    made = _planned(session, made, is_heap=source.is_heap)
    if row_hash is not None:
        hashes.refuse_unplanned(session.ask, made)
    return made


def _query(session: PostgresqlCatalogue, relation: Relation) -> _Source:
    derived = select.derived_table(relation)
    described = session.row_description(f"SELECT * FROM {derived}")
    types = {name: oid for name, oid, _ in described}
    return _Source(derived, tuple(types), types=types)


def _table(session: PostgresqlCatalogue, relation: Relation) -> _Source:
    parts = select.split_name(relation.table or "")
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise ConfigurationError(
            f"{relation.table!r} is not the name of a table.",
            remedy='Write it as schema.table, with "…" around a name that contains a dot.',
            where=relation.name,
        )
    sql = ".".join(map(quote, parts))
    rows = session.ask(TABLE, sql)
    if not rows:
        raise select.unknown_table(relation, [name for (name,) in session.ask(TABLES)])
    oid, schema, name, kind, has_children, tuples, pages = rows[0]
    if oid is None:
        raise replaced(relation, sql)
    columns = session.ask(COLUMNS, oid)
    is_heap = kind in {"r", "m"} and not has_children
    # The server checks no row of a foreign table, and tables that inherit may drop a NOT NULL.
    is_checked = is_heap or (kind == "p" and "f" not in _kinds(session, relation, sql))
    return _Source(
        sql=f"{ONLY}{sql}" if is_heap else sql,  # no table that begins to inherit from it meanwhile
        columns=tuple(n for n, _, _ in columns),
        not_null=frozenset(n for n, is_not_null, _ in columns if is_not_null and is_checked),
        types={n: oid for n, _, oid in columns},
        # The unique index of a table does not cover the rows of tables that inherit from it.
        is_plain=kind == "p" or is_heap,
        is_heap=is_heap,
        indexes=tuple(session.ask(INDEXES, oid)),
        rows=max(0, int(tuples)),
        pages=-1 if kind in {"p", "v", "f"} else int(pages),
        name=(schema, name),
        table=sql,
        oid=oid if kind in {"r", "p", "m"} else None,
    )


def _marked(session: PostgresqlCatalogue, relation: Relation, source: _Source) -> MarkedBy | None:
    """Return the marker of a relation. Raises ConfigurationError: it cannot be used."""
    if relation.marker is None:
        return None
    columns = source.marking
    if select := _marked_sql(relation.marker, source.columns, source.sql):
        for name, oid, _ in session.row_description(select):
            columns[name] = NATIVE.get(oid, _OTHER), name not in source.not_null
    is_named = relation.marker.column or relation.marker.versioned or relation.marker.joined
    no_xmin = "" if is_named else _no_xmin(session, relation, source)
    return marked_by(relation.name, relation.marker, columns, no_xmin=no_xmin)


def _misflagged(relation: Relation, source: _Source) -> str:
    """Return the condition of rows with a wrong flag; a truth value that is NOT NULL is none."""
    marker = relation.marker
    flag = None if marker is None or marker.deleted is None else source.marking[marker.deleted]
    return "" if flag == ("bool", False) else misflagged_sql(marker)


def _counts(marked: MarkedBy | None) -> bool:
    """Return True if the database may tell by hashes of all keys that none vanished."""
    return marked is not None and marked.kind is not MarkerKind.CHECKSUM


def _no_xmin(session: PostgresqlCatalogue, relation: Relation, source: _Source) -> str:
    """Return why the rows of a relation have no xmin of their own; empty: they have."""
    if relation.table is None:
        return "The rows of a query have no xmin"
    kinds = _kinds(session, relation, source.table)
    return "" if kinds <= {"r", "p"} else "Only tables and their partitions have xmin"


def _kinds(session: PostgresqlCatalogue, relation: Relation, table: str) -> set[str]:
    """Return the kinds of a table and of all below it. Raises SnapshotLost: there is none now."""
    leaves = session.ask(LEAVES, table)
    if not leaves:
        raise replaced(relation, table)
    return {kind for _, kind, _ in leaves}


def _marked_sql(marker: Marker, columns: Sequence[str], source: str) -> str:
    """Return the SELECT whose columns are described; empty if the relation has none of them."""
    names = [n for n in dict.fromkeys(marker.columns) if n in columns]
    return f"SELECT {', '.join(map(quote, names))} FROM {source}" if names else ""


def _is_ordered(session: PostgresqlCatalogue, source: _Source, key: str) -> bool:
    if not source.leads(key) or source.pages < 0:
        return False
    if source.pages <= SMALL_PAGES and source.rows > 0:
        return True
    correlation = session.ask(CORRELATION, *source.name, key)
    return bool(correlation and (correlation[0][0] or 0.0) > CORRELATION_MIN)


def _columns(
    session: PostgresqlCatalogue, relation: Relation, source: _Source, order: select.Order
) -> list[select.ReadColumn]:
    names = ", ".join(map(quote, order.names))
    described = session.row_description(f"SELECT {names} FROM {source.sql}")
    columns = read_columns(session.ask, relation, described, session.decimals_as)
    has_text = any(f.type.kind in {"text", "jsonb"} for f in columns)
    encoding = session.ask(ENCODING)[0][0] if has_text else ""
    if why := _LOSSY_ENCODINGS.get(encoding):
        raise ConfigurationError(
            f"The database has the encoding {encoding}, {why}.",
            remedy=f"Publish a query that reads text as bytes: convert_to(col, '{encoding}').",
            where=relation.name,
            abroad=OPEN,
        )
    if encoding != "UTF8":  # its bytes have another order, and it may lack a literal's characters
        columns = [
            replace(f, comparable=Comparable.NOTHING) if f.type.kind == "text" else f
            for f in columns
        ]
    columns = [replace(f, nullable=f.name not in source.not_null) for f in columns]
    return _sorted(session, source, columns, order.key, encoding)


def _key_indexed(session: PostgresqlCatalogue, source: _Source, key: tuple[str, ...]) -> bool:
    """Return True if an index reads ranges of this key."""
    if source.oid is None:
        return False
    return bool(session.ask(KEY_INDEX, source.oid, list(key), list(key)))


def _sorted(
    session: PostgresqlCatalogue,
    source: _Source,
    columns: list[select.ReadColumn],
    key: tuple[str, ...],
    encoding: str,
) -> list[select.ReadColumn]:
    """Return the columns; those of the key with how the database sorts them."""
    if source.oid is None:
        return columns
    texts = [f.name for f in columns if f.name in key and f.type.kind == "text"]
    rows = session.ask(COLLATIONS, source.oid, texts) if texts else []
    collations = {name: tuple(collation) for name, *collation in rows}
    return [
        replace(f, unordered=sorting(f, collations.get(f.name), encoding)) if f.name in key else f
        for f in columns
    ]


def _planned(session: PostgresqlCatalogue, described: Shape, *, is_heap: bool) -> Shape:
    """Return the shape with what the planner knows about it.

    That is: the number of rows where the catalogue has none, whether ranges of keys use an index,
    and whether foreign tables are read, which the snapshot does not cover.
    """
    if not is_heap or described.relation.where or not described.rows_expected:
        plan = session.ask(EXPLAIN + scan_sql(described))[0][0][0]["Plan"]
        described = replace(described, rows_expected=int(plan["Plan Rows"]))
        if _reads_foreign(plan):
            fuzzy = replace(plan_of(described), consistency=Consistency.FUZZY)
            notes = (*described.notes, "read without a snapshot: a foreign table")
            described = replace(described, plan=fuzzy, notes=notes)
    if described.recipe.integer_key and not described.indexed:
        plan = session.ask(EXPLAIN + range_sql(described, literal=True))[0][0][0]["Plan"]
        described = replace(described, indexed=_uses_index(plan))
    return described


def _reads_foreign(plan: dict[str, Any]) -> bool:
    return plan["Node Type"] == "Foreign Scan" or any(map(_reads_foreign, plan.get("Plans", [])))


def _uses_index(plan: dict[str, Any]) -> bool:
    """Return True if a plan for one narrow range reads no table as a whole."""
    if plan["Node Type"] in {"Seq Scan", "Foreign Scan", "CTE Scan", "Sample Scan"}:
        return False
    if plan["Node Type"].endswith(("Index Scan", "Index Only Scan")) and "Index Cond" not in plan:
        return False
    return all(_uses_index(child) for child in plan.get("Plans", []))


def marked_read(plan: dict[str, Any], column: str) -> MarkedRead:
    """Return how a plan finds the rows behind a mark in this column."""
    kind, parts = plan["Node Type"], plan.get("Plans", [])
    if kind in {"Seq Scan", "Foreign Scan", "CTE Scan", "Function Scan", "Sample Scan"}:
        return MarkedRead.SCAN
    if kind.endswith(("Index Scan", "Index Only Scan")):  # Bitmap Index Scan, too
        names = re.findall(r'"(?:[^"]|"")+"|[\w$]+', plan.get("Index Cond", ""))
        if not {column, quote(column)} & set(names):
            return MarkedRead.SCAN
        return MarkedRead.COVERING if kind == "Index Only Scan" else MarkedRead.INDEX
    ways = list(MarkedRead)
    reads = [marked_read(part, column) for part in parts]
    return max(reads, key=ways.index, default=MarkedRead.SCAN)


def is_index_only(plan: dict[str, Any]) -> bool:
    """Return True if a plan reads all of its rows by indexes alone."""
    if "Relation Name" in plan:
        return bool(plan["Node Type"] == "Index Only Scan")
    parts = [one for one in plan.get("Plans", []) if one["Node Type"] != "Result"]
    return bool(parts) and all(map(is_index_only, parts))


def describing_sql(shape: Shape) -> list[str]:
    """List the SQL texts by which one relation is described, beyond CATALOGUE."""
    source = plan_of(shape).source
    names = ", ".join(quote(c.name) for c in shape.recipe.columns)
    asked = [f"SELECT * FROM {source}"] if shape.relation.query else []
    asked += [f"SELECT {names} FROM {source}", EXPLAIN + scan_sql(shape)]
    if shape.relation.marker is not None:
        marker = shape.relation.marker
        select = _marked_sql(marker, marker.columns, source)
        asked += [select] if select else []
    if shape.recipe.integer_key:
        asked.append(EXPLAIN + range_sql(shape, literal=True))
    if shape.relation.fingerprint is Fingerprint.DATABASE:
        asked.append(EXPLAIN + scan_sql(shape.hashed(seed=0)))
    return asked
