"""Storage that is no disk, in a folder: it has no call that makes an entry of a log unless there is
one already, as an object store through pyarrow has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from warehouse_agent.storage.store import Store


@contextmanager
def no_disk() -> Iterator[None]:
    """Take the warehouses of this process for such storage."""
    with pytest.MonkeyPatch.context() as remote:
        remote.setattr(Store, "is_local", property(lambda _: False))
        remote.setattr(Store, "table", lambda self, name: f"{self.root}/{name}")
        known = Store._at
        remote.setattr(Store, "_at", lambda self, *parts: _on_disk(known, self, parts))
        yield


def _on_disk(known: Callable[..., Any], store: Store, parts: tuple[str, ...]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "is_local", property(lambda _: True))
        return known(store, *parts)
