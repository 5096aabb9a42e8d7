"""Dump files: one session, which reads of each relation one delivery, though newer ones come.

Invariants: its files are chosen when the relation is described first, and stay open; every later
read is of them. Before a read and at its end they must still be what they were, or the read ends
with SnapshotLost; that comes before any other error, which the change may have caused.

A file has no index and no SQL. A read by key is a scan of which the other rows are dropped; `Shape`
says so, and the warehouse plans without reads by key. The rows of a derivation are chosen here
(`selection`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import numpy as np
from driftline.arrays import Bools, Positions
from driftline.errors import (
    OPEN,
    ConfigurationError,
    DatabaseRefused,
    DriftlineError,
    ValueDoesNotFit,
)
from driftline.relations.derivations import ColumnPredicate, Operator
from driftline.rows.columns import Block as RowBlock
from driftline.rows.columns import gather
from driftline.rows.keys import null_keys, positions
from driftline.values.types import Column

from source_agent.engines.dump import (
    choice,
    delimited,
    fixed_width,
    formats,
    selection,
    streams,
    values,
)
from source_agent.engines.dump.blocks import FileBlock
from source_agent.engines.dump.folder import Delivery, DeliveryFolder, DumpFile
from source_agent.engines.encoding.rows import RowEncoder, row_encoder
from source_agent.engines.interface import (
    BATCH_ROWS,
    Capabilities,
    Limits,
    Rows,
    SnapshotState,
    TimeLimit,
)
from source_agent.engines.relations.select import Access, ReadColumn, arrange, plan_of, quote, shape
from source_agent.engines.relations.shapes import Condition, Relation, Shape
from source_agent.engines.sessions import SnapshotSession

T = TypeVar("T")

_TABLE_ONLY: Final = {
    "where": "a file has no SQL",
    "as_text": "declare the column `text` in its format",
    "types": "the format has them",
}


@dataclass(frozen=True, slots=True)
class _Source:
    """The files that a relation is read from, and their format."""

    delivery: Delivery
    format: formats.FileFormat

    def blocks(self, wanted: list[int]) -> Iterator[FileBlock]:
        """Yield the rows, of the columns with these numbers."""
        for file in self.delivery.files:
            yield from self._of_file(file, wanted)

    def beginnings(self, wanted: list[int]) -> Iterator[FileBlock]:
        """Yield the first rows of each file, which show whether it is as its format says."""
        for file in self.delivery.files:
            yield from islice(self._of_file(file, wanted), 1)

    def _of_file(self, file: DumpFile, wanted: list[int]) -> Iterator[FileBlock]:
        name, format = file.name, self.format
        if format.kind == "parquet":
            blocks: Iterator[FileBlock] = _parquet().blocks(file.reader(), format, wanted, name)
        else:
            packed = streams.pieces(file.reader(), name, file.size)
            text = streams.in_utf8(packed, format.encoding, name)
            parse = delimited.blocks if format.kind == "csv" else fixed_width.blocks
            blocks = parse(text, format, wanted, name)
        return (replace(block, file=name) for block in blocks)

    def encoders(self) -> values.Encoders:
        """Return the encoders of its values."""
        if self.format.kind == "parquet":
            encoders: values.Encoders = _parquet().encoders()
            return encoders
        return values.encoders(self.format)


class DumpSession(SnapshotSession):
    """Implement `interface.Session`."""

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__()
        self._limits = limits
        self._folder = DeliveryFolder(path)
        self._sources: dict[object, _Source] = {}
        self.snapshot = SnapshotState(choice.text_of(time.time_ns()))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(self.activities, compare=_compare)

    @property
    def time_limits(self) -> Sequence[TimeLimit]:
        return self._limits.of_statements

    def answers(self, within_s: float) -> bool:  # noqa: ARG002 - there is no server
        return True

    def interrupt(self) -> None:
        self._is_interrupted = True

    def close(self) -> None:
        for source in self._sources.values():
            source.delivery.close()
        self._sources = {}
        self._folder.close()

    def describe(self, relation: Relation) -> Shape:
        _refuse_settings(relation)
        source = self._source(relation)
        format = source.format
        order = arrange(relation, format.names, ())
        types = dict(zip(format.names, format.types, strict=True))
        columns = [
            ReadColumn(
                name,
                types[name],
                name,
                values.form_of(types[name]),
                comparable=selection.comparable(types[name]),
            )
            for name in order.names
        ]
        described = shape(relation, format.names, order, columns, Access(source.delivery.name))
        described = replace(
            described,
            as_of=source.delivery.as_of,
            notes=(f"read from {source.delivery.name}, of {source.delivery.as_of}",),
            unordered="a file has no index",
        )
        wanted = _wanted(source, described)
        for _ in self._checked(source, source.beginnings(wanted)):
            self.pulse.beat()
        return described

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        assert not ordered, "no shape of a file is ordered"
        source = self._source(shape.relation)
        return self._checked(source, self._rows(shape, source))

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        assert shape.recipe.integer_key, "only an integer key has ranges"
        if not len(first):
            return
        order = np.argsort(first)
        first, last = first[order], last[order]
        with_null = shape.may_be_null_in(first)
        left = math.inf if rows_max is None else rows_max
        for rows in self.scan(shape):
            block = gather(rows)
            null = null_keys(block, shape.recipe)
            chosen = _within(block, shape, first, last, ~null)
            if with_null and null.any():
                chosen[int(np.flatnonzero(null)[0])] = True
                with_null = False
            batch = [rows[i] for i in np.flatnonzero(chosen).tolist()]
            if batch:
                yield batch
            left -= len(batch)
            if left < 0:
                return

    def delivery_of(self, shape: Shape) -> Delivery:
        """Return the files that a described relation is read from."""
        return self._source(shape.relation).delivery

    def fields(self, shape: Shape) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield the columns of each block of rows, as the file's parser has them."""
        return (block.columns for block in self._blocks(shape))

    def format_of(self, shape: Shape) -> formats.FileFormat:
        """Return the format of the files that a described relation is read from."""
        return self._source(shape.relation).format

    def _source(self, relation: Relation) -> _Source:
        files = relation.files
        assert files is not None, "the settings were checked"
        if files not in self._sources:
            format = formats.load(files.format)
            named = choice.pattern(files, relation.name)
            self._sources[files] = _Source(self._folder.newest(files, named), format)
        return self._sources[files]

    def _blocks(self, shape: Shape) -> Iterator[FileBlock]:
        """Yield blocks of BATCH_ROWS rows at most."""
        source = self._source(shape.relation)
        for block in source.blocks(_wanted(source, shape)):
            self.refuse_interrupted()
            self.pulse.beat()
            if block.rows <= BATCH_ROWS:
                yield block
            else:
                for start in range(0, block.rows, BATCH_ROWS):
                    yield block.part(start, min(start + BATCH_ROWS, block.rows))

    def _rows(self, shape: Shape, source: _Source) -> Iterator[Rows]:
        encoder = row_encoder(shape, source.encoders())
        chosen = plan_of(shape).chosen
        choose = None if chosen is None else selection.RowSelection(chosen, shape.recipe)
        ends_at = time.monotonic() + (self._limits.statement_s or math.inf)
        for block in self._blocks(shape):
            if time.monotonic() > ends_at:
                raise DatabaseRefused(
                    f"Reading {source.delivery.name!r} took longer than the file allows.",
                    where=shape.relation.name,
                    remedy="Raise `statement_timeout_s`.",
                    abroad="Reading took longer than the DBA allows (statement_timeout_s).",
                )
            try:
                rows = encoder.of_columns(block.columns)
            except ValueDoesNotFit:
                raise _placed(encoder, block, source, shape) from None
            if choose is not None:
                rows = choose.of(rows)
            if rows:
                yield rows

    def _checked(self, source: _Source, items: Iterator[T]) -> Iterator[T]:
        """Yield what is found in files that stay what they were."""
        source.delivery.check()
        try:
            yield from items
        except DriftlineError:
            source.delivery.check()
            raise
        source.delivery.check()


