"""A published table without its format: a version's record, a pinned version, the interface.

A table format keeps the versions of a table as lists of data files, which are the same in every
format; `formats` finds the format of a table. Every format promises
(tests/warehouse_agent/storage/test_table_formats.py):

 1. A commit is one atomic step on the base that it names: it is published whole, or it raises
    Locked because somebody else committed since the base was read.
 2. No commit changes an earlier version, and each version can be read until its files are removed.
 3. The columns of a table may change in a commit that keeps no file, and which of them are NOT NULL
    in any commit. Other readers see the columns that are published, and not those for bookkeeping,
    which files have.
 4. A version that Driftline did not write is never read: the newest one is the last that Driftline
    wrote, and says what another program wrote after it.
 5. An entry that could not be read is not committed: where columns change, the log is opened with
    the new entry before it is put in place.
 6. Entries of the log are kept until `gc` has them removed (`shorten`), however old they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Protocol, Self

from warehouse_agent.columns.layout import Layout
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.elapsed import Moment
from warehouse_agent.storage.store import Store


class OlderRecord(ValueError):
    """The record of a version lacks keys that each release has written that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """The record of a version, as its commit has it.

    Attributes:
        as_of: the source's time of the rows, ISO 8601 in UTC.
        checked_at: when the version was compared, and `published_at` when it was committed.
        proof: "total" if all rows were proven equal, "keys" if all keys were and updated rows are
            those of a marker, "part" if only the compared rows were.
        fingerprint: kind of the fingerprints in the proof; None of a view.
        vouched: True if a NOT NULL unique constraint of the source covers the key.
        changes: folder of the change feed; None if the version has no feed.
        changes_files: files in it.
        clock: when versions were published; None in tables without row statistics.
        row_security: JSON of `row_security.PolicyDigests`; None if the source sent none.
        restored: the version whose rows were published again; else None.
        report: JSON of the report of the command that published it, without the time of the commit;
            None where rows were published again.
        inputs: of a view, the versions that it was made of, by name; None of a fragment.
        checked: how the rows of a view were checked: "total", all of them were paired with those
            before; "slice", one of 16 parts was computed again; None of a fragment.
        made_of: of a view, what tells these versions from others of the same number
            (`views.evaluate.stamp_of`); None of a fragment.
        java: of a view, the version of the Java that computed its rows, such as "17"; None of a
            fragment.
        beside: versions of other fragments, by name, that were committed directly before or after
            this one from the same snapshot of their source; None: there were none.
        marking: JSON of `history.marks.KeptMark`; None where no marker is asked for.
        total: JSON of a `VersionTotal`, which the rows were proven to have; None of a view, and in
            older tables.
        adopted: the version whose rows these are, in the files of another program's maintenance;
            else None.
        body: the JSON as committed, with the format's own keys and keys of other releases.
    """

    as_of: str
    checked_at: str
    consistency: str
    proof: str
    fingerprint: str | None = None
    vouched: bool = False
    rows: int
    published_at: str
    changes: str | None = None
    changes_files: tuple[str, ...] = ()
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    repaired_files: int = 0
    repaired_rows: int = 0
    method: str | None = None
    clock: VersionClock | None = None
    row_security: dict[str, Any] | None = None
    restored: int | None = None
    report: dict[str, Any] | None = None
    inputs: dict[str, int] | None = None
    checked: str | None = None
    made_of: dict[str, str] | None = None
    java: str | None = None
    beside: dict[str, int] | None = None
    marking: dict[str, Any] | None = None
    total: dict[str, Any] | None = None
    adopted: int | None = None
    body: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rows_changed(self) -> int:
        """Return the number of rows inserted, updated or deleted."""
        return self.rows_inserted + self.rows_updated + self.rows_deleted

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the record that a commit has as JSON.

        Raises:
            OlderRecord: a release wrote it whose records are not read any more.
            AssertionError, KeyError, TypeError, ValueError: another release wrote it.
        """
        if missing := [key for key in _KEYS if key not in body and key not in _LATER]:
            raise OlderRecord(missing)
        known = {key: body[key] for key in _KEYS if key in body}
        known["changes_files"] = tuple(body["changes_files"])
        known["clock"] = VersionClock.from_json(body["clock"]) if body.get("clock") else None
        return cls(**known, body=dict(body))

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON, with the keys of `body` that this release does not know."""
        known: dict[str, Any] = {key: getattr(self, key) for key in _KEYS}
        known["changes_files"] = list(self.changes_files)
        known["clock"] = None if self.clock is None else self.clock.to_json()
        kept = {k: v for k, v in known.items() if v is not None or k not in _LATER}
        merged = {**self.body, **kept}
        return {k: v for k, v in merged.items() if k in kept or k not in known}


