"""From a DBA's `Relation` and a catalogue's columns to the tuple order and a SELECT; no I/O.

All engines share these steps: names are split and quoted, unknown names are refused with the
nearest known one, the key comes first (protocol, section 3).

Invariants: every name in SQL text has passed `quote`; a name is taken as it is written, never
folded to lower or upper case. Rejected: SQLAlchemy's quoting, which writes one name in two ways.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from driftline.errors import OPEN, ConfigurationError, DatabaseRefused, MalformedMessage, together
from driftline.limits import DATABASE_FINGERPRINT_VERSION, FINGERPRINT_VERSION
from driftline.relations.derivations import Comparable
from driftline.rows import key_order
from driftline.rows.key_order import KeyRange
from driftline.values.types import Column, DeclaredType, Recipe, parse_type

from source_agent.engines.relations.markers import Column as MarkingColumn
from source_agent.engines.relations.markers import MarkedBy, MarkerKind, refuse_unusable
from source_agent.engines.relations.shapes import Consistency, Fingerprint, Plan, Relation, Shape

ALIAS = "driftline_relation"
PUBLISHED = {"key", "columns"}  # settings whose columns a warehouse knows
# A range of keys for each text in which ranges are read: which bounds it has decides.
PRESENCE = (KeyRange(), KeyRange((), None), KeyRange(None, ()), KeyRange((), ()))
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column with the expression that reads it without loss; `form`: see `Plan.forms`.

    `note`, `note_local`: facts about it, as `Shape.notes` and `Shape.notes_local`.
    `comparable`: operators that a derivation may have for it (docs/types.md).
    `unordered`: how the database sorts it, if not as the protocol does; see `Shape.unordered`.
    `is_found`: an index finds its value by the string form, however it is sorted.
    """

    name: str
    type: DeclaredType
    read: str
    form: str = ""
    nullable: bool = True
    note: str = ""
    comparable: Comparable = Comparable.NOTHING
    unordered: str = "in an order that is not known"
    is_found: bool = False
    note_local: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """An engine's knowledge of a relation beyond its columns; see `Shape` and `Plan`.

    `key_indexed`: an index begins with the columns of the key, in their order.
    `row_hash` is None if the engine has no hash that the warehouse can compute too; `key_hash` is
    empty then. `kept` is the condition of rows that the flag of the marker does not delete, and
    `misflagged` that of rows whose flag is NULL, or neither 0 nor 1.
    `marking` are all columns of the relation, as `markers` sees them.
    """

    source: str
    vouched: bool = False
    ordered: bool = False
    indexed: bool = False
    key_indexed: bool = False
    rows_expected: int = 0
    notes: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    consistency: Consistency = Consistency.EXACT
    row_hash: str | None = None
    key_hash: str = ""
    kept: str = ""
    misflagged: str = ""
    marker: MarkedBy | None = None
    marking: Mapping[str, MarkingColumn] = field(default_factory=dict)
    key_index: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """The names of the columns in tuple order; the first `key_columns` are the key."""

    names: tuple[str, ...]
    key_columns: int

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return self.names[: self.key_columns]


def quote(name: str, mark: str = '"') -> str:
    """Quote a name as an identifier of SQL."""
    return mark + name.replace(mark, mark * 2) + mark


def granted_columns(relation: Relation, *, hidden: str) -> tuple[str, ...]:
    """Return the columns of a table that are read, each once; none: the file does not name them.

    hidden: the column of the database that a marker without a `column` reads.
    """
    if relation.columns is None or relation.key is None:
        return ()
    marker = relation.marker
    marking = () if marker is None else (marker.column or hidden, marker.deleted)
    names = (*relation.key, *relation.columns, *marking)
    return tuple(dict.fromkeys(name for name in names if name))


def split_name(text: str, mark: str = '"') -> tuple[str, ...]:
    """Split a table's name on the dots outside quotes, and remove the quotes."""
    parts, pieces = [""], text.split(mark)
    for i, piece in enumerate(pieces):
        if i % 2:  # inside quotes
            parts[-1] += piece
        elif not piece and 0 < i < len(pieces) - 1:  # a doubled mark
            parts[-1] += mark
        else:
            first, *others = piece.split(".")
            parts[-1] += first
            parts += others
    return tuple(parts)


