"""How a relation lies in the published table: names, Spark types, bookkeeping columns.

Published columns keep the relation's order and, where Delta allows, its names; bookkeeping columns
start with `_driftline_` and come last: the two lanes of the fingerprint and, unless the key is one
integer, the key bytes and the position; then the statistics of the row, ω± of Lu, Liu and Hyland
(`row_statistics`, `update_probability`). A batch of published rows converts to row bytes and back
here and nowhere else, on the driver and on executors alike.

Tables from before there were statistics have files without these columns, which read as null, and a
declared schema without them: it changes with the first version that keeps none of the old files,
because delta-rs cannot keep files in a commit that changes the schema. Until then readers of the
Delta table do not see the columns, and Driftline, which reads files, does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from driftline.columns import Block, Ragged, spans
from driftline.errors import ConfigurationError, ValueDoesNotFit, together
from driftline.keys import key_spans, positions
from driftline.types import Column, Recipe, parse_type
from driftline.values import decode_string

from warehouse_agent.columns.arrow import (
    ROW,
    Carrier,
    arrow_type,
    as_strings,
    from_arrow,
    spark_type,
    to_arrow,
)
from warehouse_agent.columns.row_bytes import join

KEY_SHOWN = 60  # characters of a key value in an error
KEY = "_driftline_key"
POSITION = "_driftline_position"
HI = "_driftline_hi"
LO = "_driftline_lo"
RESERVED = "_driftline_"
FIRST, UPDATES = f"{RESERVED}first", f"{RESERVED}updates"
CHANGED, RATE = f"{RESERVED}changed", f"{RESERVED}rate"
STATISTICS = (
    (FIRST, pa.int32()),
    (UPDATES, pa.int32()),
    (CHANGED, pa.int32()),
    (RATE, pa.float32()),
)
FEED_NAMES = ("_version", "_op")  # columns of the change feed beside the data

_KINDS = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.binary(): "binary",
}
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")  # Delta refuses these in a name


@dataclass(frozen=True)
class Layout:
    """A recipe with, in tuple order, the carrier and the published name of each column.

    `declares_statistics`: whether the Delta table's schema has STATISTICS; its files may.
    """

    recipe: Recipe
    carriers: tuple[Carrier, ...]
    names: tuple[str, ...]
    declares_statistics: bool = True

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Tuple indices in published order."""
        columns = self.recipe.columns
        return tuple(sorted(range(len(columns)), key=lambda i: columns[i].ordinal))

    @cached_property
    def bookkeeping(self) -> tuple[tuple[str, pa.DataType], ...]:
        """Of decoded rows: what identifies a row and its content."""
        lanes = ((HI, pa.int64()), (LO, pa.int64()))
        if self.recipe.integer_key:
            return lanes
        return ((KEY, pa.binary()), (POSITION, pa.int64()), *lanes)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """As the Delta table declares it."""
        statistics = STATISTICS if self.declares_statistics else ()
        return pa.schema([*self.decoded_schema, *(pa.field(*column) for column in statistics)])

    @cached_property
    def decoded_schema(self) -> pa.Schema:
        """Of decoded rows: without statistics."""
        fields = []
        for i in self.order:
            column = self.recipe.columns[i]
            metadata = {"driftline.type": str(column.type)}
            if self.names[i] != column.name:
                metadata["driftline.name"] = column.name
            kind = arrow_type(column.type, self.carriers[i])
            fields.append(pa.field(self.names[i], kind, nullable=True, metadata=metadata))
        fields += [pa.field(name, kind) for name, kind in self.bookkeeping]
        return pa.schema(fields)

    @cached_property
    def file_schema(self) -> pa.Schema:
        """As the table's files are read and written, statistics included."""
        fields = [pa.field(field.name, field.type) for field in self.decoded_schema]
        return pa.schema([*fields, *(pa.field(*column) for column in STATISTICS)])

    @cached_property
    def lane_schema(self) -> pa.Schema:
        """Position, or the integer key that is it, and the two lanes of the fingerprint."""
        position = self.names[0] if self.recipe.integer_key else POSITION
        return pa.schema([self.file_schema.field(name) for name in (position, HI, LO)])

    @cached_property
    def ddl(self) -> str:
        """The Spark schema of the table's files."""
        return ", ".join([self.decoded_ddl, *(f"{n} {_KINDS[kind]}" for n, kind in STATISTICS)])

    @cached_property
    def decoded_ddl(self) -> str:
        """The Spark schema of decoded rows."""
        return ", ".join([*self.data_ddl, *(f"{n} {_KINDS[kind]}" for n, kind in self.bookkeeping)])

    @cached_property
    def data_ddl(self) -> tuple[str, ...]:
        """The Spark schema of the data columns, one by one."""
        return tuple(
            f"{quoted(self.names[i])} {spark_type(self.recipe.columns[i].type, self.carriers[i])}"
            for i in self.order
        )

    @property
    def data_names(self) -> tuple[str, ...]:
        """Published names without bookkeeping, in published order."""
        return tuple(self.names[i] for i in self.order)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Columns that identify a row in Spark: the integer key, or the stored key bytes."""
        return (self.names[0],) if self.recipe.integer_key else (KEY,)

    @property
    def integer_key(self) -> str | None:
        """The published name of the key, where it is one integer."""
        return self.names[0] if self.recipe.integer_key else None

    @property
    def position_sql(self) -> str:
        """Spark SQL for the position of a row."""
        return f"cast({quoted(self.names[0])} as bigint)" if self.recipe.integer_key else POSITION

    def batch(
        self,
        columns: Sequence[Ragged],
        block: Block,
        hi: npt.NDArray[np.uint64],
        lo: npt.NDArray[np.uint64],
        *,
        seed: int,
    ) -> pa.RecordBatch:
        """A batch of published rows from decoded columns (tuple order) and their row bytes.

        Raises:
            ValueDoesNotFit: a value that its carrier cannot hold.
        """
        arrays = self._carried(columns)
        if not self.recipe.integer_key:
            starts, lengths = key_spans(block, self.recipe)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            data = block.buffer[spans(starts, lengths)]
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            arrays.append(pa.Array.from_buffers(pa.binary(), len(block), buffers))
            arrays.append(pa.array(positions(block, self.recipe, seed)))
        arrays += [pa.array(hi.view(np.int64)), pa.array(lo.view(np.int64))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.decoded_schema)

    def _carried(self, columns: Sequence[Ragged]) -> list[pa.Array]:
        """The columns under their carriers. Raises ValueDoesNotFit of all that do not fit."""
        arrays, refused = [], []
        for i in self.order:
            try:
                arrays.append(to_arrow(self.recipe.columns[i], columns[i], self.carriers[i]))
            except ValueDoesNotFit as error:
                refused.append(error)
        if refused:
            names = [one.where for one in refused]
            for one in refused:
                if (row := one.details.pop(ROW, None)) is not None:
                    one.details["key"] = self._key_text(columns, int(row))
                    one.message += f" Its row has the key {one.details['key']}."
            raise together(refused, remedy=as_strings(names))
        return arrays

    def _key_text(self, columns: Sequence[Ragged], row: int) -> str:
        """The key of a row, for a person."""
        values = []
        for column, ragged in zip(
            self.recipe.columns[: self.recipe.key_columns], columns, strict=False
        ):
            start, size = int(ragged.starts[row]), int(ragged.sizes[row])
            text = decode_string(column.type, ragged.data[start : start + size].tobytes())
            values.append(text if len(text) <= KEY_SHOWN else text[:KEY_SHOWN] + "…")
        return ", ".join(values)

    def row_bytes(self, batch: pa.RecordBatch) -> Block:
        """The row bytes of a batch that holds at least the data columns."""
        columns = [
            from_arrow(column, batch.column(batch.schema.get_field_index(name)), carrier)
            for column, name, carrier in zip(
                self.recipe.columns, self.names, self.carriers, strict=True
            )
        ]
        return join(columns)


def lay_out(recipe: Recipe, carriers: dict[str, Carrier], *, where: str) -> Layout:
    """The layout of a recipe under the carriers that the fragment's configuration asks for.

    Raises:
        ConfigurationError: a carrier is asked for a column that does not exist, or a column has a
            reserved name.
    """
    known = {c.name for c in recipe.columns}
    for name in carriers:
        if name not in known:
            raise ConfigurationError(
                f"`carriers` names the column {name!r}, which the relation does not have.",
                where=where,
                remedy=f"Its columns are: {', '.join(sorted(known))}.",
            )
    names: dict[int, str] = {}
    taken = set(FEED_NAMES)
    for i in sorted(range(len(recipe.columns)), key=lambda i: recipe.columns[i].ordinal):
        name = recipe.columns[i].name
        if name.lower().startswith(RESERVED):
            raise ConfigurationError(
                f"The column {name!r} has a name reserved for bookkeeping.",
                where=where,
                remedy="Ask the DBA to publish it under another name.",
            )
        names[i] = _free_name(_FORBIDDEN.sub("_", name) or "_", taken)
    return Layout(
        recipe,
        tuple(carriers.get(c.name, Carrier.NATIVE) for c in recipe.columns),
        tuple(names[i] for i in range(len(recipe.columns))),
    )


def _free_name(name: str, taken: set[str]) -> str:
    """The name, numbered when another column already has it but for case (Delta folds case)."""
    free, number = name, 2
    while free.lower() in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free.lower())
    return free


def quoted(name: str) -> str:
    """The name as a Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def to_json(layout: Layout) -> dict[str, object]:
    """The layout as it is kept in the metadata of a version."""
    return {
        "statistics": layout.declares_statistics,
        "fingerprint_version": layout.recipe.fingerprint_version,
        "key_columns": layout.recipe.key_columns,
        "columns": [
            {
                "name": c.name,
                "type": str(c.type),
                "nullable": c.nullable,
                "ordinal": c.ordinal,
                "carrier": carrier.value,
                "published": name,
            }
            for c, carrier, name in zip(
                layout.recipe.columns, layout.carriers, layout.names, strict=True
            )
        ],
    }


def from_json(data: dict[str, object]) -> Layout:
    """The layout that `to_json` wrote."""
    columns = data["columns"]
    version, keys = data["fingerprint_version"], data["key_columns"]
    assert isinstance(columns, list)
    assert isinstance(version, int)
    assert isinstance(keys, int)
    recipe = Recipe(
        tuple(
            Column(c["name"], parse_type(c["type"]), c["nullable"], c["ordinal"]) for c in columns
        ),
        keys,
        version,
    )
    return Layout(
        recipe,
        tuple(Carrier(c["carrier"]) for c in columns),
        tuple(c["published"] for c in columns),
        bool(data.get("statistics", False)),
    )
