"""Pages read and formulas of Carnes and Hanson, on a small relation in a server of its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.source.carnes import Pages, Setting, measure, table
from tests.harness.servers import PostgreSQL


@pytest.mark.starts
def test_formulas_hold_for_neighbours_and_an_index_saves_pages() -> None:
    """Scattered changes read more pages than the formulas say where a copy is at the source."""
    with PostgreSQL() as server:
        near = measure(server, Setting(8000, columns=3, share=0.02, is_scattered=False))
        far = measure(server, Setting(8000, columns=3, share=0.02, is_scattered=True))
        few = measure(server, Setting(8000, 3, share=0.02, is_scattered=False, copied=0.1))
    assert near["RSBC"].measured is near["P/SWC"].measured is None
    assert near["RSBC"].formula == 3 * near["P/SWC"].formula
    for way in ("MDS", "TLCS", "ID/RCS", "TS"):
        assert abs(read(near, way) - near[way].formula) <= 0.2 * near[way].formula, way
        # A copy of a tenth of the rows.
        assert 0.8 * few[way].formula <= read(few, way) < read(near, way) / 5, way
    for way in ("TDI", "ATDI"):
        assert read(near, way) < read(near, "TS") / 5
    assert read(far, "TLCS") > 1.2 * read(near, "TLCS"), "rows of the copy are looked up"
    assert read(far, "ID/RCS") <= 1.2 * far["ID/RCS"].formula, "the copy is elsewhere"
    lines = list(table("columns published", [("30 %", near)]))
    assert lines[0].startswith("| columns published | RSBC | P/SWC | MDS |")
    assert lines[2].count("|") == lines[0].count("|")


def read(measured: Mapping[str, Pages], way: str) -> int:
    found = measured[way].measured
    assert found is not None
    return found
