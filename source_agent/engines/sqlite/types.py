"""SQLite: from a relation and the schema to a `Shape`; what each declared type is read as.

In SQLite values have types, columns do not. A column whose declaration promises one storage class
is read as that, and a value of another class is refused by name. Any other column is read as
*tagged text*, in which every value of every class has a text of its own:

    i:123          INTEGER            r:0.1    REAL, shortest form that reads back (inf, -inf)
    t:abc          TEXT               b:00ff   BLOB, in hexadecimal digits
    x:c328         TEXT that is not in the file's encoding, its bytes in hexadecimal digits
    NULL           stays NULL

Rules, in this order (https://sqlite.org/datatype3.html#determination_of_column_affinity):
`as_text` → tagged; `types` → what it says; declaration with INT → int8; CHAR, CLOB, TEXT → text;
exactly BLOB → bytea; REAL, FLOA, DOUB → float8; BOOL… → int8; DECIMAL(p,s) and NUMERIC(p,s) with
p ≤ 15 → numeric(p,s), since a double holds 15 digits; DATE…, TIME… → text; all others → tagged.

Rejected: finding the type from the values. Tomorrow's row may be of another class, and the recipe
would change with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from driftline.errors import ConfigurationError, DriftlineError
from driftline.relations.derivations import Comparable
from driftline.relations.references import OnDelete, Reference
from driftline.values.types import DeclaredType

from source_agent.engines.encoding.rows import DOUBLE_DIGITS
from source_agent.engines.interface import Listed, Unlocated
from source_agent.engines.relations.foreign_keys import ForeignKey, references
from source_agent.engines.relations.markers import marked_by
from source_agent.engines.relations.select import (
    PRESENCE,
    Access,
    ReadColumn,
    arrange,
    declared,
    derived_table,
    join_name,
    quote,
    shape,
    split_name,
    unknown_table,
)
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.engines.sqlite.sql import (
    EXPLAIN_PLAN,
    FOREIGN_KEYS,
    INDEX_LIST,
    INDEX_XINFO,
    STATISTICS,
    TABLES,
    XINFO,
    between_sql,
    kept_sql,
    misflagged_sql,
    named,
)
from source_agent.engines.sqlite.values import MARK, read_sql

_SIZED = re.compile(r"(?:DECIMAL|NUMERIC) *\( *(\d{1,2}) *(?:, *(\d{1,2}) *)?\)")
_RENAMED = re.compile(r"(.+):\d+")  # a view's name for a second column of one name
_TEXT_AFFINITY: Final = ("CHAR", "CLOB", "TEXT")
ROWIDS: Final = ("rowid", "_rowid_", "oid")
_COLLATIONS: Final = {"BINARY", "NOCASE", "RTRIM"}
_SPELT_ONCE: Final = {"uuid", "date"}  # types whose values have one string form that is read
_VIRTUAL: Final = "CREATE VIRTUAL"
# Behind the name of a virtual table of FTS3, FTS4, FTS5 and R*Tree.
_SHADOW: Final = frozenset((
    "_config", "_content", "_data", "_docsize", "_idx", "_node", "_parent", "_rowid", "_segdir",
    "_segments", "_stat",
))  # fmt: skip
_STRUCTURED: Final = {"int2": "int", "int4": "int", "int8": "int", "oid": "int", "bool": "bool"}


class SqliteCatalogue(Protocol):
    """The part of a session that `describe` uses."""

    encoding: str  # of the file's text

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a small statement, with text as str."""

    def query_columns(self, query: str) -> list[tuple[Any, ...]]:
        """Return table_xinfo of a view that holds the query."""


@dataclass(frozen=True, slots=True)
class _Index:
    """An index. `is_unique`: and its collations, all SQLite's own, distinguish no equal texts."""

    columns: tuple[str | None, ...]
    is_unique: bool
    is_partial: bool
    is_primary: bool
    collations: tuple[str, ...] = ()

    def orders(self, key: tuple[str, ...]) -> bool:
        """Return True if ranges of this key, compared by bytes, are ranges of the index."""
        is_binary = set(self.collations[: len(key)]) == {"BINARY"}
        return self.columns[: len(key)] == key and not self.is_partial and is_binary


