"""The file of changes, F_out: <update, K, B>, <delete, K> and <insert, K, B> (section 1.1).

Parquet has the columns of the relation in the types of a published table; CSV has every value in
its canonical text, with NULL as nothing and an empty text as "". The first column is the form of
the change; of a delete, only the key has values. The file appears under its name when it is whole.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from driftline.errors import ConfigurationError, UsageError, ValueDoesNotFit
from driftline.rows.columns import Block, split
from driftline.values.types import Recipe

from warehouse_agent.columns import parquet
from warehouse_agent.columns.arrow import Carrier, arrow_type, to_arrow
from warehouse_agent.columns.buffers import variable_array_of
from warehouse_agent.columns.layout import FEED_NAMES, lay_out
from warehouse_agent.differential.records import ChangeForm

CHANGE = FEED_NAMES[1]  # as in a change feed, so no published column has the name
SUFFIXES = (".parquet", ".csv")
HELD_BYTES = 8 << 20  # of changes in Arrow, before they are written


class ChangesFile:
    """A file of changes that is being written. A context manager, which removes what is not whole.

    Raises:
        UsageError: the name has no suffix of SUFFIXES.
        ConfigurationError: the file cannot be written.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        if path.suffix not in SUFFIXES:
            raise UsageError(
                f"{path.name!r} ends neither in {' nor in '.join(SUFFIXES)}.",
                remedy="Choose the form of the changes by the end of --output.",
            )
        self._path, self._recipe = path, recipe
        self._is_csv = path.suffix == ".csv"
        self._partial = path.with_name(f".{path.name}-{uuid.uuid4().hex}.partial")
        carriers = {c.name: Carrier.STRING for c in recipe.columns} if self._is_csv else {}
        self._layout = layout = lay_out(recipe, carriers, where=path.name)
        fields = [
            (layout.names[i], arrow_type(recipe.columns[i].type, layout.carriers[i]))
            for i in layout.order
        ]
        self.schema = pa.schema([(CHANGE, pa.string()), *fields])
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def __enter__(self) -> Self:
        try:
            self._file = self._partial.open("wb")
        except OSError as error:
            raise ConfigurationError(
                f"The changes cannot be written: {error.strerror or error}.",
                where=str(self._path),
                remedy="Choose another --output.",
            ) from None
        self._writer = self._opened()
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def put(self, form: ChangeForm, block: Block) -> None:
        """Add changes of one form: whole rows, or rows cut behind their keys for deletes.

        Raises:
            ValueDoesNotFit: a value does not fit the column's type in Parquet.
        """
        count = self._recipe.key_columns if form is ChangeForm.DELETE else len(self._recipe.columns)
        ragged = split(block, count)
        arrays = [_repeated(form, len(block))]
        for i in self._layout.order:
            column, carrier = self._recipe.columns[i], self._layout.carriers[i]
            if i >= count:
                arrays.append(pa.nulls(len(block), arrow_type(column.type, carrier)))
                continue
            try:
                arrays.append(to_arrow(column, ragged[i], carrier))
            except ValueDoesNotFit as error:
                remedy = "Write the changes as CSV, which has every value as text."
                raise ValueDoesNotFit(
                    error.message, where=error.where, remedy=remedy, details=error.details
                ) from None
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= HELD_BYTES:
            self._write()

    def finish(self) -> None:
        """Write the rest, and give the file its name; a file that had it is replaced."""
        self._write()
        self._writer.close()
        self._file.close()
        os.replace(self._partial, self._path)

    def _write(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held))
            self._held, self._held_bytes = [], 0

    def _opened(self) -> pq.ParquetWriter | pa_csv.CSVWriter:
        if self._is_csv:
            options = pa_csv.WriteOptions(quoting_style="needed")
            return pa_csv.CSVWriter(self._file, self.schema, write_options=options)
        return parquet.writer(self._file, self.schema)


def _repeated(form: ChangeForm, rows: int) -> pa.StringArray:
    """Return a form as text in each row, which `pa.array` would import pandas for."""
    text = np.frombuffer(form.encode(), np.uint8)
    every = np.ones(rows, np.bool_)
    return variable_array_of(pa.string(), every, np.full(rows, len(text)), np.tile(text, rows))
