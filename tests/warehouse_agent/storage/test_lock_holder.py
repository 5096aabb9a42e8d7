"""LOCKED says who holds the fragment, where and since when."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
from driftline.errors import Locked

from warehouse_agent.storage.store import Store


def test_the_holder_is_named_while_it_holds(tmp_path: Path) -> None:
    store, lock = Store(str(tmp_path)), tmp_path / "_driftline/locks/orders"
    with store.lock("orders"):
        with pytest.raises(Locked) as caught, Store(str(tmp_path)).lock("orders"):
            pass
        said = caught.value.message
        assert f"process {os.getpid()} of " in said
        assert f" on {socket.gethostname()}, since {datetime.now(UTC):%Y-%m-%dT}" in said
    assert lock.read_bytes() == b""
    with store.lock("orders"):
        assert lock.read_bytes()


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"\xff", b'{"pid": 1}', b"[" * 4000])
def test_a_file_that_says_nothing(tmp_path: Path, line: bytes) -> None:
    """As an older release leaves it."""
    store, lock = Store(str(tmp_path)), tmp_path / "_driftline/locks/orders"
    with store.lock("orders"):
        lock.write_bytes(line)
        with pytest.raises(Locked) as caught, Store(str(tmp_path)).lock("orders"):
            pass
    assert caught.value.message == "Another warehouse agent works on this table."
