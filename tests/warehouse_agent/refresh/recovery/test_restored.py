"""Tests of what is noted of the newest version after a refresh."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from driftline.errors import WarehouseUnavailable

from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.storage.store import Store


def test_a_table_that_vanished_after_its_commit_is_an_error(tmp_path: Path) -> None:
    """The commit suppresses it, because notes may be lost; nothing else fails on it."""
    job = cast("Job", SimpleNamespace(store=Store(str(tmp_path)), name="orders"))
    with pytest.raises(WarehouseUnavailable, match="gone"):
        restored.newest_head(job, None, 0)
