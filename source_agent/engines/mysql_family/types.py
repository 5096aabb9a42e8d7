"""MariaDB and MySQL: from a relation and the catalogue to a `Shape`; what makes its key unique.

Invariants: what is described is what the login may read now; a relation whose tables are not all
known to be InnoDB is FUZZY. InnoDB refuses to read a table that was made or rewritten after the
snapshot (1412), but reads an older table that was renamed since, and one that has lost a partition.
CREATE_TIME is then later, in whole seconds: a table of a later second than the snapshot's is
refused, as soon as it is locked. A time in the future is from a wrong clock and is ignored.

Rejected: result metadata for tables. It cannot tell UUID or INET6 from CHAR, nor a column's
character set; for queries there is nothing else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from driftline.errors import ConfigurationError, SnapshotLost
from driftline.relations.references import OnDelete, Reference

from source_agent.engines.interface import SnapshotState
from source_agent.engines.mysql_family import innodb
from source_agent.engines.mysql_family.activity import is_created_after
from source_agent.engines.mysql_family.product import Product
from source_agent.engines.mysql_family.sql import (
    MARK,
    empty_sql,
    lock_sql,
    probe_sql,
    source_of,
)
from source_agent.engines.mysql_family.values import TEXT, FamilyColumn, can_page, column, marking
from source_agent.engines.relations.foreign_keys import ForeignKey, references
from source_agent.engines.relations.markers import MarkedBy, Marker, definition_of, marked_by
from source_agent.engines.relations.select import (
    Access,
    arrange,
    each_column,
    plan_of,
    quote,
    refuse_types,
    shape,
    split_name,
    unknown_table,
)
from source_agent.engines.relations.shapes import Consistency, Relation, Shape

TABLE = """
SELECT table_schema, table_name, table_type, engine, table_rows
FROM information_schema.tables
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"""
TABLES = """
SELECT IF(table_schema = DATABASE(), table_name, CONCAT(table_schema, '.', table_name)),
       engine, table_type
FROM information_schema.tables
WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
ORDER BY 1"""
COLUMNS = """
SELECT column_name, data_type, column_type, numeric_precision, numeric_scale, is_nullable,
       character_set_name, collation_name, generation_expression, extra
FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""
INDEXES = """
SELECT index_name, non_unique, column_name, nullable, index_type, sub_part, collation,
       COALESCE(/*M!100600 ignored = 'YES', */ /*!80000 is_visible = 'NO', */ 0)
FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s ORDER BY index_name, seq_in_index"""
CREATED = """
SELECT create_time, create_time > UTC_TIMESTAMP() FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s"""
# What a mark keeps of tables: the servers number no columns, so any change of one counts.
DEFINITION = """
SELECT c.table_schema, c.table_name, c.column_name, c.ordinal_position, c.column_type,
       c.column_default, c.is_nullable, c.collation_name, c.generation_expression, c.extra,
       t.table_type, t.engine, t.create_time
FROM information_schema.columns c
JOIN information_schema.tables t USING (table_schema, table_name)
WHERE {which} ORDER BY 1, 2, c.ordinal_position"""
ONE_DEFINITION = DEFINITION.format(which="c.table_schema = %s AND c.table_name = %s")
DEFINITIONS = DEFINITION.format(
    which="c.table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')"
)
VIEW_DEFINITIONS = """
SELECT table_schema, table_name, view_definition FROM information_schema.views
WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
ORDER BY 1, 2"""
DATABASE = "SELECT DATABASE()"
# The tables of foreign keys show them to nobody who has SELECT alone; this statement does.
CREATION = "SHOW CREATE TABLE {table}"
CATALOGUE: Final = (
    TABLE,
    TABLES,
    *innodb.CATALOGUE,
    COLUMNS,
    INDEXES,
    CREATED,
    DATABASE,
    ONE_DEFINITION,
    DEFINITIONS,
    VIEW_DEFINITIONS,
)
_NAME = r"`(?:[^`]|``)+`"
_FOREIGN_KEY: Final = re.compile(
    rf"^ +CONSTRAINT {_NAME} FOREIGN KEY \((?P<own>{_NAME}(?:, ?{_NAME})*)\)"
    rf" REFERENCES (?P<table>{_NAME}(?:\.{_NAME})?) \((?P<other>{_NAME}(?:, ?{_NAME})*)\)"
    r"(?: ON DELETE (?P<rule>CASCADE|SET NULL|SET DEFAULT|NO ACTION|RESTRICT))?",
    re.MULTILINE,
)

