"""The Delta log of a published table: the table format of every table today (decision 8).

Tasks write Parquet; delta-rs commits add and remove actions with a `txn` marker and the version's
record as metadata. A commit is made with the pin of its base, so that it fails if somebody else
committed in between. A head that Driftline did not write is refused.

No other module of the product reads or writes a Delta log, but `one_file_table`, for tables of its
own kind, and `demo`, which checks with independent means.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    Transaction,
)
from driftline.errors import MalformedMessage, NotFound, WarehouseUnavailable

from warehouse_agent.columns import view_layout
from warehouse_agent.columns.layout import Layout, from_json, is_checked, to_json
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.storage import log_trial
from warehouse_agent.storage.backends.request_counts import Request
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.log_entry import APP_ID, META, write
from warehouse_agent.storage.opened_table import (
    answers,
    check_protocol,
    columns_of,
    declares_too_much,
    listed_files,
    opened,
    overtaken,
    pinned,
    with_keys_of_now,
)
from warehouse_agent.storage.store import Store, not_logged, one_line
from warehouse_agent.storage.table import (
    LogEntry,
    NewVersion,
    NewViewVersion,
    OlderRecord,
    OtherVersion,
    Snapshot,
    VersionHeader,
    VersionRecord,
    ViewSnapshot,
)

ACTION_BYTES = 300  # of a file in a log entry, roughly
_FILES: Final = "driftline-files"  # the key of the counts of files in a commit
_HEADS: Final = (b'{"commitInfo"', b'{"metaData"')  # of the actions that say what a version is
# Errors of reading what another release wrote.
_UNKNOWN = (AssertionError, KeyError, MalformedMessage, TypeError, ValueError)


class DeltaLog:
    """Table format of tables whose versions are commits of a Delta log (`table.TableFormat`)."""

    log: Final = log_trial.LOG
    temporary: Final = re.compile(
        r"_commit_[0-9a-f-]+\.json\.tmp"
        r"|([0-9]{20}\.(json|checkpoint\.parquet)|_last_checkpoint)\.[0-9a-f]{8}\.tmp"
    )

    def head(self, store: Store, name: str, version: int | None) -> Snapshot | None:
        if (found := _opened(store, name, version)) is None:
            return None
        table, body, newest = found
        if _is_view(body):
            raise _other_kind(name, "a view", "a fragment")
        try:
            layout, record = from_json(body["layout"]), VersionRecord.from_json(body)
        except _UNKNOWN as error:
            raise _other_release(name, table.version(), error) from error
        not_null = layout.not_null if is_checked(body["layout"]) else frozenset()
        files = listed_files(table, store, name, layout, not_null)
        other = None if newest is None else _other(files, table, newest, store, name, layout)
        tells, identity = declares_too_much(table, layout, not_null), str(table.metadata().id)
        return Snapshot(table.version(), identity, files, layout, record, table, (), other, tells)

    def view_head(self, store: Store, name: str, version: int | None) -> ViewSnapshot | None:
        if (found := _opened(store, name, version)) is None:
            return None
        table, body, newest = found
        if not _is_view(body):
            raise _other_kind(name, "a fragment", "a view")
        try:
            layout = view_layout.from_json(body["layout"])
            record = VersionRecord.from_json(body)
        except _UNKNOWN as error:
            raise _other_release(name, table.version(), error) from error
        files, identity = listed_files(table, store, name, layout), str(table.metadata().id)
        other = None if newest is None else _other(files, table, newest, store, name, layout)
        tells = declares_too_much(table, layout, frozenset())
        return ViewSnapshot(table.version(), identity, files, layout, record, table, other, tells)

    def header(self, store: Store, name: str) -> VersionHeader | None:
        if (number := log_trial.newest(store, name)) is None:
            return None
        entry = store.read(name, self.log, log_trial.entry_name(number)) or b""
        with contextlib.suppress(*_UNKNOWN, RecursionError, AttributeError):
            # Of a load, those that add files are many.
            lines = (line for line in entry.splitlines() if line.startswith(_HEADS))
            return _header([json.loads(line) for line in lines], number)
        return None

    def is_view(self, store: Store, name: str) -> bool:
        found = _opened(store, name, None)
        return found is not None and _is_view(found.body)

    def entries(
        self,
        store: Store,
        name: str,
        newest: Snapshot | ViewSnapshot | None,
        after: int | None = None,
    ) -> list[LogEntry]:
        try:
            if newest is None:
                table = opened(store, name)
            else:
                table = with_keys_of_now(store, name, pinned(newest))
            most = None if after is None else table.version() - after
            commits: list[dict[str, Any]] = []
            if most is None or most > 0:
                with answers(store, name):
                    commits = table.history(most)
                store.count(name, {Request.LIST: 1, Request.GET: len(commits)})
        except TableNotFoundError:
            return []
        except (DeltaError, OSError) as error:  # another command may shorten it meanwhile
            raise WarehouseUnavailable(
                f"The log cannot be read: {one_line(error)}.", where=name, remedy="Run it again."
            ) from error
        # delta-rs numbers what it finds as if none came after the handle's, and none were missing.
        bodies = [_metadata([{"commitInfo": commit}]) or {} for commit in commits]
        known = (body["version"] + i for i, body in enumerate(bodies) if "version" in body)
        version = next(known, table.version()) + 1
        listed: dict[str, datetime] | None = None
        if after is None:  # one listing is cheaper than a question for each
            listed = {e.place[-1]: e.modified for e in store.walk(name, self.log)}
        entries = []
        for commit, body in zip(commits, bodies, strict=True):
            version = body.get("version", version - 1)
            if after is None or version > after:
                stated = datetime.fromtimestamp(int(commit["timestamp"]) / 1000, UTC)
                # A copied folder has young files, and a wrong clock states an old time.
                file = log_trial.entry_name(version)
                written = (
                    listed.get(file) if listed is not None else store.modified(name, self.log, file)
                )
                record = _record([{"commitInfo": commit}], name, version)
                entries.append(LogEntry(version, max(stated, written or stated), record))
        return entries

    def oldest(self, store: Store, name: str) -> tuple[int, VersionRecord] | None:
        for file, _ in store.files(name, self.log):
            if log_trial.ENTRY.fullmatch(file):
                version = int(file.removesuffix(".json"))
                record = _record(_actions(store, name, version), name, version)
                return None if record is None else (version, record)
        return None

    def added(self, store: Store, name: str, version: int) -> set[str]:
        actions = _actions(store, name, version)
        if not actions:
            raise WarehouseUnavailable(
                f"Version {version} is missing from the table's log; nothing is removed.",
                where=name,
            )
        return {unquote(action["add"]["path"]) for action in actions if "add" in action}

    def shorten(self, store: Store, name: str, oldest: int) -> None:
        if (found := _opened(store, name, oldest)) is not None:
            shorten_log(found.table, name)

    def mend(self, store: Store, name: str) -> None:
        try:
            opened(store, name)
        except TableNotFoundError:
            return
        except (DeltaError, OSError):
            if (completed := log_trial.completed(store, name)) is not None:
                version, entry = completed
                store.write(entry, name, self.log, log_trial.entry_name(version))

    def commit(self, store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
        base = new.base
        version = 0 if base is None else base.version + 1
        layout = new.layout
        written = to_json(layout) if isinstance(layout, Layout) else view_layout.to_json(layout)
        body = {**new.record.to_json(), "version": version, "layout": written}
        properties = CommitProperties(
            custom_metadata={META: json.dumps(body), _FILES: json.dumps(_counted(new))},
            app_transactions=[Transaction(APP_ID, version)],
            max_commit_retries=0,
        )
        try:
            write(store, name, new, properties)
        except (DeltaError, OSError) as error:
            # A commit may be answered with an error although it was made: a store that repeats a
            # write after a lost answer finds its own, and takes it for somebody else's.
            if there := _written(store, name, version):
                if _is_ours(there, new, body):
                    return version
                raise overtaken(name) from error
            if isinstance(error, CommitFailedError):
                raise overtaken(name) from error
            needed = len(json.dumps(body)) + ACTION_BYTES * (len(new.added) + len(new.removed))
            what, folder = "The version could not be committed", store.table(name)
            raise not_logged(store, error, what, folder, needed, where=name) from error
        return version


def shorten_log(oldest: DeltaTable, name: str) -> None:
    """Remove entries of more than 30 days that no version from `oldest` on needs.

    Raises:
        WarehouseUnavailable: they cannot be removed.
    """
    try:
        oldest.cleanup_metadata()
    except (DeltaError, OSError) as error:
        raise WarehouseUnavailable(
            f"Old entries of the log cannot be removed: {one_line(error)}.",
            where=name,
            remedy="Check permissions. All versions can be read.",
        ) from error


class _Opened(NamedTuple):
    """A version of ours with the metadata of its commit, and the newest one if it is another
    program's."""

    table: DeltaTable
    body: dict[str, Any]
    newest: DeltaTable | None = None