_KEYS = tuple(f.name for f in fields(VersionRecord) if f.name != "body")
# Left out of the JSON where they are None.
_LATER = (
    "clock", "row_security", "restored", "report", "inputs", "checked", "made_of", "java",
    "beside", "marking", "total", "adopted",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """The newest version of a table, which another program wrote after our last one.

    Attributes:
        operations: what the entries after ours say that they did, such as "OPTIMIZE", in order.
        files: its data files.
        differs: why these files cannot hold the rows of our version; None: they may.
        unreadable: why the files alone are not its content; None: they are.
        pin: the format's own handle, for a commit on this version.
    """

    version: int
    operations: tuple[str, ...]
    files: tuple[DataFile, ...]
    differs: str | None
    unreadable: str | None
    pin: object = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """Return in words which version it is, and what was done."""
        done = ", ".join(self.operations)
        return f"version {self.version} was written by another program ({done})"


class Version(Protocol):
    """A version of a table, read in whatever way: what tells it from others, and its record."""

    @property
    def version(self) -> int:
        """Return its number."""

    @property
    def table(self) -> str:
        """Return the id that differs from earlier tables of the same name."""

    @property
    def layout(self) -> Layout | ViewLayout:
        """Return its layout."""

    @property
    def record(self) -> VersionRecord:
        """Return the record of its commit."""


@dataclass(frozen=True, slots=True)
class VersionHeader:
    """The newest version of a table without the list of its files.

    Attributes:
        table: id that differs from earlier tables of the same name.
        files, rows, bytes: the number of its data files, their rows and their bytes.
        other: what another program wrote after this version, in words; None: nothing.
    """

    version: int
    table: str
    layout: Layout | ViewLayout
    record: VersionRecord
    files: int
    rows: int
    bytes: int
    other: str | None = None

    @classmethod
    def of(cls, version: Snapshot | ViewSnapshot) -> Self:
        """Return the header of a version whose files were listed."""
        return cls(
            version.version,
            version.table,
            version.layout,
            version.record,
            len(version.files),
            version.rows,
            sum(file.size for file in version.files),
            None if version.other is None else version.other.text,
        )


@dataclass(frozen=True)
class Snapshot:
    """One published version, pinned.

    Attributes:
        table: id that differs from earlier tables of the same name.
        pin: the format's own handle, for a commit on this version.
        lost: damaged files whose rows count as missing (`repair`).
        other: what another program wrote after this version, if it is our newest; a commit on this
            one then fails.
        declares_too_much: other readers see our bookkeeping columns, as older releases left it, or
            columns as NOT NULL that may hold one.
    """

    version: int
    table: str
    files: tuple[DataFile, ...]
    layout: Layout
    record: VersionRecord
    pin: object = field(repr=False, compare=False)
    lost: tuple[DataFile, ...] = ()
    other: OtherVersion | None = field(default=None, repr=False, compare=False)
    declares_too_much: bool = field(default=False, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Return the number of rows in all files, lost ones included."""
        return sum(f.rows for f in self.files)

    @property
    def rows_lost(self) -> int:
        """Return the number of rows in lost files."""
        return sum(f.rows for f in self.lost)

    @property
    def sound(self) -> tuple[DataFile, ...]:
        """Return the files that are not lost."""
        lost = set(self.lost)
        return tuple(f for f in self.files if f not in lost)

    def uris(self) -> list[str]:
        """Return the URIs of all files."""
        return [f.uri for f in self.files]


@dataclass(frozen=True)
class ViewSnapshot:
    """One published version of a view, pinned; fields as in `Snapshot`."""

    version: int
    table: str
    files: tuple[DataFile, ...]
    layout: ViewLayout
    record: VersionRecord
    pin: object = field(repr=False, compare=False)
    other: OtherVersion | None = field(default=None, repr=False, compare=False)
    declares_too_much: bool = field(default=False, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Return the number of rows in all files."""
        return sum(f.rows for f in self.files)

    def uris(self) -> list[str]:
        """Return the URIs of all files."""
        return [f.uri for f in self.files]


@dataclass(frozen=True, slots=True)
class NewViewVersion:
    """The version of a view to be committed after `base`, as `NewVersion`."""

    base: ViewSnapshot | None
    layout: ViewLayout
    added: Sequence[DataFile]
    removed: Sequence[DataFile]
    record: VersionRecord
    begun: Moment = field(default_factory=Moment.now)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit in a table's log; `record` is None if Driftline, or a release of it that is still
    read, did not write it."""

    version: int
    committed: datetime
    record: VersionRecord | None


@dataclass(frozen=True, slots=True)
class NewVersion:
    """The version to be committed after `base`.

    Attributes:
        base: the version that was read; None makes a new table.
        layout: of the new version; may differ from that of `base` if no file is kept, but for NOT
            NULL.
        record: kept as JSON; the format adds the keys `version` and `layout`.
        begun: when the attempt began that made it; nothing that it added is older.
    """

    base: Snapshot | None
    layout: Layout
    added: Sequence[DataFile]
    removed: Sequence[DataFile]
    record: VersionRecord
    begun: Moment = field(default_factory=Moment.now)


class TableFormat(Protocol):
    """Interface of a table format. Methods take the store, which knows how to reach its folder."""

    @property
    def log(self) -> str:
        """Name of the log's folder, in the table's folder."""

    @property
    def temporary(self) -> re.Pattern[str]:
        """Names in that folder that a writer leaves behind when it dies."""

    def head(self, store: Store, name: str, version: int | None) -> Snapshot | None:
        """Return a version, None for the newest that Driftline wrote; None if there is no log.

        Raises:
            NotFound: a version newer than the newest was asked for.
            WarehouseUnavailable: the log cannot be read, somebody else or a newer release wrote the
                version or all of them, or its content is not what its files hold; or a release
                wrote it that is too old.
        """

    def header(self, store: Store, name: str) -> VersionHeader | None:
        """Return the newest version as its entry alone says it, without the list of its files.

        None if the entry does not say all, if it is not Driftline's, or if the log is not whole:
        `head` or `view_head` says why, or says it.

        Raises:
            WarehouseUnavailable: the log cannot be listed or read.
        """

    def entries(
        self,
        store: Store,
        name: str,
        newest: Snapshot | ViewSnapshot | None,
        after: int | None = None,
    ) -> list[LogEntry]:
        """Return the commits of the log, newest first; none if there is no log.

        Args:
            newest: the newest version, if it was just read: its log is not opened again.
            after: a version; only those after it are read. None: all.
        """

    def oldest(self, store: Store, name: str) -> tuple[int, VersionRecord] | None:
        """Return the oldest version whose commit the log has, and its record, without reading the
        others; None if there is none, or if Driftline did not write it.

        Raises:
            WarehouseUnavailable: the log cannot be read, or a newer release wrote it.
        """

    def added(self, store: Store, name: str, version: int) -> set[str]:
        """Return the paths of a version's new files. Raises WarehouseUnavailable if it is gone."""

    def shorten(self, store: Store, name: str, oldest: int) -> None:
        """Remove entries of the log that neither a version from `oldest` on needs, nor one of less
        than a format's own retention; a commit removes none. Raises WarehouseUnavailable.
        """

    def view_head(self, store: Store, name: str, version: int | None) -> ViewSnapshot | None:
        """Return a version of a view, as `head` does; raises as well."""

    def is_view(self, store: Store, name: str) -> bool:
        """Return True if the table is that of a view; False also if there is none.

        Raises:
            WarehouseUnavailable: as `head`.
        """

    def mend(self, store: Store, name: str) -> None:
        """Complete the newest entry of a log that nobody can open because an older release left out
        what its columns need; else do nothing. Hold the table's lock.

        Raises:
            WarehouseUnavailable: the log cannot be written.
        """

    def commit(self, store: Store, name: str, new: NewVersion | NewViewVersion) -> int:
        """Publish a version of a fragment or a view; return its number.

        Raises:
            Locked: somebody else committed since the base was read.
            WarehouseUnavailable: the log cannot be written.
        """
