"""Data files are written as long as the disk has its reserve, and one that fails is not there."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pytest
from driftline.errors import WarehouseUnavailable

from tests.harness.object_stores import Moto
from warehouse_agent.storage import store
from warehouse_agent.tasks import write
from warehouse_agent.tasks.write import Sink

FREE, TOTAL, ROW_GROUP = 10_000, 1_000_000, 1_000


class _Disk:
    """A file system that has as much less room as is written to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.total = folder, TOTAL

    @property
    def free(self) -> int:
        return FREE - sum(file.stat().st_size for file in self.folder.iterdir())


def test_a_disk_keeps_its_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged frames are bounded by the room for them, and may be a hundredth of their rows: these
    end, too, and leave no file."""
    monkeypatch.setattr(write, "ROW_GROUP_BYTES", ROW_GROUP)
    monkeypatch.setattr(store, "RESERVE_BYTES", FREE // 2)
    monkeypatch.setattr(store, "RESERVE_SHARE", 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Disk(tmp_path))
    batch = pa.record_batch({"id": pa.array(range(ROW_GROUP // 4), pa.int64())})
    least = FREE
    with Sink(f"file://{tmp_path}", "rows", batch.schema) as sink:

        def fill() -> None:
            nonlocal least
            for _ in range(100):
                sink.add(batch)
                least = min(least, _Disk(tmp_path).free)

        with pytest.raises(WarehouseUnavailable, match=r"nearly full.*a reserve of 5,000"):
            fill()
    assert 0 < least < FREE // 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.starts
@pytest.mark.parametrize("place", ["disk", "moto"])
@pytest.mark.parametrize("rows", [10, 1_200_000], ids=["one put", "an upload in parts"])
def test_a_failure_leaves_no_file(
    place: str, rows: int, tmp_path: Path, moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that fails after its file is begun, and one that does not."""
    monkeypatch.setattr(write, "ROW_GROUP_BYTES", 1)
    bucket = moto.bucket()
    at = (
        store.Store(str(tmp_path))
        if place == "disk"
        else store.Store(bucket.root, storage=bucket.settings)
    )
    at.make_folder("t")
    batch = pa.record_batch({"x": pa.array([secrets.token_bytes(16) for _ in range(rows)])})

    def fail() -> None:
        with Sink(at.uri("t"), "rows", batch.schema) as sink:
            sink.add(batch)
            raise RuntimeError("of the task")

    with pytest.raises(RuntimeError, match="of the task"):
        fail()
    assert not at.walk("t")
    if place == "moto":
        assert "Uploads" not in moto.client("s3").list_multipart_uploads(Bucket=bucket.name)
    with Sink(at.uri("t"), "rows", batch.schema) as sink:
        sink.add(batch)
        (row,) = sink.finish()
    (file,) = at.walk("t")
    assert row["size"].to_pylist() == [file.size]
