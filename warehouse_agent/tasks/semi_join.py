"""Select rows of data files by values of their columns: semi-joins with sets of codes, by Arrow.

A join that few rows take part in needs no shuffle: the values are looked for in each file, by
Spark's tasks or in this process (`steps`). Only columns that are looked at are read; rows that are
selected are written to files that Spark joins. 3 M rows of lineitem cost 0.03 s of a core for the
key and 0.1 s for five more columns, so all columns are read at once: reading some of them later,
for row groups with a hit, saves nothing where changes are scattered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from driftline.arrays import Bools

from warehouse_agent.columns.layout import Layout
from warehouse_agent.columns.row_codes import CodeSet, KeySet, codes
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.tasks.data_frames import RowFunction
from warehouse_agent.tasks.scan import Divisible, FilePiece, Function, scan
from warehouse_agent.tasks.steps import DIGESTS_FACTOR, Steps
from warehouse_agent.tasks.write import WRITTEN, Sink, written

LINEAGE_PART = "_driftline_l"  # and a number from 1: columns that identify a row
CHANGED = "_driftline_changed"  # true if the row's key is one that changed
FOUND_BY = "_driftline_found_by"  # bit i: selected by condition i
_CODES = pa.schema([("code", pa.int64())])
_Bits = np.ndarray[tuple[int], np.dtype[np.int32]]
_ROWS_AT_ONCE = 16_384  # whose lineage is made at once
_VARIABLE_BYTES = 24  # of a text or bytes value, as a step's size is estimated


@dataclass(frozen=True, slots=True)
class CodeCondition:
    """Rows whose columns have one of the codes; a row with a NULL in them has none."""

    columns: tuple[str, ...]
    codes: CodeSet


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Keys of rows that changed.

    Attributes:
        columns: columns of the relation that find them: some of the key's.
        codes: those that these columns have in each changed row, and in few others.
        keys: of the changed rows exactly, by lineage.
    """

    columns: tuple[str, ...]
    codes: CodeSet
    keys: KeySet


