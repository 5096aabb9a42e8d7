"""Find the keys of an input that changed since the version that a view was made of.

They are read from the change feeds of the versions in between, united: any superset of the changed
keys gives the same view, so nothing is netted. A version that is proven and not committed yet has
its feed, too. A feed has data columns; key bytes are made of them again, by the function that made
those in the files (`Layout.key_bytes`), so feeds of older releases serve as well, and readers of
feeds see no column that is not theirs. The feed of a view has the lineage beside the data.

A subset would be wrong, and silently so. Therefore feeds serve only if it is certain that they are
all: the version that the view was made of is still the one in the log (its stamp), every version
after it names a feed whose files are there, and the images in it are as many as its record says.
Else the answer is `MissingFeed`, with the reason, and the view is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from driftline.errors import DriftlineError

from warehouse_agent.columns.row_codes import CodeSet, KeySet, codes
from warehouse_agent.report import counted
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import VersionRecord
from warehouse_agent.tasks.change_feed import OPERATIONS
from warehouse_agent.tasks.scan import read_batches
from warehouse_agent.tasks.semi_join import ChangedKeys, SelectedRows
from warehouse_agent.views.evaluate import PinnedInput, stamp_of

CHANGED_ROWS_MAX = 4_000_000  # of an input: their keys are held in memory, and go to every task
VERSIONS_MAX = 1_000  # between two; each is a file of the log
_TELLING = 0.5  # distinct values of one column of the key, over changed keys
_INSERT, _, _UPDATE, _ = OPERATIONS


@dataclass(frozen=True, slots=True)
class MissingFeed:
    """The changed keys cannot be known. `why`: a phrase for a person."""

    why: str


@dataclass(frozen=True, slots=True)
class FeedFiles:
    """The feed of a version: URIs of its files, and its number of images and of changed rows."""

    uris: tuple[str, ...]
    images: int
    rows: int


@dataclass(frozen=True, slots=True)
class InputChanges:
    """The rows of an input that changed since a version.

    Attributes:
        keys: of all changed rows.
        after: the wanted columns of the images of inserted rows, and of updated ones after it:
            each changed row that is there now is among them.
    """

    keys: ChangedKeys
    after: pa.Table

    def codes(self, columns: Sequence[str]) -> CodeSet:
        """Return the codes of columns in the changed rows, and perhaps in rows that were."""
        parts = []
        for batch in self.after.to_batches():
            row_codes, present = codes([batch.column(name) for name in columns])
            parts.append(row_codes[present])
        return CodeSet.of(*parts)


def made_of(store: Store, inputs: Mapping[str, int]) -> dict[str, str]:
    """Return the stamps of committed versions of fragments and views, by name."""
    return {
        name: stamp_of(snapshot)
        for name, version in inputs.items()
        if (snapshot := formats.any_head(store, name, version=version)) is not None
    }


def feeds_since(
    store: Store, one: PinnedInput, record: VersionRecord
) -> tuple[FeedFiles, ...] | MissingFeed:
    """Return the feeds between the version that a view was made of and the version now.

    Args:
        record: of the view's version.
    """
    since, stamp = (record.inputs or {}).get(one.name), (record.made_of or {}).get(one.name)
    if since is None or stamp is None:
        return MissingFeed(f"which version of {one.name} the view was made of is not recorded")
    if since == one.version and one.stamp == stamp:
        return ()
    if one.version <= since:
        return MissingFeed(f"{one.name} began anew")
    if one.version - since > VERSIONS_MAX:
        return MissingFeed(f"{one.name} has {one.version - since:,} versions since")
    try:
        base = formats.any_head(store, one.name, version=since)
        if base is None or stamp_of(base) != stamp:
            return MissingFeed(
                f"version {since} of {one.name} is not the one that the view was made of"
            )
        feeds: list[FeedFiles] = []
        version = one.version
        while version > since:
            feed = _feed(store, one, version)
            if isinstance(feed, MissingFeed):
                return feed
            if isinstance(feed, int):  # what lies between is another program's maintenance
                version = feed
                continue
            feeds.insert(0, feed)
            version -= 1
    except DriftlineError as error:
        return MissingFeed(f"the log of {one.name} cannot be read: {error.message}")
    if (rows := sum(feed.rows for feed in feeds)) > CHANGED_ROWS_MAX:
        return MissingFeed(f"{counted(rows, 'row')} of {one.name} changed")
    return tuple(feeds)


def changes_in(feeds: Sequence[FeedFiles], form: SelectedRows) -> InputChanges | MissingFeed:
    """Read feeds: the keys of all changed rows, and columns of their images.

    Args:
        form: of the selected rows of the input; its columns are those that are wanted.
    """
    schema = form.files_schema
    names = dict.fromkeys([*form.identifying, *form.columns])
    wanted = pa.schema([("_op", pa.string()), *(schema.field(name) for name in names)])
    batches: list[pa.RecordBatch] = []
    try:
        for feed in feeds:
            some = [batch for uri in feed.uris for batch in read_batches(uri, wanted)]
            if sum(map(len, some)) != feed.images:
                return MissingFeed(
                    "a change feed has not the number of images that its version says"
                )
            batches += some
    except DriftlineError as error:
        return MissingFeed(f"a change feed cannot be read: {error.message}")
    images = pa.Table.from_batches(batches, wanted).combine_chunks()
    (batch,) = images.to_batches() or [_empty(wanted)]
    lineage = form.lineage(batch)
    keys = _searched(batch, form.identifying, KeySet.of(lineage))
    is_after = pc.is_in(images["_op"], value_set=pa.array([_INSERT, _UPDATE]))
    after = images.filter(is_after).select([*form.columns])
    return InputChanges(keys, after)


def _searched(batch: pa.RecordBatch, key: tuple[str, ...], keys: KeySet) -> ChangedKeys:
    """Return changed keys with the columns by which they are searched for.

    One column of a long key suffices if it tells most changed rows apart: it is read faster than
    all are hashed, and candidates are compared exactly in the end.
    """
    columns = key
    if len(key) > 1:
        numbers = {name: len(pc.unique(batch.column(name))) for name in key}
        best = max(key, key=numbers.__getitem__)
        columns = (best,) if numbers[best] >= _TELLING * len(keys) else key
    row_codes, _ = codes([batch.column(name) for name in columns])
    return ChangedKeys(columns, CodeSet.of(row_codes), keys)


def _feed(store: Store, one: PinnedInput, version: int) -> FeedFiles | MissingFeed | int:
    """Return the feed of a version of an input; or the earlier version that has the same rows."""
    if version == one.version and one.feed is not None:
        counts = one.feed.counts
        updated, inserted = counts.get("update_after", 0), counts.get("insert", 0)
        deleted, folder, files = counts.get("delete", 0), one.feed.folder, one.feed.files
    else:
        snapshot = formats.any_head(store, one.name, version=version)
        if snapshot is None:
            return MissingFeed(f"the log of {one.name} has no version {version}")
        record = snapshot.record
        if record.adopted is not None:
            return record.adopted
        updated, inserted, deleted = record.rows_updated, record.rows_inserted, record.rows_deleted
        folder, files = record.changes, record.changes_files
    if folder is None or (inserted + updated + deleted and not all(files)):
        return MissingFeed(f"version {version} of {one.name} has no change feed")
    place = (PRIVATE, "changes", one.name, *folder.split("/"))
    if not {*files} <= {file for file, _ in store.files(*place)}:
        return MissingFeed(f"the change feed of version {version} of {one.name} was removed")
    uris = tuple(store.uri(*place, file) for file in files)
    return FeedFiles(uris, inserted + 2 * updated + deleted, inserted + updated + deleted)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
