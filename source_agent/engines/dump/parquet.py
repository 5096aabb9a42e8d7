"""Dump files: Parquet, through Arrow, which only this module and `parquet_types` import.

Arrow's columns become Python's values in one call each, instants as integers of microseconds. A
column of another type than the format declares is refused (`parquet_types`); the types of columns
that are not asked for are of no interest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from driftline.errors import ConfigurationError, DatabaseRefused, ValueDoesNotFit
from driftline.values.send_format import string_encoder
from driftline.values.times import DAY_US
from driftline.values.types import DeclaredType

from source_agent.engines.dump import parquet_types
from source_agent.engines.dump.blocks import FileBlock
from source_agent.engines.dump.formats import FileFormat
from source_agent.engines.dump.values import Encoders
from source_agent.engines.encoding import rows
from source_agent.engines.encoding.plain_values import (
    BytesEncoder,
    ColumnEncoder,
    FixedWidthEncoder,
)
from source_agent.engines.interface import BATCH_BYTES, BATCH_ROWS

_EPOCH_DAYS: Final = 10_957  # from 1970 to 2000, the epoch of the protocol
_EPOCH_US: Final = 946_684_800_000_000
_INT64: Final = (-(2**63), 2**63 - 1)  # the infinities of the protocol, as those of int32
_INT32: Final = (-(2**31), 2**31 - 1)
_INFINITE: Final = "DuckDB"  # writes infinite instants as the ends of their integers


def blocks(
    file: BinaryIO, format: FileFormat, wanted: Sequence[int], name: str
) -> Iterator[FileBlock]:
    """Yield the rows of a Parquet file; see `delimited.blocks`.

    Raises:
        ConfigurationError: other columns than the format declares.
        DatabaseRefused: it is no Parquet, or damaged.
        ValueDoesNotFit: an instant with less than a microsecond.
    """
    try:
        source = _opened(file, "us")
        schemas = _check_columns(source, format, wanted, name)
        kinds = {format.names[at]: format.types[at].kind for at in wanted}
        old = [column for column in kinds if schemas[column].physical_type == "INT96"]
        has_infinity = source.metadata.created_by.startswith(_INFINITE)
        done = 0
        for batch in _batches(source, file, list(kinds), old):
            if batch.num_rows:
                columns = [
                    parquet_types.values(batch.column(column), kind, has_infinity=has_infinity)
                    for column, kind in kinds.items()
                ]
                yield FileBlock(batch.num_rows, columns, _place(done))
            done += batch.num_rows
    except pa.ArrowInvalid as error:
        raise _unfit(error, name) from None
    except (pa.ArrowException, OSError) as error:
        raise _damaged(error, name) from None


def _place(before: int) -> Callable[[int], str]:
    return lambda row: f"row {before + row + 1:,}"


def _batch_rows(source: pq.ParquetFile) -> int:
    """Return a number of rows that has about BATCH_BYTES."""
    groups = [source.metadata.row_group(i) for i in range(source.metadata.num_row_groups)]
    widest = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=1)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(widest, 1)))


def _opened(file: BinaryIO, unit: str) -> pq.ParquetFile:
    """Return the file; `unit` is that of instants in 96 bits, which have nanoseconds."""
    return pq.ParquetFile(
        file, pre_buffer=False, buffer_size=1 << 20, coerce_int96_timestamp_unit=unit
    )


def _batches(
    source: pq.ParquetFile, file: BinaryIO, names: list[str], old: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows. Raise ArrowInvalid if an instant in 96 bits has less than a microsecond.

    Arrow cuts these to microseconds. As nanoseconds they wrap in 64 bits before 1677 and after
    2262, and differ from the cut ones by what was cut, whether they wrapped or not.
    """
    rows = _batch_rows(source)
    batches = source.iter_batches(rows, columns=names, use_threads=False)
    if not old:
        yield from batches
        return
    exact = _opened(file, "ns").iter_batches(rows, columns=old, use_threads=False)
    for batch, fine in zip(batches, exact, strict=True):
        for name in old:
            whole, parts = (_integers(b.column(name)) for b in (batch, fine))
            if (whole * np.uint64(1000) != parts).any():
                raise pa.ArrowInvalid(f"{name!r} would lose data")
        yield batch


def _integers(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    numbers: np.ndarray[tuple[int], np.dtype[np.uint64]] = (
        column.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64)
    )
    return numbers


