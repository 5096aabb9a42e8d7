"""The warehouse's side of a comparison, added up task by task (protocol, sections 6 and 7).

Each task reads positions and fingerprint lanes of some files, mixes them with the contract's code
and adds them up. So both sides use one formula, and the bytes that reach the driver depend on the
number of ranges, not on the table. All sums are modular: they depend neither on the order of
additions nor on how rows fall to tasks.

The largest sums, of a sketch's finest table and the most ranges, have 21 MB. So where sums are
large there are no more tasks than run at once: each processor adds up all of its files before it
sends anything, and what is sent does not grow with the table. The driver adds up the sums of a few
tasks itself. On a cluster of more processors, Spark adds them up: each task cuts its sums into
slices, the tasks of a second `mapInArrow` add up slices of the same number, and the driver puts the
results side by side. So it receives as many bytes as one task sends, however many tasks there are.
A task that is tried again adds up all of its files again, so no row counts twice.

Rejected: grouping by range in Spark SQL (a quarter of a million groups need a shuffle, and the
formula would exist twice); a tree of additions (its last tasks each hold and send all sums); sums
that a Python worker keeps from task to task (Spark may run a task again, here or elsewhere).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from driftline.arrays import U64, Bools, Integers
from driftline.reconciliation.named_keys import KeyMap
from driftline.reconciliation.ranges import Partition, RangeSums
from driftline.reconciliation.sketches import HASHES, PRIME, Cells
from driftline.rows.digests import Digest, MixedFingerprints, Salt, mix
from driftline.rows.key_order import KeyBuffer, KeyOrder
from driftline.values.types import Recipe

from warehouse_agent.columns.layout import KEY, Layout
from warehouse_agent.planning.choice import everything
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.report import counted
from warehouse_agent.spark.cluster import processors
from warehouse_agent.spark.executors import Batches, driver_errors, task, unreadable
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.scan import Divisible, FilePiece, Function, scan
from warehouse_agent.tasks.steps import DIGEST_BYTES, Steps, work_of_digests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Files = Sequence[DataFile]
Place = Callable[[Integers], Integers]  # from positions, int64 [n], to int64 [n]
Inside = Callable[[pa.RecordBatch], Bools]  # from a batch with keys to bool [rows]
Adder = Callable[[Iterator[FilePiece]], "PartialSums"]
Mixing = Callable[
    [pa.RecordBatch, Integers], MixedFingerprints
]  # from a batch and its positions, int64 [n]

TASKS_MAX = 64  # whose sums are added up
DRIVER_BYTES_MAX = 128 << 20  # of all sums that the driver adds up
# Bytes of digests that a task reads, at least, for each byte of its sums if Spark adds them up.
READ_FACTOR = 4
MERGE_BYTES = 32 << 20  # of slices that a task of the second stage adds up, on average
# All sums that may be sent by more tasks than run at once, which share the work more evenly.
SPARE_BYTES = 16 << 20
_SLICES = pa.schema(
    [
        ("slice", pa.int32()),
        ("count", pa.int64()),
        *((name, pa.binary()) for name in ("sum", "words", "elements")),
    ]
)
_LISTED = pa.schema(
    [("range", pa.int64()), ("position", pa.int64()), ("hash", pa.int64()), ("file", pa.int32())]
)


@dataclass(frozen=True, slots=True)
class Listing:
    """Some rows, in arrays [n]: coarse range (or k of a sketch), position of the key, row hash.

    `file` is the index of the row's file in the files that were searched.
    """

    ranges: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    file: npt.NDArray[np.int32]

    @classmethod
    def joined(cls, listings: Sequence[Self]) -> Self:
        """Return the rows of all listings, in their order."""
        longs, none = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return cls(
            np.concatenate([longs, *(one.ranges for one in listings)]),
            np.concatenate([longs, *(one.positions for one in listings)]),
            np.concatenate([longs.view(np.uint64), *(one.hashes for one in listings)]),
            np.concatenate([none, *(one.file for one in listings)]),
        )


@dataclass(frozen=True, slots=True)
class RowsInKeyTiles:
    """Rows whose keys lie in chosen tiles between bounds, key bytes that ascend.

    `chosen` has one more element than `bounds`.
    """

    recipe: Recipe
    bounds: tuple[bytes, ...]
    chosen: tuple[bool, ...]

    @classmethod
    def between(cls, recipe: Recipe, lower: bytes | None, upper: bytes | None) -> Self:
        """Return the rows of one tile."""
        bounds = tuple(bound for bound in (lower, upper) if bound is not None)
        before = (False,) * (lower is not None)
        return cls(recipe, bounds, (*before, True, *(False,) * (upper is not None)))

    def __call__(self, batch: pa.RecordBatch) -> Bools:
        """Return which rows of a batch lie in them, bool [rows]."""
        at = KeyOrder(self.recipe).ranks(keys_of(batch), KeyBuffer.of_bytes(self.bounds))
        is_inside: Bools = np.array(self.chosen, np.bool_)[at]
        return is_inside


@dataclass(frozen=True, slots=True)
class ComparisonSums:
    """Our side of a comparison: sums over ranges and, with a sketch, its cells."""

    ranges: RangeSums
    cells: Cells = field(default_factory=lambda: Cells(0))

    @property
    def total(self) -> Digest:
        """Return the digest of all rows."""
        return self.ranges.total


@dataclass(slots=True)
class PartialSums:
    """The digest of some rows, and sums over them or over a slice of them.

    Attributes:
        words: uint64 [n], sums modulo 2^64.
        elements: uint64 [m], sums in the field of PRIME elements, reduced or not.
    """

    total: Digest
    words: U64
    elements: U64

    def add(self, other: PartialSums) -> None:
        """Add the sums over other rows; at most 2^32 reduced ones."""
        self.total += other.total
        self.words += other.words
        self.elements += other.elements

    def slices(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield these sums in `count` slices, one in a batch; the first has the digest."""
        total = self.total
        parts = (np.array_split(sums, count) for sums in (self.words, self.elements))
        for number, (words, elements) in enumerate(zip(*parts, strict=True)):
            yield PartialSums(total, words, elements).slice(number)
            total = Digest()

    def slice(self, number: int) -> pa.RecordBatch:
        """Return these sums, reduced, as a batch of one row: a slice with this number."""
        elements = (self.elements % np.uint64(PRIME)).astype(np.uint32)
        values = (
            number,
            self.total.count,
            self.total.sum_bytes(),
            self.words.tobytes(),
            elements.tobytes(),
        )
        columns = {name: [value] for name, value in zip(_SLICES.names, values, strict=True)}
        return pa.RecordBatch.from_pydict(columns, schema=_SLICES)