def join_name(parts: Sequence[str], mark: str = '"') -> str:
    """Join parts to a table's name that `split_name` splits; quote those that need it."""
    return ".".join(quote(p, mark) if mark in p or "." in p or not p else p for p in parts)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a remedy: the known name that was probably meant, else the first known ones."""
    folded = {k.lower(): k for k in reversed(known)}
    if close := difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.5):
        return f"Did you mean {folded[close[0]]!r}?"
    if not known:
        return ""
    more = ", …" if len(known) > 8 else ""
    return f"There are: {', '.join(known[:8])}{more}."


def unknown_table(relation: Relation, known: Sequence[str]) -> ConfigurationError:
    """Return the error for a table that is not among the `known` ones."""
    return ConfigurationError(
        f"The table {relation.table!r} does not exist.",
        remedy=nearest(relation.table or "", known),
        where=relation.name,
        abroad="The table that it reads does not exist, or is not shown to the agent.",
    )


def derived_table(relation: Relation, mark: str = '"') -> str:
    """Return the query of a relation as SQL after FROM."""
    query = (relation.query or "").strip().rstrip(";").rstrip()
    return f"(\n{query}\n) AS {quote(ALIAS, mark)}"


def arrange(relation: Relation, known: Sequence[str], primary: Sequence[str]) -> Order:
    """Return the columns that are published, in tuple order.

    Args:
        relation: as the DBA published it.
        known: every column of the relation, in its order.
        primary: the primary key, in key order; empty for none.

    Raises:
        ConfigurationError: a name that does not exist or occurs twice, or no key.
    """
    for name, times in Counter(known).items():
        if times > 1:
            raise ConfigurationError(
                f"{times} columns of the query are called {name!r}.",
                remedy="Give each its own name with AS.",
                where=relation.name,
                abroad="Columns of its query have one name.",
            )
    named = {
        "key": relation.key or (),
        "columns": relation.columns or (),
        "as_text": relation.as_text,
        "types": tuple(name for name, _ in relation.types),
    }
    for setting, names in named.items():
        for name, times in Counter(names).items():
            if name not in known:
                raise ConfigurationError(
                    f"There is no column {name!r}.",
                    remedy=nearest(name, known),
                    where=f"{relation.name}: {setting}",
                    abroad=f"There is no column {name!r}." if setting in PUBLISHED else "",
                )
            if times > 1:
                raise ConfigurationError(
                    f"The column {name!r} is listed twice.", where=f"{relation.name}: {setting}"
                )
    key = tuple(relation.key or primary)
    if not key:
        what = "A query" if relation.query else "A file" if relation.files else "The table or view"
        raise ConfigurationError(
            f"{what} has no primary key, and `key` is not set.",
            remedy='Name columns that identify a row: key = ["…"].',
            where=relation.name,
            abroad=OPEN,
        )
    chosen = set(relation.columns if relation.columns is not None else known)
    return Order(key + tuple(n for n in known if n in chosen and n not in key), len(key))


def declared(relation: Relation, column: str) -> DeclaredType | None:
    """Return the type that the file gives to a column, or None.

    Raises:
        ConfigurationError: it is no type.
    """
    text = dict(relation.types).get(column)
    if text is None:
        return None
    try:
        return parse_type(text)
    except MalformedMessage as error:
        raise ConfigurationError(
            error.message,
            remedy="docs/types.md lists them, such as int8, text or numeric(15,2).",
            where=f"{relation.name}: types.{column}",
        ) from None


def refuse_types(relation: Relation, engine: str) -> None:
    """Raise ConfigurationError if the file sets types: the engine knows them all."""
    if relation.types:
        raise ConfigurationError(
            f"{engine} knows the types of its columns; `types` is for SQLite.",
            remedy="Publish a query with CAST instead.",
            where=f"{relation.name}: types",
            abroad=OPEN,
        )


def each_column(
    relation: Relation, described: Sequence[D], read: Callable[[Relation, D], ReadColumn]
) -> list[ReadColumn]:
    """Return the read expression of each column.

    Raises:
        ConfigurationError: some cannot be read; all of them are named.
    """
    columns, refused = [], []
    for column in described:
        try:
            columns.append(read(relation, column))
        except ConfigurationError as error:
            refused.append(error)
    if refused:
        raise together(refused, where=relation.name)
    return columns


def refused_type(relation: Relation, column: str, what: str, remedy: str) -> ConfigurationError:
    """Return the error for a column that cannot be read; `what` is wrong with it."""
    return ConfigurationError(
        f"The column {column!r} {what}.",
        remedy=remedy,
        where=f"{relation.name}.{column}",
        abroad=f"The column {column!r} has a type or a setting with which it cannot be read.",
    )


def changed_setting(relation: Relation, names: Sequence[str]) -> DatabaseRefused:
    """Return the error for settings that a function of the source changed during a read."""
    return DatabaseRefused(
        f"A function that this relation calls changed {', '.join(names)} for the whole session, "
        "and what was read depends on it.",
        where=relation.name,
        remedy="Have the function leave the setting as it found it, or publish columns that do "
        "not call it.",
        abroad=OPEN,
    )


def shape(
    relation: Relation,
    known: Sequence[str],
    order: Order,
    columns: Sequence[ReadColumn],
    access: Access,
) -> Shape:
    """Return the shape of a relation.

    Args:
        relation: as the DBA published it.
        known: the names of all its columns, in its own order.
        order: the published ones, in tuple order.
        columns: the columns of `order`, in its order.
        access: everything else that the engine knows.

    Raises:
        ConfigurationError: the file demands that the database compute fingerprints; it cannot.
    """
    by_database = relation.fingerprint is Fingerprint.DATABASE
    if by_database and access.row_hash is None:
        raise refused_fingerprint(relation, "Only PostgreSQL makes hashes that can be made again.")
    values = order.names[order.key_columns :]
    refuse_unusable(relation.name, relation.marker, access.marker, values)
    place = {name: i for i, name in enumerate(known)}
    recipe = Recipe(
        tuple(Column(f.name, f.type, f.nullable, place[f.name]) for f in columns),
        order.key_columns,
        DATABASE_FINGERPRINT_VERSION if by_database else FINGERPRINT_VERSION,
    )
    notes = tuple(f"{f.name}: {f.note}" for f in columns if f.note)
    where = f"(\n{relation.where}\n)" if relation.where else ""
    return Shape(
        relation=relation,
        recipe=recipe,
        vouched=access.vouched,
        ordered=access.ordered and recipe.integer_key,
        rows_expected=max(0, access.rows_expected),
        indexed=access.indexed and recipe.integer_key,
        notes=notes + access.notes,
        notes_local=tuple(f"{f.name}: {f.note_local}" for f in columns if f.note_local),
        comparable=tuple(f.comparable for f in columns),
        unordered=_unordered(recipe, columns, access),
        keyed=_is_keyed(recipe, columns, access),
        plan=Plan(
            source=access.source,
            where=" AND ".join(filter(None, (where, access.kept))),
            reads=tuple(f.read for f in columns),
            forms=tuple(f.form for f in columns),
            pages=access.pages,
            consistency=access.consistency,
            row_hash=access.row_hash or "",
            key_hash=access.key_hash,
            key_index=access.key_index,
            misflagged=access.misflagged,
        ),
        marker=access.marker,
        marking=tuple(access.marking.items()),
    )


def _is_keyed(recipe: Recipe, columns: Sequence[ReadColumn], access: Access) -> bool:
    """Return `Shape.keyed`."""
    is_found = all(c.is_found or not c.unordered for c in columns[: recipe.key_columns])
    is_unique = access.vouched and access.key_indexed
    return is_found and is_unique and key_order.unordered(recipe) is None


def _unordered(recipe: Recipe, columns: Sequence[ReadColumn], access: Access) -> str:
    """Return `Shape.unordered`."""
    if (without := key_order.unordered(recipe)) is not None:
        return f"the type of its column {without.name}, {without.type}, has no order"
    for column in columns[: recipe.key_columns]:
        if column.unordered:
            return f"the database sorts its column {column.name} {column.unordered}"
    if not access.key_indexed:
        return "no index begins with its columns, in their order"
    return ""


def refused_fingerprint(relation: Relation, why: str) -> ConfigurationError:
    """Return the error for a relation whose fingerprints its database cannot compute."""
    return ConfigurationError(
        why,
        remedy='Remove `fingerprint = "database"`; the agent makes fingerprints everywhere.',
        where=f"{relation.name}: fingerprint",
    )


def plan_of(shape: Shape) -> Plan:
    """Return the plan of a shape that an engine described."""
    assert shape.plan is not None, "a shape is read by the engine that described it"
    return shape.plan


def select_sql(
    shape: Shape,
    *conditions: str,
    extra: Sequence[str] = (),
    source: str | None = None,
    tail: str = "",
) -> str:
    """Return a SELECT of a relation's columns in tuple order.

    Args:
        conditions: SQL; they hold beside the relation's own `where`. Empty ones are left out.
        extra: expressions selected behind the columns and the plan's locators.
        source: the text after FROM if it is not the plan's.
        tail: text at the end: ORDER BY, LIMIT.
    """
    plan = plan_of(shape)
    wanted = " AND ".join(filter(None, (plan.where, *conditions)))
    where = f"\nWHERE {wanted}" if wanted else ""
    first, behind = (plan.locators, ()) if plan.located_first else ((), plan.locators)
    reads = ", ".join((*first, *plan.reads, *behind, *extra))
    return f"SELECT {reads}\nFROM {source or plan.source}{where}{tail}"


def beside_key(shape: Shape) -> list[str]:
    """Return the columns beside the key that a read of all keys needs: the flag of deleted rows,
    or the checksum that is the marker."""
    if (marked := shape.marker) is None:
        return []
    is_checksum = marked.kind is MarkerKind.CHECKSUM
    names = [marked.marker.deleted, marked.marker.column if is_checksum else None]
    return [name for name in names if name]


def scan_sql(shape: Shape, *, ordered: bool = False) -> str:
    """Return the SELECT of all rows; `ordered`: by the first column."""
    plan = plan_of(shape)
    place = 1 + len(plan.locators) * plan.located_first
    return select_sql(shape, tail=f"\nORDER BY {place}" if ordered else "")


def null_places(shape: Shape, within: KeyRange) -> list[int]:
    """Return the key columns whose NULLs a range of keys has to look for beside its rows.

    A comparison of keys is unknown if one has a NULL in the first column in which they may differ.
    So a row with a NULL behind values of a lower bound belongs to its range, and one with a NULL in
    the first column to the range without a lower bound.
    """
    places = range(1) if within.lower is None else range(1, shape.recipe.key_columns)
    return [i for i in places if shape.recipe.key[i].nullable]


def null_key_sql(shape: Shape, mark: str = '"') -> str:
    """Return the SELECT of one row whose key, of one column, is NULL."""
    key = quote(shape.recipe.columns[0].name, mark)
    return select_sql(shape, f"{key} IS NULL", tail="\nLIMIT 1")
