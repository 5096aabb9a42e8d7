"""What of a snapshot must be there before any of it is shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from warehouse_agent.components.state import _is_whole
from warehouse_agent.storage.table import Snapshot


def head(version: int, as_of: str, **beside: int) -> Snapshot:
    record = SimpleNamespace(as_of=as_of, beside=beside)
    return cast("Snapshot", SimpleNamespace(version=version, record=record))


@pytest.mark.parametrize(
    ("items", "is_whole"),
    [
        (head(2, "at 2", orders=2), True),
        (head(1, "at 1", orders=1), False),
        (head(2, "at 3", orders=2), False),  # of another command, which took its version's number
        (head(3, "at 3", orders=3), True),  # later ones come behind it, where there are locks
        (None, False),
    ],
)
def test_versions_of_one_snapshot(items: Snapshot | None, is_whole: bool) -> None:
    orders = head(2, "at 2", items=2)
    assert _is_whole(orders, {"orders": orders, "items": items}, {}) is is_whole
    assert _is_whole(orders, {"orders": orders}, {})  # one that left the component
