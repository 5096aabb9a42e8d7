"""Take up a load that was cut: its staged rows become data files, cut into chunks.

The source is told the digests of the chunks, sends the rows of all others, and says which of the
listed ones it met (protocol, section 7). A chunk that it did not meet has a row that changed since,
or the first or last rows of what was staged; its rows are removed from the data files. So a row is
decoded and written once, and no staged row is joined with another.

A frame that is damaged is left out, as are the rows around it up to the next end of a chunk: they
are not listed, and come again. So are the first rows of a file of frames that does not follow the
one before it in the same task, and a chunk that is longer than almost all: no task is to hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field

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
from warehouse_agent.tasks.scan import OfFiles, spread
from warehouse_agent.tasks.staging import DecodedRows, FrameDecoder, StagedFrames, begun, frames_of
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import WRITTEN, Sink, written

_TAKEN = pa.schema([*WRITTEN, ("digests", pa.binary()), ("counts", pa.binary())])


@dataclass(frozen=True, slots=True)
class StagedChunks:
    """Data files of rows that a load staged, and their chunks.

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
            ends = np.cumsum(self.rows[inside])
            gone = ~is_kept[inside]
            if gone.any():
                places[file.path] = (ends - self.rows[inside])[gone], ends[gone]
        return PlacedRows(places)


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
    shift = chunk_shift(size, staged.frame_bytes)
    folder.make()
    function = _write_chunks(folder.uri(), layout, key, stamp, salt, shift)
    work = StepWork(StepKind.WRITE, size)
    rows = spread(steps, staged.uris, function, _TAKEN, work=work).sort_by("path")
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


def _write_chunks(
    folder: str, layout: Layout, key: KeyFile, stamp: StatisticsStamp, salt: Salt, shift: int
) -> OfFiles:
    """Return the function that writes staged rows, and returns the file with its chunks."""

    def run(staged: Iterator[str]) -> Iterator[pa.RecordBatch]:
        with Sink(folder, "taken", layout.file_schema, layout.integer_key) as out:
            chunks = _ChunkedRows(out, ChunkSums(shift), salt, layout, key, stamp)
            for uri in sorted(staged):  # Spark gives a task the largest first
                chunks.add_file(uri)
            files = list(out.finish())
        for file in files:
            digests = np.concatenate(chunks.digests).astype("<u8").tobytes()
            counts = np.concatenate(chunks.counts).astype("<i8").tobytes()
            arrays = [*file.columns, pa.array([digests]), pa.array([counts])]
            yield pa.RecordBatch.from_arrays(arrays, schema=_TAKEN)

    return run


@dataclass(slots=True)
class _ChunkedRows:
    """Writes the rows of whole chunks; holds those of the one that has not ended."""

    out: Sink
    sums: ChunkSums
    salt: Salt
    layout: Layout
    key: InitVar[KeyFile]
    stamp: StatisticsStamp
    digests: list[U64] = field(default_factory=list)
    counts: list[Integers] = field(default_factory=list)
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _held_bytes: int = 0  # of their rows as they came
    _is_known: bool = False  # where the open chunk begins
    _last: tuple[str, int] = ("", 0)  # folder and number of the file that was added last
    _decoder: FrameDecoder = field(init=False)

    def __post_init__(self, key: KeyFile) -> None:
        self._decoder = FrameDecoder(self.layout, key)

    def add_file(self, uri: str) -> None:
        """Add the rows of a staged file that follow those of the file before, or begin anew."""
        folder, name = uri.rsplit("/", 1)
        number = number_of(name)
        if self._last != (folder, number - 1):
            self._begin(is_known=number == 1)
        self._last = folder, number
        frames = frames_of(uri)
        while True:
            try:
                if (data := next(frames, None)) is None:
                    return
                for rows in self._decoder.decode(data):
                    self._add(rows)
            except FrameDamaged:
                self._begin(is_known=False)

    def _begin(self, *, is_known: bool) -> None:
        self._held.clear()
        self._held_bytes = 0
        self._is_known = is_known
        self.sums.begin()

    def _add(self, rows: DecodedRows) -> None:
        ends, digests = self.sums.add(rows.sizes, mix(self.salt, rows.hi, rows.lo))
        held = sum(len(batch) for batch in self._held)
        batch = begun(rows.batch, self.layout, self.stamp)
        first = 0
        if len(ends) and not self._is_known:  # the rows of the first one are not all here
            first, ends, digests = int(ends[0]), ends[1:], digests[1:]
            held, self._is_known = 0, True
            self._held.clear()
        if not len(ends):
            if self._is_known:
                self._held.append(batch.slice(first))
                self._held_bytes += int(rows.sizes[first:].sum())
                if self._held_bytes > longest(self.sums.shift):
                    self._held.clear()
                    self._is_known, self._held_bytes = False, 0
            return
        for part in self._held:
            self.out.add(part)
        end = int(ends[-1])
        self.out.add(batch.slice(first, end - first))
        self._held = [batch.slice(end)] if end < len(batch) else []
        self._held_bytes = int(rows.sizes[end:].sum())
        counts = np.diff(ends, prepend=first)
        counts[0] += held
        self.digests.append(digests)
        self.counts.append(counts)