def reduced(
    steps: Steps,
    files: Files,
    layout: Layout,
    partition: Partition,
    salt: Salt,
    sketch: Sketch | None = None,
) -> ComparisonSums:
    """Return the sums over the rows of files; one step.

    Args:
        salt: for mixing fingerprints.
        sketch: whose cells to fill; None fills none.

    Raises:
        WarehouseUnavailable: a file cannot be read, or does not hold what the log says.
    """
    third = sketch.third if sketch else 0
    sums = added(
        steps,
        files,
        layout,
        Adding(_sums(partition, salt, sketch), 2 * partition.ranges, 2 * HASHES * third + 1),
    )
    check_rows(files, sums.total.count)
    ranges = RangeSums.from_words(sums.total, sums.words)
    return ComparisonSums(ranges, Cells.from_sums(sums.elements))


@dataclass(frozen=True, slots=True)
class Adding:
    """Sums to be made of rows.

    Attributes:
        function: adds up the lanes of a task's rows.
        words, elements: numbers of its sums.
        keyed: True if it needs the keys beside the lanes.
        beside: published names of data columns that it needs behind these.
    """

    function: Adder
    words: int
    elements: int = 0
    keyed: bool = False
    beside: Sequence[str] = ()


def added(
    steps: Steps,
    files: Sequence[DataFile],
    layout: Layout,
    adding: Adding,
) -> PartialSums:
    """Return the sums over all rows of files; one step.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    words, elements, function = adding.words, adding.elements, adding.function
    tasks, slices = _division(steps, files, 8 * words + 4 * elements)

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        result = function(pieces)
        if result.total.count:
            yield from result.slices(slices)

    batches = scan(
        steps,
        files,
        _with(layout, layout.keyed_schema if adding.keyed else layout.lane_schema, adding.beside),
        Divisible(run, partial(_merged, slices=slices) if slices > 1 else None),
        _SLICES,
        work=work_of_digests(files),
        tasks_max=tasks,
    ).to_batches()
    sums = _summed(batches.pop() for _ in range(len(batches)))  # each is freed after it was added
    if not sums:
        return PartialSums(Digest(), np.zeros(words, np.uint64), np.zeros(elements, np.uint64))
    parts = [sums[number] for number in range(slices)]
    return PartialSums(
        sum((part.total for part in parts), Digest()),
        np.concatenate([part.words for part in parts]),
        np.concatenate([part.elements for part in parts]),
    )


def _division(steps: Steps, files: Files, size: int) -> tuple[int, int]:
    """Return the tasks that each send sums of `size` bytes, and the slices that Spark adds up; one:
    the driver adds up whole sums."""
    few, read = tasks_for(size), work_of_digests(files)
    wanted = sum(f.rows for f in files) * DIGEST_BYTES // (READ_FACTOR * size)
    tasks = max(few, min(TASKS_MAX, wanted))
    if tasks * size > SPARE_BYTES and files and not steps.runs_here(read):
        with driver_errors():
            at_once = processors(steps.spark(read)) or tasks
        tasks = min(tasks, max(at_once, SPARE_BYTES // size))
    return tasks, 1 if tasks <= few else -(-tasks * size // MERGE_BYTES)


def tasks_for(size: int) -> int:
    """Return the number of tasks of which each may send `size` bytes to the driver."""
    return max(min(TASKS_MAX, DRIVER_BYTES_MAX // size), 1)


def check_rows(files: Files, count: int) -> None:
    """Raise WarehouseUnavailable if the rows found are not as many as the files should hold."""
    rows = sum(f.rows for f in files)
    if count != rows:
        raise unreadable(
            f"Data files hold {counted(count, 'row')} and held {rows:,} when they were written.",
            f"of {len(files)}",
        )


def total(steps: Steps, files: Files, layout: Layout, salt: Salt) -> Digest:
    """Return the digest of the rows of files, from their stored fingerprints."""
    return reduced(steps, files, layout, everything(), salt).total


def in_ranges(
    partition: Partition, by: int, chosen: npt.NDArray[np.bool_], within: tuple[int, int] | None
) -> Place:
    """Return a function that finds the coarse range of a position; −1 if it is not chosen.

    Args:
        by: bits by which a range is coarsened.
        chosen: bool [coarse ranges].
        within: first and last position, both inclusive; no position outside is chosen.
    """

    def place(where: Integers) -> Integers:
        at = partition.indices(where) >> by
        is_chosen = chosen[at]
        if within is not None:
            is_chosen &= (within[0] <= where) & (where <= within[1])
        return np.where(is_chosen, at, np.int64(-1))

    return place


@dataclass(frozen=True, slots=True)
class RowChoice:
    """The rows that are listed: those for whose position `place` is not negative.

    Attributes:
        inside: decides by their keys which of them; None: all.
        near: decides which files are read; None: all.
    """

    place: Place
    inside: Inside | None = None
    near: Callable[[DataFile], bool] | None = None


@dataclass(frozen=True, slots=True)
class OtherHashes:
    """Hashes in place of those of rows, made by `mixed`, which needs `beside` as in `Adding`."""

    mixed: Mixing
    beside: Sequence[str]


def list_rows(
    steps: Steps,
    files: Files,
    layout: Layout,
    choice: RowChoice,
    salt: Salt,
    hashes: OtherHashes | None = None,
) -> Listing:
    """List chosen rows with their hashes, or with other ones; one step."""
    numbered = {f.path: i for i, f in enumerate(files)}
    some = files if choice.near is None else [f for f in files if choice.near(f)]
    mixed, beside = (None, ()) if hashes is None else (hashes.mixed, hashes.beside)
    function = _list(choice, salt, numbered, mixed)
    lanes = layout.lane_schema if choice.inside is None else layout.keyed_schema
    lanes = _with(layout, lanes, beside)
    table = scan(steps, some, lanes, Divisible(function), _LISTED, work=work_of_digests(some))
    return Listing(
        table["range"].to_numpy(),
        table["position"].to_numpy(),
        table["hash"].to_numpy().view(np.uint64),
        table["file"].to_numpy(),
    )


def _with(layout: Layout, lanes: pa.Schema, beside: Sequence[str]) -> pa.Schema:
    """Return a schema and data columns behind it; each column once."""
    more = [layout.file_schema.field(name) for name in beside if name not in lanes.names]
    return pa.schema([*lanes, *more])


def below(where: Integers, embedding: KeyMap, salt: Salt, ks: npt.NDArray[np.uint64]) -> Integers:
    """Return k of positions, int64 [n]; −1 for a k that is not in `ks`, uint64 [m] ascending."""
    k, inside = embedding.embed(where, salt)
    at = np.minimum(np.searchsorted(ks, k), max(len(ks) - 1, 0))
    is_named = inside & (ks[at] == k) if len(ks) else np.zeros(len(where), np.bool_)
    return np.where(is_named, k.astype(np.int64), np.int64(-1))


def _merged(rows: DataFrame, *, slices: int) -> DataFrame:
    """Return the sum of the slices of each number, added up in a second stage."""
    return rows.repartition(slices, "slice").mapInArrow(task(_merge), rows.schema)


def _merge(batches: Batches) -> Iterator[pa.RecordBatch]:
    for number, sums in _summed(batches).items():
        yield sums.slice(number)


def _summed(batches: Iterable[pa.RecordBatch]) -> dict[int, PartialSums]:
    """Return the sum of the slices of each number."""
    sums: dict[int, PartialSums] = {}
    for batch in batches:
        for number, count, total, words, elements in zip(*batch.columns, strict=True):
            some = PartialSums(
                Digest(count.as_py(), int.from_bytes(total.as_py(), "little")),
                np.frombuffer(words.as_buffer(), np.uint64),
                np.frombuffer(elements.as_buffer(), np.uint32).astype(np.uint64),
            )
            if (earlier := sums.get(number.as_py())) is not None:
                earlier.add(some)
            else:
                some.words = some.words.copy()
                sums[number.as_py()] = some
    return sums


def _sums(partition: Partition, salt: Salt, sketch: Sketch | None) -> Adder:
    def run(pieces: Iterator[FilePiece]) -> PartialSums:
        sums = RangeSums(partition.ranges)
        cells = Cells(sketch.third if sketch else 0)
        for piece in pieces:
            where, hi, lo = (numbers(piece.batch, i) for i in range(3))
            mixed = mix(salt, hi.view(np.uint64), lo.view(np.uint64))
            sums.add(partition.indices(where), mixed)
            if sketch is not None:
                ks, inside = sketch.embedding.embed(where, salt)
                if not inside.all():
                    what = "A row lies outside the bounds that the log has of its data file."
                    raise unreadable(what, piece.file)
                cells.add(ks, mixed.m0, salt)
        return PartialSums(sums.total, sums.words(), cells.sums())

    return run


def _list(
    choice: RowChoice, salt: Salt, numbered: dict[str, int], mixed: Mixing | None
) -> Function:
    place, inside = choice.place, choice.inside

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            where, hi, lo = (numbers(piece.batch, i) for i in range(3))
            at = place(where)
            is_chosen = at >= 0
            if inside is not None:
                is_chosen &= inside(piece.batch)
            keep = np.flatnonzero(is_chosen)
            if not len(keep):
                continue
            if mixed is None:
                hashes = mix(salt, hi[keep].view(np.uint64), lo[keep].view(np.uint64)).m0
            else:
                hashes = mixed(piece.batch.take(pa.array(keep)), where[keep]).m0
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(at[keep]),
                    pa.array(where[keep]),
                    pa.array(hashes.view(np.int64)),
                    pa.array(np.full(len(keep), numbered[piece.file], np.int32)),
                ],
                schema=_LISTED,
            )

    return run


def with_keys(recipe: Recipe, function: Function) -> Function:
    """Return a function of pieces that gives them to another one with their key bytes as KEY, where
    files have an integer instead, in the first column that is read."""
    if not recipe.integer_key:
        return function
    width = recipe.key[0].type.width
    assert width is not None, "integers have a width"

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        return function(
            FilePiece(p.file, p.batch.append_column(KEY, integer_keys(numbers(p.batch, 0), width)))
            for p in pieces
        )

    return run


def integer_keys(values: Integers, width: int) -> pa.BinaryArray:
    """Return the key bytes of integers, int64 [n], of so many bytes (protocol, section 4)."""
    rows = np.empty((len(values), 4 + width), np.uint8)
    rows[:, :4] = np.frombuffer(width.to_bytes(4, "big"), np.uint8)
    rows[:, 4:] = values.astype(f">i{width}").view(np.uint8).reshape(len(values), width)
    starts = np.arange(len(values) + 1, dtype=np.int32) * np.int32(4 + width)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(rows)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers)


def keys_of(batch: pa.RecordBatch) -> KeyBuffer:
    """Return the keys of a batch of files."""
    column = batch.column(KEY)
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column)]
    values = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return KeyBuffer(values, starts.astype(np.int64))


def numbers(batch: pa.RecordBatch, column: int | str) -> Integers:
    """Return a column of a batch, by index or name, without nulls, as int64 [rows]."""
    return np.ascontiguousarray(batch.column(column).to_numpy(zero_copy_only=False), np.int64)
