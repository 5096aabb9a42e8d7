"""Taking up staged rows: what a task holds is bounded, whatever rows a source sent."""

from __future__ import annotations

import struct
from pathlib import Path

from driftline.reconciliation.chunks import longest
from driftline.rows import frames
from driftline.rows.digests import Digest, Salt, mix
from driftline.rows.fingerprints import fingerprints
from driftline.values.types import Recipe

from tests.samples.rows import block, recipe
from warehouse_agent.columns.layout import lay_out
from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.staged_chunks import ChunkedRows
from warehouse_agent.tasks.staged_rows import NO_ROWS, Gap, StagedFrames, StagedRowReader
from warehouse_agent.tasks.staging import frames_of

KEY, SALT = bytes(range(32)), Salt(1, 2)
MADE: Recipe = recipe(["int8", "text"])
STAMP = StatisticsStamp(0, 1e9, 86_400.0, VersionClock(), 1, 1.0)
SHIFT = 12


def test_the_same_row_again_and_again(tmp_path: Path) -> None:
    """Rows that are not unique may have no end of a chunk among them."""
    (tmp_path / "key").write_bytes(KEY)
    rows = block([[struct.pack(">q", 7), b"x" * 50]] * 1000)
    digest = mix(SALT, *fingerprints(KEY, MADE)(rows.rows())).digest()
    frame = frames.encode(rows, MADE, SALT, digest, level=1)
    staged = tmp_path / "000001-40000.frames"
    staged.write_bytes((struct.pack("<I", len(frame)) + frame) * 40)
    layout, key = lay_out(MADE, {}, where="t"), KeyFile(f"file://{tmp_path / 'key'}")
    reader = StagedRowReader(layout, key, STAMP, NO_ROWS, None)
    with ChunkedRows(f"file://{tmp_path}", layout, SALT, SHIFT) as chunks:
        chunks.add(reader.read_sound([Gap.FIRST, *frames_of(f"file://{staged}")]))
        assert chunks.held * len(rows.rows()[0]) <= longest(SHIFT)
        assert not chunks.finish()


def test_the_size_of_rows_is_known_beside_a_damaged_file(tmp_path: Path) -> None:
    """It decides where a step runs, and how long the list of chunks becomes."""
    rows = block([[struct.pack(">q", i), b"x" * 50] for i in range(100)])
    frame = frames.encode(rows, MADE, SALT, Digest(100, 1), level=1)
    sound, damaged = tmp_path / "000002-100.frames", tmp_path / "000001-100.frames"
    sound.write_bytes(struct.pack("<I", len(frame)) + frame)
    damaged.write_bytes(struct.pack("<I", len(frame)) + bytes(len(frame)))
    uris = [f"file://{file}" for file in (damaged, sound)]
    assert StagedFrames(uris, 2 * len(frame)).row_bytes() == 2 * frames.head(frame).body_bytes
