"""Read published tables: a pinned version as a DataFrame, and the change feed.

A reader keeps the file list of one version. Refreshes add files and never touch the files of a
version within its retention, so readers are never blocked and never see two versions mixed.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from driftline.errors import NotFound
from pyspark.sql import DataFrame, SparkSession

from warehouse_agent.columns.layout import quoted
from warehouse_agent.report import counted
from warehouse_agent.storage.data_files import rows_of
from warehouse_agent.storage.formats import head
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot


def read(spark: SparkSession, path: str | Path, name: str, version: int | None = None) -> DataFrame:
    """Return the published table of a fragment, and make a temporary view of the same name.

    Args:
        spark: any session, Spark Connect included.
        path: the warehouse's folder or Hadoop path.
        version: None for the newest.

    Raises:
        NotFound: nothing was published under this name, or not this version.
    """
    store = open_store(path)
    snapshot = head(store, name, version=version)
    if snapshot is None:
        raise NotFound(
            "Nothing has been published yet.", where=name, remedy=f"Run `driftline refresh {name}`."
        )
    rows = rows_of(spark, snapshot.layout, snapshot.uris())
    rows = rows.select(*(quoted(c) for c in snapshot.layout.data_names))
    rows.createOrReplaceTempView(quoted(name))
    return rows


def changes(
    spark: SparkSession, path: str | Path, name: str, *, since: int, upto: int | None = None
) -> DataFrame:
    """Return the change feed after version `since`, up to and including `upto`.

    The columns are `_version`, `_op` (insert, update_before, update_after, delete) and the data
    columns. Only feeds that a commit names are read.

    Args:
        spark, path, name: as for `read`.
        since: version that the reader has.
        upto: None for the newest version.

    Raises:
        NotFound: version `since` does not exist, as after a new first load. Or a version after it
            has no feed: a first load, changed columns, repaired damage, a restored table, or `gc`.
    """
    store = open_store(path)
    newest = head(store, name)
    if newest is None:
        raise NotFound("Nothing has been published yet.", where=name)
    if since > newest.version:
        raise NotFound(
            f"Version {since} is not there; the newest is {newest.version}.",
            where=name,
            remedy="The table began anew: read its newest version once and the feed from there on.",
        )
    last = newest.version if upto is None else upto
    parts = []
    for number in range(since + 1, last + 1):
        snapshot = head(store, name, version=number)
        feed = snapshot.record.changes if snapshot else None
        if snapshot is None or feed is None:
            raise _no_feed(name, number, _why_none(snapshot))
        parts.append(_feed_rows(spark, store, name, snapshot, feed))
    if not parts:
        empty = rows_of(spark, newest.layout, [])
        return empty.selectExpr(
            "0L as _version", "'' as _op", *(quoted(c) for c in newest.layout.data_names)
        )
    return reduce(DataFrame.unionByName, parts)  # no feed leads across a change of columns


def _feed_rows(
    spark: SparkSession, store: Store, name: str, snapshot: Snapshot, feed: str
) -> DataFrame:
    """Return the feed of one version. Raises NotFound if it was removed."""
    ddl = ", ".join(["_op string", *snapshot.layout.data_ddl])
    place = (PRIVATE, "changes", name, *feed.split("/"))
    files = snapshot.record.changes_files
    stored = {file for file, _ in store.files(*place)}
    if missing := set(files) - stored - ({""} if stored else set()):
        lost = f"lost {counted(len(missing), 'file')} of its change feed"
        raise _no_feed(name, snapshot.version, lost)
    uris = [store.uri(*place, file) for file in files]
    rows = spark.read.schema(ddl).parquet(*uris) if uris else spark.createDataFrame([], ddl)
    return rows.selectExpr(f"{snapshot.version}L as _version", "*")


def _why_none(snapshot: Snapshot | None) -> str:
    if snapshot is not None and (lost := snapshot.record.repaired_rows):
        was = "was" if lost == 1 else "were"
        return f"no change feed: {counted(lost, 'row')} of damaged files {was} pulled again"
    if snapshot is not None and snapshot.record.restored is not None:
        return f"no change feed: version {snapshot.record.restored} was restored"
    return "no change feed"


def _no_feed(name: str, version: int, has: str) -> NotFound:
    remedy = "Read the newest version once and the feed from there on."
    return NotFound(f"Version {version} has {has}.", where=name, remedy=remedy)


def open_store(path: str | Path) -> Store:
    """Return the warehouse at a path; a relative path is made absolute."""
    text = str(path)
    return Store(text if "://" in text else str(Path(text).absolute()))