@dataclass(frozen=True)
class SelectedRows:
    """The form of selected rows: some columns of a relation, and what identifies a row."""

    layout: Layout | ViewLayout
    columns: tuple[str, ...]

    @cached_property
    def files_schema(self) -> pa.Schema:
        """The schema of the relation's files."""
        return self.layout.file_schema

    @cached_property
    def identifying(self) -> tuple[str, ...]:
        """Columns of the files from which lineage is made."""
        if isinstance(self.layout, ViewLayout):
            return self.layout.lineage_names
        return self.layout.key_columns

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of files of selected rows."""
        own = [self.files_schema.field(name) for name in self.columns]
        kinds = [pa.int64() if kind == "bigint" else pa.binary() for kind in self._lineage_types]
        parts = [pa.field(f"{LINEAGE_PART}{i}", kind) for i, kind in enumerate(kinds, 1)]
        return pa.schema([*own, *parts, (CHANGED, pa.bool_()), (FOUND_BY, pa.int32())])

    @cached_property
    def whole(self) -> pa.Schema:
        """The columns of the relation's files that such rows are made of."""
        return self.read((), (*self.columns, *self.identifying))

    @cached_property
    def joined_schema(self) -> pa.Schema:
        """The columns of such files that a query is given."""
        return pa.schema([field for field in self.schema if field.name != FOUND_BY])

    def flagged(self, changed: ChangedKeys) -> RowFunction:
        """Return what makes rows with `joined_schema` of all rows of the relation, read with
        `whole`."""

        def made(batch: pa.RecordBatch) -> pa.RecordBatch:
            found_by = np.zeros(len(batch), np.int32)
            return _selected([batch], found_by, self, changed).select(self.joined_schema.names)

        return RowFunction(made, self.joined_schema)

    @property
    def _lineage_types(self) -> tuple[str, ...]:
        if isinstance(self.layout, ViewLayout):
            return tuple(column.type for column in self.layout.lineage)
        return ("bigint" if self.layout.integer_key else "binary",)

    def lineage(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns that identify rows, from a batch that holds `identifying`."""
        if isinstance(self.layout, ViewLayout):
            return [rows.column(name) for name in self.layout.lineage_names]
        if (key := self.layout.integer_key) is not None:
            return [rows.column(key).cast(pa.int64())]
        return [self.layout.key_bytes(rows)]

    def read(self, conditions: Sequence[CodeCondition], more: Sequence[str] = ()) -> pa.Schema:
        """Return the schema of the columns that must be read."""
        looked_at = (name for condition in conditions for name in condition.columns)
        names = dict.fromkeys([*looked_at, *more])
        return pa.schema([self.files_schema.field(name) for name in names])


def matching_codes(
    steps: Steps,
    files: Sequence[DataFile],
    form: SelectedRows,
    conditions: Sequence[CodeCondition],
    columns: Sequence[str],
) -> CodeSet:
    """Return the codes of `columns` in the rows that fulfil one of the conditions; one step.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    read = form.read(conditions, columns)

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        for batch in (piece.batch for piece in pieces):
            held = np.zeros(len(batch), np.bool_)
            for condition in conditions:
                held |= _holds(batch, condition)
            if held.any():
                rows = batch.take(pa.array(np.flatnonzero(held)))
                row_codes, present = codes([rows.column(name) for name in columns])
                yield pa.record_batch([pa.array(np.unique(row_codes[present]))], schema=_CODES)

    rows = scan(
        steps,
        files,
        read,
        Divisible(run),
        _CODES,
        work=StepWork(StepKind.DIGESTS, _size(files, read)),
    )
    return CodeSet.of(rows["code"].to_numpy())


def select(
    steps: Steps,
    folder: DataFolder,
    files: Sequence[DataFile],
    form: SelectedRows,
    conditions: Sequence[CodeCondition],
    changed: ChangedKeys,
) -> list[DataFile]:
    """Write the rows that changed, or that fulfil one of the conditions; one step.

    The files have the schema `form.schema`.

    Raises:
        WarehouseUnavailable: a file cannot be read or written.
    """
    read = form.read(conditions, (*form.columns, *form.identifying, *changed.columns))
    folder.make()
    function = _select(folder.uri(), form, conditions, changed)
    size = _size(files, read)
    rows = scan(
        steps, files, read, Divisible(function), WRITTEN, work=StepWork(StepKind.DIGESTS, size)
    )
    return written(rows, folder)


def _select(
    folder: str, form: SelectedRows, conditions: Sequence[CodeCondition], changed: ChangedKeys
) -> Function:
    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        found_by: list[_Bits] = []
        count = 0

        def write(sink: Sink) -> None:
            if held:
                sink.add(_selected(held, np.concatenate(found_by), form, changed))
                held.clear()
                found_by.clear()

        with Sink(folder, "selected", form.schema) as sink:
            for batch in (piece.batch for piece in pieces):
                bits = np.zeros(len(batch), np.int32)
                for number, condition in enumerate(conditions):
                    bits |= _holds(batch, condition).astype(np.int32) << number
                near = changed.codes.holds_rows([batch.column(n) for n in changed.columns])
                at = np.flatnonzero((bits != 0) | near)
                if len(at):
                    held.append(batch.take(pa.array(at)))
                    found_by.append(bits[at])
                    count += len(at)
                if count >= _ROWS_AT_ONCE:
                    write(sink)
                    count = 0
            write(sink)
            done = list(sink.finish())
        yield from done

    return run


def _selected(
    parts: Sequence[pa.RecordBatch], found_by: _Bits, form: SelectedRows, changed: ChangedKeys
) -> pa.RecordBatch:
    """Return selected rows in the form of their files."""
    (rows,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    lineage = form.lineage(rows)
    is_changed = pa.array(changed.keys.holds(lineage))
    own = [rows.column(name) for name in form.columns]
    arrays = [*own, *lineage, is_changed, pa.array(found_by)]
    return pa.RecordBatch.from_arrays(arrays, schema=form.schema)


def _holds(batch: pa.RecordBatch, condition: CodeCondition) -> Bools:
    return condition.codes.holds_rows([batch.column(name) for name in condition.columns])


def _size(files: Sequence[DataFile], columns: pa.Schema) -> int:
    """Return the bytes that count for a step that reads these columns and writes few rows."""
    widths = (
        kind.bit_width / 8 if pa.types.is_primitive(kind) else _VARIABLE_BYTES
        for kind in columns.types
    )
    return int(sum(f.rows for f in files) * sum(widths)) // DIGESTS_FACTOR
