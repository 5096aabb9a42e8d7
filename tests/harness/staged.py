"""Staged frames and data files of chosen rows, for tests of steps without a source."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from driftline.rows import frames
from driftline.rows.digests import Salt, mix
from driftline.rows.fingerprints import fingerprints
from driftline.values.types import Recipe

from tests.reference.rows import Row
from tests.samples.rows import block, recipe
from warehouse_agent.columns.layout import Layout
from warehouse_agent.storage.data_files import DataFile

KEY, SALT = bytes(range(32)), Salt(1, 2)
FRAME_ROWS = 100


def frames_of(rows: Sequence[Row], made: Recipe) -> list[bytes]:
    """Return rows as a source ships them, under KEY."""
    found = []
    for at in range(0, len(rows), FRAME_ROWS):
        data = block(rows[at : at + FRAME_ROWS])
        digest = mix(SALT, *fingerprints(KEY, made)(data.rows())).digest()
        found.append(frames.encode(data, made, SALT, digest, level=1))
    return found


def any_frame(rows: int = 1) -> bytes:
    """Return a frame of some rows, for tests in which nothing reads them."""
    (frame,) = frames_of([[struct.pack(">q", n)] for n in range(rows)], recipe(["int8"]))
    return frame


def stage(folder: Path, name: str, rows: Sequence[Row], made: Recipe) -> str:
    """Write a staged file of rows; return its URI."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = (struct.pack("<I", len(frame)) + frame for frame in frames_of(rows, made))
    (folder / name).write_bytes(b"".join(pieces))
    return f"file://{folder / name}"


def contents(files: Sequence[DataFile], layout: Layout) -> list[dict[str, Any]]:
    """Return the rows of files in order of their key; each file has its count and bounds of keys.

    Rows are compared by `repr`, for which NaN is NaN, and −0.0 is not 0.0.
    """
    rows = []
    for file in files:
        table = pq.read_table(file.uri.removeprefix("file://"), partitioning=None)
        some = table.select(layout.file_schema.names).cast(layout.file_schema).to_pylist()
        ends = None
        if layout.integer_key is not None and some:
            keys = [row[layout.integer_key] for row in some]
            ends = (min(keys), max(keys))
        assert (file.rows, file.bounds) == (len(some), ends)
        rows += some
    (key,) = layout.key_names
    return sorted(rows, key=lambda row: row[key])
