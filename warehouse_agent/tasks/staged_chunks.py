"""Take up a load or copy that was cut: its staged rows become data files, cut into chunks.

The source is told the digests of the chunks, sends the rows of all others, and says which of the
listed ones it met (protocol, section 7). A chunk that it did not meet has a row that changed since,
or the first or last rows of what was staged; its rows are removed from the data files. So a row is
written once, and no staged row is joined with another. The rows of a copy carry the statistics of
published rows on, which are looked up in lots as those of a copy that is not cut.

A frame that is damaged is left out, as are the rows around it up to the next end of a chunk: they
are not listed, and come again. So are the first rows of a file of frames that does not follow the
one before it in the same task, and a chunk that is longer than almost all: no task is to hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Bools, Integers
from driftline.errors import FrameDamaged
from driftline.limits import CHUNKS_MAX
from driftline.reconciliation.chunks import ChunkSums, longest
from driftline.rows.digests import Salt, mix

from warehouse_agent.columns.layout import Layout
from warehouse_agent.planning.chunk_size import chunk_shift
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.staged_files import number_of
from warehouse_agent.tasks.difference import PlacedRows
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.scan import FILE_BYTES, spread
from warehouse_agent.tasks.staged_rows import DecodedRows, Gap, StagedFrames, StagedRowReader
from warehouse_agent.tasks.staging import frames_of
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import WRITTEN, Sink, written

_TAKEN = pa.schema([*WRITTEN, ("digests", pa.binary()), ("counts", pa.binary())])


@dataclass(frozen=True, slots=True)
class StagedChunks:
    """Data files of rows that a load or copy staged, and their chunks.

    Attributes:
        files: in the order of `digests`.
        shift: chunks have 2^shift row bytes in the mean.
        digests: of each chunk, uint64 [chunks], file by file in the order of their rows.
        rows: of each chunk, int64 [chunks].
        file: the number of the file of each chunk, int64 [chunks].
    """

    files: tuple[DataFile, ...]
    shift: int
    digests: U64
    rows: Integers
    file: Integers

    @property
    def listed(self) -> U64:
        """Return the digests, uint64 [n], each once and ascending; no more than a source takes."""
        return np.unique(self.digests)[:CHUNKS_MAX]

    def unmet(self, met: Bools) -> PlacedRows:
        """Return the rows of chunks that the source did not meet, and of those that are here twice.

        Args:
            met: which chunks of `listed` it met, bool [n].
        """
        _, first, listed = np.unique(self.digests, return_index=True, return_inverse=True)
        is_kept = np.zeros(len(self.digests), np.bool_)
        is_kept[first] = True
        is_kept &= (listed < len(met)) & met[np.minimum(listed, len(met) - 1)]
        places = {}
        for number, file in enumerate(self.files):
            inside = self.file == number
            places[file.path] = np.repeat(~is_kept[inside], self.rows[inside])
        return PlacedRows.of(places)


def take_up(
    steps: Steps,
    folder: DataFolder,
    staged: StagedFrames,
    layout: Layout,
    key: KeyFile,
    stamp: StatisticsStamp,
    salt: Salt,
) -> StagedChunks:
    """Write the rows of staged files as data files in a new folder; one step.

    Args:
        salt: of the exchange that will list their chunks.

    Raises:
        LimitExceeded, MalformedMessage, ValueDoesNotFit: rows that no file can hold; a frame that
            is damaged is left out instead.
        WarehouseUnavailable: a file cannot be read or written.
    """
    size = staged.row_bytes()
    shift = chunk_shift(size, staged.frame_bytes, staged.changed)
    folder.make()
    before = staged.before
    work = StepWork(StepKind.WRITE, size + steps.size_of_rows(before.files))
    lot_bytes = before.lot_bytes(steps, work)

    def run(uris: Iterator[str]) -> Iterator[pa.RecordBatch]:
        staged_rows = StagedRowReader(layout, key, stamp, before, lot_bytes)
        with ChunkedRows(folder.uri(), layout, salt, shift) as chunks:
            chunks.add(staged_rows.read_sound(_in_order(uris)))
            found = chunks.finish()
        yield from found

    at_once = lot_bytes is not None
    rows = spread(steps, staged.uris, run, _TAKEN, work=work, at_once=at_once).sort_by("path")
    files = written(rows.select(WRITTEN.names), folder)
    digests = [np.frombuffer(data, "<u8") for data in rows["digests"].to_pylist()]
    counts = [np.frombuffer(data, "<i8") for data in rows["counts"].to_pylist()]
    return StagedChunks(
        tuple(files),
        shift,
        np.concatenate([np.zeros(0, np.uint64), *digests]),
        np.concatenate([np.zeros(0, np.int64), *counts]),
        np.repeat(np.arange(len(files)), [len(one) for one in digests]),
    )


def _in_order(uris: Iterator[str]) -> Iterator[bytes | Gap]:
    """Yield the frames of staged files in their order, and gaps where they do not follow each
    other."""
    last = "", 0  # folder and number of a file
    for uri in sorted(uris):  # Spark gives a task the largest first
        folder, name = uri.rsplit("/", 1)
        number = number_of(name)
        if last != (folder, number - 1):
            yield Gap.FIRST if number == 1 else Gap.UNKNOWN
        last = folder, number
        try:
            yield from frames_of(uri)
        except FrameDamaged:
            yield Gap.UNKNOWN


@dataclass(slots=True)
class ChunkedRows:
    """Writes the rows of whole chunks into files; holds those of the chunk that has not ended.

    A context manager, which removes what is not finished. A chunk lies in one file.
    """

    folder: str
    layout: Layout
    salt: Salt
    shift: int
    _sums: ChunkSums = field(init=False)
    _out: Sink = field(init=False)
    _out_bytes: int = 0
    _digests: list[U64] = field(default_factory=list)  # of the open file's chunks
    _counts: list[Integers] = field(default_factory=list)
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _held_bytes: int = 0  # of their rows as they came
    _is_known: bool = False  # where the open chunk begins
    _done: list[pa.RecordBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sums, self._out = ChunkSums(self.shift), self._sink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._out.abandon()

    @property
    def held(self) -> int:
        """Return the number of rows that are held."""
        return sum(map(len, self._held))

    def add(self, staged: Iterable[DecodedRows | Gap]) -> None:
        """Write rows, their batches in `layout.file_schema`, up to the last end of a chunk."""
        for rows in staged:
            if isinstance(rows, Gap):
                self._begin(is_known=rows is Gap.FIRST)
            else:
                self._add(rows)

    def finish(self) -> list[pa.RecordBatch]:
        """Close the files, and return each with its chunks."""
        self._finish()
        return self._done

    def _begin(self, *, is_known: bool) -> None:
        self._held.clear()
        self._held_bytes = 0
        self._is_known = is_known
        self._sums.begin()

    def _add(self, rows: DecodedRows) -> None:
        ends, digests = self._sums.add(rows.sizes, mix(self.salt, rows.hi, rows.lo))
        held, batch = self.held, rows.batch
        first = 0
        if len(ends) and not self._is_known:  # the rows of the first one are not all here
            first, ends, digests = int(ends[0]), ends[1:], digests[1:]
            held, self._is_known = 0, True
            self._held.clear()
        if not len(ends):
            if self._is_known:
                self._held.append(batch.slice(first))
                self._held_bytes += int(rows.sizes[first:].sum())
                if self._held_bytes > longest(self.shift):
                    self._held.clear()
                    self._is_known, self._held_bytes = False, 0
            return
        end = int(ends[-1])
        for part in (*self._held, batch.slice(first, end - first)):
            self._out_bytes += self._out.add(part)
        self._held = [batch.slice(end)] if end < len(batch) else []
        self._held_bytes = int(rows.sizes[end:].sum())
        counts = np.diff(ends, prepend=first)
        counts[0] += held
        self._digests.append(digests)
        self._counts.append(counts)
        if self._out_bytes >= FILE_BYTES:
            self._finish()

    def _finish(self) -> None:
        for file in self._out.finish():
            digests = np.concatenate(self._digests).astype("<u8").tobytes()
            counts = np.concatenate(self._counts).astype("<i8").tobytes()
            arrays = [*file.columns, pa.array([digests]), pa.array([counts])]
            self._done.append(pa.RecordBatch.from_arrays(arrays, schema=_TAKEN))
        self._digests, self._counts, self._out_bytes = [], [], 0
        self._out = self._sink()

    def _sink(self) -> Sink:
        return Sink(self.folder, "taken", self.layout.file_schema, self.layout.integer_key)
