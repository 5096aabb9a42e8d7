"""Try in a folder what delta-rs does with a log: make it, commit, refuse a second commit."""

from __future__ import annotations

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import create_table_with_add_actions

from warehouse_agent.storage.place_trial import RACE, two_writers
from warehouse_agent.storage.store import Store, not_logged

_SCHEMA = Schema.from_arrow(pa.schema([("x", pa.int64())]))
_ENTRY_BYTES = 1000  # roughly
_ONCE = CommitProperties(max_commit_retries=0)


def try_delta(store: Store, *place: str) -> None:
    """Make a Delta table by delta-rs, and commit twice on its first version: one must fail.

    Raises:
        WarehouseUnavailable: it cannot be made, or both commits succeed.
    """
    uri, options = store.table("/".join(place)), store.delta_options
    try:
        create_table_with_add_actions(uri, _SCHEMA, [], mode="error", storage_options=options)
        handles = [DeltaTable(uri, storage_options=options) for _ in range(RACE)]
        handles[0].create_write_transaction([], "append", _SCHEMA, commit_properties=_ONCE)
    except (DeltaError, OSError) as error:
        what = f"delta-rs cannot write to {uri}"
        raise not_logged(store, error, what, uri, _ENTRY_BYTES, where=store.root) from error
    try:
        handles[1].create_write_transaction([], "append", _SCHEMA, commit_properties=_ONCE)
    except CommitFailedError:
        return
    raise two_writers(store.root)
