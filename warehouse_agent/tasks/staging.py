"""Staged frames: written as received, decoded later.

An exchange has a folder of numbered files, each a sequence of length-prefixed frames, and a note
that says what was compared, and where (`ExchangeIdentity`). Frames received before an interruption
stay there. The next attempt decodes them and compares the working copy with the source again
(decision 4), so no staged row is sent twice. A frame is admitted before it is kept
(`frame_admission`) and is verified alone, when it is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import U64, Integers
from driftline.errors import FrameDamaged, Locked
from driftline.rows import frames, keys
from driftline.rows.columns import RaggedColumn
from driftline.values.types import Recipe

from warehouse_agent.columns.arrow import text_sizes
from warehouse_agent.columns.layout import HI, LO, STATISTICS, Layout
from warehouse_agent.columns.row_bytes import join
from warehouse_agent.config import Fragment
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage import staged_files
from warehouse_agent.storage.data_files import DataFile, DataFolder, rows_of
from warehouse_agent.storage.staged_files import EXPECTED, NOTE
from warehouse_agent.storage.store import PRIVATE, Store, read_at
from warehouse_agent.tasks import key_lookup, row_statistics
from warehouse_agent.tasks.change_feed import LOTS_MAX
from warehouse_agent.tasks.key_lookup import KeyedRows, fits
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.scan import OfFiles, spread, spread_frame
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.tasks.write import WRITTEN, Sink, write_rows, written
from warehouse_agent.transport.frame_admission import StagingRoom

FILE_BYTES = 4 << 20  # a process that ends loses less than this
FREE_SHARE = 2  # half of the free bytes may be staged: data files need as many
ROOM_BYTES_MIN = 64 << 20  # on a small disk its reserve is the limit
# Rows before that are looked up for each frame: the index of their keys is made anew for each, and
# of more rows that takes longer than to decode the frames twice (5.5 µs a row against 3.1).
AT_ONCE_ROWS = 100_000
TEXT_BYTES_MAX = 64 << 20  # of numerics in a batch, as a row group has; and of one row
_LENGTH_BYTES = 4
_BEFORE = (HI, LO, *(name for name, _ in STATISTICS))

Take = Callable[[str], None]
Earlier = Callable[[pa.RecordBatch], list[pa.ChunkedArray]]


@dataclass(frozen=True, slots=True)
class ExchangeIdentity:
    """An exchange by what it compares, a version in the columns of a recipe, and where."""

    base_version: int | None
    recipe: str
    source: str
    address: str
    relation: str

    @classmethod
    def of(cls, fragment: Fragment, base_version: int | None, recipe: Recipe) -> Self:
        """Return the exchange of a fragment."""
        source = fragment.source
        return cls(base_version, recipe.id.hex(), source.name, source.address, fragment.relation)

    @property
    def compared(self) -> tuple[object, object]:
        """Return what is compared, wherever."""
        return self.base_version, self.recipe

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Return the exchange that `to_json` wrote; what is damaged is as no exchange is."""
        version = body.get("base_version")
        texts = [body.get(one.name) for one in fields(cls)[1:]]
        valid = (text if isinstance(text, str) else "" for text in texts)
        return cls(version if type(version) is int else None, *valid)

    def to_json(self) -> dict[str, object]:
        """Return the exchange as JSON."""
        return asdict(self)


