"""Tables as releases left them that declared bookkeeping columns beside those of the source.

They declared every column nullable, and did not look whether one holds NULL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pyarrow as pa
from deltalake import Schema

from warehouse_agent.columns.layout import CHECKED, RESERVED, Layout, to_json
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.storage import delta_log, formats, log_entry, not_null, opened_table
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion, NewViewVersion, Snapshot


def declared_then(layout: Layout | ViewLayout) -> Schema:
    """Return the columns that a table of this layout declared."""
    ours = (field for field in layout.file_schema if field.name.startswith(RESERVED))
    own = (field.with_nullable(True) for field in layout.declared_schema)
    return Schema.from_arrow(pa.schema([*own, *ours]))


def written_then(layout: Layout) -> dict[str, object]:
    """Return the JSON of a layout as its commit had it."""
    return {key: value for key, value in to_json(layout).items() if key != CHECKED}


@contextmanager
def declaring_bookkeeping() -> Iterator[None]:
    """Publish tables in this process as those releases did."""
    with (
        mock.patch.object(log_entry, "declared", declared_then),
        mock.patch.object(opened_table, "declared", declared_then),
        _checking_nothing(),
    ):
        yield


@contextmanager
def keeping_declarations() -> Iterator[None]:
    """Publish in this process as releases did that go on from a table and know no NOT NULL."""
    with (
        mock.patch.object(log_entry, "_changes_schema", return_value=False),
        _checking_nothing(),
    ):
        yield


@contextmanager
def _checking_nothing() -> Iterator[None]:
    with (
        mock.patch.object(delta_log, "to_json", written_then),
        mock.patch.object(not_null, "checked", lambda new: new.layout),
    ):
        yield


def declare(store: Store, name: str) -> int:
    """Publish the newest rows again as such a release did; return the number of the version."""
    head = formats.any_head(store, name)
    assert head is not None
    record = formats.same_rows(head.record, adopted=head.version)
    with declaring_bookkeeping():
        if isinstance(head, Snapshot):
            return formats.commit(store, name, NewVersion(head, head.layout, (), (), record))
        return formats.commit(store, name, NewViewVersion(head, head.layout, (), (), record))