def _opened(store: Store, name: str, version: int | None) -> _Opened | None:
    """Return a version that Driftline wrote, None for the newest of these.

    Return None if there is no log. Raises as `TableFormat.head`.
    """
    try:
        table = opened(store, name, version)
    except TableNotFoundError:
        if version is not None and _opened(store, name, None) is not None:
            raise NotFound(
                f"The log does not have version {version} any more.",
                where=name,
                remedy="Read a newer version. If a view holds the table back, mend the view and "
                "refresh.",
            ) from None
        return None
    except (DeltaError, OSError) as error:
        if version is not None:
            newest = _opened(store, name, None)
            if newest is not None and newest.table.version() < version:
                raise NotFound(
                    f"There is no version {version}; the newest is {newest.table.version()}.",
                    where=name,
                    remedy="Read that one, or one that `driftline history` lists.",
                ) from None
        if version is None and log_trial.completed(store, name) is not None:
            raise WarehouseUnavailable(
                "The table cannot be read: its newest entry, of an older release of Driftline, has "
                f"columns whose table feature it does not declare ({one_line(error)}).",
                where=name,
                remedy="Refresh it: that completes the entry.",
            ) from error
        raise WarehouseUnavailable(
            f"The table cannot be read: {one_line(error)}.",
            where=name,
            remedy="Check the folder and `path`. If the log is damaged: restore the table's folder,"
            " or move it away for a new first load.",
        ) from error
    body = _metadata(_actions(store, name, table.version()))
    if body is None:
        return _before(store, name, table, is_asked=version is not None)
    check_protocol(table, name)
    return _Opened(table, body)


