"""Decide which files of a fragment's folders may be removed, and remove them (`gc`).

A version is kept for `keep_hours` after the next one was published: from then on no new reader can
pin it. Where the warehouse has a table of versions, a version is kept as well while a warehouse
version names it that was the newest less than `keep_hours` ago, and while a stale view was made of
it. The newest version is always kept. A data file is kept while a kept version has it; a file
that no commit names is kept while it is younger than `keep_hours`, because a running attempt may be
writing it. A file is removed only from folders that we name:

    data-<id>-<part>/…                      files of no kept version
    _driftline/changes/<name>/_version=N/…  change feeds that no kept version names
    _driftline/staging/<name>/…             exchanges based on a version that is not the newest
    *.tmp                                   small files whose writer died
    _driftline/executors/…                  checks of Spark's executors that were killed

Entries of a table's log are removed by its format (`TableFormat.shorten`), once they are old and no
kept version needs them.

On storage without locks the holder of a lock may be stopped, lose it and go on. What it removes
then is still nothing that anybody needs: every file is older than `keep_hours`, by the clock of the
storage, and an attempt of half the least of these hours publishes nothing (`elapsed`). It ends as
soon as it notices.

Some small files are those of several tables (notes of sources, the table of versions), and the lock
of one excludes no writer of another: there, and below `executors`, a file is kept for
SHARED_KEEP_HOURS at least.

Rejected: delta-rs's `vacuum`. It commits to the log, does not know change feeds and staging, and
removes every file that it does not know.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from driftline.errors import UsageError, WarehouseUnavailable

from warehouse_agent.config import Fragment, View
from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history.notes import Notes
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.storage import formats
from warehouse_agent.storage.elapsed import KEEP_HOURS_MIN_REMOTE
from warehouse_agent.storage.staged_files import FOLDER, NOTE, frames_in
from warehouse_agent.storage.store import PRIVATE, Store, StoredFile, file_errors
from warehouse_agent.storage.table import Snapshot, ViewSnapshot
from warehouse_agent.visible_versions import freshness_table, warehouse_versions
from warehouse_agent.visible_versions.warehouse_versions import WarehouseVersion

SHARED_KEEP_HOURS = 1  # much longer than a small file is written, or executors are checked

_DATA = re.compile(r"data-[0-9a-f]{12}-[a-z0-9-]+")
_FEED = re.compile(r"_version=\d+")
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.tmp$")
_OF_DOCTOR = re.compile(r"doctor\.[0-9a-f]{8}(\.[0-9a-f]{8}\.tmp)?")
# Folders below PRIVATE with a small file of each table, and what follows its name.
_SMALL = (
    *(("keys", ".key"), ("fragments", ".json"), ("schedule", ".json")),
    *(("runs", ".jsonl"), ("offers", ".json"), ("claims", ".json")),
)


@dataclass(frozen=True, slots=True)
class Garbage:
    """Files to remove: their places for `Store.remove_file`, and their size in bytes.

    `oldest`: the oldest version that is kept, by which the log may be shortened; None: there is no
    log. `staged_bytes` are of staged frames that are kept until the next version is published.
    """

    places: tuple[tuple[str, ...], ...]
    bytes: int
    oldest: int | None = None
    staged_bytes: int = 0

    def plus(self, files: Sequence[StoredFile]) -> Garbage:
        """Return it with these files as well."""
        places = (*self.places, *(f.place for f in files))
        return replace(self, places=places, bytes=self.bytes + sum(f.size for f in files))


@dataclass(frozen=True, slots=True)
class _Kept:
    """The newest version and the oldest, the paths of all files of kept versions, the files of
    their feeds."""

    newest: int | None = None  # None: nothing was ever published
    oldest: int | None = None
    paths: frozenset[str] = frozenset()
    feeds: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by folder


def collector(
    store: Store, keep_hours: int, now: datetime, *, removes: bool
) -> Callable[[Fragment | View], Garbage]:
    """Return a function that finds the garbage of a table, and if it `removes`, removes it.

    That of the table of freshness is found with the first one. It raises what `unreferenced`
    raises, and Locked.
    """
    flips = functools.cache(functools.partial(kept_flips, store, keep_hours))
    begun = list[datetime]()

    @functools.cache
    def shorten_versions() -> None:
        if flips(*begun):
            warehouse_versions.shorten(flips(*begun)[0])

    def collect(table: Fragment | View) -> Garbage:
        name, is_view = table.name, isinstance(table, View)
        with store.lock(name) as lock, file_errors("locked", name):
            if is_first := not begun:  # a clock of ours that is fast would find too much
                begun.append(min(now, lock.stored_at()))
            (at,) = begun
            garbage = unreferenced(
                store, name, keep_hours=keep_hours, now=at, is_view=is_view, flips=flips(at)
            )
            fresh, unused = 0, list[StoredFile]()
            if is_first:
                fresh, unused = freshness_table.garbage(store, _since(store, keep_hours, at))
                garbage = garbage.plus(unused)
            if removes:
                for place in garbage.places:
                    lock.check()
                    store.remove_file(*place)
                    WarehouseFailpoint.GARBAGE_REMOVED.reach()
                lock.check()
                if garbage.oldest is not None:
                    formats.shorten(store, name, garbage.oldest)
                shorten_versions()
                freshness_table.shorten(store, fresh)
        return garbage

    return collect


def kept_flips(store: Store, keep_hours: int, now: datetime) -> Sequence[WarehouseVersion]:
    """Return the warehouse versions that were the newest less than `keep_hours` ago, ascending.

    Raises:
        UsageError: keep_hours is too small for this storage.
        WarehouseUnavailable: the table of versions cannot be read.
    """
    since = _since(store, keep_hours, now)
    return warehouse_versions.since(store, since) if warehouse_versions.exists(store) else []


def unreferenced(
    store: Store,
    name: str,
    *,
    keep_hours: int,
    now: datetime,
    is_view: bool = False,
    flips: Sequence[WarehouseVersion] | None = None,
) -> Garbage:
    """Find the files that no reader can need. Hold the fragment's lock until they are removed.

    Files of the table of versions are found with those of any table.

    Args:
        flips: as `kept_flips` returned them for the same `now`; None: they are read.

    Raises:
        UsageError: keep_hours is too small for this storage.
        WarehouseUnavailable: the table's log cannot be read or is gone; or its newest version is
            older than the last published one, whose log entry may still be restored.
    """
    since = _since(store, keep_hours, now)
    flips = kept_flips(store, keep_hours, now) if flips is None else flips
    kept = _kept(store, name, since, oldest_flipped(flips, name), is_view=is_view)
    useless, staged_bytes = _staged(store, name, kept)
    entries = itertools.chain(
        warehouse_versions.garbage(store, flips[0].number, flips[-1]) if flips else (),
        _data(store, name, kept),
        _feeds(store, name, kept),
        useless,
        _temporary(store, name),
    )
    unused = [entry for entry in entries if entry.modified <= since]
    shared_since = min(since, now - timedelta(hours=SHARED_KEEP_HOURS))
    unused += [entry for entry in _shared(store, name) if entry.modified <= shared_since]
    size = sum(e.size for e in unused)
    return Garbage(tuple(e.place for e in unused), size, kept.oldest, staged_bytes)


def _since(store: Store, keep_hours: int, now: datetime) -> datetime:
    least = 0 if store.has_locks else KEEP_HOURS_MIN_REMOTE
    if keep_hours < least:
        raise UsageError(f"--keep-hours {keep_hours} is too few. The least is {least} here.")
    return now - timedelta(hours=keep_hours)


def oldest_kept(times: list[tuple[int, datetime]], since: datetime) -> int:
    """Return the oldest version that was still the newest at `since`.

    Versions follow each other, so one with an earlier time than one before it was committed by a
    clock that was behind: when, is not known, and it counts as new.

    Args:
        times: versions and the times of their commits, by version ascending, not empty.
    """
    oldest, latest = times[0]
    for version, committed in times:
        if latest <= committed <= since:
            oldest = version
        latest = max(latest, committed)
    return oldest


def oldest_flipped(flips: Sequence[WarehouseVersion], name: str) -> int | None:
    """Return the oldest version of a table that a reader of these warehouse versions may need.

    Among them are the versions that a view was made of which stays behind. None: they name none.

    Args:
        flips: the warehouse versions that are kept.
    """
    needed = [flip.members[name].version for flip in flips if name in flip.members]
    needed += [m.inputs[name] for f in flips for m in f.members.values() if name in m.inputs]
    return min(needed, default=None)


def _kept(store: Store, name: str, since: datetime, flipped: int | None, *, is_view: bool) -> _Kept:
    """Return what is kept; `flipped`: the oldest version that a warehouse version needs."""
    look = formats.view_head if is_view else formats.head
    head: Snapshot | ViewSnapshot | None = look(store, name)
    notes = Notes.read(store, name)
    if head is None:
        has_log = store.files(name, formats.format_of(store, name).log)
        if notes.has_versions or has_log or flipped is not None:
            raise WarehouseUnavailable(
                "The table's log is missing, although versions were published. Nothing is removed.",
                where=name,
                remedy="Restore the folder `_delta_log`, or move the table's folder away.",
            )
        return _Kept()
    if isinstance(head, Snapshot) and (noted := notes.newer(head)) is not None:
        restored.refuse(name, head, noted)
    written = (e for e in formats.entries(store, name, head) if e.record is not None)
    entries = [e for e in written if e.version <= head.version]
    if not entries:
        raise WarehouseUnavailable("The table's log cannot be read.", where=name)
    oldest = oldest_kept([(e.version, e.committed) for e in reversed(entries)], since)
    oldest = oldest if flipped is None else min(oldest, flipped)
    first = head if oldest == head.version else look(store, name, version=oldest)
    assert first is not None
    others = () if head.other is None else head.other.files
    paths = {file.path for file in (*first.files, *head.files, *others)}
    for version in range(oldest + 1, head.version + 1):
        paths |= formats.added(store, name, version)
    records = [e.record for e in entries if e.record and e.version >= oldest]
    feeds = {record.changes: record.changes_files for record in records if record.changes}
    return _Kept(head.version, oldest, frozenset(paths), feeds)


def _by_folder(store: Store, *parts: str) -> dict[str, list[StoredFile]]:
    """Return the files below each folder of a folder, by its name.

    One list: SeaweedFS keeps emptied folders, and each would be listed in every run.
    """
    found = dict[str, list[StoredFile]]()
    for entry in store.walk(*parts):
        folder, *file = entry.place[len(parts) :]
        if file:
            found.setdefault(folder, []).append(entry)
    return found


def _data(store: Store, name: str, kept: _Kept) -> Iterator[StoredFile]:
    for folder, entries in _by_folder(store, name).items():
        if not _DATA.fullmatch(folder):
            continue
        if not any("/".join(e.place[1:]) in kept.paths for e in entries):
            yield from entries
            continue
        for entry in entries:
            *above, file = entry.place[1:]
            checked = file.removeprefix(".").removesuffix(".crc") if file[0] == "." else file
            if checked.endswith(".parquet") and "/".join([*above, checked]) not in kept.paths:
                yield entry


def _feeds(store: Store, name: str, kept: _Kept) -> Iterator[StoredFile]:
    for folder, entries in _by_folder(store, PRIVATE, "changes", name).items():
        if not _FEED.fullmatch(folder):
            continue
        for entry in entries:
            *above, file = entry.place[3:]
            files = kept.feeds.get("/".join(above))
            # A task that lost its executor may have written a file that the version does not name.
            if files is None or (file.endswith(".parquet") and file not in files and all(files)):
                yield entry


def _staged(store: Store, name: str, kept: _Kept) -> tuple[list[StoredFile], int]:
    """Return what no next attempt can use, and the bytes of the frames that one can."""
    useless, size = list[StoredFile](), 0
    for folder, entries in _by_folder(store, PRIVATE, FOLDER, name).items():
        note = store.read_json(PRIVATE, FOLDER, name, folder, NOTE)
        if note.get("base_version") == kept.newest and "recipe" in note:
            size += sum(entry.size for entry in frames_in(entries))
            useless += [entry for entry in entries if entry.place[-1].endswith(".tmp")]
        else:
            useless += entries
    return useless, size


def _temporary(store: Store, name: str) -> Iterator[StoredFile]:
    for folder, ending in _SMALL:
        for entry in store.walk(PRIVATE, folder):
            if _TEMPORARY.fullmatch(entry.place[-1].removeprefix(f"{name}{ending}")):
                yield entry
    form = formats.format_of(store, name)
    for entry in store.walk(name, form.log):
        if form.temporary.fullmatch(entry.place[-1]):
            yield entry


def _shared(store: Store, name: str) -> Iterator[StoredFile]:
    """Yield what writers that died left in folders that several tables share."""
    form = formats.format_of(store, name)
    private = ("sources", warehouse_versions.FOLDER, "executors", "fragments")
    for *above, folder in (*((PRIVATE, one) for one in private), (FRESHNESS,)):
        for entry in store.walk(*above, folder):
            file = entry.place[-1]
            if folder == "fragments":
                is_left = _OF_DOCTOR.fullmatch(file)
            else:
                is_left = _TEMPORARY.search(file) or form.temporary.fullmatch(file)
            if is_left or folder == "executors":
                yield entry
