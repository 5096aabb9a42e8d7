"""The table formats, and the functions of the format that a table has.

A table's format is found by the log in its folder, because readers (`warehouse_agent.read`) have no
configuration. To add a format, write a module with a class and add it to FORMATS.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from driftline.errors import WarehouseUnavailable

from warehouse_agent.columns.layout import Layout
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.report import utc_now
from warehouse_agent.storage import not_null
from warehouse_agent.storage.delta_log import DeltaLog
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import (
    LogEntry,
    NewVersion,
    NewViewVersion,
    OtherVersion,
    Snapshot,
    TableFormat,
    VersionHeader,
    VersionRecord,
    ViewSnapshot,
)

_log = logging.getLogger("driftline")

FORMATS: tuple[TableFormat, ...] = (DeltaLog(),)  # the last one makes new tables


def format_of(store: Store, name: str) -> TableFormat:
    """Return the format whose log a table has, or the format of new tables."""
    matching = (f for f in FORMATS[:-1] if store.files(name, f.log))
    return next(matching, FORMATS[-1])


def head(store: Store, name: str, *, version: int | None = None) -> Snapshot | None:
    """Return a version of a table (`TableFormat.head`), by default the newest."""
    return format_of(store, name).head(store, name, version)


def view_head(store: Store, name: str, *, version: int | None = None) -> ViewSnapshot | None:
    """Return a version of a view (`TableFormat.view_head`), by default the newest."""
    return format_of(store, name).view_head(store, name, version)


def header(store: Store, name: str) -> VersionHeader | None:
    """Return the newest version of a fragment as `head` does, without the list of its files: from
    one entry of its log where that says all, which takes a tenth of the time."""
    found = format_of(store, name).header(store, name)
    if found is not None and isinstance(found.layout, Layout):
        return found
    return None if (newest := head(store, name)) is None else VersionHeader.of(newest)


def view_header(store: Store, name: str) -> VersionHeader | None:
    """Return the newest version of a view, as `header`."""
    found = format_of(store, name).header(store, name)
    if found is not None and isinstance(found.layout, ViewLayout):
        return found
    return None if (newest := view_head(store, name)) is None else VersionHeader.of(newest)


def any_head(
    store: Store, name: str, *, version: int | None = None
) -> Snapshot | ViewSnapshot | None:
    """Return a version of a fragment or of a view, by default the newest."""
    look = view_head if is_view(store, name) else head
    return look(store, name, version=version)


def is_view(store: Store, name: str) -> bool:
    """Return True if a table is that of a view; False also if there is none."""
    kind = format_of(store, name)
    if (newest := kind.header(store, name)) is not None:  # which opens no log
        return isinstance(newest.layout, ViewLayout)
    return kind.is_view(store, name)


def has_log(store: Store, name: str) -> bool:
    """Return True if a table was begun; its log is not opened, and may be damaged."""
    return bool(store.files(name, format_of(store, name).log))


def entries(
    store: Store,
    name: str,
    newest: Snapshot | ViewSnapshot | None = None,
    *,
    after: int | None = None,
) -> list[LogEntry]:
    """Return the commits of a table's log, all or those after a version (`TableFormat.entries`)."""
    return format_of(store, name).entries(store, name, newest, after)


def shorten(store: Store, name: str, oldest: int) -> None:
    """Remove old entries that no version from `oldest` on needs (`TableFormat.shorten`)."""
    format_of(store, name).shorten(store, name, oldest)


def oldest(store: Store, name: str) -> tuple[int, VersionRecord] | None:
    """Return the oldest version in a table's log and its record (`TableFormat.oldest`)."""
    return format_of(store, name).oldest(store, name)


def added(store: Store, name: str, version: int) -> set[str]:
    """Return the paths of the files that a version added (`TableFormat.added`)."""
    return format_of(store, name).added(store, name, version)


def needed_after_failure(store: Store, name: str, version: int | None) -> Collection[str] | None:
    """Return paths of a table of which files must stay after an attempt that failed.

    A commit may be made and answered with an error (a checkpoint on a full disk, a lost answer),
    and others may have committed since, so what its version added decides.

    Args:
        version: that the attempt tried to commit; None: it came to none.

    Returns:
        None if any file may be needed: the log cannot be read, or storage of other machines may
        still make the commit. `gc` removes later what is not.
    """
    if version is None:
        return ()
    try:
        newest = any_head(store, name)
        if newest is None or newest.version < version:
            return () if store.is_local else None
        return added(store, name, version)
    except Exception:  # also of metadata that is no JSON; the error of the attempt says more
        _log.debug("what %s wrote could not be tidied up", name, exc_info=True)
        return None


def put_back(store: Store, name: str, ours: Snapshot | ViewSnapshot) -> int:
    """Publish the files of our last version again, after what another program wrote.

    Returns the number of the new version, which has no change feed and counts as restored. Raises
    as `commit`.
    """
    other = ours.other
    assert other is not None, "another program wrote after it"
    there = {f.path for f in other.files}
    kept = {f.path for f in ours.files}
    record = same_rows(ours.record, restored=ours.version)
    added = [f for f in ours.files if f.path not in there]
    removed = [f for f in other.files if f.path not in kept]
    if isinstance(ours, Snapshot):
        on = replace(ours, version=other.version, files=other.files, pin=other.pin, other=None)
        return commit(store, name, NewVersion(on, ours.layout, added, removed, record))
    base = replace(ours, version=other.version, files=other.files, pin=other.pin, other=None)
    return commit(store, name, NewViewVersion(base, ours.layout, added, removed, record))


def refuse_unreadable(name: str, other: OtherVersion) -> None:
    """Raise WarehouseUnavailable if another program's version is more than its files say."""
    if other.unreadable is not None:
        raise WarehouseUnavailable(
            f"{begun(other.text)}. {other.unreadable}",
            where=name,
            remedy="Move the table's folder away for a new first load.",
        )


def begun(text: str) -> str:
    """Return a text as the beginning of a sentence."""
    return text[0].upper() + text[1:]


def same_rows(
    record: VersionRecord, *, restored: int | None = None, adopted: int | None = None
) -> VersionRecord:
    """Return the record of a version that has the rows of an earlier one, and no change feed.

    Args:
        record: of the earlier version.
        restored, adopted: as in the record.
    """
    return replace(
        record,
        published_at=utc_now(),
        changes=None,
        changes_files=(),
        rows_inserted=0,
        rows_updated=0,
        rows_deleted=0,
        repaired_files=0,
        repaired_rows=0,
        restored=restored,
        adopted=adopted,
        report=None,
        beside=None,
    )


def mend(store: Store, name: str) -> None:
    """Make a log readable that an older release ended (`TableFormat.mend`)."""
    format_of(store, name).mend(store, name)


def commit(store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
    """Publish a version of a table (`TableFormat.commit`); return its number.

    Its layout says NOT NULL only where that holds of all files (`not_null.checked`).
    """
    if isinstance(new, NewVersion):
        new = replace(new, layout=not_null.checked(new))
    return format_of(store, name).commit(store, name, new)
