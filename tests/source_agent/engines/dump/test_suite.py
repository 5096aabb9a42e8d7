"""Dump files pass the parts of the engines' suite that a file can keep.

Left out, because a file has none of it: SQL (`query`, `where`, views, templates), an index, an
order, logins, a connection that could write, and types of its own (`test_reads`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_engines import (  # noqa: F401 - collected here, with this `legacy`
    test_a_row_above_the_limit_is_refused,
    test_a_scan_may_be_abandoned,
    test_a_snapshot_stays_while_a_writer_writes,
    test_grants_scan_cost_and_privileges,
    test_null_keys_and_duplicates_are_passed_on,
    test_ranges_are_what_a_scan_has_there,
    test_ranges_may_end_early,
    test_wide_rows_come_in_small_batches,
)
from tests.harness.legacy_dump import OfDump


@pytest.fixture
def legacy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OfDump]:
    made = OfDump(tmp_path / "erp", monkeypatch)
    yield made
    made.close()
