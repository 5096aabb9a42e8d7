"""What `doctor` and each executor try in the warehouse's folder, and what it finds."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from driftline.errors import WarehouseUnavailable

from tests.harness.object_stores import Bucket
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.backends.disk import Disk
from warehouse_agent.storage.delta_trial import try_delta
from warehouse_agent.storage.place_trial import try_folder
from warehouse_agent.storage.store import PRIVATE, Store


class Forgetful(Disk):
    """A place that says that it wrote, and did not."""

    def write_new(self, path: str, data: bytes, *, private: bool) -> bool:
        return data == b"0"


def test_a_disk_that_is_well(tmp_path: Path) -> None:
    try_folder(f"file://{tmp_path}")
    assert not list(tmp_path.rglob("*"))


def test_a_bucket_that_is_well(bucket: Bucket) -> None:
    store = Store(bucket.root, storage=bucket.settings)
    place = (PRIVATE, "executors", "one")
    try_folder(store.uri(*place))
    try_delta(store, *place)
    store.remove(*place)
    assert store.walk() == []


def test_what_does_not_read_back(tmp_path: Path) -> None:
    with (
        mock.patch.object(known, "_disk", Forgetful),
        pytest.raises(WarehouseUnavailable, match="what was written does not read back"),
    ):
        try_folder(f"file://{tmp_path}")
