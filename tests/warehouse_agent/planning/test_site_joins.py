"""Joins at a site are advised by bytes and by what its database reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warehouse_agent.planning.choice import CHANGE_SHARE
from warehouse_agent.planning.site_joins import (
    COMPARISON_BYTES,
    FOUND_ROW_BYTES,
    READS_SHARE,
    SiteJoinPrice,
)

# lineitem of TPC-H at scale 0.1, as of Q3: benchmarks/views/site_joins.py
LINES = SiteJoinPrice("lineitem", 600_000, 60_000, 40.0, 600, 165_000, ("customer", "orders"))


def test_a_price_is_rows_and_one_comparison() -> None:
    assert LINES.load_bytes == (COMPARISON_BYTES + 24_000_000, COMPARISON_BYTES + 2_400_000)
    each = 40 + FOUND_ROW_BYTES
    assert LINES.refresh_bytes == (COMPARISON_BYTES + 600 * each, COMPARISON_BYTES + 60 * each)
    first = replace(LINES, changed=None)
    assert first.refresh_bytes[0] == COMPARISON_BYTES + 600_000 * CHANGE_SHARE * each
    assert "60,000 of the 600,000 rows of lineitem: 2,400,850 bytes of 24,000,850" in (
        LINES.describe()
    )
    assert LINES.describe().endswith("165,000 rows of customer, orders")


@pytest.mark.parametrize(
    ("facts", "is_advised"),
    [
        ({}, True),
        ({"joined": 310_000}, False),  # more than half of the rows join
        ({"read": int(READS_SHARE * 540_000)}, True),
        ({"read": int(READS_SHARE * 540_000) + 1}, False),
        ({"rows": 40, "joined": 4, "changed": 1, "read": 9}, False),  # the comparison costs more
        ({"rows": 0, "joined": 0, "changed": 0, "read": 0}, False),
    ],
)
def test_joins_are_advised_where_they_save_bytes_and_reads(
    facts: dict[str, int], is_advised: bool
) -> None:
    assert replace(LINES, **facts).is_advised == is_advised  # type: ignore[arg-type]
