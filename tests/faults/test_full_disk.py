"""The warehouse's disk is full at every write of a refresh, one after the other.

Only so many pages of a real file system are free: none, one, two, until a refresh passes. So each
write is once the first that finds no room, whoever makes it: Python, Arrow or delta-rs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.disk import Mount
from tests.harness.fault_rig import Rig
from tests.harness.legacy import SqliteLegacy
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage import store

pytestmark = pytest.mark.slow
PAGE = 4096
PAGES_MAX = 120


@pytest.fixture
def rig(tmp_path: Path, small_disk: Mount, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(store, "RESERVE_BYTES", 0)  # it would end the refresh before most writes
    disk = small_disk(2)
    with Rig(SqliteLegacy(tmp_path / "erp.db"), tmp_path / "pair") as made:
        made.pair.warehouse = disk / "warehouse"
        made.legacy.execute("DELETE FROM t WHERE id >= 40")  # fewer pages
        yield made


def test_full_at_every_write(rig: Rig) -> None:
    """The version stays, or is the next one; with room, the next refresh converges."""
    filler = rig.pair.warehouse.parent / "filler"
    failures: list[dict[str, Any]] = []
    for pages in range(PAGES_MAX):
        rig.prepare("change")
        before = rig.pair.version("t"), rig.published()
        fill(filler, pages)
        (report,) = rig.pair.reports("t", options=Options(allow_shrink=True))
        filler.unlink()
        if report.error is not None:
            failures.append(report.error)
        rig.check(before)
        if pages > len(failures) + 3:  # what is lost without an error, like notes, has its turn
            break
    else:
        pytest.fail("no refresh passed")
    for error in failures:
        assert error["code"] == "WAREHOUSE", error
        message = error["message"]
        assert str(rig.pair.warehouse) in message, error
        assert re.search(r"[\d,]+ bytes are needed, and [\d,]+ are free", message), error
    said = "\n".join(error["message"] for error in failures)
    for place in ("staging/t/", "/t/data-", "changes/t/", "could not be committed"):
        assert place in said, said


def fill(file: Path, pages: int) -> None:
    """Leave so many pages of the disk free."""
    disk = os.statvfs(file.parent)
    file.write_bytes(bytes(disk.f_bavail * disk.f_frsize - pages * PAGE))