@dataclass(frozen=True, slots=True)
class _Table:
    """A table's schema. `rowid`: the name by which it can be read; `alias`: the column that is it.

    Both are empty if there is none.
    """

    name: str
    is_stored: bool
    primary: tuple[str, ...]
    not_null: frozenset[str]
    indexes: tuple[_Index, ...]
    rowid: str
    alias: str
    rows: int

    def vouches(self, key: tuple[str, ...]) -> bool:
        """Return True if a constraint keeps NULLs and duplicates out of the key.

        A PRIMARY KEY alone does not: SQLite accepts NULLs in most of them.
        """
        if not self.not_null.issuperset(key):
            return False
        return (bool(self.alias) and self.alias in key) or any(
            i.is_unique and not i.is_partial and set(i.columns) <= set(key) for i in self.indexes
        )

    @property
    def pages(self) -> tuple[str, ...]:
        """SQL of the columns that order the table as it is stored; empty if no such key is known.

        A primary key that may be NULL is none: no page follows a NULL. Nor is one that is read as
        text of any bytes, which cannot be bound (`describe`).
        """
        if self.rowid:
            return (quote(self.alias, MARK) if self.alias else self.rowid,)
        is_whole = self.is_stored and self.not_null.issuperset(self.primary)
        return tuple(quote(name, MARK) for name in self.primary) if is_whole else ()


def foreign_keys(
    session: SqliteCatalogue, shape: Shape, published: Sequence[Relation]
) -> tuple[Reference, ...]:
    """Return what `Capabilities.references` does. SQLite enforces them only if a writer asks it to.

    Names of columns are those of the tables, which a foreign key may write in another case; one
    that names no columns means the primary key.
    """
    if shape.relation.table is None or not published:
        return ()
    constraints: dict[int, list[tuple[Any, ...]]] = {}
    name = quote(_table_name(session, shape.relation))
    for row in sorted(session.ask(FOREIGN_KEYS.format(name=name))):
        constraints.setdefault(row[0], []).append(row)
    keys = []
    for rows in constraints.values():
        table, rule = rows[0][2], OnDelete(rows[0][6].lower())
        if not any(_plain_name(relation) == table.lower() for relation in published):
            continue
        columns = session.ask(XINFO.format(schema="main", name=quote(table)))
        primary = [row[1] for row in sorted((c for c in columns if c[5]), key=lambda c: c[5])]
        spelled = {row[1].lower(): row[1] for row in columns}
        named = primary if rows[0][4] is None else [row[4] for row in rows]
        referenced = tuple(spelled.get(one.lower(), one) for one in named)
        own = {column.name.lower(): column.name for column in shape.recipe.columns}
        columns_here = tuple(own.get(row[3].lower(), row[3]) for row in rows)
        if len(referenced) == len(columns_here):
            keys.append(ForeignKey(columns_here, table.lower(), referenced, rule))
    return references(shape, keys, published, _plain_name)


def _plain_name(relation: Relation) -> str | None:
    """Return the table of a relation as SQLite compares names; None: it is a query."""
    return None if relation.table is None else split_name(relation.table)[-1].lower()


