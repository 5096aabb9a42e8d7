"""Tables as releases left them that declared bookkeeping columns beside those of the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pyarrow as pa
from deltalake import Schema

from warehouse_agent.columns.layout import RESERVED, Layout
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.storage import formats, log_entry, opened_table
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion, NewViewVersion, Snapshot


def declared_then(layout: Layout | ViewLayout) -> Schema:
    """Return the columns that a table of this layout declared."""
    ours = (field for field in layout.file_schema if field.name.startswith(RESERVED))
    return Schema.from_arrow(pa.schema([*layout.declared_schema, *ours]))


@contextmanager
def declaring_bookkeeping() -> Iterator[None]:
    """Publish tables in this process as those releases did."""
    with (
        mock.patch.object(log_entry, "declared", declared_then),
        mock.patch.object(opened_table, "declared", declared_then),
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
