"""Ragged columns to Arrow arrays and back: the way between row bytes and Spark's types.

Each declared type has a carrier, the Spark type of the published column (protocol, section 2).
`to_arrow` and `from_arrow` convert whole columns with numpy, without a loop over rows for common
types; rare types are converted value by value by `driftline.values.send_format`.

Invariants: from_arrow(to_arrow(r)) == r, byte for byte, for every ragged column that to_arrow
accepts. Bytes that are no value of the type raise MalformedMessage; a value that the carrier cannot
hold raises ValueDoesNotFit, which names it and the remedy, the string carrier. No value is clipped,
rounded or turned into NULL. Executors import this module; it needs no Spark session.

Rejected: pandas (nullable ints become floats, timestamps nanoseconds), and Arrow's casts from and
to text (they normalise).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final

import numpy as np
import pyarrow as pa
from driftline.arrays import Bools, Integers
from driftline.errors import LimitExceeded, MalformedMessage, ValueDoesNotFit
from driftline.rows.columns import NULL, RaggedColumn, integers_at
from driftline.values import send_format
from driftline.values.types import Column, DeclaredType

from warehouse_agent.columns import buffers, numeric
from warehouse_agent.columns import text as carry_text
from warehouse_agent.columns.buffers import Items


class Carrier(Enum):
    """The form of a published column: the Spark type nearest to its own, or a string."""

    NATIVE = "native"
    STRING = "string"


def _is_text(type: pa.DataType) -> bool:
    return type in {pa.string(), pa.large_string(), pa.string_view()}


def _is_octets(type: pa.DataType) -> bool:
    return type in {pa.binary(), pa.large_binary(), pa.binary_view()}


# kind: bytes on the wire, Arrow type, Spark type.
_FIXED: Final[dict[str, tuple[str, pa.DataType, str]]] = {
    "bool": ("u1", pa.bool_(), "boolean"),
    "int2": (">i2", pa.int16(), "smallint"),
    "int4": (">i4", pa.int32(), "int"),
    "int8": (">i8", pa.int64(), "bigint"),
    "oid": (">u4", pa.int64(), "bigint"),
    "float4": (">f4", pa.float32(), "float"),
    "float8": (">f8", pa.float64(), "double"),
    "date": (">i4", pa.date32(), "date"),
    "timestamp": (">i8", pa.timestamp("us"), "timestamp_ntz"),
    "timestamptz": (">i8", pa.timestamp("us", tz="UTC"), "timestamp"),
}
# From PostgreSQL's epoch (2000) to Arrow's (1970), and years 0001 to 9999 as Arrow counts them.
_DAYS_2000: Final = 10_957
_US_2000: Final = _DAYS_2000 * send_format.DAY_US
_DAYS: Final = (-719_162, 2_932_896)
_US: Final = (_DAYS[0] * send_format.DAY_US, (_DAYS[1] + 1) * send_format.DAY_US - 1)
_NAN: Final = {"float4": (">u4", 0x7FC00000), "float8": (">u8", 0x7FF8000000000000)}
# Arrow checks these casts for loss. It does not check float64 to float32 or numbers to text.
_CASTS: Final = (
    (pa.types.is_null, lambda _: True),
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (_is_text, _is_text),
    (_is_octets, _is_octets),
)
ROW: Final = "row"  # the row of the array, in the details of ValueDoesNotFit
_ARROW_STRING_BYTES_MAX: Final = 2**31 - 1  # offsets of Arrow's string are int32


def arrow_type(type: DeclaredType, carrier: Carrier) -> pa.DataType:
    """Return the Arrow type of the published column."""
    return _published(type, carrier)[0]


def spark_type(type: DeclaredType, carrier: Carrier) -> str:
    """Return the Spark type of the published column, as DDL."""
    return _published(type, carrier)[1]


def _published(type: DeclaredType, carrier: Carrier) -> tuple[pa.DataType, str]:
    if carrier is Carrier.NATIVE:
        if type.precision is not None:
            decimal = pa.decimal128(type.precision, type.scale)
            return decimal, f"decimal({type.precision},{type.scale})"
        if type.kind == "bytea":
            return pa.binary(), "binary"
        if type.kind in _FIXED:
            return _FIXED[type.kind][1:]
    return pa.string(), "string"


def to_arrow(column: Column, ragged: RaggedColumn, carrier: Carrier) -> pa.Array:
    """Return the column's values as an Arrow array of arrow_type(column.type, carrier).

    Raises:
        ValueDoesNotFit: the carrier cannot hold a value; names column, value and remedy.
        MalformedMessage: the bytes of a value are not of the declared type.
        LimitExceeded: more than 2 GiB of text in one array.
    """
    if (ragged.lengths < NULL).any() or int(ragged.sizes.sum()) != len(ragged.data):
        raise MalformedMessage("The lengths do not add up to the bytes.", where=column.name)
    kind = column.type.kind
    if kind == "text":
        return _strings(column, ragged, ragged)
    if kind in {"jsonb", "uuid"}:
        unwrap = carry_text.from_jsonb if kind == "jsonb" else carry_text.from_uuid
        texts, fits = unwrap(ragged)
        _check(column, ragged, fits)
        return _strings(column, ragged, texts)
    if carrier is Carrier.NATIVE:
        if kind == "bytea":
            return _variable(column, ragged, pa.binary())
        if column.type.precision is not None:
            return _decimals(column, ragged)
        if kind in _FIXED:
            return _numbers(column, ragged)
    return _texts(column, ragged)


def from_arrow(column: Column, array: pa.Array | pa.ChunkedArray, carrier: Carrier) -> RaggedColumn:
    """Return the bytes of an array's values, the inverse of `to_arrow`.

    The array may be sliced, chunked, of large strings, or of any type that Arrow casts to the
    carrier's without loss.

    Raises:
        ValueDoesNotFit: a value is not of the declared type; names the column.
    """
    kind = column.type.kind
    target = arrow_type(column.type, carrier)
    if target == pa.string():
        rows = _cast(column, array, pa.large_string())
        if kind == "text":
            return buffers.ragged_of(rows)
        if kind == "jsonb":
            return carry_text.to_jsonb(buffers.ragged_of(rows))
        if kind == "uuid":
            uuids, fits = carry_text.to_uuid(buffers.ragged_of(rows))
            if not fits.all():
                raise ValueDoesNotFit("The array holds text that is no uuid.", where=column.name)
            return uuids
        return _bytes_of_texts(column, rows)
    if kind == "bytea":
        return buffers.ragged_of(_cast(column, array, pa.large_binary()))
    rows = _cast(column, array, target)
    if column.type.precision is not None:
        return _bytes_of_decimals(column, rows)
    return _bytes_of_numbers(column, rows)


def text_sizes(column: Column, ragged: RaggedColumn) -> Integers:
    """Return about how many characters the values of a numeric of any precision become, int64
    [rows]: up to 147,000 for ten bytes, because trailing zeros are not sent. 0 for other types."""
    sizes = np.zeros(len(ragged), np.int64)
    if column.type.kind == "numeric" and column.type.precision is None:
        whole = ragged.sizes >= 2 * numeric.HEADER_WORDS
        weights, scales = (
            integers_at(ragged.data, ragged.starts[whole] + 2 * word, 2).astype(np.int64)
            for word in (numeric.WEIGHT_WORD, numeric.SCALE_WORD)
        )
        sizes[whole] = 4 * np.maximum(weights + 1, 1) + np.maximum(scales, 0)
    return sizes


def _check(column: Column, ragged: RaggedColumn, fits: Bools) -> None:
    """Refuse the first value that does not fit; `fits` is bool [values that are not NULL]."""
    if fits.all():
        return
    row = int(np.flatnonzero(ragged.lengths >= 0)[fits.argmin()])
    start, size = int(ragged.starts[row]), int(ragged.sizes[row])
    text = _decoded(column, ragged.data[start : start + size].tobytes())
    shown = text if len(text) <= 60 else text[:60] + "…"
    raise ValueDoesNotFit(
        f"The {column.type} value {shown!r} of column {column.name!r} does not fit into "
        f"{spark_type(column.type, Carrier.NATIVE)}.",
        remedy=as_strings([column.name]),
        where=column.name,
        details={ROW: str(row), "value": shown},
    )


def as_strings(names: Sequence[str]) -> str:
    """Return what to do about columns with values that do not fit."""
    keys = [n if re.fullmatch(r"[A-Za-z0-9_-]+", n) else f'"{n}"' for n in names]
    carriers = ", ".join(f'{key} = "string"' for key in keys)
    return (
        f"Set carriers = {{{carriers}}} in its section [fragments.…] of warehouse.toml; if it has a"
        " version, refresh it with --accept-schema."
    )


def _decoded(column: Column, data: bytes, row: int | None = None) -> str:
    """Return the string form of a value; `row` of the array is named if it does not fit."""
    try:
        return send_format.decode_string(column.type, data)
    except (MalformedMessage, ValueDoesNotFit) as error:
        details = {} if row is None else {ROW: str(row)}
        raise type(error)(
            error.message, remedy=error.remedy, where=column.name, details=details
        ) from None


def _numbers(column: Column, ragged: RaggedColumn) -> pa.Array:
    kind, present = column.type.kind, ragged.lengths >= 0
    form, target, _ = _FIXED[kind]
    _check(column, ragged, ragged.lengths[present] == column.type.width)
    numbers = np.ascontiguousarray(ragged.data).view(form)
    if kind == "bool":
        _check(column, ragged, numbers <= 1)
        return buffers.array_of(
            target, present, np.packbits(buffers.spread(numbers, present), bitorder="little")
        )
    if kind in _NAN:
        bits, canonical = _NAN[kind]
        _check(column, ragged, ~np.isnan(numbers) | (numbers.view(bits) == canonical))
    elif kind == "date":
        _check(
            column, ragged, (numbers >= _DAYS[0] - _DAYS_2000) & (numbers <= _DAYS[1] - _DAYS_2000)
        )
        numbers = numbers.astype(np.int32) + np.int32(_DAYS_2000)
    elif kind in {"timestamp", "timestamptz"}:
        _check(column, ragged, (numbers >= _US[0] - _US_2000) & (numbers <= _US[1] - _US_2000))
        numbers = numbers.astype(np.int64) + _US_2000
    native = np.int64 if kind == "oid" else numbers.dtype.newbyteorder("=")
    return buffers.array_of(target, present, buffers.spread(numbers.astype(native), present))


def _decimals(column: Column, ragged: RaggedColumn) -> pa.Array:
    words, fits = numeric.decode(ragged, column.type)
    _check(column, ragged, fits)
    present = ragged.lengths >= 0
    type = arrow_type(column.type, Carrier.NATIVE)
    return buffers.array_of(type, present, buffers.spread(words, present))


def _variable(column: Column, ragged: RaggedColumn, type: pa.DataType) -> pa.Array:
    if len(ragged.data) > _ARROW_STRING_BYTES_MAX:
        raise LimitExceeded("More than 2 GiB of values in one array.", where=column.name)
    return buffers.variable_array_of(type, ragged.lengths >= 0, ragged.sizes, ragged.data)


def _strings(column: Column, origin: RaggedColumn, texts: RaggedColumn) -> pa.Array:
    """Return an array of `texts`, which were made from the values of `origin`."""
    array = _variable(column, texts, pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for row, data in enumerate(carry_text.each(origin)):
            if data is not None:
                _decoded(column, data, row)
        raise
    return array


def _texts(column: Column, ragged: RaggedColumn) -> pa.Array:
    texts = [None if data is None else _decoded(column, data) for data in carry_text.each(ragged)]
    return pa.array(texts, pa.string())


def _cast(column: Column, array: pa.Array | pa.ChunkedArray, type: pa.DataType) -> pa.Array:
    """Return one contiguous array of the type; cast only where Arrow notices any loss."""
    if array.type != type and not any(a(array.type) and b(type) for a, b in _CASTS):
        raise ValueDoesNotFit(f"Arrow's {array.type} is not {type}.", where=column.name)
    try:
        array = array if array.type == type else array.cast(type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueDoesNotFit(
            f"Arrow's {array.type} is not {type} without loss: {error}", where=column.name
        ) from error
    if isinstance(array, pa.ChunkedArray):
        return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type)
    return array


def _bytes_of_numbers(column: Column, array: pa.Array) -> RaggedColumn:
    kind, present = column.type.kind, buffers.present_in(array)
    form = _FIXED[kind][0]
    numbers: Items
    if kind == "bool":
        numbers = buffers.bits_of(array.buffers()[1], array) if len(array) else present
    else:
        native = np.dtype(form).newbyteorder("=") if kind != "oid" else np.dtype(np.int64)
        numbers = buffers.items_of(array, native)
    numbers = numbers if present.all() else numbers[present]
    if kind == "oid":
        _check_range(column, numbers, (0, 2**32 - 1))
    elif kind == "date":
        _check_range(column, numbers, _DAYS)
        numbers = numbers - np.int32(_DAYS_2000)
    elif kind in {"timestamp", "timestamptz"}:
        _check_range(column, numbers, _US)
        numbers = numbers - _US_2000
    numbers = numbers.astype(form)
    if kind in _NAN:
        bits, canonical = _NAN[kind]
        numbers.view(bits)[np.isnan(numbers)] = canonical
    lengths = np.where(present, np.dtype(form).itemsize, NULL).astype(np.int32)
    return RaggedColumn(lengths, numbers.view(np.uint8))


def _check_range(column: Column, numbers: Items, bounds: tuple[int, int]) -> None:
    low, high = bounds
    if len(numbers) and not (low <= numbers.min() and numbers.max() <= high):
        raise ValueDoesNotFit(
            f"The array holds values that no {column.type} has been published as.",
            where=column.name,
        )


def _bytes_of_decimals(column: Column, array: pa.Array) -> RaggedColumn:
    present = buffers.present_in(array)
    words = buffers.items_of(array, np.int64, 2).reshape(-1, 2)
    words = words if present.all() else words[present]
    sizes, data, fits = numeric.encode(words, column.type)
    if not fits.all():
        raise ValueDoesNotFit(f"The array holds more than {column.type}.", where=column.name)
    lengths = np.full(len(array), NULL, np.int32)
    lengths[present] = sizes
    return RaggedColumn(lengths, data)


def _bytes_of_texts(column: Column, array: pa.Array) -> RaggedColumn:
    encode = send_format.string_encoder(column.type)
    try:
        encoded = [None if text is None else encode(text) for text in array.to_pylist()]
    except ValueDoesNotFit as error:
        raise ValueDoesNotFit(error.message, remedy=error.remedy, where=column.name) from None
    lengths = [NULL if data is None else len(data) for data in encoded]
    whole = b"".join(data for data in encoded if data is not None)
    return RaggedColumn(np.array(lengths, np.int32), np.frombuffer(whole, np.uint8))