# Types in result metadata (protocol's field types), as the catalogue would call them.
_FIELD_TYPES: Final = {
    0: "decimal",
    1: "tinyint",
    2: "smallint",
    3: "int",
    4: "float",
    5: "double",
    7: "timestamp",
    8: "bigint",
    9: "mediumint",
    10: "date",
    11: "time",
    12: "datetime",
    13: "year",
    15: "varchar",
    16: "bit",
    245: "json",
    246: "decimal",
    247: "enum",
    248: "set",
    249: "tinytext",
    250: "mediumtext",
    251: "longtext",
    252: "text",
    253: "varchar",
    254: "char",
    255: "geometry",
}
_UNSIGNED, _BINARY_CHARSET = 32, 63
_ELSEWHERE: Final = frozenset({"CONNECT", "FEDERATED", "SPIDER"})  # engines of others' rows
_ROW_START: Final = "row_start"  # of a table that declares no column for it
_PERIOD: Final = {"ROW START", "ROW END"}  # expressions of such columns


class ResultField(Protocol):
    """One column of a result, as PyMySQL parsed it."""

    name: bytes | str
    type_code: int
    charsetnr: int
    flags: int
    length: int
    scale: int


class FamilyCatalogue(Protocol):
    """The part of a session that `describe` uses."""

    @property
    def product(self) -> Product:
        """The product that the server is."""

    @property
    def snapshot(self) -> SnapshotState:
        """The state of the snapshot, with its time."""

    def ask(self, sql: str, *values: object) -> list[tuple[str | None, ...]]:
        """Return the rows of a catalogue query, as text."""

    def fields(self, sql: str) -> Sequence[ResultField]:
        """Return the columns of a SELECT that reads no row."""


@dataclass(frozen=True, slots=True)
class _Index:
    name: str
    columns: tuple[str | None, ...]
    is_primary: bool
    is_unique: bool  # and no column may be NULL
    is_btree: bool
    is_whole: bool  # no column only with its first characters
    descending: tuple[bool, ...] = ()
    is_used: bool = True  # by the optimizer: else it is IGNORED, and ensures uniqueness alone

    def orders(self, key: tuple[str, ...]) -> bool:
        """Return True if ranges of this key are ranges of the index."""
        is_prefix = self.columns[: len(key)] == key and self.is_btree and self.is_whole
        is_prefix = is_prefix and self.is_used
        return is_prefix and len(set(self.descending[: len(key)])) == 1


def foreign_keys(
    session: FamilyCatalogue, shape: Shape, published: Sequence[Relation]
) -> tuple[Reference, ...]:
    """Return what `Capabilities.references` returns."""
    if shape.relation.table is None or not published:
        return ()
    database = str(session.ask(DATABASE)[0][0])
    own = _table_of(shape.relation, database)
    text = session.ask(CREATION.format(table=plan_of(shape).source))[0][1] or ""
    keys = []
    for match in _FOREIGN_KEY.finditer(text):
        parts = split_name(match["table"], MARK)
        table = parts if len(parts) == 2 else (own[0] if own else database, *parts)
        rule = OnDelete((match["rule"] or OnDelete.RESTRICT.value).lower())
        keys.append(ForeignKey(_names(match["own"]), table, _names(match["other"]), rule))
    return references(shape, keys, published, lambda relation: _table_of(relation, database))


