"""Counts and the key of a row as text for people: short, and safe to print wherever it ends up.

Row bytes come from the engine beside us and are tuples of the recipe; a value that still does not
decode is shown as hexadecimal rather than hiding the error that it is a sample of.
"""

from __future__ import annotations

from driftline.errors import DriftlineError
from driftline.types import Column, Recipe
from driftline.values import decode_string

VALUE_CHARACTERS_MAX = 60
_BARE = frozenset({"int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bool"})


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 row` or `1,204 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable_row(row: bytes, recipe: Recipe) -> str:
    """Such as `o_orderkey=7` or `code='A\\n', day='2026-01-01'`; NULL is `NULL`."""
    shown = []
    at = 2
    for column in recipe.key:
        length = int.from_bytes(row[at : at + 4], "big", signed=True)
        at += 4
        if length < 0:
            shown.append(f"{column.name}=NULL")
            continue
        shown.append(f"{column.name}={_value(column, row[at : at + length])}")
        at += length
    return ", ".join(shown)


def _value(column: Column, data: bytes) -> str:
    try:
        text = decode_string(column.type, data)
    except DriftlineError:
        return f"0x{data[: VALUE_CHARACTERS_MAX // 2].hex()}"
    cut = text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 1] + "…"
    # repr escapes controls, and the marks that turn the direction of a line.
    return cut if column.type.kind in _BARE else repr(cut)
