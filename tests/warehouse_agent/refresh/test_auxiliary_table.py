"""Tests of the stored result of a tile: what it says, and that it is read as it was written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline.errors import Locked
from driftline.relations.activity import CountedActivity
from driftline.rows.digests import Digest, Salt

from tests.harness.staged import any_frame
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import PassSettings, PassSums, tiling
from warehouse_agent.refresh.auxiliary_table import (
    FOLDER,
    Pass,
    _are_there,
    _Frames,
    _packed,
    _unpacked,
)
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks.difference import AllRows, ListedRows, NoDifference, Outcome
from warehouse_agent.tasks.digests import Listing

NONE = ListedRows(Listing.joined(()))
SOME = Listing(
    np.zeros(2, np.int64),
    np.array([3, -7], np.int64),
    np.array([1, 2**64 - 1], np.uint64),
    np.array([0, 5], np.int32),
)
FOUND = Outcome(
    NoDifference(),
    Method.RANGE,
    theirs=Digest(3, 2**100),
    as_of="2026-01-01T00:00:00Z",
    checked_at="2026-01-01T00:00:01Z",
    consistency="exact",
    changed=True,
    vouched=False,
    frame_bytes=77,
    row_security=PolicyDigests("ab", {("t", "p"): "cd"}),
    activity=CountedActivity("ef", 340),
)


SALT = Salt.fresh()


def begun(tmp_path: Path) -> Pass:
    sums = PassSums(tiling([1, 10, 20, 30, 40], 40))
    return Pass(Store(str(tmp_path)), "orders", PassSettings(10), SALT, sums)


def finish(tiles: Pass, tile: int, found: Outcome = FOUND) -> str:
    """Finish a tile that has one file of frames; return their folder."""
    writer = tiles.writer(tile)
    writer.add(any_frame())
    writer.flush()
    tiles.finish(tile, found, writer)
    return writer.folder


def stored(tmp_path: Path, found: Outcome) -> bytes:
    """Finish a tile; return the file of its result."""
    finish(begun(tmp_path), 1, found)
    (file,) = tmp_path.rglob("*.npz")
    return file.read_bytes()


@pytest.mark.parametrize(
    ("found", "arrays"),
    [
        pytest.param(FOUND, 1, id="equal"),
        pytest.param(replace(FOUND, difference=AllRows()), 1, id="everything"),
        pytest.param(replace(FOUND, difference=ListedRows(SOME)), 4, id="listed"),
        pytest.param(replace(FOUND, difference=NONE), 4, id="inserted-only"),
        pytest.param(replace(FOUND, difference=NONE, method=Method.FULL), 1, id="empty-tile"),
    ],
)
def test_a_result_is_read_as_it_was_written(tmp_path: Path, found: Outcome, arrays: int) -> None:
    """A load of an empty tile says that it removed nothing, and lists nothing, as ever."""
    data = stored(tmp_path, found)
    with np.load(tmp_path / next(tmp_path.rglob("*.npz")), allow_pickle=False) as parts:
        facts: dict[str, Any] = json.loads(parts["facts"].tobytes())
        assert len(parts.files) == arrays
    assert facts["has_removed"] == (arrays > 1)
    assert list(facts) == [
        "salt", "folder", "files", "count", "sum", "equal", "replace_all", "has_removed", "method",
        "as_of", "checked_at", "consistency", "changed", "vouched", "frame_bytes", "row_security",
        "activity",
    ]  # fmt: skip
    kept = _unpacked(data, SALT)
    assert kept is not None
    again, frames = kept
    assert (frames.folder[:12], frames.files) == ("pass/000001-", 1)
    assert replace(again, difference=NoDifference()) == replace(found, difference=NoDifference())
    assert type(again.difference) is type(found.difference)
    if isinstance(found.difference, ListedRows) and isinstance(again.difference, ListedRows):
        ours, theirs = found.difference.rows, again.difference.rows
        for name in ("positions", "hashes", "file"):
            assert getattr(theirs, name).tolist() == getattr(ours, name).tolist()


def test_a_damaged_result_is_compared_again(tmp_path: Path) -> None:
    data = stored(tmp_path, FOUND)
    assert _unpacked(data[: len(data) // 2], SALT) is None
    assert _unpacked(b"", SALT) is None
    assert _unpacked(data, Salt.fresh()) is None, "of another pass"
    frames = _Frames("pass/000001-0", 1)
    assert _unpacked(_packed(replace(FOUND, as_of="yesterday"), frames, SALT), SALT) is None


def finished(tmp_path: Path) -> set[int]:
    return {int(file.stem) for file in tmp_path.rglob("*.npz")}


def test_a_tile_is_forgotten_if_one_after_it_says_an_earlier_time(tmp_path: Path) -> None:
    """On the disk, too; one that was spared, or that says the same time, stays."""
    tiles = begun(tmp_path)
    assert tiles.forget_later("2026-01-01T00:00:00Z") == []
    for tile, second in ((2, "02"), (0, "02.5"), (1, "01")):
        finish(tiles, tile, replace(FOUND, as_of=f"2026-01-01T00:00:{second}Z"))
    tiles.resumed_at = 2
    assert tiles.forget_later("2026-01-01T00:00:02.5Z") == []
    assert tiles.forget_later("2026-01-01T00:00:01Z", spared={0}) == [2]
    assert (tiles.unfinished(), finished(tmp_path), tiles.resumed_at) == ([2, 3], {0, 1}, 1)
    assert tiles.forget_later("2025-12-31T23:59:59.999999Z") == [0, 1]
    assert (tiles.unfinished(), finished(tmp_path), tiles.resumed_at) == ([0, 1, 2, 3], set(), 0)


def test_a_tile_that_is_compared_again_is_not_finished(tmp_path: Path) -> None:
    """Its frames go, so its result goes first."""
    tiles = begun(tmp_path)
    finish(tiles, 1)
    finish(tiles, 2)
    tiles.writer(1)
    assert finished(tmp_path) == {2}
    assert [len(tiles.store.files(PRIVATE, "staging", "orders", f)) for f in folders(tiles)] == [1]


def test_two_commands_that_compare_one_tile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks each has frames of its own, and the result that is kept names its own."""
    monkeypatch.setattr(Store, "is_local", property(lambda _: False))
    ours, theirs = begun(tmp_path), begun(tmp_path)
    writer = ours.writer(1)
    writer.add(any_frame())
    writer.flush()
    other = finish(theirs, 1)
    ours.finish(1, FOUND, writer)
    assert other != writer.folder
    assert [len(tiles.staged()) for tiles in (ours, theirs)] == [1, 1]
    (file,) = tmp_path.rglob("*.npz")
    kept = _unpacked(file.read_bytes(), SALT)
    assert kept is not None
    assert kept[1] == _Frames(writer.folder, 1)
    assert _are_there(ours.store, "orders", kept[1])
    ours.store.remove(PRIVATE, "staging", "orders", *writer.folder.split("/"))
    assert not _are_there(ours.store, "orders", kept[1]), "the next pass compares it again"
    with pytest.raises(Locked, match="Rows that came are gone"):
        ours.staged()


def folders(tiles: Pass) -> list[str]:
    found = tiles.store.folders(PRIVATE, "staging", "orders", FOLDER)
    return [f"{FOLDER}/{folder}" for folder in found]
