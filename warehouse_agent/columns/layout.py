"""The layout of a published table: names, Spark types and bookkeeping columns.

Published columns keep the relation's order and, where Delta allows, its names. Bookkeeping columns
start with `_driftline_` and come last: the key bytes and the position unless the key is one
integer, the two lanes of the fingerprint, and the statistics of the row, ω± of Lu, Liu and Hyland
(`row_statistics`, `update_probability`). Files have them, and the table does not declare them: its
other readers see the published columns alone. Only this module converts published rows to row bytes
and back, on the driver and on executors.

Files of an older table may lack the statistics, which then read as null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Positions
from driftline.errors import ConfigurationError, MalformedMessage, ValueDoesNotFit, together
from driftline.relations import derivation_json
from driftline.relations.derivations import Derivation, canonical, text_of
from driftline.rows.columns import Block, RaggedColumn, pick, spans
from driftline.rows.keys import key_spans, positions
from driftline.values.send_format import decode_string
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.columns.arrow import (
    ROW,
    Carrier,
    arrow_type,
    as_strings,
    from_arrow,
    spark_type,
    to_arrow,
)
from warehouse_agent.columns.buffers import variable_array_of
from warehouse_agent.columns.row_bytes import join

KEY_SHOWN = 60  # characters of a key value in an error
KEY = "_driftline_key"
POSITION = "_driftline_position"
HI = "_driftline_hi"
LO = "_driftline_lo"
RESERVED = "_driftline_"
FIRST, UPDATES = f"{RESERVED}first", f"{RESERVED}updates"
CHANGED, RATE = f"{RESERVED}changed", f"{RESERVED}rate"
STATISTICS = (*((name, pa.int32()) for name in (FIRST, UPDATES, CHANGED)), (RATE, pa.float32()))
FEED_NAMES = ("_version", "_op")  # columns of the change feed beside the data

CHECKED = "not_null_checked"  # key of JSON: columns that are not nullable hold no NULL
_DDL = {pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float", pa.binary(): "binary"}
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")  # Delta refuses these in a name


@dataclass(frozen=True)
class Layout:
    """A recipe with, in tuple order, the carrier and the published name of each column.

    `derivation`: the columns and rows of the relation that the table has, if it is not whole.
    `withheld`: source and published name of columns that the table had, or that the whole has: the
    name is theirs for good.
    """

    recipe: Recipe
    carriers: tuple[Carrier, ...]
    names: tuple[str, ...]
    derivation: Derivation | None = None
    withheld: tuple[tuple[str, str], ...] = ()

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Tuple indices in published order."""
        return _published_order(self.recipe)

    @cached_property
    def bookkeeping(self) -> tuple[tuple[str, pa.DataType], ...]:
        """Names and types of the columns that identify a row and its content."""
        lanes = ((HI, pa.int64()), (LO, pa.int64()))
        if self.recipe.integer_key:
            return lanes
        return ((KEY, pa.binary()), (POSITION, pa.int64()), *lanes)

    @cached_property
    def declared_schema(self) -> pa.Schema:
        """The schema that the Delta table declares: the published columns alone."""
        nullable = {name: name not in self.not_null for name in self.data_names}
        return pa.schema([f.with_nullable(nullable[f.name]) for f in self._data_fields])

    @cached_property
    def not_null(self) -> frozenset[str]:
        """Published names of the columns that are not nullable."""
        columns = zip(self.recipe.columns, self.names, strict=True)
        return frozenset(name for column, name in columns if not column.nullable)

    def with_not_null(self, names: Collection[str]) -> Layout:
        """Return the layout in which these published columns are not nullable, and others are."""
        if self.not_null == {*names}:
            return self
        columns = tuple(
            replace(column, nullable=name not in names)
            for column, name in zip(self.recipe.columns, self.names, strict=True)
        )
        return replace(self, recipe=replace(self.recipe, columns=columns))

    @cached_property
    def _data_fields(self) -> list[pa.Field]:
        """Fields of the published columns in files, which may hold NULL whatever is declared."""
        fields = []
        for i in self.order:
            column = self.recipe.columns[i]
            metadata = {"driftline.type": str(column.type)}
            if self.names[i] != column.name:
                metadata["driftline.name"] = column.name
            kind = arrow_type(column.type, self.carriers[i])
            fields.append(pa.field(self.names[i], kind, metadata=metadata))
        return fields

    @cached_property
    def decoded_schema(self) -> pa.Schema:
        """The schema of decoded rows, which have no statistics."""
        return pa.schema([*self._data_fields, *self.bookkeeping])

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The schema of the table's files, with statistics."""
        fields = (field.remove_metadata() for field in self.decoded_schema)
        return pa.schema([*fields, *STATISTICS])

    @cached_property
    def lane_schema(self) -> pa.Schema:
        """The schema of the position, or the integer key, and the two lanes of the fingerprint."""
        return pa.schema([self.file_schema.field(n) for n in (self.position_name, HI, LO)])

    @property
    def position_name(self) -> str:
        """The column that has the position of a row's key: the integer key, or a hash."""
        return self.names[0] if self.recipe.integer_key else POSITION

    @cached_property
    def keyed_schema(self) -> pa.Schema:
        """The lane schema and what has the key: the key bytes, or the integer in the lanes."""
        lanes = self.lane_schema
        return lanes if self.recipe.integer_key else pa.schema([*lanes, *self.key_schema])

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The schema of the column that has the key: its bytes, or the integer."""
        name = self.names[0] if self.recipe.integer_key else KEY
        return pa.schema([self.file_schema.field(name)])

    @cached_property
    def ddl(self) -> str:
        """The Spark schema of the table's files."""
        return ", ".join([self.decoded_ddl, *(f"{n} {_DDL[kind]}" for n, kind in STATISTICS)])

    @cached_property
    def decoded_ddl(self) -> str:
        """The Spark schema of decoded rows."""
        return ", ".join([*self.data_ddl, *(f"{n} {_DDL[kind]}" for n, kind in self.bookkeeping)])

    @cached_property
    def data_ddl(self) -> tuple[str, ...]:
        """The Spark schema of the data columns, one by one."""
        return tuple(
            f"{quoted(self.names[i])} {spark_type(self.recipe.columns[i].type, self.carriers[i])}"
            for i in self.order
        )

    @property
    def published_names(self) -> dict[str, str]:
        """Each name that was ever published, by the name that its column has at the source."""
        now = zip(self.recipe.columns, self.names, strict=True)
        return {**dict(self.withheld), **{column.name: name for column, name in now}}

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

    def batch(
        self,
        columns: Sequence[RaggedColumn],
        block: Block,
        hi: U64,
        lo: U64,
        *,
        seed: int,
    ) -> pa.RecordBatch:
        """Return a batch of published rows from decoded `columns` in tuple order, the row bytes of
        the same rows, and the lanes of their fingerprints, uint64 [rows].

        Raises:
            ValueDoesNotFit: a carrier cannot hold a value.
        """
        arrays = self._carried(columns)
        if not self.recipe.integer_key:
            arrays.append(self._key_bytes(block))
            arrays.append(pa.array(positions(block, self.recipe, seed)))
        arrays += [pa.array(hi.view(np.int64)), pa.array(lo.view(np.int64))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.decoded_schema)

    def keys(self, columns: Sequence[RaggedColumn], *, seed: int) -> tuple[pa.Array, Positions]:
        """Return what `batch` has in the column of `key_names`, and the position of each row, int64
        [rows], from decoded key columns."""
        block = join(columns)
        where = positions(block, self.recipe, seed)
        if self.recipe.integer_key:
            return to_arrow(self.recipe.columns[0], columns[0], self.carriers[0]), where
        return self._key_bytes(block), where

    def _key_bytes(self, block: Block) -> pa.Array:
        """Return the key bytes of rows, of which the block has the key columns at least."""
        starts, lengths = key_spans(block, self.recipe)
        data, present = block.buffer[spans(starts, lengths)], np.ones(len(block), np.bool_)
        return variable_array_of(pa.binary(), present, lengths, data)

    def _carried(self, columns: Sequence[RaggedColumn]) -> list[pa.Array]:
        """Return the columns in their carriers. Raises ValueDoesNotFit once for all columns."""
        arrays, refused = [], []
        for i in self.order:
            try:
                arrays.append(to_arrow(self.recipe.columns[i], columns[i], self.carriers[i]))
            except ValueDoesNotFit as error:
                refused.append(error)
        if refused:
            carried = [one.where for one in refused if one.remedy == as_strings([one.where])]
            others = dict.fromkeys(one.remedy for one in refused if one.where not in carried)
            for one in refused:
                if (row := one.details.pop(ROW, None)) is not None:
                    one.details["key"] = self._key_text(columns, int(row))
                    one.message += f" Its row has the key {one.details['key']}."
            remedies = [as_strings(carried)] if carried else []
            raise together(refused, remedy=" ".join(filter(None, [*remedies, *others])))
        return arrays

    def _key_text(self, columns: Sequence[RaggedColumn], row: int) -> str:
        """Return the key of a row as text for a person."""
        values, key_columns = [], self.recipe.columns[: self.recipe.key_columns]
        for column, ragged in zip(key_columns, columns, strict=False):
            start, size = int(ragged.starts[row]), int(ragged.sizes[row])
            data = ragged.data[start : start + size].tobytes()
            try:
                text = decode_string(column.type, data)
            except (MalformedMessage, ValueDoesNotFit):  # it may be what does not fit
                text = f"x'{data.hex()}'"
            values.append(text if len(text) <= KEY_SHOWN else text[:KEY_SHOWN] + "…")
        return ", ".join(values)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Published names of the columns that are the key, in tuple order."""
        return self.names[: self.recipe.key_columns]

    def key_bytes(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the key bytes of each row, binary [rows], from a batch that holds the key columns.

        They are those that KEY has: a slice of the row bytes, whose columns are joined alike.
        """
        keys = zip(self.recipe.key, self.names, self.carriers, strict=False)
        block = join([from_arrow(c, batch.column(name), carrier) for c, name, carrier in keys])
        starts = block.starts[:-1] + 2  # behind the number of columns
        sizes = block.starts[1:] - starts
        every = np.ones(len(block), np.bool_)
        return variable_array_of(pa.binary(), every, sizes, pick(block.buffer, starts, sizes))

    def row_bytes(self, batch: pa.RecordBatch) -> Block:
        """Return the row bytes of a batch that holds at least the data columns."""
        columns = zip(self.recipe.columns, self.names, self.carriers, strict=True)
        return join([from_arrow(c, batch.column(name), carrier) for c, name, carrier in columns])