def definition(session: FamilyCatalogue, relation: Relation) -> str:
    """Return `Mark.definition` of a relation: of its table, or of every table and view that the
    login sees, because what a query or a view reads is not told.

    Times of changes have whole seconds. One in the snapshot's own may hide another one that is yet
    to come in it, so then the definition is like no other's; nor is one without any table.
    """
    table = _table_of(relation, str(session.ask(DATABASE)[0][0]))
    tables = [] if table is None else session.ask(TABLE, *table)
    if len(tables) == 1 and tables[0][2] != "VIEW":
        entries, views = session.ask(ONE_DEFINITION, *tables[0][:2]), list[tuple[str | None, ...]]()
    else:
        entries, views = session.ask(DEFINITIONS), session.ask(VIEW_DEFINITIONS)
    second = session.snapshot.as_of[:19].replace("T", " ")
    if not entries or any((row[-1] or "") >= second for row in entries):
        views = [*views, (session.snapshot.as_of,)]
    return definition_of([*entries, *views])


def _table_of(relation: Relation, database: str) -> tuple[str, ...] | None:
    """Return database and name of a relation's table; None: it is a query."""
    parts = split_name(relation.table or "", MARK)
    if not all(parts):
        return None
    return (database, *parts) if len(parts) == 1 else parts


def _names(text: str) -> tuple[str, ...]:
    """Return the names of a list of quoted columns."""
    return tuple(name[1:-1].replace("``", "`") for name in re.findall(_NAME, text))


def reads_plainly(session: FamilyCatalogue, relation: Relation) -> bool:
    """Return True if a relation has no expression of its owner: it is stored columns of a table."""
    parts = split_name(relation.table or "", MARK)
    if relation.table is None or relation.where:
        return False
    rows = session.ask(TABLE, parts[0] if len(parts) == 2 else None, parts[-1])
    rows = [r for r in rows if r[1] == parts[-1]] or rows
    if len(rows) != 1 or (rows[0][2] or "").upper() not in innodb.STORED:
        return False
    columns = session.ask(COLUMNS, rows[0][0], rows[0][1])
    return not any("VIRTUAL" in (more or "").upper() for *_, more in columns)


def describe(session: FamilyCatalogue, relation: Relation) -> Shape:
    """Return what `Session.describe` returns. Raises ConfigurationError, SnapshotLost."""
    refuse_types(relation, session.product.name)
    source = source_of(relation)
    lock = innodb.lock(session.ask, source)  # if it was not, before the snapshot
    made = _described(session, relation)
    if lock is not innodb.LockOutcome.TAKEN:
        session.ask(lock_sql(source))  # tells why it cannot
        raise replaced(session.product, relation)
    return made


def _described(session: FamilyCatalogue, relation: Relation) -> Shape:
    source = source_of(relation)
    if relation.table is None:
        fields = session.fields(empty_sql(source))
        return _describe(session, relation, source, _Listed(_of_metadata(session.product, fields)))
    parts = split_name(relation.table, MARK)
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise ConfigurationError(
            f"{relation.table!r} is not the name of a table.",
            remedy="Write it as table or database.table, with `…` around a name with a dot.",
            where=relation.name,
        )
    rows = session.ask(TABLE, parts[0] if len(parts) == 2 else None, parts[-1])
    # Catalogue comparisons ignore case: prefer the name as it is written.
    rows = [r for r in rows if r[1] == parts[-1]] or rows
    if len(rows) != 1:
        with contextlib.suppress(ConfigurationError):
            session.fields(empty_sql(source))  # tells "not granted" from "does not exist"
        raise unknown_table(relation, [str(r[0]) for r in session.ask(TABLES)])
    schema, name, kind, engine, count = rows[0]
    is_stored = kind != "VIEW"
    described = _of_catalogue(
        session.ask(COLUMNS, schema, name),
        is_stored=is_stored,
        is_enforced=is_stored and (engine or "").upper() not in _ELSEWHERE,
    )
    indexes = _of_current(_indexes(session.ask(INDEXES, schema, name)), described)
    is_innodb = innodb.is_innodb(engine, kind)
    listed = _Listed(described, indexes, kind or "", engine or "", int(count or 0))
    made = _describe(session, relation, source, listed)
    if (kind or "").upper() == innodb.VERSIONED:
        made = replace(made, notes=(*made.notes, "the server keeps old versions of its rows"))
    if is_innodb and is_created_after(session.snapshot.as_of, session.ask(CREATED, schema, name)):
        raise replaced(session.product, relation)
    return made