@dataclass
class Staging:
    """The staging folder of one fragment."""

    store: Store
    name: str

    def leftovers(self, wanted: ExchangeIdentity, *, anywhere: bool = False) -> list[str]:
        """Return the folders of exchanges like this one, the oldest first; remove all others.

        Args:
            anywhere: they may have compared the same with another relation.
        """
        folders = []
        for folder in self.store.folders(PRIVATE, "staging", self.name):
            body = self.store.read_json(PRIVATE, "staging", self.name, folder, NOTE)
            noted = ExchangeIdentity.from_json(body)
            is_like = noted == wanted or (anywhere and noted.compared == wanted.compared)
            if is_like and self._files(folder):
                folders.append(folder)
            else:
                self.store.remove(PRIVATE, "staging", self.name, folder)
        return folders

    def begin(
        self, exchange: ExchangeIdentity, take: Take | None = None, *, rows_expected: int = 0
    ) -> FrameWriter:
        """Return the writer of an exchange; its folder and note are written with its first file.

        Args:
            take: gets the URI of each file that is full, when it is written.
            rows_expected: of the source, by its estimate; 0: it had none.
        """
        walked = self.store.walk(PRIVATE, "staging", self.name)
        before = [one.place[-2:] for one in walked if one.place[-2].isdecimal()]
        number = max((int(folder) for folder, _ in before), default=0) + 1
        note = json.dumps(exchange.to_json() | {EXPECTED: rows_expected}).encode()
        rows = staged_files.rows_of(file for _, file in before) or 0
        return FrameWriter(self.store, self.name, f"{number:06d}", note, take, rows_before=rows)

    def clear(self) -> None:
        """Remove all staged frames, after they were published or became useless."""
        self.store.remove(PRIVATE, "staging", self.name)

    def frame_bytes(self) -> int:
        """Return the bytes of all staged frames, those of a pass included."""
        staged = self.store.walk(PRIVATE, "staging", self.name)
        return sum(entry.size for entry in staged_files.frames_in(staged))

    def room(self, at_most: int | None) -> StagingRoom | None:
        """Return how much may be staged: `at_most` bytes, or a share of what is free now.

        None if there is no limit.
        """
        staged = self.frame_bytes()
        if at_most is not None:
            return StagingRoom(at_most, staged, is_set=True)
        if (disk := self.store.disk(PRIVATE, "staging", self.name)) is None:
            return None
        return StagingRoom(max((disk[1] + staged) // FREE_SHARE, ROOM_BYTES_MIN), staged)

    def uris(self, folder: str, written: int = 0) -> list[str]:
        """Return the files of an exchange, for Spark.

        Args:
            written: how many there must be at least.

        Raises:
            Locked: some are gone. Without locks another agent may take them up meanwhile.
        """
        place = (PRIVATE, "staging", self.name, folder)
        uris = [self.store.uri(*place, file) for file in self._files(folder)]
        if len(uris) < written:
            raise Locked(
                "Rows that came are gone: another agent took them up, or somebody removed them.",
                where=self.name,
                remedy="Run the refresh again.",
            )
        return uris

    def _files(self, folder: str) -> list[str]:
        files = self.store.files(PRIVATE, "staging", self.name, folder)
        return [name for name, _ in files if name.endswith(staged_files.ENDING)]


@dataclass
class FrameWriter:
    """Writer of one exchange's frames; holds at most FILE_BYTES and a frame.

    `note` is written before the first file, so an exchange without rows costs no write; empty: the
    folder has none. `take` gets the URI of each file that is full. `rows_before`: that exchanges
    before this one staged, as far as it is known.
    """

    store: Store
    name: str
    folder: str
    note: bytes = b""
    take: Take | None = None
    rows_before: int = 0
    rows: int = 0  # in the files that were written
    _pieces: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _rows: int = 0
    _number: int = 0
    _file: str = ""  # the name of the file that was written last

    @property
    def files(self) -> int:
        """Return the number of files that were written."""
        return self._number

    def uris(self) -> list[str]:
        """Return the files that were written, for Spark. Raises Locked: some are gone."""
        return Staging(self.store, self.name).uris(self.folder, self._number)

    def add(self, frame: bytes) -> None:
        """Append a frame; write a file when there is enough for one. Raises FrameDamaged."""
        self._rows += frames.head(frame).digest.count
        self._pieces += [len(frame).to_bytes(_LENGTH_BYTES, "little"), frame]
        self._bytes += len(frame)
        if self._bytes >= FILE_BYTES:
            self.flush()
            if self.take is not None:
                self.take(self.store.uri(*self._place, self._file))

    def flush(self) -> None:
        """Write the held frames; call it after the last frame, and when the line is cut."""
        if not self._pieces:
            return
        self.store.refuse_full(self._bytes, *self._place)
        if self.note and not self._number:
            self.store.write(self.note, *self._place, NOTE)
            WarehouseFailpoint.STAGING_BEGUN.reach()
        self._number += 1
        self._file = staged_files.file_name(self._number, self._rows)
        self.store.write(b"".join(self._pieces), *self._place, self._file)
        WarehouseFailpoint.FRAMES_STAGED.reach()
        self.rows += self._rows
        self._pieces, self._bytes, self._rows = [], 0, 0

    def drop(self) -> None:
        """Remove everything that this attempt staged."""
        self._pieces, self._bytes, self._rows, self.rows = [], 0, 0, 0
        self.store.remove(*self._place)

    @property
    def _place(self) -> tuple[str, ...]:
        return PRIVATE, "staging", self.name, self.folder


@dataclass(frozen=True, slots=True)
class RowsBefore:
    """The rows that staged ones replace.

    Attributes:
        files: of these rows, and perhaps of others; a task holds them all, or looks them up in
            lots, or Spark joins them if they do not fit.
        updated: number of updated rows, for `row_statistics.weight`.
    """

    files: Sequence[DataFile] = ()
    updated: int | None = 0

    @property
    def uris(self) -> list[str]:
        """Return the URIs of the files."""
        return [f.uri for f in self.files]


NO_ROWS = RowsBefore()


def write_staged(
    steps: Steps,
    folder: DataFolder,
    staged: Sequence[str],
    layout: Layout,
    key: KeyFile,
    stamp: StatisticsStamp,
    before: RowsBefore = NO_ROWS,
) -> list[DataFile]:
    """Write the rows of staged files, by URI, as data files in a new folder; one step.

    Raises:
        FrameDamaged: a frame does not verify.
        ValueDoesNotFit: a value does not fit its column.
        WarehouseUnavailable: a file cannot be read or written.
    """
    size = size_of_rows(staged, steps.most) + steps.size_of_rows(before.files)
    if not fits(steps, before.files, LOTS_MAX):
        spark = steps.spark_to_join(size)
        decode = partial(batches, layout=layout, key=key)
        shipped = spread_frame(spark, staged, decode, layout.decoded_schema)
        known = rows_of(spark, layout, before.uris)
        joined = row_statistics.joined(shipped, known, layout, stamp, updated=before.updated)
        return write_rows(folder, joined, layout)
    weight = row_statistics.weight(stamp, before.updated)
    is_few = sum(f.rows for f in before.files) <= min(AT_ONCE_ROWS, key_lookup.ROWS_MAX)
    lot_rows = None if is_few else key_lookup.ROWS_MAX
    function = _write_decoded(folder.uri(), layout, key, stamp, before.uris, weight, lot_rows)
    folder.make()
    rows = spread(steps, staged, function, WRITTEN, work=StepWork(StepKind.WRITE, size))
    return written(rows, folder)


def _write_decoded(
    folder: str,
    layout: Layout,
    key: KeyFile,
    stamp: StatisticsStamp,
    before: list[str],
    weight: float,
    lot_rows: int | None,
) -> OfFiles:
    """Return the function that writes staged rows with their statistics.

    lot_rows: of the rows before that a task holds at a time; None: all.
    """
    schema = layout.file_schema

    def run(staged: Iterator[str]) -> Iterator[pa.RecordBatch]:
        uris = list(staged)
        if before:
            earlier = _earlier(layout, before, uris, lot_rows)
            rows = _replacing(batches(uris, layout, key), earlier, layout, stamp, weight)
        else:
            rows = loaded(uris, layout, key, stamp)
        with Sink(folder, "shipped", schema, layout.integer_key) as out:
            for batch in rows:
                out.add(batch)
            files = list(out.finish())
        yield from files

    return run


def loaded(
    staged: Iterable[str], layout: Layout, key: KeyFile, stamp: StatisticsStamp
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of staged files before which there are none, in `layout.file_schema`. Raises
    as `batches`."""
    for rows in batches(staged, layout, key):
        yield begun(rows, layout, stamp)


def begun(rows: pa.RecordBatch, layout: Layout, stamp: StatisticsStamp) -> pa.RecordBatch:
    """Return decoded rows before which there are none, in `layout.file_schema`."""
    return _complete(rows, row_statistics.begun(len(rows), stamp), layout)


def _replacing(
    staged: Iterator[pa.RecordBatch],
    earlier: Earlier,
    layout: Layout,
    stamp: StatisticsStamp,
    weight: float,
) -> Iterator[pa.RecordBatch]:
    """Yield staged rows that replace others, whose statistics they carry on."""
    for rows in staged:
        statistics = row_statistics.carried(rows[HI], rows[LO], earlier(rows), stamp, weight)
        yield _complete(rows, statistics, layout)


def _complete(
    rows: pa.RecordBatch, statistics: Sequence[pa.Array], layout: Layout
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*rows.columns, *statistics], schema=layout.file_schema)


def _earlier(layout: Layout, before: list[str], staged: list[str], lot_rows: int | None) -> Earlier:
    """Return what gives `_BEFORE` of the rows that the next staged ones replace, batch by batch;
    null where there is none.

    In lots they are looked up for all keys of the task first: it holds one lot, and its own rows'
    keys and statistics. Their frames are decoded twice; a join by Spark moves all columns.
    """
    (key,) = layout.key_names
    columns = pa.schema([layout.file_schema.field(name) for name in (key, *_BEFORE)])
    if lot_rows is None:
        known = KeyedRows.read(before, columns, key)
        return lambda rows: known.at(known.find(rows[key]), _BEFORE)
    pieces = [layout.keys(keys.received(f.columns, layout.recipe)) for f in _decoded(staged)]
    wanted = pa.chunked_array(pieces, columns.field(key).type)
    found = [pa.nulls(len(wanted), columns.field(name).type) for name in _BEFORE]
    is_found = np.zeros(len(wanted), np.bool_)
    for lot in KeyedRows.lots(before, columns, key, lot_rows):
        where = np.where(is_found, -1, lot.find(wanted))
        is_found |= where >= 0
        there = lot.at(where, _BEFORE)
        found = [pc.coalesce(*one) for one in zip(found, there, strict=True)]
        del lot, there  # before the next is read
    every, at = pa.table(found, names=list(_BEFORE)), 0

    def of_next(rows: pa.RecordBatch) -> list[pa.ChunkedArray]:
        nonlocal at
        at += len(rows)
        return list(every.slice(at - len(rows), len(rows)).columns)

    return of_next


def size_of_rows(uris: Sequence[str], most: int) -> int:
    """Return the bytes of the rows of staged files, decompressed; stop above `most`.

    Raises:
        FrameDamaged: a staged file does not consist of frames.
    """
    size = 0
    for uri in uris:
        size += sum(frames.head(data).body_bytes for data in frames_of(uri))
        if size > most:
            break
    return size


@dataclass(frozen=True, slots=True)
class StagedFrames:
    """Staged files, at least one, by URI, and the bytes of all frames in them."""

    uris: Sequence[str]
    frame_bytes: int

    def row_bytes(self) -> int:
        """Return the bytes of all rows, if they are packed as well as those of the first file.

        Raises WarehouseUnavailable: it cannot be read.
        """
        packed = body_bytes = 0
        with suppress(FrameDamaged):
            for data in frames_of(self.uris[0]):
                body_bytes += frames.head(data).body_bytes
                packed += len(data)
        return self.frame_bytes * body_bytes // max(packed, 1)


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of a frame, or of a part of it, in `layout.decoded_schema`; the bytes of each, int64
    [rows], and the lanes of their fingerprints, uint64 [rows]."""

    batch: pa.RecordBatch
    sizes: Integers
    hi: U64
    lo: U64


class FrameDecoder:
    """Decodes frames that were staged, and verifies them."""

    def __init__(self, layout: Layout, key: KeyFile) -> None:
        """Decode into the columns of `layout`. Raises WarehouseUnavailable: the key is gone."""
        self._layout = layout
        self._fingerprints = key.fingerprints(layout.recipe)
        self._seed = key.position_seed()

    def decode(self, data: bytes) -> Iterator[DecodedRows]:
        """Yield the rows of a frame, in parts if its numerics become long texts.

        Raises:
            FrameDamaged: it does not verify; before any part.
            ValueDoesNotFit: a value does not fit its column.
        """
        frame, recipe = frames.decode(data), self._layout.recipe
        keys.received(frame.columns, recipe)
        block, hi, lo = frames.verify(frame, self._fingerprints, join)
        sizes = np.diff(block.starts)
        for first, end in _parts(frame.columns, recipe):
            some, columns, rows = slice(first, end), frame.columns, block
            if end - first < len(block):
                columns, rows = [c.cut(first, end) for c in columns], block.cut(first, end)
            batch = self._layout.batch(columns, rows, hi[some], lo[some], seed=self._seed)
            yield DecodedRows(batch, sizes[some], hi[some], lo[some])


def batches(uris: Iterable[str], layout: Layout, key: KeyFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of staged files, verified, a frame at a time, in `layout.decoded_schema`.

    A frame whose numerics become long texts is yielded in parts.

    Raises:
        FrameDamaged: a frame does not verify.
        ValueDoesNotFit: a value does not fit its column.
    """
    decoder = FrameDecoder(layout, key)
    for uri in uris:
        for data in frames_of(uri):
            yield from (part.batch for part in decoder.decode(data))


def _parts(columns: Sequence[RaggedColumn], recipe: Recipe) -> list[tuple[int, int]]:
    """Return the parts of a frame, (first, end) rows, whose numerics become bounded texts."""
    sizes = [text_sizes(c, ragged) for c, ragged in zip(recipe.columns, columns, strict=True)]
    part = np.cumsum(np.sum(sizes, axis=0)) // TEXT_BYTES_MAX
    ends = [*(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
    return list(pairwise([0, *ends]))


def _decoded(uris: Iterable[str]) -> Iterator[frames.Frame]:
    """Yield the frames of staged files, decoded and not verified. Raises FrameDamaged."""
    for uri in uris:
        for data in frames_of(uri):
            yield frames.decode(data)


def frames_of(uri: str) -> Iterator[bytes]:
    """Yield the frames of a staged file. Raises FrameDamaged: it does not consist of frames."""
    yield from _frames(read_at(uri))


def _frames(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        begin = at + _LENGTH_BYTES
        end = begin + int.from_bytes(content[at:begin], "little")
        if end > len(content):
            raise FrameDamaged("A staged file ends in the middle of a frame.")
        yield content[begin:end]
        at = end
