"""A version of a Delta table that delta-rs has opened: its handle, its files, its protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from driftline.errors import Locked, WarehouseUnavailable

from warehouse_agent.columns.layout import RESERVED, Layout
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.planning.request_cost import opening_reads
from warehouse_agent.storage.backends.request_counts import Request
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot, ViewSnapshot

READER_VERSIONS = (1, 3)  # 3 only for features
# delta-rs declares variantType when a property is set; no column has that type.
READER_FEATURES = frozenset({"timestampNtz", "variantType"})


class OpenedTable(DeltaTable):
    """A version that delta-rs has opened; `options`: how it reaches the store, with its keys."""

    def __init__(self, uri: str, version: int | None, options: dict[str, str] | None) -> None:
        super().__init__(uri, version=version, storage_options=options)
        self.options = options


def opened(store: Store, name: str, version: int | None = None) -> OpenedTable:
    """Open a version of a table; None: its newest.

    Raises:
        WarehouseUnavailable: the object store refuses, or does not answer.
        DeltaError, OSError: any other that delta-rs raises.
    """
    with answers(store, name):
        try:
            table = OpenedTable(store.table(name), version, store.delta_options)
        except TableNotFoundError:
            store.count(name, {Request.LIST: 1, Request.GET: 1})
            raise
    store.count(name, {Request.LIST: 1, Request.GET: opening_reads(table.version())})
    return table


@contextlib.contextmanager
def answers(store: Store, name: str) -> Iterator[None]:
    """Raise WarehouseUnavailable if an error of delta-rs is an answer of the object store."""
    try:
        yield
    except (DeltaError, OSError) as error:
        if (found := store.answer(error)) is None:
            raise
        raise WarehouseUnavailable(
            f"The table cannot be read: {found.text}.", where=name, remedy=found.remedy
        ) from error


def pinned(version: Snapshot | ViewSnapshot) -> OpenedTable:
    """Return the handle of a version."""
    assert isinstance(version.pin, OpenedTable), "a snapshot of this format"
    return version.pin


def with_keys_of_now(store: Store, name: str, table: OpenedTable) -> OpenedTable:
    """Return a handle of the same version that reaches the store with the keys of now.

    delta-rs keeps the keys of a profile with which it opened a table, and a refresh may take longer
    than they are valid.

    Raises:
        Locked: the version is another one by now, of a log that was restored.
        WarehouseUnavailable, DeltaError, OSError: as `opened`.
    """
    if store.delta_options == table.options:
        return table
    again = opened(store, name, table.version())
    if sorted(again.file_uris()) != sorted(table.file_uris()):
        raise overtaken(name)
    return again


def overtaken(name: str) -> Locked:
    """Return the error of a commit on a base after which somebody else has committed."""
    return Locked(
        "Another agent published a version in the meantime; this one published nothing.",
        where=name,
        remedy="Run the refresh again.",
    )


def columns_of(schema: Schema) -> list[tuple[str, object]]:
    """Return names and types of columns, without what a program notes about them."""
    return [(field.name, field.type) for field in schema.fields]


def declared(layout: Layout | ViewLayout) -> Schema:
    """Return the columns that a table of this layout declares."""
    return Schema.from_arrow(layout.declared_schema)


def not_null_of(schema: Schema) -> set[str]:
    """Return the columns that are declared NOT NULL."""
    return {field.name for field in schema.fields if not field.nullable}


def own_columns(schema: Schema) -> list[tuple[str, object]]:
    """Return names and types of columns without our bookkeeping, which older releases declared."""
    return [column for column in columns_of(schema) if not column[0].lower().startswith(RESERVED)]


def declares_too_much(
    table: DeltaTable, layout: Layout | ViewLayout, not_null: frozenset[str]
) -> bool:
    """Return True if a table declares our bookkeeping columns beside those of a layout, as older
    releases did, or columns NOT NULL that are not known to hold none."""
    columns, own = columns_of(table.schema()), own_columns(table.schema())
    if own != columns_of(declared(layout)):
        return False
    return own != columns or not not_null_of(table.schema()) <= not_null


def listed_files(
    table: DeltaTable,
    store: Store,
    name: str,
    layout: Layout | ViewLayout,
    not_null: frozenset[str] = frozenset(),
) -> tuple[DataFile, ...]:
    """Return the data files of an opened version, by path; `not_null` as in each of them."""
    actions = table.get_add_actions(flatten=True)
    ends = [f"{end}.{layout.integer_key}" for end in ("min", "max")]
    has_bounds = layout.integer_key is not None and set(ends) <= set(actions.schema.names)
    columns = ["path", "size_bytes", "num_records", *(ends if has_bounds else [])]
    there = set(actions.schema.names)  # other programs may note no number of rows
    none = [0] * actions.num_rows
    lists = (actions.column(c).to_pylist() if c in there else none for c in columns)
    files = []
    for row in zip(*lists, strict=True):
        path, size, count, *bounds = row
        known = (bounds[0], bounds[1]) if bounds and None not in bounds else None
        uri = store.uri(name, path)
        files.append(DataFile(path, uri, size, count or 0, known, not_null))
    return tuple(sorted(files, key=lambda f: f.path))


def check_protocol(table: DeltaTable, name: str) -> None:
    """Refuse a table whose files alone are not its content (deletion vectors, column mapping).

    Raises:
        WarehouseUnavailable: it is one.
    """
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version not in READER_VERSIONS or features - READER_FEATURES:
        raise WarehouseUnavailable(
            f"The table uses reader features {sorted(features)} that Driftline does not write.",
            where=name,
            remedy="Restore a version that Driftline wrote, or move the folder away to load anew.",
        )