def replaced(product: Product, relation: Relation) -> SnapshotLost:
    """Return the error for a relation that is not the one of the snapshot."""
    table = relation.table
    what = "A table that its query reads" if table is None else f"The table {table}"
    return SnapshotLost(
        f"{what} was altered or replaced after the snapshot was taken, and {product.name} cannot "
        "show what was in it.",
        where=relation.name,
        abroad="A table that it reads was altered or replaced after the snapshot was taken.",
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    """What the catalogue lists of a relation; of a query it has the columns alone."""

    columns: list[FamilyColumn]
    indexes: Sequence[_Index] = ()
    kind: str = ""
    engine: str = ""
    rows: int = 0


def _describe(
    session: FamilyCatalogue,
    relation: Relation,
    source: str,
    listed: _Listed,
) -> Shape:
    described, indexes, kind, engine = listed.columns, listed.indexes, listed.kind, listed.engine
    is_innodb = innodb.is_innodb(engine, kind)
    known = [d.name for d in described]
    primary = next((i.columns for i in indexes if i.is_primary), ())
    order = arrange(relation, known, [c for c in primary if c is not None])
    by_name = {d.name: d for d in described}
    columns = each_column(
        relation, [by_name[name] for name in order.names], partial(column, session.product)
    )
    unique = next((i for i in indexes if i.is_unique and set(i.columns) <= set(order.key)), None)
    is_exact = is_innodb or (not engine and innodb.reads_only_innodb(session.ask, source))
    notes = () if is_exact else (f"read without a snapshot: {engine or 'tables unknown'}",)
    marked = {d.name: marking(d) for d in described}
    pages = _pages(unique, [f.name for f in columns if can_page(by_name[f.name], f)])
    access = Access(
        source,
        vouched=unique is not None and not any(by_name[name].is_nullable for name in order.key),
        ordered=is_innodb and tuple(primary[:1]) == order.key[:1],
        indexed=any(i.is_btree and i.is_used and i.columns[0] == order.key[0] for i in indexes),
        key_indexed=any(i.orders(order.key) for i in indexes),
        key_index=next((i.name for i in indexes if i.orders(order.key)), ""),
        rows_expected=listed.rows,
        notes=notes,
        pages=() if is_exact or not engine else pages,
        consistency=Consistency.EXACT if is_exact else Consistency.FUZZY,
        kept=_kept(relation.marker),
        misflagged=_misflagged(relation.marker),
        marker=_marked(relation, kind, described, order.names),
        marking=marked,
    )
    described_shape = shape(relation, known, order, columns, access)
    session.fields(probe_sql(described_shape))  # `where`, and the privileges on columns
    return described_shape


def _marked(
    relation: Relation, kind: str, described: Sequence[FamilyColumn], published: Sequence[str]
) -> MarkedBy | None:
    """Return the marker of a relation. Raises ConfigurationError: it cannot be used."""
    columns = {d.name: marking(d) for d in described}
    start, why = _row_start(kind, described, published)
    return marked_by(relation.name, relation.marker, columns, row_start=start, not_versioned=why)


def _row_start(
    kind: str, described: Sequence[FamilyColumn], published: Sequence[str]
) -> tuple[str, str]:
    """Return the column with the time at which a row version began, or why none can be used."""
    if kind != innodb.VERSIONED:
        return "", "It is no table WITH SYSTEM VERSIONING"
    start = next((d for d in described if d.generated == "ROW START"), None)
    if start is not None and start.type != "timestamp":
        why = "are those of transactions, in the order in which these began, not committed"
        return "", f"The numbers in the column {start.name!r} {why}"
    if any(d.is_unversioned for d in described):
        for d in described:
            is_computed = bool(d.generated) and d.generated not in _PERIOD
            if d.name in published and (d.is_unversioned or is_computed):
                why = "may change in an update that does not set the row start: it, or one that it"
                why = f"{why} is computed from, is WITHOUT SYSTEM VERSIONING"
                return "", f"The column {d.name!r} {why}; leave it out of `columns`"
    return _ROW_START if start is None else start.name, ""


def _kept(marker: Marker | None) -> str:
    """Return the condition of rows that the flag of a marker does not delete; NULL deletes none."""
    flag = None if marker is None else marker.deleted
    return "" if flag is None else f"({quote(flag, MARK)} IS NOT TRUE)"


def _misflagged(marker: Marker | None) -> str:
    """Return the condition of rows whose flag is NULL, or neither 0 nor 1; empty: no flag."""
    if marker is None or marker.deleted is None:
        return ""
    flag = quote(marker.deleted, MARK)
    return f"({flag} IS NULL OR {flag} NOT IN (0, 1))"


def _pages(unique: _Index | None, pageable: Sequence[str]) -> tuple[str, ...]:
    """Return the columns by which a table is read in pages; none if it has to be spooled.

    ORDER BY compares only the first `max_sort_length` bytes of a value. No value of a B-tree over
    whole columns is longer.
    """
    if unique is None or not (unique.is_btree and unique.is_whole and unique.is_used):
        return ()
    names = tuple(filter(None, unique.columns))
    return names if set(names) <= set(pageable) else ()


def _of_catalogue(
    rows: list[tuple[str | None, ...]], *, is_stored: bool, is_enforced: bool
) -> list[FamilyColumn]:
    """Return columns by the catalogue; `is_enforced`: the server keeps NULLs out of NOT NULL."""
    columns = []
    for name, kind, written, precision, scale, nullable, charset, collation, made, more in rows:
        text = (written or "").lower()
        columns.append(
            FamilyColumn(
                name or "",
                {"integer": "int", "numeric": "decimal"}.get(kind or "", kind or ""),
                "unsigned" in text,
                int(precision or 0),
                int(scale or 0),
                nullable == "YES" or not is_enforced,
                charset or "",
                text,
                collation or "",
                is_stored,
                (made or "").upper(),
                "WITHOUT SYSTEM VERSIONING" in (more or "").upper(),
            )
        )
    return columns


def _of_metadata(product: Product, fields: Sequence[ResultField]) -> list[FamilyColumn]:
    columns, kinds = [], {**_FIELD_TYPES, **product.fields}
    for field in fields:
        name = field.name.decode() if isinstance(field.name, bytes) else field.name
        kind = kinds.get(field.type_code, f"field type {field.type_code}")
        if kind in TEXT and kind not in {"json"} and field.charsetnr == _BINARY_CHARSET:
            kind = "blob"
        is_unsigned = bool(field.flags & _UNSIGNED)
        digits = field.length - (field.scale > 0) - (not is_unsigned)
        precision = field.length if kind == "bit" else digits
        columns.append(
            FamilyColumn(name, kind, is_unsigned, precision, field.scale, True, "", kind)
        )
    return columns


def _indexes(rows: list[tuple[str | None, ...]]) -> list[_Index]:
    grouped: dict[str, list[tuple[str | None, ...]]] = {}
    for row in rows:
        grouped.setdefault(row[0] or "", []).append(row)
    return [
        _Index(
            name=name,
            columns=tuple(row[2] for row in group),
            is_primary=name == "PRIMARY",
            is_unique=all(r[1] == "0" and r[3] != "YES" and r[2] for r in group),
            is_btree=all(r[4] == "BTREE" for r in group),
            is_whole=all(r[5] is None for r in group),
            descending=tuple(row[6] == "D" for row in group),
            is_used=all(row[7] != "1" for row in group),
        )
        for name, group in grouped.items()
    ]


def _of_current(indexes: list[_Index], described: Sequence[FamilyColumn]) -> list[_Index]:
    """Return the indexes as they are of current rows: a table with versions has its row end, which
    is the same for all of these, behind the columns of its unique keys."""
    ends = {d.name for d in described if d.generated == "ROW END"}
    return [
        replace(i, columns=i.columns[:-1], descending=i.descending[:-1])
        if len(i.columns) > 1 and i.columns[-1] in ends
        else i
        for i in indexes
    ]
