"""A warehouse without locks, as on an object store: only the log's put-if-absent decides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from warehouse_agent.storage.locks import FileLock
from warehouse_agent.storage.store import Store


@contextlib.contextmanager
def _no_lock(_store: Store, _name: str) -> Iterator[FileLock]:
    yield FileLock()


def without_locks(patch: pytest.MonkeyPatch) -> None:
    """Let no command wait for another one until the patch is undone."""
    patch.setattr(Store, "lock", _no_lock)