def _before(store: Store, name: str, newest: DeltaTable, *, is_asked: bool) -> _Opened:
    """Return the last version that Driftline wrote before another program's, `newest`.

    Raises:
        WarehouseUnavailable: that version `is_asked` for, or the log has none of Driftline's.
    """
    number = newest.version()
    while not is_asked and (actions := _actions(store, name, number)):
        if (body := _metadata(actions)) is not None:
            with contextlib.suppress(DeltaError, OSError):  # entries that it needs are gone
                ours = opened(store, name, number)
                check_protocol(ours, name)
                return _Opened(ours, body, newest)
            break
        number -= 1
    raise WarehouseUnavailable(
        f"Version {newest.version()} of the table was not written by Driftline"
        + ("." if is_asked else ", and its log has no entry of an earlier one that was."),
        where=name,
        remedy="Read another one (`driftline history`)."
        if is_asked
        else "Move the table's folder away for a new first load.",
    )


def _other(
    ours_files: Sequence[DataFile],
    ours: DeltaTable,
    newest: DeltaTable,
    store: Store,
    name: str,
    layout: Layout | ViewLayout,
) -> OtherVersion:
    """Return what another program wrote after our last version, `ours`, which has these files."""
    numbers = range(ours.version() + 1, newest.version() + 1)
    infos = [
        a["commitInfo"] for n in numbers for a in _actions(store, name, n) if "commitInfo" in a
    ]
    operations = dict.fromkeys(str(info.get("operation", "unknown")) for info in infos)
    differs = unreadable = None
    try:
        check_protocol(newest, name)
    except WarehouseUnavailable as error:
        unreadable = error.message
    if newest.metadata().id != ours.metadata().id:
        differs = "the table was made anew"
    elif columns_of(newest.schema()) != columns_of(ours.schema()):
        differs = "its columns are others"
    elif newest.metadata().partition_columns:
        differs = "it is partitioned"
    known = {f.path: f.not_null for f in ours_files}
    listed = () if unreadable else listed_files(newest, store, name, layout)
    files = tuple(replace(f, not_null=known.get(f.path, frozenset())) for f in listed)
    return OtherVersion(newest.version(), tuple(operations), files, differs, unreadable, newest)


