"""The benchmark of parts without scans, at a small size: the gain that it must show."""

from __future__ import annotations

from pathlib import Path

from benchmarks.refreshes.groups_without_scans import measure
from tests.harness.legacy import PostgresLegacy
from tests.harness.servers import PostgreSQL


def test_parts_find_three_times_what_a_uniform_draw_would(
    postgresql: PostgreSQL, tmp_path: Path
) -> None:
    legacy = PostgresLegacy(postgresql)
    try:
        found = measure(legacy, tmp_path, rows=20_000, changes=200, learnt=10, rounds=2)
    finally:
        legacy.close()
    assert found.changed == 400
    assert found.scans == 0
    assert found.gain >= 3