def _compare(comparison: ColumnPredicate, column: Column, place: str) -> Condition:  # noqa: ARG001
    """Return a comparison as it is shown to the DBA; nothing executes it."""
    shown = ", ".join("?" * len(comparison.values))
    listed = f" ({shown})" if comparison.operator is Operator.IN else f" {shown}".rstrip()
    sql = f"{quote(column.name)} {comparison.operator.value}{listed}"
    return Condition(sql, comparison.values)


def _wanted(source: _Source, shape: Shape) -> list[int]:
    """Return the numbers of the columns that are read, in their order."""
    return [source.format.names.index(name) for name in plan_of(shape).reads]


def _within(
    block: RowBlock, shape: Shape, first: Positions, last: Positions, has_key: Bools
) -> Bools:
    """Return the rows, bool [rows], whose key lies in a range; ranges ascend and are disjoint."""
    chosen = np.zeros(len(has_key), np.bool_)
    rows = np.flatnonzero(has_key)
    if len(rows):
        keys = positions(block.take(rows), shape.recipe, 0)
        at = np.searchsorted(first, keys, "right") - 1
        chosen[rows] = (at >= 0) & (keys <= last[at])
    return chosen


def _placed(
    encoder: RowEncoder, block: FileBlock, source: _Source, shape: Shape
) -> ValueDoesNotFit:
    """Return the error for the first row of a block with a value that does not fit, and where."""
    for row in range(block.rows):
        try:
            encoder.of_columns([column[row : row + 1] for column in block.columns])
        except ValueDoesNotFit as error:
            place = block.place(row)
            return ValueDoesNotFit(
                f"{error.message} It is in {place} of the file {block.file!r}.",
                remedy=f"Correct {source.format.file}: the type, `null`, `decimal`; or declare the"
                " column `text`.",
                where=error.where or shape.relation.name,
                details={**error.details, "file": block.file, "place": place},
            )
    raise AssertionError("one of the rows does not fit")


def _refuse_settings(relation: Relation) -> None:
    if relation.files is None:
        raise ConfigurationError(
            "A relation of a folder of dump files needs `files`.",
            remedy='Write files = "accounts-*.csv" and format = "accounts.toml".',
            where=relation.name,
            abroad=OPEN,
        )
    for setting, why in _TABLE_ONLY.items():
        if getattr(relation, setting):
            raise ConfigurationError(
                f"`{setting}` is for databases: {why}.",
                remedy="Remove it.",
                where=f"{relation.name}: {setting}",
                abroad=OPEN,
            )


def _parquet() -> ModuleType:
    """Return the module of Parquet; raise ConfigurationError if Arrow is not installed."""
    try:
        from source_agent.engines.dump import parquet
    except ImportError as error:
        raise ConfigurationError(
            f"Parquet needs pyarrow, which cannot be imported: {error}.",
            remedy="pip install 'driftline[dump]'",
        ) from None
    return parquet
