"""A handle that was opened with keys of a profile commits with those that the profile has then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from driftline.errors import Locked, WarehouseUnavailable

from tests.harness.object_stores import NEXT_ACCESS_KEY, NEXT_SECRET_KEY, SeaweedFS
from tests.warehouse_agent.storage.test_not_null import TIGHT
from tests.warehouse_agent.storage.test_table_formats import RECORD
from tests.warehouse_agent.visible_versions.test_members import fragment
from warehouse_agent.storage import formats
from warehouse_agent.storage.opened_table import pinned, with_keys_of_now
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion
from warehouse_agent.visible_versions import warehouse_versions

Turn = Callable[[str, str], None]


@pytest.fixture
def store(seaweedfs: SeaweedFS, tmp_path: Path) -> Store:
    bucket = seaweedfs.bucket()
    (tmp_path / "keys").write_text(bucket.credentials.read_text())
    settings = replace(bucket.settings, credentials_file=tmp_path / "keys")
    return Store(bucket.root, storage=settings)


@pytest.fixture
def turn(tmp_path: Path) -> Turn:
    """Write other keys into the profile."""

    def write(access: str, secret: str) -> None:
        text = f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"
        (tmp_path / "keys").write_text(text)

    return write


def test_a_table(store: Store, turn: Turn) -> None:
    formats.commit(store, "t", NewVersion(None, TIGHT, [], (), RECORD))
    base = formats.head(store, "t")
    assert base is not None
    assert with_keys_of_now(store, "t", pinned(base)) is pinned(base), "nothing is asked"
    new = NewVersion(base, base.layout, [], (), RECORD)
    turn("NOBODY", "of-no-use")
    with pytest.raises(WarehouseUnavailable, match="InvalidAccessKeyId"):
        formats.commit(store, "t", new)
    turn(NEXT_ACCESS_KEY, NEXT_SECRET_KEY)
    assert formats.commit(store, "t", new) == 1
    other = replace(new, record=replace(RECORD, rows_updated=1))
    with pytest.raises(Locked):
        formats.commit(store, "t", other)
    assert formats.entries(store, "t", base), "the log is read with them as well"


def test_the_table_of_versions(store: Store, turn: Turn) -> None:
    def members(number: int) -> dict[str, object]:
        return {"t": fragment("t", number)}

    first = warehouse_versions.flip(store, lambda _: members(0))  # type: ignore[arg-type, return-value]
    assert first is not None
    turn(NEXT_ACCESS_KEY, NEXT_SECRET_KEY)
    assert warehouse_versions._commit(store, first, members(1))  # type: ignore[arg-type]
    assert not warehouse_versions._commit(store, first, members(2)), "overtaken"  # type: ignore[arg-type]