def describe(session: SqliteCatalogue, relation: Relation) -> Shape:
    """Return what `Session.describe` returns."""
    table = None
    if relation.table is not None:
        name = _table_name(session, relation)
        source = f"main.{quote(name)}"
        rows = session.ask(XINFO.format(schema="main", name=quote(name)))
        table = _table(session, name, rows)
    else:
        source = derived_table(relation)
        rows = session.query_columns(relation.query or "")
    # hidden: 1 is a virtual table's parameter; 2 and 3 are generated columns.
    columns = {row[1]: row[2] for row in rows if row[6] != 1}
    known = [row[1] for row in rows if row[6] != 1]
    if table is None:
        known = [_RENAMED.sub(r"\1", n) if _RENAMED.sub(r"\1", n) in known else n for n in known]
    order = arrange(relation, known, table.primary if table else ())
    not_null = table.not_null if table else frozenset()
    is_stored = table is not None and table.is_stored
    readings = [
        _column(relation, name, columns[name] or "", name not in not_null, is_stored)
        for name in order.names
    ]
    if is_stored:  # an expression of a view or a query may have another affinity than its type
        collations = _collations(table, order.key)
        readings = [
            replace(f, unordered=_unordered(f, session.encoding, collations)) for f in readings
        ]
        readings = [_compared(relation, f, columns[f.name], session.encoding) for f in readings]
    readings = [replace(f, read=read_sql(f.read, f.form, session.encoding)) for f in readings]
    marking = {n: _marking(written, n not in not_null) for n, written in columns.items()}
    marked = marked_by(relation.name, relation.marker, marking)
    kept, misflagged = kept_sql(relation.marker), misflagged_sql(relation.marker)
    if table is None:
        access = Access(source, kept=kept, misflagged=misflagged, marker=marked, marking=marking)
        return shape(relation, known, order, readings, access)
    first = order.key[0]
    is_rowid = (*order.key,) == (table.alias,)  # then the table is the index
    access = Access(
        source,
        vouched=table.vouches(order.key)
        and all(_is_spelt_once(f) for f in readings[: len(order.key)]),
        ordered=first == table.alias or (not table.rowid and table.primary[:1] == (first,)),
        key_indexed=is_rowid or any(i.orders(order.key) for i in table.indexes),
        indexed=first == table.alias
        or any(i.columns[0] == first and not i.is_partial for i in table.indexes),
        rows_expected=table.rows,
        pages=table.pages if table.rowid or not set(table.primary) & set(relation.as_text) else (),
        kept=kept,
        misflagged=misflagged,
        marker=marked,
        marking=marking,
    )
    return _ranged(session, shape(relation, known, order, readings, access))


def located(session: SqliteCatalogue, relation: Shape) -> Shape | Unlocated:
    """Return what `LocatorReads.locate` returns: a table with its rowid."""
    table = None
    if relation.relation.table is not None:
        name = _table_name(session, relation.relation)
        rows = session.ask(XINFO.format(schema="main", name=quote(name)))
        table = _table(session, name, rows)
    if table is None or not table.is_stored:
        return Unlocated("the rows of a view, a query or a virtual table have no rowid")
    if not table.rowid:
        return Unlocated("the table is WITHOUT ROWID, or its columns have taken the name of it")
    return relation.located(table.pages)


def _ranged(session: SqliteCatalogue, described: Shape) -> Shape:
    """Return the shape, `unordered` if SQLite would not read ranges of the whole key by index.

    Only its plan tells which collation a column has: that of the index if it can be used.
    """
    if described.unordered:
        return described
    values = [None] * (2 * described.recipe.key_columns)
    plan = session.ask(EXPLAIN_PLAN + between_sql(described, PRESENCE[-1]), *values)
    names = ",".join(column.name for column in described.recipe.key)
    names = f"({names})" if "," in names and described.recipe.key_columns > 1 else names
    used = (f"({names}>", "INTEGER PRIMARY KEY (rowid>")
    if any(one in str(row[-1]) for row in plan for one in used):
        return described
    why = "SQLite would not read ranges of it by an index"
    return replace(described, unordered=why, keyed=False)


def listed(session: SqliteCatalogue) -> list[Listed]:
    """Return what `Engine.listed` returns."""
    entries = []
    tables = [named(row, session.encoding) for row in session.ask(TABLES)]
    virtual = [n for n, _, sql, _ in tables if sql.upper().lstrip().startswith(_VIRTUAL)]
    for name, _, _, unread in tables:
        if name.startswith("sqlite_") or _is_shadow(name, virtual):
            continue
        if unread:
            entries.append(Listed("main", name, join_name((name,)), unread=unread))
            continue
        columns = XINFO.format(schema="main", name=quote(name))
        try:
            table = _table(session, name, session.ask(columns))
        except DriftlineError as error:
            if error.is_retryable:
                raise
            # A view of what is gone, a virtual table without its module: `describe` says why.
            entries.append(Listed("main", name, join_name((name,))))
            continue
        sound = [
            tuple(column for column in index.columns if column is not None)
            for index in table.indexes
            if index.is_unique and not index.is_partial and set(index.columns) <= table.not_null
        ]
        key = () if table.primary else min(sound, key=len, default=())
        entries.append(Listed("main", name, join_name((name,)), key))
    return sorted(entries, key=lambda listed: listed.name)


