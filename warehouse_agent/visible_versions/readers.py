"""Read published tables: a pinned version as a DataFrame, and the change feed.

A reader keeps the file list of one version. Refreshes add files and never touch the files of a
version within its retention, so readers are never blocked and never see two versions mixed.

Where the warehouse has a table of versions, it says which version of each table readers are given:
tables that views join move together. `at` pins all of them; `read` follows the newest.

Files on a disk are read by Spark's own reader, which sees the query and needs no Driftline where
the tasks run; all rows of a table cost 1.4 times as long by tasks in Python. Of any other storage
Spark would need a library: tasks in Python read the columns that are named, and leave out row
groups by the conditions that are given.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from driftline.errors import NotFound, UsageError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from warehouse_agent.columns.layout import Layout, quoted
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.config import StorageSettings, load
from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.config.storage import bucket_path
from warehouse_agent.report import counted
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.formats import head, is_view, view_head
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot, ViewSnapshot
from warehouse_agent.tasks.data_frames import ColumnRange, rows_of
from warehouse_agent.visible_versions import freshness_table, warehouse_versions
from warehouse_agent.visible_versions.members import Member, MemberKind

Conditions: TypeAlias = Sequence[tuple[str, str, Any]]
_OPERATORS = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
USUAL_FILE = Path("warehouse.toml")
Storage = StorageSettings | str | Path  # the way to a bucket, or the warehouse.toml that says it


@dataclass(frozen=True, slots=True)
class Warehouse:
    """One version of a whole warehouse, pinned: tables that belong together.

    `version` is None, and `names` is empty, where no view was ever published: each table is then
    read as of its newest version, pinned when it is first read.
    """

    spark: SparkSession
    version: int | None
    _store: Store
    _members: Mapping[str, Member]
    _pinned: dict[str, Snapshot | ViewSnapshot] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all tables of this version."""
        return tuple(sorted(self._members))

    def read(
        self, name: str, *, columns: Sequence[str] | None = None, where: Conditions = ()
    ) -> DataFrame:
        """Return the rows of a fragment or a view; arguments as of `readers.read`.

        Raises:
            NotFound: nothing of this name is in this version, or it has no such column.
            UsageError: as of `readers.read`.
        """
        return _data(self.spark, self._snapshot(name), columns, where)

    def as_of(self, name: str) -> str:
        """Return the source's time of the rows, ISO 8601 in UTC; of a view the least of its inputs.

        Raises:
            NotFound: as `read`.
        """
        if name in self._members:
            return self._members[name].as_of
        return self._snapshot(name).record.as_of

    def stale(self, name: str) -> str | None:
        """Return why a view stayed behind its inputs; None if it did not.

        Raises:
            NotFound: as `read`.
        """
        if name in self._members:
            return self._members[name].stale
        self._snapshot(name)
        return None

    def register(self) -> None:
        """Make a temporary view of each table that has a name of one part."""
        for name in self.names:
            if self._members[name].kind is not MemberKind.KEPT:
                self.read(name).createOrReplaceTempView(quoted(name))

    def _snapshot(self, name: str) -> Snapshot | ViewSnapshot:
        if self._members and name not in self._members:
            raise NotFound(
                f"It is not in version {self.version} of the warehouse.",
                where=name,
                remedy="`names` has the tables of this version; `read` reads others one by one.",
            )
        if name not in self._pinned:
            self._pinned[name] = _pinned(self._store, self._members, name)
        return self._pinned[name]


def at(
    spark: SparkSession,
    path: str | Path,
    version: int | None = None,
    *,
    storage: Storage | None = None,
) -> Warehouse:
    """Return a pinned version of the whole warehouse: tables that belong together.

    Args:
        spark: any session, Spark Connect included.
        path: the warehouse's folder, or `s3://BUCKET/FOLDER`.
        version: of the warehouse; None for the newest.
        storage: how the bucket is reached, or the warehouse.toml whose [storage] says it; None:
            the warehouse.toml of the working folder, if its `path` is this one.

    Raises:
        ConfigurationError: nothing serves such a path, or `storage` is not well.
        NotFound: there is no such version.
        WarehouseUnavailable: the table of versions cannot be read.
    """
    store, members, number = _opened(path, version, storage)
    return Warehouse(spark, number, store, members)


