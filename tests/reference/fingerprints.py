"""The reference for protocol section 5: row keys, fingerprints and recipe ids.

Types are named by their text; a recipe is a list of (name, type) and the number of key columns. The
layout of the list behind a recipe id is that of `types.recipe_id`, which the protocol refers to:
version, zero byte, number of key columns, zero byte; per column the length of its name, a colon,
the name, the type, a zero byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3


def row_key(fragment_key: bytes, types: Sequence[str], version: int = 1) -> bytes:
    message = b"driftline fingerprint " + str(version).encode() + b"\0"
    for type in types:
        message += type.encode("utf-8") + b"\0"
    return blake3(message, key=fragment_key).digest()


def fingerprint(row: bytes, row_key: bytes) -> bytes:
    """16 bytes: the lanes hi and lo, little-endian."""
    return blake3(row, key=row_key).digest()[:16]


def lanes(fingerprint: bytes) -> tuple[int, int]:
    """(hi, lo), signed."""
    return (
        int.from_bytes(fingerprint[:8], "little", signed=True),
        int.from_bytes(fingerprint[8:], "little", signed=True),
    )


def recipe_id(
    columns: Sequence[tuple[str, str]], key_columns: int, version: int = 1, rows: str = ""
) -> bytes:
    data = str(version).encode() + b"\0" + str(key_columns).encode() + b"\0"
    for name, type in columns:
        written = name.encode("utf-8")
        data += str(len(written)).encode() + b":" + written + type.encode() + b"\0"
    if rows:
        data += b"rows" + b"\0" + rows.encode("utf-8")
    return blake3(data).digest()[:16]