def _check_columns(
    source: pq.ParquetFile, format: FileFormat, wanted: Sequence[int], name: str
) -> Mapping[str, pq.ColumnSchema]:
    """Return the flat columns by name. All names and the wanted types must be the format's."""
    schema = source.schema_arrow
    if list(schema.names) != list(format.names):
        raise ConfigurationError(
            f"The columns of {name!r} are {', '.join(schema.names)}, and {format.file} names"
            f" {', '.join(format.names)}.",
            remedy=f"Correct {format.file}, and tell the data engineer.",
            abroad="The columns of its file are not those of its format.",
        )
    leaves = (source.schema.column(i) for i in range(len(source.schema)))
    flat = {leaf.path: leaf for leaf in leaves if leaf.path == leaf.name}
    for at in wanted:
        column, declared = format.names[at], format.types[at]
        leaf = None if pa.types.is_nested(schema.field(at).type) else flat.get(column)
        kinds = () if leaf is None or leaf.max_repetition_level else parquet_types.declarable(leaf)
        if declared in kinds or (leaf is not None and parquet_types.is_empty(leaf)):
            continue
        said = "nested" if leaf is None else parquet_types.described(leaf)
        raise ConfigurationError(
            f"The column {column!r} of {name!r} is {said}, which is not {declared}.",
            remedy=f"Declare it {' or '.join(map(str, kinds))}."
            if kinds
            else "This type of Parquet is not read: leave it out by `columns` of the relation.",
            where=f"{format.file}: columns.{column}",
            abroad="A column of its file has another type than its format says.",
        )
    return flat


def encoders() -> Encoders:
    """Return the encoders of a Parquet file's values, by form (`values.form_of`)."""
    return {
        "integer": lambda type: FixedWidthEncoder(type.kind),
        "numeric": _decimals,
        "float": lambda type: FixedWidthEncoder(type.kind, convert=_one_nan),
        "bool": lambda type: FixedWidthEncoder(type.kind),
        "text": lambda _: BytesEncoder(rows.check_utf8),
        "bytea": lambda _: BytesEncoder(),
        "string": _others,
    }


def _decimals(type: DeclaredType) -> ColumnEncoder:
    encode = rows.decimal_encoder(type)
    define = string_encoder(type)

    def one(value: Decimal | int) -> bytes:
        text = str(value) if isinstance(value, int) else format(value, "f")
        return define(text) if type.precision is None else encode(text.encode())

    return rows.variable(one)


def _one_nan(value: float) -> float:
    return value if value == value else math.nan  # noqa: PLR0124 - only NaN differs from itself


def _others(type: DeclaredType) -> ColumnEncoder:
    if type.kind == "date":
        return FixedWidthEncoder(
            "int4", convert=partial(_since_2000, epoch=_EPOCH_DAYS, ends=_INT32)
        )
    if type.kind in {"timestamp", "timestamptz"}:
        return FixedWidthEncoder("int8", convert=partial(_since_2000, epoch=_EPOCH_US, ends=_INT64))
    if type.kind == "time":
        return FixedWidthEncoder("int8", convert=_clock)
    if type.kind == "uuid":
        return BytesEncoder()
    return rows.from_text(type)  # of a column without a value


def _clock(us: int) -> int:
    if not 0 <= us <= DAY_US:
        raise ValueDoesNotFit("no time of a day")
    return us


def _since_2000(moment: float, *, epoch: int, ends: tuple[int, int]) -> int:
    """Return days or microseconds since 2000. The ends are infinite, and no other moment is one."""
    if moment in {math.inf, -math.inf}:
        return ends[moment > 0]
    elapsed = int(moment) - epoch
    if not ends[0] < elapsed < ends[1]:
        raise ValueDoesNotFit("a moment that its type does not hold")
    return elapsed


def _unfit(error: pa.ArrowInvalid, name: str) -> ValueDoesNotFit | DatabaseRefused:
    if "would lose data" in str(error):
        return ValueDoesNotFit(
            f"The file {name!r} has an instant that is no whole microsecond: {error}.",
            remedy="Write timestamps in microseconds.",
        )
    if "out of bounds" in str(error):
        return ValueDoesNotFit(
            f"The file {name!r} has an instant that 64 bits of microseconds do not hold: {error}.",
            remedy="Write NULL, or an instant that a database knows, for what has no end.",
        )
    return _damaged(error, name)


def _damaged(error: Exception, name: str) -> DatabaseRefused:
    return DatabaseRefused(
        f"The file {name!r} is no Parquet file, or is damaged: {error}.",
        remedy="Deliver it again, and mark it as complete only then.",
        abroad="Its file is no Parquet file, or is damaged.",
    )