def read(
    spark: SparkSession,
    path: str | Path,
    name: str,
    version: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: Conditions = (),
    storage: Storage | None = None,
) -> DataFrame:
    """Return the published table of a fragment or a view, and make a temporary view of this name.

    `driftline_freshness` says how fresh all of them are.

    Where the warehouse is on no disk, Spark fetches all that it is not told to leave out: name the
    columns, and conditions of keys, numbers and dates by which most rows are not wanted.

    Args:
        spark, path, storage: as for `at`.
        version: of this table; None for the one in the newest version of the warehouse.
        columns: to return, in this order; None: all.
        where: conditions that all rows fulfil: column, one of =, <, <=, >, >=, and a value.

    Raises:
        ConfigurationError: as `at`.
        NotFound: nothing was published under this name, or not this version, or it has no such
            column.
        UsageError: a condition has another operator, or no value.
    """
    if name == FRESHNESS and version is None:
        file = freshness_table.data_file(open_store(path, storage))
        rows = _rows(spark, [file], freshness_table.SCHEMA, columns, where)
    else:
        store, members, _ = _opened(path, None, storage)
        rows = _data(spark, _pinned(store, members, name, version), columns, where)
    rows.createOrReplaceTempView(quoted(name))
    return rows


def _opened(
    path: str | Path, version: int | None, storage: Storage | None
) -> tuple[Store, Mapping[str, Member], int | None]:
    """Return the store, the members of a warehouse version, and its number; none without table."""
    store = open_store(path, storage)
    if version is None and not warehouse_versions.exists(store):
        return store, {}, None
    chosen = (
        warehouse_versions.newest(store)
        if version is None
        else warehouse_versions.at_version(store, version)
    )
    if chosen is None:  # somebody moved the table away meanwhile
        return store, {}, None
    kept = (m.name for m in chosen.members.values() if m.kind is MemberKind.KEPT)
    return replace(store, kept=frozenset(kept)), chosen.members, chosen.number


def _pinned(
    store: Store, members: Mapping[str, Member], name: str, version: int | None = None
) -> Snapshot | ViewSnapshot:
    """Return a version of a table, None for the one of its member, or else the newest."""
    member = members.get(name)
    given = member if version is None else None
    if given is not None:
        version = given.version
    snapshot: Snapshot | ViewSnapshot | None
    if member is not None:
        is_of_view = member.kind is MemberKind.VIEW
    else:  # a view that is configured no more is no member, and can still be read
        is_of_view = bool(members) and is_view(store, name)
    if is_of_view:
        snapshot = view_head(store, name, version=version)
    else:
        snapshot = head(store, name, version=version)
    if snapshot is None:
        raise NotFound(
            "Nothing has been published yet.", where=name, remedy=f"Run `driftline refresh {name}`."
        )
    restored = snapshot.record.restored
    if given and restored is not None and snapshot.record.published_at > given.moved_at:
        raise NotFound(
            f"Version {version} was lost, and the rows of version {restored} have its number.",
            where=name,
            remedy=f"Run `driftline refresh {name}`, and read the newest version of the warehouse.",
        )
    return snapshot


def _data(
    spark: SparkSession,
    snapshot: Snapshot | ViewSnapshot,
    columns: Sequence[str] | None,
    where: Conditions,
) -> DataFrame:
    """Return rows of a version, without bookkeeping."""
    names = snapshot.layout.data_names
    fields = pa.schema([snapshot.layout.file_schema.field(name) for name in names])
    return _rows(spark, snapshot.files, fields, columns, where)


def _rows(
    spark: SparkSession,
    files: Sequence[DataFile],
    fields: pa.Schema,
    columns: Sequence[str] | None,
    where: Conditions,
) -> DataFrame:
    """Return columns of the rows of files that fulfil conditions.

    Args:
        fields: columns of the files that can be asked for.

    Raises:
        NotFound, UsageError: as of `read`.
    """
    wanted = fields.names if columns is None else [*columns]
    tested = [condition[0] for condition in where]
    if missing := [name for name in (*wanted, *tested) if name not in fields.names]:
        raise NotFound(
            f"There is no column {missing[0]!r}.", remedy=f"It has: {', '.join(fields.names)}."
        )
    ranges = [_range(*condition) for condition in where]
    read = pa.schema([fields.field(name) for name in dict.fromkeys([*wanted, *tested])])
    rows = rows_of(spark, files, read, ranges=[one for one in ranges if one is not None])
    for name, sign, value in where:
        rows = rows.where(_OPERATORS[sign](F.col(quoted(name)), F.lit(value)))
    return rows.select(*map(quoted, wanted))


def _range(name: str, sign: str, value: Any) -> ColumnRange | None:
    """Return the range of a condition on integers or dates, by which row groups are left out."""
    if sign not in _OPERATORS or value is None:
        raise UsageError(
            f"The condition ({name!r}, {sign!r}, {value!r}) cannot be used.",
            remedy=f"Use one of {', '.join(_OPERATORS)} and a value.",
        )
    if type(value) not in (int, date):
        return None
    least = value if sign in ("=", ">", ">=") else None
    return ColumnRange(name, least, value if sign in ("=", "<", "<=") else None)