def lay_out(
    recipe: Recipe,
    carriers: dict[str, Carrier],
    *,
    where: str,
    given: Mapping[str, str] | None = None,
) -> Layout:
    """Return the layout of a recipe with the carriers of the fragment's configuration.

    given: `Layout.published_names` of the version before. A column keeps its name, and no other one
    gets it: who reads a name must never find the values of another column under it.

    Raises:
        ConfigurationError: a carrier is given for a column that does not exist, or a column has a
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
    given = given or {}
    taken = {name.lower() for name in (*FEED_NAMES, *given.values())}
    for i in _published_order(recipe):
        name = recipe.columns[i].name
        if name.lower().startswith(RESERVED):
            raise ConfigurationError(
                f"The column {name!r} has a name reserved for bookkeeping.",
                where=where,
                remedy="Ask the DBA to serve it under another name.",
            )
        names[i] = given.get(name) or _free_name(_FORBIDDEN.sub("_", name) or "_", taken)
    return Layout(
        recipe,
        tuple(carriers.get(c.name, Carrier.NATIVE) for c in recipe.columns),
        tuple(names[i] for i in range(len(recipe.columns))),
        withheld=tuple((name, given[name]) for name in given if name not in known),
    )


def derived(layout: Layout, derivation: Derivation | None) -> Layout:
    """Return the layout of a part of a relation; `layout` is that of the whole relation.

    Columns keep the names that they have in the whole, and the key columns always stay.
    """
    if derivation is None:
        return layout
    recipe, wanted = layout.recipe, derivation.names
    kept = [
        i
        for i, column in enumerate(recipe.columns)
        if i < recipe.key_columns or wanted is None or column.name in wanted
    ]
    rows = "" if derivation.rows is None else text_of(canonical(derivation.rows))
    return replace(
        layout,
        recipe=replace(recipe, columns=tuple(recipe.columns[i] for i in kept), rows=rows),
        carriers=tuple(layout.carriers[i] for i in kept),
        names=tuple(layout.names[i] for i in kept),
        derivation=derivation,
        withheld=tuple(
            (name, published)
            for name, published in layout.published_names.items()
            if name not in {recipe.columns[i].name for i in kept}
        ),
    )


def _published_order(recipe: Recipe) -> tuple[int, ...]:
    columns = recipe.columns
    return tuple(sorted(range(len(columns)), key=lambda i: columns[i].ordinal))


def _free_name(name: str, taken: set[str]) -> str:
    """Return the name, numbered if it is taken, except for case (Delta folds case); and take it."""
    free, number = name, 2
    while free.lower() in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free.lower())
    return free


def quoted(name: str) -> str:
    """Return the name as a Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def to_json(layout: Layout) -> dict[str, object]:
    """Return the layout as JSON for the metadata of a version."""
    columns = zip(layout.recipe.columns, layout.carriers, layout.names, strict=True)
    chosen = layout.derivation
    return {
        "statistics": True,  # as releases ask that declare bookkeeping columns
        CHECKED: True,
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
            for c, carrier, name in columns
        ],
        **({} if chosen is None else {"derivation": derivation_json.to_json(chosen)}),
        **({"withheld": dict(layout.withheld)} if layout.withheld else {}),
    }


def is_checked(data: Mapping[str, object]) -> bool:
    """Return True if columns of a version that are not nullable in this JSON hold no NULL. Older
    releases wrote what the source said before the first load."""
    return bool(data.get(CHECKED))


def from_json(data: dict[str, object]) -> Layout:
    """Return the layout that `to_json` wrote. Raises MalformedMessage: another release did."""
    columns = data["columns"]
    chosen = derivation_json.from_json(data["derivation"]) if "derivation" in data else None
    rows = None if chosen is None else chosen.rows
    version, keys = data["fingerprint_version"], data["key_columns"]
    withheld = data.get("withheld", {})
    assert isinstance(columns, list)
    assert isinstance(withheld, dict)
    assert isinstance(version, int)
    assert isinstance(keys, int)
    types = (Column(c["name"], parse_type(c["type"]), c["nullable"], c["ordinal"]) for c in columns)
    return Layout(
        Recipe(tuple(types), keys, version, "" if rows is None else text_of(canonical(rows))),
        tuple(Carrier(c["carrier"]) for c in columns),
        tuple(c["published"] for c in columns),
        chosen,
        tuple(withheld.items()),
    )
