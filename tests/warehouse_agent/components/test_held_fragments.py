"""Locks of held fragments."""

from __future__ import annotations

from pathlib import Path

import pytest
from driftline.errors import Locked

from warehouse_agent.components.held_fragments import HeldFragments
from warehouse_agent.storage.store import Store


def test_a_turn_that_is_over_takes_no_lock(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    held = HeldFragments(store, ["a", "b"])
    held.lock("a")
    with pytest.raises(Locked), store.lock("a"):
        pass
    held.abandon()  # as another thread does after Ctrl-C
    with pytest.raises(Locked, match="b: The command is being ended"):
        held.lock("b")
    for name in ("a", "b"):
        with store.lock(name):
            pass