def changes(
    spark: SparkSession,
    path: str | Path,
    name: str,
    *,
    since: int,
    upto: int | None = None,
    columns: Sequence[str] | None = None,
    where: Conditions = (),
    storage: Storage | None = None,
) -> DataFrame:
    """Return the change feed after version `since`, up to and including `upto`.

    More than seven parameters: most are options, by name alone.

    The columns are `_version`, `_op` (insert, update_before, update_after, delete) and the data
    columns. Only feeds that a commit names are read.

    Args:
        spark, path, name, storage: as for `read`.
        since: version that the reader has.
        upto: None for the version that `read` returns.
        columns, where: as for `read`, of the data columns; `_version` and `_op` always come first.

    Raises:
        ConfigurationError: as `at`.
        NotFound: version `since` does not exist, as after a new first load. Or a version after it
            has no feed: a first load, changed columns, repaired damage, a restored table, or `gc`.
            Or there is no such column.
        UsageError: as of `read`.
    """
    store, members, _ = _opened(path, None, storage)
    newest = _pinned(store, members, name)
    if since > newest.version:
        look = view_head if isinstance(newest, ViewSnapshot) else head
        committed = look(store, name)
        if committed is not None and since <= committed.version:
            raise NotFound(
                f"Version {since} waits for the views over it; readers are given {newest.version}.",
                where=name,
                remedy="Ask again after the next flip.",
            )
        raise NotFound(
            f"Version {since} is not there; the newest is {newest.version}.",
            where=name,
            remedy="The table began anew: read its newest version once and the feed from there on.",
        )
    last = newest.version if upto is None else upto
    versions: list[Snapshot | ViewSnapshot] = []
    while last > since:
        snapshot = _pinned(store, members, name, last)
        if (same := snapshot.record.adopted) is not None:
            last = same  # what lies between is another program's maintenance
            continue
        versions.append(snapshot)
        last -= 1
    parts = []
    for snapshot in reversed(versions):
        if (feed := snapshot.record.changes) is None:
            raise _no_feed(name, snapshot.version, _why_none(snapshot))
        files = _feed_files(store, name, snapshot, feed)
        rows = _feed_rows(spark, snapshot.layout, files, columns, where)
        parts.append(rows.selectExpr(f"{snapshot.version}L as _version", "*"))
    if not parts:
        empty = _feed_rows(spark, newest.layout, [], columns, where)
        return empty.selectExpr("0L as _version", "*")
    return reduce(DataFrame.unionByName, parts)  # no feed leads across a change of columns


def _feed_files(
    store: Store, name: str, snapshot: Snapshot | ViewSnapshot, feed: str
) -> list[DataFile]:
    """Return the files of the feed of one version. Raises NotFound if one was removed."""
    place = (PRIVATE, "changes", name, *feed.split("/"))
    files = snapshot.record.changes_files
    stored = dict(store.files(*place))
    if missing := set(files) - stored.keys():
        lost = f"lost {counted(len(missing), 'file')} of its change feed"
        raise _no_feed(name, snapshot.version, lost)
    sizes = ((file, store.uri(*place, file), stored[file]) for file in files)
    return [DataFile(file, uri, size, rows=0) for file, uri, size in sizes]  # rows are not known


def _feed_rows(
    spark: SparkSession,
    layout: Layout | ViewLayout,
    files: Sequence[DataFile],
    columns: Sequence[str] | None,
    where: Conditions,
) -> DataFrame:
    names = layout.data_names
    fields = pa.schema([("_op", pa.string()), *(layout.file_schema.field(n) for n in names)])
    wanted = names if columns is None else columns
    return _rows(spark, files, fields, ("_op", *wanted), where)


def _why_none(snapshot: Snapshot | ViewSnapshot) -> str:
    if lost := snapshot.record.repaired_rows:
        was = "was" if lost == 1 else "were"
        return f"no change feed: {counted(lost, 'row')} of damaged files {was} pulled again"
    if snapshot.record.restored is not None:
        return f"no change feed: version {snapshot.record.restored} was restored"
    return "no change feed"


def _no_feed(name: str, version: int, has: str) -> NotFound:
    remedy = "Read the newest version once and the feed from there on."
    return NotFound(f"Version {version} has {has}.", where=name, remedy=remedy)


def open_store(path: str | Path, storage: Storage | None = None) -> Store:
    """Return the warehouse at a path; a relative path is made absolute. Raises as `at`."""
    text = str(path)
    if "://" not in text:
        return Store(str(Path(text).absolute()))
    if text.startswith("file://"):
        return Store(text)
    root = bucket_path(text, "path")
    return Store(root, storage=_way(root, storage))


def _way(root: str, storage: Storage | None) -> StorageSettings | None:
    """Return how the bucket of a root is reached; None: as this process knows, or as AWS."""
    if isinstance(storage, StorageSettings):
        return storage
    if storage is not None:
        return load(storage).storage
    if root not in known.learnt() and USUAL_FILE.is_file():
        config = load(USUAL_FILE)
        return config.storage if config.path == root else None
    return None
