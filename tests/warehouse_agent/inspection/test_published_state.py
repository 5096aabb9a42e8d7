"""What is known of a published table."""

from __future__ import annotations

from typing import cast

from warehouse_agent.columns.layout import Layout
from warehouse_agent.inspection.published_state import INTERVAL_S, interval_s
from warehouse_agent.storage.table import Snapshot, VersionRecord


def test_the_interval_of_versions() -> None:
    def of(version: int, published_at: str) -> tuple[int, VersionRecord]:
        record = VersionRecord(
            as_of="", checked_at="", consistency="", proof="", rows=0, published_at=published_at
        )
        return version, record

    version, record = of(9, "2026-01-11T00:00:00Z")
    newest = Snapshot(version, "", (), cast("Layout", None), record, None)
    assert interval_s(newest, None) == interval_s(newest, (version, record)) == INTERVAL_S
    assert interval_s(newest, of(4, "2026-01-01T00:00:00Z")) == 2 * 86_400
    assert interval_s(newest, of(4, "2026-01-11T00:00:00Z")) == 1, "two in a second"