def _is_shadow(name: str, virtual: Sequence[str]) -> bool:
    """Return True for a table in which FTS or R*Tree keeps its own data, in a form of its own."""
    ends = [name[len(one) :] for one in virtual if name.startswith(one)]
    return not _SHADOW.isdisjoint(ends)


def _table_name(session: SqliteCatalogue, relation: Relation) -> str:
    parts = split_name(relation.table or "")
    tables = (named(row, session.encoding) for row in session.ask(TABLES))
    names = [name for name, _, _, unread in tables if not unread]
    if len(parts) == 2 and parts[0].lower() != "main":
        raise ConfigurationError(
            f"{relation.table!r} names another database than the file.",
            remedy="Write the table's name alone.",
            where=relation.name,
        )
    # SQLite's names ignore the case of ASCII letters.
    match = [n for n in names if n.lower() == parts[-1].lower()]
    if len(parts) > 2 or not match:
        raise unknown_table(relation, names)
    return str(match[0])


def _table(session: SqliteCatalogue, name: str, rows: list[tuple[Any, ...]]) -> _Table:
    tables = (named(row, session.encoding) for row in session.ask(TABLES))
    kind, sql = next((k, s) for n, k, s, unread in tables if n == name and not unread)
    is_stored = kind == "table" and not sql.upper().lstrip().startswith(_VIRTUAL)
    primary = [row[1] for row in sorted((r for r in rows if r[5]), key=lambda r: r[5])]
    indexes = tuple(_indexes(session, name)) if is_stored else ()
    rowid = _rowid(session, name, [r[1].lower() for r in rows]) if is_stored else ""
    types = {row[1]: (row[2] or "").upper() for row in rows}
    is_alias = (
        bool(rowid)
        and len(primary) == 1
        and types[primary[0]] == "INTEGER"
        and not any(i.is_primary for i in indexes)
    )
    alias = primary[0] if is_alias else ""
    # The rowid is never NULL. A virtual table keeps what it declares, or does not.
    not_null = frozenset(row[1] for row in rows if row[3] or row[1] == alias)
    return _Table(
        name,
        is_stored,
        tuple(primary),
        not_null if is_stored else frozenset(),
        indexes,
        rowid,
        alias,
        _rows_expected(session, name) if is_stored else 0,
    )


def _rowid(session: SqliteCatalogue, name: str, columns: Sequence[str]) -> str:
    """Return the name of the rowid, or "": WITHOUT ROWID, or columns took all three names."""
    for rowid in ROWIDS:
        if rowid not in columns:
            try:
                session.ask(f"SELECT {rowid} FROM main.{quote(name)} LIMIT 0")
            except ConfigurationError:
                return ""
            return rowid
    return ""


def _indexes(session: SqliteCatalogue, name: str) -> list[_Index]:
    indexes = []
    for _, index, unique, origin, partial in session.ask(INDEX_LIST.format(name=quote(name))):
        rows = session.ask(INDEX_XINFO.format(name=quote(index)))
        columns = tuple(row[2] for row in rows if row[5])
        is_known = all((row[4] or "").upper() in _COLLATIONS for row in rows if row[5])
        collations = tuple((row[4] or "").upper() for row in rows if row[5])
        indexes.append(
            _Index(columns, bool(unique and is_known), bool(partial), origin == "pk", collations)
        )
    return indexes


def _rows_expected(session: SqliteCatalogue, name: str) -> int:
    """Return the row count of the last ANALYZE, or 0."""
    try:
        rows = session.ask(STATISTICS, name)
    except ConfigurationError:
        return 0
    counts = [str(stat).split()[0] for (stat,) in rows if stat]
    return max((int(c) for c in counts if c.isdigit()), default=0)


def _column(
    relation: Relation, name: str, written: str, is_nullable: bool, is_stored: bool
) -> ReadColumn:
    read = quote(name, MARK)
    if name in relation.as_text:
        return ReadColumn(name, DeclaredType("text"), read, "tagged", is_nullable)
    if (override := declared(relation, name)) is not None:
        return ReadColumn(name, override, read, _form(override), is_nullable)
    type, form = _by_declaration(written)
    note = ""
    if form == "blob" and not is_stored:
        form = "tagged"  # some versions of SQLite call every untyped expression a BLOB
    if form == "tagged":
        type = DeclaredType("text")
        what = f"declared {written!r}" if written else "without a declared type"
        is_exact = written.upper().startswith(("NUMERIC", "DECIMAL"))
        such = "numeric(15,2)" if is_exact else "int8"
        note = (
            f"{what}, read as tagged text (such as r:1.5); see `types`"
            f' (types = {{"{name}" = "{such}"}})'
        )
    return ReadColumn(name, type, read, form, is_nullable, note)


