"""Counts and the key of a row as short text that is safe to print.

Row bytes come from the engine as tuples of the recipe. A value that does not decode is shown in
hexadecimal, so that an error can still show its sample.
"""

from __future__ import annotations

from driftline.errors import DriftlineError
from driftline.values.send_format import decode_string
from driftline.values.types import Column, Recipe

VALUE_CHARACTERS_MAX = 60
_BARE = frozenset({"int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bool"})


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 row` or `1,204 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable_row(row: bytes, recipe: Recipe) -> str:
    """Return the key of a row, such as `o_orderkey=7` or `code='A', day=NULL`."""
    shown = []
    at = 2
    for column in recipe.key:
        length = int.from_bytes(row[at : at + 4], "big", signed=True)
        at += 4
        value = "NULL" if length < 0 else _value(column, row[at : at + length])
        shown.append(f"{column.name}={value}")
        at += max(length, 0)
    return ", ".join(shown)


def _value(column: Column, data: bytes) -> str:
    try:
        text = decode_string(column.type, data)
    except DriftlineError:
        return f"0x{data[: VALUE_CHARACTERS_MAX // 2].hex()}"
    cut = text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 1] + "…"
    # repr escapes control characters and marks of text direction.
    return cut if column.type.kind in _BARE else repr(cut)
