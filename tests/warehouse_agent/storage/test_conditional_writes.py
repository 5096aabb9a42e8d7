"""A store that lets two writers succeed is found, and one that does not is checked once."""

from __future__ import annotations

import pytest
from driftline.errors import WarehouseUnavailable

from tests.harness.careless_proxy import careless
from tests.harness.object_stores import Bucket, Moto
from warehouse_agent.storage.conditional_writes import FOLDER, check, check_once
from warehouse_agent.storage.store import PRIVATE, Store


def store_of(bucket: Bucket) -> Store:
    return Store(bucket.root, storage=bucket.settings)


def test_a_good_store_is_checked_once(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(bucket)
    check(store)
    assert store.files(PRIVATE, FOLDER) == []
    check_once(store)
    assert [name for name, _ in store.files(PRIVATE, FOLDER)] == ["checked.json"]
    monkeypatch.setattr(Store, "write_new", None)
    check_once(store)


@pytest.mark.parametrize("dropped", ["if-none-match", "if-match"])
def test_a_store_that_lets_two_succeed(moto: Moto, dropped: str) -> None:
    with careless(moto.bucket(), dropped) as bucket:
        for _ in range(2):
            with pytest.raises(WarehouseUnavailable, match="two writers of one file succeed"):
                check_once(store_of(bucket))
        assert store_of(bucket).files(PRIVATE, FOLDER) == []
