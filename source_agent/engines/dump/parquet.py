"""Dump files: Parquet, through Arrow. No other module of the source agent imports Arrow.

Arrow's columns become Python's values in one call each, instants as integers of microseconds. A
column of another type than the format declares is refused: nothing is converted but the width of
integers and the unit of instants, where no digit is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from driftline.errors import ConfigurationError, DatabaseRefused, ValueDoesNotFit
from driftline.types import DeclaredType

from source_agent.engines.dump.blocks import Block, Column
from source_agent.engines.dump.formats import Format
from source_agent.engines.dump.values import Encoders
from source_agent.engines.encoding import rows
from source_agent.engines.encoding.plain_values import ColumnEncoder, Fixed, Raw
from source_agent.engines.interface import BATCH_BYTES, BATCH_ROWS

_EPOCH_DAYS: Final = 10_957  # from 1970 to 2000, the epoch of the protocol
_EPOCH_US: Final = 946_684_800_000_000
_TYPES: Final = (
    (pa.types.is_boolean, "bool"),
    (lambda t: t in {pa.int8(), pa.uint8(), pa.int16()}, "int2"),
    (lambda t: t in {pa.uint16(), pa.int32()}, "int4"),
    (lambda t: t in {pa.uint32(), pa.int64()}, "int8"),
    (pa.types.is_float32, "float4"),
    (pa.types.is_float64, "float8"),
    (pa.types.is_date32, "date"),
    (lambda t: pa.types.is_string(t) or pa.types.is_large_string(t), "text"),
    (lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t), "bytea"),
    (lambda t: pa.types.is_timestamp(t) and t.tz is None, "timestamp"),
    (lambda t: pa.types.is_timestamp(t) and t.tz is not None, "timestamptz"),
)


def blocks(file: BinaryIO, format: Format, wanted: Sequence[int], name: str) -> Iterator[Block]:
    """Yield the rows of a Parquet file; see `delimited.blocks`.

    Raises:
        ConfigurationError: other columns than the format declares.
        DatabaseRefused: it is no Parquet, or damaged.
        ValueDoesNotFit: an instant with less than a microsecond.
    """
    try:
        source = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        _check_columns(source.schema_arrow, format, name)
        names = [format.names[at] for at in wanted]
        done = 0
        for batch in source.iter_batches(_batch_rows(source), columns=names, use_threads=False):
            if batch.num_rows:
                columns = [_values(batch.column(column)) for column in names]
                yield Block(batch.num_rows, columns, _place(done))
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


def _values(column: pa.Array) -> Column:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    found: Column = column.to_pylist()
    return found


def _check_columns(schema: pa.Schema, format: Format, name: str) -> None:
    if list(schema.names) != list(format.names):
        raise ConfigurationError(
            f"The columns of {name!r} are {', '.join(schema.names)}, and {format.file} names"
            f" {', '.join(format.names)}.",
            remedy=f"Correct {format.file}, and tell the data engineer.",
        )
    for field, declared in zip(schema, format.types, strict=True):
        found = _declared(field.type)
        if found != declared:
            raise ConfigurationError(
                f"The column {field.name!r} of {name!r} is {field.type}, which is not {declared}.",
                remedy=f"Declare it {found}." if found else "This type of Parquet is not read.",
                where=f"{format.file}: columns.{field.name}",
            )


def _declared(type: pa.DataType) -> DeclaredType | None:
    if pa.types.is_decimal128(type) and 0 <= type.scale <= type.precision:
        return DeclaredType("numeric", type.precision, type.scale)
    return next((DeclaredType(kind) for test, kind in _TYPES if test(type)), None)


def encoders() -> Encoders:
    """Return the encoders of a Parquet file's values, by form (`values.form_of`)."""
    return {
        "integer": lambda type: Fixed(type.kind),
        "numeric": _decimals,
        "float": lambda type: Fixed(type.kind, convert=_one_nan),
        "bool": lambda type: Fixed(type.kind),
        "text": lambda _: Raw(rows.check_utf8),
        "bytea": lambda _: Raw(),
        "string": _others,
    }


def _decimals(type: DeclaredType) -> ColumnEncoder:
    encode = rows.decimal_encoder(type)

    def one(value: Decimal) -> bytes:
        return encode(format(value, "f").encode())

    return rows.variable(one)


def _one_nan(value: float) -> float:
    return value if value == value else math.nan  # noqa: PLR0124 - only NaN differs from itself


def _others(type: DeclaredType) -> ColumnEncoder:
    if type.kind == "date":
        return Fixed("int4", convert=lambda days: days - _EPOCH_DAYS)
    if type.kind in {"timestamp", "timestamptz"}:
        return Fixed("int8", convert=lambda us: us - _EPOCH_US)
    raise AssertionError(f"no column of Parquet is {type}")


def _unfit(error: pa.ArrowInvalid, name: str) -> ValueDoesNotFit | DatabaseRefused:
    if "would lose data" in str(error):
        return ValueDoesNotFit(
            f"The file {name!r} has an instant that is no whole microsecond: {error}.",
            remedy="Write timestamps in microseconds.",
        )
    return _damaged(error, name)


def _damaged(error: Exception, name: str) -> DatabaseRefused:
    return DatabaseRefused(
        f"The file {name!r} is no Parquet file, or is damaged: {error}.",
        remedy="Deliver it again, and mark it as complete only then.",
    )
