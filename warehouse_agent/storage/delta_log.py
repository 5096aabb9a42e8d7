"""The published table: a Delta log in which every version is one commit of ours (decision 8).

Tasks write Parquet; delta-rs commits add and remove actions with a `txn` marker and what the
version is (recipe, layout, total, proof) as metadata. The handle that read the head is the handle
that commits, so that whoever else commits in between makes the commit fail instead of losing
rows. A head that Driftline did not write is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)
from driftline.errors import Locked, MalformedMessage, NotFound, WarehouseUnavailable

from warehouse_agent.columns.layout import Layout, from_json, to_json
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store, one_line
from warehouse_agent.storage.table import Snapshot

_META = "driftline"  # the key of our metadata in a commit
_APP_ID = "driftline"  # constant per table: versions of one writer
READER_VERSIONS = (1, 3)  # 3 only for timestampNtz


def head(store: Store, name: str, *, version: int | None = None) -> Snapshot | None:
    """The newest version, or the one asked for; None when nothing was ever published.

    Raises:
        NotFound: a version newer than the newest was asked for.
        WarehouseUnavailable: the log cannot be read, was written by somebody else, or needs a
            reader that a list of files does not satisfy.
    """
    try:
        table = DeltaTable(store.table(name), version=version)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if version is not None and (newest := head(store, name)) and newest.version < version:
            raise NotFound(
                f"There is no version {version}; the newest is {newest.version}.", where=name
            ) from None
        raise WarehouseUnavailable(
            f"The table cannot be read: {one_line(error)}.",
            where=name,
            remedy="Check the folder and `path`.",
        ) from error
    meta = commit_meta(store, name, table.version())
    if meta is None:
        raise WarehouseUnavailable(
            f"Version {table.version()} of the table was not written by Driftline.",
            where=name,
            remedy="Restore the last version of ours (`driftline history` lists them), or move "
            "the folder away for a new first load.",
        )
    _check_protocol(table, name)
    try:
        layout = from_json(meta["layout"])
    except (AssertionError, KeyError, MalformedMessage, TypeError, ValueError) as error:
        raise WarehouseUnavailable(
            f"Version {table.version()} of the table was written by a newer release of Driftline.",
            where=name,
            remedy="Install that release, or a newer one, here as well.",
        ) from error
    return Snapshot(table.version(), _files(table, store, name, layout), layout, meta, table)


def commit_meta(store: Store, name: str, version: int) -> dict[str, Any] | None:
    """What the commit of a version says of it; None: it is not ours."""
    for line in (store.read(name, "_delta_log", f"{version:020d}.json") or b"").splitlines():
        text = json.loads(line).get("commitInfo", {}).get(_META)
        if isinstance(text, str):
            meta: dict[str, Any] = json.loads(text)
            return meta
    return None


def versions(store: Store, name: str) -> list[dict[str, Any]]:
    """The metadata of every version of ours, newest first."""
    try:
        table = DeltaTable(store.table(name))
    except TableNotFoundError:
        return []
    return [json.loads(c[_META]) for c in table.history() if isinstance(c.get(_META), str)]


def commit(
    store: Store,
    name: str,
    *,
    base: Snapshot | None,
    layout: Layout,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    meta: dict[str, Any],
) -> int:
    """Make the added files the table instead of the removed ones; returns the new version.

    Raises:
        Locked: another agent committed since `base` was read.
        WarehouseUnavailable: the log cannot be written.
    """
    version = 0 if base is None else base.version + 1
    # A commit that changes the schema keeps no file: statistics are declared when none is to keep.
    declares = base is None or base.layout.declares_statistics or len(removed) == len(base.files)
    layout = replace(layout, declares_statistics=declares)
    meta = {**meta, "version": version, "layout": to_json(layout)}
    properties = CommitProperties(
        custom_metadata={_META: json.dumps(meta)},
        app_transactions=[Transaction(_APP_ID, version)],
        max_commit_retries=0,
    )
    schema = Schema.from_arrow(layout.arrow_schema)
    adds = [_add(f, layout) for f in added]
    try:
        if base is None:
            create_table_with_add_actions(
                store.table(name),
                schema,
                adds,
                mode="error",
                name=name,
                commit_properties=properties,
            )
            return version
        actions: list[AddAction | RemoveAction]
        if layout.arrow_schema != base.layout.arrow_schema:
            # The only mode that changes the schema in the same commit; it removes what was there.
            assert len(removed) == len(base.files)
            mode, actions = "overwrite", list(adds)
        else:
            now = int(time.time() * 1000)
            mode = "append"
            actions = [*adds, *(RemoveAction(f.path, True, now, f.size, {}) for f in removed)]
        base.handle.create_write_transaction(actions, mode, schema, commit_properties=properties)
    except CommitFailedError as error:
        raise _overtaken(name) from error
    except (DeltaError, OSError) as error:
        if base is None and DeltaTable.is_deltatable(store.table(name)):
            raise _overtaken(name) from error
        raise WarehouseUnavailable(
            f"The version could not be committed: {one_line(error)}.",
            where=name,
            remedy="Check space and permissions; the last published version is untouched.",
        ) from error
    return version


def _overtaken(name: str) -> Locked:
    return Locked(
        "Another agent published a version in the meantime; nothing of ours was published.",
        where=name,
        remedy="Run the refresh again.",
    )


def _add(file: DataFile, layout: Layout) -> AddAction:
    stats: dict[str, object] = {"numRecords": file.rows}
    if file.bounds is not None:
        least, greatest = file.bounds
        stats |= {"minValues": {layout.names[0]: least}, "maxValues": {layout.names[0]: greatest}}
    stamp = int(time.time() * 1000)
    return AddAction(file.path, file.size, {}, stamp, True, json.dumps(stats))


def _files(table: DeltaTable, store: Store, name: str, layout: Layout) -> tuple[DataFile, ...]:
    actions = table.get_add_actions(flatten=True)
    columns = [actions.column(c).to_pylist() for c in ("path", "size_bytes", "num_records")]
    ends = [f"{end}.{layout.names[0]}" for end in ("min", "max")]
    is_known = layout.recipe.integer_key and set(ends) <= set(actions.schema.names)
    pairs = zip(*(actions.column(c).to_pylist() for c in ends), strict=True) if is_known else None
    files = []
    for path, size, count in zip(*columns, strict=True):
        pair = next(pairs) if pairs else (None, None)
        files.append(
            DataFile(path, store.uri(name, path), size, count, None if None in pair else pair)
        )
    return tuple(sorted(files, key=lambda f: f.path))


def _check_protocol(table: DeltaTable, name: str) -> None:
    """Refuse a table whose files alone are not its content (deletion vectors, column mapping)."""
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version not in READER_VERSIONS or features - {"timestampNtz"}:
        raise WarehouseUnavailable(
            f"The table uses reader features {sorted(features)} that Driftline does not write.",
            where=name,
            remedy="Restore a version of ours, or move the folder away for a new first load.",
        )
