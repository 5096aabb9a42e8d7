"""Make an entry of a Delta log, and check it before it is put in place.

Entries that change neither columns nor protocol are checked as lists of actions. Others are opened
by delta-rs first, in a copy of the log's end (`log_trial`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import (
    AddAction,
    RemoveAction,
    create_table_with_add_actions,
)
from driftline.errors import Locked, WarehouseUnavailable

from warehouse_agent.planning.request_cost import (
    CHECKPOINT_VERSIONS,
    COMMIT_LISTS,
    COMMIT_READS,
)
from warehouse_agent.storage import log_trial
from warehouse_agent.storage.backends.request_counts import Request
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.elapsed import ATTEMPT_S_MAX
from warehouse_agent.storage.opened_table import (
    check_protocol,
    columns_of,
    declared,
    listed_files,
    not_null_of,
    overtaken,
    pinned,
    with_keys_of_now,
)
from warehouse_agent.storage.store import Store, one_line
from warehouse_agent.storage.table import NewVersion, NewViewVersion

META = "driftline"  # the key of our metadata in a commit
APP_ID = "driftline"  # constant per table: versions of one writer
# By default a commit also removes entries of more than 30 days, and one of those may be the version
# that a view which stays behind was made of: `gc` knows (`shorten`). It makes checkpoints, too, and
# a commit whose checkpoint fails ends with an error although readers see it: see `checkpoint`.
ENTRY_ALONE = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_log = logging.getLogger("driftline")


def write(
    store: Store,
    name: str,
    new: NewVersion | NewViewVersion,
    properties: CommitProperties,
) -> None:
    """Commit an entry; one that changes the schema or the protocol is first opened on a copy."""
    base, layout = new.base, new.layout
    schema = declared(layout)
    adds = [_add(f, layout.integer_key) for f in new.added]
    _check_entry(name, new)
    if base is None:
        _create(store, name, new, adds, properties)
    elif _changes_schema(new, schema):
        _change_schema(store, name, new, properties)
    else:
        _refuse_old(store, name, new)
        table = with_keys_of_now(store, name, pinned(base))
        now = int(time.time() * 1000)
        removes = (RemoveAction(f.path, True, now, f.size, {}) for f in new.removed)
        asked = {Request.LIST: COMMIT_LISTS, Request.GET: COMMIT_READS, Request.PUT: 1}
        store.count(name, asked)
        _transact(table, [*adds, *removes], "append", table.schema(), properties)
    if base is not None:
        checkpoint(store, name, base.version)


def checkpoint(store: Store, name: str, version: int) -> None:
    """Write a checkpoint of the version that another one was just committed on, where one is due.

    delta-rs makes it in a copy of the log's end: in place it would ask for each entry twice again,
    and on a disk a power cut could leave a part of a file. Without a checkpoint the log is read
    from the one before, so a failure is only logged. (12 files: 17 kB, 8 ms; 2,000: 385 kB, 25 ms.)
    """
    if not version or version % CHECKPOINT_VERSIONS:
        return
    try:
        with log_trial.copied(store, name, version) as folder:
            DeltaTable(folder).create_checkpoint()
            made = sorted(Path(folder, log_trial.LOG).glob(f"{version:020d}.checkpoint*"))
            for file in (*made, Path(folder, log_trial.LOG, "_last_checkpoint")):
                store.write(file.read_bytes(), name, log_trial.LOG, file.name)
    except (WarehouseUnavailable, DeltaError, OSError) as error:
        _log.debug("%s: version %d has no checkpoint: %s", name, version, one_line(error))


def _create(
    store: Store,
    name: str,
    new: NewVersion | NewViewVersion,
    adds: list[AddAction],
    properties: CommitProperties,
) -> None:
    """Make a table, by the entry that was opened in a copy of its empty log."""
    schema = declared(new.layout)
    features = log_trial.missing_features(None, schema)
    with log_trial.copied(store, name, None) as folder:
        create_table_with_add_actions(
            folder,
            schema,
            adds,
            mode="error",
            name=name,
            commit_properties=properties,
            post_commithook_properties=ENTRY_ALONE,
        )
        entry = log_trial.entry_of(folder, 0)
        if features:
            protocol = json.dumps(log_trial.protocol_with(folder, features)).encode()
            lines = [line for line in entry.splitlines() if "protocol" not in json.loads(line)]
            entry = b"".join(line + b"\n" for line in [lines[0], protocol, *lines[1:]])
        _check_opened(log_trial.replaced(folder, name, 0, entry), store, name, new, schema)
    _put(store, name, new, entry, 0)


def _changes_schema(new: NewVersion | NewViewVersion, schema: Schema) -> bool:
    """Return True if a version declares other columns than its base, or others NOT NULL."""
    assert new.base is not None
    before = pinned(new.base).schema()
    are_equal = not_null_of(before) == not_null_of(schema)
    return not (are_equal and columns_of(before) == columns_of(schema))


def _transact(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    mode: Literal["append", "overwrite"],
    schema: Schema,
    properties: CommitProperties,
) -> None:
    table.create_write_transaction(
        [*actions],
        mode,
        schema,
        commit_properties=properties,
        post_commithook_properties=ENTRY_ALONE,
    )


def _change_schema(
    store: Store,
    name: str,
    new: NewVersion | NewViewVersion,
    properties: CommitProperties,
) -> None:
    """Commit other columns, with the table features that they need, in one entry.

    delta-rs writes the parts of the entry in a copy of the log, because none of its calls declares
    a feature and changes columns at once. The entry that was opened there is the one that is put in
    place, unless there is one.

    Files are kept only if what is declared of them alone changes: another program changed the
    columns, and they get back what they had; or an older release declared bookkeeping columns.
    """
    base, layout = new.base, new.layout
    schema = declared(layout)
    assert base is not None
    gone, version = {f.path for f in new.removed}, base.version + 1
    kept = [f for f in base.files if f.path not in gone]
    adds = [_add(f, layout.integer_key) for f in (*new.added, *kept)]
    with log_trial.copied(store, name, base.version) as folder:
        features = log_trial.missing_features(DeltaTable(folder), schema)
        protocol = log_trial.protocol_with(folder, features)
        table = DeltaTable(folder)
        written = table.version() + 1
        # The only mode that changes the schema in the same commit; it removes what was there.
        _transact(table, adds, "overwrite", schema, properties)
        lines = _without(log_trial.entry_of(folder, written), {f.path for f in kept})
        if protocol:
            lines.insert(1, json.dumps(protocol).encode())
        entry = b"".join(line + b"\n" for line in lines)
        _check_opened(log_trial.replaced(folder, name, version, entry), store, name, new, schema)
    _put(store, name, new, entry, version)


def _put(
    store: Store, name: str, new: NewVersion | NewViewVersion, entry: bytes, version: int
) -> None:
    """Put an entry in place. Raises Locked: there is one of this version."""
    _refuse_old(store, name, new)
    if not store.write_new(entry, name, log_trial.LOG, log_trial.entry_name(version)):
        raise overtaken(name)


def _refuse_old(store: Store, name: str, new: NewVersion | NewViewVersion) -> None:
    """Raise Locked if `gc` may have removed what an attempt wrote, because it was stopped long."""
    if not store.has_locks and new.begun.elapsed_s > ATTEMPT_S_MAX:
        raise Locked(
            f"This attempt began more than {ATTEMPT_S_MAX / 3600:.0f} hours ago, and without locks "
            "`gc` may take its files for those of one that died. It published nothing.",
            where=name,
            remedy="Run the refresh again: what arrived is kept.",
        )


def _without(entry: bytes, paths: Collection[str]) -> list[bytes]:
    """Return the lines of an entry without those that add or remove one of the files."""
    lines = []
    for line in entry.splitlines():
        action = json.loads(line)
        file = action.get("add") or action.get("remove") or {}
        if unquote(file.get("path", "")) not in paths:
            lines.append(line)
    return lines


def _check_entry(name: str, new: NewVersion | NewViewVersion) -> None:
    """Raise WarehouseUnavailable if the actions of an entry do not fit together or its base.

    delta-rs commits what it is given, and readers would meet it.
    """
    there = {} if new.base is None else {f.path: f.size for f in new.base.files}
    added, removed = [f.path for f in new.added], [f.path for f in new.removed]
    wrong = [
        ("it adds a file twice", len({*added}) < len(added)),
        ("it removes a file twice", len({*removed}) < len(removed)),
        ("it removes a file that is not there", not {*removed} <= there.keys()),
        ("it adds a file that is there", bool({*added} & there.keys())),
        ("a path leads out of the table", any(map(_is_outside, added))),
        ("a file has no bytes or no rows", any(f.size <= 0 or f.rows <= 0 for f in new.added)),
        (
            "bounds are the wrong way round",
            any(f.bounds and f.bounds[0] > f.bounds[1] for f in new.added),
        ),
    ]
    for why, is_wrong in wrong:
        if is_wrong:
            version = 0 if new.base is None else new.base.version + 1
            raise log_trial.unreadable(name, version, why)


def _is_outside(path: str) -> bool:
    parts = path.split("/")
    return not path or "://" in path or not {"", ".", ".."}.isdisjoint(parts)


def _check_opened(
    table: DeltaTable,
    store: Store,
    name: str,
    new: NewVersion | NewViewVersion,
    schema: Schema,
) -> None:
    """Raise WarehouseUnavailable if a log, opened with a new entry, is not what is to be read."""
    check_protocol(table, name)
    gone = {f.path for f in new.removed}
    kept = () if new.base is None else (f for f in new.base.files if f.path not in gone)
    expected = tuple(sorted((*kept, *new.added), key=lambda f: f.path))
    if table.schema() != schema:
        raise log_trial.unreadable(name, table.version(), "it has other columns")
    if listed_files(table, store, name, new.layout) != expected:
        raise log_trial.unreadable(name, table.version(), "it has other files")


def _add(file: DataFile, key: str | None) -> AddAction:
    stats: dict[str, object] = {"numRecords": file.rows}
    if file.bounds is not None:
        least, greatest = file.bounds
        stats |= {"minValues": {key: least}, "maxValues": {key: greatest}}
    stamp = int(time.time() * 1000)
    return AddAction(file.path, file.size, {}, stamp, True, json.dumps(stats))