def _counted(new: NewVersion | NewViewVersion) -> dict[str, Any]:
    """Return what a commit says of the files of its version, for `header`."""
    removed = {file.path for file in new.removed}
    kept = () if new.base is None else (f for f in new.base.files if f.path not in removed)
    files = [*kept, *new.added]
    return {
        "table": None if new.base is None else new.base.table,
        "files": len(files),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.size for file in files),
    }


def _header(actions: Sequence[dict[str, Any]], version: int) -> VersionHeader | None:
    """Return the version of an entry; None if it does not say all.

    Raises:
        One of _UNKNOWN, AttributeError: another release wrote it.
    """
    body = _metadata(actions)
    noted = (a["commitInfo"][_FILES] for a in actions if _FILES in a.get("commitInfo", {}))
    if body is None or (text := next(noted, None)) is None:
        return None
    counted = json.loads(text)
    made = (action["metaData"]["id"] for action in actions if "metaData" in action)
    table = next(made, counted["table"])
    counts = [counted[key] for key in ("files", "rows", "bytes")]
    if not isinstance(table, str) or any(type(one) is not int or one < 0 for one in counts):
        return None
    layout = (view_layout.from_json if _is_view(body) else from_json)(body["layout"])
    return VersionHeader(version, table, layout, VersionRecord.from_json(body), *counts)


def _is_view(body: dict[str, Any]) -> bool:
    layout = body.get("layout")
    return isinstance(layout, dict) and "lineage" in layout


def _other_kind(name: str, actual: str, wanted: str) -> WarehouseUnavailable:
    return WarehouseUnavailable(
        f"The table is that of {actual}, and the configuration has {wanted} of this name.",
        where=name,
        remedy="Rename one of them, or move the table's folder away for a new first load.",
    )


def _written(store: Store, name: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of an entry after a commit that failed; none if it cannot be read."""
    with contextlib.suppress(WarehouseUnavailable, ValueError):
        return _actions(store, name, version)
    return []


def _is_ours(
    actions: Sequence[dict[str, Any]], new: NewVersion | NewViewVersion, body: dict[str, Any]
) -> bool:
    """Return True if an entry is the one of this version: files of attempts have names of their
    own."""
    added = {unquote(action["add"]["path"]) for action in actions if "add" in action}
    is_same = _metadata(actions) == json.loads(json.dumps(body))
    return is_same and added >= {file.path for file in new.added}


def _actions(store: Store, name: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit; none if its file is not there."""
    data = store.read(name, DeltaLog.log, log_trial.entry_name(version)) or b""
    return [json.loads(line) for line in data.splitlines()]


def _metadata(actions: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the metadata of a commit; None if Driftline did not write it."""
    for action in actions:
        text = action.get("commitInfo", {}).get(META)
        if isinstance(text, str):
            body: dict[str, Any] = json.loads(text)
            return body
    return None


def _record(actions: Sequence[dict[str, Any]], name: str, version: int) -> VersionRecord | None:
    """Return the record of a commit; None if Driftline did not write it.

    Return None also if a release wrote it that is not read any more: newer versions follow it.

    Raises:
        WarehouseUnavailable: a newer release wrote it.
    """
    body = _metadata(actions)
    try:
        return None if body is None else VersionRecord.from_json(body)
    except OlderRecord:
        return None
    except _UNKNOWN as error:
        raise _other_release(name, version, error) from error


def _other_release(name: str, version: int, error: Exception) -> WarehouseUnavailable:
    """Return the error of a version that another release wrote, from what its record lacks."""
    if isinstance(error, OlderRecord):
        return WarehouseUnavailable(
            f"Version {version} of the table was written by a release of Driftline that is older "
            "than those which this one reads.",
            where=name,
            remedy="Read a newer version. If it is the newest: refresh with the release of 28 "
            "November 2026 (commit 7806bd7) until it publishes a version; or move the table's "
            "folder away for a new first load.",
        )
    return WarehouseUnavailable(
        f"Version {version} of the table was written by a newer release of Driftline.",
        where=name,
        remedy="Install that release, or a newer one, here as well.",
    )
