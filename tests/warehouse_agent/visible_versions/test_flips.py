"""Flips beside those of another command, over real tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from driftline.errors import Locked

from tests.warehouse_agent.storage.test_table_formats import LAYOUT, RECORD
from tests.warehouse_agent.visible_versions.test_members import view
from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.history.notes import Notes
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion, Snapshot
from warehouse_agent.views.inputs import load
from warehouse_agent.visible_versions import flips
from warehouse_agent.visible_versions.flips import Flips, fragment_member
from warehouse_agent.visible_versions.members import Member

TOML = """
[warehouse]
path = "{}"
[sources.erp]
address = "127.0.0.1:1"
insecure = true
[fragments.orders]
source = "erp"
[fragments.other]
source = "erp"
[views.joined]
query = "SELECT o.c0 FROM orders o"
"""


@pytest.fixture
def config(tmp_path: Path) -> WarehouseConfig:
    file = tmp_path / "warehouse.toml"
    file.write_text(TOML.format(tmp_path / "warehouse"))
    return load(file)


def committed(config: WarehouseConfig, name: str) -> Member:
    """Commit the next version of a fragment; return its member."""
    store = Store.of(config)
    new = NewVersion(formats.head(store, name), LAYOUT, (), (), RECORD)
    formats.commit(store, name, new)
    newest = formats.head(store, name)
    assert newest is not None
    return fragment_member(store, config.fragments[name], newest)


def versions(config: WarehouseConfig) -> dict[str, int]:
    newest = Flips(Store.of(config), config).newest()
    return {} if newest is None else {name: m.version for name, m in newest.members.items()}


def overtaken_once(config: WarehouseConfig, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Let another command commit and flip `other` when its head was read for the n-th time."""
    calls = 0

    def member(
        store: Store, fragment: Fragment, snapshot: Snapshot, notes: Notes | None = None
    ) -> Member:
        nonlocal calls
        found = fragment_member(store, fragment, snapshot, notes)
        calls += fragment.name == "other"
        if calls == call and fragment.name == "other":
            news = committed(config, "other")
            Flips(store, config).committed(config.fragments["other"], news.version)
        return found

    monkeypatch.setattr(flips, "fragment_member", member)


def test_a_fragment_never_moves_backwards(
    config: WarehouseConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, _ = committed(config, "orders"), committed(config, "other")
    ours = Flips(Store.of(config), config)
    # Another command flips it while the table begins.
    overtaken_once(config, monkeypatch, call=2)
    ours.move([orders, view("joined", 0, orders=0)], {}, ["orders", "joined"])
    assert versions(config) == {"orders": 0, "other": 1, "joined": 0}
    # Another one flips it between our commit and our flip.
    monkeypatch.setattr(flips, "fragment_member", fragment_member)
    committed(config, "other")
    overtaken_once(config, monkeypatch, call=1)
    ours.committed(config.fragments["other"], 2)
    assert versions(config) == {"orders": 0, "other": 3, "joined": 0}


def test_what_another_command_moved_is_not_flipped(config: WarehouseConfig) -> None:
    orders, _ = committed(config, "orders"), committed(config, "other")
    store, names = Store.of(config), ["orders", "joined"]
    ours, theirs = Flips(store, config), Flips(store, config)
    ours.move([orders, view("joined", 0, orders=0)], {}, names)
    read = ours.newest()
    assert read is not None
    committed(config, "other")
    theirs.committed(config.fragments["other"], 1)
    moved = committed(config, "orders")
    ours.move([moved, view("joined", 1, orders=1)], read.members, names)
    assert versions(config) == {"orders": 1, "other": 1, "joined": 1}, "another component moved"
    with pytest.raises(Locked, match="orders: Another command showed another version"):
        theirs.move([read.members["joined"].marked("late", "now")], read.members, names)
    with pytest.raises(Locked):
        theirs.move([orders, view("joined", 0, orders=0)], {}, names)
    assert versions(config) == {"orders": 1, "other": 1, "joined": 1}
