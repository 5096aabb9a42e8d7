"""Dump files: the one place that maps the types of Parquet, as a file's own schema says them.

Programs embed a second schema of Arrow beside Parquet's (categories, views, durations). It decides
how Arrow hands a column over, and nothing here: a column is what Parquet says, and its values are
brought to one form, whatever Arrow's type is.

Invariant: no value is changed. Units are converted where no digit is lost; else it is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from driftline.values.types import DeclaredType

from source_agent.engines.dump.blocks import Column

_INT64_MAX: Final = 2**63 - 1
_INT32_MAX: Final = 2**31 - 1
_PRECISION_MAX: Final = 38  # of numeric(p,s) in the protocol; longer ones are numeric
_PHYSICAL: Final = {
    "BOOLEAN": ("bool",), "INT32": ("int4",), "INT64": ("int8",), "FLOAT": ("float4",),
    "DOUBLE": ("float8",), "INT96": ("timestamp", "timestamptz"), "BYTE_ARRAY": ("bytea", "text"),
    "FIXED_LEN_BYTE_ARRAY": ("bytea",),
}  # fmt: skip
_LOGICAL: Final = {
    "STRING": "text", "ENUM": "text", "JSON": "text", "UUID": "uuid", "DATE": "date",
    "TIME": "time",
}  # fmt: skip
_INTEGERS: Final = {
    (8, True): "int2", (8, False): "int2", (16, True): "int2", (16, False): "int4",
    (32, True): "int4", (32, False): "int8", (64, True): "int8",
}  # fmt: skip
EMPTY: Final = "Null"  # the type of a column without a value, which can be declared as any


def described(column: pq.ColumnSchema) -> str:
    """Return the type of a column in Parquet's words."""
    logical = column.logical_type.type
    if logical == "NONE":
        return str(column.physical_type)
    facts = json.loads(column.logical_type.to_json())
    return str(facts.pop("Type")) + "".join(f" {key}={value}" for key, value in facts.items())


def declarable(column: pq.ColumnSchema) -> tuple[DeclaredType, ...]:
    """Return the types that a flat column may be declared as, the usual one first."""
    logical = column.logical_type.type
    said: dict[str, Any] = json.loads(column.logical_type.to_json())
    if logical == "NONE":
        return tuple(DeclaredType(kind) for kind in _PHYSICAL.get(column.physical_type, ()))
    if logical == "INT":
        kind = _INTEGERS.get((said["bitWidth"], said["isSigned"]))
        return (DeclaredType("numeric", 20, 0) if kind is None else DeclaredType(kind),)
    if logical == "TIMESTAMP":
        return (DeclaredType("timestamptz" if said["isAdjustedToUTC"] else "timestamp"),)
    if logical == "DECIMAL":
        precision, scale = said["precision"], said["scale"]
        if not 0 <= scale <= precision:
            return ()
        is_long = precision > _PRECISION_MAX
        return (DeclaredType("numeric") if is_long else DeclaredType("numeric", precision, scale),)
    return (DeclaredType(_LOGICAL[logical]),) if logical in _LOGICAL else ()


def is_empty(column: pq.ColumnSchema) -> bool:
    """Return True if the file says that a column has no value, as pandas does of such objects."""
    said: dict[str, Any] = json.loads(column.logical_type.to_json())
    return bool(said["Type"] == EMPTY)


def values(column: pa.Array, kind: str, *, has_infinity: bool) -> Column:
    """Return a column as values of a declared kind, with None for NULL.

    Days and microseconds of the Unix epoch are integers, or infinite as a float.

    Args:
        column: as Arrow read it.
        kind: of the declared type.
        has_infinity: the file's writer writes infinite instants as the ends of their integers.

    Raises:
        pa.ArrowInvalid: a time or instant that is no whole microsecond, or is out of range.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind in {"text", "bytea", "uuid"}:
        column = _as_bytes(column)
    elif kind == "time":
        column = column.cast(pa.time64("us")).cast(pa.int64())
    elif kind in {"date", "timestamp", "timestamptz"}:
        return _moments(column, has_infinity=has_infinity)
    elif pa.types.is_duration(column.type):
        column = column.cast(pa.int64())
    items: Column = column.to_pylist()
    return items


def _as_bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    return column.cast(pa.large_binary())


def _moments(column: pa.Array, *, has_infinity: bool) -> Column:
    is_date = pa.types.is_date(column.type)
    if pa.types.is_date64(column.type):
        column = column.cast(pa.date32())
    raw = column.cast(pa.int32() if is_date else pa.int64())
    end = _INT32_MAX if is_date else _INT64_MAX
    ends = pc.is_in(raw, pa.array([end, -end], raw.type))
    if not has_infinity or not pc.any(ends).as_py():
        moments: Column = _whole(raw, column.type).to_pylist()
        return moments
    infinite = raw.to_pylist()
    finite = _whole(pc.if_else(ends, pa.scalar(None, raw.type), raw), column.type).to_pylist()
    return [
        math.copysign(math.inf, n) if n in {end, -end} else f
        for n, f in zip(infinite, finite, strict=True)
    ]


def _whole(raw: pa.Array, type: pa.DataType) -> pa.Array:
    if not pa.types.is_timestamp(type):
        return raw
    return raw.cast(pa.timestamp(type.unit)).cast(pa.timestamp("us")).cast(pa.int64())