def _compared(relation: Relation, column: ReadColumn, written: str, encoding: str) -> ReadColumn:
    """Return a stored column with what a derivation may compare it by (docs/types.md).

    Its affinity must be that of its declared type, so that literals of the type are compared as
    they are. In a file in UTF-16 the order of text is that of other bytes.
    """
    if column.name in dict(relation.types):
        return column
    if column.form == "int":
        return replace(column, comparable=Comparable.ORDER)
    if column.form == "text" and any(w in written.upper() for w in _TEXT_AFFINITY):
        is_utf8 = encoding == "UTF-8"
        return replace(column, comparable=Comparable.ORDER if is_utf8 else Comparable.EQUALITY)
    return column


def _collations(table: _Table | None, key: tuple[str, ...]) -> dict[str | None, str]:
    """Return the collation of each key column in the index of the key, if it is none by bytes."""
    indexes = () if table is None else table.indexes
    covering = [i for i in indexes if i.columns[: len(key)] == key]
    if not covering or any(i.orders(key) for i in covering):
        return {}
    pairs = zip(covering[0].columns, covering[0].collations, strict=False)
    return {name: collation for name, collation in pairs if collation != "BINARY"}


def _unordered(column: ReadColumn, encoding: str, collations: Mapping[str | None, str]) -> str:
    """Return how SQLite sorts a column if not as the protocol does (`ReadColumn.unordered`)."""
    if column.name in collations:
        return f"by the collation {collations[column.name]}, not by bytes"
    if column.form == "tagged":
        return "by the class of each value"
    if column.type.kind == "text" and encoding != "UTF-8":
        return f"by the bytes of {encoding}"
    if column.type.kind == "numeric" and column.form == "string":
        return "as text"
    return ""


def _is_spelt_once(column: ReadColumn) -> bool:
    """Return True if a value of a column has one stored text: a unique index keeps two texts apart
    that are one value, such as an instant, and a value is found by one of them."""
    return column.form != "string" or column.type.kind in _SPELT_ONCE


def _form(type: DeclaredType) -> str:
    if type.kind in _STRUCTURED:
        return _STRUCTURED[type.kind]
    if type.kind == "numeric":
        return "decimal" if (type.precision or 99) <= DOUBLE_DIGITS else "string"
    return {"float4": "real", "float8": "real", "text": "text", "bytea": "blob"}.get(
        type.kind, "string"
    )


def _by_declaration(written: str) -> tuple[DeclaredType, str]:
    name = " ".join(written.upper().split())
    text = DeclaredType("text")
    if "INT" in name:
        return DeclaredType("int8"), "int"
    if any(part in name for part in _TEXT_AFFINITY):
        return text, "text"
    if "BLOB" in name:
        return (DeclaredType("bytea"), "blob") if name == "BLOB" else (text, "tagged")
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return DeclaredType("float8"), "real"
    if name.startswith("BOOL"):
        return DeclaredType("int8"), "int"
    if match := _SIZED.fullmatch(name):
        precision, scale = int(match[1]), int(match[2] or 0)
        if 1 <= precision <= DOUBLE_DIGITS and scale <= precision:
            return DeclaredType("numeric", precision, scale), "decimal"
    if name.startswith(("DATE", "TIME")):
        return text, "text"
    return text, "tagged"


def _marking(written: str | None, is_nullable: bool) -> tuple[str, bool]:
    """Return the kind by which a column marks changes, and True if it may be NULL."""
    name = " ".join((written or "").upper().split())
    if name.startswith(("DATETIME", "TIMESTAMP")):
        return "timestamp", is_nullable
    if name.startswith("DATE"):
        return "date", is_nullable
    if name.startswith("BOOL"):
        return "bool", is_nullable
    kind = _by_declaration(name)[0].kind
    return kind if name else "without a declared type", is_nullable
