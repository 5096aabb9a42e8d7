"""The change feed of a version: its differential file Δ+ Δ−, before- and after-images, no no-ops.

    _driftline/changes/<name>/_version=N/<attempt>/…      `_op`, then the data columns

A feed consists of the files that the commit names, in a folder of the attempt: without locks on
the storage two agents may write the same version, and one of them commits. The operation of an
image depends on the row of the same key on the other side, which a task looks up in lots
(`key_lookup`), however many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import Bools, Integers
from driftline.errors import ProofFailed

from warehouse_agent.columns.layout import Layout
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.spark.executors import Batches
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE, HeldSources, Store
from warehouse_agent.tasks import changed_places
from warehouse_agent.tasks.changed_places import SAMPLED, ChangedPlaces, ChangeSampler
from warehouse_agent.tasks.key_lookup import KeyedRows, KeyFilter
from warehouse_agent.tasks.scan import FILE_BYTES, OfFiles, Sources, read_batches, spread
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import WRITTEN, SplitSink, written_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPERATIONS = ("insert", "update_before", "update_after", "delete")
# The operations of rows that are PAIRED and ALONE.
_BEFORE_OPERATIONS, _AFTER_OPERATIONS = ("update_before", "delete"), ("update_after", "insert")
# The other side has the same row, another row of the same key, or none.
SAME, PAIRED, ALONE = range(3)
# Of a lot while it is looked up: bytes of a row in indices, and how often its columns are held.
LOT_ROW_BYTES = 112
LOT_COPIES = 3
# Of files in buckets that a task holds, as each is read up to five times: at most, and of a lot.
HELD_BYTES, HELD_SHARE = 16 << 20, 8
_FOUND = pa.schema([*WRITTEN, *SAMPLED])  # a row for each file, and one for each task
_Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class VersionFeed:
    """The change feed of a version: files in a folder below `changes/<name>`, rows per operation.

    `folder` is None if the version has no feed, `places` if it is not known where it changed.
    """

    folder: str | None = None
    files: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    places: ChangedPlaces | None = None


def write(
    steps: Steps,
    store: Store,
    name: str,
    version: int,
    *,
    before: Sequence[DataFile],
    after: Sequence[DataFile],
    layout: Layout,
    bounds: tuple[int, int] | None = None,
    measured: str | None = None,
) -> VersionFeed:
    """Write the feed of a version from the files of its removed and its new rows; one step.

    The sides may share rows: what is the same on both is no change. A task holds what a lot takes
    (`Steps.task_bytes`), and a byte for each of its rows.

    More than seven parameters: `bounds` are those of a table of which the sides are a part.

    Args:
        bounds: the least and the greatest integer key of the table; None: its key is no integer.
        measured: a numeric column whose moves are wanted; None: none.

    Raises:
        ProofFailed: the operations do not add up.
    """
    at, folder = place(name, version)
    store.make_folder(*at)
    work = StepWork(StepKind.WRITE, steps.size_of_rows([*before, *after]))
    function = _write(store.uri(*at), layout, before, after, steps.task_bytes(work), bounds)
    uris, sizes = [f.uri for f in (*before, *after)], [f.size for f in (*before, *after)]
    rows = spread(steps, uris, function, _FOUND, work=work, sizes=sizes, at_once=True).to_pylist()
    files = [row for row in rows if row["path"] is not None]
    places = changed_places.merged((row for row in rows if row["path"] is None), measured)
    feed = replace(_of(folder, files), places=places)
    _check(feed.counts, before, after, name)
    return feed


def write_images(
    store: Store, name: str, version: int, images: DataFrame, schema: pa.Schema
) -> VersionFeed:
    """Write the feed of a version from its images, rows of Spark in the columns of `schema`.

    An error of Spark is the caller's to explain.
    """
    at, folder = place(name, version)
    store.make_folder(*at)
    uri = store.uri(*at)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            sinks = _sinks(stack, uri, schema)
            for batch in batches:
                rows = batch.cast(schema)
                for op, sink in sinks.items():
                    is_op = pc.equal(rows.column("_op"), op)
                    sink.add(rows, is_op.to_numpy(zero_copy_only=False))
            written = [row for sink in sinks.values() for row in sink.finish()]
        yield from written

    return _of(folder, written_by(images, run).to_pylist())


def _of(folder: str, rows: Sequence[Mapping[str, Any]]) -> VersionFeed:
    """Return the feed in a folder below `changes/<name>` of which tasks wrote files."""
    counts = dict.fromkeys(OPERATIONS, 0)
    for row in rows:
        counts[row["path"].partition("-")[0]] += row["rows"]
    return VersionFeed(folder, tuple(sorted(row["path"] for row in rows)), counts)


def _check(
    counts: dict[str, int], before: Sequence[DataFile], after: Sequence[DataFile], name: str
) -> None:
    more = sum(f.rows for f in after) - sum(f.rows for f in before)
    is_paired = counts["update_before"] == counts["update_after"]
    if not is_paired or counts["insert"] - counts["delete"] != more:
        raise ProofFailed(
            f"The change feed does not add up: {counts} for {more:+} rows; nothing was published.",
            where=name,
            remedy="Run the refresh again; report it if it happens twice.",
        )


def place(name: str, version: int) -> tuple[tuple[str, ...], str]:
    """Return a new folder for the feed of a version: for the store, and below `changes/<name>`."""
    folder = f"_version={version}/{uuid4().hex[:12]}"
    return (PRIVATE, "changes", name, *folder.split("/")), folder


def _write(
    folder: str,
    layout: Layout,
    before: Sequence[DataFile],
    after: Sequence[DataFile],
    lot_bytes: int,
    bounds: tuple[int, int] | None,
) -> OfFiles:
    data = pa.schema([layout.file_schema.field(name) for name in layout.data_names])
    names = dict.fromkeys((*layout.data_names, layout.position_name))
    placed = pa.schema([layout.file_schema.field(name) for name in names])
    schema = pa.schema([pa.field("_op", pa.string()), *data])

    def run(uris: Iterator[str]) -> Iterator[pa.RecordBatch]:
        mine, sampler = set(uris), ChangeSampler(bounds)
        sizes = {f.uri: f.size for f in (*before, *after)}
        sources = HeldSources(sizes, min(HELD_BYTES, lot_bytes // HELD_SHARE))
        with ExitStack() as stack:
            sinks = _sinks(stack, folder, schema)
            for side, images_of, others, operations in (
                ("before", before, after, _BEFORE_OPERATIONS),
                ("after", after, before, _AFTER_OPERATIONS),
            ):
                some = [f for f in images_of if f.uri in mine]
                if not some:
                    continue
                codes = _compared(some, others, layout, lot_bytes, sources)
                at = 0
                for read in _read(some, placed, sources):
                    its = codes[at : at + len(read)]
                    at += len(read)
                    if not (its != SAME).any():
                        continue
                    batch = read.select(layout.data_names)
                    positions = _numbers(read.column(layout.position_name))
                    sampler.pair(side, batch, positions, its == PAIRED)
                    sampler.count(positions[its == ALONE if side == "before" else its != SAME])
                    for code, op in zip((PAIRED, ALONE), operations, strict=True):
                        chosen = its == code
                        if chosen.any():
                            named = [pa.array([op] * len(batch), pa.string()), *batch.columns]
                            images = pa.RecordBatch.from_arrays(named, schema=schema)
                            sinks[op].add(images, chosen)
            written = [row for sink in sinks.values() for row in sink.finish()]
        rows = [row for one in written for row in one.to_pylist()]
        yield pa.RecordBatch.from_pylist([*rows, sampler.finish()], schema=_FOUND)

    return run


def _sinks(stack: ExitStack, folder: str, schema: pa.Schema) -> dict[str, SplitSink]:
    """Return what writes the images of each operation, in files of their own."""
    return {
        op: stack.enter_context(SplitSink(folder, op, schema, file_bytes=FILE_BYTES))
        for op in OPERATIONS
    }


def _compared(
    some: Sequence[DataFile],
    others: Sequence[DataFile],
    layout: Layout,
    lot_bytes: int,
    sources: Sources,
) -> _Codes:
    """Compare each row with the other side's row of its key: uint8 [rows], SAME, PAIRED or ALONE.

    A row is SAME if the other side has its position and its fingerprint, 128 bits of hashes at
    least, or the key itself. In a copy most rows are, and numbers are found at a third of the price
    of key bytes, so these go first.
    """
    parts = [np.zeros(0, np.uint8)]
    for rows in _lots(some, layout.lane_schema, lot_bytes, sources):
        parts.append(np.where(_same(rows, others, layout, sources), SAME, ALONE).astype(np.uint8))
        del rows  # before the next is read
    codes = np.concatenate(parts)
    left, at = np.flatnonzero(codes != SAME), 0
    names = dict.fromkeys((*layout.key_names, layout.position_name))
    keyed = pa.schema([layout.file_schema.field(name) for name in names])
    for rows in _lots(some, keyed, lot_bytes, sources, chosen=codes != SAME):
        its = left[at : at + len(rows)]
        at += len(rows)
        codes[its[_paired(rows, others, layout, sources)]] = PAIRED
        del rows  # before the next is read
    return codes


def _same(rows: pa.Table, others: Sequence[DataFile], layout: Layout, sources: Sources) -> Bools:
    """Return the rows of a lot whose positions and fingerprints the other side has, bool [rows]."""
    is_same = np.zeros(len(rows), np.bool_)
    passing, wanted = _passing(rows, layout), _lanes(rows)
    lanes, uris = layout.lane_schema, passing.near(others)
    for lot in KeyedRows.lots(uris, lanes, lanes.names[0], 2 * len(rows), passing, sources):
        is_same |= _is_in(wanted, _lanes(lot.columns))
        del lot  # before the next is read
    return is_same


def _paired(rows: pa.Table, others: Sequence[DataFile], layout: Layout, sources: Sources) -> Bools:
    """Return the rows of a lot whose keys the other side has, bool [rows]."""
    is_paired = np.zeros(len(rows), np.bool_)
    passing = _passing(rows, layout)
    (key,), uris = layout.key_names, passing.near(others)
    for lot in KeyedRows.lots(uris, layout.key_schema, key, 2 * len(rows), passing, sources):
        is_paired |= _is_in(rows[key], lot.columns[key])
        del lot  # before the next is read
    return is_paired


def _lots(
    files: Sequence[DataFile],
    columns: pa.Schema,
    lot_bytes: int,
    sources: Sources,
    chosen: Bools | None = None,
) -> Iterator[pa.Table]:
    """Read columns of the chosen rows of files, bool [rows], in lots that take `lot_bytes` while
    they are looked up, and at most a batch more. The caller must drop a lot before the next."""
    held: list[pa.RecordBatch] = []
    size = at = 0
    for batch in _read(files, columns, sources):
        rows = batch if chosen is None else batch.filter(pa.array(chosen[at : at + len(batch)]))
        at += len(batch)
        if not len(rows):
            continue
        held.append(rows)
        size += LOT_ROW_BYTES * len(rows) + LOT_COPIES * rows.nbytes
        if size >= lot_bytes:
            lot = pa.Table.from_batches(held, columns)
            held.clear()
            size = 0
            yield lot
            del lot
    if held:
        yield pa.Table.from_batches(held, columns)


def _read(
    files: Sequence[DataFile], columns: pa.Schema, sources: Sources
) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from read_batches(file.uri, columns, sources=sources)


def _passing(rows: pa.Table, layout: Layout) -> KeyFilter:
    return KeyFilter.of(layout.position_name, _numbers(rows[layout.position_name]))


def _numbers(column: pa.Array | pa.ChunkedArray) -> Integers:
    return np.ascontiguousarray(column.to_numpy(), np.int64)


def _lanes(rows: pa.Table) -> pa.Array:
    """Return the position and both lanes of each row as a value of 24 bytes."""
    lanes = np.stack([_numbers(column) for column in rows.columns], axis=1)
    return pa.Array.from_buffers(pa.binary(24), len(rows), [None, pa.py_buffer(lanes)])


def _is_in(values: pa.Array, others: pa.Array) -> Bools:
    found: Bools = pc.is_in(values, value_set=others).to_numpy(zero_copy_only=False)
    return found
