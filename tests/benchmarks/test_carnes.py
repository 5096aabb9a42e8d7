"""Pages read and formulas of Carnes and Hanson, on a small relation in a server of its own."""

from __future__ import annotations

import pytest

from benchmarks.source.carnes import Setting, measure, table
from tests.harness.servers import PostgreSQL


@pytest.mark.starts
def test_formulas_hold_for_neighbours_and_an_index_saves_pages() -> None:
    """Scattered changes read more pages than the formulas say, wherever rows are looked up."""
    with PostgreSQL() as server:
        near = measure(server, Setting(8000, columns=3, share=0.02, is_scattered=False))
        far = measure(server, Setting(8000, columns=3, share=0.02, is_scattered=True))
        few = measure(server, Setting(8000, 3, share=0.02, is_scattered=False, copied=0.1))
    for way in ("full read", "MDS", "TS", "ID/RCS"):
        assert abs(near[way].measured - near[way].formula) <= 0.2 * near[way].formula, way
    for way in ("TDI", "ATDI"):
        assert near[way].measured < near["full read"].measured / 5
        assert far[way].measured > 2 * near[way].measured
    for way in ("full read", "MDS", "TS", "ID/RCS"):  # a copy of a tenth of the rows
        assert 0.8 * few[way].formula <= few[way].measured < near[way].measured / 5, way
    lines = list(table("columns published", [("30 %", near)]))
    assert lines[0].startswith("| columns published | full read | MDS |")
    assert lines[2].count("|") == lines[0].count("|")
